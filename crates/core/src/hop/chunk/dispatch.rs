//! Chunks of a dispatch: a record is one token's row with all that the forwarder needs to put it in its final places.
//!
//! ```text
//! offset in the record                     what
//! 0                                        row: hidden elements
//! row bytes                                f32 scales [hidden / 128], FP8 only
//! then                                     u32 token, u32 number of destinations
//! then                                     destinations, 12 bytes each, room for the most:
//!                                            u16 local rank, u16 expert within the node, u32 slot, u32 first slot
//! then, unless cached                      i32 ids [top_k]: global, -1 where not on this node
//! then, unless cached, if carried          f32 weights [top_k]: 0 where not on this node
//! ```

use std::ops::Range;

use super::{ChunkError, Frame, HEAD_BYTES, Place};
use crate::counts::CountMatrix;
use crate::hop::bytes::{get_u32, put, put_words, words};
use crate::hop::immediate::Channel;
use crate::output::OutputKind;
use crate::plan::{Destination, FirstChoice, Layout};

/// Bytes of one destination.
const ENTRY_BYTES: usize = 12;

/// One destination of a token on the receiving node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The rank, counted within its node.
    pub local_rank: u16,
    /// Expert-major: the expert of the first choice there, counted within the node. 0 by source.
    pub expert: u16,
    /// How many earlier tokens of this source go to the same rank.
    pub slot: u32,
    /// Expert-major: how many earlier choices of this source name the same expert. 0 by source.
    pub first_slot: u32,
}

impl Entry {
    /// From a plan; `first_rank` and `first_expert` are those of the receiving node.
    pub fn new(
        destination: &Destination,
        first: Option<&FirstChoice>,
        first_rank: usize,
        first_expert: usize,
    ) -> Self {
        Self {
            local_rank: (destination.rank as usize - first_rank) as u16,
            expert: first.map_or(0, |first| (first.expert as usize - first_expert) as u16),
            slot: destination.slot,
            first_slot: first.map_or(0, |first| first.slot),
        }
    }
}

/// The choices of one token, as the caller's routing has them.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    /// Expert ids, `[top_k]`.
    pub ids: &'a [i32],
    /// Weights, `[top_k]`; `None` when none are carried.
    pub weights: Option<&'a [f32]>,
    /// Global experts of the receiving node: others cross as -1, with weight 0.
    pub experts: Range<usize>,
}

/// Where the parts of a dispatch chunk lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DispatchLayout {
    frame: Frame,
    most_destinations: usize,
    top_k: usize,
    carries_ids: bool,
    carries_weights: bool,
    /// Offsets in a record.
    scales: usize,
    token: usize,
    ids: usize,
    weights: usize,
    end: usize,
}

impl DispatchLayout {
    /// The layout of a call that carries `kind`, with at most `most_destinations` ranks of a node for each token, in slots
    /// of `slot_bytes`.
    ///
    /// # Errors
    /// [`ChunkError::Slot`] when a slot does not hold one record.
    pub fn new(kind: &OutputKind, most_destinations: usize, slot_bytes: usize) -> Result<Self, ChunkError> {
        let (scales, token, ids, weights, end) = Self::offsets(kind, most_destinations);
        Ok(Self {
            frame: Frame::new(Channel::Dispatch, end, slot_bytes)?,
            most_destinations,
            top_k: kind.top_k,
            carries_ids: !kind.cached,
            carries_weights: !kind.cached && kind.weights,
            scales,
            token,
            ids,
            weights,
            end,
        })
    }

    fn offsets(kind: &OutputKind, most_destinations: usize) -> (usize, usize, usize, usize, usize) {
        let scales = kind.dtype.row_bytes(kind.hidden);
        let token = scales + 4 * kind.dtype.scales_per_row(kind.hidden);
        let ids = token + 8 + ENTRY_BYTES * most_destinations;
        let weights = ids + if kind.cached { 0 } else { 4 * kind.top_k };
        let end = weights + if kind.weights && !kind.cached { 4 * kind.top_k } else { 0 };
        (scales, token, ids, weights, end)
    }

    /// Bytes of one record, padding included.
    pub fn record_bytes(kind: &OutputKind, most_destinations: usize) -> usize {
        Self::offsets(kind, most_destinations).4.next_multiple_of(super::ALIGN)
    }

    /// Sizes and numbers of chunks.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Where the row of record `index` lies in the chunk: for copies that the caller makes itself.
    pub fn row(&self, index: usize) -> Range<usize> {
        let start = self.frame.record(index);
        start..start + self.scales
    }

    /// Where the scales of record `index` lie in the chunk; empty for BF16.
    pub fn scales(&self, index: usize) -> Range<usize> {
        let start = self.frame.record(index);
        start + self.scales..start + self.token
    }

