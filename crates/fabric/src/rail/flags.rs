//! What a proxy publishes for the rank whose rail it serves: words that the rank polls, never a call.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use super::layout::{CHANNELS, RailSizes};
use crate::error::FabricError;

/// What is known of the way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing bad.
    Open,
    /// The rank there has closed its communicator.
    Left,
    /// A write failed, or what came breaks the protocol.
    Broken(FabricError),
}

const OPEN: u32 = 0;
const LEFT: u32 = 1;
const BROKEN: u32 = 2;

/// Words of one rail. Written by the proxy with release, read by the rank with acquire: what they announce is in memory.
#[derive(Debug)]
pub struct Flags {
    window: usize,
    nodes: usize,
    /// `[node, parity]`: 16 + the low four bits of the call whose header (status) is there; 0 for none yet.
    headers: Vec<AtomicU32>,
    statuses: Vec<AtomicU32>,
    /// `[channel, node, slot]`: sequence + 1 of the chunk that lies there.
    chunks: Vec<AtomicU64>,
    /// `[channel, node]`: all chunks below have been credited.
    credited: Vec<AtomicU64>,
    /// `[slot]`: how often an outgoing chunk has left it.
    sent: Vec<AtomicU64>,
    ways: Vec<AtomicU32>,
    /// `[node]`: when something last came from there, in microseconds after `since`, counted from 1; 0 for never.
    heard: Vec<AtomicU64>,
    since: Instant,
    faults: Mutex<Vec<Option<FabricError>>>,
}

/// As a flag stands for the header or status of a call.
pub(super) fn mark(epoch4: u8) -> u32 {
    16 + u32::from(epoch4 & 15)
}

