//! Seeded router decisions.

use expertrail_core::placement::MAX_EXPERTS;
use expertrail_core::shape::{MAX_TOKENS, MAX_TOP_K};
use expertrail_core::{CoreError, Routing};
use thiserror::Error;

use super::hash::{Draws, key, mix};
use super::zipf::{Alias, inverse_power};

/// Largest Zipf exponent. At 16 the hottest expert already gets 65,535 of 65,536 first choices.
pub const MAX_SKEW: f64 = 16.0;

/// Streams that must not share draws.
const CHOICES: u64 = 1;
const NONE: u64 = 2;
const WEIGHTS: u64 = 3;
const HOT_EXPERTS: u64 = 4;

/// Draws that may hit a chosen expert before the choice is made exactly among those left. The result has
/// the same distribution either way; this only bounds the time when few experts hold most of the weight.
const TRIES: usize = 16;

/// `DeepSeek`'s group-limited routing: a token's experts all lie in a few of equal contiguous groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// Groups in all; the experts must divide by it.
    pub groups: usize,
    /// Groups that one token may use.
    pub top_groups: usize,
}

/// How every rank's routing is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingSpec {
    /// Choices for each token, K.
    pub top_k: usize,
    /// Experts in all, E.
    pub experts: usize,
    /// Seed; with the rank and the iteration set it decides every choice.
    pub seed: u64,
    /// Whether a row may name an expert twice.
    pub with_replacement: bool,
    /// Zipf exponent s, 0 (uniform) to [`MAX_SKEW`]: the i-th hottest expert has weight i^-s. Which experts
    /// are hot is a seeded permutation, the same on all ranks, so that they are not all on rank 0.
    pub skew: f64,
    /// Share of choices turned into -1 ("no expert"), 0 to 1. For tests.
    pub none_fraction: f64,
    /// Group limit; the groups of a token are drawn evenly.
    pub groups: Option<GroupLimit>,
}

/// A workload that cannot be drawn.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum WorkloadError {
    /// Shape out of the core's limits.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// Exponent out of range.
    #[error("routing skew {0}: the Zipf exponent must lie between 0 (uniform) and {MAX_SKEW}")]
    Skew(f64),
    /// Fraction out of range.
    #[error("share of empty choices {0}: it must lie between 0 and 1")]
    NoneFraction(f64),
    /// Groups that do not fit the shape.
    #[error(
        "{groups} expert groups, {top_groups} per token: the {experts} experts must divide by the groups, \
         and the groups of a token must hold top-k {top_k} experts"
    )]
    Groups {
        /// Groups in all.
        groups: usize,
        /// Groups per token.
        top_groups: usize,
        /// Experts in all.
        experts: usize,
        /// Choices per token.
        top_k: usize,
    },
}

impl RoutingSpec {
    /// Uniform routing without replacement.
    pub fn uniform(top_k: usize, experts: usize, seed: u64) -> Self {
        Self { top_k, experts, seed, with_replacement: false, skew: 0.0, none_fraction: 0.0, groups: None }
    }

    /// The routing `[tokens, top_k]` of `rank` in iteration set `set` (sets are the rotated inputs of the
    /// benchmark; each has its own choices).
    ///
    /// # Errors
    /// [`WorkloadError`] when the shape, skew, fraction or groups are out of range.
    pub fn routing(&self, tokens: usize, rank: usize, set: u64) -> Result<Routing, WorkloadError> {
        self.check(tokens)?;
        let mut ids = Vec::with_capacity(tokens * self.top_k);
        let stream = key(&[self.seed, rank as u64, set, CHOICES]);
        let table = (self.skew > 0.0).then(|| self.hot_experts());
        let mut row = Row { spec: self, table: table.as_ref(), taken: vec![0; self.experts.div_ceil(64)] };
        for token in 0..tokens {
            row.draw(&mut Draws::new(stream, token), &mut ids);
        }
        self.drop_some(&mut ids, rank, set);
        Ok(Routing::new(ids, self.top_k, self.experts)?)
    }

