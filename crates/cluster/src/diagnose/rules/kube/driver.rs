//! Driver pods, their module loaders, the fabric manager and the RDMA plugin.

use std::collections::BTreeSet;

use crate::diagnose::event::{Role, Signal};
use crate::diagnose::heal::whole;
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::rules::process::story::{about, ended_well, line, text, unless_fine, writer};
use crate::diagnose::{Case, Event};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "kube-drain-refused",
        Role::Failure,
        &[
            "cannot delete Pods with local storage",
            "cannot proceed until all GPU pods are drained",
            "error when evicting pods",
        ],
        r"cannot delete Pods with local storage(?:[^:]*\): ?(?P<pod>[\w./-]+))?|cannot proceed until all GPU pods are drained from the node",
    ),
    text(
        "driver-module-in-use",
        Role::Failure,
        &["Could not unload NVIDIA driver kernel modules, driver is in use"],
    ),
    line(
        "lsmod-nvidia-users",
        Role::Context,
        &["gdrdrv,", ",gdrdrv", "nvidia_uvm,", ",nvidia_uvm", "nvidia_modeset"],
        r"^\s*nvidia\s+\d+\s+(?P<count>\d+)\s+(?P<users>[\w,-]+)",
    ),
    text("gdrcopy-container", Role::Context, &["nvidia-gdrcopy-ctr"]),
    text("peermem-symbols-differ", Role::Failure, &["nvidia_peermem: disagrees about version of symbol"]),
    line(
        "peermem-symbol-unknown",
        Role::Failure,
        &["nvidia_peermem: Unknown symbol"],
        r"Unknown symbol (?P<symbol>\w+) \(err (?P<err>-\d+)\)",
    ),
    line(
        "peermem-insert-refused",
        Role::Failure,
        &[
            "could not insert 'nvidia_peermem'",
            "could not insert 'nvidia-peermem'",
            "failed to load nvidia-peermem module",
        ],
        r"could not insert 'nvidia[-_]peermem'(?:: (?P<why>.*))?|failed to load nvidia-peermem",
    ),
    line(
        "peermem-container-failing",
        Role::Failure,
        &["nvidia-peermem-ctr"],
        r"^kube-container \S*nvidia-peermem-ctr .*(?:waiting=CrashLoopBackOff|terminated=Error)|nvidia-peermem-ctr\b.*CrashLoopBackOff|CrashLoopBackOff.*nvidia-peermem-ctr|restarting failed container[ =]nvidia-peermem-ctr",
    ),
    // What the container itself says of it.
    line(
        "peermem-refuses-loaded",
        Role::Failure,
        &["already loaded", "still loaded"],
        r"(?i)nvidia[-_]peermem\b.*(?:already|still) loaded.*(?:cannot|can't|unable|fail|abort|exit|refus)|(?:error|fatal|fail\w*)\b.*nvidia[-_]peermem\b.*(?:already|still) loaded",
    ),
    line(
        "driver-pod-crashing",
        Role::Warning,
        &["nvidia-driver-daemonset", "nvidia-gpu-driver"],
        r"^kube-pod (?P<pod>\S*nvidia-(?:driver-daemonset|gpu-driver)\S*) .*status=CrashLoopBackOff\b",
    ),
    line(
        "driver-pod-init-crashing",
        Role::Warning,
        &["nvidia-driver-daemonset", "nvidia-gpu-driver", "k8s-driver-manager"],
        r"^kube-pod (?P<pod>\S*nvidia-(?:driver-daemonset|gpu-driver)\S*) .*status=Init:(?:CrashLoopBackOff|Error)|^kube-container (?P<container>\S*k8s-driver-manager) .*(?:waiting=CrashLoopBackOff|terminated=Error)",
    ),
    line(
        "peermem-loaded",
        Role::Context,
        &["nvidia_peermem", "nvidia-peermem"],
        r"^\s*nvidia_peermem\s+\d+\s+\d+|nvidia[-_]peermem.*\b(?:already|still) loaded|[Mm]odule nvidia[-_]peermem is (?:already |still )?(?:loaded|in use)",
    ),
    line(
        "cuda-system-not-ready",
        Role::Failure,
        &["system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady", "rror 802"],
        r"(?i)system not yet initialized|SYSTEM_NOT_READY|cudaErrorSystemNotReady|\berror 802\b",
    ),
    line(
        "rdma-plugin-device-without-issm",
        Role::Warning,
        &["missing RDMA device spec for device"],
        r"missing RDMA device spec for device (?P<device>[0-9a-fA-F:.]+)",
    ),
    line(
        "rdma-plugin-empty-pool",
        Role::Context,
        &["no devices in device pool", "rdma/", "hca_shared_devices", "allocatable=", "exposing devices: []"],
        r"no devices in device pool|exposing devices: \[\]|^kube-node \S+ allocatable=\S*(?:rdma|hca|roce|ib)\S* amount=0\b|^\s*(?:nvidia\.com|rdma|openshift\.io|mellanox\.com)/\S*(?:rdma|hca|roce|ib)\S*:\s+0\s*$|Insufficient (?:rdma|nvidia\.com/(?:hca|rdma|roce|ib))\S*",
    ),
    line(
        "rdma-plugin-pool",
        Role::Context,
        &["allocatable=", "rdma/", "hca_shared_devices"],
        r"^kube-node \S+ allocatable=\S*(?:rdma|hca|roce)\S* amount=[1-9]|^\s*(?:nvidia\.com|rdma|openshift\.io|mellanox\.com)/\S*(?:rdma|hca|roce)\S*:\s+[1-9]",
    ),
    line(
        "driver-pod-1-of-1",
        Role::Warning,
        &["nvidia-driver-daemonset", "nvidia-gpu-driver-"],
        r"^kube-pod (?P<pod>\S*nvidia-(?:driver-daemonset|gpu-driver)-\S+) (?:.* )?(?:phase|status)=Running (?:.* )?ready=1/1\b|^\s*(?:\S+\s+)?(?P<pod2>nvidia-(?:driver-daemonset|gpu-driver)-\S+)\s+1/1\s+Running",
    ),
    line(
        "driver-pod-3-of-3",
        Role::Context,
        &["nvidia-driver-daemonset", "nvidia-gpu-driver-"],
        r"^kube-pod \S*nvidia-(?:driver-daemonset|gpu-driver)-\S+ .*ready=3/3\b|nvidia-(?:driver-daemonset|gpu-driver)-\S+\s+3/3\s+Running",
    ),
    line("answer-true", Role::Context, &["true"], r#"^\s*(?:enabled:\s*)?"?true"?\s*$"#),
    line(
        "driver-resource-with-rdma",
        Role::Context,
        &["gdrcopy", "rdma", "useHostMofed", "nvidiadriver", "NVIDIADriver"],
        r#"(?i)nvidiadriver\S* .*patched|nvidiadriver\S* .*jsonpath=.*(?:rdma|gdrcopy)\.enabled|(?:rdma|gdrcopy)\.enabled\W{1,3}true\b|^\s*(?:rdma|gdrcopy):\s*$|"?(?:rdma|gdrcopy)"?: ?\{? ?"?enabled"?:? ?true|useHostMofed|kernelModuleConfig"#,
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "kube-driver-drain-blocked",
        needs: &["kube-drain-refused"],
        confidence: Confidence::Certain,
        because: "the driver manager drains the node before it reloads the driver, and a pod there keeps it from doing so",
        rules_out: &["the driver itself has not been touched yet: it is no failure of the driver"],
        refine: Some(drain),
        ..Rule::LIKELY
    },
    Rule {
        cause: "kube-driver-pod-old",
        needs: &["driver-pod-1-of-1"],
        confidence: Confidence::Likely,
        because: "a driver pod has one container where the patched configuration gives it three: it was made before the patch",
        rules_out: &["a failing module loader would show as 2/3 or 1/3, not as 1/1"],
        refine: Some(old_pod),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gdrdrv-refcount-blocks-unload",
        needs: &["driver-module-in-use"],
        confidence: Confidence::Likely,
        because: "the driver cannot be unloaded because gdrdrv uses it, which the driver image's script does not count",
        rules_out: &["`driver is in use` suggests a GPU workload: none is needed for this"],
        refine: Some(in_use),
        ..Rule::LIKELY
    },
    Rule {
        cause: "peermem-mofed-symbol-mismatch",
        any: &["peermem-symbols-differ", "peermem-symbol-unknown"],
        confidence: Confidence::Certain,
        because: "nvidia_peermem was built against other RDMA modules than those that are loaded now: its symbols have other versions",
        rules_out: &[
            "modprobe's `Invalid argument` alone has other causes; the kernel's line names this one",
        ],
        refine: Some(symbols),
        ..Rule::LIKELY
    },
    Rule {
        cause: "peermem-mofed-symbol-mismatch",
        any: &["peermem-insert-refused", "peermem-container-failing"],
        unless: &["peermem-symbols-differ", "peermem-symbol-unknown", "peermem-loaded"],
        confidence: Confidence::Possible,
        because: "nvidia_peermem is not inserted: symbols of another RDMA stack are the usual cause, others exist",
        refine: Some(kernel_line),
        ..Rule::LIKELY
    },
    Rule {
        cause: "kube-driver-drain-blocked",
        needs: &["driver-pod-init-crashing"],
        unless: &["kube-drain-refused"],
        confidence: Confidence::Possible,
        because: "the first container of a driver pod, the driver manager, fails: a drain that is refused is the usual cause, others exist",
        refine: Some(manager_log),
        ..Rule::LIKELY
    },
    Rule {
        cause: "peermem-sidecar-still-loaded",
        any: &["peermem-container-failing", "peermem-refuses-loaded", "driver-pod-crashing"],
        unless: &["peermem-symbols-differ", "peermem-symbol-unknown"],
        confidence: Confidence::Likely,
        because: "the peermem container fails while its module is loaded: the module outlived a restart of the pod, which this release takes for a failure",
        rules_out: &["no kernel line says that symbols differ, as where the module cannot be inserted"],
        refine: Some(sidecar),
        ..Rule::LIKELY
    },
    Rule {
        cause: "fabric-manager",
        needs: &["cuda-system-not-ready"],
        confidence: Confidence::Certain,
        because: "CUDA answers 802: on machines with NVSwitch it waits for the fabric manager, which is not running, or not of the driver's version",
        rules_out: &[
            "nvidia-smi -L lists the GPUs and driver pods run all the same: neither is a sign against it",
        ],
        refine: Some(manager),
        ..Rule::LIKELY
    },
    Rule {
        cause: "rdma-plugin-selector",
        needs: &["rdma-plugin-device-without-issm"],
        confidence: Confidence::Likely,
        because: "the RDMA plugin takes up no device: its selectors do not fit {device}, and the node offers none of its resource",
        rules_out: &[
            "with devices on offer the same line is harmless: NICs in Ethernet mode have no `issm` device",
        ],
        refine: Some(selector),
        ..Rule::LIKELY
    },
];

