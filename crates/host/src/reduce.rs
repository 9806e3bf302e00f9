//! Sums of BF16 rows with f32 accumulators, in the order and with the roundings of DESIGN 5.5.
#![allow(
    clippy::inline_always,
    reason = "one body is compiled for several instruction sets: it must be inlined into each caller"
)]

use expertrail_core::Bf16;

use crate::copy::Copier;
use crate::simd::Simd;

/// Elements summed at a time: 64 f32 accumulators are four AVX-512 registers (eight AVX2), so an inner loop
/// over rows keeps them in registers and reads 128 bytes of each row.
const BLOCK: usize = 64;

/// How far ahead of the sum a row is asked for, in elements: 2 KiB. The hardware prefetcher stops at every page, and
/// rows of several ranks compete for it.
const AHEAD: usize = 1024;

/// The most rows of one sum: as many as a token has choices.
pub(crate) const MAX_ROWS: usize = expertrail_core::shape::MAX_TOP_K;

/// One sum: biases, then rows, grouped by node where the declared topology has several.
pub(crate) struct Sum<'a> {
    /// Added first, unrounded.
    pub(crate) biases: &'a [*const Bf16],
    /// Rows in ascending rank.
    pub(crate) rows: &'a [*const Bf16],
    /// For several nodes: where each node's rows end in `rows`; every node's sum is rounded to BF16 first.
    /// Empty for one node: all rows are added to one accumulator.
    pub(crate) node_ends: &'a [u8],
}

