//! Checks of a Kubernetes cluster, through `kubectl`: steps 1 to 5 of the provider's guide, for all driver pods at once.
//!
//! Read-only: lists, `auth can-i`, logs, and `exec` of programs that only read. The one exception is asked for explicitly
//! ([`ProbeHost`]): a node debug pod, which is deleted again. Nothing is ever drained, patched or recycled; the commands that
//! would do so are printed.
//!
//! No cluster was at hand when this was written. It is tested with stand-ins for `kubectl`, and with `kubectl` itself against an
//! API server that the tests make (`tests/kube_server.rs`); `exec` has been seen by the stand-ins only.

mod access;
mod answer;
mod capacity;
pub mod client;
mod gather;
mod host;
mod inside;
mod judge;
mod kubectl;
mod matrix;
mod objects;
mod operator;
mod pods;
mod report;
pub mod rights;
mod state;
pub mod values;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;

pub use inside::Device;
pub use kubectl::{Kubectl, KubectlError, Output, Process};
pub use matrix::Matrix;
pub use report::{NodeCapacity, NodeLine, NodeTopology, Offer, Report, Resource};

use crate::causes::CauseEntry;
use crate::check::{self, Target};
use crate::environment::Managed;
use crate::finding::{Finding, Manager, Status};
use crate::profile::Profile;
use client::{Client, clean};
use gather::Cluster;
use judge::Judge;

/// Causes of these checks.
pub const CAUSES: &[&[CauseEntry]] =
    &[&[access::CAUSE], operator::CAUSES, pods::CAUSES, state::CAUSES, capacity::CAUSES, host::CAUSES];

/// Ids of the checks of this part with what each looks at. An id is never used again for something else.
pub const CHECKS: &[(&str, &str)] = &[
    ("P300", "permissions"),
    ("P301", "GPU Operator"),
    ("P302", "Network Operator"),
    ("P303", "driver resource"),
    ("P304", "driver resource of this kind of GPU"),
    ("P305", "gdrcopy, kernelModuleConfig and rdma of the driver resource"),
    ("P306", "ConfigMap of driver parameters"),
    ("P307", "GDRCopy container"),
    ("P308", "containers of the driver pod"),
    ("P309", "driver pod"),
    ("P310", "driver pod recycled after the last change"),
    ("P311", "driver pod on every GPU node"),
    ("P312", "driver keys of the loaded driver"),
    ("P313", "modules nvidia_peermem and gdrdrv"),
    ("P314", "module loader containers"),
    ("P315", "RDMA devices of the node"),
    ("P316", "RDMA devices offered to pods"),
    ("P317", "huge pages offered to pods"),
    ("P318", "free GPU nodes"),
    ("P319", "labels of GPU Feature Discovery"),
    ("P320", "node takes pods"),
    ("P321", "products of the GPU nodes"),
    ("P322", "MPIJob definition"),
    ("P323", "EFA device plugin"),
    ("P324", "NCCL topology file on the host"),
    ("P325", "node debug pod deleted"),
    ("P326", "topology matrix"),
    ("P327", "taints (for the job's tolerations)"),
    ("P328", "nodes of one kind are alike"),
    ("P329", "GPUs offered to pods"),
];

/// A finding of check `id`, with its title.
fn titled(id: &str) -> Finding {
    let title = CHECKS.iter().find(|(known, _)| *known == id).map_or("", |(_, title)| title);
    Finding::new(id, title)
}

/// On which nodes a debug pod looks for the provider's topology file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeHost {
    /// On none.
    #[default]
    No,
    /// On one node of each product.
    OnePerProduct,
    /// On every node with GPUs.
    EveryNode,
}

