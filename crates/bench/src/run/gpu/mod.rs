//! A run on GPUs: one process for each, all of one host.
//!
//! The calls are timed by CUDA events on the communicator's stream; see [`measure`] for the spans. What came back is
//! compared on the device with rows made anew ([`check`], `crates/cuda/kernels/bench.cu`), and a sample of it on the
//! CPU. The ceiling of the links is measured in the same run ([`ceiling`]).

mod ceiling;
mod check;
mod detect;
mod inputs;
mod kernels;
mod measure;
mod report;

use std::fmt;

use expertrail::cuda::{Driver, Search, default_sms};
use expertrail::{Backend, Communicator, CudaCommunicator, Dtype, Group, Placement, Topology};
use serde::{Deserialize, Serialize};

pub use detect::{Gpus, choose};

use super::{BenchError, Options, Outcome};
use crate::schema::{Op, RowsIn};
use inputs::Rotation;

/// What a run on GPUs is told beside the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// SM counts, each measured by itself; none for the library's own rule.
    pub sms: Vec<u32>,
    /// What dispatch moves, each measured by itself; the first is also dispatched with a cached handle.
    pub dtypes: Vec<Dtype>,
    /// Where the rows that combine takes lie, each measured by itself.
    pub combine_inputs: Vec<RowsIn>,
}

impl GpuOptions {
    /// For a workload that dispatches `dtype`: BF16 first, so that it is what goes with a cached handle, and FP8 too
    /// where the workload has it, unless the caller named one of them (`only`).
    pub fn new(sms: Vec<u32>, dtype: Dtype, only: bool, combine_inputs: Vec<RowsIn>) -> Self {
        let dtypes = match (dtype, only) {
            (Dtype::Fp8E4m3, false) => vec![Dtype::Bf16, Dtype::Fp8E4m3],
            _ => vec![dtype],
        };
        let mut once = Vec::with_capacity(sms.len());
        for sms in sms {
            if !once.contains(&sms) {
                once.push(sms);
            }
        }
        Self { sms: once, dtypes, combine_inputs }
    }
}

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Case {
    op: Op,
    fp8: bool,
    input: Option<RowsIn>,
    sms: u32,
}

impl Case {
    fn dtype(self) -> Dtype {
        if self.fp8 { Dtype::Fp8E4m3 } else { Dtype::Bf16 }
    }

    /// What travels beside the rows.
    fn carries(self) -> Vec<String> {
        let scales = self.fp8.then_some("scales");
        let metadata: &[&str] = if self.op == Op::Dispatch { &["ids", "weights"] } else { &[] };
        scales.into_iter().chain(metadata.iter().copied()).map(str::to_owned).collect()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.op, self.dtype())?;
        if let Some(input) = self.input {
            write!(f, ", {input}")?;
        }
        write!(f, ", {} SMs", self.sms)
    }
}

/// The cases of one SM count (`None`: the library's rule), in the order in which an iteration runs them.
fn cases(gpu: &GpuOptions, sms: Option<u32>, ranks: usize) -> Vec<Case> {
    let of = |combine| sms.unwrap_or_else(|| default_sms(ranks, combine));
    let is_fp8 = |dtype: &Dtype| *dtype == Dtype::Fp8E4m3;
    let mut cases: Vec<Case> = gpu
        .dtypes
        .iter()
        .map(|dtype| Case { op: Op::Dispatch, fp8: is_fp8(dtype), input: None, sms: of(false) })
        .collect();
    let cached = cases.first().map(|&first| Case { op: Op::DispatchCached, ..first });
    cases.extend(cached);
    let combine = |&input| Case { op: Op::Combine, fp8: false, input: Some(input), sms: of(true) };
    cases.extend(gpu.combine_inputs.iter().map(combine));
    cases
}

/// The ranks that dispatch to each other.
struct GpuTeam<'a> {
    world: &'a Group,
    comm: CudaCommunicator,
    /// Global ranks, in the order of the team's ranks.
    ranks: Vec<usize>,
    topology: Topology,
    placement: Placement,
}

