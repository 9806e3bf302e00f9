//! The word that tells ranks of one job from those of another.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Sixteen bytes that all ranks of one job share and other jobs do not.
///
/// It keeps jobs apart that meet on one port by accident. It is no secret and no protection against
/// somebody who means harm: run on a network you trust.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobToken([u8; 16]);

impl JobToken {
    /// The token of a job named by `parts`: the same parts give the same token on every host.
    pub fn from_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        // Two FNV-1a lanes with different starting points; stable across versions and machines, which
        // the standard library's hasher does not promise.
        let mut lanes = [0xcbf2_9ce4_8422_2325_u64, 0x6c62_272e_07bb_0142];
        for part in parts {
            // 0xff ends a part: no UTF-8 text contains it, so ("ab", "c") and ("a", "bc") differ.
            for byte in part.bytes().chain([0xff]) {
                for (i, lane) in lanes.iter_mut().enumerate() {
                    *lane = (*lane ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3 + 2 * i as u64);
                }
            }
        }
        Self::from_lanes(lanes)
    }

    /// A token no other job has.
    pub fn random() -> Self {
        // Each RandomState is keyed from the operating system's random source.
        let draw = |salt: u64| {
            let mut hasher = RandomState::new().build_hasher();
            hasher.write_u64(salt);
            hasher.write_u32(std::process::id());
            hasher.finish()
        };
        Self::from_lanes([draw(1), draw(2)])
    }

    /// The token with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A port for this job in `first .. first + count`, the same on every host.
    pub(crate) fn port(&self, first: u16, count: u16) -> u16 {
        let word = u64::from_le_bytes([
            self.0[0], self.0[1], self.0[2], self.0[3], self.0[4], self.0[5], self.0[6], self.0[7],
        ]);
        // Fold the high half in: FNV mixes upwards, so its low bits alone are the weakest.
        first + ((word ^ (word >> 32)) % u64::from(count.max(1))) as u16
    }

    fn from_lanes(lanes: [u64; 2]) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&lanes[0].to_le_bytes());
        bytes[8..].copy_from_slice(&lanes[1].to_le_bytes());
        Self(bytes)
    }
}

impl fmt::Display for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobToken({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_not_run_together() {
        assert_ne!(JobToken::from_parts(["ab", "c"]), JobToken::from_parts(["a", "bc"]));
        assert_ne!(JobToken::from_parts(["a"]), JobToken::from_parts(["a", ""]));
        assert_eq!(JobToken::from_parts(["slurm", "7", "0"]), JobToken::from_parts(["slurm", "7", "0"]));
    }

    #[test]
    fn random_tokens_differ() {
        assert_ne!(JobToken::random(), JobToken::random());
    }

    #[test]
    fn ports_stay_in_their_range_and_spread() {
        let mut seen = std::collections::BTreeSet::new();
        for job in 0..1000 {
            let port = JobToken::from_parts(["slurm", &job.to_string(), "0"]).port(21_000, 8000);
            assert!((21_000..29_000).contains(&port));
            seen.insert(port);
        }
        // 1000 draws of 8000 leave 940 distinct on average; far fewer would mean a poor hash.
        assert!(seen.len() > 880, "{} distinct ports", seen.len());
    }
}
