//! Everything that all ranks of a case make, as functions of a seed.

use super::core::oracle::{self, Expected};
use super::core::{Bf16, Dtype, Layout, Placement, Routing, Topology};
use super::{Case, Experts, Routes};

/// A payload of either type.
pub enum Owned {
    Bf16(Vec<Bf16>),
    Fp8(Vec<u8>, Vec<f32>),
}

/// Inputs of all ranks in one round.
#[derive(Clone)]
pub struct World<'a> {
    pub case: &'a Case,
    pub routings: Vec<Routing>,
    round: u64,
}

/// `SplitMix64`'s finaliser over a folded key.
fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9E37_79B9_7F4A_7C15, |state, &part| {
        let mut z = (state ^ part).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// A long sequence from one key, cheaper than a hash each: Knuth's MMIX generator, whose high bits are good.
fn sequence(key: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(key), |state| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    })
}

impl<'a> World<'a> {
    pub fn new(case: &'a Case, round: u64) -> Self {
        let mut world = Self { case, routings: Vec::new(), round };
        world.routings = (0..case.ranks).map(|rank| world.routing(rank)).collect();
        world
    }

    pub fn placement(&self) -> Placement {
        Placement::new(self.case.experts, self.case.ranks).unwrap()
    }

    pub fn tokens(&self, rank: usize) -> usize {
        self.case.tokens[rank % self.case.tokens.len()]
    }

    fn routing(&self, rank: usize) -> Routing {
        let case = self.case;
        let mut ids = Vec::new();
        for token in 0..self.tokens(rank) {
            for k in 0..case.top_k {
                let pick = hash(&[1, self.round, rank as u64, token as u64, k as u64]);
                let any = (pick % (case.experts as u64 + 1)) as i32 - 1;
                ids.push(match case.routes {
                    Routes::Any => any,
                    // A stride prime to the number of experts visits top-k different ones.
                    Routes::Distinct => {
                        ((hash(&[2, self.round, rank as u64, token as u64]) as usize + k * 7) % case.experts)
                            as i32
                    }
                    Routes::OneExpert => {
                        if k == 0 {
                            0
                        } else {
                            any
                        }
                    }
                    Routes::Nowhere => -1,
                    Routes::FirstRank => (pick as usize % self.placement().experts_of(0).len()) as i32,
                });
            }
        }
        Routing::new(ids, case.top_k, case.experts).unwrap()
    }

    pub fn weights(&self, rank: usize) -> Vec<f32> {
        (0..self.tokens(rank) * self.case.top_k)
            .map(|i| (hash(&[3, self.round, rank as u64, i as u64]) % 1000) as f32 / 999.0 - 0.25)
            .collect()
    }

    /// One payload row: any bits for BF16, any codes and scales for FP8 (dispatch moves, never looks).
    pub fn fill(&self, rank: usize, token: usize, version: u32, data: &mut [u8], scales: &mut [f32]) {
        let key = hash(&[4, self.round, rank as u64, token as u64, u64::from(version)]);
        for (word, bits) in data.chunks_mut(4).zip(sequence(key)) {
            word.copy_from_slice(&((bits >> 32) as u32).to_le_bytes()[..word.len()]);
        }
        for (i, scale) in scales.iter_mut().enumerate() {
            *scale = f32::from_bits(hash(&[key, 5, i as u64]) as u32);
        }
    }

    pub fn payload(&self, rank: usize, version: u32) -> Owned {
        let (tokens, hidden) = (self.tokens(rank), self.case.hidden);
        let (row, per_row) = (self.case.dtype.row_bytes(hidden), self.case.dtype.scales_per_row(hidden));
        let (mut data, mut scales) = (vec![0u8; tokens * row], vec![0f32; tokens * per_row]);
        for token in 0..tokens {
            let part = token * per_row..(token + 1) * per_row;
            self.fill(rank, token, version, &mut data[token * row..(token + 1) * row], &mut scales[part]);
        }
        match self.case.dtype {
            Dtype::Bf16 => {
                Owned::Bf16(data.chunks(2).map(|b| Bf16(u16::from_le_bytes([b[0], b[1]]))).collect())
            }
            Dtype::Fp8E4m3 => Owned::Fp8(data, scales),
        }
    }

