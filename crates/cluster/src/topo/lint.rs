//! Variables that name NICs, against the mapping.

use std::collections::BTreeMap;

use super::emit::quoted;
use super::findings::finding;
use super::{Role, Topology};
use crate::causes::CauseEntry;
use crate::facts::{Facts, RdmaDevice, Scope};
use crate::finding::{Finding, Status};

const INERT: CauseEntry = CauseEntry {
    id: "hca-list-inert",
    title: "NVSHMEM_HCA_LIST without NVSHMEM_ENABLE_NIC_PE_MAPPING=1 does nothing",
    text: "NVSHMEM reads its list of devices only when the mapping is switched on, and otherwise chooses by itself: ranks may all take one NIC.",
};
const COMMON: CauseEntry = CauseEntry {
    id: "pe-mapping-with-uid-bootstrap",
    title: "NVSHMEM maps NICs to ranks that all have number 0",
    text: "DeepEP starts an NVSHMEM world for each rail, in which every process is number 0 of its node: with one common list, or none, all of them take its first NIC.",
};
const PREFIX: CauseEntry = CauseEntry {
    id: "hca-list-syntax",
    title: "a device list has a prefix its reader does not know",
    text: "Only NCCL_IB_HCA knows a leading `=` (exact names). UCX and NVSHMEM take it as part of the first name and find no such device. `^` (all but) is known to NCCL and NVSHMEM, and not to every UCX.",
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
    // NVSHMEM's documentation gives `^` a meaning (entries that are left out), and `=` none.
    for (name, unknown) in [("NVSHMEM_HCA_LIST", &['='][..]), ("UCX_NET_DEVICES", &['=', '^'])] {
        if let Some(value) = variables.get(name).filter(|value| value.starts_with(unknown)) {
            all.push(at(finding("P109")
                .about(name)
                .outcome(Status::Fail, &PREFIX)
                .saw(short(value), short(value.trim_start_matches(['=', '^'])))
                .remedy("Leave the prefix away.", &[&export(name, value.trim_start_matches(['=', '^']))])));
        }
    }
    for name in ["NVSHMEM_HCA_LIST", "UCX_NET_DEVICES", "NCCL_IB_HCA"] {
        all.extend(variables.get(name).and_then(|value| devices(topology, facts, name, value)).map(at));
    }
    all.extend(variables.get("NCCL_IB_HCA").and_then(|value| loose(topology, value)).map(at));
    all
}

/// NVSHMEM's variable that lists devices, and its value.
fn list(variables: &BTreeMap<String, String>) -> Option<(&'static str, &String)> {
    let lists = ["NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING"];
    lists.into_iter().find_map(|name| Some((name, variables.get(name)?)))
}

/// Whether NVSHMEM reads its list.
fn on(variables: &BTreeMap<String, String>) -> bool {
    let switch =
        variables.get("NVSHMEM_ENABLE_NIC_PE_MAPPING").map(|value| value.trim().to_ascii_lowercase());
    switch.is_some_and(|value| !matches!(value.as_str(), "" | "0" | "f" | "false" | "n" | "no"))
}

/// The variable that takes NVSHMEM's choice of a NIC away from it: a list that it does not read pins nothing.
pub(super) fn pinned(variables: &BTreeMap<String, String>) -> Option<&'static str> {
    list(variables).filter(|_| on(variables)).map(|(name, _)| name)
}

fn nvshmem(topology: &Topology, variables: &BTreeMap<String, String>) -> Option<Finding> {
    let (list, on) = (list(variables), on(variables));
    let step = format!("eval \"$({})\"   # in each rank, before deep_ep.Buffer()", topology.command());
    let pins = &[step.as_str()];
    if let (Some((name, list)), false) = (list, on) {
        return Some(
            finding("P107")
                .about(name)
                .outcome(Status::Warn, &INERT)
                .saw(
                    format!("{}, and NVSHMEM_ENABLE_NIC_PE_MAPPING is not 1", short(list)),
                    "NVSHMEM_ENABLE_NIC_PE_MAPPING=1 and a list for each rank",
                )
                .remedy("Switch the mapping on and give each rank its own rail.", pins),
        );
    }
    // A process that is one rank has its own list already.
    let count = list.map_or(0, |(_, list)| names(list).len());
    let but = list.is_some_and(|(_, list)| list.starts_with('^'));
    let own = !but && (1..=topology.rails_per_gpu.max(1)).contains(&count);
    if !on || own || topology.gpus.len() < 2 {
        return None;
    }
    let (name, seen) = match list {
        Some((name, list)) if but => (name, format!("{}: all devices but these", short(list))),
        Some((name, _)) => (name, format!("{count} devices in one list")),
        None => ("NVSHMEM_ENABLE_NIC_PE_MAPPING", "the mapping is on and there is no list".to_owned()),
    };
    Some(
        finding("P108")
            .about(name)
            .outcome(Status::Warn, &COMMON)
            .saw(seen, "one rail in the list of each rank")
            .remedy("Set the list in each rank, not for the pod or the job.", pins),
    )
}

