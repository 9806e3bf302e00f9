//! The document `expertrail.plan/1`.

use serde::{Deserialize, Serialize};

use super::links::LinkRate;
use super::request::{Chunks, CombineType, Engine, Mode, Routing};

/// One plan, or those of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// [`SCHEMA`](super::SCHEMA).
    pub schema: String,
    /// Version of Expertrail.
    pub tool: String,
    /// What differs between the plans; none: there is one.
    pub sweep: Option<SweptOver>,
    /// The plans.
    pub plans: Vec<Plan>,
}

/// What a sweep goes through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SweptOver {
    /// `nodes`.
    pub parameter: String,
    /// Its values, in the order of the plans.
    pub values: Vec<usize>,
}

/// What a run should reach, and whether it can work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// What was asked.
    pub workload: Workload,
    /// Rates of the links.
    pub links: PlannedLinks,
    /// Where a token goes.
    pub destinations: Destinations,
    /// Bytes and time floors.
    pub operations: Vec<Operation>,
    /// What tools print.
    pub figures: Vec<Figure>,
    /// What wrong pins would print.
    pub wrong_nic: Vec<WrongNic>,
    /// Memory of each GPU.
    pub memory: Memory,
    /// What would fail or crawl.
    pub lints: Vec<Lint>,
}

/// What was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Workload {
    /// Nodes.
    pub nodes: usize,
    /// GPUs of a node.
    pub gpus_per_node: usize,
    /// Ranks in all.
    pub ranks: usize,
    /// Tokens of a rank.
    pub tokens: usize,
    /// Elements of a row.
    pub hidden: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Experts in all.
    pub experts: usize,
    /// How experts are drawn.
    pub routing: Routing,
    /// Mode.
    pub mode: Mode,
    /// Dispatch moves FP8 with scales, else BF16.
    pub fp8_dispatch: bool,
    /// What combine moves.
    pub combine: CombineType,
    /// In LL mode, NICs carry what could go over `NVLink`.
    pub ll_without_nvlink: bool,
    /// What is to run.
    pub engine: Engine,
    /// SMs of a call, given or the engine's default.
    pub sms: Option<usize>,
    /// Chunks of `DeepEP` V1 where they were given.
    pub chunks: Option<Chunks>,
}

/// Rates of the links.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedLinks {
    /// Between the GPUs of a node.
    pub scale_up: LinkRate,
    /// Between nodes; null where the plan is of one node and none was named.
    pub scale_out: Option<LinkRate>,
    /// Fixed time of a call, microseconds.
    pub alpha_us: f64,
}

/// Mean numbers of distinct destinations of a token, own ones included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Destinations {
    /// Ranks, `U_R`.
    pub ranks: f64,
    /// Nodes, `U_N`.
    pub nodes: f64,
    /// Standard error of `ranks`; 0 where it is exact.
    pub ranks_standard_error: f64,
    /// Standard error of `nodes`.
    pub nodes_standard_error: f64,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// `NVLink`.
    ScaleUp,
    /// NIC.
    ScaleOut,
}

impl Link {
    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ScaleUp => "NVLink",
            Self::ScaleOut => "NIC",
        }
    }
}

impl From<expertrail_core::roofline::Link> for Link {
    fn from(link: expertrail_core::roofline::Link) -> Self {
        match link {
            expertrail_core::roofline::Link::ScaleUp => Self::ScaleUp,
            expertrail_core::roofline::Link::ScaleOut => Self::ScaleOut,
        }
    }
}

/// One operation of the engine: bytes of one GPU and the least time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    /// `dispatch`, `combine`.
    pub name: String,
    /// How rows travel, in words.
    pub transfer: String,
    /// Bytes of one copy of a row.
    pub row_bytes: usize,
    /// Logical bytes with one copy per distinct node, own included.
    pub logical_node_bytes: f64,
    /// Logical bytes with one copy per distinct rank, own included.
    pub logical_rank_bytes: f64,
    /// Logical bytes with one copy per (token, expert).
    pub logical_expert_bytes: f64,
    /// Bytes that cross `NVLink`.
    pub scale_up_bytes: f64,
    /// Bytes that cross the NIC.
    pub scale_out_bytes: f64,
    /// Least time, microseconds.
    pub floor_us: f64,
    /// The link that sets it; null where nothing crosses one.
    pub binds: Option<Link>,
}