    fn check(&self, tokens: usize) -> Result<(), WorkloadError> {
        let (top_k, experts) = (self.top_k, self.experts);
        if experts == 0 || experts > MAX_EXPERTS {
            return Err(CoreError::Experts { experts, limit: MAX_EXPERTS }.into());
        }
        if top_k == 0 || top_k > MAX_TOP_K || top_k > experts {
            return Err(CoreError::TopK { top_k, experts, limit: MAX_TOP_K }.into());
        }
        if tokens > MAX_TOKENS {
            return Err(CoreError::Tokens { tokens, limit: MAX_TOKENS }.into());
        }
        if !(0.0..=MAX_SKEW).contains(&self.skew) {
            return Err(WorkloadError::Skew(self.skew));
        }
        if !(0.0..=1.0).contains(&self.none_fraction) {
            return Err(WorkloadError::NoneFraction(self.none_fraction));
        }
        if let Some(GroupLimit { groups, top_groups }) = self.groups {
            let fits = groups > 0 && groups <= 64 && experts.is_multiple_of(groups) && top_groups <= groups;
            // With replacement one expert would do, but a router's groups always hold top-k experts.
            if !fits || top_groups * (experts / groups) < top_k {
                return Err(WorkloadError::Groups { groups, top_groups, experts, top_k });
            }
        }
        Ok(())
    }

    /// The alias table with Zipf weights spread by a seeded permutation of the experts.
    fn hot_experts(&self) -> Alias {
        let mut by_heat: Vec<usize> = (0..self.experts).collect();
        let mut draws = Draws::new(key(&[self.seed, HOT_EXPERTS]), 0);
        for i in (1..self.experts).rev() {
            by_heat.swap(i, draws.below(i as u32 + 1) as usize);
        }
        let mut weights = vec![0.0; self.experts];
        for (heat, &expert) in by_heat.iter().enumerate() {
            weights[expert] = inverse_power(heat as u32 + 1, self.skew);
        }
        Alias::new(weights)
    }

    fn drop_some(&self, ids: &mut [i32], rank: usize, set: u64) {
        if self.none_fraction == 0.0 {
            return;
        }
        let stream = key(&[self.seed, rank as u64, set, NONE]);
        let threshold = (self.none_fraction * 4_294_967_296.0) as u64;
        for (at, id) in ids.iter_mut().enumerate() {
            if mix(stream ^ at as u64) >> 32 < threshold {
                *id = -1;
            }
        }
    }
}

/// The state of drawing one row.
struct Row<'a> {
    spec: &'a RoutingSpec,
    table: Option<&'a Alias>,
    /// One bit per expert already in the row; clear between rows.
    taken: Vec<u64>,
}

impl Row<'_> {
    fn draw(&mut self, draws: &mut Draws, ids: &mut Vec<i32>) {
        let groups = self.allowed_groups(draws);
        let start = ids.len();
        // Once a choice needed the exact way, the rest of the row will too.
        let mut tries = TRIES;
        for _ in 0..self.spec.top_k {
            let expert = self.try_choose(draws, groups, tries).unwrap_or_else(|| {
                tries = 0;
                self.choose_open(draws, groups)
            });
            if !self.spec.with_replacement {
                self.taken[expert as usize / 64] |= 1 << (expert % 64);
            }
            ids.push(expert as i32);
        }
        for &id in &ids[start..] {
            self.taken[id as usize / 64] = 0;
        }
    }

    fn try_choose(&self, draws: &mut Draws, groups: u64, tries: usize) -> Option<u32> {
        for _ in 0..tries {
            let expert = match self.table {
                Some(table) => table.pick(draws.bits()),
                None => draws.below(self.spec.experts as u32),
            };
            if self.open(expert as usize, groups) {
                return Some(expert);
            }
        }
        None
    }

    /// One of the experts still open; `check` made sure that there is one.
    fn choose_open(&self, draws: &mut Draws, groups: u64) -> u32 {
        let bits = draws.bits();
        if let Some(table) = self.table {
            return table.pick_among(bits, |e| self.open(e, groups)).unwrap_or(0);
        }
        let open: Vec<u32> =
            (0..self.spec.experts as u32).filter(|&e| self.open(e as usize, groups)).collect();
        open.get((((bits >> 32) * open.len() as u64) >> 32) as usize).copied().unwrap_or(0)
    }

    fn open(&self, expert: usize, groups: u64) -> bool {
        let taken = self.taken[expert / 64] >> (expert % 64) & 1 == 1;
        !taken
            && self
                .spec
                .groups
                .is_none_or(|limit| groups >> (expert / (self.spec.experts / limit.groups)) & 1 == 1)
    }

    /// One bit per group that the row may use.
    fn allowed_groups(&self, draws: &mut Draws) -> u64 {
        let Some(GroupLimit { groups, top_groups }) = self.spec.groups else {
            return u64::MAX;
        };
        let mut allowed = 0u64;
        while (allowed.count_ones() as usize) < top_groups {
            allowed |= 1 << draws.below(groups as u32);
        }
        allowed
    }
}

