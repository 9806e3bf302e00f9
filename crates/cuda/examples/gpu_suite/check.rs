//! The hash by which outputs are compared on the GPU, and the kernels of `kernels/check.cu`.

use std::ffi::CStr;

use expertrail_cuda::{
    Cache, Context, CudaError, DeviceSlice, Function, Kernels, Launch, Module, Nvrtc, Program, Search, Stream,
};

/// The program. It is no part of the library: releases do not embed it, so NVRTC compiles it where the suite runs,
/// unless the build's list of programs has it.
pub(crate) const CHECK: Program<'static> =
    Program { name: "check.cu", source: include_str!("../../kernels/check.cu"), headers: &[], options: &[] };

const HASH_ROWS: &CStr = c"_ZN10expertrail9hash_rowsENS_4ArgsE";
const IDLE: &CStr = c"_ZN10expertrail4idleENS_4ArgsE";
const OCCUPY: &CStr = c"_ZN10expertrail6occupyENS_4ArgsE";

/// Rows and columns of a tile of `occupy`.
const TILE: u32 = 16;

/// `Args` of `check.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct CheckArgs {
    words: u64,
    sum: u64,
    a: u64,
    b: u64,
    c: u64,
    nanoseconds: u64,
    rows: u32,
    row_words: u32,
    side: u32,
    spare: u32,
}
const _: () = assert!(size_of::<CheckArgs>() == 64 && align_of::<CheckArgs>() == 8);

/// `SplitMix64`'s next output from state `z`.
pub(crate) fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The hash of rows of `row_words` 32-bit words each. It depends on the order of words and of rows.
pub(crate) fn hash(bytes: &[u8], row_words: usize) -> u64 {
    let rows = bytes.chunks(4 * row_words.max(1)).enumerate();
    rows.fold(0, |all: u64, (row, bytes)| {
        let words = bytes.as_chunks::<4>().0.iter().enumerate();
        let hash = words.fold(0, |hash: u64, (i, word)| {
            hash.wrapping_add(mix((i as u64) << 32 | u64::from(u32::from_le_bytes(*word))))
        });
        all.wrapping_add(mix(hash.wrapping_add(mix(row as u64))))
    })
}

/// The loaded kernels.
#[derive(Debug)]
pub(crate) struct Checker {
    hash_rows: Function,
    idle: Function,
    occupy: Function,
}

impl Checker {
    /// Compiles and loads them.
    pub(crate) fn load(context: &Context) -> Result<Self, CudaError> {
        let arch = context.device().arch()?;
        let nvrtc = || Nvrtc::load(&Search::nvrtc());
        let found = Kernels::of_this_build().find(&CHECK, arch, &Cache::from_env(), nvrtc)?;
        let module = Module::load(context, &found.cubin)?;
        let function = |name| module.function(name);
        Ok(Self { hash_rows: function(HASH_ROWS)?, idle: function(IDLE)?, occupy: function(OCCUPY)? })
    }

    /// Adds the hash of the first `rows` rows of `slice` to the word at `sum`, in stream order.
    ///
    /// # Safety
    /// `slice` must hold that many rows, and it and the word at `sum` must stay valid until the work is done.
    pub(crate) unsafe fn hash_rows(
        &self,
        stream: &Stream,
        slice: DeviceSlice<'_>,
        (rows, row_words): (usize, usize),
        sum: u64,
    ) -> Result<(), CudaError> {
        if rows == 0 || row_words == 0 {
            return Ok(());
        }
        let args = CheckArgs {
            words: slice.address(),
            sum,
            rows: rows as u32,
            row_words: row_words as u32,
            ..CheckArgs::default()
        };
        let blocks = rows.div_ceil(8).min(64) as u32;
        // SAFETY: `CheckArgs` is the kernel's parameter; the caller answers for the addresses.
        unsafe { self.hash_rows.launch(stream, shape(blocks, 256), &args) }
    }

    /// Holds `stream` up.
    pub(crate) fn idle(&self, stream: &Stream, time: std::time::Duration) -> Result<(), CudaError> {
        let args = CheckArgs { nanoseconds: time.as_nanos() as u64, ..CheckArgs::default() };
        // SAFETY: `CheckArgs` is the kernel's parameter, and it uses no memory.
        unsafe { self.idle.launch(stream, shape(1, 32), &args) }
    }

    /// Multiplies square matrices of `side` (a multiple of 16) rows on every SM there is.
    ///
    /// # Safety
    /// The three addresses must be of `side * side` f32 each, valid until the work is done.
    pub(crate) unsafe fn occupy(
        &self,
        stream: &Stream,
        side: u32,
        [a, b, c]: [u64; 3],
    ) -> Result<(), CudaError> {
        let tiles = side / TILE;
        let args = CheckArgs { a, b, c, side: tiles * TILE, ..CheckArgs::default() };
        // SAFETY: `CheckArgs` is the kernel's parameter; the caller answers for the addresses.
        unsafe { self.occupy.launch(stream, shape(tiles * tiles, TILE * TILE), &args) }
    }
}

fn shape(blocks: u32, threads: u32) -> Launch {
    Launch { blocks, threads, shared: 0, cooperative: false, cluster: 1 }
}

#[cfg(test)]
mod tests {
    use expertrail_cuda::Arch;

    use super::*;

    #[test]
    fn mix_is_splitmix64() {
        // The generator's published first outputs from seed 1234567 (Vigna's reference program).
        let published: [u64; 3] =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        for (step, want) in published.into_iter().enumerate() {
            let state = 1_234_567_u64.wrapping_add(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(step as u64));
            assert_eq!(mix(state), want);
        }
    }

    #[test]
    fn the_hash_sees_every_word_and_its_place() {
        let bytes: Vec<u8> = (0..96).collect();
        let whole = hash(&bytes, 4);
        for at in 0..96 {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert_ne!(hash(&other, 4), whole, "byte {at}");
        }
        let mut rows: Vec<u8> = bytes.clone();
        rows.rotate_left(16);
        assert_ne!(hash(&rows, 4), whole, "rows in another order");
        let mut words = bytes.clone();
        words.swap(0, 4);
        assert_ne!(hash(&words, 4), whole, "words in another order");
        assert_eq!(hash(&[], 4), 0);
        // One row of one word, by the definition.
        assert_eq!(hash(&7_u32.to_le_bytes(), 1), mix(mix(7).wrapping_add(mix(0))));
    }

    #[test]
    fn the_kernels_compile_for_released_architectures() {
        let nvrtc = match Nvrtc::load(&Search::nvrtc()) {
            Ok(nvrtc) => nvrtc,
            Err(error) if std::env::var_os("EXPERTRAIL_NVRTC").is_some() => {
                panic!("EXPERTRAIL_NVRTC: {error}")
            }
            Err(error) => return println!("NOT RUN: {error}"),
        };
        for arch in Arch::GATED {
            let cubin = nvrtc.compile(&CHECK, arch).unwrap();
            for name in [HASH_ROWS, IDLE, OCCUPY] {
                let name = name.to_bytes_with_nul();
                assert!(cubin.bytes().windows(name.len()).any(|part| part == name), "{arch}: {name:?}");
            }
        }
    }
}
