//! GDRCopy: its own test where it is installed, else pinning through its library.

use std::ffi::{c_int, c_ulong, c_void};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::cuda::Cuda;
use super::{Outcome, open, symbol};
use crate::isolate;

/// Runs `gdrcopy_sanity` if there is one, else pins a page of GPU memory and writes through its mapping.
pub(super) fn run(
    gdrcopy_sanity: Option<PathBuf>,
    libgdrapi: Option<PathBuf>,
    libcuda: Option<PathBuf>,
    limit: Duration,
) -> Outcome {
    match gdrcopy_sanity.or_else(|| on_path("gdrcopy_sanity")) {
        Some(program) => sanity(&program, limit),
        None => pin(libgdrapi, libcuda),
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn sanity(program: &std::path::Path, limit: Duration) -> Outcome {
    let started = Instant::now();
    let child =
        Command::new(program).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Outcome::NotRun(format!("{}: {error}", program.display())),
    };
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        // A test that writes without end is cut off.
        if let Some(output) = output {
            let _ = output.take(1 << 20).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if started.elapsed() < limit.mul_f64(0.9) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(None) => {
                // No longer than that: what is stuck in the driver does not end.
                isolate::end(&mut child, limit.mul_f64(0.05));
                return Outcome::Fails(format!(
                    "{} did not end within {} s",
                    program.display(),
                    limit.as_secs()
                ));
            }
            Err(error) => return Outcome::NotRun(format!("{}: {error}", program.display())),
        }
    };
    let text = reader.join().unwrap_or_default();
    match parse_total(&text) {
        Some((total, passed, 0)) if status.success() && passed > 0 => {
            Outcome::Works(format!("gdrcopy_sanity: {passed} of {total} passed"))
        }
        Some((total, passed, failed)) => {
            Outcome::Fails(format!("gdrcopy_sanity: {failed} of {total} failed, {passed} passed ({status})"))
        }
        None => Outcome::Fails(format!("gdrcopy_sanity printed no total ({status})")),
    }
}

/// Total, passed and failed of the line `Total: 28, Passed: 28, Failed: 0, Waived: 0`.
fn parse_total(text: &str) -> Option<(u32, u32, u32)> {
    let line = text.lines().find(|line| line.trim_start().starts_with("Total:"))?;
    let number = |key: &str| {
        let (_, rest) = line.split_once(key)?;
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    Some((number("Total:")?, number("Passed:")?, number("Failed:")?))
}

/// A page of GPU memory as GDRCopy counts pages.
const PAGE: usize = 64 << 10;

/// What is written.
const WORD: u64 = 0x45_78_70_65_72_74;

/// `gdr_mh_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Handle {
    h: c_ulong,
}

fn pin(libgdrapi: Option<PathBuf>, libcuda: Option<PathBuf>) -> Outcome {
    let path = libgdrapi.unwrap_or_else(|| "libgdrapi.so.2".into());
    let library = match open(&path) {
        Ok(library) => library,
        Err(reason) => return Outcome::NotRun(format!("neither gdrcopy_sanity nor libgdrapi: {reason}")),
    };
    let cuda = match Cuda::start(libcuda) {
        Ok(Ok(cuda)) => cuda,
        Ok(Err(reason)) => return Outcome::Fails(reason),
        Err(reason) => return Outcome::NotRun(reason),
    };
    match through(&library, &cuda) {
        Ok(()) => Outcome::Works("a page of GPU memory pinned, mapped, written and read back".to_owned()),
        Err(reason) => Outcome::Fails(reason),
    }
}

fn through(library: &libloading::Library, cuda: &Cuda) -> Result<(), String> {
    type Pin = unsafe extern "C" fn(*mut c_void, c_ulong, usize, u64, u32, *mut Handle) -> c_int;
    type Map = unsafe extern "C" fn(*mut c_void, Handle, *mut *mut c_void, usize) -> c_int;
    type Unmap = unsafe extern "C" fn(*mut c_void, Handle, *mut c_void, usize) -> c_int;
    type ToHost = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;
    type Unpin = unsafe extern "C" fn(*mut c_void, Handle) -> c_int;
    // SAFETY: the types of gdrapi.h.
    let (start, end, pin, map, unmap, unpin) = unsafe {
        (
            symbol::<unsafe extern "C" fn() -> *mut c_void>(library, "gdr_open")?,
            symbol::<unsafe extern "C" fn(*mut c_void) -> c_int>(library, "gdr_close")?,
            symbol::<Pin>(library, "gdr_pin_buffer")?,
            symbol::<Map>(library, "gdr_map")?,
            symbol::<Unmap>(library, "gdr_unmap")?,
            symbol::<Unpin>(library, "gdr_unpin_buffer")?,
        )
    };
    // SAFETY: the type of cuda.h.
    let get = unsafe { cuda.entry::<ToHost>("cuMemcpyDtoH_v2") }?;
    let current = cuda.current(0)?;
    current.set()?;
    // A page more, so that a whole one lies inside.
    let memory = cuda.allocate(2 * PAGE)?;
    let page = memory.address.next_multiple_of(PAGE as u64);
    // SAFETY: it takes nothing.
    let gdr = unsafe { start() };
    if gdr.is_null() {
        return Err(format!("gdr_open: {} (/dev/gdrdrv)", std::io::Error::last_os_error()));
    }
    let mut handle = Handle::default();
    // SAFETY: the page is inside of the memory above.
    let code = unsafe { pin(gdr, page, PAGE, 0, 0, &raw mut handle) };
    let mut result = if code == 0 {
        Ok(())
    } else {
        Err(format!("gdr_pin_buffer: {}", std::io::Error::from_raw_os_error(code)))
    };
    if result.is_ok() {
        let mut mapped: *mut c_void = std::ptr::null_mut();
        // SAFETY: the handle is of the pinned page.
        let code = unsafe { map(gdr, handle, &raw mut mapped, PAGE) };
        if code != 0 || mapped.is_null() {
            result = Err(format!("gdr_map: {}", std::io::Error::from_raw_os_error(code)));
        } else {
            let word = mapped.cast::<u64>();
            // SAFETY: the mapping has PAGE bytes, is aligned to a page of the host, and nobody else uses it.
            let read = unsafe {
                word.write_volatile(WORD);
                word.read_volatile()
            };
            if read != WORD {
                result = Err(format!("the mapping returned {read:#x} instead of what was written"));
            }
            // Through the driver it must be the same, or the mapping is not of this memory. The read above has pushed the write out.
            let mut there = 0_u64;
            // SAFETY: the page holds a word, and so does `there`.
            let code = unsafe { get((&raw mut there).cast(), page, size_of::<u64>()) };
            if result.is_ok() {
                result = cuda.check("cuMemcpyDtoH_v2", code);
            }
            if result.is_ok() && there != WORD {
                result = Err(format!("the GPU has {there:#x} where the mapping was written"));
            }
            // SAFETY: the mapping of above.
            unsafe { unmap(gdr, handle, mapped, PAGE) };
        }
        // SAFETY: the handle of above.
        unsafe { unpin(gdr, handle) };
    }
    // SAFETY: opened above.
    unsafe { end(gdr) };
    result
}

#[cfg(test)]
mod tests {
    use super::parse_total;

    #[test]
    fn totals() {
        assert_eq!(parse_total("x\nTotal: 28, Passed: 27, Failed: 1, Waived: 0\n"), Some((28, 27, 1)));
        assert_eq!(parse_total("Total: many"), None);
        assert_eq!(parse_total(""), None);
    }
}
