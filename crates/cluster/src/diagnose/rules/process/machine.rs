//! Memory and GPUs of machines.

use super::story::{line, unless_fine, writer};
use crate::diagnose::case::earliest;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::handled::{Age, age, handled};
use crate::diagnose::heal::whole;
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::{Case, Event};

/// Kinds of lines. A kernel log holds Xids of other days: they are warnings, and the rule looks whether anything failed.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "oom-killed",
        Role::Failure,
        &[
            "OOMKilled",
            "oom-kill",
            "oom_kill",
            "Out of memory: Kill",
            "Memory cgroup out of memory",
            "OUT_OF_MEMORY",
            "out-of-memory handler",
            "invoked oom-killer",
            "low on resource: memory",
            "ray.exceptions.OutOfMemoryError",
            "running low on memory",
        ],
        r"OOMKilled|(?:^\s*|[^0-9\s]\s*|[1-9]\d*\s+)oom[-_]kill(?:er)?\b.*(?:event|StepId|task_memcg|constraint|gfp_mask)|oom_kill[ =:]+[1-9]|Out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<comm>[^)]+)\)|Memory cgroup out of memory: Kill(?:ed)? process (?P<pid2>\d+) \((?P<comm2>[^)]+)\)|\bOUT_OF_MEMORY\b|out-of-memory handler|invoked oom-killer|low on resource: memory|ray\.exceptions\.OutOfMemoryError|node running low on memory",
    ),
    line(
        "cuda-out-of-memory",
        Role::Failure,
        &[
            "CUDA out of memory",
            "CUDA error: out of memory",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cudaErrorMemoryAllocation",
            "failure 2 'out of memory'",
            "failure 2: out of memory",
            "'out of memory'",
            "RESOURCE_EXHAUSTED: Out of memory",
        ],
        r"RESOURCE_EXHAUSTED: Out of memory|(?:OutOfMemoryError|RuntimeError|AcceleratorError|CUDA error|C(?:uda|UDA) failure|CUDA_ERROR|cudaError).*?(?:out of memory|OUT_OF_MEMORY|MemoryAllocation)(?:.*?Tried to allocate (?P<wanted>[\d.]+ [KMG]iB))?",
    ),
    line(
        "xid-of-hardware",
        Role::Warning,
        &["Xid (", "fallen off the bus"],
        r"Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\)(?:, |: )(?P<xid>48|61|62|64|74|79|94|95|109|110|119|120|121|136|140|143|144|145|146|149|150|154)\b|GPU (?:at )?(?:PCI:)?(?P<bus>[0-9A-Fa-f:.]*)\W*(?:has )?fallen off the bus",
    ),
    line(
        "cuda-launch-failed",
        Role::Context,
        &["unspecified launch failure"],
        r"CUDA error: unspecified launch failure|cudaErrorLaunchFailure",
    ),
    line(
        "gpu-lost",
        Role::Context,
        &["GPU is lost", "no CUDA-capable device", "Unable to determine the device handle"],
        r"GPU is lost|no CUDA-capable device|Unable to determine the device handle",
    ),
    line(
        "xid-of-program",
        Role::Warning,
        &["Xid ("],
        r"Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\)(?:, |: )(?P<xid>13|31|43|45|68|69)\b",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "host-out-of-memory",
        needs: &["oom-killed"],
        confidence: Confidence::Certain,
        because: "the host's memory, or the container's share of it, ran out and a process was killed for it",
        rules_out: &["it is memory of the host: a GPU that is full raises an exception and kills nobody"],
        refine: Some(host_memory),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gpu-memory-exhausted",
        needs: &["cuda-out-of-memory"],
        confidence: Confidence::Certain,
        because: "a GPU has too little memory left for an allocation; ranks that wait for this one time out later",
        rules_out: &["it is memory of the GPU: the host's out-of-memory killer leaves no exception"],
        refine: Some(gpu_memory),
        ..Rule::LIKELY
    },
    Rule {
        cause: "xid",
        needs: &["xid-of-hardware"],
        confidence: Confidence::Certain,
        because: "the driver reports Xid {xid} of the GPU at {pci}: a fault of the GPU, its link or its firmware, not of the program",
        rules_out: &["Xids 13, 31, 43 and 45 come of programs and follow their faults; this one does not"],
        refine: Some(hardware),
        ..Rule::LIKELY
    },
];

