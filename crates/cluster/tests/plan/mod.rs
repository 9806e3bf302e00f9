//! Requests that several tests plan.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "each test uses a part")]

use expertrail_cluster::plan::{Engine, Figure, LinkArgs, Plan, Request, Routing};

#[track_caller]
pub(crate) fn near(got: f64, want: f64, relative: f64) {
    assert!((got / want - 1.0).abs() <= relative, "{got} is not within {relative} of {want}");
}

/// Equal as printed with as many decimals.
#[track_caller]
pub(crate) fn prints(got: f64, want: &str) {
    let decimals = want.split_once('.').map_or(0, |(_, digits)| digits.len());
    assert_eq!(format!("{got:.decimals$}"), want);
}

/// DeepSeek-V3's shape on H200 and 400 Gb/s.
pub(crate) fn v3(nodes: usize) -> Request {
    let links = LinkArgs { gpu: Some("h200"), nic: Some("cx7-400"), ..LinkArgs::default() };
    Request {
        nodes,
        gpus_per_node: 8,
        links: links.resolve().unwrap(),
        tokens: 4096,
        hidden: 7168,
        top_k: 8,
        experts: 256,
        fp8: true,
        engine: Engine::DeepepV1,
        ..Request::default()
    }
}

/// With other links: a GPU and a NIC.
pub(crate) fn on(mut request: Request, gpu: &str, nic: &str) -> Request {
    let links = LinkArgs { gpu: Some(gpu), nic: Some(nic), ..LinkArgs::default() };
    request.links = links.resolve().unwrap();
    request
}

/// The guide's inter-node shape.
pub(crate) fn guide_inter() -> Request {
    let routing = Routing::WithReplacement;
    Request { tokens: 8192, hidden: 3072, experts: 128, fp8: false, routing, ..v3(2) }
}

/// The guide's intra-node shape.
pub(crate) fn guide_intra() -> Request {
    Request { tokens: 65_536, top_k: 16, nodes: 1, ..guide_inter() }
}

#[track_caller]
pub(crate) fn figure<'a>(plan: &'a Plan, id: &str, operation: &str) -> &'a Figure {
    plan.figure(id, operation).unwrap_or_else(|| panic!("no {id} {operation}"))
}
