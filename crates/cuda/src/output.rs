//! What calls give.

use std::sync::Arc;

use expertrail_core::output::{OutputKind, OutputLayout};
use expertrail_core::{CoreError, Dtype};

use crate::call::DeviceSlice;
use crate::error::{CudaError, Result as CudaResult};
use crate::moment::Moment;
use crate::stream::{Event, Stream};
use crate::world::Memory;

/// The routing of one finished dispatch, for combine and cached dispatches. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CudaHandle {
    inner: Arc<HandleInner>,
}

#[derive(Debug)]
pub(crate) struct HandleInner {
    pub(crate) communicator: u64,
    pub(crate) rank: usize,
    pub(crate) tokens: usize,
    /// Rows that arrived; `None` where only the device knows.
    pub(crate) arrivals: Option<usize>,
    /// Rows of the output.
    pub(crate) rows: usize,
    /// Number of the call; 0 where only the device knows.
    pub(crate) epoch: u64,
    /// `Route`.
    pub(crate) memory: Memory,
}

impl CudaHandle {
    pub(crate) fn new(inner: HandleInner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Tokens that this rank sent, and rows that combine gives back.
    pub fn tokens(&self) -> usize {
        self.inner.tokens
    }

    /// Rows of the output it was made with, which combine takes: as many as arrived, or the worst case.
    pub fn rows(&self) -> usize {
        self.inner.rows
    }

    /// Tokens that arrived here; `None` after a worst-case dispatch, where only the device knows.
    pub fn arrivals(&self) -> Option<usize> {
        self.inner.arrivals
    }

    /// Number of the call that made it; 0 after a worst-case dispatch, where only the device knows.
    pub fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    pub(crate) fn address(&self) -> u64 {
        self.inner.memory.address()
    }

    /// A call on `stream` reads the routing; where it is captured, whenever its graph runs.
    pub(crate) fn used_on(&self, rank: usize, stream: &Stream, capturing: bool) -> CudaResult<()> {
        if capturing && !self.inner.memory.keep_for_graph() {
            return Err(CudaError::Capture {
                rank,
                call: "a call with a handle that lies beside the pool",
                reason: "build the communicator for more live outputs",
            });
        }
        self.inner.memory.used_on(stream);
        Ok(())
    }

    pub(crate) fn check(&self, communicator: u64, rank: usize) -> Result<(), CoreError> {
        let HandleInner { communicator: made_by, rank: of, epoch, .. } = *self.inner;
        if made_by != communicator {
            return Err(CoreError::Handle(format!(
                "it was made by another communicator (token {made_by:016x}, call {epoch}; this one is \
                 {communicator:016x}): a handle is stale once its communicator is gone; dispatch again"
            )));
        }
        if of != rank {
            return Err(CoreError::Handle(format!(
                "it was made by rank {of}, this is rank {rank}: each rank must use its own"
            )));
        }
        Ok(())
    }
}

/// What a dispatch gave this rank: ordinary device memory of its owner, which outlives later calls and the
/// communicator. Its rows are there once work on the call's stream, or behind [`CudaReceived::event`], runs.
///
/// Dropped, it goes back to the pool after all work that is then on the call's stream and on every stream given to
/// [`CudaReceived::record_stream`]. One that was made during a graph capture belongs to
/// the graph and never goes back.
#[derive(Debug)]
pub struct CudaReceived {
    pub(crate) memory: Memory,
    pub(crate) layout: OutputLayout,
    pub(crate) kind: OutputKind,
    pub(crate) rows: usize,
    pub(crate) handle: CudaHandle,
    /// Choices of the local experts.
    pub(crate) expert_counts: Vec<u32>,
    /// Where they are, and how many experts this rank has.
    pub(crate) device_expert_counts: Option<(u64, usize)>,
    pub(crate) done: Moment,
    pub(crate) fell_back: bool,
}

impl CudaReceived {
    fn slice(&self, offset: usize, bytes: usize) -> DeviceSlice<'_> {
        // SAFETY: `OutputLayout` places the part in the memory, which lives as long as `self`.
        unsafe { DeviceSlice::from_raw(self.memory.address() + offset as u64, bytes) }
    }

    /// Rows of the output: as many as arrived, or the worst case.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens that arrived; `None` in the worst-case form, where only the device knows.
    pub fn arrivals(&self) -> Option<usize> {
        self.handle.arrivals()
    }

    /// Element type of the rows.
    pub fn dtype(&self) -> Dtype {
        self.kind.dtype
    }

