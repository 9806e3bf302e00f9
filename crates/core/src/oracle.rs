//! What dispatch and combine must give, bit for bit, written as plainly as possible.
//!
//! Nothing here uses the [`plan`](crate::plan): rows are found by walking every source's routing, so that
//! a mistake in the plan cannot hide in the oracle. Speed does not matter, except that a benchmark checks
//! every row with it.

use crate::bf16::Bf16;
use crate::placement::Placement;
use crate::plan::Layout;
use crate::routing::Routing;
use crate::topology::Topology;

/// Where one received row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowOrigin {
    /// Source rank.
    pub source: u32,
    /// Token index at the source.
    pub token: u32,
    /// The choice (column of the routing) this row stands for; `None` in the by-source layout, where one
    /// row stands for all choices.
    pub choice: Option<u32>,
}

/// Everything that one rank must receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Output rows in order; `None` is a padding row.
    pub rows: Vec<Option<RowOrigin>>,
    /// Arrivals in order of (source, token): `(source, token)`. Equal to `rows` in the by-source layout.
    pub arrivals: Vec<(u32, u32)>,
    /// For each (arrival, choice) the local expert id, or -1 where the choice is none or not of this rank;
    /// `[arrivals, top_k]`.
    pub local_ids: Vec<i32>,
    /// Choices of each local expert.
    pub expert_counts: Vec<u32>,
}

/// What `rank` must receive when source `s` routes by `routing_of(s)`.
///
/// Routings come one at a time, so a checker can make each anew instead of holding all.
pub fn dispatch<R: std::borrow::Borrow<Routing>>(
    placement: &Placement,
    layout: Layout,
    rank: usize,
    routing_of: impl Fn(usize) -> R,
) -> Expected {
    let local = placement.experts_of(rank);
    let mut expected = Expected { expert_counts: vec![0; local.len()], ..Expected::default() };
    let mut by_expert: Vec<Vec<RowOrigin>> = vec![Vec::new(); local.len()];
    for source in 0..placement.ranks() {
        let routing = routing_of(source);
        let routing = routing.borrow();
        for token in 0..routing.tokens() {
            let row = routing.row(token);
            let is_local = |id: i32| id >= 0 && local.contains(&(id as usize));
            if !row.iter().any(|&id| is_local(id)) {
                continue;
            }
            expected.arrivals.push((source as u32, token as u32));
            for (choice, &id) in row.iter().enumerate() {
                if is_local(id) {
                    let expert = id as usize - local.start;
                    expected.local_ids.push(expert as i32);
                    expected.expert_counts[expert] += 1;
                    by_expert[expert].push(RowOrigin {
                        source: source as u32,
                        token: token as u32,
                        choice: Some(choice as u32),
                    });
                } else {
                    expected.local_ids.push(-1);
                }
            }
        }
    }
    match layout {
        Layout::BySource => {
            let row = |&(source, token): &(u32, u32)| Some(RowOrigin { source, token, choice: None });
            expected.rows = expected.arrivals.iter().map(row).collect();
        }
        Layout::ExpertMajor { alignment } => {
            for rows in by_expert {
                expected.rows.extend(rows.into_iter().map(Some));
                while !expected.rows.len().is_multiple_of(alignment.max(1)) {
                    expected.rows.push(None);
                }
            }
        }
    }
    expected
}

/// Combines one token: biases first, then the partial rows of the ranks.
///
/// One node: every partial is added in f32 in ascending rank, one rounding at the end. Several nodes: the
/// partials of each node are added in ascending local rank from +0 and rounded to BF16 (the own node's
/// too), then the node sums are added in ascending node, and rounded. `partials` must be in ascending rank;
/// all rows and `out` have the same length.
pub fn combine_token(
    topology: &Topology,
    biases: &[&[Bf16]],
    partials: &[(usize, &[Bf16])],
    out: &mut [Bf16],
) {
    let mut sum = vec![0f32; out.len()];
    for bias in biases {
        add(&mut sum, bias);
    }
    if topology.nodes() == 1 {
        for (_, row) in partials {
            add(&mut sum, row);
        }
    } else {
        for of_node in partials.chunk_by(|a, b| topology.node_of(a.0) == topology.node_of(b.0)) {
            let mut node_sum = vec![0f32; out.len()];
            for (_, row) in of_node {
                add(&mut node_sum, row);
            }
            let rounded: Vec<Bf16> = node_sum.iter().map(|&v| Bf16::from_f32(v)).collect();
            add(&mut sum, &rounded);
        }
    }
    round(&sum, out);
}

/// Reduces the rows that one rank's experts made of one token (expert-major layout) to the partial that
/// crosses to the source: ascending choice, from +0, by fused multiply-add where a weight is given and by
/// plain addition otherwise; one rounding.
pub fn expert_partial(rows: &[(Option<f32>, &[Bf16])], out: &mut [Bf16]) {
    let mut sum = vec![0f32; out.len()];
    for (weight, row) in rows {
        match weight {
            None => add(&mut sum, row),
            Some(weight) => {
                for (sum, value) in sum.iter_mut().zip(*row) {
                    *sum = weight.mul_add(value.to_f32(), *sum);
                }
            }
        }
    }
    round(&sum, out);
}

fn add(sum: &mut [f32], row: &[Bf16]) {
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += value.to_f32();
    }
}

fn round(sum: &[f32], out: &mut [Bf16]) {
    for (out, &sum) in out.iter_mut().zip(sum) {
        *out = Bf16::from_f32(sum);
    }
}
