//! Whether jobs find room: nodes, the resources they offer, and what is in use.

use std::collections::{BTreeMap, BTreeSet};

use super::client::{clean, quoted};
use super::judge::{Judge, cause, reason, some};
use super::objects::{EFA, GPU, HUGE, Node, Usage};
use super::{NodeCapacity, Offer};
use crate::causes::CauseEntry;
use crate::check::Target;
use crate::finding::{Finding, Status};
use crate::render::count;

const RDMA: CauseEntry = CauseEntry {
    id: "rdma-plugin-selector",
    title: "a node offers no RDMA devices to pods",
    text: "The device plugin's selectors do not match its NICs, or the plugin does not run there: pods that ask for them stay Pending, pods that do not get none.",
};
const FREE: CauseEntry = CauseEntry {
    id: "kube-too-few-free-nodes",
    title: "fewer than two GPU nodes are free",
    text: "An inter-node job needs two nodes at once, whole; its pods stay Pending until then.",
};
const LABEL: CauseEntry = CauseEntry {
    id: "kube-gpu-label-missing",
    title: "GPU Feature Discovery's labels are missing",
    text: "The label goes while driver pods restart. A selector or affinity that names it leaves pods Pending.",
};
const SCHEDULE: CauseEntry = CauseEntry {
    id: "kube-node-unschedulable",
    title: "a GPU node takes no pods",
    text: "It is cordoned, not ready or under pressure. A driver reload cordons its node and uncordons it at the end; one that failed leaves it so.",
};
const MIX: CauseEntry = CauseEntry {
    id: "kube-mixed-products",
    title: "nodes with different GPUs",
    text: "An image is built for one GPU architecture: on the other it fails with `no kernel image is available for execution on the device`.",
};
const MPI: CauseEntry = CauseEntry {
    id: "kube-no-mpi-operator",
    title: "MPIJobs are not known to the cluster",
    text: "A manifest of kind MPIJob is refused, for the API server knows no such kind: the MPI Operator is not installed.",
};
const EFA_PLUGIN: CauseEntry = CauseEntry {
    id: "kube-efa-plugin-missing",
    title: "the EFA device plugin does not run",
    text: "Pods cannot ask for vpc.amazonaws.com/efa and fall back to TCP.",
};
const LOST: CauseEntry = CauseEntry {
    id: "kube-gpus-withdrawn",
    title: "a node offers fewer GPUs than it has",
    text: "The device plugin withdraws a GPU that it takes for unhealthy (an Xid, for example): pods that ask for a whole node stay Pending.",
};
const RDMA_LOST: CauseEntry = CauseEntry {
    id: "kube-rdma-withdrawn",
    title: "a node offers fewer RDMA devices than it has",
    text: "The device plugin withdraws a NIC that it takes for unhealthy: pods that ask for all of a node stay Pending.",
};
const RDMA_FEW: CauseEntry = CauseEntry {
    id: "kube-rdma-fewer-than-gpus",
    title: "a node offers fewer RDMA devices than it has GPUs",
    text: "A pod that asks for a NIC for each GPU stays Pending; with fewer, GPUs share a NIC and its bandwidth.",
};

pub(super) const CAUSES: &[CauseEntry] =
    &[RDMA, FREE, LABEL, SCHEDULE, MIX, MPI, EFA_PLUGIN, LOST, RDMA_LOST, RDMA_FEW];

/// The provider's examples for EFA ask for 5120 MiB.
const HUGE_WANTED: u64 = 5120 << 20;