    /// The rows, `[rows, hidden]`, by (source rank, source token).
    pub fn data(&self) -> DeviceSlice<'_> {
        self.slice(0, self.rows * self.kind.dtype.row_bytes(self.kind.hidden))
    }

    /// The scales, f32 `[rows, hidden / 128]`; `None` for BF16.
    pub fn scales(&self) -> Option<DeviceSlice<'_>> {
        let words = self.rows * self.kind.dtype.scales_per_row(self.kind.hidden);
        (self.kind.dtype == Dtype::Fp8E4m3).then(|| self.slice(self.layout.scales, 4 * words))
    }

    /// For each row and choice the expert's index on this rank, or -1 where the choice is none or of another rank: i32
    /// `[rows, top_k]`, -1 behind the last arrival. `None` for a cached dispatch.
    pub fn local_ids(&self) -> Option<DeviceSlice<'_>> {
        (!self.kind.cached).then(|| self.slice(self.layout.ids, 4 * self.rows * self.kind.top_k))
    }

    /// The weights that came along, f32, shaped as [`CudaReceived::local_ids`] and 0 where that is -1.
    pub fn weights(&self) -> Option<DeviceSlice<'_>> {
        self.kind.weights.then(|| self.slice(self.layout.weights, 4 * self.rows * self.kind.top_k))
    }

    /// Each row's token index at its source, u32 `[rows]`, unspecified behind the last arrival. `None` for a cached
    /// dispatch.
    pub fn source_tokens(&self) -> Option<DeviceSlice<'_>> {
        (!self.kind.cached).then(|| self.slice(self.layout.tokens, 4 * self.rows))
    }

    /// Choices of each local expert over all sources, `[local experts]`. Empty where the host does not know: for
    /// worst-case and cached dispatches.
    pub fn expert_counts(&self) -> &[u32] {
        &self.expert_counts
    }

    /// The same, each rounded up to a multiple of `alignment`, as grouped GEMM kernels ask for.
    pub fn expert_counts_aligned(&self, alignment: u32) -> Vec<u32> {
        self.expert_counts.iter().map(|count| count.next_multiple_of(alignment.max(1))).collect()
    }

    /// Choices of the first `experts` local experts in device memory, u32, at most of all; `None` for a cached dispatch.
    pub fn device_expert_counts(&self, experts: usize) -> Option<DeviceSlice<'_>> {
        self.device_expert_counts.map(|(address, all)| {
            // SAFETY: so many counts lie in the handle's memory, which `self` keeps.
            unsafe { DeviceSlice::from_raw(address, 4 * experts.min(all)) }
        })
    }

    /// What combine and a cached dispatch need.
    pub fn handle(&self) -> &CudaHandle {
        &self.handle
    }

    /// The end of the call. Of no use outside of the graph when the call was captured.
    pub fn event(&self) -> Option<&Event> {
        self.done.event()
    }

    /// Says that work on `stream` uses this output, so that its memory is not given to another before that work is
    /// done.
    pub fn record_stream(&self, stream: &Stream) {
        self.memory.used_on(stream);
        // The counts of the experts lie with the handle.
        self.handle.inner.memory.used_on(stream);
    }

    /// Whether the pool had no room, so that the rows were copied out of the landing.
    pub fn fell_back(&self) -> bool {
        self.fell_back
    }
}

/// What a combine gave.
#[derive(Debug)]
pub struct CudaCombined {
    /// Where the result is in the library's memory.
    pub(crate) memory: Option<Memory>,
    pub(crate) weights: Option<(Memory, usize)>,
    pub(crate) bytes: usize,
    pub(crate) done: Moment,
}

impl CudaCombined {
    /// One row for each token, BF16 `[tokens, hidden]`; `None` where the caller gave memory for them
    /// ([`CudaCombine::out`](crate::CudaCombine::out)): they are there.
    pub fn rows(&self) -> Option<DeviceSlice<'_>> {
        // SAFETY: memory of `self`, taken for so many bytes.
        self.memory.as_ref().map(|memory| unsafe { DeviceSlice::from_raw(memory.address(), self.bytes) })
    }

    /// The weights that came back, f32 `[tokens, top_k]`, if any were sent.
    pub fn weights(&self) -> Option<DeviceSlice<'_>> {
        // SAFETY: memory of `self`.
        self.weights
            .as_ref()
            .map(|(memory, bytes)| unsafe { DeviceSlice::from_raw(memory.address(), *bytes) })
    }

    /// The end of the call. Of no use outside of the graph when the call was captured.
    pub fn event(&self) -> Option<&Event> {
        self.done.event()
    }

    /// As [`CudaReceived::record_stream`].
    pub fn record_stream(&self, stream: &Stream) {
        let weights = self.weights.as_ref().map(|(memory, _)| memory);
        for memory in self.memory.iter().chain(weights) {
            memory.used_on(stream);
        }
    }
}

/// Symmetric memory for rows: combine reads them where they lie.
#[derive(Debug)]
pub struct CudaRows {
    pub(crate) memory: Memory,
    pub(crate) bytes: usize,
}

impl CudaRows {
    /// The memory.
    pub fn slice(&self) -> DeviceSlice<'_> {
        // SAFETY: memory of `self`.
        unsafe { DeviceSlice::from_raw(self.memory.address(), self.bytes) }
    }

    /// Whether combine reads it in place; not when the pool had no room.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Pool(_))
    }

    /// As [`CudaReceived::record_stream`].
    pub fn record_stream(&self, stream: &Stream) {
        self.memory.used_on(stream);
    }
}

/// Counts of a routing.
#[derive(Debug)]
pub struct CudaLayout {
    pub(crate) memory: Memory,
    pub(crate) ranks: usize,
    pub(crate) experts: usize,
    pub(crate) tokens: usize,
}

impl CudaLayout {
    pub(crate) fn offsets(ranks: usize, experts: usize, tokens: usize) -> [usize; 4] {
        let part = |bytes: usize| bytes.next_multiple_of(128);
        let expert_counts = part(4 * ranks);
        let membership = expert_counts + part(4 * experts);
        [0, expert_counts, membership, membership + part(tokens * ranks)]
    }

    fn part(&self, which: usize, bytes: usize) -> DeviceSlice<'_> {
        let offset = Self::offsets(self.ranks, self.experts, self.tokens)[which];
        // SAFETY: memory of `self`, laid out by `offsets`.
        unsafe { DeviceSlice::from_raw(self.memory.address() + offset as u64, bytes) }
    }

    /// Tokens for each rank, u32 `[ranks]`.
    pub fn rank_counts(&self) -> DeviceSlice<'_> {
        self.part(0, 4 * self.ranks)
    }

    /// Choices of each expert, u32 `[experts]`.
    pub fn expert_counts(&self) -> DeviceSlice<'_> {
        self.part(1, 4 * self.experts)
    }

    /// Whether a token goes to a rank, one byte each, `[tokens, ranks]`.
    pub fn membership(&self) -> DeviceSlice<'_> {
        self.part(2, self.tokens * self.ranks)
    }
}
