//! What crossed a network between nodes, against what the same endpoints reach without a protocol.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Op, Span};

/// The transport of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FabricRun {
    /// What was asked for: `auto`, `tcp`, `sim`.
    pub asked: String,
    /// Whether the network was simulated in memory: its rates say nothing of any machine's network.
    pub simulated: bool,
    /// Bytes of a chunk's slot.
    pub chunk_bytes: u64,
    /// Chunks in flight between two ranks in one operation.
    pub window: u64,
    /// Bytes of a write of the raw measurement.
    pub raw_message_bytes: u64,
    /// How long the raw measurement wrote, in seconds, half of it before the calls and half after.
    pub raw_seconds: f64,
    /// GB/s that each rank wrote to its rail peers with no protocol, all ranks at once; the mean over ranks.
    pub raw_gbps: f64,
    /// The same operations as the document's, as far as they crossed.
    pub ops: Vec<FabricOp>,
    /// Each rank's rail.
    pub rails: Vec<RailRun>,
}

/// What an operation did between nodes; bytes are the mean over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FabricOp {
    /// Which operation.
    pub op: Op,
    /// What the clock saw.
    pub span: Span,
    /// Bytes of rows that a rank's tokens ask of ranks on other nodes, one row for each rank.
    pub logical_bytes: f64,
    /// Bytes that a rank's proxy wrote, heads and control included.
    pub wire_bytes: f64,
    /// `wire_bytes` divided by the operation's median time, in GB/s.
    pub wire_gbps: f64,
    /// `wire_gbps` divided by the raw rate; absent where that is zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_ratio: Option<f64>,
}

/// One rank's rail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailRun {
    /// The rank.
    pub rank: u64,
    /// Its node.
    pub node: u64,
    /// Its number there, which is the rail's.
    pub local_rank: u64,
    /// Provider.
    pub provider: String,
    /// Domain (NIC).
    pub domain: String,
    /// Why that one.
    pub chosen: String,
    /// The library with its version.
    pub library: String,
    /// CPUs that its proxy is bound to; empty where it is not bound.
    #[serde(default)]
    pub cpus: Vec<u64>,
    /// GB/s that this rank wrote in the raw measurement.
    pub raw_gbps: f64,
    /// Bytes of a call asked of other nodes, by operation.
    pub logical_bytes: BTreeMap<String, f64>,
    /// Bytes of a call that the proxy wrote, by operation.
    pub wire_bytes: BTreeMap<String, f64>,
    /// Share of the proxy's turns that found something to do, in timed calls.
    pub utilisation: f64,
    /// Writes of the timed calls.
    pub writes: u64,
    /// Times that the proxy slept in them.
    pub sleeps: u64,
    /// Times that the transport's queue was full, so that a write was tried again.
    pub busy: u64,
    /// Commands that found the ring between rank and proxy full.
    pub ring_stalls: u64,
    /// Times that a call found nothing to do and waited.
    pub call_stalls: u64,
    /// Arrivals that had come before.
    pub duplicates: u64,
    /// Writes that failed.
    pub failed: u64,
}
