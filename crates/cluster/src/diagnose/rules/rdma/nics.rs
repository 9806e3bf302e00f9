//! Which NIC each rank of NVSHMEM takes.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::rules::process::story::{line, text};
use crate::diagnose::{Case, Event};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "nvshmem-nic-choice",
        Role::Context,
        &["NVSHMEM_ENABLE_NIC_PE_MAPPING = "],
        r"NVSHMEM_ENABLE_NIC_PE_MAPPING = (?P<mapping>[01]), (?:device (?P<device>\d+) )?setting dev_id = (?P<nic>\d+)",
    ),
    line(
        "nvshmem-hca-list",
        Role::Context,
        &["NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING"],
        r"NVSHMEM_HCA_(?:LIST|PE_MAPPING)\W{1,8}(?:set by environment to )?(?P<list>[A-Za-z]\w*\d[\w:]*(?:,\w+[\w:]*)*)",
    ),
    text("nvshmem-hca-per-rank", Role::Context, &["NVSHMEM_HCA_LIST mapping:", "NVSHMEM_HCA_OFFSET="]),
    line(
        "nvshmem-hca-parsed",
        Role::Context,
        &["Parsed HCA list provided by user", "Parsed HCA PE mapping"],
        r"\(of (?P<of>\d+)\), name=(?P<name>\w+)",
    ),
    line(
        "ep-figure",
        Role::Context,
        &["Best dispatch", "Best combine", "Dispatch bandwidth", "Combine bandwidth"],
        r"(?P<gbs>\d+(?:\.\d+)?) GB/s(?: \((?P<over>\w+)\))?",
    ),
    line(
        "nic-second-plane-idle",
        Role::Context,
        &["ports/2", "plane 1", "plane1", " p1  ", "  p1 ", " p1: ", " p1=0", "port 2", "port2"],
        r"(?i)(?:\bp1|_p1|ports/2|plane ?1|port ?2)\b[^\d]*?\b0(?:\.0+)?\b",
    ),
    text(
        "nic-two-planes",
        Role::Context,
        &[
            "dual-plane",
            "dual plane",
            "multi-plane",
            "2 planes",
            "two planes",
            "NVSHMEM_IBGDA_ENABLE_MULTI_PORT",
        ],
    ),
    // What someone wrote below a figure.
    line(
        "figure-below-expectation",
        Role::Context,
        &["xpect", "only half", "about half", "half of"],
        r"(?i)\bexpect(?:ed|ing|ation)?\b\W{0,3}(?:(?:was|is|about|around|roughly|at least|more like)\W{0,2})*(?:~|>=?|≥)?\s*(?:\d+(?:\.\d+)?(?:\b\s*(?:GB|\?|here|for|on|$|[.,)-]))|double|twice|more\b)|\b(?:only|about|just) half (?:of |the |what)",
    ),
    text("nvshmem-put-bw", Role::Context, &["shmem_put_bw"]),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    // Where a CPU thread rings the doorbells, half of the usual figure is what that gives.
    Rule {
        cause: "nic-shared-by-two-gpus",
        unless: &["ibgda-cpu-fallback"],
        refine: Some(shared),
        ..Rule::LIKELY
    },
    Rule {
        cause: "nic-shared-by-two-gpus",
        needs: &["ep-figure"],
        unless: &["ibgda-cpu-fallback"],
        refine: Some(low),
        ..Rule::LIKELY
    },
    Rule { cause: "pe-mapping-with-uid-bootstrap", refine: Some(one_for_all), ..Rule::LIKELY },
    Rule { cause: "multi-plane-unused", refine: Some(one_plane), ..Rule::LIKELY },
];

/// Figures of a dispatch between nodes at half of what one 400 Gb/s NIC for each GPU carries: 50 GB/s one way, of which V1 reaches 43 to
/// 58 by DeepEP's own accounting; half of it is 20 to 32.
const HALF: std::ops::RangeInclusive<f64> = 15.0..=33.0;
/// The same with one of two planes of an 800 Gb/s NIC.
const HALF_OF_800: std::ops::RangeInclusive<f64> = 25.0..=55.0;

/// The claim of `judge`, where its figures say this cause.
fn judged(case: &Case, cause: &'static str) -> Option<Claim> {
    let (_, why, place) = case.judged.iter().find(|(known, ..)| *known == cause)?;
    let mut claim = Claim::new(cause, Confidence::Likely, why.clone(), []);
    claim.evidence.push(*place);
    Some(claim)
}

