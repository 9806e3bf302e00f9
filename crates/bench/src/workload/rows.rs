//! Deterministic row data, fast enough to regenerate every row during verification.
//!
//! Each pair of bytes is a 16-bit hash of its position, keyed by 64 bits of the row. Only 16-bit lanes are
//! used: the oldest x86-64 vector unit multiplies eight of them at once, where it has no 32-bit multiply.

use expertrail_core::Bf16;

use super::hash::key;

/// Which tensor a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Tensor {
    /// The tokens that dispatch sends.
    Tokens = 0,
    /// What the experts give back to combine.
    ExpertOutput = 1,
    /// A bias of combine.
    Bias = 2,
}

/// Names one row of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// Seed of the run.
    pub seed: u64,
    /// Which tensor.
    pub tensor: Tensor,
    /// The rank that owns the row.
    pub rank: u32,
    /// Row in that rank's tensor; an iteration set may be folded into the high bits.
    pub index: u64,
}

/// Four 16-bit keys of a row; rows with equal keys would be equal.
type LaneKeys = [u16; 4];

impl RowKey {
    fn lanes(self) -> LaneKeys {
        let k = key(&[self.seed, u64::from(self.rank) << 32 | self.tensor as u64, self.index]);
        [k as u16, (k >> 16) as u16, (k >> 32) as u16, (k >> 48) as u16]
    }
}

/// 16-bit hash of lane `i` of a row.
#[inline]
fn lane(i: u16, [k0, k1, k2, k3]: LaneKeys) -> u16 {
    let mut x = i.wrapping_mul(0x9E35) ^ k0;
    x = (x ^ (x >> 7)).wrapping_mul(0xA2D5).wrapping_add(k1);
    x = (x ^ (x >> 8)).wrapping_mul(k2 | 1) ^ k3;
    x ^ (x >> 7)
}

/// A BF16 of magnitude 2^-7 to 2 (exclusive) from a hash: sign, three exponent bits and the mantissa are
/// random, the upper exponent bits are fixed. Never zero, denormal, infinite or NaN.
#[inline]
fn bf16_bits(hash: u16) -> u16 {
    (hash & 0x83FF) | 0x3C00
}

/// Two e4m3 codes (little endian) from a hash, neither of them NaN: 0x7F and 0xFF become 0x7E and 0xFE.
#[inline]
fn fp8_codes(hash: u16) -> u16 {
    // Seven bits plus one reach the eighth exactly when all were set; no carry leaves its byte.
    let nan = ((hash & 0x7F7F) + 0x0101) >> 7 & 0x0101;
    hash - nan
}

/// A scale in [2^-9, 2^-8): the largest code, 448, then stands for less than 1.75.
fn scale(block: usize, [k0, k1, k2, k3]: LaneKeys) -> f32 {
    let row = u64::from(k0) | u64::from(k1) << 16 | u64::from(k2) << 32 | u64::from(k3) << 48;
    f32::from_bits(0x3B00_0000 | (key(&[row, block as u64]) as u32 & 0x007F_FFFF))
}

/// Lanes computed together. A constant count and a 16-bit start keep every step in 16-bit vector lanes; with
/// a plain index the compiler widens the loop to 64 bits and it runs at half the speed.
const STEP: usize = 64;

/// Fills a BF16 row: finite values, magnitudes from 2^-7 to just under 2, both signs.
///
/// Elements past the first 65,536 (the largest hidden size) repeat.
pub fn fill_row(key: RowKey, out: &mut [Bf16]) {
    let lanes = key.lanes();
    let (steps, rest) = out.as_chunks_mut::<STEP>();
    let mut start = 0u16;
    for step in steps {
        for (i, value) in step.iter_mut().enumerate() {
            *value = Bf16(bf16_bits(lane(start.wrapping_add(i as u16), lanes)));
        }
        start = start.wrapping_add(STEP as u16);
    }
    for (i, value) in rest.iter_mut().enumerate() {
        *value = Bf16(bf16_bits(lane(start.wrapping_add(i as u16), lanes)));
    }
}

