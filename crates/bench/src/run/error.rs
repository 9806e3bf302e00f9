//! What stops a run.

use expertrail::{CoreError, Error, GroupError, HostError};
use thiserror::Error;

use crate::preset::PresetError;
use crate::routing_file::RoutingFileError;
use crate::stats::StatsError;
use crate::workload::WorkloadError;

/// Anything that stops a run.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The library.
    #[error(transparent)]
    Library(#[from] Error),
    /// The settings.
    #[error(transparent)]
    Preset(#[from] PresetError),
    /// The drawn workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A routing file.
    #[error(transparent)]
    RoutingFile(#[from] RoutingFileError),
    /// The samples.
    #[error(transparent)]
    Stats(#[from] StatsError),
    /// A rank's report cannot be read.
    #[error("the report of rank {rank} cannot be read ({reason}): all ranks must run the same program")]
    Report {
        /// The rank.
        rank: usize,
        /// Why.
        reason: String,
    },
}

impl From<CoreError> for BenchError {
    fn from(error: CoreError) -> Self {
        Self::Library(error.into())
    }
}

impl From<GroupError> for BenchError {
    fn from(error: GroupError) -> Self {
        Self::Library(error.into())
    }
}

impl From<HostError> for BenchError {
    fn from(error: HostError) -> Self {
        Self::Library(error.into())
    }
}

impl BenchError {
    /// The process exit code of DESIGN section 6.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Library(error) => error.exit_code(),
            Self::Preset(_) | Self::Workload(_) | Self::RoutingFile(_) => 2,
            Self::Stats(_) | Self::Report { .. } => 1,
        }
    }
}
