//! Structures that kernels read: the host's side of `kernels/protocol.cuh`, with the same sizes.

use std::sync::atomic::Ordering;

use expertrail_core::{Cause, Dtype, Failure, Phase};

use crate::pinned::Pinned;

pub(crate) const MAX_RANKS: usize = 72;
pub(crate) const MAX_EXPERTS: usize = 4096;
pub(crate) const MAX_BLOCKS: usize = 160;
pub(crate) const NOTIFY_WORDS: usize = 8;
pub(crate) const LINE: usize = 128;
/// "Not in symmetric memory".
pub(crate) const NOWHERE: u64 = u64::MAX;
/// "As many rows as arrive".
pub(crate) const NOT_FIXED: u32 = u32::MAX;

/// Bytes of `Control`.
pub(crate) const CONTROL_BYTES: usize = 128 + 4 * MAX_BLOCKS + 4 * MAX_EXPERTS + 8 * MAX_BLOCKS * MAX_RANKS;

/// `World`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawWorld {
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    pub(crate) experts: u32,
    pub(crate) top_k: u32,
    pub(crate) ranks_per_node: u32,
    pub(crate) max_tokens: u32,
    pub(crate) local_experts: u32,
    pub(crate) most_local_experts: u32,
    pub(crate) deadline_ns: u64,
    pub(crate) board: u64,
    pub(crate) control: u64,
    pub(crate) landing_bytes: u64,
    pub(crate) notify: u64,
    pub(crate) expert_counts: u64,
    pub(crate) landed: u64,
    pub(crate) done: u64,
    pub(crate) poison: u64,
    pub(crate) landing: u64,
    pub(crate) heap: [u64; MAX_RANKS],
}
const _: () = assert!(size_of::<RawWorld>() == 112 + 8 * MAX_RANKS);
const _: () = assert!(std::mem::offset_of!(RawWorld, heap) == 112);

impl RawWorld {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: plain integers without padding (sizes add up, see the assertions).
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// Bytes of `Route`.
pub(crate) const ROUTE_BYTES: usize = 16;

/// Bytes of `Route` and what follows it.
pub(crate) fn route_bytes(ranks: usize, most_local_experts: usize, tokens: usize) -> usize {
    ROUTE_BYTES + 4 * (ranks * ranks + most_local_experts + tokens * ranks)
}

/// Offset of the local experts' counts in a `Route`.
pub(crate) fn route_experts(ranks: usize) -> usize {
    ROUTE_BYTES + 4 * ranks * ranks
}

/// `Args` of `dispatch.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchArgs {
    pub(crate) world: u64,
    pub(crate) rows: u64,
    pub(crate) scales: u64,
    pub(crate) scale_token_stride: i64,
    pub(crate) scale_block_stride: i64,
    pub(crate) ids: u64,
    pub(crate) weights: u64,
    pub(crate) route: u64,
    pub(crate) base: u64,
    pub(crate) room: u64,
    pub(crate) stress_seed: u64,
    pub(crate) ids_are_64: u32,
    pub(crate) tokens: u32,
    pub(crate) row_bytes: u32,
    pub(crate) scales_per_row: u32,
    pub(crate) fixed_rows: u32,
    pub(crate) cached: u32,
    pub(crate) signature: u32,
    pub(crate) ticket: u32,
    pub(crate) senders: u32,
    pub(crate) stages: u32,
    pub(crate) chunk: u32,
    pub(crate) pieces: u32,
}
const _: () = assert!(size_of::<DispatchArgs>() == 136);

/// Bytes of `Tables` of `dispatch.cu`.
pub(crate) const DISPATCH_TABLES: usize = 24_576;

/// `Args` of `combine.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CombineArgs {
    pub(crate) world: u64,
    pub(crate) rows: u64,
    pub(crate) weights: u64,
    pub(crate) route: u64,
    pub(crate) out: u64,
    pub(crate) out_weights: u64,
    pub(crate) biases: [u64; 2],
    pub(crate) base: u64,
    pub(crate) stress_seed: u64,
    pub(crate) signature: u32,
    pub(crate) row_bytes: u32,
    pub(crate) pushers: u32,
    pub(crate) stages: u32,
    pub(crate) chunk: u32,
    pub(crate) pieces: u32,
    pub(crate) own_ahead: u32,
    pub(crate) spare: u32,
}
const _: () = assert!(size_of::<CombineArgs>() == 112);

/// Bytes of `Tables` of `combine.cu`.
pub(crate) const COMBINE_TABLES: usize = 19_328;

