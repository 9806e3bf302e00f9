//! What a transport does by itself: the rate of plain writes, and the latency of one, between endpoints that take turns by
//! somebody else's signal (a group's barrier). No protocol of the library's is involved, so that the protocol can be
//! measured against it.
//!
//! As everywhere, nothing is inferred from order: a sender says how many writes it made, its receiver counts them and says
//! when all are there, and only then the clock stops.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{FabricError, Result};
use crate::rail::{Pages, RailCard};
use crate::transport::{
    Capabilities, Completion, Memory, PeerId, Posted, RegionId, RemoteRegion, Transport, Write,
};

/// Bytes of control for each participant: how many writes were made (8), then a place that nobody reads.
const CONTROL: usize = 64;
/// Offset of the place that nobody reads, in a participant's control.
const SINK: usize = 8;
/// Bytes of a ping and of every message of control.
const SMALL: u64 = 8;
/// Sources that have memory of their own to write to. More of them share it: nobody reads what arrives there.
const AREAS: usize = 8;
/// Completions read at once.
const BATCH: usize = 64;
/// How long an endpoint goes on polling after its part: a peer may still need it to make progress.
const LINGER: Duration = Duration::from_millis(3);

/// Sizes of a measurement; equal at all participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureSizes {
    /// Endpoints, this one included; at most 65,536.
    pub participants: usize,
    /// Bytes of a write.
    pub message: usize,
    /// Writes in flight to one peer.
    pub window: usize,
}

impl MeasureSizes {
    fn send(&self, slot: usize) -> usize {
        slot * self.message
    }

    fn areas(&self) -> usize {
        self.participants.clamp(1, AREAS)
    }

    fn receive(&self, source: usize, slot: usize) -> usize {
        (self.window * (1 + source % self.areas()) + slot) * self.message
    }

    fn control_out(&self, peer: usize) -> usize {
        (self.window * (1 + self.areas()) * self.message).next_multiple_of(CONTROL) + peer * CONTROL
    }

    fn control_in(&self, source: usize) -> usize {
        self.control_out(self.participants + source)
    }

    fn bytes(&self) -> usize {
        self.control_out(2 * self.participants)
    }
}

/// An endpoint with memory to measure with, not yet connected.
#[derive(Debug)]
pub struct MeasureEnd {
    transport: Box<dyn Transport>,
    pages: Arc<Pages>,
    region: RegionId,
    card: RailCard,
    sizes: MeasureSizes,
}

impl MeasureEnd {
    /// Maps and registers the memory.
    ///
    /// # Errors
    /// [`FabricError::Argument`] for a size of zero, and what the system or the provider refuses.
    pub fn new(mut transport: Box<dyn Transport>, sizes: MeasureSizes) -> Result<Self> {
        if sizes.participants == 0
            || sizes.participants > 1 << 16
            || sizes.window == 0
            || sizes.message < SMALL as usize
        {
            let what = format!(
                "a measurement of {} participants, {} writes of {} bytes: between 1 and 65536, at least 1, at least {SMALL}",
                sizes.participants, sizes.window, sizes.message
            );
            return Err(FabricError::Argument { what });
        }
        let pages = Arc::new(Pages::new(sizes.bytes())?);
        // SAFETY: the mapping has as many bytes, and nobody else knows of it yet. Touched now, so that no measurement pays for it.
        unsafe { std::ptr::write_bytes(pages.base(), 1, sizes.bytes()) };
        let (region, remote) = transport.register(pages.clone())?;
        let address = transport.address()?;
        Ok(Self { transport, pages, region, card: RailCard { region: remote, address }, sizes })
    }

    /// What the others must know.
    pub fn card(&self) -> &RailCard {
        &self.card
    }

