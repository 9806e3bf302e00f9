//! The network's state and the events that change it. All of it lies behind one lock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use super::plan::{Counts, Cut, Plan};
use super::random::Random;
use crate::error::{FabricError, Result};
use crate::transport::{Completion, Memory, Place, Posted, RegionId, RemoteRegion, Write};
use crate::wake::Wake;

/// Ticks of one wait: enough that a network that takes hundreds of ticks for a write is no matter of hundreds of naps, few
/// enough that a stall of some thousand lasts a while.
const WAIT_TICKS: u32 = 64;

/// Parts of a tick that the throttle counts in, so that small writes cost something.
const TICK_PARTS: u128 = 1 << 20;

/// What POSIX calls the reasons for a failed write; providers give such numbers too.
const TIMED_OUT: i32 = 110;
const GONE: i32 = 104;
const REFUSED: i32 = 13;

#[derive(Debug)]
pub(super) struct State {
    pub(super) plan: Plan,
    pub(super) tick: u64,
    pub(super) counts: Counts,
    random: Random,
    /// Events so far: what puts two of one tick in order.
    caused: u64,
    events: BinaryHeap<Reverse<Event>>,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    ports: Vec<Port>,
    rates: BTreeMap<u32, u64>,
}

/// One endpoint.
#[derive(Debug)]
struct Port {
    node: u32,
    open: bool,
    regions: Vec<Arc<dyn Memory>>,
    /// Ports of the peers, by their number; `None` before `connect`.
    peers: Option<Vec<u32>>,
    /// One bit for each port that is among the peers.
    knows: Vec<u64>,
    completions: VecDeque<Completion>,
    /// Writes posted whose completion no poll has taken.
    posted: usize,
    /// When its link is free again, in parts of a tick.
    link_free: u128,
    /// Whom to wake when there are completions.
    wake: Option<Arc<Wake>>,
}

impl Port {
    fn complete(&mut self, completion: Completion) {
        self.completions.push_back(completion);
        if let Some(wake) = &self.wake {
            wake.wake();
        }
    }
}

/// A write on its way.
#[derive(Debug)]
struct Flight {
    from: u32,
    to: u32,
    write: Write,
    /// The payload, when the network took it at the post.
    buffer: Option<Box<[u8]>>,
    pieces: u32,
    left: u32,
    lost: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    tick: u64,
    tie: u64,
    caused: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A piece of a payload lands.
    Piece { flight: u32, index: u32 },
    /// A port learns an immediate.
    Arrived { port: u32, immediate: u32 },
    /// A port learns that a write of its own to `peer`, which is `to`, is done. `acknowledged` by the peer, or taken at the
    /// post.
    Sent { port: u32, to: u32, peer: u32, context: u64, acknowledged: bool },
    /// A port learns that a write of its own failed.
    Failed { port: u32, peer: u32, context: u64, why: Why },
}

/// Why a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    Cut,
    Gone,
    Unknown,
    Region,
}

impl Why {
    fn error(self, peer: u32) -> FabricError {
        let (reason, code) = match self {
            Self::Cut => ("the link is cut", TIMED_OUT),
            Self::Gone => ("the peer's endpoint is closed", GONE),
            Self::Unknown => ("the peer has not connected to this endpoint", REFUSED),
            Self::Region => ("the peer has no such region, or it is shorter", REFUSED),
        };
        FabricError::Peer { peer, provider: "sim".to_owned(), reason: reason.to_owned(), code }
    }
}

fn argument<T>(what: String) -> Result<T> {
    Err(FabricError::Argument { what })
}

