//! Chunks of a combine: a record is the rounded sum of one node's rows for one token of the receiver, in the receiver's own
//! order (ascending token among those that it sent to that node), so nothing but the row must travel.
//!
//! ```text
//! offset in the record     what
//! 0                        BF16 row [hidden]
//! 2 * hidden               f32 weights [top_k], if carried
//! ```

use std::ops::Range;

use super::{ChunkError, Frame, Place};
use crate::hop::bytes::{put_words, words};
use crate::hop::immediate::Channel;

/// Where the parts of a combine chunk lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CombineLayout {
    frame: Frame,
    row_bytes: usize,
    weights: usize,
}

impl CombineLayout {
    /// The layout for BF16 rows of `hidden` elements, with `weights` weights (top-k, or 0 for none) for each token, in
    /// slots of `slot_bytes`.
    ///
    /// # Errors
    /// [`ChunkError::Slot`] when a slot does not hold one record.
    pub fn new(hidden: usize, weights: usize, slot_bytes: usize) -> Result<Self, ChunkError> {
        let row_bytes = 2 * hidden;
        let frame = Frame::new(Channel::Combine, row_bytes + 4 * weights, slot_bytes)?;
        Ok(Self { frame, row_bytes, weights })
    }

    /// Sizes and numbers of chunks.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Where the row of record `index` lies in the chunk: for sums that the caller writes itself.
    pub fn row(&self, index: usize) -> Range<usize> {
        let start = self.frame.record(index);
        start..start + self.row_bytes
    }

    /// Writes the weights of record `index`.
    ///
    /// # Errors
    /// [`ChunkError::Index`], [`ChunkError::Short`] and [`ChunkError::Values`], errors of the caller.
    pub fn write_weights(&self, chunk: &mut [u8], index: usize, weights: &[f32]) -> Result<(), ChunkError> {
        if weights.len() != self.weights {
            return Err(ChunkError::Values { what: "weights", got: weights.len(), want: self.weights });
        }
        if index >= self.frame.records_per_chunk() {
            return Err(ChunkError::Index { index, chunks: self.frame.records_per_chunk() });
        }
        let (at, got) = (self.row(index).end, chunk.len());
        let short = ChunkError::Short { what: "the slot", got, want: at + 4 * self.weights };
        put_words(chunk, at, weights.iter().map(|weight| weight.to_le_bytes())).ok_or(short)
    }

    /// Reads the chunk at `place` that a peer wrote into a slot.
    ///
    /// # Errors
    /// [`ChunkError::Head`] unless it is that chunk of this call; [`ChunkError::Short`] when the slot is too short.
    pub fn read<'a>(&'a self, slot: &'a [u8], place: &Place) -> Result<CombineChunk<'a>, ChunkError> {
        let (count, bytes) = self.frame.check_head(slot, place)?;
        let first = self.frame.tokens_of(place.index, place.tokens).start;
        Ok(CombineChunk { layout: self, chunk: slot.get(..bytes).unwrap_or(slot), count, first })
    }
}

/// A chunk whose head is right.
#[derive(Clone, Debug)]
pub struct CombineChunk<'a> {
    layout: &'a CombineLayout,
    chunk: &'a [u8],
    count: usize,
    first: usize,
}

/// One record.
#[derive(Clone, Debug)]
pub struct CombineRecord<'a> {
    /// Its place among the tokens that the receiver sent to that node.
    pub place: usize,
    /// The row's bytes: BF16, `[hidden]`.
    pub row: &'a [u8],
    weights: &'a [u8],
}

impl CombineRecord<'_> {
    /// Weights, `[top_k]`; nothing when none are carried.
    pub fn weights(&self) -> impl Iterator<Item = f32> + '_ {
        words(self.weights).map(f32::from_le_bytes)
    }
}

impl<'a> CombineChunk<'a> {
    /// Number of records.
    pub fn records(&self) -> usize {
        self.count
    }

    /// Record `index`.
    ///
    /// # Errors
    /// [`ChunkError::Index`] when the chunk has no such record.
    pub fn record(&self, index: usize) -> Result<CombineRecord<'a>, ChunkError> {
        if index >= self.count {
            return Err(ChunkError::Index { index, chunks: self.count });
        }
        let row = self.layout.row(index);
        let end = row.end + 4 * self.layout.weights;
        let short = || ChunkError::Short { what: "the chunk", got: self.chunk.len(), want: end };
        Ok(CombineRecord {
            place: self.first + index,
            row: self.chunk.get(row.clone()).ok_or_else(short)?,
            weights: self.chunk.get(row.end..end).ok_or_else(short)?,
        })
    }
}
