//! RDMA devices, EFA included.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A device of `/sys/class/infiniband`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RdmaDevice {
    /// `mlx5_0`, `rdmap85s0`.
    pub name: String,
    /// PCI address of its function, in `Pci::devices`; none for software devices (`rxe`, `siw`).
    pub pci: Option<String>,
    /// Kernel driver: `mlx5_core`, `efa`, `irdma`, `bnxt_re`; the link `device/driver`.
    pub driver: Option<String>,
    /// PCI address of the physical function, where this is a virtual one (`device/physfn`).
    pub physfn: Option<String>,
    /// `fw_ver`.
    pub firmware: Option<String>,
    /// `hca_type`: `MT4129`.
    pub hca_type: Option<String>,
    /// `board_id`.
    pub board_id: Option<String>,
    /// `node_type`: `1: CA`.
    pub node_type: Option<String>,
    /// `node_guid`.
    pub node_guid: Option<String>,
    /// Network interfaces of the same PCI function: `device/net/*`.
    pub netdevs: Vec<String>,
    /// The character device of `/sys/class/infiniband_verbs` that belongs to it: `uverbs0`.
    pub uverbs: Option<String>,
    /// Ports, in order of their number.
    pub ports: Vec<Port>,
    /// Files that are there and could not be read or understood: path below the device, and the reason.
    pub unreadable: BTreeMap<String, String>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Port {
    /// From 1.
    pub number: u32,
    /// `4: ACTIVE`.
    pub state: Option<String>,
    /// `5: LinkUp`.
    pub phys_state: Option<String>,
    /// `400 Gb/sec (4X NDR)`.
    pub rate: Option<String>,
    /// `InfiniBand`, `Ethernet`; EFA says `Unspecified` or `Unknown`.
    pub link_layer: Option<String>,
    /// `lid`.
    pub lid: Option<String>,
    /// `sm_lid`.
    pub sm_lid: Option<String>,
    /// `cap_mask`, `sm_sl` and such are not read. Partition keys that are not 0, in order: `0xffff`.
    pub pkeys: Vec<String>,
    /// Addresses that are not zero.
    pub gids: Vec<Gid>,
    /// `counters/*`: units as the kernel's, `port_xmit_data` in words of 4 bytes.
    pub counters: BTreeMap<String, u64>,
    /// `hw_counters/*`.
    pub hw_counters: BTreeMap<String, u64>,
}

impl Port {
    /// Whether the state is `4: ACTIVE`; none where there is no state, or one that nobody knows.
    pub fn active(&self) -> Option<bool> {
        match self.state_number()? {
            4 => Some(true),
            // 1 DOWN, 2 INIT, 3 ARMED, 5 ACTIVE_DEFER (include/rdma/ib_verbs.h, enum ib_port_state).
            1..=3 | 5 => Some(false),
            _ => None,
        }
    }

    /// The number before the colon of the state.
    pub fn state_number(&self) -> Option<u32> {
        self.state.as_deref()?.split(':').next()?.trim().parse().ok()
    }

    /// Gb/s, the number that `rate` begins with.
    pub fn gbits(&self) -> Option<f64> {
        let text = self.rate.as_deref()?.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        text[..end].parse().ok().filter(|gbits: &f64| gbits.is_finite())
    }
}

/// An address of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gid {
    /// Index in the table.
    pub index: u32,
    /// `fe80:0000:…`.
    pub gid: String,
    /// `IB/RoCE v1` or `RoCE v2`.
    pub kind: Option<String>,
    /// Network interface, for RoCE.
    pub netdev: Option<String>,
}