/// Fills an FP8 row: `q` with e4m3 codes (never NaN), `scales` with positive scales. The values they stand
/// for are below 1.75 in magnitude. Both slices are filled to their own length.
pub fn fill_row_fp8(key: RowKey, q: &mut [u8], scales: &mut [f32]) {
    let lanes = key.lanes();
    let (pairs, rest) = q.as_chunks_mut::<2>();
    let odd = pairs.len();
    let (steps, last_pairs) = pairs.as_chunks_mut::<STEP>();
    let mut start = 0u16;
    for step in steps {
        for (i, pair) in step.iter_mut().enumerate() {
            *pair = fp8_codes(lane(start.wrapping_add(i as u16), lanes)).to_le_bytes();
        }
        start = start.wrapping_add(STEP as u16);
    }
    for (i, pair) in last_pairs.iter_mut().enumerate() {
        *pair = fp8_codes(lane(start.wrapping_add(i as u16), lanes)).to_le_bytes();
    }
    if let [last] = rest {
        [*last, _] = fp8_codes(lane(odd as u16, lanes)).to_le_bytes();
    }
    for (block, value) in scales.iter_mut().enumerate() {
        *value = scale(block, lanes);
    }
}

/// Index of the first element of `row` that differs from what [`fill_row`] writes for `key`.
pub fn first_mismatch(key: RowKey, row: &[Bf16]) -> Option<usize> {
    let lanes = key.lanes();
    // Whole steps are compared without a branch per element; only a bad row is searched.
    let (steps, rest) = row.as_chunks::<STEP>();
    let (mut start, mut differs) = (0u16, 0u16);
    for step in steps {
        for (i, value) in step.iter().enumerate() {
            differs |= value.0 ^ bf16_bits(lane(start.wrapping_add(i as u16), lanes));
        }
        start = start.wrapping_add(STEP as u16);
    }
    for (i, value) in rest.iter().enumerate() {
        differs |= value.0 ^ bf16_bits(lane(start.wrapping_add(i as u16), lanes));
    }
    if differs == 0 {
        return None;
    }
    row.iter().enumerate().position(|(i, value)| value.0 != bf16_bits(lane(i as u16, lanes)))
}