    /// Writes all of record `index` but row and scales ([`DispatchLayout::row`], [`DispatchLayout::scales`]). `choices` are
    /// ignored in a cached call.
    ///
    /// # Errors
    /// [`ChunkError::Index`], [`ChunkError::Short`] and [`ChunkError::Values`], errors of the caller; the chunk is not to
    /// be sent then.
    pub fn write(
        &self,
        chunk: &mut [u8],
        index: usize,
        (token, entries): (u32, &[Entry]),
        choices: &Choices<'_>,
    ) -> Result<(), ChunkError> {
        let most = self.most_destinations;
        if entries.is_empty() || entries.len() > most {
            return Err(ChunkError::Values { what: "destinations", got: entries.len(), want: most });
        }
        let (top_k, weights) = (self.top_k, choices.weights.unwrap_or(&[]));
        if self.carries_ids && choices.ids.len() != top_k {
            return Err(ChunkError::Values { what: "ids", got: choices.ids.len(), want: top_k });
        }
        if self.carries_weights && weights.len() != top_k {
            return Err(ChunkError::Values { what: "weights", got: weights.len(), want: top_k });
        }
        let (start, end) = self.span(index)?;
        let (got, want) = (chunk.len(), end);
        let record = chunk.get_mut(start..end).ok_or(ChunkError::Short { what: "the slot", got, want })?;
        self.put(record, token, entries, choices).ok_or(ChunkError::Short { what: "the slot", got, want })
    }

    fn put(&self, record: &mut [u8], token: u32, entries: &[Entry], choices: &Choices<'_>) -> Option<()> {
        put(record, self.token, &token.to_le_bytes())?;
        put(record, self.token + 4, &(entries.len() as u32).to_le_bytes())?;
        for (i, entry) in entries.iter().enumerate() {
            let at = self.token + 8 + i * ENTRY_BYTES;
            put(record, at, &entry.local_rank.to_le_bytes())?;
            put(record, at + 2, &entry.expert.to_le_bytes())?;
            put(record, at + 4, &entry.slot.to_le_bytes())?;
            put(record, at + 8, &entry.first_slot.to_le_bytes())?;
        }
        let here = |id: i32| id >= 0 && choices.experts.contains(&(id as usize));
        if self.carries_ids {
            let ids = choices.ids.iter().map(|&id| if here(id) { id } else { -1 }.to_le_bytes());
            put_words(record, self.ids, ids)?;
        }
        if self.carries_weights {
            let weights = choices.ids.iter().zip(choices.weights.unwrap_or(&[]));
            let weights = weights.map(|(&id, &weight)| if here(id) { weight } else { 0.0 }.to_le_bytes());
            put_words(record, self.weights, weights)?;
        }
        Some(())
    }

    fn span(&self, index: usize) -> Result<(usize, usize), ChunkError> {
        if index >= self.frame.records_per_chunk() {
            return Err(ChunkError::Index { index, chunks: self.frame.records_per_chunk() });
        }
        let start = self.frame.record(index);
        Ok((start, start + self.end))
    }

    /// Reads the chunk at `place` that a peer wrote into a slot, within `bounds`.
    ///
    /// # Errors
    /// [`ChunkError::Head`] unless it is that chunk of this call; [`ChunkError::Short`] when the slot is too short.
    pub fn read<'a>(
        &'a self,
        slot: &'a [u8],
        place: &Place,
        bounds: &'a Bounds<'a>,
    ) -> Result<DispatchChunk<'a>, ChunkError> {
        let (count, bytes) = self.frame.check_head(slot, place)?;
        let chunk = slot.get(..bytes).unwrap_or(slot);
        Ok(DispatchChunk { layout: self, chunk, count, bounds })
    }
}

/// What a source may write in this call: its counts, as its header (or a handle) gave them. A record within these bounds
/// leads to rows inside of the outputs and nowhere else.
#[derive(Clone, Debug)]
pub struct Bounds<'a> {
    matrix: &'a CountMatrix,
    source: usize,
    max_tokens: usize,
}

impl<'a> Bounds<'a> {
    /// For chunks from rank `source`, to the node whose columns `matrix` has ([`CountMatrix::of_node`]).
    pub fn new(matrix: &'a CountMatrix, source: usize, max_tokens: usize) -> Self {
        Self { matrix, source, max_tokens }
    }
}

/// A chunk whose head is right. Its records are checked when they are read.
#[derive(Clone, Debug)]
pub struct DispatchChunk<'a> {
    layout: &'a DispatchLayout,
    chunk: &'a [u8],
    count: usize,
    bounds: &'a Bounds<'a>,
}

/// One record, checked.
#[derive(Clone, Debug)]
pub struct DispatchRecord<'a> {
    /// Token index at the source.
    pub token: u32,
    /// The row's bytes.
    pub row: &'a [u8],
    /// The scales' bytes; empty for BF16.
    pub scales: &'a [u8],
    entries: &'a [u8],
    ids: &'a [u8],
    weights: &'a [u8],
}

