//! What the mapping means.

use super::lint;
use super::text::many;
use super::{Distance, Nic, Role, Topology};
use crate::causes::CauseEntry;
use crate::check::Target;
use crate::facts::{Facts, Link, PciDevice};
use crate::finding::{Finding, Status};
use crate::profile::Profile;

const UNCLEAR: CauseEntry = CauseEntry {
    id: "rails-unclear",
    title: "it cannot be told which NICs are rails",
    text: "Pinning ranks to a frontend or storage NIC raises no error: the run works at a fraction of the bandwidth.",
};
const FEW: CauseEntry = CauseEntry {
    id: "fewer-rails-than-gpus",
    title: "GPUs share a NIC",
    text: "GPUs that share a NIC share its bandwidth. Libraries that choose by distance may put all of them on the same one and leave others idle.",
};
const UNEVEN: CauseEntry = CauseEntry {
    id: "rails-no-multiple-of-gpus",
    title: "rails are left over",
    text: "Every GPU has the same number of rails, and those left over carry nothing.",
};
const DOWN: CauseEntry = CauseEntry {
    id: "rail-down",
    title: "a rail's port is not active",
    text: "The GPU of this rail has no way to other nodes: a run hangs, or falls back to another NIC and halves the bandwidth of both GPUs.",
};
const PLANE: CauseEntry = CauseEntry {
    id: "plane-down",
    title: "the other port of every rail's card is not active",
    text: "Where each card's two ports are the planes of a network, half of the bandwidth is missing and nothing else shows it. Cards of which one port is used look the same.",
};
const FARTHER: CauseEntry = CauseEntry {
    id: "rail-far",
    title: "a GPU's rail is farther than those of its siblings",
    text: "Traffic of this GPU crosses a CPU's interconnect, and the slowest rank sets the time of every dispatch.",
};
const LOPSIDED: CauseEntry = CauseEntry {
    id: "rails-lopsided",
    title: "rails are not spread over NUMA nodes as GPUs are",
    text: "Some GPU must use a NIC of the other NUMA node; its transfers cross the CPUs' interconnect.",
};
const PROFILE: CauseEntry = CauseEntry {
    id: "profile-disagrees",
    title: "the provider's document and the hardware disagree",
    text: "Launch files written after the document pin ranks to other NICs than the ones found here. The hardware decides; the document may be of another image.",
};
const SLOW_LINK: CauseEntry = CauseEntry {
    id: "pci-link-reduced",
    title: "a PCI Express link runs below what the device can do",
    text: "A link with fewer lanes or a lower speed bounds every transfer of the device. Reseating, another slot or a reset of the device mends it.",
};
const NOT_MLX5: CauseEntry = CauseEntry {
    id: "non-mlx5-nic",
    title: "IBGDA works with NVIDIA (mlx5) NICs only",
    text: "NVSHMEM's GPU-initiated transport exists for mlx5 devices alone, and DeepEP's V1 kernels between nodes need it.",
};
const SAME_NIC: CauseEntry = CauseEntry {
    id: "nic-shared-by-two-gpus",
    title: "left to itself NVSHMEM gives several GPUs one NIC",
    text: "NVSHMEM takes the nearest NIC. Where several are equally near, ranks of different GPUs take the same one and leave others idle: a run passes with half of the bandwidth or less.",
};
const PLANES: CauseEntry = CauseEntry {
    id: "multi-plane-unused",
    title: "DeepEP's V1 kernels use one of a GPU's NICs",
    text: "Their queue pairs are on one device for each rank; the second plane of a ConnectX-8, or a second NIC of a GPU, stays idle.",
};
const SHORT: CauseEntry = CauseEntry {
    id: "rail-slow",
    title: "a rail's link is slower than those of its siblings",
    text: "The link came up with fewer lanes or a lower speed. The slowest rank sets the time of every dispatch.",
};