    /// Connects to all others; `cards[p]` is participant p's, the own one at `me` is not looked at. Nobody may measure
    /// before all have connected.
    ///
    /// # Errors
    /// For another number of cards or one that is too small, and for an address that the provider does not take.
    pub fn connect(mut self, me: usize, cards: &[RailCard]) -> Result<Meter> {
        let small = cards.iter().position(|card| card.region.bytes < self.sizes.bytes() as u64);
        if cards.len() != self.sizes.participants || me >= cards.len() || small.is_some() {
            let what = format!(
                "{} cards for {} participants, or a region that is too small (participant {small:?}): all must measure \
                 with the same sizes",
                cards.len(),
                self.sizes.participants
            );
            return Err(FabricError::Argument { what });
        }
        let others = cards.iter().enumerate().filter(|(other, _)| *other != me);
        let addresses: Vec<Vec<u8>> = others.map(|(_, card)| card.address.clone()).collect();
        if !addresses.is_empty() {
            self.transport.connect(&addresses)?;
        }
        Ok(Meter {
            transport: self.transport,
            pages: self.pages,
            region: self.region,
            sizes: self.sizes,
            me,
            remotes: cards.iter().map(|card| card.region).collect(),
            round: 0,
            idle: 0,
            completions: Vec::with_capacity(BATCH),
        })
    }
}

/// Whom to write to, who writes here, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    /// Participants to write to.
    pub to: &'a [usize],
    /// Participants that write to this one in the same measurement.
    pub from: &'a [usize],
    /// How long new writes are made.
    pub lasts: Duration,
    /// After how long in all the measurement is given up.
    pub deadline: Duration,
}

/// What a stream moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Streamed {
    /// Bytes written by this endpoint.
    pub bytes: u64,
    /// From the start until all of them were known to have arrived.
    pub seconds: f64,
    /// Times that the transport's queue was full.
    pub busy: u64,
}

impl Streamed {
    /// GB/s (1e9 bytes a second) written by this endpoint; 0 when it wrote nothing.
    pub fn gbps(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds / 1e9 } else { 0.0 }
    }
}

/// What an immediate stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data = 1,
    /// No more data comes; how much there was is in memory.
    End = 2,
    /// All data has arrived.
    Whole = 3,
    Ping = 4,
}

/// A connected endpoint.
#[derive(Debug)]
pub struct Meter {
    transport: Box<dyn Transport>,
    pages: Arc<Pages>,
    region: RegionId,
    sizes: MeasureSizes,
    me: usize,
    remotes: Vec<RemoteRegion>,
    /// Number of the measurement: what comes late from a measurement that was given up is dropped.
    round: u8,
    idle: u32,
    completions: Vec<Completion>,
}

/// One completion in the words of this file.
enum Event {
    Sent(Kind, usize),
    Arrived(Kind, usize),
}

#[derive(Clone, Copy, Default)]
struct Outgoing {
    peer: usize,
    posted: u64,
    sent: u64,
    ended: bool,
    whole: bool,
}

#[derive(Clone, Copy, Default)]
struct Incoming {
    source: usize,
    arrived: u64,
    total: Option<u64>,
    told: bool,
}

