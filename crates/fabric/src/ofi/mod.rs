//! libfabric as a [`Transport`]: tcp, shm, efa and verbs by one code, by what a provider says of itself.
//!
//! The library is opened at run time, and only six of its symbols are looked up; everything else goes through the tables of
//! calls of its objects. One program runs over 1.17 and 2.x.
//!
//! **When a write is [`Sent`](crate::Completion::Sent)**: the provider's own default level of completion is taken. Every
//! level says that the memory may be used again, which is all that the word means here; levels that wait for the peer cost
//! a round trip and say nothing more, because whoever is written to counts arrivals itself. So a transport must not be
//! closed before the peers have said that everything arrived.
//!
//! **Death of a peer.** tcp fails the writes to it, as verbs and efa say they do. shm reports nothing: the processes that its
//! addresses name are watched. `udp;ofi_rxd` reports nothing either, and there it is for the deadlines of the caller. A provider that takes no write for [`OpenOptions::unreachable_after`], with none in flight to that peer,
//! has no connection. A peer that only stands still is for the deadlines of the caller.
//!
//! shm of 1.17 keeps spin locks in shared memory: when a process is killed while it holds one, the library's next call on the
//! other side never returns, and nothing outside of it can help. Of 84 peers that were killed while they polled on a busy
//! machine 6 did that; of 498 with 2.5, none. Take 2.x where processes may be killed, and let no thread that must come back
//! be the one that polls.

mod abi;
mod choose;
mod contexts;
mod endpoint;
mod ffi;
mod library;
mod object;
mod offer;
mod peers;
mod queue;
#[cfg(test)]
mod raw_rate;
mod receives;
mod region;
mod shm_files;

use std::time::Duration;

use crate::error::Result;
use crate::transport::Transport;

pub use library::{Library, VARIABLE};
pub use offer::Offer;
pub use shm_files::{Swept, sweep_shm, sweep_shm_in};

/// Which provider to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// The best that reaches other machines: a NIC's own before TCP, a real interface before the loopback.
    #[default]
    Auto,
    /// One by name: an [`Offer::name`], a provider, or the first of its layers (`tcp` stands for `tcp;ofi_rxm` where there is
    /// no other).
    Named(String),
}

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Which provider.
    pub provider: Provider,
    /// Which domain (NIC) of it; the best without.
    pub domain: Option<String>,
    /// Writes that may be in flight; the provider may allow fewer.
    pub queue_depth: usize,
    /// Arrivals that the queue has room for beside the own writes, until the next poll.
    pub arrivals: usize,
    /// Peers expected: the provider makes room for so many addresses. 0 leaves it to the provider.
    pub peers: usize,
    /// Whether GPU memory will be registered.
    pub gpu: bool,
    /// After how long of taking nothing, with nothing in flight, a peer counts as unreachable. Longer than peers may differ
    /// in reaching their first poll: with manual progress a connection is made only while both sides poll.
    pub unreachable_after: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            provider: Provider::Auto,
            domain: None,
            queue_depth: 1024,
            arrivals: 4096,
            peers: 0,
            gpu: false,
            unreachable_after: Duration::from_mins(1),
        }
    }
}

/// Everything that `library` offers for writes with an immediate between reliable endpoints, whether this transport can use
/// it or not ([`Offer::lacks`]).
///
/// # Errors
/// What the library says; nothing found is an empty list.
pub fn list(library: &Library) -> Result<Vec<Offer>> {
    choose::all(library, false)
}

/// What the options name: what [`open_with`] would open.
///
/// # Errors
/// No such provider or domain (with what there is instead), or one that cannot carry the protocol.
pub fn find(library: &Library, options: &OpenOptions) -> Result<Offer> {
    Ok(choose::choose(library, options)?.offer)
}

/// Opens an endpoint of what the options name, with the library that [`Library::open`] finds.
///
/// # Errors
/// No library, no such provider or domain (with what there is instead), one that cannot carry the protocol, or a call that
/// failed.
pub fn open(options: &OpenOptions) -> Result<Box<dyn Transport>> {
    open_with(&Library::open()?, options)
}

/// As [`open`], with a library that is open already.
///
/// # Errors
/// As there.
pub fn open_with(library: &Library, options: &OpenOptions) -> Result<Box<dyn Transport>> {
    let found = choose::choose(library, options)?;
    Ok(Box::new(endpoint::Endpoint::open(library, found, options)?))
}
