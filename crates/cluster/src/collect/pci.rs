//! PCI devices that matter, and the bridges above them.

use std::collections::BTreeSet;

use super::rdma::is_address;
use crate::facts::{Acs, Fact, Link, Pci, PciDevice};
use crate::root::Root;

const DEVICES: &str = "/sys/bus/pci/devices";

const NVIDIA: &str = "0x10de";

/// Configuration space of a PCI Express function.
const CONFIG: u64 = 4096;

/// Reads every device that matters.
pub(super) fn pci(root: &Root) -> Pci {
    let names = root.list(DEVICES);
    let Some(all) = names.value() else {
        return Pci { devices: names.map(|_| Vec::new()) };
    };
    let mut wanted = BTreeSet::new();
    for address in all.iter().filter(|name| is_address(name)) {
        let folder = format!("{DEVICES}/{address}");
        let class = root.word(&format!("{folder}/class"));
        let vendor = root.word(&format!("{folder}/vendor"));
        if matters(class.value().map_or("", String::as_str), vendor.value().map_or("", String::as_str)) {
            wanted.insert(address.clone());
            let path = root.resolve(&folder);
            let above = path.value().map_or("", String::as_str).split('/').filter(|part| is_address(part));
            wanted.extend(above.map(str::to_owned));
        }
    }
    let devices = wanted.iter().map(|address| device(root, address)).collect();
    Pci { devices: Fact::read(devices, DEVICES, root.scope(DEVICES)) }
}

/// GPUs (0x03), NVSwitches (0x0680), everything of a network (0x02), virtual functions of RDMA devices included.
fn matters(class: &str, vendor: &str) -> bool {
    let network = class.starts_with("0x02");
    let gpu = class.starts_with("0x0300") || class.starts_with("0x0302");
    network || vendor == NVIDIA && (gpu || class.starts_with("0x0680"))
}

fn device(root: &Root, address: &str) -> PciDevice {
    let folder = format!("{DEVICES}/{address}");
    let word =
        |name: &str| root.word(&format!("{folder}/{name}")).value().filter(|word| !word.is_empty()).cloned();
    let resolved = root.resolve(&folder);
    // The kernel writes lanes it does not know as 255, and speeds as `Unknown`.
    let lanes = |name| word(name).and_then(|word| word.parse().ok()).filter(|lanes| (1..=64).contains(lanes));
    let speed = |name| word(name).filter(|speed| !speed.starts_with("Unknown"));
    PciDevice {
        address: address.to_owned(),
        path: resolved.value().cloned().unwrap_or_else(|| folder.clone()),
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
