//! FNV-1a of 128 bits: tells apart what differs by accident, not what an adversary made alike.
//!
//! The build script includes this file and `manifest.rs` too, so they use nothing of this crate.

const START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = (1 << 88) + 0x13b;

/// A hash under way. Usable in constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fnv(u128);

impl Fnv {
    /// Of nothing.
    pub(crate) const fn new() -> Self {
        Self(START)
    }

    /// With `bytes` behind what was hashed so far.
    pub(crate) const fn bytes(self, bytes: &[u8]) -> Self {
        let mut sum = self.0;
        let mut at = 0;
        // Constants know no iterators.
        while at < bytes.len() {
            sum = (sum ^ bytes[at] as u128).wrapping_mul(PRIME);
            at += 1;
        }
        Self(sum)
    }

    /// With `text` and its length, so that no two lists of texts give the same bytes.
    pub(crate) const fn text(self, text: &str) -> Self {
        self.bytes(&(text.len() as u64).to_le_bytes()).bytes(text.as_bytes())
    }

    /// The hash.
    pub(crate) const fn sum(self) -> u128 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // From the specification's list of test vectors.
        assert_eq!(Fnv::new().sum(), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(Fnv::new().bytes(b"a").sum(), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(Fnv::new().bytes(b"foo").bytes(b"bar"), Fnv::new().bytes(b"foobar"));
        assert_ne!(Fnv::new().text("foo").text("bar"), Fnv::new().text("foob").text("ar"));
    }
}
