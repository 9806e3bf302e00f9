//! Where everything that crosses a rail lies in a rank's registered region. The same on every rank, so that a sender knows
//! its peer's offsets without asking.

/// Channels: one stream of chunks each way for dispatch and for combine.
pub const CHANNELS: usize = 2;

/// Bytes of a status message's place.
pub const STATUS_BYTES: usize = 64;

/// Bytes of a failure word's place; a credit writes as many.
pub const WORD_BYTES: usize = 16;

/// Parts start at multiples of this: rows in chunks are then whole cache lines.
const ALIGN: usize = 64;

/// Sizes that decide the layout; equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailSizes {
    /// Nodes of the declared topology.
    pub nodes: usize,
    /// Slots of each stream.
    pub window: usize,
    /// The largest header of a call.
    pub header_bytes: usize,
    /// A chunk of each channel.
    pub chunk_bytes: [usize; CHANNELS],
    /// Chunks that may be packed and on their way at once, of all streams together.
    pub outgoing: usize,
}

/// Offsets in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailLayout {
    sizes: RailSizes,
    header: usize,
    slot: [usize; CHANNELS],
    out_slot: usize,
    at: At,
    bytes: usize,
}

/// Where each kind of part starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct At {
    out_header: usize,
    out_status: usize,
    out_word: usize,
    out_chunk: usize,
    header: usize,
    status: usize,
    word: usize,
    sink: usize,
    chunk: [usize; CHANNELS],
}

impl RailLayout {
    /// Lays the region out.
    pub fn new(sizes: RailSizes) -> Self {
        let up = |bytes: usize| bytes.next_multiple_of(ALIGN);
        let header = up(sizes.header_bytes);
        let slot = sizes.chunk_bytes.map(up);
        let out_slot = slot[0].max(slot[1]);
        let mut next = 0;
        let mut part = |bytes: usize| {
            let start = next;
            next += up(bytes);
            start
        };
        let at = At {
            out_header: part(2 * sizes.nodes * header),
            out_status: part(2 * sizes.nodes * STATUS_BYTES),
            out_word: part(WORD_BYTES),
            out_chunk: part(sizes.outgoing * out_slot),
            header: part(2 * sizes.nodes * header),
            status: part(2 * sizes.nodes * STATUS_BYTES),
            word: part(sizes.nodes * WORD_BYTES),
            sink: part(sizes.nodes * WORD_BYTES),
            chunk: slot.map(|slot| part(sizes.nodes * sizes.window * slot)),
        };
        Self { sizes, header, slot, out_slot, at, bytes: next }
    }

    /// The sizes it was made of.
    pub fn sizes(&self) -> RailSizes {
        self.sizes
    }

    /// Bytes of the whole region.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Own memory: the header for `node` of calls with this parity.
    pub fn out_header(&self, node: usize, epoch: u64) -> usize {
        self.at.out_header + generation(node, epoch) * self.header
    }

    /// Own memory: the status for `node`.
    pub fn out_status(&self, node: usize, epoch: u64) -> usize {
        self.at.out_status + generation(node, epoch) * STATUS_BYTES
    }

    /// Own memory: the failure word that is told to all.
    pub fn out_word(&self) -> usize {
        self.at.out_word
    }

    /// Own memory: the word that says for whom this rank waits, behind the failure word. It is written alone, so that it
    /// never takes a failure's place.
    pub fn out_waits(&self) -> usize {
        self.at.out_word + WORD_BYTES / 2
    }

    /// Where `node`'s word of for whom it waits arrives.
    pub fn waits(&self, node: usize) -> usize {
        self.word(node) + WORD_BYTES / 2
    }

    /// Own memory: outgoing chunk `slot`.
    pub fn out_chunk(&self, slot: usize) -> usize {
        self.at.out_chunk + slot * self.out_slot
    }

    /// Where `node`'s header arrives.
    pub fn header(&self, node: usize, epoch: u64) -> usize {
        self.at.header + generation(node, epoch) * self.header
    }

    /// Where `node`'s status arrives.
    pub fn status(&self, node: usize, epoch: u64) -> usize {
        self.at.status + generation(node, epoch) * STATUS_BYTES
    }

    /// Where `node`'s failure word arrives.
    pub fn word(&self, node: usize) -> usize {
        self.at.word + node * WORD_BYTES
    }

    /// Where the bytes of `node`'s credits and farewells arrive; nobody reads them.
    pub fn sink(&self, node: usize) -> usize {
        self.at.sink + node * WORD_BYTES
    }

    /// Where chunk `sequence` of the stream from `node` arrives.
    pub fn chunk(&self, channel: usize, node: usize, sequence: u64) -> usize {
        let slot = node * self.sizes.window + self.slot_of(sequence);
        self.at.chunk[channel] + slot * self.slot[channel]
    }

    /// The slot of a chunk in its stream.
    pub fn slot_of(&self, sequence: u64) -> usize {
        (sequence % self.sizes.window as u64) as usize
    }
}

/// Two generations by parity of the call: a peer is at most one call ahead, because it waits for this rank's header.
fn generation(node: usize, epoch: u64) -> usize {
    2 * node + (epoch % 2) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_side_by_side() {
        let sizes =
            RailSizes { nodes: 3, window: 2, header_bytes: 100, chunk_bytes: [1000, 500], outgoing: 4 };
        let layout = RailLayout::new(sizes);
        let mut parts = vec![(layout.out_word(), 16)];
        for node in 0..3 {
            for epoch in 0..2 {
                parts.push((layout.out_header(node, epoch), 100));
                parts.push((layout.out_status(node, epoch), 64));
                parts.push((layout.header(node, epoch), 100));
                parts.push((layout.status(node, epoch), 64));
            }
            parts.extend([(layout.word(node), 16), (layout.sink(node), 16)]);
            for sequence in 0..2 {
                parts.push((layout.chunk(0, node, sequence), 1000));
                parts.push((layout.chunk(1, node, sequence), 500));
            }
        }
        parts.extend((0..4).map(|slot| (layout.out_chunk(slot), 1000)));
        parts.sort_unstable();
        for pair in parts.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let (start, bytes) = parts[parts.len() - 1];
        assert!(start + bytes <= layout.bytes());
        // The window comes round, the generation of a header too.
        assert_eq!(layout.chunk(1, 2, 7), layout.chunk(1, 2, 1));
        assert_eq!(layout.header(1, 4), layout.header(1, 2));
        // Out: 3 x 2 headers of 128, 6 statuses, 64, 4 x 1024; in: headers, statuses, 64, 64; 6 x 1024, 6 x 512.
        assert_eq!(layout.bytes(), 768 + 384 + 64 + 4096 + 768 + 384 + 64 + 64 + 6144 + 3072);
    }
}
