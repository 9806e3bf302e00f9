//! Whether an address is what a kernel can use.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::call::DeviceSlice;
use crate::error::{CudaError, Result};
use crate::world::World;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: i32 = 2;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: i32 = 9;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: u32 = 2;

/// Rows are copied and summed 16 bytes at a time.
pub(crate) const ROWS: u64 = 16;
/// Words of 4 bytes.
pub(crate) const WORDS: u64 = 4;

/// Refuses an address that is not aligned, is host memory, or is another device's. Empty slices may be anywhere.
pub(crate) fn check(world: &World, what: &'static str, slice: DeviceSlice<'_>, alignment: u64) -> Result<()> {
    if slice.bytes == 0 {
        return Ok(());
    }
    let refuse =
        |problem: String| Err(CudaError::Address { rank: world.rank, what, address: slice.address, problem });
    if !slice.address.is_multiple_of(alignment) {
        return refuse(format!("it must be a multiple of {alignment}; give memory that starts there"));
    }
    // The own pool needs no questions: most addresses of a training step are there.
    if world.offset_of(slice.address, slice.bytes).is_some() {
        return Ok(());
    }
    // Nor does what was there at the last call. Freed memory may come back as something else, but then the caller gave
    // this library an address that it had freed.
    let known = &world.known[(slice.address >> 9) as usize % world.known.len()];
    if known.load(Ordering::Relaxed) == slice.address {
        return Ok(());
    }
    let own = world.context.device().ordinal();
    let mut kind = 0_u32;
    let mut ordinal = own as i32;
    let asked = world.context.call("cuPointerGetAttribute", |api| {
        // SAFETY: the driver writes one integer of 32 bits for each of these attributes.
        unsafe {
            match (api.pointer_attribute)((&raw mut kind).cast::<c_void>(), MEMORY_TYPE, slice.address) {
                0 => (api.pointer_attribute)(
                    (&raw mut ordinal).cast::<c_void>(),
                    DEVICE_ORDINAL,
                    slice.address,
                ),
                code => code,
            }
        }
    });
    match asked {
        Err(_) => {
            refuse("it is no device memory (a host pointer?); copy the data to the device first".to_owned())
        }
        Ok(()) if kind != DEVICE => refuse("it is host memory; copy the data to the device first".to_owned()),
        Ok(()) if ordinal != own as i32 => refuse(format!(
            "it is memory of device {ordinal}, but this rank's device is {own}; copy the data there, or build the \
             communicator on the other device"
        )),
        Ok(()) => {
            known.store(slice.address, Ordering::Relaxed);
            Ok(())
        }
    }
}
