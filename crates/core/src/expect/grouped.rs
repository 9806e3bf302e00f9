//! Group-limited routing: the best few groups by their best expert, then top-k among their experts.

use super::{Distinct, Mean};
use crate::error::Result;
use crate::placement::Placement;
use crate::topology::Topology;

/// Parameters of group-limited routing and of its simulation.
///
/// Groups are contiguous blocks of experts, of ceil or floor size as ranks have them. `DeepSeek-V3` has 8
/// groups of which 4 are chosen; `DeepEP`'s benchmark has one group per node and chooses min(nodes, 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// Groups of experts.
    pub groups: usize,
    /// Groups a token may use, m.
    pub chosen: usize,
    /// Tokens simulated where no exact result exists; at least 2 are, since one has no standard error.
    pub samples: usize,
    /// Seed of the simulation.
    pub seed: u64,
}

impl GroupLimit {
    /// `chosen` of `groups` groups, simulated with 65,536 tokens: a standard error near 0.003 ranks, 0.05 %
    /// of the mean at 64 ranks.
    pub fn new(groups: usize, chosen: usize) -> Self {
        Self { groups, chosen, samples: 1 << 16, seed: 0x4558_5045_5254 }
    }

    /// Experts that the smallest possible choice of groups holds.
    pub(super) fn experts_available(self, experts: usize) -> Result<usize> {
        let groups = Placement::new(experts, self.groups)?;
        let smallest_first = (0..self.groups).rev().take(self.chosen);
        Ok(smallest_first.map(|group| groups.experts_of(group).len()).sum())
    }

    /// Whether the limit can change the choice. The k best experts lie in at most k groups, whose best
    /// experts are among those k: with m >= k they are all chosen anyway.
    pub(super) fn bites(self, top_k: usize) -> bool {
        self.chosen < self.groups && self.chosen < top_k
    }
}

/// Simulates tokens whose expert scores are independent and equally distributed.
///
/// Only the order of the scores matters, and it is a uniform permutation. Read from the best expert down,
/// the m chosen groups are the first m to appear, since a group appears with its best expert; the token's
/// experts are the first k that belong to one of them. So experts are drawn one by one, without sorting.
pub(super) fn simulate(
    topology: &Topology,
    placement: &Placement,
    top_k: usize,
    limit: GroupLimit,
) -> Distinct {
    let experts = placement.experts();
    let group_of: Vec<u32> = blocks(experts, limit.groups);
    let rank_of: Vec<u32> = blocks(experts, topology.ranks());
    let mut order: Vec<u32> = (0..experts as u32).collect();
    let mut random = SplitMix64(limit.seed);
    let (mut groups, mut ranks, mut nodes) =
        (Seen::new(limit.groups), Seen::new(topology.ranks()), Seen::new(topology.nodes()));
    let (mut rank_counts, mut node_counts) = (Counts::default(), Counts::default());
    for _ in 0..limit.samples.max(2) {
        groups.clear();
        ranks.clear();
        nodes.clear();
        let mut picked = 0;
        for drawn in 0..experts {
            // One step of a Fisher-Yates shuffle. `order` may start as any permutation.
            order.swap(drawn, drawn + random.below(experts - drawn));
            let expert = order[drawn] as usize;
            let group = group_of[expert] as usize;
            if groups.count < limit.chosen || groups.has(group) {
                groups.insert(group);
                let rank = rank_of[expert] as usize;
                ranks.insert(rank);
                nodes.insert(topology.node_of(rank));
                picked += 1;
                if picked == top_k {
                    break;
                }
            }
        }
        rank_counts.add(ranks.count);
        node_counts.add(nodes.count);
    }
    Distinct { ranks: rank_counts.mean(), nodes: node_counts.mean() }
}

/// The block of every expert when `experts` lie in `count` contiguous blocks.
fn blocks(experts: usize, count: usize) -> Vec<u32> {
    // A placement over zero blocks or experts was refused before.
    Placement::new(experts, count)
        .map(|p| (0..experts).map(|expert| p.rank_of(expert) as u32).collect())
        .unwrap_or_default()
}

/// A set that empties in constant time.
struct Seen {
    stamps: Vec<u64>,
    stamp: u64,
    count: usize,
}

impl Seen {
    fn new(len: usize) -> Self {
        Self { stamps: vec![0; len], stamp: 0, count: 0 }
    }

    fn clear(&mut self) {
        self.stamp += 1;
        self.count = 0;
    }

    fn has(&self, item: usize) -> bool {
        self.stamps[item] == self.stamp
    }

    fn insert(&mut self, item: usize) {
        self.count += usize::from(!self.has(item));
        self.stamps[item] = self.stamp;
    }
}

/// Sums of small whole numbers and of their squares, exact.
#[derive(Default)]
struct Counts {
    samples: u64,
    sum: u64,
    squares: u64,
}

impl Counts {
    fn add(&mut self, count: usize) {
        self.samples += 1;
        self.sum += count as u64;
        self.squares += (count * count) as u64;
    }

    fn mean(&self) -> Mean {
        let n = self.samples as f64;
        let value = self.sum as f64 / n;
        let variance = (self.squares as f64 - n * value * value).max(0.0) / (n - 1.0);
        // Samples that all agree do not prove the mean: a chance that n samples missed is of order 1/n.
        Mean { value, standard_error: (variance / n).sqrt().max(1.0 / n) }
    }
}

/// Steele, Lea and Flood's `SplitMix64`: small, seeded, the same everywhere.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`. Its bias is under bound / 2^64: nothing beside the standard error.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_matches_its_published_first_outputs() {
        // Reference outputs of splitmix64.c (Vigna) for seed 1234567.
        let mut random = SplitMix64(1_234_567);
        let got: Vec<u64> = (0..5).map(|_| random.next()).collect();
        let want = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn mean_and_its_error_by_hand() {
        let mut counts = Counts::default();
        for count in [1, 2, 3, 6] {
            counts.add(count);
        }
        // Mean 3; squared deviations 4 + 1 + 0 + 9 = 14; variance 14/3; of the mean 14/12.
        let mean = counts.mean();
        assert_eq!(mean.value, 3.0);
        assert!((mean.standard_error - (14.0f64 / 12.0).sqrt()).abs() < 1e-12);
        let mut same = Counts::default();
        for _ in 0..1000 {
            same.add(2);
        }
        assert_eq!(same.mean(), Mean { value: 2.0, standard_error: 1e-3 });
    }
}
