//! Export of GPU memory as a dma-buf, and copies between GPUs.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use super::Outcome;
use super::cuda::Cuda;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const DMA_BUF_SUPPORTED: c_int = 124;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_uint = 1;
/// One page of GPU memory: exported ranges begin and end on pages of the host.
const EXPORT: usize = 2 << 20;
/// Enough to time, little enough for GPUs that are in use.
const COPY: usize = 64 << 20;

/// More GPUs than a node has.
const GPUS: i32 = 16;

fn start(library: Option<PathBuf>) -> Result<Cuda, Outcome> {
    match Cuda::start(library) {
        Err(reason) => Err(Outcome::NotRun(reason)),
        Ok(Err(reason)) => Err(Outcome::Fails(reason)),
        Ok(Ok(cuda)) => Ok(cuda),
    }
}

/// Exports memory of every GPU.
pub(super) fn export(library: Option<PathBuf>) -> Outcome {
    let cuda = match start(library) {
        Ok(cuda) => cuda,
        Err(outcome) => return outcome,
    };
    let mut refused = Vec::new();
    for device in 0..cuda.devices.min(GPUS) {
        match one(&cuda, device) {
            Ok(true) => {}
            Ok(false) => refused.push(format!("GPU {device}: the driver says it is not supported")),
            Err(reason) => refused.push(format!("GPU {device}: {reason}")),
        }
    }
    if refused.is_empty() {
        Outcome::Works(format!("{} GPUs", cuda.devices))
    } else {
        Outcome::Fails(refused.join("; "))
    }
}

fn one(cuda: &Cuda, device: c_int) -> Result<bool, String> {
    type Export = unsafe extern "C" fn(*mut c_void, u64, usize, c_uint, c_ulonglong) -> c_int;
    if cuda.attribute(DMA_BUF_SUPPORTED, device)? == 0 {
        return Ok(false);
    }
    let current = cuda.current(device)?;
    current.set()?;
    let memory = cuda.allocate(EXPORT)?;
    // SAFETY: the type of cuda.h.
    let export = unsafe { cuda.entry::<Export>("cuMemGetHandleForAddressRange") }?;
    let mut descriptor: c_int = -1;
    // SAFETY: for this kind of handle the driver writes one file descriptor; the range is the memory above.
    let code = unsafe { export((&raw mut descriptor).cast(), memory.address, EXPORT, DMA_BUF_FD, 0) };
    cuda.check("cuMemGetHandleForAddressRange", code)?;
    if descriptor < 0 {
        return Err("cuMemGetHandleForAddressRange gave no descriptor".to_owned());
    }
    // SAFETY: the descriptor is new and ours; it is closed here.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok(true)
}

/// Copies a pattern from every GPU to the next and reads it back.
pub(super) fn copy(library: Option<PathBuf>) -> Outcome {
    let cuda = match start(library) {
        Ok(cuda) => cuda,
        Err(outcome) => return outcome,
    };
    let count = cuda.devices.min(GPUS);
    if count < 2 {
        return Outcome::NotRun(format!("{count} GPU is visible"));
    }
    let mut rates = Vec::new();
    for from in 0..count {
        let to = (from + 1) % count;
        match pair(&cuda, from, to) {
            Ok(rate) => rates.push(format!("{from} to {to} {rate:.0} GB/s")),
            Err(reason) => return Outcome::Fails(format!("GPU {from} to {to}: {reason}")),
        }
    }
    Outcome::Works(format!("64 MiB to the next GPU, bytes compared: {}", rates.join(", ")))
}

fn pair(cuda: &Cuda, from: c_int, to: c_int) -> Result<f64, String> {
    type Can = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    type Enable = unsafe extern "C" fn(*mut c_void, c_uint) -> c_int;
    type ToDevice = unsafe extern "C" fn(u64, *const c_void, usize) -> c_int;
    type ToHost = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;
    type Peer = unsafe extern "C" fn(u64, *mut c_void, u64, *mut c_void, usize) -> c_int;
    type Wait = unsafe extern "C" fn() -> c_int;
    // SAFETY: the types of cuda.h.
    let (can, enable, put, get, peer, wait) = unsafe {
        (
            cuda.entry::<Can>("cuDeviceCanAccessPeer")?,
            cuda.entry::<Enable>("cuCtxEnablePeerAccess")?,
            cuda.entry::<ToDevice>("cuMemcpyHtoD_v2")?,
            cuda.entry::<ToHost>("cuMemcpyDtoH_v2")?,
            cuda.entry::<Peer>("cuMemcpyPeer")?,
            cuda.entry::<Wait>("cuCtxSynchronize")?,
        )
    };
    let mut possible = 0;
    // SAFETY: the driver writes one number.
    cuda.check("cuDeviceCanAccessPeer", unsafe { can(&raw mut possible, from, to) })?;
    if possible == 0 {
        return Err("no peer access".to_owned());
    }
    let pattern: Vec<u8> =
        (0..COPY).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ from as u8).collect();
    let target = cuda.current(to)?;
    let there = cuda.allocate(COPY)?;
    let source = cuda.current(from)?;
    let here = cuda.allocate(COPY)?;
    // SAFETY: the context is retained; 704 (already enabled) is as good.
    let code = unsafe { enable(target.context, 0) };
    if code != 704 {
        cuda.check("cuCtxEnablePeerAccess", code)?;
    }
    // SAFETY: both buffers have COPY bytes.
    cuda.check("cuMemcpyHtoD_v2", unsafe { put(here.address, pattern.as_ptr().cast(), COPY) })?;
    let mut best = f64::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        // SAFETY: both ranges have COPY bytes and their contexts are retained.
        cuda.check("cuMemcpyPeer", unsafe {
            peer(there.address, target.context, here.address, source.context, COPY)
        })?;
        // SAFETY: it takes nothing.
        cuda.check("cuCtxSynchronize", unsafe { wait() })?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    target.set()?;
    let mut back = vec![0_u8; COPY];
    // SAFETY: both buffers have COPY bytes.
    cuda.check("cuMemcpyDtoH_v2", unsafe { get(back.as_mut_ptr().cast(), there.address, COPY) })?;
    if let Some(at) = (0..COPY).find(|&at| back[at] != pattern[at]) {
        return Err(format!("byte {at} arrived as {:#04x} instead of {:#04x}", back[at], pattern[at]));
    }
    Ok(COPY as f64 / best / 1e9)
}
