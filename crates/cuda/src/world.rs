//! What all calls of a communicator share, and the memory that outputs lie in.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use expertrail_core::output::{OutputKind, OutputLayout, generous, uniform_arrivals};
use expertrail_core::{Cause, CoreError, Dtype, Failure, Phase, Placement, Shape, Topology};
use expertrail_group::CancelToken;

use crate::context::Context;
use crate::error::{CudaError, Result};
use crate::heap::SymmetricHeap;
use crate::launch::Function;
use crate::memory::DeviceMemory;
use crate::moment::{Events, Moment};
use crate::pool::{Pool, Range};
use crate::protocol::{Board, LINE, NOTIFY_WORDS, REFUSAL_EMPTY, REFUSAL_MISMATCH, REFUSAL_PEER, Signature};
use crate::stream::Stream;

/// Slices start at multiples of this: a sector of bulk copies and more, and few enough free pieces.
pub(crate) const GRAIN: usize = 4096;

/// Parts of every rank's heap, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Regions {
    pub(crate) notify: usize,
    pub(crate) expert_counts: usize,
    pub(crate) landed: usize,
    pub(crate) done: usize,
    pub(crate) poison: usize,
    /// End of the words, which are zero at the start.
    pub(crate) words: usize,
    /// A dispatch that does not fit its slice, or rows that a combine pushed.
    pub(crate) landing: usize,
    pub(crate) landing_bytes: usize,
    pub(crate) pool: usize,
    pub(crate) pool_bytes: usize,
    pub(crate) total: usize,
}

impl Regions {
    /// For what a shape needs with `live_outputs` outputs alive at once.
    pub(crate) fn new(topology: Topology, placement: &Placement, shape: &Shape, live_outputs: usize) -> Self {
        let ranks = topology.ranks();
        let Shape { max_tokens, hidden, top_k, .. } = *shape;
        let line = |bytes: usize| bytes.next_multiple_of(LINE);
        let pages = |bytes: usize| bytes.next_multiple_of(GRAIN);

        let notify = 0;
        let expert_counts = notify + line(8 * ranks * (NOTIFY_WORDS + ranks));
        let landed = expert_counts + line(8 * ranks * placement.most_local_experts());
        let done = landed + line(4 * ranks * max_tokens);
        let poison = done + LINE * ranks;
        let words = pages(poison + LINE);

        let kind = OutputKind { dtype: Dtype::Bf16, hidden, top_k, cached: false, weights: true };
        let output = |rows: usize| OutputLayout::new(&kind, rows, rows).bytes;
        // Every token of every rank may come here; or every token may come back from as many ranks as it has experts.
        let arriving = output(ranks * max_tokens);
        let returning = max_tokens * top_k.min(ranks.saturating_sub(1)) * (2 * hidden + 4 * top_k);
        let landing_bytes = pages(arriving.max(returning).max(1));

        let uniform = uniform_arrivals(max_tokens, ranks, top_k);
        let one = pages(output(generous(uniform)))
            + pages(crate::protocol::route_bytes(ranks, placement.most_local_experts(), max_tokens))
            + pages(2 * hidden * max_tokens)
            + pages(4 * top_k * max_tokens);
        // One more than live, because the next is taken before the last is dropped.
        let pool_bytes = (live_outputs.max(1) + 1) * one;
        let landing = words;
        let pool = landing + landing_bytes;
        let total = pool + pool_bytes;
        Self {
            notify,
            expert_counts,
            landed,
            done,
            poison,
            words,
            landing,
            landing_bytes,
            pool,
            pool_bytes,
            total,
        }
    }
}

/// The kernels.
#[derive(Debug)]
pub(crate) struct Functions {
    pub(crate) dispatch: Function,
    pub(crate) combine: Function,
    pub(crate) meet: Function,
    pub(crate) layout: Function,
}

/// Everything about a communicator that does not change after build, and what outputs need after it is gone.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) rank: usize,
    /// Tells handles of communicators apart.
    pub(crate) token: u64,
    pub(crate) topology: Topology,
    pub(crate) placement: Placement,
    pub(crate) shape: Shape,
    pub(crate) cancel: CancelToken,
    pub(crate) stress_seed: u64,
    /// Of the device.
    pub(crate) sms: u32,
    /// Shared memory that a block may have.
    pub(crate) shared: usize,
    pub(crate) functions: Functions,
    pub(crate) board: Arc<Board>,
    /// `RawWorld` on the device.
    pub(crate) constants: DeviceMemory,
    /// `Control` on the device.
    pub(crate) _control: DeviceMemory,
    pub(crate) regions: Regions,
    pub(crate) pool: Pool<Moment>,
    /// Slices whose streams were capturing when they were dropped: no event of a capture can be waited for outside.
    pub(crate) parked: Mutex<Vec<(Range, Vec<Stream>)>>,
    /// Addresses that were found to be this device's, by their hash: asking the driver takes longer than a launch.
    pub(crate) known: [AtomicU64; 64],
    pub(crate) events: Arc<Events>,
    pub(crate) stream: Stream,
    pub(crate) heap: SymmetricHeap,
    pub(crate) context: Context,
}

