//! Arguments of the calls, and the words that must be equal on all ranks of a call.

use std::time::Duration;

use expertrail_core::{Bf16, Dtype, Handle, Layout, Routing};

use crate::error::Phase;

/// Rows to dispatch, `[tokens, hidden]`.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// BF16 rows.
    Bf16(&'a [Bf16]),
    /// FP8 e4m3 rows with their scales. Moved as they are: dispatch never casts.
    Fp8 {
        /// `[tokens, hidden]` codes.
        codes: &'a [u8],
        /// `[tokens, hidden / 128]` 4-byte scale words.
        scales: &'a [f32],
    },
}

impl Payload<'_> {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Bf16(_) => Dtype::Bf16,
            Self::Fp8 { .. } => Dtype::Fp8E4m3,
        }
    }
}

/// Where the rows go.
#[derive(Clone, Copy, Debug)]
pub enum Route<'a> {
    /// By these choices.
    Routing(&'a Routing),
    /// As in the dispatch that made this handle: no counts are exchanged, no ids or weights carried.
    Cached(&'a Handle),
}

/// Arguments of a dispatch. Made by [`Dispatch::new`] or [`Dispatch::cached`], then refined.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    pub(crate) payload: Payload<'a>,
    pub(crate) route: Route<'a>,
    pub(crate) weights: Option<&'a [f32]>,
    pub(crate) layout: Layout,
    pub(crate) worst_case_rows: Option<usize>,
}

impl<'a> Dispatch<'a> {
    /// Sends `payload` by `routing`, which must have as many tokens.
    pub fn new(payload: Payload<'a>, routing: &'a Routing) -> Self {
        Self {
            payload,
            route: Route::Routing(routing),
            weights: None,
            layout: Layout::BySource,
            worst_case_rows: None,
        }
    }

    /// Sends another payload the way of an earlier dispatch.
    pub fn cached(payload: Payload<'a>, handle: &'a Handle) -> Self {
        Self {
            payload,
            route: Route::Cached(handle),
            weights: None,
            layout: handle.layout(),
            worst_case_rows: None,
        }
    }

    /// Carries router weights along, `[tokens, top_k]`.
    #[must_use]
    pub fn weights(mut self, weights: &'a [f32]) -> Self {
        self.weights = Some(weights);
        self
    }

    /// Orders the received rows by `layout`. A cached dispatch keeps its handle's.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        if matches!(self.route, Route::Routing(_)) {
            self.layout = layout;
        }
        self
    }

    /// Gives the output exactly this many rows, whatever arrives. Each rank may give its own number; one that
    /// receives more than it gave is an error on all ranks, and nothing moves. Rows behind the last arrival
    /// hold unspecified numbers.
    #[must_use]
    pub fn worst_case_rows(mut self, rows: usize) -> Self {
        self.worst_case_rows = Some(rows);
        self
    }
}

/// Arguments of a combine.
#[derive(Clone, Copy, Debug)]
pub struct Combine<'a> {
    pub(crate) rows: &'a [Bf16],
    pub(crate) handle: &'a Handle,
    pub(crate) row_weights: Option<&'a [f32]>,
    pub(crate) topk_weights: Option<&'a [f32]>,
    pub(crate) biases: &'a [&'a [Bf16]],
}

impl<'a> Combine<'a> {
    /// Sends `rows` (`[handle.rows(), hidden]`, in the order of the dispatch) back to their tokens.
    pub fn new(rows: &'a [Bf16], handle: &'a Handle) -> Self {
        Self { rows, handle, row_weights: None, topk_weights: None, biases: &[] }
    }

    /// Multiplies the rows of an expert-major output by these weights, `[handle.rows()]`, before they are
    /// summed (fused multiply-add in ascending choice). In the by-source layout a row already stands for all
    /// experts of its rank, so weights are an error there.
    #[must_use]
    pub fn row_weights(mut self, weights: &'a [f32]) -> Self {
        self.row_weights = Some(weights);
        self
    }

    /// Sends weights back too, `[arrivals, top_k]` as dispatch gave them: each token's are summed over its
    /// ranks, ascending, by node first where several are declared (the backward pass of the router needs this).
    #[must_use]
    pub fn topk_weights(mut self, weights: &'a [f32]) -> Self {
        self.topk_weights = Some(weights);
        self
    }