/// The best figure of a dispatch or combine between nodes, if one is printed.
fn figure(case: &Case) -> Option<(f64, &Event)> {
    // Inside of a node no NIC takes part.
    case.events("ep-figure")
        .filter(|event| event.field("over") != Some("NVL"))
        .filter_map(|event| Some((event.field("gbs")?.parse::<f64>().ok()?, event)))
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Whether a figure is printed that a shared NIC does not reach.
fn fast(case: &Case) -> bool {
    figure(case).is_some_and(|(gbs, _)| gbs > *HALF.end())
}

/// NICs that processes chose under `mapping`, by node; a line without rank counts as a process of its own.
fn choices<'a>(case: &'a Case, mapping: &str) -> BTreeMap<String, BTreeMap<String, (i64, &'a Event)>> {
    let mut nodes: BTreeMap<String, BTreeMap<String, (i64, &Event)>> = BTreeMap::new();
    for event in case.events("nvshmem-nic-choice").filter(|event| event.field("mapping") == Some(mapping)) {
        let Some(nic) = event.number("nic") else { continue };
        let node = match (&event.node, event.rank) {
            (Some(node), _) => node.to_string(),
            (None, Some(rank)) => case.node_of(rank).map_or_else(|| "?".to_owned(), |node| node.to_string()),
            (None, None) => format!("file {}", event.place.file),
        };
        let process =
            event.rank.map_or_else(|| format!("line {}", event.place.line), |rank| rank.to_string());
        nodes.entry(node).or_default().entry(process).or_insert((nic, event));
    }
    nodes
}

/// Whether each rank was given a list of one NIC: all choose index 0, and of different NICs.
fn list_per_rank(case: &Case) -> bool {
    let lists: BTreeSet<&str> =
        case.events("nvshmem-hca-list").filter_map(|event| event.field("list")).collect();
    case.has("nvshmem-hca-per-rank")
        || lists.len() > 1 && lists.iter().all(|list| !list.contains(','))
        || case.events("nvshmem-hca-parsed").any(|event| event.number("of") == Some(1))
}

fn list_is_common(case: &Case) -> bool {
    case.events("nvshmem-hca-list").any(|event| event.field("list").is_some_and(|list| list.contains(',')))
        || case.variable("NVSHMEM_HCA_LIST").is_some_and(|list| list.contains(','))
        || case.variable("NVSHMEM_HCA_PE_MAPPING").is_some_and(|list| list.contains(','))
        || case.events("nvshmem-hca-parsed").any(|event| event.number("of").is_some_and(|of| of > 1))
}

/// NICs that processes of a node chose, by process.
type Choices<'a> = BTreeMap<String, (i64, &'a Event)>;

/// A node whose processes share NICs by NVSHMEM's choice: its name, and what they chose.
fn sharing<'a>(nodes: &'a BTreeMap<String, Choices<'a>>) -> Option<(&'a String, &'a Choices<'a>)> {
    nodes.iter().find(|(_, chosen)| {
        let distinct: BTreeSet<i64> = chosen.values().map(|(nic, _)| *nic).collect();
        chosen.len() >= 2 && distinct.len() * 2 <= chosen.len()
    })
}

/// A figure that is low for its hardware, and nothing that says why.
fn low(case: &Case, claim: Claim) -> Option<Claim> {
    let known = ["nic-shared-by-two-gpus", "pe-mapping-with-uid-bootstrap", "multi-plane-unused"];
    let (gbs, event) = figure(case)?;
    if case.judged.iter().any(|(cause, ..)| known.contains(cause)) || case.has("nvshmem-nic-choice") {
        return None;
    }
    let remark = case.events("figure-below-expectation").find(|remark| {
        remark.place.file == event.place.file && remark.place.line.abs_diff(event.place.line) <= NEAR
    });
    let efa = case.version("nic") == Some("efa") || case.version("transport") == Some("efa");
    let low = event.field("over") == Some("RDMA") && gbs <= LOW && !efa;
    if remark.is_none() && !low {
        return None;
    }
    let mut made = Claim {
        confidence: Confidence::Possible,
        because: format!(
            "{gbs} GB/s is less than such NICs carry: ranks that share a NIC, a plane that idles, a wrong NIC or a slow link; the figure alone does not tell"
        ),
        ..claim
    };
    made.evidence = [Some(event), remark].into_iter().flatten().map(|event| event.place).collect();
    made.next = Some(COUNTERS.to_owned());
    Some(made)
}

/// What no NIC of 400 Gb/s for each GPU is as slow as: less than half of the lowest figures of DeepEP V1 between nodes (43 GB/s, its README).
const LOW: f64 = 20.0;
/// Lines between a figure and a remark about it.
const NEAR: u64 = 12;
/// What tells a shared NIC, an idle plane and a slow link apart.
const COUNTERS: &str = "traffic counters of all HCAs during a run (`cat /sys/class/infiniband/*/ports/*/counters/port_xmit_data` before and after), and NVSHMEM_DEBUG=INFO for the NIC of each rank";