impl World {
    pub(crate) fn ranks(&self) -> usize {
        self.topology.ranks()
    }

    /// The own heap's address of `offset`.
    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.heap.own() + offset as u64
    }

    /// Where in this rank's pool memory lies; `None` when it is other memory.
    pub(crate) fn offset_of(&self, address: u64, bytes: usize) -> Option<usize> {
        let start = usize::try_from(address.checked_sub(self.heap.own())?).ok()?;
        let end = start.checked_add(bytes)?;
        let pool = self.regions.pool..self.regions.pool + self.regions.pool_bytes;
        (pool.contains(&start) && end <= pool.end).then_some(start)
    }

    /// Ends the waits of this rank's kernels if it was cancelled: nobody else tells them.
    pub(crate) fn pass_cancel_on(&self) {
        if self.cancel.is_cancelled() {
            self.board.abort(Cause::Cancelled, self.rank);
        }
    }

    /// The failure that a kernel, the watch or a cancellation has found. A rank that has left in peace is one to new
    /// calls only: those before it left are complete.
    pub(crate) fn check(&self, new_call: bool) -> Result<()> {
        let rank = self.rank;
        if let Some((failure, expected, seen)) = self.board.failure() {
            self.pool.close();
            return Err(CudaError::Failed { rank, failure, expected, seen });
        }
        self.pass_cancel_on();
        if let Some((cause, culprit)) = self.board.aborted().filter(|a| new_call || a.0 != Cause::Left) {
            // A kernel that waits says more about it in a moment; without one there is nobody to.
            let until = Instant::now() + Duration::from_millis(20);
            while Instant::now() < until
                && self.board.failure().is_none()
                && !self.stream.is_done().unwrap_or(true)
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            self.pool.close();
            // A peer that failed told this rank before it left: then what it told is the reason, not that it left.
            let told = self.told().map(|failure| (failure, 0, 0));
            let (failure, expected, seen) = self.board.failure().or(told).unwrap_or((
                Failure { cause, culprit, reporter: rank, phase: Phase::Idle, epoch: 0 },
                0,
                0,
            ));
            return Err(CudaError::Failed { rank, failure, expected, seen });
        }
        Ok(())
    }

    /// The first failure that a peer's kernel wrote into this rank's heap.
    fn told(&self) -> Option<Failure> {
        let mut word = 0_u64;
        let at = self.at(self.regions.poison);
        let read = self.context.outside_capture(|| {
            self.context.call("cuMemcpyDtoH", |api| {
                // SAFETY: the word lies in the own heap, and the host's is as long.
                unsafe { (api.copy_to_host)((&raw mut word).cast(), at, size_of::<u64>()) }
            })
        });
        (read.is_ok() && word != 0).then(|| Failure::from_word(word))
    }

    /// What a kernel refused, as an error, once.
    pub(crate) fn refusal(&self) -> Option<CudaError> {
        let record = self.board.take_refusal()?;
        let (rank, peer, epoch) = (self.rank, record.rank as usize, u64::from(record.epoch));
        Some(match record.what {
            REFUSAL_PEER => CudaError::Refused { rank, peer, epoch },
            REFUSAL_MISMATCH => CudaError::Mismatch {
                epoch,
                rank,
                call: Signature(record.own).describe(record.own_origin),
                peer,
                peer_call: Signature(record.theirs).describe(record.their_origin),
            },
            REFUSAL_EMPTY => CudaError::Misuse {
                rank,
                error: CoreError::Handle(format!(
                    "call {epoch} used the handle of a dispatch that moved nothing; its output holds nothing either: \
                     dispatch again"
                )),
            },
            _ => CudaError::TooSmall { rank: peer, needed: record.rows as usize, given: record.own as usize },
        })
    }

    fn parked(&self) -> MutexGuard<'_, Vec<(Range, Vec<Stream>)>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a slice back after everything that is now on `streams`.
    fn give_back(&self, range: Range, streams: Vec<Stream>) {
        if streams.iter().any(|stream| stream.is_capturing().unwrap_or(true)) {
            self.parked().push((range, streams));
            return;
        }
        let moments: Result<Vec<Moment>> = streams.iter().map(|stream| self.events.now(stream)).collect();
        match moments {
            Ok(moments) => self.pool.put(range, moments),
            // The context is lost, and with it the pool.
            Err(_) => self.pool.close(),
        }
    }

    /// Takes `bytes` of the pool; later work on `stream` comes after whatever may still use them.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize, stream: &Stream) -> Result<Option<Slice>> {
        let parked = std::mem::take(&mut *self.parked());
        for (range, streams) in parked {
            self.give_back(range, streams);
        }
        let Some(taken) = self.pool.take(bytes) else { return Ok(None) };
        let capturing = stream.is_capturing()?;
        for moment in &taken.after {
            // A capture cannot wait for what came before it, but the host can; the slice is the graph's for good then.
            let held = match moment.event() {
                Some(event) if capturing => self.context.outside_capture(|| event.synchronize()),
                _ => moment.hold_back(stream),
            };
            if let Err(error) = held {
                self.pool.put(taken.range, taken.after.clone());
                return Err(error);
            }
        }
        Ok(Some(Slice {
            world: self.clone(),
            range: taken.range,
            users: Mutex::new(vec![stream.clone()]),
            of_graph: AtomicBool::new(false),
        }))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The last slice may have been dropped while work that uses it was still under way; nobody will wait for that
        // any more, and the memory is about to be unmapped.
        let _ = self.context.synchronize();
    }
}

