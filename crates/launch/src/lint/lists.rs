//! Lists of NICs: who reads them, and whether they name the rails.

use super::finding::{At, Severity, Sink};
use super::nodes::{Nodes, offset};
use super::unit::{Scope, Setting, Unit, number, numbered};

const LISTS: &[&str] = &["NVSHMEM_HCA_LIST", "UCX_NET_DEVICES", "NCCL_IB_HCA"];
const NVSHMEM: &[&str] = &["NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING"];
const MAPPING: &str = "NVSHMEM_ENABLE_NIC_PE_MAPPING";

pub(crate) fn check(unit: &Unit<'_>, nodes: &Nodes, sink: &mut Sink<'_>) {
    pinning(unit, sink);
    offsets(unit, nodes, sink);
    for name in LISTS {
        if let Some(setting) = unit.setting(name).filter(|setting| setting.decided) {
            form(setting, sink);
            devices(unit, nodes, setting, sink);
        }
    }
}

/// Names and ports of a list, prefixes dropped.
fn entries(value: &str) -> Vec<(&str, Option<&str>)> {
    value
        .trim_start_matches(['=', '^'])
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(|entry| entry.split_once(':').map_or((entry, None), |(name, port)| (name, Some(port))))
        .take(256)
        .collect()
}

fn pinning(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let Some(setting) = NVSHMEM.iter().find_map(|name| unit.setting(name)) else { return };
    let mapping = unit.setting(MAPPING);
    let unknown = mapping.is_some_and(|mapping| !mapping.decided);
    if !unknown && !unit.on(MAPPING) {
        let seen = mapping.map_or("not set".to_owned(), |mapping| format!("`{}`", mapping.value));
        let finding = sink
            .add("N001", setting.at, format!("{} is set and {MAPPING} is {seen}", setting.name))
            .fix(format!("{MAPPING}=1, and {} in each rank: mlx5_(local rank + offset):1", setting.name));
        if unit.open && mapping.is_none() {
            finding.weigh(Severity::Warn);
        }
        return;
    }
    // A list that is built of a rank's number is each rank's own.
    let common = setting.decided && setting.scope != Scope::Local;
    let one = unit.gpus.as_ref().is_some_and(|gpus| gpus.count == 1);
    if common && !one && !setting.value.starts_with('^') {
        let count = entries(&setting.value).len();
        let what = format!("{} names {count} devices for all ranks of the node", setting.name);
        let finding = sink.add("N002", setting.at, what).fix(
            "in each rank, before deep_ep.Buffer(): os.environ[\"NVSHMEM_HCA_LIST\"] = f\"mlx5_{local_rank + offset}:1\"",
        );
        // One world of all ranks is dealt the list in turn; DeepEP starts a world for each rail.
        if !unit.uses_deepep() {
            finding.weigh(Severity::Warn);
        }
    }
}

fn offsets(unit: &Unit<'_>, nodes: &Nodes, sink: &mut Sink<'_>) {
    const OFFSET: &str = "NVSHMEM_HCA_OFFSET";
    let Some(setting) = unit.setting(OFFSET) else {
        let reads = unit.text.contains(&format!("environ[\"{OFFSET}\"]"))
            || unit.text.contains(&format!("environ['{OFFSET}']"))
            || unit.text.contains(&format!("environ.get('{OFFSET}')"))
            || unit.text.contains(&format!("environ.get(\"{OFFSET}\")"))
            || unit.text.contains(&format!("${{{OFFSET}:?"));
        if reads && !unit.open {
            sink.add("N003", unit.at(unit.line), format!("the script reads {OFFSET} and nothing sets it"))
                .fix(format!("{OFFSET}=\"1\" on H200 SXM IB, \"5\" on B200 SXM IB (expertrail topo tells)"));
        }
        return;
    };
    let Some(value) = number(&setting.value).filter(|_| setting.decided) else { return };
    if let Some(profile) = &nodes.profile
        && let Some(right) = offset(profile)
        && right != value
    {
        let what = format!("{OFFSET} is {value}; on {} GPU N has mlx5_(N+{right})", profile.title);
        let finding = sink.add("N004", setting.at, what).fix(format!("{OFFSET}=\"{right}\""));
        if !nodes.certain {
            finding.weigh(Severity::Warn);
        }
    }
    for name in ["NCCL_IB_HCA", "UCX_NET_DEVICES"] {
        let Some(list) = unit.setting(name).filter(|list| list.decided && !list.value.starts_with('^'))
        else {
            continue;
        };
        let numbers: Vec<u64> =
            entries(&list.value).iter().filter_map(|(name, _)| Some(numbered(name)?.1)).collect();
        if let Some(first) = numbers.iter().min().filter(|first| **first != value) {
            sink.add(
                "N005",
                list.at,
                format!(
                    "{name} begins with device {first} and {OFFSET} is {value}: GPU 0 has device {value}"
                ),
            )
            .fix("the rails that ranks are pinned to, in both: expertrail topo prints them");
        }
    }
}

