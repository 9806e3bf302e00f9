//! The control words at the start of every rank's segment: one place for their offsets.
//!
//! Written by the owner: header, signals, records, counts, `produced`, `consumed`. Written by peers: the poison
//! word (compare-and-swap from zero) and the door's sequence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use expertrail_core::Phase;
use expertrail_core::hop::CallHeader;

use crate::call::Signature;
use crate::flag::Bell;
use crate::futex::SharedFutex;
use crate::segment::Segment;

/// First word of a segment; the last digits are the layout's version.
pub(crate) const MAGIC: u64 = 0x4558_5452_4149_0001;

const LINE: usize = 64;
const CLOSED: usize = 16;
const POISON: usize = 24;
const WAITS: usize = 32;
const NOW: usize = 40;
const TELL: usize = 48;
const NOTIFY: usize = LINE;
const DONE: usize = LINE + 8;
const BELL: usize = LINE + 16;
const DOOR: usize = 2 * LINE;
const RECORDS: usize = 3 * LINE;
const RECORD_WORDS: usize = 12;

/// Offsets that depend on the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlLayout {
    counts: usize,
    counts_stride: usize,
    produced: usize,
    consumed: usize,
    far_waits: usize,
    /// Bytes of the control area, whole pages.
    pub(crate) bytes: usize,
}

impl ControlLayout {
    /// For `ranks` ranks of each of `nodes` nodes, each of which publishes `words` counts for a call.
    pub(crate) fn new((nodes, ranks): (usize, usize), words: usize) -> Self {
        let counts = RECORDS + 2 * RECORD_WORDS * 8;
        let counts_stride = (4 * words).next_multiple_of(LINE);
        let produced = counts + 2 * counts_stride;
        let consumed = produced + LINE * ranks;
        let far_waits = consumed + LINE * ranks;
        let bytes = (far_waits + 8 * nodes).next_multiple_of(crate::pool::GRAIN);
        Self { counts, counts_stride, produced, consumed, far_waits, bytes }
    }
}

/// Marks a fresh segment as one of the job with this token; peers look for it after they have been told where the
/// segment is.
pub(crate) fn initialise(segment: &Segment, token: u64) {
    // SAFETY: every segment starts with a control area, and nobody else knows this one yet.
    unsafe {
        segment.base().cast::<u64>().write(MAGIC);
        segment.base().cast::<u64>().add(1).write(token);
    }
}

/// One rank's control area.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    segment: Arc<Segment>,
    layout: ControlLayout,
}

/// What a rank says at the start of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Which call, with everything that must be equal on all ranks; see `call::Signature`.
    pub(crate) signature: u64,
    /// The dispatch a handle came from; 0 for none.
    pub(crate) origin: u64,
    /// Dispatch: the output slice. Combine: the input rows, or [`NOWHERE`].
    pub(crate) base: u64,
    /// Dispatch: bytes of the output slice.
    pub(crate) bytes: u64,
    /// Dispatch: rows the output must have, or [`NOWHERE`] for as many as arrive.
    pub(crate) fixed_rows: u64,
    /// Combine: the carried weights, or [`NOWHERE`].
    pub(crate) weights: u64,
    /// What this rank has heard over its rail of ranks of other nodes.
    pub(crate) heard: Heard,
}

/// What a rank has heard of the call at other nodes. All zero on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// A rank that refuses this call or makes another, and one; 0 for none.
    pub(crate) stray: u64,
    /// Its signature.
    pub(crate) signature: u64,
    /// Its origin.
    pub(crate) origin: u64,
    /// Whether some rank there gave its output a fixed number of rows.
    pub(crate) fixed: u64,
}

impl Record {
    /// Whether this rank gave its output a fixed number of rows.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed_rows != NOWHERE
    }

    /// Notes what `rank` of another node announced. A refusal counts more than another call.
    pub(crate) fn hear(&mut self, header: &CallHeader, rank: usize) {
        let refused = header.signature == Signature::REFUSED.0;
        let differs = (header.signature, header.origin) != (self.signature, self.origin);
        let known = self.heard.stray != 0;
        if (refused && self.heard.signature != Signature::REFUSED.0) || (differs && !known) {
            self.heard.stray = rank as u64 + 1;
            self.heard.signature = header.signature;
            self.heard.origin = header.origin;
        }
        self.heard.fixed |= u64::from(header.fixed);
    }

    /// Whether a rank of another node refuses this call or makes another.
    pub(crate) fn is_stray(&self) -> bool {
        self.heard.stray != 0
    }
}

/// "Not in shared memory" and "not fixed" in a [`Record`].
pub(crate) const NOWHERE: u64 = u64::MAX;

