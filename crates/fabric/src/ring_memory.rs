//! Host memory of a command ring. Apart from `ring.rs`, whose model runs with atomics of another size.

use std::iter::repeat_with;
use std::sync::atomic::AtomicU64;

use crate::ring::{Cells, Entry, RingError, check_size};

// The device writes 16 bytes at once, aligned, the first half first: crates/cuda/kernels/ring.cuh.
const _: () = assert!(size_of::<Entry>() == 16 && align_of::<Entry>() == 16);
const _: () = assert!(std::mem::offset_of!(Entry, a) == 0 && std::mem::offset_of!(Entry, b) == 8);

/// Two cache lines: the processor fetches lines in pairs, and a neighbour's stores would take it away.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// A ring in this process's memory, for producers on the CPU.
#[derive(Debug)]
pub struct RingMemory {
    taken: Line,
    entries: Box<[Entry]>,
}

impl RingMemory {
    /// An unused ring of `entries` entries.
    ///
    /// # Errors
    /// [`RingError::Size`] when that is not a power of two, or far too many.
    pub fn new(entries: usize) -> Result<Self, RingError> {
        check_size(entries)?;
        let entry = || Entry { a: AtomicU64::new(0), b: AtomicU64::new(0) };
        Ok(Self { taken: Line::default(), entries: repeat_with(entry).take(entries).collect() })
    }
}

impl Cells for RingMemory {
    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn taken(&self) -> &AtomicU64 {
        &self.taken.0
    }
}