/// `Args` of `meet.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeetArgs {
    pub(crate) world: u64,
    pub(crate) stress_seed: u64,
    pub(crate) signature: u32,
    pub(crate) spare: u32,
}
const _: () = assert!(size_of::<MeetArgs>() == 24);

/// `Args` of `layout.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutArgs {
    pub(crate) world: u64,
    pub(crate) ids: u64,
    pub(crate) rank_counts: u64,
    pub(crate) expert_counts: u64,
    pub(crate) membership: u64,
    pub(crate) tokens: u32,
    pub(crate) ids_are_64: u32,
}
const _: () = assert!(size_of::<LayoutArgs>() == 48);

/// Which call, with everything that must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature(pub(crate) u32);

impl Signature {
    const DISPATCH: u32 = 1;
    const COMBINE: u32 = 2;
    pub(crate) const REFUSED: Self = Self(3);
    pub(crate) const BARRIER: Self = Self(4);
    const FP8: u32 = 1 << 8;
    const WEIGHTS: u32 = 1 << 10;
    const CACHED: u32 = 1 << 11;

    pub(crate) fn dispatch(dtype: Dtype, weights: bool, cached: bool) -> Self {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        Self(
            Self::DISPATCH
                | flag(dtype == Dtype::Fp8E4m3, Self::FP8)
                | flag(weights, Self::WEIGHTS)
                | flag(cached, Self::CACHED),
        )
    }

    pub(crate) fn combine(weights: bool) -> Self {
        Self(Self::COMBINE | if weights { Self::WEIGHTS } else { 0 })
    }

    /// The call in words, for a mismatch.
    pub(crate) fn describe(self, origin: u32) -> String {
        let has = |bit| self.0 & bit != 0;
        let dtype = if has(Self::FP8) { Dtype::Fp8E4m3 } else { Dtype::Bf16 };
        let weights = if has(Self::WEIGHTS) { ", with weights" } else { "" };
        match self.0 & 0xFF {
            Self::DISPATCH if has(Self::CACHED) => format!("cached dispatch ({dtype}) of dispatch {origin}"),
            Self::DISPATCH => format!("dispatch ({dtype}{weights})"),
            Self::COMBINE => format!("combine{weights} of dispatch {origin}"),
            3 => "a call that it refused".to_owned(),
            4 => "barrier".to_owned(),
            kind => format!("an unknown call {kind}"),
        }
    }
}

/// `Board`: what kernels tell the host, and the host kernels, in pinned memory.
#[derive(Debug)]
pub(crate) struct Board {
    memory: Pinned,
}

const ABORT: usize = 0;
const FAILED: usize = 4;
const CAUSE: usize = 8;
const CULPRIT: usize = 12;
const REPORTER: usize = 16;
const PHASE: usize = 20;
const EPOCH: usize = 24;
const EXPECTED: usize = 32;
const SEEN: usize = 40;
const REFUSED: usize = 48;
const TICKET: usize = 80;
const REPORT_REFUSED: usize = 84;
const REPORT_FALLBACK: usize = 88;
const REPORT_EPOCH: usize = 92;
const TIMES: usize = 96;
const BOARD_BYTES: usize = 144;

/// Why a call moved nothing; the record's words in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusedRecord {
    pub(crate) what: u32,
    pub(crate) rank: u32,
    pub(crate) epoch: u32,
    pub(crate) own: u32,
    pub(crate) theirs: u32,
    pub(crate) own_origin: u32,
    pub(crate) their_origin: u32,
    pub(crate) rows: u32,
}

pub(crate) const REFUSAL_PEER: u32 = 1;
pub(crate) const REFUSAL_MISMATCH: u32 = 2;
pub(crate) const REFUSAL_EMPTY: u32 = 4;

impl Board {
    /// Bytes of a board that reports `words` counts.
    pub(crate) fn bytes(words: usize) -> usize {
        BOARD_BYTES + 4 * words
    }

    pub(crate) fn new(memory: Pinned) -> Self {
        Self { memory }
    }

