//! Arguments of the calls. Everything lies in device memory; shapes are row-major.

use std::marker::PhantomData;

use expertrail_core::{CoreError, Dtype};

use crate::memory::DeviceMemory;
use crate::output::CudaHandle;
use crate::stream::{Event, Stream};

/// Bytes of device memory that somebody else owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> DeviceSlice<'a> {
    /// All of `memory`.
    pub fn of(memory: &'a DeviceMemory) -> Self {
        Self { address: memory.address(), bytes: memory.bytes(), memory: PhantomData }
    }

    /// Memory of another library.
    ///
    /// # Safety
    /// `address` must be device memory of `bytes` bytes that stays allocated until the work which is given this slice
    /// is done, and that nobody writes meanwhile.
    pub unsafe fn from_raw(address: u64, bytes: usize) -> Self {
        Self { address, bytes, memory: PhantomData }
    }

    /// `bytes` bytes from `offset` on; `None` past the end.
    pub fn part(self, offset: usize, bytes: usize) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then_some(Self { address: self.address + offset as u64, bytes, ..self })
    }

    /// Where it starts.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }
}

/// Rows in device memory. They must be contiguous; a stride other than the row's length is refused at the call.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows<'a> {
    pub(crate) slice: DeviceSlice<'a>,
    pub(crate) stride: Option<usize>,
}

impl<'a> DeviceRows<'a> {
    /// Contiguous rows that fill `slice`.
    pub fn new(slice: DeviceSlice<'a>) -> Self {
        Self { slice, stride: None }
    }

    /// Says how many bytes lie between the starts of two rows, as a tensor library knows.
    #[must_use]
    pub fn stride(mut self, bytes: usize) -> Self {
        self.stride = Some(bytes);
        self
    }
}

/// Scale words of FP8 rows: that of (token, block) lies `token * token_stride + block * block_stride` words from the
/// start. Row-major, column-major (as grouped GEMM kernels make them) and anything else.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    pub(crate) words: DeviceSlice<'a>,
    pub(crate) token_stride: i64,
    pub(crate) block_stride: i64,
}

impl<'a> Scales<'a> {
    /// `[tokens, blocks]`, row-major.
    pub fn row_major(words: DeviceSlice<'a>, blocks: usize) -> Self {
        Self { words, token_stride: blocks as i64, block_stride: 1 }
    }

    /// Any strides, in 4-byte words, not negative.
    pub fn strided(words: DeviceSlice<'a>, token_stride: i64, block_stride: i64) -> Self {
        Self { words, token_stride, block_stride }
    }
}

/// Rows to dispatch, `[tokens, hidden]`.
#[derive(Clone, Copy, Debug)]
pub enum DevicePayload<'a> {
    /// BF16 rows.
    Bf16(DeviceRows<'a>),
    /// FP8 e4m3 rows with their scales. Moved as they are: dispatch never casts.
    Fp8 {
        /// `[tokens, hidden]` codes.
        codes: DeviceRows<'a>,
        /// A 4-byte scale word for each 128 elements.
        scales: Scales<'a>,
    },
}

impl<'a> DevicePayload<'a> {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Bf16(_) => Dtype::Bf16,
            Self::Fp8 { .. } => Dtype::Fp8E4m3,
        }
    }

    pub(crate) fn rows(&self) -> DeviceRows<'a> {
        match self {
            Self::Bf16(rows) | Self::Fp8 { codes: rows, .. } => *rows,
        }
    }
}

/// Expert choices in device memory, `[tokens, top_k]`; -1 (and anything else that is no expert) for none.
#[derive(Clone, Copy, Debug)]
pub enum DeviceIds<'a> {
    /// 32-bit.
    I32(DeviceSlice<'a>),
    /// 64-bit, as PyTorch's top-k gives them.
    I64(DeviceSlice<'a>),
}

impl<'a> DeviceIds<'a> {
    pub(crate) fn slice(self) -> DeviceSlice<'a> {
        match self {
            Self::I32(slice) | Self::I64(slice) => slice,
        }
    }

    pub(crate) fn bytes_each(self) -> usize {
        match self {
            Self::I32(_) => 4,
            Self::I64(_) => 8,
        }
    }
}

/// Where the rows go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceRoute<'a> {
    Ids(DeviceIds<'a>),
    Cached(&'a CudaHandle),
}

/// How a call runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct On<'a> {
    pub(crate) stream: Option<&'a Stream>,
    pub(crate) after: Option<&'a Event>,
    pub(crate) sms: Option<u32>,
}

