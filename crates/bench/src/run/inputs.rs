//! Inputs of a rank: sets that rotate, so that a call does not find its rows in the cache.

use expertrail::core::account::{self, RowSize, Traffic, topk_metadata_bytes};
use expertrail::core::output::uniform_arrivals;
use expertrail::core::roofline::Transfer;
use expertrail::host::available_memory;
use expertrail::{Bf16, Dtype, Payload, Routing, Rows, Shape, Topology};

use super::{BenchError, Options, Team};
use crate::machine;
use crate::schema::RowsIn;
use crate::workload::{self, RowKey, Tensor};

/// How many sets of inputs take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rotation {
    /// Sets of tokens, each with its own routing.
    pub(crate) token_sets: usize,
    /// Sets of expert output.
    pub(crate) expert_sets: usize,
    /// Whether one of them fits the last-level cache after all.
    pub(crate) hot: bool,
}

/// More sets than this are not made, however small a set is.
const MOST_SETS: usize = 256;

impl Rotation {
    /// Enough sets that those of all ranks together exceed the last-level cache, within a third of the memory
    /// that is available.
    pub(crate) fn choose(options: &Options, topology: &Topology) -> Self {
        let shape = options.resolved.shape;
        let ranks = options.resolved.topology.ranks() as u64;
        let llc = machine::llc_bytes().unwrap_or(32 << 20);
        let tokens = (shape.max_tokens * options.resolved.dispatch_dtype.wire_row_bytes(shape.hidden)) as u64;
        let arrivals = uniform_arrivals(shape.max_tokens, topology.ranks(), shape.top_k);
        let rows = (arrivals * 2 * shape.hidden) as u64;
        let sets = |bytes: u64| (llc + llc / 8).div_ceil((ranks * bytes).max(1)).clamp(1, MOST_SETS as u64);
        let (mut token_sets, mut expert_sets) = (sets(tokens), sets(rows));
        // One more live output of `rows` is received, and one of `tokens` combined.
        let needed = |t: u64, e: u64| ranks * ((t + 2) * tokens + (e + 2) * rows);
        let allowed = available_memory().map_or(u64::MAX, |bytes| bytes / 3);
        while needed(token_sets, expert_sets) > allowed && (token_sets > 1 || expert_sets > 1) {
            token_sets = (token_sets / 2).max(1);
            expert_sets = (expert_sets / 2).max(1);
        }
        let hot = ranks * token_sets * tokens < llc || ranks * expert_sets * rows < llc;
        Self { token_sets: token_sets as usize, expert_sets: expert_sets.min(token_sets) as usize, hot }
    }
}

/// Tokens of one set.
pub(crate) enum Tokens {
    Bf16(Vec<Bf16>),
    Fp8(Vec<u8>, Vec<f32>),
}

impl Tokens {
    pub(crate) fn payload(&self) -> Payload<'_> {
        match self {
            Self::Bf16(rows) => Payload::Bf16(rows),
            Self::Fp8(codes, scales) => Payload::Fp8 { codes, scales },
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Bf16(rows) => std::mem::size_of_val(&rows[..]) as u64,
            Self::Fp8(codes, scales) => (codes.len() + std::mem::size_of_val(&scales[..])) as u64,
        }
    }
}

/// What the experts of this rank made: rows that combine takes.
pub(crate) enum ExpertRows {
    Shared(Rows),
    Private(Vec<Bf16>),
}

impl ExpertRows {
    pub(crate) fn rows(&self) -> &[Bf16] {
        match self {
            Self::Shared(rows) => rows.as_slice(),
            Self::Private(rows) => rows,
        }
    }
}

/// Everything a rank sends, and what all others send (for verification).
pub(crate) struct Inputs {
    pub(crate) rotation: Rotation,
    pub(crate) seed: u64,
    /// Routing of every team rank, by set (one set when files are replayed).
    routings: Vec<Vec<Routing>>,
    /// Router weights of every team rank, by set.
    weights: Vec<Vec<Vec<f32>>>,
    tokens: Vec<Tokens>,
    experts: Vec<ExpertRows>,
    /// What this rank's routing makes cross, by set.
    pub(crate) traffic: Vec<Traffic>,
}

