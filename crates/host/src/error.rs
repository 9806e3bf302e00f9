//! What can go wrong between ranks that share memory.

use std::fmt;

use expertrail_core::CoreError;
use expertrail_group::GroupError;
use thiserror::Error;

/// Result of the CPU backend.
pub type Result<T> = std::result::Result<T, HostError>;

/// The step of a call, for messages and poison records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// Between calls.
    Idle = 0,
    /// Counts and bases of a dispatch.
    DispatchNotify = 1,
    /// Rows of a dispatch.
    DispatchData = 2,
    /// Bases of a combine.
    CombineNotify = 3,
    /// Rows of a combine that pass through staging.
    CombineStaging = 4,
    /// The end of a combine, when every rank has read its rows.
    CombineDone = 5,
    /// A barrier of the communicator.
    Barrier = 6,
}

impl Phase {
    pub(crate) fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::DispatchNotify,
            2 => Self::DispatchData,
            3 => Self::CombineNotify,
            4 => Self::CombineStaging,
            5 => Self::CombineDone,
            6 => Self::Barrier,
            _ => Self::Idle,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "between calls",
            Self::DispatchNotify => "dispatch: count exchange",
            Self::DispatchData => "dispatch: rows",
            Self::CombineNotify => "combine: start",
            Self::CombineStaging => "combine: staged rows",
            Self::CombineDone => "combine: end",
            Self::Barrier => "barrier",
        })
    }
}

/// Why a communicator can no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// The culprit's process ended without closing its communicator.
    Died = 1,
    /// The culprit closed its communicator while others still waited for it.
    Left = 2,
    /// The culprit was not there when the deadline passed.
    Deadline = 3,
    /// The wait was cancelled from outside (Ctrl-C).
    Cancelled = 4,
    /// The culprit announced memory that it does not have.
    Protocol = 5,
}

/// The first failure that ended a communicator: the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What happened.
    pub cause: Cause,
    /// The rank at fault.
    pub culprit: usize,
    /// The rank that found it.
    pub reporter: usize,
    /// What the reporter was doing.
    pub phase: Phase,
    /// The call's number at the reporter.
    pub epoch: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, culprit, reporter, phase, epoch } = self;
        match cause {
            Cause::Died => write!(
                f,
                "rank {culprit} died (found by rank {reporter} in {phase}, call {epoch}); look at rank \
                 {culprit}'s own output for the reason, then build a new communicator without it"
            ),
            Cause::Left => write!(
                f,
                "rank {culprit} closed its communicator while rank {reporter} waited for it in {phase}, call \
                 {epoch}; every rank must make the same calls"
            ),
            Cause::Deadline => write!(
                f,
                "rank {culprit} did not arrive before rank {reporter}'s deadline in {phase}, call {epoch}; \
                 look at what rank {culprit} is doing, or set a longer deadline"
            ),
            Cause::Protocol => write!(
                f,
                "rank {culprit} announced memory outside of its segment (found by rank {reporter} in {phase}, \
                 call {epoch}); the ranks must run the same program"
            ),
            Cause::Cancelled => write!(f, "cancelled at rank {reporter} in {phase}, call {epoch}"),
        }
    }
}

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
    #[error("rank {rank}: {failure}")]
    Failed {
        /// This rank.
        rank: usize,
        /// The first failure.
        failure: Failure,
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
            | Self::Staging { .. }
            | Self::Setting { .. } => 2,
            Self::Segment { .. } | Self::System { .. } => 4,
            Self::Refused { .. } | Self::PeerBuild { .. } => 1,
            Self::Failed { failure, .. } => match failure.cause {
                Cause::Died | Cause::Left | Cause::Protocol => 1,
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
