//! The doorbell and the record protocol under loom: every interleaving, with the weak memory model.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

#[path = "../src/flag.rs"]
mod flag;

use std::time::Duration;

use loom::sync::atomic::AtomicU64;

use atomics::{AtomicU32, Ordering};
use flag::{Bell, Futex};

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
            bell: Bell { sequence: AtomicU32::new(0), sleepers: AtomicU32::new(0) },
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
    // Three threads: two preemptions find every lost wake-up that the two-thread model can show, in seconds.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
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
