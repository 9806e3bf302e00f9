//! GPUs, NICs, and how they hang together.

use std::collections::{BTreeMap, BTreeSet};

use super::{Group, Seen, Sheet, tally};
use crate::facts::{Facts, Nvml, PciDevice, RdmaDevice, Reading};
use crate::topo::{self, Role};

pub(super) fn fill(sheet: &mut Sheet, facts: &Facts) {
    gpus(sheet, facts);
    nvml(sheet, facts);
    nics(sheet, facts);
    bus(sheet, facts);
}

fn numa(device: &PciDevice) -> String {
    device.numa.map_or("-".to_owned(), |node| node.to_string())
}

fn width(device: &PciDevice) -> String {
    let width = |lanes: Option<u32>| lanes.map_or("?".to_owned(), |lanes| format!("x{lanes}"));
    format!("{} of {}", width(device.link.width), width(device.link.max_width))
}

fn gpus(sheet: &mut Sheet, facts: &Facts) {
    let devices = &facts.pci.devices;
    let gpus = facts.pci.gpus();
    let mut about = |name: &str, show: &dyn Fn(&PciDevice) -> String, counted: bool| {
        let texts = gpus.iter().map(|gpu| show(gpu));
        let text = if counted { tally(texts) } else { texts.collect::<Vec<_>>().join(",") };
        sheet.fact(Group::Gpu, name, devices, |_| text);
    };
    let id = |gpu: &PciDevice| format!("PCI device {}", gpu.device.as_deref().unwrap_or("?"));
    about("on the PCI bus", &id, true);
    about("NUMA nodes", &numa, false);
    about("link width", &width, true);
}

fn nvml(sheet: &mut Sheet, facts: &Facts) {
    let fact = &facts.nvml;
    let mut tallied = |name: &str, show: &dyn Fn(usize, &Nvml) -> Option<String>| {
        sheet.fact(Group::Gpu, name, fact, |nvml| {
            tally(
                (0..nvml.gpus.len()).map(|index| show(index, nvml).unwrap_or_else(|| "not told".to_owned())),
            )
        });
    };
    tallied("product", &|index, nvml| Some(nvml.gpus.get(index)?.name.clone()));
    tallied("NVLinks up", &|index, nvml| Some(nvml.gpus.get(index)?.nvlinks_up?.to_string()));
    tallied("MIG", &|index, nvml| Some(if nvml.gpus.get(index)?.mig? { "on" } else { "off" }.to_owned()));
    tallied("compute mode", &|index, nvml| Some(nvml.gpus.get(index)?.compute_mode?.to_string()));
    tallied("persistence mode", &|index, nvml| {
        Some(if nvml.gpus.get(index)?.persistence? { "on" } else { "off" }.to_owned())
    });
    tallied("memory", &|index, nvml| Some(format!("{} GiB", nvml.gpus.get(index)?.memory_total? >> 30)));
}

