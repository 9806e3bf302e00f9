//! Opening RDMA devices.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use super::{Outcome, open as load, symbol};

type Device = *mut c_void;

/// Opens every device of libibverbs and compares with those that the kernel has.
pub(super) fn open(library: Option<PathBuf>, expected: &[String]) -> Outcome {
    let library = match load(&library.unwrap_or_else(|| "libibverbs.so.1".into())) {
        Ok(library) => library,
        // The kernel has devices and this image nothing to open them with: libraries fall back to TCP without a word.
        Err(reason) if !expected.is_empty() => {
            return Outcome::Fails(format!(
                "libibverbs: {reason}; the kernel has {} devices",
                expected.len()
            ));
        }
        Err(reason) => return Outcome::NotRun(format!("{reason}; the kernel has no RDMA device either")),
    };
    match each(&library) {
        // Without a device the kernel's part may not even be loaded.
        Err(reason) if expected.is_empty() => {
            Outcome::NotRun(format!("{reason}; the kernel has no RDMA device"))
        }
        Err(reason) => Outcome::Fails(reason),
        Ok((opened, refused)) => {
            let missing: Vec<&String> = expected
                .iter()
                .filter(|name| !opened.contains(name) && !refused.iter().any(|(refused, _)| refused == *name))
                .collect();
            let mut wrong: Vec<String> =
                refused.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
            if !missing.is_empty() {
                let names: Vec<&str> = missing.into_iter().map(String::as_str).collect();
                wrong.push(format!("not listed by libibverbs: {}", names.join(", ")));
            }
            if !wrong.is_empty() {
                return Outcome::Fails(wrong.join("; "));
            }
            if opened.is_empty() {
                return Outcome::NotRun("there is no RDMA device".to_owned());
            }
            Outcome::Works(format!("{} devices opened", opened.len()))
        }
    }
}

/// Names that opened, and names that did not with the reason.
type Opened = (Vec<String>, Vec<(String, String)>);

fn each(library: &libloading::Library) -> Result<Opened, String> {
    // SAFETY: the types of infiniband/verbs.h.
    let (list, free, name, open, close) = unsafe {
        (
            symbol::<unsafe extern "C" fn(*mut c_int) -> *mut Device>(library, "ibv_get_device_list")?,
            symbol::<unsafe extern "C" fn(*mut Device)>(library, "ibv_free_device_list")?,
            symbol::<unsafe extern "C" fn(Device) -> *const c_char>(library, "ibv_get_device_name")?,
            symbol::<unsafe extern "C" fn(Device) -> *mut c_void>(library, "ibv_open_device")?,
            symbol::<unsafe extern "C" fn(*mut c_void) -> c_int>(library, "ibv_close_device")?,
        )
    };
    let mut count = 0;
    // SAFETY: the library writes one number and returns a list of as many devices.
    let devices = unsafe { list(&raw mut count) };
    if devices.is_null() {
        return Err(format!("ibv_get_device_list: {}", std::io::Error::last_os_error()));
    }
    let mut opened: Opened = Default::default();
    for index in 0..count.clamp(0, 512) as usize {
        // SAFETY: the list has `count` entries.
        let device = unsafe { *devices.add(index) };
        // SAFETY: the device is of the list.
        let text = unsafe { name(device) };
        let text = if text.is_null() {
            format!("device {index}")
        } else {
            // SAFETY: not null; names end with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        // SAFETY: the device is of the list.
        let context = unsafe { open(device) };
        if context.is_null() {
            opened.1.push((text, std::io::Error::last_os_error().to_string()));
        } else {
            // SAFETY: opened above and used no more.
            unsafe { close(context) };
            opened.0.push(text);
        }
    }
    // SAFETY: the list of above, used no more.
    unsafe { free(devices) };
    Ok(opened)
}