/// The first difference from what [`fill_row_fp8`] writes for `key`: an element of `q`, or `q.len()` plus
/// the index of a scale.
pub fn first_mismatch_fp8(key: RowKey, q: &[u8], scales: &[f32]) -> Option<usize> {
    let lanes = key.lanes();
    let code = |i: usize| fp8_codes(lane((i / 2) as u16, lanes)).to_le_bytes()[i % 2];
    let (pairs, rest) = q.as_chunks::<2>();
    let (steps, last_pairs) = pairs.as_chunks::<STEP>();
    let (mut start, mut differs) = (0u16, 0u16);
    for step in steps {
        for (i, pair) in step.iter().enumerate() {
            differs |= u16::from_le_bytes(*pair) ^ fp8_codes(lane(start.wrapping_add(i as u16), lanes));
        }
        start = start.wrapping_add(STEP as u16);
    }
    for (i, pair) in last_pairs.iter().enumerate() {
        differs |= u16::from_le_bytes(*pair) ^ fp8_codes(lane(start.wrapping_add(i as u16), lanes));
    }
    if differs != 0 || rest.first().is_some_and(|last| *last != code(q.len() - 1)) {
        return q.iter().enumerate().position(|(i, value)| *value != code(i));
    }
    let bad_scale = |(block, value): (usize, &f32)| value.to_bits() != scale(block, lanes).to_bits();
    scales.iter().enumerate().position(bad_scale).map(|block| q.len() + block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn at(index: u64) -> RowKey {
        RowKey { seed: 42, tensor: Tensor::Tokens, rank: 3, index }
    }

    fn row(key: RowKey, hidden: usize) -> Vec<Bf16> {
        let mut out = vec![Bf16::default(); hidden];
        fill_row(key, &mut out);
        out
    }

    #[test]
    fn the_same_everywhere() {
        let bits: Vec<u16> = row(at(0), 4).iter().map(|v| v.0).collect();
        assert_eq!(bits, PINNED_ROW);
        let (mut q, mut scales) = ([0; 4], [0.0]);
        fill_row_fp8(at(9), &mut q, &mut scales);
        assert_eq!((q, scales[0].to_bits()), ([214, 89, 25, 216], 0x3B19_6D53));
    }

    /// From a separate Python model of the hash.
    const PINNED_ROW: [u16; 4] = [15_455, 15_746, 48_735, 48_916];

    #[test]
    fn values_are_finite_varied_and_centred() {
        let values: Vec<f32> = (0..64).flat_map(|i| row(at(i), 7168)).map(Bf16::to_f32).collect();
        assert!(values.iter().all(|v| (0.007_812_5..2.0).contains(&v.abs())));
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.01, "{mean}");
        let mut by_exponent = [0usize; 8];
        for value in &values {
            by_exponent[(value.to_bits() >> 23 & 0xFF) as usize - 120] += 1;
        }
        let eighth = values.len() as f64 / 8.0;
        assert!(by_exponent.iter().all(|n| (*n as f64 / eighth - 1.0).abs() < 0.05), "{by_exponent:?}");
        assert!(values.iter().map(|v| v.to_bits()).collect::<HashSet<_>>().len() > 2000);
    }

    #[test]
    fn rows_differ_in_almost_every_element() {
        // 2048 possible values: two unrelated rows agree in about 1 of 2048 elements.
        let base = row(at(0), 7168);
        let others = [
            at(1),
            at(1 << 40),
            RowKey { seed: 43, ..at(0) },
            RowKey { rank: 4, ..at(0) },
            RowKey { tensor: Tensor::ExpertOutput, ..at(0) },
        ];
        for other in others {
            let same = row(other, 7168).iter().zip(&base).filter(|(a, b)| a == b).count();
            assert!(same < 40, "{other:?}: {same}");
        }
        // Nor is a row its neighbour moved by a few elements.
        for shift in 1..64 {
            let same = base[shift..].iter().zip(&base).filter(|(a, b)| a == b).count();
            assert!(same < 40, "shift {shift}: {same}");
        }
    }

    #[test]
    fn no_two_of_many_rows_start_alike() {
        let starts: HashSet<Vec<Bf16>> = (0..200_000).map(|i| row(at(i), 8)).collect();
        assert_eq!(starts.len(), 200_000);
    }

    #[test]
    fn one_flipped_bit_is_found() {
        let mut r = row(at(5), 3072);
        assert_eq!(first_mismatch(at(5), &r), None);
        assert!(first_mismatch(at(6), &r).is_some_and(|i| i < 4));
        for i in [0, 511, 512, 3071] {
            r[i].0 ^= 1;
            assert_eq!(first_mismatch(at(5), &r), Some(i));
            r[i].0 ^= 1;
        }
    }

    #[test]
    fn fp8_rows() {
        let (mut q, mut scales) = (vec![0; 7168], vec![0.0; 56]);
        let mut codes = HashSet::new();
        for i in 0..50 {
            fill_row_fp8(at(i), &mut q, &mut scales);
            assert!(q.iter().all(|c| c & 0x7F != 0x7F));
            assert!(scales.iter().all(|s| (2f32.powi(-9)..2f32.powi(-8)).contains(s)));
            codes.extend(q.iter().copied());
            assert_eq!(first_mismatch_fp8(at(i), &q, &scales), None);
        }
        assert_eq!(codes.len(), 254, "every code but the two NaNs");
        q[7000] ^= 0x80;
        assert_eq!(first_mismatch_fp8(at(49), &q, &scales), Some(7000));
        q[7000] ^= 0x80;
        scales[7] = f32::from_bits(scales[7].to_bits() ^ 1);
        assert_eq!(first_mismatch_fp8(at(49), &q, &scales), Some(7168 + 7));
        let mut odd = [0; 5];
        fill_row_fp8(at(49), &mut odd, &mut []);
        assert_eq!(odd, q[..5]);
        odd[4] ^= 1;
        assert_eq!(first_mismatch_fp8(at(49), &odd, &[]), Some(4));
    }
}
