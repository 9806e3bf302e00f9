//! A counter hash: a 64-bit mixer applied to a key and a position.

/// The odd constant that spreads consecutive counters (2^64 divided by the golden ratio).
pub(super) const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes 64 bits so that every input bit reaches every output bit (the finaliser of `SplitMix64`).
#[inline]
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Hash of `parts` in order.
pub(super) fn key(parts: &[u64]) -> u64 {
    // Mixing between parts keeps (1, 2) and (2, 1) apart.
    parts.iter().fold(SPREAD, |key, &part| mix(key ^ part.wrapping_mul(SPREAD)).wrapping_add(SPREAD))
}

/// Draws of one row: hash of the row's key and a counter.
pub(super) struct Draws {
    key: u64,
    next: u64,
}

impl Draws {
    #[inline]
    pub(super) fn new(stream: u64, row: usize) -> Self {
        Self { key: mix(stream.wrapping_add((row as u64).wrapping_mul(SPREAD))), next: 0 }
    }

    #[inline]
    pub(super) fn bits(&mut self) -> u64 {
        self.next = self.next.wrapping_add(SPREAD);
        mix(self.key ^ self.next)
    }

    /// A number below `n`, from 32 bits: uneven by at most `n` in 2^32.
    #[inline]
    pub(super) fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixer_gives_the_published_sequence() {
        // SplitMix64 from seed 1234567, as listed by Rosetta Code.
        let state = |n: u64| 1_234_567u64.wrapping_add(SPREAD.wrapping_mul(n));
        assert_eq!(mix(state(1)), 6_457_827_717_110_365_317);
        assert_eq!(mix(state(2)), 3_203_168_211_198_807_973);
    }

    #[test]
    fn order_and_length_matter() {
        assert_ne!(key(&[1, 2]), key(&[2, 1]));
        assert_ne!(key(&[0]), key(&[0, 0]));
    }
}