/// Causes of this part.
pub const CAUSES: &[&[CauseEntry]] = &[
    &[
        UNCLEAR, FEW, UNEVEN, DOWN, PLANE, FARTHER, LOPSIDED, PROFILE, SLOW_LINK, NOT_MLX5, SAME_NIC, PLANES,
        SHORT,
    ],
    lint::CAUSES,
];

/// Ids of the checks of this part with what each looks at. An id is never used again for something else.
pub const CHECKS: &[(&str, &str)] = &[
    ("P100", "GPU to NIC mapping"),
    ("P101", "a rail for every GPU"),
    ("P102", "rails are up"),
    ("P103", "rails are as near as their siblings"),
    ("P104", "rails are spread as GPUs are"),
    ("P105", "provider profile agrees"),
    ("P106", "PCI Express links at full width"),
    ("P107", "NVSHMEM reads its device list"),
    ("P108", "a device list for each rank"),
    ("P109", "device lists are well formed"),
    ("P110", "device lists name rails"),
    ("P111", "NCCL_IB_HCA means what it says"),
    ("P112", "rails are mlx5 devices"),
    ("P113", "rails are as fast as their siblings"),
    ("P114", "NVSHMEM's own choice of NICs"),
    ("P115", "one NIC for each GPU"),
];

/// A finding of check `id`, with its title.
pub(super) fn finding(id: &str) -> Finding {
    let title = CHECKS.iter().find(|(known, _)| *known == id).map_or("", |(_, title)| title);
    Finding::new(id, title)
}

/// Every finding about GPUs and NICs.
pub fn findings(
    topology: &Topology,
    facts: &Facts,
    profile: Option<&Profile>,
    target: Target,
) -> Vec<Finding> {
    if facts.rdma.value().is_none_or(Vec::is_empty) {
        // Whether that is bad is another check's matter.
        let none = finding("P100").not_applicable("no RDMA device to map");
        return vec![none.from_fact(&facts.rdma)];
    }
    let mut all = vec![resolved(topology, facts)];
    if topology.inconclusive.is_none() {
        all.push(enough(topology, facts));
        all.extend(farther(topology));
        all.push(spread(topology, facts));
        all.extend(slow(topology));
        all.extend(unpinned(topology, facts, target));
        all.extend(planes(topology, facts, target));
    }
    all.extend(topology.with(Role::FailedRail).map(|nic| down(nic, facts)));
    all.extend(plane(topology, facts));
    all.extend(against(topology, facts, profile));
    all.extend(links(topology, facts));
    all.extend(ibgda(topology, facts, target));
    all.extend(lint::findings(topology, facts));
    all
}

fn resolved(topology: &Topology, facts: &Facts) -> Finding {
    let finding = finding("P100").from_fact(&facts.rdma).from_fact(&facts.pci.devices);
    match &topology.inconclusive {
        None => finding.saw(rails_for(topology.rails().len(), topology.gpus.len()), ""),
        // It is known which they are; P102 says what is wrong with each.
        Some(_) if topology.all_down() => {
            let down = rails_for(topology.with(Role::FailedRail).count(), topology.gpus.len());
            finding.saw(format!("{down}, none of them up"), "")
        }
        Some(reason) if facts.pci.devices.value().is_some() && facts.pci.gpus().is_empty() => {
            finding.not_applicable(reason.clone())
        }
        Some(reason) => finding
            .outcome(Status::Unknown, &UNCLEAR)
            .saw(format!("inconclusive: {reason}"), "as many like devices as GPUs, or a multiple")
            .remedy("Name the rails, from the provider's documents or topology file, and look at the mapping again.", &["expertrail topo --hca NAME,NAME,..."]),
    }
}

fn rails_for(rails: usize, gpus: usize) -> String {
    format!("{} for {}", many(rails, "rail"), many(gpus, "GPU"))
}

