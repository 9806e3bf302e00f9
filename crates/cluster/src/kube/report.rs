//! What was found of a cluster, as one document.

use std::fmt;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::inside::Device;
use super::matrix::Matrix;
use crate::check::{self, Target};
use crate::finding::Finding;
use crate::render;

/// The line of the guide's step 4 for one driver pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeLine {
    /// Node; the pod's name in brackets where it is on none yet.
    pub node: String,
    /// Driver pod.
    pub pod: String,
    /// For each container whether it is ready.
    pub ready: Vec<bool>,
    /// How many of the two driver keys are active; none where that is not known.
    pub params: Option<u8>,
    /// How many of `nvidia_peermem` and `gdrdrv` are loaded; none where that is not known.
    pub modules: Option<u8>,
}

impl fmt::Display for NodeLine {
    /// As the guide's loop prints it: `<node, 55 wide> ready=true/true/true params=2/2 modules=2/2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready: Vec<&str> = self.ready.iter().map(|one| if *one { "true" } else { "false" }).collect();
        let number = |count: Option<u8>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
        write!(
            f,
            "{:<55} ready={} params={}/2 modules={}/2",
            self.node,
            ready.join("/"),
            number(self.params),
            number(self.modules)
        )
    }
}

/// A resource of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offer {
    /// `nvidia.com/gpu`.
    pub resource: String,
    /// What pods can ask for.
    pub total: u64,
    /// What no pod has asked for; none where pods could not be listed.
    pub free: Option<u64>,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.free.map_or_else(|| "?".to_owned(), |free| free.to_string());
        f.pad(&format!("{free}/{}", self.total))
    }
}

/// What a node offers to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeCapacity {
    /// Node.
    pub node: String,
    /// Label `nvidia.com/gpu.product`.
    pub product: Option<String>,
    /// It is ready and not cordoned.
    pub schedulable: bool,
    /// Whole GPUs.
    pub gpus: Offer,
    /// RDMA devices, by resource.
    pub rdma: Vec<Offer>,
    /// Huge pages of 2 MiB, in bytes; none where the node has none.
    pub huge_pages: Option<Offer>,
    /// `key=value:Effect`.
    pub taints: Vec<String>,
    /// Pods that use GPUs or RDMA devices, the first few.
    pub used_by: Vec<String>,
}

impl NodeCapacity {
    /// Everything that a job over whole nodes wants is free.
    pub(super) fn idle(&self) -> bool {
        self.schedulable
            && self.gpus.total > 0
            && std::iter::once(&self.gpus).chain(&self.rdma).all(|offer| offer.free == Some(offer.total))
    }
}

/// RDMA devices and topology that some nodes have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeTopology {
    /// Nodes.
    pub nodes: Vec<String>,
    /// RDMA devices.
    pub devices: Vec<Device>,
    /// The matrix of `nvidia-smi topo -m`; none where it could not be read.
    pub matrix: Option<Matrix>,
}

/// What a driver resource says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resource {
    /// `nvidiadriver h200`, `clusterpolicy cluster-policy`.
    pub name: String,
    /// `ready`.
    pub state: Option<String>,
    /// `rdma.enabled`.
    pub rdma: Option<bool>,
    /// `gdrcopy`: `nvcr.io/nvidia/cloud-native/gdrdrv:v2.5.1`; none where it is not enabled.
    pub gdrcopy: Option<String>,
    /// `kernelModuleConfig.name`.
    pub config: Option<String>,
    /// `nodeSelector`: `key=value`.
    pub selector: Vec<String>,
    /// GPU nodes that it backs.
    pub nodes: usize,
}

/// What was found of a cluster (`expertrail.findings/1`, with more fields).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Context of the kubeconfig; none inside a pod.
    pub context: Option<String>,
    /// Address of the API server.
    pub server: Option<String>,
    /// Its version.
    pub server_version: Option<String>,
    /// Step 4 of the guide, by node.
    pub nodes: Vec<NodeLine>,
    /// Driver resources.
    pub resources: Vec<Resource>,
    /// What nodes offer, by node.
    pub capacities: Vec<NodeCapacity>,
    /// RDMA devices and topology, nodes that are alike together.
    pub topologies: Vec<NodeTopology>,
    /// Findings, verdict and counts.
    #[serde(flatten)]
    pub checks: check::Report,
}

impl Report {
    /// The findings, failures first.
    pub fn findings(&self) -> &[Finding] {
        &self.checks.findings
    }

    /// As [`check::Report::exit_code`].
    pub fn exit_code(&self, strict: bool) -> u8 {
        self.checks.exit_code(strict)
    }

