//! Inputs of a rank in device memory, in sets that rotate past the L2 cache, and what every call must give.

use expertrail::core::account::{self, Traffic};
use expertrail::core::oracle;
use expertrail::core::output::uniform_arrivals;
use expertrail::cuda::{
    Attribute, Context, CudaError, CudaRows, Device, DeviceIds, DeviceMemory, DevicePayload, DeviceRows,
    DeviceSlice, Scales,
};
use expertrail::{Dtype, Layout, Routing};

use super::kernels::{BenchKernels, Named};
use super::{GpuTeam, Options};
use crate::run::BenchError;
use crate::run::verify::Places;
use crate::schema::RowsIn;
use crate::workload::{self, Tensor};

/// `CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE`.
const L2_BYTES: Attribute = Attribute(38);

/// More sets than this are not made, however small a set is.
const MOST_SETS: u64 = 64;

/// How many sets of inputs take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rotation {
    pub(super) token_sets: usize,
    pub(super) expert_sets: usize,
    /// Whether one of them fits the L2 cache after all.
    pub(super) hot: bool,
}

impl Rotation {
    /// Sets of `tokens` and of `experts` bytes, each more than twice the L2 cache of `l2` bytes together, within a
    /// third of `memory` bytes.
    pub(super) fn choose(tokens: u64, experts: u64, l2: u64, memory: u64) -> Self {
        let beyond = 2 * l2;
        let sets = |bytes: u64| (beyond / bytes.max(1) + 1).clamp(1, MOST_SETS);
        // Two routings at least: a call must not find the output of the one before to be right.
        let (mut token_sets, mut expert_sets) = (sets(tokens).max(2), sets(experts));
        while token_sets * tokens + expert_sets * experts > memory / 3 && (token_sets > 2 || expert_sets > 1)
        {
            token_sets = (token_sets / 2).max(2);
            expert_sets = (expert_sets / 2).max(1);
        }
        let hot = token_sets * tokens <= beyond || expert_sets * experts <= beyond;
        Self { token_sets: token_sets as usize, expert_sets: expert_sets.min(token_sets) as usize, hot }
    }

    /// For the settings of a run on this device.
    pub(super) fn of(options: &Options, device: &Device, ranks: usize) -> Result<Self, BenchError> {
        let shape = options.resolved.shape;
        let per_token: usize =
            options.gpu.dtypes.iter().map(|dtype| dtype.wire_row_bytes(shape.hidden)).sum();
        let l2 = device.attribute(L2_BYTES)?.max(0) as u64;
        let tokens = (shape.max_tokens * per_token) as u64;
        let experts = expected_rows(options, ranks) * 2 * shape.hidden as u64;
        Ok(Self::choose(tokens, experts, l2, device.memory()? as u64))
    }
}

/// Rows that a rank will receive when all choices are alike.
pub(super) fn expected_rows(options: &Options, ranks: usize) -> u64 {
    let shape = options.resolved.shape;
    uniform_arrivals(shape.max_tokens, ranks, shape.top_k) as u64
}

/// Tokens of one set.
struct Tokens {
    bf16: Option<DeviceMemory>,
    fp8: Option<(DeviceMemory, DeviceMemory)>,
}

/// Expert output of one set, the same rows wherever they lie.
struct Experts {
    private: Option<DeviceMemory>,
    shared: Option<CudaRows>,
}

/// One routing: what this rank sends, and what it must receive.
struct Routed {
    ids: DeviceMemory,
    weights: DeviceMemory,
    tokens: usize,
    expected: Expected,
}

/// What a dispatch and a combine must give.
pub(super) struct Expected {
    /// (source among the team's ranks, token) of each row.
    pub(super) arrivals: Vec<(u32, u32)>,
    pub(super) expert_counts: Vec<u32>,
    /// Global rank and token of each row.
    pub(super) origins: DeviceMemory,
    pub(super) ids: DeviceMemory,
    pub(super) weights: DeviceMemory,
    pub(super) source_tokens: DeviceMemory,
    /// By own token and team rank: the row at that rank, or `u32::MAX`.
    pub(super) places: Vec<u32>,
    pub(super) places_on_device: DeviceMemory,
}

