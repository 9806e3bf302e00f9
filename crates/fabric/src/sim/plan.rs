//! What a simulated network does to its traffic, and what it counted.

use super::random::Random;

/// How a network behaves. Times are in ticks, chances in 1,000ths. All fields may be set freely; [`Plan::ordered`] and
/// [`Plan::reordering`] are the usual starts.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything random comes from it.
    pub seed: u64,
    /// Least and most ticks from a post to the landing of its payload. Writes with different delays overtake each other.
    pub delay: (u64, u64),
    /// Most ticks from the landing of a payload to its `Arrived`, and to its `Sent`, each drawn alone.
    pub completion_lag: u64,
    /// Most pieces that a payload lands in; each at its own tick within the delay, in any order.
    pub pieces: u32,
    /// Whether events of one tick happen in random order rather than in the order of their causes.
    pub shuffle: bool,
    /// Writes that an endpoint may have posted and not yet seen completed by a poll; then [`Posted::Busy`](crate::Posted).
    pub queue_depth: usize,
    /// Chance that a post is `Busy` though there is room.
    pub busy: u32,
    /// Chance that the network copies a payload when it is posted: its `Sent` may then come before the payload lands.
    pub buffered: u32,
    /// What one endpoint sends in a tick, in bytes; `None` for no limit.
    pub bytes_per_tick: Option<u64>,
    /// The largest write, in bytes.
    pub max_message: u64,
    /// Ticks after which writes to an endpoint that was closed fail; `None` for silence.
    pub gone_after: Option<u64>,
    /// Links cut from the start on or later.
    pub cuts: Vec<Cut>,
    /// Nodes that stand still for a while.
    pub stalls: Vec<Stall>,
    /// Chance that an `Arrived` is given twice. No transport may do this: for tests of what notices it.
    pub duplicate: u32,
    /// Gives `Arrived` without regard to the payload. No transport may do this: for tests that must fail.
    pub early_completion: bool,
}

impl Plan {
    /// Everything in order, each payload whole one tick after its post: what hides mistakes of order.
    pub fn ordered() -> Self {
        Self {
            seed: 0,
            delay: (1, 1),
            completion_lag: 0,
            pieces: 1,
            shuffle: false,
            queue_depth: 256,
            busy: 0,
            buffered: 0,
            bytes_per_tick: None,
            max_message: 1 << 30,
            gone_after: Some(100),
            cuts: Vec::new(),
            stalls: Vec::new(),
            duplicate: 0,
            early_completion: false,
        }
    }

    /// A legal network without order. Delays, pieces, queue depth and the rest are drawn from `seed`: some networks are
    /// nearly calm, some are wild.
    pub fn reordering(seed: u64) -> Self {
        // Other numbers than those of the run itself, which starts from the seed too.
        let mut random = Random::new(seed ^ 0x5EED_0F91_A9E5);
        Self {
            seed,
            delay: (random.below(3), 3 + random.choose(&[0, 5, 30, 200])),
            completion_lag: random.choose(&[0, 1, 10, 100]),
            pieces: random.choose(&[1, 2, 5]),
            shuffle: true,
            queue_depth: random.choose(&[1, 2, 7, 32, 256]),
            busy: random.choose(&[0, 0, 50, 300]),
            buffered: random.choose(&[0, 200, 1000]),
            bytes_per_tick: random.choose(&[None, None, Some(500), Some(20_000)]),
            ..Self::ordered()
        }
    }
}

/// A link that carries nothing from a tick on. What has not landed by then is lost; so is the acknowledgement of what has,
/// when the way back is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The node that nothing comes from.
    pub from: u32,
    /// The node that nothing comes to.
    pub to: u32,
    /// Whether the other direction is cut too.
    pub both: bool,
    /// From this tick on.
    pub at: u64,
    /// Ticks from a loss to the writer's `Failed`; `None` for silence, which keeps the write's place in the queue for good.
    pub fail_after: Option<u64>,
}

/// A node that stands still: its polls give nothing, and nothing lands there or leaves. All is held until the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The node.
    pub node: u32,
    /// First tick.
    pub from: u64,
    /// First tick after it.
    pub until: u64,
}

/// What a network did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes posted.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Posts answered with `Busy`.
    pub busy: u64,
    /// `Arrived` completions, duplicates among them.
    pub arrived: u64,
    /// `Sent` completions.
    pub sent: u64,
    /// `Failed` completions.
    pub failed: u64,
    /// Second `Arrived` completions of one write.
    pub duplicates: u64,
    /// Writes whose payload did not land whole, or whose acknowledgement was lost.
    pub lost: u64,
    /// Most writes on their way at once.
    pub most_in_flight: u64,
}
