//! Why the GPU backend cannot be set up.

use std::time::Duration;

use expertrail_group::GroupError;
use thiserror::Error;

use crate::device::{DeviceIdentity, uuid_text};
use crate::error::{CallError, CudaError, LoadError};

/// What stands between the ranks of a group and a communicator on their GPUs.
///
/// Each rank gets its own error; a rank that could go on itself gets [`BuildError::PeerBuild`] with the reason of the
/// first that could not.
#[derive(Clone, Debug, Error)]
pub enum BuildError {
    /// The driver or NVRTC.
    #[error(transparent)]
    Cuda(Box<CudaError>),
    /// The process group failed meanwhile.
    #[error(transparent)]
    Group(Box<GroupError>),
    /// There are fewer devices than ranks.
    #[error(
        "{ranks} ranks on this host but {found} GPUs visible ({visible}); start one rank for each GPU, or let the \
         launcher show one GPU to each rank or all GPUs to every rank"
    )]
    Devices {
        /// Ranks on this host.
        ranks: usize,
        /// Devices that this process sees.
        found: usize,
        /// What `CUDA_VISIBLE_DEVICES` is.
        visible: String,
    },
    /// The administrator has closed a device.
    #[error(
        "{device} is in compute mode PROHIBITED: no process may use it; ask the administrator for `nvidia-smi -i \
         GPU -c DEFAULT`, or choose other GPUs with CUDA_VISIBLE_DEVICES"
    )]
    Prohibited {
        /// The device.
        device: Box<DeviceIdentity>,
    },
    /// A device is a slice in MIG mode.
    #[error(
        "{device} is a MIG slice, and there is no peer access between MIG slices; use whole GPUs (`nvidia-smi -i GPU \
         -mig 0` turns MIG off), or one rank"
    )]
    Mig {
        /// The device.
        device: Box<DeviceIdentity>,
    },
    /// A device is too old.
    #[error(
        "{device} has compute capability {major}.{minor}, but the kernels need 9.0 or newer (Hopper, Blackwell); use \
         such GPUs, or the CPU backend"
    )]
    Capability {
        /// The device.
        device: Box<DeviceIdentity>,
        /// Compute capability before the point.
        major: i32,
        /// Compute capability after the point.
        minor: i32,
    },
    /// A device or its driver lacks something else that the backend is built on.
    #[error(
        "{device} does not offer {feature}; a virtual GPU or a sandbox often lacks it: use a bare GPU or one passed \
         through whole, and driver 525 or newer"
    )]
    Lacks {
        /// The device.
        device: Box<DeviceIdentity>,
        /// What it lacks.
        feature: &'static str,
    },
    /// Two devices cannot reach each other.
    #[error(
        "no peer access from {device} of rank {rank} to {peer_device} of rank {peer}; `nvidia-smi topo -m` and \
         `nvidia-smi topo -p2p rw` show who reaches whom: look at NVLink and the fabric manager, turn IOMMU and PCIe \
         ACS off on a bare machine, and give a container all GPUs (`--gpus all`)"
    )]
    NoPeerAccess {
        /// This rank.
        rank: usize,
        /// Its device.
        device: Box<DeviceIdentity>,
        /// The other rank.
        peer: usize,
        /// Its device, by its number in this process.
        peer_device: Box<DeviceIdentity>,
    },
    /// Two ranks chose one device.
    #[error(
        "ranks {a} and {b} would share one device ({}): a rank's kernels wait for another's, so each needs its own; \
         start one rank for each GPU, or give each rank another CUDA_VISIBLE_DEVICES", uuid_text(.uuid, false)
    )]
    SharedDevice {
        /// One rank.
        a: usize,
        /// Another rank.
        b: usize,
        /// The device.
        uuid: [u8; 16],
    },
    /// Ranks are on different machines.
    #[error(
        "ranks {a} (host {a_host}) and {b} (host {b_host}) are on different machines; the GPU backend joins ranks of \
         one machine (NVLink domains across hosts are not built yet): start all ranks on one host"
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
    /// Another rank cannot go on.
    #[error("rank {rank} cannot build because rank {peer} cannot: {reason}")]
    PeerBuild {
        /// This rank.
        rank: usize,
        /// The rank at fault.
        peer: usize,
        /// Its own error.
        reason: String,
    },
    /// A device has too little memory left.
    #[error(
        "{device} has {} of {} free, but {} are needed; end other programs on it (`nvidia-smi`), let the framework \
         leave more, or use fewer tokens, fewer live outputs or a smaller hidden size",
        bytes_text(*.free), bytes_text(*.total), bytes_text(*.needed)
    )]
    OutOfMemory {
        /// The device.
        device: Box<DeviceIdentity>,
        /// Bytes asked for.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Ranks built with different settings.
    #[error(
        "ranks disagree about {what}: rank {a} has {a_value}, rank {b} has {b_value}; every rank must build with the \
         same settings"
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
    /// A peer's memory cannot be reached from this rank's device.
    #[error(
        "rank {rank} cannot map the memory of rank {peer}: {error}; `nvidia-smi topo -p2p rw` shows whether the GPUs \
         reach each other, and a container must be started with all of them (`--gpus all`)"
    )]
    PeerMemory {
        /// This rank.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// What the driver said.
        error: Box<CallError>,
    },
    /// A peer's socket cannot be reached, though the peer said that it listens.
    #[error("rank {rank} cannot connect to the socket of rank {peer} at {name}: {reason}; {advice}")]
    Connect {
        /// This rank.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// The socket's name, or the names tried.
        name: String,
        /// What the system said.
        reason: String,
        /// What to do next.
        advice: &'static str,
    },
    /// Peers did not do their part in time.
    #[error(
        "rank {rank}: {what} did not end within {:.1} s: nothing from ranks {missing:?}; they may be slow or stuck",
        .waited.as_secs_f64()
    )]
    Deadline {
        /// This rank.
        rank: usize,
        /// What was waited for.
        what: &'static str,
        /// Whose part is missing.
        missing: Vec<usize>,
        /// How long.
        waited: Duration,
    },
    /// A peer closed its socket.
    #[error("rank {rank}: rank {peer} ended during {what}; see its own output for the cause")]
    PeerEnded {
        /// This rank.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// What was going on.
        what: &'static str,
    },
    /// A peer sent something else than it should.
    #[error(
        "rank {rank}: rank {peer} sent {found} during {what}; all ranks must run the same version of Expertrail"
    )]
    Protocol {
        /// This rank.
        rank: usize,
        /// The other rank.
        peer: usize,
        /// What was going on.
        what: &'static str,
        /// What it sent.
        found: &'static str,
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
    /// The operating system refused something.
    #[error("rank {rank}: {what} failed: {reason}")]
    System {
        /// This rank.
        rank: usize,
        /// Which call, on what.
        what: String,
        /// What the system said.
        reason: String,
    },
}

