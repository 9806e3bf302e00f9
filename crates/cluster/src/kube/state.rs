//! What the driver pods show of their nodes' kernels: step 4 of the guide, RDMA devices, topology.

use std::collections::BTreeMap;

use super::NodeLine;
use super::client::{Look, clean, quoted};
use super::inside::{Device, Inside};
use super::judge::{Judge, cause, reason, some};
use super::objects::{DRIVER_CONTAINER, GPU, Pod};
use super::values::age;
use crate::causes::CauseEntry;
use crate::check::Target;
use crate::finding::{Finding, Status};

const NO_NVLINK: CauseEntry = CauseEntry {
    id: "kube-gpus-without-nvlink",
    title: "GPUs of a node have no NVLink between them",
    text: "Kernels inside a node then go over PCIe or not at all; DeepEP asserts that its peers are joined by NVLink.",
};

pub(super) const CAUSES: &[CauseEntry] = &[NO_NVLINK];

/// Module loaders need this long after a pod starts (the guide waits as long before it checks again).
const SETTLE: u64 = 60;

/// The line of the guide's step 4 for each driver pod, by node.
pub(super) fn lines(judge: &Judge<'_>) -> Vec<NodeLine> {
    let mut lines: Vec<NodeLine> = judge
        .pods()
        .iter()
        .map(|pod| {
            let inside = judge.cluster.inside.get(&pod.name).and_then(|look| look.as_ref().ok());
            NodeLine {
                node: pod.node.as_deref().map_or_else(|| format!("({})", clean(&pod.name)), clean),
                pod: clean(&pod.name),
                ready: pod.containers.iter().map(|one| one.ready).collect(),
                params: inside.and_then(Inside::keys),
                modules: inside.and_then(Inside::missing).map(|missing| 2 - missing.len() as u8),
            }
        })
        .collect();
    lines.sort_by(|a, b| (&a.node, &a.pod).cmp(&(&b.node, &b.pod)));
    lines
}

pub(super) fn check(judge: &Judge<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    for pod in judge.pods() {
        let subject = pod.node.as_deref().map_or_else(|| clean(&pod.name), clean);
        let find = |id: &str, what: &str| {
            judge.finding(id, &format!("exec {} -- {what}", clean(&pod.name))).about(subject.clone())
        };
        let look = judge.cluster.inside.get(&pod.name);
        all.push(keys(judge, pod, look, find("P312", "cat /proc/driver/nvidia/params")));
        all.push(modules(judge, pod, look, find("P313", "cat /proc/modules")));
        if let Some(Ok(inside)) = look {
            all.extend(devices(judge, pod, inside, &|| find("P315", "ls /sys/class/infiniband")));
        }
        all.extend(matrix(judge, pod, find("P326", "nvidia-smi topo -m")));
    }
    all.extend(alike(judge));
    all
}

/// Why nothing is known of a node.
fn unseen(pod: &Pod, look: Option<&Look<Inside>>) -> String {
    match look {
        Some(Err(refusal)) => reason(refusal),
        _ => format!("the driver container does not run: {}", clean(&pod.state())),
    }
}

fn keys(judge: &Judge<'_>, pod: &Pod, look: Option<&Look<Inside>>, finding: Finding) -> Finding {
    let inside = look.and_then(|look| look.as_ref().ok());
    if !judge.wants_keys() {
        let seen = inside
            .filter(|inside| inside.params.is_some())
            .map(|inside| format!("; now {}", inside.keys_text()));
        return finding.not_applicable(format!(
            "{} needs no driver keys{}",
            judge.options.target,
            seen.unwrap_or_default()
        ));
    }
    let Some(inside) = inside else { return finding.unknown(unseen(pod, look)) };
    match inside.keys() {
        Some(2) => finding.saw("params=2/2", ""),
        Some(count) => {
            let observed = format!("params={count}/2: {}", inside.keys_text());
            let wanted = "EnableStreamMemOPs: 1 and PeerMappingOverride=1 in RegistryDwords";
            let finding = finding.outcome(Status::Fail, cause("driver-key-missing")).saw(observed, wanted);
            mend(judge, pod, finding)
        }
        None => finding.unknown("/proc/driver/nvidia/params cannot be read: no driver is loaded"),
    }
}

/// The resource is right: the pod must be recycled. It is not: the whole way.
fn mend(judge: &Judge<'_>, pod: &Pod, finding: Finding) -> Finding {
    let resource = judge.resource_of(pod);
    let complete = resource.is_some_and(|one| {
        one.config.is_some() && one.rdma == Some(true) && one.gdrcopy.enabled == Some(true)
    });
    match resource {
        Some(resource) if !complete => finding.remedies([judge.whole_way(resource)]),
        _ => finding
            .remedy(super::judge::RECYCLE, &[&judge.recycle(&[&pod.name]), &judge.again("60 to 90 s later")]),
    }
}

