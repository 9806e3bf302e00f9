//! Build: every rank makes its segment, all exchange where theirs are, and each maps all.

use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use expertrail_core::output::{OutputKind, OutputLayout, generous, uniform_arrivals};
use expertrail_core::{Dtype, Placement, Shape, Topology};
use expertrail_group::{CancelToken, DeathWatch, Group};

use crate::control::{Control, ControlLayout};
use crate::copy::Stores;
use crate::error::{HostError, Result, bytes_text};
use crate::pool::{GRAIN, Pool};
use crate::rail::RailNames;
use crate::segment::{PeerFd, Segment};
use crate::simd::Simd;
use crate::staging::Rings;
use crate::world::{Regions, World};

/// Settings of a communicator. All but the deadline, instruction set, stores, memory limit and cancellation must
/// be equal on all ranks.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Declared topology; its ranks are the group's.
    pub topology: Topology,
    /// Sizes of the calls.
    pub shape: Shape,
    /// How many dispatch outputs will be alive at once; sizes the pool.
    pub live_outputs: usize,
    /// How long any wait for another rank may take.
    pub deadline: Duration,
    /// Instruction set; by default what `EXPERTRAIL_SIMD` says, else the widest.
    pub simd: Option<Simd>,
    /// Kind of stores; by default by the size of the call.
    pub stores: Option<Stores>,
    /// The most shared memory that all ranks of this host may need together.
    pub memory_limit: Option<u64>,
    /// Stops waits from outside.
    pub cancel: CancelToken,
}

/// The most outputs a pool is sized for: one for each layer of a model of a thousand layers, four times over. With
/// rows numbered in 32 bits and the largest hidden size, sizes then stay below 2^62 bytes.
pub const MOST_LIVE_OUTPUTS: usize = 4096;

/// A longer deadline is taken as this one; it keeps times representable.
const LONGEST_DEADLINE: Duration = Duration::from_hours(10 * 365 * 24);

impl HostConfig {
    /// The defaults for a topology and shape: two live outputs, 60 s.
    pub fn new(topology: Topology, shape: Shape) -> Self {
        Self {
            topology,
            shape,
            live_outputs: 2,
            deadline: Duration::from_mins(1),
            simd: None,
            stores: None,
            memory_limit: None,
            cancel: CancelToken::new(),
        }
    }
}

/// The parts of a communicator.
pub(crate) struct Built {
    pub(crate) world: Arc<World>,
    pub(crate) rings: Rings,
    pub(crate) watch: Option<DeathWatch>,
}

/// What a rank can say about itself before it knows the others.
struct Prepared {
    simd: Simd,
    rings: Rings,
    control: ControlLayout,
    placement: Placement,
    regions: Regions,
    segment: Segment,
    token: u64,
}

