//! The machine's own ceiling: plain copies by as many processes as there are ranks.

use std::time::{Duration, Instant};

use crate::copy::{Copier, Stores};
use crate::error::Result;
use crate::segment::Segment;
use crate::simd::Simd;

/// Two buffers of the same kind of memory as a communicator's, to copy between.
#[derive(Debug)]
pub struct CopyProbe {
    source: Segment,
    target: Segment,
    simd: Simd,
}

impl CopyProbe {
    /// Buffers of `bytes` each, touched.
    ///
    /// # Errors
    /// [`HostError::System`](crate::HostError::System) when there is no memory for them.
    pub fn new(rank: usize, bytes: usize, simd: Simd) -> Result<Self> {
        let probe =
            Self { source: Segment::create(rank, bytes)?, target: Segment::create(rank, bytes)?, simd };
        for segment in [&probe.source, &probe.target] {
            // SAFETY: the whole of an own segment that nobody else maps.
            unsafe { segment.base().write_bytes(0x5A, segment.bytes()) };
        }
        Ok(probe)
    }

    /// Bytes of one copy.
    pub fn bytes(&self) -> usize {
        self.source.bytes()
    }

    /// The time of one copy of the whole buffer: the C library's `memcpy`, or non-temporal stores.
    pub fn copy(&mut self, stores: Stores) -> Duration {
        let started = Instant::now();
        let copier = Copier::new(self.simd, stores);
        // SAFETY: two segments of equal size.
        unsafe { copier.copy(self.source.base(), self.target.base(), self.source.bytes()) };
        copier.finish();
        started.elapsed()
    }
}
