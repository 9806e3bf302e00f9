//! The mapping as variables for launchers, and as a topology file for NCCL.

use std::fmt::Write;

use super::{Gpu, Role, Topology};
use crate::facts::{Facts, Link, PciDevice};

/// The list that NCCL takes: exact names, with ports. Only NCCL knows the leading `=`, without which `mlx5_1` also means `mlx5_10` and on.
/// None for EFA, whose devices NCCL takes through its libfabric plugin.
pub(super) fn nccl_list(topology: &Topology) -> Option<String> {
    if topology.with(Role::Rail).any(|nic| nic.efa) {
        return None;
    }
    let rails: Vec<String> =
        topology.with(Role::Rail).map(|nic| format!("{}:{}", nic.name, nic.port)).collect();
    Some(format!("={}", rails.join(",")))
}

/// Pins of one GPU's rank, as NVSHMEM and UCX read them; none where it has no rail.
pub(super) fn pins(gpu: &Gpu) -> Option<String> {
    let pins: Vec<String> = gpu.rails.iter().map(|pin| format!("{}:{}", pin.device, pin.port)).collect();
    (!pins.is_empty()).then(|| pins.join(","))
}

/// The libfabric domains of an EFA rank: the provider calls the reliable domain of a device by its name and `-rdm`.
pub(super) fn domains(gpu: &Gpu) -> String {
    let names: Vec<String> = gpu.rails.iter().map(|pin| format!("{}-rdm", pin.device)).collect();
    names.join(",")
}

/// Shell lines that pin each local rank to its rails; to be sourced with `LOCAL_RANK` set. None where the mapping does not stand.
pub fn env(topology: &Topology) -> Option<String> {
    if topology.inconclusive.is_some() {
        return None;
    }
    let mut out = String::from(
        "# GPU to NIC pins of this node, by expertrail topo. In each rank, with LOCAL_RANK set:\n\
         #   eval \"$(expertrail topo --emit env)\"\n",
    );
    let nccl = nccl_list(topology);
    if let Some(list) = &nccl {
        let _ = writeln!(out, "export NCCL_IB_HCA='{list}'");
        out.push_str("export NVSHMEM_ENABLE_NIC_PE_MAPPING=1\n");
    } else {
        out.push_str(
            "# EFA: NVSHMEM and NCCL choose among the devices through libfabric. FI_EFA_IFACE=NAME,... would hide the others from a rank.\n\
             export FI_PROVIDER=efa\nexport NVSHMEM_REMOTE_TRANSPORT=libfabric\nexport NVSHMEM_LIBFABRIC_PROVIDER=efa\n\
             export NVSHMEM_NETDEVS_POLICY=EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE\n",
        );
    }
    out.push_str("case \"${LOCAL_RANK:?set LOCAL_RANK to the local rank}\" in\n");
    for gpu in &topology.gpus {
        let (index, pci) = (gpu.index, &gpu.pci);
        let _ = match (pins(gpu), &nccl) {
            (None, _) => {
                writeln!(out, "  {index}) echo 'no rail is up for GPU {index} ({pci})' >&2; false ;;")
            }
            (Some(_), None) => {
                writeln!(out, "  {index}) : ;;  # GPU {pci}, libfabric domains {}", domains(gpu))
            }
            (Some(pins), Some(_)) => {
                writeln!(
                    out,
                    "  {index}) export NVSHMEM_HCA_LIST={pins} UCX_NET_DEVICES={pins} ;;  # GPU {pci}"
                )
            }
        };
    }
    out.push_str("  *) echo \"no GPU has local rank $LOCAL_RANK\" >&2; false ;;\nesac\n");
    Some(out)
}

