//! RDMA devices, EFA included.

use std::collections::{BTreeMap, BTreeSet};

use super::driver::missing;
use super::remedies::shell;
use super::{Context, Target};
use crate::causes::CauseEntry;
use crate::facts::RdmaDevice;
use crate::finding::{Finding, Manager, Status};
use crate::topo::Role;

const NONE: CauseEntry = CauseEntry {
    id: "no-rdma-device",
    title: "no RDMA device",
    text: "Between nodes there is nothing but TCP. In a container the devices must be given to it; on a node their driver must be loaded.",
};
const HIDDEN: CauseEntry = CauseEntry {
    id: "verbs-device-hidden",
    title: "an RDMA device has no device node here",
    text: "The kernel has the device, but a process here cannot open it: libraries find fewer NICs than there are, or none, and fall back to TCP.",
};
const FIRMWARE: CauseEntry = CauseEntry {
    id: "nic-firmware-mixed",
    title: "rails of one node have different firmware",
    text: "Firmware decides features and faults; a node with two of them fails in ways that no other node shows.",
};
const ERRORS: CauseEntry = CauseEntry {
    id: "nic-errors",
    title: "a rail's error counters are not zero",
    text: "Links that went down or carry symbol errors slow down the rank that uses them, and every dispatch waits for the slowest.",
};
const GID: CauseEntry = CauseEntry {
    id: "roce-gid-link-local",
    title: "a RoCE port has no routable address",
    text: "With link-local addresses only, or none of RoCE version 2, NICs of other nodes are not reached: retries are exceeded, or nothing connects.",
};
const EFA: CauseEntry = CauseEntry {
    id: "efa-driver-missing",
    title: "EFA devices without their driver, or no EFA at all",
    text: "DeepEP on EFA goes through libfabric's efa provider, which needs the efa module and the devices in the container (`vpc.amazonaws.com/efa`).",
};
const PARTITION: CauseEntry = CauseEntry {
    id: "ib-partition-differs",
    title: "rails of one node are in different partitions, or limited members",
    text: "Ports of different partitions do not reach each other, nor do two limited members of one: queue pairs between such rails exceed their retries.",
};
const HUGE: CauseEntry = CauseEntry {
    id: "huge-pages-missing",
    title: "no huge pages for EFA",
    text: "libfabric's efa provider takes its buffers from huge pages; without them it warns and runs with ordinary pages, at a higher cost of each message.",
};

pub(super) const CAUSES: &[CauseEntry] = &[NONE, HIDDEN, FIRMWARE, ERRORS, GID, PARTITION, EFA, HUGE];

/// Huge pages of 2 MiB that AWS's examples ask for: 5120 MiB.
const HUGE_PAGES: u64 = 2560;

/// Counters that a healthy link leaves at zero: those of the InfiniBand port (first four) and of retransmission.
const COUNTERS: [&str; 6] = [
    "link_downed",
    "symbol_error",
    "port_rcv_errors",
    "link_error_recovery",
    "local_ack_timeout_err",
    "packet_seq_err",
];

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    let mut all = vec![present(context)];
    if context.has_rdma() {
        all.push(visible(context));
        all.push(firmware(context));
        all.extend(errors(context));
        all.extend(addresses(context));
        all.push(partitions(context));
    }
    all.extend(efa(context));
    all
}

fn rails<'a>(context: &'a Context<'_>) -> Vec<&'a RdmaDevice> {
    let rail = |device: &&RdmaDevice| {
        context.topology.device(&device.name).is_some_and(|nic| nic.role != Role::Other)
    };
    context.facts.rdma.value().into_iter().flatten().filter(rail).collect()
}

fn present(context: &Context<'_>) -> Finding {
    let fact = &context.facts.rdma;
    let finding = context.finding("P020").from_fact(fact);
    if fact.value().is_none() && !fact.is_absent() {
        return finding.unknown(missing(fact));
    }
    let facts = context.facts;
    if fact.is_absent() && facts.pci.devices.value().is_none() && facts.modules.present.value().is_none() {
        return finding.unknown("there is no /sys here to see devices in");
    }
    let count = fact.value().map_or(0, Vec::len);
    if context.has_rdma() {
        return finding.saw(format!("{count} devices"), "");
    }
    let seen = if count == 0 { "none".to_owned() } else { format!("{count}, all of software") };
    // One node of our own library, or of NCCL, works without.
    let status = match context.target {
        Target::DeepepIbgda | Target::DeepepEfa => Status::Fail,
        Target::Expertrail | Target::Nccl => Status::Warn,
    };
    finding
        .outcome(status, &NONE)
        .saw(seen, "RDMA devices, for more than one node")
        .remedy_for(Some(Manager::Machine), "Load the NICs' driver; a virtual machine must have the functions passed through.", &["lspci | grep -iE 'mellanox|nvidia.*connectx|efa'; sudo modprobe mlx5_ib      # or: efa"])
        .remedy_for(Some(Manager::Operator), "Ask for the devices in the pod, and see that the Network Operator's or EFA's device plugin offers them.", &["resources: {limits: {nvidia.com/hostdev: 8}}      # or rdma/..., vpc.amazonaws.com/efa", "kubectl get node NODE -o jsonpath='{.status.allocatable}'"])
        .remedy_for(Some(Manager::Container), "Give the container the devices.", &["docker run --device /dev/infiniband ..."])
}

