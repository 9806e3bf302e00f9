//! GPUs as NVML shows them, and Xids of the kernel log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// NVML's view. Only on a live machine that has the driver's library.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nvml {
    /// `580.159.04`.
    pub driver: Option<String>,
    /// Newest CUDA the driver serves: 13000 is 13.0.
    pub cuda: Option<u32>,
    /// By NVML's index.
    pub gpus: Vec<NvmlGpu>,
    /// GPUs that NVML counts and does not open (fallen off the bus, a reset is due): index, and NVML's reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<u32, String>,
    /// Peer-to-peer state of pairs, each once or both ways.
    pub p2p: Vec<P2p>,
}

/// A GPU. A figure that this GPU or driver does not have is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlGpu {
    /// NVML's index, which is PCI order.
    pub index: u32,
    /// `NVIDIA H200`.
    pub name: String,
    /// PCI address in the kernel's form: `0000:18:00.0`.
    pub pci: String,
    /// Compute capability, as (9, 0).
    pub compute: Option<(u32, u32)>,
    /// NVLinks that are up.
    pub nvlinks_up: Option<u32>,
    /// NVLinks that exist, up or down.
    pub nvlinks: Option<u32>,
    /// Sum of the links' replays and recoveries.
    pub nvlink_errors: Option<u64>,
    /// Fabric registration, where the GPU has it.
    pub fabric: Option<FabricState>,
    /// ECC errors that could not be corrected, since the driver's load.
    pub ecc_uncorrected: Option<u64>,
    /// A row remapping waits for a reset.
    pub remap_pending: Option<bool>,
    /// A row remapping failed.
    pub remap_failed: Option<bool>,
    /// Why clocks are held down now: the bits of `nvmlDeviceGetCurrentClocksEventReasons`.
    pub clock_reasons: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Persistence mode.
    pub persistence: Option<bool>,
    /// MIG is on.
    pub mig: Option<bool>,
    /// 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.
    pub compute_mode: Option<u32>,
    /// PCI Express generation now and at most.
    pub pcie_generation: Option<(u32, u32)>,
    /// PCI Express lanes now and at most.
    pub pcie_width: Option<(u32, u32)>,
    /// Bytes of BAR1.
    pub bar1_total: Option<u64>,
    /// Bytes of device memory.
    pub memory_total: Option<u64>,
    /// Bytes that nobody uses.
    pub memory_free: Option<u64>,
    /// Process ids with a compute context.
    pub processes: Vec<u32>,
}

/// Registration of a GPU with the NVLink fabric (`nvmlDeviceGetGpuFabricInfoV`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricState {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// NVML's result of the registration: 0 is success.
    pub status: u32,
    /// Health bits, as NVML gives them.
    pub health: Option<u32>,
    /// Clique of the NVLink domain.
    pub clique: Option<u32>,
    /// The cluster's UUID, in hex; all zero outside of multi-node NVLink.
    pub cluster: String,
}

/// Peer access of one GPU to another over NVLink (`nvmlDeviceGetP2PStatus`, capability NVLINK).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct P2p {
    /// Index of the first.
    pub from: u32,
    /// Index of the second.
    pub to: u32,
    /// 0 OK, 1 chipset, 2 GPU, 3 topology, 4 disabled by registry key, 5 not supported, 6 unknown.
    pub nvlink: u32,
}

/// A line `NVRM: Xid (PCI:0000:18:00): 79, …` (or `SXid` of an NVSwitch) of the kernel log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Xid {
    /// `0000:18:00`.
    pub pci: String,
    /// Its number.
    pub number: u32,
    /// It is an NVSwitch's.
    pub nvswitch: bool,
    /// Lines with this device and number.
    pub count: u64,
    /// Text of the last one.
    pub text: String,
}

/// A version of the CUDA driver interface as `major.minor`.
pub fn cuda_version(packed: u32) -> String {
    format!("{}.{}", packed / 1000, packed % 1000 / 10)
}

impl Nvml {
    /// The GPU at PCI address `address`.
    pub fn at(&self, address: &str) -> Option<&NvmlGpu> {
        self.gpus.iter().find(|gpu| gpu.pci.eq_ignore_ascii_case(address))
    }
}
