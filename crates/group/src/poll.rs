//! One wait on many descriptors.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// No wait looks at its cancel token more rarely than this.
pub const SLICE: Duration = Duration::from_millis(100);

/// Waits for events or until `timeout`; a signal ends it early. Never fails for longer than one call:
/// callers loop and look at the state of their descriptors anyway.
pub fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        // Out of memory, or more descriptors than the limit: do not spin on it.
        Err(_) => std::thread::sleep(Duration::from_millis(10)),
    }
}
