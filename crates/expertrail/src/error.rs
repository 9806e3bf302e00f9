//! Errors of the library.

use expertrail_core::CoreError;
use expertrail_cuda::CudaError;
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
    /// The GPU backend failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// `build()` was asked for the GPU backend, whose calls take device memory.
    #[error(
        "backend cuda asked of build(), whose communicator takes slices of host memory: those cannot be dispatched on \
         GPUs; call build_cuda() for the communicator that takes device memory, or choose the host backend"
    )]
    HostSlices,
    /// `build_cuda()` was asked for another backend.
    #[error(
        "backend host asked of build_cuda(), which builds the cuda backend; call build(), or choose cuda (or auto)"
    )]
    DeviceSlices,
}

impl Error {
    /// The process exit code of this error: 1 for a dead peer, 2 for misuse, 4 for missing access, 124 for
    /// a deadline, 130 when cancelled.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Core(_) | Self::HostSlices | Self::DeviceSlices => 2,
            Self::Group(error) => error.exit_code(),
            Self::Host(error) => error.exit_code(),
            Self::Cuda(error) => error.exit_code(),
        }
    }
}
