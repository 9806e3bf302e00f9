//! From routing to rows: who sends which token where, and to which row of the receiver's output.
//!
//! A [`Plan`] is what one source computes alone: for every token the destination ranks and, for each, the
//! token's *slot* among the tokens this source sends there. With the [`CountMatrix`](crate::CountMatrix), what all
//! sources know after the count exchange (notify), each source computes the final row of every token itself.

use std::ops::Range;

use crate::error::{CoreError, Result};
use crate::placement::Placement;
use crate::routing::Routing;

/// The largest padding multiple of the expert-major layout. Grouped GEMM kernels use up to 256 today.
pub const MAX_ALIGNMENT: usize = 1024;

/// Order of the rows that a rank receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One row for each (source rank, source token) with an expert here, in that order.
    #[default]
    BySource,
    /// One row for each (local expert, source rank, source token, choice), in that order. Each expert's rows
    /// start at a multiple of `alignment`; padding rows are zero.
    ExpertMajor {
        /// Rows of each expert are padded to a multiple of this; 1 for none.
        alignment: usize,
    },
}

impl Layout {
    /// Checks the alignment.
    ///
    /// # Errors
    /// [`CoreError::Alignment`] when it is zero or above [`MAX_ALIGNMENT`].
    pub fn check(self) -> Result<()> {
        match self {
            Self::ExpertMajor { alignment } if alignment == 0 || alignment > MAX_ALIGNMENT => {
                Err(CoreError::Alignment { alignment, limit: MAX_ALIGNMENT })
            }
            _ => Ok(()),
        }
    }
}

/// One copy of a token: the rank it goes to and its place among this source's tokens for that rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Destination rank.
    pub rank: u32,
    /// How many earlier tokens of this source go to the same rank.
    pub slot: u32,
}

/// Marks "no row" in [`Arrivals::choice_rows`](crate::handle::Arrivals::choice_rows).
pub const NO_ROW: u32 = u32::MAX;

/// The lowest choice of a token among the experts of one destination: the row it crosses to in the
/// expert-major layout (the receiver copies it to the token's other rows there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstChoice {
    /// The expert.
    pub expert: u32,
    /// How many earlier (token, choice) pairs of this source name the same expert.
    pub slot: u32,
}

/// A token with the part of its destinations that lies on one node: it crosses to that node once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeToken<'a> {
    /// Token index at the source.
    pub token: u32,
    /// Where it goes on the node, in ascending rank; at least one.
    pub destinations: &'a [Destination],
    /// The first choice at each destination. Empty unless planned for the expert-major layout.
    pub firsts: &'a [FirstChoice],
}

/// What one source sends, computed from its routing alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    starts: Vec<u32>,
    destinations: Vec<Destination>,
    rank_counts: Vec<u32>,
    expert_counts: Vec<u32>,
    first_choices: Vec<FirstChoice>,
}

impl Plan {
    /// Plans the sends of `routing` under `placement`. With an expert-major `layout` it also finds the first
    /// choice of every copy.
    ///
    /// Costs one pass over the ids.
    ///
    /// # Errors
    /// [`CoreError::Experts`] when the routing was made for another number of experts, and
    /// [`CoreError::Alignment`] for an unusable layout.
    pub fn new(routing: &Routing, placement: &Placement, layout: Layout) -> Result<Self> {
        layout.check()?;
        if routing.experts() != placement.experts() {
            return Err(CoreError::OtherExperts {
                routing: routing.experts(),
                placement: placement.experts(),
            });
        }
        let rank_of: Vec<u32> = (0..placement.experts()).map(|e| placement.rank_of(e) as u32).collect();
        let mut plan = Self {
            starts: Vec::with_capacity(routing.tokens() + 1),
            destinations: Vec::with_capacity(routing.tokens() * routing.top_k().min(placement.ranks())),
            rank_counts: vec![0; placement.ranks()],
            expert_counts: vec![0; placement.experts()],
            first_choices: Vec::new(),
        };
        plan.starts.push(0);
        if layout == Layout::BySource {
            plan.fill_by_source(routing, &rank_of);
        } else {
            plan.fill_expert_major(routing, &rank_of);
        }
        Ok(plan)
    }

