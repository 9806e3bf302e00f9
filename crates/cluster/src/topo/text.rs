//! The mapping as text.

use std::fmt::Write;

use super::{Role, Topology};

/// A table of GPUs, the devices with their reasons, and the verdict.
pub fn text(topology: &Topology) -> String {
    let mut out = String::new();
    let node = topology.node.as_deref().unwrap_or("node");
    if let Some(reason) = &topology.inconclusive {
        let _ = writeln!(out, "{node}: INCONCLUSIVE: {reason}");
        let _ = writeln!(
            out,
            "Name the rails with --hca LIST if you know them, or confirm them by the provider's topology file."
        );
    } else {
        let _ = writeln!(
            out,
            "{node}: {} GPUs, {} rails",
            topology.gpus.len(),
            topology.with(Role::Rail).count()
        );
    }
    if topology.inconclusive.is_none() {
        let _ = writeln!(
            out,
            "\n{:<4} {:<14} {:>4}  {:<24} {:<12} how",
            "GPU", "PCI", "NUMA", "rail", "distance"
        );
        for gpu in &topology.gpus {
            let numa = gpu.numa.map_or("?".to_owned(), |numa| numa.to_string());
            let names: Vec<&str> = gpu.rails.iter().map(|pin| pin.device.as_str()).collect();
            let distance =
                gpu.rails.iter().map(|pin| pin.distance).max().map_or(String::new(), |d| d.to_string());
            let names = if names.is_empty() { "none".to_owned() } else { names.join(",") };
            let _ = writeln!(
                out,
                "{:<4} {:<14} {numa:>4}  {names:<24} {distance:<12} {}",
                gpu.index,
                gpu.pci,
                how(topology, gpu.index)
            );
        }
    }
    for (role, title) in
        [(Role::FailedRail, "rails that are down"), (Role::Rail, "rails"), (Role::Other, "not rails")]
    {
        if topology.with(role).next().is_some() {
            let _ = writeln!(out, "\n{title}:");
        }
        for nic in topology.with(role) {
            let numa = nic.numa.map_or("?".to_owned(), |numa| numa.to_string());
            let _ = writeln!(
                out,
                "  {:<14} {:<14} NUMA {numa:<3} {}",
                nic.name,
                nic.pci.as_deref().unwrap_or("-"),
                nic.reason
            );
        }
    }
    out
}

fn how(topology: &Topology, index: usize) -> String {
    let Some(gpu) = topology.gpus.get(index) else { return String::new() };
    let Some(pin) = gpu.rails.first() else { return "its rail is down or there is none".to_owned() };
    let mut how = if pin.tied > topology.rails_per_gpu.max(1) {
        format!("by order, {} tied", pin.tied)
    } else {
        "nearest".to_owned()
    };
    if pin.shared {
        how.push_str(", shared with another GPU");
    }
    if gpu.rails.len() < topology.rails_per_gpu {
        let _ = write!(how, ", {} down", topology.rails_per_gpu - gpu.rails.len());
    }
    how
}
