//! How a call uses the SMs it is given.

/// Bytes of one bulk copy, at most. With pieces of 3,584 bytes the link was fastest (results/h200-x2/NOTES.md, a).
const PIECE: usize = 3584;

/// Rings of a sending warp hold this many pieces: three on their way in while one goes out.
const STAGES: usize = 4;

/// SMs that saturate NVLink with writes on an H200: each writes about 45 GB/s (4 SMs pushed 181 GB/s, 8
/// 349 and 64 no more than 361 over NVLink, both directions at once).
const SMS_OF_LINK: usize = 8;

/// SMs of a call of `ranks` ranks where the caller does not say.
///
/// A dispatch writes one row in `ranks` to its own memory beside those that cross, at the same rate for each SM: 8 SMs
/// for the link, times `ranks / (ranks - 1)`, rounded up to even. That is 16 for two ranks, 12 for four, 10 for eight.
/// A combine sums at the same SMs what comes in, and was fastest for its SMs at 16 with two ranks (NOTES.md, b); more
/// ranks have not been measured.
pub fn default_sms(ranks: usize, combine: bool) -> u32 {
    let dispatch = if ranks < 2 { 16 } else { (SMS_OF_LINK * ranks).div_ceil(ranks - 1).next_multiple_of(2) };
    if combine { dispatch.max(16) as u32 } else { dispatch as u32 }
}

/// Rings of sending warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rings {
    /// Warps.
    pub(crate) warps: u32,
    /// Pieces that a ring holds.
    pub(crate) stages: u32,
    /// Bytes of a piece, at most.
    pub(crate) chunk: u32,
    /// Pieces of a row.
    pub(crate) pieces: u32,
}

impl Rings {
    /// For rows of `row_bytes` on `sms` SMs: `all` warps together, `least` to `most` on each.
    pub(crate) fn new(row_bytes: usize, sms: u32, (all, least, most): (usize, usize, usize)) -> Self {
        let pieces = row_bytes.div_ceil(PIECE).max(1);
        let chunk = row_bytes.div_ceil(pieces).next_multiple_of(16).max(16);
        // Small rows make small pieces; more of them are under way then.
        let wanted = (all * PIECE).div_ceil(sms.max(1) as usize * chunk.max(PIECE / 2));
        Self {
            warps: wanted.clamp(least, most) as u32,
            stages: STAGES as u32,
            chunk: chunk as u32,
            pieces: row_bytes.div_ceil(chunk).max(1) as u32,
        }
    }

    /// With as many warps as `bytes` of shared memory hold, at least one.
    pub(crate) fn within(mut self, bytes: usize) -> Self {
        let each = self.stages as usize * self.chunk as usize;
        self.warps = self.warps.min((bytes / each) as u32).max(self.warps.min(1));
        self
    }

    /// Bytes of shared memory of all rings of a block.
    pub(crate) fn bytes(&self) -> usize {
        self.warps as usize * self.stages as usize * self.chunk as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_gives_the_measured_count_for_two_ranks() {
        assert_eq!([2, 4, 8].map(|ranks| default_sms(ranks, false)), [16, 12, 10]);
        assert_eq!(default_sms(8, true), 16);
    }

    #[test]
    fn pieces_cover_a_row_in_sixteens() {
        for row in [16, 32, 48, 272, 3584, 3600, 6144, 7168, 14_336, 14_352, 32_768] {
            let rings = Rings::new(row, 16, (128, 4, 16));
            let (chunk, pieces) = (rings.chunk as usize, rings.pieces as usize);
            assert!(chunk.is_multiple_of(16) && chunk <= PIECE + 16, "{row}: {rings:?}");
            assert!(chunk * pieces >= row && chunk * (pieces - 1) < row, "{row}: {rings:?}");
        }
        assert_eq!(
            Rings::new(14_336, 16, (128, 4, 16)),
            Rings { warps: 8, stages: 4, chunk: 3584, pieces: 4 }
        );
        assert_eq!([12, 16, 20, 24].map(|sms| Rings::new(14_336, sms, (112, 4, 8)).warps), [8, 7, 6, 5]);
        assert_eq!(Rings::new(14_336, 1, (128, 4, 16)).warps, 16);
        assert_eq!(Rings::new(14_336, 128, (128, 4, 16)).warps, 4);
    }
}
