//! What a pod with GPUs needs: memory, devices, rights, files.

use super::finding::{Severity, Sink};
use super::nodes::Nodes;
use super::tree::Value;
use super::unit::{Pod, Role, Unit};

const EFA: &str = "vpc.amazonaws.com/efa";

pub(crate) fn check(unit: &Unit<'_>, nodes: &Nodes, sink: &mut Sink<'_>) {
    for pod in unit.pods.iter().filter(|pod| pod.role == Role::Worker) {
        if pod.resource("nvidia.com/gpu").is_none() {
            continue;
        }
        memory(unit, pod, sink);
        devices(unit, pod, sink);
        rights(unit, pod, sink);
        topology(unit, pod, sink);
        efa(unit, pod, nodes, sink);
    }
    for pod in &unit.pods {
        requests(unit, pod, sink);
    }
}

/// Bytes of a quantity.
fn bytes(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let unit = match &text[end..] {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "m" => 1e-3,
        _ => return None,
    };
    Some(number * unit)
}

/// Volumes with the folder where each is mounted.
fn mounts<'p>(pod: &'p Pod<'_>) -> Vec<(String, Option<&'p Value>, usize)> {
    let volumes = pod.spec.get("volumes").map(Value::items).unwrap_or_default();
    let mounts = pod.container.get("volumeMounts").map(Value::items).unwrap_or_default();
    mounts
        .iter()
        .filter_map(|mount| {
            let (name, path) = (mount.text_at("name")?, mount.text_at("mountPath")?);
            let volume = volumes.iter().find(|volume| volume.text_at("name").as_deref() == Some(&name));
            Some((path.trim_end_matches('/').to_owned(), volume, mount.line_of("mountPath")))
        })
        .collect()
}

fn memory(unit: &Unit<'_>, pod: &Pod<'_>, sink: &mut Sink<'_>) {
    const SMALL: f64 = 8.0 * 1024.0 * 1024.0 * 1024.0;
    let wanted = "volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}], mounted at /dev/shm";
    let shm = mounts(pod).into_iter().find(|(path, _, _)| path == "/dev/shm");
    let Some((_, volume, line)) = shm else {
        if !pod.spec.flag_at("hostIPC") {
            sink.add("N080", unit.at(pod.container.line), "nothing is mounted at /dev/shm").fix(wanted);
        }
        return;
    };
    let Some(empty) = volume.and_then(|volume| volume.get("emptyDir")) else { return };
    if empty.text_at("medium").as_deref() != Some("Memory") {
        sink.add("N080", unit.at(line), "the volume at /dev/shm is not in memory").fix("medium: Memory");
    }
    let limit = empty.text_at("sizeLimit").and_then(|text| bytes(&text));
    if limit.is_some_and(|limit| limit < SMALL) {
        let size = empty.text_at("sizeLimit").unwrap_or_default();
        sink.add(
            "N080",
            unit.at(empty.line_of("sizeLimit")),
            format!("/dev/shm has {size} for all ranks of a node"),
        )
        .weigh(Severity::Warn)
        .fix("sizeLimit: 64Gi");
    }
}

fn devices(unit: &Unit<'_>, pod: &Pod<'_>, sink: &mut Sink<'_>) {
    let rdma = |name: &&str| {
        *name == "nvidia.com/hostdev"
            || *name == EFA
            || name.contains("rdma")
            || name.contains("hca")
            || name.contains("/ib")
            || name.contains("sriov")
            || name.contains("roce")
    };
    let attached = pod.resources().iter().any(rdma)
        || pod.spec.flag_at("hostNetwork")
        || pod.privileged()
        // Devices by claim, or by networks that an annotation attaches.
        || pod.container.path(&["resources", "claims"]).is_some()
        || pod.template.path(&["metadata", "annotations"]).is_some_and(|all| {
            all.entries().iter().any(|entry| entry.key.contains("cncf.io/networks") || entry.key.contains("networking.gke.io"))
        })
        || mounts(pod).iter().any(|(path, _, _)| path.starts_with("/dev/infiniband"));
    if unit.across_nodes() && !attached && !pod.within_a_node() {
        let line = pod.resource("nvidia.com/gpu").map_or(pod.container.line, |(_, line)| line);
        sink.add("N081", unit.at(line), "GPUs and no RDMA devices are asked for, on several nodes")
            .fix("nvidia.com/hostdev: \"8\", rdma/NAME: 1 or vpc.amazonaws.com/efa: N (kubectl describe node, Allocatable)");
    }
}

fn rights(unit: &Unit<'_>, pod: &Pod<'_>, sink: &mut Sink<'_>) {
    let added = pod.capabilities();
    let has =
        |name: &str| added.iter().any(|(cap, _)| cap.trim_start_matches("CAP_") == name || cap == "ALL");
    if unit.across_nodes() && !has("IPC_LOCK") && !pod.privileged() {
        sink.add("N082", unit.at(pod.container.line_of("securityContext")), "the container has no IPC_LOCK")
            .fix("securityContext: {capabilities: {add: [IPC_LOCK]}}");
    }
    // DeepEP's own tests between nodes use a profiler, which needs it where the driver restricts counters.
    let profiles = unit.deepep_tests().any(|(_, _, test)| test != "test_intranode.py");
    if let Some((_, line)) = added.iter().find(|(cap, _)| cap.trim_start_matches("CAP_") == "SYS_ADMIN")
        && !profiles
    {
        sink.add("N083", unit.at(*line), "SYS_ADMIN is added").fix("leave it away");
    } else if pod.privileged()
        && let Some(context) = pod.container.get("securityContext")
    {
        sink.add("N083", unit.at(context.line_of("privileged")), "the container is privileged")
            .fix("capabilities IPC_LOCK and the devices as resources");
    }
}

