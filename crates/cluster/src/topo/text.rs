//! The mapping as text.

use std::fmt::Write;

use super::{Gpu, Nic, Role, Topology, emit};
use crate::render::one_line;

/// A table of GPUs, the devices with their reasons, and the pins of each rank.
pub fn text(topology: &Topology) -> String {
    let mut out = String::new();
    let node = topology.node.as_deref().unwrap_or("node");
    if let Some(reason) = &topology.inconclusive {
        line(&mut out, &format!("{node}: INCONCLUSIVE: {reason}"));
        if topology.all_down() {
            line(&mut out, "These are the rails; their ports must come up.");
        } else if !topology.devices.is_empty() && !topology.gpus.is_empty() {
            line(
                &mut out,
                "Name the rails with --hca LIST if you know them, or confirm them by the provider's topology file.",
            );
        }
    } else {
        let (gpus, rails) = (topology.gpus.len(), topology.with(Role::Rail).count());
        line(&mut out, &format!("{node}: {}, {}", many(gpus, "GPU"), many(rails, "rail")));
        if let Some(reason) = &topology.limited_by {
            let seen: Vec<String> =
                emit::ranked(topology).iter().map(|(_, gpu)| gpu.index.to_string()).collect();
            line(&mut out, &format!("visible by local rank: GPU {} ({reason})", seen.join(",")));
        }
        table(&mut out, &topology.gpus.iter().map(|gpu| row(topology, gpu)).collect::<Vec<_>>());
    }
    let rails = if topology.inconclusive.is_some() { "may be rails" } else { "rails" };
    for (role, title) in
        [(Role::FailedRail, "rails that are down"), (Role::Rail, rails), (Role::Other, "not rails")]
    {
        devices(&mut out, topology, role, title);
    }
    if topology.inconclusive.is_none() {
        pins(&mut out, topology);
    }
    out
}

/// `1 rail`, `2 rails`.
pub(super) fn many(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn line(out: &mut String, text: &str) {
    out.push_str(one_line(text).trim_end());
    out.push('\n');
}

/// Rows with their columns aligned.
fn table(out: &mut String, rows: &[[String; 6]]) {
    let head = ["GPU", "PCI", "NUMA", "rail", "distance", "how"].map(str::to_owned);
    let width = |column: usize| {
        let cells = rows.iter().chain([&head]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    out.push('\n');
    for row in [&head].into_iter().chain(rows) {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        line(out, &cells.join("  "));
    }
}

fn row(topology: &Topology, gpu: &Gpu) -> [String; 6] {
    let names: Vec<&str> = gpu.rails.iter().map(|pin| pin.device.as_str()).collect();
    let farthest = gpu.rails.iter().map(|pin| pin.distance).max();
    [
        gpu.index.to_string(),
        gpu.pci.clone(),
        numa(gpu.numa),
        if names.is_empty() { "none".to_owned() } else { names.join(",") },
        farthest.map_or("-".to_owned(), |distance| distance.to_string()),
        how(topology, gpu),
    ]
}

fn numa(node: Option<u32>) -> String {
    node.map_or("?".to_owned(), |node| node.to_string())
}

fn how(topology: &Topology, gpu: &Gpu) -> String {
    let down: Vec<&str> = topology
        .with(Role::FailedRail)
        .filter(|nic| nic.gpus.contains(&gpu.index))
        .map(|nic| nic.name.as_str())
        .collect();
    let mut parts = Vec::new();
    // The rails of one GPU may be of several classes; the word holds for all when the order decided for one.
    let tied = gpu.rails.iter().map(|pin| pin.tied).max().unwrap_or(0);
    if tied > topology.rails_per_gpu.max(1) {
        parts.push(format!("by order, {tied} tied"));
    } else if !gpu.rails.is_empty() {
        parts.push("nearest".to_owned());
    }
    if gpu.rails.iter().any(|pin| pin.shared) {
        parts.push("shared with another GPU".to_owned());
    }
    if !down.is_empty() {
        parts.push(format!("{} down", down.join(",")));
    }
    match gpu.rank {
        None if topology.unranked.is_none() => parts.push("not visible".to_owned()),
        Some(rank) if rank != gpu.index => parts.push(format!("rank {rank}")),
        _ => {}
    }
    parts.join(", ")
}

fn devices(out: &mut String, topology: &Topology, role: Role, title: &str) {
    let all: Vec<&Nic> = topology.with(role).collect();
    if all.is_empty() {
        return;
    }
    let name = all.iter().map(|nic| nic.name.chars().count()).max().unwrap_or(0);
    let _ = writeln!(out, "\n{title}:");
    for nic in all {
        let pci = nic.pci.as_deref().unwrap_or("-");
        line(out, &format!("  {:<name$}  {pci:<12}  NUMA {}  {}", nic.name, numa(nic.numa), nic.reason));
    }
}

fn pins(out: &mut String, topology: &Topology) {
    if let Some(reason) = &topology.unranked {
        line(out, "");
        line(out, &format!("no pins: {reason}"));
        return;
    }
    let ranks = if topology.limited_by.is_some() {
        "ranks are the visible GPUs'"
    } else {
        "rank N of the node is GPU N"
    };
    let _ = writeln!(out, "\npins ({ranks}; --emit env prints them as shell lines):");
    let nccl = emit::nccl_list(topology);
    if let Some(list) = &nccl {
        line(out, &format!("  every rank  NCCL_IB_HCA='{list}' NVSHMEM_ENABLE_NIC_PE_MAPPING=1"));
    } else {
        line(
            out,
            "  every rank  FI_PROVIDER=efa NVSHMEM_NETDEVS_POLICY=EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE",
        );
    }
    for (rank, gpu) in emit::ranked(topology) {
        let text = match (emit::pins(gpu), &nccl) {
            (None, _) => "no rail is up".to_owned(),
            (Some(_), None) => format!("libfabric domains {}", emit::domains(gpu)),
            (Some(pins), Some(_)) => format!("NVSHMEM_HCA_LIST={pins} UCX_NET_DEVICES={pins}"),
        };
        line(out, &format!("  rank {rank:<5}  {text}"));
    }
    if topology.gpus.iter().flat_map(|gpu| &gpu.rails).any(|pin| pin.tied > topology.rails_per_gpu.max(1)) {
        out.push_str(
            "Where the order of the bus decided, equal distance says nothing more: confirm the pairs by the provider's topology file or a fabric test.\n",
        );
    }
}