fn enough(topology: &Topology, facts: &Facts) -> Finding {
    let (rails, gpus) =
        (topology.rails().len() + topology.with(Role::FailedRail).count(), topology.gpus.len());
    let finding =
        finding("P101").saw(rails_for(rails, gpus), format!("{gpus} or a multiple")).from_fact(&facts.rdma);
    if gpus > 0 && rails.is_multiple_of(gpus) {
        return finding;
    }
    if rails > gpus {
        return finding
            .outcome(Status::Warn, &UNEVEN)
            .remedy("Name as many rails as there are GPUs, or a multiple.", &[]);
    }
    finding.outcome(Status::Warn, &FEW).remedy(
        "Pin every rank to its rail, so that the ranks are spread over all of them.",
        &[&format!("eval \"$({})\"", topology.command())],
    )
}

fn down(nic: &Nic, facts: &Facts) -> Finding {
    let finding = finding("P102").about(nic.name.clone());
    let device = facts.rdma.value().into_iter().flatten().find(|device| device.name == nic.name);
    let port = device.and_then(|device| device.ports.iter().find(|port| port.number == nic.port));
    if port.is_some_and(|port| port.active().is_none()) {
        return finding.unknown(nic.reason.clone()).from_fact(&facts.rdma);
    }
    let finding =
        finding.outcome(Status::Fail, &DOWN).saw(format!("{}{}", nic.reason, gpus(nic)), "4: ACTIVE").at(
            format!("/sys/class/infiniband/{}/ports/{}/state", nic.name, nic.port),
            crate::facts::Scope::HostKernel,
        );
    // INIT and ARMED: the link stands, and no subnet manager has brought the port up (InfiniBand Architecture, PortState).
    let waits = nic.infiniband
        && port.is_some_and(|port| {
            matches!(port.state_number(), Some(2 | 3))
                && port.phys_state.as_deref().is_some_and(|state| state.contains("LinkUp"))
        });
    // One text for all, so that it is printed once.
    if waits {
        return finding.remedy(
            "The link is up and waits for the subnet manager: start it, or find out why it does not reach these ports; until then leave this node out.",
            &["sminfo   # the subnet manager that the ports know", "grep . /sys/class/infiniband/*/ports/*/sm_lid   # 0x0: none"],
        );
    }
    finding.remedy(
        "Look at the cable, the switch port and the subnet manager; reset the device; until it is up leave this node out.",
        &[PHYSICAL, "ibstat; dmesg | grep -i mlx5"],
    )
}

/// What shows the links below the ports.
const PHYSICAL: &str =
    "grep . /sys/class/infiniband/*/ports/*/phys_state   # Polling: no link partner; Disabled: switched off";

/// The second ports of all rails' cards, where all of them are down: a plane of the network, or ports that nobody uses.
fn plane(topology: &Topology, facts: &Facts) -> Option<Finding> {
    let card = |nic: &Nic| Some(nic.pci.as_deref()?.rsplit_once('.')?.0.to_owned());
    let gpus: Vec<&PciDevice> = topology.gpus.iter().filter_map(|gpu| facts.pci.at(&gpu.pci)).collect();
    let near = |nic: &Nic| {
        let device = nic.pci.as_deref().and_then(|address| facts.pci.at(address));
        device.is_some_and(|device| gpus.iter().any(|gpu| super::between(gpu, device) <= Distance::Pxb))
    };
    let device = |nic: &Nic| facts.rdma.value().into_iter().flatten().find(|device| device.name == nic.name);
    let is_down = |nic: &Nic| {
        device(nic).is_some_and(|device| {
            !device.ports.is_empty() && device.ports.iter().all(|port| port.active() == Some(false))
        })
    };
    // A physical function whose virtual ones are the rails is no second port.
    let made = |nic: &Nic| device(nic).is_some_and(|device| device.physfn.is_some());
    let second = |rail: &Nic| {
        let same = |nic: &&Nic| card(nic).is_some() && card(nic) == card(rail) && made(nic) == made(rail);
        topology.with(Role::Other).find(|nic| same(nic) && is_down(nic) && near(nic))
    };
    let seconds: Option<Vec<&str>> =
        topology.with(Role::Rail).map(|rail| second(rail).map(|nic| nic.name.as_str())).collect();
    let seconds = seconds.filter(|all| !all.is_empty())?;
    Some(
        finding("P102")
            .outcome(Status::Warn, &PLANE)
            .saw(
                format!("the other port of every rail's card is not active: {}", seconds.join(", ")),
                "active, where the network has two planes",
            )
            .from_fact(&facts.rdma)
            .remedy(
                "Look whether these ports have cables: where the network has two planes, one of them is down as a whole (a switch, or its subnet manager).",
                &[PHYSICAL],
            ),
    )
}

