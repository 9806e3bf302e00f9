//! What stops a run.

use expertrail::fabric::FabricError;
use expertrail::{CoreError, Error, GroupError, HostError};
use thiserror::Error;

use crate::preset::PresetError;
use crate::routing_file::RoutingFileError;
use crate::run::Gpus;
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
    /// Ranks without a GPU.
    #[error(
        "{ranks} ranks need as many GPUs on this host, one each; found: {found}; start fewer ranks (--ranks), look at \
         CUDA_VISIBLE_DEVICES, or choose --backend host"
    )]
    FewGpus {
        /// Ranks that want one.
        ranks: usize,
        /// What there is.
        found: Gpus,
    },
    /// More SMs than there are.
    #[error("--sms {asked}: this GPU has {there} SMs; give at most as many, and leave some to the experts")]
    Sms {
        /// What was asked for.
        asked: u32,
        /// What the device has.
        there: u32,
    },
    /// Groups of one host that would share its GPUs.
    #[error(
        "--scope node with several declared nodes: on GPUs each group takes the host's first ones, so the groups would \
         share them; use --scope world, or --nodes 1"
    )]
    NodesOfOneHost,
    /// The checker on the GPU is not to be believed.
    #[error(
        "the GPU's check of rows does not agree with the CPU's: {reason}; nothing was measured, since nothing could be \
         verified: the kernels (crates/cuda/kernels/bench.cu) or the GPU are at fault"
    )]
    Checker {
        /// What it got wrong.
        reason: String,
    },
    /// A rank's device did not come to where all start together.
    #[error(
        "rank {rank}'s GPU did not come within the deadline to where all ranks start a measurement together; look at its \
         process, or give a longer --deadline"
    )]
    Late {
        /// The rank.
        rank: usize,
    },
    /// This rank's endpoint.
    #[error("rank {rank}: {error}")]
    Fabric {
        /// The rank.
        rank: usize,
        /// What went wrong.
        error: FabricError,
    },
    /// Another rank's endpoint.
    #[error("rank {peer} cannot use the network, so this one cannot either: {reason}")]
    PeerFabric {
        /// The rank at fault.
        peer: usize,
        /// Its own error.
        reason: String,
    },
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
            Self::Preset(_)
            | Self::Workload(_)
            | Self::RoutingFile(_)
            | Self::Sms { .. }
            | Self::NodesOfOneHost
            | Self::Fabric { error: FabricError::Argument { .. }, .. } => 2,
            Self::FewGpus { .. } | Self::Fabric { .. } => 4,
            Self::Late { .. } => 124,
            Self::Stats(_) | Self::Report { .. } | Self::PeerFabric { .. } | Self::Checker { .. } => 1,
        }
    }
}
