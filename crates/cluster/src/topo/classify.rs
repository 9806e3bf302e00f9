//! Which RDMA devices are rails: by state, link layer, rate, distance, partition and kind of function, never by name.

use super::distance::{Distance, between};
use crate::facts::{Facts, PciDevice, Port, RdmaDevice};

/// A link slower than this is no rail of a GPU node: the slowest in use are EFA's functions of 100 Gb/s.
const RAIL_GBITS: f64 = 90.0;

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
    fn partition(&self) -> String {
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

/// A property in which rails are alike.
type Key = fn(&Candidate<'_>) -> String;

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
    candidates.sort_by(|a, b| a.pci.address.cmp(&b.pci.address));
    let (active, down): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|candidate| candidate.active);
    let (active, down) = fabric_of(active, down, &mut decision);
    let active = fastest(active, &mut decision);
    narrow(active, down, gpus.len(), &mut decision);
    decision
}

fn candidate<'a>(
    facts: &'a Facts,
    device: &'a RdmaDevice,
    gpus: &[&PciDevice],
) -> Result<Candidate<'a>, String> {
    let address = device.pci.as_deref().ok_or("a software device: it has no PCI function")?;
    let pci = facts
        .pci
        .at(address)
        .ok_or_else(|| format!("its PCI function {address} is not among the network functions"))?;
    let rate = |port: &&Port| port.gbits().unwrap_or(0.0);
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

/// EFA or InfiniBand carries rails where either is there; Ethernet beside it is frontend, storage or management.
fn fabric_of<'a>(
    active: Vec<Candidate<'a>>,
    down: Vec<Candidate<'a>>,
    decision: &mut Decision<'a>,
) -> (Vec<Candidate<'a>>, Vec<Candidate<'a>>) {
    let all = || active.iter().chain(&down);
    let fast =
        |fabric| active.iter().any(|c| c.fabric == fabric && (c.gbits >= RAIL_GBITS || c.gbits == 0.0));
    let there = |fabric| all().any(|c| c.fabric == fabric);
    let fabric = if fast(Fabric::Efa) || !active.iter().any(|c| c.active) && there(Fabric::Efa) {
        Fabric::Efa
    } else if fast(Fabric::InfiniBand) {
        Fabric::InfiniBand
    } else if fast(Fabric::Ethernet) || !there(Fabric::InfiniBand) {
        Fabric::Ethernet
    } else {
        Fabric::InfiniBand
    };
    let count = all().filter(|c| c.fabric == fabric).count();
    let mut sort = |list: Vec<Candidate<'a>>| {
        let (kept, rest): (Vec<_>, Vec<_>) = list.into_iter().partition(|c| c.fabric == fabric);
        for other in rest {
            let reason = format!(
                "{} {}, while {count} {} {}{}",
                name(other.fabric),
                rate(other.gbits),
                if count == 1 { "device has" } else { "devices have" },
                name(fabric),
                if other.active { "" } else { "; its port is not active" }
            );
            decision.others.push((other.device.name.clone(), reason));
        }
        kept
    };
    let active = sort(active);
    (active, sort(down))
}

/// Rails are as fast as any; a slower one is a frontend or storage link.
fn fastest<'a>(active: Vec<Candidate<'a>>, decision: &mut Decision<'a>) -> Vec<Candidate<'a>> {
    let best = active.iter().map(|c| c.gbits).fold(0.0, f64::max);
    let (kept, slower): (Vec<_>, Vec<_>) = active.into_iter().partition(|c| c.gbits >= best);
    for other in slower {
        let reason = format!("{}, while the fastest have {}", rate(other.gbits), rate(best));
        decision.others.push((other.device.name.clone(), reason));
    }
    if best > 0.0 && best < RAIL_GBITS {
        for other in kept {
            let reason = format!("{}: no rail of a GPU node is that slow", rate(other.gbits));
            decision.others.push((other.device.name.clone(), reason));
        }
        return Vec::new();
    }
    kept
}

