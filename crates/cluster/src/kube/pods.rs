//! Driver pods: whether the patch took, and why one does not come up.

use super::client::{clean, quoted, without_credentials};
use super::judge::{Judge, reason, some};
use super::objects::{Container, DriverResource, GPU, Node, Pod, Usage};
use super::values::age;
use crate::causes::CauseEntry;
use crate::finding::{Finding, Remedy, Status};
use crate::render;

const RECYCLED: CauseEntry = CauseEntry {
    id: "kube-driver-pod-old",
    title: "the driver pod runs with an older configuration",
    text: "Driver pods are replaced only when they are deleted. One that was made before the patch has one container instead of three, and its driver keeps the parameters that it was loaded with.",
};
const DRAIN: CauseEntry = CauseEntry {
    id: "kube-driver-drain-blocked",
    title: "pods on the node block the reload of the driver",
    text: "Before a driver is reloaded its node is drained; a pod with local storage, or one that uses GPUs, keeps the driver pod in Init:CrashLoopBackOff.",
};
const STUCK: CauseEntry = CauseEntry {
    id: "kube-driver-pod-failing",
    title: "the driver pod does not come up",
    text: "Until it is ready its node has no driver that pods can use.",
};
const REFCOUNT: CauseEntry = CauseEntry {
    id: "gdrdrv-refcount-blocks-unload",
    title: "the old driver cannot be unloaded while gdrdrv holds it",
    text: "`Could not unload NVIDIA driver kernel modules, driver is in use` suggests a GPU workload; with GDRCopy's container the driver image's script does not count gdrdrv among the modules that may use the driver.",
};
const SYMBOLS: CauseEntry = CauseEntry {
    id: "peermem-mofed-symbol-mismatch",
    title: "nvidia_peermem was built against other RDMA modules than those that run",
    text: "The RDMA stack was replaced after the GPU driver was built: the kernel log says `nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client`, modprobe says `Invalid argument`.",
};
const STILL_LOADED: CauseEntry = CauseEntry {
    id: "peermem-sidecar-still-loaded",
    title: "the peermem container fails although its module is loaded",
    text: "nvidia_peermem stayed loaded over a restart of the pod and the container of some releases takes that for a failure. NICs can reach GPU memory all the same.",
};
const LOADER: CauseEntry = CauseEntry {
    id: "kube-module-loader-failing",
    title: "a module loader container of the driver pod fails",
    text: "nvidia_peermem or gdrdrv is not loaded, or will not be after the next restart.",
};
const NO_POD: CauseEntry = CauseEntry {
    id: "kube-node-without-driver-pod",
    title: "a GPU node has no driver pod",
    text: "Its driver does not follow the cluster's configuration, or it has none.",
};

pub(super) const CAUSES: &[CauseEntry] =
    &[RECYCLED, DRAIN, STUCK, REFCOUNT, SYMBOLS, STILL_LOADED, LOADER, NO_POD];

/// A pod younger than this may still be on its way: the guide waits 60 to 90 s for all three containers.
const STARTING: u64 = 120;

/// What the switches of the driver manager do.
const DURABLE: &str = "For good, where such pods are scheduled onto GPU nodes again and again: let the driver manager evict them. Their scratch data is lost.";

/// Containers that load the modules.
const PEERMEM: &str = "nvidia-peermem-ctr";
const GDRCOPY: &str = "nvidia-gdrcopy-ctr";

pub(super) fn check(judge: &Judge<'_>) -> Vec<Finding> {
    let what = format!("get pods -n {} -l {}", judge.namespace(), judge.label());
    if let Err(refusal) = &judge.cluster.pods {
        return vec![judge.finding("P309", &what).unknown(reason(refusal))];
    }
    let mut all = Vec::new();
    for pod in judge.pods() {
        let subject =
            pod.node.as_deref().map_or_else(|| pod.name.clone(), |node| format!("{node} ({})", pod.name));
        let find = |id: &str| judge.finding(id, &what).about(clean(&subject));
        let lacks = lacking(judge, pod);
        all.push(count(judge, pod, &lacks, find("P308")));
        all.push(state(judge, pod, find("P309")));
        if lacks.is_empty() {
            all.push(recycled(judge, pod, find("P310")));
        }
        all.extend(loaders(judge, pod, &|| find("P314")));
    }
    all.extend(without_pod(judge));
    all
}