impl BuildError {
    /// The process exit code of DESIGN section 6: 2 for settings that do not fit the machine or each other, 4 where
    /// device, driver or system deny access, 124 for a deadline, 1 where another rank is at fault.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Cuda(error) => error.exit_code(),
            Self::Group(error) => error.exit_code(),
            Self::Devices { .. }
            | Self::SharedDevice { .. }
            | Self::NotOneHost { .. }
            | Self::OutOfMemory { .. }
            | Self::Disagree { .. }
            | Self::Setting { .. } => 2,
            Self::Prohibited { .. }
            | Self::Mig { .. }
            | Self::Capability { .. }
            | Self::Lacks { .. }
            | Self::NoPeerAccess { .. }
            | Self::PeerMemory { .. }
            | Self::Connect { .. }
            | Self::System { .. } => 4,
            Self::PeerBuild { .. } | Self::PeerEnded { .. } | Self::Protocol { .. } => 1,
            Self::Deadline { .. } => 124,
        }
    }

    pub(crate) fn system(rank: usize, what: impl Into<String>, error: impl std::fmt::Display) -> Self {
        Self::System { rank, what: what.into(), reason: error.to_string() }
    }
}

impl From<CudaError> for BuildError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(Box::new(error))
    }
}

impl From<CallError> for BuildError {
    fn from(error: CallError) -> Self {
        CudaError::from(error).into()
    }
}

impl From<LoadError> for BuildError {
    fn from(error: LoadError) -> Self {
        CudaError::from(error).into()
    }
}

impl From<GroupError> for BuildError {
    fn from(error: GroupError) -> Self {
        Self::Group(Box::new(error))
    }
}

/// Bytes as `12.5 MiB`.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.1} {}", units[unit]) }
}
