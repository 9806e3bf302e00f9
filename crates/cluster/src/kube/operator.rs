//! The operators, and the resource that says how a driver is installed.

use super::client::clean;
use super::judge::{CONFIG_KEY, Judge, Parameters, old_gdrcopy, reason, some};
use super::objects::{Deployment, DriverResource, Node};
use crate::causes::CauseEntry;
use crate::check::Target;
use crate::finding::{Finding, Status};

const GPU_OPERATOR: CauseEntry = CauseEntry {
    id: "kube-no-gpu-operator",
    title: "no GPU Operator, or it does not run",
    text: "Nothing installs drivers, device plugins and labels on new GPU nodes.",
};
const NETWORK_OPERATOR: CauseEntry = CauseEntry {
    id: "kube-no-network-operator",
    title: "no Network Operator, or it is not ready",
    text: "It provides RDMA drivers and the device plugin that gives pods their NICs; on some clusters it can only be chosen when the cluster is created.",
};
const NOT_READY: CauseEntry = CauseEntry {
    id: "kube-driver-not-ready",
    title: "the driver resource is not ready",
    text: "Some of its driver pods do not run: their nodes have no driver, or an old one.",
};
const SKU: CauseEntry = CauseEntry {
    id: "kube-driver-resource-mismatch",
    title: "nodes and driver resources do not match",
    text: "A patch of the wrong resource changes nothing on the nodes that matter; a node that no resource selects, or two do, gets no driver.",
};
const PARTIAL: CauseEntry = CauseEntry {
    id: "kube-driver-patch-incomplete",
    title: "the driver resource lacks some of gdrcopy, kernelModuleConfig and rdma",
    text: "IBGDA needs all three: with a part of them pods start, and initialisation fails when the job runs.",
};
const CONFIG: CauseEntry = CauseEntry {
    id: "kube-driver-config-wrong",
    title: "the ConfigMap of driver parameters is missing or wrong",
    text: "The driver container loads the driver with the lines of the key nvidia.conf, one parameter each. Without them IBGDA fails with `cudaHostRegister with IoMemory failed with error=800`.",
};
const GDRCOPY: CauseEntry = CauseEntry {
    id: "kube-gdrcopy-settings",
    title: "the GDRCopy container's settings are incomplete or old",
    text: "Image, repository and version name the container that builds and loads gdrdrv; versions before 2.5 are not what the recipes were validated with.",
};

pub(super) const CAUSES: &[CauseEntry] =
    &[GPU_OPERATOR, NETWORK_OPERATOR, NOT_READY, SKU, PARTIAL, CONFIG, GDRCOPY];

pub(super) fn check(judge: &Judge<'_>) -> Vec<Finding> {
    let mut all = vec![gpu_operator(judge), network_operator(judge)];
    all.extend(resources(judge));
    all.extend(matches(judge));
    for resource in judge.in_use() {
        all.push(settings(judge, resource));
        all.push(config(judge, resource));
        all.extend(gdrcopy(judge, resource));
    }
    all
}

/// The first deployment whose name has `part`.
fn deployment<'a>(judge: &Judge<'a>, part: &str) -> Option<&'a Deployment> {
    judge.cluster.deployments.iter().flatten().find(|one| one.name.contains(part))
}

fn defined(judge: &Judge<'_>, name: &str) -> Option<bool> {
    judge.cluster.definitions.as_ref().ok().map(|all| all.iter().any(|one| one == name))
}

fn running(deployment: &Deployment) -> String {
    let Deployment { namespace, name, ready, wanted } = deployment;
    format!("{} {ready}/{wanted} ready", clean(&format!("{namespace}/{name}")))
}

fn gpu_operator(judge: &Judge<'_>) -> Finding {
    let finding = judge.finding("P301", "get deployments, customresourcedefinitions");
    let defined = defined(judge, "clusterpolicies.nvidia.com");
    match deployment(judge, "gpu-operator") {
        Some(found) if found.ready >= found.wanted.max(1) => return finding.saw(running(found), ""),
        Some(found) => {
            let show = format!("-n {} describe deployment {}", found.namespace, found.name);
            return finding
                .outcome(Status::Warn, &GPU_OPERATOR)
                .saw(running(found), "all replicas ready")
                .remedy("See why it does not run.", &[&judge.client.typed(&show)]);
        }
        None => {}
    }
    if let Err(refusal) = &judge.cluster.deployments {
        return finding.unknown(reason(refusal)).advisory();
    }
    let offered = judge.gpu_nodes().is_ok_and(|nodes| nodes.iter().any(|node| node.gpus() > 0));
    match (defined, offered) {
        (Some(true), _) => finding
            .outcome(Status::Warn, &GPU_OPERATOR)
            .saw("its definitions exist, no deployment does", "a deployment gpu-operator")
            .remedy("Install the operator again, or find out who manages drivers here.", &[]),
        (_, true) => {
            finding.not_applicable("none; GPUs are offered all the same: drivers belong to the nodes' image")
        }
        (Some(false), false) => finding
            .outcome(Status::Fail, &GPU_OPERATOR)
            .saw(
                "none, and no node offers GPUs",
                "the GPU Operator, or nodes with a driver and a device plugin",
            )
            .remedy("Install the NVIDIA GPU Operator.", &[]),
        (None, false) => match &judge.cluster.definitions {
            Err(refusal) => finding.unknown(reason(refusal)),
            Ok(_) => finding.unknown("no deployment has that name"),
        },
    }
}

