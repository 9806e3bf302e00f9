//! Objects of the library: opened by its tables of calls, closed once.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::ofi::ffi::{self, entry};

/// Types that begin with a [`ffi::Fid`].
///
/// # Safety
/// The type is `repr(C)` and its first field is a `Fid`.
pub(crate) unsafe trait Headed {}
// SAFETY: declared so in `ffi`.
unsafe impl Headed for ffi::Fabric {}
// SAFETY: as above.
unsafe impl Headed for ffi::Domain {}
// SAFETY: as above.
unsafe impl Headed for ffi::Av {}
// SAFETY: as above.
unsafe impl Headed for ffi::Cq {}
// SAFETY: as above.
unsafe impl Headed for ffi::Ep {}
// SAFETY: as above.
unsafe impl Headed for ffi::Mr {}

/// An open object. Dropping closes it; a structure of them lists them in the order in which they must be closed.
#[derive(Debug)]
pub(crate) struct Object<T: Headed>(Option<NonNull<T>>);

// SAFETY: the transport asks for a threading mode in which a domain's objects may be used by any one thread at a time.
unsafe impl<T: Headed> Send for Object<T> {}

impl<T: Headed> Object<T> {
    /// What `open` puts into the place that it is given.
    ///
    /// # Errors
    /// The library's code; `ENOMEM` for success without an object.
    ///
    /// # Safety
    /// When `open` gives 0 the place holds null or an open object that nobody else closes.
    pub(crate) unsafe fn open(open: impl FnOnce(&mut *mut T) -> i32) -> Result<Self, i32> {
        let mut place = std::ptr::null_mut();
        match open(&mut place) {
            0 => NonNull::new(place).map(|object| Self(Some(object))).ok_or(ffi::ENOMEM),
            code => Err(code),
        }
    }

    /// The object, or null once it is closed.
    pub(crate) fn at(&self) -> *mut T {
        self.0.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// Its head, or null once it is closed.
    pub(crate) fn head(&self) -> *mut ffi::Fid {
        self.at().cast()
    }

    /// `fi_control`; the library's code, `-ENOSYS` where there is no such call.
    ///
    /// # Safety
    /// `argument` is what `command` takes.
    pub(crate) unsafe fn control(&self, command: i32, argument: *mut c_void) -> i32 {
        // SAFETY: the object is open or null, and its table is the library's; the rest is the caller's promise.
        unsafe {
            match self.head().as_ref().and_then(|head| entry!(head.ops, ffi::FidOps, control)) {
                Some(control) => control(self.head(), command, argument),
                None => -ffi::ENOSYS,
            }
        }
    }

    /// `fi_bind`; the library's code.
    pub(crate) fn bind<U: Headed>(&self, other: &Object<U>, flags: u64) -> i32 {
        // SAFETY: both objects are open or null, and the table is the library's.
        unsafe {
            match self.head().as_ref().and_then(|head| entry!(head.ops, ffi::FidOps, bind)) {
                Some(bind) if !other.head().is_null() => bind(self.head(), other.head(), flags),
                _ => -ffi::ENOSYS,
            }
        }
    }

    /// Closes it, unless that is done already; the library's code.
    pub(crate) fn close(&mut self) -> i32 {
        let Some(object) = self.0.take() else { return 0 };
        let head = object.cast::<ffi::Fid>();
        // SAFETY: the object is open, its table is the library's, and it is forgotten now.
        unsafe {
            match entry!(head.as_ref().ops, ffi::FidOps, close) {
                Some(close) => close(head.as_ptr()),
                None => -ffi::ENOSYS,
            }
        }
    }
}

impl<T: Headed> Drop for Object<T> {
    fn drop(&mut self) {
        self.close();
    }
}
