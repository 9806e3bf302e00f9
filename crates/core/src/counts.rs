//! The counts that receivers and senders share after notify, and every row number that follows from them.

use std::ops::Range;

use crate::error::{CoreError, Result};
use crate::placement::Placement;
use crate::plan::Layout;

/// How many tokens every source sends to each of a *window* of destinations: all ranks inside a node or NVLink domain
/// ([`CountMatrix::new`]), the ranks of one node between nodes ([`CountMatrix::of_node`]).
///
/// All calls take global ranks and experts. A destination outside of the window counts as one to which nobody sends: 0
/// rows, no experts. Memory is [sources x (ranks + experts of the window)], not the square of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountMatrix {
    placement: Placement,
    layout: Layout,
    /// The window: destinations that are known.
    ranks: Range<usize>,
    /// Their experts.
    experts: Range<usize>,
    /// `[source, rank of the window]`
    to_rank: Vec<u32>,
    /// `[source, expert of the window]`
    to_expert: Vec<u32>,
    /// First row of each expert of the window on its rank; empty for the by-source layout.
    expert_start: Vec<u32>,
}

impl CountMatrix {
    /// Joins the count rows of all sources: `to_rank` is `[ranks, ranks]`, `to_expert` `[ranks, experts]`,
    /// row-major with the source first.
    ///
    /// # Errors
    /// [`CoreError::Length`] when a matrix has another size, [`CoreError::Alignment`] for an unusable layout.
    pub fn new(placement: Placement, layout: Layout, to_rank: Vec<u32>, to_expert: Vec<u32>) -> Result<Self> {
        Self::of_node(placement, layout, 0..placement.ranks(), to_rank, to_expert)
    }

    /// Joins the columns of one node's ranks: with n ranks in `ranks` and e experts on them, `to_rank` is `[all ranks, n]`
    /// and `to_expert` `[all ranks, e]`, row-major with the source first.
    ///
    /// # Errors
    /// [`CoreError::Ranks`] when the placement lacks such ranks, [`CoreError::Length`] when a matrix has another size,
    /// [`CoreError::Alignment`] for an unusable layout.
    pub fn of_node(
        placement: Placement,
        layout: Layout,
        ranks: Range<usize>,
        to_rank: Vec<u32>,
        to_expert: Vec<u32>,
    ) -> Result<Self> {
        layout.check()?;
        let sources = placement.ranks();
        let Range { start, end } = ranks;
        if start > end || end > sources {
            return Err(CoreError::Ranks { start, end, ranks: sources });
        }
        let experts = placement.experts_of_ranks(start..end);
        for (what, got, columns) in [
            ("per-rank counts", to_rank.len(), ranks.len()),
            ("per-expert counts", to_expert.len(), experts.len()),
        ] {
            let want = sources * columns;
            if got != want {
                let why = format!("{sources} sources, {columns} columns each");
                return Err(CoreError::Length { what, got, want, why });
            }
        }
        let mut expert_start = Vec::new();
        if let Layout::ExpertMajor { alignment } = layout {
            let totals = column_sums(&to_expert, experts.len());
            for rank in ranks.clone() {
                let mut start = 0;
                for expert in placement.experts_of(rank) {
                    expert_start.push(start);
                    start += totals[expert - experts.start].next_multiple_of(alignment as u32);
                }
            }
        }
        Ok(Self { placement, layout, ranks, experts, to_rank, to_expert, expert_start })
    }

    /// The layout the offsets are for.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The placement the counts are for.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The destinations whose counts are known.
    pub fn ranks(&self) -> Range<usize> {
        self.ranks.clone()
    }

    /// The experts of those destinations.
    pub fn experts(&self) -> Range<usize> {
        self.experts.clone()
    }

    /// Tokens that `source` sends to each rank of the window; nothing for a source that does not exist.
    pub fn to_ranks(&self, source: usize) -> &[u32] {
        row(&self.to_rank, source, self.ranks.len())
    }

