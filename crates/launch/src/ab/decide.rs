//! From two outcomes to a layer.

use std::fmt::Write;

use super::{Comparison, Difference, Layer, SCHEMA, Side};

/// Causes that live in what is run: library, image, program, their settings. Nodes that are well show them too.
const SOFTWARE: [&str; 41] = [
    "nvshmem-rc-layout-mismatch",
    "nvshmem-device-host-differ",
    "jit-compile-skew",
    "ibgda-cpu-handler",
    "deepep-qp-race",
    "framework-dual-batch-bug",
    "nvshmem-roce-address-handle",
    "nvshmem-bootstrap-tcp-order",
    "variable-unknown-to-library",
    "nvshmem-no-remote-transport",
    "gpu-memory-exhausted",
    "nvshmem-max-teams",
    "launcher-misdetects-ip-family",
    "nvshmem-bootstrap-interface",
    "efa-transport-not-set",
    "deepep-qps-too-few",
    "deepep-scale-config",
    "deepep-unsupported-rank-count",
    "ep-rdma-buffer-too-small",
    "deepep-ll-token-limit",
    "experts-not-divisible",
    "hybrid-ep-domain-overcount",
    "cuda-ipc-across-hosts",
    "deepep-v2-gin-assert",
    "nccl-build-runtime-differ",
    "gpu-arch-missing",
    "deepep-build-arch-or-rdc",
    "nvshmem-symbols-missing",
    "deepep-wrong-branch",
    "hca-offset-unset",
    "aggressive-ptx-off",
    "hca-list-wrong-device",
    "cupti-too-old",
    "nvshmem-two-device-states",
    "deepep-without-nvshmem",
    "nvshmem-cuda-major",
    "efa-needs-nvshmem-3-7",
    "efa-needs-patch",
    "stack-known-bad",
    "hca-list-inert",
    "application-error",
];

/// Causes that say how a process ended and not why.
const GENERIC: [&str; 4] = ["application-error", "rank-killed", "node-lost", "expertrail-rank-died"];

/// How a side counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Result {
    Passed,
    Failed,
    Neither,
}

fn result(side: &Side) -> Result {
    match (side.outcome.ending.kind.as_str(), side.outcome.exit_code) {
        ("succeeded", 0 | 5) => Result::Passed,
        ("succeeded", 1) | ("failed" | "deadline", _) => Result::Failed,
        _ => Result::Neither,
    }
}

/// What a side is, in one line.
fn line(side: &Side) -> String {
    let outcome = &side.outcome;
    let mut text = format!("{} ({}, run {}): {}", side.name, side.file, outcome.run, outcome.ending.words());
    if let Some(verdict) = &outcome.verdict {
        let _ = write!(text, "; figures: {}", verdict.status);
    }
    if let Some(diagnosis) = &outcome.diagnosis {
        if diagnosis.causes.is_empty() {
            text.push_str("; the logs name no cause");
        } else {
            let _ = write!(text, "; cause: {}", diagnosis.causes.join(", "));
        }
        if let Some(first) = &diagnosis.first_failure {
            let _ = write!(text, "; first failure: {first}");
        }
    }
    text
}

/// The comparison, with its answer.
pub fn decide(variables: &[String], differences: Vec<Difference>, a: Side, b: Side) -> Comparison {
    let mut evidence = vec![line(&a), line(&b)];
    let mut next = Vec::new();
    let layer = answer(&a, &b, &mut evidence, &mut next);
    Comparison {
        schema: SCHEMA.to_owned(),
        tool: env!("CARGO_PKG_VERSION").to_owned(),
        variables: variables.to_vec(),
        differences,
        sides: vec![a, b],
        layer,
        evidence,
        next,
    }
}

/// The causes of a side that say something, the first failure's first.
fn causes(side: &Side) -> Vec<&str> {
    let causes = side.outcome.diagnosis.iter().flat_map(|diagnosis| &diagnosis.causes);
    causes.map(String::as_str).filter(|cause| !GENERIC.contains(cause)).collect()
}