/// Whose rail it is.
fn gpus(nic: &Nic) -> String {
    if nic.gpus.is_empty() {
        return String::new();
    }
    let list: Vec<String> = nic.gpus.iter().map(|gpu| format!("GPU {gpu}")).collect();
    format!("; the rail of {}", list.join(", "))
}

fn slow(topology: &Topology) -> Vec<Finding> {
    let best = topology.with(Role::Rail).filter_map(|nic| nic.gbits).fold(0.0, f64::max);
    topology
        .with(Role::Rail)
        .filter(|nic| nic.gbits.is_some_and(|gbits| gbits < best))
        .map(|nic| {
            let rate = nic.gbits.unwrap_or_default();
            finding("P113")
                .about(nic.name.clone())
                .outcome(Status::Fail, &SHORT)
                .saw(format!("{rate} Gb/s{}", gpus(nic)), format!("{best} Gb/s"))
                .at(
                    format!("/sys/class/infiniband/{}/ports/{}/rate", nic.name, nic.port),
                    crate::facts::Scope::HostKernel,
                )
                .remedy("Look at the cable and the switch port, then bring the link up again.", &["ibstatus"])
        })
        .collect()
}

/// What NVSHMEM does where nobody pins its ranks.
fn unpinned(topology: &Topology, facts: &Facts, target: Target) -> Option<Finding> {
    if target != Target::DeepepIbgda
        || topology.gpus.len() < 2
        || topology.with(Role::Rail).any(|nic| nic.efa)
    {
        return None;
    }
    let pinned = facts.environment.variables.value().and_then(lint::pinned);
    let finding = finding("P114");
    let tied: Vec<String> = topology
        .gpus
        .iter()
        .filter(|gpu| gpu.rails.iter().any(|pin| pin.shared || pin.tied > topology.rails_per_gpu.max(1)))
        .map(|gpu| gpu.index.to_string())
        .collect();
    if tied.is_empty() || pinned.is_some() {
        let own = || "every GPU has a nearest rail of its own".to_owned();
        let seen = pinned.map_or_else(own, |name| format!("{name} is set"));
        return Some(finding.saw(seen, "a rail for each rank"));
    }
    Some(
        finding
            .outcome(Status::Warn, &SAME_NIC)
            .saw(format!("GPUs {} have no nearest rail of their own", tied.join(", ")), "a pin for each rank")
            .from_fact(&facts.pci.devices)
            .remedy(
                "Pin each rank (checked in the environment of a rank that is pinned, this passes).",
                &[&format!("eval \"$({})\"   # in each rank, before deep_ep.Buffer()", topology.command())],
            ),
    )
}

fn planes(topology: &Topology, facts: &Facts, target: Target) -> Option<Finding> {
    let several = topology.rails_per_gpu > 1 && !topology.with(Role::Rail).any(|nic| nic.efa);
    (several && target == Target::DeepepIbgda).then(|| {
        finding("P115")
            .outcome(Status::Warn, &PLANES)
            .saw(format!("{} NICs for each GPU", topology.rails_per_gpu), "what V1 uses: 1")
            .from_fact(&facts.rdma)
            .remedy("Expect the bandwidth of one NIC, or use a DeepEP that spreads its queue pairs (pull request 650).", &[])
    })
}