/// Builds over `group`, whose ranks are `node_ranks` of the declared topology: all, or those of one node.
pub(crate) fn build(
    group: &Group,
    config: &HostConfig,
    (node_ranks, rails): (Range<usize>, Option<RailNames>),
) -> Result<Built> {
    let first = node_ranks.start;
    let rank = first + group.rank();
    let prepared = prepare(group, config, &node_ranks);
    let card = match &prepared {
        Ok(prepared) => Card::new(config, prepared).encode(),
        // The others must not wait for a rank that cannot build.
        Err(error) => Card::refusal(&error.to_string()),
    };
    let cards = group.all_gather("communicator build", &card)?;
    let prepared = prepared?;
    let cards = cards
        .iter()
        .enumerate()
        .map(|(peer, bytes)| {
            let peer = first + peer;
            Card::decode(bytes).map_err(|reason| HostError::PeerBuild { rank, peer, reason })
        })
        .collect::<Result<Vec<Card>>>()?;
    agree(&cards, first)?;

    let own = Arc::new(prepared.segment);
    let opened: Result<Vec<Arc<Segment>>> = cards
        .iter()
        .enumerate()
        .map(|(peer, card)| {
            if first + peer == rank {
                return Ok(own.clone());
            }
            let segment = Segment::open(rank, first + peer, card.at, prepared.regions.total)?;
            Ok(Arc::new(segment))
        })
        .collect();
    let opened = opened.and_then(|segments| {
        for (peer, (segment, card)) in segments.iter().zip(&cards).enumerate() {
            if !Control::new(segment.clone(), prepared.control).belongs_to(card.token) {
                let path = format!("/proc/{}/fd/{}", card.at.pid, card.at.fd);
                let reason = "it is not a segment of this job".to_owned();
                return Err(HostError::Segment { rank, peer: first + peer, pid: card.at.pid, path, reason });
            }
        }
        let controls = segments.iter().map(|s| Control::new(s.clone(), prepared.control)).collect::<Vec<_>>();
        let watch = watch(rank, first, (&cards, &controls))?;
        Ok((segments, controls, watch))
    });
    // Everybody keeps its segment until everybody has mapped it, and a rank that could not says so.
    let word = opened.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let words = group.all_gather("communicator mapping", word.as_bytes())?;
    let (segments, controls, watch) = opened?;
    if let Some(peer) = words.iter().position(|word| !word.is_empty()) {
        let reason = String::from_utf8_lossy(&words[peer]).into_owned();
        return Err(HostError::PeerBuild { rank, peer: first + peer, reason });
    }

    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spin = rails.as_ref().map_or(cards.len(), RailNames::threads_on_host) <= cores;
    let world = World {
        rank,
        node_ranks,
        token: cards[0].token,
        topology: config.topology,
        placement: prepared.placement,
        shape: config.shape,
        simd: prepared.simd,
        regions: prepared.regions,
        deadline: config.deadline.min(LONGEST_DEADLINE),
        cancel: config.cancel.clone(),
        spin,
        segments,
        controls,
        pool: Pool::new(prepared.regions.pool, prepared.regions.pool_bytes),
        rails,
        detail: OnceLock::new(),
    };
    Ok(Built { world: Arc::new(world), rings: prepared.rings, watch })
}

fn prepare(group: &Group, config: &HostConfig, node_ranks: &Range<usize>) -> Result<Prepared> {
    let rank = node_ranks.start + group.rank();
    let misuse = |error| HostError::Misuse { rank, error };
    let ranks = config.topology.ranks();
    if node_ranks.len() != group.size() {
        return Err(HostError::Setting {
            name: "topology",
            value: format!("{} ranks", node_ranks.len()),
            wanted: format!("the group's {} ranks", group.size()),
        });
    }
    config.shape.check(false).map_err(misuse)?;
    config.shape.check_rows(ranks).map_err(misuse)?;
    if config.live_outputs > MOST_LIVE_OUTPUTS {
        return Err(HostError::Setting {
            name: "live_outputs",
            value: config.live_outputs.to_string(),
            wanted: format!("at most {MOST_LIVE_OUTPUTS}"),
        });
    }
    let placement = Placement::new(config.shape.experts, ranks).map_err(misuse)?;
    let simd = config.simd.map_or_else(Simd::from_env, Ok)?;
    let here = node_ranks.len();
    let rings = Rings::new(here, config.shape.hidden)?;
    // Of every source, the counts of this node's ranks and experts.
    let counts = config.topology.ranks() / here * (here + most_experts_of_node(&placement, here));
    let control = ControlLayout::new((config.topology.nodes(), here), counts);
    let sizes = Sizes::new(config, &placement, (rings, here), control);
    if let Some(limit) = crate::memory::limit(config.memory_limit)
        && sizes.expected.saturating_mul(here as u64) > limit.bytes
    {
        return Err(HostError::SharedMemory {
            ranks: here,
            needed: bytes_text(sizes.expected),
            total: bytes_text(sizes.expected.saturating_mul(here as u64)),
            limit: bytes_text(limit.bytes),
            source_of_limit: limit.source,
        });
    }
    let segment = Segment::create(rank, sizes.regions.total)?;
    let token = std::hash::RandomState::new().build_hasher().finish();
    crate::control::initialise(&segment, token);
    Ok(Prepared { simd, rings, control, placement, regions: sizes.regions, segment, token })
}

/// The most experts that `here` ranks of one node have together; blocks of experts differ by one at the most.
pub(crate) fn most_experts_of_node(placement: &Placement, here: usize) -> usize {
    (0..placement.ranks())
        .step_by(here)
        .map(|first| placement.experts_of_ranks(first..first + here).len())
        .max()
        .unwrap_or(0)
}

