//! What a dispatch leaves behind for combine and for later dispatches with the same routing.

use std::sync::Arc;

use crate::counts::CountMatrix;
use crate::error::{CoreError, Result};
use crate::plan::{Layout, Plan};

/// Names the dispatch that made a handle. All ranks of a call must use handles of one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Random token that the ranks of one communicator share.
    pub communicator: u64,
    /// The communicator's call number of that dispatch.
    pub epoch: u64,
}

/// The routing of one finished dispatch: this rank's plan, the counts of all ranks, and where each arrival
/// lies. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    origin: Origin,
    rank: usize,
    plan: Plan,
    matrix: CountMatrix,
    arrivals: Arrivals,
    forwards: Option<Forwards>,
}

/// What a rank forwarded on its node for its rail peers: where each of their tokens went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwards {
    most: usize,
    /// `[node]`: where its tokens start among all; the last entry is the end.
    starts: Vec<usize>,
    /// `[token]`: destinations of each.
    counts: Vec<u8>,
    /// `[token, most]`: rank on this node, and arrival there.
    entries: Vec<(u16, u32)>,
}

impl Forwards {
    /// Room for `tokens[n]` tokens of node n with at most `most` destinations each.
    pub fn new(most: usize, tokens: &[u32]) -> Self {
        let mut starts = vec![0];
        let mut end = 0;
        for &tokens in tokens {
            end += tokens as usize;
            starts.push(end);
        }
        Self { most, starts, counts: vec![0; end], entries: vec![(0, 0); end * most] }
    }

    /// Adds a destination of token `place` (its place among those of `node`): the rank's place on this node and its arrival
    /// there. More than fit are ignored.
    pub fn add(&mut self, (node, place): (usize, usize), entry: (u16, u32)) {
        let at = self.starts[node] + place;
        let count = usize::from(self.counts[at]);
        if count < self.most {
            self.entries[at * self.most + count] = entry;
            self.counts[at] += 1;
        }
    }

    /// Tokens of `node`.
    pub fn tokens(&self, node: usize) -> usize {
        self.starts[node + 1] - self.starts[node]
    }

    /// Where token `place` of `node` went.
    pub fn entries(&self, node: usize, place: usize) -> &[(u16, u32)] {
        let at = self.starts[node] + place;
        &self.entries[at * self.most..at * self.most + usize::from(self.counts[at])]
    }
}

/// What a rank received, seen from the receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Where each source's arrivals start, `[ranks + 1]`.
    pub source_starts: Vec<u32>,
    /// Token index at its source of every arrival, `[arrivals]`.
    pub source_tokens: Vec<u32>,
    /// Expert-major only: for each (arrival, choice) the output row of that choice, or
    /// [`NO_ROW`](crate::plan::NO_ROW) where the choice is not an expert of this rank;
    /// `[arrivals, top_k]`.
    pub choice_rows: Vec<u32>,
    /// Choices of each local expert, `[local experts]`.
    pub expert_counts: Vec<u32>,
    /// Rows of the output, padding included.
    pub rows: usize,
}

impl Arrivals {
    /// Expert-major: each choice of a local expert of arrival `arrival`, ascending, with its output row. Nothing in
    /// the by-source layout, where arrival i is row i.
    pub fn rows_of(&self, arrival: usize, top_k: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let range = if self.choice_rows.is_empty() { 0..0 } else { arrival * top_k..(arrival + 1) * top_k };
        self.choice_rows[range]
            .iter()
            .enumerate()
            .filter(|&(_, &row)| row != crate::plan::NO_ROW)
            .map(|(choice, &row)| (choice, row as usize))
    }
}

impl Handle {
    /// Joins the parts; a backend calls this at the end of a dispatch.
    pub fn new(origin: Origin, rank: usize, plan: Plan, matrix: CountMatrix, arrivals: Arrivals) -> Self {
        Self::across(origin, rank, (plan, matrix, arrivals), None)
    }

    /// The same with what this rank forwarded for other nodes.
    pub fn across(
        origin: Origin,
        rank: usize,
        (plan, matrix, arrivals): (Plan, CountMatrix, Arrivals),
        forwards: Option<Forwards>,
    ) -> Self {
        Self { inner: Arc::new(Inner { origin, rank, plan, matrix, arrivals, forwards }) }
    }

    /// What this rank forwarded for other nodes; `None` where all ranks share memory.
    pub fn forwards(&self) -> Option<&Forwards> {
        self.inner.forwards.as_ref()
    }

    /// The dispatch that made this handle.
    pub fn origin(&self) -> Origin {
        self.inner.origin
    }

    /// What this rank sends.
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// Counts of all sources to all ranks, or to the ranks of this node where several nodes are joined.
    pub fn matrix(&self) -> &CountMatrix {
        &self.inner.matrix
    }

    /// What this rank received.
    pub fn arrivals(&self) -> &Arrivals {
        &self.inner.arrivals
    }

    /// Row order of the dispatch.
    pub fn layout(&self) -> Layout {
        self.inner.matrix.layout()
    }

    /// Tokens that this rank sent, and rows that combine gives back.
    pub fn tokens(&self) -> usize {
        self.inner.plan.tokens()
    }

    /// Rows that this rank received, padding included: rows that combine takes.
    pub fn rows(&self) -> usize {
        self.inner.arrivals.rows
    }

    /// Checks that the handle was made by rank `rank` of the communicator with this token.
    ///
    /// # Errors
    /// [`CoreError::Handle`] that says whose handle it is.
    pub fn check(&self, communicator: u64, rank: usize) -> Result<()> {
        let Origin { communicator: made_by, epoch } = self.inner.origin;
        if made_by != communicator {
            return Err(CoreError::Handle(format!(
                "it was made by another communicator (token {made_by:016x}, call {epoch}; this one is \
                 {communicator:016x}): a handle is stale once its communicator is gone; dispatch again"
            )));
        }
        if self.inner.rank != rank {
            return Err(CoreError::Handle(format!(
                "it was made by rank {}, this is rank {rank}: each rank must use its own",
                self.inner.rank
            )));
        }
        Ok(())
    }
}
