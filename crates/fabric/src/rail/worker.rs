//! The proxy's loop: commands of the rank become writes, arrivals become flags.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expertrail_core::hop::immediate::{Channel, SEQUENCES, low_epoch, low_sequence};
use expertrail_core::hop::immediate::{Immediate, Kind};
use expertrail_core::hop::stream::{Receiver, Sender, StreamError};

use super::counters::Counters;
use super::flags::Flags;
use super::layout::{CHANNELS, RailLayout, STATUS_BYTES, WORD_BYTES};
use super::proxy::Listener;
use crate::error::{FabricError, Result};
use crate::ring::{Command, Consumer, Kind as CommandKind, LENGTH_UNIT};
use crate::ring_memory::RingMemory;
use crate::transport::{Completion, Memory, PeerId, Posted, RegionId, RemoteRegion, Transport, Write};
use crate::wake::Wake;

/// The slot field of a stop that waits for no farewells: the communicator has failed.
pub const STOP_AT_ONCE: u32 = 1;

/// Completions read at once.
const BATCH: usize = 64;

/// Writes that only control may use, out of the transport's queue: credits then never wait behind rows.
const RESERVED: usize = 16;

/// How long a proxy that is told to stop goes on for what it still has to send, and for its peers' farewells.
const DRAIN: Duration = Duration::from_secs(2);

/// The same after a failure: words to the living leave at once, and those to a dead or stopped peer may never.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How often a proxy with nothing to do looks whether its rank has been waiting for long.
const LOOK: Duration = Duration::from_millis(50);

/// Polls that find nothing, then yields, before a proxy sleeps: with a core for every rank and proxy some 100 us, which is
/// most waits within a call.
const SPINS: (u32, u32) = (2_000, 64);

/// The same where cores are shared: whatever it polls away, the rank it polls for lacks.
const NO_SPINS: (u32, u32) = (2, 1);

/// The longest sleep. Network and rank end it; what has neither (a peer's process that died) waits so long.
const SLEEP: Duration = Duration::from_millis(10);

/// The longest sleep while writes wait to be taken by the transport.
const RETRY: Duration = Duration::from_micros(50);

/// The way to one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) peer: PeerId,
    pub(super) region: RemoteRegion,
}

/// Everything the thread owns.
pub(super) struct Worker {
    pub(super) transport: Box<dyn Transport>,
    pub(super) commands: Consumer<RingMemory>,
    pub(super) node: usize,
    pub(super) layout: RailLayout,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) region: RegionId,
    /// By node; none for the own one.
    pub(super) remotes: Vec<Option<Remote>>,
    pub(super) flags: Arc<Flags>,
    pub(super) counters: Arc<Counters>,
    pub(super) listener: Box<dyn Listener>,
    pub(super) spin: bool,
    pub(super) state: State,
}

/// What changes.
pub(super) struct State {
    /// `[channel][node]`
    senders: Vec<Vec<Sender>>,
    receivers: Vec<Vec<Receiver>>,
    /// Headers, credits, farewells: they go first.
    control: VecDeque<(usize, Write)>,
    /// Chunks; never more than there are outgoing slots.
    chunks: VecDeque<(usize, Write)>,
    in_flight: usize,
    completions: Vec<Completion>,
    published: bool,
    /// No more commands are taken; what was taken is still sent.
    stopping: bool,
    /// The end waits for nobody's farewell.
    at_once: bool,
    /// For whom the rank waits, as the peers were told last, and when that was looked at.
    waits: u64,
    looked: Instant,
}

impl State {
    /// # Errors
    /// A window that the immediate's sequence numbers do not allow.
    pub(super) fn new(nodes: usize, window: usize) -> Result<Self> {
        let refused = |error: StreamError| FabricError::Argument { what: error.to_string() };
        let (sender, receiver) =
            (Sender::new(window).map_err(refused)?, Receiver::new(window).map_err(refused)?);
        Ok(Self {
            senders: vec![vec![sender; nodes]; CHANNELS],
            receivers: vec![vec![receiver; nodes]; CHANNELS],
            control: VecDeque::new(),
            chunks: VecDeque::new(),
            in_flight: 0,
            completions: Vec::with_capacity(BATCH),
            published: false,
            stopping: false,
            at_once: false,
            waits: 0,
            looked: Instant::now(),
        })
    }
}

