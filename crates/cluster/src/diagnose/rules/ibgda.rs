//! NVSHMEM's GPU-initiated transport and what it needs of the driver.

use std::collections::BTreeSet;

use super::timeout::{Questions, Reached, When, failing, weigh};
use crate::diagnose::Case;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    Signal {
        id: "ibgda-alloc-skip",
        any: &["cannot allocate buffer on the specified memory type"],
        pattern: Some(r"device (?P<device>[\w.-]+) cannot allocate"),
        role: Role::Warning,
    },
    Signal {
        id: "ibgda-uar-unmapped",
        any: &["GPU cannot map UAR of device"],
        pattern: Some(r"UAR of device (?P<device>\w+)"),
        role: Role::Warning,
    },
    Signal {
        id: "iomemory-800",
        any: &["cudaHostRegister with IoMemory failed"],
        pattern: Some(r"error ?= ?800"),
        role: Role::Warning,
    },
    Signal {
        id: "ibgda-init-failed",
        any: &["init failed for transport: IBGDA"],
        pattern: None,
        role: Role::Warning,
    },
    Signal {
        id: "nic-not-mlx5",
        any: &["is not enumerated as an mlx5 device"],
        pattern: Some(r"device (?P<device>[\w.-]+) is not enumerated"),
        role: Role::Warning,
    },
    Signal {
        id: "nvshmem-no-transports",
        any: &["Unable to initialize any transports"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "ibgda-cpu-fallback",
        any: &["ibgda_alloc_and_map_qp_uar with GPU as handler failed"],
        pattern: None,
        role: Role::Warning,
    },
    Signal { id: "ibgda-handler-gpu", any: &["NIC handler will be GPU"], pattern: None, role: Role::Context },
    Signal {
        id: "gdrcopy-unsupported",
        any: &["GDRCopy support not enabled"],
        pattern: None,
        role: Role::Warning,
    },
    Signal {
        id: "register-mem-handle-failed",
        any: &["register_mem_handle failed"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "libmlx5dv-missing",
        any: &["Unable to dlopen libmlx5dv"],
        pattern: None,
        role: Role::Warning,
    },
    Signal {
        id: "rdma-driver-other",
        any: &["bnxt_re", "irdma", "erdma", "ionic", "hns_roce", "qedr", "drivers/efa"],
        // libibverbs warns of providers for other makes that it cannot load: that says nothing of the NIC.
        pattern: Some(r"(?:^|\W)(?P<driver>bnxt_re|irdma|erdma|ionic|hns_roce|qedr|efa)\b"),
        role: Role::Context,
    },
    Signal { id: "rdma-driver-mlx5", any: &["mlx5_core"], pattern: None, role: Role::Context },
    Signal {
        id: "node-check",
        any: &["params="],
        pattern: Some(
            r"^\s*(?P<host>\S*)\s.*params=(?P<params>[0-2])/2 +modules=(?P<modules>[0-2])/2|params=(?P<params2>[0-2])/2",
        ),
        role: Role::Context,
    },
    Signal {
        id: "driver-param-off",
        any: &["EnableStreamMemOPs: 0", "RegistryDwords: \"\""],
        pattern: None,
        role: Role::Context,
    },
    Signal {
        id: "driver-param-on",
        any: &["EnableStreamMemOPs: 1", "PeerMappingOverride=1"],
        pattern: Some(r#"EnableStreamMemOPs: 1\b|RegistryDwords: ".*PeerMappingOverride"#),
        role: Role::Context,
    },
    Signal {
        id: "tweak-variable",
        any: &["NVSHMEM_IBGDA_NIC_HANDLER", "NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE"],
        pattern: Some(r"(?P<name>NVSHMEM_IBGDA_NIC_HANDLER|NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE)"),
        role: Role::Context,
    },
    Signal { id: "tweak-mknod", any: &["mknod"], pattern: Some(r"mknod\b.*gdrdrv"), role: Role::Context },
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "tweaks-for-missing-keys",
        any: &["tweak-variable", "tweak-mknod"],
        because: "Settings that are meant to stand in for the driver's keys and modules are there, and dispatches still fail: no variable of NVSHMEM replaces them.",
        refine: Some(tweaks),
        ..Rule::LIKELY
    },
    Rule {
        cause: "peermem-missing",
        any: &["ibgda-alloc-skip"],
        because: "NVSHMEM could not register GPU memory with the NIC and skipped it: the kernel module that hands GPU memory to the NIC (nvidia_peermem), or gdrdrv, is not loaded there.",
        refine: Some(skipped),
        ..Rule::LIKELY
    },
    Rule {
        cause: "peermem-missing",
        needs: &["no-peermem"],
        unless: &["ibgda-alloc-skip"],
        because: "NVSHMEM found neither nv_peer_mem nor nvidia_peermem and skipped its remote transport; PEs of other nodes are then not accessible.",
        rules_out: &[
            "NVLink: the peer that is `not accessible` is named right after the remote transport was skipped.",
        ],
        refine: Some(|case, claim| {
            blocked(
                case,
                claim,
                &["nvshmem-peer-not-accessible", "nvshmem-init-failed", "nvshmem-no-transports"],
            )
        }),
        ..Rule::LIKELY
    },
    Rule {
        cause: "driver-key-missing",
        any: &["iomemory-800", "ibgda-uar-unmapped"],
        because: "The GPU cannot map the NIC's doorbell page: the driver's keys (PeerMappingOverride, EnableStreamMemOPs) are not active there.",
        rules_out: &[
            "A missing peer memory module: that says `cannot allocate buffer on the specified memory type`.",
        ],
        refine: Some(keys),
        ..Rule::LIKELY
    },
    Rule {
        cause: "non-mlx5-nic",
        needs: &["nic-not-mlx5"],
        refine: Some(|case, claim| names(case, claim, false)),
        ..Rule::LIKELY
    },
    Rule {
        cause: "nvshmem-hca-prefix",
        needs: &["nic-not-mlx5"],
        refine: Some(|case, claim| names(case, claim, true)),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gdrcopy-missing",
        needs: &["register-mem-handle-failed", "gdrcopy-unsupported"],
        confidence: Confidence::Certain,
        because: "NVSHMEM has no GDRCopy to register GPU memory with, and registration failed: /dev/gdrdrv or its library is not in the container.",
        ..Rule::LIKELY
    },
    Rule {
        cause: "gdrcopy-missing",
        needs: &["gdrcopy-unsupported"],
        unless: &["register-mem-handle-failed"],
        because: "NVSHMEM has no GDRCopy to register GPU memory with: /dev/gdrdrv or its library is not in the container.",
        refine: Some(|case, claim| {
            blocked(case, claim, &["nvshmem-no-transports", "nvshmem-init-failed", "nvshmem-heap-failed"])
        }),
        ..Rule::LIKELY
    },
    Rule {
        cause: "ibgda-cpu-handler",
        needs: &["ibgda-cpu-fallback"],
        confidence: Confidence::Certain,
        because: "The GPU could not take the NIC's doorbells, so a CPU thread rings them: it works, and slower (one report has about 31 GB/s at 4 nodes).",
        refine: Some(|_, mut claim| {
            claim.caution = true;
            Some(claim)
        }),
        ..Rule::LIKELY
    },
];

/// The one node that wrote a signal, where others wrote something and not it.
fn only_node(case: &Case, signals: &[&str]) -> Option<String> {
    let with: BTreeSet<_> = signals.iter().flat_map(|signal| case.nodes(signal)).collect();
    let few = with.len() < case.nodes_seen.len() && !with.is_empty() && with.len() <= 3;
    few.then(|| with.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", "))
}

