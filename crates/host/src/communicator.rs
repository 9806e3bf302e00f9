//! The communicator: its build, the steps every call has, and its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expertrail_core::{CoreError, Topology};
use expertrail_group::DeathWatch;

use crate::build::{Built, HostConfig};
use crate::call::Signature;
use crate::control::Record;
use crate::copy::{Copier, Stores};
use crate::error::{HostError, Phase, Result};
use crate::output::{Memory, Rows};
use crate::staging::Rings;
use crate::world::{Wait, World};

/// Bytes written by one call of one rank from which on stores go past the cache. Below, the receiver finds the
/// rows in the cache it shares with the sender.
///
/// Measured on 2 cores of a Xeon (Sapphire Rapids, 2 MiB L2 each): copying 64 MiB per process reaches 5.8 GB/s
/// through the cache and 8.6 past it.
const NON_TEMPORAL_FROM: usize = 4 << 20;

/// Ranks of one machine that dispatch and combine through shared memory.
///
/// Calls are collective: all ranks make the same calls in the same order. A call takes `&self`; calls from several
/// threads of one rank queue behind each other.
#[derive(Debug)]
pub struct HostCommunicator {
    world: Arc<World>,
    rings: Rings,
    stores: Option<Stores>,
    state: Mutex<State>,
    /// Ends its thread when dropped; the thread has its own references to the controls it reads.
    _watch: Option<DeathWatch>,
}

/// What changes from call to call.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) epoch: u64,
    pub(crate) stats: Stats,
    failed: Option<HostError>,
}

/// What a communicator has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Dispatches whose rows did not fit the reserved slice and were copied out of the fallback.
    pub fallbacks: u64,
    pub(crate) last_arrivals: usize,
    pub(crate) last_rows: usize,
}