/// Sizes of a segment, and what of it will probably hold memory.
struct Sizes {
    regions: Regions,
    expected: u64,
}

impl Sizes {
    fn new(
        config: &HostConfig,
        placement: &Placement,
        (rings, here): (Rings, usize),
        control: ControlLayout,
    ) -> Self {
        let Shape { max_tokens, hidden, top_k, .. } = config.shape;
        let ranks = config.topology.ranks();
        let kind = OutputKind { dtype: Dtype::Bf16, hidden, top_k, cached: false, weights: true };
        let pages = |bytes: usize| bytes.next_multiple_of(GRAIN);
        let output = |rows: usize, arrivals: usize| pages(OutputLayout::new(&kind, rows, arrivals).bytes);

        let uniform = uniform_arrivals(max_tokens, ranks, top_k);
        let by_source = output(generous(uniform), generous(uniform));
        let padding = expertrail_core::plan::MAX_ALIGNMENT * placement.most_local_experts();
        let expert_major = output(generous(max_tokens * top_k) + padding, generous(uniform));
        let combined = pages(2 * hidden * max_tokens);
        // Address space, not memory: pages cost nothing until touched, so the larger layout sets the size.
        let live = config.live_outputs.max(1);
        let pool_bytes = (live + 1) * by_source.max(expert_major) + live * combined;
        let fallback_bytes = output(ranks * max_tokens * top_k + padding, ranks * max_tokens);

        let staging = control.bytes;
        let pool = staging + pages(rings.bytes(here));
        let first = pool + pool_bytes;
        let fallback = [first, first + fallback_bytes];
        let total = first + 2 * fallback_bytes;
        let regions = Regions { staging, pool, pool_bytes, fallback, fallback_bytes, total };
        let expected = (pool + live * (by_source + combined)) as u64;
        Self { regions, expected }
    }
}

fn watch(rank: usize, first: usize, (cards, controls): (&[Card], &[Control])) -> Result<Option<DeathWatch>> {
    let own_pid = std::process::id();
    // Ranks that are threads of one process (tests) end with it; nothing to watch.
    let peers: Vec<(usize, u32)> = cards
        .iter()
        .enumerate()
        .filter(|(_, c)| c.at.pid != own_pid)
        .map(|(peer, c)| (first + peer, c.at.pid))
        .collect();
    if peers.is_empty() {
        return Ok(None);
    }
    let controls = controls.to_vec();
    DeathWatch::new(peers, move |peer| {
        World::peer_ended(&controls, (rank - first, peer - first), (rank, peer));
    })
    .map(Some)
    .map_err(|error| HostError::System {
        rank,
        what: "watching peers".to_owned(),
        reason: error.to_string(),
    })
}

/// What the ranks tell each other at build. Fixed little-endian words, then two texts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    at: PeerFd,
    token: u64,
    ranks_per_node: usize,
    shape: Shape,
    live_outputs: usize,
    segment_bytes: usize,
    boot: String,
    host: String,
}

const CARD_WORDS: usize = 10;
const CARD_OK: u8 = 1;
const CARD_REFUSED: u8 = 2;

