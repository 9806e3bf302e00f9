//! The CUDA driver, opened and started.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::advice::NO_DEVICE;
use crate::device::Device;
use crate::dynlib::Opened;
use crate::entry_points::DriverApi;
use crate::error::{CallError, CudaError, LoadError, Result};
use crate::search::Search;
use crate::version::Version;

/// The oldest driver that serves: CUDA 12.0 is the first that loads code for `sm_90a`.
pub const OLDEST_DRIVER: Version = Version { major: 12, minor: 0 };

const INSTALL: &str = "install the NVIDIA driver, 525 or newer (580 or newer for CUDA 13); a container gets it from its host \
     (NVIDIA container toolkit, `--gpus all`); EXPERTRAIL_LIBCUDA names another place";

/// The CUDA driver of this process.
#[derive(Clone, Debug)]
pub struct Driver {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    api: DriverApi,
    path: PathBuf,
    version: Version,
    devices: usize,
}

impl Driver {
    /// Opens and starts the driver.
    ///
    /// # Errors
    /// When the library is missing, older than [`OLDEST_DRIVER`], lacks an entry point, does not start, or finds no
    /// device.
    pub fn load(search: &Search) -> std::result::Result<Self, LoadError> {
        let (opened, (version, api)) =
            Opened::first("the CUDA driver (libcuda.so.1)", &search.places, INSTALL, |opened| {
                Ok((driver_version(opened)?, DriverApi::resolve(opened)?))
            })?;
        let path = opened.keep();

        // SAFETY: cuInit takes flags, which must be 0.
        let code = unsafe { (api.init)(0) };
        if code == NO_DEVICE {
            return Err(no_device(path, version));
        }
        let start = |error| LoadError::Start { path: path.clone(), error };
        check(&api, "cuInit", code).map_err(start)?;
        let mut count: c_int = 0;
        // SAFETY: the driver has started and writes one integer.
        let code = unsafe { (api.device_count)(&raw mut count) };
        check(&api, "cuDeviceGetCount", code).map_err(start)?;
        if count <= 0 {
            return Err(no_device(path, version));
        }
        Ok(Self { inner: Arc::new(Inner { api, path, version, devices: count as usize }) })
    }

    /// Where the library was found.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The CUDA version that the driver serves.
    pub fn version(&self) -> Version {
        self.inner.version
    }

    /// How many devices it shows to this process; at least one.
    pub fn device_count(&self) -> usize {
        self.inner.devices
    }

    /// The device numbered `ordinal`.
    ///
    /// # Errors
    /// When there is none of that number.
    pub fn device(&self, ordinal: usize) -> Result<Device> {
        if ordinal >= self.inner.devices {
            return Err(CudaError::Ordinal { ordinal, count: self.inner.devices });
        }
        let mut raw: c_int = 0;
        // SAFETY: the driver writes one integer.
        let code = unsafe { (self.api().device_get)(&raw mut raw, ordinal as c_int) };
        self.check("cuDeviceGet", code)?;
        Ok(Device::new(self.clone(), ordinal, raw))
    }

    /// Every device.
    ///
    /// # Errors
    /// When the driver refuses one.
    pub fn devices(&self) -> Result<Vec<Device>> {
        (0..self.inner.devices).map(|ordinal| self.device(ordinal)).collect()
    }

    pub(crate) fn api(&self) -> &DriverApi {
        &self.inner.api
    }

    /// The result of `call` that returned `code`.
    pub(crate) fn check(&self, call: &'static str, code: i32) -> std::result::Result<(), CallError> {
        check(self.api(), call, code)
    }
}

/// The version before anything else, so that an old driver is called old and not incomplete.
fn driver_version(opened: &Opened) -> std::result::Result<Version, LoadError> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> i32;
    // SAFETY: the type is cuDriverGetVersion's.
    let get: GetVersion = unsafe { opened.symbol("cuDriverGetVersion", "CUDA 2.2") }?;
    let mut number: c_int = 0;
    // SAFETY: the driver writes one integer; this call needs no cuInit.
    let code = unsafe { get(&raw mut number) };
    opened.first_call("cuDriverGetVersion", code)?;
    opened.at_least(OLDEST_DRIVER, Version::from_number(number))
}

fn no_device(path: PathBuf, version: Version) -> LoadError {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES")
        .map_or_else(|_| String::new(), |value| format!(" with CUDA_VISIBLE_DEVICES={value:?}"));
    LoadError::NoDevice { path, version, visible }
}

fn check(api: &DriverApi, call: &'static str, code: i32) -> std::result::Result<(), CallError> {
    if code == 0 {
        return Ok(());
    }
    let (name, text) = (text_of(api.error_name, code), text_of(api.error_string, code));
    Err(CallError { call, code, name, text })
}

/// What `get` says of `code`; empty when the driver does not know it.
fn text_of(get: unsafe extern "C" fn(c_int, *mut *const c_char) -> i32, code: i32) -> String {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the driver writes one pointer, null for a code that it does not know.
    let result = unsafe { get(code, &raw mut text) };
    if result != 0 || text.is_null() {
        return String::new();
    }
    // SAFETY: what the driver returned is one of its constant texts.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