/// What each node offers and what of it is free.
pub(super) fn capacities(judge: &Judge<'_>) -> Vec<NodeCapacity> {
    let Ok(mut nodes) = judge.gpu_nodes() else { return Vec::new() };
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let usage = judge.cluster.usage.as_ref().ok();
    let mut by_node: BTreeMap<&str, Vec<&Usage>> = BTreeMap::new();
    for one in usage.into_iter().flatten() {
        by_node.entry(&one.node).or_default().push(one);
    }
    let none = Vec::new();
    let one = |node: &&Node| {
        let pods = by_node.get(node.name.as_str()).unwrap_or(&none);
        let free = |name: &str, total: u64| {
            usage?;
            let used = pods
                .iter()
                .filter_map(|pod| pod.requests.get(name))
                .fold(0, |a: u64, b| a.saturating_add(*b));
            Some(total.saturating_sub(used))
        };
        let offer = |name: &str, total: u64| Offer { resource: clean(name), total, free: free(name, total) };
        let uses = |pod: &&&Usage| {
            pod.requests
                .iter()
                .any(|(name, count)| *count > 0 && (name == GPU || super::objects::is_rdma(name)))
        };
        NodeCapacity {
            node: clean(&node.name),
            product: node.product().map(clean),
            schedulable: node.ready == Some(true) && !node.cordoned,
            gpus: offer(GPU, node.gpus()),
            rdma: node.rdma().into_iter().map(|(name, total)| offer(name, total)).collect(),
            huge_pages: node.allocatable.get(HUGE).map(|total| offer(HUGE, *total)),
            taints: node.taints.iter().map(|taint| clean(taint)).collect(),
            used_by: pods.iter().filter(uses).take(4).map(|pod| clean(&pod.title())).collect(),
        }
    };
    nodes.iter().map(one).collect()
}

pub(super) fn check(judge: &Judge<'_>, capacities: &[NodeCapacity]) -> Vec<Finding> {
    let nodes = match judge.gpu_nodes() {
        Ok(nodes) => nodes,
        Err(refusal) => {
            return vec![judge.finding("P318", "get nodes").unknown(reason(refusal)), mpi(judge)];
        }
    };
    let mut all = vec![free(judge, capacities), mix(judge, &nodes), mpi(judge)];
    for node in &nodes {
        let find = |id: &str| judge.finding(id, "get nodes").about(clean(&node.name));
        all.push(schedulable(judge, node, find("P320")));
        all.push(withdrawn(judge, node, find("P329")));
        all.push(labels(judge, node, find("P319")));
        all.push(taints(node, find("P327")));
        all.push(rdma(judge, node, find("P316")));
        all.push(huge_pages(judge, node, find("P317")));
    }
    all.extend(efa_plugin(judge, &nodes));
    all
}

fn free(judge: &Judge<'_>, capacities: &[NodeCapacity]) -> Finding {
    let finding = judge.finding("P318", "get nodes, pods");
    let fit: Vec<&NodeCapacity> =
        capacities.iter().filter(|one| one.schedulable && one.gpus.total > 0).collect();
    let most = |all: &[&NodeCapacity]| {
        let mut counts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        for one in all {
            *counts.entry(one.product.as_deref()).or_default() += 1;
        }
        // A node without its label may be of any kind.
        let unlabelled = counts.remove(&None).unwrap_or(0);
        counts.into_values().max().unwrap_or(0) + unlabelled
    };
    let wanted = "two GPU nodes of one kind, with all GPUs and RDMA devices free";
    if most(&fit) < 2 {
        let observed = format!(
            "{}, of which {} take{} pods{}",
            count(capacities.len(), "GPU node"),
            fit.len(),
            if fit.len() == 1 { "s" } else { "" },
            kinds(&fit)
        );
        return finding
            .outcome(Status::Fail, &FREE)
            .saw(observed, wanted)
            .remedy("Add nodes of one kind to the pool, or bring back those that P320 names.", &[]);
    }
    if let Err(refusal) = &judge.cluster.usage {
        return finding
            .unknown(format!(
                "GPU nodes that take pods: {}; which of them are free is {}",
                fit.len(),
                reason(refusal)
            ))
            .advisory();
    }
    let whole = |one: &NodeCapacity| judge.node(&one.node).map(|node| short(judge, node)).unwrap_or_default();
    let idle: Vec<&NodeCapacity> =
        fit.iter().filter(|one| one.idle() && whole(one).is_empty()).copied().collect();
    let observed = format!("{} of {} GPU nodes are free", idle.len(), capacities.len());
    if most(&idle) >= 2 {
        return finding.saw(observed, "");
    }
    let used = |one: &NodeCapacity| {
        let by = if one.used_by.is_empty() { String::new() } else { format!(" by {}", some(&one.used_by)) };
        format!("{} {}/{} GPUs free, used{by}", one.node, one.gpus.free.unwrap_or(0), one.gpus.total)
    };
    let busy: Vec<String> = fit
        .iter()
        .filter_map(|one| match whole(one).as_slice() {
            [] if one.idle() => None,
            [] => Some(used(one)),
            lost => Some(format!("{} offers {}", one.node, some(lost))),
        })
        .collect();
    let observed = format!("{observed}: {}", some(&busy));
    // Busy nodes are no fault of the cluster; a benchmark waits, though.
    finding.outcome(Status::Warn, &FREE).saw(observed, wanted).remedy(
        "Wait until the jobs that are named end, mend what P316 and P329 say of nodes that offer less than they have, or add a node, before a benchmark of two nodes.",
        &[],
    )
}