fn drain(case: &Case, claim: Claim) -> Option<Claim> {
    let pods: BTreeSet<&str> =
        case.events("kube-drain-refused").filter_map(|event| event.field("pod")).collect();
    let claim =
        if pods.is_empty() { claim } else { claim.about(pods.into_iter().collect::<Vec<_>>().join(", ")) };
    unless_fine(case, claim)
}

fn old_pod(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("driver-pod-1-of-1")?;
    if case.events.iter().any(whole) {
        return None;
    }
    let others = case.first("driver-pod-3-of-3");
    // A question of kubectl has its answer on the next line, a key of YAML its values.
    let answered = |asked: &Event| {
        !(asked.text.contains("jsonpath") || asked.text.ends_with(':'))
            || case.events("answer-true").any(|answer| {
                answer.place.file == asked.place.file
                    && (1..=2).contains(&answer.place.line.saturating_sub(asked.place.line))
            })
    };
    let patched = case.events("driver-resource-with-rdma").find(|asked| answered(asked));
    let without_module = case
        .events
        .iter()
        .find(|event| event.text.contains("cannot allocate buffer on the specified memory type"));
    let symptom = case.events.iter().any(|event| event.role == Role::Failure) || without_module.is_some();
    if let (Some(_), Some(without)) = (patched, without_module) {
        claim.confidence = Confidence::Certain;
        claim
            .because
            .push_str("; so it loads no module that hands GPU memory to the NICs, and NVSHMEM misses it");
        claim.evidence.push(without.place);
    } else if others.is_some() {
        claim.confidence = Confidence::Certain;
        claim.because.push_str("; others of the cluster have three");
    } else if patched.is_none() {
        // Where nobody asked for the other two containers, one is all there should be.
        if !symptom {
            return None;
        }
        claim.confidence = Confidence::Possible;
        claim.because = "a driver pod has one container: it was made before the configuration asked for RDMA, or that was never asked for".into();
        claim.rules_out.clear();
        claim.next = Some("`kubectl get nvidiadriver,clusterpolicy -A -o yaml | grep -A2 -E 'rdma|gdrcopy'` beside the containers of the pod".to_owned());
    }
    claim.evidence.extend([others, patched].into_iter().flatten().map(|event| event.place));
    let pods: BTreeSet<&str> = case
        .events("driver-pod-1-of-1")
        .filter_map(|event| event.field("pod").or(event.field("pod2")))
        .collect();
    let subject =
        if pods.is_empty() { writer(event) } else { Some(pods.into_iter().collect::<Vec<_>>().join(", ")) };
    claim.subject = subject;
    Some(claim)
}

