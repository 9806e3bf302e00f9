//! The communicator: its build, the steps every call has, and its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expertrail_core::{CoreError, Plan, Topology};
use expertrail_fabric::FabricError;
use expertrail_group::DeathWatch;

use crate::build::{Built, HostConfig};
use crate::call::Signature;
use crate::control::{NOWHERE, Record};
use crate::copy::{Copier, Stores};
use crate::error::{HostError, Phase, Result};
use crate::output::{Memory, Rows};
use crate::rail::{self, Announced, Crossing, Crossings, End, RailReport, Watch};
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
    /// The same for other nodes.
    _far: Option<Watch>,
}

/// What changes from call to call.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) epoch: u64,
    pub(crate) stats: Stats,
    failed: Option<HostError>,
    /// Between nodes; none where all ranks share memory.
    pub(crate) crossings: Option<Crossings>,
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
        let Built { world, rings, watch } =
            crate::build::build(group, config, (0..config.topology.ranks(), None))?;
        Ok(Self {
            world,
            rings,
            stores: config.stores,
            state: Mutex::new(State::new(None)),
            _watch: watch,
            _far: None,
        })
    }

    /// Joins the ranks of `group` on several nodes: those of one declared node share a machine's memory, and rank (n, g)
    /// reaches the ranks (m, g) of other nodes by `crossing`. Collective.
    ///
    /// `crossing` is this rank's open endpoint, or why there is none: the others must learn of that too.
    ///
    /// # Errors
    /// As [`HostCommunicator::build`]; [`HostError::Network`] for this rank's transport; [`HostError::Setting`] when the
    /// topology is one node.
    pub fn build_across(
        group: &expertrail_group::Group,
        config: &HostConfig,
        crossing: std::result::Result<Crossing, FabricError>,
    ) -> Result<Self> {
        let (rank, topology) = (group.rank(), config.topology);
        let end = if topology.ranks() != group.size() || topology.nodes() < 2 {
            Err(HostError::Setting {
                name: "topology",
                value: format!("{} ranks on {} nodes", topology.ranks(), topology.nodes()),
                wanted: format!("the group's {} ranks on at least two nodes", group.size()),
            })
        } else {
            crossing
                .map_err(rail::network(rank))
                .and_then(|crossing| End::new(group, &topology, &config.shape, crossing))
        };
        let end = rail::agree(group, &topology, &config.shape, end)?;
        let names = Some(end.names(group, topology));
        let node_ranks = topology.ranks_of(topology.node_of(rank));
        let members: Vec<usize> = node_ranks.clone().collect();
        let node = group.subset("ranks of a node", &members)?;
        let built = crate::build::build(&node, config, (node_ranks, names));
        // All ranks meet here, whatever has become of their nodes.
        let word = built.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let words = group.all_gather("nodes of the communicator", word.as_bytes())?;
        let Built { world, rings, watch } = built?;
        if let Some(peer) = words.iter().position(|word| !word.is_empty()) {
            let reason = String::from_utf8_lossy(&words[peer]).into_owned();
            return Err(HostError::PeerBuild { rank, peer, reason });
        }
        let crossings = rail::join(group, &topology, end, (&world.controls, world.spin))?;
        let everybody: Vec<usize> = (0..group.size()).collect();
        let watched = group.subset("watch of the communicator", &everybody)?;
        let far = Watch::new(watched, world.clone(), crossings.rail.flags().clone())?;
        Ok(Self {
            world,
            rings,
            stores: config.stores,
            state: Mutex::new(State::new(Some(crossings))),
            _watch: watch,
            _far: Some(far),
        })
    }

    /// Takes part in a build across nodes only to say that this rank cannot build and why: the others then give it up too
    /// and do not wait. Collective with [`HostCommunicator::build_across`].
    pub fn decline_across(group: &expertrail_group::Group, reason: &str) {
        rail::decline(group, reason);
    }

    /// What crosses between nodes, in numbers; `None` where all ranks share memory.
    pub fn rail_stats(&self) -> Option<RailReport> {
        self.state().crossings.as_ref().map(RailReport::of)
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
        let record = Record { signature: Signature::barrier().0, fixed_rows: NOWHERE, ..Record::default() };
        self.announce(&mut state, wait, record, (None, false))?;
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

    /// Publishes this rank's record (and the counts of `plan`, if `counted`) and gives those of the ranks of this node, with
    /// what this rank's rail has announced. Over rails first, so that a node's records tell of all ranks of the job.
    ///
    /// A call that some rank refused, or that differs between ranks, ends here on every rank, before anything
    /// moved; all compare with rank 0's record, so all name the same two ranks.
    pub(crate) fn announce(
        &self,
        state: &mut State,
        mut wait: Wait,
        mut record: Record,
        (plan, counted): (Option<&Plan>, bool),
    ) -> Result<(Vec<Record>, Announced)> {
        let (world, epoch) = (&self.world, state.epoch);
        let mut announced = Announced::default();
        if let Some(crossings) = &mut state.crossings {
            let heard = crossings.announce(world, epoch, &mut record, (plan, counted));
            announced = state.keep(heard)?;
            // The rails have had their time; the node gets its own.
            wait.until = world.wait(wait.phase, epoch).until;
            state.keep(self.publish(wait, &record, [&announced.columns, &[]]))?;
        } else {
            let counts = match plan {
                Some(plan) if counted => [plan.rank_counts(), plan.expert_counts()],
                _ => [&[][..]; 2],
            };
            state.keep(self.publish(wait, &record, counts))?;
        }
        state.keep(world.wait_notified(wait))?;
        let records: Vec<Record> = world.controls.iter().map(|control| control.read_record(epoch)).collect();
        let refused = |r: &Record| r.signature == Signature::REFUSED.0;
        let differs = |r: &Record| (r.signature, r.origin) != (records[0].signature, records[0].origin);
        let call = |r: &Record| Signature(r.signature).describe(r.origin);
        let first = world.node_ranks.start;
        let far_refused = |r: &Record| r.is_stray() && r.heard.signature == Signature::REFUSED.0;
        let error = if let Some(peer) = records.iter().position(refused) {
            HostError::Refused { rank: world.rank, peer: first + peer, epoch }
        } else if let Some(record) = records.iter().find(|r| far_refused(r)) {
            HostError::Refused { rank: world.rank, peer: record.heard.stray as usize - 1, epoch }
        } else if let Some(b) = records.iter().position(differs) {
            let (a_call, b_call) = (call(&records[0]), call(&records[b]));
            HostError::Mismatch { epoch, a: first, a_call, b: first + b, b_call }
        } else if let Some((a, record)) = (first..).zip(&records).find(|(_, r)| r.is_stray()) {
            let b_call = Signature(record.heard.signature).describe(record.heard.origin);
            let b = record.heard.stray as usize - 1;
            HostError::Mismatch { epoch, a, a_call: call(record), b, b_call }
        } else {
            return Ok((records, announced));
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
        let record = Record { signature: Signature::REFUSED.0, fixed_rows: NOWHERE, ..Record::default() };
        if let Some(crossings) = &mut state.crossings {
            let told = crossings.send_headers(&self.world, state.epoch, &record, (None, false));
            if let Err(failed) = state.keep(told) {
                return failed;
            }
        }
        if let Err(failed) = state.keep(self.publish(wait, &record, [&[]; 2])) {
            return failed;
        }
        self.world.own().set_done(state.epoch);
        HostError::Misuse { rank: self.world.rank, error }
    }
}

impl State {
    fn new(crossings: Option<Crossings>) -> Self {
        Self { epoch: 0, stats: Stats::default(), failed: None, crossings }
    }

    /// Remembers an error that ends the communicator: every later call gives it again, and other nodes hear of it.
    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error @ HostError::Failed { failure, .. }) = &result {
            self.failed = Some(error.clone());
            if let Some(crossings) = &mut self.crossings {
                crossings.tell(failure.to_word(), self.epoch);
            }
        }
        result
    }
}

impl Drop for HostCommunicator {
    fn drop(&mut self) {
        self.world.own().close();
        let mut state = self.state();
        let epoch = state.epoch;
        if let Some(mut crossings) = state.crossings.take() {
            // A failure that no call has met yet: nobody's farewell is worth waiting for then.
            let poison = self.world.own().poison();
            if poison != 0 {
                crossings.tell(poison, epoch);
            }
            crossings.leave();
        }
    }
}
