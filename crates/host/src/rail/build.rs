//! Joining nodes: every rank opens its end of its rail, all exchange cards, and proxies start.

use expertrail_core::hop::{CallHeader, Limits};
use expertrail_core::{Placement, Shape, Topology};
use expertrail_fabric::Transport;
use expertrail_fabric::rail::{Listener, ProxyConfig, RailCard, RailEnd, RailLayout, RailSizes};
use expertrail_group::Group;

use super::{Crossings, RailNames, network};
use crate::build::most_experts_of_node;
use crate::control::Control;
use crate::error::{HostError, Result, bytes_text};
use crate::futex::SharedFutex;
use crate::memory::Limit;
use crate::world::{self, World};

/// Sizes of what crosses between nodes; all but the CPUs must be equal on all ranks.
#[derive(Clone, Debug)]
pub struct RailConfig {
    /// Chunks and windows of the streams.
    pub limits: Limits,
    /// Chunks that one rank may have packed and on their way at once.
    pub outgoing: usize,
    /// CPUs that the proxy is bound to: those of the NIC's NUMA node. Empty: not bound.
    pub cpus: Vec<usize>,
}

impl Default for RailConfig {
    /// The default limits; 16 chunks on their way: two windows of a stream, so that packing goes on while one is in flight.
    fn default() -> Self {
        Self { limits: Limits::default(), outgoing: 16, cpus: Vec::new() }
    }
}

/// This rank's way to other nodes: an open endpoint, and how to use it.
#[derive(Debug)]
pub struct Crossing {
    /// The endpoint: of the NIC that is this rank's.
    pub transport: Box<dyn Transport>,
    /// Sizes.
    pub config: RailConfig,
}

/// The layout of every rank's rail region.
pub(crate) fn lay_out(topology: &Topology, shape: &Shape, config: &RailConfig) -> RailLayout {
    let here = topology.ranks_per_node();
    let experts = Placement::new(shape.experts, topology.ranks())
        .map_or(0, |placement| most_experts_of_node(&placement, here));
    let slot = config.limits.slot_bytes(topology, shape);
    RailLayout::new(RailSizes {
        nodes: topology.nodes(),
        window: config.limits.window,
        header_bytes: CallHeader::region_bytes(here, experts),
        chunk_bytes: [slot; 2],
        outgoing: config.outgoing.max(1),
    })
}

/// One rank's end.
pub(crate) struct End {
    rail: RailEnd,
    config: RailConfig,
}

/// What all ranks must agree in, in this order; the names are for messages.
const SETTINGS: [&str; 6] = [
    "the ranks of a node",
    "the shape",
    "the provider of the rails",
    "the bytes of a chunk",
    "the window of the rails",
    "the chunks on their way at once",
];

impl End {
    /// Registers this rank's region with its transport.
    pub(crate) fn new(group: &Group, topology: &Topology, shape: &Shape, crossing: Crossing) -> Result<Self> {
        let (rank, Crossing { transport, config }) = (group.rank(), crossing);
        config.limits.check(topology, shape).map_err(|error| HostError::Misuse { rank, error })?;
        // What killed processes have left may be all that there is; what cannot be swept stays, as it was.
        if transport.capabilities().provider.split(';').any(|part| part == "shm") {
            let _ = expertrail_fabric::ofi::sweep_shm();
        }
        let layout = lay_out(topology, shape, &config);
        fits(layout.bytes(), (topology.nodes(), on_host(group)), crate::memory::limit(None))?;
        let rail = RailEnd::new(transport, layout).map_err(network(rank))?;
        Ok(Self { rail, config })
    }

    /// The values of [`SETTINGS`].
    fn settings(&self, topology: &Topology, shape: &Shape) -> [String; 6] {
        let limits = &self.config.limits;
        [
            topology.ranks_per_node().to_string(),
            shape.to_string(),
            self.rail.capabilities().provider.clone(),
            limits.slot_bytes(topology, shape).to_string(),
            limits.window.to_string(),
            self.config.outgoing.to_string(),
        ]
    }

    /// What messages say of it.
    pub(crate) fn names(&self, group: &Group, topology: Topology) -> RailNames {
        let capabilities = self.rail.capabilities();
        RailNames {
            topology,
            own: group.rank(),
            provider: capabilities.provider.clone(),
            domain: capabilities.domain.clone(),
            on_host: on_host(group),
        }
    }
}