fn answer(a: &Side, b: &Side, evidence: &mut Vec<String>, next: &mut Vec<String>) -> Layer {
    if !same_nodes(a, b) {
        evidence.push(format!("not on the same nodes: A on {}, B on {}", hosts(a), hosts(b)));
        next.push(
            "run both again on nodes that are named (slurm.nodelist, kubernetes.hostnames, hosts.names)"
                .to_owned(),
        );
        return Layer::NotDecided;
    }
    match (result(a), result(b)) {
        (Result::Passed, Result::Passed) => {
            evidence.push("both pass: the fault did not show".to_owned());
            next.push("run the failing description again as it fails in production: more iterations, more nodes, the same data".to_owned());
            Layer::NotDecided
        }
        (Result::Passed, Result::Failed) => one_passes(a, b, evidence, next),
        (Result::Failed, Result::Passed) => one_passes(b, a, evidence, next),
        (Result::Failed, Result::Failed) => both_fail(a, b, evidence, next),
        _ => {
            for side in [a, b].into_iter().filter(|side| result(side) == Result::Neither) {
                evidence.push(format!(
                    "{} neither passed nor failed: it says nothing of either layer",
                    side.name
                ));
                next.push(format!(
                    "see {}/report.html, correct what kept {} from running, and run again",
                    side.bundle, side.name
                ));
            }
            Layer::NotDecided
        }
    }
}

fn one_passes(good: &Side, bad: &Side, evidence: &mut Vec<String>, next: &mut Vec<String>) -> Layer {
    let (pass, fail) = (&good.name, &bad.name);
    if bad.between_nodes && !good.between_nodes {
        evidence.push(format!(
            "{fail} sends between nodes and {pass} does not: that {pass} passes clears each node, and not the network between them"
        ));
        next.push(format!(
            "let {pass} run a benchmark between nodes: benchmarks = [\"internode\"] of engine deepep"
        ));
        return Layer::NotDecided;
    }
    let hard: Vec<&str> = causes(bad).into_iter().filter(|cause| !SOFTWARE.contains(cause)).collect();
    if !hard.is_empty() {
        evidence.push(format!(
            "{pass} passes on the same nodes, but the logs of {fail} show {}, which belongs to the cluster: it may come and go",
            hard.join(", ")
        ));
        next.push(format!(
            "run both once more; `expertrail explain {}` says how the cause is seen on a node",
            hard[0]
        ));
        return Layer::NotDecided;
    }
    evidence.push(format!(
        "{pass} passes on the same nodes{}: they carry the path that {fail} fails on",
        if good.between_nodes { ", between them too" } else { "" }
    ));
    next.push(format!(
        "look at what differs: {fail}'s versions and settings; `expertrail stack` in its image"
    ));
    Layer::Software
}

/// The figures that a side fails on: `J001 inter-node dispatch bf16`, and what was seen. Only of a run whose ranks all ended with 0: figures of
/// one that broke off are those of its beginning.
fn low(side: &Side) -> Vec<(&str, &str)> {
    let verdict = side.outcome.verdict.as_ref().filter(|_| side.outcome.ending.kind == "succeeded");
    let fails = verdict.filter(|verdict| verdict.status == "fail");
    fails.iter().flat_map(|verdict| &verdict.reasons).filter_map(|reason| reason.split_once(": ")).collect()
}

/// Both ran to their ends and fail on figures: the same ones, or others?
fn both_low(a: &Side, b: &Side, evidence: &mut Vec<String>, next: &mut Vec<String>) -> Option<Layer> {
    let (left, right) = (low(a), low(b));
    if left.is_empty() || right.is_empty() {
        return None;
    }
    let mut shared = 0;
    for (what, seen) in &left {
        if let Some((_, other)) = right.iter().find(|(name, _)| name == what) {
            shared += 1;
            evidence.push(format!("both fail on {what}: A {seen}; B {other}"));
        }
    }
    next.push(format!(
        "`expertrail judge {}/result --baseline {}/verdict.json` sets B's figures beside A's",
        b.bundle, a.bundle
    ));
    if shared == 0 {
        let names = |side: &[(&str, &str)]| side.iter().map(|(what, _)| *what).collect::<Vec<_>>().join(", ");
        evidence.push(format!(
            "they fail on different figures: A on {}; B on {}",
            names(&left),
            names(&right)
        ));
        return Some(Layer::NotDecided);
    }
    evidence.push(
        "the same figures are low with different software on the same nodes: that points to the nodes and the network".to_owned(),
    );
    next.push(format!("`expertrail check` on {}", hosts(a)));
    Some(Layer::Cluster)
}

