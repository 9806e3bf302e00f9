//! Transports between nodes: one small trait ([`Transport`]), and what stands behind it.
//!
//! A transport writes bytes of a registered region into a registered region of a peer and delivers a 32-bit immediate
//! with them. Nothing else is promised: writes overtake each other, completions come in any order, and a write that was
//! posted earlier may arrive later. Whoever builds on it counts arrivals ([`expertrail_core::hop`]) and never infers one
//! from another.

/// Where the command ring takes its atomics and its waiting from; its model takes loom's.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
    pub(crate) use std::thread::yield_now;

    /// About a microsecond between two looks at the consumer's count. Looking at it without rest takes its cache line away
    /// from the consumer with every command, and then gives room for one command at a time.
    pub(crate) fn pause() {
        for _ in 0..64 {
            std::hint::spin_loop();
        }
    }
}
pub mod error;
pub mod measure;
pub mod ofi;
pub mod rail;
pub mod ring;
pub mod ring_memory;
pub mod sim;
pub mod transport;
pub mod wake;

pub use error::{FabricError, Result};
pub use ring_memory::RingMemory;
pub use transport::{
    Addressing, Capabilities, Completion, Memory, PeerId, Place, Posted, RegionId, RemoteRegion, Transport,
    Write,
};
pub use wake::Wake;
