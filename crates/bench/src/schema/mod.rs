//! The result of a benchmark, `expertrail.result/1`.
//!
//! [`ResultFile`] is what the run fills, what `--json` writes and what every other report is made from. Its
//! JSON Schema lies in `schema/expertrail.result.1.schema.json` of this crate ([`JSON_SCHEMA`]); [`conform`]
//! checks a document against it. A reader of version 1 ignores fields it does not know, and fields that are
//! optional here may be absent.
//!
//! Units stand in the names: `_us` microseconds, `_bytes` bytes, and `_gbps` **GB/s = 1e9 bytes per second
//! per rank** (never gigabits).

mod build;
pub mod conform;
mod fabric;
mod facts;
mod ops;
mod parts;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

pub use build::{OpKey, OpRun, RankRun};
pub use fabric::{FabricOp, FabricRun, RailRun};
pub use facts::{
    Backend, Ceiling, CeilingBinding, Host, LinkCeiling, Machine, PushCeiling, Settings, Tool, TopologyInfo,
};
pub use ops::{
    ByteSpread, Memory, Op, OpResult, RankOp, Received, RowsIn, Span, Status, Verdict, Verification,
    VerifyMode,
};
pub use parts::{Part, RailBytes};

/// The schema's id, which stands in every document's `schema`.
pub const SCHEMA_ID: &str = "expertrail.result/1";

/// The JSON Schema (draft 2020-12) of a document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.result.1.schema.json");

/// One benchmark run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultFile {
    /// [`SCHEMA_ID`].
    pub schema: String,
    /// What wrote it.
    pub tool: Tool,
    /// When the run began, RFC 3339 (`2026-11-29T22:30:00Z`).
    pub started_at: String,
    /// The command line, one entry per argument.
    pub command: Vec<String>,
    /// What was asked for.
    pub settings: Settings,
    /// The declared topology; it decides the rounding of combine.
    pub topology: TopologyInfo,
    /// The machines, and which ranks ran on each.
    pub hosts: Vec<Host>,
    /// What moved the rows.
    pub backend: Backend,
    /// Versions actually loaded, by library (`kernel`, `cuda_driver`, `libfabric`).
    #[serde(default)]
    pub versions: std::collections::BTreeMap<String, String>,
    /// The machine of rank 0.
    pub machine: Machine,
    /// What this machine's memory can do with the same number of processes; absent when not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Ceiling>,
    /// What the links between GPUs can do; absent on the CPU, and for one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_ceiling: Option<LinkCeiling>,
    /// What crossed the network between nodes, against the raw rate of the same run; absent where ranks share memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricRun>,
    /// What was measured, in the order it ran.
    pub ops: Vec<OpResult>,
    /// Rows that arrived.
    #[serde(default)]
    pub received: Received,
    /// Whether the moved data was right.
    pub verification: Verification,
    /// Peak memory of the ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// What the reader must know before trusting the numbers.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// What ports sent while the iterations were timed; empty where nobody read their counters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<RailBytes>,
    /// Further benchmarks of the same run; the top level holds the one that reaches farthest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// The end of it, parts included.
    pub verdict: Verdict,
}

/// A document that is no result of this version.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Not JSON, or a field is missing or of a wrong type.
    #[error("not a benchmark result: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON without a schema id.
    #[error(
        "not a benchmark result: it has no `schema`; one written by `expertrail bench --json` has \"{SCHEMA_ID}\""
    )]
    NoSchema,
    /// A later version of this schema.
    #[error("result of schema `{0}`: this program reads {SCHEMA_ID}; use the newer expertrail that wrote it")]
    Newer(String),
    /// Another schema.
    #[error(
        "a document of schema `{0}`, {SCHEMA_ID} is wanted; give the file written by `expertrail bench --json`"
    )]
    OtherSchema(String),
}

impl ResultFile {
    /// Reads a document. Unknown fields are ignored.
    ///
    /// # Errors
    /// [`ReadError`]: the schema id is looked at first, so that a newer or other document is called that and
    /// not damaged.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let value: Value = serde_json::from_str(text)?;
        let id = value.get("schema").and_then(Value::as_str).ok_or(ReadError::NoSchema)?;
        if id != SCHEMA_ID {
            let version = id.strip_prefix("expertrail.result/").and_then(|v| v.parse::<u32>().ok());
            return Err(match version {
                Some(version) if version > 1 => ReadError::Newer(id.to_owned()),
                _ => ReadError::OtherSchema(id.to_owned()),
            });
        }
        Ok(serde_json::from_value(value)?)
    }

    /// The operations named `op`.
    pub fn ops_named(&self, op: Op) -> impl Iterator<Item = &OpResult> {
        self.ops.iter().filter(move |o| o.op == op)
    }
}
