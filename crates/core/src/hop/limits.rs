//! How large chunks are and how many may be on their way: chosen at build, checked there, and the memory that follows.

use crate::error::{CoreError, Result};
use crate::output::OutputKind;
use crate::shape::{Dtype, Shape};
use crate::topology::Topology;

use super::call::{CallHeader, Status};
use super::chunk::{ALIGN, DispatchLayout, HEAD_BYTES};
use super::immediate::Channel;
use super::stream::MAX_WINDOW;

/// The smallest chunk, unless small ones are asked for: below this the messages, not the bytes, set the speed (DESIGN 5.2).
pub const MIN_CHUNK_BYTES: usize = 128 << 10;

/// The largest chunk. A command to the proxy counts 16-byte units in 24 bits, which is four times this.
pub const MAX_CHUNK_BYTES: usize = 64 << 20;

/// The most staging slots of a rank: what a command to the proxy can name in 20 bits.
pub const MAX_SLOTS: usize = 1 << 20;

/// The sizes of the streams between nodes. All ranks of a communicator must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Bytes of a chunk. A slot is larger where one token's record is.
    pub chunk_bytes: usize,
    /// Slots of each stream: chunks that may be on their way between two ranks in one operation.
    pub window: usize,
    /// Allows chunks below [`MIN_CHUNK_BYTES`]. For tests and simulations, where chunks of few tokens show more of the
    /// protocol with less memory; real networks are slow with them.
    pub small_chunks: bool,
}

impl Default for Limits {
    /// Chunks of 128 KiB, 8 of them in flight: 1 MiB between two ranks is what 50 GB/s moves in 20 us, a long round trip.
    ///
    /// Measured over tcp on one machine (`two_hop_rate`, `guide-internode`, bytes for each second of CPU against raw writes of
    /// 1 MiB, two runs each): 64 KiB 35 and 42 %, 128 KiB 50 and 55 %, 256 KiB 50 and 52 %, 512 KiB 51 and 52 %, 1 MiB 52 and
    /// 53 %. Larger ones cost memory and gain nothing.
    fn default() -> Self {
        Self { chunk_bytes: MIN_CHUNK_BYTES, window: 8, small_chunks: false }
    }
}

/// Memory of one rank for the streams between nodes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Slots that peers write into.
    pub receive: u64,
    /// Slots that own chunks are packed into, shared by all streams.
    pub send: u64,
    /// Headers, statuses and words of both sides.
    pub control: u64,
}

impl Staging {
    /// The whole.
    pub fn total(&self) -> u64 {
        self.receive + self.send + self.control
    }
}

impl Limits {
    /// Checks the sizes for a topology and a shape (which must have passed [`Shape::check`]).
    ///
    /// # Errors
    /// [`CoreError::ChunkBytes`], [`CoreError::Window`] and [`CoreError::Slots`], naming the value and the limit.
    pub fn check(&self, topology: &Topology, shape: &Shape) -> Result<()> {
        let Self { chunk_bytes: bytes, window, small_chunks } = *self;
        let (least, most) = (if small_chunks { 1 } else { MIN_CHUNK_BYTES }, MAX_CHUNK_BYTES);
        if bytes < least || bytes > most {
            return Err(CoreError::ChunkBytes { bytes, least, most });
        }
        if window == 0 || window > MAX_WINDOW {
            return Err(CoreError::Window { window, limit: MAX_WINDOW });
        }
        let slots = self.slots(topology);
        if slots > MAX_SLOTS {
            return Err(CoreError::Slots { nodes: topology.nodes(), window, slots, limit: MAX_SLOTS });
        }
        let slot = self.slot_bytes(topology, shape);
        if slot > MAX_CHUNK_BYTES {
            return Err(CoreError::ChunkBytes { bytes: slot, least, most });
        }
        Ok(())
    }

    /// The most destinations of one token on one node: min(G, K).
    pub fn most_destinations(topology: &Topology, shape: &Shape) -> usize {
        topology.ranks_per_node().min(shape.top_k)
    }

    /// Bytes of one slot: [`Limits::chunk_bytes`], or one record of the largest kind (BF16 with ids and weights) where
    /// that is more; in whole lines of 64. The same for both operations.
    pub fn slot_bytes(&self, topology: &Topology, shape: &Shape) -> usize {
        let largest = OutputKind {
            dtype: Dtype::Bf16,
            hidden: shape.hidden,
            top_k: shape.top_k,
            cached: false,
            weights: true,
        };
        let record = DispatchLayout::record_bytes(&largest, Self::most_destinations(topology, shape));
        self.chunk_bytes.next_multiple_of(ALIGN).max(HEAD_BYTES + record)
    }

    /// Slots of one rank on one side: operations x (N - 1) x window.
    pub fn slots(&self, topology: &Topology) -> usize {
        Channel::ALL.len() * (topology.nodes() - 1) * self.window
    }

