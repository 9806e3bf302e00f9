//! The communicator: the steps every call has, and its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use expertrail_core::{CoreError, Topology};
use expertrail_group::{DeathWatch, Group};

use crate::address;
use crate::assemble::{Assembled, CudaConfig, assemble};
use crate::call::{DeviceIds, On, at_least};
use crate::context::Context;
use crate::error::{CudaError, Result};
use crate::kernel_source::Origin;
use crate::launch::Launch;
use crate::mesh::MeshWatch;
use crate::moment::Moment;
use crate::output::{CudaLayout, CudaRows};
use crate::protocol::{LayoutArgs, MAX_BLOCKS, MeetArgs, Signature};
use crate::stream::Stream;
use crate::tune::default_sms;
use crate::world::{Memory, World};

/// Ranks whose GPUs share an NVLink domain and dispatch and combine through it.
///
/// Calls are collective: all ranks make the same calls in the same order, each on whatever stream it likes; the calls of
/// one communicator run one after the other. Two communicators on one device must be called in the same order on all
/// ranks, unless the SMs of both fit the device together and their streams differ: a kernel waits for the same kernel on
/// the other ranks, and what runs behind it waits too.
///
/// Calls that a graph holds are ordered by whoever launches it, with events or one stream: the communicator knows neither
/// when it runs nor when it is done, and two calls at once end in a deadlock or worse.
#[derive(Debug)]
pub struct CudaCommunicator {
    world: Arc<World>,
    state: Mutex<State>,
    origin: Origin,
    /// Says goodbye when dropped.
    watch: Option<MeshWatch>,
    _deaths: Option<DeathWatch>,
}

/// What changes from call to call.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The end of the last call that was not captured.
    last: Option<Moment>,
    pub(crate) ticket: u32,
    pub(crate) stats: CudaStats,
    failed: Option<CudaError>,
    /// Whether a graph may be running calls that `last` does not know of.
    captured: bool,
    /// Rows that the last dispatch received.
    pub(crate) last_rows: usize,
}

/// What a communicator has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaStats {
    /// Dispatches whose rows did not fit the pool and were copied out of the landing.
    pub fallbacks: u64,
    /// Bytes of the pool that are free now.
    pub pool_free: usize,
    /// The most that the pool can give at once now.
    pub pool_largest: usize,
    /// Slices of the pool that are out.
    pub pool_live: usize,
}

/// Where the time of the last call went on the device, in nanoseconds from the start of its kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaPhases {
    /// Destinations found and counted; combine: offsets found.
    pub counted: u64,
    /// Counts and outputs of all ranks known.
    pub notified: u64,
    /// Rows of the first block sent; combine: sent and summed.
    pub sent: u64,
    /// The same of all blocks.
    pub through: u64,
    /// All ranks done: the kernel's own time.
    pub end: u64,
}

/// The stream of a call and how many SMs it takes.
pub(crate) struct Lane<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) sms: u32,
    pub(crate) capturing: bool,
}