impl State {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            random: Random::new(plan.seed),
            plan,
            tick: 0,
            counts: Counts::default(),
            caused: 0,
            events: BinaryHeap::new(),
            flights: Vec::new(),
            free: Vec::new(),
            ports: Vec::new(),
            rates: BTreeMap::new(),
        }
    }

    pub(super) fn open(&mut self, node: u32) -> u32 {
        self.ports.push(Port {
            node,
            open: true,
            regions: Vec::new(),
            peers: None,
            knows: Vec::new(),
            completions: VecDeque::new(),
            posted: 0,
            link_free: 0,
            wake: None,
        });
        self.ports.len() as u32 - 1
    }

    /// Closes a port and gives back its memory. What it posted and the network had not taken is lost without a word.
    pub(super) fn shut(&mut self, port: u32) -> Vec<Arc<dyn Memory>> {
        let Some(port) = self.ports.get_mut(port as usize) else { return Vec::new() };
        port.open = false;
        port.completions = VecDeque::new();
        port.wake = None;
        (port.peers, port.knows) = (None, Vec::new());
        std::mem::take(&mut port.regions)
    }

    pub(super) fn has(&self, port: u32) -> bool {
        (port as usize) < self.ports.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn throttle(&mut self, node: u32, bytes_per_tick: Option<u64>) {
        match bytes_per_tick {
            Some(rate) => self.rates.insert(node, rate),
            None => self.rates.remove(&node),
        };
    }

    pub(super) fn register(
        &mut self,
        port: u32,
        memory: Arc<dyn Memory>,
    ) -> Result<(RegionId, RemoteRegion)> {
        if memory.place() != Place::Host {
            return Err(FabricError::Unsuitable {
                provider: "sim".to_owned(),
                lacks: "it reaches host memory only, and this region lies on a GPU".to_owned(),
            });
        }
        let regions = &mut self.ports[port as usize].regions;
        let (id, bytes) = (regions.len() as u32, memory.bytes() as u64);
        regions.push(memory);
        Ok((RegionId(id), RemoteRegion { key: key(port, id), base: 0, bytes }))
    }

    pub(super) fn connect(&mut self, port: u32, peers: Vec<u32>) -> Result<()> {
        let words = self.ports.len().div_ceil(64);
        let port = &mut self.ports[port as usize];
        if port.peers.is_some() {
            return argument("this endpoint is connected: connect is called once, with all peers".to_owned());
        }
        port.knows = vec![0; words];
        for &peer in &peers {
            port.knows[peer as usize / 64] |= 1 << (peer % 64);
        }
        port.peers = Some(peers);
        Ok(())
    }

    pub(super) fn post(&mut self, from: u32, write: &Write) -> Result<Posted> {
        let port = &self.ports[from as usize];
        let to = check(port, write, self.plan.max_message)?;
        if port.posted >= self.plan.queue_depth.max(1) || self.random.chance(self.plan.busy) {
            self.counts.busy += 1;
            return Ok(Posted::Busy);
        }
        let memory = &port.regions[write.local.0 as usize];
        let buffered = self.random.chance(self.plan.buffered);
        let buffer = buffered.then(|| {
            let mut taken = vec![0; write.bytes as usize].into_boxed_slice();
            // SAFETY: `check` found the range inside of the region, which `Memory` keeps readable.
            unsafe { copy(memory.base().add(write.local_offset as usize), taken.as_mut_ptr(), taken.len()) };
            taken
        });
        let earliest = self.leave(from, write.bytes).saturating_add(self.plan.delay.0);
        let pieces = (self.random.below(u64::from(self.plan.pieces.max(1))) + 1).min(write.bytes) as u32;
        self.ports[from as usize].posted += 1;
        self.counts.writes += 1;
        self.counts.bytes += write.bytes;

        let flight = Flight { from, to, write: *write, buffer, pieces, left: pieces, lost: false };
        let slot = self.keep(flight);
        let landed = self.between(earliest, self.plan.delay.1.saturating_sub(self.plan.delay.0));
        for index in 0..pieces {
            let at = if index == 0 { landed } else { self.between(earliest, landed - earliest) };
            self.cause(at, What::Piece { flight: slot, index });
        }
        if self.plan.early_completion {
            let at = self.between(self.tick, landed - self.tick);
            self.cause(at, What::Arrived { port: to, immediate: write.immediate });
        }
        if buffered {
            let (peer, context) = (write.peer.0, write.context);
            let at = self.between(self.tick, self.plan.completion_lag);
            self.cause(at, What::Sent { port: from, to, peer, context, acknowledged: false });
        }
        Ok(Posted::Yes)
    }

    pub(super) fn advance(&mut self) -> u64 {
        self.tick += 1;
        while self.events.peek().is_some_and(|next| next.0.tick <= self.tick) {
            if let Some(Reverse(event)) = self.events.pop() {
                self.happen(event.what);
            }
        }
        self.tick
    }

    /// An endpoint waits: time passes until there is something for it, but not without end. Says whether there is.
    pub(super) fn pass(&mut self, port: u32) -> bool {
        for _ in 0..WAIT_TICKS {
            if !self.ports[port as usize].completions.is_empty() && self.held(port).is_none() {
                return true;
            }
            if self.is_idle() {
                return false;
            }
            self.advance();
        }
        false
    }

    /// Whom to wake when `port` has completions.
    pub(super) fn ring(&mut self, port: u32, wake: &Arc<Wake>) {
        let known = &mut self.ports[port as usize].wake;
        if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, wake)) {
            *known = Some(wake.clone());
        }
    }

    pub(super) fn take(&mut self, port: u32, out: &mut Vec<Completion>, most: usize) -> usize {
        if self.held(port).is_some() {
            return 0;
        }
        let port = &mut self.ports[port as usize];
        let count = most.min(port.completions.len());
        for completion in port.completions.drain(..count) {
            if !matches!(completion, Completion::Arrived { .. }) {
                port.posted -= 1;
            }
            out.push(completion);
        }
        count
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Piece { flight, index } => self.land(flight, index),
            What::Arrived { port, immediate } => {
                if let Some(until) = self.held(port) {
                    return self.cause(until, what);
                }
                if self.ports[port as usize].open {
                    self.counts.arrived += 1;
                    self.ports[port as usize].complete(Completion::Arrived { immediate });
                }
            }
            What::Sent { port, to, peer, context, acknowledged } => {
                if acknowledged && let Some(cut) = self.cut(to, port) {
                    self.counts.lost += 1;
                    return self.fail((port, peer, context), cut.fail_after, Why::Cut);
                }
                self.counts.sent += 1;
                self.complete(port, Completion::Sent { context });
            }
            What::Failed { port, peer, context, why } => {
                self.counts.failed += 1;
                self.complete(port, Completion::Failed { context, error: why.error(peer) });
            }
        }
    }

    fn complete(&mut self, port: u32, completion: Completion) {
        let port = &mut self.ports[port as usize];
        if port.open {
            port.complete(completion);
        }
    }

    /// A piece lands or is lost; after the last one the completions follow.
    fn land(&mut self, slot: u32, index: u32) {
        let Some(mut flight) = self.flights[slot as usize].take() else { return };
        if let Some(until) = self.held(flight.to).max(self.held(flight.from)) {
            self.flights[slot as usize] = Some(flight);
            return self.cause(until, What::Piece { flight: slot, index });
        }
        if !flight.lost
            && let Err((why, after)) = self.copy_piece(&flight, index)
        {
            flight.lost = true;
            self.counts.lost += 1;
            // Whoever was told `Sent` hears nothing more of it.
            if flight.buffer.is_none() {
                let write = &flight.write;
                self.fail((flight.from, write.peer.0, write.context), after, why);
            }
        }
        flight.left -= 1;
        if flight.left > 0 {
            self.flights[slot as usize] = Some(flight);
            return;
        }
        self.free.push(slot);
        if !flight.lost {
            self.landed(&flight);
        }
    }

    fn landed(&mut self, flight: &Flight) {
        let Write { immediate, context, peer, .. } = flight.write;
        let arrived = What::Arrived { port: flight.to, immediate };
        if !self.plan.early_completion {
            let at = self.between(self.tick, self.plan.completion_lag);
            self.cause(at, arrived);
        }
        if self.random.chance(self.plan.duplicate) {
            self.counts.duplicates += 1;
            let at = self.between(self.tick, self.plan.completion_lag.max(self.plan.delay.1));
            self.cause(at, arrived);
        }
        if flight.buffer.is_none() {
            let at = self.between(self.tick, self.plan.completion_lag);
            let (port, to) = (flight.from, flight.to);
            self.cause(at, What::Sent { port, to, peer: peer.0, context, acknowledged: true });
        }
    }

    /// Copies one piece, or says why not and when the writer learns it.
    fn copy_piece(&self, flight: &Flight, index: u32) -> std::result::Result<(), (Why, Option<u64>)> {
        let (from, to) = (&self.ports[flight.from as usize], &self.ports[flight.to as usize]);
        let write = &flight.write;
        if let Some(cut) = self.cut(flight.from, flight.to) {
            return Err((Why::Cut, cut.fail_after));
        }
        if !to.open {
            return Err((Why::Gone, self.plan.gone_after));
        }
        if to.knows.get(flight.from as usize / 64).is_none_or(|word| word >> (flight.from % 64) & 1 == 0) {
            return Err((Why::Unknown, self.plan.gone_after));
        }
        let region = write.remote.key.checked_sub(key(flight.to, 0));
        let region = region.and_then(|id| to.regions.get(usize::try_from(id).ok()?));
        let region = region.filter(|region| inside(write.remote_offset, write.bytes, region.bytes() as u64));
        let Some(region) = region else { return Err((Why::Region, Some(0))) };

        let piece = |index: u32| u64::from(index) * write.bytes / u64::from(flight.pieces);
        let (start, end) = (piece(index) as usize, piece(index + 1) as usize);
        // SAFETY: the range is inside of the region by the comparison above, and `Memory` keeps it writable.
        let target = unsafe { region.base().add(write.remote_offset as usize + start) };
        let source = match &flight.buffer {
            Some(buffer) => buffer[start..end].as_ptr(),
            // Its writer is gone, and with it the memory.
            None if !from.open => return Err((Why::Gone, None)),
            None => {
                let base = from.regions[write.local.0 as usize].base();
                // SAFETY: `check` found the range inside of the region, which cannot change while the port is open.
                unsafe { base.add(write.local_offset as usize + start) }
            }
        };
        // SAFETY: both ranges are inside of memory that lives (above).
        unsafe { copy(source, target, end - start) };
        Ok(())
    }

    fn fail(&mut self, (port, peer, context): (u32, u32, u64), after: Option<u64>, why: Why) {
        if let Some(after) = after {
            self.cause(self.tick.saturating_add(after), What::Failed { port, peer, context, why });
        }
    }

    fn cause(&mut self, tick: u64, what: What) {
        self.caused += 1;
        let tie = if self.plan.shuffle { self.random.next_u64() } else { 0 };
        self.events.push(Reverse(Event { tick, tie, caused: self.caused, what }));
    }

    fn between(&mut self, first: u64, more: u64) -> u64 {
        first.saturating_add(if more == 0 { 0 } else { self.random.below(more.saturating_add(1)) })
    }

    /// The tick when the last byte of a write has left, which is now where nothing throttles.
    fn leave(&mut self, from: u32, bytes: u64) -> u64 {
        let port = &mut self.ports[from as usize];
        let Some(rate) = self.rates.get(&port.node).copied().or(self.plan.bytes_per_tick) else {
            return self.tick;
        };
        let start = port.link_free.max(u128::from(self.tick) * TICK_PARTS);
        port.link_free = start + u128::from(bytes) * TICK_PARTS / u128::from(rate.max(1));
        u64::try_from(port.link_free.div_ceil(TICK_PARTS)).unwrap_or(u64::MAX)
    }

    fn keep(&mut self, flight: Flight) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() as u32 - 1
        });
        self.flights[slot as usize] = Some(flight);
        let in_flight = (self.flights.len() - self.free.len()) as u64;
        self.counts.most_in_flight = self.counts.most_in_flight.max(in_flight);
        slot
    }

    /// The first tick after the stall that holds this port now.
    fn held(&self, port: u32) -> Option<u64> {
        let node = self.ports[port as usize].node;
        let stalls = self.plan.stalls.iter();
        stalls.filter(|s| s.node == node && (s.from..s.until).contains(&self.tick)).map(|s| s.until).max()
    }

    fn cut(&self, from: u32, to: u32) -> Option<Cut> {
        let (from, to) = (self.ports[from as usize].node, self.ports[to as usize].node);
        let severs = |cut: &&Cut| {
            let there = (cut.from, cut.to) == (from, to) || cut.both && (cut.from, cut.to) == (to, from);
            there && cut.at <= self.tick
        };
        self.plan.cuts.iter().find(severs).copied()
    }
}

