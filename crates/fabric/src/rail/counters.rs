//! What a proxy has done, for reports.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one proxy; it alone writes them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) writes: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) arrivals: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) turns: AtomicU64,
    pub(super) working_turns: AtomicU64,
    pub(super) sleeps: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailStats {
    /// Writes that the transport took, control included.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Writes of peers that arrived.
    pub arrivals: u64,
    /// Times that the transport's queue was full and a write was tried again.
    pub busy: u64,
    /// Arrivals that had come before: each is a fault of the network or the provider, and ends the communicator.
    pub duplicates: u64,
    /// Writes that failed.
    pub failed: u64,
    /// Turns of the proxy's loop, and those that found something to do: their share is its utilisation.
    pub turns: u64,
    /// See `turns`.
    pub working_turns: u64,
    /// Times that it slept.
    pub sleeps: u64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, by: u64) {
        // One writer: no read-modify-write is needed.
        counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }

    /// Reads all.
    pub(super) fn read(&self) -> RailStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RailStats {
            writes: get(&self.writes),
            bytes: get(&self.bytes),
            arrivals: get(&self.arrivals),
            busy: get(&self.busy),
            duplicates: get(&self.duplicates),
            failed: get(&self.failed),
            turns: get(&self.turns),
            working_turns: get(&self.working_turns),
            sleeps: get(&self.sleeps),
        }
    }
}
