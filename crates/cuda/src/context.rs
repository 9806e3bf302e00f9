//! A device's primary context, shared with every other CUDA library of the process.

use std::sync::Arc;

use crate::device::Device;
use crate::driver::Driver;
use crate::entry_points::{DriverApi, Handle};
use crate::error::Result;

/// A primary context, released when the last clone and everything made from it is gone.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    raw: Handle,
}

impl Context {
    pub(crate) fn retain(device: Device) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: the driver writes one handle.
        let code = unsafe { (device.driver().api().context_retain)(&raw mut raw, device.raw()) };
        device.driver().check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Self { inner: Arc::new(Inner { device, raw }) })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Waits for everything on the device that this process started.
    ///
    /// # Errors
    /// When earlier work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.call("cuCtxSynchronize", |api| {
            // SAFETY: a context is current.
            unsafe { (api.context_synchronize)() }
        })
    }

    /// Bytes free and bytes in all.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        self.call("cuMemGetInfo", |api| {
            // SAFETY: the driver writes two sizes.
            unsafe { (api.memory_info)(&raw mut free, &raw mut total) }
        })?;
        Ok((free, total))
    }

    pub(crate) fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// Runs `body` with this context current on this thread, and checks the code it returns.
    pub(crate) fn call(&self, name: &'static str, body: impl FnOnce(&DriverApi) -> i32) -> Result<()> {
        let _entered = self.enter()?;
        Ok(self.driver().check(name, body(self.driver().api()))?)
    }

    /// Runs `body` as if this thread captured nothing. While it does, the driver forbids it to ask after events, even
    /// after those that have nothing to do with the capture.
    pub(crate) fn outside_capture<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        const RELAXED: i32 = 2;
        let mut mode = RELAXED;
        self.call("cuThreadExchangeStreamCaptureMode", |api| {
            // SAFETY: the driver reads and writes one integer.
            unsafe { (api.capture_mode)(&raw mut mode) }
        })?;
        let result = body();
        // SAFETY: as above; the mode is what it was before.
        self.call_in_drop(|api| unsafe { (api.capture_mode)(&raw mut mode) });
        result
    }

    /// As [`Context::call`] where nothing can be done about a failure: in drops.
    pub(crate) fn call_in_drop(&self, body: impl FnOnce(&DriverApi) -> i32) {
        if let Ok(_entered) = self.enter() {
            let _ = body(self.driver().api());
        }
    }

    /// Makes this context current on this thread until the guard goes; then the one before is current again, for the
    /// thread may belong to another CUDA library that works on another device.
    fn enter(&self) -> Result<Entered<'_>> {
        let driver = self.driver();
        let mut before = 0;
        // SAFETY: the driver writes one handle, null when no context is current.
        let code = unsafe { (driver.api().context_get)(&raw mut before) };
        driver.check("cuCtxGetCurrent", code)?;
        if before == self.inner.raw {
            return Ok(Entered { driver, before: None });
        }
        // SAFETY: the context is retained for as long as `self` lives.
        let code = unsafe { (driver.api().context_set)(self.inner.raw) };
        driver.check("cuCtxSetCurrent", code)?;
        Ok(Entered { driver, before: Some(before) })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`; whatever was made from the context held a clone and is gone.
        let _ = unsafe { (self.device.driver().api().context_release)(self.device.raw()) };
    }
}

struct Entered<'a> {
    driver: &'a Driver,
    before: Option<Handle>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: this was the thread's current context (or none) a moment ago.
            let _ = unsafe { (self.driver.api().context_set)(before) };
        }
    }
}