fn modules(judge: &Judge<'_>, pod: &Pod, look: Option<&Look<Inside>>, finding: Finding) -> Finding {
    let Some(Ok(inside)) = look else {
        let finding = finding.unknown(unseen(pod, look));
        return if judge.wants_modules() { finding } else { finding.advisory() };
    };
    let Some(missing) = inside.missing() else { return finding.unknown("/proc/modules cannot be read") };
    let count = format!("modules={}/2", 2 - missing.len());
    if missing.is_empty() {
        return finding.saw(count, "");
    }
    let observed = format!("{count}: {} not loaded", missing.join(" and "));
    if !judge.wants_modules() {
        return finding.not_applicable(format!("{observed}; {} does not demand them", judge.options.target));
    }
    let found =
        cause(if missing.contains(&"nvidia_peermem") { "peermem-missing" } else { "gdrcopy-missing" });
    let wanted = "nvidia_peermem and gdrdrv loaded";
    let youngest = pod
        .containers
        .iter()
        .filter_map(|one| one.started)
        .max()
        .map(|start| judge.now.saturating_sub(start));
    match youngest {
        Some(old) if old < SETTLE => finding
            .outcome(Status::Warn, found)
            .saw(format!("{observed}; its youngest container started {} ago", age(old)), wanted)
            .remedy("Wait until 60 s after the start of the pod, then check again.", &[&judge.again("then")]),
        _ => mend(judge, pod, finding.outcome(Status::Fail, found).saw(observed, wanted)),
    }
}

/// Devices that look like rails: active, of the highest rate, InfiniBand where there is some.
fn rails(devices: &[Device]) -> Vec<&Device> {
    let active: Vec<&Device> = devices.iter().filter(|one| one.active() == Some(true)).collect();
    let infiniband = |one: &Device| one.link_layer.as_deref() == Some("InfiniBand");
    let any = active.iter().any(|one| infiniband(one));
    let top = active.iter().filter(|one| !any || infiniband(one)).map(|one| one.gbits()).max().unwrap_or(0);
    active.into_iter().filter(|one| (!any || infiniband(one)) && one.gbits() == top).collect()
}

fn devices(judge: &Judge<'_>, pod: &Pod, inside: &Inside, find: &dyn Fn() -> Finding) -> Vec<Finding> {
    let status = match judge.options.target {
        Target::DeepepIbgda | Target::DeepepEfa => Status::Fail,
        Target::Expertrail | Target::Nccl => Status::Warn,
    };
    let ask = judge.again("once the link is up");
    if inside.devices.is_empty() {
        let look = judge.client.typed(&format!(
            "-n {} exec {} -c {DRIVER_CONTAINER} -- sh -c 'grep -E \"^(mlx5_ib|efa) \" /proc/modules; grep -il 0x15b3 /sys/bus/pci/devices/*/vendor'",
            quoted(judge.namespace()),
            quoted(&pod.name)
        ));
        let ask = judge.again("once their driver is loaded");
        return vec![find().outcome(status, cause("no-rdma-device")).saw("no RDMA device", "a rail for each GPU").remedy(
            "See whether the NICs are on the PCI bus of this node and their driver (mlx5_ib, or efa) is loaded.",
            &[&look, &ask],
        )];
    }
    let mut all = Vec::new();
    // A port that is down prints no rate worth the name: its link layer tells that it belongs to the fabric.
    let down: Vec<String> = inside
        .devices
        .iter()
        .filter(|one| one.link_layer.as_deref() == Some("InfiniBand") && one.active() == Some(false))
        .map(|one| format!("{} {}", one.name, one.state.as_deref().unwrap_or_default()))
        .collect();
    let rails = rails(&inside.devices);
    let gpus = pod
        .node
        .as_deref()
        .and_then(|name| judge.node(name))
        .and_then(|node| node.capacity.get(GPU).copied());
    let enough = gpus.is_some_and(|gpus| gpus > 0 && rails.len() as u64 >= gpus);
    if let (true, false, Some(gpus)) = (enough, down.is_empty(), gpus) {
        // Second ports without a cable and cards for storage look the same as a rail that is down.
        let observed = format!("{}, and {} rails for {gpus} GPUs are up", clean(&some(&down)), rails.len());
        return vec![
            find()
                .outcome(Status::Warn, cause("rail-down"))
                .saw(observed, "4: ACTIVE, where it is a rail")
                .remedy(
                    "See whether these are rails. A spare port, or one of a card for storage, may stay down.",
                    &[&ask],
                ),
        ];
    }
    if !down.is_empty() {
        all.push(find().outcome(status, cause("rail-down")).saw(clean(&some(&down)), "4: ACTIVE").remedy(
            "See the cable, the switch port and the subnet manager of these devices; keep the node out of jobs until then.",
            &[&ask],
        ));
    }
    let named: Vec<&str> = rails.iter().map(|one| one.name.as_str()).collect();
    let observed = format!(
        "{} of {} devices look like rails: {}",
        rails.len(),
        inside.devices.len(),
        clean(&named.join(" "))
    );
    match gpus {
        Some(gpus) if !enough && gpus > 0 => all.push(
            find()
                .outcome(Status::Warn, cause("fewer-rails-than-gpus"))
                .saw(observed, format!("at least {gpus}, one for each GPU"))
                .remedy("Compare with the other nodes of the pool (P328), and with what the provider says of this kind of node.", &[]),
        ),
        _ if down.is_empty() => all.push(find().saw(observed, "")),
        _ => {}
    }
    all
}