/// Containers that the resource asks for and the pod does not have.
fn lacking(judge: &Judge<'_>, pod: &Pod) -> Vec<&'static str> {
    let resource = judge.resource_of(pod);
    wanted(resource).into_iter().filter(|name| !pod.wanted.iter().any(|one| one == name)).collect()
}

fn wanted(resource: Option<&DriverResource>) -> Vec<&'static str> {
    let Some(resource) = resource else { return Vec::new() };
    let parts = [(resource.rdma, PEERMEM), (resource.gdrcopy.enabled, GDRCOPY)];
    parts.into_iter().filter(|(on, _)| *on == Some(true)).map(|(_, name)| name).collect()
}

fn count(judge: &Judge<'_>, pod: &Pod, lacks: &[&str], finding: Finding) -> Finding {
    let resource = judge.resource_of(pod);
    let count = pod.count();
    let both = [PEERMEM, GDRCOPY].iter().all(|name| pod.wanted.iter().any(|one| one == name));
    let status = if judge.wants_modules() { Status::Fail } else { Status::Warn };
    let again = judge.again("60 to 90 s later");
    if !lacks.is_empty() {
        let observed = format!("{count}, without {}: made before the patch", lacks.join(" and "));
        return finding
            .outcome(status, &RECYCLED)
            .saw(observed, "3/3: driver, peermem and GDRCopy")
            .remedy(super::judge::RECYCLE, &[&judge.recycle(&[&pod.name]), &again]);
    }
    match resource {
        None if !both && judge.wants_modules() => finding
            .outcome(Status::Fail, &RECYCLED)
            .saw(format!("{count}, without module loaders"), "3/3: driver, peermem and GDRCopy")
            .remedy(
                "The resource behind this pod is not known: look whether it was patched, and recycle the pod after that.",
                &[&judge.client.typed("get nvidiadriver,clusterpolicy -o yaml"), &judge.recycle(&[&pod.name])],
            ),
        Some(_) if !both && judge.wants_modules() => {
            finding.not_applicable(format!("{count}, as the resource asks; P305 says what it lacks"))
        }
        _ => finding.saw(count, ""),
    }
}

/// Whether the pod was made after the last change of its configuration.
fn recycled(judge: &Judge<'_>, pod: &Pod, finding: Finding) -> Finding {
    let set = pod.daemonset.as_deref().and_then(|name| {
        let sets = judge.cluster.daemonsets.as_ref().ok()?;
        sets.iter().find(|one| one.namespace == judge.namespace() && one.name == name)
    });
    let template = set.and_then(|set| Some((set.template.as_deref()?, pod.template.as_deref()?)));
    let resource = judge.resource_of(pod);
    let config = resource
        .and_then(|resource| judge.cluster.configs.get(resource.config.as_ref()?))
        .and_then(|look| look.as_ref().ok());
    let after = |changed: Option<u64>| {
        let (changed, created) = (changed?, pod.created?);
        (changed > created).then(|| age(changed - created))
    };
    let observed = match template {
        Some((now, then)) if now != then => {
            Some(format!("made from template {} of its DaemonSet, which has {} now", clean(then), clean(now)))
        }
        // The template tells exactly; times only where it cannot.
        Some(_) => None,
        None => resource.and_then(|one| after(one.changed)).map(|later| {
            format!(
                "{} was changed {later} after the pod was made",
                clean(&resource.map_or_else(String::new, DriverResource::title))
            )
        }),
    };
    let observed = observed.or_else(|| {
        let later = after(config?.changed)?;
        Some(format!("configmap {} was changed {later} after the pod was made", clean(&config?.name)))
    });
    let Some(observed) = observed else {
        if template.is_none() && (pod.created.is_none() || resource.is_none_or(|one| one.changed.is_none())) {
            return finding.unknown("neither template generations nor times of changes are known").advisory();
        }
        return finding.saw("made from the configuration that holds now", "");
    };
    let inside = judge.cluster.inside.get(&pod.name).and_then(|look| look.as_ref().ok());
    let active = inside
        .is_some_and(|inside| inside.keys() == Some(2) && inside.missing().is_some_and(|all| all.is_empty()));
    // What the target needs may be active already; then the change was of something else.
    let status = if judge.wants_keys() && !active { Status::Fail } else { Status::Warn };
    finding
        .outcome(status, &RECYCLED)
        .saw(observed, "a pod made after the last change")
        .remedy("Recycle the driver pod.", &[&judge.recycle(&[&pod.name])])
}