/// What is checked, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Context of the kubeconfig; none: the current one, which is then named in every call.
    pub context: Option<String>,
    /// The kubeconfig that the given [`Kubectl`] uses, where it is not the usual one: printed commands name it.
    pub kubeconfig: Option<PathBuf>,
    /// Name space of the driver pods.
    pub driver_namespace: String,
    /// What the cluster is wanted for.
    pub target: Target,
    /// Look for the topology file on the hosts.
    pub probe_host: ProbeHost,
    /// Profile that names the topology file; none: by provider and product of each node.
    pub profile: Option<Profile>,
    /// Time for everything.
    pub deadline: Duration,
    /// Time for one call.
    pub call_limit: Duration,
    /// Calls at once.
    pub threads: usize,
    /// Seconds since 1970; none: this machine's clock. Ages of pods are judged by it.
    pub now: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            kubeconfig: None,
            driver_namespace: "nvidia-gpu-operator".to_owned(),
            target: Target::default(),
            probe_host: ProbeHost::No,
            profile: None,
            deadline: Duration::from_mins(5),
            call_limit: Duration::from_mins(1),
            threads: 8,
            now: None,
        }
    }
}

/// Why a cluster could not be checked at all.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KubeError {
    /// kubectl does not run, or does not answer.
    #[error("{message}")]
    Kubectl {
        /// What is wrong.
        message: String,
    },
    /// No server that knows us answers.
    #[error(
        "the cluster of context `{context}` (server {server}) cannot be used: {message}; see `kubectl config get-contexts`, and name one with --context"
    )]
    Cluster {
        /// Context.
        context: String,
        /// Address.
        server: String,
        /// What kubectl said.
        message: String,
    },
}

/// What tells how far the check is.
type Step<'a> = &'a (dyn Fn(&str) + Sync);

/// Checks the cluster.
///
/// # Errors
/// When kubectl cannot be run or no cluster answers. That a part of it may not be read is a finding.
pub fn check(options: &Options, kubectl: &dyn Kubectl) -> Result<Report, KubeError> {
    check_with(options, kubectl, &|_| {})
}

/// As [`check()`], calling `step` with what it does next.
///
/// # Errors
/// As [`check()`].
pub fn check_with(
    options: &Options,
    kubectl: &dyn Kubectl,
    step: &(dyn Fn(&str) + Sync),
) -> Result<Report, KubeError> {
    let until = Instant::now() + options.deadline;
    let mut client = Client::new(kubectl, until, options.call_limit, options.threads);
    client.set_kubeconfig(options.kubeconfig.as_deref());
    step("reaching the cluster");
    let identity = gather::identity(&mut client, options)?;
    step("asking for permissions");
    let probe = options.probe_host != ProbeHost::No;
    let permissions = access::check(&client, &options.driver_namespace, probe);
    let cluster = gather::gather(&client, options, step);
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let judge = Judge::new(&cluster, &client, options, options.now.unwrap_or_else(clock));
    let capacities = capacity::capacities(&judge);
    let mut findings = vec![permissions];
    findings.extend(operator::check(&judge));
    findings.extend(pods::check(&judge));
    findings.extend(state::check(&judge));
    findings.extend(capacity::check(&judge, &capacities));
    findings.extend(host::check(&judge, step));
    let context = identity.context.as_deref().map(clean);
    let name = context.clone().unwrap_or_else(|| "the cluster".to_owned());
    Ok(Report {
        nodes: state::lines(&judge),
        resources: resources(&judge),
        topologies: topologies(&cluster),
        checks: check::Report::new(Some(name), options.target, managed(&judge), condense(findings)),
        context,
        server: identity.server,
        server_version: identity.version,
        capacities,
    })
}

/// Who manages the nodes' drivers.
fn managed(judge: &Judge<'_>) -> Managed {
    let offered = judge.gpu_nodes().is_ok_and(|nodes| nodes.iter().any(|node| node.gpus() > 0));
    let (manager, evidence) = if judge.operator() {
        (Manager::Operator, "nodes whose driver the GPU Operator manages: its driver pods or resources exist")
    } else if offered {
        (Manager::Machine, "nodes that bring their driver: GPUs are offered and there is no driver pod")
    } else {
        (Manager::Unknown, "neither driver pods nor offered GPUs tell who manages the nodes")
    };
    Managed { manager, evidence: evidence.to_owned(), container: false }
}