/// Syntax of a list.
fn form(setting: &Setting, sink: &mut Sink<'_>) {
    let (name, value) = (setting.name.as_str(), setting.value.as_str());
    let bad: &[char] = match name {
        "NVSHMEM_HCA_LIST" => &['='],
        "UCX_NET_DEVICES" => &['=', '^'],
        _ => &[],
    };
    if value.starts_with(bad) {
        sink.add("N006", setting.at, format!("{name} begins with `{}`", &value[..1]))
            .fix(format!("{name}={}", value.trim_start_matches(bad)));
    }
    let entries = entries(value);
    let rdma =
        |name: &str| ["mlx5", "ibp", "rdmap", "bnxt_re", "mlx4"].iter().any(|stem| name.starts_with(stem));
    if name == "UCX_NET_DEVICES"
        && let Some((device, _)) = entries.iter().find(|(device, port)| port.is_none() && rdma(device))
    {
        sink.add("N007", setting.at, format!("UCX_NET_DEVICES names {device} without a port"))
            .fix(format!("UCX_NET_DEVICES={device}:1,..."));
    }
    let mut seen = Vec::new();
    for (device, port) in &entries {
        if seen.contains(&(device, port)) {
            sink.add("N008", setting.at, format!("{name} names {device} twice"))
                .fix("each device once; a missing rail leaves its GPU on another GPU's NIC");
            break;
        }
        seen.push((device, port));
    }
}

fn devices(unit: &Unit<'_>, nodes: &Nodes, setting: &Setting, sink: &mut Sink<'_>) {
    let (name, value) = (setting.name.as_str(), setting.value.as_str());
    if value.starts_with('^') {
        return;
    }
    let entries = entries(value);
    if name == "NVSHMEM_HCA_LIST" {
        let set = unit.setting("NVSHMEM_HCA_PREFIX");
        let prefix = set.map_or("mlx5", |set| set.value.as_str());
        let known = set.is_none_or(|set| set.decided);
        if let Some((device, _)) = entries.iter().find(|(device, _)| known && !device.starts_with(prefix)) {
            let stem = device.trim_end_matches(|c: char| c.is_ascii_digit());
            let what = format!("NVSHMEM_HCA_LIST names {device} and NVSHMEM_HCA_PREFIX is {prefix}");
            sink.add("N009", setting.at, what).fix(format!("NVSHMEM_HCA_PREFIX={stem}"));
        }
    }
    if let Some(profile) = nodes.profile.as_ref().filter(|profile| !profile.rails.is_empty()) {
        rails(nodes, profile, setting, sink);
    }
    // One name without a number is a prefix.
    let whole = entries.iter().all(|(device, _)| numbered(device).is_some());
    let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
    if let Some(gpus) = unit.gpus.as_ref().filter(|gpus| whole && gpus.count > 1 && count != gpus.count)
        && name != "NVSHMEM_HCA_LIST"
        && count % gpus.count != 0
    {
        let what = format!("{name} names {count} devices and a node has {} GPUs", gpus.count);
        sink.add("N011", setting.at, what).fix("one rail for each GPU");
    }
    loose(nodes, setting, &entries, sink);
}

fn rails(
    nodes: &Nodes,
    profile: &expertrail_cluster::profile::Profile,
    setting: &Setting,
    sink: &mut Sink<'_>,
) {
    let exact = setting.name != "NCCL_IB_HCA" || setting.value.starts_with('=');
    let fits = |rail: &String, device: &str| if exact { rail == device } else { rail.starts_with(device) };
    let wrong: Vec<&str> = entries(&setting.value)
        .into_iter()
        .map(|(device, _)| device)
        .filter(|device| !profile.rails.iter().any(|rail| fits(rail, device)))
        .filter(|device| numbered(device).is_some_and(|(stem, _)| stem == "mlx5_"))
        .collect();
    if wrong.is_empty() {
        return;
    }
    let what = format!("{} names {}, no rail of {}", setting.name, wrong.join(", "), profile.title);
    let ports = if setting.value.contains(':') { ":1" } else { "" };
    let right: Vec<String> = profile.rails.iter().map(|rail| format!("{rail}{ports}")).collect();
    let finding = sink.add("N010", setting.at, what).fix(format!("{}={}", setting.name, right.join(",")));
    if !nodes.certain {
        finding.weigh(Severity::Warn);
    }
}

/// NCCL takes names for beginnings of names.
fn loose(nodes: &Nodes, setting: &Setting, entries: &[(&str, Option<&str>)], sink: &mut Sink<'_>) {
    if setting.name != "NCCL_IB_HCA" || setting.value.starts_with('=') {
        return;
    }
    let listed: Vec<&str> = entries.iter().map(|(device, _)| *device).collect();
    let at: At = setting.at;
    if let Some(profile) = nodes.profile.as_ref().filter(|profile| !profile.rails.is_empty()) {
        let all = profile.rails.iter().chain(&profile.not_rails);
        let extra: Vec<&str> = all
            .map(String::as_str)
            .filter(|name| !listed.contains(name) && listed.iter().any(|short| name.starts_with(short)))
            .filter(|_| listed.iter().all(|device| numbered(device).is_some()))
            .collect();
        if !extra.is_empty() {
            let what = format!("NCCL_IB_HCA also matches {} of {}", extra.join(", "), profile.title);
            sink.add("N012", at, what).weigh(Severity::Warn).fix(format!("NCCL_IB_HCA=={}", setting.value));
        }
        return;
    }
    let beginning = |device: &&str| matches!(numbered(device), Some(("mlx5_", 1..=9)));
    if let Some(device) = listed.iter().find(|device| beginning(device)) {
        let what = format!(
            "NCCL_IB_HCA has no leading `=`: {device} also means {device}0 and on, where these exist"
        );
        sink.add("N012", at, what).fix(format!("NCCL_IB_HCA=={}", setting.value));
    }
}
