//! The doorbell: how a rank sleeps until another has published something, without losing a wake-up.
//!
//! A publisher stores its flag (release), then rings. A waiter checks the flag, spins a little, and sleeps on
//! the bell's sequence number. Lost wake-ups are excluded by two fences: the publisher bumps the sequence
//! before it looks for waiters, the waiter announces itself before the kernel compares the sequence. At least
//! one of them sees the other. `tests` runs the same code under loom.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// A sequence number to sleep on and the number of sleepers, in shared memory.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Bell {
    sequence: AtomicU32,
    sleepers: AtomicU32,
}

/// How to sleep on a word and wake its sleepers: a shared futex, or loom's stand-in.
pub(crate) trait Futex {
    /// Sleeps while `word` is `expected`, until woken or `slice` has passed. May wake without cause.
    fn sleep(&self, word: &AtomicU32, expected: u32, slice: Duration);
    /// Wakes all sleepers of `word`.
    fn wake_all(&self, word: &AtomicU32);
}

impl Bell {
    #[cfg(any(test, loom))]
    pub(crate) fn new() -> Self {
        Self { sequence: AtomicU32::new(0), sleepers: AtomicU32::new(0) }
    }

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
    pub(crate) fn sleep_unless(&self, futex: &impl Futex, slice: Duration, mut ready: impl FnMut() -> bool) -> bool {
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

/// The kernel's futex, shared between processes.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedFutex;

#[cfg(not(loom))]
impl Futex for SharedFutex {
    fn sleep(&self, word: &AtomicU32, expected: u32, slice: Duration) {
        use rustix::thread::futex;
        let timeout = rustix::fs::Timespec { tv_sec: slice.as_secs() as i64, tv_nsec: i64::from(slice.subsec_nanos()) };
        // No PRIVATE flag: with it the kernel would key on this process and the peer's wake would miss.
        // Every outcome (woken, value changed, timed out, interrupted) means: look again.
        let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
    }

    fn wake_all(&self, word: &AtomicU32) {
        use rustix::thread::futex;
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::atomic::AtomicU64;
    use loom::sync::{Arc, Condvar, Mutex};

    /// A futex without time-outs: a lost wake-up is a deadlock, which loom reports.
    struct Model {
        lock: Mutex<()>,
        condvar: Condvar,
    }

    impl Futex for Model {
        fn sleep(&self, word: &AtomicU32, expected: u32, _: Duration) {
            let guard = self.lock.lock().unwrap();
            if word.load(Ordering::Relaxed) == expected {
                drop(self.condvar.wait(guard).unwrap());
            }
        }

        fn wake_all(&self, _: &AtomicU32) {
            let _guard = self.lock.lock().unwrap();
            self.condvar.notify_all();
        }
    }

    struct Cell {
        bell: Bell,
        epoch: AtomicU64,
        payload: AtomicU64,
        futex: Model,
    }

    impl Cell {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                bell: Bell::new(),
                epoch: AtomicU64::new(0),
                payload: AtomicU64::new(0),
                futex: Model { lock: Mutex::new(()), condvar: Condvar::new() },
            })
        }

        fn publish(&self, epoch: u64) {
            self.payload.store(epoch * 10, Ordering::Relaxed);
            self.epoch.store(epoch, Ordering::Release);
            self.bell.ring(&self.futex);
        }

        fn wait(&self, epoch: u64) {
            let ready = || self.epoch.load(Ordering::Acquire) >= epoch;
            while !self.bell.sleep_unless(&self.futex, Duration::ZERO, ready) {}
        }
    }

    #[test]
    fn a_waiter_is_always_woken_and_sees_the_payload() {
        loom::model(|| {
            let cell = Cell::new();
            let publisher = cell.clone();
            let thread = loom::thread::spawn(move || publisher.publish(1));
            cell.wait(1);
            assert_eq!(cell.payload.load(Ordering::Relaxed), 10);
            thread.join().unwrap();
        });
    }

    #[test]
    fn two_waiters_and_one_ring() {
        loom::model(|| {
            let cell = Cell::new();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let cell = cell.clone();
                    loom::thread::spawn(move || {
                        cell.wait(1);
                        assert_eq!(cell.payload.load(Ordering::Relaxed), 10);
                    })
                })
                .collect();
            cell.publish(1);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    /// The whole call protocol of two ranks over two epochs: publish a record of the epoch's parity, wait for
    /// the peer's, read it, say done, wait for the peer's done. No record may change under a reader.
    #[test]
    fn records_of_two_generations_never_change_under_a_reader() {
        struct Rank {
            notify: AtomicU64,
            done: AtomicU64,
            record: [AtomicU64; 2],
        }
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let rank = || Rank {
                notify: AtomicU64::new(0),
                done: AtomicU64::new(0),
                record: [AtomicU64::new(0), AtomicU64::new(0)],
            };
            let ranks = Arc::new([rank(), rank()]);
            let run = |me: usize, ranks: Arc<[Rank; 2]>| {
                for epoch in 1..=2u64 {
                    let (own, peer) = (&ranks[me], &ranks[1 - me]);
                    own.record[epoch as usize % 2].store(epoch * 10 + me as u64, Ordering::Relaxed);
                    own.notify.store(epoch, Ordering::Release);
                    while peer.notify.load(Ordering::Acquire) < epoch {
                        loom::thread::yield_now();
                    }
                    let seen = peer.record[epoch as usize % 2].load(Ordering::Relaxed);
                    assert_eq!(seen, epoch * 10 + (1 - me) as u64);
                    own.done.store(epoch, Ordering::Release);
                    while peer.done.load(Ordering::Acquire) < epoch {
                        loom::thread::yield_now();
                    }
                }
            };
            let other = ranks.clone();
            let thread = loom::thread::spawn(move || run(1, other));
            run(0, ranks);
            thread.join().unwrap();
        });
    }

    /// The model can fail: without the waiter's announcement before the comparison the wake-up is lost.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_bell_that_forgets_to_announce_loses_the_wake_up() {
        loom::model(|| {
            let cell = Cell::new();
            let publisher = cell.clone();
            let thread = loom::thread::spawn(move || publisher.publish(1));
            let seen = cell.bell.sequence.load(Ordering::Acquire);
            if cell.epoch.load(Ordering::Acquire) < 1 {
                cell.futex.sleep(&cell.bell.sequence, seen, Duration::ZERO);
            }
            thread.join().unwrap();
        });
    }
}
