//! Chunks that come in: which of a stream's are there, and which have been read.

use expertrail_core::hop::chunk::{Frame, Place};

use super::Crossings;

/// One stream of a call: from one node, over one channel.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    pub(super) node: usize,
    /// Tokens of the stream in this call.
    pub(super) tokens: usize,
    /// The stream's number of this call's first chunk.
    first: u64,
    chunks: usize,
    /// Chunks below are read.
    low: usize,
    /// Read beyond `low`, by chunk modulo the window.
    read: Vec<bool>,
    window: usize,
}

impl Incoming {
    pub(super) fn new(
        crossings: &Crossings,
        channel: usize,
        (node, tokens): (usize, usize),
        frame: &Frame,
    ) -> Self {
        let window = crossings.limits.window;
        Self {
            node,
            tokens,
            first: crossings.received[channel][node],
            chunks: frame.chunks(tokens),
            low: 0,
            read: vec![false; window],
            window,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.low == self.chunks
    }

    /// The number in its stream of this call's chunk `index`.
    pub(super) fn sequence(&self, index: usize) -> u64 {
        self.first + index as u64
    }

    /// Where chunk `index` stands, for its head.
    pub(super) fn place(&self, index: usize, epoch: u64) -> Place {
        Place { epoch, sequence: self.sequence(index), index, tokens: self.tokens }
    }

    /// A chunk that is there and has not been read, the lowest first.
    pub(super) fn next(&self, crossings: &Crossings, channel: usize) -> Option<usize> {
        let flags = crossings.rail.flags();
        (self.low..self.chunks.min(self.low + self.window)).find(|&index| {
            !self.read[index % self.window] && flags.chunk_is_there(channel, self.node, self.sequence(index))
        })
    }

    /// Whether chunk `index` is there.
    pub(super) fn is_there(&self, crossings: &Crossings, channel: usize, index: usize) -> bool {
        crossings.rail.flags().chunk_is_there(channel, self.node, self.sequence(index))
    }

    /// Chunk `index` was read: its slot goes back to the sender.
    pub(super) fn give_back(
        &mut self,
        crossings: &mut Crossings,
        channel: usize,
        (index, epoch): (usize, u64),
    ) {
        crossings.credit(channel, self.node, self.sequence(index), epoch);
        self.read[index % self.window] = true;
        while self.low < self.chunks && self.read[self.low % self.window] {
            self.read[self.low % self.window] = false;
            self.low += 1;
            crossings.received[channel][self.node] += 1;
        }
    }
}
