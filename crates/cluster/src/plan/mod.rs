//! Planning: what an exchange should reach on a machine, which link binds, and whether its settings can work, before
//! anything is started.
//!
//! The model is [`expertrail_core::roofline`]. Every tool counts bytes in its own way (own node or own rank counted or
//! not), so a plan has one row for each figure that a tool prints, with its own ceiling and the way back to the wire.

mod document;
mod figures;
mod html;
mod links;
mod lint;
mod memory;
mod reference;
mod request;
mod svg;
mod text;

use expertrail_core::CoreError;
use expertrail_core::expect;
use expertrail_core::roofline::{GuideTimes, SharedNic, guide_total};
use thiserror::Error;

pub use document::{
    Destinations, Document, Expected, Figure, Level, Link, Lint, Memory, MemoryPart, Operation, Plan,
    PlannedLinks, Reading, SweptOver, Workload, WrongNic,
};
pub use html::html;
pub use links::{LinkArgs, LinkRate, Links, NicKind, Product, Table, table};
pub use lint::LINTS;
pub use memory::{guide_nvl_bytes, ll_buffer_bytes, own_heap_bytes};
pub use request::{Chunks, CombineType, Engine, Mode, Request, Routing, Settings};
pub use text::text;

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.plan/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.plan.1.schema.json");

/// Why nothing can be planned.
#[derive(Debug, Error)]
pub enum PlanError {
    /// No product has that name.
    #[error("no {what} `{name}` in the table; known: {known}; or give its rate in GB/s")]
    Product {
        /// GPU or NIC.
        what: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A rate or time is no sensible number.
    #[error("{option} {}: a positive number wanted, 0.001 to 1000000 GB/s", short(*.gb_s))]
    Rate {
        /// The option.
        option: &'static str,
        /// What it said.
        gb_s: f64,
    },
    /// The fixed time is no sensible number.
    #[error("--alpha-us {}: 0 to 1000000000 microseconds wanted", short(*.alpha_us))]
    Alpha {
        /// What it said, microseconds.
        alpha_us: f64,
    },
    /// Groups that experts cannot be in.
    #[error(
        "--groups {groups} --top-groups {chosen}: 1 or more groups that {experts} experts divide into evenly wanted, and 1 to all of \
         them chosen"
    )]
    Groups {
        /// Groups of experts.
        groups: usize,
        /// Groups that a token may use.
        chosen: usize,
        /// Experts in all.
        experts: usize,
    },
    /// Nothing says how fast `NVLink` is.
    #[error("the rate of NVLink is not known: give --gpu, --profile or --nvlink-gb-s")]
    NoScaleUp,
    /// Nothing says how fast the NIC is.
    #[error("{nodes} nodes, but the rate of their NICs is not known: give --nic, --profile or --nic-gb-s")]
    NoScaleOut {
        /// Nodes.
        nodes: usize,
    },
    /// A size beyond anything real.
    #[error("{what} {value}: 1 to {most} wanted")]
    Size {
        /// Which.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The most allowed.
        most: usize,
    },
    /// FP8 has a scale for every 128 elements.
    #[error("hidden {hidden} is no multiple of 128, the elements that share a scale in FP8")]
    Fp8Hidden {
        /// Elements of a row.
        hidden: usize,
    },
    /// The logarithmic format is of the low-latency kernels.
    #[error("combine in logfmt exists in LL mode only: give --mode ll, or leave --combine-dtype out")]
    LogfmtInHt,
    /// Sizes that core refuses.
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// A number as it was given, however large it is.
fn short(number: f64) -> String {
    if number == 0.0 || (1e-4..1e15).contains(&number.abs()) {
        number.to_string()
    } else {
        format!("{number:e}")
    }
}

/// The plan of `request`.
///
/// # Errors
/// [`PlanError`] where sizes fit no engine at all, or the rate of a link that is used is not known. What one engine
/// refuses is a lint of the plan.
pub fn plan(request: &Request) -> Result<Plan, PlanError> {
    let sizes = request.sizes()?;
    let distinct =
        expect::distinct(&sizes.topology, &sizes.placement, request.top_k, request.routing.draw())?;
    let model = figures::Model::new(request, sizes, distinct);
    let operations = model.operations()?;
    let memory = memory::memory(request, &sizes, distinct.ranks.value);
    Ok(Plan {
        workload: workload(request),
        links: PlannedLinks {
            scale_up: request.links.scale_up.clone(),
            scale_out: request.links.scale_out.clone(),
            alpha_us: request.alpha_us,
        },
        destinations: Destinations {
            ranks: distinct.ranks.value,
            nodes: distinct.nodes.value,
            ranks_standard_error: distinct.ranks.standard_error,
            nodes_standard_error: distinct.nodes.standard_error,
        },
        operations,
        figures: model.figures()?,
        wrong_nic: wrong_nic(request),
        memory,
        lints: lint::lints(request, &sizes),
    })
}

