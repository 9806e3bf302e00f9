//! Locking memory.

use std::ffi::c_void;

use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};

use super::Outcome;

const SIZE: usize = 1 << 30;

/// Locks 1 GiB and lets it go. `available` is what the machine has free: with less than twice as much it is not tried.
pub(super) fn lock(available: Option<u64>) -> Outcome {
    if let Some(free) = available.filter(|free| *free < 2 * SIZE as u64) {
        return Outcome::NotRun(format!("only {} MiB of memory are free", free >> 20));
    }
    // SAFETY: a new anonymous mapping at an address that the kernel chooses.
    let mapped = unsafe {
        mmap_anonymous(std::ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let address: *mut c_void = match mapped {
        Ok(address) => address,
        Err(error) => return Outcome::Fails(format!("1 GiB cannot be mapped: {error}")),
    };
    // SAFETY: the range is the mapping above; nobody else knows it.
    let locked = unsafe { mlock(address, SIZE) };
    // SAFETY: as above; unmapping unlocks.
    let freed = unsafe { munmap(address, SIZE) };
    match (locked, freed) {
        (Ok(()), Ok(())) => Outcome::Works("1 GiB locked and released".to_owned()),
        (Err(error), _) => Outcome::Fails(format!("mlock of 1 GiB: {error}")),
        (_, Err(error)) => Outcome::Fails(format!("1 GiB was locked but not released: {error}")),
    }
}
