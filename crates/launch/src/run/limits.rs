//! What `DeepEP` V1 is built for: a run that it would refuse is refused before anything is started.

use expertrail_cluster::plan::{
    self, Engine as Planned, Level, LinkArgs, LinkRate, Links, Lint, Mode, NicKind, Request, Routing,
    Settings,
};

use super::{Run, RunError};
use crate::platform::Fabric;
use crate::spec::{Benchmark, DeepepDriver, Engine, Spec, Workload};

/// Rules about `DeepEP`'s own test of several nodes, which other programs do not have.
const OF_THE_TEST: &str = "L016";

/// Sizes of a benchmark where the description names none.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: u32,
    hidden: u32,
    top_k: u32,
    experts: u32,
    sms: Option<u32>,
}

/// Of `deepep_bench.py` (the guide's, points 37 and 38, and the decode shape), and of `DeepEP`'s tests at 567632d.
fn usual(driver: DeepepDriver, one: Benchmark) -> Sizes {
    let sizes =
        |[tokens, hidden, top_k, experts]: [u32; 4], sms| Sizes { tokens, hidden, top_k, experts, sms };
    match (driver, one) {
        (DeepepDriver::Own, Benchmark::Intranode) => sizes([65_536, 3072, 16, 128], Some(40)),
        (DeepepDriver::Own, Benchmark::Internode) => sizes([8192, 3072, 8, 128], Some(20)),
        (DeepepDriver::Own, Benchmark::LowLatency) => sizes([128, 7168, 8, 256], None),
        (DeepepDriver::UpstreamTests, Benchmark::LowLatency) => sizes([128, 7168, 8, 288], None),
        (DeepepDriver::UpstreamTests, _) => sizes([4096, 7168, 8, 256], Some(24)),
    }
}

/// What of a benchmark its limits depend on.
pub(crate) struct Shape {
    /// Whose benchmark.
    pub(crate) driver: DeepepDriver,
    /// Which.
    pub(crate) one: Benchmark,
    /// Nodes of the launch.
    pub(crate) nodes: u32,
    /// GPUs of each.
    pub(crate) gpus: u32,
    /// Only the kind of NIC and the SMs of the GPU count.
    pub(crate) links: Links,
    /// Sizes, as far as they are given.
    pub(crate) workload: Workload,
    /// `NVSHMEM_QP_DEPTH`, where it is set.
    pub(crate) qp_depth: Option<usize>,
}

/// What the engine says of a shape, the worst first.
///
/// # Errors
/// Where the sizes fit no engine at all.
pub(crate) fn lints(shape: &Shape) -> Result<Vec<Lint>, plan::PlanError> {
    let mut lints = plan::lints(&request(shape))?;
    lints.retain(|lint| !(shape.driver == DeepepDriver::Own && lint.id == OF_THE_TEST));
    Ok(lints)
}

/// Refuses what `DeepEP` V1 refuses, and notes what it warns of.
pub(super) fn check(run: &mut Run, spec: &Spec) -> Result<(), RunError> {
    if run.engine != Engine::Deepep {
        return Ok(());
    }
    for one in run.benchmarks.clone() {
        let shape = shape(run, spec, one);
        divisible(&request(&shape), one)?;
        let lints = lints(&shape)
            .map_err(|error| RunError::Conflict(format!("benchmark `{}` of DeepEP: {error}", one.name())))?;
        let of = |level: Level| lints.iter().filter(move |lint| lint.level == level).map(words);
        let refused: Vec<String> = of(Level::Refuse).collect();
        if !refused.is_empty() {
            return Err(RunError::Conflict(format!(
                "DeepEP V1 cannot run benchmark `{}` so: {}. `expertrail plan --engine deepep-v1` tells with which numbers it can",
                one.name(),
                refused.join("; ")
            )));
        }
        run.notes.extend(of(Level::Warn).map(|words| format!("benchmark `{}`: {words}", one.name())));
    }
    Ok(())
}

