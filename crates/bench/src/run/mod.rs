//! One rank of a benchmark run: inputs, ceiling, timed calls, verification; and at rank 0 the result of all.

mod ceiling;
mod error;
mod gpu;
mod inputs;
mod measure;
mod rails;
mod report;
mod verify;

use std::time::Duration;

use expertrail::{Backend, Communicator, Group, Layout, Placement, Routing, Topology};

pub use error::BenchError;
pub use gpu::{GpuOptions, Gpus, choose};
pub use rails::Across;
pub use report::{Outcome, guide_text, now_rfc3339};

pub(crate) use rails::agree;

use crate::preset::{Resolved, Scope};
use crate::routing_file::{Replay, Wanted};
use crate::schema::{RowsIn, VerifyMode};
use crate::workload::RoutingSpec;

/// Everything a run is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Shape, topology, types, iterations.
    pub resolved: Resolved,
    /// Router decisions of every rank, read from files ([`replay`]), instead of drawn ones.
    pub replayed: Option<Vec<Routing>>,
    /// The files they were read from, for the result.
    pub routing_files: Vec<String>,
    /// Zipf exponent of drawn routing.
    pub skew: f64,
    /// Seed of everything drawn.
    pub seed: u64,
    /// How much is compared with the oracle.
    pub verify: VerifyMode,
    /// How long any wait may take.
    pub deadline: Duration,
    /// What moves the rows; `Auto` must have been settled ([`choose`]), or else CPUs do.
    pub backend: Backend,
    /// What a run on GPUs is told beside.
    pub gpu: GpuOptions,
    /// How ranks reach other nodes; `None` where declared nodes share memory.
    pub across: Option<Across>,
    /// Order of the received rows.
    pub layout: Layout,
    /// Where combine's rows lie on the CPU; on GPUs [`GpuOptions::combine_inputs`] says.
    pub combine_input: RowsIn,
    /// The most shared memory for all ranks of a host; on GPUs the most symmetric memory of each.
    pub memory_limit: Option<u64>,
    /// The command line, for the result.
    pub command: Vec<String>,
}

/// Reads the routing of `ranks` ranks from `files`; what the caller did not set (`want`) is taken from them.
///
/// # Errors
/// For files that do not fit, naming the file, what was wanted and what was found.
pub fn replay(files: &[String], ranks: usize, want: &Wanted) -> Result<Vec<Routing>, BenchError> {
    Ok(Replay::new(files, ranks)?.load_all(want)?)
}

impl Options {
    fn spec(&self) -> RoutingSpec {
        RoutingSpec {
            with_replacement: self.resolved.with_replacement,
            skew: self.skew,
            ..RoutingSpec::uniform(self.resolved.shape.top_k, self.resolved.shape.experts, self.seed)
        }
    }
}

/// The ranks that dispatch to each other: all, or those of this rank's node.
pub(crate) struct Team {
    pub(crate) comm: Communicator,
    /// Global ranks, in the order of the team's ranks.
    pub(crate) ranks: Vec<usize>,
    pub(crate) topology: Topology,
    pub(crate) placement: Placement,
}

impl Team {
    pub(crate) fn me(&self) -> usize {
        self.comm.rank()
    }
}

/// Runs one rank. Collective over `world`; rank 0 gets the outcome of all. `progress` is told of finished and
/// all iterations.
///
/// # Errors
/// For anything that stops the run; wrong rows do not, they fail its verdict.
pub fn run(
    world: &Group,
    options: Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<Outcome>, BenchError> {
    options.layout.check()?;
    let started_at = report::now_rfc3339();
    let topology = options.resolved.topology;
    let (members, team_topology, subset) = match options.resolved.scope {
        Scope::World => ((0..world.size()).collect(), topology, None),
        Scope::Node => {
            let first = topology.node_of(world.rank()) * topology.ranks_per_node();
            let members: Vec<usize> = (first..first + topology.ranks_per_node()).collect();
            let subset = world.subset("one group per node", &members)?;
            let one_node = Topology::one_node(members.len())?;
            (members, one_node, Some(subset))
        }
    };
    if options.backend == Backend::Cuda {
        let group = subset.as_ref().unwrap_or(world);
        let place = gpu::Place { group, members, topology: team_topology };
        return gpu::run(world, &options, place, started_at, progress);
    }
    let rotation = inputs::Rotation::choose(&options, &team_topology);
    let comm = Communicator::builder(subset.as_ref().unwrap_or(world))
        .backend(options.backend)
        .shape(options.resolved.shape)
        .ranks_per_node(team_topology.ranks_per_node())
        .live_outputs(2 + rotation.expert_sets)
        .deadline(options.deadline);
    let comm = match options.memory_limit {
        Some(bytes) => comm.memory_limit(bytes),
        None => comm,
    };
    // An endpoint of its own beside the communicator's, so that both are measured in the same run.
    let mut raw =
        options.across.as_ref().map(|across| rails::Raw::open(world, &options, across)).transpose()?;
    if let Some(raw) = &mut raw {
        raw.measure(world, options.deadline)?;
    }
    let comm = match &options.across {
        Some(across) => comm.build_across(across.rails.crossing())?,
        None => comm.build()?,
    };
    let placement = Placement::new(options.resolved.shape.experts, members.len())?;
    let team = Team { comm, ranks: members, topology: team_topology, placement };

    let ceiling = ceiling::measure(world, &team)?;
    let inputs = inputs::Inputs::make(&options, &team, rotation)?;
    let run = measure::measure(&options, &team, &inputs, progress)?;
    if let Some(raw) = &mut raw {
        raw.measure(world, options.deadline)?;
    }
    let raw = raw.map(rails::Raw::into_rates);
    let card = report::card(&options, &team, &inputs, (run, raw));
    let cards = world.all_gather("benchmark results", &card)?;
    if world.rank() != 0 {
        return Ok(None);
    }
    report::outcome(&report::Run { world, options, inputs: &inputs, ceiling, started_at }, &cards).map(Some)
}