/// A write's context: whose it is, and which outgoing slot it empties.
const NO_SLOT: u64 = u32::MAX as u64;

/// Bytes of a command.
fn length(command: &Command) -> usize {
    command.length as usize * LENGTH_UNIT as usize
}

/// The sequence number at or above `low` with these low bits.
fn whole(low: u64, sequence: u16) -> u64 {
    low + (u64::from(sequence).wrapping_sub(low) & (SEQUENCES - 1))
}

fn context(node: usize, slot: u64) -> u64 {
    (node as u64) << 32 | slot
}

impl Worker {
    /// `wake` is rung by the rank with each command.
    pub(super) fn run(mut self, wake: &Arc<Wake>) -> Result<()> {
        let mut idle = 0;
        let mut until = None;
        loop {
            let worked = self.turn();
            Counters::add(&self.counters.turns, 1);
            if worked {
                Counters::add(&self.counters.working_turns, 1);
                idle = 0;
            } else {
                idle += 1;
                if self.rest(idle, wake) {
                    idle = 0;
                }
            }
            if self.state.stopping {
                let most = if self.state.at_once { LAST_WORDS } else { DRAIN };
                let until = *until.get_or_insert_with(|| Instant::now() + most);
                let drained = !worked && self.state.in_flight == 0 && self.is_empty() && self.may_leave();
                if drained || Instant::now() >= until {
                    return self.transport.close();
                }
            }
        }
    }

    /// A write that has left this endpoint may not have arrived: whoever closes then takes it away from a peer that still
    /// waits for it. A peer that has said goodbye waits for nothing, and neither does one of a failed communicator.
    fn may_leave(&self) -> bool {
        self.state.at_once
            || (0..self.remotes.len()).all(|node| node == self.node || !self.flags.is_open(node))
    }

    fn is_empty(&self) -> bool {
        self.state.control.is_empty() && self.state.chunks.is_empty()
    }

    /// One turn; says whether there was anything to do.
    pub(super) fn turn(&mut self) -> bool {
        let mut worked = self.poll();
        while !self.state.stopping {
            match self.commands.try_pop() {
                Ok(Some(command)) => self.take(&command),
                Ok(None) => break,
                Err(error) => {
                    // Nothing of this rank can be trusted any more: peers hear of it when it says so or is gone.
                    self.broken_for_all(&FabricError::Argument { what: error.to_string() });
                    self.state.stopping = true;
                }
            }
            worked = true;
        }
        worked |= self.post();
        if std::mem::take(&mut self.state.published) {
            self.listener.wake();
        }
        worked
    }

    /// A proxy that has found nothing `idle` times in a row spins, then gives its core away, then sleeps until the network or
    /// its rank wakes it. Says whether there was something after all.
    fn rest(&mut self, idle: u32, wake: &Arc<Wake>) -> bool {
        let (spins, yields) = if self.spin { SPINS } else { NO_SPINS };
        if idle < spins {
            std::hint::spin_loop();
            return false;
        }
        if idle < spins + yields {
            std::thread::yield_now();
            return false;
        }
        Counters::add(&self.counters.sleeps, 1);
        self.tell_waits();
        wake.announce();
        // Whoever gave a command before it could see the announcement does not ring.
        let worked = self.turn();
        if !worked {
            // A write that the transport did not take is tried again soon: nothing tells when it would.
            let most = if self.is_empty() { SLEEP } else { RETRY };
            if let Err(error) = self.transport.wait_or(most, wake) {
                self.broken_for_all(&error);
                std::thread::sleep(RETRY);
            }
        }
        wake.awake();
        worked
    }