/// Keeps a claim about a warning where the run went on to fail by one of `ends`, or failed otherwise (then less sure).
fn blocked(case: &Case, mut claim: Claim, ends: &[&str]) -> Option<Claim> {
    if let Some(end) = case.first_of(ends) {
        claim.evidence.push(end.place);
        return Some(claim);
    }
    failing(case).then(|| weigh(claim, Confidence::Possible))
}

/// Nodes of the guide's check that lack keys (`params`) or modules, and whether any node was checked.
fn checked(case: &Case, what: &str) -> (Vec<String>, bool) {
    let lines = || case.events("node-check");
    let short = |count: i64| count < 2;
    let bad = lines()
        .filter(|event| {
            event
                .number(what)
                .or_else(|| (what == "params").then(|| event.number("params2")).flatten())
                .is_some_and(short)
        })
        .map(|event| event.field("host").filter(|host| !host.is_empty()).unwrap_or("a node").to_owned())
        .collect();
    (bad, lines().next().is_some())
}

/// Nodes that the guide's check shows without modules; none where the check is not in the logs.
pub(super) fn without_modules(case: &Case) -> Option<Vec<String>> {
    let (bad, any) = checked(case, "modules");
    any.then_some(bad)
}

/// Nodes that the guide's check, or the driver's parameters, show without keys; none where neither is in the logs.
pub(super) fn without_keys(case: &Case) -> Option<Vec<String>> {
    let (mut bad, any) = checked(case, "params");
    if let Some(off) = case.first("driver-param-off") {
        bad.push(off.node.as_deref().unwrap_or("a node").to_owned());
    }
    (any || case.has_any(&["driver-param-off", "driver-param-on"])).then_some(bad)
}

