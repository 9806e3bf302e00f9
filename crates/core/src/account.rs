//! Exact byte accounting: which copies a rank's routing makes, and what they weigh on each link.
//!
//! All counts belong to one **source** rank: copies made of its tokens, wherever they are made. A forward
//! is sent by another rank (the rail of a remote node) yet counted here, so that sums over sources are sums
//! over the machine.

mod bytes;

pub use bytes::{LinkBytes, OpBytes, RowSize, topk_metadata_bytes};

use crate::error::{CoreError, Result};
use crate::placement::Placement;
use crate::routing::Routing;
use crate::topology::Topology;

/// Copies by how far they go from the source rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// To the source rank itself: crosses no link.
    pub own_rank: u64,
    /// To other ranks of the source's node.
    pub own_node: u64,
    /// To ranks of other nodes.
    pub other_nodes: u64,
}

impl Reach {
    /// All copies, own rank included.
    pub fn total(&self) -> u64 {
        self.own_rank + self.remote()
    }

    /// Copies that leave the source rank.
    pub fn remote(&self) -> u64 {
        self.own_node + self.other_nodes
    }
}

/// The copies that one rank's routing makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Tokens of the source rank.
    pub tokens: u64,
    /// Tokens whose every choice is -1.
    pub tokens_without_destination: u64,
    /// (token, k) choices that name an expert; an expert chosen twice counts twice.
    pub selections: Reach,
    /// Distinct (token, destination rank) pairs.
    pub rank_copies: Reach,
    /// Tokens with a destination on the source's own node (the source rank counts).
    pub own_node_copies: u64,
    /// Distinct (token, node) pairs with a node other than the source's: what crosses scale-out in HT.
    pub other_node_copies: u64,
    /// Copies over scale-up on other nodes: from the rail, where a token arrives, to each other
    /// destination rank of that node.
    pub forwards: u64,
}

impl Traffic {
    /// Distinct (token, node) pairs, own node included.
    pub fn node_copies(&self) -> u64 {
        self.own_node_copies + self.other_node_copies
    }
}

/// Sums over source ranks.
impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.tokens_without_destination += other.tokens_without_destination;
        self.selections += other.selections;
        self.rank_copies += other.rank_copies;
        self.own_node_copies += other.own_node_copies;
        self.other_node_copies += other.other_node_copies;
        self.forwards += other.forwards;
    }
}

impl std::ops::AddAssign for Reach {
    fn add_assign(&mut self, other: Self) {
        self.own_rank += other.own_rank;
        self.own_node += other.own_node;
        self.other_nodes += other.other_nodes;
    }
}

/// Counts the copies that `routing`, the choices of `source_rank`'s tokens, makes.
///
/// # Errors
/// [`CoreError::Length`] when `placement` is over another number of ranks than `topology`, or `source_rank`
/// is not a rank of it; [`CoreError::OtherExperts`] when `routing` is over other experts than `placement`.
pub fn rank_traffic(
    topology: &Topology,
    placement: &Placement,
    routing: &Routing,
    source_rank: usize,
) -> Result<Traffic> {
    check(topology, placement, routing, source_rank)?;
    let own_node = topology.node_of(source_rank);
    let rail = topology.local_rank(source_rank);
    let rank_of: Vec<u32> = (0..placement.experts()).map(|expert| placement.rank_of(expert) as u32).collect();
    // The token that last touched a rank or node, plus one: a set that need not be cleared per token.
    let mut rank_seen = vec![0usize; topology.ranks()];
    let mut node_seen = vec![0usize; topology.nodes()];
    let mut traffic = Traffic { tokens: routing.tokens() as u64, ..Traffic::default() };
    for token in 0..routing.tokens() {
        let stamp = token + 1;
        let before = traffic.selections.total();
        for &id in routing.row(token) {
            // Ids were checked by the routing: -1 is the only negative one.
            let Ok(expert) = usize::try_from(id) else { continue };
            let rank = rank_of[expert] as usize;
            let node = topology.node_of(rank);
            let first_on_rank = std::mem::replace(&mut rank_seen[rank], stamp) != stamp;
            let first_on_node = std::mem::replace(&mut node_seen[node], stamp) != stamp;
            let bin = |reach: &mut Reach| {
                if rank == source_rank {
                    reach.own_rank += 1;
                } else if node == own_node {
                    reach.own_node += 1;
                } else {
                    reach.other_nodes += 1;
                }
            };
            bin(&mut traffic.selections);
            if first_on_rank {
                bin(&mut traffic.rank_copies);
                traffic.forwards += u64::from(node != own_node && topology.local_rank(rank) != rail);
            }
            if first_on_node {
                traffic.own_node_copies += u64::from(node == own_node);
                traffic.other_node_copies += u64::from(node != own_node);
            }
        }
        traffic.tokens_without_destination += u64::from(traffic.selections.total() == before);
    }
    Ok(traffic)
}

fn check(topology: &Topology, placement: &Placement, routing: &Routing, source_rank: usize) -> Result<()> {
    if placement.ranks() != topology.ranks() {
        return Err(CoreError::Length {
            what: "placement ranks",
            got: placement.ranks(),
            want: topology.ranks(),
            why: "the ranks of the topology".into(),
        });
    }
    if routing.experts() != placement.experts() {
        return Err(CoreError::OtherExperts { routing: routing.experts(), placement: placement.experts() });
    }
    if source_rank >= topology.ranks() {
        let why = format!("source rank {source_rank} is past the last rank");
        return Err(CoreError::Length {
            what: "ranks up to the source",
            got: source_rank + 1,
            want: topology.ranks(),
            why,
        });
    }
    Ok(())
}