impl CudaCommunicator {
    /// Joins the ranks of `group`, one for each GPU of this host. Collective.
    ///
    /// # Errors
    /// [`CudaError::Load`] and [`CudaError::NoKernels`] where CUDA is missing, [`CudaError::Build`] for what stands
    /// between the ranks, [`CudaError::Misuse`] and [`CudaError::Setting`] for a shape that is not allowed.
    pub fn build(group: &Group, config: &CudaConfig) -> Result<Self> {
        let Assembled { world, watch, deaths, origin } = assemble(group, config)?;
        let comm = Self { world, state: Mutex::new(State::default()), origin, watch, _deaths: deaths };
        // The first kernel shows that flags reach every rank, and that nobody's first call meets a slow start.
        comm.barrier()?;
        Ok(comm)
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a call, unless the communicator has failed. A refusal of an earlier call does not stop it: ranks learn of
    /// that at different times, and one that then left out a call would let the others wait.
    pub(crate) fn begin(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        self.check(&mut state, true)?;
        Ok(state)
    }

    fn check(&self, state: &mut State, new_call: bool) -> Result<()> {
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        self.world.check(new_call).inspect_err(|error| state.failed = Some(error.clone()))
    }

    /// Where a call runs, behind all calls before it.
    pub(crate) fn lane<'a>(&'a self, state: &State, on: &On<'a>, combine: bool) -> Result<Lane<'a>> {
        let world = &self.world;
        let stream = on.stream.unwrap_or(&world.stream);
        let most = world.sms.min(MAX_BLOCKS as u32);
        let sms = match on.sms {
            Some(sms) if sms == 0 || sms > most => {
                return Err(CudaError::Setting {
                    name: "sms",
                    value: sms.to_string(),
                    wanted: format!("1 to {most}"),
                });
            }
            sms => sms.unwrap_or_else(|| default_sms(world.ranks(), combine)).min(most),
        };
        let capturing = stream.is_capturing()?;
        if let Some(event) = on.after {
            stream.wait(event)?;
        }
        // What was recorded outside of a capture cannot be awaited inside: whoever launches the graph orders it.
        if let (Some(last), false) = (&state.last, capturing) {
            last.hold_back(stream)?;
        }
        Ok(Lane { stream, sms, capturing })
    }

    /// Ends a call that was launched on `lane`.
    pub(crate) fn launched(&self, state: &mut State, lane: &Lane<'_>) -> Result<Moment> {
        let done = self.world.events.now(lane.stream)?;
        if lane.capturing {
            state.captured = true;
        } else {
            state.last = Some(done.clone());
        }
        Ok(done)
    }

    /// Tells the others that this rank refuses its part of a call, and gives the reason back. Where the caller's stream or
    /// event is the reason the word goes out on the communicator's own stream, or the others would wait for the deadline.
    pub(crate) fn refuse(&self, state: &mut State, on: &On<'_>, error: CudaError) -> CudaError {
        let told = self.meet(state, &On { sms: Some(1), ..*on }, Signature::REFUSED);
        let stream = on.stream.unwrap_or(&self.world.stream);
        // What is captured is for whenever its graph runs, and no word of this call.
        if told.is_err() && stream.is_capturing().is_ok_and(|capturing| !capturing) {
            // The reason says more than what became of telling it; without a context there is nobody to tell.
            let _ = self.meet(state, &On::default(), Signature::REFUSED);
        }
        error
    }

    fn meet(&self, state: &mut State, on: &On<'_>, signature: Signature) -> Result<Moment> {
        let world = &self.world;
        let lane = self.lane(state, on, false)?;
        let args = MeetArgs {
            world: world.constants.address(),
            stress_seed: world.stress_seed,
            signature: signature.0,
            spare: 0,
        };
        let shape = Launch { blocks: 1, threads: 128, shared: 0, cooperative: true, cluster: 1 };
        // SAFETY: `MeetArgs` is the kernel's parameter; the world outlives the kernel, because the last owner of it
        // waits for the stream.
        unsafe { world.functions.meet.launch(lane.stream, shape, &args) }?;
        self.launched(state, &lane)
    }

    /// Waits for the counts of the call with this ticket.
    pub(crate) fn await_report(&self, state: &mut State, ticket: u32, done: &Moment) -> Result<()> {
        let world = &self.world;
        let mut looks = 0_u32;
        loop {
            if world.board.has_report(ticket) {
                return Ok(());
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 12) {
                // A rank that has left may have had its part of this call: the kernel finds out whether it had not.
                self.check(state, false)?;
                // A kernel that ended without a report failed, or something before it on the stream did.
                if let Some(event) = done.event()
                    && event.is_done()?
                    && !world.board.has_report(ticket)
                {
                    self.check(state, false)?;
                    return Err(CudaError::Lost { rank: world.rank });
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Waits until all ranks are here, and for all calls before.
    ///
    /// # Errors
    /// As [`CudaCommunicator::synchronize`].
    pub fn barrier(&self) -> Result<()> {
        let mut state = self.begin()?;
        let done = self.meet(&mut state, &On::default(), Signature::BARRIER)?;
        self.wait(&mut state, Some(&done))
    }

    /// Puts a barrier of all ranks on `stream` and returns at once: work behind it starts at about the same time on all.
    ///
    /// # Errors
    /// Those of earlier calls.
    pub fn barrier_on(&self, stream: &Stream) -> Result<()> {
        let mut state = self.begin()?;
        self.meet(&mut state, &On { stream: Some(stream), ..On::default() }, Signature::BARRIER)?;
        Ok(())
    }

    /// Waits for all calls so far.
    ///
    /// # Errors
    /// What a call before refused ([`CudaError::Refused`], [`CudaError::Mismatch`], [`CudaError::TooSmall`]: the
    /// communicator goes on), or [`CudaError::Failed`].
    pub fn synchronize(&self) -> Result<()> {
        let mut state = self.state();
        self.check(&mut state, false)?;
        let last = state.last.clone();
        self.wait(&mut state, last.as_ref())
    }

    fn wait(&self, state: &mut State, moment: Option<&Moment>) -> Result<()> {
        if let Some(event) = moment.and_then(Moment::event) {
            // Short waits spin, so that a barrier aligns ranks closely; long ones leave the core to others.
            let started = Instant::now();
            while !event.is_done()? {
                if started.elapsed() > Duration::from_millis(2) {
                    // Kernels end by themselves at the deadline; a cancellation must reach them earlier.
                    self.world.pass_cancel_on();
                    std::thread::sleep(Duration::from_micros(100));
                } else {
                    std::hint::spin_loop();
                }
            }
        }
        self.check(state, false)?;
        // What is done need not be waited for: a good moment to let go of it.
        self.world
            .pool
            .forget_done(|moment| moment.event().is_none_or(|event| event.is_done().unwrap_or(false)));
        self.world.refusal().map_or(Ok(()), Err)
    }

    /// The failure or refusal of an earlier call, if there is one. Does not wait for the device (but for another thread
    /// of this rank that is in a call). Not collective.
    ///
    /// # Errors
    /// As [`CudaCommunicator::synchronize`].
    pub fn status(&self) -> Result<()> {
        self.check(&mut self.state(), false)?;
        self.world.refusal().map_or(Ok(()), Err)
    }

    /// `bytes` of symmetric memory for rows that combine reads where they lie, written on `stream` or the
    /// communicator's own.
    ///
    /// # Errors
    /// When there is no device memory left at all.
    pub fn alloc_rows(&self, bytes: usize, stream: Option<&Stream>) -> Result<CudaRows> {
        let stream = stream.unwrap_or(&self.world.stream);
        let memory = Memory::take(&self.world, bytes, stream)?;
        if stream.is_capturing()? {
            memory.keep_for_graph();
        }
        Ok(CudaRows { memory, bytes })
    }

    /// Where the bytes at the same place of `rank`'s heap are in this process; `None` for memory that is not symmetric.
    /// Ranks that allocate the same in the same order have the same at the same place.
    pub fn peer_address(&self, rank: usize, rows: &CudaRows) -> Option<u64> {
        let offset = self.world.offset_of(rows.memory.address(), rows.bytes)?;
        (rank < self.world.ranks()).then(|| self.world.heap.peer(rank) + offset as u64)
    }

    /// Counts a routing without moving anything: tokens for each rank, choices of each expert, and which token goes to
    /// which rank. Not collective; runs on the communicator's stream. Dispatch does not need it.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for too few ids and for more tokens than the shape has, [`CudaError::Address`], and those of
    /// the driver.
    pub fn layout(&self, ids: DeviceIds<'_>, tokens: usize, stream: Option<&Stream>) -> Result<CudaLayout> {
        let world = &self.world;
        let stream = stream.unwrap_or(&world.stream);
        let misuse = |error: CoreError| CudaError::Misuse { rank: world.rank, error };
        let (top_k, limit) = (world.shape.top_k, world.shape.max_tokens);
        if tokens > limit {
            return Err(misuse(CoreError::Tokens { tokens, limit }));
        }
        let why = || format!("{tokens} tokens, top-k {top_k}");
        at_least("ids in bytes", ids.slice().bytes, tokens * top_k * ids.bytes_each(), why)
            .map_err(misuse)?;
        address::check(world, "ids", ids.slice(), ids.bytes_each() as u64)?;
        let (ranks, experts) = (world.ranks(), world.shape.experts);
        let offsets = CudaLayout::offsets(ranks, experts, tokens);
        let memory = Memory::take(world, offsets[3], stream)?;
        let base = memory.address();
        // SAFETY: the memory is this call's, and earlier users of it are done before this stream goes on.
        unsafe { stream.fill(base, 0, offsets[2]) }?;
        let args = LayoutArgs {
            world: world.constants.address(),
            ids: ids.slice().address,
            rank_counts: base,
            expert_counts: base + offsets[1] as u64,
            membership: base + offsets[2] as u64,
            tokens: tokens as u32,
            ids_are_64: u32::from(ids.bytes_each() == 8),
        };
        let blocks = tokens.div_ceil(512).clamp(1, world.sms as usize) as u32;
        let shape = Launch { blocks, threads: 512, shared: 0, cooperative: false, cluster: 1 };
        // SAFETY: `LayoutArgs` is the kernel's parameter; ids and memory are as long as it reads and writes.
        unsafe { world.functions.layout.launch(stream, shape, &args) }?;
        if stream.is_capturing()? {
            memory.keep_for_graph();
        }
        Ok(CudaLayout { memory, ranks, experts, tokens })
    }

    /// What it has done so far.
    pub fn stats(&self) -> CudaStats {
        let pool = &self.world.pool;
        CudaStats {
            pool_free: pool.free_bytes(),
            pool_largest: pool.largest_free(),
            pool_live: pool.live(),
            ..self.state().stats
        }
    }

    /// Where the time of the last call went on the device, launch excluded. To be asked after
    /// [`synchronize`](CudaCommunicator::synchronize); a barrier is a call too.
    pub fn last_phases(&self) -> CudaPhases {
        let [start, counted, notified, sent, through, end] = self.world.board.times();
        let since = |time: u64| time.saturating_sub(start);
        CudaPhases {
            counted: since(counted),
            notified: since(notified),
            sent: since(sent),
            through: since(through),
            end: since(end),
        }
    }

    /// Bytes of symmetric memory of this rank.
    pub fn heap_bytes(&self) -> usize {
        self.world.heap.bytes()
    }

    /// Where the kernels came from.
    pub fn kernels_from(&self) -> Origin {
        self.origin
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.world.rank
    }

    /// The declared topology.
    pub fn topology(&self) -> Topology {
        self.world.topology
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        &self.world.context
    }

    /// The stream on which calls run that name none.
    pub fn stream(&self) -> &Stream {
        &self.world.stream
    }
}

impl Drop for CudaCommunicator {
    fn drop(&mut self) {
        // Kernels must end before peers are told that this rank is gone, and before the memory that they use goes.
        // They end by themselves: with the call, by a peer's death, or at the deadline; earlier where that was asked for.
        self.world.pass_cancel_on();
        if let Some(event) = self.state().last.as_ref().and_then(Moment::event) {
            let _ = event.synchronize();
        }
        let _ = self.world.stream.synchronize();
        if self.state().captured {
            let _ = self.world.context.synchronize();
        }
        drop(self.watch.take());
    }
}
