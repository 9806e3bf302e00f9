//! What can go wrong between ranks that share memory.

use expertrail_core::CoreError;
pub use expertrail_core::failure::{Cause, Failure, Phase};
use expertrail_fabric::FabricError;
use expertrail_group::GroupError;
use thiserror::Error;

/// Result of the CPU backend.
pub type Result<T> = std::result::Result<T, HostError>;

/// An error of the CPU backend.
#[derive(Clone, Debug, Error)]
pub enum HostError {
    /// An argument is wrong; nothing moved and the communicator goes on.
    #[error("rank {rank}: {error}")]
    Misuse {
        /// This rank.
        rank: usize,
        /// What is wrong.
        error: CoreError,
    },
    /// Another rank refused its part of this call; nothing moved and the communicator goes on.
    #[error(
        "rank {peer} refused call {epoch}, so rank {rank} gave it up too; rank {peer}'s own error says why"
    )]
    Refused {
        /// This rank.
        rank: usize,
        /// The rank that refused.
        peer: usize,
        /// The call's number.
        epoch: u64,
    },
    /// Ranks made different calls; nothing moved and the communicator goes on.
    #[error(
        "call {epoch} differs between ranks: rank {a} called {a_call}, rank {b} called {b_call}; every rank must make the same calls in the same order"
    )]
    Mismatch {
        /// The call's number.
        epoch: u64,
        /// One rank.
        a: usize,
        /// What it called.
        a_call: String,
        /// Another rank.
        b: usize,
        /// What that called.
        b_call: String,
    },
    /// A worst-case output is too small; nothing moved and the communicator goes on.
    #[error(
        "rank {rank} gave room for {given} rows but receives {needed}; give worst_case_rows of at least {needed}"
    )]
    TooSmall {
        /// The rank whose output is too small.
        rank: usize,
        /// Rows it receives.
        needed: usize,
        /// Rows it has room for.
        given: usize,
    },
    /// The communicator has failed; every later call gives this again.
    #[error("rank {rank}: {failure}{way}")]
    Failed {
        /// This rank.
        rank: usize,
        /// The first failure.
        failure: Failure,
        /// Where the culprit is and over which rail it is reached, as a half sentence; empty on the same node.
        way: String,
    },
    /// A transport between nodes could not be opened or connected.
    #[error("rank {rank}: {error}")]
    Network {
        /// This rank.
        rank: usize,
        /// What went wrong.
        error: FabricError,
    },
    /// Ranks built communicators of different shapes.
    #[error(
        "ranks disagree about {what}: rank {a} has {a_value}, rank {b} has {b_value}; every rank must build with the same settings"
    )]
    Disagree {
        /// Which setting.
        what: &'static str,
        /// One rank.
        a: usize,
        /// Its value.
        a_value: String,
        /// Another rank.
        b: usize,
        /// Its value.
        b_value: String,
    },
    /// Ranks are on different machines.
    #[error(
        "ranks {a} (host {a_host}) and {b} (host {b_host}) do not share memory: the CPU backend joins ranks of one machine; use `--scope node`, or one machine"
    )]
    NotOneHost {
        /// One rank.
        a: usize,
        /// Its host.
        a_host: String,
        /// Another rank.
        b: usize,
        /// Its host.
        b_host: String,
    },
    /// A peer's segment could not be opened.
    #[error(
        "rank {rank} cannot open the memory of rank {peer} (process {pid}) through {path}: {reason}; ranks must run as one user and see each other's processes (one PID namespace)"
    )]
    Segment {
        /// This rank.
        rank: usize,
        /// The peer.
        peer: usize,
        /// Its process.
        pid: u32,
        /// Where it was looked for.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// Another rank could not build.
    #[error("rank {rank} cannot build because rank {peer} cannot: {reason}")]
    PeerBuild {
        /// This rank.
        rank: usize,
        /// The rank at fault.
        peer: usize,
        /// Its own error.
        reason: String,
    },
    /// There is not enough memory for the segments.
    #[error(
        "shared memory too small: {ranks} ranks need about {needed} each, {total} in all on this host, but {limit} are available ({source_of_limit}); use fewer ranks, tokens or a smaller hidden size"
    )]
    SharedMemory {
        /// Ranks on this host.
        ranks: usize,
        /// Bytes for each, as text.
        needed: String,
        /// Bytes for all, as text.
        total: String,
        /// Bytes there are, as text.
        limit: String,
        /// Where the limit was read.
        source_of_limit: String,
    },
    /// There is not enough memory for the chunks that come from other nodes.
    #[error(
        "too little memory to join {nodes} nodes: the rails of {ranks} ranks need about {needed} each, {total} in all on this host, but {limit} are available ({source_of_limit}); use a smaller window or smaller chunks"
    )]
    RailMemory {
        /// Nodes of the job.
        nodes: usize,
        /// Ranks on this host.
        ranks: usize,
        /// Bytes for each, as text.
        needed: String,
        /// Bytes for all, as text.
        total: String,
        /// Bytes there are, as text.
        limit: String,
        /// Where the limit was read.
        source_of_limit: String,
    },
    /// One row for every peer does not fit the combine staging.
    #[error(
        "combine staging of 32 MiB has no room for one row of {row_bytes} bytes from each of {ranks} ranks; use a smaller hidden size or fewer ranks"
    )]
    Staging {
        /// Bytes of a staged row.
        row_bytes: usize,
        /// Ranks.
        ranks: usize,
    },
    /// An environment variable or setting has a value that cannot be used.
    #[error("{name}={value}: wanted {wanted}")]
    Setting {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: String,
    },
    /// A system call failed.
    #[error("rank {rank}: {what} failed: {reason}")]
    System {
        /// This rank.
        rank: usize,
        /// Which call, on what.
        what: String,
        /// What the system said.
        reason: String,
    },
    /// The process group failed while the communicator was built.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl HostError {
    /// The process exit code of DESIGN section 6: 2 for misuse, 124 for a deadline, 130 when cancelled, 4 where
    /// the system denies access, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Misuse { .. }
            | Self::Mismatch { .. }
            | Self::TooSmall { .. }
            | Self::Disagree { .. }
            | Self::NotOneHost { .. }
            | Self::SharedMemory { .. }
            | Self::RailMemory { .. }
            | Self::Staging { .. }
            | Self::Setting { .. }
            | Self::Network { error: FabricError::Argument { .. }, .. } => 2,
            Self::Segment { .. } | Self::System { .. } | Self::Network { .. } => 4,
            Self::Refused { .. } | Self::PeerBuild { .. } => 1,
            Self::Failed { failure, .. } => match failure.cause {
                Cause::Died | Cause::Left | Cause::Protocol | Cause::Network | Cause::Repeated => 1,
                Cause::Deadline => 124,
                Cause::Cancelled => 130,
            },
            Self::Group(error) => error.exit_code(),
        }
    }
}

/// Bytes as `12.5 MiB`.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.1} {}", units[unit]) }
}