/// A region's key names its port too, so that a write with another peer's key fails.
fn key(port: u32, region: u32) -> u64 {
    u64::from(port) << 32 | u64::from(region)
}

fn inside(offset: u64, bytes: u64, of: u64) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= of)
}

/// The peer's port, when the write is one that may be posted.
fn check(port: &Port, write: &Write, max_message: u64) -> Result<u32> {
    let Write { peer, local, local_offset, remote, remote_offset, bytes, .. } = *write;
    let Some(peers) = &port.peers else {
        return argument("a write before connect: connect this endpoint to its peers first".to_owned());
    };
    let Some(&to) = peers.get(peer.0 as usize) else {
        return argument(format!("a write to peer {} of {}", peer.0, peers.len()));
    };
    let Some(region) = port.regions.get(local.0 as usize) else {
        return argument(format!("a write from region {}, which is not registered here", local.0));
    };
    if bytes == 0 || bytes > max_message {
        return argument(format!("a write of {bytes} bytes; the fabric takes 1 to {max_message}"));
    }
    let own = region.bytes() as u64;
    for (side, offset, room) in [("local", local_offset, own), ("remote", remote_offset, remote.bytes)] {
        if !inside(offset, bytes, room) {
            return argument(format!(
                "a write of {bytes} bytes at {offset} of a {side} region that has {room} bytes"
            ));
        }
    }
    Ok(to)
}

/// Copies bytes that may overlap: an endpoint may write to itself.
///
/// # Safety
/// Both ranges lie in memory that may be read or written.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from, to, bytes) };
}
