//! How a dispatch output is laid out in one piece of memory, and how much of it is likely to be needed: the same on every
//! backend, because every source computes where its rows go.

use crate::shape::Dtype;

/// Parts of an output start at multiples of this: whole cache lines on CPUs, whole lines of bulk copies on GPUs.
const PART: usize = 128;

/// What an output holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputKind {
    /// Element type of the rows.
    pub dtype: Dtype,
    /// Elements of a row.
    pub hidden: usize,
    /// Choices of a token.
    pub top_k: usize,
    /// A cached dispatch carries rows and scales only.
    pub cached: bool,
    /// Whether weights came along.
    pub weights: bool,
}

impl OutputKind {
    /// Bytes of one row's elements and of its scales.
    pub fn row_parts(&self) -> (usize, usize) {
        (self.dtype.row_bytes(self.hidden), 4 * self.dtype.scales_per_row(self.hidden))
    }
}

/// Offsets in bytes of the parts of one rank's output; rows come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLayout {
    /// f32, `[rows, hidden / 128]` for FP8.
    pub scales: usize,
    /// i32, `[arrivals, top_k]`.
    pub ids: usize,
    /// f32, `[arrivals, top_k]`.
    pub weights: usize,
    /// u32, `[arrivals]`.
    pub tokens: usize,
    /// Length of the whole.
    pub bytes: usize,
}

impl OutputLayout {
    /// For `rows` output rows of `arrivals` arriving tokens; the same number in the by-source layout.
    pub fn new(kind: &OutputKind, rows: usize, arrivals: usize) -> Self {
        let part = |bytes: usize| bytes.next_multiple_of(PART);
        let choices = if kind.cached { 0 } else { arrivals * kind.top_k };
        let scales = part(rows * kind.dtype.row_bytes(kind.hidden));
        let ids = scales + part(4 * rows * kind.dtype.scales_per_row(kind.hidden));
        let weights = ids + part(4 * choices);
        let tokens = weights + part(if kind.weights { 4 * choices } else { 0 });
        let bytes = tokens + part(if kind.cached { 0 } else { 4 * arrivals });
        Self { scales, ids, weights, tokens, bytes }
    }
}

/// Rows that arrive at a rank when `ranks` ranks send `tokens` tokens each by uniform routing.
///
/// A token reaches R (1 - (1 - 1/R)^K) ranks when drawn with replacement (validation-facts section 5), and no more without;
/// by symmetry that many arrive.
pub fn uniform_arrivals(tokens: usize, ranks: usize, top_k: usize) -> usize {
    let share = 1.0 - (1.0 - 1.0 / ranks as f64).powi(top_k as i32);
    (tokens as f64 * ranks as f64 * share).ceil() as usize
}

/// What is reserved where `n` are likely: a quarter more, and some for small numbers.
pub fn generous(n: usize) -> usize {
    n + n / 4 + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_in_whole_lines() {
        let kind = OutputKind { dtype: Dtype::Fp8E4m3, hidden: 256, top_k: 3, cached: false, weights: true };
        // 5 rows: 1280 bytes of codes, 2 scales each, 3 ids and weights each, a token each.
        let layout = OutputLayout::new(&kind, 5, 5);
        assert_eq!(
            layout,
            OutputLayout { scales: 1280, ids: 1408, weights: 1536, tokens: 1664, bytes: 1792 }
        );
        let cached = OutputLayout::new(&OutputKind { cached: true, weights: false, ..kind }, 5, 5);
        assert_eq!((cached.ids, cached.bytes), (1408, 1408));
    }

    #[test]
    fn nearly_all_rows_arrive_at_two_ranks_and_one_share_of_many() {
        // 2 x 4096 x (1 - 2^-8) = 8160; 8 x 100 x (1 - 7/8) = 100.
        assert_eq!((uniform_arrivals(4096, 2, 8), uniform_arrivals(100, 8, 1)), (8160, 100));
        assert_eq!(generous(100), 189);
    }
}