    /// Tells the peers for whom this rank waits, when that has changed: whoever waits for this rank then knows whom to
    /// blame.
    fn tell_waits(&mut self) {
        if self.state.stopping || self.state.looked.elapsed() < LOOK {
            return;
        }
        self.state.looked = Instant::now();
        let word = self.listener.waits();
        if std::mem::replace(&mut self.state.waits, word) == word {
            return;
        }
        // SAFETY: the layout places an aligned word there, which this thread alone writes.
        unsafe { self.memory.base().add(self.layout.out_waits()).cast::<u64>().write_volatile(word) };
        let own = self.node;
        for node in (0..self.remotes.len()).filter(|node| *node != own) {
            let place = (self.layout.out_waits(), self.layout.waits(own), WORD_BYTES / 2);
            // A word for messages, as a failure is; the channel tells them apart.
            let immediate = Immediate {
                kind: Kind::Poison,
                channel: Channel::Combine,
                source: own as u16,
                sequence: 0,
                epoch: 0,
            };
            self.queue(node, place, immediate, NO_SLOT);
        }
    }

    fn poll(&mut self) -> bool {
        let mut completions = std::mem::take(&mut self.state.completions);
        completions.clear();
        let found = match self.transport.poll(&mut completions) {
            Ok(found) => found,
            Err(error) => {
                self.broken_for_all(&error);
                0
            }
        };
        for completion in completions.drain(..) {
            match completion {
                Completion::Sent { context } => self.sent(context),
                Completion::Arrived { immediate } => {
                    Counters::add(&self.counters.arrivals, 1);
                    self.arrived(immediate);
                }
                Completion::Failed { context, error } => {
                    Counters::add(&self.counters.failed, 1);
                    self.sent(context);
                    self.broken((context >> 32) as usize, error);
                }
            }
        }
        self.state.completions = completions;
        found > 0
    }

    fn sent(&mut self, context: u64) {
        self.state.in_flight = self.state.in_flight.saturating_sub(1);
        let slot = context & 0xFFFF_FFFF;
        if slot != NO_SLOT && (slot as usize) < self.layout.sizes().outgoing {
            self.flags.has_left(slot as usize);
            self.state.published = true;
        }
    }

    fn broken(&mut self, node: usize, error: FabricError) {
        if node < self.remotes.len() {
            self.flags.broken(node, error);
            self.state.published = true;
        }
    }

    fn broken_for_all(&mut self, error: &FabricError) {
        for node in 0..self.remotes.len() {
            if node != self.node {
                self.broken(node, error.clone());
            }
        }
    }

    fn arrived(&mut self, word: u32) {
        let Ok(immediate) = Immediate::decode(word) else {
            let what = format!("an arrival with the immediate {word:#010x}, which stands for nothing");
            self.broken_for_all(&FabricError::Argument { what });
            return;
        };
        let node = usize::from(immediate.source);
        if node >= self.remotes.len() || node == self.node {
            let what = format!("an arrival from node {node}, of {} nodes", self.remotes.len());
            self.broken_for_all(&FabricError::Argument { what });
            return;
        }
        self.state.published = true;
        self.flags.heard_from(node);
        let channel = immediate.channel as usize;
        let fresh = match immediate.kind {
            Kind::Header => self.flags.header_arrived(node, immediate.epoch),
            Kind::Status => self.flags.status_arrived(node, immediate.epoch),
            Kind::Chunk => return self.chunk_arrived(channel, node, immediate.sequence),
            Kind::Credit => return self.credit_arrived(channel, node, immediate.sequence),
            Kind::Poison if immediate.channel == Channel::Combine => {
                self.listener.told_waits(node, self.word_at(self.layout.waits(node)));
                true
            }
            Kind::Poison => {
                self.listener.told(node, self.word_at(self.layout.word(node)));
                true
            }
            Kind::Bye => {
                self.flags.left(node);
                true
            }
        };
        if !fresh {
            self.duplicate(node, format!("{:?} of call {} (low bits)", immediate.kind, immediate.epoch));
        }
    }

