//! Moving test data to and from device memory, in stream order where it comes back.

use std::cell::RefCell;

use expertrail_core::Bf16;
use expertrail_cuda::{
    Context, CudaError, DeviceIds, DeviceMemory, DevicePayload, DeviceRows, DeviceSlice, Scales, Stream,
};

use crate::shared::Owned;
use crate::wanted::bytes;

/// What outputs hold before a call writes them, so that nothing right is there by chance.
pub(crate) const POISON: u8 = 0xA5;

/// Why a check failed, in words.
pub(crate) type Outcome = Result<(), String>;

/// Words for an error, with what was being done.
pub(crate) fn during<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> String + '_ {
    move |error| format!("{what}: {error}")
}

/// New device memory that holds `bytes`.
pub(crate) fn upload(context: &Context, bytes: &[u8]) -> Result<DeviceMemory, String> {
    let upload = || {
        let mut memory = DeviceMemory::new(context, bytes.len())?;
        memory.write(0, bytes)?;
        // A copy from pageable memory may still be on its way, and no stream of ours waits for it.
        context.synchronize()?;
        Ok::<_, CudaError>(memory)
    };
    upload().map_err(during("uploading a test's data"))
}

/// New device memory full of [`POISON`].
pub(crate) fn poisoned(context: &Context, size: usize) -> Result<DeviceMemory, String> {
    upload(context, &vec![POISON; size])
}

/// Copies device memory, in stream order.
pub(crate) fn copy(stream: &Stream, to: DeviceSlice<'_>, from: DeviceSlice<'_>) -> Outcome {
    if from.bytes() > to.bytes() {
        return Err(format!("the suite copies {} bytes to {}", from.bytes(), to.bytes()));
    }
    if from.bytes() == 0 {
        return Ok(());
    }
    // SAFETY: both slices hold so many bytes; every test keeps both until the stream has been synchronised or the
    // memory's owner orders its reuse after this stream, and gives `to` to nothing else meanwhile.
    unsafe { stream.copy(to.address(), from.address(), from.bytes()) }
        .map_err(during("copying on the device"))
}

/// Overwrites device memory with [`POISON`], in stream order.
pub(crate) fn poison(stream: &Stream, slice: DeviceSlice<'_>) -> Outcome {
    if slice.bytes() == 0 {
        return Ok(());
    }
    // SAFETY: as in `copy`.
    unsafe { stream.fill(slice.address(), POISON, slice.bytes()) }.map_err(during("filling on the device"))
}

/// Reads device memory back, after everything on one stream.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    stream: &'a Stream,
    landing: RefCell<Option<DeviceMemory>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(stream: &'a Stream) -> Self {
        Self { stream, landing: RefCell::new(None) }
    }

    /// The bytes of `slice` once the stream has come so far.
    pub(crate) fn read(&self, slice: DeviceSlice<'_>) -> Result<Vec<u8>, String> {
        let mut landing = self.landing.borrow_mut();
        let memory = match landing.take() {
            Some(memory) if memory.bytes() >= slice.bytes() => memory,
            _ => DeviceMemory::new(self.stream.context(), slice.bytes().max(1 << 20))
                .map_err(during("memory for reading back"))?,
        };
        copy(self.stream, DeviceSlice::of(&memory), slice)?;
        self.stream.synchronize().map_err(during("waiting for the stream"))?;
        let mut out = vec![0; slice.bytes()];
        memory.read(0, &mut out).map_err(during("reading back"))?;
        *landing = Some(memory);
        Ok(out)
    }
}

/// How scale words lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleOrder {
    RowMajor,
    ColumnMajor,
    /// Two words between blocks, and rows that do not follow each other closely.
    Odd,
}

impl ScaleOrder {
    pub(crate) fn of(number: u64) -> Self {
        [Self::RowMajor, Self::ColumnMajor, Self::Odd][(number % 3) as usize]
    }

    fn strides(self, tokens: usize, blocks: usize) -> (usize, usize) {
        match self {
            Self::RowMajor => (blocks, 1),
            Self::ColumnMajor => (1, tokens),
            Self::Odd => (2 * blocks + 3, 2),
        }
    }
}

/// A payload in device memory.
#[derive(Debug)]
pub(crate) struct Payload {
    rows: DeviceMemory,
    scales: Option<(DeviceMemory, usize, usize)>,
}

impl Payload {
    pub(crate) fn upload(
        context: &Context,
        owned: &Owned,
        tokens: usize,
        order: ScaleOrder,
    ) -> Result<Self, String> {
        match owned {
            Owned::Bf16(rows) => Ok(Self { rows: upload(context, &bf16_bytes(rows))?, scales: None }),
            Owned::Fp8(codes, scales) => {
                let blocks = scales.len().checked_div(tokens).unwrap_or(0);
                let (by_token, by_block) = order.strides(tokens, blocks);
                // Words between the scales are of no concern to anybody: poison shows whoever reads them.
                let mut words = vec![u32::from_ne_bytes([POISON; 4]); tokens * by_token + blocks * by_block];
                for (at, scale) in scales.iter().enumerate() {
                    words[at / blocks * by_token + at % blocks * by_block] = scale.to_bits();
                }
                let words = upload(context, &bytes(&words, u32::to_le_bytes))?;
                Ok(Self { rows: upload(context, codes)?, scales: Some((words, by_token, by_block)) })
            }
        }
    }

    pub(crate) fn borrow(&self) -> DevicePayload<'_> {
        let rows = DeviceRows::new(DeviceSlice::of(&self.rows));
        match &self.scales {
            None => DevicePayload::Bf16(rows),
            Some((words, by_token, by_block)) => DevicePayload::Fp8 {
                codes: rows,
                scales: Scales::strided(DeviceSlice::of(words), *by_token as i64, *by_block as i64),
            },
        }
    }

    pub(crate) fn rows(&self) -> DeviceSlice<'_> {
        DeviceSlice::of(&self.rows)
    }
}

/// Expert choices in device memory, in both widths.
#[derive(Debug)]
pub(crate) struct Ids {
    narrow: DeviceMemory,
    wide: DeviceMemory,
}

impl Ids {
    pub(crate) fn upload(context: &Context, ids: &[i32]) -> Result<Self, String> {
        let wide = bytes(ids, |id| i64::from(id).to_le_bytes());
        Ok(Self { narrow: upload(context, &bytes(ids, i32::to_le_bytes))?, wide: upload(context, &wide)? })
    }

    pub(crate) fn borrow(&self, wide: bool) -> DeviceIds<'_> {
        if wide {
            DeviceIds::I64(DeviceSlice::of(&self.wide))
        } else {
            DeviceIds::I32(DeviceSlice::of(&self.narrow))
        }
    }

    pub(crate) fn narrow(&self) -> DeviceSlice<'_> {
        DeviceSlice::of(&self.narrow)
    }
}

pub(crate) fn bf16_bytes(rows: &[Bf16]) -> Vec<u8> {
    bytes(rows, |value| value.0.to_le_bytes())
}

pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    bytes(values, |value| value.to_bits().to_le_bytes())
}