fn topology(unit: &Unit<'_>, pod: &Pod<'_>, sink: &mut Sink<'_>) {
    let mounts = mounts(pod);
    if let Some(setting) = unit.setting("NCCL_TOPO_FILE").filter(|setting| setting.decided)
        && setting.value.starts_with("/etc/")
        && !mounts.iter().any(|(path, _, _)| setting.value.starts_with(&format!("{path}/")))
    {
        let folder = setting.value.split('/').take(3).collect::<Vec<_>>().join("/");
        sink.add(
            "N084",
            setting.at,
            format!("NCCL_TOPO_FILE is {} and {folder} is not mounted", setting.value),
        )
        .fix(format!(
            "a hostPath volume of {folder} (type: Directory), mounted there; or leave the variable away"
        ));
    }
    for volume in pod.spec.get("volumes").map(Value::items).unwrap_or_default() {
        let Some(host) = volume.get("hostPath") else { continue };
        let path = host.text_at("path").unwrap_or_default();
        let kind = host.text_at("type").unwrap_or_default();
        if path.starts_with("/dev") || path.starts_with("/sys") {
            continue;
        }
        if matches!(kind.as_str(), "" | "DirectoryOrCreate" | "FileOrCreate") {
            let seen = if kind.is_empty() { "no type".to_owned() } else { format!("type {kind}") };
            sink.add("N085", unit.at(host.line_of("path")), format!("hostPath {path} has {seen}"))
                .fix("type: Directory");
        }
    }
}

/// What the API server refuses.
fn requests(unit: &Unit<'_>, pod: &Pod<'_>, sink: &mut Sink<'_>) {
    for container in pod.spec.get("containers").map(Value::items).unwrap_or_default() {
        let part = |name: &str| container.path(&["resources", name]);
        let (requests, limits) = (part("requests"), part("limits"));
        for entry in requests.map(Value::entries).unwrap_or_default() {
            let Some(asked) = entry.value.text() else { continue };
            let limit = limits.and_then(|limits| limits.text_at(&entry.key));
            let extended = entry.key.contains('/') || entry.key.starts_with("hugepages-");
            let name = &entry.key;
            if asked.contains('$') || limit.as_ref().is_some_and(|limit| limit.contains('$')) {
                continue;
            }
            let more = limit.as_ref().and_then(|limit| Some(bytes(&asked)? > bytes(limit)?)).unwrap_or(false);
            if extended && limit.as_deref() != Some(asked.as_str()) {
                let seen = limit.map_or("has no limit".to_owned(), |limit| format!("has the limit {limit}"));
                sink.add("N086", unit.at(entry.line), format!("{name}: {asked} is requested and {seen}"))
                    .fix(format!("{name}: \"{asked}\" in requests and limits"));
            } else if more {
                let limit = limit.unwrap_or_default();
                sink.add(
                    "N086",
                    unit.at(entry.line),
                    format!("{name}: {asked} is requested and the limit is {limit}"),
                )
                .fix(format!("{name}: a request of at most {limit}"));
            }
        }
        let gpus = part("limits").is_some_and(|limits| limits.get("nvidia.com/gpu").is_some());
        let asked = [requests, limits].into_iter().flatten().any(|part| part.get("memory").is_some());
        if gpus && !asked {
            sink.add("N087", unit.at(container.line_of("resources")), "GPUs are asked for and no memory")
                .fix("memory just below what the node can give: kubectl describe node, Allocatable");
        }
    }
}

fn efa(unit: &Unit<'_>, pod: &Pod<'_>, nodes: &Nodes, sink: &mut Sink<'_>) {
    let count = pod.resource(EFA);
    if let Some((count, line)) = count {
        let wanted = nodes.profile.as_ref().and_then(|profile| profile.efa_devices).map(u64::from);
        let known = nodes.instance.as_ref().map(|(name, _)| name.as_str()).unwrap_or_default();
        let wanted = wanted.or_else(|| known.starts_with("p4d").then_some(4));
        if let Some(wanted) = wanted.filter(|wanted| *wanted != count) {
            let name = nodes.profile.as_ref().map_or(known, |profile| profile.title.as_str());
            let what = format!("{EFA} is {count}; {name} has {wanted} EFA devices");
            let finding = sink.add("N088", unit.at(line), what).fix(format!("{EFA}: {wanted}"));
            if count < wanted {
                finding.weigh(Severity::Warn);
            }
        }
        let unused = unit.value("FI_EFA_USE_HUGE_PAGE") == Some("0");
        if !unused && !pod.resources().iter().any(|name| name.starts_with("hugepages-")) {
            sink.add("N089", unit.at(line), "EFA devices and no huge pages are asked for")
                .fix("hugepages-2Mi: 5120Mi");
        }
    } else if let Some((instance, at)) = &nodes.instance
        && nodes.profile.as_ref().is_some_and(|profile| profile.efa_devices.is_some())
        && unit.across_nodes()
        && !pod.within_a_node()
        && !pod.spec.flag_at("hostNetwork")
        && !pod.resources().iter().any(|name| name.contains("efa"))
    {
        let wanted = nodes.profile.as_ref().and_then(|profile| profile.efa_devices).unwrap_or_default();
        sink.add("N088", *at, format!("pods on {instance} ask for no {EFA}")).fix(format!("{EFA}: {wanted}"));
    }
}