    fn fill_by_source(&mut self, routing: &Routing, rank_of: &[u32]) {
        for &id in routing.ids() {
            if id >= 0 {
                self.expert_counts[id as usize] += 1;
            }
        }
        let mut set = Vec::with_capacity(routing.top_k());
        for token in 0..routing.tokens() {
            let ranks = routing.row(token).iter().filter(|&&id| id >= 0).map(|&id| rank_of[id as usize]);
            if self.rank_counts.len() <= 64 {
                // The set of destinations is one word, and reading its bits upwards gives ascending ranks.
                let mut word = ranks.fold(0u64, |word, rank| word | 1 << rank);
                while word != 0 {
                    self.push(word.trailing_zeros());
                    word &= word - 1;
                }
            } else {
                set.clear();
                set.extend(ranks);
                set.sort_unstable();
                set.dedup();
                for &rank in &set {
                    self.push(rank);
                }
            }
            self.starts.push(self.destinations.len() as u32);
        }
    }

    fn fill_expert_major(&mut self, routing: &Routing, rank_of: &[u32]) {
        let mut choices: Vec<(u32, FirstChoice)> = Vec::with_capacity(routing.top_k());
        for token in 0..routing.tokens() {
            choices.clear();
            for &id in routing.row(token).iter().filter(|&&id| id >= 0) {
                let count = &mut self.expert_counts[id as usize];
                choices.push((rank_of[id as usize], FirstChoice { expert: id as u32, slot: *count }));
                *count += 1;
            }
            // Stable: the first of each rank stays its lowest choice.
            choices.sort_by_key(|choice| choice.0);
            choices.dedup_by_key(|choice| choice.0);
            for &(rank, first) in &choices {
                self.push(rank);
                self.first_choices.push(first);
            }
            self.starts.push(self.destinations.len() as u32);
        }
    }

    fn push(&mut self, rank: u32) {
        let count = &mut self.rank_counts[rank as usize];
        self.destinations.push(Destination { rank, slot: *count });
        *count += 1;
    }

    /// Number of tokens planned.
    pub fn tokens(&self) -> usize {
        self.starts.len() - 1
    }

    /// Where `token` goes, in ascending rank.
    pub fn destinations(&self, token: usize) -> &[Destination] {
        &self.destinations[self.starts[token] as usize..self.starts[token + 1] as usize]
    }

    /// What this source packs for one node: the tokens with a destination among `ranks`, ascending, each with its
    /// destinations there.
    ///
    /// Costs one search in the destinations of every token.
    pub fn tokens_to(&self, ranks: Range<usize>) -> impl Iterator<Item = NodeToken<'_>> + '_ {
        (0..self.tokens()).filter_map(move |token| {
            let all = self.destinations(token);
            let start = all.partition_point(|d| (d.rank as usize) < ranks.start);
            let end = start + all[start..].partition_point(|d| (d.rank as usize) < ranks.end);
            let firsts = self.first_choices(token).get(start..end).unwrap_or(&[]);
            let destinations = &all[start..end];
            (start < end).then_some(NodeToken { token: token as u32, destinations, firsts })
        })
    }

    /// Copies sent in all: the sum of [`Plan::rank_counts`].
    pub fn copies(&self) -> usize {
        self.destinations.len()
    }

    /// Tokens sent to each rank, `[ranks]`.
    pub fn rank_counts(&self) -> &[u32] {
        &self.rank_counts
    }

    /// Choices of each expert, `[experts]`; an expert chosen twice by a token counts twice.
    pub fn expert_counts(&self) -> &[u32] {
        &self.expert_counts
    }

    /// The first choices of `token`'s copies, parallel to [`Plan::destinations`]. Empty unless planned for the
    /// expert-major layout.
    pub fn first_choices(&self, token: usize) -> &[FirstChoice] {
        let range = self.starts[token] as usize..self.starts[token + 1] as usize;
        self.first_choices.get(range).unwrap_or(&[])
    }
}