    /// Its address on the device.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    fn word(&self, offset: usize) -> u32 {
        self.memory.word32(offset).load(Ordering::Relaxed)
    }

    /// Ends every wait of this rank's kernels, unless something has ended them already.
    pub(crate) fn abort(&self, cause: Cause, culprit: usize) {
        let set = |word| aborting(word, cause, culprit);
        let _ = self.memory.word32(ABORT).fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
    }

    /// Who was the reason to end all waits, if anybody.
    pub(crate) fn aborted(&self) -> Option<(Cause, usize)> {
        let word = self.memory.word32(ABORT).load(Ordering::Acquire);
        (word != 0).then(|| (Cause::from_bits(word >> 16), (word & 0xFFFF) as usize - 1))
    }

    /// The failure that a kernel recorded, with what it expected and saw.
    pub(crate) fn failure(&self) -> Option<(Failure, u64, u64)> {
        if self.memory.word32(FAILED).load(Ordering::Acquire) == 0 {
            return None;
        }
        let failure = Failure {
            cause: Cause::from_bits(self.word(CAUSE)),
            culprit: self.word(CULPRIT) as usize,
            reporter: self.word(REPORTER) as usize,
            phase: Phase::from_bits(self.word(PHASE) as u8),
            epoch: u64::from(self.word(EPOCH)),
        };
        let wide = |offset| self.memory.word64(offset).load(Ordering::Relaxed);
        Some((failure, wide(EXPECTED), wide(SEEN)))
    }

    /// The refusal that a kernel recorded; it is given once.
    pub(crate) fn take_refusal(&self) -> Option<RefusedRecord> {
        let what = self.memory.word32(REFUSED).load(Ordering::Acquire);
        if what == 0 {
            return None;
        }
        let word = |i: usize| self.word(REFUSED + 4 * i);
        let record = RefusedRecord {
            what,
            rank: word(1),
            epoch: word(2),
            own: word(3),
            theirs: word(4),
            own_origin: word(5),
            their_origin: word(6),
            rows: word(7),
        };
        self.memory.word32(REFUSED).store(0, Ordering::Release);
        Some(record)
    }

    /// Whether the report of the call with this ticket is there.
    pub(crate) fn has_report(&self, ticket: u32) -> bool {
        self.memory.word32(TICKET).load(Ordering::Acquire) == ticket
    }

    /// (refused, fell back, epoch) of the last report.
    pub(crate) fn report(&self) -> (bool, bool, u32) {
        (self.word(REPORT_REFUSED) != 0, self.word(REPORT_FALLBACK) != 0, self.word(REPORT_EPOCH))
    }

    /// When the last call passed its points, on the GPU's clock in nanoseconds.
    pub(crate) fn times(&self) -> [u64; 6] {
        std::array::from_fn(|i| self.memory.word64(TIMES + 8 * i).load(Ordering::Relaxed))
    }

    /// `len` counts of the last report from the `skip`th on.
    pub(crate) fn counts(&self, skip: usize, len: usize) -> Vec<u32> {
        (skip..skip + len).map(|i| self.word(BOARD_BYTES + 4 * i)).collect()
    }
}

/// The abort word after `cause`; `None` where it stays. The first reason counts, but a rank that has left ends no wait for
/// another, so a death after it must still be told.
fn aborting(word: u32, cause: Cause, culprit: usize) -> Option<u32> {
    let left = word >> 16 == Cause::Left as u32 && cause != Cause::Left;
    (word == 0 || left).then_some((cause as u32) << 16 | (culprit as u32 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart_in_words() {
        let text = |signature: Signature| signature.describe(7);
        assert_eq!(text(Signature::dispatch(Dtype::Bf16, true, false)), "dispatch (bf16, with weights)");
        assert_eq!(
            text(Signature::dispatch(Dtype::Fp8E4m3, false, true)),
            "cached dispatch (fp8) of dispatch 7"
        );
        assert_eq!(text(Signature::combine(false)), "combine of dispatch 7");
        assert_eq!(text(Signature::BARRIER), "barrier");
    }

    #[test]
    fn a_death_is_told_after_a_farewell_and_nothing_after_a_death() {
        // Died 1, left 2, deadline 3, cancelled 4 in the upper half; rank + 1 below.
        assert_eq!(aborting(0, Cause::Left, 2), Some(0x2_0003));
        assert_eq!(aborting(0x2_0003, Cause::Left, 0), None);
        assert_eq!(aborting(0x2_0003, Cause::Died, 1), Some(0x1_0002));
        assert_eq!(aborting(0x1_0002, Cause::Left, 2), None);
        assert_eq!(aborting(0x1_0002, Cause::Cancelled, 0), None);
    }

    #[test]
    fn a_route_has_room_for_counts_experts_and_slots() {
        // 16 + 4 * (2 * 2 + 128 + 4096 * 2)
        assert_eq!(route_bytes(2, 128, 4096), 33_312);
        assert_eq!(route_experts(8), 16 + 256);
    }
}