/// Ranks on this rank's host, of whatever node.
fn on_host(group: &Group) -> usize {
    let hosts = group.hosts();
    hosts.iter().filter(|host| **host == hosts[group.rank()]).count()
}

/// Whether `ranks` regions of `bytes` bytes fit into what there is: many providers lock a region's pages when it is
/// registered, and the kernel kills who has too few.
fn fits(bytes: usize, (nodes, ranks): (usize, usize), limit: Option<Limit>) -> Result<()> {
    let total = (bytes as u64).saturating_mul(ranks as u64);
    match limit {
        Some(limit) if total > limit.bytes => Err(HostError::RailMemory {
            nodes,
            ranks,
            needed: bytes_text(bytes as u64),
            total: bytes_text(total),
            limit: bytes_text(limit.bytes),
            source_of_limit: limit.source,
        }),
        _ => Ok(()),
    }
}

const CARD_OK: u8 = 1;
const CARD_REFUSED: u8 = 2;

/// The first meeting of a build: all ranks must want the same, and whoever cannot take part says why. After it all go on
/// or none does. Collective, whatever `end` is.
pub(crate) fn agree(group: &Group, topology: &Topology, shape: &Shape, end: Result<End>) -> Result<End> {
    let card = match &end {
        Ok(end) => [&[CARD_OK], end.settings(topology, shape).join("\n").as_bytes()].concat(),
        Err(error) => refusal(&error.to_string()),
    };
    let cards = group.all_gather("settings of the communicator", &card)?;
    let end = end?;
    compare(group.rank(), &cards)?;
    Ok(end)
}

/// Takes part in the first meeting of a build only to say that this rank cannot build.
pub(crate) fn decline(group: &Group, reason: &str) {
    // The rank has its own error to give; the others hear of a broken group by themselves.
    let _ = group.all_gather("settings of the communicator", &refusal(reason));
}

fn refusal(reason: &str) -> Vec<u8> {
    [&[CARD_REFUSED], reason.as_bytes()].concat()
}

/// Whether all ranks take part and have rank 0's settings.
fn compare(rank: usize, cards: &[Vec<u8>]) -> Result<()> {
    let refused = |peer, reason: String| HostError::PeerBuild { rank, peer, reason };
    let mut first: Option<Vec<String>> = None;
    let mut texts = Vec::with_capacity(cards.len());
    for (peer, bytes) in cards.iter().enumerate() {
        match bytes.split_first() {
            Some((&CARD_REFUSED, reason)) => {
                return Err(refused(peer, String::from_utf8_lossy(reason).into_owned()));
            }
            Some((&CARD_OK, text)) => texts.push(String::from_utf8_lossy(text).into_owned()),
            _ => {
                return Err(refused(
                    peer,
                    "it sent settings that cannot be read (another version?)".to_owned(),
                ));
            }
        }
    }
    for (b, text) in texts.into_iter().enumerate() {
        let values: Vec<String> = text.split('\n').map(str::to_owned).collect();
        let first = first.get_or_insert_with(|| values.clone());
        for (i, what) in SETTINGS.into_iter().enumerate() {
            let value = |of: &[String]| of.get(i).cloned().unwrap_or_default();
            let (a_value, b_value) = (value(first), value(&values));
            if a_value != b_value {
                return Err(HostError::Disagree { what, a: 0, a_value, b, b_value });
            }
        }
    }
    Ok(())
}

