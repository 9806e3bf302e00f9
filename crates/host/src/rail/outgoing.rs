//! Chunks on their way out: which tokens go to which node, and how far each stream is.

use std::ops::Range;

use expertrail_core::hop::chunk::{ChunkError, Frame, Place};

use super::Crossings;

/// One stream of a call: to one node, over one channel.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) node: usize,
    /// Tokens of the stream in this call.
    pub(super) tokens: usize,
    /// Chunks of it packed so far.
    pub(super) packed: usize,
    chunks: usize,
}

impl Stream {
    pub(super) fn new(node: usize, tokens: usize, frame: &Frame) -> Self {
        Self { node, tokens, packed: 0, chunks: frame.chunks(tokens) }
    }

    pub(super) fn is_done(&self) -> bool {
        self.packed == self.chunks
    }

    /// Whether the next chunk lacks only what peer and proxy give: a credit, and a slot to pack it in.
    pub(super) fn may_go_on(&self, crossings: &mut Crossings, channel: usize) -> bool {
        !self.is_done() && crossings.has_credit(channel, self.node) && crossings.free_slot().is_some()
    }

    /// Writes the head of the next chunk into outgoing `slot`: the chunk, and the tokens that it is for, by their place in
    /// the stream.
    ///
    /// # Errors
    /// [`ChunkError`], an error of the caller.
    ///
    /// # Safety
    /// The proxy must be done with the slot ([`Crossings::free_slot`]), and the chunk must be given up before it has it again.
    pub(super) unsafe fn open<'a>(
        &self,
        crossings: &Crossings,
        frame: &Frame,
        (channel, slot): (usize, usize),
        epoch: u64,
    ) -> Result<(&'a mut [u8], Range<usize>), ChunkError> {
        let sequence = crossings.sent[channel][self.node];
        let place = Place { epoch, sequence, index: self.packed, tokens: self.tokens };
        let range = frame.tokens_of(self.packed, self.tokens);
        let base = crossings.rail.base().wrapping_add(crossings.rail.layout().out_chunk(slot));
        // SAFETY: the layout has room for a chunk in every outgoing slot; for the rest, the caller's promise.
        let chunk = unsafe { std::slice::from_raw_parts_mut(base, frame.bytes(range.len())) };
        frame.write_head(chunk, &place)?;
        Ok((chunk, range))
    }
}
