//! Rows in e4m3 with one f32 scale for every [`SCALE_BLOCK`] elements: the cast of low-latency dispatch.

use super::{MAX, decode, encode, encode_in_range};
use crate::bf16::Bf16;
use crate::error::{CoreError, Result};
use crate::shape::SCALE_BLOCK;

/// The least amax a block is given, so that a block of zeros has a finite multiplier (`DeepEP`'s
/// `kFP8Margin`).
pub const AMAX_FLOOR: f32 = 1e-4;

/// 1/448 rounded to f32: the scale is amax **times** this constant, which differs in the last bit from
/// amax / 448 for some amax (DESIGN 5.5).
const MAX_INVERSE: f32 = 1.0 / MAX;

/// How the scale of a block follows from its largest magnitude.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// scale = amax * fl(1/448), elements multiplied by fl(448/amax).
    #[default]
    Exact,
    /// scale = the least power of two not below amax * fl(1/448), elements multiplied by its inverse: what
    /// UE8M0 scales carry.
    PowerOfTwo,
}

impl ScaleRule {
    /// The scale stored with a block, and what its elements are multiplied by before the cast.
    ///
    /// An infinite amax gives scale infinity and multiplier 0 under both rules: the whole block reads back
    /// as NaN. (`DeepEP`'s rounded scales shift a negative exponent there; no finite input reaches it.)
    fn scale_and_multiplier(self, amax: f32) -> (f32, f32) {
        let scale = amax * MAX_INVERSE;
        match self {
            Self::Exact => (scale, MAX / amax),
            Self::PowerOfTwo => {
                let bits = scale.to_bits();
                let exponent = (bits >> 23) + u32::from(bits & 0x7F_FFFF != 0);
                (f32::from_bits(exponent << 23), f32::from_bits(254u32.saturating_sub(exponent) << 23))
            }
        }
    }
}

/// Casts one row to e4m3.
///
/// `x` is `[hidden]` with hidden a multiple of [`SCALE_BLOCK`], `q` is `[hidden]`, `scales` is
/// `[hidden / SCALE_BLOCK]`. Per block: amax is the largest magnitude, NaN ignored, at least
/// [`AMAX_FLOOR`]; `rule` gives scale and multiplier; q = [`encode`] of x * multiplier. A NaN element
/// becomes [`NAN`](super::NAN) and leaves its neighbours alone.
///
/// # Errors
/// [`CoreError::Hidden`] or [`CoreError::Length`] when the lengths do not fit together.
pub fn quantise_row(x: &[Bf16], q: &mut [u8], scales: &mut [f32], rule: ScaleRule) -> Result<()> {
    check_row(x.len(), ("FP8 row", q.len()), scales.len())?;
    let (blocks, _) = x.as_chunks::<SCALE_BLOCK>();
    let (q_blocks, _) = q.as_chunks_mut::<SCALE_BLOCK>();
    for ((x, q), scale) in blocks.iter().zip(q_blocks).zip(scales) {
        *scale = quantise_block(x, q, rule);
    }
    Ok(())
}

/// Casts one block and gives its scale.
fn quantise_block(x: &[Bf16; SCALE_BLOCK], q: &mut [u8; SCALE_BLOCK], rule: ScaleRule) -> f32 {
    let largest = largest_magnitude(x);
    let finite = largest < INFINITY;
    let amax = if finite { largest } else { largest_number(x) };
    let (scale, multiplier) = rule.scale_and_multiplier(Bf16(amax as u16).to_f32().max(AMAX_FLOOR));
    // In a finite block |x| * multiplier is at most 448 and two roundings, which is in range.
    if finite {
        cast(x, q, |x| encode_in_range(x * multiplier));
    } else {
        cast(x, q, |x| encode(x * multiplier));
    }
    scale
}

#[inline]
fn cast(x: &[Bf16; SCALE_BLOCK], q: &mut [u8; SCALE_BLOCK], encode: impl Fn(f32) -> u8) {
    for (q, x) in q.iter_mut().zip(x) {
        *q = encode(x.to_f32());
    }
}

/// Magnitude bits of BF16 infinity; above it are NaN.
const INFINITY: i16 = 0x7F80;

/// The largest magnitude bits of a block. They order as the magnitudes do, with NaN last; i16, because
/// SSE2 has no unsigned 16-bit maximum.
fn largest_magnitude(x: &[Bf16; SCALE_BLOCK]) -> i16 {
    x.iter().fold(0, |largest, x| largest.max((x.0 & 0x7FFF) as i16))
}

/// [`largest_magnitude`] with NaN ignored.
fn largest_number(x: &[Bf16; SCALE_BLOCK]) -> i16 {
    let numbers = x.iter().map(|x| (x.0 & 0x7FFF) as i16).filter(|&magnitude| magnitude <= INFINITY);
    numbers.max().unwrap_or(0)
}

