//! GPU to NIC mapping: which RDMA devices are rails, and which serves which GPU.

mod assign;
mod classify;
mod distance;
mod emit;
mod findings;
mod lint;
mod narrow;
mod own;
mod text;
mod visible;

use serde::{Deserialize, Serialize};

use crate::facts::{Facts, PciDevice};
use assign::least_cost;
use classify::{Candidate, Decision, Fabric, decide};

pub use distance::{Distance, between};
pub use emit::{env, nccl_xml, refusal, unpinned};
pub use findings::{CAUSES, CHECKS, findings};
pub use text::text;

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.topology/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.topology.1.schema.json");

/// More GPUs than any node has; a hostile document may claim any number, and the assignment takes the cube of it.
const GPUS: usize = 64;

/// As for RDMA devices: the largest nodes have 32 EFA functions, and hosts with virtual functions some hundreds.
const DEVICES: usize = 512;

/// As for PCI functions.
const FUNCTIONS: usize = 100_000;

/// GPUs, rails and who serves whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Topology {
    /// [`SCHEMA`].
    pub schema: String,
    /// Node.
    pub node: Option<String>,
    /// GPUs in PCI order (`CUDA_DEVICE_ORDER=PCI_BUS_ID`; equal GPUs have that order anyway).
    pub gpus: Vec<Gpu>,
    /// Every RDMA device, with its role and the reason.
    pub devices: Vec<Nic>,
    /// Why it cannot be told which devices are rails, or why there is nothing to map; none where the mapping stands.
    pub inconclusive: Option<String>,
    /// Rails each GPU has: 1 mostly, 2 or 4 of EFA; 0 where GPUs share.
    pub rails_per_gpu: usize,
    /// What hides GPUs from this process or reorders them (`CUDA_VISIBLE_DEVICES`, NVML's list); none where it sees all of them.
    pub limited_by: Option<String>,
    /// Why local ranks have no numbers: none is pinned then.
    pub unranked: Option<String>,
    /// The rails that the caller named; empty where they were found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
}

/// A GPU and its rails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// Position on the bus.
    pub index: usize,
    /// Local rank; none where this process does not see the GPU.
    pub rank: Option<usize>,
    /// PCI address.
    pub pci: String,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Its rails.
    pub rails: Vec<Pin>,
}

/// A rail of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pin {
    /// RDMA device.
    pub device: String,
    /// Its port.
    pub port: u32,
    /// How far it is.
    pub distance: Distance,
    /// Rails that are equally near; above the number of rails this GPU has, the order of the bus decided.
    pub tied: usize,
    /// Another GPU has it too, for want of rails.
    pub shared: bool,
}

/// What a device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It carries a GPU's traffic between nodes.
    Rail,
    /// It looks like a rail and its port is not active.
    FailedRail,
    /// Frontend, storage, management or virtual device.
    #[default]
    #[serde(other)]
    Other,
}

/// An RDMA device and its role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// PCI address.
    pub pci: Option<String>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Port that was looked at.
    pub port: u32,
    /// What it is.
    pub role: Role,
    /// Why.
    pub reason: String,
    /// Gb/s.
    pub gbits: Option<f64>,
    /// It is an EFA function.
    pub efa: bool,
    /// It is InfiniBand.
    pub infiniband: bool,
    /// GPUs (positions on the bus) that it serves, or would if it were up.
    pub gpus: Vec<usize>,
}

impl Topology {
    /// Devices of one role.
    pub fn with(&self, role: Role) -> impl Iterator<Item = &Nic> {
        self.devices.iter().filter(move |nic| nic.role == role)
    }

    /// Names of the rails in order of their bus.
    pub fn rails(&self) -> Vec<&str> {
        self.with(Role::Rail).map(|nic| nic.name.as_str()).collect()
    }

    /// The command that prints the pins of this mapping.
    pub fn command(&self) -> String {
        if self.named.is_empty() {
            return "expertrail topo --emit env".to_owned();
        }
        format!("expertrail topo --hca {} --emit env", self.named.join(","))
    }

    /// Whether the rails are known, and none is up.
    pub fn all_down(&self) -> bool {
        // GPUs are given to devices only where it is known which are rails.
        self.inconclusive.is_some() && self.with(Role::FailedRail).any(|nic| !nic.gpus.is_empty())
    }

    /// The device `name`.
    pub fn device(&self, name: &str) -> Option<&Nic> {
        self.devices.iter().find(|nic| nic.name == name)
    }
}

/// The mapping, with rails as found.
pub fn map(facts: &Facts) -> Topology {
    map_with(facts, None)
}

