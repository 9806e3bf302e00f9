//! The declared topology: how many ranks there are and how many of them share a node.

use std::ops::Range;

use crate::error::{CoreError, Result};

/// Ranks grouped into nodes of equal size: rank `r` is on node `r / ranks_per_node`.
///
/// The topology is *declared*, not discovered: it decides the rounding of combine (one node: one rounding;
/// several: one per node partial and one at the end), so it is part of the result's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    ranks: usize,
    ranks_per_node: usize,
}

/// The most ranks a topology may have: what the 12-bit rank field of the transport's immediate carries
/// (DESIGN 5.4).
pub const MAX_RANKS: usize = 4096;

impl Topology {
    /// `ranks` ranks on nodes of `ranks_per_node` each.
    ///
    /// # Errors
    /// [`CoreError::Topology`] when either is zero, `ranks` is above [`MAX_RANKS`] or not a multiple of
    /// `ranks_per_node`.
    pub fn new(ranks: usize, ranks_per_node: usize) -> Result<Self> {
        if ranks == 0 || ranks_per_node == 0 || ranks > MAX_RANKS || !ranks.is_multiple_of(ranks_per_node) {
            return Err(CoreError::Topology { ranks, ranks_per_node });
        }
        Ok(Self { ranks, ranks_per_node })
    }

    /// All ranks on one node.
    ///
    /// # Errors
    /// As [`Topology::new`].
    pub fn one_node(ranks: usize) -> Result<Self> {
        Self::new(ranks, ranks)
    }

    /// Number of ranks, R.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Ranks on each node, G.
    pub fn ranks_per_node(&self) -> usize {
        self.ranks_per_node
    }

    /// Number of nodes, N = R / G.
    pub fn nodes(&self) -> usize {
        self.ranks / self.ranks_per_node
    }

    /// The node that `rank` is on.
    pub fn node_of(&self, rank: usize) -> usize {
        rank / self.ranks_per_node
    }

    /// The ranks on `node`.
    pub fn ranks_of(&self, node: usize) -> Range<usize> {
        node * self.ranks_per_node..(node + 1) * self.ranks_per_node
    }

    /// The index of `rank` on its node (its rail).
    pub fn local_rank(&self, rank: usize) -> usize {
        rank % self.ranks_per_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_rails() {
        let t = Topology::new(8, 4).unwrap();
        assert_eq!((t.nodes(), t.node_of(5), t.local_rank(5)), (2, 1, 1));
        assert_eq!((t.ranks_of(0), t.ranks_of(1)), (0..4, 4..8));
    }

    #[test]
    fn refuses_what_does_not_divide() {
        for (r, g) in [(0, 1), (4, 0), (6, 4), (4097, 1), (2, 4)] {
            assert!(Topology::new(r, g).is_err(), "{r} x {g}");
        }
    }
}
