//! Outputs: where their parts lie in a slice, and who owns the slice.

use std::cell::UnsafeCell;
use std::sync::Arc;

use expertrail_core::output::{OutputKind, OutputLayout};
use expertrail_core::{Bf16, Dtype, Handle};

use crate::call::DispatchPhases;
use crate::error::{HostError, Result, bytes_text};
use crate::pool::Range;
use crate::world::World;

/// One cache line, so that private outputs are aligned like pool slices.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

/// The memory of an output.
pub(crate) enum Memory {
    /// A slice of this rank's pool; goes back when dropped. Keeps the mapping alive.
    Pool(Arc<World>, Range),
    /// Private memory, when the pool had no room. In cells, because parts are written through `base`.
    Private(Vec<UnsafeCell<Line>>),
}

impl Memory {
    /// `bytes` from the pool, or private memory when it has no room.
    ///
    /// # Errors
    /// [`HostError::System`] when there is no private memory either.
    pub(crate) fn take(world: &Arc<World>, bytes: usize) -> Result<Self> {
        if let Some(range) = world.pool.take(bytes) {
            return Ok(Self::Pool(world.clone(), range));
        }
        let lines = bytes.div_ceil(64);
        let mut cells = Vec::new();
        cells.try_reserve_exact(lines).map_err(|error| HostError::System {
            rank: world.rank,
            what: format!("allocation of {} beside the pool", bytes_text(bytes as u64)),
            reason: error.to_string(),
        })?;
        cells.extend((0..lines).map(|_| UnsafeCell::new(Line([0; 64]))));
        Ok(Self::Private(cells))
    }

    /// Gives back what lies behind the first `bytes`.
    pub(crate) fn trimmed(mut self, bytes: usize) -> Self {
        if let Self::Pool(world, range) = &mut self {
            *range = world.pool.trim(*range, bytes);
        }
        self
    }

    pub(crate) fn base(&self) -> *mut u8 {
        match self {
            Self::Pool(world, range) => world.segment().base().wrapping_add(range.offset),
            Self::Private(lines) => UnsafeCell::raw_get(lines.as_ptr()).cast(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Pool(world, range) = self {
            world.pool.put(*range);
        }
    }
}

// SAFETY: the memory is owned by this value alone (peers write a slice only before it is handed out, or after
// it is back), and moves between threads like any buffer.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Memory {}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pool(_, range) => write!(f, "Pool({range:?})"),
            Self::Private(lines) => write!(f, "Private({} bytes)", lines.len() * 64),
        }
    }
}

/// What a dispatch gave this rank: ordinary memory of its owner, which outlives later calls and the
/// communicator, and returns to the pool when dropped.
#[derive(Debug)]
pub struct Received {
    pub(crate) memory: Memory,
    pub(crate) layout: OutputLayout,
    pub(crate) kind: OutputKind,
    /// Rows of the output (`worst_case_rows` where that was given).
    pub(crate) rows: usize,
    /// Entries of the carried ids, weights and tokens.
    pub(crate) entries: usize,
    pub(crate) handle: Handle,
    pub(crate) phases: DispatchPhases,
}

impl Received {
    fn slice<T>(&self, offset: usize, len: usize) -> &[T] {
        // SAFETY: `OutputLayout` places `len` elements of a plain type at this 64-byte aligned offset of the
        // slice, all of which was written (or zero) before the output was handed out.
        unsafe { std::slice::from_raw_parts(self.memory.base().add(offset).cast::<T>(), len) }
    }

    pub(crate) fn slice_mut<T>(&mut self, offset: usize, len: usize) -> &mut [T] {
        // SAFETY: as in `slice`; `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().add(offset).cast::<T>(), len) }
    }

    /// Rows of the output: `[rows, hidden]`. Padding and, with `worst_case_rows`, unused rows included.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Element type of the rows.
    pub fn dtype(&self) -> Dtype {
        self.kind.dtype
    }

    /// The rows, `[rows, hidden]`; `None` for an FP8 dispatch.
    pub fn bf16(&self) -> Option<&[Bf16]> {
        (self.kind.dtype == Dtype::Bf16).then(|| self.slice(0, self.rows * self.kind.hidden))
    }

    /// The rows, to be changed in place (an expert may write its output here and combine from it without a
    /// copy); `None` for an FP8 dispatch.
    pub fn bf16_mut(&mut self) -> Option<&mut [Bf16]> {
        let len = self.rows * self.kind.hidden;
        (self.kind.dtype == Dtype::Bf16).then(|| self.slice_mut(0, len))
    }

    /// The FP8 rows, `[rows, hidden]` codes; `None` for a BF16 dispatch.
    pub fn codes(&self) -> Option<&[u8]> {
        (self.kind.dtype == Dtype::Fp8E4m3).then(|| self.slice(0, self.rows * self.kind.hidden))
    }

    /// The scales, `[rows, hidden / 128]`; `None` for a BF16 dispatch.
    pub fn scales(&self) -> Option<&[f32]> {
        let per_row = self.kind.dtype.scales_per_row(self.kind.hidden);
        (self.kind.dtype == Dtype::Fp8E4m3).then(|| self.slice(self.layout.scales, self.rows * per_row))
    }

    /// For each arriving token and choice the expert's index on this rank, or -1 where the choice is none or
    /// of another rank: `[arrivals, top_k]` (`[worst_case_rows, top_k]` where that was given with the
    /// by-source layout, -1 behind the last arrival). `None` for a cached dispatch.
    pub fn local_ids(&self) -> Option<&[i32]> {
        (!self.kind.cached).then(|| self.slice(self.layout.ids, self.entries * self.kind.top_k))
    }

    /// The weights that came along, shaped as [`Received::local_ids`] and 0 where that is -1. `None` if the
    /// dispatch carried none.
    pub fn weights(&self) -> Option<&[f32]> {
        self.kind.weights.then(|| self.slice(self.layout.weights, self.entries * self.kind.top_k))
    }

    /// Choices of each local expert over all sources, `[local experts]`, without padding.
    pub fn expert_counts(&self) -> &[u32] {
        &self.handle.arrivals().expert_counts
    }

    /// Tokens that arrived.
    pub fn arrivals(&self) -> usize {
        self.handle.arrivals().source_tokens.len()
    }

    /// What combine and a cached dispatch need.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Where the time of this call went.
    pub fn phases(&self) -> DispatchPhases {
        self.phases
    }
}

/// BF16 rows in this rank's shared memory: combine reads them where they lie. Private memory when the pool
/// had no room; combine then stages them.
#[derive(Debug)]
pub struct Rows {
    pub(crate) memory: Memory,
    pub(crate) elements: usize,
}

impl Rows {
    /// Whether combine reads these rows where they lie (they are in the pool) or must stage them.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Pool(..))
    }

    /// The elements, `[rows, hidden]` as they were asked for.
    pub fn as_slice(&self) -> &[Bf16] {
        // SAFETY: the memory was taken for this many elements and holds plain numbers from the start.
        unsafe { std::slice::from_raw_parts(self.memory.base().cast::<Bf16>(), self.elements) }
    }

    /// The elements, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [Bf16] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().cast::<Bf16>(), self.elements) }
    }
}
