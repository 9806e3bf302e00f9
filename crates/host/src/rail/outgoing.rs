//! Chunks on their way out: which tokens go to which node, and how far each stream is.

use std::ops::Range;

use expertrail_core::hop::chunk::Frame;

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

    /// The tokens of the next chunk, by their place in the stream.
    pub(super) fn next(&self, frame: &Frame) -> Range<usize> {
        frame.tokens_of(self.packed, self.tokens)
    }

    /// Whether the next chunk lacks only what peer and proxy give: a credit, and a slot to pack it in.
    pub(super) fn may_go_on(&self, crossings: &mut Crossings, channel: usize) -> bool {
        !self.is_done() && crossings.has_credit(channel, self.node) && crossings.free_slot().is_some()
    }
}
