//! The mapping as variables for launchers, and as a topology file for NCCL.

use std::fmt::Write;

use super::{Role, Topology};
use crate::facts::{Facts, Link, PciDevice};

/// Shell lines that pin each local rank to its rails; to be sourced with `LOCAL_RANK` set. None where the mapping does not stand.
pub fn env(topology: &Topology) -> Option<String> {
    if topology.inconclusive.is_some() {
        return None;
    }
    let rails: Vec<String> =
        topology.with(Role::Rail).map(|nic| format!("{}:{}", nic.name, nic.port)).collect();
    let efa = topology.with(Role::Rail).any(|nic| nic.efa);
    let mut out = String::from(
        "# GPU to NIC pins of this node, by expertrail topo. Source it in each rank, with LOCAL_RANK set:\n\
         #   eval \"$(expertrail topo --emit env)\"\n",
    );
    if efa {
        // EFA devices are not chosen by these lists: NVSHMEM and the NCCL plugin take them through libfabric.
        out.push_str("export FI_PROVIDER=efa\n");
        out.push_str("export NVSHMEM_REMOTE_TRANSPORT=libfabric\nexport NVSHMEM_LIBFABRIC_PROVIDER=efa\n");
        out.push_str("export NVSHMEM_NETDEVS_POLICY=EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE\n");
    } else {
        let list = rails.join(",");
        // Only NCCL knows the leading `=`, without which mlx5_1 also means mlx5_10 and on.
        let _ = writeln!(out, "export NCCL_IB_HCA='={list}'");
        out.push_str("export NVSHMEM_ENABLE_NIC_PE_MAPPING=1\n");
    }
    let _ = writeln!(out, "case \"${{LOCAL_RANK:?set LOCAL_RANK to the local rank}}\" in");
    for gpu in &topology.gpus {
        let pins: Vec<String> = gpu.rails.iter().map(|pin| format!("{}:{}", pin.device, pin.port)).collect();
        let names: Vec<&str> = gpu.rails.iter().map(|pin| pin.device.as_str()).collect();
        let exports = if pins.is_empty() {
            format!("echo 'no rail for GPU {}' >&2", gpu.index)
        } else if efa {
            format!("export EXPERTRAIL_NIC={0} FI_EFA_IFACE={0}", names.join(","))
        } else {
            format!(
                "export EXPERTRAIL_NIC={} NVSHMEM_HCA_LIST={1} UCX_NET_DEVICES={1}",
                names.join(","),
                pins.join(",")
            )
        };
        let _ = writeln!(out, "  {}) {exports} ;;  # GPU {}", gpu.index, gpu.pci);
    }
    out.push_str("  *) echo \"no GPU has local rank $LOCAL_RANK\" >&2 ;;\nesac\n");
    Some(out)
}

/// A topology file for `NCCL_TOPO_FILE`: NUMA nodes, the bridges below them, GPUs and rails. NCCL adds what it finds itself (NVLink).
/// None where the mapping does not stand. The form follows files that NCCL dumps (`NCCL_TOPO_DUMP_FILE`); it has not been read back
/// by NCCL here.
pub fn nccl_xml(topology: &Topology, facts: &Facts) -> Option<String> {
    if topology.inconclusive.is_some() {
        return None;
    }
    let mut leaves: Vec<Leaf<'_>> = Vec::new();
    for gpu in &topology.gpus {
        let device = facts.pci.at(&gpu.pci)?;
        leaves.push(Leaf { device, inner: format!("<gpu dev=\"{}\" rank=\"{0}\" gdr=\"1\"/>", gpu.index) });
    }
    for (index, nic) in topology.with(Role::Rail).enumerate() {
        let Some(device) = nic.pci.as_deref().and_then(|address| facts.pci.at(address)) else { continue };
        let guid = facts.rdma.value().into_iter().flatten().find(|rdma| rdma.name == nic.name);
        let guid = guid.and_then(|rdma| rdma.node_guid.as_deref()).unwrap_or("0").replace(':', "");
        let speed = nic.gbits.unwrap_or(0.0) * 1000.0;
        let inner = format!(
            "<nic><net name=\"{}\" dev=\"{index}\" speed=\"{speed}\" port=\"{}\" guid=\"0x{}\" maxconn=\"131072\" gdr=\"1\"/></nic>",
            escape(&nic.name),
            nic.port,
            escape(&guid)
        );
        leaves.push(Leaf { device, inner });
    }
    let mut numa: Vec<Option<u32>> = leaves.iter().map(|leaf| leaf.device.numa).collect();
    numa.sort_unstable();
    numa.dedup();
    let mut out = String::from("<system version=\"1\">\n");
    for node in numa {
        let _ = writeln!(out, "  <cpu numaid=\"{}\">", node.map_or(-1, i64::from));
        let mine: Vec<&Leaf<'_>> = leaves.iter().filter(|leaf| leaf.device.numa == node).collect();
        branch(&mut out, facts, &mine, 0, 4);
        out.push_str("  </cpu>\n");
    }
    out.push_str("</system>\n");
    Some(out)
}

struct Leaf<'a> {
    device: &'a PciDevice,
    inner: String,
}

/// Bridges of a path, below its host bridge.
fn bridges(device: &PciDevice) -> Vec<&str> {
    let parts = device.path.split('/').filter(|part| part.contains(':') && part.contains('.'));
    let mut all: Vec<&str> = parts.collect();
    all.pop();
    all
}

/// Writes the devices of `leaves` that are `depth` bridges down, and below them those behind a further bridge.
fn branch(out: &mut String, facts: &Facts, leaves: &[&Leaf<'_>], depth: usize, indent: usize) {
    let pad = " ".repeat(indent);
    for leaf in leaves.iter().filter(|leaf| bridges(leaf.device).len() == depth) {
        let _ = writeln!(out, "{pad}{}", open(leaf.device, &leaf.device.address));
        let _ = writeln!(out, "{pad}  {}\n{pad}</pci>", leaf.inner);
    }
    let mut below: Vec<&str> =
        leaves.iter().filter_map(|leaf| bridges(leaf.device).get(depth).copied()).collect();
    below.dedup();
    below.sort_unstable();
    below.dedup();
    for bridge in below {
        let behind: Vec<&Leaf<'_>> =
            leaves.iter().filter(|leaf| bridges(leaf.device).get(depth) == Some(&bridge)).copied().collect();
        // A bridge with one device behind it joins nothing; 64 is deeper than any PCI tree.
        if behind.len() == 1 || depth > 64 {
            for leaf in behind {
                let _ = writeln!(out, "{pad}{}", open(leaf.device, &leaf.device.address));
                let _ = writeln!(out, "{pad}  {}\n{pad}</pci>", leaf.inner);
            }
            continue;
        }
        let empty = PciDevice {
            address: bridge.to_owned(),
            class: Some("0x060400".to_owned()),
            ..PciDevice::default()
        };
        let _ = writeln!(out, "{pad}{}", open(facts.pci.at(bridge).unwrap_or(&empty), bridge));
        branch(out, facts, &behind, depth + 1, indent + 2);
        let _ = writeln!(out, "{pad}</pci>");
    }
}

fn open(device: &PciDevice, address: &str) -> String {
    let speed = Link::gigatransfers(device.link.max_speed.as_deref())
        .map_or(String::new(), |speed| format!("{speed:.1} GT/s PCIe"));
    format!(
        "<pci busid=\"{}\" class=\"{}\" link_speed=\"{speed}\" link_width=\"{}\">",
        escape(address),
        escape(device.class.as_deref().unwrap_or("0x000000")),
        device.link.max_width.unwrap_or(0)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