fn network_operator(judge: &Judge<'_>) -> Finding {
    let finding = judge.finding("P302", "get nicclusterpolicies.mellanox.com, deployments");
    let nodes = judge.gpu_nodes().unwrap_or_default();
    let efa = nodes.iter().any(|node| node.rdma().iter().any(|(name, _)| *name == super::objects::EFA));
    if efa || judge.options.target == Target::DeepepEfa {
        return finding.not_applicable("EFA has a plugin of its own");
    }
    let offered = nodes.iter().any(|node| node.rdma().iter().any(|(_, count)| *count > 0));
    let wanted = "a NicClusterPolicy in state ready";
    match &judge.cluster.network {
        Ok(policies) if !policies.is_empty() => {
            let states: Vec<String> = policies
                .iter()
                .map(|(name, state)| {
                    clean(&format!("{name} {}", state.as_deref().unwrap_or("without state")))
                })
                .collect();
            let ready = policies
                .iter()
                .any(|(_, state)| state.as_deref().is_some_and(|state| state.eq_ignore_ascii_case("ready")));
            if ready {
                return finding.saw(some(&states), "");
            }
            finding.outcome(Status::Warn, &NETWORK_OPERATOR).saw(some(&states), wanted).remedy(
                "See which of its parts is not ready.",
                &[&judge.client.typed("get nicclusterpolicy -o yaml")],
            )
        }
        Err(refusal) if !refusal.absent() => finding.unknown(reason(refusal)).advisory(),
        _ => match deployment(judge, "network-operator") {
            Some(found) if found.ready >= found.wanted.max(1) && offered => finding.saw(running(found), ""),
            _ if offered => finding.not_applicable("none; nodes offer RDMA devices all the same"),
            found => {
                let observed = found.map_or("none, and no node offers RDMA devices".to_owned(), |found| {
                    format!("{}, without a NicClusterPolicy", running(found))
                });
                finding.outcome(Status::Warn, &NETWORK_OPERATOR).saw(observed, wanted).remedy(
                    "Install the NVIDIA Network Operator with a NicClusterPolicy; where the provider offers it as an add-on of a new cluster only, make such a cluster.",
                    &[],
                )
            }
        },
    }
}

/// One finding for each resource: its state.
fn resources(judge: &Judge<'_>) -> Vec<Finding> {
    let what = "get nvidiadrivers.nvidia.com, clusterpolicies.nvidia.com";
    let refused = judge.resources_refused().map(|refusal| {
        let finding = judge.finding("P303", what).unknown(reason(refusal));
        if judge.wants_keys() { finding } else { finding.advisory() }
    });
    let in_use = judge.in_use();
    let one = |resource: &&DriverResource| {
        let state = clean(resource.state.as_deref().unwrap_or("no state yet"));
        let finding = judge.finding("P303", what).about(clean(&resource.title()));
        if !in_use.iter().any(|used| std::ptr::eq(*used, *resource)) {
            return finding.not_applicable(format!("{state}; it backs no node with GPUs"));
        }
        if resource.ready() == Some(true) {
            return finding.saw(state, "");
        }
        let list = format!("-n {} get pods -l {} -o wide", judge.namespace(), judge.label());
        finding.outcome(Status::Fail, &NOT_READY).saw(state, "ready").remedy(
            "See which driver pods do not come up (P309 below says why, where their logs tell).",
            &[&judge.client.typed(&list)],
        )
    };
    refused.into_iter().chain(judge.resources().iter().map(one)).collect()
}

/// Names of GPUs as products and resources have them.
const SKUS: [&str; 12] =
    ["gb300", "gb200", "b300", "b200", "h200", "h100", "h800", "h20", "gh200", "a100", "a800", "l40"];

/// The kinds that a name has, longest first so that `h200` is not `h20` and `gb200` is not `b200`.
fn sku(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let mut found: Vec<&&str> = SKUS.iter().filter(|sku| name.contains(**sku)).collect();
    found.sort_by_key(|sku| std::cmp::Reverse(sku.len()));
    found.first().map(|sku| **sku)
}

