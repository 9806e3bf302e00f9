//! What the kernels print when they wait in vain: who waits, and for whom.

use std::collections::BTreeSet;

use crate::diagnose::Case;
use crate::diagnose::event::{Event, Place};

/// Whom all the lines of kernels name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silent {
    /// One node, by its RDMA rank (global rank divided by the 8 ranks of a node).
    Node(i64),
    /// One rank.
    Rank(i64),
    /// Several: no single node or link.
    Several(Vec<i64>),
}

/// Whom the kernels wait for, by their lines, with those lines; none where no line names anyone.
///
/// A line of the forwarder says `RDMA: r` for itself and `src RDMA lane: l` for the node whose data did not come. NVL receivers wait for a
/// forwarder on their own node and follow from it: their lines count only where nothing else is there.
pub fn silent(case: &Case) -> Option<(Silent, Vec<Place>)> {
    let far: Vec<(i64, &Event)> = case
        .events("kernel-timeout")
        .filter_map(|event| {
            let lane = event.number("lane")?;
            // What a kernel waits for from its own node never left it.
            (Some(lane) != event.number("rdma")).then_some((lane, event))
        })
        .collect();
    if !far.is_empty() {
        let places = far.iter().take(4).map(|(_, event)| event.place).collect();
        let lanes: BTreeSet<i64> = far.iter().map(|(lane, _)| *lane).collect();
        return Some((one(&lanes, Silent::Node), places));
    }
    let peers: Vec<(i64, &Event)> =
        case.events("low-latency-timeout").filter_map(|event| Some((event.number("peer")?, event))).collect();
    if peers.is_empty() {
        return None;
    }
    let places = peers.iter().take(4).map(|(_, event)| event.place).collect();
    let ranks: BTreeSet<i64> = peers.iter().map(|(peer, _)| *peer).collect();
    Some((one(&ranks, Silent::Rank), places))
}

fn one(names: &BTreeSet<i64>, only: fn(i64) -> Silent) -> Silent {
    match (names.first(), names.len()) {
        (Some(&name), 1) => only(name),
        _ => Silent::Several(names.iter().copied().collect()),
    }
}

impl Silent {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Self::Node(node) => format!("node {node} (RDMA rank {node})"),
            Self::Rank(rank) => format!("rank {rank}"),
            Self::Several(names) => {
                let list: Vec<String> = names.iter().map(i64::to_string).collect();
                format!("several ({})", list.join(", "))
            }
        }
    }
}