/// What one tool prints for one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figure {
    /// `deepep-v1-rdma`.
    pub id: String,
    /// `DeepEP V1 "RDMA"`.
    pub tool: String,
    /// `dispatch`, `combine`, `total`, `alltoall`.
    pub operation: String,
    /// What it counts.
    pub counts: String,
    /// Bytes that it divides by the time.
    pub counted_bytes: f64,
    /// The most that it can print, GB/s; null where nothing crosses a link.
    pub ceiling_gb_s: Option<f64>,
    /// The link that sets the ceiling.
    pub binds: Option<Link>,
    /// What it should print, GB/s; null where nothing comparable was ever measured.
    pub expected: Option<Expected>,
    /// Where the expected range is from, or why there is none.
    pub basis: String,
    /// NIC GB/s for each GB/s printed.
    pub scale_out_per_printed: f64,
    /// `NVLink` GB/s for each GB/s printed.
    pub scale_up_per_printed: f64,
}

/// A range of GB/s, and the shares of the links that it stands for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Expected {
    /// From, GB/s as printed.
    pub low_gb_s: f64,
    /// To, GB/s as printed.
    pub high_gb_s: f64,
    /// Shares of `NVLink`'s rate, low and high; null where no measurement was bound by it.
    pub scale_up_share: Option<[f64; 2]>,
    /// Shares of the NIC's rate.
    pub scale_out_share: Option<[f64; 2]>,
}

/// A printed number, read with a figure's own accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// The number, GB/s.
    pub printed_gb_s: f64,
    /// The time behind it, microseconds.
    pub time_us: f64,
    /// What crossed the NIC, GB/s.
    pub scale_out_gb_s: f64,
    /// Its part of the NIC's rate; null without a NIC.
    pub scale_out_share: Option<f64>,
    /// What crossed `NVLink`, GB/s.
    pub scale_up_gb_s: f64,
    /// Its part of `NVLink`'s rate.
    pub scale_up_share: f64,
    /// The number over the ceiling; above 1.05 the measurement or its accounting is wrong.
    pub of_ceiling: Option<f64>,
}

/// What is printed when ranks use the wrong NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WrongNic {
    /// What is wrong.
    pub case: String,
    /// Ranks on one NIC.
    pub sharing: usize,
    /// That NIC's rate, GB/s.
    pub nic_gb_s: f64,
    /// GB/s of each rank on the wire.
    pub wire_gb_s: f64,
    /// The figure then printed at most, own node counted, GB/s.
    pub printed_gb_s: f64,
}

/// Memory of each GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Sum of the parts.
    pub total_bytes: u64,
    /// The parts.
    pub parts: Vec<MemoryPart>,
}

/// A part of the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryPart {
    /// `NVLink buffer`.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// How it is computed.
    pub rule: String,
    /// Where the rule is from.
    pub source: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// It cannot work.
    Refuse,
    /// It may fail, or be slow.
    Warn,
    /// Good to know.
    #[default]
    Note,
}

impl Level {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refuse => "REFUSE",
            Self::Warn => "WARN",
            Self::Note => "NOTE",
        }
    }
}

/// A rule that the settings break, or meet only just.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lint {
    /// `L001`: stable, never used again for something else.
    pub id: String,
    /// How bad it is.
    pub level: Level,
    /// The rule, in a few words.
    pub title: String,
    /// The rule with the numbers put in.
    pub observed: String,
    /// What to change.
    pub remedy: String,
    /// Where the rule is from.
    pub source: String,
}