/// Everything a rank sends.
pub(super) struct Inputs {
    pub(super) rotation: Rotation,
    pub(super) routings: Vec<Vec<Routing>>,
    pub(super) traffic: Vec<Traffic>,
    /// Where combine's rows lie: those that were asked for and could be had.
    pub(super) rows_in: Vec<RowsIn>,
    pub(super) warnings: Vec<String>,
    routed: Vec<Routed>,
    tokens: Vec<Tokens>,
    experts: Vec<Experts>,
}

impl Inputs {
    /// Makes them. Collective over the team.
    pub(super) fn make(
        options: &Options,
        team: &GpuTeam<'_>,
        kernels: &BenchKernels,
        rotation: Rotation,
    ) -> Result<Self, BenchError> {
        let (shape, me) = (options.resolved.shape, team.comm.rank());
        let context = team.comm.context();
        let (spec, files) = (options.spec(), options.replayed.as_deref());
        let mut inputs = Self {
            rotation,
            routings: Vec::new(),
            traffic: Vec::new(),
            rows_in: options.gpu.combine_inputs.clone(),
            warnings: Vec::new(),
            routed: Vec::new(),
            tokens: Vec::new(),
            experts: Vec::new(),
        };
        let sets = if files.is_some() { 1 } else { rotation.token_sets };
        for set in 0..sets as u64 {
            let all = match files {
                Some(files) => team.ranks.iter().map(|&rank| files[rank].clone()).collect(),
                None => team
                    .ranks
                    .iter()
                    .map(|&rank| spec.routing(shape.max_tokens, rank, set))
                    .collect::<Result<Vec<_>, _>>()?,
            };
            team.comm.status()?;
            inputs.traffic.push(account::rank_traffic(&team.topology, &team.placement, &all[me], me)?);
            let weights: Vec<Vec<f32>> = all
                .iter()
                .zip(&team.ranks)
                .map(|(r, &rank)| workload::weights(r, options.seed, (rank, set), true))
                .collect();
            inputs.routed.push(Routed::make(context, team, &all, &weights)?);
            inputs.routings.push(all);
        }
        for set in 0..rotation.token_sets {
            inputs.tokens.push(inputs.make_tokens(options, team, kernels, set)?);
        }
        // Alike at all ranks, as symmetric memory must be allocated.
        let own = inputs.routed.iter().map(|routed| routed.expected.arrivals.len()).max().unwrap_or(0);
        let all = team.gather("expert rows", own as u64)?;
        let most = all.into_iter().max().unwrap_or(0) as usize;
        for set in 0..rotation.expert_sets {
            inputs.experts.push(inputs.make_experts(options, team, kernels, (set, most))?);
        }
        let shared = inputs.experts.iter().all(|e| e.shared.as_ref().is_none_or(CudaRows::is_shared));
        if team.gather("rows in symmetric memory", u64::from(shared))?.contains(&0) {
            inputs.rows_in.retain(|&input| input != RowsIn::Shared);
            inputs.warnings.push(
                "combine from symmetric memory was not measured: the pool had no room for its rows (more came \
                 than even routing brings)"
                    .to_owned(),
            );
        }
        Ok(inputs)
    }

    fn make_tokens(
        &self,
        options: &Options,
        team: &GpuTeam<'_>,
        kernels: &BenchKernels,
        set: usize,
    ) -> Result<Tokens, BenchError> {
        let context = team.comm.context();
        let mut tokens = Tokens { bf16: None, fp8: None };
        for &dtype in &options.gpu.dtypes {
            let named = self.named(options, team, dtype, set);
            let rows = DeviceMemory::new(context, named.count * dtype.row_bytes(named.hidden))?;
            match dtype {
                Dtype::Bf16 => {
                    kernels.fill(DeviceSlice::of(&rows), None, &named)?;
                    tokens.bf16 = Some(rows);
                }
                Dtype::Fp8E4m3 => {
                    let words = named.count * dtype.scales_per_row(named.hidden);
                    let scales = DeviceMemory::new(context, 4 * words)?;
                    kernels.fill(DeviceSlice::of(&rows), Some(DeviceSlice::of(&scales)), &named)?;
                    tokens.fp8 = Some((rows, scales));
                }
            }
        }
        Ok(tokens)
    }

