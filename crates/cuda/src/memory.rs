//! Plain device memory.

use crate::context::Context;
use crate::entry_points::DevicePointer;
use crate::error::{CudaError, Result};
use crate::stream::Stream;

/// `CU_STREAM_LEGACY`.
const LEGACY_STREAM: usize = 1;

/// Memory of a device, freed when dropped. Freeing waits for the device, as the driver does.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    address: DevicePointer,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates `bytes` bytes, whose contents are undefined. Zero bytes take no memory.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        let mut address = 0;
        if bytes > 0 {
            // Allowed while another thread captures: what is captured there does not use it.
            context.outside_capture(|| {
                context.call("cuMemAlloc", |api| {
                    // SAFETY: the driver writes one address.
                    unsafe { (api.memory_alloc)(&raw mut address, bytes) }
                })
            })?;
        }
        Ok(Self { context: context.clone(), address, bytes })
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `from` to `offset` and waits for the copy. It is not ordered after work on streams: synchronise them
    /// first.
    ///
    /// # Errors
    /// When the bytes do not lie in the allocation, or the driver fails.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        let at = self.part(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        self.context.call("cuMemcpyHtoD", |api| {
            // SAFETY: both sides are as long as the copy, the device's by the check above.
            unsafe { (api.copy_to_device)(at, from.as_ptr().cast(), from.len()) }
        })?;
        // The driver returns once it has staged pageable memory; the copy itself goes on in the legacy default stream,
        // which streams of ours do not wait for.
        self.context.call("cuStreamSynchronize", |api| {
            // SAFETY: 1 names the legacy default stream.
            unsafe { (api.stream_synchronize)(LEGACY_STREAM) }
        })
    }

    /// Copies from `offset` to `to` and waits for the copy. It is not ordered after work on streams: synchronise them
    /// first.
    ///
    /// # Errors
    /// When the bytes do not lie in the allocation, or the driver fails.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let at = self.part(offset, to.len())?;
        if to.is_empty() {
            return Ok(());
        }
        self.context.call("cuMemcpyDtoH", |api| {
            // SAFETY: both sides are as long as the copy, the device's by the check above.
            unsafe { (api.copy_to_host)(to.as_mut_ptr().cast(), at, to.len()) }
        })
    }

    /// The address of `bytes` bytes at `offset`.
    fn part(&self, offset: usize, bytes: usize) -> Result<DevicePointer> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + offset as u64),
            _ => Err(CudaError::Range { offset, bytes, room: self.bytes }),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // A thread that captures may not free memory, and its capture would be lost.
            let _ = self.context.outside_capture(|| {
                // SAFETY: allocated in `new`, freed once.
                self.context.call_in_drop(|api| unsafe { (api.memory_free)(self.address) });
                Ok(())
            });
        }
    }
}

/// Makes `bytes` bytes zero before it returns, whatever this thread captures.
///
/// # Safety
/// `address` must be valid for `bytes` bytes, and nobody may be using them.
pub(crate) unsafe fn clear(context: &Context, address: u64, bytes: usize) -> Result<()> {
    context.outside_capture(|| {
        let stream = Stream::new(context, 0)?;
        // SAFETY: the caller answers for the address.
        unsafe { stream.fill(address, 0, bytes) }?;
        stream.synchronize()
    })
}