impl GpuTeam<'_> {
    /// A number of every rank of the world.
    fn gather(&self, phase: &'static str, own: u64) -> Result<Vec<u64>, BenchError> {
        gather(self.world, phase, own)
    }
}

fn gather(world: &Group, phase: &'static str, own: u64) -> Result<Vec<u64>, BenchError> {
    let all = world.all_gather(phase, &own.to_le_bytes())?;
    all.iter()
        .enumerate()
        .map(|(rank, bytes)| {
            let reason = || format!("{} bytes for a number ({phase})", bytes.len());
            let number = bytes.as_slice().try_into().map(u64::from_le_bytes);
            number.map_err(|_| BenchError::Report { rank, reason: reason() })
        })
        .collect()
}

/// Whether ranks of different groups, of `ranks` each, are on one host: each group would take its first GPUs.
fn groups_share_a_host(hosts: &[String], ranks: usize) -> bool {
    let groups: Vec<&[String]> = hosts.chunks(ranks.max(1)).collect();
    groups.iter().enumerate().any(|(i, group)| {
        let later = groups[i + 1..].iter().copied().flatten();
        later.into_iter().any(|host| group.contains(host))
    })
}

/// Where a rank is.
pub(super) struct Place<'a> {
    /// The ranks that dispatch to each other.
    pub(super) group: &'a Group,
    pub(super) members: Vec<usize>,
    pub(super) topology: Topology,
}

