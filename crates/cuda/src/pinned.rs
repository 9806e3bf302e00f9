//! Host memory that the device can reach, for words that host and kernels exchange while kernels run.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::context::Context;
use crate::error::{CallError, Result};

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`: pinned for every context, and mapped for devices.
const PORTABLE_MAPPED: u32 = 1 | 2;

/// Page-locked host memory, zero at first, mapped for the device, freed when dropped.
///
/// Kernels that use it must have ended by then: freeing waits for the device, as the driver does.
#[derive(Debug)]
pub struct Pinned {
    context: Context,
    base: NonNull<u8>,
    address: u64,
    bytes: usize,
}

// SAFETY: the memory stays where it is until drop, and references to it are to atomics only.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates `bytes` bytes, rounded up to whole words of 8 bytes, at least one.
    ///
    /// # Errors
    /// When the driver refuses, for one because the memory that may be locked is used up.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        const CALL: &str = "cuMemHostAlloc";
        let bytes = bytes.max(1).checked_next_multiple_of(8).unwrap_or(bytes);
        let mut base: *mut c_void = std::ptr::null_mut();
        context.call(CALL, |api| {
            // SAFETY: the driver writes one pointer.
            unsafe { (api.host_alloc)(&raw mut base, bytes, PORTABLE_MAPPED) }
        })?;
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            let text = "it gave no memory".to_owned();
            return Err(CallError { call: CALL, code: 0, name: String::new(), text }.into());
        };
        // From here on `drop` frees it.
        let mut pinned = Self { context: context.clone(), base, address: 0, bytes };
        // SAFETY: the memory is `bytes` long and nobody else knows of it yet.
        unsafe { base.as_ptr().write_bytes(0, bytes) };
        let mut address = 0;
        context.call("cuMemHostGetDevicePointer", |api| {
            // SAFETY: the memory was allocated as mapped; the driver writes one address.
            unsafe { (api.host_pointer)(&raw mut address, base.as_ptr().cast(), 0) }
        })?;
        pinned.address = address;
        Ok(pinned)
    }

    /// Its address for kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The word of 4 bytes at byte `offset`, a multiple of 4. Past the end it is the last word.
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        let at = self.word(offset, 4);
        // SAFETY: `word` gives an aligned offset inside the memory, which is page-aligned and lives as long as `self`;
        // host and device reach it by atomic accesses only.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The word of 8 bytes at byte `offset`, a multiple of 8. Past the end it is the last word.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        let at = self.word(offset, 8);
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The offset of a word of `size` bytes: `offset` itself, or the nearest one that is right.
    fn word(&self, offset: usize, size: usize) -> usize {
        let right = offset.is_multiple_of(size) && offset < self.bytes;
        debug_assert!(right, "no word of {size} bytes at {offset} of {} bytes", self.bytes);
        offset.min(self.bytes - size) / size * size
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        self.context.call_in_drop(|api| unsafe { (api.host_free)(self.base.as_ptr().cast()) });
    }
}