/// A claim from a kernel log, weighed by what is known of its time: none where it is of another day.
fn of_its_time(case: &Case, mut claim: Claim, signal: &str) -> Option<Claim> {
    let ages: Vec<Age> = case.events(signal).map(|event| age(case, event)).collect();
    if ages.contains(&Age::OfTheRun) {
        return Some(claim);
    }
    // A GPU that is lost shows so in its rank, whatever a clock that is set wrong says.
    let fits = signal == "xid-of-hardware" && case.has_any(&["cuda-launch-failed", "gpu-lost"]);
    if fits {
        claim.confidence = Confidence::Likely;
        claim.because.push_str("; the dates lie far apart, and a rank reports a fault of its GPU");
        return Some(claim);
    }
    if !ages.contains(&Age::Unknown) {
        return None;
    }
    claim.confidence = Confidence::Possible;
    claim.rules_out.clear();
    claim.because.push_str("; whether that was during this run does not show");
    claim.next = Some("the date of that line: `dmesg -T` or `journalctl -k -o short-iso` on that host, beside the time of the run".to_owned());
    Some(claim)
}

/// Compilers: where one of them is killed, a build ran out of memory.
const COMPILERS: &[&str] = &["cudafe++", "cicc", "ptxas", "nvcc", "cc1plus", "nvlink", "ninja", "fatbinary"];

fn host_memory(case: &Case, mut claim: Claim) -> Option<Claim> {
    let events: Vec<_> = case
        .events("oom-killed")
        .filter(|event| {
            let name = event.field("comm").or(event.field("comm2")).unwrap_or_default();
            !COMPILERS.iter().any(|compiler| {
                name.starts_with(compiler) || event.text.contains(&format!("{compiler} invoked oom-killer"))
            })
        })
        .collect();
    let first = events.first()?;
    claim.evidence = events.iter().take(4).map(|event| event.place).collect();
    // The state that a pod or step shows names it; the kernel names the process.
    let about = |text: &str| {
        text.strip_prefix("kube-container ")
            .or_else(|| text.strip_prefix("kube-pod "))
            .and_then(|rest| rest.split_whitespace().next())
            .map(str::to_owned)
    };
    let process = first.field("comm").or(first.field("comm2")).map(|name| format!("process {name}"));
    claim.subject = about(&first.text).or_else(|| writer(first)).or(process);
    // A kernel log keeps what happened to other jobs.
    let kernel_only =
        events.iter().all(|event| event.text.contains("Kill") && event.text.contains("process"));
    let failed = case
        .events
        .iter()
        .any(|bad| matches!(bad.role, Role::Failure | Role::Follower) && bad.signal != "oom-killed");
    if kernel_only && !failed && case.events.iter().any(whole) {
        return None;
    }
    let claim = if kernel_only { of_its_time(case, claim, "oom-killed")? } else { claim };
    unless_fine(case, claim)
}

fn gpu_memory(case: &Case, mut claim: Claim) -> Option<Claim> {
    let last_words = earliest(case.events("cuda-out-of-memory").filter(|event| !handled(case, event)));
    let event = match last_words {
        Some(event) => event,
        None => case.first("cuda-out-of-memory")?,
    };
    claim.evidence = vec![event.place];
    if last_words.is_none() {
        claim.confidence = Confidence::Possible;
        claim.rules_out.clear();
        claim.because =
            "an allocation on a GPU failed, and its rank went on with steps after it: it was caught".into();
        claim.next = Some("what the rank that stopped first was doing: its last lines, or `py-spy dump --pid <pid>` in a new run".to_owned());
    }
    let claim = match writer(event) {
        Some(writer) => claim.about(writer),
        None => claim,
    };
    unless_fine(case, claim)
}

/// Whether the line says that there was none: `fallen off the bus: no`, `no Xid 79`.
fn denied(event: &Event) -> bool {
    let text = event.text.to_lowercase();
    event.field("xid").is_none()
        && (text.contains("fallen off the bus: no")
            || text.contains("no gpu has fallen")
            || text.contains("not fallen off")
            || text.contains("no xid")
            || text.contains("fallen off the bus?"))
}

fn hardware(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.events("xid-of-hardware").find(|event| !denied(event))?;
    claim.evidence = vec![event.place];
    if event.field("xid").is_none() {
        claim.because = "the driver lost a GPU: it has fallen off the bus (Xid 79)".into();
    }
    let gpu = event.field("pci").or(event.field("bus")).filter(|pci| !pci.is_empty());
    claim.subject = match (event.node.as_deref(), gpu) {
        (Some(node), Some(pci)) => Some(format!("GPU {pci} of {node}")),
        (None, Some(pci)) => Some(format!("GPU {pci}")),
        (node, None) => node.map(str::to_owned),
    };
    // A kernel log keeps Xids of earlier days, and its clock is its own.
    let done = case.events.iter().any(|good| whole(good) && event.before(good) != Some(false));
    let failed = case
        .events
        .iter()
        .any(|bad| matches!(bad.role, Role::Failure | Role::Follower) && !bad.signal.starts_with("xid-of-"));
    if done && !failed {
        claim.caution = true;
    }
    of_its_time(case, claim, "xid-of-hardware")
}
