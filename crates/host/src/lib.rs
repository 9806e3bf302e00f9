//! The CPU backend: ranks are processes (or threads) of one machine that share memory.
//!
//! The same protocol as on GPUs inside an NVLink domain: one count exchange, then every row is written once, to its
//! final place at the receiver; combine reads rows where they lie, or through a small window. Nothing has a name in
//! the file system, so nothing is left behind when a rank or the launcher is killed.

/// Where the doorbell takes its atomics from; its model takes loom's.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
}
mod build;
mod call;
mod combine;
mod communicator;
mod control;
pub mod copy;
mod dispatch;
mod error;
mod flag;
mod futex;
mod memory;
mod output;
mod pool;
mod probe;
mod rail;
mod reduce;
mod segment;
pub mod simd;
mod staging;
mod world;

pub use build::{HostConfig, MOST_LIVE_OUTPUTS};
pub use call::{Combine, CombinePhases, Dispatch, DispatchPhases, Payload, Route};
pub use combine::{Combined, MAX_BIASES};
pub use communicator::{HostCommunicator, Stats};
pub use copy::Stores;
pub use error::{Cause, Failure, HostError, Phase, Result};
pub use memory::available_memory;
pub use output::{Received, Rows};
pub use probe::CopyProbe;
pub use rail::{Crossing, RailConfig, RailReport};
pub use simd::Simd;