    /// The number of the slot of chunk `sequence` from (or to) node `node` among the [`Limits::slots`] of node `own`. Slots
    /// of a stream lie together, streams by node, operations apart.
    pub fn slot(
        &self,
        topology: &Topology,
        channel: Channel,
        (own, node): (usize, usize),
        sequence: u64,
    ) -> usize {
        let rail = node - usize::from(node > own);
        let stream = channel as usize * (topology.nodes() - 1) + rail;
        stream * self.window + (sequence % self.window.max(1) as u64) as usize
    }

    /// Memory of one rank that may have `outgoing` chunks on their way at once:
    ///
    /// * receive: 2 operations x N nodes x window x slot bytes;
    /// * send: outgoing x slot bytes;
    /// * control: 2 sides x 2 generations x N nodes x (header of G ranks and their experts + status), and N lines for words.
    ///
    /// The own node has its part too, which nobody writes to: so offsets are the same on all ranks. It grows with the number
    /// of nodes and not with its square. Nothing for one node.
    pub fn staging_bytes(&self, topology: &Topology, shape: &Shape, outgoing: usize) -> Staging {
        if topology.nodes() == 1 {
            return Staging { receive: 0, send: 0, control: 0 };
        }
        let (nodes, slot) = (topology.nodes() as u64, self.slot_bytes(topology, shape) as u64);
        let local = topology.ranks_per_node();
        let experts = (local * shape.experts.div_ceil(topology.ranks())).min(shape.experts);
        let message = CallHeader::region_bytes(local, experts) + Status::ENCODED;
        Staging {
            receive: Channel::ALL.len() as u64 * nodes * self.window as u64 * slot,
            send: outgoing as u64 * slot,
            control: nodes * (4 * message as u64 + ALIGN as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V3: Shape = Shape { max_tokens: 4096, hidden: 7168, top_k: 8, experts: 256 };

    #[test]
    fn memory_of_sixteen_nodes() {
        let topology = Topology::new(128, 8).unwrap();
        let limits = Limits::default();
        limits.check(&topology, &V3).unwrap();
        let staging = limits.staging_bytes(&topology, &V3, 16);
        // 2 operations x 16 nodes x 8 slots x 131,072 bytes; 16 slots of them to send.
        assert_eq!((staging.receive, staging.send), (33_554_432, 2_097_152));
        // A header: 48 + 4 x (8 ranks + 16 experts) = 144 bytes, in lines 192; a status 64; a line of words.
        assert_eq!(staging.control, 16 * (4 * (192 + 64) + 64));
        assert_eq!(staging.total(), 33_554_432 + 2_097_152 + 17_408);
    }

    #[test]
    fn a_slot_holds_a_record_at_least() {
        let topology = Topology::new(4, 2).unwrap();
        let small = Limits { chunk_bytes: 1, window: 1, small_chunks: true };
        small.check(&topology, &V3).unwrap();
        // Head 64; row 14,336, token and count 8, 2 destinations of 12, 8 ids, 8 weights: 14,432, in lines 14,464.
        assert_eq!(small.slot_bytes(&topology, &V3), 64 + 14_464);
        let one_node = Topology::one_node(8).unwrap();
        assert_eq!(small.staging_bytes(&one_node, &V3, 16).total(), 0);
    }

    #[test]
    fn refusals_name_the_rule() {
        let topology = Topology::new(4, 2).unwrap();
        let refused = |limits: Limits| limits.check(&topology, &V3).unwrap_err();
        let good = Limits::default();
        assert_eq!(
            refused(Limits { chunk_bytes: 131_071, ..good }),
            CoreError::ChunkBytes { bytes: 131_071, least: 131_072, most: 67_108_864 }
        );
        assert!(matches!(
            refused(Limits { chunk_bytes: (64 << 20) + 1, ..good }),
            CoreError::ChunkBytes { .. }
        ));
        for window in [0, 257] {
            assert_eq!(refused(Limits { window, ..good }), CoreError::Window { window, limit: 256 });
        }
        // 2 x 4,095 x 129 = 1,056,510 slots are more than 2^20; with 128 there are 1,048,320.
        let large = Topology::new(4096, 1).unwrap();
        let error = Limits { window: 129, ..good }.check(&large, &V3).unwrap_err();
        assert_eq!(error, CoreError::Slots { nodes: 4096, window: 129, slots: 1_056_510, limit: 1_048_576 });
        assert!(Limits { window: 128, ..good }.check(&large, &V3).is_ok());
    }

    #[test]
    fn every_chunk_that_can_be_in_flight_has_a_slot_of_its_own() {
        let topology = Topology::new(8, 2).unwrap();
        let limits = Limits { window: 3, ..Limits::default() };
        for own in 0..4 {
            let mut seen = vec![false; limits.slots(&topology)];
            for channel in Channel::ALL {
                for node in (0..4).filter(|&node| node != own) {
                    for sequence in 100..103 {
                        let slot = limits.slot(&topology, channel, (own, node), sequence);
                        assert!(!std::mem::replace(&mut seen[slot], true), "slot {slot} twice");
                        assert_eq!(slot, limits.slot(&topology, channel, (own, node), sequence + 3));
                    }
                }
            }
            assert!(seen.into_iter().all(|seen| seen));
        }
    }
}