/// The mapping. `rails` names them, where the caller knows better; a name that is no RDMA device with a PCI function makes the
/// mapping inconclusive.
pub fn map_with(facts: &Facts, rails: Option<&[String]>) -> Topology {
    if let Some(reason) = too_many(facts) {
        return Topology { schema: SCHEMA.to_owned(), inconclusive: Some(reason), ..Topology::default() };
    }
    let gpus = gpus(facts);
    let mut decision = decide(facts, &gpus);
    if let Some(names) = rails {
        name_rails(&mut decision, facts, names);
    }
    let ranks = visible::visible(facts, &gpus);
    let (limited_by, unranked) = match &ranks {
        Ok(visible) => (visible.by.clone(), None),
        Err(reason) => (None, Some(reason.clone())),
    };
    let rank = |gpu: usize| ranks.as_ref().ok()?.gpus.iter().position(|&visible| visible == gpu);
    let mut topology = Topology {
        schema: SCHEMA.to_owned(),
        node: facts.node.value().cloned(),
        gpus: gpus
            .iter()
            .enumerate()
            .map(|(index, gpu)| Gpu {
                index,
                rank: rank(index),
                pci: gpu.address.clone(),
                numa: gpu.numa,
                rails: Vec::new(),
            })
            .collect(),
        devices: nics(facts, &decision),
        inconclusive: decision.unclear.clone().or_else(|| nothing(facts, &gpus, &decision)),
        rails_per_gpu: 0,
        limited_by,
        unranked,
        // Names go into commands.
        named: rails.unwrap_or_default().iter().filter(|name| classify::plain(name)).cloned().collect(),
    };
    // Where all rails are down it is known whose they are.
    if topology.inconclusive.is_none() || decision.unclear.is_none() && decision.rails.is_empty() {
        pair(&mut topology, &gpus, &decision);
    }
    topology
}

/// The GPUs in the order of the bus.
fn gpus(facts: &Facts) -> Vec<&PciDevice> {
    let mut gpus = facts.pci.gpus();
    gpus.retain(|gpu| classify::plain(&gpu.address));
    gpus.sort_by(|a, b| classify::bus_order(&a.address).cmp(&classify::bus_order(&b.address)));
    gpus.truncate(GPUS);
    gpus
}

/// No node has that many; the time that is taken grows faster than the numbers.
fn too_many(facts: &Facts) -> Option<String> {
    let devices = facts.rdma.value().map_or(0, Vec::len);
    let functions = facts.pci.devices.value().map_or(0, Vec::len);
    (devices > DEVICES || functions > FUNCTIONS)
        .then(|| format!("{devices} RDMA devices and {functions} PCI functions: no node has that many"))
}

/// Why there is nothing to map.
fn nothing(facts: &Facts, gpus: &[&PciDevice], decision: &Decision<'_>) -> Option<String> {
    if gpus.is_empty() {
        let source = &facts.pci.devices.source;
        return Some(match facts.pci.devices.value() {
            Some(all) if all.iter().any(PciDevice::is_gpu) => {
                format!("no NVIDIA GPU under {source} is bound to the driver nvidia")
            }
            Some(_) => format!("no NVIDIA GPU under {source}"),
            None => format!("PCI devices could not be read ({source})"),
        });
    }
    if !decision.rails.is_empty() {
        return None;
    }
    Some(match facts.rdma.value() {
        None if facts.rdma.is_absent() => "no RDMA device: /sys/class/infiniband is not there".to_owned(),
        None => "RDMA devices could not be read".to_owned(),
        Some(all) if all.is_empty() => "no RDMA device in /sys/class/infiniband".to_owned(),
        Some(_) if !decision.failed.is_empty() => match decision.failed.len() {
            1 => "the one rail is down".to_owned(),
            count => format!("all {count} rails are down"),
        },
        Some(all) => format!("{}, and no active rail", text::many(all.len(), "RDMA device")),
    })
}

/// Makes the named devices the rails.
fn name_rails<'a>(decision: &mut Decision<'a>, facts: &'a Facts, names: &[String]) {
    let found = std::mem::take(decision);
    let mut all: Vec<(Candidate<'a>, String)> = found.rails.into_iter().chain(found.failed).collect();
    let gpus = gpus(facts);
    for (name, reason) in found.others {
        match classify::any(facts, &name, &gpus) {
            Some(candidate) => all.push((candidate, reason)),
            None => decision.others.push((name, reason)),
        }
    }
    all.sort_by(|(a, _), (b, _)| {
        classify::bus_order(&a.pci.address).cmp(&classify::bus_order(&b.pci.address))
    });
    for (candidate, reason) in all {
        if names.contains(&candidate.device.name) {
            let state = candidate.port.state.as_deref().unwrap_or("no state");
            let port = candidate.port.number;
            if candidate.active {
                decision.rails.push((candidate, "named by --hca".to_owned()));
            } else {
                let reason = format!("named by --hca, but port {port} is not active ({state})");
                decision.failed.push((candidate, reason));
            }
        } else {
            decision.others.push((candidate.device.name.clone(), format!("not named by --hca ({reason})")));
        }
    }
    let taken = |name: &String| {
        decision.rails.iter().chain(&decision.failed).any(|(rail, _)| rail.device.name == *name)
    };
    let missing: Vec<String> = names
        .iter()
        .filter(|name| !taken(name))
        .map(|name| match decision.others.iter().find(|(other, _)| other == name) {
            Some((_, reason)) => format!("{name} cannot be a rail: {reason}"),
            None => format!("no RDMA device has the name {name}"),
        })
        .collect();
    if !missing.is_empty() {
        decision.unclear = Some(format!("{} (--hca)", missing.join("; ")));
    }
}