/// A topology file for `NCCL_TOPO_FILE`: NUMA nodes, the bridges that join devices, GPUs and rails. NCCL looks devices up by their bus
/// address and adds the rest itself (CPU model, compute capability, NVLink, names and speeds of NICs), so none of that is written here:
/// what a file says, NCCL keeps even where it is wrong. The form is that of NCCL's reader (`src/graph/xml.cc`); no NCCL has read the file
/// back here. None where the mapping does not stand.
pub fn nccl_xml(topology: &Topology, facts: &Facts) -> Option<String> {
    if topology.inconclusive.is_some() {
        return None;
    }
    let gpus = topology.gpus.iter().map(|gpu| (gpu.pci.as_str(), format!("GPU {}", gpu.index)));
    let rails = topology.with(Role::Rail).filter_map(|nic| Some((nic.pci.as_deref()?, nic.name.clone())));
    let mut leaves: Vec<Leaf<'_>> = gpus
        .chain(rails)
        .filter_map(|(address, name)| Some(Leaf { device: facts.pci.at(address)?, name }))
        .collect();
    leaves.sort_by(|a, b| a.device.address.cmp(&b.device.address));
    let mut numa: Vec<Option<u32>> = leaves.iter().map(|leaf| leaf.device.numa).collect();
    numa.sort_unstable();
    numa.dedup();
    let mut out = String::from("<system version=\"1\">\n");
    for node in numa {
        let _ = writeln!(out, "  <cpu numaid=\"{}\">", node.map_or(-1, i64::from));
        let mine: Vec<&Leaf<'_>> = leaves.iter().filter(|leaf| leaf.device.numa == node).collect();
        branch(&mut out, facts, &mine, 0);
        out.push_str("  </cpu>\n");
    }
    out.push_str("</system>\n");
    Some(out)
}

struct Leaf<'a> {
    device: &'a PciDevice,
    name: String,
}

/// The bridge of a path that is `depth` below its host bridge; the device itself is none.
fn bridge(device: &PciDevice, depth: usize) -> Option<&str> {
    let path = if device.path.len() > 4096 { "" } else { device.path.as_str() };
    let mut parts = path.split('/').filter(|part| part.contains(':') && part.contains('.')).skip(depth);
    let bridge = parts.next()?;
    parts.next().is_some().then_some(bridge)
}

/// Writes `leaves`, which share the bridges above `depth`: devices first, then each further bridge that joins several.
fn branch(out: &mut String, facts: &Facts, leaves: &[&Leaf<'_>], depth: usize) {
    let pad = " ".repeat(4 + 2 * depth.min(16));
    let mut behind: std::collections::BTreeMap<&str, Vec<&Leaf<'_>>> = std::collections::BTreeMap::new();
    let mut single = Vec::new();
    for leaf in leaves {
        // 32 bridges in a row are more than any machine has.
        match bridge(leaf.device, depth).filter(|_| depth < 32) {
            Some(bridge) => behind.entry(bridge).or_default().push(leaf),
            None => single.push(*leaf),
        }
    }
    // A bridge with one device behind it joins nothing.
    behind.retain(|_, joined| {
        if let [only] = joined.as_slice() {
            single.push(only);
        }
        joined.len() > 1
    });
    single.sort_by(|a, b| a.device.address.cmp(&b.device.address));
    for leaf in single {
        // A comment of XML must not hold `--`, which the name of a device may.
        let name = leaf.name.replace("--", "__");
        let _ = writeln!(out, "{pad}{}/> <!-- {name} -->", open(leaf.device, "0x000000"));
    }
    for (address, joined) in behind {
        let unknown = PciDevice { address: address.to_owned(), ..PciDevice::default() };
        let _ = writeln!(out, "{pad}{}>", open(facts.pci.at(address).unwrap_or(&unknown), "0x060400"));
        branch(out, facts, &joined, depth + 1);
        let _ = writeln!(out, "{pad}</pci>");
    }
}

/// The start of an element, not closed. What is not known is left out, and read from the machine by NCCL.
fn open(device: &PciDevice, class: &str) -> String {
    let mut text = format!(
        "<pci busid=\"{}\" class=\"{}\"",
        escape(&device.address),
        escape(device.class.as_deref().unwrap_or(class))
    );
    if let Some(speed) = Link::gigatransfers(device.link.max_speed.as_deref()) {
        let _ = write!(text, " link_speed=\"{speed:.1} GT/s PCIe\"");
    }
    if let Some(width) = device.link.max_width.filter(|width| (1..=32).contains(width)) {
        let _ = write!(text, " link_width=\"{width}\"");
    }
    text
}

fn escape(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).take(64).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
