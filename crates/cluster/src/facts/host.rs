//! Kernel, environment, limits, memory, IOMMU, services.

use serde::{Deserialize, Serialize};

use super::Fact;

/// Kernel and machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kernel {
    /// `/proc/sys/kernel/osrelease`.
    pub release: Fact<String>,
    /// `/proc/cmdline`.
    pub cmdline: Fact<String>,
    /// Whether `/proc/cpuinfo` has the flag `hypervisor`.
    pub hypervisor: Fact<bool>,
    /// `/proc/cpuinfo`, first `model name`.
    pub cpu: Fact<String>,
    /// Logical CPUs of `/proc/cpuinfo`.
    pub cpus: Fact<u32>,
    /// `/sys/class/dmi/id`.
    pub dmi: Dmi,
    /// NUMA nodes, `/sys/devices/system/node/node*`.
    pub numa: Fact<Vec<NumaNode>>,
    /// `/proc/sys/kernel/numa_balancing`: 0 is off.
    pub numa_balancing: Fact<u32>,
    /// `/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor`.
    pub governor: Fact<String>,
    /// `/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver`.
    pub scaling_driver: Fact<String>,
    /// `/etc/os-release`, `PRETTY_NAME`.
    pub os: Fact<String>,
    /// glibc, from the loaded library's name or `/lib*/libc.so.6`.
    pub glibc: Fact<String>,
}

/// What the firmware says of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dmi {
    /// `sys_vendor`: `Amazon EC2`, `Google`, `Microsoft Corporation`, `QEMU`, `Cloud Hypervisor`.
    pub vendor: Fact<String>,
    /// `product_name`: `p5en.48xlarge`.
    pub product: Fact<String>,
    /// `board_asset_tag`: on EC2 the instance id.
    pub asset_tag: Fact<String>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// `cpulist`.
    pub cpus: String,
}

/// Container, scheduler, who manages the driver. Variables are those of the process that reads, and are not read with a
/// `--root` other than `/` (there `environ.txt` of the tree stands for them, lines of `NAME=value`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Whether the reader is in a container, and by what sign.
    pub container: Fact<CgroupHint>,
    /// `KUBERNETES_SERVICE_HOST` is set.
    pub kubernetes: Fact<bool>,
    /// Slurm's variables.
    pub slurm: Fact<SlurmEnv>,
    /// Signs that an operator manages the driver: `/run/nvidia/driver`, `/run/nvidia/validations`, `/var/run/nvidia-…`: the
    /// paths that exist.
    pub operator_signs: Fact<Vec<String>>,
    /// Pyxis or Enroot variables: their names.
    pub enroot: Fact<Vec<String>>,
    /// Variables of NCCL, NVSHMEM, UCX, libfabric (`FI_`), DeepEP (`EP_`), CUDA, `LD_LIBRARY_PATH`, `LD_PRELOAD`: those that
    /// decide what runs. Values of names that look like secrets are not kept.
    pub variables: Fact<std::collections::BTreeMap<String, String>>,
}

/// Why the reader is thought to be in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupHint {
    /// It is in one.
    pub inside: bool,
    /// The sign: `/.dockerenv`, `/run/.containerenv`, the cgroup path, an overlay root.
    pub sign: String,
}

/// Slurm's variables of the reading process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlurmEnv {
    /// `SLURM_JOB_ID`.
    pub job: Option<String>,
    /// `SLURM_STEP_ID`; none in a login shell or batch script.
    pub step: Option<String>,
}

/// Limits and capabilities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// `Max locked memory` of `/proc/self/limits`.
    pub memlock: Fact<Limit>,
    /// `Max open files`.
    pub nofile: Fact<Limit>,
    /// `CapEff` of `/proc/self/status`: bit 14 is `CAP_IPC_LOCK`, bit 21 `CAP_SYS_ADMIN`, bit 19 `CAP_SYS_PTRACE`.
    pub capabilities: Fact<u64>,
    /// The same limit of the daemons that start jobs: containerd, kubelet, slurmd, dockerd, crio.
    pub daemons: Fact<Vec<ProcessLimit>>,
    /// `LimitMEMLOCK=` of `/etc/systemd/system/UNIT.d/*.conf` and unit files: what the daemons get at their next start.
    pub configured: Fact<Vec<ProcessLimit>>,
}

/// A soft and a hard limit; none is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limit {
    /// Bytes (or files); none is unlimited.
    pub soft: Option<u64>,
    /// The same, hard.
    pub hard: Option<u64>,
}

/// A daemon's limit of locked memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessLimit {
    /// `containerd`.
    pub name: String,
    /// Its process; none for a configured limit.
    pub pid: Option<u32>,
    /// The limit.
    pub memlock: Limit,
    /// File it comes from.
    pub source: String,
}

/// Memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Bytes of `MemTotal`.
    pub total: Fact<u64>,
    /// Bytes of `MemAvailable`.
    pub available: Fact<u64>,
    /// `/sys/kernel/mm/hugepages/*`.
    pub huge_pages: Fact<Vec<HugePages>>,
    /// File system of `/dev/shm`.
    pub shm: Fact<Shm>,
    /// `/proc/sys/vm/max_map_count`.
    pub max_map_count: Fact<u64>,
}

/// Huge pages of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HugePages {
    /// Bytes of a page.
    pub size: u64,
    /// Pages that are reserved.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
}

/// Size of `/dev/shm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shm {
    /// Bytes.
    pub total: u64,
    /// Bytes that are free; none in a captured tree that has mount options only.
    pub free: Option<u64>,
}

/// IOMMU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Iommu {
    /// Entries of `/sys/class/iommu`: empty where no IOMMU is on.
    pub units: Fact<Vec<String>>,
    /// Groups that hold a device of `Pci::devices`.
    pub groups: Fact<Vec<IommuGroup>>,
}

/// An IOMMU group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IommuGroup {
    /// Its number.
    pub number: String,
    /// `identity`, `DMA`, `DMA-FQ`, `auto`, `blocked`.
    pub kind: Option<String>,
}

/// A device node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceNode {
    /// `/dev/gdrdrv`.
    pub path: String,
    /// It is a character device (else a directory or something unexpected).
    pub character: bool,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits: 0o666.
    pub mode: u32,
}

/// A daemon or unit that matters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// `nvidia-fabricmanager`, `nvidia-imex`, `nvidia-persistenced`.
    pub name: String,
    /// A process of that name runs; its pid.
    pub pid: Fact<u32>,
    /// Version, where its binary or library tells (`nv-fabricmanager`: from its version file or library name).
    pub version: Fact<String>,
    /// Its unit file exists.
    pub installed: Fact<bool>,
    /// Configuration lines that matter (IMEX: the nodes).
    pub config: Fact<Vec<String>>,
}
