//! How a thread that sleeps in a transport's wait is woken by other threads of its process, too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::error::{FabricError, Result};

/// A bell with a descriptor, for one sleeper and any number of threads that wake it.
///
/// The sleeper announces itself ([`Wake::announce`]), looks once more for work, sleeps with the descriptor among those that it
/// waits for, and ends with [`Wake::awake`]. Whoever has work for it makes that visible first and then calls
/// [`Wake::wake`]. Each side has a fence between its own store and its look at the other's, so that one of them sees the
/// other; and as long as nobody sleeps, waking costs a fence and a load.
#[derive(Debug)]
pub struct Wake {
    event: OwnedFd,
    asleep: AtomicU32,
}

impl Wake {
    /// A bell that nobody waits for.
    ///
    /// # Errors
    /// [`FabricError::System`] when the process has no descriptor left.
    pub fn new() -> Result<Self> {
        let event =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
                FabricError::System {
                    what: "opening a descriptor to wake the thread that serves the network".to_owned(),
                    reason: error.to_string(),
                }
            })?;
        Ok(Self { event, asleep: AtomicU32::new(0) })
    }

    /// Wakes the sleeper, if there is one. What this thread stored before is visible to it.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) != 0 && self.asleep.swap(0, Ordering::AcqRel) != 0 {
            // It can only fail when the counter is full: then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Says that this thread is about to sleep. It must look for work once more after this.
    pub fn announce(&self) {
        self.asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends what [`Wake::announce`] began: the descriptor is no longer readable.
    pub fn awake(&self) {
        if self.asleep.swap(0, Ordering::AcqRel) == 0 {
            // Somebody has rung, or is about to: then the next sleep ends early, and does no harm.
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }

    /// Sleeps until somebody wakes, `other` is readable, or `most` has passed. Says whether `other` is readable.
    ///
    /// # Errors
    /// The number of a failed `poll`.
    pub(crate) fn sleep(
        &self,
        other: Option<BorrowedFd<'_>>,
        most: Duration,
    ) -> std::result::Result<bool, i32> {
        let own = self.event.as_fd();
        let mut both = [own, other.unwrap_or(own)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let count = if other.is_some() { 2 } else { 1 };
        match rustix::event::poll(&mut both[..count], Timespec::try_from(most).ok().as_ref()) {
            Ok(_) => Ok(other.is_some() && !both[1].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.raw_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_sleeper_is_woken_and_nobody_else_is_remembered() {
        let wake = Wake::new().unwrap();
        // Nobody has announced: nothing is kept for a later sleep.
        wake.wake();
        wake.announce();
        let start = Instant::now();
        assert_eq!(wake.sleep(None, Duration::from_millis(20)), Ok(false));
        assert!(start.elapsed() >= Duration::from_millis(15), "{:?}", start.elapsed());
        // One that comes between the announcement and the sleep is.
        wake.wake();
        let start = Instant::now();
        wake.sleep(None, LONG).unwrap();
        wake.awake();
        wake.announce();
        assert!(start.elapsed() < LONG / 2);
        let start = Instant::now();
        wake.sleep(None, Duration::from_millis(20)).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(15), "the descriptor was not emptied");
    }

    #[test]
    fn no_wake_is_lost() {
        let (wake, given) = (Arc::new(Wake::new().unwrap()), Arc::new(AtomicU64::new(0)));
        let (taken, done) = (Arc::new(AtomicU64::new(0)), 2_000);
        let sleeper = std::thread::spawn({
            let (wake, given, taken) = (wake.clone(), given.clone(), taken.clone());
            move || {
                let mut seen = 0;
                while seen < done {
                    wake.announce();
                    if given.load(Ordering::Relaxed) == seen {
                        let start = Instant::now();
                        wake.sleep(None, LONG).unwrap();
                        assert!(start.elapsed() < LONG / 2, "asleep though {seen} was given");
                    }
                    wake.awake();
                    seen = given.load(Ordering::Relaxed);
                    taken.store(seen, Ordering::Release);
                }
            }
        });
        for next in 1..=done {
            given.store(next, Ordering::Relaxed);
            wake.wake();
            while taken.load(Ordering::Acquire) < next && !sleeper.is_finished() {
                std::thread::yield_now();
            }
        }
        sleeper.join().unwrap();
    }
}