fn shared(case: &Case, claim: Claim) -> Option<Claim> {
    if let Some(mut claim) = judged(case, "nic-shared-by-two-gpus") {
        let nodes = choices(case, "0");
        let proof = sharing(&nodes).filter(|(_, chosen)| {
            // Each with a list of its own, all take its first element.
            !list_per_rank(case) || chosen.values().any(|(nic, _)| *nic != 0)
        });
        if let Some((_, chosen)) = proof {
            claim.evidence.extend(chosen.values().take(2).map(|(_, event)| event.place));
        } else {
            claim.confidence = Confidence::Possible;
            claim.next = Some(COUNTERS.to_owned());
        }
        return Some(claim);
    }
    if list_per_rank(case) || fast(case) {
        return None;
    }
    let nodes = choices(case, "0");
    let (node, chosen) = sharing(&nodes)?;
    let mut twice = chosen.values().map(|(_, event)| *event);
    let half = figure(case).filter(|(gbs, _)| HALF.contains(gbs));
    let (first, second) = (twice.next()?, twice.next()?);
    let confidence = match half {
        Some(_) => Confidence::Certain,
        None if node != "?" && !node.starts_with("file ") => Confidence::Likely,
        None => Confidence::Possible,
    };
    let mut made = Claim {
        confidence,
        because: format!(
            "{} processes of one node chose {} NICs by distance, so GPUs share a NIC and others idle",
            chosen.len(),
            chosen.values().map(|(nic, _)| *nic).collect::<BTreeSet<_>>().len()
        ),
        evidence: vec![first.place, second.place],
        ..claim
    }
    .not("wrong pinning of ranks to far NICs gives single digits of GB/s; a shared NIC gives half");
    if let Some((gbs, event)) = half {
        let figure = format!("; {gbs} GB/s is about half of what a NIC for each GPU carries");
        made.because += &figure;
        made.evidence.push(event.place);
    }
    made.next = (confidence == Confidence::Possible)
        .then(|| "which node each of these processes runs on (NVSHMEM_DEBUG=INFO with host names), and the traffic counters of all HCAs".to_owned());
    Some(made)
}

fn one_for_all(case: &Case, claim: Claim) -> Option<Claim> {
    if let Some(claim) = judged(case, "pe-mapping-with-uid-bootstrap") {
        return Some(claim);
    }
    if list_per_rank(case) || fast(case) {
        return None;
    }
    let nodes = choices(case, "1");
    let all: Vec<(i64, &Event)> = nodes.values().flat_map(|chosen| chosen.values().copied()).collect();
    let &(nic, first) = all.first()?;
    if all.len() < 2 || all.iter().any(|(other, _)| *other != nic) {
        return None;
    }
    let slow = figure(case).is_some_and(|(gbs, _)| gbs <= *HALF.end());
    let sure = list_is_common(case) || slow || all.len() >= 3;
    let confidence = if sure { Confidence::Likely } else { Confidence::Possible };
    let mut made = Claim {
        confidence,
        because: format!(
            "NVSHMEM_ENABLE_NIC_PE_MAPPING=1 and all {} processes took NIC {nic} of their list: DeepEP's NVSHMEM groups have one PE on each node, so every PE counts itself as the first there",
            all.len()
        ),
        evidence: all.iter().take(3).map(|(_, event)| event.place).collect(),
        ..claim
    }
    .about("NVSHMEM_ENABLE_NIC_PE_MAPPING")
    .not("a list of one NIC for each rank, as the guide sets it, also gives index 0 everywhere and is right: no such list is seen here");
    made.evidence.extend(
        case.first("nvshmem-hca-list").filter(|event| event.place != first.place).map(|event| event.place),
    );
    made.next = (confidence == Confidence::Possible).then(|| {
        "NVSHMEM_HCA_LIST of each rank: one element each is right, one common list is the fault".to_owned()
    });
    Some(made)
}

fn one_plane(case: &Case, claim: Claim) -> Option<Claim> {
    if let Some(mut claim) = judged(case, "multi-plane-unused") {
        if !case.has_any(&["nic-two-planes", "nic-second-plane-idle"]) {
            claim.confidence = Confidence::Possible;
            claim.next = Some(COUNTERS.to_owned());
        }
        return Some(claim);
    }
    if case.version("line") == Some("v2") || !case.has("nic-two-planes") && !case.has("nic-second-plane-idle")
    {
        return None;
    }
    let (gbs, event) = figure(case).filter(|(gbs, _)| HALF_OF_800.contains(gbs))?;
    let idle = case.first("nic-second-plane-idle");
    let rate = case.first("nvshmem-put-bw");
    let planes = case.first("nic-two-planes");
    let confidence = match (idle, rate, planes) {
        (Some(_), ..) | (None, Some(_), Some(_)) => Confidence::Likely,
        _ => Confidence::Possible,
    };
    let mut made = Claim {
        confidence,
        because: format!("{gbs} GB/s is what one plane carries, on NICs with two: DeepEP V1 uses the first half of the queue pairs only"),
        evidence: [Some(event), idle, rate, planes].into_iter().flatten().map(|event| event.place).collect(),
        ..claim
    }
    .not("NVSHMEM's own test uses both planes, so a line rate there says nothing of DeepEP");
    made.next = (confidence == Confidence::Possible)
        .then(|| "counters of both ports of one NIC during a run: `cat /sys/class/infiniband/<nic>/ports/*/counters/port_xmit_data`".to_owned());
    Some(made)
}
