//! How many distinct ranks and nodes a token goes to, on average, when experts are chosen at random.
//!
//! The roofline ([`crate::roofline`]) needs these means, `U_R` and `U_N`, before any routing exists; real
//! routings are counted by [`crate::account`]. The own rank and the own node count like any other.

mod grouped;

pub use grouped::GroupLimit;

use crate::error::{CoreError, Result};
use crate::placement::Placement;
use crate::shape::MAX_TOP_K;
use crate::topology::Topology;

/// How the top-k experts of a token are drawn. Every expert is equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// k different experts, as a router's top-k gives.
    WithoutReplacement,
    /// k independent experts, as benchmarks that draw ids with `randint` do: one may be drawn twice.
    WithReplacement,
    /// k different experts out of a few groups (`DeepSeek-V3`'s node-limited routing).
    GroupLimited(GroupLimit),
}

/// A mean over tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Its standard error: 0 where the mean is exact, else what a finite simulation leaves open.
    pub standard_error: f64,
}

/// Mean numbers of distinct destinations of one token, own ones included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distinct {
    /// Distinct ranks, `U_R`.
    pub ranks: Mean,
    /// Distinct nodes, `U_N`.
    pub nodes: Mean,
}

/// The mean numbers of distinct ranks and nodes of a token that draws `top_k` experts by `draw`.
///
/// Exact for [`Draw::WithoutReplacement`] and [`Draw::WithReplacement`], and for [`Draw::GroupLimited`]
/// when the limit cannot bite; otherwise simulated, the same on every machine for the same seed. Experts
/// need not divide by ranks.
///
/// # Errors
/// [`CoreError::Length`] when `placement` is over another number of ranks than `topology`;
/// [`CoreError::TopK`] when `top_k` different experts cannot be drawn (above [`MAX_TOP_K`], or more than
/// there are experts in all or in the smallest groups that may be chosen); [`CoreError::Experts`] for a
/// limit of no groups.
pub fn distinct(topology: &Topology, placement: &Placement, top_k: usize, draw: Draw) -> Result<Distinct> {
    if topology.ranks() != placement.ranks() {
        return Err(CoreError::Length {
            what: "placement ranks",
            got: placement.ranks(),
            want: topology.ranks(),
            why: "the ranks of the topology".into(),
        });
    }
    let experts = placement.experts();
    let available = match draw {
        Draw::WithReplacement => usize::MAX,
        Draw::WithoutReplacement => experts,
        Draw::GroupLimited(limit) => limit.experts_available(experts)?,
    };
    if top_k == 0 || top_k > MAX_TOP_K || top_k > available {
        return Err(CoreError::TopK { top_k, experts: available.min(experts), limit: MAX_TOP_K });
    }
    Ok(match draw {
        Draw::WithReplacement => {
            exact(topology, placement, |block| hit_with_replacement(experts, block, top_k))
        }
        Draw::GroupLimited(limit) if limit.bites(top_k) => {
            grouped::simulate(topology, placement, top_k, limit)
        }
        Draw::WithoutReplacement | Draw::GroupLimited(_) => {
            exact(topology, placement, |block| hit_without_replacement(experts, block, top_k))
        }
    })
}

/// Expectations add up whatever the dependence between destinations: the mean number of destinations is
/// the sum of the probabilities that each is hit.
fn exact(topology: &Topology, placement: &Placement, hit: impl Fn(usize) -> f64) -> Distinct {
    let mean = |value| Mean { value, standard_error: 0.0 };
    let per_node = topology.ranks_per_node();
    let nodes = (0..topology.nodes()).map(|node| {
        // Blocks of a node's ranks are contiguous.
        let (first, last) = (node * per_node, (node + 1) * per_node - 1);
        hit(placement.experts_of(last).end - placement.experts_of(first).start)
    });
    Distinct {
        ranks: mean((0..topology.ranks()).map(|rank| hit(placement.experts_of(rank).len())).sum()),
        nodes: mean(nodes.sum()),
    }
}

/// 1 - C(E - n, k) / C(E, k): the chance that k different experts of E touch a block of n.
///
/// The quotient is the product over i < k of 1 - n / (E - i); as a sum of logarithms it neither overflows
/// (binomials do) nor loses the small chances to cancellation.
fn hit_without_replacement(experts: usize, block: usize, top_k: usize) -> f64 {
    if experts - block < top_k {
        return 1.0;
    }
    let log_miss: f64 = (0..top_k).map(|i| (-(block as f64) / (experts - i) as f64).ln_1p()).sum();
    -log_miss.exp_m1()
}

/// 1 - (1 - n/E)^k: the chance that k independent draws among E experts touch a block of n.
fn hit_with_replacement(experts: usize, block: usize, top_k: usize) -> f64 {
    let log_miss = top_k as f64 * (-(block as f64) / experts as f64).ln_1p();
    -log_miss.exp_m1()
}

#[cfg(test)]
mod tests;