fn visible(context: &Context<'_>) -> Finding {
    let facts = context.facts;
    let finding = context.finding("P021").from_fact(&facts.devices);
    let Some(nodes) = facts.devices.value() else { return finding.unknown(missing(&facts.devices)) };
    let hidden: Vec<String> = rails(context)
        .into_iter()
        .filter_map(|device| Some((device, device.uverbs.as_ref()?)))
        .filter(|(_, uverbs)| {
            !nodes.iter().any(|node| node.character && node.path == format!("/dev/infiniband/{uverbs}"))
        })
        .map(|(device, uverbs)| format!("{} ({uverbs})", device.name))
        .collect();
    let node = |uverbs: &str| nodes.iter().find(|node| node.path == format!("/dev/infiniband/{uverbs}"));
    let (mut closed, mut grouped) = (Vec::new(), Vec::new());
    for device in rails(context) {
        let Some(node) = device.uverbs.as_deref().and_then(node).filter(|node| node.character) else {
            continue;
        };
        if context.closed(node) {
            let seen = format!("{} ({}, mode {:04o})", device.name, node.path, node.mode);
            // Whether this user is of the node's group is not known.
            if node.mode & 0o060 == 0o060 { grouped.push(seen) } else { closed.push(seen) }
        }
    }
    if hidden.is_empty() && closed.is_empty() && grouped.is_empty() {
        return finding.saw("each rail has its node in /dev/infiniband", "");
    }
    if hidden.is_empty() {
        let (status, what) = if closed.is_empty() {
            (Status::Warn, "only its group may open")
        } else {
            (Status::Fail, "this user cannot open")
        };
        closed.extend(grouped);
        return finding
            .outcome(status, &HIDDEN)
            .saw(format!("{what} {}", closed.join(", ")), "mode 0666, so that every user's process can open it")
            .remedy(
                "Let udev make the nodes with mode 0666, as rdma-core's rules do; give a container's user the same.",
                &["sudo chmod 666 /dev/infiniband/uverbs*      # until the next load of ib_uverbs"],
            );
    }
    finding
        .outcome(Status::Fail, &HIDDEN)
        .saw(format!("no node for {}", hidden.join(", ")), "/dev/infiniband/uverbsN of each rail")
        .remedy_for(
            Some(Manager::Machine),
            "Load ib_uverbs; udev makes the nodes.",
            &["sudo modprobe ib_uverbs; ls -l /dev/infiniband"],
        )
        .remedy_for(
            Some(Manager::Operator),
            "Ask for as many devices as the node has in the pod.",
            &["resources: {limits: {nvidia.com/hostdev: 8}}      # or rdma/..., vpc.amazonaws.com/efa"],
        )
        .remedy_for(
            Some(Manager::Container),
            "Give the container the devices.",
            &["docker run --device /dev/infiniband ...      # Enroot, Pyxis: mount /dev/infiniband"],
        )
}

fn firmware(context: &Context<'_>) -> Finding {
    let finding = context.finding("P022").from_fact(&context.facts.rdma);
    let mut kinds: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let rails = rails(context);
    for device in &rails {
        if let (Some(board), Some(firmware)) =
            (device.board_id.as_deref().or(device.hca_type.as_deref()), device.firmware.as_deref())
        {
            kinds.entry((board, firmware)).or_default().push(&device.name);
        }
    }
    let mixed: Vec<String> = kinds
        .iter()
        .filter(|((board, firmware), _)| {
            kinds.keys().any(|(other, version)| other == board && version != firmware)
        })
        .map(|((_, firmware), names)| format!("{firmware}: {}", names.join(",")))
        .collect();
    if mixed.is_empty() {
        return finding.saw("the same for each part", "");
    }
    finding
        .outcome(Status::Warn, &FIRMWARE)
        .saw(mixed.join("; "), "one version for rails of one part")
        .remedy(
            "Update the firmware of those that differ; in a virtual machine ask the provider.",
            &["mlxfwmanager --query"],
        )
}

