//! Which RDMA devices are rails: by state, link layer, rate, distance, partition and kind of function, never by name.

use super::distance::{Distance, between};
use super::narrow::{fabric_of, fastest, narrow, owned};
use crate::facts::{Facts, PciDevice, Port, RdmaDevice};

/// A link slower than this is no rail of a GPU node: the slowest in use are EFA's functions of 100 Gb/s.
pub(super) const RAIL_GBITS: f64 = 90.0;

/// No port is faster: eight lanes of the fastest generation that has a name (GDR, 400 Gb/s each) and twice that again.
const MOST_GBITS: f64 = 6400.0;

/// What carries a device's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fabric {
    InfiniBand,
    Efa,
    Ethernet,
}

/// A device with what is decided on.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) device: &'a RdmaDevice,
    pub(super) pci: &'a PciDevice,
    pub(super) port: &'a Port,
    pub(super) fabric: Fabric,
    pub(super) gbits: f64,
    pub(super) active: bool,
    /// Distance to each GPU, in the GPUs' order.
    pub(super) distances: Vec<Distance>,
}

impl Candidate<'_> {
    pub(super) fn nearest(&self) -> Distance {
        self.distances.iter().copied().min().unwrap_or_default()
    }

    /// Partition and subnet: devices of one fabric have the same.
    pub(super) fn partition(&self) -> String {
        let subnet = self.port.gids.first().map_or("", |gid| gid.gid.get(..19).unwrap_or(&gid.gid));
        // The top bit of a partition key is the membership only.
        let mut keys: Vec<u32> = self
            .port
            .pkeys
            .iter()
            .filter_map(|key| u32::from_str_radix(key.trim_start_matches("0x"), 16).ok())
            .map(|key| key & 0x7fff)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        if self.fabric == Fabric::Ethernet { format!("{keys:x?}") } else { format!("{keys:x?} {subnet}") }
    }
}

/// The decision: rails, rails that are down, and the rest, each with its reason; or why none can be made.
#[derive(Debug, Default)]
pub(super) struct Decision<'a> {
    pub(super) rails: Vec<(Candidate<'a>, String)>,
    pub(super) failed: Vec<(Candidate<'a>, String)>,
    pub(super) others: Vec<(String, String)>,
    /// Why it cannot be told which devices are rails.
    pub(super) unclear: Option<String>,
}

/// Decides for every RDMA device of `facts`.
pub(super) fn decide<'a>(facts: &'a Facts, gpus: &[&PciDevice]) -> Decision<'a> {
    let mut decision = Decision::default();
    let mut candidates = Vec::new();
    for device in facts.rdma.value().into_iter().flatten() {
        match candidate(facts, device, gpus) {
            Ok(candidate) => candidates.push(candidate),
            Err(reason) => decision.others.push((device.name.clone(), reason)),
        }
    }
    candidates.sort_by(|a, b| bus_order(&a.pci.address).cmp(&bus_order(&b.pci.address)));
    let (active, down): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|candidate| candidate.active);
    let (active, down) = fabric_of(active, down, gpus.len(), &mut decision);
    if let Some((active, down)) = owned(active, down, gpus.len(), &mut decision) {
        let (active, slower) = fastest(active, gpus.len(), &mut decision);
        narrow(active, slower, down, gpus.len(), &mut decision);
    }
    decision
}

fn candidate<'a>(
    facts: &'a Facts,
    device: &'a RdmaDevice,
    gpus: &[&PciDevice],
) -> Result<Candidate<'a>, String> {
    if !plain(&device.name) {
        return Err("its name has characters that no device has: it goes into no list".to_owned());
    }
    let address = device.pci.as_deref().ok_or("a software device: it has no PCI function")?;
    let pci = facts
        .pci
        .at(address)
        .ok_or_else(|| format!("its PCI function {address} is not among the network functions"))?;
    let rate = |port: &&Port| gbits(port).unwrap_or(0.0);
    let best = |active: bool| {
        let ports = device.ports.iter().filter(move |port| (port.active() == Some(true)) == active);
        ports.max_by(|a, b| rate(a).total_cmp(&rate(b)).then(b.number.cmp(&a.number)))
    };
    let port = best(true).or_else(|| best(false)).ok_or("it has no port")?;
    let layer = port.link_layer.as_deref().unwrap_or_default();
    let fabric = if device.driver.as_deref() == Some("efa") || pci.vendor.as_deref() == Some("0x1d0f") {
        Fabric::Efa
    } else if layer.eq_ignore_ascii_case("InfiniBand") {
        Fabric::InfiniBand
    } else if layer.eq_ignore_ascii_case("Ethernet") {
        Fabric::Ethernet
    } else {
        return Err(format!("its link layer `{layer}` is none that is known, and it is no EFA"));
    };
    Ok(Candidate {
        device,
        pci,
        port,
        fabric,
        gbits: rate(&port),
        active: port.active() == Some(true),
        distances: gpus.iter().map(|gpu| between(gpu, pci)).collect(),
    })
}

pub(super) fn near_gpus(rail: &Candidate<'_>) -> String {
    let nearest = rail.nearest();
    let gpus: Vec<usize> = (0..rail.distances.len()).filter(|&gpu| rail.distances[gpu] == nearest).collect();
    match gpus.as_slice() {
        [] => "no GPU".to_owned(),
        [one] => format!("GPU {one}"),
        [first, second] => format!("GPUs {first} and {second}"),
        [first, .., last] if last - first + 1 == gpus.len() => format!("GPUs {first} to {last}"),
        _ => format!("GPUs {}", gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

pub(super) fn name(fabric: Fabric) -> &'static str {
    match fabric {
        Fabric::InfiniBand => "InfiniBand",
        Fabric::Efa => "EFA",
        Fabric::Ethernet => "Ethernet",
    }
}

/// Gb/s of a port, where it is a rate that a port can have.
pub(super) fn gbits(port: &Port) -> Option<f64> {
    port.gbits().filter(|gbits| *gbits <= MOST_GBITS)
}

pub(super) fn rate(gbits: f64) -> String {
    if gbits == 0.0 { "of unknown rate".to_owned() } else { format!("{gbits} Gb/s") }
}

/// The device `name` as a candidate, whatever it is; none where it has no PCI function or port.
pub(super) fn any<'a>(facts: &'a Facts, name: &str, gpus: &[&PciDevice]) -> Option<Candidate<'a>> {
    let device = facts.rdma.value()?.iter().find(|device| device.name == name)?;
    candidate(facts, device, gpus).ok()
}

/// Names and addresses go into shell lines: letters, digits, `_`, `-`, `.` and `:` only.
pub(super) fn plain(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'))
}

/// Order of the bus: domains have four digits, or five, and then come later.
pub(super) fn bus_order(address: &str) -> (usize, &str) {
    (address.len(), address)
}
