//! Sizes of a communicator and the data types it moves.

use std::fmt;

use crate::error::{CoreError, Result};

/// Elements that share one scale in FP8 rows: DeepEP's and DeepSeek-V3's 1 x 128 tiles.
pub const SCALE_BLOCK: usize = 128;

/// The most experts one token may go to (DESIGN 4).
pub const MAX_TOP_K: usize = 32;

/// The most tokens one rank may send in a call; slots and counts then fit 32 bits at any rank count.
pub const MAX_TOKENS: usize = 1 << 20;

/// The largest hidden size.
pub const MAX_HIDDEN: usize = 1 << 16;

/// What one element of a dispatched row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 16-bit brain float.
    Bf16,
    /// FP8 e4m3 with one 4-byte scale for every [`SCALE_BLOCK`] elements of a row.
    Fp8E4m3,
}

impl Dtype {
    /// Bytes of one row's elements, scales not counted.
    pub fn row_bytes(self, hidden: usize) -> usize {
        match self {
            Self::Bf16 => hidden * 2,
            Self::Fp8E4m3 => hidden,
        }
    }

    /// Number of 4-byte scales in one row.
    pub fn scales_per_row(self, hidden: usize) -> usize {
        match self {
            Self::Bf16 => 0,
            Self::Fp8E4m3 => hidden / SCALE_BLOCK,
        }
    }

    /// Bytes of one row that cross a link: elements and scales.
    pub fn wire_row_bytes(self, hidden: usize) -> usize {
        self.row_bytes(hidden) + 4 * self.scales_per_row(hidden)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::Fp8E4m3 => "fp8",
        })
    }
}

/// The sizes that all ranks of a communicator agree on at build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The most tokens any rank sends in one call, T.
    pub max_tokens: usize,
    /// Elements of a row, H.
    pub hidden: usize,
    /// Experts chosen for a token, K.
    pub top_k: usize,
    /// Experts in all, E.
    pub experts: usize,
}

impl Shape {
    /// Checks the shape for rows of BF16, and of FP8 too when `fp8` is set.
    ///
    /// # Errors
    /// [`CoreError::Hidden`], [`CoreError::TopK`], [`CoreError::Tokens`] or [`CoreError::Experts`], naming
    /// the value and the rule.
    pub fn check(&self, fp8: bool) -> Result<()> {
        let multiple = if fp8 { SCALE_BLOCK } else { 8 };
        if self.hidden == 0 || self.hidden > MAX_HIDDEN || !self.hidden.is_multiple_of(multiple) {
            return Err(CoreError::Hidden { hidden: self.hidden, multiple, limit: MAX_HIDDEN });
        }
        if self.experts == 0 || self.experts > crate::placement::MAX_EXPERTS {
            return Err(CoreError::Experts { experts: self.experts, limit: crate::placement::MAX_EXPERTS });
        }
        if self.top_k == 0 || self.top_k > MAX_TOP_K || self.top_k > self.experts {
            return Err(CoreError::TopK { top_k: self.top_k, experts: self.experts, limit: MAX_TOP_K });
        }
        if self.max_tokens > MAX_TOKENS {
            return Err(CoreError::Tokens { tokens: self.max_tokens, limit: MAX_TOKENS });
        }
        Ok(())
    }
}

impl Shape {
    /// Checks that the rows of any rank, in any layout, can be numbered in 32 bits when `ranks` ranks send.
    ///
    /// # Errors
    /// [`CoreError::Rows`].
    pub fn check_rows(&self, ranks: usize) -> Result<()> {
        let padding = crate::plan::MAX_ALIGNMENT * self.experts.div_ceil(ranks.max(1));
        let rows = ranks as u64 * self.max_tokens as u64 * self.top_k as u64 + padding as u64;
        if rows < u64::from(u32::MAX) { Ok(()) } else { Err(CoreError::Rows { ranks, shape: *self, rows }) }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tokens x {} hidden, top-{} of {}",
            self.max_tokens, self.hidden, self.top_k, self.experts
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_sizes_of_deepseek_v3() {
        assert_eq!(Dtype::Bf16.wire_row_bytes(7168), 14_336);
        assert_eq!(Dtype::Fp8E4m3.wire_row_bytes(7168), 7168 + 4 * 56);
    }

    #[test]
    fn rows_are_numbered_in_32_bits() {
        let shape = Shape { max_tokens: 1 << 20, hidden: 8, top_k: 32, experts: 256 };
        assert!(shape.check_rows(64).is_ok());
        // 128 x 2^20 x 32 = 2^32.
        assert!(shape.check_rows(128).is_err());
    }

    #[test]
    fn hidden_rules() {
        let shape = |hidden| Shape { max_tokens: 1, hidden, top_k: 1, experts: 1 };
        assert!(shape(8).check(false).is_ok());
        assert!(shape(12).check(false).is_err());
        assert!(shape(136).check(true).is_err());
        assert!(shape(256).check(true).is_ok());
        assert!(Shape { top_k: 9, experts: 8, ..shape(8) }.check(false).is_err());
    }
}