/// Exchanges cards with all ranks of the job, and starts this rank's proxy. Collective.
pub(crate) fn join(
    group: &Group,
    topology: &Topology,
    end: End,
    (controls, spin): (&[Control], bool),
) -> Result<Crossings> {
    let rank = group.rank();
    let cards = group.all_gather("rails of the communicator", &end.rail.card().encode())?;
    let cards = cards
        .iter()
        .enumerate()
        .map(|(peer, bytes)| {
            let reason = || "it sent a card of its rail that cannot be read (another version?)".to_owned();
            RailCard::decode(bytes).ok_or_else(|| HostError::PeerBuild { rank, peer, reason: reason() })
        })
        .collect::<Result<Vec<RailCard>>>()?;
    let node = topology.node_of(rank);
    let rail = topology.local_rank(rank);
    let of_rail: Vec<RailCard> = cards.into_iter().skip(rail).step_by(topology.ranks_per_node()).collect();
    let config = ProxyConfig { spin, cpus: end.config.cpus.clone() };
    let listener = Box::new(Doors {
        own: controls[rail].clone(),
        all: controls.to_vec(),
        first: node * topology.ranks_per_node(),
        rank,
        ranks: topology.ranks(),
    });
    let started = end.rail.start(node, &of_rail, listener, &config).map_err(network(rank));
    // Nobody writes before everybody knows everybody.
    let word = started.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let words = group.all_gather("rails connected", word.as_bytes())?;
    let started = started?;
    if let Some(peer) = words.iter().position(|word| !word.is_empty()) {
        let reason = String::from_utf8_lossy(&words[peer]).into_owned();
        return Err(HostError::PeerBuild { rank, peer, reason });
    }
    let nodes = topology.nodes();
    let outgoing = started.layout().sizes().outgoing;
    Ok(Crossings {
        rail: started,
        limits: end.config.limits,
        sent: [vec![0; nodes], vec![0; nodes]],
        received: [vec![0; nodes], vec![0; nodes]],
        given: vec![0; outgoing],
        next_slot: 0,
        stalls: 0,
        told: false,
        fault: None,
    })
}

/// Wakes this rank, and poisons its node when another tells of a failure.
struct Doors {
    own: Control,
    all: Vec<Control>,
    /// The node's first rank, this one, and the ranks of the job.
    first: usize,
    rank: usize,
    ranks: usize,
}

impl Listener for Doors {
    fn wake(&self) {
        self.own.door().ring(&SharedFutex);
    }

    fn told(&self, _node: usize, word: u64) {
        // A peer's word: 0 stands for no failure and would be taken for none.
        if word != 0 {
            World::poison(&self.all, word);
        }
    }

    fn waits(&self) -> u64 {
        world::long_wait(&self.all, (self.first, self.rank))
    }

    fn told_waits(&self, node: usize, word: u64) {
        // A peer's word: a rank that does not exist is none.
        self.own.set_far_waits(node, if word > self.ranks as u64 { 0 } else { word });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V3: Shape = Shape { max_tokens: 4096, hidden: 7168, top_k: 8, experts: 256 };

    #[test]
    fn the_region_is_what_the_formula_says_and_grows_with_the_nodes() {
        let config = RailConfig::default();
        // By hand, for nodes of 8. A slot: 128 KiB hold records of 14,336 + 8 + 8 x 12 + 32 + 32 bytes. For each node 2
        // operations x 8 slots; headers of 48 + 4 x (8 + 256 / nodes) bytes in lines of 64 and statuses of 64, in two
        // generations, out and in; 32 bytes of words. 16 slots to pack in, once.
        for (nodes, header) in [(2, 640), (4, 384), (16, 192), (32, 128)] {
            let topology = Topology::new(8 * nodes, 8).unwrap();
            let bytes = lay_out(&topology, &V3, &config).bytes();
            let by_hand = 16 * 131_072 + nodes * (2 * 8 * 131_072 + 4 * (header + 64) + 2 * 16);
            assert!((by_hand..by_hand + 256).contains(&bytes), "{nodes} nodes: {bytes}, by hand {by_hand}");
            let formula = config.limits.staging_bytes(&topology, &V3, config.outgoing).total();
            assert!(bytes as u64 <= formula + 64 && formula <= bytes as u64 + 32 * nodes as u64 + 64);
        }
    }

    #[test]
    fn a_job_that_is_too_large_for_its_hosts_is_refused() {
        let limit = |bytes| Some(Limit { bytes, source: "a test".to_owned() });
        assert!(fits(1 << 30, (128, 8), limit(8 << 30)).is_ok() && fits(1 << 30, (128, 8), None).is_ok());
        let refused = fits(1 << 30, (128, 8), limit((8 << 30) - 1)).unwrap_err().to_string();
        for part in ["128 nodes", "8 ranks", "1.0 GiB each", "8.0 GiB in all", "a test", "smaller window"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
}