impl Inputs {
    pub(crate) fn make(options: &Options, team: &Team, rotation: Rotation) -> Result<Self, BenchError> {
        let files = options.replayed.as_deref();
        let (shape, me) = (options.resolved.shape, team.me());
        let spec = options.spec();
        let mut inputs = Self {
            rotation,
            seed: options.seed,
            routings: Vec::new(),
            weights: Vec::new(),
            tokens: Vec::new(),
            experts: Vec::new(),
            traffic: Vec::new(),
        };
        let sets = if files.is_some() { 1 } else { rotation.token_sets };
        for set in 0..sets as u64 {
            team.comm.status()?;
            let all = match files {
                Some(files) => team.ranks.iter().map(|&rank| files[rank].clone()).collect(),
                None => team
                    .ranks
                    .iter()
                    .map(|&rank| spec.routing(shape.max_tokens, rank, set))
                    .collect::<Result<Vec<_>, _>>()?,
            };
            inputs.traffic.push(account::rank_traffic(&team.topology, &team.placement, &all[me], me)?);
            let weights = all
                .iter()
                .zip(&team.ranks)
                .map(|(r, &rank)| workload::weights(r, options.seed, (rank, set), true));
            inputs.weights.push(weights.collect());
            inputs.routings.push(all);
        }
        for set in 0..rotation.token_sets {
            // Making inputs can take seconds; a rank that died meanwhile is to be named within two.
            team.comm.status()?;
            inputs.tokens.push(inputs.make_tokens(options, team.ranks[me], set, me));
        }
        let most_rows = (0..sets).map(|set| inputs.rows_received(options, team, set)).max().unwrap_or(0);
        for set in 0..rotation.expert_sets {
            team.comm.status()?;
            inputs.experts.push(inputs.make_experts(options, team, set, most_rows)?);
        }
        Ok(inputs)
    }

    /// Names a token's row.
    pub(crate) fn token_key(&self, rank: usize, set: usize, token: usize) -> RowKey {
        RowKey {
            seed: self.seed,
            tensor: Tensor::Tokens,
            rank: rank as u32,
            index: (set as u64) << 32 | token as u64,
        }
    }

    /// Names a row of expert output.
    pub(crate) fn expert_key(&self, rank: usize, set: usize, row: usize) -> RowKey {
        RowKey { tensor: Tensor::ExpertOutput, ..self.token_key(rank, set, row) }
    }

    fn make_tokens(&self, options: &Options, rank: usize, set: usize, me: usize) -> Tokens {
        let hidden = options.resolved.shape.hidden;
        let tokens = self.routing(set)[me].tokens();
        match options.resolved.dispatch_dtype {
            Dtype::Bf16 => {
                let mut rows = vec![Bf16(0); tokens * hidden];
                for (token, row) in rows.chunks_exact_mut(hidden).enumerate() {
                    workload::fill_row(self.token_key(rank, set, token), row);
                }
                Tokens::Bf16(rows)
            }
            Dtype::Fp8E4m3 => {
                let per_row = Dtype::Fp8E4m3.scales_per_row(hidden);
                let (mut codes, mut scales) = (vec![0u8; tokens * hidden], vec![0f32; tokens * per_row]);
                for (token, (q, s)) in
                    codes.chunks_exact_mut(hidden).zip(scales.chunks_exact_mut(per_row)).enumerate()
                {
                    workload::fill_row_fp8(self.token_key(rank, set, token), q, s);
                }
                Tokens::Fp8(codes, scales)
            }
        }
    }

    fn make_experts(
        &self,
        options: &Options,
        team: &Team,
        set: usize,
        rows: usize,
    ) -> Result<ExpertRows, BenchError> {
        let hidden = options.resolved.shape.hidden;
        let fill = |all: &mut [Bf16]| {
            for (row, out) in all.chunks_exact_mut(hidden).enumerate() {
                workload::fill_row(self.expert_key(team.ranks[team.me()], set, row), out);
            }
        };
        match options.combine_input {
            RowsIn::Shared => {
                let mut made = team.comm.alloc_rows(rows)?;
                fill(made.as_mut_slice());
                Ok(ExpertRows::Shared(made))
            }
            RowsIn::Private => {
                let mut made = vec![Bf16(0); rows * hidden];
                fill(&mut made);
                Ok(ExpertRows::Private(made))
            }
        }
    }