    fn duplicate(&mut self, node: usize, what: String) {
        Counters::add(&self.counters.duplicates, 1);
        self.broken(node, FabricError::Repeated { node, what });
    }

    fn chunk_arrived(&mut self, channel: usize, node: usize, sequence: u16) {
        let Some(receiver) = self.state.receivers.get_mut(channel).map(|nodes| &mut nodes[node]) else {
            let what = format!("a chunk of channel {channel}, which does not exist");
            return self.broken(node, FabricError::Argument { what });
        };
        match receiver.arrive(sequence) {
            Ok(sequence) => self.flags.chunk_arrived(channel, node, sequence),
            Err(error) => self.duplicate(node, format!("chunk ({error})")),
        }
    }

    fn credit_arrived(&mut self, channel: usize, node: usize, sequence: u16) {
        let Some(sender) = self.state.senders.get_mut(channel).map(|nodes| &mut nodes[node]) else {
            let what = format!("a credit of channel {channel}, which does not exist");
            return self.broken(node, FabricError::Argument { what });
        };
        match sender.credit(sequence) {
            Ok(_) => {
                let floor = sender.floor();
                self.flags.set_credited(channel, node, floor);
            }
            Err(error) => self.duplicate(node, format!("credit ({error})")),
        }
    }

    /// A word that a peer has written at `place`.
    fn word_at(&self, place: usize) -> u64 {
        // SAFETY: the layout places an aligned word there; the peer's write has completed.
        unsafe { self.memory.base().add(place).cast::<u64>().read_volatile() }
    }

    /// Turns a command into writes that wait to be posted.
    fn take(&mut self, command: &Command) {
        let node = usize::from(command.peer);
        let epoch = u64::from(command.epoch);
        let (kind, from, to, bytes) = match command.kind {
            CommandKind::Write => return self.take_chunk(command),
            CommandKind::Credit => return self.take_credit(command),
            CommandKind::Stop => {
                self.state.at_once = command.slot == STOP_AT_ONCE;
                return self.say_goodbye();
            }
            // A rank sees what has left in the flags of its outgoing slots: there is nothing to add.
            CommandKind::Flush => return,
            CommandKind::Header => {
                let bytes = length(command);
                (
                    Kind::Header,
                    self.layout.out_header(node, epoch),
                    self.layout.header(self.node, epoch),
                    bytes,
                )
            }
            CommandKind::Status => (
                Kind::Status,
                self.layout.out_status(node, epoch),
                self.layout.status(self.node, epoch),
                STATUS_BYTES,
            ),
            CommandKind::Poison => {
                (Kind::Poison, self.layout.out_word(), self.layout.word(self.node), WORD_BYTES)
            }
        };
        let immediate = Immediate { kind, sequence: 0, ..self.immediate(command) };
        self.queue(node, (from, to, bytes), immediate, NO_SLOT);
    }

    /// The last command: every peer hears that no more calls come.
    fn say_goodbye(&mut self) {
        let own = self.node;
        for node in (0..self.remotes.len()).filter(|node| *node != own) {
            let place = (self.layout.out_word(), self.layout.sink(self.node), WORD_BYTES);
            let immediate = Immediate {
                kind: Kind::Bye,
                channel: Channel::Dispatch,
                source: self.node as u16,
                sequence: 0,
                epoch: 0,
            };
            self.queue(node, place, immediate, NO_SLOT);
        }
        self.state.stopping = true;
    }

