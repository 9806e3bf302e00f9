//! What can go wrong in a group.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::identity::IdentityError;

/// Result of this crate.
pub type Result<T, E = GroupError> = std::result::Result<T, E>;

/// A rank, with what is known of where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its rank.
    pub rank: usize,
    /// Its host, if known.
    pub host: Option<String>,
    /// Its process id on that host, if known.
    pub pid: Option<u32>,
}

impl Peer {
    /// A rank of which nothing else is known.
    pub fn unknown(rank: usize) -> Self {
        Self { rank, host: None, pid: None }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        match (&self.host, self.pid) {
            (Some(host), Some(pid)) => write!(f, " (host {host}, pid {pid})"),
            (Some(host), None) => write!(f, " (host {host})"),
            (None, Some(pid)) => write!(f, " (pid {pid})"),
            (None, None) => Ok(()),
        }
    }
}

/// A rank and the collective call it was in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InCall {
    /// The rank.
    pub peer: Peer,
    /// The call, as in `barrier "start"`.
    pub call: String,
}

/// What went wrong, where, and what to do next.
///
/// The first failure of a group is kept: every later call on it returns the same error.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupError {
    /// The environment does not say who this process is.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen on {addr}: {reason}; set EXPERTRAIL_PORT (or the port in EXPERTRAIL_ROOT) \
         to a free port, the same on every rank"
    )]
    Bind {
        /// The address tried.
        addr: String,
        /// What the system said.
        reason: String,
    },
    /// Rank 0 was not reached.
    #[error(
        "rank {rank} could not reach rank 0 at {addr} within {} ({last}); check that rank 0 was started, \
         that the name resolves here, and that no firewall closes that port (EXPERTRAIL_ROOT sets both)",
        secs(.waited)
    )]
    Unreachable {
        /// This rank.
        rank: usize,
        /// Where rank 0 was looked for.
        addr: String,
        /// How long.
        waited: Duration,
        /// How the last attempt ended.
        last: String,
    },
    /// Rank 0 refused this process.
    #[error("rank {rank} was refused by rank 0 at {addr}: {reason}")]
    Refused {
        /// This rank.
        rank: usize,
        /// Rank 0's address.
        addr: String,
        /// Why, in rank 0's words.
        reason: String,
    },
    /// Something else listens on rank 0's port.
    #[error(
        "rank {rank} found something else than an Expertrail rank 0 at {addr} (it answered {found}); set \
         EXPERTRAIL_PORT to a free port, the same on every rank"
    )]
    NotRoot {
        /// This rank.
        rank: usize,
        /// The address.
        addr: String,
        /// The first bytes of the answer.
        found: String,
    },
    /// Ranks did not join in time.
    #[error(
        "{} did not join within {}; check that they were started and can reach rank 0{}",
        name_ranks(.ranks), secs(.waited), refusals(.refused)
    )]
    Missing {
        /// The missing ranks, with their expected hosts where the launcher told.
        ranks: Vec<Peer>,
        /// How long they were waited for.
        waited: Duration,
        /// Connections refused meanwhile, each with its reason.
        refused: Vec<String>,
    },
    /// The ranks' claims about nodes and local ranks contradict each other.
    #[error("the ranks do not agree on who runs where: {reason}")]
    Layout {
        /// Which claim contradicts which.
        reason: String,
    },
    /// A rank ended without leaving.
    #[error("{peer} died, was cut off, or ended without leaving the group, {}; see its own output for the cause", during(.phase))]
    Died {
        /// The dead rank.
        peer: Peer,
        /// The call it was missed in; empty between calls.
        phase: String,
    },
    /// A rank left the group on purpose and cannot take part.
    #[error(
        "{peer} left the group before {phase}: it finished earlier than the others; every rank must make \
         the same calls"
    )]
    Left {
        /// The rank that left.
        peer: Peer,
        /// The call it is missing from.
        phase: String,
    },
    /// A rank said that it failed.
    #[error("{peer} failed {}: {message}", during(.phase))]
    Failed {
        /// The rank.
        peer: Peer,
        /// The call in which this rank heard of it; empty between calls.
        phase: String,
        /// What it said.
        message: String,
    },
    /// Ranks did not enter a call in time.
    #[error(
        "{call}: {} did not arrive within {}; they may be slow, stuck, or in another part of the program",
        name_ranks(.missing), secs(.waited)
    )]
    Deadline {
        /// The call.
        call: String,
        /// The deadline that ran out.
        waited: Duration,
        /// Who had not arrived.
        missing: Vec<Peer>,
    },
    /// Rank 0's process is reachable but silent.
    #[error(
        "{call}: {peer} has not answered for {}; its process or host may be stopped, or the network between \
         cut",
        secs(.waited)
    )]
    RootSilent {
        /// Rank 0.
        peer: Peer,
        /// The call.
        call: String,
        /// How long nothing came.
        waited: Duration,
    },
    /// Two ranks are in different calls.
    #[error(
        "{} is in {}, {} in {}: every rank must make the same calls in the same order",
        .first.peer, .first.call, .second.peer, .second.call
    )]
    Mismatch {
        /// One of them.
        first: Box<InCall>,
        /// The other.
        second: Box<InCall>,
    },
    /// The wait was cancelled, here or by another rank.
    #[error("cancelled by {peer} {}", during(.phase))]
    Cancelled {
        /// Whose token was set.
        peer: Peer,
        /// The call; empty between calls.
        phase: String,
    },
    /// More bytes than these calls are for.
    #[error("{call}: {bytes} bytes, at most {limit} are allowed; this channel is for set-up, not for data")]
    TooLarge {
        /// The call.
        call: String,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A call was made with arguments that make no sense.
    #[error("{0}")]
    Argument(String),
    /// The operating system refused something.
    #[error("{what}: {reason}")]
    System {
        /// What was attempted.
        what: String,
        /// What the system said.
        reason: String,
    },
    /// A peer sent bytes that mean nothing.
    #[error("{peer} sent {what}; all ranks must run the same version of Expertrail")]
    Protocol {
        /// Who.
        peer: Peer,
        /// What was wrong with it.
        what: String,
    },
}