    fn rows_received(&self, options: &Options, team: &Team, set: usize) -> usize {
        let all = self.routing(set);
        super::verify::rows_received(team, options.layout, all)
    }

    /// Routing of every team rank in `set`.
    pub(crate) fn routing(&self, set: usize) -> &[Routing] {
        &self.routings[set % self.routings.len()]
    }

    /// Weights of every team rank in `set`.
    pub(crate) fn weights(&self, set: usize) -> &[Vec<f32>] {
        &self.weights[set % self.weights.len()]
    }

    pub(crate) fn tokens(&self, set: usize) -> &Tokens {
        &self.tokens[set]
    }

    pub(crate) fn experts(&self, set: usize) -> &ExpertRows {
        &self.experts[set % self.experts.len()]
    }

    /// Which set of expert output goes with a set of tokens.
    pub(crate) fn expert_set(&self, set: usize) -> usize {
        set % self.experts.len()
    }

    /// Bytes of all inputs of this rank.
    pub(crate) fn bytes(&self) -> u64 {
        let tokens: u64 = self.tokens.iter().map(Tokens::bytes).sum();
        let experts: usize = self.experts.iter().map(|e| std::mem::size_of_val(e.rows())).sum();
        let routing: usize = self.routings.iter().flatten().map(|r| 8 * r.ids().len()).sum();
        tokens + experts as u64 + routing as u64
    }

    /// Mean over the sets of the bytes of rows that this rank's tokens ask of ranks on other nodes: of a dispatch and of a
    /// combine.
    pub(crate) fn mean_crossing(&self, options: &Options) -> [f64; 2] {
        let hidden = options.resolved.shape.hidden;
        let copies: u64 = self.traffic.iter().map(|traffic| traffic.rank_copies.other_nodes).sum();
        let copies = copies as f64 / self.traffic.len().max(1) as f64;
        [options.resolved.dispatch_dtype, Dtype::Bf16]
            .map(|dtype| copies * dtype.wire_row_bytes(hidden) as f64)
    }

    /// Means over the sets of what crosses: (logical, wire, rows) bytes of a dispatch and of a combine.
    pub(crate) fn mean_bytes(&self, options: &Options) -> [CallBytes; 2] {
        mean_bytes(&self.traffic, options.resolved.shape, options.resolved.dispatch_dtype)
    }
}

/// Means over the sets of what crosses: bytes of a dispatch of `dtype` and of a combine.
pub(super) fn mean_bytes(sets: &[Traffic], shape: Shape, dtype: Dtype) -> [CallBytes; 2] {
    let row = dtype.wire_row_bytes(shape.hidden);
    let combine_row = Dtype::Bf16.wire_row_bytes(shape.hidden);
    let mean = |of: &dyn Fn(&Traffic) -> CallBytes| {
        let mut sum = CallBytes::default();
        for traffic in sets {
            let one = of(traffic);
            sum.logical += one.logical;
            sum.wire += one.wire;
            sum.rows += one.rows;
        }
        let sets = sets.len() as f64;
        CallBytes { logical: sum.logical / sets, wire: sum.wire / sets, rows: sum.rows / sets }
    };
    let dispatch = mean(&|traffic| {
        let size = RowSize { row, metadata: topk_metadata_bytes(shape.top_k) };
        let bytes = traffic.dispatch_bytes(Transfer::TwoHop, size);
        CallBytes::new(bytes.logical, bytes.wire, traffic.rank_copies.total() * row as u64)
    });
    let combine = mean(&|traffic| {
        let bytes = traffic.combine_bytes(Transfer::TwoHop, combine_row);
        CallBytes::new(bytes.logical, bytes.wire, traffic.rank_copies.total() * combine_row as u64)
    });
    [dispatch, combine]
}

/// Bytes of one call of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CallBytes {
    /// Asked for, own rank included.
    pub(crate) logical: f64,
    /// Crossing to other ranks: on one node to each rank; across nodes once per node, then inside it.
    pub(crate) wire: f64,
    /// Row bytes that the memory ceiling is compared with: written by dispatch, read by combine.
    pub(crate) rows: f64,
}

impl CallBytes {
    fn new(logical: u64, wire: account::LinkBytes, rows: u64) -> Self {
        Self { logical: logical as f64, wire: (wire.scale_up + wire.scale_out) as f64, rows: rows as f64 }
    }
}
