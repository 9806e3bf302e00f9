//! What lines say of the run as a whole: its size, its variables, its versions.

use std::collections::BTreeMap;

use super::case::Variable;
use super::event::Place;

/// A line may name its own rank.
pub(super) const OWN_RANK: u32 = 1;
/// A prefix may stand within the line.
pub(super) const INNER: u32 = 2;
/// A variable may be shown.
pub(super) const VARIABLE: u32 = 4;
/// A version may be named.
pub(super) const VERSION: u32 = 8;
/// The size of the run may be named.
pub(super) const WORLD: u32 = 16;

/// Literals beside those of signals, and what they may mean.
pub(super) const MARKS: &[(u32, &[&str])] = &[
    (OWN_RANK, &["[rank ", "[Rank ", "lobal rank: ", "lobal rank ", "rank = ", ", RDMA: "]),
    (INNER, &["[rank", "[default", "]<stdout>", "]<stderr>"]),
];

/// What is known of the run.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    /// First value of each variable.
    pub(super) variables: BTreeMap<String, Variable>,
}

impl Context {
    /// Reads a line that has `marks`.
    pub(super) fn line(&mut self, _marks: u32, _line: &str, _place: Place) {}

    /// Takes in that of a later file.
    pub(super) fn add(&mut self, other: Self) {
        for (name, variable) in other.variables {
            self.variables.entry(name).or_insert(variable);
        }
    }

    /// Number of ranks.
    pub(super) fn world(&self) -> Option<u32> {
        None
    }

    /// Ranks of one node.
    pub(super) fn per_node(&self) -> Option<u32> {
        None
    }
}
