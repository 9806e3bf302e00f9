//! What can go wrong between this process and CUDA.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::arch::Arch;
use crate::dynlib::Tried;
use crate::version::Version;

/// Result of the GPU backend.
pub type Result<T> = std::result::Result<T, CudaError>;

/// Why a library cannot be used.
#[derive(Clone, Debug, Error)]
pub enum LoadError {
    /// The library is nowhere.
    #[error("{library} not found; looked at {}; {install}", places(.tried))]
    Missing {
        /// What was looked for.
        library: String,
        /// Where, and what the loader said at each place.
        tried: Vec<Tried>,
        /// What to install or set.
        install: String,
    },
    /// The library lacks an entry point.
    #[error("{} has no symbol {symbol}, which is there since {since}: {reason}; {install}", .path.display())]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The entry point.
        symbol: &'static str,
        /// The version that has it, as text.
        since: &'static str,
        /// What the loader said.
        reason: String,
        /// What to install.
        install: String,
    },
    /// The library is older than this program can use.
    #[error("{} is of version {found}, but {needed} or newer is needed; {install}", .path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The oldest version that serves.
        needed: Version,
        /// What to install.
        install: String,
    },
    /// The driver sees no device.
    #[error(
        "no CUDA device: driver {} (CUDA {version}) found none{visible}; {}", .path.display(),
        crate::advice::advice(crate::advice::NO_DEVICE)
    )]
    NoDevice {
        /// The driver library.
        path: PathBuf,
        /// Its version.
        version: Version,
        /// ` with CUDA_VISIBLE_DEVICES=...` where that is set.
        visible: String,
    },
    /// The library opened, but a first call that needs nothing failed.
    #[error("{} is of no use: its {call} failed with code {code}; {install}", .path.display())]
    Unusable {
        /// The library.
        path: PathBuf,
        /// The entry point.
        call: &'static str,
        /// The code it returned.
        code: i32,
        /// What to install.
        install: String,
    },
    /// The driver opened but did not start.
    #[error("{} does not start: {error}", .path.display())]
    Start {
        /// The library.
        path: PathBuf,
        /// Its first failing call.
        error: CallError,
    },
}

fn places(tried: &[Tried]) -> String {
    let texts: Vec<String> = tried.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "no place".to_owned() } else { texts.join(", ") }
}

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The entry point.
    pub call: &'static str,
    /// The code it returned.
    pub code: i32,
    /// The driver's name of the code; empty when it knows none.
    pub name: String,
    /// The driver's explanation; empty when it has none.
    pub text: String,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, code, name, text } = self;
        if name.is_empty() {
            write!(f, "{call} failed with code {code}, which the driver does not know")?;
        } else {
            write!(f, "{call} failed with {name} ({code})")?;
        }
        if !text.is_empty() {
            write!(f, ": {text}")?;
        }
        write!(f, "; {}", crate::advice::advice(*code))
    }
}

impl std::error::Error for CallError {}

/// A compilation that failed.
#[derive(Clone, Debug, Error)]
pub enum NvrtcError {
    /// NVRTC does not know the architecture.
    #[error(
        "NVRTC {version} ({}) cannot compile for {arch}; it knows {}; install a newer one \
         (`pip install nvidia-cuda-nvrtc`) or set EXPERTRAIL_NVRTC to it", .path.display(), numbers(.known)
    )]
    Unsupported {
        /// The library.
        path: PathBuf,
        /// Its version.
        version: Version,
        /// What was asked for.
        arch: Arch,
        /// The architectures it knows, as compute capabilities without their point.
        known: Vec<i32>,
    },
    /// The source does not compile.
    #[error("{program} does not compile for {arch} with NVRTC {version} (code {code}):\n{log}")]
    Compile {
        /// The program's name.
        program: String,
        /// What it was compiled for.
        arch: Arch,
        /// NVRTC's version.
        version: Version,
        /// NVRTC's code.
        code: i32,
        /// The compiler's log.
        log: String,
    },
    /// Another call failed.
    #[error("{call} of NVRTC {version} ({}) failed with code {code}", .path.display())]
    Call {
        /// The library.
        path: PathBuf,
        /// Its version.
        version: Version,
        /// The entry point.
        call: &'static str,
        /// NVRTC's code.
        code: i32,
    },
    /// A name, source or option has a zero byte inside.
    #[error("{what} contains a zero byte, which C text cannot hold")]
    ZeroByte {
        /// Which text.
        what: String,
    },
}

fn numbers(known: &[i32]) -> String {
    known.iter().map(|n| format!("sm_{n}")).collect::<Vec<_>>().join(", ")
}

/// An error of the GPU backend.
#[derive(Clone, Debug, Error)]
pub enum CudaError {
    /// A library cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call of the driver failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A compilation failed.
    #[error(transparent)]
    Nvrtc(#[from] NvrtcError),
    /// A device was asked for that is not there.
    #[error("no device {ordinal}: {count} visible, numbered from 0; look at CUDA_VISIBLE_DEVICES")]
    Ordinal {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A copy would pass the end of an allocation.
    #[error("bytes {offset} to {offset} + {bytes} do not lie in a device allocation of {room} bytes")]
    Range {
        /// Where the copy starts.
        offset: usize,
        /// Its length.
        bytes: usize,
        /// The allocation's length.
        room: usize,
    },
    /// Compiled code is not what the driver loads.
    #[error("compiled kernel of {bytes} bytes cannot be loaded: {reason}; remove it and compile again")]
    Cubin {
        /// Its length.
        bytes: usize,
        /// What is wrong.
        reason: &'static str,
    },
}

impl CudaError {
    /// The process exit code of DESIGN section 6: 2 for misuse, 1 where a kernel or its source is at fault, 4 where
    /// the machine denies access.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Ordinal { .. } | Self::Range { .. } => 2,
            Self::Nvrtc(NvrtcError::Compile { .. } | NvrtcError::ZeroByte { .. }) | Self::Cubin { .. } => 1,
            Self::Load(_) | Self::Call(_) | Self::Nvrtc(_) => 4,
        }
    }
}
