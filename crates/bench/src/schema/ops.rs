//! What was measured, and what it is worth.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stats::Times;

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Dispatch, count exchange included.
    Dispatch,
    /// Dispatch with a handle of an earlier one.
    DispatchCached,
    /// Combine.
    Combine,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dispatch => "dispatch",
            Self::DispatchCached => "dispatch_cached",
            Self::Combine => "combine",
        })
    }
}

/// What the clock saw (DESIGN 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// One call on an idle machine, ranks aligned before it, launch included.
    Isolated,
    /// A barrier right before the start.
    Aligned,
    /// Many calls in a row, divided by their number.
    Chained,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Isolated => "isolated",
            Self::Aligned => "aligned",
            Self::Chained => "chained",
        })
    }
}

/// Bytes of one call, over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ByteSpread {
    /// Mean over ranks (and input sets).
    pub mean: f64,
    /// The rank that has most.
    pub max: f64,
}

/// One rank's part in an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankOp {
    /// The rank.
    pub rank: u64,
    /// Its own times, before any maximum.
    pub time_us: Times,
    /// Bytes the algorithm asked of it in a call, own rank included.
    pub logical_bytes: f64,
    /// Bytes of a call that crossed to other ranks.
    pub wire_bytes: f64,
    /// Bytes of a call that count against the ceiling: on the CPU row bytes written, own rows included; on GPUs what
    /// crosses links.
    pub ceiling_bytes: f64,
}

/// One operation in one span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpResult {
    /// Which operation.
    pub op: Op,
    /// What it moved: `bf16` or `fp8`.
    pub dtype: String,
    /// What the clock saw.
    pub span: Span,
    /// Timed iterations.
    pub iterations: u64,
    /// Of the maximum over ranks in each iteration.
    pub time_us: Times,
    /// The maximum over ranks in each iteration, in order.
    pub samples_us: Vec<f64>,
    /// Every rank by itself.
    pub per_rank: Vec<RankOp>,
    /// Bytes asked for, own rank included.
    pub logical_bytes: ByteSpread,
    /// Bytes that crossed to other ranks.
    pub wire_bytes: ByteSpread,
    /// Mean logical bytes of a rank divided by `time_us.p50`, in GB/s.
    pub logical_gbps: f64,
    /// Mean wire bytes of a rank divided by `time_us.p50`, in GB/s.
    pub wire_gbps: f64,
    /// Mean ceiling bytes of a rank divided by `time_us.p50`, in GB/s.
    pub ceiling_bytes_gbps: f64,
    /// `ceiling_bytes_gbps` divided by the machine's ceiling (memory's on the CPU, the links' best on GPUs); absent when
    /// no ceiling was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling_ratio: Option<f64>,
    /// SMs held by the whole call; absent on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sms: Option<u64>,
    /// `wire_gbps` divided by what as many SMs push without a protocol around it; absent on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push_ratio: Option<f64>,
    /// Where the rows that combine took lay, where both were measured; absent for dispatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<RowsIn>,
    /// What travelled beside the rows (`scales`, `ids`, `weights`); absent where it is not stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carries: Option<Vec<String>>,
    /// Median time of each phase (`plan`, `notify`, `send`, `wait`), of the maximum over ranks.
    #[serde(default)]
    pub phases_us: BTreeMap<String, f64>,
    /// Time until the call gave the host back, where it returns before the work is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_return_us: Option<Times>,
}

/// Where the rows that combine takes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowsIn {
    /// In memory of the caller's own: they pass through staging.
    Private,
    /// In the communicator's memory: sources read them there.
    Shared,
}

impl fmt::Display for RowsIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Private => "private",
            Self::Shared => "shared",
        })
    }
}

/// Rows that arrived, of the first input set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Rows each rank received, by rank.
    #[serde(default)]
    pub rows_per_rank: Vec<u64>,
    /// Choices that named each expert, by expert (a row chosen twice counts twice).
    #[serde(default)]
    pub tokens_per_expert: Vec<u64>,
}

/// How much was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMode {
    /// Every row.
    Full,
    /// Some rows.
    Sample,
    /// Nothing.
    Off,
}

impl fmt::Display for VerifyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Sample => "sample",
            Self::Off => "off",
        })
    }
}

/// What verification found, over all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// How much was asked for.
    pub mode: VerifyMode,
    /// Rows compared with the oracle.
    pub rows_checked: u64,
    /// Rows that there were.
    pub rows_total: u64,
    /// Rows that differed.
    pub mismatches: u64,
    /// The first of them: operation, rank, row, element, wanted and found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_mismatch: Option<String>,
}

/// Peak memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Peak bytes of each rank, by rank.
    pub peak_bytes_per_rank: Vec<u64>,
    /// The most a rank should need for these settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Measured, every checked row right.
    Pass,
    /// Something was wrong.
    Fail,
    /// Measured, but nobody looked at the data.
    NotVerified,
    /// Measured, but the numbers decide nothing.
    Inconclusive,
    /// Nothing was measured.
    NotRun,
}

impl Status {
    /// As it is shown to people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::NotVerified => "NOT VERIFIED",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::NotRun => "NOT RUN",
        }
    }
}

/// The verdict and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The verdict.
    pub status: Status,
    /// One line for each reason.
    #[serde(default)]
    pub reasons: Vec<String>,
}
