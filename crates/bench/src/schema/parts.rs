//! A run of several benchmarks, and what its rails sent.

use serde::{Deserialize, Serialize};

use super::{OpResult, Received, Settings, TopologyInfo, Verdict, Verification};

/// What a port sent between the start and the end of the timed iterations, by its own counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailBytes {
    /// The rank that is pinned to it, or that speaks for its node.
    pub rank: u64,
    /// Its machine.
    pub host: String,
    /// Device, such as `mlx5_1`.
    pub device: String,
    /// Port of the device.
    pub port: u64,
    /// Bytes sent, whatever sent them.
    pub sent_bytes: u64,
}

/// A benchmark of a run of several: what differs from the document's top level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What was asked for.
    pub settings: Settings,
    /// The ranks, and how far one group reached.
    pub topology: TopologyInfo,
    /// What was measured.
    pub ops: Vec<OpResult>,
    /// Rows that arrived.
    #[serde(default)]
    pub received: Received,
    /// Whether the moved data was right.
    pub verification: Verification,
    /// What ports sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<RailBytes>,
    /// The end of this part.
    pub verdict: Verdict,
}