    /// Cluster, nodes and topology, then the findings. `all` also shows what is right or does not matter.
    pub fn text(&self, all: bool) -> String {
        let mut out = String::new();
        let or = |text: &Option<String>, other: &str| text.clone().unwrap_or_else(|| other.to_owned());
        let _ = writeln!(
            out,
            "context {}, server {}, Kubernetes {}\n",
            or(&self.context, "of this pod"),
            or(&self.server, "unknown"),
            or(&self.server_version, "of unknown version")
        );
        for line in &self.nodes {
            let _ = writeln!(out, "{line}");
        }
        let below = |count: Option<u8>| count.is_some_and(|count| count < 2);
        let lacks = self.nodes.iter().any(|line| below(line.params) || below(line.modules));
        if lacks && matches!(self.checks.target, Target::Expertrail | Target::Nccl) {
            let _ = writeln!(
                out,
                "driver keys and modules are not demanded by {}: --for {} judges them",
                self.checks.target,
                Target::DeepepIbgda
            );
        }
        if !self.nodes.is_empty() {
            out.push('\n');
        }
        self.resource_lines(&mut out);
        self.capacity_lines(&mut out);
        for topology in &self.topologies {
            topology.text(&mut out);
        }
        out.push_str(&self.checks.text(all));
        out
    }

    fn resource_lines(&self, out: &mut String) {
        for one in &self.resources {
            let _ = writeln!(
                out,
                "{}: state {}, rdma {}, gdrcopy {}, kernelModuleConfig {}, for {} ({})",
                one.name,
                one.state.as_deref().unwrap_or("none"),
                one.rdma.map_or("not set", |on| if on { "enabled" } else { "disabled" }),
                one.gdrcopy.as_deref().unwrap_or("not enabled"),
                one.config.as_deref().unwrap_or("none"),
                if one.selector.is_empty() { "all nodes".to_owned() } else { one.selector.join(",") },
                render::count(one.nodes, "GPU node"),
            );
        }
        if !self.resources.is_empty() {
            out.push('\n');
        }
    }

    fn capacity_lines(&self, out: &mut String) {
        if self.capacities.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "{:<40} {:<28} {:<8} {:<10} free of allocatable",
            "node", "product", "takes", "GPUs"
        );
        for one in &self.capacities {
            let rdma: Vec<String> =
                one.rdma.iter().map(|offer| format!("{} {offer}", offer.resource)).collect();
            let huge = one.huge_pages.as_ref().filter(|offer| offer.total > 0).map(|offer| {
                let free = offer.free.map_or_else(|| "?".to_owned(), |free| (free >> 20).to_string());
                format!("hugepages-2Mi {free}/{} MiB", offer.total >> 20)
            });
            let rest: Vec<String> = rdma.into_iter().chain(huge).collect();
            let line = format!(
                "{:<40} {:<28} {:<8} {:<10} {}",
                one.node,
                one.product.as_deref().unwrap_or("-"),
                if one.schedulable { "pods" } else { "nothing" },
                one.gpus,
                rest.join(", ")
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out.push('\n');
    }
}

impl NodeTopology {
    fn text(&self, out: &mut String) {
        let _ = writeln!(out, "{}: RDMA devices", super::judge::some(&self.nodes));
        let matrix = self.matrix.as_ref();
        for device in &self.devices {
            let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            let at = matrix.and_then(|matrix| matrix.devices.iter().position(|name| *name == device.name));
            let class = matrix.zip(at).and_then(|(matrix, at)| matrix.nearest(at)).unwrap_or("-");
            let _ = writeln!(
                out,
                "  {:<12} {:<12} {:<24} {:<12} pkey {:<8} NUMA {:<3} nearest GPU {class}",
                device.name,
                or(&device.state),
                or(&device.rate),
                or(&device.link_layer),
                or(&device.pkey),
                device.numa.map_or_else(|| "-".to_owned(), |numa| numa.to_string()),
            );
        }
        if let Some(matrix) = matrix {
            let wide = matrix.devices.iter().map(String::len).max().unwrap_or(0).max(4) + 1;
            let mut line = |first: &str, cells: &[String]| {
                let mut line = format!("  {first:<wide$}");
                for cell in cells {
                    let _ = write!(line, "{:<wide$}", if cell.is_empty() { "-" } else { cell });
                }
                let _ = writeln!(out, "{}", line.trim_end());
            };
            line("", &matrix.devices);
            for (name, row) in matrix.devices.iter().zip(&matrix.rows) {
                line(name, row);
            }
        }
        out.push('\n');
    }
}