/// Router weights for `routing`, `[tokens, top_k]` row-major, of `rank` in iteration set `set`.
///
/// A choice's weight is a multiple of 2^-24 in (0, 1]; a "-1" choice has weight 0. With `normalised` each
/// row is divided by its sum (added in ascending k, in f32), as routers that renormalise do.
pub fn weights(routing: &Routing, seed: u64, (rank, set): (usize, u64), normalised: bool) -> Vec<f32> {
    let stream = key(&[seed, rank as u64, set, WEIGHTS]);
    let mut all: Vec<f32> = routing
        .ids()
        .iter()
        .enumerate()
        .map(|(at, &id)| {
            let unit = ((mix(stream ^ at as u64) >> 40) + 1) as f32 / 16_777_216.0;
            if id < 0 { 0.0 } else { unit }
        })
        .collect();
    if normalised {
        for row in all.chunks_exact_mut(routing.top_k()) {
            let sum: f32 = row.iter().sum();
            if sum > 0.0 {
                for weight in row {
                    *weight /= sum;
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn counts(routing: &Routing) -> Vec<f64> {
        let mut counts = vec![0.0; routing.experts()];
        routing.ids().iter().filter(|&&e| e >= 0).for_each(|&e| counts[e as usize] += 1.0);
        counts
    }

    #[test]
    fn the_same_everywhere() {
        // A change here changes every recorded result: it needs a line in the changelog.
        let r = RoutingSpec::uniform(4, 64, 7).routing(2, 1, 0).unwrap();
        assert_eq!(r.ids(), PINNED_UNIFORM);
        let skewed = RoutingSpec { skew: 1.1, ..RoutingSpec::uniform(4, 64, 7) };
        assert_eq!(skewed.routing(2, 1, 0).unwrap().ids(), PINNED_SKEWED);
    }

    /// Both from a separate Python model of the draws.
    const PINNED_UNIFORM: [i32; 8] = [36, 38, 58, 56, 6, 25, 11, 14];
    const PINNED_SKEWED: [i32; 8] = [36, 38, 63, 56, 27, 46, 11, 34];

    #[test]
    fn uniform_choices_are_distinct_and_even() {
        let r = RoutingSpec::uniform(16, 128, 1).routing(20_000, 0, 0).unwrap();
        assert!((0..r.tokens()).all(|t| r.row(t).iter().collect::<HashSet<_>>().len() == 16));
        // Chi-square of 127 degrees of freedom: mean 127, standard deviation 16 (a little less without
        // replacement). Six deviations either way.
        let mean = 20_000.0 * 16.0 / 128.0;
        let chi: f64 = counts(&r).iter().map(|c| (c - mean) * (c - mean) / mean).sum();
        assert!((30.0..223.0).contains(&chi), "{chi}");
    }

    #[test]
    fn with_replacement_repeats_as_often_as_it_should() {
        let spec = RoutingSpec { with_replacement: true, ..RoutingSpec::uniform(8, 128, 3) };
        let r = spec.routing(50_000, 2, 5).unwrap();
        let distinct: usize = (0..r.tokens()).map(|t| r.row(t).iter().collect::<HashSet<_>>().len()).sum();
        // Expected distinct experts of 8 draws from 128: 128 * (1 - (127/128)^8) = 7.7865.
        let mean = distinct as f64 / 50_000.0;
        assert!((mean - 7.7865).abs() < 0.01, "{mean}");
    }

    #[test]
    fn ranks_sets_and_seeds_differ() {
        let draw = |seed, rank, set| RoutingSpec::uniform(8, 64, seed).routing(64, rank, set).unwrap();
        let first = draw(1, 0, 0);
        assert_eq!(first, draw(1, 0, 0));
        assert!([draw(2, 0, 0), draw(1, 1, 0), draw(1, 0, 1)].iter().all(|other| *other != first));
        // A longer call begins with the shorter one's rows.
        let longer = RoutingSpec::uniform(8, 64, 1).routing(100, 0, 0).unwrap();
        assert_eq!(&longer.ids()[..512], first.ids());
    }

    #[test]
    fn zipf_ranks_follow_the_exponent() {
        let spec = RoutingSpec { skew: 1.0, with_replacement: true, ..RoutingSpec::uniform(1, 64, 9) };
        let mut all = counts(&spec.routing(400_000, 0, 0).unwrap());
        let hottest = all.iter().position(|c| *c == all.iter().copied().fold(0.0, f64::max));
        assert_ne!(hottest, Some(0), "the permutation moves the hottest expert");
        all.sort_by(|a, b| b.total_cmp(a));
        let harmonic: f64 = (1..=64).map(|i| 1.0 / f64::from(i)).sum();
        for (i, want) in [(0, 1.0), (1, 0.5), (3, 0.25), (9, 0.1)] {
            let want = 400_000.0 * want / harmonic;
            assert!((all[i] / want - 1.0).abs() < 0.05, "{i}: {} {want}", all[i]);
        }
    }

    #[test]
    fn extreme_skew_ends_and_stays_distinct() {
        let spec = RoutingSpec { skew: MAX_SKEW, ..RoutingSpec::uniform(32, 40, 4) };
        let r = spec.routing(300, 0, 0).unwrap();
        assert!((0..300).all(|t| r.row(t).iter().collect::<HashSet<_>>().len() == 32));
        let full = RoutingSpec::uniform(32, 32, 4).routing(50, 0, 0).unwrap();
        assert!((0..50).all(|t| full.row(t).iter().collect::<HashSet<_>>().len() == 32));
    }

    #[test]
    fn groups_are_respected() {
        let groups = Some(GroupLimit { groups: 8, top_groups: 4 });
        let spec = RoutingSpec { groups, ..RoutingSpec::uniform(8, 256, 5) };
        let r = spec.routing(2000, 0, 0).unwrap();
        let used = |t| r.row(t).iter().map(|e| e / 32).collect::<HashSet<_>>().len();
        assert!((0..2000).all(|t| used(t) <= 4));
        assert!(counts(&r).iter().all(|c| *c > 20.0));
    }

    #[test]
    fn empty_choices() {
        let spec = |none_fraction| RoutingSpec { none_fraction, ..RoutingSpec::uniform(8, 64, 6) };
        let none = |f| spec(f).routing(4000, 0, 0).unwrap().ids().iter().filter(|&&e| e == -1).count();
        assert_eq!((none(0.0), none(1.0)), (0, 32_000));
        assert!((7500..8500).contains(&none(0.25)));
        assert_eq!(spec(0.5).routing(0, 0, 0).unwrap().tokens(), 0);
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let ok = RoutingSpec::uniform(8, 64, 0);
        for skew in [-1.0, f64::NAN, 17.0] {
            assert!(RoutingSpec { skew, ..ok.clone() }.routing(1, 0, 0).is_err());
        }
        assert!(RoutingSpec { none_fraction: 1.5, ..ok.clone() }.routing(1, 0, 0).is_err());
        for (top_k, experts) in [(0, 8), (9, 8), (33, 64), (1, 0), (1, 65_537)] {
            assert!(RoutingSpec { top_k, experts, ..ok.clone() }.routing(1, 0, 0).is_err());
        }
        for (groups, top_groups) in [(0, 0), (3, 1), (8, 9), (16, 1), (128, 64)] {
            let groups = Some(GroupLimit { groups, top_groups });
            assert!(RoutingSpec { groups, ..ok.clone() }.routing(1, 0, 0).is_err(), "{groups:?}");
        }
        assert!(ok.routing(MAX_TOKENS + 1, 0, 0).is_err());
    }

    #[test]
    fn weights_lie_in_range() {
        let spec = RoutingSpec { none_fraction: 0.2, ..RoutingSpec::uniform(8, 64, 6) };
        let r = spec.routing(1000, 0, 0).unwrap();
        let raw = weights(&r, 6, (0, 0), false);
        for (w, id) in raw.iter().zip(r.ids()) {
            assert_eq!(*w > 0.0, *id >= 0);
            assert!(*w <= 1.0);
        }
        for (t, row) in weights(&r, 6, (0, 0), true).chunks(8).enumerate() {
            let sum: f32 = row.iter().sum();
            assert!((sum - 1.0).abs() < 1e-5 || r.row(t).iter().all(|e| *e == -1), "{sum}");
        }
    }
}