fn in_use(case: &Case, mut claim: Claim) -> Option<Claim> {
    let holds = case.events("lsmod-nvidia-users").find(|event| {
        event.field("users").is_some_and(|users| users.split(',').any(|user| user == "gdrdrv"))
    });
    let proof: Option<&Event> = holds.or_else(|| case.first("gdrcopy-container"));
    if let Some(proof) = proof {
        claim.evidence.push(proof.place);
    } else {
        claim.confidence = Confidence::Possible;
        claim.because = "the driver's modules are in use: by a program on a GPU, or by gdrdrv".into();
        claim.rules_out.clear();
        claim.next = Some(
            "who uses the module: `lsmod | grep ^nvidia` and `fuser -v /dev/nvidia*` on that node".to_owned(),
        );
    }
    unless_fine(case, claim)
}

fn symbols(case: &Case, mut claim: Claim) -> Option<Claim> {
    // err -22: another version; err -2: the symbol is not there at all, as where the RDMA stack has no peer memory interface.
    let differ = case.first("peermem-symbols-differ");
    let other_version = case.events("peermem-symbol-unknown").any(|event| event.field("err") == Some("-22"));
    if differ.is_none() && !other_version {
        claim.confidence = Confidence::Possible;
        claim.because = "nvidia_peermem wants a symbol that the loaded ib_core does not have: it has no interface for peer memory, or is another one than at build time".into();
        claim.rules_out.clear();
        claim.next = Some("`grep ib_register_peer_memory_client /proc/kallsyms` on that node".to_owned());
    }
    claim.evidence.extend(
        ["peermem-insert-refused", "peermem-container-failing"]
            .iter()
            .filter_map(|id| case.first(id))
            .map(|event| event.place),
    );
    unless_fine(case, claim)
}

