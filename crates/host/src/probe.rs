//! The machine's own ceiling: plain copies by as many processes as there are ranks.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy::{Copier, Stores};
use crate::error::{HostError, Result, bytes_text};
use crate::simd::Simd;

/// Two buffers to copy between: private memory, in huge pages where the system gives them, so that the ceiling is
/// what the machine can do at its best.
#[derive(Debug)]
pub struct CopyProbe {
    source: Buffer,
    target: Buffer,
    simd: Simd,
}

impl CopyProbe {
    /// Buffers of `bytes` each, touched.
    ///
    /// # Errors
    /// [`HostError::System`] when there is no memory for them.
    pub fn new(rank: usize, bytes: usize, simd: Simd) -> Result<Self> {
        Ok(Self { source: Buffer::new(rank, bytes)?, target: Buffer::new(rank, bytes)?, simd })
    }

    /// Bytes of one copy.
    pub fn bytes(&self) -> usize {
        self.source.bytes
    }

    /// The time of one copy of the whole buffer: the C library's `memcpy`, or non-temporal stores.
    pub fn copy(&mut self, stores: Stores) -> Duration {
        let started = Instant::now();
        let copier = Copier::new(self.simd, stores);
        // SAFETY: two buffers of equal size.
        unsafe { copier.copy(self.source.base.as_ptr(), self.target.base.as_ptr(), self.source.bytes) };
        copier.finish();
        started.elapsed()
    }
}

/// Anonymous memory.
#[derive(Debug)]
struct Buffer {
    base: NonNull<u8>,
    bytes: usize,
}

impl Buffer {
    fn new(rank: usize, bytes: usize) -> Result<Self> {
        let failed = |e: rustix::io::Errno| HostError::System {
            rank,
            what: format!("mapping of {} for the ceiling", bytes_text(bytes as u64)),
            reason: e.to_string(),
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let base = base.map_err(failed)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        // SAFETY: advice on, and writes to, the whole of the mapping just made.
        unsafe {
            let _ = rustix::mm::madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage);
            base.as_ptr().write_bytes(0x5A, bytes);
        }
        Ok(Self { base, bytes })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing points into it after this.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
