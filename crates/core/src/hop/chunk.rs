//! What a chunk looks like in its slot: the frame that both operations share.
//!
//! A chunk is one head of 64 bytes and then records of a fixed stride, one for each token ([`DispatchLayout`],
//! [`CombineLayout`]). Why so:
//!
//! * Everything lies at an offset that follows from the call alone, so a GPU can fill a chunk with one warp for each token,
//!   and no thread waits for another to learn where to write.
//! * A record starts with its row at a multiple of 64 bytes: whole lines for copies on CPUs, and bulk copies on GPUs (which
//!   want multiples of 16) go straight from the slot to the final row.
//! * Records stand whole one behind the other rather than in one array for each field, so that a short chunk is one
//!   contiguous write of `64 + count * stride` bytes, and nothing of the unused rest crosses.
//! * The cost is the padding of a stride to 64 bytes and entries for the most destinations that a token can have: for the
//!   deepseek-v3 shape with 8 ranks on a node 192 of 14,528 bytes, the ids and weights included.
//!
//! Which tokens a chunk holds is fixed too: chunk i of a call holds the tokens `i * records_per_chunk..` of those that the
//! source sends to that node, in ascending order. So the receiver knows head and length of every chunk before it comes, and
//! accepts nothing else.

mod combine;
mod dispatch;
mod error;

use std::ops::Range;

pub use combine::{CombineChunk, CombineLayout, CombineRecord};
pub use dispatch::{Bounds, Choices, DispatchChunk, DispatchLayout, DispatchRecord, Entry};
pub use error::ChunkError;

use super::bytes;
use super::immediate::Channel;

/// Rows and records start at multiples of this.
pub const ALIGN: usize = 64;

/// Bytes of a chunk's head: 32 used, the rest keeps the first row aligned.
pub const HEAD_BYTES: usize = 64;

/// "ER", the first two bytes of every chunk and message.
pub(super) const MAGIC: u16 = u16::from_le_bytes(*b"ER");

/// Version of all byte layouts between nodes. A change of any of them counts it up.
pub(super) const VERSION: u8 = 1;

/// Which chunk of which stream: what sender and receiver both know before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The call.
    pub epoch: u64,
    /// The chunk's number in its stream.
    pub sequence: u64,
    /// Its number among the stream's chunks of this call, from 0.
    pub index: usize,
    /// Tokens that the stream carries in this call.
    pub tokens: usize,
}

/// Sizes of chunks with records of one stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    channel: Channel,
    stride: usize,
    records: usize,
}

impl Frame {
    fn new(channel: Channel, record_bytes: usize, slot_bytes: usize) -> Result<Self, ChunkError> {
        let stride = record_bytes.next_multiple_of(ALIGN);
        let records = slot_bytes.saturating_sub(HEAD_BYTES) / stride.max(1);
        if stride == 0 || records == 0 || u32::try_from(slot_bytes).is_err() {
            return Err(ChunkError::Slot { slot_bytes, record: stride, least: HEAD_BYTES + stride });
        }
        Ok(Self { channel, stride, records })
    }

    /// Bytes from one record to the next: a multiple of [`ALIGN`].
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Records of a full chunk.
    pub fn records_per_chunk(&self) -> usize {
        self.records
    }

    /// Chunks for `tokens` tokens; the last may be short.
    pub fn chunks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.records)
    }

    /// Bytes of a chunk of `count` records, the head included.
    pub fn bytes(&self, count: usize) -> usize {
        HEAD_BYTES + count * self.stride
    }

    /// Which of the stream's tokens of a call lie in chunk `index`; none behind the last chunk.
    pub fn tokens_of(&self, index: usize, tokens: usize) -> Range<usize> {
        let start = index.saturating_mul(self.records).min(tokens);
        start..start.saturating_add(self.records).min(tokens)
    }

    /// Where record `index` of a chunk starts, in bytes.
    pub fn record(&self, index: usize) -> usize {
        HEAD_BYTES + index * self.stride
    }

    /// Writes the head. Returns the bytes of the whole chunk, which its records must fill before it is sent.
    ///
    /// # Errors
    /// [`ChunkError::Index`] when the call has no such chunk, [`ChunkError::Short`] when `chunk` cannot hold it.
    pub fn write_head(&self, chunk: &mut [u8], place: &Place) -> Result<usize, ChunkError> {
        let (head, bytes) = self.head(place)?;
        let (got, want) = (chunk.len(), bytes);
        if got < want {
            return Err(ChunkError::Short { what: "the slot", got, want });
        }
        bytes::put(chunk, 0, &head).ok_or(ChunkError::Short { what: "the slot", got, want })?;
        Ok(bytes)
    }

    /// Checks the head that a peer wrote; returns the number of records and the bytes of the chunk.
    fn check_head(&self, chunk: &[u8], place: &Place) -> Result<(usize, usize), ChunkError> {
        let (want, bytes) = self.head(place)?;
        if chunk.len() < bytes {
            return Err(ChunkError::Short { what: "the chunk", got: chunk.len(), want: bytes });
        }
        for &(field, at, width) in FIELDS {
            let (got, want) = (number(chunk, at, width), number(&want, at, width));
            if got != want {
                return Err(ChunkError::Head { field, got, want });
            }
        }
        Ok((self.tokens_of(place.index, place.tokens).len(), bytes))
    }

    /// The head of the chunk at `place`, and the bytes of the whole.
    fn head(&self, place: &Place) -> Result<([u8; HEAD_BYTES], usize), ChunkError> {
        let Range { start, end } = self.tokens_of(place.index, place.tokens);
        if start == end {
            return Err(ChunkError::Index { index: place.index, chunks: self.chunks(place.tokens) });
        }
        let mut head = [0; HEAD_BYTES];
        head[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        head[2] = VERSION;
        head[3] = self.channel as u8;
        head[4..8].copy_from_slice(&((end - start) as u32).to_le_bytes());
        head[8..16].copy_from_slice(&place.epoch.to_le_bytes());
        head[16..24].copy_from_slice(&place.sequence.to_le_bytes());
        head[24..28].copy_from_slice(&(start as u32).to_le_bytes());
        head[28..32].copy_from_slice(&(self.stride as u32).to_le_bytes());
        Ok((head, self.bytes(end - start)))
    }
}

/// Name, offset and width of the head's fields; zeros up to its end.
const FIELDS: &[(&str, usize, usize)] = &[
    ("magic", 0, 2),
    ("version", 2, 1),
    ("operation", 3, 1),
    ("record count", 4, 4),
    ("epoch", 8, 8),
    ("sequence", 16, 8),
    ("first token", 24, 4),
    ("stride", 28, 4),
];

/// The little-endian number of `width` bytes at `at`; bytes that are not there count as 0.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let field = bytes.iter().skip(at).take(width);
    field.enumerate().fold(0, |number, (i, &byte)| number | u64::from(byte) << (8 * i))
}