fn manager_log(case: &Case, claim: Claim) -> Option<Claim> {
    let event = case.first("driver-pod-init-crashing")?;
    let pod = event.field("pod").or(event.field("container")).unwrap_or("<pod>").to_owned();
    let claim = claim.next("the driver manager's log: `kubectl logs -n <namespace> <driver pod> -c k8s-driver-manager --previous`");
    unless_fine(case, claim.about(pod))
}

fn kernel_line(case: &Case, claim: Claim) -> Option<Claim> {
    unless_fine(case, claim.next("the kernel's own line: `dmesg -T | grep nvidia_peermem` on that node"))
}

fn sidecar(case: &Case, mut claim: Claim) -> Option<Claim> {
    let loaded = case.first("peermem-loaded");
    let named = case.has_any(&["peermem-container-failing", "peermem-refuses-loaded"]);
    match loaded {
        // Which of the pod's containers fails must be known.
        Some(loaded) if named => claim.evidence.push(loaded.place),
        None if case.has("peermem-refuses-loaded") => {}
        None if case.has("peermem-insert-refused") => return None,
        _ => {
            claim.confidence = Confidence::Possible;
            claim.because =
                "the peermem container fails: its module is loaded already, or cannot be inserted".into();
            claim.rules_out.clear();
            claim.next =
                Some("`lsmod | grep nvidia_peermem; dmesg -T | grep nvidia_peermem` on that node".to_owned());
        }
    }
    unless_fine(case, claim)
}

fn manager(case: &Case, claim: Claim) -> Option<Claim> {
    let event = case.first("cuda-system-not-ready")?;
    if ended_well(case, event) {
        return None;
    }
    Some(match writer(event) {
        Some(writer) => claim.about(writer),
        None => claim,
    })
}

fn selector(case: &Case, mut claim: Claim) -> Option<Claim> {
    let empty = case.first("rdma-plugin-empty-pool");
    match (empty, case.has("rdma-plugin-pool")) {
        (Some(empty), _) => claim.evidence.push(empty.place),
        (None, true) => return None,
        (None, false) => {
            claim.confidence = Confidence::Possible;
            claim.because = "the RDMA plugin skips devices: harmless for NICs in Ethernet mode if it offers others, a wrong selector if it offers none".into();
            claim.rules_out.clear();
            claim.next = Some("what the node offers: `kubectl get node <node> -o jsonpath='{.status.allocatable}'`: 0 of the RDMA resource is the fault".to_owned());
        }
    }
    let claim = about(case, claim, "device");
    unless_fine(case, claim)
}
