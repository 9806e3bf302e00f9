//! Facts of one node, read once and kept as a versioned document (`expertrail.facts/1`).
//!
//! Reading and judging are apart: [`collect`](crate::collect) fills [`Facts`] from a live machine or from a tree under a
//! prefix; checks, topology and comparison are functions of [`Facts`] alone. Strings of the kernel are kept as they are
//! (`4: ACTIVE`), with methods that interpret them, so that a state nobody knows yet is kept and shown.

mod driver;
mod fact;
mod gpu;
mod host;
mod pci;
mod rdma;
mod userspace;

use serde::{Deserialize, Serialize};

pub use driver::{Driver, DriverVersion, Flavour, ModprobeOption, Module, Modules, RegistryDwords};
pub use fact::{Fact, Reading, Scope};
pub use gpu::{FabricState, Nvml, NvmlGpu, P2p, Xid, cuda_version};
pub use host::{
    CgroupHint, DeviceNode, Dmi, Environment, HugePages, Iommu, IommuGroup, Kernel, Limit, Limits, Memory,
    NumaNode, ProcessLimit, Service, Shm, SlurmEnv,
};
pub use pci::{Acs, Link, Pci, PciDevice};
pub use rdma::{Gid, Port, RdmaDevice};
pub use userspace::{
    CubinArch, Cuda, DeepEp, LibraryFile, LibraryVersion, LoadedLibrary, QpIndexing, Userspace, Wheel,
};

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.facts/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.facts.1.schema.json");

/// Everything known of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of Expertrail that wrote it.
    pub tool: String,
    /// When it was read: seconds since 1970.
    pub captured_at: u64,
    /// Where it was read: `/`, or the prefix.
    pub root: String,
    /// Name of the node: `/proc/sys/kernel/hostname`, or `NODE_NAME` where a pod has it.
    pub node: Fact<String>,
    /// Kernel, command line, virtualisation.
    pub kernel: Kernel,
    /// Container, scheduler, who manages the driver.
    pub environment: Environment,
    /// The NVIDIA driver.
    pub driver: Driver,
    /// Kernel modules.
    pub modules: Modules,
    /// PCI devices: GPUs, NICs, and the bridges above them.
    pub pci: Pci,
    /// RDMA devices: `/sys/class/infiniband`.
    pub rdma: Fact<Vec<RdmaDevice>>,
    /// What NVML says of the GPUs.
    pub nvml: Fact<Nvml>,
    /// Xid lines of the kernel log.
    pub xids: Fact<Vec<Xid>>,
    /// Device nodes under `/dev`.
    pub devices: Fact<Vec<DeviceNode>>,
    /// Names of character device majors: `/proc/devices`. Several drivers may have one name.
    pub majors: Fact<Vec<(u32, String)>>,
    /// Limits and capabilities.
    pub limits: Limits,
    /// Memory, huge pages, `/dev/shm`.
    pub memory: Memory,
    /// IOMMU and PCI access control.
    pub iommu: Iommu,
    /// Fabric manager, IMEX and other services that matter.
    pub services: Vec<Service>,
    /// Libraries and Python packages.
    pub userspace: Userspace,
}