/// Whether the pod is up, and if not, why.
fn state(judge: &Judge<'_>, pod: &Pod, finding: Finding) -> Finding {
    if pod.ready() && !pod.leaving {
        return finding.saw(format!("{} {}", pod.count(), clean(&pod.state())), "");
    }
    let state = if pod.leaving { "Terminating".to_owned() } else { clean(&pod.state()) };
    let failing = state.contains("BackOff") || state.contains("Error") || state.contains("ExitCode");
    let old = pod.created.map(|created| judge.now.saturating_sub(created));
    let observed = match old {
        Some(old) => format!("{} {state} for {}", pod.count(), age(old)),
        None => format!("{} {state}", pod.count()),
    };
    let finding = finding.saw(observed.clone(), "all containers ready");
    if let Some(found) = drain(judge, pod, &observed, &finding) {
        return found;
    }
    if let Some(found) = unload(judge, pod, &observed, &finding) {
        return found;
    }
    let namespace = quoted(judge.namespace());
    if !failing && old.is_some_and(|old| old < STARTING) {
        let label = pod.label.unwrap_or_else(|| judge.label());
        let watch = judge.client.typed(&format!("-n {namespace} get pods -l {label} -w"));
        return finding
            .outcome(Status::Warn, &STUCK)
            .remedy("Wait: driver, GDRCopy and peermem take 60 to 90 s.", &[&watch, &judge.again("then")]);
    }
    let describe = judge.client.typed(&format!("-n {namespace} describe pod {}", quoted(&pod.name)));
    let last = judge.cluster.logs.get(&pod.name).into_iter().flatten().find_map(|(container, log)| {
        let line = log.as_ref().ok()?.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(format!("{observed}; {} last wrote: {}", clean(container), clean(line)))
    });
    finding
        .saw(last.unwrap_or(observed), "all containers ready")
        .outcome(Status::Fail, &STUCK)
        .remedy("See its events and the log of the container that fails.", &[&describe])
}

/// The text of all logs of a pod that could be read.
fn logs(judge: &Judge<'_>, pod: &Pod) -> String {
    let logs = judge.cluster.logs.get(&pod.name).into_iter().flatten();
    logs.filter_map(|(_, log)| log.as_ref().ok()).map(String::as_str).collect::<Vec<_>>().join("\n")
}