impl HostCommunicator {
    /// Joins the ranks of `group`, all on this machine. Collective.
    ///
    /// # Errors
    /// [`HostError::Misuse`] for a shape that is not allowed, [`HostError::Disagree`] when ranks build with
    /// different settings, [`HostError::NotOneHost`], [`HostError::SharedMemory`], [`HostError::Staging`],
    /// [`HostError::Segment`], [`HostError::System`], [`HostError::Group`].
    pub fn build(group: &expertrail_group::Group, config: &HostConfig) -> Result<Self> {
        let Built { world, rings, watch } = crate::build::build(group, config, 0..config.topology.ranks())?;
        Ok(Self {
            world,
            rings,
            stores: config.stores,
            state: Mutex::new(State { epoch: 0, stats: Stats::default(), failed: None }),
            _watch: watch,
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.world.rank
    }

    /// The declared topology.
    pub fn topology(&self) -> Topology {
        self.world.topology
    }

    /// The instruction set of the row kernels.
    pub fn simd(&self) -> crate::simd::Simd {
        self.world.simd
    }

    /// What this communicator has done so far.
    pub fn stats(&self) -> Stats {
        self.state().stats
    }

    /// Bytes of this rank's segment that hold memory now: control words, staging, outputs.
    pub fn resident_bytes(&self) -> u64 {
        self.world.segment().resident_bytes()
    }

    /// Whether the communicator is alive. Not collective.
    ///
    /// # Errors
    /// The failure that ended it.
    pub fn status(&self) -> Result<()> {
        if let Some(error) = &self.state().failed {
            return Err(error.clone());
        }
        let epoch = self.world.own().notified();
        self.world.check(self.world.wait(Phase::Idle, epoch))
    }

    /// `rows` BF16 rows of the communicator's hidden size, in shared memory while the pool has room. An expert
    /// that writes its output there saves combine a copy.
    ///
    /// # Errors
    /// [`HostError::System`] when there is no memory for so many.
    pub fn alloc_rows(&self, rows: usize) -> Result<Rows> {
        // A slice may span at most isize::MAX bytes.
        let bytes =
            rows.checked_mul(2 * self.world.shape.hidden).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(|| HostError::System {
            rank: self.world.rank,
            what: format!("allocation of {rows} rows of {} elements", self.world.shape.hidden),
            reason: "more than this machine can address".to_owned(),
        })?;
        Ok(Rows { memory: Memory::take(&self.world, bytes)?, elements: bytes / 2 })
    }

    /// Waits until all ranks are here. Collective.
    ///
    /// # Errors
    /// As [`HostCommunicator::dispatch`].
    pub fn barrier(&self) -> Result<()> {
        let mut state = self.begin()?;
        let wait = self.world.wait(Phase::Barrier, state.epoch);
        let record = Record { signature: Signature::barrier().0, ..Record::default() };
        self.announce(&mut state, wait, &record, [&[]; 2])?;
        self.world.own().set_done(state.epoch);
        Ok(())
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(crate) fn rings(&self) -> Rings {
        self.rings
    }

    /// The copier for a call in which this rank writes `bytes`.
    pub(crate) fn copier(&self, bytes: usize) -> Copier {
        let by_size = if bytes >= NON_TEMPORAL_FROM { Stores::NonTemporal } else { Stores::Cached };
        Copier::new(self.world.simd, self.stores.unwrap_or(by_size))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A caller's panic between calls leaves the state whole; calls themselves do not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a call: gives it its number, or the failure that ended the communicator.
    pub(crate) fn begin(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.epoch += 1;
        Ok(state)
    }

    /// Publishes this rank's record (and counts) and gives those of the ranks of this node.
    ///
    /// A call that some rank refused, or that differs between ranks, ends here on every rank, before anything
    /// moved; all compare with rank 0's record, so all name the same two ranks.
    pub(crate) fn announce(
        &self,
        state: &mut State,
        wait: Wait,
        record: &Record,
        counts: [&[u32]; 2],
    ) -> Result<Vec<Record>> {
        let (world, epoch) = (&self.world, state.epoch);
        state.keep(self.publish(wait, record, counts))?;
        state.keep(world.wait_notified(wait))?;
        let records: Vec<Record> = world.controls.iter().map(|control| control.read_record(epoch)).collect();
        let refused = |r: &Record| r.signature == Signature::REFUSED.0;
        let differs = |r: &Record| (r.signature, r.origin) != (records[0].signature, records[0].origin);
        let call = |r: &Record| Signature(r.signature).describe(r.origin);
        let first = world.node_ranks.start;
        let error = if let Some(peer) = records.iter().position(refused) {
            HostError::Refused { rank: world.rank, peer: first + peer, epoch }
        } else if let Some(b) = records.iter().position(differs) {
            let (a_call, b_call) = (call(&records[0]), call(&records[b]));
            HostError::Mismatch { epoch, a: first, a_call, b: first + b, b_call }
        } else {
            return Ok(records);
        };
        world.own().set_done(epoch);
        Err(error)
    }

    fn publish(&self, wait: Wait, record: &Record, counts: [&[u32]; 2]) -> Result<()> {
        let world = &self.world;
        // The record of two calls ago is overwritten now. After a normal call everybody has read it; a rank that
        // refused its last calls has not waited for anybody and must do so here.
        world.wait_done(wait, wait.epoch.saturating_sub(2))?;
        world.own().write_counts(wait.epoch, counts);
        world.own().write_record(wait.epoch, record);
        world.own().set_notified(wait.epoch);
        Ok(())
    }

    /// Gives up this rank's part of a call because of `error`, and tells the others at once.
    pub(crate) fn refuse(&self, state: &mut State, error: CoreError) -> HostError {
        let wait = self.world.wait(Phase::Idle, state.epoch);
        let record = Record { signature: Signature::REFUSED.0, ..Record::default() };
        if let Err(failed) = state.keep(self.publish(wait, &record, [&[]; 2])) {
            return failed;
        }
        self.world.own().set_done(state.epoch);
        HostError::Misuse { rank: self.world.rank, error }
    }
}

impl State {
    /// Remembers an error that ends the communicator: every later call gives it again.
    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error @ HostError::Failed { .. }) = &result {
            self.failed = Some(error.clone());
        }
        result
    }
}

impl Drop for HostCommunicator {
    fn drop(&mut self) {
        self.world.own().close();
    }
}