    fn take_chunk(&mut self, command: &Command) {
        let (node, channel) = (usize::from(command.peer), usize::from(command.channel));
        let sender = self.state.senders.get_mut(channel).and_then(|nodes| nodes.get_mut(node));
        // The rank has looked at the credits before it gave the command; the low bits must agree.
        let sequence =
            sender.and_then(Sender::send).filter(|sequence| low_sequence(*sequence) == command.sequence);
        let Some(sequence) = sequence else {
            let what = format!("chunk {} for node {node} was given without a credit", command.sequence);
            return self.broken(node, FabricError::Argument { what });
        };
        let slot = command.slot as usize;
        let place =
            (self.layout.out_chunk(slot), self.layout.chunk(channel, self.node, sequence), length(command));
        let immediate = Immediate { kind: Kind::Chunk, ..self.immediate(command) };
        self.queue(node, place, immediate, slot as u64);
    }

    fn take_credit(&mut self, command: &Command) {
        let (node, channel) = (usize::from(command.peer), usize::from(command.channel));
        if let Some(receiver) = self.state.receivers.get_mut(channel).and_then(|nodes| nodes.get_mut(node))
            && let Err(error) = receiver.consume(whole(receiver.low(), command.sequence))
        {
            let what = format!("a chunk of node {node} was given back wrongly: {error}");
            return self.broken(node, FabricError::Argument { what });
        }
        let place = (self.layout.out_word(), self.layout.sink(self.node), WORD_BYTES);
        let immediate = Immediate { kind: Kind::Credit, ..self.immediate(command) };
        self.queue(node, place, immediate, NO_SLOT);
    }

    fn immediate(&self, command: &Command) -> Immediate {
        Immediate {
            kind: Kind::Chunk,
            source: self.node as u16,
            sequence: command.sequence,
            epoch: low_epoch(u64::from(command.epoch)),
            channel: if command.channel == Channel::Combine as u8 {
                Channel::Combine
            } else {
                Channel::Dispatch
            },
        }
    }

    fn queue(
        &mut self,
        node: usize,
        (from, to, bytes): (usize, usize, usize),
        immediate: Immediate,
        slot: u64,
    ) {
        let Some(Some(remote)) = self.remotes.get(node) else { return };
        let immediate = match immediate.encode() {
            Ok(word) => word,
            // Fields come from checked sizes: this is an error of the rank's, told where the rank looks.
            Err(error) => return self.broken(node, FabricError::Argument { what: error.to_string() }),
        };
        let write = Write {
            peer: remote.peer,
            local: self.region,
            local_offset: from as u64,
            remote: remote.region,
            remote_offset: to as u64,
            bytes: bytes as u64,
            immediate,
            context: context(node, slot),
        };
        let queue = if slot == NO_SLOT { &mut self.state.control } else { &mut self.state.chunks };
        queue.push_back((node, write));
    }

    /// Posts what waits: control first, then chunks as long as control keeps its share of the queue.
    fn post(&mut self) -> bool {
        let depth = self.transport.capabilities().queue_depth.max(2);
        let reserved = RESERVED.min(depth / 2);
        let mut worked = false;
        while let Some(&(node, write)) = self.state.control.front() {
            if !self.try_post(node, &write) {
                return worked;
            }
            self.state.control.pop_front();
            worked = true;
        }
        while let Some(&(node, write)) = self.state.chunks.front() {
            if self.state.in_flight + reserved >= depth || !self.try_post(node, &write) {
                return worked;
            }
            self.state.chunks.pop_front();
            worked = true;
        }
        worked
    }

    /// Whether the write is gone: posted, or dropped because its way is broken.
    fn try_post(&mut self, node: usize, write: &Write) -> bool {
        if matches!(self.flags.way(node), super::flags::Way::Broken(_)) {
            self.state.in_flight += 1;
            self.sent(write.context);
            return true;
        }
        match self.transport.write(write) {
            Ok(Posted::Yes) => {
                self.state.in_flight += 1;
                Counters::add(&self.counters.writes, 1);
                Counters::add(&self.counters.bytes, write.bytes);
                true
            }
            Ok(Posted::Busy) => {
                Counters::add(&self.counters.busy, 1);
                false
            }
            Err(error) => {
                Counters::add(&self.counters.failed, 1);
                self.broken(node, error);
                self.state.in_flight += 1;
                self.sent(write.context);
                true
            }
        }
    }
}
