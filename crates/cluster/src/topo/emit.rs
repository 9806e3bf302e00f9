//! The mapping as variables for launchers, and as a topology file for NCCL.

use std::fmt::Write;

use super::{Gpu, Role, Topology};
use crate::facts::{Facts, Link, PciDevice};
use crate::render::one_line;

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

/// Variables in which launchers tell the local rank, in the order in which they are looked at: torchrun and PyTorch, Slurm, Open MPI, Intel
/// MPI, MPICH and Hydra, MVAPICH, Cray PALS, Flux.
const RANKS: [&str; 8] = [
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
];

/// `text` as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.:,=-".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    let safe: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("'{}'", safe.replace('\'', "'\\''"))
}

/// Shell lines that say `reason` and fail: what `eval "$(...)"` gets where there are no pins, so that it does not pass.
pub fn refusal(reason: &str) -> String {
    format!("printf '%s\\n' {} >&2; false\n", quoted(reason))
}

/// Why there are no pins; none where there are.
pub fn unpinned(topology: &Topology) -> Option<String> {
    let hint = if topology.all_down() { "" } else { "; name the rails with --hca LIST" };
    match (&topology.inconclusive, &topology.unranked) {
        (Some(reason), _) => Some(format!("no pins: INCONCLUSIVE: {reason}{hint}")),
        (None, Some(reason)) => Some(format!("no pins: {reason}")),
        (None, None) => None,
    }
}

/// Shell lines that pin each local rank to its rails; to be sourced in each rank. None where [`unpinned`] tells a reason.
pub fn env(topology: &Topology) -> Option<String> {
    if unpinned(topology).is_some() {
        return None;
    }
    let mut out = format!(
        "# GPU to NIC pins of this node, by expertrail topo. In each rank, whose launcher sets LOCAL_RANK or its own variable:\n\
         #   eval \"$({})\"\n",
        topology.command()
    );
    if let Some(reason) = &topology.limited_by {
        let _ = writeln!(out, "# Ranks are those of the GPUs that are visible: {}", one_line(reason));
    }
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
    // The first that is set: ${A:-${B:-...}}.
    let rank = RANKS.iter().rev().fold(String::new(), |rest, name| format!("${{{name}:-{rest}}}"));
    let _ = writeln!(out, "expertrail_rank=\"{rank}\"\ncase \"$expertrail_rank\" in");
    let ranks = ranked(topology);
    // Where a rank sees one GPU of several, that one is its own, whatever its number.
    let only = ranks.len() == 1 && topology.gpus.len() > 1;
    if !only {
        let names = RANKS.join(", ");
        let _ = writeln!(out, "  '') echo 'no local rank: none of {names} is set' >&2; false ;;");
    }
    for (rank, gpu) in ranks {
        let (index, pci) = (gpu.index, &gpu.pci);
        let rank = if only { "*".to_owned() } else { rank.to_string() };
        let about =
            if rank == index.to_string() { format!("GPU {pci}") } else { format!("GPU {index}, {pci}") };
        let _ = match (pins(gpu), &nccl) {
            (None, _) => {
                writeln!(out, "  {rank}) echo 'no rail is up for GPU {index} ({pci})' >&2; false ;;")
            }
            (Some(_), None) => {
                writeln!(out, "  {rank}) : ;;  # {about}, libfabric domains {}", domains(gpu))
            }
            (Some(pins), Some(_)) => {
                writeln!(out, "  {rank}) export NVSHMEM_HCA_LIST={pins} UCX_NET_DEVICES={pins} ;;  # {about}")
            }
        };
    }
    if !only {
        out.push_str("  *) echo \"no GPU has local rank $expertrail_rank\" >&2; false ;;\n");
    }
    out.push_str("esac\n");
    Some(out)
}

/// The GPUs that have a local rank, in its order.
pub(super) fn ranked(topology: &Topology) -> Vec<(usize, &Gpu)> {
    let mut all: Vec<(usize, &Gpu)> = topology.gpus.iter().filter_map(|gpu| Some((gpu.rank?, gpu))).collect();
    all.sort_unstable_by_key(|&(rank, _)| rank);
    all
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