/// Values of variables may be of any length.
pub(super) fn short(value: &str) -> String {
    let mut text: String = value.chars().take(200).collect();
    if text.len() < value.len() {
        text.push_str("...");
    }
    text
}

/// A line that sets `name`. The value comes from a capture, so the shell must take it as one word; one that is longer than any list is
/// left out rather than cut.
fn export(name: &str, value: &str) -> String {
    if value.len() > 4096 { format!("export {name}=...") } else { format!("export {name}={}", quoted(value)) }
}

/// The device names of a list: prefixes and ports dropped.
fn names(list: &str) -> Vec<&str> {
    entries(list).into_iter().map(|(name, _)| name).collect()
}

/// The device names of a list, and the port of each where it has one.
fn entries(list: &str) -> Vec<(&str, Option<&str>)> {
    list.trim_start_matches(['=', '^'])
        .split(',')
        .map(|entry| match entry.split_once(':') {
            None => (entry.trim(), None),
            Some((name, port)) => (name.trim(), Some(port.trim())),
        })
        .filter(|(name, _)| !name.is_empty())
        // More than any node has; the time that comparing takes is a product.
        .take(1024)
        .collect()
}

/// What is wrong with `port` of a rail; none where it is a port that is up, or where nobody knows the ports.
fn port_of(device: &RdmaDevice, port: &str) -> Option<String> {
    let name = &device.name;
    let found =
        port.parse().ok().and_then(|number: u32| device.ports.iter().find(|port| port.number == number));
    match found {
        None if device.ports.is_empty() => None,
        None => Some(format!("{name} has no port {}", short(port))),
        Some(found) if found.active() == Some(false) => Some(format!(
            "port {port} of {name} is not active ({})",
            found.state.as_deref().map_or(String::new(), short)
        )),
        Some(_) => None,
    }
}

fn devices(topology: &Topology, facts: &Facts, variable: &str, value: &str) -> Option<Finding> {
    // `^` names what is left out.
    if value.starts_with('^') || topology.inconclusive.is_some() {
        return None;
    }
    let exact = variable != "NCCL_IB_HCA" || value.starts_with('=');
    let known: BTreeMap<&str, &RdmaDevice> =
        facts.rdma.value().into_iter().flatten().map(|device| (device.name.as_str(), device)).collect();
    let mut wrong = Vec::new();
    for (name, port) in entries(value) {
        let matched: Vec<_> = topology
            .devices
            .iter()
            .filter(|nic| if exact { nic.name == name } else { nic.name.starts_with(name) })
            .collect();
        match matched.as_slice() {
            // UCX takes network interfaces too, and `all`; a name with a port is an RDMA device's.
            [] if variable == "UCX_NET_DEVICES" && port.is_none() => {}
            [] => wrong.push(format!("{} does not exist", short(name))),
            _ if matched.iter().all(|nic| nic.role != Role::Rail) => {
                wrong.push(format!(
                    "{name} is no rail ({})",
                    matched.first().map_or("", |nic| nic.reason.as_str())
                ));
            }
            rails => {
                // Of the devices whose names begin with this one some have the port: then it is not wrong for those.
                let faults: Option<Vec<String>> = port.and_then(|port| {
                    let rails = rails.iter().filter(|nic| nic.role == Role::Rail);
                    rails.map(|nic| port_of(known.get(nic.name.as_str())?, port)).collect()
                });
                wrong.extend(faults.and_then(|faults| faults.into_iter().next()));
            }
        }
    }
    if wrong.is_empty() {
        return None;
    }
    Some(
        finding("P110")
            .about(variable)
            .outcome(Status::Fail, &UNKNOWN)
            .saw(format!("{}: {}", short(value), wrong.join("; ")), topology.rails().join(","))
            .remedy("Name the rails of this node, with ports that are up.", &[&topology.command()]),
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
        finding("P111")
            .about("NCCL_IB_HCA")
            .outcome(Status::Warn, &LOOSE)
            .saw(format!("{} also matches {}", short(value), extra.join(", ")), format!("={}", short(value)))
            .remedy("Put `=` before the list.", &[&export("NCCL_IB_HCA", &format!("={value}"))]),
    )
}
