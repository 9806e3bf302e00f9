//! What was asked for and where it ran.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::preset::{Mode, Scope};

use super::{Span, VerifyMode};

/// The program that wrote the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `expertrail`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The commit it was built from, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// What was asked for, after presets and overrides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Preset the run began from.
    pub preset: String,
    /// Tokens of each rank; with a routing file, of the rank that has most.
    pub tokens: u64,
    /// Elements of a row.
    pub hidden: u64,
    /// Experts chosen for a token.
    pub top_k: u64,
    /// Experts in all.
    pub experts: u64,
    /// What dispatch moves: `bf16` or `fp8`.
    pub dispatch_dtype: String,
    /// What combine moves: `bf16`.
    pub combine_dtype: String,
    /// The mode asked for.
    pub mode: Mode,
    /// `uniform`, `uniform-with-replacement`, `zipf`, `zipf-with-replacement` or `file`.
    pub routing: String,
    /// Zipf exponent; 0 is uniform.
    pub routing_skew: f64,
    /// Files that the routing came from.
    #[serde(default)]
    pub routing_files: Vec<String>,
    /// Seed of routing and rows.
    pub seed: u64,
    /// Output layout: `by_source` or `expert_major`.
    pub layout: String,
    /// Rows of an expert are padded to a multiple of this; 1 is none.
    pub alignment: u64,
    /// Iterations before timing started.
    pub warmup: u64,
    /// Timed iterations.
    pub iters: u64,
    /// SM counts that were asked for, each measured by itself; empty on the CPU, and on GPUs when the library's own
    /// rule chose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sms: Vec<u64>,
    /// The timed spans.
    pub spans: Vec<Span>,
    /// How much was verified.
    pub verify: VerifyMode,
    /// True when the inputs fit the last-level cache: the times then flatter the memory.
    pub hot: bool,
    /// Input sets that the iterations rotate through.
    pub rotation_sets: u64,
    /// Deadline of each wait in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
}

/// The declared topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyInfo {
    /// Ranks in all.
    pub ranks: u64,
    /// Ranks on each node.
    pub ranks_per_node: u64,
    /// Nodes.
    pub nodes: u64,
    /// How far one group reached.
    pub scope: Scope,
}

/// A machine and the ranks on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Host name.
    pub name: String,
    /// Ranks that ran there, ascending.
    pub ranks: Vec<u64>,
}

/// What moved the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    /// `host` or `cuda`; `deepep` where DeepEP's own library moved the rows.
    pub name: String,
    /// Vector path of the CPU backend: `portable`, `avx2`, `avx512`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simd: Option<String>,
    /// How rows were stored: `cached` or `non_temporal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<String>,
    /// Anything else worth recording, by name.
    #[serde(default)]
    pub details: BTreeMap<String, String>,
}

/// Facts of one machine; what could not be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Logical CPUs that the run may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u64>,
    /// Last-level cache in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_bytes: Option<u64>,
    /// Memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Kernel release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// Which copy is the better one, and so the ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CeilingBinding {
    /// Ordinary copy.
    Memcpy,
    /// Non-temporal copy.
    NonTemporal,
}

/// Plain rows pushed to the peers by SMs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushCeiling {
    /// SMs that pushed, on every GPU at once.
    pub sms: u64,
    /// GB/s that each GPU sent.
    pub gbps: f64,
}

/// What the links between GPUs can do: bytes that each GPU sends to the others while all of them do, rows of 14,336
/// bytes, in the same run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkCeiling {
    /// By the copy engines, GB/s that each GPU sent.
    pub copy_engine_gbps: f64,
    /// By SMs with bulk stores, for each number of SMs that was measured.
    pub push: Vec<PushCeiling>,
    /// Bytes that each GPU sent in a measurement.
    pub bytes: u64,
    /// GPUs that sent at once.
    pub gpus: u64,
}

impl LinkCeiling {
    /// The best that was seen, GB/s of each GPU.
    pub fn gbps(&self) -> f64 {
        self.push.iter().map(|push| push.gbps).fold(self.copy_engine_gbps, f64::max)
    }

    /// What `sms` SMs pushed, GB/s of each GPU; `None` when that number was not measured.
    pub fn pushed_by(&self, sms: u64) -> Option<f64> {
        self.push.iter().find(|push| push.sms == sms).map(|push| push.gbps)
    }
}

/// What the machine's memory can do: bytes written by plain copies of all processes at once, beyond cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Ordinary copy, GB/s of each process.
    pub memcpy_gbps: f64,
    /// Non-temporal copy, GB/s of each process.
    pub non_temporal_gbps: f64,
    /// Bytes that each process reads and writes in turn.
    pub working_set_bytes: u64,
    /// Processes that copied at once.
    pub processes: u64,
    /// Which of the two is the ceiling.
    pub binding: CeilingBinding,
}

impl Ceiling {
    /// The ceiling of two measured copies.
    pub fn new(memcpy_gbps: f64, non_temporal_gbps: f64, working_set_bytes: u64, processes: u64) -> Self {
        let binding = if non_temporal_gbps > memcpy_gbps {
            CeilingBinding::NonTemporal
        } else {
            CeilingBinding::Memcpy
        };
        Self { memcpy_gbps, non_temporal_gbps, working_set_bytes, processes, binding }
    }

    /// The better of the two, GB/s of each process.
    pub fn gbps(&self) -> f64 {
        match self.binding {
            CeilingBinding::Memcpy => self.memcpy_gbps,
            CeilingBinding::NonTemporal => self.non_temporal_gbps,
        }
    }
}