/// Where more are left than GPUs need, what sets some apart is looked for; where fewer are, those that are down.
fn narrow<'a>(
    mut rails: Vec<Candidate<'a>>,
    down: Vec<Candidate<'a>>,
    gpus: usize,
    decision: &mut Decision<'a>,
) {
    let fits = |count: usize| gpus > 0 && count > 0 && count.is_multiple_of(gpus);
    if rails.len() > gpus && gpus > 0 {
        let steps: [(&str, Key); 4] = [
            ("distance", |c| format!("{} to its nearest GPU", c.nearest())),
            ("partition", |c| format!("partition and subnet {}", c.partition())),
            ("function", |c| {
                if c.device.physfn.is_some() {
                    "a virtual function".into()
                } else {
                    "a physical function".into()
                }
            }),
            ("part", |c| {
                format!(
                    "part {}",
                    c.device.board_id.as_deref().or(c.device.hca_type.as_deref()).unwrap_or("unknown")
                )
            }),
        ];
        for (what, key) in steps {
            let distance = what == "distance";
            let Some(chosen) = set_apart(&rails, key, distance, &fits) else { continue };
            let (kept, rest): (Vec<_>, Vec<_>) = rails.into_iter().partition(|c| key(c) == chosen);
            for other in rest {
                let reason = format!("{}, while {} devices have: {chosen}", key(&other), kept.len());
                decision.others.push((other.device.name.clone(), reason));
            }
            rails = kept;
        }
    }
    // A device that is down and otherwise like the rails is a rail that failed, if its place is empty.
    let like = |c: &Candidate<'_>| {
        rails
            .iter()
            .any(|rail| rail.device.hca_type == c.device.hca_type && rail.device.driver == c.device.driver)
    };
    let (failed, spare): (Vec<_>, Vec<_>) = down.into_iter().partition(|c| rails.is_empty() || like(c));
    let missing =
        if fits(rails.len()) { 0 } else { gpus.saturating_mul(rails.len() / gpus.max(1) + 1) - rails.len() };
    let (failed, more) =
        if failed.len() <= missing || rails.is_empty() && failed.len().is_multiple_of(gpus.max(1)) {
            (failed, Vec::new())
        } else {
            (Vec::new(), failed)
        };
    for other in spare.into_iter().chain(more) {
        let state = other.port.state.clone().unwrap_or_else(|| "no state".to_owned());
        decision
            .others
            .push((other.device.name.clone(), format!("port {} is not active ({state})", other.port.number)));
    }
    let whole = rails.len() + failed.len();
    if rails.len() > gpus && gpus > 0 && !fits(whole) {
        decision.unclear = Some(format!(
            "{} devices are alike in link layer, rate, distance, partition and part, and {gpus} GPUs want {gpus} or a multiple",
            rails.len()
        ));
    }
    // Several a GPU is believed of functions that hang by their GPU, and of EFA; not of Ethernet functions that are equally far
    // from all, where frontend and storage look the same.
    let near = |c: &Candidate<'_>| c.nearest() <= Distance::Pxb;
    if whole > gpus && fits(whole) && rails.iter().any(|c| c.fabric == Fabric::Ethernet && !near(c)) {
        decision.unclear = Some(format!(
            "{} Ethernet devices of one rate are equally far from {gpus} GPUs: some may be frontend or storage links",
            rails.len()
        ));
    }
    for rail in rails {
        let reason =
            format!("{} {}, {} to {}", name(rail.fabric), rate(rail.gbits), rail.nearest(), near_gpus(&rail));
        decision.rails.push((rail, reason));
    }
    for rail in failed {
        let state = rail.port.state.clone().unwrap_or_else(|| "no state".to_owned());
        let physical = rail.port.phys_state.as_deref().map_or(String::new(), |state| format!(", {state}"));
        let reason =
            format!("like the rails, but port {} is not active ({state}{physical})", rail.port.number);
        decision.failed.push((rail, reason));
    }
}

/// The key of those that stay: the largest class that fits the GPUs. By distance it is the nearest class that fits.
fn set_apart(
    rails: &[Candidate<'_>],
    key: Key,
    by_distance: bool,
    fits: &impl Fn(usize) -> bool,
) -> Option<String> {
    let mut classes: Vec<(String, usize, Distance)> = Vec::new();
    for rail in rails {
        let name = key(rail);
        match classes.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, count, _)) => *count += 1,
            None => classes.push((name, 1, rail.nearest())),
        }
    }
    if classes.len() < 2 {
        return None;
    }
    if by_distance {
        // Rails are never farther from the GPUs than frontends; a nearer class that is too small is no set of rails.
        classes.sort_by_key(|&(_, _, distance)| distance);
        return classes.into_iter().find(|&(_, count, _)| fits(count)).map(|(name, ..)| name);
    }
    // If all together fit, a difference in partition or part says nothing.
    if fits(rails.len()) {
        return None;
    }
    let largest = classes.iter().map(|&(_, count, _)| count).max()?;
    let mut fitting = classes.into_iter().filter(|&(_, count, _)| count == largest && fits(count));
    let (chosen, ..) = fitting.next()?;
    fitting.next().is_none().then_some(chosen)
}

fn near_gpus(rail: &Candidate<'_>) -> String {
    let nearest = rail.nearest();
    let gpus: Vec<usize> = (0..rail.distances.len()).filter(|&gpu| rail.distances[gpu] == nearest).collect();
    match gpus.as_slice() {
        [] => "no GPU".to_owned(),
        [one] => format!("GPU {one}"),
        [first, .., last] if last - first + 1 == gpus.len() => format!("GPUs {first} to {last}"),
        _ => format!("GPUs {}", gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn name(fabric: Fabric) -> &'static str {
    match fabric {
        Fabric::InfiniBand => "InfiniBand",
        Fabric::Efa => "EFA",
        Fabric::Ethernet => "Ethernet",
    }
}

fn rate(gbits: f64) -> String {
    if gbits == 0.0 { "of unknown rate".to_owned() } else { format!("{gbits} Gb/s") }
}

/// The device `name` as a candidate, whatever it is; none where it has no PCI function or port.
pub(super) fn any<'a>(facts: &'a Facts, name: &str, gpus: &[&PciDevice]) -> Option<Candidate<'a>> {
    let device = facts.rdma.value()?.iter().find(|device| device.name == name)?;
    candidate(facts, device, gpus).ok()
}
