//! Variables that name NICs, against the mapping.

use std::collections::BTreeMap;

use super::{Role, Topology};
use crate::causes::CauseEntry;
use crate::facts::{Facts, Scope};
use crate::finding::{Finding, Status};

const INERT: CauseEntry = CauseEntry {
    id: "hca-list-inert",
    title: "NVSHMEM_HCA_LIST without NVSHMEM_ENABLE_NIC_PE_MAPPING=1 does nothing",
    text: "NVSHMEM reads its list of devices only when the mapping is switched on, and otherwise chooses by itself: ranks may all take one NIC.",
};
const COMMON: CauseEntry = CauseEntry {
    id: "hca-list-common",
    title: "one NVSHMEM_HCA_LIST for all ranks",
    text: "DeepEP starts an NVSHMEM world for each rail, in which every process is number 0 of its node: with one common list all of them take its first NIC.",
};
const PREFIX: CauseEntry = CauseEntry {
    id: "hca-list-syntax",
    title: "a device list has a prefix its reader does not know",
    text: "Only NCCL_IB_HCA knows a leading `=` (exact names) or `^` (all but). UCX and NVSHMEM take it as part of the first name and find no such device.",
};
const UNKNOWN: CauseEntry = CauseEntry {
    id: "hca-list-wrong-device",
    title: "a device list names what is not a rail",
    text: "A wrong device raises no error: the run works at a fraction of the bandwidth, or hangs where the device does not exist.",
};
const LOOSE: CauseEntry = CauseEntry {
    id: "nccl-hca-prefix-match",
    title: "NCCL_IB_HCA matches more devices than it names",
    text: "Without a leading `=` NCCL takes each name as the beginning of a name: mlx5_1 also means mlx5_10, mlx5_11 and on.",
};

/// Causes of this part.
pub(super) const CAUSES: &[CauseEntry] = &[INERT, COMMON, PREFIX, UNKNOWN, LOOSE];

/// Findings about the variables of the facts.
pub(super) fn findings(topology: &Topology, facts: &Facts) -> Vec<Finding> {
    let fact = &facts.environment.variables;
    let Some(variables) = fact.value() else { return Vec::new() };
    let at = |finding: Finding| finding.at(fact.source.clone(), Scope::Unknown);
    let mut all = Vec::new();
    all.extend(nvshmem(topology, variables).into_iter().map(at));
    for name in ["NVSHMEM_HCA_LIST", "UCX_NET_DEVICES"] {
        if let Some(value) = variables.get(name).filter(|value| value.starts_with(['=', '^'])) {
            all.push(at(Finding::new("P109", "device lists are well formed")
                .about(name)
                .outcome(Status::Fail, &PREFIX)
                .saw(value.clone(), value.trim_start_matches(['=', '^']))
                .remedy(
                    "Leave the prefix away.",
                    &[&format!("export {name}={}", value.trim_start_matches(['=', '^']))],
                )));
        }
    }
    for name in ["NVSHMEM_HCA_LIST", "UCX_NET_DEVICES", "NCCL_IB_HCA"] {
        all.extend(variables.get(name).and_then(|value| devices(topology, name, value)).map(at));
    }
    all.extend(variables.get("NCCL_IB_HCA").and_then(|value| loose(topology, value)).map(at));
    all
}

fn nvshmem(topology: &Topology, variables: &BTreeMap<String, String>) -> Option<Finding> {
    let list = variables.get("NVSHMEM_HCA_LIST").or_else(|| variables.get("NVSHMEM_HCA_PE_MAPPING"))?;
    let on = variables
        .get("NVSHMEM_ENABLE_NIC_PE_MAPPING")
        .is_some_and(|value| !matches!(value.as_str(), "" | "0" | "false" | "no"));
    let pins = &["eval \"$(expertrail topo --emit env)\"   # in each rank, before deep_ep.Buffer()"];
    if !on {
        return Some(
            Finding::new("P107", "NVSHMEM reads its device list")
                .about("NVSHMEM_HCA_LIST")
                .outcome(Status::Warn, &INERT)
                .saw(
                    format!("{list}, and NVSHMEM_ENABLE_NIC_PE_MAPPING is not 1"),
                    "NVSHMEM_ENABLE_NIC_PE_MAPPING=1 and a list for each rank",
                )
                .remedy("Switch the mapping on and give each rank its own rail.", pins),
        );
    }
    let count = names(list).len();
    // A process that is one rank has its own list already.
    if count <= topology.rails_per_gpu.max(1) || topology.gpus.len() < 2 {
        return None;
    }
    Some(
        Finding::new("P108", "a device list for each rank")
            .about("NVSHMEM_HCA_LIST")
            .outcome(Status::Warn, &COMMON)
            .saw(format!("{count} devices in one list"), "one rail in the list of each rank")
            .remedy("Set the list in each rank, not for the pod or the job.", pins),
    )
}

/// The device names of a list: prefixes and ports dropped.
pub(super) fn names(list: &str) -> Vec<&str> {
    list.trim_start_matches(['=', '^'])
        .split(',')
        .map(|entry| entry.split(':').next().unwrap_or(entry).trim())
        .filter(|name| !name.is_empty())
        .collect()
}

fn devices(topology: &Topology, variable: &str, value: &str) -> Option<Finding> {
    // `^` names what is left out; UCX also takes network interfaces and `all`.
    if value.starts_with('^') || value == "all" || topology.inconclusive.is_some() {
        return None;
    }
    let exact = variable != "NCCL_IB_HCA" || value.starts_with('=');
    let mut wrong = Vec::new();
    for name in names(value) {
        let matched: Vec<_> = topology
            .devices
            .iter()
            .filter(|nic| if exact { nic.name == name } else { nic.name.starts_with(name) })
            .collect();
        match matched.as_slice() {
            [] => wrong.push(format!("{name} does not exist")),
            _ if matched.iter().all(|nic| nic.role != Role::Rail) => {
                wrong.push(format!(
                    "{name} is no rail ({})",
                    matched.first().map_or("", |nic| nic.reason.as_str())
                ));
            }
            _ => {}
        }
    }
    if wrong.is_empty() {
        return None;
    }
    Some(
        Finding::new("P110", "device lists name rails")
            .about(variable)
            .outcome(Status::Fail, &UNKNOWN)
            .saw(format!("{value}: {}", wrong.join("; ")), topology.rails().join(","))
            .remedy("Name the rails of this node.", &["expertrail topo --emit env"]),
    )
}

fn loose(topology: &Topology, value: &str) -> Option<Finding> {
    if value.starts_with(['=', '^']) {
        return None;
    }
    let listed = names(value);
    let extra: Vec<&str> = topology
        .devices
        .iter()
        .map(|nic| nic.name.as_str())
        .filter(|name| !listed.contains(name) && listed.iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    // A list that is a prefix on purpose (`mlx5`) names no device at all.
    if extra.is_empty() || !listed.iter().any(|name| topology.device(name).is_some()) {
        return None;
    }
    Some(
        Finding::new("P111", "NCCL_IB_HCA means what it says")
            .about("NCCL_IB_HCA")
            .outcome(Status::Warn, &LOOSE)
            .saw(format!("{value} also matches {}", extra.join(", ")), format!("={value}"))
            .remedy("Put `=` before the list.", &[&format!("export NCCL_IB_HCA='={value}'")]),
    )
}