    fn make_experts(
        &self,
        options: &Options,
        team: &GpuTeam<'_>,
        kernels: &BenchKernels,
        (set, rows): (usize, usize),
    ) -> Result<Experts, BenchError> {
        let hidden = options.resolved.shape.hidden;
        let named = Named {
            tensor: Tensor::ExpertOutput,
            count: rows,
            ..self.named(options, team, Dtype::Bf16, set)
        };
        let bytes = rows * 2 * hidden;
        let mut experts = Experts { private: None, shared: None };
        for input in &self.rows_in {
            match input {
                RowsIn::Private => {
                    let memory = DeviceMemory::new(team.comm.context(), bytes)?;
                    kernels.fill(DeviceSlice::of(&memory), None, &named)?;
                    experts.private = Some(memory);
                }
                RowsIn::Shared => {
                    let memory = team.comm.alloc_rows(bytes, None)?;
                    // Whatever used that memory before is done.
                    team.comm.stream().synchronize()?;
                    kernels.fill(memory.slice(), None, &named)?;
                    experts.shared = Some(memory);
                }
            }
        }
        Ok(experts)
    }

    /// The own tokens of a set.
    fn named(&self, options: &Options, team: &GpuTeam<'_>, dtype: Dtype, set: usize) -> Named {
        let me = team.comm.rank();
        Named {
            seed: options.seed,
            tensor: Tensor::Tokens,
            rank: team.ranks[me],
            set,
            count: self.routings[set % self.routings.len()][me].tokens(),
            hidden: options.resolved.shape.hidden,
            dtype,
        }
    }

    fn routed(&self, set: usize) -> &Routed {
        &self.routed[set % self.routed.len()]
    }

    /// Routing of every team rank in `set`.
    pub(super) fn routing(&self, set: usize) -> &[Routing] {
        &self.routings[set % self.routings.len()]
    }

    pub(super) fn expected(&self, set: usize) -> &Expected {
        &self.routed(set).expected
    }

    /// Tokens that this rank sends in `set`.
    pub(super) fn token_count(&self, set: usize) -> usize {
        self.routed(set).tokens
    }

    pub(super) fn ids(&self, set: usize) -> DeviceIds<'_> {
        DeviceIds::I64(DeviceSlice::of(&self.routed(set).ids))
    }

    pub(super) fn weights(&self, set: usize) -> DeviceSlice<'_> {
        DeviceSlice::of(&self.routed(set).weights)
    }

    /// The tokens of a set as `dtype`; `None` where that was not asked for.
    pub(super) fn payload(&self, set: usize, dtype: Dtype, hidden: usize) -> Option<DevicePayload<'_>> {
        let tokens = &self.tokens[set];
        let rows = |memory| DeviceRows::new(DeviceSlice::of(memory));
        match dtype {
            Dtype::Bf16 => tokens.bf16.as_ref().map(|memory| DevicePayload::Bf16(rows(memory))),
            Dtype::Fp8E4m3 => tokens.fp8.as_ref().map(|(codes, scales)| DevicePayload::Fp8 {
                codes: rows(codes),
                scales: Scales::row_major(DeviceSlice::of(scales), dtype.scales_per_row(hidden)),
            }),
        }
    }

    /// Which set of expert output goes with a set of tokens.
    pub(super) fn expert_set(&self, set: usize) -> usize {
        set % self.experts.len()
    }

    /// The first `bytes` bytes of expert output; `None` where it is not there.
    pub(super) fn experts(&self, set: usize, input: RowsIn, bytes: usize) -> Option<DeviceRows<'_>> {
        let experts = &self.experts[self.expert_set(set)];
        let slice = match input {
            RowsIn::Private => DeviceSlice::of(experts.private.as_ref()?),
            RowsIn::Shared => experts.shared.as_ref()?.slice(),
        };
        slice.part(0, bytes).map(DeviceRows::new)
    }
}

