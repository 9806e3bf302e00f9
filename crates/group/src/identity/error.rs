//! What can be wrong with a launcher's variables.

use thiserror::Error;

use super::{Launcher, MAX_WORLD};

pub(super) type Outcome<T> = Result<T, IdentityError>;

/// The environment does not say who this process is.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdentityError {
    /// A variable's value does not parse.
    #[error("{name}={value:?} is not usable: wanted {want}")]
    Value {
        /// The variable.
        name: String,
        /// Its value, cut to a printable length.
        value: String,
        /// What was wanted.
        want: &'static str,
    },
    /// A variable is missing where its siblings are set.
    #[error("{present} is set but {missing} is not; {advice}")]
    Partial {
        /// What is there, with its value.
        present: String,
        /// What is missing.
        missing: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// Two sources contradict each other.
    #[error("{first} contradicts {second}; {advice}")]
    Conflict {
        /// One, with its value.
        first: String,
        /// The other.
        second: String,
        /// What to do.
        advice: &'static str,
    },
    /// Rank not below world size.
    #[error(
        "rank {rank} of {world_size} by {launcher}: ranks are numbered from 0 and must be below the world size"
    )]
    RankRange {
        /// Who said so.
        launcher: Launcher,
        /// The rank.
        rank: usize,
        /// The world size.
        world_size: usize,
    },
    /// World size out of range.
    #[error("world size {world_size} by {launcher}: between 1 and {MAX_WORLD} are supported")]
    WorldSize {
        /// Who said so.
        launcher: Launcher,
        /// The world size.
        world_size: usize,
    },
    /// Local rank, local size or node out of range.
    #[error(
        "{detail} by {launcher}: the local rank must be below the local size, the local size at most the \
         world size, and the node index below the world size"
    )]
    Local {
        /// Who said so.
        launcher: Launcher,
        /// What contradicts what.
        detail: String,
    },
    /// Nothing tells where rank 0 is.
    #[error("{launcher} does not tell where rank 0 runs; {hint}")]
    NoRoot {
        /// Who did not.
        launcher: Launcher,
        /// What to do.
        hint: &'static str,
    },
}