/// For each product: the resource that backs its nodes.
fn matches(judge: &Judge<'_>) -> Vec<Finding> {
    let Ok(nodes) = judge.gpu_nodes() else { return Vec::new() };
    if judge.cluster.drivers.iter().flatten().next().is_none() {
        return Vec::new();
    }
    let mut products: Vec<Option<&str>> = nodes.iter().map(|node| node.product()).collect();
    products.sort_unstable();
    products.dedup();
    let one = |product: Option<&str>| {
        let named = clean(product.unwrap_or("nodes without a product label"));
        let finding = judge.finding("P304", "get nvidiadrivers.nvidia.com, nodes").about(named.clone());
        let own = |node: &Node| node.brings_driver() && judge.pod_on(&node.name).is_none();
        let (own, nodes): (Vec<&Node>, Vec<&Node>) =
            nodes.iter().filter(|node| node.product() == product).partition(|node| own(node));
        if nodes.is_empty() {
            let names: Vec<String> = own.iter().map(|node| clean(&node.name)).collect();
            return finding.not_applicable(format!("a driver of their own: {}", some(&names)));
        }
        let lonely: Vec<&str> = nodes
            .iter()
            .filter(|node| judge.backing(node).is_empty())
            .map(|node| node.name.as_str())
            .collect();
        let list = judge.client.typed("get nvidiadriver -o yaml      # spec.nodeSelector");
        if !lonely.is_empty() && judge.resources_refused().is_none() && product.is_none() {
            return finding
                .outcome(Status::Warn, &SKU)
                .saw(
                    format!("no driver resource selects {}, whose product is not labelled", clean(&some(&lonely))),
                    "one for every node",
                )
                .remedy(
                    "See P319 first: selectors go by the labels of GPU Feature Discovery, which are away while driver pods restart.",
                    &[&judge.again("once the labels are back")],
                );
        }
        if !lonely.is_empty() && judge.resources_refused().is_none() {
            return finding
                .outcome(Status::Fail, &SKU)
                .saw(format!("no driver resource selects {}", clean(&some(&lonely))), "one for every node")
                .remedy(
                    "Make a resource for these nodes, or label them as its nodeSelector wants.",
                    &[&list],
                );
        }
        let torn = nodes.iter().find(|node| judge.backing(node).len() > 1);
        if let Some(node) = torn {
            let names: Vec<String> = judge.backing(node).iter().map(|one| clean(&one.title())).collect();
            return finding
                .outcome(Status::Fail, &SKU)
                .saw(format!("{} is selected by {}", clean(&node.name), some(&names)), "one for every node")
                .remedy("Give the resources selectors that do not overlap.", &[&list]);
        }
        let mut backing: Vec<&DriverResource> = nodes.iter().flat_map(|node| judge.backing(node)).collect();
        backing.dedup_by(|a, b| std::ptr::eq(*a, *b));
        let names: Vec<String> = backing.iter().map(|one| clean(&one.title())).collect();
        let wrong = |one: &&DriverResource| {
            let kinds = (sku(&one.name), product.and_then(sku));
            matches!(kinds, (Some(a), Some(b)) if a != b)
        };
        match backing.iter().find(|one| wrong(one)) {
            Some(other) => finding
                .outcome(Status::Warn, &SKU)
                .saw(format!("backed by {}", clean(&other.title())), format!("a resource for {named}"))
                .remedy(
                    "Patch this resource, whatever its name says, or correct its nodeSelector.",
                    &[&list],
                ),
            None => finding.saw(format!("backed by {}", some(&names)), ""),
        }
    };
    products.into_iter().map(one).collect()
}

/// Whether all three settings are there.
fn settings(judge: &Judge<'_>, resource: &DriverResource) -> Finding {
    let finding =
        judge.finding("P305", "get nvidiadriver, clusterpolicy -o json").about(clean(&resource.title()));
    let parts = [
        ("gdrcopy.enabled", resource.gdrcopy.enabled == Some(true)),
        ("kernelModuleConfig", resource.config.is_some()),
        ("rdma.enabled", resource.rdma == Some(true)),
    ];
    let has = |wanted: bool| -> Vec<&str> {
        parts.iter().filter(|(_, set)| *set == wanted).map(|(name, _)| *name).collect()
    };
    let (set, missing) = (has(true), has(false));
    if missing.is_empty() {
        return finding.saw("gdrcopy, kernelModuleConfig and rdma are set", "");
    }
    let observed = match set.as_slice() {
        [] => "none of gdrcopy, kernelModuleConfig and rdma is set".to_owned(),
        _ => format!("{} set, {} missing", set.join(" and "), missing.join(" and ")),
    };
    if !judge.wants_keys() {
        return finding.not_applicable(format!("{observed}; {} needs none of them", judge.options.target));
    }
    finding
        .outcome(Status::Fail, &PARTIAL)
        .saw(observed, "all three, applied in one patch")
        .remedies([judge.whole_way(resource)])
}