/// Devices that are or may be rails, with what their port says.
fn nics(sheet: &mut Sheet, facts: &Facts) {
    let topology = topo::map(facts);
    let known = match facts.rdma.reading() {
        Reading::Unreadable(_) | Reading::NotLooked => Some(Seen::of(&facts.rdma, |_| String::new())),
        Reading::Value(_) | Reading::Absent => None,
    };
    let mut set = |name: &str, text: String| {
        sheet.set(Group::Rail, name, known.clone().unwrap_or(Seen::Value(text)));
    };
    set("devices", topology.devices.len().to_string());
    // In the order of the bus, whichever are down; domains of five digits come last.
    let mut rails: Vec<_> = topology.devices.iter().filter(|nic| nic.role != Role::Other).collect();
    rails.sort_by_key(|nic| nic.pci.as_deref().map(|address| (address.len(), address)));
    set("rails", rails.len().to_string());
    set("rails that are down", topology.with(Role::FailedRail).count().to_string());
    set(
        "rates of rails",
        tally(rails.iter().map(|nic| nic.gbits.map_or("unknown rate".to_owned(), |g| format!("{g} Gb/s")))),
    );
    set("NUMA nodes of rails", {
        let nodes = rails.iter().map(|nic| nic.numa.map_or("-".to_owned(), |node| node.to_string()));
        nodes.collect::<Vec<_>>().join(",")
    });
    let pins = topology.gpus.iter().map(|gpu| {
        let pins = gpu.rails.iter().map(|pin| format!("{} {}", pin.device, pin.distance));
        let down = topology.with(Role::FailedRail).filter(|nic| nic.gpus.contains(&gpu.index));
        let all: Vec<String> = pins.chain(down.map(|nic| format!("{} down", nic.name))).collect();
        if all.is_empty() { "none".to_owned() } else { all.join("+") }
    });
    set("rail of each GPU", pins.collect::<Vec<_>>().join(", "));
    let devices = || facts.rdma.value().into_iter().flatten();
    let ports = || {
        rails.iter().filter_map(|nic| {
            let device = devices().find(|device| device.name == nic.name)?;
            device.ports.iter().find(|port| port.number == nic.port)
        })
    };
    let layers = ports().map(|port| port.link_layer.clone().unwrap_or_else(|| "unknown".to_owned()));
    set("link layers of rails", tally(layers));
    set("partition keys of rails", tally(ports().map(|port| port.pkeys.join("+"))));
    // The index that NCCL_IB_GID_INDEX must name: of an IPv4 address of RoCE version 2.
    let index = ports().filter(|port| port.link_layer.as_deref() == Some("Ethernet")).map(|port| {
        let roce = |gid: &&crate::facts::Gid| {
            gid.kind.as_deref().is_some_and(|kind| kind.contains("v2")) && gid.gid.contains("0000:ffff:")
        };
        port.gids.iter().find(roce).map_or("none".to_owned(), |gid| gid.index.to_string())
    });
    set("index of the RoCE v2 address of rails", tally(index));
    firmware(sheet, devices());
    if let Some(unknown) = known {
        sheet.rest.insert(Group::Firmware, unknown);
    }
}

fn firmware<'a>(sheet: &mut Sheet, devices: impl Iterator<Item = &'a RdmaDevice>) {
    let mut kinds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for device in devices.filter(|device| device.pci.is_some()) {
        let part = device.board_id.as_deref().or(device.hca_type.as_deref()).unwrap_or("unnamed NICs");
        let version = device.firmware.clone().unwrap_or_else(|| "not told".to_owned());
        kinds.entry(part.to_owned()).or_default().insert(version);
    }
    for (part, versions) in kinds {
        let versions: Vec<String> = versions.into_iter().collect();
        sheet.set(Group::Firmware, part, Seen::Value(versions.join(" and ")));
    }
}

fn bus(sheet: &mut Sheet, facts: &Facts) {
    let kinds = |groups: &Vec<crate::facts::IommuGroup>| {
        tally(groups.iter().map(|group| group.kind.clone().unwrap_or_else(|| "unknown".to_owned())))
    };
    sheet.fact(Group::Host, "IOMMU groups of GPUs and NICs", &facts.iommu.groups, kinds);
    let units = |units: &Vec<String>| if units.is_empty() { "off" } else { "on" }.to_owned();
    sheet.fact(Group::Host, "IOMMU", &facts.iommu.units, units);
    let bridges: Vec<_> =
        facts.pci.devices.value().into_iter().flatten().filter_map(|device| device.acs).collect();
    let redirecting = bridges.iter().filter(|acs| acs.request_redirect || acs.completion_redirect).count();
    let seen = if bridges.is_empty() {
        Seen::Unknown("no bridge shows its access control".to_owned())
    } else {
        Seen::Value(format!("{redirecting} of {} bridges redirect", bridges.len()))
    };
    sheet.set(Group::Host, "PCI access control", seen);
}