    /// Choices of `source` for each expert of the window; nothing for a source that does not exist.
    pub fn to_experts(&self, source: usize) -> &[u32] {
        row(&self.to_expert, source, self.experts.len())
    }

    /// Tokens that `source` sends to `destination`.
    pub fn count(&self, source: usize, destination: usize) -> usize {
        if self.ranks.contains(&destination) {
            self.to_rank[source * self.ranks.len() + destination - self.ranks.start] as usize
        } else {
            0
        }
    }

    /// Tokens that arrive at `destination` from all sources: rows of the by-source layout and of the
    /// carried ids, weights and source tokens in either layout.
    pub fn arrivals(&self, destination: usize) -> usize {
        self.arrival_offset(self.placement.ranks(), destination)
    }

    /// The first arrival of `source` at `destination`.
    pub fn arrival_offset(&self, source: usize, destination: usize) -> usize {
        (0..source).map(|earlier| self.count(earlier, destination)).sum()
    }

    /// Where each source's arrivals at `destination` start, `[ranks + 1]`; the last entry is their number.
    pub fn source_starts(&self, destination: usize) -> Vec<u32> {
        let sources = self.placement.ranks();
        let mut starts = Vec::with_capacity(sources + 1);
        let mut start = 0;
        starts.push(0);
        for source in 0..sources {
            start += self.count(source, destination) as u32;
            starts.push(start);
        }
        starts
    }

    /// Rows of the output at `destination`, padding included.
    pub fn rows(&self, destination: usize) -> usize {
        match self.layout {
            Layout::BySource => self.arrivals(destination),
            Layout::ExpertMajor { alignment } => self
                .expert_counts(destination)
                .into_iter()
                .map(|count| (count as usize).next_multiple_of(alignment))
                .sum(),
        }
    }

    /// Choices of each local expert of `destination` over all sources, without padding. All 0 outside of the window.
    pub fn expert_counts(&self, destination: usize) -> Vec<u32> {
        let local = self.placement.experts_of(destination);
        let mut counts = vec![0; local.len()];
        if self.ranks.contains(&destination) {
            for source in 0..self.placement.ranks() {
                let row = &self.to_experts(source)[local.start - self.experts.start..];
                for (count, of_source) in counts.iter_mut().zip(row) {
                    *count += of_source;
                }
            }
        }
        counts
    }

    /// First row of `expert` at its rank (expert-major layout; 0 otherwise, and outside of the window).
    pub fn expert_start(&self, expert: usize) -> usize {
        let place = expert.checked_sub(self.experts.start);
        place.and_then(|place| self.expert_start.get(place)).map_or(0, |&row| row as usize)
    }

    /// For one source, the row at which its choices of each expert start on that expert's rank,
    /// `[experts]`; 0 for experts outside of the window. Empty for the by-source layout.
    pub fn expert_offsets(&self, source: usize) -> Vec<u32> {
        let of_window = self.window_expert_offsets(source);
        if self.layout == Layout::BySource || of_window.len() == self.placement.experts() {
            return of_window;
        }
        let mut offsets = vec![0; self.placement.experts()];
        offsets[self.experts.clone()].copy_from_slice(&of_window);
        offsets
    }

    /// As [`CountMatrix::expert_offsets`], for the experts of the window only, counted from its first: what a forwarder
    /// needs. Empty for the by-source layout.
    pub fn window_expert_offsets(&self, source: usize) -> Vec<u32> {
        let mut offsets = self.expert_start.clone();
        if !offsets.is_empty() {
            for counts in self.to_expert.chunks_exact(offsets.len()).take(source) {
                for (offset, count) in offsets.iter_mut().zip(counts) {
                    *offset += count;
                }
            }
        }
        offsets
    }
}

fn row(matrix: &[u32], row: usize, columns: usize) -> &[u32] {
    matrix.get(row * columns..(row + 1) * columns).unwrap_or(&[])
}

fn column_sums(matrix: &[u32], columns: usize) -> Vec<u32> {
    let mut sums = vec![0; columns];
    if columns > 0 {
        for row in matrix.chunks_exact(columns) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
    sums
}
