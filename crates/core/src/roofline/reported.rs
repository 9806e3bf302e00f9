//! How published and printed figures count, and the way between them and the wire.

use super::rate_gb_s;
use crate::topology::Topology;

/// The wire rate behind a logical one when a token's copies go to `parts` places alike and its own place,
/// counted in the logical figure, crosses nothing: `logical (parts - 1) / parts`.
///
/// Places are nodes for scale-out figures, ranks for scale-up figures inside one node.
pub fn logical_to_wire(logical_gb_s: f64, parts: usize) -> f64 {
    logical_gb_s * parts.saturating_sub(1) as f64 / parts.max(1) as f64
}

/// The inverse of [`logical_to_wire`]: `wire parts / (parts - 1)`. `None` for a single place, where nothing
/// is on the wire.
pub fn wire_to_logical(wire_gb_s: f64, parts: usize) -> Option<f64> {
    (parts > 1).then(|| wire_gb_s * parts as f64 / (parts - 1) as f64)
}

/// The greatest bus bandwidth that NCCL's `alltoall_perf` can print, GB/s: `B_n (R-1)/(R-G)`.
///
/// Of S bytes per rank `S (R-G)/R` cross the NIC, and nccl-tests prints `S/t (R-1)/R`. `None` on one node,
/// where the NIC carries nothing.
pub fn alltoall_busbw_ceiling(scale_out_gb_s: f64, topology: &Topology) -> Option<f64> {
    let off_node = topology.ranks() - topology.ranks_per_node();
    (off_node > 0).then(|| scale_out_gb_s * (topology.ranks() - 1) as f64 / off_node as f64)
}

/// The `total` of the guide's benchmark from its dispatch and combine figures, without layout: twice the
/// bytes over both times, which is the harmonic mean of the two rates. GB/s.
pub fn guide_total(dispatch_gb_s: f64, combine_gb_s: f64) -> f64 {
    2.0 / (1.0 / dispatch_gb_s + 1.0 / combine_gb_s)
}

/// The three times that the guide's inter-node benchmark adds up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuideTimes {
    /// Layout (counting of tokens per rank), microseconds. 0 in the intra-node benchmark.
    pub layout_us: f64,
    /// Dispatch, microseconds.
    pub dispatch_us: f64,
    /// Combine, microseconds.
    pub combine_us: f64,
}

impl GuideTimes {
    /// The times behind printed figures for `bytes` logical bytes; what `total` has beyond dispatch and
    /// combine is layout. Rates in GB/s.
    pub fn from_printed(bytes: f64, dispatch_gb_s: f64, combine_gb_s: f64, total_gb_s: f64) -> Self {
        let us = |bytes, gb_s| super::time_us(bytes, gb_s);
        let (dispatch_us, combine_us) = (us(bytes, dispatch_gb_s), us(bytes, combine_gb_s));
        let layout_us = us(2.0 * bytes, total_gb_s) - dispatch_us - combine_us;
        Self { layout_us, dispatch_us, combine_us }
    }

    /// 2 bytes / (layout + dispatch + combine), GB/s.
    pub fn total_gb_s(&self, bytes: f64) -> f64 {
        rate_gb_s(2.0 * bytes, self.layout_us + self.dispatch_us + self.combine_us)
    }
}

/// What a wrong NIC choice looks like: several ranks share one NIC, each gets a part of it, and nothing
/// fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedNic {
    /// GB/s of each rank on the wire.
    pub wire_gb_s: f64,
    /// The figure then printed, own node included, GB/s. `None` on one node.
    pub printed_gb_s: Option<f64>,
}

impl SharedNic {
    /// `sharing` ranks on one NIC of `nic_gb_s`, `nodes` nodes.
    pub fn new(nic_gb_s: f64, sharing: usize, nodes: usize) -> Self {
        let wire_gb_s = nic_gb_s / sharing.max(1) as f64;
        Self { wire_gb_s, printed_gb_s: wire_to_logical(wire_gb_s, nodes) }
    }
}