/// Whether the `ConfigMap` has what the driver must load with.
fn config(judge: &Judge<'_>, resource: &DriverResource) -> Finding {
    let subject =
        resource.config.as_ref().map_or_else(|| resource.title(), |name| format!("configmap {name}"));
    let finding =
        judge.finding("P306", &format!("get configmap -n {}", judge.namespace())).about(clean(&subject));
    let Some(name) = &resource.config else {
        return finding.not_applicable("the resource names none (P305)");
    };
    let mend = |finding: Finding| {
        let now = judge.cluster.configs.get(name).and_then(|look| look.as_ref().ok());
        let mut steps = judge.config_steps(name, now);
        steps.push(judge.recycle(&[]));
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        finding.remedy("Write the ConfigMap that the resource names, then recycle the driver pods.", &steps)
    };
    let wanted =
        "key nvidia.conf with NVreg_EnableStreamMemOPs=1 and NVreg_RegistryDwords=\"PeerMappingOverride=1;\"";
    let config = match judge.cluster.configs.get(name) {
        Some(Ok(config)) => config,
        Some(Err(refusal)) if refusal.absent() => {
            return mend(finding.outcome(Status::Fail, &CONFIG).saw("it does not exist", wanted));
        }
        Some(Err(refusal)) => {
            let finding = finding.unknown(reason(refusal));
            return if judge.wants_keys() { finding } else { finding.advisory() };
        }
        None => return finding.unknown("it was not looked up"),
    };
    let Some(text) = config.data.get(CONFIG_KEY) else {
        let keys: Vec<String> = config.data.keys().map(|key| clean(key)).collect();
        let observed =
            if keys.is_empty() { "it is empty".to_owned() } else { format!("its keys are {}", some(&keys)) };
        return mend(finding.outcome(Status::Fail, &CONFIG).saw(observed, wanted));
    };
    let parameters = Parameters::read(text);
    if let Some(line) = parameters.prefixed.first() {
        let observed = format!("`{line}`: a line of modprobe.d");
        return mend(
            finding
                .outcome(Status::Fail, &CONFIG)
                .saw(observed, "parameters alone, without `options nvidia`"),
        );
    }
    let wrong = parameters.wrong();
    if !wrong.is_empty() && judge.wants_keys() {
        let observed = format!(
            "{} {} not in nvidia.conf",
            wrong.join(" and "),
            if wrong.len() == 1 { "is" } else { "are" }
        );
        return mend(finding.outcome(Status::Fail, &CONFIG).saw(observed, wanted));
    }
    if let Some(line) = parameters.strange.first() {
        return mend(
            finding
                .outcome(Status::Warn, &CONFIG)
                .saw(format!("`{line}` is no parameter"), "lines of the form NVreg_NAME=VALUE"),
        );
    }
    if wrong.is_empty() {
        finding.saw("both keys", "")
    } else {
        finding.not_applicable(format!("{} needs no driver keys", judge.options.target))
    }
}

/// What the resource says of GDRCopy's container, where it is on.
fn gdrcopy(judge: &Judge<'_>, resource: &DriverResource) -> Option<Finding> {
    let now = &resource.gdrcopy;
    if now.enabled != Some(true) {
        return None;
    }
    let finding =
        judge.finding("P307", "get nvidiadriver, clusterpolicy -o json").about(clean(&resource.title()));
    let parts = [("repository", &now.repository), ("image", &now.image), ("version", &now.version)];
    let missing: Vec<&str> = parts
        .iter()
        .filter(|(_, value)| value.as_deref().is_none_or(str::is_empty))
        .map(|(name, _)| *name)
        .collect();
    let version = now.version.as_deref().unwrap_or_default();
    let observed = if !missing.is_empty() {
        format!("gdrcopy is enabled without {}", missing.join(", "))
    } else if old_gdrcopy(version) == Some(true) {
        format!("version {}", clean(version))
    } else {
        return Some(finding.saw(clean(version), ""));
    };
    let wanted = "repository, image and version v2.5.0 or newer";
    let finding = finding.outcome(Status::Warn, &GDRCOPY).saw(observed, wanted);
    Some(finding.remedies([judge.whole_way(resource)]))
}

#[cfg(test)]
mod tests {
    use super::sku;

    #[test]
    fn kinds_of_gpus_in_names() {
        assert_eq!(sku("NVIDIA-H200"), Some("h200"));
        assert_eq!(sku("NVIDIA-GB200"), Some("gb200"));
        assert_eq!(sku("NVIDIA-H20"), Some("h20"));
        assert_eq!(sku("b200-driver"), Some("b200"));
        assert_eq!(sku("default"), None);
    }
}