fn zeros32(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

fn zeros64(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl Flags {
    pub(super) fn new(sizes: RailSizes) -> Self {
        let RailSizes { nodes, window, outgoing, .. } = sizes;
        Self {
            window,
            nodes,
            headers: zeros32(2 * nodes),
            statuses: zeros32(2 * nodes),
            chunks: zeros64(CHANNELS * nodes * window),
            credited: zeros64(CHANNELS * nodes),
            sent: zeros64(outgoing),
            ways: zeros32(nodes),
            heard: zeros64(nodes),
            since: Instant::now(),
            faults: Mutex::new(vec![None; nodes]),
        }
    }

    /// Whether the header of call `epoch` from `node` is there.
    pub fn header_is_there(&self, node: usize, epoch: u64) -> bool {
        is_there(&self.headers, node, epoch)
    }

    /// Whether the status of call `epoch` from `node` is there.
    pub fn status_is_there(&self, node: usize, epoch: u64) -> bool {
        is_there(&self.statuses, node, epoch)
    }

    /// Whether chunk `sequence` of the stream from `node` is there.
    pub fn chunk_is_there(&self, channel: usize, node: usize, sequence: u64) -> bool {
        let slot = (sequence % self.window as u64) as usize;
        self.chunks[(channel * self.nodes + node) * self.window + slot].load(Ordering::Acquire)
            == sequence + 1
    }

    /// Chunks of the stream to `node` that have been credited without a gap.
    pub fn credited(&self, channel: usize, node: usize) -> u64 {
        self.credited[channel * self.nodes + node].load(Ordering::Acquire)
    }

    /// How often an outgoing chunk has left `slot`.
    pub fn sent(&self, slot: usize) -> u64 {
        self.sent[slot].load(Ordering::Acquire)
    }

    /// What is known of the way to `node`.
    pub fn way(&self, node: usize) -> Way {
        match self.ways[node].load(Ordering::Acquire) {
            OPEN => Way::Open,
            LEFT => Way::Left,
            _ => {
                let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
                faults[node].clone().map_or(Way::Open, Way::Broken)
            }
        }
    }

    /// Whether the way to `node` is open: one load.
    pub fn is_open(&self, node: usize) -> bool {
        self.ways[node].load(Ordering::Acquire) == OPEN
    }

    /// Of `nodes`, the one from which nothing has come for the longest time; the first of several.
    pub fn most_silent(&self, nodes: &[usize]) -> Option<usize> {
        nodes.iter().copied().min_by_key(|&node| self.heard[node].load(Ordering::Relaxed))
    }

    pub(super) fn heard_from(&self, node: usize) {
        let micros = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.heard[node].store(micros.saturating_add(1), Ordering::Relaxed);
    }

    /// Marks a header's arrival; says whether it is new.
    pub(super) fn header_arrived(&self, node: usize, epoch4: u8) -> bool {
        arrived(&self.headers, node, epoch4)
    }

    /// Marks a status's arrival; says whether it is new.
    pub(super) fn status_arrived(&self, node: usize, epoch4: u8) -> bool {
        arrived(&self.statuses, node, epoch4)
    }

    pub(super) fn chunk_arrived(&self, channel: usize, node: usize, sequence: u64) {
        let slot = (sequence % self.window as u64) as usize;
        self.chunks[(channel * self.nodes + node) * self.window + slot]
            .store(sequence + 1, Ordering::Release);
    }

    pub(super) fn set_credited(&self, channel: usize, node: usize, floor: u64) {
        self.credited[channel * self.nodes + node].store(floor, Ordering::Release);
    }

    pub(super) fn has_left(&self, slot: usize) {
        self.sent[slot].fetch_add(1, Ordering::AcqRel);
    }

    /// A farewell is not taken back by a write that fails after it.
    pub(super) fn left(&self, node: usize) {
        let _ = self.ways[node].compare_exchange(OPEN, LEFT, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The first fault stays.
    pub(super) fn broken(&self, node: usize, error: FabricError) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)[node].get_or_insert(error);
        let _ = self.ways[node].compare_exchange(OPEN, BROKEN, Ordering::AcqRel, Ordering::Acquire);
    }
}

fn is_there(flags: &[AtomicU32], node: usize, epoch: u64) -> bool {
    flags[2 * node + (epoch % 2) as usize].load(Ordering::Acquire) == mark((epoch & 15) as u8)
}

fn arrived(flags: &[AtomicU32], node: usize, epoch4: u8) -> bool {
    let mark = mark(epoch4);
    flags[2 * node + usize::from(epoch4 % 2)].swap(mark, Ordering::AcqRel) != mark
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Flags {
        Flags::new(RailSizes { nodes: 2, window: 2, header_bytes: 1, chunk_bytes: [1; 2], outgoing: 1 })
    }

    #[test]
    fn a_header_counts_once_and_for_its_call_only() {
        let flags = flags();
        assert!(!flags.header_is_there(1, 16));
        assert!(flags.header_arrived(1, 0));
        assert!(
            flags.header_is_there(1, 16) && !flags.header_is_there(1, 18) && !flags.header_is_there(0, 16)
        );
        assert!(!flags.header_arrived(1, 0), "a duplicate");
        assert!(flags.header_arrived(1, 2) && flags.header_is_there(1, 18));
    }

    #[test]
    fn a_slot_holds_one_chunk_at_a_time() {
        let flags = flags();
        flags.chunk_arrived(1, 1, 4);
        assert!(
            flags.chunk_is_there(1, 1, 4) && !flags.chunk_is_there(1, 1, 2) && !flags.chunk_is_there(0, 1, 4)
        );
        flags.chunk_arrived(1, 1, 6);
        assert!(!flags.chunk_is_there(1, 1, 4));
    }

    #[test]
    fn a_farewell_stays_and_so_does_the_first_fault() {
        let flags = flags();
        let fault = |what: &str| FabricError::Argument { what: what.to_owned() };
        flags.left(0);
        flags.broken(0, fault("late"));
        assert_eq!(flags.way(0), Way::Left);
        flags.broken(1, fault("first"));
        flags.broken(1, fault("second"));
        assert_eq!(flags.way(1), Way::Broken(fault("first")));
    }

    #[test]
    fn the_node_that_was_silent_longest_is_named() {
        let flags = flags();
        flags.heard_from(0);
        assert_eq!(flags.most_silent(&[0, 1]), Some(1));
        std::thread::sleep(std::time::Duration::from_millis(2));
        flags.heard_from(1);
        assert_eq!((flags.most_silent(&[1, 0]), flags.most_silent(&[])), (Some(0), None));
    }
}