/// Variables, and device nodes made by hand, that are meant to replace keys and modules.
pub(super) fn tweaks_seen(case: &Case) -> Vec<&'static str> {
    let mut seen = Vec::new();
    for name in ["NVSHMEM_IBGDA_NIC_HANDLER", "NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE"] {
        let line = case.events("tweak-variable").any(|event| event.field("name") == Some(name));
        if line || case.variable(name).is_some_and(|value| !value.is_empty()) {
            seen.push(name);
        }
    }
    if case.has("tweak-mknod") {
        seen.push("/dev/gdrdrv made with mknod");
    }
    seen
}

/// Whether tweaks explain a failure: two of them, or one with signs that keys or modules are missing.
pub(super) fn tweaked(case: &Case) -> bool {
    let seen = tweaks_seen(case);
    // A handler of `gpu` alone is a setting that some clusters keep on purpose: it makes missing keys fail loudly.
    let gpu =
        case.variable("NVSHMEM_IBGDA_NIC_HANDLER").is_none_or(|value| value.eq_ignore_ascii_case("gpu"));
    let handler_alone = gpu && seen == ["NVSHMEM_IBGDA_NIC_HANDLER"];
    let signs = case.has_any(&["ibgda-alloc-skip", "iomemory-800", "ibgda-uar-unmapped"])
        || without_modules(case).is_some_and(|bad| !bad.is_empty())
        || without_keys(case).is_some_and(|bad| !bad.is_empty());
    let fails = case.has_any(super::timeout::TIMEOUTS) || (signs && failing(case));
    fails && (seen.len() > 1 || (seen.len() == 1 && !handler_alone && signs))
}

fn tweaks(case: &Case, mut claim: Claim) -> Option<Claim> {
    if !tweaked(case) || super::timeout::known_bad(case) == Some(true) {
        return None;
    }
    claim.subject = Some(tweaks_seen(case).join(", "));
    let warnings =
        ["ibgda-alloc-skip", "iomemory-800", "ibgda-uar-unmapped", "node-check", "driver-param-off"];
    claim.evidence.extend(case.first_of(&warnings).map(|event| event.place));
    claim.evidence.extend(case.first_of(super::timeout::TIMEOUTS).map(|event| event.place));
    Some(claim.not("A setting that is still missing: the variables choose among paths, and each of those paths needs the keys and modules."))
}

fn skipped(case: &Case, mut claim: Claim) -> Option<Claim> {
    let devices: BTreeSet<&str> =
        case.events("ibgda-alloc-skip").filter_map(|event| event.field("device")).collect();
    let all = case.has_any(&["ibgda-init-failed", "nvshmem-no-transports"]) || devices.len() > 3;
    let end = case.first_of(&["ibgda-init-failed", "nvshmem-no-transports"]);
    claim.evidence.extend(end.or_else(|| case.first_of(super::timeout::TIMEOUTS)).map(|event| event.place));
    claim.subject = only_node(case, &["ibgda-alloc-skip"]);
    let checked = without_modules(case);
    if !failing(case) {
        return None;
    }
    if let Some(nodes) = checked.as_ref().filter(|nodes| !nodes.is_empty()) {
        claim.subject = Some(nodes.join(", "));
        claim.confidence = Confidence::Certain;
    } else if !all || checked.is_some_and(|nodes| nodes.is_empty()) {
        let list: Vec<&str> = devices.into_iter().collect();
        claim.because = format!(
            "NVSHMEM could not register GPU memory with {}. If other devices of the node were taken, it is those NICs; if none, a kernel module is missing.",
            list.join(", ")
        );
        claim.next = Some("Which NICs that rank did take (NVSHMEM_DEBUG=INFO), and `lsmod | grep -E 'nvidia_peermem|gdrdrv'` on its node.".to_owned());
        return Some(weigh(claim, Confidence::Possible));
    }
    let claim = claim.not("One bad NIC: every device of the rank was skipped.");
    let claim = if elsewhere(case) { weigh(claim, Confidence::Possible) } else { claim };
    Some(if tweaked(case) { weigh(claim, Confidence::Possible) } else { claim })
}