    /// Adds these rows (`[tokens, hidden]` each, at most two) before anything else.
    #[must_use]
    pub fn biases(mut self, biases: &'a [&'a [Bf16]]) -> Self {
        self.biases = biases;
        self
    }
}

/// Where the time of a dispatch went, on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchPhases {
    /// Routing to plan (zero when cached).
    pub plan: Duration,
    /// Waiting for the counts and bases of all ranks.
    pub notify: Duration,
    /// Writing rows to their final places.
    pub send: Duration,
    /// Waiting for the rows of all ranks.
    pub wait: Duration,
    /// Handle, replication and padding (expert-major), copy out of the fallback.
    pub finish: Duration,
}

/// Where the time of a combine went, on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CombinePhases {
    /// Waiting for the bases of all ranks.
    pub notify: Duration,
    /// Reading and summing rows; with staging, pushing rows and waiting for pushed ones too.
    pub reduce: Duration,
    /// Waiting until all ranks have read their rows.
    pub wait: Duration,
}

/// Which call, and everything about it that must be equal on all ranks, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature(pub(crate) u64);

const KIND_DISPATCH: u64 = 1;
const KIND_COMBINE: u64 = 2;
const KIND_REFUSED: u64 = 3;
const KIND_BARRIER: u64 = 4;
const FP8: u64 = 1 << 8;
const EXPERT_MAJOR: u64 = 1 << 9;
const WEIGHTS: u64 = 1 << 10;
const CACHED: u64 = 1 << 11;
const ALIGNMENT_SHIFT: u32 = 16;

impl Signature {
    pub(crate) const REFUSED: Self = Self(KIND_REFUSED);

    pub(crate) fn barrier() -> Self {
        Self(KIND_BARRIER | (Phase::Barrier as u64) << 56)
    }

    pub(crate) fn dispatch(args: &Dispatch<'_>) -> Self {
        let mut word = KIND_DISPATCH | (Phase::DispatchData as u64) << 56 | layout_bits(args.layout);
        if args.payload.dtype() == Dtype::Fp8E4m3 {
            word |= FP8;
        }
        if args.weights.is_some() {
            word |= WEIGHTS;
        }
        if matches!(args.route, Route::Cached(_)) {
            word |= CACHED;
        }
        Self(word)
    }

    pub(crate) fn combine(args: &Combine<'_>) -> Self {
        let mut word = KIND_COMBINE | (Phase::CombineDone as u64) << 56 | layout_bits(args.handle.layout());
        if args.topk_weights.is_some() {
            word |= WEIGHTS;
        }
        Self(word)
    }

    /// The call in words, for a mismatch.
    pub(crate) fn describe(self, origin: u64) -> String {
        let word = self.0;
        let has = |bit| word & bit != 0;
        let layout = if has(EXPERT_MAJOR) {
            format!("expert-major rows aligned to {}", word >> ALIGNMENT_SHIFT & 0xFFFF)
        } else {
            "rows by source".to_owned()
        };
        let weights = if has(WEIGHTS) { ", with weights" } else { "" };
        match word & 0xFF {
            KIND_DISPATCH if has(CACHED) => {
                format!("cached dispatch ({}, {layout}) of dispatch {origin}", dtype(word))
            }
            KIND_DISPATCH => format!("dispatch ({}, {layout}{weights})", dtype(word)),
            KIND_COMBINE => format!("combine ({layout}{weights}) of dispatch {origin}"),
            KIND_BARRIER => "barrier".to_owned(),
            KIND_REFUSED => "a call that it refused".to_owned(),
            kind => format!("an unknown call {kind}"),
        }
    }
}

fn dtype(word: u64) -> Dtype {
    if word & FP8 != 0 { Dtype::Fp8E4m3 } else { Dtype::Bf16 }
}

fn layout_bits(layout: Layout) -> u64 {
    match layout {
        Layout::BySource => 0,
        Layout::ExpertMajor { alignment } => EXPERT_MAJOR | (alignment as u64) << ALIGNMENT_SHIFT,
    }
}