fn both_fail(a: &Side, b: &Side, evidence: &mut Vec<String>, next: &mut Vec<String>) -> Layer {
    let (left, right) = (causes(a), causes(b));
    if let Some(shared) = left.iter().find(|cause| right.contains(cause)).copied() {
        if SOFTWARE.contains(&shared) {
            evidence.push(format!(
                "both fail of {shared}, which is in the software that both have: the same fault twice says nothing of the nodes"
            ));
            next.push(format!(
                "`expertrail explain {shared}`; then compare with an image that is known to be good"
            ));
            return Layer::Software;
        }
        evidence.push(format!(
            "both fail of the same cause, {shared}, with different software on the same nodes"
        ));
        next.push(format!("`expertrail explain {shared}`, and `expertrail check` on {}", hosts(a)));
        return Layer::Cluster;
    }
    if !left.is_empty() && !right.is_empty() {
        evidence.push(format!("they fail of different causes: {} and {}", left.join(", "), right.join(", ")));
        next.push("correct one of them and run both again".to_owned());
        return Layer::NotDecided;
    }
    if let Some(layer) = both_low(a, b, evidence, next) {
        return layer;
    }
    let signal = |side: &Side| {
        let first = side.outcome.diagnosis.as_ref().and_then(|diagnosis| diagnosis.first_failure.clone())?;
        // Without the place: `file:line: text`.
        let text = first.splitn(3, ':').nth(2).unwrap_or(&first).trim().to_owned();
        Some(text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect::<String>())
    };
    match (signal(a), signal(b)) {
        (Some(left), Some(right)) if left == right => {
            evidence.push(format!(
                "both begin to fail with the same line ({left}), and no cause is certain: the same symptom with different software points to the \
                 cluster, though one message can have several causes"
            ));
            next.push(format!("`expertrail check` on {} and the findings of both bundles", hosts(a)));
            Layer::Cluster
        }
        _ => {
            evidence.push("both fail, and not in the same way as far as their logs tell".to_owned());
            for side in [a, b] {
                next.push(format!(
                    "`expertrail diagnose {0}/logs {0}/state` names the one fact to collect next for {1}",
                    side.bundle, side.name
                ));
            }
            Layer::NotDecided
        }
    }
}

fn hosts(side: &Side) -> String {
    let hosts = &side.outcome.hosts;
    if hosts.is_empty() { "nodes that are not known".to_owned() } else { hosts.join(", ") }
}

/// Whether both ran on the same nodes, as far as they are known; where one side has none, it did not come so far, which its ending says.
fn same_nodes(a: &Side, b: &Side) -> bool {
    let sorted = |side: &Side| {
        let mut hosts = side.outcome.hosts.clone();
        hosts.sort();
        hosts.dedup();
        hosts
    };
    let (left, right) = (sorted(a), sorted(b));
    let ran = result(a) != Result::Neither && result(b) != Result::Neither;
    if left.is_empty() || right.is_empty() { !ran } else { left == right }
}

/// For people.
pub fn text(comparison: &Comparison) -> String {
    let mut out =
        format!("A/B of {}: {}\n", comparison.variables.join(", "), comparison.layer.label().to_uppercase());
    for line in &comparison.evidence {
        let _ = writeln!(out, "  - {line}");
    }
    if !comparison.differences.is_empty() {
        out.push_str("What differed:\n");
        for difference in &comparison.differences {
            let _ = writeln!(out, "  {difference}");
        }
    }
    if !comparison.next.is_empty() {
        out.push_str("Next:\n");
        for line in &comparison.next {
            let _ = writeln!(out, "  {line}");
        }
    }
    out
}