/// The init container could not drain the node.
fn drain(judge: &Judge<'_>, pod: &Pod, observed: &str, finding: &Finding) -> Option<Finding> {
    if !pod.state().starts_with("Init:") {
        return None;
    }
    let log = logs(judge, pod);
    let storage = log.contains("cannot delete Pods with local storage");
    let undrained = log.contains("cannot proceed until all GPU pods are drained from the node");
    if !storage && !undrained {
        return None;
    }
    let node = pod.node.as_deref().unwrap_or("NODE");
    let named = blockers(&log);
    let on_node: Vec<&Usage> =
        judge.cluster.usage.iter().flatten().filter(|usage| usage.node == node).collect();
    let uses_gpu = |usage: &&&Usage| usage.requests.get(GPU).is_some_and(|count| *count > 0);
    // The error names the pods; where it was cut, those with local storage are the likely ones.
    let is_named =
        |usage: &Usage| named.contains(&usage.title()) || (storage && named.is_empty() && usage.scratch);
    // Pods of a Job end by themselves; a DaemonSet's are left alone by a drain.
    let (bounded, lasting): (Vec<&Usage>, Vec<&Usage>) = on_node
        .iter()
        .filter(|usage| usage.owner != "DaemonSet" && (uses_gpu(usage) || is_named(usage)))
        .copied()
        .partition(|usage| usage.owner == "Job");
    let titles = |all: &[&Usage]| all.iter().map(|one| clean(&one.title())).collect::<Vec<_>>();
    let mut lasting_names = titles(&lasting);
    let known: Vec<String> = on_node.iter().map(|usage| usage.title()).collect();
    lasting_names.extend(named.iter().filter(|name| !known.contains(name)).map(|name| clean(name)));
    let why = if storage { "pods with local storage block the drain" } else { "GPU pods block the drain" };
    let names: Vec<String> = titles(&bounded).into_iter().chain(lasting_names.clone()).collect();
    let observed = if names.is_empty() {
        format!("{observed}: {why}")
    } else {
        format!("{observed}: {why}: {}", some(&names))
    };
    let mut finding =
        finding.clone().outcome(Status::Fail, &DRAIN).saw(observed, "a node without GPU workload");
    if !bounded.is_empty() {
        finding = finding.remedy(
            &format!("Wait for {}: a job ends by itself, and the driver pod goes on at its next try. Never delete a provider's qualification test: it is the node's acceptance record.", some(&titles(&bounded))),
            &[],
        );
    }
    if !lasting_names.is_empty() || bounded.is_empty() {
        finding = finding.remedies([move_pods(judge, node, &lasting_names)]);
    }
    Some(finding.remedies(durable(judge, pod)))
}

/// Cordon, delete, uncordon: one node after the other.
fn move_pods(judge: &Judge<'_>, node: &str, names: &[String]) -> Remedy {
    let typed = |rest: String| judge.client.typed(&rest);
    let mut steps = vec![typed(format!("cordon {}", quoted(node)))];
    for name in names {
        if let Some((namespace, pod)) = name.split_once('/') {
            steps.push(typed(format!("-n {} delete pod {}", quoted(namespace), quoted(pod))));
        }
    }
    if names.is_empty() {
        steps.push(typed(format!("get pods --all-namespaces --field-selector spec.nodeName={}      # delete those that the log names", quoted(node))));
    }
    steps.push(typed(format!("uncordon {}      # once its driver pod is 3/3", quoted(node))));
    Remedy {
        manager: None,
        text: "Pods that last do not go by themselves: move them off, one node at a time, so that they land on a node whose driver is up already.".to_owned(),
        steps,
    }
}

/// The driver manager may drain such pods itself from now on.
fn durable(judge: &Judge<'_>, pod: &Pod) -> Option<Remedy> {
    let resource = judge.resource_of(pod)?;
    let switches = ["ENABLE_GPU_POD_EVICTION", "DRAIN_USE_FORCE", "DRAIN_DELETE_EMPTYDIR_DATA"];
    // A merge patch replaces the whole list: what it has stays in it.
    let mut env: Vec<serde_json::Value> = resource
        .env
        .iter()
        .filter(|one| !switches.iter().any(|name| one["name"] == *name))
        .cloned()
        .collect();
    let secret =
        env.iter().any(|one| one["value"].as_str().is_some_and(|value| without_credentials(value) != value));
    env.extend(switches.into_iter().map(|name| serde_json::json!({"name": name, "value": "true"})));
    let manager = serde_json::json!({"manager": {"env": env}});
    let (kind, spec) = if resource.policy {
        ("clusterpolicy", serde_json::json!({"spec": {"driver": manager}}))
    } else {
        ("nvidiadriver", serde_json::json!({"spec": manager}))
    };
    if secret {
        // A proxy's password, say, is not for a report, and without it the patch would break what uses it.
        let path = if resource.policy { "spec.driver.manager.env" } else { "spec.manager.env" };
        let edit = format!(
            "edit {kind} {}      # {path}: add {}, each with value \"true\"",
            quoted(&resource.name),
            switches.join(", ")
        );
        return Some(Remedy {
            manager: None,
            text: DURABLE.to_owned(),
            steps: vec![judge.client.typed(&edit)],
        });
    }
    let patch =
        format!("patch {kind} {} --type=merge -p {}", quoted(&resource.name), quoted(&spec.to_string()));
    Some(Remedy { manager: None, text: DURABLE.to_owned(), steps: vec![judge.client.typed(&patch)] })
}

