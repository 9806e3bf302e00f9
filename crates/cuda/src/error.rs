//! What can go wrong between this process and CUDA.

use std::fmt;
use std::path::PathBuf;

use expertrail_core::{Cause, CoreError, Failure};
use thiserror::Error;

use crate::arch::Arch;
use crate::build_error::BuildError;
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
    /// Libraries opened, but none of them serves.
    #[error("{library}: none of those found serves; looked at {}; {install}", places(.tried))]
    NoneServes {
        /// What was looked for.
        library: String,
        /// Where, and what is wrong at each place.
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

impl LoadError {
    /// What is wrong, without the place and the remedy, for a list of places.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Symbol { symbol, since, .. } => format!("no symbol {symbol}, which is there since {since}"),
            Self::TooOld { found, needed, .. } => format!("version {found}, but {needed} or newer is needed"),
            Self::Unusable { call, code, .. } => format!("its {call} failed with code {code}"),
            Self::Missing { library, tried, .. } => format!("{library} not found at {}", places(tried)),
            Self::NoneServes { .. } | Self::NoDevice { .. } | Self::Start { .. } => self.to_string(),
        }
    }
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

/// What a binary embeds, as the end of a sentence.
fn embeds(archs: &[Arch]) -> String {
    if archs.is_empty() {
        return "no kernels".to_owned();
    }
    format!("kernels for {} only", archs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
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
    /// Kernels for this device are neither embedded nor can they be compiled.
    #[error(
        "{program} is not there for {arch}: this binary embeds {}, the device is {arch}, and the run-time compiler \
         cannot be used: {nvrtc}", embeds(.embedded)
    )]
    NoKernels {
        /// The program's name.
        program: String,
        /// The device's architecture.
        arch: Arch,
        /// The architectures that the binary embeds kernels for.
        embedded: Vec<Arch>,
        /// Why NVRTC cannot be used.
        nvrtc: Box<LoadError>,
    },
    /// The communicator cannot be built.
    #[error(transparent)]
    Build(Box<BuildError>),
    /// An argument is wrong; nothing moved and the communicator goes on.
    #[error("rank {rank}: {error}")]
    Misuse {
        /// This rank.
        rank: usize,
        /// What is wrong.
        error: CoreError,
    },
    /// An address is not what the call needs; nothing moved and the communicator goes on.
    #[error("rank {rank}: {what} at {address:#x}: {problem}")]
    Address {
        /// This rank.
        rank: usize,
        /// Which argument.
        what: &'static str,
        /// The address.
        address: u64,
        /// What is wrong with it and what to give instead.
        problem: String,
    },
    /// Another rank refused its part of a call; nothing moved and the communicator goes on.
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
        "call {epoch} differs between ranks: rank {rank} called {call}, rank {peer} called {peer_call}; every rank must make the same calls in the same order"
    )]
    Mismatch {
        /// The call's number.
        epoch: u64,
        /// This rank.
        rank: usize,
        /// What it called.
        call: String,
        /// Another rank.
        peer: usize,
        /// What that called.
        peer_call: String,
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
    #[error("rank {rank}: {failure}{}", seen_text(*.expected, *.seen))]
    Failed {
        /// This rank.
        rank: usize,
        /// The first failure.
        failure: Failure,
        /// What the waiting kernel expected to see; 0 where nothing was awaited.
        expected: u64,
        /// What it saw.
        seen: u64,
    },
    /// A kernel ended without a word.
    #[error(
        "rank {rank}: a kernel ended without its report and without a failure; look for an error of other work on its \
         stream, and report this with `nvidia-smi` and the kernel log"
    )]
    Lost {
        /// This rank.
        rank: usize,
    },
    /// A call cannot be captured in a graph.
    #[error("rank {rank}: {call} cannot be captured in a CUDA graph: {reason}")]
    Capture {
        /// This rank.
        rank: usize,
        /// Which call.
        call: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A setting has a value that cannot be used.
    #[error("{name}={value}: wanted {wanted}")]
    Setting {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: String,
    },
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

/// What a wait wanted and found, for whoever debugs it.
fn seen_text(expected: u64, seen: u64) -> String {
    if expected == 0 { String::new() } else { format!(" (expected {expected:#x}, saw {seen:#x})") }
}

impl From<BuildError> for CudaError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Cuda(error) => *error,
            error => Self::Build(Box::new(error)),
        }
    }
}

impl CudaError {
    /// The process exit code of DESIGN section 6: 2 for misuse, 1 where a kernel, its source or a peer is at fault, 4
    /// where the machine denies access, 124 for a deadline, 130 when cancelled.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Build(error) => error.exit_code(),
            Self::Failed { failure, .. } => match failure.cause {
                Cause::Died | Cause::Left | Cause::Protocol | Cause::Network | Cause::Repeated => 1,
                Cause::Deadline => 124,
                Cause::Cancelled => 130,
            },
            Self::Ordinal { .. }
            | Self::Range { .. }
            | Self::Misuse { .. }
            | Self::Address { .. }
            | Self::Mismatch { .. }
            | Self::TooSmall { .. }
            | Self::Capture { .. }
            | Self::Setting { .. } => 2,
            Self::Refused { .. }
            | Self::Lost { .. }
            | Self::Nvrtc(NvrtcError::Compile { .. } | NvrtcError::ZeroByte { .. })
            | Self::Cubin { .. } => 1,
            Self::Load(_) | Self::Call(_) | Self::Nvrtc(_) | Self::NoKernels { .. } => 4,
        }
    }
}