impl Control {
    pub(crate) fn new(segment: Arc<Segment>, layout: ControlLayout) -> Self {
        Self { segment, layout }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.layout.bytes);
        // SAFETY: the offset is inside the control area, which lies at the page-aligned start of a mapping
        // that `segment` keeps, and every process touches these words only through atomics.
        unsafe { &*self.segment.base().add(offset).cast::<AtomicU64>() }
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.layout.bytes);
        // SAFETY: as in `word`.
        unsafe { &*self.segment.base().add(offset).cast::<AtomicU32>() }
    }

    fn bell(&self, offset: usize) -> &Bell {
        // SAFETY: as in `word`; a `Bell` is two atomic halves.
        unsafe { &*self.segment.base().add(offset).cast::<Bell>() }
    }

    /// Whether this is a segment of the communicator with this token.
    pub(crate) fn belongs_to(&self, token: u64) -> bool {
        self.word(0).load(Ordering::Acquire) == MAGIC && self.word(8).load(Ordering::Relaxed) == token
    }

    /// Whether the owner has closed its communicator.
    pub(crate) fn closed(&self) -> bool {
        self.half(CLOSED).load(Ordering::Acquire) != 0
    }

    pub(crate) fn close(&self) {
        self.half(CLOSED).store(1, Ordering::Release);
        self.ring();
    }

    /// The first failure the owner has been told of, as bits; 0 for none.
    pub(crate) fn poison(&self) -> u64 {
        self.word(POISON).load(Ordering::Acquire)
    }

    /// Tells the owner of a failure unless it knows one; gives what it knows then.
    pub(crate) fn set_poison(&self, bits: u64) -> u64 {
        match self.word(POISON).compare_exchange(0, bits, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => bits,
            Err(earlier) => earlier,
        }
    }

    /// Wakes everybody who sleeps on one of this owner's bells, because poison was set.
    pub(crate) fn alarm(&self) {
        self.ring_door();
        self.ring();
    }

    /// Says for whom the owner waits, as of now; 0 for nobody.
    pub(crate) fn set_waits(&self, word: u64) {
        self.word(WAITS).store(word, Ordering::Relaxed);
    }

    /// For whom the owner waits; see [`WaitsFor`](crate::world::WaitsFor).
    pub(crate) fn waits(&self) -> u64 {
        self.word(WAITS).load(Ordering::Relaxed)
    }

    /// From when on the owner's wait is long enough to tell others of it, in milliseconds of the machine's clock; 0: never.
    pub(crate) fn set_tell(&self, millis: u64) {
        self.word(TELL).store(millis, Ordering::Relaxed);
    }

    /// See [`Control::set_tell`].
    pub(crate) fn tell(&self) -> u64 {
        self.word(TELL).load(Ordering::Relaxed)
    }

    /// Notes for whom the rank of the owner's rail on `node` waits: that rank + 1, or 0.
    pub(crate) fn set_far_waits(&self, node: usize, word: u64) {
        self.word(self.layout.far_waits + 8 * node).store(word, Ordering::Relaxed);
    }

    /// For whom the rank of the owner's rail on `node` waits, as far as it told.
    pub(crate) fn far_waits(&self, node: usize) -> Option<usize> {
        // The node comes from a word that a peer wrote.
        if node >= (self.layout.bytes - self.layout.far_waits) / 8 {
            return None;
        }
        let word = self.word(self.layout.far_waits + 8 * node).load(Ordering::Relaxed);
        usize::try_from(word).ok()?.checked_sub(1)
    }

    /// Notes the step that the owner enters.
    pub(crate) fn set_now(&self, phase: Phase, epoch: u64) {
        self.word(NOW).store(epoch << 8 | phase as u64, Ordering::Relaxed);
    }

    /// The owner's step and call, for a failure that is found outside of any wait.
    pub(crate) fn now(&self) -> (Phase, u64) {
        let word = self.word(NOW).load(Ordering::Relaxed);
        let epoch = word >> 8;
        let idle = self.waits() == 0 && self.done() >= epoch;
        (if idle { Phase::Idle } else { Phase::from_bits(word as u8) }, epoch)
    }

    /// The last call the owner has announced.
    pub(crate) fn notified(&self) -> u64 {
        self.word(NOTIFY).load(Ordering::Acquire)
    }

    /// The last call the owner has finished with everything its peers own.
    pub(crate) fn done(&self) -> u64 {
        self.word(DONE).load(Ordering::Acquire)
    }

    /// Publishes the record of `epoch` (written before with [`Control::write_record`]).
    pub(crate) fn set_notified(&self, epoch: u64) {
        self.word(NOTIFY).store(epoch, Ordering::Release);
        self.ring();
    }

    /// Publishes that `epoch` is finished here.
    pub(crate) fn set_done(&self, epoch: u64) {
        self.word(DONE).store(epoch, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        self.bell(BELL).ring(&SharedFutex);
    }

    /// Where others wait for what this owner publishes.
    pub(crate) fn published(&self) -> &Bell {
        self.bell(BELL)
    }

    /// Wakes the owner where it waits for its peers.
    pub(crate) fn ring_door(&self) {
        self.door().ring(&SharedFutex);
    }

    /// Where the owner waits for what any peer does for it.
    pub(crate) fn door(&self) -> &Bell {
        self.bell(DOOR)
    }

    pub(crate) fn write_record(&self, epoch: u64, record: &Record) {
        let Heard { stray, signature, origin, fixed } = record.heard;
        let own =
            [record.signature, record.origin, record.base, record.bytes, record.fixed_rows, record.weights];
        let words = own.into_iter().chain([stray, signature, origin, fixed]);
        for (i, word) in words.enumerate() {
            self.word(Self::record(epoch) + 8 * i).store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn read_record(&self, epoch: u64) -> Record {
        let word = |i: usize| self.word(Self::record(epoch) + 8 * i).load(Ordering::Relaxed);
        Record {
            signature: word(0),
            origin: word(1),
            base: word(2),
            bytes: word(3),
            fixed_rows: word(4),
            weights: word(5),
            heard: Heard { stray: word(6), signature: word(7), origin: word(8), fixed: word(9) },
        }
    }

    fn record(epoch: u64) -> usize {
        RECORDS + (epoch % 2) as usize * RECORD_WORDS * 8
    }

    /// Writes the counts of `epoch`: for every node's source of this rank's rail (on one node: this rank) the counts of the
    /// node's ranks, then of its experts.
    pub(crate) fn write_counts(&self, epoch: u64, parts: [&[u32]; 2]) {
        let base = self.layout.counts + (epoch % 2) as usize * self.layout.counts_stride;
        for (i, &count) in parts.into_iter().flatten().enumerate() {
            self.half(base + 4 * i).store(count, Ordering::Relaxed);
        }
    }

    /// Appends `len` counts from the `skip`th on to `to`.
    pub(crate) fn read_counts(&self, epoch: u64, skip: usize, len: usize, to: &mut Vec<u32>) {
        let base = self.layout.counts + (epoch % 2) as usize * self.layout.counts_stride;
        to.extend((skip..skip + len).map(|i| self.half(base + 4 * i).load(Ordering::Relaxed)));
    }

    /// Rows that this owner has staged for `source`, see [`Progress`].
    pub(crate) fn produced(&self, source: usize) -> Progress<'_> {
        Progress(self.word(self.layout.produced + LINE * source))
    }

    /// Rows that this rank has taken from `owner`'s staging.
    pub(crate) fn consumed(&self, owner: usize) -> Progress<'_> {
        Progress(self.word(self.layout.consumed + LINE * owner))
    }
}