/// Of which products nodes are, where that is why no two are of one kind.
fn kinds(nodes: &[&NodeCapacity]) -> String {
    if nodes.len() < 2 {
        return String::new();
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for one in nodes {
        *counts.entry(one.product.as_deref().unwrap_or("unlabelled")).or_default() += 1;
    }
    let all: Vec<String> = counts.iter().map(|(product, number)| format!("{number} x {product}")).collect();
    format!(", no two of one kind: {}", some(&all))
}

fn mix(judge: &Judge<'_>, nodes: &[&Node]) -> Finding {
    let finding = judge.finding("P321", "get nodes");
    let products: BTreeSet<&str> = nodes.iter().filter_map(|node| node.product()).collect();
    let names: Vec<String> = products.iter().map(|product| clean(product)).collect();
    match products.len() {
        0 => finding.not_applicable("no node names its product (P319)"),
        1 => finding.saw(some(&names), ""),
        _ => {
            let one = names.first().cloned().unwrap_or_default();
            finding
                .outcome(Status::Warn, &MIX)
                .saw(some(&names), "one product, or jobs that name theirs")
                .remedy(
                    "Name the product in every job, and take the image that is built for it.",
                    &[&format!("nodeSelector: {{nvidia.com/gpu.product: {one}}}")],
                )
        }
    }
}

fn mpi(judge: &Judge<'_>) -> Finding {
    let finding = judge.finding("P322", "get customresourcedefinitions");
    match &judge.cluster.definitions {
        Err(refusal) => finding.unknown(reason(refusal)).advisory(),
        Ok(all) if all.iter().any(|name| name == "mpijobs.kubeflow.org") => {
            finding.saw("mpijobs.kubeflow.org", "")
        }
        // EFA's published examples are MPIJobs; everything else starts from a plain Job.
        Ok(_) if judge.options.target == Target::DeepepEfa => finding
            .outcome(Status::Warn, &MPI)
            .saw("no definition mpijobs.kubeflow.org", "the MPI Operator, for jobs of kind MPIJob")
            .remedy("Install the MPI Operator, or start from an indexed Job.", &[]),
        Ok(_) => {
            finding.not_applicable("no definition mpijobs.kubeflow.org; only jobs of kind MPIJob need it")
        }
    }
}

fn schedulable(judge: &Judge<'_>, node: &Node, finding: Finding) -> Finding {
    let mut wrong = Vec::new();
    match node.ready {
        Some(true) => {}
        Some(false) => wrong.push("not ready".to_owned()),
        None => wrong.push("no condition Ready".to_owned()),
    }
    if node.cordoned {
        wrong.push("cordoned".to_owned());
    }
    wrong.extend(node.pressures.iter().map(|one| clean(one)));
    if wrong.is_empty() {
        return finding.saw("ready", "");
    }
    let name = quoted(&node.name);
    let mut steps = vec![judge.client.typed(&format!("describe node {name}"))];
    if node.cordoned {
        steps.push(judge.client.typed(&format!(
            "uncordon {name}      # once its driver pod is up, and if nobody holds it back on purpose"
        )));
    }
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    finding
        .outcome(Status::Warn, &SCHEDULE)
        .saw(wrong.join(", "), "ready and schedulable")
        .remedy("See why; until then no job runs on it.", &steps)
}

fn withdrawn(judge: &Judge<'_>, node: &Node, finding: Finding) -> Finding {
    let total = node.capacity.get(GPU).copied().unwrap_or(0);
    let offered = node.gpus();
    if offered >= total && offered > 0 {
        return finding.saw(format!("{offered} GPUs"), "");
    }
    let observed = if total == 0 { "no GPUs".to_owned() } else { format!("{offered} of {total} GPUs") };
    let wanted = if total == 0 { "its GPUs offered".to_owned() } else { format!("all {total}") };
    let pods = format!(
        "-n {} get pods -o wide --field-selector spec.nodeName={}",
        quoted(judge.namespace()),
        quoted(&node.name)
    );
    finding.outcome(Status::Fail, &LOST).saw(observed, wanted).remedy(
        "See the log of the node's device plugin pod and the Xids of its kernel log.",
        &[&judge.client.typed(&pods)],
    )
}

fn labels(judge: &Judge<'_>, node: &Node, finding: Finding) -> Finding {
    let missing: Vec<&str> = ["nvidia.com/gpu.product", "nvidia.com/gpu.present"]
        .into_iter()
        .filter(|label| node.labels.get(*label).is_none_or(String::is_empty))
        .collect();
    if missing.is_empty() {
        return finding.saw(node.product().map(clean).unwrap_or_default(), "");
    }
    let columns = "get nodes -L nvidia.com/gpu.product -L nvidia.com/gpu.present";
    finding.outcome(Status::Warn, &LABEL).saw(format!("no label {}", missing.join(", ")), "both labels").remedy(
        "Look again once the driver pods are 3/3; if it stays, see the pod gpu-feature-discovery of the node. Do not select nodes by it until then.",
        &[&judge.client.typed(columns)],
    )
}

fn taints(node: &Node, finding: Finding) -> Finding {
    // Kubernetes' own taints of a node that is not ready or cordoned are P320's.
    let taints: Vec<String> = node
        .taints
        .iter()
        .filter(|taint| !taint.starts_with("node.kubernetes.io/") && !taint.ends_with(":PreferNoSchedule"))
        .map(|taint| clean(taint))
        .collect();
    if taints.is_empty() {
        finding.saw("none", "")
    } else {
        finding.saw(format!("jobs must tolerate {}", some(&taints)), "")
    }
}

/// GPUs of a node, those that are withdrawn included.
fn all_gpus(node: &Node) -> u64 {
    node.capacity.get(GPU).copied().unwrap_or(0).max(node.gpus())
}

/// Whether each item of a resource is a NIC of its own. Those of the shared device plugin (`rdma/*`) are places for pods.
fn counts_devices(name: &str) -> bool {
    !name.starts_with("rdma/") && !name.contains("shared")
}

/// What a node offers less of than it has.
fn missing(node: &Node, name: &str, count: u64) -> Option<String> {
    let total = node.capacity.get(name).copied().unwrap_or(0);
    (count < total).then(|| format!("{} {count} of {total}", clean(name)))
}

/// Resources of RDMA devices that matter for the target, by name.
fn rdma_of<'a>(judge: &Judge<'_>, node: &'a Node) -> Vec<(&'a str, u64)> {
    let efa = judge.options.target == Target::DeepepEfa;
    node.rdma().into_iter().filter(|(name, _)| !efa || *name == EFA).collect()
}

