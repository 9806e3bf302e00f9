//! The memory of a rail region: pages of this process alone.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{FabricError, Result};
use crate::transport::Memory;

/// Private pages, zero at first.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping stays where it is until drop; whoever reads or writes through `base` answers for ordering.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

// SAFETY: mapped readable and writable until drop, and no references to it are made.
unsafe impl Memory for Pages {
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Pages {
    /// Maps `bytes` bytes. They take memory when first touched (or registered).
    ///
    /// # Errors
    /// [`FabricError::System`] when there is no room for them.
    pub fn new(bytes: usize) -> Result<Self> {
        let refused = |reason: String| FabricError::System {
            what: format!("mapping {bytes} bytes for what crosses the network"),
            reason,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this process.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes.max(1),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|error| refused(error.to_string()))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| refused("no address".to_owned()))?;
        // Chunks are read and written whole; with huge pages they miss the TLB less. Not granted everywhere.
        // SAFETY: advice on a mapping that was just made.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes.max(1), Advice::LinuxHugepage) };
        Ok(Self { base, bytes })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: made by `new`, unmapped once; transports hold the value by reference count while they use it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes.max(1)) };
    }
}
