//! The trait that every transport implements, and the words of its calls.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::wake::Wake;

/// How long a transport sleeps that cannot be woken: what it costs at most that a command came meanwhile.
const DEAF: Duration = Duration::from_micros(50);

/// Where registered memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this process's host memory.
    Host,
    /// On a GPU of this process, by the driver's device ordinal. `dmabuf` is the descriptor that stands for it, if the
    /// driver gave one.
    Cuda {
        /// Device ordinal.
        device: u32,
        /// A dma-buf descriptor and the offset of the memory in it.
        dmabuf: Option<(i32, u64)>,
    },
}

/// Memory that a transport may read from and write to at any time while it holds a reference.
///
/// # Safety
/// `base()..base() + bytes()` must stay mapped, readable and writable for as long as the value lives, and nobody may hold a
/// Rust reference to bytes that a peer writes.
pub unsafe trait Memory: Debug + Send + Sync {
    /// First byte.
    fn base(&self) -> *mut u8;
    /// Length.
    fn bytes(&self) -> usize;
    /// Where it lies.
    fn place(&self) -> Place {
        Place::Host
    }
}

/// A registered region of this endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(pub u32);

/// A connected peer: its place in the list given to [`Transport::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub u32);

/// What a peer must know to write into a region. Travels as [`RemoteRegion::encode`] writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The provider's key.
    pub key: u64,
    /// What is added to an offset: the region's address where the provider addresses virtually, else 0.
    pub base: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl RemoteRegion {
    /// Bytes of its encoding.
    pub const ENCODED: usize = 24;

    /// Little-endian key, base, bytes.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut out = [0; Self::ENCODED];
        for (part, value) in out.chunks_exact_mut(8).zip([self.key, self.base, self.bytes]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// Reads what [`RemoteRegion::encode`] wrote; `None` when the length is another.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::ENCODED] = bytes.try_into().ok()?;
        let mut words = bytes.chunks_exact(8).map(|part| {
            let mut word = [0; 8];
            word.copy_from_slice(part);
            u64::from_le_bytes(word)
        });
        Some(Self { key: words.next()?, base: words.next()?, bytes: words.next()? })
    }
}

/// How a provider names a place in remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// By offset in the region.
    Offset,
    /// By the peer's virtual address.
    Virtual,
}

/// What a transport is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Provider: `tcp;ofi_rxm`, `efa-direct`, `sim`.
    pub provider: String,
    /// Domain (NIC): `eth0`, `rdmap0s6`, `mlx5_0`.
    pub domain: String,
    /// The library with its version: `libfabric 1.17`.
    pub library: String,
    /// How it addresses remote memory.
    pub addressing: Addressing,
    /// The largest write, in bytes.
    pub max_message: u64,
    /// Writes that may be in flight before [`Posted::Busy`] is likely.
    pub queue_depth: usize,
    /// Whether GPU memory can be registered.
    pub gpu_memory: bool,
    /// Whether the transport moves nothing unless it is polled.
    pub manual_progress: bool,
    /// Speed of the NIC in bits a second, if the provider says.
    pub link_bits_per_second: Option<u64>,
}

/// One write: `bytes` bytes at `local_offset` of the own region go to `remote_offset` of the peer's, and the peer learns
/// `immediate` once they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// To whom.
    pub peer: PeerId,
    /// From which region.
    pub local: RegionId,
    /// Where in it.
    pub local_offset: u64,
    /// Into which region of the peer.
    pub remote: RemoteRegion,
    /// Where in it.
    pub remote_offset: u64,
    /// How many bytes; at least 1, because not every provider delivers an immediate with nothing.
    pub bytes: u64,
    /// What the peer learns. All control goes here: the narrowest provider carries 32 bits (EFA).
    pub immediate: u32,
    /// Comes back with [`Completion::Sent`].
    pub context: u64,
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The transport has it; the bytes must stay as they are until [`Completion::Sent`].
    Yes,
    /// The queue is full: nothing was posted. Poll, then try again.
    Busy,
}

/// What a poll found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A write of this endpoint has left its memory, which may be used again.
    Sent {
        /// As given with the write.
        context: u64,
    },
    /// A peer's write is in this endpoint's memory, whole.
    Arrived {
        /// As given with the write.
        immediate: u32,
    },
    /// A write of this endpoint failed.
    Failed {
        /// As given with the write.
        context: u64,
        /// What happened.
        error: crate::FabricError,
    },
}

/// One endpoint: of one NIC (domain), used by one thread at a time.
///
/// No order is promised between writes, nor between a write and its immediate's neighbours; every immediate comes exactly
/// once, unless the peer or the link fails.
pub trait Transport: Debug + Send {
    /// What it is and can do.
    fn capabilities(&self) -> &Capabilities;

    /// Registers memory for writes from and to it. The transport holds the reference until it is closed.
    ///
    /// # Errors
    /// When the provider refuses; the message has its reason and the memory lock limit where that may be it.
    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<(RegionId, RemoteRegion)>;

    /// This endpoint's address, for the peers' [`connect`](Transport::connect).
    ///
    /// # Errors
    /// When the provider does not give it.
    fn address(&mut self) -> Result<Vec<u8>>;

    /// Makes peers known: `addresses[i]` is of `PeerId(i)`. Called once, on all sides before anyone writes (an EFA endpoint
    /// drops what comes from whom it does not know).
    ///
    /// # Errors
    /// [`FabricError::Exchange`](crate::FabricError::Exchange) for an address that the provider does not take.
    fn connect(&mut self, addresses: &[Vec<u8>]) -> Result<()>;

    /// Posts a write.
    ///
    /// # Errors
    /// [`FabricError::Argument`](crate::FabricError::Argument) for one outside of its regions, else what the provider says.
    fn write(&mut self, write: &Write) -> Result<Posted>;

    /// Makes progress and adds what has completed to `out`, at most `out`'s spare capacity (at least one); gives how many.
    ///
    /// # Errors
    /// When the queue itself is broken. A failed write is a [`Completion::Failed`].
    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize>;

    /// Sleeps until something may have completed, or `most` has passed. May return at once for no reason; a transport that
    /// cannot sleep (manual progress without a descriptor) does.
    ///
    /// # Errors
    /// When the queue is broken.
    fn wait(&mut self, most: Duration) -> Result<()>;

    /// As [`wait`](Transport::wait), and ends early when `wake` rings too. The caller has announced itself there. One that does
    /// not know of `wake` sleeps for a short while only.
    ///
    /// # Errors
    /// As [`wait`](Transport::wait).
    fn wait_or(&mut self, most: Duration, wake: &Arc<Wake>) -> Result<()> {
        let _ = wake;
        self.wait(most.min(DEAF))
    }

    /// Makes what has arrived visible to the GPU before a flag tells it so. Nothing to do for host memory.
    ///
    /// # Errors
    /// What the provider or driver says.
    fn make_visible_to_gpu(&mut self) -> Result<()> {
        Ok(())
    }

    /// Closes everything in order. Dropping it does the same and says nothing.
    ///
    /// # Errors
    /// The first thing that could not be closed; the rest is closed all the same.
    fn close(self: Box<Self>) -> Result<()>;
}
