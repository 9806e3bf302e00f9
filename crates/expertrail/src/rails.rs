//! Which NIC is a rank's, and opening it.

use std::fs;

use expertrail_fabric::ofi::{self, Library, Offer, OpenOptions, Provider};
use expertrail_fabric::sim::Network;
use expertrail_fabric::{FabricError, Transport};
use expertrail_host::{Crossing, RailConfig};

use crate::config::{Config, FabricName};

/// Where a rank is, as far as the choice of its NIC goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailPlace {
    /// The rank.
    pub rank: usize,
    /// Its number on its node.
    pub local_rank: usize,
    /// Whether all ranks of the job are on one host: the loopback then reaches them all.
    pub one_host: bool,
    /// Nodes of the job, or endpoints that are reached; 0 where it is not known.
    pub peers: usize,
    /// PCI address of the NIC that is nearest to this rank's GPU, where one is known.
    pub near: Option<String>,
}

/// A rank's way to other nodes: what to open, and as often as wanted.
#[derive(Clone, Debug)]
pub struct Rails {
    way: Way,
    config: RailConfig,
    why: String,
}

#[derive(Clone, Debug)]
enum Way {
    Sim(Network, u32),
    Libfabric(Library, OpenOptions),
}

impl Rails {
    /// A rank's end on the simulated network.
    pub fn simulated(network: &Network, config: &Config, place: &RailPlace) -> Self {
        Self {
            way: Way::Sim(network.clone(), place.rank as u32),
            config: config.rail_config(),
            why: "simulated".to_owned(),
        }
    }

    /// A rank's NIC by libfabric. Not collective.
    ///
    /// # Errors
    /// [`FabricError::Argument`] when the simulated network or none was asked for; what [`ofi::find`] says.
    pub fn find(library: &Library, config: &Config, place: &RailPlace) -> Result<Self, FabricError> {
        let provider = config.fabric.value.as_ref().and_then(FabricName::provider).ok_or_else(|| {
            FabricError::Argument { what: "no provider of libfabric was asked for".to_owned() }
        })?;
        let mut options = sized(provider, config, place.peers);
        let why;
        let offer = if config.domains.value.is_empty() {
            let best = ofi::find(library, &options)?;
            let (domain, reason) = pick(&best, &ofi::list(library)?, place);
            why = reason;
            options.domain = domain;
            if options.domain.is_some() { ofi::find(library, &options)? } else { best }
        } else {
            let all = &config.domains.value;
            options.domain = all.get(place.local_rank % all.len()).cloned();
            why = format!("named ({})", config.domains.source);
            ofi::find(library, &options)?
        };
        let mut rail = config.rail_config();
        rail.cpus = offer.numa_node.map(cpus_of).unwrap_or_default();
        Ok(Self { way: Way::Libfabric(library.clone(), options), config: rail, why })
    }

    /// Opens an endpoint.
    ///
    /// # Errors
    /// What the library says.
    pub fn open(&self) -> Result<Box<dyn Transport>, FabricError> {
        match &self.way {
            Way::Sim(network, node) => Ok(Box::new(network.endpoint(*node))),
            Way::Libfabric(library, options) => ofi::open_with(library, options),
        }
    }

    /// Opens an endpoint for [`Builder::build_across`](crate::Builder::build_across).
    ///
    /// # Errors
    /// As [`Rails::open`].
    pub fn crossing(&self) -> Result<Crossing, FabricError> {
        Ok(Crossing { transport: self.open()?, config: self.config.clone() })
    }

    /// Sizes of what crosses, with the CPUs of the NIC's NUMA node.
    pub fn config(&self) -> &RailConfig {
        &self.config
    }

    /// Why it is this NIC, in a few words.
    pub fn why(&self) -> &str {
        &self.why
    }
}

/// Queues as long as the protocol can fill them: some providers take 16 KiB and more for every place.
fn sized(provider: Provider, config: &Config, peers: usize) -> OpenOptions {
    let most = OpenOptions::default();
    if peers == 0 {
        return OpenOptions { provider, ..most };
    }
    let window = config.window.value;
    // Own chunks, and to each peer the credits of two streams, a header, a status, a failure and a farewell.
    let queue_depth = (2 * window + peers * (2 * window + 4)).clamp(64, most.queue_depth);
    // From each peer as much, and as many chunks again.
    let arrivals = (peers * (4 * window + 4)).clamp(256, most.arrivals);
    OpenOptions { provider, queue_depth, arrivals, peers, ..most }
}