impl Routed {
    fn make(
        context: &Context,
        team: &GpuTeam<'_>,
        all: &[Routing],
        weights: &[Vec<f32>],
    ) -> Result<Self, BenchError> {
        let me = team.comm.rank();
        let mine = &all[me];
        let want = oracle::dispatch(&team.placement, Layout::BySource, me, |source| &all[source]);
        let top_k = mine.top_k();
        let origins = want
            .arrivals
            .iter()
            .map(|&(source, token)| (team.ranks[source as usize] as u64) << 32 | u64::from(token));
        let received = received_weights(&want, weights, top_k);
        let places = places(team, all);
        let expected = Expected {
            origins: upload(context, origins, u64::to_ne_bytes)?,
            ids: upload(context, want.local_ids.iter().copied(), i32::to_ne_bytes)?,
            weights: upload(context, received.iter().copied(), f32::to_ne_bytes)?,
            source_tokens: upload(context, want.arrivals.iter().map(|&(_, token)| token), u32::to_ne_bytes)?,
            places_on_device: upload(context, places.iter().copied(), u32::to_ne_bytes)?,
            places,
            expert_counts: want.expert_counts,
            arrivals: want.arrivals,
        };
        Ok(Self {
            ids: upload(context, mine.ids().iter().map(|&id| i64::from(id)), i64::to_ne_bytes)?,
            weights: upload(context, weights[me].iter().copied(), f32::to_ne_bytes)?,
            tokens: mine.tokens(),
            expected,
        })
    }
}

/// Weights as they arrive: those of choices that are no experts of this rank are 0.
fn received_weights(want: &oracle::Expected, sent: &[Vec<f32>], top_k: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(want.local_ids.len());
    for (&(source, token), ids) in want.arrivals.iter().zip(want.local_ids.chunks_exact(top_k.max(1))) {
        let from = token as usize * top_k;
        let sent = &sent[source as usize][from..from + top_k];
        out.extend(ids.iter().zip(sent).map(|(&id, &weight)| if id >= 0 { weight } else { 0.0 }));
    }
    out
}

/// By own token and rank: the row at that rank, or `u32::MAX`.
fn places(team: &GpuTeam<'_>, all: &[Routing]) -> Vec<u32> {
    let (me, ranks) = (team.comm.rank(), team.placement.ranks());
    let mut walk = Places::new(&team.placement, me, Layout::BySource, all);
    let mut places = vec![u32::MAX; all[me].tokens() * ranks];
    for (token, places) in places.chunks_exact_mut(ranks).enumerate() {
        for (owner, rows) in walk.next(&team.placement, all[me].row(token)) {
            places[owner] = rows.first().map_or(u32::MAX, |&row| row as u32);
        }
    }
    places
}

fn upload<T, const N: usize>(
    context: &Context,
    values: impl Iterator<Item = T>,
    bytes: impl Fn(T) -> [u8; N],
) -> Result<DeviceMemory, CudaError> {
    let bytes: Vec<u8> = values.flat_map(bytes).collect();
    let mut memory = DeviceMemory::new(context, bytes.len())?;
    memory.write(0, &bytes)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_go_past_twice_the_cache() {
        let (l2, free) = (50 << 20, 130 << 30);
        // 4096 x 7168 in BF16 and FP8, 8192 rows back: 88.5 MB and 117 MB against 104.9 MB.
        let deepseek = Rotation::choose(4096 * (14_336 + 7392), 8192 * 14_336, l2, free);
        assert_eq!(deepseek, Rotation { token_sets: 2, expert_sets: 1, hot: false });
        // 1024 x 2048: 4.2 MB, 26 sets; 8.4 MB, 13 sets.
        let quick = Rotation::choose(1024 * 4096, 2048 * 4096, l2, free);
        assert_eq!(quick, Rotation { token_sets: 26, expert_sets: 13, hot: false });
        assert!(Rotation::choose(1 << 10, 1 << 10, l2, free).hot);
        assert_eq!(Rotation::choose(0, 0, l2, free).token_sets, 64);
    }

    #[test]
    fn little_memory_means_few_sets() {
        let small = Rotation::choose(4 << 20, 8 << 20, 50 << 20, 60 << 20);
        assert!(small.hot && small.token_sets * 4 + small.expert_sets * 8 <= 20, "{small:?}");
        assert_eq!(Rotation::choose(1 << 30, 1 << 30, 50 << 20, 1 << 30).token_sets, 2);
    }

    #[test]
    fn weights_of_other_ranks_arrive_as_zero() {
        let want = oracle::Expected {
            arrivals: vec![(1, 1), (0, 0)],
            local_ids: vec![-1, 3, 0, -1],
            ..oracle::Expected::default()
        };
        let sent = [vec![0.5, 0.25], vec![9.0, 9.0, 0.125, 0.75]];
        assert_eq!(received_weights(&want, &sent, 2), [0.0, 0.75, 0.5, 0.0]);
    }
}
