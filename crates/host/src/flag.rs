//! The doorbell: how a rank sleeps until another has published something, without losing a wake-up.
//!
//! A publisher stores its flag (release), then rings. A waiter checks the flag, spins a little, and sleeps on
//! the bell's sequence number. Lost wake-ups are excluded by two fences: the publisher bumps the sequence
//! before it looks for waiters, the waiter announces itself before the kernel compares the sequence. At least
//! one of them sees the other. `tests/flag_model.rs` runs this very file under loom, with loom's atomics.

use std::time::Duration;

use crate::atomics::{AtomicU32, Ordering, fence};

/// A sequence number to sleep on and the number of sleepers, in shared memory.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Bell {
    pub(crate) sequence: AtomicU32,
    pub(crate) sleepers: AtomicU32,
}

/// How to sleep on a word and wake its sleepers: a shared futex, or loom's stand-in.
pub(crate) trait Futex {
    /// Sleeps while `word` is `expected`, until woken or `slice` has passed. May wake without cause.
    fn sleep(&self, word: &AtomicU32, expected: u32, slice: Duration);
    /// Wakes all sleepers of `word`.
    fn wake_all(&self, word: &AtomicU32);
}

impl Bell {
    /// Wakes everybody who sleeps on this bell. What was stored before is visible to them.
    pub(crate) fn ring(&self, futex: &impl Futex) {
        self.sequence.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        // A sleeper that was killed stays counted; the only cost is a needless system call.
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            futex.wake_all(&self.sequence);
        }
    }

    /// Sleeps until the bell rings or `slice` has passed, unless `ready` already holds. Says whether it holds.
    pub(crate) fn sleep_unless(
        &self,
        futex: &impl Futex,
        slice: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        let seen = self.sequence.load(Ordering::Acquire);
        if ready() {
            return true;
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        futex.sleep(&self.sequence, seen, slice);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        ready()
    }
}
