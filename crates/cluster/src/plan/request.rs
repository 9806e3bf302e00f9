//! What is to be planned.

use std::fmt;

use expertrail_core::expect::{Draw, GroupLimit};
use expertrail_core::roofline::{ll_fp8_row_bytes, logfmt10_row_bytes};
use expertrail_core::{Dtype, Placement, Topology};
use serde::{Deserialize, Serialize};

use super::PlanError;
use super::links::Links;

/// How messages are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// High throughput: training and prefill; rows cross once per node and fan out over `NVLink`.
    #[default]
    Ht,
    /// Low latency: decode; rows go straight to their rank.
    Ll,
}

/// What is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// This project's library.
    #[default]
    Expertrail,
    /// DeepEP's `Buffer` at 567632d.
    DeepepV1,
    /// DeepEP's `ElasticBuffer` at dd758ca.
    DeepepV2,
}

impl Engine {
    /// Its name on the command line and in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expertrail => "expertrail",
            Self::DeepepV1 => "deepep-v1",
            Self::DeepepV2 => "deepep-v2",
        }
    }
}

/// What combine moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CombineType {
    /// BF16.
    #[default]
    Bf16,
    /// `DeepEP`'s 10-bit logarithmic format, LL only.
    Logfmt,
}

/// How a token's experts are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// k different experts, all alike.
    #[default]
    Uniform,
    /// k independent draws: an expert may be drawn twice.
    WithReplacement,
    /// k different experts out of the best few groups of experts.
    Groups {
        /// Groups of experts.
        groups: usize,
        /// Groups that a token may use.
        chosen: usize,
    },
}

impl Routing {
    pub(super) fn draw(self) -> Draw {
        match self {
            Self::Uniform => Draw::WithoutReplacement,
            Self::WithReplacement => Draw::WithReplacement,
            Self::Groups { groups, chosen } => Draw::GroupLimited(GroupLimit::new(groups, chosen)),
        }
    }
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::WithReplacement => f.write_str("uniform with replacement"),
            Self::Groups { groups, chosen } => write!(f, "best {chosen} of {groups} groups"),
        }
    }
}

/// Chunk sizes of `DeepEP` V1's `Config`, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// `num_max_nvl_chunked_send_tokens`.
    pub nvl_send: usize,
    /// `num_max_nvl_chunked_recv_tokens`.
    pub nvl_recv: usize,
    /// `num_max_rdma_chunked_send_tokens`.
    pub rdma_send: usize,
    /// `num_max_rdma_chunked_recv_tokens`.
    pub rdma_recv: usize,
}

/// Settings of an engine; `None` is its own default or rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// SMs of a call.
    pub sms: Option<usize>,
    /// `num_qps_per_rank` of `DeepEP` V1.
    pub qps: Option<usize>,
    /// `NVSHMEM_QP_DEPTH`.
    pub qp_depth: Option<usize>,
    /// Chunks of `DeepEP` V1, of dispatch and combine alike.
    pub chunks: Option<Chunks>,
    /// `num_nvl_bytes` of `DeepEP` V1.
    pub nvl_bytes: Option<u64>,
    /// `num_rdma_bytes` of `DeepEP` V1.
    pub rdma_bytes: Option<u64>,
    /// Outputs alive at once (expertrail).
    pub live_outputs: Option<usize>,
    /// The Kubernetes guide's script sizes the buffers.
    pub guide_buffers: bool,
}

/// What is to be planned. All amounts are per rank, one GPU each.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Nodes of one group of ranks, N.
    pub nodes: usize,
    /// GPUs of each node, G.
    pub gpus_per_node: usize,
    /// Rates of the links.
    pub links: Links,
    /// Rate of a NIC that a wrong pin may choose, GB/s; none: half of the rail's, as 200 Gb/s frontends are beside
    /// rails of 400.
    pub frontend_gb_s: Option<f64>,
    /// Fixed time of a call, microseconds.
    pub alpha_us: f64,
    /// Tokens of a rank, T.
    pub tokens: usize,
    /// Elements of a row, H.
    pub hidden: usize,
    /// Experts of a token, k.
    pub top_k: usize,
    /// Experts in all, E.
    pub experts: usize,
    /// How experts are drawn.
    pub routing: Routing,
    /// Mode.
    pub mode: Mode,
    /// Dispatch moves FP8 with scales instead of BF16.
    pub fp8: bool,
    /// What combine moves.
    pub combine: CombineType,
    /// In LL mode, copies to ranks of the own node go through the NIC, too.
    pub ll_without_nvlink: bool,
    /// What is to run.
    pub engine: Engine,
    /// Its settings.
    pub settings: Settings,
}

/// Numbers that all parts of a plan use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) topology: Topology,
    pub(super) placement: Placement,
    /// Bytes of a dispatched row without a message's header.
    pub(super) dispatch_row: usize,
    /// Bytes of a combined row.
    pub(super) combine_row: usize,
}

impl Request {
    /// R = N G.
    pub fn ranks(&self) -> usize {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// What dispatch moves, for core.
    pub(super) fn dtype(&self) -> Dtype {
        if self.fp8 { Dtype::Fp8E4m3 } else { Dtype::Bf16 }
    }

    /// Bytes of one dispatched row as `DeepEP`'s low-latency kernels send it: with a header of 16 bytes.
    pub(super) fn ll_row_bytes(&self) -> usize {
        if self.fp8 { ll_fp8_row_bytes(self.hidden) } else { 2 * self.hidden + 16 }
    }

    /// Checks what no engine could do, and derives the sizes.
    pub(super) fn sizes(&self) -> Result<Sizes, PlanError> {
        let ranks = self.ranks();
        let topology = Topology::new(ranks, self.gpus_per_node)?;
        for (what, value, most) in
            [("tokens", self.tokens, MOST_TOKENS), ("hidden", self.hidden, MOST_HIDDEN)]
        {
            if value > most || value == 0 {
                return Err(PlanError::Size { what, value, most });
            }
        }
        if !(0.0..=MOST_ALPHA).contains(&self.alpha_us) {
            return Err(PlanError::Alpha { alpha_us: self.alpha_us });
        }
        if let Routing::Groups { groups, chosen } = self.routing
            && (groups == 0 || chosen == 0 || chosen > groups || !self.experts.is_multiple_of(groups))
        {
            return Err(PlanError::Groups { groups, chosen, experts: self.experts });
        }
        let placement = Placement::new(self.experts, ranks)?;
        if self.nodes > 1 && self.links.scale_out.is_none() {
            return Err(PlanError::NoScaleOut { nodes: self.nodes });
        }
        if self.fp8 && !self.hidden.is_multiple_of(expertrail_core::shape::SCALE_BLOCK) {
            return Err(PlanError::Fp8Hidden { hidden: self.hidden });
        }
        if self.combine == CombineType::Logfmt && self.mode == Mode::Ht {
            return Err(PlanError::LogfmtInHt);
        }
        let combine_row = match self.combine {
            CombineType::Bf16 => 2 * self.hidden,
            CombineType::Logfmt => logfmt10_row_bytes(self.hidden),
        };
        Ok(Sizes { topology, placement, dispatch_row: self.dtype().wire_row_bytes(self.hidden), combine_row })
    }
}

/// Beyond these nothing real is planned, and products of sizes stay far from overflow.
const MOST_TOKENS: usize = 1 << 24;
const MOST_HIDDEN: usize = 1 << 20;
/// Microseconds: a quarter of an hour.
const MOST_ALPHA: f64 = 1e9;