fn words(lint: &Lint) -> String {
    format!("{} ({}): {}: {}", lint.id, lint.title, lint.observed, lint.remedy)
}

/// `DeepEP` places the same number of experts on every rank.
fn divisible(request: &Request, one: Benchmark) -> Result<(), RunError> {
    let (experts, ranks) = (request.experts, request.ranks());
    if experts > 0 && experts.is_multiple_of(ranks) {
        return Ok(());
    }
    let next = experts.max(1).div_ceil(ranks) * ranks;
    Err(RunError::Conflict(format!(
        "workload.experts = {experts} on {ranks} ranks of benchmark `{}`: DeepEP wants a multiple of the ranks; {next} would do (plan's rule \
         L005)",
        one.name()
    )))
}

/// A benchmark of `run`.
fn shape(run: &Run, spec: &Spec, one: Benchmark) -> Shape {
    Shape {
        driver: spec.deepep.driver,
        one,
        nodes: run.nodes,
        gpus: run.gpus_per_node,
        links: links(run),
        workload: spec.workload.clone(),
        qp_depth: spec.env.get("NVSHMEM_QP_DEPTH").and_then(|depth| depth.parse().ok()),
    }
}

/// The plan of a benchmark.
fn request(shape: &Shape) -> Request {
    let &Shape { driver, one, .. } = shape;
    let usual = usual(driver, one);
    let number = |given: Option<u32>, usual: u32| given.unwrap_or(usual) as usize;
    let workload = &shape.workload;
    let nodes = if one == Benchmark::Intranode { 1 } else { shape.nodes };
    let low_latency = one == Benchmark::LowLatency;
    Request {
        nodes: nodes as usize,
        gpus_per_node: shape.gpus as usize,
        links: shape.links.clone(),
        tokens: number(workload.tokens, usual.tokens),
        hidden: number(workload.hidden, usual.hidden),
        top_k: number(workload.top_k, usual.top_k),
        experts: number(workload.experts, usual.experts),
        routing: match (driver, one) {
            (DeepepDriver::UpstreamTests, Benchmark::Internode) => {
                Routing::Groups { groups: nodes as usize, chosen: nodes.min(4) as usize }
            }
            _ => Routing::Uniform,
        },
        mode: if low_latency { Mode::Ll } else { Mode::Ht },
        fp8: low_latency,
        engine: Planned::DeepepV1,
        settings: settings(shape, usual),
        ..Request::default()
    }
}

/// Only the kind of NIC and the SMs of the GPU count here, so that rates that nobody knows may stay unknown.
fn links(run: &Run) -> Links {
    let known = LinkArgs { profile: Some(&run.profile), ..LinkArgs::default() }.resolve();
    let mut links = known.unwrap_or_default();
    links.scale_out.get_or_insert_with(LinkRate::default);
    if run.fabric == Fabric::Efa {
        links.nic_kind = NicKind::Efa;
    }
    links
}

fn settings(shape: &Shape, usual: Sizes) -> Settings {
    let one = shape.one;
    let own = shape.driver == DeepepDriver::Own;
    // DeepEP's tests have no option for it.
    let sms = if own { shape.workload.sms.or(usual.sms) } else { usual.sms };
    let sms = sms.filter(|_| one != Benchmark::LowLatency).map(|sms| sms as usize);
    let across = one == Benchmark::Internode && shape.nodes > 1;
    let low_latency = one == Benchmark::LowLatency;
    Settings {
        sms,
        qps: across.then_some(24),
        qp_depth: shape.qp_depth.filter(|_| low_latency),
        // DeepEP's tests: int(2e9) and int(1e9).
        nvl_bytes: (!own && !low_latency).then_some(2_000_000_000),
        rdma_bytes: (!own && across).then_some(1_000_000_000),
        guide_buffers: own && !low_latency,
        ..Settings::default()
    }
}