/// What the engine of `request` says of its settings, the worst first: the lints of [`plan`] without figures, so that rates of links may be
/// anything (the scale-out link must be there for several nodes).
///
/// # Errors
/// [`PlanError`] where sizes fit no engine at all.
pub fn lints(request: &Request) -> Result<Vec<Lint>, PlanError> {
    let sizes = request.sizes()?;
    Ok(lint::lints(request, &sizes))
}

fn workload(request: &Request) -> Workload {
    Workload {
        nodes: request.nodes,
        gpus_per_node: request.gpus_per_node,
        ranks: request.ranks(),
        tokens: request.tokens,
        hidden: request.hidden,
        top_k: request.top_k,
        experts: request.experts,
        routing: request.routing,
        mode: request.mode,
        fp8_dispatch: request.fp8,
        combine: request.combine,
        ll_without_nvlink: request.ll_without_nvlink,
        engine: request.engine,
        sms: lint::sms(request),
        chunks: request.settings.chunks,
    }
}

/// The signatures of wrong pins: nothing fails, several ranks share a NIC.
fn wrong_nic(request: &Request) -> Vec<WrongNic> {
    let Some(link) = request.links.scale_out.as_ref().filter(|_| request.nodes > 1) else {
        return Vec::new();
    };
    let ranks = request.gpus_per_node;
    let frontend = request.frontend_gb_s.unwrap_or(link.gb_s / 2.0);
    let assumed = if request.frontend_gb_s.is_some() { "" } else { ", its rate assumed" };
    [
        (format!("all {ranks} ranks of a node on one rail"), ranks, link.gb_s),
        (format!("all {ranks} ranks of a node on the frontend NIC{assumed}"), ranks, frontend),
        (format!("{} ranks of a socket on one rail each", ranks / 2), ranks / 2, link.gb_s),
    ]
    .into_iter()
    .filter(|(_, sharing, _)| *sharing > 1)
    .filter_map(|(case, sharing, nic_gb_s)| {
        let shared = SharedNic::new(nic_gb_s, sharing, request.nodes);
        let printed_gb_s = shared.printed_gb_s?;
        Some(WrongNic { case, sharing, nic_gb_s, wire_gb_s: shared.wire_gb_s, printed_gb_s })
    })
    .collect()
}

impl Plan {
    /// The figure `id` of `operation`.
    pub fn figure(&self, id: &str, operation: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.id == id && figure.operation == operation)
    }

    /// Times behind printed figures of the guide's script, whose bytes are those of this plan: dispatch, combine and
    /// total in GB/s. What the total has beyond the two is layout.
    pub fn guide_times(&self, (dispatch, combine, total): (f64, f64, f64)) -> Option<GuideTimes> {
        let figure = self.figures.iter().find(|f| f.id.starts_with("guide-") && f.operation == "dispatch")?;
        Some(GuideTimes::from_printed(figure.counted_bytes, dispatch, combine, total))
    }

    /// The `total` that the guide's script prints beside a dispatch and a combine figure, GB/s.
    pub fn guide_total(dispatch_gb_s: f64, combine_gb_s: f64) -> f64 {
        guide_total(dispatch_gb_s, combine_gb_s)
    }

    /// Whether a rule refuses it.
    pub fn refused(&self) -> bool {
        self.lints.iter().any(|lint| lint.level == Level::Refuse)
    }

    /// Whether a rule warns.
    pub fn warned(&self) -> bool {
        self.lints.iter().any(|lint| lint.level == Level::Warn)
    }
}

impl Document {
    /// Of one plan, or of those of a sweep.
    pub fn new(plans: Vec<Plan>, sweep: Option<SweptOver>) -> Self {
        Self { schema: SCHEMA.to_owned(), tool: env!("CARGO_PKG_VERSION").to_owned(), sweep, plans }
    }

    /// Exit code: 1 a rule refuses one of the plans, 5 a rule warns and `strict` is set, else 0.
    pub fn exit_code(&self, strict: bool) -> u8 {
        if self.plans.iter().any(Plan::refused) {
            1
        } else if strict && self.plans.iter().any(Plan::warned) {
            5
        } else {
            0
        }
    }
}