fn farther(topology: &Topology) -> Vec<Finding> {
    let worst = |gpu: &super::Gpu| gpu.rails.iter().map(|pin| pin.distance).max();
    let best = topology.gpus.iter().filter_map(worst).min();
    let Some(best) = best.filter(|best| *best <= Distance::Phb) else { return Vec::new() };
    topology
        .gpus
        .iter()
        .filter(|gpu| worst(gpu).is_some_and(|distance| distance >= Distance::Node && distance > best))
        .map(|gpu| {
            let names: Vec<&str> = gpu.rails.iter().map(|pin| pin.device.as_str()).collect();
            finding("P103")
                .about(format!("GPU {}", gpu.index))
                .outcome(Status::Warn, &FARTHER)
                .saw(format!("{} to {}", worst(gpu).unwrap_or_default(), names.join(", ")), format!("{best}, as other GPUs have"))
                .at(format!("/sys/bus/pci/devices/{}", gpu.pci), crate::facts::Scope::HostKernel)
                .remedy("Compare with a node of the same kind (`expertrail compare`); a NIC of this GPU's NUMA node may be missing or down.", &[])
        })
        .collect()
}

fn spread(topology: &Topology, facts: &Facts) -> Finding {
    let finding = finding("P104").from_fact(&facts.pci.devices);
    let mut nodes: Vec<Option<u32>> = topology.gpus.iter().map(|gpu| gpu.numa).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.contains(&None) {
        return finding.not_applicable("the GPUs' NUMA nodes are not known");
    }
    let places = |nic: &&Nic| nic.role != Role::Other;
    let counts: Vec<(u32, usize, usize)> = nodes
        .into_iter()
        .flatten()
        .map(|node| {
            let gpus = topology.gpus.iter().filter(|gpu| gpu.numa == Some(node)).count();
            (node, gpus, topology.devices.iter().filter(places).filter(|nic| nic.numa == Some(node)).count())
        })
        .collect();
    let text: Vec<String> = counts
        .iter()
        .map(|&(node, gpus, rails)| format!("NUMA {node}: {}, {}", many(gpus, "GPU"), many(rails, "rail")))
        .collect();
    let finding = finding.saw(text.join("; "), "the same ratio on every NUMA node");
    let (_, gpus, rails) = counts.first().copied().unwrap_or_default();
    if counts.iter().all(|(_, g, r)| g * rails == r * gpus) {
        return finding;
    }
    finding.outcome(Status::Warn, &LOPSIDED).remedy(
        "Check that no NIC is missing or in another slot: compare with a node of the same kind.",
        &["expertrail compare A.json B.json"],
    )
}

fn against(topology: &Topology, facts: &Facts, profile: Option<&Profile>) -> Option<Finding> {
    let profile = profile.filter(|profile| profile.id != "generic")?;
    let finding =
        finding("P105").about(profile.id.clone()).from_fact(&facts.pci.devices).from_fact(&facts.rdma);
    let mut differences = Vec::new();
    if topology.gpus.len() != profile.gpus as usize {
        differences.push(format!(
            "GPUs: the profile says {}, there are {}",
            profile.gpus,
            topology.gpus.len()
        ));
    }
    let mut places: Vec<&str> =
        topology.devices.iter().filter(|nic| nic.role != Role::Other).map(|nic| nic.name.as_str()).collect();
    let wanted: Vec<&str> = profile.rails.iter().map(String::as_str).collect();
    if topology.inconclusive.is_none() && !wanted.is_empty() {
        let order: Vec<&str> =
            topology.gpus.iter().flat_map(|gpu| gpu.rails.iter().map(|pin| pin.device.as_str())).collect();
        places.sort_unstable();
        let mut sorted = wanted.clone();
        sorted.sort_unstable();
        if places != sorted {
            differences.push(format!(
                "rails: the profile says {}, the hardware says {}",
                wanted.join(","),
                order.join(",")
            ));
        } else if order.len() == wanted.len() && order != wanted {
            differences.push(format!(
                "order of GPUs: the profile says {}, the hardware says {}",
                wanted.join(","),
                order.join(",")
            ));
        }
    }
    if let Some(count) = profile.efa_devices {
        let found = topology.devices.iter().filter(|nic| nic.efa).count();
        if found != count as usize {
            differences.push(format!("EFA devices: the profile says {count}, there are {found}"));
        }
    }
    if differences.is_empty() {
        return Some(finding.saw("devices and counts as the profile says", ""));
    }
    Some(
        finding
            .outcome(Status::Warn, &PROFILE)
            .saw(differences.join("; "), format!("what {} says", profile.sources.join(", ")))
            .remedy(
                "Use the mapping of this node's hardware in launch files, not the document's device names.",
                &[&topology.command()],
            ),
    )
}