/// A slice of this rank's pool; goes back when dropped, after the streams that use it.
#[derive(Debug)]
pub(crate) struct Slice {
    world: Arc<World>,
    range: Range,
    /// Streams that may use it: where it was made, and those that its owner recorded.
    users: Mutex<Vec<Stream>>,
    /// Used by captured work: it belongs to the graph, which may run again at any time.
    of_graph: AtomicBool,
}

impl Slice {
    pub(crate) fn offset(&self) -> usize {
        self.range.offset
    }

    pub(crate) fn bytes(&self) -> usize {
        self.range.bytes
    }

    pub(crate) fn address(&self) -> u64 {
        self.world.at(self.range.offset)
    }

    pub(crate) fn keep_for_graph(&self) {
        self.of_graph.store(true, Ordering::Relaxed);
    }

    /// Gives back what lies behind the first `bytes`.
    pub(crate) fn trim(&mut self, bytes: usize) {
        if !self.of_graph.load(Ordering::Relaxed) {
            self.range = self.world.pool.trim(self.range, bytes);
        }
    }

    /// The slice is used by work on `stream`, so far and until it is dropped.
    pub(crate) fn used_on(&self, stream: &Stream) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.iter().all(|user| user.raw() != stream.raw()) {
            users.push(stream.clone());
        }
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        if self.of_graph.load(Ordering::Relaxed) {
            return;
        }
        let users = std::mem::take(&mut *self.users.lock().unwrap_or_else(PoisonError::into_inner));
        self.world.give_back(self.range, users);
    }
}

/// Memory of an output.
#[derive(Debug)]
pub(crate) enum Memory {
    /// In symmetric memory.
    Pool(Slice),
    /// Beside it, when the pool had no room. Freeing waits for the device.
    Private(DeviceMemory),
}

impl Memory {
    /// `bytes` of the pool, or else of the device.
    pub(crate) fn take(world: &Arc<World>, bytes: usize, stream: &Stream) -> Result<Self> {
        if let Some(slice) = world.take(bytes, stream)? {
            return Ok(Self::Pool(slice));
        }
        if stream.is_capturing()? {
            return Err(CudaError::Capture {
                rank: world.rank,
                call: "a call whose output finds no room in the pool",
                reason: "build the communicator for more live outputs",
            });
        }
        Ok(Self::Private(DeviceMemory::new(&world.context, bytes)?))
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Pool(slice) => slice.address(),
            Self::Private(memory) => memory.address(),
        }
    }

    pub(crate) fn used_on(&self, stream: &Stream) {
        if let Self::Pool(slice) = self {
            slice.used_on(stream);
        }
    }

    /// Whether it is symmetric memory, which a graph that uses it keeps. Other memory is freed when dropped.
    pub(crate) fn keep_for_graph(&self) -> bool {
        let Self::Pool(slice) = self else { return false };
        slice.keep_for_graph();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap() {
        for (ranks, experts) in [(1, 1), (2, 256), (8, 256), (72, 512)] {
            let topology = Topology::one_node(ranks).unwrap();
            let placement = Placement::new(experts, ranks).unwrap();
            let shape = Shape { max_tokens: 4096, hidden: 7168, top_k: 8.min(experts), experts };
            let r = Regions::new(topology, &placement, &shape, 2);
            assert!(8 * ranks * (8 + ranks) <= r.expert_counts - r.notify);
            assert!(8 * ranks * placement.most_local_experts() <= r.landed - r.expert_counts);
            assert!(4 * ranks * 4096 <= r.done - r.landed);
            assert!(128 * ranks <= r.poison - r.done && r.poison + 8 <= r.words);
            assert!(r.words <= r.landing && r.landing + r.landing_bytes <= r.pool);
            assert_eq!(r.total, r.pool + r.pool_bytes);
        }
    }

    #[test]
    fn landing_holds_whatever_can_arrive() {
        let topology = Topology::one_node(2).unwrap();
        let placement = Placement::new(256, 2).unwrap();
        let shape = Shape { max_tokens: 4096, hidden: 7168, top_k: 8, experts: 256 };
        let r = Regions::new(topology, &placement, &shape, 2);
        // 8192 rows of 14,336 bytes, with 8 ids, 8 weights and a token index of 4 bytes each.
        assert_eq!(r.landing_bytes, (8192_usize * (14_336 + 68)).next_multiple_of(4096));
    }
}
