//! Between nodes: this rank's rail, and the steps of a call that cross it.
//!
//! Rank (n, g) talks to the ranks (m, g) of the other nodes only. A call is announced over the rails first and on the node
//! after, so that when a node's ranks have met, each of them knows what every rank of the job has announced.

mod announce;
mod build;
mod combine;
mod dispatch;
mod incoming;
mod outgoing;
mod watch;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use expertrail_core::hop::Limits;
use expertrail_core::hop::immediate::{low_epoch, low_sequence};
use expertrail_core::{Failure, Topology};
use expertrail_fabric::FabricError;
use expertrail_fabric::rail::{Rail, RailStats, STOP_AT_ONCE, Way};
use expertrail_fabric::ring::{Command, Kind, LENGTH_UNIT};

pub(crate) use announce::Announced;
pub use build::{Crossing, RailConfig};
pub(crate) use build::{End, agree, decline, join};
pub(crate) use combine::Run as CombineRun;
pub(crate) use dispatch::Run as DispatchRun;
pub(crate) use watch::Watch;

use crate::error::{Cause, HostError, Result};
use crate::world::{Wait, World};

/// How long a broken way waits for the news that a process died, which names the reason and not only the symptom. Deaths
/// are known within two seconds (DESIGN 6).
const NEWS: Duration = Duration::from_millis(1500);

/// What messages say of the ways between nodes.
#[derive(Clone, Debug)]
pub(crate) struct RailNames {
    topology: Topology,
    own: usize,
    provider: String,
    domain: String,
    /// Ranks on this rank's host, of whatever node: each has a proxy, and all share its cores.
    on_host: usize,
}

impl RailNames {
    /// Threads of the job that share this rank's cores.
    pub(crate) fn threads_on_host(&self) -> usize {
        2 * self.on_host
    }

    /// Where the culprit is, as the end of a failure's message; nothing for a rank of the own node.
    pub(crate) fn describe(&self, failure: &Failure) -> String {
        let node = self.topology.node_of(failure.culprit);
        if failure.culprit >= self.topology.ranks() || node == self.topology.node_of(self.own) {
            return String::new();
        }
        let rail = self.topology.local_rank(failure.culprit);
        format!(
            "; rank {} is on node {node}, reached over rail {rail} ({} {})",
            failure.culprit, self.provider, self.domain
        )
    }
}

/// What a communicator needs to cross nodes; changes from call to call.
#[derive(Debug)]
pub(crate) struct Crossings {
    pub(crate) rail: Rail,
    pub(crate) limits: Limits,
    /// `[channel][node]`: chunks sent so far.
    pub(crate) sent: [Vec<u64>; 2],
    /// `[channel][node]`: chunks received in earlier calls.
    pub(crate) received: [Vec<u64>; 2],
    /// Outgoing slots: how often each was given to the proxy.
    pub(crate) given: Vec<u64>,
    /// Where the search for a free outgoing slot goes on.
    pub(crate) next_slot: usize,
    /// Times that a call found nothing to do and slept.
    pub(crate) stalls: u64,
    /// Whether the others know of the failure that ended the communicator.
    pub(crate) told: bool,
    /// A command that the proxy did not take.
    pub(crate) fault: Option<FabricError>,
}

/// A command to `node` of `bytes` bytes.
fn command(kind: Kind, (channel, node): (usize, usize), bytes: usize, epoch: u64) -> Command {
    Command {
        kind,
        channel: channel as u8,
        peer: node as u16,
        sequence: 0,
        epoch: low_epoch(epoch),
        slot: 0,
        length: bytes.div_ceil(LENGTH_UNIT as usize) as u32,
    }
}