/// Pods that a drain's error names: `cannot delete Pods with local storage (use ...): a/b, c/d`.
fn blockers(log: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in log.split("cannot delete ").skip(1).take(64) {
        let Some((_, list)) = part.lines().next().and_then(|line| line.split_once("): ")) else { continue };
        for word in list.split([',', ' ', ';']).map(|word| word.trim_matches(['.', '"', '\'', ']', ')'])) {
            let is_name = word.split_once('/').is_some_and(|(namespace, pod)| {
                !namespace.is_empty()
                    && !pod.is_empty()
                    && word.chars().all(|c| c.is_ascii_alphanumeric() || "-./".contains(c))
            });
            if is_name && !names.iter().any(|known| known == word) && names.len() < 64 {
                names.push(word.to_owned());
            }
        }
    }
    names
}

/// The old driver could not be unloaded.
fn unload(judge: &Judge<'_>, pod: &Pod, observed: &str, finding: &Finding) -> Option<Finding> {
    logs(judge, pod).contains("Could not unload NVIDIA driver kernel modules").then(|| {
        let node = quoted(pod.node.as_deref().unwrap_or("NODE"));
        let debug = format!("debug node/{node} -it --image=busybox:1.36 --profile=sysadmin -- chroot /host rmmod gdrdrv");
        finding
            .clone()
            .outcome(Status::Fail, &REFCOUNT)
            .saw(format!("{observed}: the old driver cannot be unloaded"), "all containers ready")
            .remedy(
                "With no GPU workload on the node: remove gdrdrv from its kernel (or reboot the node), then restart the driver pod; a newer driver image has the fix.",
                &[&judge.client.typed(&debug), &judge.recycle(&[&pod.name])],
            )
    })
}

/// What the module loaders of a pod say. Nothing while they are on their way: P309 tells that.
fn loaders(judge: &Judge<'_>, pod: &Pod, find: &dyn Fn() -> Finding) -> Vec<Finding> {
    let all: Vec<&Container> =
        pod.containers.iter().filter(|one| [PEERMEM, GDRCOPY].contains(&one.name.as_str())).collect();
    let troubled: Vec<Finding> = all.iter().filter_map(|one| loader(judge, pod, one, find())).collect();
    if !troubled.is_empty() {
        return troubled;
    }
    if !all.is_empty() && all.iter().all(|one| one.ready) {
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        return vec![find().saw(format!("{} ready", names.join(" and ")), "")];
    }
    Vec::new()
}