impl Meter {
    /// What the transport is and can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.transport.capabilities()
    }

    /// Starts measurement `round` (any number that all who take part agree in, another than before).
    pub fn begin(&mut self, round: usize) {
        self.round = round as u8;
        self.idle = 0;
    }

    /// Writes to all of `to` at once, as long as the stream lasts, and takes what comes meanwhile.
    ///
    /// # Errors
    /// [`FabricError::System`] when the deadline passes, naming a participant that was waited for; a write that failed.
    pub fn stream(&mut self, stream: &Stream<'_>) -> Result<Streamed> {
        let started = Instant::now();
        let mut out: Vec<Outgoing> =
            stream.to.iter().map(|&peer| Outgoing { peer, ..Outgoing::default() }).collect();
        let mut coming: Vec<Incoming> =
            stream.from.iter().map(|&source| Incoming { source, ..Incoming::default() }).collect();
        let (mut small, mut done) = (0usize, Streamed::default());
        loop {
            let mut moved = false;
            for event in self.poll()? {
                moved = true;
                match event {
                    Event::Sent(Kind::Data, peer) => {
                        if let Some(out) = out.iter_mut().find(|out| out.peer == peer) {
                            out.sent += 1;
                        }
                    }
                    Event::Sent(..) => small = small.saturating_sub(1),
                    Event::Arrived(kind, source) => {
                        if kind == Kind::Whole {
                            out.iter_mut().filter(|out| out.peer == source).for_each(|out| out.whole = true);
                        } else if let Some(from) = coming.iter_mut().find(|from| from.source == source) {
                            match kind {
                                Kind::Data => from.arrived += 1,
                                _ => from.total = Some(self.count_from(source)),
                            }
                        }
                    }
                }
            }
            let more = started.elapsed() < stream.lasts;
            for out in &mut out {
                let room = (self.sizes.window as u64).saturating_sub(out.posted - out.sent);
                for _ in 0..if more { room } else { 0 } {
                    if !self.write(Kind::Data, out.peer, out.posted)? {
                        done.busy += 1;
                        break;
                    }
                    out.posted += 1;
                    moved = true;
                }
                if !more && !out.ended && out.sent == out.posted {
                    self.set_count(out.peer, out.posted);
                    out.ended = self.write(Kind::End, out.peer, 0)?;
                    small += usize::from(out.ended);
                    moved |= out.ended;
                }
            }
            if out.iter().all(|out| out.whole) && done.seconds == 0.0 {
                done.seconds = started.elapsed().as_secs_f64();
                done.bytes = out.iter().map(|out| out.posted).sum::<u64>() * self.sizes.message as u64;
            }
            for from in &mut coming {
                if !from.told && from.total == Some(from.arrived) {
                    from.told = self.write(Kind::Whole, from.source, 0)?;
                    small += usize::from(from.told);
                    moved |= from.told;
                }
            }
            if done.seconds > 0.0 && coming.iter().all(|from| from.told) && small == 0 {
                self.linger()?;
                return Ok(done);
            }
            if started.elapsed() > stream.deadline {
                return Err(late(started, &out, &coming));
            }
            self.rest(moved);
        }
    }

    /// Sends `rounds` pings of 8 bytes, each after the answer to the one before; gives half the round trips, microseconds.
    ///
    /// # Errors
    /// As [`Meter::stream`].
    pub fn ping(&mut self, peer: usize, rounds: usize, deadline: Duration) -> Result<Vec<f64>> {
        let until = Instant::now() + deadline;
        let mut halves = Vec::with_capacity(rounds);
        let mut flying = 0;
        for _ in 0..rounds {
            let sent = Instant::now();
            self.post_until(peer, &mut flying, until)?;
            self.answer(peer, &mut flying, until)?;
            halves.push(sent.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        self.settle(peer, flying, until)?;
        Ok(halves)
    }

    /// Answers `rounds` pings of `peer`.
    ///
    /// # Errors
    /// As [`Meter::stream`].
    pub fn pong(&mut self, peer: usize, rounds: usize, deadline: Duration) -> Result<()> {
        let until = Instant::now() + deadline;
        let mut flying = 0;
        for _ in 0..rounds {
            self.answer(peer, &mut flying, until)?;
            self.post_until(peer, &mut flying, until)?;
        }
        self.settle(peer, flying, until)
    }

    /// Closes the endpoint; all others must be done too.
    ///
    /// # Errors
    /// What could not be closed.
    pub fn close(self) -> Result<()> {
        self.transport.close()
    }

    /// Posts a ping. While the queue is full, earlier ones leave it, and are counted; no answer can come meanwhile.
    fn post_until(&mut self, peer: usize, flying: &mut usize, until: Instant) -> Result<()> {
        while !self.write(Kind::Ping, peer, 0)? {
            let left = self.poll()?.iter().filter(|event| matches!(event, Event::Sent(..))).count();
            *flying = flying.saturating_sub(left);
            in_time(peer, until)?;
        }
        *flying += 1;
        Ok(())
    }

    /// Waits for one ping of `peer`.
    fn answer(&mut self, peer: usize, flying: &mut usize, until: Instant) -> Result<()> {
        loop {
            let events = self.poll()?;
            let moved = !events.is_empty();
            let mut arrived = false;
            for event in events {
                match event {
                    Event::Sent(..) => *flying = flying.saturating_sub(1),
                    Event::Arrived(Kind::Ping, source) if source == peer => arrived = true,
                    Event::Arrived(..) => {}
                }
            }
            if arrived {
                return Ok(());
            }
            in_time(peer, until)?;
            self.rest(moved);
        }
    }

    /// Waits until the own pings have left.
    fn settle(&mut self, peer: usize, mut flying: usize, until: Instant) -> Result<()> {
        while flying > 0 {
            let sent = self.poll()?.iter().filter(|event| matches!(event, Event::Sent(..))).count();
            flying = flying.saturating_sub(sent);
            in_time(peer, until)?;
            self.rest(sent > 0);
        }
        self.linger()
    }

    fn linger(&mut self) -> Result<()> {
        let until = Instant::now() + LINGER;
        while Instant::now() < until {
            let moved = !self.poll()?.is_empty();
            self.rest(moved);
        }
        Ok(())
    }

    /// Whether the transport took it.
    fn write(&mut self, kind: Kind, peer: usize, number: u64) -> Result<bool> {
        let slot = (number % self.sizes.window as u64) as usize;
        let (from, to, bytes) = match kind {
            Kind::Data => {
                (self.sizes.send(slot), self.sizes.receive(self.me, slot), self.sizes.message as u64)
            }
            Kind::End => (self.sizes.control_out(peer), self.sizes.control_in(self.me), SMALL),
            Kind::Whole | Kind::Ping => {
                (self.sizes.control_out(peer) + SINK, self.sizes.control_in(self.me) + SINK, SMALL)
            }
        };
        let word = (kind as u32) << 24 | u32::from(self.round) << 16;
        let posted = self.transport.write(&Write {
            peer: PeerId((peer - usize::from(peer > self.me)) as u32),
            local: self.region,
            local_offset: from as u64,
            remote: self.remotes[peer],
            remote_offset: to as u64,
            bytes,
            immediate: word | self.me as u32,
            context: u64::from(word | peer as u32),
        })?;
        Ok(posted == Posted::Yes)
    }

    fn set_count(&self, peer: usize, count: u64) {
        // SAFETY: an aligned word of the own mapping, which the transport only reads.
        unsafe {
            let at = self.pages.base().add(self.sizes.control_out(peer)).cast::<u64>();
            at.write_volatile(count.to_le());
        }
    }

    fn count_from(&self, source: usize) -> u64 {
        // SAFETY: an aligned word of the own mapping; the write that filled it has completed.
        u64::from_le(unsafe {
            self.pages.base().add(self.sizes.control_in(source)).cast::<u64>().read_volatile()
        })
    }

    /// What has completed of this measurement.
    fn poll(&mut self) -> Result<Vec<Event>> {
        self.completions.clear();
        self.transport.poll(&mut self.completions)?;
        let mut events = Vec::new();
        for completion in self.completions.drain(..) {
            let (word, sent) = match completion {
                Completion::Sent { context } => (context as u32, true),
                Completion::Arrived { immediate } => (immediate, false),
                Completion::Failed { context, error } if (context >> 16) as u8 == self.round => {
                    return Err(error);
                }
                Completion::Failed { .. } => continue,
            };
            let kind = match word >> 24 {
                1 => Kind::Data,
                2 => Kind::End,
                3 => Kind::Whole,
                4 => Kind::Ping,
                _ => continue,
            };
            let whose = (word & 0xFFFF) as usize;
            if (word >> 16) as u8 == self.round && whose < self.sizes.participants {
                events.push(if sent { Event::Sent(kind, whose) } else { Event::Arrived(kind, whose) });
            }
        }
        Ok(events)
    }

    /// Spins, then gives the core away, then sleeps: there may be fewer cores than endpoints.
    fn rest(&mut self, moved: bool) {
        self.idle = if moved { 0 } else { self.idle.saturating_add(1) };
        match self.idle {
            0..64 => std::hint::spin_loop(),
            64..4096 => std::thread::yield_now(),
            _ => {
                if self.transport.wait(Duration::from_micros(50)).is_err() {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        }
    }
}

fn in_time(peer: usize, until: Instant) -> Result<()> {
    if Instant::now() < until {
        return Ok(());
    }
    Err(FabricError::System {
        what: format!("measuring with participant {peer}"),
        reason: "no answer within the deadline".to_owned(),
    })
}

fn late(started: Instant, out: &[Outgoing], coming: &[Incoming]) -> FabricError {
    let reason = |what: String| format!("{what} after {:.1} s", started.elapsed().as_secs_f64());
    let of = |peer| format!("measuring with participant {peer}");
    if let Some(from) = coming.iter().find(|from| !from.told) {
        let all = from.total.map_or_else(|| "its count has not come".to_owned(), |all| format!("of {all}"));
        let reason = reason(format!("{} of its writes had arrived ({all})", from.arrived));
        return FabricError::System { what: of(from.source), reason };
    }
    let waiting = out.iter().find(|out| !out.whole).copied().unwrap_or_default();
    let reason = reason(format!(
        "{} of {} writes had left, and it has not said that all are there",
        waiting.sent, waiting.posted
    ));
    FabricError::System { what: of(waiting.peer), reason }
}

#[cfg(test)]
mod tests;