fn errors(context: &Context<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    for device in rails(context) {
        let Some(nic) = context.topology.device(&device.name) else { continue };
        let Some(port) = device.ports.iter().find(|port| port.number == nic.port) else { continue };
        let value =
            |name: &str| port.counters.get(name).or_else(|| port.hw_counters.get(name)).copied().unwrap_or(0);
        let bad: Vec<String> = COUNTERS
            .into_iter()
            .filter(|name| value(name) > 0)
            .map(|name| format!("{name} {}", value(name)))
            .collect();
        if !bad.is_empty() {
            all.push(
                context
                    .finding("P023")
                    .about(device.name.clone())
                    .outcome(Status::Warn, &ERRORS)
                    .saw(bad.join(", "), "0 (they count since the driver's load: see whether they grow)")
                    .at(format!("/sys/class/infiniband/{}/ports/{}/counters", device.name, port.number), crate::facts::Scope::HostKernel)
                    .remedy(
                        "Read them again after a run. If they grow, clean or change the cable and look at the switch port.",
                        &[&format!("grep . /sys/class/infiniband/{}/ports/{}/{{counters,hw_counters}}/* | grep -v ':0$'", shell(&device.name), port.number)],
                    ),
            );
        }
    }
    if all.is_empty() {
        let shown =
            rails(context).into_iter().flat_map(|device| &device.ports).any(|port| !port.counters.is_empty());
        let finding = context.finding("P023").from_fact(&context.facts.rdma);
        all.push(if shown {
            finding.saw("0", "")
        } else {
            finding.unknown("no rail shows its counters here").advisory()
        });
    }
    all
}

/// Whether an address is of its link only: `fe80::/10`, or IPv4's 169.254.0.0/16 (a9fe in hexadecimal).
fn link_local(gid: &str) -> bool {
    let gid = gid.to_ascii_lowercase();
    ["fe8", "fe9", "fea", "feb"].iter().any(|start| gid.starts_with(start)) || gid.contains(":ffff:a9fe:")
}

/// Keys of partitions that a port is a full member of (the top bit), by their low 15 bits; and of those that it is a limited one of.
fn memberships(keys: &[String]) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let numbers = keys.iter().filter_map(|key| u32::from_str_radix(key.trim_start_matches("0x"), 16).ok());
    let (full, limited): (Vec<u32>, Vec<u32>) = numbers.partition(|key| key & 0x8000 != 0);
    let full: BTreeSet<u32> = full.into_iter().map(|key| key & 0x7fff).collect();
    (full.clone(), limited.into_iter().filter(|key| !full.contains(key)).collect())
}

fn partitions(context: &Context<'_>) -> Finding {
    let finding = context.finding("P027").from_fact(&context.facts.rdma);
    let mut kinds: BTreeMap<Vec<String>, Vec<&str>> = BTreeMap::new();
    let mut limited = Vec::new();
    for device in rails(context) {
        let Some(nic) = context.topology.device(&device.name).filter(|nic| nic.infiniband) else { continue };
        let Some(port) = device.ports.iter().find(|port| port.number == nic.port) else { continue };
        // A port that is down may have no keys yet.
        if port.active() != Some(true) || port.pkeys.is_empty() {
            continue;
        }
        let (full, part) = memberships(&port.pkeys);
        let written = |key: &u32, bit: u32| format!("0x{:04x}", key | bit);
        if full.is_empty() {
            let keys: Vec<String> = part.iter().map(|key| written(key, 0)).collect();
            limited.push(format!("{} has {} only: limited membership", device.name, keys.join(",")));
        } else {
            let keys = full.iter().map(|key| written(key, 0x8000)).collect();
            kinds.entry(keys).or_default().push(&device.name);
        }
    }
    let mut bad = limited;
    if kinds.len() > 1 {
        bad.extend(kinds.iter().map(|(keys, names)| format!("{}: {}", keys.join(","), names.join(","))));
    }
    if bad.is_empty() {
        return match kinds.keys().next() {
            Some(keys) => finding.saw(keys.join(","), ""),
            None => finding.not_applicable("no InfiniBand rail shows its partitions"),
        };
    }
    finding
        .outcome(Status::Warn, &PARTITION)
        .saw(bad.join("; "), "full membership of the same partitions on every rail")
        .remedy(
            "Have the ports' partitions corrected in the subnet manager (partitions.conf of opensm, or UFM); in a cloud ask the provider.",
            &["grep . /sys/class/infiniband/*/ports/*/pkeys/* | grep -v 0x0000"],
        )
}

