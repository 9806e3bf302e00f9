//! The kernel's futex behind the doorbell.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::flag::Futex;

/// The kernel's futex, shared between processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedFutex;

impl Futex for SharedFutex {
    fn sleep(&self, word: &AtomicU32, expected: u32, slice: Duration) {
        use rustix::thread::futex;
        let timeout =
            rustix::fs::Timespec { tv_sec: slice.as_secs() as i64, tv_nsec: i64::from(slice.subsec_nanos()) };
        // No PRIVATE flag: with it the kernel would key on this process and the peer's wake would miss.
        // Every outcome (woken, value changed, timed out, interrupted) means: look again.
        let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
    }

    fn wake_all(&self, word: &AtomicU32) {
        use rustix::thread::futex;
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}