/// A module loader that is not ready.
fn loader(judge: &Judge<'_>, pod: &Pod, container: &Container, finding: Finding) -> Option<Finding> {
    let module = match container.name.as_str() {
        PEERMEM => "nvidia_peermem",
        GDRCOPY => "gdrdrv",
        _ => return None,
    };
    let trouble =
        container.waiting.as_deref().filter(|reason| reason.contains("BackOff") || reason.contains("Error"));
    let trouble = match (trouble, container.ended) {
        (Some(reason), _) => clean(reason),
        (None, Some(code)) if code != 0 => format!("ended with status {code}"),
        _ if !container.ready && container.restarts > 2 => format!("restarted {} times", container.restarts),
        _ => return None,
    };
    let log =
        judge.cluster.logs.get(&pod.name).into_iter().flatten().find(|(name, _)| *name == container.name);
    let log = log.and_then(|(_, log)| log.as_deref().ok()).unwrap_or_default();
    let inside = judge.cluster.inside.get(&pod.name).and_then(|look| look.as_ref().ok());
    let loaded = inside.and_then(super::inside::Inside::missing).map(|missing| !missing.contains(&module));
    let last = log.lines().rev().find(|line| !line.trim().is_empty()).map(clean);
    let observed =
        format!("{} {trouble}{}", container.name, last.map(|line| format!(": {line}")).unwrap_or_default());
    let finding = finding.saw(observed, "running and ready");
    let mismatch = log.contains("disagrees about version of symbol") || log.contains("Invalid argument");
    let status = if judge.wants_modules() { Status::Fail } else { Status::Warn };
    let recycle = judge.recycle(&[&pod.name]);
    Some(if module == "nvidia_peermem" && loaded == Some(true) {
        finding
            .outcome(Status::Warn, &STILL_LOADED)
            .remedy("A newer driver image has the fix; until then the module in the kernel serves.", &[])
    } else if module == "nvidia_peermem" && mismatch {
        finding.outcome(status, &SYMBOLS).remedy(
            "Restart the driver pod once the RDMA driver pod (mofed) is ready, so that the module is built against what runs; see dmesg on the node for the symbol. Or let NICs reach GPU memory by dma-buf, without spec.rdma.",
            &[&recycle],
        )
    } else {
        let show = format!(
            "-n {} logs {} -c {} --previous",
            quoted(judge.namespace()),
            quoted(&pod.name),
            container.name
        );
        finding
            .outcome(status, &LOADER)
            .remedy("Read its log; then restart the driver pod.", &[&judge.client.typed(&show), &recycle])
    })
}

/// GPU nodes that no driver pod is on, where the operator manages drivers.
fn without_pod(judge: &Judge<'_>) -> Vec<Finding> {
    let Ok(nodes) = judge.gpu_nodes() else { return Vec::new() };
    if !judge.operator() {
        return Vec::new();
    }
    let alone = nodes.iter().copied().filter(|node| judge.pod_on(&node.name).is_none());
    let (own, lacking): (Vec<&Node>, Vec<&Node>) = alone.partition(|node| node.brings_driver());
    if lacking.is_empty() && !nodes.is_empty() {
        let finding = judge.finding("P311", "get pods, nodes");
        let own: Vec<String> = own.iter().map(|node| clean(&node.name)).collect();
        return vec![match (nodes.len() - own.len(), own.is_empty()) {
            (0, _) => finding.not_applicable(format!("a driver of their own: {}", some(&own))),
            (all, true) => finding.saw(format!("one on each of {}", render::count(all, "GPU node")), ""),
            (all, false) => finding.saw(
                format!(
                    "one on each of {}; a driver of their own: {}",
                    render::count(all, "GPU node"),
                    some(&own)
                ),
                "",
            ),
        }];
    }
    lacking
        .iter()
        .map(|node| {
            let status = if node.gpus() == 0 { Status::Fail } else { Status::Warn };
            let pods = format!("-n {} get pods -o wide --field-selector spec.nodeName={}", quoted(judge.namespace()), quoted(&node.name));
            judge
                .finding("P311", "get pods, nodes")
                .about(clean(&node.name))
                .outcome(status, &NO_POD)
                .saw(format!("no driver pod; {} GPUs allocatable", node.gpus()), "a driver pod on every GPU node")
                .remedy(
                    "See whether its labels and taints keep the driver's DaemonSet away, or the node brings a driver of its own.",
                    &[&judge.client.typed(&pods), &judge.client.typed(&format!("describe node {}", quoted(&node.name)))],
                )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_a_drain_names() {
        let log = "evicting\nerror: unable to drain node \"n1\", aborting command...\ncannot delete Pods with local storage (use --delete-emptydir-data to override): monitoring/agent-x7, team/cache-0\ncannot proceed until all GPU pods are drained from the node\n";
        assert_eq!(blockers(log), ["monitoring/agent-x7", "team/cache-0"]);
        assert!(blockers("cannot delete Pods with local storage").is_empty());
        assert!(blockers("cannot delete Pods (x): $(rm -rf /)/a, /b, c/").is_empty());
    }
}
