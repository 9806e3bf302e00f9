//! PCI devices that matter, and the bridges above them.

use std::collections::{BTreeMap, BTreeSet};

use super::rdma::is_address;
use crate::facts::{Acs, Fact, Link, Pci, PciDevice, RdmaDevice};
use crate::root::Root;

const DEVICES: &str = "/sys/bus/pci/devices";

const NVIDIA: &str = "0x10de";

/// Configuration space of a PCI Express function.
const CONFIG: u64 = 4096;

/// More functions that matter than a machine has: eight NICs of 256 virtual functions are 2,048.
const FUNCTIONS: usize = 4096;

/// Reads every device that matters: those of [`matters`], the functions of `rdma`'s devices whatever their class, and the bridges
/// above any of them.
pub(super) fn pci(root: &Root, rdma: &Fact<Vec<RdmaDevice>>) -> Pci {
    let of_rdma: BTreeSet<&str> =
        rdma.value().into_iter().flatten().filter_map(|device| device.pci.as_deref()).collect();
    let devices = root.list(DEVICES).parse(|names| {
        // By address, the folder to read. A bridge's is in the resolved path of what is below it.
        let mut wanted: BTreeMap<String, String> = BTreeMap::new();
        for address in names.iter().filter(|name| is_address(name)) {
            let folder = format!("{DEVICES}/{address}");
            let word =
                |name: &str| root.word(&format!("{folder}/{name}")).value().cloned().unwrap_or_default();
            if !of_rdma.contains(address.as_str()) && !matters(&word("class"), &word("vendor")) {
                continue;
            }
            let path = root.resolve(&folder).value().cloned().unwrap_or_else(|| folder.clone());
            wanted.extend(above(&path));
            wanted.insert(address.clone(), path);
            if wanted.len() > FUNCTIONS {
                return Err(format!("more than {FUNCTIONS} GPUs, network functions and bridges"));
            }
        }
        Ok(wanted.into_iter().map(|(address, path)| device(root, address, path)).collect())
    });
    Pci { devices }
}

/// Addresses and folders of the bridges in a device's resolved path.
fn above(path: &str) -> Vec<(String, String)> {
    let ends = path.match_indices('/').map(|(at, _)| &path[..at]);
    ends.filter_map(|folder| {
        Some((folder.rsplit('/').next().filter(|last| is_address(last))?.to_owned(), folder.to_owned()))
    })
    // No hierarchy of buses is deeper than their number allows.
    .take(256)
    .collect()
}

/// GPUs (0x03), NVSwitches (0x0680), everything of a network (0x02), virtual functions of RDMA devices included.
fn matters(class: &str, vendor: &str) -> bool {
    let network = class.starts_with("0x02");
    let gpu = class.starts_with("0x0300") || class.starts_with("0x0302");
    network || vendor == NVIDIA && (gpu || class.starts_with("0x0680"))
}

fn device(root: &Root, address: String, folder: String) -> PciDevice {
    let word =
        |name: &str| root.word(&format!("{folder}/{name}")).value().filter(|word| !word.is_empty()).cloned();
    // The kernel writes lanes it does not know as 255, and speeds as `Unknown`.
    let lanes = |name| word(name).and_then(|word| word.parse().ok()).filter(|lanes| (1..=64).contains(lanes));
    let speed = |name| word(name).filter(|speed| !speed.starts_with("Unknown"));
    PciDevice {
        address,
        vendor: word("vendor"),
        device: word("device"),
        driver: root.link_name(&format!("{folder}/driver")),
        numa: word("numa_node").and_then(|node| node.parse().ok()),
        cpus: word("local_cpulist"),
        link: Link {
            speed: speed("current_link_speed"),
            width: lanes("current_link_width"),
            max_speed: speed("max_link_speed"),
            max_width: lanes("max_link_width"),
        },
        physfn: root.link_name(&format!("{folder}/physfn")),
        iommu_group: root.link_name(&format!("{folder}/iommu_group")),
        acs: word("class")
            .is_some_and(|class| class.starts_with("0x0604"))
            .then(|| root.bytes(&format!("{folder}/config"), CONFIG))
            .and_then(|config| access_control(config.value()?)),
        class: word("class"),
        path: folder,
    }
}

/// The Access Control Services of configuration space, where the capability is there and was readable: without root the kernel
/// shows 64 bytes only. PCI Express base specification: extended capability 0x000d, control register at offset 6.
pub fn access_control(config: &[u8]) -> Option<Acs> {
    let word = |at: usize| Some(u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?));
    let mut at = 0x100;
    // The list has at most as many members as fit; a loop in it is hostile or broken.
    for _ in 0..(4096 - 0x100) / 8 {
        let header = word(at)?;
        if header & 0xffff == 0x000d {
            let control = word(at + 4)? >> 16;
            return Some(Acs {
                source_validation: control & 1 != 0,
                request_redirect: control & 4 != 0,
                completion_redirect: control & 8 != 0,
                upstream_forwarding: control & 16 != 0,
            });
        }
        at = (header >> 20) as usize & 0xffc;
        if at < 0x100 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_control_is_found_behind_other_capabilities() {
        let mut config = vec![0; 4096];
        // AER at 0x100, whose next is 0x140; ACS there with SrcValid, ReqRedir, CmpltRedir and UpstreamFwd (0x1d).
        config[0x100..0x104].copy_from_slice(&0x1401_0001_u32.to_le_bytes());
        config[0x140..0x144].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        config[0x146..0x148].copy_from_slice(&0x001d_u16.to_le_bytes());
        let on = Acs {
            source_validation: true,
            request_redirect: true,
            completion_redirect: true,
            upstream_forwarding: true,
        };
        assert_eq!(access_control(&config), Some(on));
        config[0x146] = 0;
        assert_eq!(access_control(&config), Some(Acs::default()));
        assert_eq!(access_control(&config[..64]), None);
        assert_eq!(access_control(&vec![0xff; 4096]), None);
        // A capability that is its own next.
        config[0x100..0x104].copy_from_slice(&0x1001_0001_u32.to_le_bytes());
        assert_eq!(access_control(&config), None);
    }

    #[test]
    fn what_matters() {
        assert!(matters("0x030200", NVIDIA));
        assert!(matters("0x068000", NVIDIA));
        assert!(matters("0x020700", "0x15b3"));
        assert!(matters("0x020000", "0x1d0f"));
        assert!(!matters("0x010802", "0x144d"));
        assert!(!matters("0x030000", "0x1a03"));
        assert!(!matters("", ""));
    }
}
