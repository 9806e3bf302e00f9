//! BF16 as bits: the upper half of an IEEE 754 binary32.

/// One BF16 value, stored as its 16 bits.
///
/// `repr(transparent)` over `u16`, so a slice of it can be the bytes of a row that another process or a
/// GPU wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// The one NaN that every rounding here produces (DESIGN 5.5).
pub const CANONICAL_NAN: u16 = 0x7FFF;

impl Bf16 {
    /// The value as f32, exactly (denormals and NaN payloads included).
    #[inline]
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounds to nearest, ties to even. Denormals are kept; any NaN becomes [`CANONICAL_NAN`]; values past
    /// the largest finite BF16 become infinity.
    #[inline]
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        // Adding 0x7FFF plus the lowest kept bit carries into the kept half exactly when the dropped half
        // is above one half, or equal to it with an odd kept half. Only NaN can wrap, and is replaced below.
        let lowest_kept = (bits >> 16) & 1;
        let rounded = (bits.wrapping_add(0x7FFF + lowest_kept) >> 16) as u16;
        // A choice between two values, not a branch: with an early return the compiler rounds rows one element
        // at a time.
        let is_nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
        Self(if is_nan { CANONICAL_NAN } else { rounded })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let value = Bf16(bits);
            let back = Bf16::from_f32(value.to_f32());
            if value.to_f32().is_nan() {
                assert_eq!(back.0, CANONICAL_NAN);
            } else {
                assert_eq!(back, value);
            }
        }
    }

    #[test]
    fn rounding_agrees_with_the_half_crate() {
        // A Weyl sequence walks all exponents, with ties made explicitly.
        let mut state = 1u32;
        for i in 0..2_000_000u32 {
            state = state.wrapping_add(0x9E37_79B9);
            let bits = if i % 4 == 0 { (state & 0xFFFF_0000) | 0x8000 } else { state };
            let value = f32::from_bits(bits);
            let got = Bf16::from_f32(value);
            if value.is_nan() {
                assert_eq!(got.0, CANONICAL_NAN);
            } else {
                assert_eq!(got.0, half::bf16::from_f32(value).to_bits(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn denormals_and_signed_zero_are_kept() {
        assert_eq!(Bf16::from_f32(f32::from_bits(0x0001_0000)).0, 1);
        assert_eq!(Bf16::from_f32(-0.0).0, 0x8000);
        assert_eq!(Bf16::from_f32(f32::from_bits(0x0000_8001)).0, 1);
        assert_eq!(Bf16::from_f32(f32::MAX).0, 0x7F80);
    }
}
