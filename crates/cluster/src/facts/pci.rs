//! PCI devices and where they hang.

use serde::{Deserialize, Serialize};

use super::Fact;

/// PCI devices that matter here: GPUs, NVSwitches, network and RDMA functions, and every bridge above one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pci {
    /// By address.
    pub devices: Fact<Vec<PciDevice>>,
}

impl Pci {
    /// The device at `address`, without regard to case.
    pub fn at(&self, address: &str) -> Option<&PciDevice> {
        self.devices.value()?.iter().find(|device| device.address.eq_ignore_ascii_case(address))
    }

    /// NVIDIA GPUs that CUDA may use, by address: class 0x0302 (3D) or 0x0300 (VGA) of vendor 0x10de, bound to the driver `nvidia`. One
    /// that is bound to another driver (`nouveau`, or `vfio-pci` for a virtual machine) has no rank here.
    pub fn gpus(&self) -> Vec<&PciDevice> {
        self.devices
            .value()
            .map(|all| all.iter().filter(|device| device.is_gpu() && device.serves_cuda()).collect())
            .unwrap_or_default()
    }
}

/// A PCI function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PciDevice {
    /// `0000:18:00.0`.
    pub address: String,
    /// The resolved path: `/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0`.
    pub path: String,
    /// `0x10de`.
    pub vendor: Option<String>,
    /// `0x2335`.
    pub device: Option<String>,
    /// `0x030200`.
    pub class: Option<String>,
    /// Kernel driver.
    pub driver: Option<String>,
    /// NUMA node; none where the kernel says -1 or nothing.
    pub numa: Option<u32>,
    /// `local_cpulist`.
    pub cpus: Option<String>,
    /// Link now, and the best the device can.
    pub link: Link,
    /// Physical function of a virtual one.
    pub physfn: Option<String>,
    /// Number of its IOMMU group.
    pub iommu_group: Option<String>,
    /// Access control of a bridge, from its configuration space; none where that was not readable (needs root) or has no
    /// such capability.
    pub acs: Option<Acs>,
}

impl PciDevice {
    /// Whether it is an NVIDIA GPU.
    pub fn is_gpu(&self) -> bool {
        let class = self.class.as_deref().unwrap_or_default();
        self.vendor.as_deref() == Some("0x10de")
            && (class.starts_with("0x0302") || class.starts_with("0x0300"))
    }

    /// Whether its driver is NVIDIA's, or none is told.
    fn serves_cuda(&self) -> bool {
        self.driver.as_deref().is_none_or(|driver| driver == "nvidia")
    }
}

/// PCI Express link of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    /// `current_link_speed`: `32.0 GT/s PCIe`.
    pub speed: Option<String>,
    /// `current_link_width`: lanes.
    pub width: Option<u32>,
    /// `max_link_speed`.
    pub max_speed: Option<String>,
    /// `max_link_width`.
    pub max_width: Option<u32>,
}

impl Link {
    /// GT/s of a speed as the kernel prints it.
    pub fn gigatransfers(speed: Option<&str>) -> Option<f64> {
        speed?.split_whitespace().next()?.parse().ok().filter(|value: &f64| value.is_finite())
    }
}

/// Access control services that are switched on (`ACSCtl`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_excessive_bools)] // four bits of one register
pub struct Acs {
    /// Source validation.
    pub source_validation: bool,
    /// Peer requests go up to the root.
    pub request_redirect: bool,
    /// Peer completions go up to the root.
    pub completion_redirect: bool,
    /// Upstream forwarding.
    pub upstream_forwarding: bool,
}