impl Crossings {
    /// Nodes other than the own one, ascending.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rail.node();
        (0..self.rail.layout().sizes().nodes).filter(move |&node| node != own)
    }

    /// An outgoing slot that the proxy is done with.
    pub(crate) fn free_slot(&mut self) -> Option<usize> {
        let slots = self.given.len();
        let found = (0..slots)
            .map(|i| (self.next_slot + i) % slots)
            .find(|&slot| self.rail.flags().sent(slot) == self.given[slot])?;
        self.next_slot = (found + 1) % slots;
        Some(found)
    }

    /// Whether the next chunk for `node` may be written.
    pub(crate) fn has_credit(&self, channel: usize, node: usize) -> bool {
        let window = self.limits.window as u64;
        self.sent[channel][node] < self.rail.flags().credited(channel, node) + window
    }

    /// Gives the proxy the chunk that was packed into outgoing `slot`.
    pub(crate) fn send(&mut self, channel: usize, node: usize, (slot, bytes): (usize, usize), epoch: u64) {
        let sequence = self.sent[channel][node];
        self.sent[channel][node] += 1;
        self.given[slot] += 1;
        let command = Command { slot: slot as u32, ..command(Kind::Write, (channel, node), bytes, epoch) };
        self.push(Command { sequence: low_sequence(sequence), ..command });
    }

    /// Tells `node` that its chunk `sequence` was read.
    pub(crate) fn credit(&mut self, channel: usize, node: usize, sequence: u64, epoch: u64) {
        let command = command(Kind::Credit, (channel, node), 0, epoch);
        self.push(Command { sequence: low_sequence(sequence), ..command });
    }

    /// Tells every other node of the failure that ended the communicator.
    pub(crate) fn tell(&mut self, word: u64, epoch: u64) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        // SAFETY: the layout places an aligned word there; the proxy only reads it.
        unsafe {
            let at = self.rail.base().add(self.rail.layout().out_word());
            at.cast::<u64>().write_volatile(word);
        }
        for node in self.others() {
            self.push(command(Kind::Poison, (0, node), 0, epoch));
        }
    }

    /// Says goodbye to every other node; the proxy then ends.
    pub(crate) fn leave(&mut self) {
        let slot = if self.told { STOP_AT_ONCE } else { 0 };
        self.push(Command { slot, ..command(Kind::Stop, (0, 0), 0, 0) });
    }

    fn push(&mut self, command: Command) {
        if let Err(error) = self.rail.push(&command) {
            self.fault.get_or_insert(error);
        }
    }

    /// Fails when a way is broken, though this rank may have all that it needs: what it sends there is lost, so the rank
    /// behind it waits in vain. At the start and at the end of a call.
    pub(crate) fn intact(&mut self, world: &World, wait: Wait) -> Result<()> {
        let flags = self.rail.flags().clone();
        let broken = |node: &usize| matches!(flags.way(*node), Way::Broken(_));
        match self.others().find(broken) {
            Some(node) => wait_for_any(world, wait, (&RefCell::new(self), &[node]), || false),
            None => Ok(()),
        }
    }

    /// What went wrong between this rank and its proxy, if anything.
    pub(crate) fn check(&self, world: &World, wait: Wait) -> Result<()> {
        if let Some(error) = &self.fault {
            world.note(error.to_string());
            return Err(world.fail(wait, Cause::Network, world.rank));
        }
        world.check(wait)
    }
}

/// What crossed between nodes at one rank, so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailReport {
    /// Provider.
    pub provider: String,
    /// Domain (NIC).
    pub domain: String,
    /// The library with its version.
    pub library: String,
    /// What the proxy did.
    pub proxy: RailStats,
    /// Commands that found the ring full.
    pub ring_stalls: u64,
    /// Times that a call had nothing to do and waited for the network or the node.
    pub call_stalls: u64,
}

impl RailReport {
    pub(crate) fn of(crossings: &Crossings) -> Self {
        let capabilities = crossings.rail.capabilities();
        Self {
            provider: capabilities.provider.clone(),
            domain: capabilities.domain.clone(),
            library: capabilities.library.clone(),
            proxy: crossings.rail.stats(),
            ring_stalls: crossings.rail.ring_stalls(),
            call_stalls: crossings.stalls,
        }
    }
}

/// The rank of this rail on `node`.
pub(crate) fn rank_on(world: &World, node: usize) -> usize {
    node * world.topology.ranks_per_node() + world.topology.local_rank(world.rank)
}

/// Waits until `ready`, which the ranks of this rail on the `needed` nodes make true.
pub(crate) fn wait_for_any(
    world: &World,
    wait: Wait,
    (crossings, needed): (&RefCell<&mut Crossings>, &[usize]),
    ready: impl Fn() -> bool,
) -> Result<()> {
    let flags = crossings.borrow().rail.flags().clone();
    let shut = || needed.iter().copied().find(|&node| !flags.is_open(node));
    // Several may be late because one is: the one that has been silent longest.
    let culprit = || flags.most_silent(needed).map_or(world.rank, |node| rank_on(world, node));
    // A farewell or a fault makes the wait end too: what is still on its way may come all the same.
    world.wait_for(wait, &culprit, world.own().door(), || ready() || shut().is_some())?;
    let until = Instant::now() + NEWS;
    loop {
        crossings.borrow().check(world, wait)?;
        let Some(node) = shut().filter(|_| !ready()) else { return Ok(()) };
        let way = flags.way(node);
        let explained = matches!(&way, Way::Broken(error) if patience(error).is_zero());
        if explained || Instant::now() >= until {
            return Err(world.fail(wait, cause_of(world, way), rank_on(world, node)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How long a broken way waits for news that explains it. Nothing but itself explains something that came twice.
fn patience(error: &FabricError) -> Duration {
    if matches!(error, FabricError::Repeated { .. }) { Duration::ZERO } else { NEWS }
}

/// Why a way that is shut fails a call; its details go into this rank's message.
fn cause_of(world: &World, way: Way) -> Cause {
    match way {
        Way::Left => Cause::Left,
        Way::Open => Cause::Network,
        Way::Broken(error) => {
            let repeated = matches!(error, FabricError::Repeated { .. });
            world.note(error.to_string());
            if repeated { Cause::Repeated } else { Cause::Network }
        }
    }
}

/// The error of a transport at this rank.
pub(crate) fn network(rank: usize) -> impl Fn(FabricError) -> HostError {
    move |error| HostError::Network { rank, error }
}