impl DispatchRecord<'_> {
    /// Where the token goes, in ascending rank.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.as_chunks::<ENTRY_BYTES>().0.iter().map(|e| Entry {
            local_rank: u16::from_le_bytes([e[0], e[1]]),
            expert: u16::from_le_bytes([e[2], e[3]]),
            slot: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            first_slot: u32::from_le_bytes([e[8], e[9], e[10], e[11]]),
        })
    }

    /// Global expert ids, `[top_k]`, -1 where not on this node; nothing in a cached call.
    pub fn ids(&self) -> impl Iterator<Item = i32> + '_ {
        words(self.ids).map(i32::from_le_bytes)
    }

    /// Weights, `[top_k]`; nothing when none are carried.
    pub fn weights(&self) -> impl Iterator<Item = f32> + '_ {
        words(self.weights).map(f32::from_le_bytes)
    }
}

impl<'a> DispatchChunk<'a> {
    /// Number of records.
    pub fn records(&self) -> usize {
        self.count
    }

    /// Reads record `index`. Everything in it is checked: a forwarder may use it as an index.
    ///
    /// # Errors
    /// [`ChunkError::Record`] naming the first field that the counts of this call do not allow.
    pub fn record(&self, index: usize) -> Result<DispatchRecord<'a>, ChunkError> {
        let layout = self.layout;
        if index >= self.count {
            return Err(ChunkError::Index { index, chunks: self.count });
        }
        let (start, end) = layout.span(index)?;
        let short = || ChunkError::Short { what: "the chunk", got: self.chunk.len(), want: end };
        let record = self.chunk.get(start..end).ok_or_else(short)?;
        let part = |range: Range<usize>| record.get(range).ok_or_else(short);
        let token = get_u32(record, layout.token).ok_or_else(short)?;
        within(index, "token", token, 0..self.bounds.max_tokens)?;
        let count = get_u32(record, layout.token + 4).ok_or_else(short)?;
        within(index, "number of destinations", count, 1..layout.most_destinations + 1)?;
        let first = layout.token + 8;
        let decoded = DispatchRecord {
            token,
            row: part(0..layout.scales)?,
            scales: part(layout.scales..layout.token)?,
            entries: part(first..first + count as usize * ENTRY_BYTES)?,
            ids: part(layout.ids..layout.weights)?,
            weights: part(layout.weights..layout.end)?,
        };
        self.check_entries(index, &decoded)?;
        let experts = self.bounds.matrix.experts();
        for id in decoded.ids().filter(|&id| id != -1) {
            let (least, end) = (experts.start as i64, experts.end as i64);
            if !(least..end).contains(&i64::from(id)) {
                let field = "expert id";
                return Err(ChunkError::Record { record: index, field, got: i64::from(id), least, end });
            }
        }
        Ok(decoded)
    }

    /// Tokens ascend within a chunk; ranks ascend within a token; places are below the source's counts; an expert is one of
    /// its rank.
    fn check_entries(&self, index: usize, record: &DispatchRecord<'_>) -> Result<(), ChunkError> {
        let matrix = self.bounds.matrix;
        let previous = index
            .checked_sub(1)
            .and_then(|i| get_u32(self.chunk, self.layout.frame.record(i) + self.layout.token));
        if let Some(previous) = previous {
            within(index, "token", record.token, previous as usize + 1..self.bounds.max_tokens)?;
        }
        let to_rank = matrix.to_ranks(self.bounds.source);
        let to_expert = matrix.to_experts(self.bounds.source);
        let mut least = 0;
        for entry in record.entries() {
            let local = entry.local_rank as usize;
            within(index, "local rank", entry.local_rank.into(), least..to_rank.len())?;
            least = local + 1;
            within(index, "slot", entry.slot, 0..to_rank[local] as usize)?;
            if matrix.layout() != Layout::BySource {
                let experts = matrix.placement().experts_of(matrix.ranks().start + local);
                let base = matrix.experts().start;
                let local_experts = experts.start - base..experts.end - base;
                within(index, "expert of the first choice", entry.expert.into(), local_experts)?;
                let end = to_expert[entry.expert as usize] as usize;
                within(index, "slot of the first choice", entry.first_slot, 0..end)?;
            }
        }
        Ok(())
    }
}

fn within(record: usize, field: &'static str, got: u32, allowed: Range<usize>) -> Result<(), ChunkError> {
    if allowed.contains(&(got as usize)) {
        return Ok(());
    }
    let (least, end) = (allowed.start as i64, allowed.end as i64);
    Err(ChunkError::Record { record, field, got: got.into(), least, end })
}

const _: () = assert!(HEAD_BYTES.is_multiple_of(super::ALIGN), "the first row is aligned");
