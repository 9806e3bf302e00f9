//! e4m3 against the `float8` crate and against exhaustive search; blocks against a second, plain
//! implementation of the rule.
#![allow(clippy::unwrap_used, reason = "helpers of tests unwrap as the tests do")]

use expertrail_core::fp8::{
    AMAX_FLOOR, MAX, NAN, ScaleRule, decode, dequantise_row, dequantise_row_f32, encode, from_ue8m0,
    quantise_row, ue8m0, ue8m0_row,
};
use expertrail_core::{Bf16, CoreError};
use float8::F8E4M3;

#[test]
fn all_codes_decode_as_float8_does() {
    for code in 0..=u8::MAX {
        let (got, want) = (decode(code), F8E4M3::from_bits(code).to_f32());
        if code & 0x7F == NAN {
            assert!(got.is_nan() && want.is_nan());
        } else {
            assert_eq!(got.to_bits(), want.to_bits(), "{code:#x}");
            assert_eq!(encode(got), code);
        }
    }
}

#[test]
fn landmarks_of_the_format() {
    // OFP8 specification, table of e4m3: largest normal 1.75 * 2^8, smallest normal 2^-6, smallest
    // subnormal 2^-9.
    assert_eq!((decode(0x7E), decode(0x08), decode(0x01)), (448.0, 1.0 / 64.0, 1.0 / 512.0));
    assert_eq!((encode(MAX), encode(1.0), encode(-2.0)), (0x7E, 0x38, 0xC0));
    assert_eq!((encode(0.0), encode(-0.0)), (0x00, 0x80));
    for too_large in [449.0, 464.0, 480.0, 1e30, f32::MAX, f32::INFINITY] {
        assert_eq!((encode(too_large), encode(-too_large)), (0x7E, 0xFE), "{too_large}");
    }
    for bits in [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF, 0xFF80_0001, 0xFFC0_0000, 0xFFFF_FFFF] {
        assert_eq!(encode(f32::from_bits(bits)), NAN, "{bits:#x}");
    }
    // Half of the smallest subnormal is a tie with zero, which is even; one place more is not.
    assert_eq!(encode(2f32.powi(-10)), 0x00);
    assert_eq!(encode(f32::from_bits(2f32.powi(-10).to_bits() + 1)), 0x01);
    assert_eq!(encode(f32::from_bits(1)), 0x00);
}

/// The positive code nearest to a finite `value`, the even one of two.
fn nearest(value: f32) -> u8 {
    let distance = |code: u8| (f64::from(decode(code)) - f64::from(value.abs())).abs();
    let best = (0..=0x7Eu8).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
    best.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
}

#[test]
fn every_tie_and_its_neighbours_round_to_nearest_even() {
    for code in 0..0x7Eu8 {
        let tie = f32::midpoint(decode(code), decode(code + 1));
        for bits in tie.to_bits() - 2..=tie.to_bits() + 2 {
            let value = f32::from_bits(bits);
            assert_eq!(encode(value), nearest(value), "{value}");
            assert_eq!(encode(-value), nearest(-value), "{value}");
        }
        assert_eq!(encode(tie) & 1, 0);
    }
}

#[test]
fn wide_bit_patterns_encode_as_float8_does() {
    // A step coprime to 2^32 spreads over all exponents; the second pass is every BF16.
    let spread = (0..1u64 << 23).map(|i| (i * 509) as u32);
    let bf16 = (0..=u16::MAX).map(|high| u32::from(high) << 16);
    for bits in spread.chain(bf16) {
        let value = f32::from_bits(bits);
        let got = encode(value);
        if value.is_nan() {
            assert_eq!(got, NAN);
        } else {
            assert_eq!(got, F8E4M3::from_f32(value).to_bits(), "{bits:#x}");
        }
    }
}

#[test]
fn dense_patterns_around_the_format_s_range_encode_as_float8_does() {
    // From 2^-12 to 2^10 in steps of 2^10 + 1 places: every code and its borders many times over.
    let (from, to) = (2f32.powi(-12).to_bits(), 2f32.powi(10).to_bits());
    for bits in (from..to).step_by(1025) {
        let value = f32::from_bits(bits);
        assert_eq!(encode(value), F8E4M3::from_f32(value).to_bits(), "{bits:#x}");
        assert_eq!(encode(-value), F8E4M3::from_f32(-value).to_bits(), "{bits:#x}");
    }
}

/// Rows of BF16 with block magnitudes from 2^-20 to 2^20, some blocks of zeros.
fn row(blocks: usize, seed: u32) -> Vec<Bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut row = Vec::new();
    for _ in 0..blocks {
        let size = if next() % 8 == 0 { 0.0 } else { 2f32.powi((next() % 41) as i32 - 20) };
        row.extend((0..128).map(|_| Bf16::from_f32(((next() as f32) / (1 << 23) as f32 - 1.0) * size)));
    }
    row
}

/// The rule once more, in f64 logarithms and float8's rounding.
fn plain_block(x: &[Bf16], rule: ScaleRule) -> (Vec<u8>, f32) {
    let amax = x.iter().map(|x| x.to_f32().abs()).fold(1e-4f32, f32::max);
    let (scale, multiplier) = match rule {
        ScaleRule::Exact => (amax * (1.0f32 / 448.0), 448.0 / amax),
        ScaleRule::PowerOfTwo => {
            let exponent = f64::from(amax * (1.0f32 / 448.0)).log2().ceil() as i32;
            (2f32.powi(exponent), 2f32.powi(-exponent))
        }
    };
    (x.iter().map(|x| F8E4M3::from_f32(x.to_f32() * multiplier).to_bits()).collect(), scale)
}

