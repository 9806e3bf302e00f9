//! GPU to NIC mapping: which RDMA devices are rails, and which serves which GPU.

mod assign;
mod classify;
mod distance;
mod emit;
mod findings;
mod lint;
mod text;

use serde::{Deserialize, Serialize};

use crate::facts::{Facts, PciDevice};
use assign::least_cost;
use classify::{Candidate, Decision, Fabric, decide};

pub use distance::{Distance, between};
pub use emit::{env, nccl_xml};
pub use findings::{CAUSES, findings};
pub use text::text;

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.topology/1";

/// More GPUs than any node has; a hostile document may claim any number, and the assignment takes the cube of it.
const GPUS: usize = 64;

/// GPUs, rails and who serves whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Topology {
    /// [`SCHEMA`].
    pub schema: String,
    /// Node.
    pub node: Option<String>,
    /// GPUs in PCI order: position is the local rank (`CUDA_DEVICE_ORDER=PCI_BUS_ID`; equal GPUs have that order anyway).
    pub gpus: Vec<Gpu>,
    /// Every RDMA device, with its role and the reason.
    pub devices: Vec<Nic>,
    /// Why it cannot be told which devices are rails, or why there is nothing to map; none where the mapping stands.
    pub inconclusive: Option<String>,
    /// Rails each GPU has: 1 mostly, 2 or 4 of EFA; 0 where GPUs share.
    pub rails_per_gpu: usize,
}

/// A GPU and its rails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// Local rank.
    pub index: usize,
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
    let mut gpus = facts.pci.gpus();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    gpus.truncate(GPUS);
    let mut decision = decide(facts, &gpus);
    if let Some(names) = rails {
        name_rails(&mut decision, facts, names);
    }
    let mut topology = Topology {
        schema: SCHEMA.to_owned(),
        node: facts.node.value().cloned(),
        gpus: gpus
            .iter()
            .enumerate()
            .map(|(index, gpu)| Gpu { index, pci: gpu.address.clone(), numa: gpu.numa, rails: Vec::new() })
            .collect(),
        devices: nics(facts, &decision),
        inconclusive: decision.unclear.clone().or_else(|| nothing(facts, &gpus, &decision)),
        rails_per_gpu: 0,
    };
    if topology.inconclusive.is_none() {
        pair(&mut topology, &gpus, &decision);
    }
    topology
}

/// Why there is nothing to map.
fn nothing(facts: &Facts, gpus: &[&PciDevice], decision: &Decision<'_>) -> Option<String> {
    if gpus.is_empty() {
        let source = &facts.pci.devices.source;
        return Some(match facts.pci.devices.value() {
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
        Some(all) => format!("none of the {} RDMA devices is an active rail", all.len()),
    })
}

/// Makes the named devices the rails.
fn name_rails<'a>(decision: &mut Decision<'a>, facts: &'a Facts, names: &[String]) {
    let found = std::mem::take(decision);
    let mut all: Vec<(Candidate<'a>, String)> = found.rails.into_iter().chain(found.failed).collect();
    let mut gpus = facts.pci.gpus();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    for (name, reason) in found.others {
        match classify::any(facts, &name, &gpus) {
            Some(candidate) => all.push((candidate, reason)),
            None => decision.others.push((name, reason)),
        }
    }
    all.sort_by(|(a, _), (b, _)| a.pci.address.cmp(&b.pci.address));
    for (candidate, reason) in all {
        if names.contains(&candidate.device.name) {
            decision.rails.push((candidate, "named by --hca".to_owned()));
        } else {
            decision.others.push((candidate.device.name.clone(), format!("not named by --hca ({reason})")));
        }
    }
    let missing: Vec<&str> = names
        .iter()
        .filter(|name| !decision.rails.iter().any(|(rail, _)| rail.device.name == **name))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        decision.unclear =
            Some(format!("no RDMA device with a PCI function has the name {} (--hca)", missing.join(", ")));
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
            gbits: port.and_then(crate::facts::Port::gbits),
            efa: device.is_some_and(|device| device.driver.as_deref() == Some("efa")),
            infiniband: port.is_some_and(|port| port.link_layer.as_deref() == Some("InfiniBand")),
        });
    }
    nics
}

/// Gives each GPU its rails.
fn pair(topology: &mut Topology, gpus: &[&PciDevice], decision: &Decision<'_>) {
    let rails: Vec<&Candidate<'_>> = decision.rails.iter().map(|(rail, _)| rail).collect();
    let (g, n) = (gpus.len(), rails.len());
    // A rail that is down keeps its GPU's place: it is assigned too, and taken away afterwards.
    let failed: Vec<&Candidate<'_>> = decision.failed.iter().map(|(rail, _)| rail).collect();
    let places: Vec<&Candidate<'_>> = rails.iter().chain(&failed).copied().collect();
    let per_gpu = if places.len() >= g { places.len() / g } else { 0 };
    let order = |candidate: &Candidate<'_>| {
        let before = |other: &&&Candidate<'_>| other.pci.address < candidate.pci.address;
        places.iter().filter(before).count() as i64
    };
    let positions: Vec<i64> = places.iter().map(|place| order(place)).collect();
    // Distance first, then the NUMA node, then the order of the bus: the sum of squares is least where the orders agree.
    let cost = |gpu: usize, place: usize, at: i64| {
        let rail = places[place];
        let numa = i64::from(gpus[gpu].numa != rail.pci.numa);
        let step = at - positions[place];
        (rail.distances[gpu].weight() * 2 + numa) * 1_000_000_000 + step * step
    };
    topology.rails_per_gpu = per_gpu;
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    if per_gpu > 0 {
        let columns =
            least_cost(g * per_gpu, places.len(), |row, place| cost(row / per_gpu, place, row as i64));
        chosen.extend(columns.into_iter().enumerate().map(|(row, place)| (row / per_gpu, place)));
    } else {
        // Fewer rails than GPUs: each rail serves as few as can be.
        let share = g.div_ceil(places.len().max(1));
        let columns = least_cost(g, places.len() * share, |gpu, column| {
            cost(gpu, column / share, gpu as i64 / share as i64)
        });
        chosen.extend(columns.into_iter().enumerate().map(|(gpu, column)| (gpu, column / share)));
    }
    for &(gpu, place) in &chosen {
        if place >= n {
            continue;
        }
        let rail = places[place];
        let class = (rail.distances[gpu].weight(), gpus[gpu].numa == rail.pci.numa);
        let same = |other: &&&Candidate<'_>| {
            (other.distances[gpu].weight(), gpus[gpu].numa == other.pci.numa) == class
        };
        topology.gpus[gpu].rails.push(Pin {
            device: rail.device.name.clone(),
            port: rail.port.number,
            distance: rail.distances[gpu],
            tied: places.iter().filter(same).count(),
            shared: chosen.iter().filter(|&&(_, other)| other == place).count() > 1,
        });
    }
}
