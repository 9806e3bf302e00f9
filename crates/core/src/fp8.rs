//! FP8 e4m3 as bits, and the block-of-128 quantisation of low-latency dispatch.
//!
//! The format is the one GPUs call `e4m3fn`: one sign, four exponent bits of bias 7, three mantissa bits,
//! no infinities, largest finite value 448 (0x7E), NaN 0x7F (and 0xFF when read).

mod block;

pub use block::{
    AMAX_FLOOR, ScaleRule, dequantise_row, dequantise_row_f32, from_ue8m0, quantise_row, ue8m0, ue8m0_row,
};

/// The largest finite e4m3 value.
pub const MAX: f32 = 448.0;

/// The code of [`MAX`].
const MAX_CODE: u32 = 0x7E;

/// The one NaN that [`encode`] produces: what `cvt.rn.satfinite.e4m3x2.f32` gives for a NaN of either sign.
pub const NAN: u8 = 0x7F;

/// Bits of the mantissa that f32 has and e4m3 has not: 23 - 3.
const DROPPED: u32 = 20;

/// Rounds to nearest, ties to even; magnitudes past 448 (infinity included) become 448 with their sign;
/// any NaN becomes [`NAN`]; the sign of zero is kept.
#[inline]
pub fn encode(value: f32) -> u8 {
    let code = round(value.abs()).min(MAX_CODE) | sign(value);
    if value.is_nan() { NAN } else { code as u8 }
}

/// [`encode`] of a value whose magnitude is below 464, where rounding alone stays within [`MAX`]: half the
/// instructions.
#[inline]
fn encode_in_range(value: f32) -> u8 {
    (round(value.abs()) | sign(value)) as u8
}

/// The sign of a value where a code has it.
#[inline]
fn sign(value: f32) -> u32 {
    (value.to_bits() >> 24) & 0x80
}

/// The code of a magnitude rounded to nearest even, in a format whose exponents never end. Branch-free, so
/// that loops over it vectorise.
#[inline]
fn round(magnitude: f32) -> u32 {
    let bits = magnitude.to_bits();
    // From 2^-6 up e4m3 is normal: move the exponent from bias 127 to bias 7 and round by adding half of
    // the last kept place, less one when that place is even. Smaller values wrap here and are not taken.
    let lowest_kept = (bits >> DROPPED) & 1;
    let normal = (bits + 0x7_FFFF + lowest_kept).wrapping_sub((127 - 7) << 23) >> DROPPED;
    // Below it the codes are multiples of 2^-9, which is the last place of an f32 in [2^14, 2^15): the
    // addition does the rounding.
    let anchor = f32::from_bits((127 + 14) << 23);
    let subnormal = (magnitude + anchor).to_bits().wrapping_sub(anchor.to_bits());
    // Signed comparison: SSE2 has no unsigned one, and magnitudes stay below 2^31.
    if (bits as i32) < (127 - 6) << 23 { subnormal } else { normal }
}

/// The value of a code, exactly; 0x7F and 0xFF are NaN.
#[inline]
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code)]
}

/// All 256 values: 1 KiB, which stays in the first-level cache while rows are read.
static VALUES: [f32; 256] = values();

const fn values() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = value_of(code as u32);
        code += 1;
    }
    table
}

const fn value_of(code: u32) -> f32 {
    let (sign, exponent, mantissa) = ((code & 0x80) << 24, (code >> 3) & 0xF, code & 7);
    if code & 0x7F == NAN as u32 {
        return f32::from_bits(sign | 0x7FC0_0000);
    }
    let magnitude = if exponent == 0 {
        // Subnormals count in units of 2^-9.
        mantissa as f32 / 512.0
    } else {
        f32::from_bits((exponent + 127 - 7) << 23 | mantissa << DROPPED)
    };
    f32::from_bits(magnitude.to_bits() | sign)
}