/// Arguments of a dispatch.
#[derive(Clone, Copy, Debug)]
pub struct CudaDispatch<'a> {
    pub(crate) payload: DevicePayload<'a>,
    pub(crate) tokens: usize,
    pub(crate) route: DeviceRoute<'a>,
    pub(crate) weights: Option<DeviceSlice<'a>>,
    pub(crate) worst_case_rows: Option<usize>,
    pub(crate) on: On<'a>,
}

/// Arguments of a combine.
#[derive(Clone, Copy, Debug)]
pub struct CudaCombine<'a> {
    pub(crate) rows: DeviceRows<'a>,
    pub(crate) handle: &'a CudaHandle,
    pub(crate) weights: Option<DeviceSlice<'a>>,
    pub(crate) biases: &'a [DeviceSlice<'a>],
    pub(crate) out: Option<DeviceSlice<'a>>,
    pub(crate) on: On<'a>,
}

macro_rules! on {
    () => {
        /// Runs on `stream`. By default on the communicator's own.
        #[must_use]
        pub fn stream(mut self, stream: &'a Stream) -> Self {
            self.on.stream = Some(stream);
            self
        }

        /// Waits for `event` first.
        #[must_use]
        pub fn after(mut self, event: &'a Event) -> Self {
            self.on.after = Some(event);
            self
        }

        /// Uses this many SMs, at least 1. Ranks may use different numbers. By default what
        /// [`default_sms`](crate::default_sms) says.
        #[must_use]
        pub fn sms(mut self, sms: u32) -> Self {
            self.on.sms = Some(sms);
            self
        }
    };
}

impl<'a> CudaDispatch<'a> {
    /// Sends the `tokens` rows of `payload` to the ranks of the experts that `ids` names.
    pub fn new(payload: DevicePayload<'a>, tokens: usize, ids: DeviceIds<'a>) -> Self {
        let (route, weights, worst_case_rows) = (DeviceRoute::Ids(ids), None, None);
        Self { payload, tokens, route, weights, worst_case_rows, on: On::default() }
    }

    /// Sends another payload the way of an earlier dispatch: no counts are exchanged, no ids or weights carried.
    pub fn cached(payload: DevicePayload<'a>, handle: &'a CudaHandle) -> Self {
        let (tokens, route) = (handle.tokens(), DeviceRoute::Cached(handle));
        Self { payload, tokens, route, weights: None, worst_case_rows: None, on: On::default() }
    }

    /// Carries router weights along: f32, `[tokens, top_k]`.
    #[must_use]
    pub fn weights(mut self, weights: DeviceSlice<'a>) -> Self {
        self.weights = Some(weights);
        self
    }

    /// Gives the output exactly this many rows, whatever arrives, and lets the call return without waiting for the
    /// device, so that a CUDA graph can capture it. A rank that receives more than it gave is an error on all ranks
    /// (told by [`status`](crate::CudaCommunicator::status) or
    /// [`synchronize`](crate::CudaCommunicator::synchronize)): nothing moves, and calls with its handle move nothing either.
    #[must_use]
    pub fn worst_case_rows(mut self, rows: usize) -> Self {
        self.worst_case_rows = Some(rows);
        self
    }

    on!();
}

impl<'a> CudaCombine<'a> {
    /// Sends BF16 `rows` (`[handle's rows, hidden]`, in the order of the dispatch) back to their tokens. Rows in the
    /// communicator's own memory are read where they lie, others are pushed.
    pub fn new(rows: DeviceRows<'a>, handle: &'a CudaHandle) -> Self {
        Self { rows, handle, weights: None, biases: &[], out: None, on: On::default() }
    }

    /// Sends weights back too: f32, `[arrivals, top_k]` as dispatch gave them. Each token's are summed over its ranks,
    /// ascending.
    #[must_use]
    pub fn weights(mut self, weights: DeviceSlice<'a>) -> Self {
        self.weights = Some(weights);
        self
    }

    /// Adds these BF16 rows (`[tokens, hidden]` each, at most two) before anything else.
    #[must_use]
    pub fn biases(mut self, biases: &'a [DeviceSlice<'a>]) -> Self {
        self.biases = biases;
        self
    }

    /// Writes the result, `[tokens, hidden]` BF16, to memory of the caller's.
    #[must_use]
    pub fn out(mut self, out: DeviceSlice<'a>) -> Self {
        self.out = Some(out);
        self
    }

    on!();
}

/// Checks a length in bytes; more is fine.
pub(crate) fn at_least(
    what: &'static str,
    got: usize,
    want: usize,
    why: impl FnOnce() -> String,
) -> Result<(), CoreError> {
    if got >= want { Ok(()) } else { Err(CoreError::Length { what, got, want, why: why() }) }
}
