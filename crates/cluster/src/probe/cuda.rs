//! The few driver entry points that probes need.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

use super::{open, symbol};

type Context = *mut c_void;

/// The driver, started. It stays loaded: it owns threads and exit handlers.
pub(super) struct Cuda {
    library: &'static libloading::Library,
    pub(super) devices: i32,
}

/// A device's primary context, current in this thread until it is dropped.
pub(super) struct Current<'a> {
    cuda: &'a Cuda,
    device: c_int,
    pub(super) context: Context,
}

/// Device memory.
pub(super) struct Memory<'a> {
    cuda: &'a Cuda,
    pub(super) address: u64,
}

impl Cuda {
    /// Opens and starts the driver. The outer error is "cannot run", the inner "fails".
    pub(super) fn start(library: Option<PathBuf>) -> Result<Result<Self, String>, String> {
        let path = library
            .or_else(|| std::env::var_os("EXPERTRAIL_LIBCUDA").map(PathBuf::from))
            .unwrap_or_else(|| "libcuda.so.1".into());
        let library: &'static libloading::Library = Box::leak(Box::new(open(&path)?));
        let mut cuda = Self { library, devices: 0 };
        // SAFETY: the types of cuda.h.
        let (init, count) = unsafe {
            (
                symbol::<unsafe extern "C" fn(c_uint) -> c_int>(library, "cuInit")?,
                symbol::<unsafe extern "C" fn(*mut c_int) -> c_int>(library, "cuDeviceGetCount")?,
            )
        };
        // SAFETY: flags must be 0.
        let code = unsafe { init(0) };
        if code == 100 {
            return Err("the driver finds no device".to_owned());
        }
        if code != 0 {
            return Ok(Err(cuda.explain("cuInit", code)));
        }
        // SAFETY: the driver writes one number.
        let code = unsafe { count(&raw mut cuda.devices) };
        Ok(cuda.check("cuDeviceGetCount", code).map(|()| cuda))
    }

    /// An entry point.
    ///
    /// # Safety
    /// `T` must be its type in cuda.h.
    pub(super) unsafe fn entry<T: Copy>(&self, name: &str) -> Result<T, String> {
        // SAFETY: the caller answers for the type; the library is never closed.
        unsafe { symbol(self.library, name) }
    }

    pub(super) fn check(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == 0 { Ok(()) } else { Err(self.explain(call, code)) }
    }

    fn explain(&self, call: &str, code: c_int) -> String {
        type Name = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the type of cuda.h.
        if let Ok(name) = unsafe { self.entry::<Name>("cuGetErrorName") } {
            // SAFETY: the driver writes the address of a constant text.
            let known = unsafe { name(code, &raw mut text) };
            if known == 0 && !text.is_null() {
                // SAFETY: not null; the driver's texts end with a zero.
                let text = unsafe { CStr::from_ptr(text) };
                return format!("{call}: {} ({code})", text.to_string_lossy());
            }
        }
        format!("{call}: code {code}")
    }

    /// An attribute of a device.
    pub(super) fn attribute(&self, attribute: c_int, device: c_int) -> Result<i32, String> {
        type Call = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
        // SAFETY: the type of cuda.h.
        let call = unsafe { self.entry::<Call>("cuDeviceGetAttribute") }?;
        let mut value = 0;
        // SAFETY: the driver writes one number.
        self.check("cuDeviceGetAttribute", unsafe { call(&raw mut value, attribute, device) }).map(|()| value)
    }

    /// Makes the device's primary context current in this thread.
    pub(super) fn current(&self, device: c_int) -> Result<Current<'_>, String> {
        type Retain = unsafe extern "C" fn(*mut Context, c_int) -> c_int;
        // SAFETY: the type of cuda.h.
        let retain = unsafe { self.entry::<Retain>("cuDevicePrimaryCtxRetain") }?;
        let mut context: Context = std::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        self.check("cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, device) })?;
        let current = Current { cuda: self, device, context };
        current.set()?;
        Ok(current)
    }

    /// Memory of the current context.
    pub(super) fn allocate(&self, bytes: usize) -> Result<Memory<'_>, String> {
        type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        // SAFETY: the type of cuda.h.
        let alloc = unsafe { self.entry::<Alloc>("cuMemAlloc_v2") }?;
        let mut address = 0;
        // SAFETY: the driver writes one address.
        self.check("cuMemAlloc_v2", unsafe { alloc(&raw mut address, bytes) })?;
        Ok(Memory { cuda: self, address })
    }
}

impl Current<'_> {
    /// Makes it current again.
    pub(super) fn set(&self) -> Result<(), String> {
        type Set = unsafe extern "C" fn(Context) -> c_int;
        // SAFETY: the type of cuda.h; the context is retained.
        let set = unsafe { self.cuda.entry::<Set>("cuCtxSetCurrent") }?;
        // SAFETY: as above.
        self.cuda.check("cuCtxSetCurrent", unsafe { set(self.context) })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        type Release = unsafe extern "C" fn(c_int) -> c_int;
        // SAFETY: the type of cuda.h.
        if let Ok(release) = unsafe { self.cuda.entry::<Release>("cuDevicePrimaryCtxRelease_v2") } {
            // SAFETY: retained once, by `current`.
            unsafe { release(self.device) };
        }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        type Free = unsafe extern "C" fn(u64) -> c_int;
        // SAFETY: the type of cuda.h.
        if let Ok(free) = unsafe { self.cuda.entry::<Free>("cuMemFree_v2") } {
            // SAFETY: allocated once, by `allocate`. An address is valid whatever context is current.
            unsafe { free(self.address) };
        }
    }
}