fn addresses(context: &Context<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    for device in rails(context) {
        let Some(nic) = context.topology.device(&device.name).filter(|nic| !nic.infiniband && !nic.efa)
        else {
            continue;
        };
        let Some(port) = device.ports.iter().find(|port| port.number == nic.port) else { continue };
        let routable = |gid: &&crate::facts::Gid| {
            let version2 = gid.kind.as_deref().is_none_or(|kind| kind.to_ascii_lowercase().contains("v2"));
            version2 && !link_local(&gid.gid)
        };
        if port.gids.iter().any(|gid| routable(&gid)) {
            continue;
        }
        let seen: Vec<String> =
            port.gids.iter().take(4).map(|gid| format!("{} {}", gid.index, gid.gid)).collect();
        all.push(
            context
                .finding("P024")
                .about(device.name.clone())
                .outcome(Status::Fail, &GID)
                .saw(if seen.is_empty() { "no address".to_owned() } else { seen.join(", ") }, "a RoCE v2 address that is not link-local")
                .at(format!("/sys/class/infiniband/{}/ports/{}/gids", device.name, port.number), crate::facts::Scope::HostKernel)
                .remedy("Give the interface of this device an IP address, then name the index of its RoCE v2 address (the same on all nodes).", &["ip addr show      # of the device's interface", "export NCCL_IB_GID_INDEX=3      # the index that show_gids prints"]),
        );
    }
    all
}

fn efa(context: &Context<'_>) -> Vec<Finding> {
    let facts = context.facts;
    let devices: Vec<&RdmaDevice> = facts
        .rdma
        .value()
        .into_iter()
        .flatten()
        .filter(|device| device.driver.as_deref() == Some("efa"))
        .collect();
    let driver = context.finding("P025").from_fact(&facts.driver.efa_version).from_fact(&facts.rdma);
    let pages = context.finding("P026").from_fact(&facts.memory.huge_pages);
    if context.target != Target::DeepepEfa {
        let reason = format!("{} does not ask for EFA", context.target);
        return vec![driver.not_applicable(reason.clone()), pages.not_applicable(reason)];
    }
    let driver = match (facts.modules.has("efa"), devices.len()) {
        (None, _) => driver.unknown(missing(&facts.modules.loaded)),
        (Some(true), 1..) => {
            let version = facts.driver.efa_version.value().map_or("unknown", String::as_str);
            driver.saw(format!("{} devices, module {version}", devices.len()), "")
        }
        (loaded, count) => driver
            .outcome(Status::Fail, &EFA)
            .saw(
                format!(
                    "module efa {}loaded, {count} devices",
                    if loaded == Some(true) { "" } else { "not " }
                ),
                "the module, and the instance's devices",
            )
            .remedy_for(
                Some(Manager::Machine),
                "Use an instance type with EFA, attach the interfaces, and install the EFA driver.",
                &["sudo modprobe efa; fi_info -p efa"],
            )
            .remedy_for(
                Some(Manager::Operator),
                "Install the EFA device plugin and ask for the devices in the pod.",
                &["resources: {limits: {vpc.amazonaws.com/efa: N}}"],
            )
            .remedy_for(
                Some(Manager::Container),
                "Give the container the devices.",
                &[
                    "sudo modprobe efa      # on the host, if it has EFA interfaces",
                    "docker run --device /dev/infiniband ...",
                ],
            ),
    };
    let pages = match facts.memory.huge_pages.value() {
        None => pages.unknown(missing(&facts.memory.huge_pages)).advisory(),
        Some(all) => {
            let free = all.iter().find(|pages| pages.size == 2 << 20).map_or(0, |pages| pages.free);
            let pages = pages.saw(format!("{free} free pages of 2 MiB"), format!("{HUGE_PAGES} (5120 MiB)"));
            if free >= HUGE_PAGES {
                pages
            } else {
                pages
                    .outcome(Status::Warn, &HUGE)
                    .remedy_for(
                        Some(Manager::Machine),
                        "Reserve them at boot, or now while memory is not fragmented.",
                        &["sudo sysctl -w vm.nr_hugepages=2560"],
                    )
                    .remedy_for(
                        Some(Manager::Operator),
                        "Reserve them on the node and ask for them in the pod.",
                        &["resources: {limits: {hugepages-2Mi: 5120Mi}}      # in the pod"],
                    )
                    .remedy_for(
                        Some(Manager::Container),
                        "They are the host's: reserve them there.",
                        &["sudo sysctl -w vm.nr_hugepages=2560      # on the host"],
                    )
            }
        }
    };
    vec![driver, pages]
}