#[test]
fn rows_follow_the_rule() {
    for (seed, rule) in (0..50).flat_map(|seed| [(seed, ScaleRule::Exact), (seed, ScaleRule::PowerOfTwo)]) {
        let x = row(56, seed);
        let (mut q, mut scales) = (vec![0; x.len()], vec![0.0; 56]);
        quantise_row(&x, &mut q, &mut scales, rule).unwrap();
        for (block, x) in x.chunks(128).enumerate() {
            let (want_q, want_scale) = plain_block(x, rule);
            assert_eq!((&q[block * 128..][..128], scales[block]), (&want_q[..], want_scale));
        }
    }
}

#[test]
fn rows_read_back_within_the_format_s_precision() {
    for rule in [ScaleRule::Exact, ScaleRule::PowerOfTwo] {
        let x = row(56, 7);
        let (mut q, mut scales) = (vec![0; x.len()], vec![0.0; 56]);
        quantise_row(&x, &mut q, &mut scales, rule).unwrap();
        let (mut wide, mut back) = (vec![0.0; x.len()], vec![Bf16::default(); x.len()]);
        dequantise_row_f32(&q, &scales, &mut wide).unwrap();
        dequantise_row(&q, &scales, &mut back).unwrap();
        for (i, x) in x.iter().enumerate() {
            // Half of a last place: 2^-4 of the value when normal, 2^-10 of a scale when subnormal.
            let (value, scale) = (x.to_f32(), scales[i / 128]);
            let bound = (value.abs() / 16.0).max(scale / 1024.0) * 1.0001;
            assert!((wide[i] - value).abs() <= bound, "{value} came back as {}", wide[i]);
            assert_eq!(wide[i].to_bits(), (F8E4M3::from_bits(q[i]).to_f32() * scale).to_bits());
            assert_eq!(back[i], Bf16::from_f32(wide[i]));
        }
    }
}

#[test]
fn blocks_by_hand() {
    let cast = |x: &[Bf16], rule| {
        let (mut q, mut scales) = (vec![0xAA; 128], [0.0]);
        quantise_row(x, &mut q, &mut scales, rule).unwrap();
        (q, scales[0])
    };
    let mut x = vec![Bf16::default(); 128];
    assert_eq!(cast(&x, ScaleRule::Exact), (vec![0; 128], AMAX_FLOOR * (1.0 / 448.0)));
    // amax 896: scale 2, so 896 -> 448, 3 -> 1.5, and the negative keeps its sign.
    x[0] = Bf16::from_f32(896.0);
    x[1] = Bf16::from_f32(3.0);
    x[127] = Bf16::from_f32(-896.0);
    for rule in [ScaleRule::Exact, ScaleRule::PowerOfTwo] {
        let (q, scale) = cast(&x, rule);
        assert_eq!((q[0], q[1], q[2], q[127], scale), (0x7E, 0x3C, 0, 0xFE, 2.0));
    }
    // A NaN leaves its neighbours alone.
    x[5] = Bf16(0xFFC0);
    let (q, scale) = cast(&x, ScaleRule::Exact);
    assert_eq!((q[0], q[1], q[5], scale), (0x7E, 0x3C, NAN, 2.0));
    // An infinity takes its block, with a NaN beside it or not: every element reads back as NaN.
    x[6] = Bf16::from_f32(f32::NEG_INFINITY);
    let without_nan = [&x[..5], &x[6..], &x[..1]].concat();
    for rule in [ScaleRule::Exact, ScaleRule::PowerOfTwo] {
        let (q, scale) = cast(&without_nan, rule);
        assert_eq!((q[0], q[5], scale), (0, NAN, f32::INFINITY));
        let (q, scale) = cast(&x, rule);
        assert_eq!((q[0], q[6], scale), (0, NAN, f32::INFINITY));
        let mut back = [0.0; 128];
        dequantise_row_f32(&q, &[scale], &mut back).unwrap();
        assert!(back.iter().all(|value| value.is_nan()));
    }
}

#[test]
fn ue8m0_is_the_exponent_byte() {
    // IEEE 754: 1.0 has exponent field 127; 2^-22, the least scale there is, 105.
    assert_eq!((ue8m0(1.0), ue8m0(2f32.powi(-22)), ue8m0(f32::INFINITY)), (127, 105, 255));
    for byte in 0..=u8::MAX {
        assert_eq!(ue8m0(from_ue8m0(byte)), byte);
    }
    let mut bytes = [0; 4];
    ue8m0_row(&[1.0, 2.0, 0.5, 4.0], &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 0x817E_807F);
    assert!(ue8m0_row(&[1.0], &mut bytes).is_err());
}

#[test]
fn lengths_are_checked() {
    let x = vec![Bf16::default(); 256];
    let (mut q, mut scales) = (vec![0; 256], vec![0.0; 2]);
    assert!(quantise_row(&x, &mut q, &mut scales, ScaleRule::Exact).is_ok());
    assert!(quantise_row(&[], &mut [], &mut [], ScaleRule::Exact).is_ok());
    let refused = |x: &[Bf16], q: &mut [u8], scales: &mut [f32]| {
        quantise_row(x, q, scales, ScaleRule::Exact).unwrap_err()
    };
    assert!(matches!(refused(&x[1..], &mut q[1..], &mut scales), CoreError::Hidden { hidden: 255, .. }));
    assert!(matches!(refused(&x, &mut q[1..], &mut scales), CoreError::Length { got: 255, want: 256, .. }));
    assert!(matches!(refused(&x, &mut q, &mut scales[1..]), CoreError::Length { got: 1, want: 2, .. }));
    let mut back = vec![Bf16::default(); 128];
    assert!(dequantise_row(&q, &scales, &mut back).is_err());
    assert!(dequantise_row_f32(&q, &scales, &mut [0.0; 128]).is_err());
}