/// The domain for a rank, and why; `None` leaves it to the provider's best.
fn pick(best: &Offer, offers: &[Offer], place: &RailPlace) -> (Option<String>, String) {
    let like = |offer: &&Offer| {
        offer.name == best.name && offer.lacks.is_none() && offer.local_only == best.local_only
    };
    let sockets = best.pci.is_none() && !best.local_only;
    if sockets {
        // Other interfaces may be of other networks: several are used only where they are named.
        let loopback = |offer: &&Offer| {
            let ip: Option<std::net::IpAddr> = offer.address.as_deref().and_then(|text| text.parse().ok());
            offer.domain == "lo" || ip.is_some_and(|ip| ip.is_loopback())
        };
        return match offers.iter().filter(like).find(loopback).filter(|_| place.one_host) {
            Some(offer) => (Some(offer.domain.clone()), "loopback: all ranks are on one host".to_owned()),
            None => (Some(best.domain.clone()), "the best interface".to_owned()),
        };
    }
    let mut equal: Vec<&Offer> = Vec::new();
    for offer in offers.iter().filter(like) {
        let same = offer.pci.is_some() && offer.link_bits_per_second == best.link_bits_per_second;
        if same && !equal.iter().any(|other| other.domain == offer.domain) {
            equal.push(offer);
        }
    }
    if equal.len() < 2 {
        return (Some(best.domain.clone()), "the only one".to_owned());
    }
    if let Some(near) = &place.near
        && let Some(offer) = equal.iter().find(|offer| offer.pci.as_deref() == Some(near))
    {
        return (Some(offer.domain.clone()), format!("nearest to the rank's GPU ({near})"));
    }
    // The order of the bus, so that the ranks of a rail take the same one on every node.
    equal.sort_by(|a, b| (&a.pci, &a.domain).cmp(&(&b.pci, &b.domain)));
    let at = place.local_rank % equal.len();
    (Some(equal[at].domain.clone()), format!("in turn, {} of {} equal ones", at + 1, equal.len()))
}

/// CPUs of a NUMA node; nothing where the system does not say.
fn cpus_of(node: u32) -> Vec<usize> {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
    text.map(|text| cpu_list(&text)).unwrap_or_default()
}

/// Reads `0-3,8`.
fn cpu_list(text: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        // More CPUs than any machine has is no list of CPUs.
        if let (Ok(from), Ok(to)) = (from.trim().parse::<usize>(), to.trim().parse::<usize>())
            && to < 1 << 16
        {
            cpus.extend(from..=to);
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use expertrail_fabric::Addressing;

    use super::*;

    fn offer(name: &str, domain: &str, pci: Option<&str>, address: Option<&str>) -> Offer {
        Offer {
            name: name.to_owned(),
            provider: name.to_owned(),
            fabric: "f".to_owned(),
            domain: domain.to_owned(),
            address: address.map(str::to_owned),
            mr_mode: Vec::new(),
            addressing: Addressing::Offset,
            cq_data_bytes: 8,
            max_message: u64::MAX,
            inject_bytes: 0,
            queue_depth: 1024,
            threading: "domain",
            progress: "manual",
            context_bytes: 0,
            needs_receives: false,
            gpu_memory: false,
            link_bits_per_second: pci.map(|_| 400_000_000_000),
            pci: pci.map(str::to_owned),
            numa_node: None,
            local_only: name == "shm",
            lacks: None,
        }
    }

    fn picked(best: &Offer, offers: &[Offer], place: &RailPlace) -> String {
        pick(best, offers, place).0.unwrap()
    }

    #[test]
    fn loopback_only_where_all_ranks_are_on_one_host() {
        let offers =
            [offer("tcp", "lo", None, Some("127.0.0.1")), offer("tcp", "eth0", None, Some("10.0.0.2"))];
        let place = |one_host| RailPlace { one_host, ..RailPlace::default() };
        assert_eq!(picked(&offers[1], &offers, &place(true)), "lo");
        assert_eq!(picked(&offers[1], &offers, &place(false)), "eth0");
    }

    #[test]
    fn equal_nics_go_round_by_the_bus_and_the_gpus_own_comes_first() {
        let nics = [
            offer("efa", "c", Some("0000:c0:00.0"), None),
            offer("efa", "a", Some("0000:a0:00.0"), None),
            offer("efa", "b", Some("0000:b0:00.0"), None),
            // Of another speed, and one that cannot be used.
            Offer { link_bits_per_second: Some(1), ..offer("efa", "slow", Some("0000:10:00.0"), None) },
            Offer { lacks: Some("x".to_owned()), ..offer("efa", "bad", Some("0000:11:00.0"), None) },
        ];
        let at = |local_rank, near: Option<&str>| {
            let near = near.map(str::to_owned);
            picked(&nics[0], &nics, &RailPlace { local_rank, near, ..RailPlace::default() })
        };
        assert_eq!([0, 1, 2, 3].map(|rank| at(rank, None)), ["a", "b", "c", "a"]);
        assert_eq!(at(0, Some("0000:b0:00.0")), "b");
        assert_eq!(at(1, Some("0000:77:00.0")), "b", "a NIC that is not offered does not count");
        assert_eq!(picked(&nics[0], &nics[..1], &RailPlace::default()), "c");
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpu_list(""), Vec::<usize>::new());
        assert_eq!(cpu_list("x,5-99999999,7"), [7]);
    }
}