fn links(topology: &Topology, facts: &Facts) -> Vec<Finding> {
    let gpus = topology.gpus.iter().map(|gpu| (format!("GPU {}", gpu.index), gpu.pci.as_str(), false));
    let nics = topology.devices.iter().filter(|nic| nic.role != Role::Other);
    let nics = nics.filter_map(|nic| Some((nic.name.clone(), nic.pci.as_deref()?, true)));
    gpus.chain(nics).filter_map(|(name, address, nic)| reduced(&name, facts.pci.at(address)?, nic)).collect()
}

/// Lanes count for both. Of the speed only a NIC's counts: a GPU lowers its own while it idles.
fn reduced(name: &str, device: &PciDevice, nic: bool) -> Option<Finding> {
    let link = &device.link;
    // 0 and 255 are what the kernel prints where it does not know.
    let known = |width: Option<u32>| width.filter(|width| (1..=32).contains(width));
    let narrow = known(link.width).zip(known(link.max_width)).is_some_and(|(now, most)| now < most);
    let speed = |text: &Option<String>| Link::gigatransfers(text.as_deref());
    let slow = nic && speed(&link.speed).zip(speed(&link.max_speed)).is_some_and(|(now, most)| now < most);
    if !narrow && !slow {
        return None;
    }
    let show = |speed: &Option<String>, width: Option<u32>| {
        format!(
            "{} x{}",
            speed.as_deref().unwrap_or("unknown speed"),
            width.map_or("?".to_owned(), |w| w.to_string())
        )
    };
    Some(
        finding("P106")
            .about(name)
            .outcome(Status::Warn, &SLOW_LINK)
            .saw(show(&link.speed, link.width), show(&link.max_speed, link.max_width))
            .at(
                format!("/sys/bus/pci/devices/{}/current_link_width", device.address),
                crate::facts::Scope::HostKernel,
            )
            .remedy(
                "Reset or reseat the device; in a virtual machine ask the provider to look at the host.",
                &["sudo lspci -vv | grep -E '^[0-9a-f]|LnkSta:'"],
            ),
    )
}

fn ibgda(topology: &Topology, facts: &Facts, target: Target) -> Option<Finding> {
    if target != Target::DeepepIbgda || topology.rails().is_empty() {
        return None;
    }
    let finding = finding("P112").from_fact(&facts.rdma);
    let other: Vec<String> = facts
        .rdma
        .value()?
        .iter()
        .filter(|device| topology.device(&device.name).is_some_and(|nic| nic.role == Role::Rail))
        .filter_map(|device| Some((device.name.as_str(), device.driver.as_deref()?)))
        .filter(|(_, driver)| *driver != "mlx5_core")
        .map(|(name, driver)| format!("{name} ({driver})"))
        .collect();
    if other.is_empty() {
        return Some(finding.saw("every rail's driver is mlx5_core, or not told", "mlx5_core"));
    }
    let efa = topology.with(Role::Rail).any(|nic| nic.efa);
    let remedy = if efa {
        "On EFA use NVSHMEM's libfabric transport with DeepEP patched for it, and check with --for deepep-efa."
    } else {
        "Use NCCL, or another library that works over these NICs."
    };
    Some(finding.outcome(Status::Fail, &NOT_MLX5).saw(other.join(", "), "mlx5_core").remedy(remedy, &[]))
}