/// Reads one e4m3 row back as BF16: [`decode`] of q times the scale of its block in f32, rounded once to
/// nearest even. Shapes as in [`quantise_row`].
///
/// # Errors
/// As [`quantise_row`].
pub fn dequantise_row(q: &[u8], scales: &[f32], out: &mut [Bf16]) -> Result<()> {
    check_row(q.len(), ("dequantised row", out.len()), scales.len())?;
    for_blocks(q, scales, out, Bf16::from_f32);
    Ok(())
}

/// Reads one e4m3 row back as f32: [`decode`] of q times the scale of its block. Shapes as in
/// [`quantise_row`].
///
/// # Errors
/// As [`quantise_row`].
pub fn dequantise_row_f32(q: &[u8], scales: &[f32], out: &mut [f32]) -> Result<()> {
    check_row(q.len(), ("dequantised row", out.len()), scales.len())?;
    for_blocks(q, scales, out, |value| value);
    Ok(())
}

fn for_blocks<T>(q: &[u8], scales: &[f32], out: &mut [T], convert: impl Fn(f32) -> T) {
    let (blocks, _) = q.as_chunks::<SCALE_BLOCK>();
    let (out_blocks, _) = out.as_chunks_mut::<SCALE_BLOCK>();
    for ((q, out), scale) in blocks.iter().zip(out_blocks).zip(scales) {
        for (out, &q) in out.iter_mut().zip(q) {
            *out = convert(decode(q) * scale);
        }
    }
}

/// The UE8M0 byte of a scale that [`ScaleRule::PowerOfTwo`] made: its f32 exponent bits. Of any other
/// positive scale it is that of the power of two below.
#[inline]
pub fn ue8m0(scale: f32) -> u8 {
    (scale.to_bits() >> 23) as u8
}

/// The scale of a UE8M0 byte: the f32 with these exponent bits. So 0 reads as zero and 255 as infinity, as
/// `DeepEP`'s back-cast has it; the cast makes neither from finite rows.
#[inline]
pub fn from_ue8m0(byte: u8) -> f32 {
    f32::from_bits(u32::from(byte) << 23)
}

/// The scales of a row as UE8M0 bytes, in order. Four of them in memory are one of `DeepEP`'s packed 32-bit
/// scales: byte j of word q (little-endian) belongs to block 4q + j.
///
/// # Errors
/// [`CoreError::Length`] when the lengths differ.
pub fn ue8m0_row(scales: &[f32], out: &mut [u8]) -> Result<()> {
    check_len("UE8M0 scales", out.len(), scales.len(), || "one byte for each f32 scale".into())?;
    for (out, &scale) in out.iter_mut().zip(scales) {
        *out = ue8m0(scale);
    }
    Ok(())
}

fn check_row(hidden: usize, (other, other_len): (&'static str, usize), scales: usize) -> Result<()> {
    if !hidden.is_multiple_of(SCALE_BLOCK) {
        let limit = crate::shape::MAX_HIDDEN;
        return Err(CoreError::Hidden { hidden, multiple: SCALE_BLOCK, limit });
    }
    check_len(other, other_len, hidden, || "as many as the row it is cast from".into())?;
    check_len("FP8 scales", scales, hidden / SCALE_BLOCK, || {
        format!("one for every {SCALE_BLOCK} of {hidden} elements")
    })
}

fn check_len(what: &'static str, got: usize, want: usize, why: impl Fn() -> String) -> Result<()> {
    if got == want { Ok(()) } else { Err(CoreError::Length { what, got, want, why: why() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_scale_is_a_product_not_a_quotient() {
        // The two differ for some BF16 amax between 2^-15 and 2^13; there the product must be taken.
        let inverse = 1.0f32 / 448.0;
        let magnitudes = (0x3800..0x4600).map(|bits| Bf16(bits).to_f32());
        let differing: Vec<f32> = magnitudes.filter(|amax| amax * inverse != amax / 448.0).collect();
        assert!(!differing.is_empty());
        for amax in differing {
            let pair = ScaleRule::Exact.scale_and_multiplier(amax);
            assert_eq!(pair, (amax * inverse, 448.0 / amax));
        }
    }

    #[test]
    fn power_of_two_scales_by_hand() {
        // 448 * fl(1/448) rounds to 1 exactly, so its exponent needs no ceil.
        assert_eq!(448.0 * MAX_INVERSE, 1.0);
        let scales = |amax| ScaleRule::PowerOfTwo.scale_and_multiplier(amax);
        assert_eq!(scales(448.0), (1.0, 1.0));
        assert_eq!(scales(450.0), (2.0, 0.5));
        assert_eq!(scales(447.0), (1.0, 1.0));
        assert_eq!(scales(224.0), (0.5, 2.0));
        assert_eq!(scales(1.0), (2f32.powi(-8), 256.0));
        // 1e-4 / 448 = 2.23e-7 lies between 2^-23 = 1.19e-7 and 2^-22 = 2.38e-7.
        assert_eq!(scales(AMAX_FLOOR), (2f32.powi(-22), 2f32.powi(22)));
        assert_eq!(scales(f32::INFINITY), (f32::INFINITY, 0.0));
    }
}