fn resources(judge: &Judge<'_>) -> Vec<Resource> {
    let nodes = judge.gpu_nodes().unwrap_or_default();
    let one = |resource: &&objects::DriverResource| {
        let copy = &resource.gdrcopy;
        let part = |text: &Option<String>| clean(text.as_deref().unwrap_or("?"));
        let backs =
            |node: &&&objects::Node| judge.backing(node).iter().any(|other| std::ptr::eq(*other, *resource));
        Resource {
            name: clean(&resource.title()),
            state: resource.state.as_deref().map(clean),
            rdma: resource.rdma,
            gdrcopy: (copy.enabled == Some(true))
                .then(|| format!("{}/{}:{}", part(&copy.repository), part(&copy.image), part(&copy.version))),
            config: resource.config.as_deref().map(clean),
            selector: resource.selector.iter().map(|(key, value)| clean(&format!("{key}={value}"))).collect(),
            nodes: nodes.iter().filter(backs).count(),
        }
    };
    judge.resources().iter().map(one).collect()
}

/// Devices and matrices; nodes that have the same are listed together.
fn topologies(cluster: &Cluster) -> Vec<NodeTopology> {
    let mut alike: std::collections::BTreeMap<(&[Device], Option<&Matrix>), Vec<String>> =
        std::collections::BTreeMap::new();
    for pod in cluster.pods.iter().flatten() {
        let (Some(node), Some(Ok(inside))) = (&pod.node, cluster.inside.get(&pod.name)) else { continue };
        let matrix = cluster.matrices.get(&pod.name).and_then(|look| look.as_ref().ok());
        alike.entry((&inside.devices, matrix)).or_default().push(clean(node));
    }
    let mut all: Vec<NodeTopology> = alike
        .into_iter()
        .map(|((devices, matrix), mut nodes)| {
            nodes.sort();
            NodeTopology { nodes, devices: devices.to_vec(), matrix: matrix.cloned() }
        })
        .collect();
    // The many first: what differs from them stands out below.
    all.sort_by(|a, b| b.nodes.len().cmp(&a.nodes.len()).then_with(|| a.nodes.cmp(&b.nodes)));
    all
}

/// As many findings that say the same of different nodes stay single; more become one.
const SAME: usize = 8;

/// Joins findings that say the same of many nodes, or say of several that all is right.
fn condense(findings: Vec<Finding>) -> Vec<Finding> {
    type Key = (String, u8, String, Option<String>);
    let mut groups: Vec<Vec<Finding>> = Vec::new();
    let mut places: std::collections::BTreeMap<Key, usize> = std::collections::BTreeMap::new();
    for finding in findings {
        let key =
            (finding.id.clone(), finding.status.order(), finding.observed.clone(), finding.cause.clone());
        let at = *places.entry(key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(at) {
            group.push(finding);
        }
    }
    groups.into_iter().flat_map(join).collect()
}

fn join(group: Vec<Finding>) -> Vec<Finding> {
    let right = |finding: &Finding| matches!(finding.status, Status::Pass | Status::NotApplicable);
    let most = if group.first().is_some_and(right) { 1 } else { SAME };
    if group.len() <= most {
        return group;
    }
    let subjects: Vec<String> = group.iter().filter_map(|finding| finding.subject.clone()).collect();
    let evidence: Vec<_> = group.iter().flat_map(|finding| finding.evidence.clone()).collect();
    let mut all = group.into_iter();
    let Some(mut first) = all.next() else { return Vec::new() };
    if !subjects.is_empty() {
        first.subject = Some(judge::some(&subjects));
    }
    first.evidence = evidence;
    first.evidence.dedup();
    // Remedies name single pods: one for each would fill the screen. The rest is in the evidence, and mended alike.
    if let (false, Some(remedy)) = (right(&first), first.remedies.first_mut()) {
        remedy.text.push_str(" The commands name the first node; the same goes for the others.");
    }
    vec![first]
}