fn nics(facts: &Facts, decision: &Decision<'_>) -> Vec<Nic> {
    let known = |candidate: &Candidate<'_>, role, reason: &str| Nic {
        name: candidate.device.name.clone(),
        pci: Some(candidate.pci.address.clone()),
        numa: candidate.pci.numa,
        port: candidate.port.number,
        role,
        reason: reason.to_owned(),
        gbits: (candidate.gbits > 0.0).then_some(candidate.gbits),
        efa: candidate.fabric == Fabric::Efa,
        infiniband: candidate.fabric == Fabric::InfiniBand,
        gpus: Vec::new(),
    };
    let mut nics: Vec<Nic> =
        decision.rails.iter().map(|(rail, reason)| known(rail, Role::Rail, reason)).collect();
    nics.extend(decision.failed.iter().map(|(rail, reason)| known(rail, Role::FailedRail, reason)));
    for (name, reason) in &decision.others {
        let device = facts.rdma.value().into_iter().flatten().find(|device| device.name == *name);
        let pci = device.and_then(|device| device.pci.clone());
        let port = device.and_then(|device| device.ports.first());
        nics.push(Nic {
            name: name.clone(),
            numa: pci.as_deref().and_then(|address| facts.pci.at(address)?.numa),
            pci,
            port: port.map_or(1, |port| port.number),
            role: Role::Other,
            reason: reason.clone(),
            gbits: port.and_then(classify::gbits),
            efa: device.is_some_and(|device| device.driver.as_deref() == Some("efa")),
            infiniband: port.is_some_and(|port| port.link_layer.as_deref() == Some("InfiniBand")),
            gpus: Vec::new(),
        });
    }
    nics
}

/// Gives each GPU its rails.
fn pair(topology: &mut Topology, gpus: &[&PciDevice], decision: &Decision<'_>) {
    // A rail that is down keeps its GPU's place: it is assigned too, and taken away afterwards.
    let places: Vec<&Candidate<'_>> =
        decision.rails.iter().chain(&decision.failed).map(|(rail, _)| rail).collect();
    let (count, up) = (gpus.len(), decision.rails.len());
    topology.rails_per_gpu = places.len().checked_div(count).unwrap_or(0);
    let chosen = assignment(gpus, &places);
    for &(gpu, place) in &chosen {
        let (Some(rail), Some(device)) = (places.get(place), gpus.get(gpu)) else { continue };
        let class = |rail: &Candidate<'_>| {
            (rail.distances.get(gpu).map_or(i64::MAX, |d| d.weight()), device.numa == rail.pci.numa)
        };
        if let Some(nic) = topology.devices.iter_mut().find(|nic| nic.name == rail.device.name) {
            nic.gpus.push(gpu);
        }
        if place >= up {
            continue;
        }
        let pin = Pin {
            device: rail.device.name.clone(),
            port: rail.port.number,
            distance: rail.distances.get(gpu).copied().unwrap_or_default(),
            tied: places.iter().filter(|other| class(other) == class(rail)).count(),
            shared: chosen.iter().filter(|&&(_, other)| other == place).count() > 1,
        };
        if let Some(gpu) = topology.gpus.get_mut(gpu) {
            gpu.rails.push(pin);
        }
    }
}

/// Which place each GPU has, several where there are several: nearest first, then of its NUMA node, then in the order of the bus.
fn assignment(gpus: &[&PciDevice], places: &[&Candidate<'_>]) -> Vec<(usize, usize)> {
    let count = gpus.len();
    if count == 0 || places.is_empty() {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&place| places.get(place).map(|place| classify::bus_order(&place.pci.address)));
    let mut positions = vec![0_i64; places.len()];
    for (position, place) in (0_i64..).zip(order) {
        if let Some(slot) = positions.get_mut(place) {
            *slot = position;
        }
    }
    // The sum of squares is least where the orders of the bus agree; it is below a step of the distance.
    let cost = |gpu: usize, place: usize, at: usize| {
        let (Some(device), Some(rail)) = (gpus.get(gpu), places.get(place)) else { return 0 };
        let distance = rail.distances.get(gpu).copied().unwrap_or_default();
        let numa = i64::from(device.numa != rail.pci.numa);
        let step = at as i64 - positions.get(place).copied().unwrap_or_default();
        (distance.weight() * 2 + numa) * 1_000_000_000 + step * step
    };
    let per_gpu = places.len() / count;
    if per_gpu > 0 {
        let columns = least_cost(count * per_gpu, places.len(), |row, place| cost(row / per_gpu, place, row));
        return columns.into_iter().enumerate().map(|(row, place)| (row / per_gpu, place)).collect();
    }
    // Fewer rails than GPUs: each rail has as many columns as GPUs may share it. A second column costs more than any distance,
    // so that no rail stays free.
    let share = count.div_ceil(places.len());
    let columns = least_cost(count, places.len() * share, |gpu, column| {
        cost(gpu, column / share, gpu / share) + (column % share) as i64 * 10_000_000_000_000
    });
    columns.into_iter().enumerate().map(|(gpu, column)| (gpu, column / share)).collect()
}