/// A count of rows within one call: the call's number above, the rows below, so that nothing needs clearing.
pub(crate) struct Progress<'a>(&'a AtomicU64);

impl Progress<'_> {
    /// Rows so far in call `epoch`.
    pub(crate) fn get(&self, epoch: u64) -> u32 {
        let word = self.0.load(Ordering::Acquire);
        if word >> 32 == epoch & 0xFFFF_FFFF { word as u32 } else { 0 }
    }

    pub(crate) fn set(&self, epoch: u64, rows: u32) {
        self.0.store(epoch << 32 | u64::from(rows), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap() {
        for (ranks, words) in [(1, 2), (3, 10), (64, 320), (72, 584)] {
            let l = ControlLayout::new((3, ranks), words);
            assert!(RECORDS + 2 * RECORD_WORDS * 8 <= l.counts);
            assert!(l.counts + l.counts_stride + 4 * words <= l.produced);
            assert!(l.produced + LINE * ranks <= l.consumed);
            assert!(l.consumed + LINE * ranks <= l.far_waits);
            assert!(l.far_waits + 3 * 8 <= l.bytes);
        }
    }

    #[test]
    fn records_and_counts_of_two_calls_live_side_by_side() {
        let layout = ControlLayout::new((1, 2), 5);
        let control = Control::new(Arc::new(Segment::create(0, layout.bytes).unwrap()), layout);
        let record = |n| Record {
            signature: n,
            origin: n + 1,
            base: n + 2,
            bytes: n + 3,
            fixed_rows: n + 4,
            weights: n + 5,
            heard: Heard { stray: n + 6, signature: n + 7, origin: n + 8, fixed: n + 9 },
        };
        control.write_record(6, &record(60));
        control.write_record(7, &record(70));
        control.write_counts(6, [&[1, 2], &[3, 4, 5]]);
        control.write_counts(7, [&[6, 7], &[8, 9, 10]]);
        assert_eq!((control.read_record(6), control.read_record(7)), (record(60), record(70)));
        let mut counts = Vec::new();
        control.read_counts(6, 2, 3, &mut counts);
        control.read_counts(7, 0, 2, &mut counts);
        assert_eq!(counts, [3, 4, 5, 6, 7]);
    }

    #[test]
    fn progress_of_an_earlier_call_reads_as_none() {
        let word = AtomicU64::new(0);
        Progress(&word).set(5, 100);
        assert_eq!((Progress(&word).get(5), Progress(&word).get(6)), (100, 0));
        Progress(&word).set(0x1_0000_0006, 1);
        assert_eq!(Progress(&word).get(0x1_0000_0006), 1);
    }

    #[test]
    fn the_first_poison_stays() {
        let layout = ControlLayout::new((1, 1), 2);
        let control = Control::new(Arc::new(Segment::create(0, layout.bytes).unwrap()), layout);
        assert_eq!((control.set_poison(7), control.set_poison(9), control.poison()), (7, 7, 7));
    }
}
