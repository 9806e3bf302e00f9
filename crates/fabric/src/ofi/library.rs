//! libfabric, opened at run time.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{FabricError, Result};
use crate::ofi::ffi;

/// Names the library's file, or the folder that it lies in.
pub const VARIABLE: &str = "EXPERTRAIL_LIBFABRIC";
const FILE: &str = "libfabric.so.1";
const FOLDERS: [&str; 4] =
    ["/opt/amazon/efa/lib", "/opt/amazon/efa/lib64", "/usr/local/lib", "/usr/local/lib64"];
/// The oldest whose structures are as declared here and whose providers have what the transport asks.
const OLDEST: u32 = ffi::version(1, 11);
/// The interface asked for: structures and meanings are those of this version, whatever newer library answers.
const ASKED: u32 = ffi::version(1, 17);
/// For GPU memory: the first with dma-buf registration.
const ASKED_FOR_GPU: u32 = ffi::version(1, 20);

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const ffi::Info,
    *mut *mut ffi::Info,
) -> c_int;

/// The calls that are looked up by name; all others are in the tables of the objects.
struct Calls {
    getinfo: GetInfo,
    freeinfo: unsafe extern "C" fn(*mut ffi::Info),
    dupinfo: unsafe extern "C" fn(*const ffi::Info) -> *mut ffi::Info,
    fabric: unsafe extern "C" fn(*mut ffi::FabricAttr, *mut *mut ffi::Fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

struct Inner {
    path: PathBuf,
    version: u32,
    calls: Calls,
}

/// An open libfabric. Cheap to clone; never unloaded, because its providers own threads and exit handlers.
#[derive(Clone)]
pub struct Library(Arc<Inner>);

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.path().display())
    }
}

impl Library {
    /// Opens what `EXPERTRAIL_LIBFABRIC` names; without it the loader's `libfabric.so.1`, then the EFA installer's.
    ///
    /// # Errors
    /// [`FabricError::NoLibrary`] with every place and the last one's reason.
    pub fn open() -> Result<Self> {
        let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let places = match named {
            Some(folder) if folder.is_dir() => vec![folder.join(FILE)],
            Some(file) => vec![file],
            None => std::iter::once(PathBuf::from(FILE))
                .chain(FOLDERS.iter().map(|folder| Path::new(folder).join(FILE)))
                .collect(),
        };
        Self::open_first(&places)
    }

    /// Opens the first of `places` that is a libfabric, version 1.11 or newer.
    ///
    /// # Errors
    /// [`FabricError::NoLibrary`] with every place and the last one's reason.
    pub fn open_first(places: &[PathBuf]) -> Result<Self> {
        let mut last = "no place to look in".to_owned();
        for place in places {
            match Self::open_at(place) {
                Ok(library) => return Ok(library),
                Err(reason) => last = reason,
            }
        }
        let names: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        Err(FabricError::NoLibrary { looked_for: names.join(", "), reason: last })
    }

    fn open_at(place: &Path) -> std::result::Result<Self, String> {
        // SAFETY: this runs the library's initialisers. The places name libfabric, or are what the user set; whoever can
        // put another library there can run code as this user anyway.
        let library = unsafe { libloading::Library::new(place) }.map_err(|error| words(&error))?;
        // SAFETY: the type is that of the header; it takes nothing and gives a number.
        let version = unsafe { symbol::<unsafe extern "C" fn() -> u32>(&library, "fi_version")?() };
        if version < OLDEST {
            return Err(format!("{} is version {}, older than 1.11", place.display(), version_text(version)));
        }
        // SAFETY: the types in `Calls` are those of libfabric's headers, whose interface is kept across versions.
        let calls = unsafe {
            Calls {
                getinfo: symbol(&library, "fi_getinfo")?,
                freeinfo: symbol(&library, "fi_freeinfo")?,
                dupinfo: symbol(&library, "fi_dupinfo")?,
                fabric: symbol(&library, "fi_fabric")?,
                strerror: symbol(&library, "fi_strerror")?,
            }
        };
        // What was resolved stays valid.
        std::mem::forget(library);
        Ok(Self(Arc::new(Inner { path: place.to_owned(), version, calls })))
    }

    /// Where it was found: a path, or the bare name that the loader resolved.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        (self.0.version >> 16, self.0.version & 0xffff)
    }

    /// `libfabric 1.17`.
    pub fn name(&self) -> String {
        format!("libfabric {}", version_text(self.0.version))
    }

    /// The interface version to ask for.
    pub(crate) fn asked(&self, gpu: bool) -> u32 {
        self.0.version.min(if gpu { ASKED_FOR_GPU } else { ASKED })
    }

    /// The library's words for one of its codes, of either sign.
    pub(crate) fn words(&self, code: i32) -> String {
        // SAFETY: takes any number and gives a string that is never freed.
        unsafe { text((self.0.calls.strerror)(code.saturating_abs())) }
    }

    /// A [`FabricError::Library`] of `call`, which returned `code`.
    pub(crate) fn error(&self, call: &'static str, provider: &str, code: i32) -> FabricError {
        let code = code.saturating_abs();
        FabricError::Library { call, provider: provider.to_owned(), reason: self.words(code), code }
    }

    /// Everything that matches `hints`, as a list to be freed with [`Library::free`]; null when nothing does.
    pub(crate) fn getinfo(&self, gpu: bool, hints: *const ffi::Info) -> Result<*mut ffi::Info> {
        let mut list = std::ptr::null_mut();
        let nothing = std::ptr::null();
        // SAFETY: the hints are from `dup`; null names stand for "any".
        let code =
            unsafe { (self.0.calls.getinfo)(self.asked(gpu), nothing, nothing, 0, hints, &raw mut list) };
        match -code {
            0 => Ok(list),
            ffi::ENODATA => Ok(std::ptr::null_mut()),
            _ => Err(self.error("fi_getinfo", &self.name(), code)),
        }
    }

    /// A copy of one description, or an empty one for null.
    pub(crate) fn dup(&self, info: *const ffi::Info) -> Result<*mut ffi::Info> {
        // SAFETY: null or a description of this library's.
        let copy = unsafe { (self.0.calls.dupinfo)(info) };
        if copy.is_null() { Err(self.error("fi_dupinfo", &self.name(), ffi::ENOMEM)) } else { Ok(copy) }
    }

    /// Frees a list of descriptions.
    ///
    /// # Safety
    /// `info` is null or from this library, and nobody uses it any more.
    pub(crate) unsafe fn free(&self, info: *mut ffi::Info) {
        if !info.is_null() {
            // SAFETY: the caller's promise.
            unsafe { (self.0.calls.freeinfo)(info) }
        }
    }

    /// Opens a fabric.
    ///
    /// # Safety
    /// `attr` is that of a description of this library's.
    pub(crate) unsafe fn fabric(&self, attr: *mut ffi::FabricAttr, fabric: &mut *mut ffi::Fabric) -> i32 {
        // SAFETY: the caller's promise; the answer goes to a place of ours.
        unsafe { (self.0.calls.fabric)(attr, fabric, std::ptr::null_mut()) }
    }
}

/// The text of a C string; nothing for null.
///
/// # Safety
/// `string` is null or ends with a zero byte.
pub(crate) unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

fn version_text(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

/// Finds an entry point.
///
/// # Safety
/// `T` is the type of that entry point, and the library stays loaded for as long as it is used.
unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &str) -> std::result::Result<T, String> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<T>(name) }.map(|found| *found).map_err(|error| words(&error))
}

/// libloading's own text says only that the call failed: the loader's reason is its source.
fn words(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
