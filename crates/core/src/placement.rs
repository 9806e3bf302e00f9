//! Which rank holds which expert.

use std::ops::Range;

use crate::error::{CoreError, Result};

/// Contiguous blocks of experts: with E experts on R ranks the first `E % R` ranks hold `E / R + 1`
/// experts, the others `E / R` (possibly none).
///
/// Where E divides by R this is the usual `rank = expert / (E / R)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    experts: usize,
    ranks: usize,
}

/// The most experts a placement may have. Expert ids travel as i32 and per-expert counts of every rank are
/// exchanged on every call; DeepEP V2 stops at 2,048, the largest public models use 512.
pub const MAX_EXPERTS: usize = 65_536;

impl Placement {
    /// Places `experts` experts on `ranks` ranks.
    ///
    /// # Errors
    /// [`CoreError::Experts`] when there are none or more than [`MAX_EXPERTS`], or when `ranks` is zero.
    pub fn new(experts: usize, ranks: usize) -> Result<Self> {
        if experts == 0 || experts > MAX_EXPERTS || ranks == 0 {
            return Err(CoreError::Experts { experts, limit: MAX_EXPERTS });
        }
        Ok(Self { experts, ranks })
    }

    /// Number of experts, E.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Number of ranks, R.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The rank that holds `expert` (which must be below [`Placement::experts`]).
    pub fn rank_of(&self, expert: usize) -> usize {
        let (floor, larger) = (self.experts / self.ranks, self.experts % self.ranks);
        let in_larger = larger * (floor + 1);
        if expert < in_larger { expert / (floor + 1) } else { larger + (expert - in_larger) / floor.max(1) }
    }

    /// The experts that `rank` holds.
    pub fn experts_of(&self, rank: usize) -> Range<usize> {
        let (floor, larger) = (self.experts / self.ranks, self.experts % self.ranks);
        let start = rank * floor + rank.min(larger);
        start..start + floor + usize::from(rank < larger)
    }

    /// The experts that the ranks of a range hold together: contiguous, as each rank's are.
    pub fn experts_of_ranks(&self, ranks: Range<usize>) -> Range<usize> {
        let start = self.experts_of(ranks.start).start;
        start..self.experts_of(ranks.end).start.max(start)
    }

    /// The largest number of experts any rank holds.
    pub fn most_local_experts(&self) -> usize {
        self.experts.div_ceil(self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_cover_all_experts_once(experts in 1usize..400, ranks in 1usize..70) {
            let p = Placement::new(experts, ranks).unwrap();
            let mut next = 0;
            for rank in 0..ranks {
                let block = p.experts_of(rank);
                prop_assert_eq!(block.start, next);
                prop_assert!(block.len() == experts / ranks || block.len() == experts / ranks + 1);
                for e in block.clone() {
                    prop_assert_eq!(p.rank_of(e), rank);
                }
                prop_assert_eq!(p.experts_of_ranks(0..rank), 0..block.start);
                prop_assert_eq!(p.experts_of_ranks(rank..ranks), block.start..experts);
                next = block.end;
            }
            prop_assert_eq!(next, experts);
        }
    }

    #[test]
    fn seven_experts_on_three_ranks() {
        let p = Placement::new(7, 3).unwrap();
        assert_eq!([p.experts_of(0), p.experts_of(1), p.experts_of(2)], [0..3, 3..5, 5..7]);
    }
}