/// Writes `hidden` elements of the sum to `out`.
///
/// # Safety
/// Every row and bias must be readable and `out` writable for `hidden` elements; `out` must not overlap
/// them; `node_ends` must ascend to `rows.len()`. `hidden` must be a multiple of 8.
pub(crate) unsafe fn sum_rows(simd: Simd, sum: &Sum<'_>, out: *mut Bf16, hidden: usize) {
    match simd {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise; `Simd` is only made for sets this CPU has.
        Simd::Avx512 => unsafe { sum_avx512(sum, out, hidden) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Simd::Avx2 => unsafe { sum_avx2(sum, out, hidden) },
        // SAFETY: the caller's promise.
        _ => unsafe { sum_body(sum, out, hidden) },
    }
}

/// Writes the weighted (or plain) sum of `rows`, in order from +0 by fused multiply-add, to `out`.
///
/// # Safety
/// As [`sum_rows`]; `weights` is empty or as long as `rows`.
pub(crate) unsafe fn weighted_sum(simd: Simd, rows: &[*const Bf16], weights: &[f32], out: &mut [Bf16]) {
    match simd {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise; `Simd` is only made for sets this CPU has.
        Simd::Avx512 => unsafe { weighted_avx512(rows, weights, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Simd::Avx2 => unsafe { weighted_avx2(rows, weights, out) },
        // SAFETY: the caller's promise.
        _ => unsafe { weighted_body(rows, weights, out) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn sum_avx512(sum: &Sum<'_>, out: *mut Bf16, hidden: usize) {
    // SAFETY: the caller's promise.
    unsafe { sum_body(sum, out, hidden) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn sum_avx2(sum: &Sum<'_>, out: *mut Bf16, hidden: usize) {
    // SAFETY: the caller's promise.
    unsafe { sum_body(sum, out, hidden) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn weighted_avx512(rows: &[*const Bf16], weights: &[f32], out: &mut [Bf16]) {
    // SAFETY: the caller's promise.
    unsafe { weighted_body(rows, weights, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn weighted_avx2(rows: &[*const Bf16], weights: &[f32], out: &mut [Bf16]) {
    // SAFETY: the caller's promise.
    unsafe { weighted_body(rows, weights, out) }
}

#[inline(always)]
unsafe fn sum_body(sum: &Sum<'_>, out: *mut Bf16, hidden: usize) {
    let mut at = 0;
    while at + BLOCK <= hidden {
        for &row in sum.rows {
            Copier::prefetch(row.wrapping_add(at + AHEAD).cast(), 2 * BLOCK / 64);
        }
        // SAFETY: the block lies inside the rows the caller promised.
        unsafe { sum_block::<BLOCK>(sum, out, at) };
        at += BLOCK;
    }
    while at < hidden {
        // SAFETY: as above; hidden is a multiple of 8.
        unsafe { sum_block::<8>(sum, out, at) };
        at += 8;
    }
}

#[inline(always)]
unsafe fn sum_block<const N: usize>(sum: &Sum<'_>, out: *mut Bf16, at: usize) {
    let mut total = [0f32; N];
    // SAFETY: `sum_body` gives an `at` with N elements left in every row.
    unsafe {
        for &bias in sum.biases {
            add(&mut total, bias.add(at));
        }
        if sum.node_ends.is_empty() {
            for &row in sum.rows {
                add(&mut total, row.add(at));
            }
        } else {
            let mut start = 0;
            for &end in sum.node_ends {
                let rows = &sum.rows[start..usize::from(end)];
                start = usize::from(end);
                // The sum of one row is a BF16 number already: rounding it changes nothing but the bits of a NaN, and the
                // last rounding makes those 0x7FFF anyway. What crossed from another node is always one row.
                if let &[row] = rows {
                    add(&mut total, row.add(at));
                    continue;
                }
                let mut node = [0f32; N];
                for &row in rows {
                    add(&mut node, row.add(at));
                }
                for (total, &node) in total.iter_mut().zip(&node) {
                    *total += Bf16::from_f32(node).to_f32();
                }
            }
        }
        round(&total, out.add(at));
    }
}

#[inline(always)]
unsafe fn weighted_body(rows: &[*const Bf16], weights: &[f32], out: &mut [Bf16]) {
    let hidden = out.len();
    let mut at = 0;
    // SAFETY: every block lies inside the rows the caller promised.
    unsafe {
        while at + BLOCK <= hidden {
            weighted_block::<BLOCK>(rows, weights, out.as_mut_ptr(), at);
            at += BLOCK;
        }
        while at < hidden {
            weighted_block::<8>(rows, weights, out.as_mut_ptr(), at);
            at += 8;
        }
    }
}

#[inline(always)]
unsafe fn weighted_block<const N: usize>(rows: &[*const Bf16], weights: &[f32], out: *mut Bf16, at: usize) {
    let mut total = [0f32; N];
    // SAFETY: as in `sum_block`.
    unsafe {
        for (i, &row) in rows.iter().enumerate() {
            match weights.get(i) {
                None => add(&mut total, row.add(at)),
                Some(&weight) => {
                    let row = row.add(at).cast::<[Bf16; N]>().read_unaligned();
                    for (total, value) in total.iter_mut().zip(row) {
                        *total = weight.mul_add(value.to_f32(), *total);
                    }
                }
            }
        }
        round(&total, out.add(at));
    }
}

#[inline(always)]
unsafe fn add<const N: usize>(total: &mut [f32; N], row: *const Bf16) {
    // SAFETY: the callers give rows with N elements left.
    let row = unsafe { row.cast::<[Bf16; N]>().read_unaligned() };
    for (total, value) in total.iter_mut().zip(row) {
        *total += value.to_f32();
    }
}

#[inline(always)]
unsafe fn round<const N: usize>(total: &[f32; N], out: *mut Bf16) {
    let mut rounded = [Bf16(0); N];
    for (rounded, &total) in rounded.iter_mut().zip(total) {
        *rounded = Bf16::from_f32(total);
    }
    // SAFETY: the callers give an `out` with N elements left.
    unsafe { out.cast::<[Bf16; N]>().write_unaligned(rounded) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use expertrail_core::{Topology, oracle};

    /// Any 16 bits are a row element: NaN, infinities, denormals and both zeros included.
    fn rows(count: usize, hidden: usize, seed: u32) -> Vec<Vec<Bf16>> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            Bf16((state >> 13) as u16)
        };
        (0..count).map(|_| (0..hidden).map(|_| next()).collect()).collect()
    }

    #[test]
    fn every_set_gives_the_oracles_bits() {
        for simd in Simd::available() {
            for hidden in [8, 56, 64, 72, 256, 1032] {
                for (ranks, per_node, count, biases) in
                    [(8, 8, 0, 0), (8, 8, 1, 0), (8, 8, 8, 2), (8, 2, 8, 1), (8, 4, 5, 0), (32, 8, 32, 0)]
                {
                    let data = rows(count + biases, hidden, 7 * hidden as u32 + count as u32);
                    let topology = Topology::new(ranks, per_node).unwrap();
                    let partials: Vec<(usize, &[Bf16])> =
                        (0..count).map(|i| (i * ranks / count.max(1), &data[i][..])).collect();
                    let bias_rows: Vec<&[Bf16]> = data[count..].iter().map(|r| &r[..]).collect();
                    let mut want = vec![Bf16(0); hidden];
                    oracle::combine_token(&topology, &bias_rows, &partials, &mut want);

                    let mut node_ends = Vec::new();
                    if topology.nodes() > 1 {
                        for (i, p) in partials.iter().enumerate() {
                            let next = partials.get(i + 1).map(|p| topology.node_of(p.0));
                            if next != Some(topology.node_of(p.0)) {
                                node_ends.push(i as u8 + 1);
                            }
                        }
                    }
                    let pointers: Vec<_> = partials.iter().map(|p| p.1.as_ptr()).collect();
                    let bias_pointers: Vec<_> = bias_rows.iter().map(|r| r.as_ptr()).collect();
                    let sum = Sum { biases: &bias_pointers, rows: &pointers, node_ends: &node_ends };
                    let mut got = vec![Bf16(0xAAAA); hidden];
                    // SAFETY: all rows and `got` have `hidden` elements.
                    unsafe { sum_rows(simd, &sum, got.as_mut_ptr(), hidden) };
                    assert_eq!(got, want, "{simd} hidden {hidden} rows {count} nodes {}", topology.nodes());
                }
            }
        }
    }

    #[test]
    fn weighted_sums_give_the_oracles_bits() {
        for simd in Simd::available() {
            for (count, hidden) in [(1, 8), (3, 200), (8, 264)] {
                let data = rows(count, hidden, 99);
                let weights: Vec<f32> = (0..count).map(|i| 0.1 + i as f32 * 0.37).collect();
                let pointers: Vec<_> = data.iter().map(Vec::as_ptr).collect();
                for weights in [&weights[..], &[]] {
                    let with: Vec<(Option<f32>, &[Bf16])> =
                        data.iter().enumerate().map(|(i, r)| (weights.get(i).copied(), &r[..])).collect();
                    let (mut want, mut got) = (vec![Bf16(0); hidden], vec![Bf16(1); hidden]);
                    oracle::expert_partial(&with, &mut want);
                    // SAFETY: all rows have `hidden` elements.
                    unsafe { weighted_sum(simd, &pointers, weights, &mut got) };
                    assert_eq!(got, want, "{simd}");
                }
            }
        }
    }
}