    /// What the experts of `rank` make of output row `row`: mostly numbers, now and then any bits at all.
    fn expert_row(&self, rank: usize, row: usize, version: u32) -> Vec<Bf16> {
        let key = hash(&[6, self.round, rank as u64, row as u64, u64::from(version)]);
        sequence(key)
            .take(self.case.hidden)
            .map(|bits| {
                if bits >> 58 == 0 {
                    Bf16((bits >> 20) as u16)
                } else {
                    Bf16::from_f32(((bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 3.0)
                }
            })
            .collect()
    }

    pub fn expert_rows(&self, rank: usize, rows: usize, version: u32) -> Vec<Bf16> {
        (0..rows).flat_map(|row| self.expert_row(rank, row, version)).collect()
    }

    pub fn bias(&self, rank: usize, which: usize) -> Vec<Bf16> {
        (0..self.tokens(rank))
            .flat_map(|token| self.expert_row(rank + 1000 * (which + 1), token, 77))
            .collect()
    }

    pub fn row_weights(&self, rank: usize, rows: usize) -> Vec<f32> {
        (0..rows).map(|row| self.row_weight(rank, row)).collect()
    }

    fn row_weight(&self, rank: usize, row: usize) -> f32 {
        (hash(&[7, self.round, rank as u64, row as u64]) % 4093) as f32 / 4092.0
    }

    pub fn topk_gradients(&self, rank: usize, arrivals: usize) -> Vec<f32> {
        (0..arrivals * self.case.top_k).map(|i| self.topk_gradient(rank, i)).collect()
    }

    fn topk_gradient(&self, rank: usize, i: usize) -> f32 {
        (hash(&[8, self.round, rank as u64, i as u64]) % 10_007) as f32 / 5000.0 - 1.0
    }

    /// What combine must give `rank`.
    pub fn combined(
        &self,
        rank: usize,
        expected: &[Expected],
        (biases, version): (&[&[Bf16]], u32),
    ) -> Vec<Bf16> {
        let (case, hidden) = (self.case, self.case.hidden);
        let topology = Topology::new(case.ranks, case.ranks_per_node).unwrap();
        let mut all = vec![Bf16(0x1234); self.tokens(rank) * hidden];
        for (token, out) in all.chunks_mut(hidden).enumerate() {
            let partials: Vec<(usize, Vec<Bf16>)> = arrivals_of(rank, expected, token)
                .into_iter()
                .map(|(owner, arrival)| (owner, self.partial(owner, &expected[owner], arrival, version)))
                .collect();
            let partials: Vec<(usize, &[Bf16])> = partials.iter().map(|p| (p.0, &p.1[..])).collect();
            let biases: Vec<&[Bf16]> =
                biases.iter().map(|b| &b[token * hidden..(token + 1) * hidden]).collect();
            oracle::combine_token(&topology, &biases, &partials, out);
        }
        all
    }

    fn partial(&self, owner: usize, expected: &Expected, arrival: usize, version: u32) -> Vec<Bf16> {
        if self.case.layout == Layout::BySource {
            return self.expert_row(owner, arrival, version);
        }
        let (source, token) = expected.arrivals[arrival];
        let mut rows: Vec<_> = expected
            .rows
            .iter()
            .enumerate()
            .filter_map(|(row, origin)| {
                origin.filter(|o| (o.source, o.token) == (source, token)).map(|o| (o.choice, row))
            })
            .collect();
        rows.sort_unstable();
        let data: Vec<_> = rows.iter().map(|&(_, row)| self.expert_row(owner, row, version)).collect();
        let weighted = self.case.experts_do == Experts::WeightedRows;
        let rows: Vec<(Option<f32>, &[Bf16])> = rows
            .iter()
            .zip(&data)
            .map(|(&(_, row), data)| (weighted.then(|| self.row_weight(owner, row)), &data[..]))
            .collect();
        let mut out = vec![Bf16(0); self.case.hidden];
        oracle::expert_partial(&rows, &mut out);
        out
    }

    pub fn combined_weights(&self, rank: usize, expected: &[Expected]) -> Vec<f32> {
        let top_k = self.case.top_k;
        let mut all = vec![0f32; self.tokens(rank) * top_k];
        for (token, sums) in all.chunks_mut(top_k).enumerate() {
            // Each node's weights are summed first, as its rows are.
            for node in arrivals_of(rank, expected, token)
                .chunk_by(|a, b| a.0 / self.case.ranks_per_node == b.0 / self.case.ranks_per_node)
            {
                for (k, sum) in sums.iter_mut().enumerate() {
                    *sum += node.iter().fold(0.0, |sum, &(owner, arrival)| {
                        sum + self.topk_gradient(owner, arrival * top_k + k)
                    });
                }
            }
        }
        all
    }
}

/// For each token of `rank`: the ranks it went to, ascending, and its arrival there.
fn arrivals_of(rank: usize, expected: &[Expected], token: usize) -> Vec<(usize, usize)> {
    let key = (rank as u32, token as u32);
    expected
        .iter()
        .enumerate()
        .filter_map(|(owner, e)| Some((owner, e.arrivals.binary_search(&key).ok()?)))
        .collect()
}