/// Whether the run came past its transport, or a rank failed otherwise first.
fn elsewhere(case: &Case) -> bool {
    Questions::of(case).is_some_and(|questions| {
        questions.when.answer == When::Later || matches!(questions.reached.answer, Reached::Failed(_))
    })
}

fn keys(case: &Case, mut claim: Claim) -> Option<Claim> {
    let end = case.first_of(&["ibgda-init-failed", "nvshmem-no-transports"]);
    let end = end
        .or_else(|| case.first_of(super::timeout::TIMEOUTS))
        .or_else(|| case.first("cuda-illegal-memory-access"));
    if !failing(case) {
        return None;
    }
    claim.evidence.extend(end.map(|event| event.place));
    claim.subject = only_node(case, &["iomemory-800", "ibgda-uar-unmapped"]);
    match without_keys(case) {
        Some(nodes) if nodes.is_empty() => return Some(weigh(claim, Confidence::Possible)),
        Some(nodes) => claim.subject = Some(nodes.join(", ")),
        None => {}
    }
    if elsewhere(case) {
        claim = weigh(claim, Confidence::Possible);
    }
    // Without it the warning says only that the CPU takes the doorbells.
    if end.is_none() && !case.has("ibgda-uar-unmapped") {
        claim = weigh(claim, Confidence::Possible);
    }
    Some(if tweaked(case) { weigh(claim, Confidence::Possible) } else { claim })
}

/// Whether a device's name is one that udev makes for InfiniBand and RoCE devices, as mlx5 ones have on many distributions.
fn persistent(name: &str) -> bool {
    let rest = name.strip_prefix("ib").or_else(|| name.strip_prefix("roce"));
    rest.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_digit() || matches!(c, 'p' | 's' | 'o' | 'x'))
    })
}

/// Whether a device's name is the one its driver gives, and the driver is of another make than mlx5.
fn other_make(name: &str) -> bool {
    ["ionic", "bnxt", "irdma", "erdma", "hns", "qedr", "efa", "rdmap", "cxgb", "mana", "siw", "rxe"]
        .iter()
        .any(|make| name.starts_with(make))
}

fn names(case: &Case, mut claim: Claim, prefix: bool) -> Option<Claim> {
    let devices: BTreeSet<&str> =
        case.events("nic-not-mlx5").filter_map(|event| event.field("device")).collect();
    let end = case.first_of(&["ibgda-init-failed", "nvshmem-no-transports"]);
    let renamed = devices.iter().all(|name| persistent(name)) && !case.has("rdma-driver-other");
    // Without a word of the transport: every device that shows anywhere is of another make, and dispatches wait in vain.
    let waits = case.first_of(super::timeout::TIMEOUTS).filter(|_| {
        !renamed
            && (devices.iter().all(|name| other_make(name)) || case.has("rdma-driver-other"))
            && case.version("nic") != Some("mlx5")
            && !case.has_any(&["rdma-driver-mlx5", "ibgda-handler-gpu", "ibgda-alloc-skip", "iomemory-800"])
            && !elsewhere(case)
    });
    claim.evidence.extend(end.or(waits).map(|event| event.place));
    // A skipped front-end NIC beside rails that were taken is nothing.
    if end.or(waits).is_none() || !failing_or_open(case) {
        return None;
    }
    if renamed != prefix {
        return None;
    }
    let list: Vec<&str> = devices.into_iter().collect();
    claim.subject = Some(list.join(", "));
    if prefix {
        claim.because = format!(
            "NVSHMEM takes NICs whose names begin with mlx5, and those here are named {}: it skipped all of them and had no transport left.",
            list.join(", ")
        );
        return Some(claim.not("A NIC of another make: these are names that udev gives to InfiniBand and RoCE devices.").next("The driver of the device: `readlink /sys/class/infiniband/<device>/device/driver`; mlx5_core confirms it."));
    }
    claim.because = format!(
        "IBGDA exists for mlx5 devices only, and {} is another make: NVSHMEM skipped it and had no IBGDA left.",
        list.join(", ")
    );
    Some(claim.not("NCCL working over the same NIC: NCCL needs no mlx5dv."))
}

/// Whether the run failed, or ends where the transport did not come up.
fn failing_or_open(case: &Case) -> bool {
    failing(case) || case.has("ibgda-init-failed")
}
