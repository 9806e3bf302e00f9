//! How far two PCI functions are from each other.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::facts::PciDevice;

/// What a transfer between two functions passes; the names are those of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// One switch.
    Pix,
    /// Several bridges, but no host bridge.
    Pxb,
    /// The host bridge that both hang below.
    Phb,
    /// Two host bridges of one NUMA node.
    Node,
    /// Two NUMA nodes.
    Sys,
    /// Two host bridges, and a NUMA node that is not known: NODE or SYS.
    #[default]
    #[serde(other)]
    Far,
}

impl Distance {
    /// Weight of the distance where one function of a set is chosen; the steps leave room for ties.
    pub(super) fn weight(self) -> i64 {
        match self {
            Self::Pix => 0,
            Self::Pxb => 1,
            Self::Phb => 2,
            Self::Node => 3,
            // Told apart by nothing, so neither is preferred.
            Self::Sys | Self::Far => 4,
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
            Self::Far => "NODE or SYS",
        })
    }
}

/// The distance of `a` and `b`, from their resolved paths and NUMA nodes.
///
/// Below one host bridge the bridges decide: where each has at most its own downstream port below the last common bridge, one switch
/// is passed (PIX). The rule agrees with NCCL's and NVSHMEM's, which compare the length of the common part of the paths.
pub fn between(a: &PciDevice, b: &PciDevice) -> Distance {
    let (host_a, parts_a) = split(&a.path);
    let (host_b, parts_b) = split(&b.path);
    if host_a.is_some() && host_a == host_b {
        let common = parts_a.iter().zip(&parts_b).take_while(|(a, b)| a == b).count();
        let below = |parts: &[&str]| parts.len().saturating_sub(common + 1);
        return match (common, below(&parts_a).max(below(&parts_b))) {
            (0, _) => Distance::Phb,
            (_, 0 | 1) => Distance::Pix,
            _ => Distance::Pxb,
        };
    }
    match (a.numa, b.numa) {
        (Some(a), Some(b)) if a == b => Distance::Node,
        (Some(_), Some(_)) => Distance::Sys,
        _ => Distance::Far,
    }
}

/// The host bridge (`pci0000:15`), and the functions below it down to the device.
fn split(path: &str) -> (Option<&str>, Vec<&str>) {
    // The kernel has no longer paths.
    let path = if path.len() > 4096 { "" } else { path };
    let mut parts = path.split('/').skip_while(|part| !part.starts_with("pci"));
    (parts.next(), parts.filter(|part| part.contains(':') && part.contains('.')).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, numa: Option<u32>) -> PciDevice {
        PciDevice { path: format!("/sys/devices/{path}"), numa, ..PciDevice::default() }
    }

    #[test]
    fn classes() {
        let gpu = at("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", Some(0));
        let cases = [
            // Its own port of the same switch.
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", Some(0), Distance::Pix),
            // A second function below the same port.
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.1", Some(0), Distance::Pix),
            // A switch below the first one's port.
            (
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:20:00.0/0000:21:00.0/0000:22:00.0",
                Some(0),
                Distance::Pxb,
            ),
            ("pci0000:15/0000:15:02.0/0000:30:00.0", Some(0), Distance::Phb),
            ("pci0000:26/0000:26:01.0/0000:27:00.0", Some(0), Distance::Node),
            ("pci0000:97/0000:97:01.0/0000:98:00.0", Some(1), Distance::Sys),
            ("pci0000:97/0000:97:01.0/0000:98:00.0", None, Distance::Far),
        ];
        for (path, numa, expected) in cases {
            assert_eq!(between(&gpu, &at(path, numa)), expected, "{path}");
            assert_eq!(between(&at(path, numa), &gpu), expected, "{path}, the other way");
        }
        // Flat functions of a virtual machine, two domains.
        let gpu = at("pci0001:00/0001:00:05.0", Some(0));
        assert_eq!(between(&gpu, &at("pci0001:00/0001:00:09.0", Some(0))), Distance::Phb);
        assert_eq!(between(&gpu, &at("pci0000:00/0000:00:09.0", Some(0))), Distance::Node);
        // Nothing known.
        assert_eq!(between(&at("", None), &at("", None)), Distance::Far);
    }
}
