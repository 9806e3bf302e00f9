//! Errors of the library.

use expertrail_core::CoreError;
use expertrail_group::GroupError;
use expertrail_host::HostError;
use thiserror::Error;

/// Result of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// Anything that can go wrong. Messages say what happened, at which rank, and what to do next.
#[derive(Clone, Debug, Error)]
pub enum Error {
    /// An argument is wrong.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The process group failed.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The CPU backend failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The backend asked for is not part of this build.
    #[error(
        "the {backend} backend is not built yet; use `host` (or `auto`), which moves the same rows on CPUs"
    )]
    NotBuilt {
        /// Which backend.
        backend: &'static str,
    },
}

impl Error {
    /// The process exit code of this error: 1 for a dead peer, 2 for misuse, 3 for what is not built, 4 for missing access, 124 for
    /// a deadline, 130 when cancelled.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Core(_) => 2,
            Self::Group(error) => error.exit_code(),
            Self::Host(error) => error.exit_code(),
            Self::NotBuilt { .. } => 3,
        }
    }
}