impl Card {
    fn new(config: &HostConfig, prepared: &Prepared) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            at: prepared.segment.peer_fd(),
            token: prepared.token,
            ranks_per_node: config.topology.ranks_per_node(),
            shape: config.shape,
            live_outputs: config.live_outputs,
            segment_bytes: prepared.segment.bytes(),
            boot: read("/proc/sys/kernel/random/boot_id"),
            host: read("/proc/sys/kernel/hostname"),
        }
    }

    fn refusal(reason: &str) -> Vec<u8> {
        let mut bytes = vec![CARD_REFUSED];
        bytes.extend(reason.as_bytes());
        bytes
    }

    fn encode(&self) -> Vec<u8> {
        let Shape { max_tokens, hidden, top_k, experts } = self.shape;
        let words = [
            u64::from(self.at.pid),
            self.at.fd as u64,
            self.token,
            self.ranks_per_node as u64,
            max_tokens as u64,
            hidden as u64,
            top_k as u64,
            experts as u64,
            self.live_outputs as u64,
            self.segment_bytes as u64,
        ];
        let mut bytes = vec![CARD_OK];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(self.boot.as_bytes());
        bytes.push(b'\n');
        bytes.extend(self.host.as_bytes());
        bytes
    }

    /// The error is the peer's own, or says that its card makes no sense.
    fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        let garbled = || "it sent a build card that cannot be read (another version?)".to_owned();
        let (kind, rest) = bytes.split_first().ok_or_else(garbled)?;
        match *kind {
            CARD_OK if rest.len() >= 8 * CARD_WORDS => {
                let (words, texts) = rest.split_at(8 * CARD_WORDS);
                let mut words = words
                    .chunks_exact(8)
                    .map(|word| word.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte)));
                let mut next = || words.next().unwrap_or_default();
                let (boot, host) = std::str::from_utf8(texts)
                    .ok()
                    .and_then(|texts| texts.split_once('\n'))
                    .ok_or_else(garbled)?;
                Ok(Self {
                    at: PeerFd { pid: next() as u32, fd: next() as i32 },
                    token: next(),
                    ranks_per_node: next() as usize,
                    shape: Shape {
                        max_tokens: next() as usize,
                        hidden: next() as usize,
                        top_k: next() as usize,
                        experts: next() as usize,
                    },
                    live_outputs: next() as usize,
                    segment_bytes: next() as usize,
                    boot: boot.to_owned(),
                    host: host.to_owned(),
                })
            }
            CARD_REFUSED => Err(String::from_utf8_lossy(rest).into_owned()),
            _ => Err(garbled()),
        }
    }
}

/// All cards must agree with the first's, of rank `a`; the first that does not is named with both values.
fn agree(cards: &[Card], a: usize) -> Result<()> {
    let first = &cards[0];
    for (card, b) in cards.iter().zip(a..).skip(1) {
        if card.boot != first.boot {
            let (a_host, b_host) = (first.host.clone(), card.host.clone());
            return Err(HostError::NotOneHost { a, a_host, b, b_host });
        }
        let same = [
            ("the shape", first.shape.to_string(), card.shape.to_string()),
            ("ranks per node", first.ranks_per_node.to_string(), card.ranks_per_node.to_string()),
            ("live outputs", first.live_outputs.to_string(), card.live_outputs.to_string()),
            ("the segment size", first.segment_bytes.to_string(), card.segment_bytes.to_string()),
        ];
        for (what, a_value, b_value) in same {
            if a_value != b_value {
                return Err(HostError::Disagree { what, a, a_value, b, b_value });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            at: PeerFd { pid: 77, fd: 5 },
            token: u64::MAX - 3,
            ranks_per_node: 4,
            shape: Shape { max_tokens: 4096, hidden: 7168, top_k: 8, experts: 256 },
            live_outputs: 2,
            segment_bytes: 1 << 40,
            boot: "b".to_owned(),
            host: "n1".to_owned(),
        }
    }

    #[test]
    fn cards_survive_the_wire_and_garbage_does_not() {
        assert_eq!(Card::decode(&card().encode()), Ok(card()));
        assert_eq!(Card::decode(&Card::refusal("no memory")), Err("no memory".to_owned()));
        let bytes = card().encode();
        for cut in 0..=8 * CARD_WORDS {
            assert!(Card::decode(&bytes[..cut]).is_err());
        }
        assert!(Card::decode(&[9; 200]).is_err());
    }

    #[test]
    fn a_different_shape_is_named_with_both_values() {
        let mut other = card();
        other.shape.hidden = 2048;
        let text = agree(&[card(), card(), other], 0).unwrap_err().to_string();
        assert!(text.contains("rank 0 has 4096 tokens x 7168 hidden, top-8 of 256"), "{text}");
        assert!(text.contains("rank 2 has 4096 tokens x 2048 hidden, top-8 of 256"), "{text}");
        let mut other = card();
        (other.boot, other.host) = ("c".to_owned(), "n2".to_owned());
        assert!(agree(&[card(), other], 0).unwrap_err().to_string().contains("host n2"));
    }
}
