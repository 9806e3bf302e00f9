//! Registering memory.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use crate::error::{FabricError, Result};
use crate::ofi::ffi::{self, entry};
use crate::ofi::library::Library;
use crate::ofi::object::Object;
use crate::transport::{Memory, Place};

/// A registered region. Closing comes before the memory's reference is given up: the fields are in that order.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) mr: Object<ffi::Mr>,
    pub(crate) memory: Arc<dyn Memory>,
    /// What every use of the memory on this side passes along.
    pub(crate) descriptor: *mut c_void,
}

// SAFETY: the descriptor is a handle of the provider's, used by whoever has the endpoint.
unsafe impl Send for Region {}

impl Region {
    /// Registers `memory` with `key` (where the provider takes keys).
    ///
    /// # Errors
    /// What the provider says, with the limit on locked memory where that may be it.
    pub(crate) fn new(
        library: &Library,
        provider: &str,
        domain: &Object<ffi::Domain>,
        memory: Arc<dyn Memory>,
        key: u64,
    ) -> Result<Self> {
        let access = ffi::WRITE | ffi::REMOTE_WRITE;
        let (base, bytes) = (memory.base(), memory.bytes());
        let registered = match memory.place() {
            // SAFETY: the memory stays mapped for as long as its reference, which the region keeps.
            Place::Host => unsafe { host(domain, base, bytes, access, key) },
            Place::Cuda { device, dmabuf } => {
                let dmabuf = dmabuf.map(|(descriptor, offset)| ffi::DmaBuf {
                    descriptor,
                    offset,
                    bytes,
                    base: base.cast(),
                });
                if dmabuf.is_some() && library.version() < (1, 20) {
                    return Err(FabricError::Unsuitable {
                        provider: provider.to_owned(),
                        lacks: format!("{} cannot register a dma-buf; 1.20 can", library.name()),
                    });
                }
                // SAFETY: as above.
                unsafe { cuda(domain, (base, bytes), device, dmabuf.as_ref(), key) }
            }
        };
        let mr = registered.map_err(|code| refused(library, provider, bytes, code))?;
        // SAFETY: the region is open.
        let descriptor = unsafe { mr.at().as_ref() }.map_or(null_mut(), |mr| mr.descriptor);
        Ok(Self { mr, memory, descriptor })
    }

    /// The key for peers.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: null or open.
        unsafe { self.mr.at().as_ref() }.map_or(0, |mr| mr.key)
    }
}

/// Registers host memory with the code of a failure.
///
/// # Safety
/// The memory stays mapped until the region is closed.
pub(crate) unsafe fn host(
    domain: &Object<ffi::Domain>,
    base: *mut u8,
    bytes: usize,
    access: u64,
    key: u64,
) -> std::result::Result<Object<ffi::Mr>, i32> {
    // SAFETY: the domain is open, its table is the library's, and the region is ours to close.
    unsafe {
        let reg = domain.at().as_ref().and_then(|at| entry!(at.mr, ffi::MrOps, reg));
        Object::open(|place| match reg {
            Some(reg) => reg(domain.head(), base.cast(), bytes, access, 0, key, 0, place, null_mut()),
            None => -ffi::ENOSYS,
        })
    }
}

/// Registers GPU memory, by its dma-buf where there is one. Not run yet: no machine with such a NIC was at hand.
///
/// # Safety
/// The memory stays mapped until the region is closed.
unsafe fn cuda(
    domain: &Object<ffi::Domain>,
    (base, bytes): (*mut u8, usize),
    device: u32,
    dmabuf: Option<&ffi::DmaBuf>,
    key: u64,
) -> std::result::Result<Object<ffi::Mr>, i32> {
    let whole = ffi::IoVec { base: base.cast(), bytes };
    let memory =
        dmabuf.map_or((&raw const whole).cast::<c_void>(), |dmabuf| std::ptr::from_ref(dmabuf).cast());
    let attr = ffi::MrAttr {
        memory,
        count: 1,
        access: ffi::WRITE | ffi::REMOTE_WRITE,
        offset: 0,
        requested_key: key,
        context: null_mut(),
        auth_key_size: 0,
        auth_key: null_mut(),
        interface: ffi::HMEM_CUDA,
        device: u64::from(device),
        spare: [0; 16],
    };
    let flags = if dmabuf.is_some() { ffi::MR_DMABUF } else { 0 };
    // SAFETY: the domain is open, its table is the library's, the attributes live through the call, and the region is
    // ours to close.
    unsafe {
        let regattr = domain.at().as_ref().and_then(|at| entry!(at.mr, ffi::MrOps, regattr));
        Object::open(|place| match regattr {
            Some(regattr) => regattr(domain.head(), &raw const attr, flags, place),
            None => -ffi::ENOSYS,
        })
    }
}

fn refused(library: &Library, provider: &str, bytes: usize, code: i32) -> FabricError {
    let code = code.saturating_abs();
    let mut reason = format!("{}, for {bytes} bytes", library.words(code));
    // What locking too much ends in, by driver.
    if matches!(code, 1 | ffi::EAGAIN | ffi::ENOMEM) {
        let limit = getrlimit(Resource::Memlock).current;
        let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| format!("{limit} bytes"));
        reason = format!("{reason}; this process may lock {limit} of memory (ulimit -l)");
    }
    FabricError::Library { call: "fi_mr_reg", provider: provider.to_owned(), reason, code }
}