impl GroupError {
    /// The ranks to blame, in ascending order.
    pub fn culprits(&self) -> Vec<usize> {
        let mut ranks: Vec<usize> = match self {
            Self::Missing { ranks: peers, .. } | Self::Deadline { missing: peers, .. } => {
                peers.iter().map(|peer| peer.rank).collect()
            }
            Self::Died { peer, .. }
            | Self::Left { peer, .. }
            | Self::Failed { peer, .. }
            | Self::Cancelled { peer, .. }
            | Self::RootSilent { peer, .. }
            | Self::Protocol { peer, .. } => vec![peer.rank],
            Self::Mismatch { first, second } => vec![first.peer.rank, second.peer.rank],
            Self::Bind { .. } | Self::Unreachable { .. } => vec![0],
            _ => Vec::new(),
        };
        ranks.sort_unstable();
        ranks
    }

    /// The exit code a program that ends on this error should have: 2 usage, 124 deadline, 130
    /// interrupted, 1 anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Identity(_) | Self::Argument(_) | Self::TooLarge { .. } => 2,
            Self::Deadline { .. }
            | Self::RootSilent { .. }
            | Self::Missing { .. }
            | Self::Unreachable { .. } => 124,
            Self::Cancelled { .. } => 130,
            _ => 1,
        }
    }

    pub(crate) fn system(what: impl Into<String>, error: impl fmt::Display) -> Self {
        Self::System { what: what.into(), reason: error.to_string() }
    }
}

/// `1.5 s`, `60 s`.
fn secs(duration: &Duration) -> String {
    let millis = duration.as_millis();
    if millis.is_multiple_of(1000) {
        format!("{} s", millis / 1000)
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

fn during(phase: &str) -> String {
    if phase.is_empty() { "between calls".to_owned() } else { format!("during {phase}") }
}

fn refusals(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!("; refused meanwhile: {}", refused.join("; ")) }
}

/// `rank 5 (host n2)`, `ranks [5, 6] (host n2), rank 9`: one group for each host, in order of rank.
fn name_ranks(peers: &[Peer]) -> String {
    let mut groups: Vec<(Option<&str>, Vec<usize>)> = Vec::new();
    for peer in peers {
        let host = peer.host.as_deref();
        match groups.iter_mut().find(|(known, _)| *known == host) {
            Some((_, ranks)) => ranks.push(peer.rank),
            None => groups.push((host, vec![peer.rank])),
        }
    }
    let name = |(host, ranks): &(Option<&str>, Vec<usize>)| {
        let place = host.map(|host| format!(" (host {host})")).unwrap_or_default();
        match ranks.as_slice() {
            [rank] => format!("rank {rank}{place}"),
            _ => format!("ranks {ranks:?}{place}"),
        }
    };
    if groups.is_empty() {
        "some ranks".to_owned()
    } else {
        groups.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(rank: usize, host: Option<&str>) -> Peer {
        Peer { rank, host: host.map(str::to_owned), pid: None }
    }

    #[test]
    fn missing_ranks_are_grouped_by_host() {
        let error = GroupError::Missing {
            ranks: vec![peer(5, Some("n2")), peer(6, Some("n2")), peer(9, None)],
            waited: Duration::from_mins(1),
            refused: vec![],
        };
        assert_eq!(
            error.to_string(),
            "ranks [5, 6] (host n2), rank 9 did not join within 60 s; check that they were started and can \
             reach rank 0"
        );
        assert_eq!(error.exit_code(), 124);
        assert_eq!(error.culprits(), [5, 6, 9]);
    }

    #[test]
    fn a_dead_rank_is_named_with_host_pid_and_call() {
        let error = GroupError::Died {
            peer: Peer { rank: 3, host: Some("n1".into()), pid: Some(4711) },
            phase: "barrier \"start\"".into(),
        };
        assert!(error.to_string().starts_with("rank 3 (host n1, pid 4711) died"));
        assert!(error.to_string().contains("during barrier \"start\""));
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn errors_stay_small_enough_to_return() {
        assert!(size_of::<GroupError>() <= 128, "{}", size_of::<GroupError>());
    }
}