/// What a job over the whole node would find missing: GPUs or RDMA devices that the node has and does not offer.
fn short(judge: &Judge<'_>, node: &Node) -> Vec<String> {
    let rdma = rdma_of(judge, node);
    let gpus = missing(node, GPU, node.gpus());
    gpus.into_iter().chain(lost_rdma(node, &rdma)).collect()
}

/// Whether what is offered suffices for a NIC for each GPU.
fn enough(node: &Node, rdma: &[(&str, u64)]) -> bool {
    let shared = rdma.iter().any(|(name, count)| *count > 0 && !counts_devices(name));
    let devices = rdma.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
    shared || devices >= all_gpus(node)
}

/// RDMA devices that are withdrawn. A resource of which nothing is left is no loss where another took its place.
fn lost_rdma(node: &Node, rdma: &[(&str, u64)]) -> Vec<String> {
    let replaced = enough(node, rdma);
    let partly = rdma.iter().filter(|(_, count)| *count > 0 || !replaced);
    partly.filter_map(|(name, count)| missing(node, name, *count)).collect()
}

fn rdma(judge: &Judge<'_>, node: &Node, finding: Finding) -> Finding {
    let all = rdma_of(judge, node);
    let offered: Vec<(&str, u64)> = all.iter().filter(|(_, count)| *count > 0).copied().collect();
    let lost = lost_rdma(node, &all);
    let gpus = all_gpus(node);
    let names: Vec<String> = offered.iter().map(|(name, count)| format!("{} {count}", clean(name))).collect();
    if !offered.is_empty() && lost.is_empty() && enough(node, &all) {
        return finding.saw(some(&names), "");
    }
    let (status, wanted) = match judge.options.target {
        Target::DeepepEfa => (Status::Fail, EFA),
        Target::DeepepIbgda => (Status::Fail, "nvidia.com/hostdev, one for each GPU, or rdma/*"),
        // A pod in the host's network with all devices needs none.
        Target::Expertrail | Target::Nccl => {
            (Status::Warn, "nvidia.com/hostdev, rdma/* or vpc.amazonaws.com/efa")
        }
    };
    let look =
        judge.client.typed("get pods --all-namespaces -o wide | grep -E 'rdma|sriov|network-operator|efa'");
    if !lost.is_empty() && !offered.is_empty() {
        return finding.outcome(status, &RDMA_LOST).saw(some(&lost), "all that the node has").remedy(
            "See the log of the device plugin's pod on the node, and the links of its NICs (P315); keep the node out of jobs until then.",
            &[&look],
        );
    }
    if !offered.is_empty() {
        // As with rails that were never there (P315): a node may be built so.
        return finding
            .outcome(Status::Warn, &RDMA_FEW)
            .saw(format!("{} for {gpus} GPUs", some(&names)), format!("at least {gpus}, one for each GPU"))
            .remedy(
                "See whether the selectors of the device plugin's configuration (vendor, device id) match all of the node's NICs.",
                &[&look],
            );
    }
    let zero: Vec<&str> = node.rdma().into_iter().map(|(name, _)| name).collect();
    let observed = if !lost.is_empty() {
        some(&lost)
    } else if zero.is_empty() {
        "no resource of RDMA devices".to_owned()
    } else {
        format!("{} 0", clean(&some(&zero)))
    };
    finding.outcome(status, &RDMA).saw(observed, wanted).remedy(
        "See the device plugin's pod on the node, and whether the selectors of its configuration (vendor, device id) match the node's NICs.",
        &[&look],
    )
}