/// Runs one rank. Collective over `world`; rank 0 gets the outcome.
pub(super) fn run(
    world: &Group,
    options: &Options,
    place: Place<'_>,
    started_at: String,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<Outcome>, BenchError> {
    let ranks = place.members.len();
    if groups_share_a_host(&world.hosts(), ranks) {
        return Err(BenchError::NodesOfOneHost);
    }
    let driver = Driver::load(&Search::driver()).map_err(expertrail::CudaError::from)?;
    let rotation = agreed(world, Rotation::of(options, &driver.device(0)?, ranks)?)?;
    let comm = Communicator::builder(place.group)
        .backend(Backend::Cuda)
        .shape(options.resolved.shape)
        .ranks_per_node(place.topology.ranks_per_node())
        .live_outputs(live_outputs(options, rotation, ranks))
        .deadline(options.deadline);
    let comm = match options.memory_limit {
        Some(bytes) => comm.memory_limit(bytes),
        None => comm,
    };
    let comm = comm.build_cuda()?;
    let placement = Placement::new(options.resolved.shape.experts, ranks)?;
    let team = GpuTeam { world, comm, ranks: place.members, topology: place.topology, placement };

    let kernels = kernels::BenchKernels::load(team.comm.context(), &Search::nvrtc())?;
    if let Some(&asked) = options.gpu.sms.iter().find(|&&sms| sms > kernels.sms()) {
        return Err(BenchError::Sms { asked, there: kernels.sms() });
    }
    let links = ceiling::links(&team, &kernels, options.deadline)?;
    let sweep: Vec<Option<u32>> = match options.gpu.sms.as_slice() {
        [] => vec![None],
        sms => sms.iter().copied().map(Some).collect(),
    };
    let inputs = inputs::Inputs::make(options, &team, &kernels, rotation)?;
    let gpu = GpuOptions { combine_inputs: inputs.rows_in.clone(), ..options.gpu.clone() };
    let cases: Vec<Vec<Case>> = sweep.iter().map(|&sms| cases(&gpu, sms, ranks)).collect();
    let link_ceiling = match &links {
        Some(links) if ranks > 1 => ceiling::measure(&team, &kernels, links, &cases)?,
        _ => None,
    };
    let nvrtc = kernels.nvrtc.clone();
    let checker = check::Checker::new(options, &team, &inputs, kernels);
    let samples = measure::measure(options, &team, &inputs, (checker, links.as_ref()), &cases, progress)?;
    // Peers may write to this rank's memory until all are here.
    team.comm.barrier()?;
    if let Some(links) = links {
        links.end();
    }
    let origin = team.comm.kernels_from().to_string();
    let facts = report::Facts { origin, nvrtc, driver: driver.version().to_string() };
    let card = report::card(options, &team, &inputs, samples, link_ceiling, facts)?;
    let cards = world.all_gather("benchmark results", &card)?;
    if world.rank() != 0 {
        return Ok(None);
    }
    report::outcome(world, options, &cards, started_at).map(Some)
}

/// Ranks make the same calls, so they rotate alike: as the one that has least memory.
fn agreed(world: &Group, own: Rotation) -> Result<Rotation, BenchError> {
    let least = |phase, own| -> Result<u64, BenchError> {
        Ok(gather(world, phase, own)?.into_iter().min().unwrap_or(own))
    };
    Ok(Rotation {
        token_sets: least("token sets", own.token_sets as u64)? as usize,
        expert_sets: least("expert sets", own.expert_sets as u64)? as usize,
        hot: least("cold inputs", u64::from(!own.hot))? == 0,
    })
}

/// Outputs that the pool must hold: those of calls that follow each other, expert rows, and what is pushed for the
/// ceiling.
fn live_outputs(options: &Options, rotation: Rotation, ranks: usize) -> usize {
    let row = options.resolved.shape.hidden as u64 * 2;
    let output = (inputs::expected_rows(options, ranks) * row).max(1);
    let pushed = (ceiling::ROOM as u64).div_ceil(output).clamp(1, 64) as usize;
    let shared = options.gpu.combine_inputs.contains(&RowsIn::Shared);
    4 + pushed + if shared { rotation.expert_sets } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_fp8_workload_is_measured_in_both_types_unless_one_is_named() {
        let dtypes = |dtype, only| GpuOptions::new(vec![], dtype, only, vec![]).dtypes;
        assert_eq!(dtypes(Dtype::Fp8E4m3, false), [Dtype::Bf16, Dtype::Fp8E4m3]);
        assert_eq!(dtypes(Dtype::Fp8E4m3, true), [Dtype::Fp8E4m3]);
        assert_eq!(dtypes(Dtype::Bf16, false), [Dtype::Bf16]);
        // An SM count given twice is measured once.
        assert_eq!(GpuOptions::new(vec![16, 8, 16], Dtype::Bf16, false, vec![]).sms, [16, 8]);
    }

    #[test]
    fn cases_of_an_sm_count() {
        let gpu = GpuOptions::new(vec![16], Dtype::Fp8E4m3, false, vec![RowsIn::Private, RowsIn::Shared]);
        let names: Vec<String> = cases(&gpu, Some(12), 2).iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "dispatch bf16, 12 SMs",
                "dispatch fp8, 12 SMs",
                "dispatch_cached bf16, 12 SMs",
                "combine bf16, private, 12 SMs",
                "combine bf16, shared, 12 SMs"
            ]
        );
        // Two ranks: the rule says 16 for both.
        assert!(cases(&gpu, None, 2).iter().all(|case| case.sms == 16));
    }

    #[test]
    fn what_travels_beside_the_rows() {
        let case = |op, fp8| Case { op, fp8, input: None, sms: 16 }.carries();
        assert_eq!(case(Op::Dispatch, true), ["scales", "ids", "weights"]);
        assert_eq!(case(Op::Dispatch, false), ["ids", "weights"]);
        assert_eq!(case(Op::DispatchCached, true), ["scales"]);
        assert!(case(Op::Combine, false).is_empty());
    }

    #[test]
    fn groups_of_one_host_are_found_and_those_of_several_are_not() {
        let hosts = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(groups_share_a_host(&hosts("a a a a"), 2));
        assert!(groups_share_a_host(&hosts("a a b b a a"), 2));
        assert!(!groups_share_a_host(&hosts("a a b b"), 2));
        assert!(!groups_share_a_host(&hosts("a a a a"), 4));
    }
}