fn matrix(judge: &Judge<'_>, pod: &Pod, finding: Finding) -> Option<Finding> {
    match judge.cluster.matrices.get(&pod.name)? {
        Err(refusal) => Some(finding.unknown(reason(refusal)).advisory()),
        Ok(matrix) => {
            let pairs = matrix.without_nvlink();
            let Some((a, b)) = pairs.first() else {
                return Some(finding.saw(format!("{} GPUs, joined by NVLink", matrix.gpus().len()), ""));
            };
            let status = match judge.options.target {
                Target::DeepepIbgda | Target::DeepepEfa => Status::Fail,
                Target::Expertrail | Target::Nccl => Status::Warn,
            };
            let observed = match pairs.len() {
                1 => format!("no NVLink between {} and {}", clean(a), clean(b)),
                all => format!("{all} pairs of GPUs without NVLink, first {} and {}", clean(a), clean(b)),
            };
            Some(finding.outcome(status, &NO_NVLINK).saw(observed, "NV# between all GPUs of a node").remedy(
                "See the NVLinks and the fabric manager of this node: expertrail check on the node, or nvidia-smi nvlink -s in its driver pod.",
                &[],
            ))
        }
    }
}

/// Nodes of one product that differ from the rest.
fn alike(judge: &Judge<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<&str, Vec<(&str, Vec<String>)>> = BTreeMap::new();
    for pod in judge.pods() {
        let (Some(node), Some(Ok(inside))) = (pod.node.as_deref(), judge.cluster.inside.get(&pod.name))
        else {
            continue;
        };
        let product = judge.node(node).and_then(super::objects::Node::product).unwrap_or("GPU nodes");
        let matrix = judge.cluster.matrices.get(&pod.name).and_then(|look| look.as_ref().ok());
        groups.entry(product).or_default().push((node, traits(inside, matrix)));
    }
    groups
        .iter()
        .filter(|(_, nodes)| nodes.len() > 1)
        .flat_map(|(product, nodes)| compare(judge, product, nodes))
        .collect()
}

/// Compares nodes of one product. A value is usual that more than half of the nodes have of which it is known.
fn compare(judge: &Judge<'_>, product: &str, nodes: &[(&str, Vec<String>)]) -> Vec<Finding> {
    let find = || judge.finding("P328", "exec in the driver pods");
    let mut odd = Vec::new();
    for (at, name) in TRAITS.iter().enumerate() {
        let known: Vec<(&str, &str)> = nodes
            .iter()
            .filter_map(|(node, traits)| Some((*node, traits.get(at)?.as_str())))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, value) in &known {
            *counts.entry(value).or_default() += 1;
        }
        if counts.len() < 2 {
            continue;
        }
        let Some((usual, _)) = counts.iter().find(|(_, count)| **count * 2 > known.len()) else {
            let values: Vec<String> =
                counts.iter().map(|(value, count)| format!("{count} x {}", clean(value))).collect();
            odd.push(
                find()
                    .about(clean(product))
                    .outcome(Status::Warn, cause("fleet-split"))
                    .saw(format!("{name}: {}", some(&values)), "nodes alike")
                    .remedy("Find out which is right, and make the others like it.", &[]),
            );
            continue;
        };
        odd.extend(known.iter().filter(|(_, value)| value != usual).map(|(node, value)| {
            find()
                .about(clean(node))
                .outcome(Status::Warn, cause("fleet-outlier"))
                .saw(format!("{name} {}", clean(value)), format!("{}, as most of its pool", clean(usual)))
                .remedy("Make the node like the others of its pool, or keep it out of their jobs.", &[])
        }));
    }
    if odd.is_empty() {
        odd.push(
            find()
                .about(clean(product))
                .saw(format!("{} nodes alike in {}", nodes.len(), TRAITS.join(", ")), ""),
        );
    }
    odd
}

/// What nodes of one kind should have in common.
const TRAITS: [&str; 4] = ["driver", "firmware", "devices", "topology"];

fn traits(inside: &Inside, matrix: Option<&super::matrix::Matrix>) -> Vec<String> {
    let mut firmware: Vec<&str> =
        rails(&inside.devices).iter().filter_map(|one| one.firmware.as_deref()).collect();
    firmware.sort_unstable();
    firmware.dedup();
    let devices: Vec<String> = inside
        .devices
        .iter()
        .map(|one| format!("{} {}", one.name, one.rate.as_deref().unwrap_or("?")))
        .collect();
    let topology = matrix.map_or_else(String::new, |matrix| {
        let rows = matrix.devices.iter().zip(&matrix.rows);
        rows.map(|(name, row)| format!("{name}: {}", row.join(" "))).collect::<Vec<_>>().join("; ")
    });
    vec![inside.version.clone().unwrap_or_default(), firmware.join(" "), devices.join(", "), topology]
}