fn huge_pages(judge: &Judge<'_>, node: &Node, finding: Finding) -> Finding {
    let efa = node.rdma().iter().any(|(name, _)| *name == EFA);
    if !efa && judge.options.target != Target::DeepepEfa {
        return finding.not_applicable("only EFA asks for them");
    }
    let have = node.allocatable.get(HUGE).copied().unwrap_or(0);
    let observed = format!("{HUGE} {}Mi", have >> 20);
    if have >= HUGE_WANTED {
        return finding.saw(observed, "");
    }
    finding.outcome(Status::Warn, cause("huge-pages-missing")).saw(observed, "5120Mi, as the provider's examples ask for").remedy(
        "Reserve huge pages on the node (vm.nr_hugepages=2560 in its user data), or lower what the job asks for: pods that ask for more stay Pending.",
        &[],
    )
}

fn efa_plugin(judge: &Judge<'_>, nodes: &[&Node]) -> Option<Finding> {
    let efa = nodes.iter().any(|node| node.rdma().iter().any(|(name, _)| *name == EFA));
    if !efa && judge.options.target != Target::DeepepEfa {
        return None;
    }
    let finding = judge.finding("P323", "get daemonsets");
    let sets = match &judge.cluster.daemonsets {
        Ok(sets) => sets,
        Err(refusal) => return Some(finding.unknown(reason(refusal)).advisory()),
    };
    let wanted = "aws-efa-k8s-device-plugin on every EFA node";
    Some(match sets.iter().find(|set| set.name.contains("efa") && set.name.contains("device-plugin")) {
        Some(set) if set.ready >= set.desired && set.desired > 0 => {
            finding.saw(format!("{} {}/{} ready", clean(&set.name), set.ready, set.desired), "")
        }
        Some(set) => finding
            .outcome(Status::Warn, &EFA_PLUGIN)
            .saw(format!("{} {}/{} ready", clean(&set.name), set.ready, set.desired), wanted)
            .remedy(
                "See which of its pods do not run.",
                &[&judge.client.typed(&format!(
                    "-n {} describe daemonset {}",
                    quoted(&set.namespace),
                    quoted(&set.name)
                ))],
            ),
        None if efa => finding.saw("no DaemonSet of that name; nodes offer EFA devices all the same", ""),
        None => finding.outcome(Status::Fail, &EFA_PLUGIN).saw("none", wanted).remedy(
            "Install the AWS EFA device plugin (chart aws-efa-k8s-device-plugin of eks-charts).",
            &[],
        ),
    })
}
