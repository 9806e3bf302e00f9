//! Plain failures: programs that end and say so in words of their shell, their language's run time or their launcher. What they say is
//! that something failed; only some of them say why.

use super::story::{ended_well, line, unless_fine, writer};
use crate::diagnose::Case;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::heal::whole;
use crate::diagnose::rule::{Claim, Confidence, Rule};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "gpu-ecc-error",
        Role::Failure,
        &["uncorrectable ECC error", "cudaErrorECCUncorrectable", "CUDA_ERROR_ECC_UNCORRECTABLE"],
        r"uncorrectable ECC error encountered|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE",
    ),
    line(
        "listen-address-in-use",
        Role::Failure,
        &["EADDRINUSE", "ddress already in use"],
        r"(?:DistNetworkError|RuntimeError|SocketError|bind)\b.*(?:EADDRINUSE|[Aa]ddress already in use)",
    ),
    line(
        "host-allocation-failed",
        Role::Failure,
        &["MemoryError", "std::bad_alloc"],
        r"^\s*(?:[A-Za-z_]\w*\.)*(?:ArrayMemoryError|MemoryError)(?:: .*)?$|throwing an instance of 'std::bad_alloc'|what\(\):\s+std::bad_alloc",
    ),
    line(
        "program-panicked",
        Role::Failure,
        &["panic: ", "panicked at"],
        r#"(?:^|msg=")panic: |\bpanic: runtime error|^\s*thread '[^']*' (?:\(\d+\) )?panicked at"#,
    ),
    line(
        "python-import-error",
        Role::Failure,
        &["ImportError: ", "ModuleNotFoundError: "],
        r"^\s*(?:ImportError|ModuleNotFoundError): (?P<what>.+)",
    ),
    line(
        "http-request-failed",
        Role::Failure,
        &[
            "requests.exceptions.",
            "urllib3.exceptions.",
            "huggingface_hub.errors.",
            "huggingface_hub.utils.",
            "httpx.",
        ],
        r"^\s*(?:requests\.exceptions|urllib3\.exceptions|huggingface_hub\.(?:errors|utils)(?:\._\w+)?|httpx)\.\w*(?:Error|Timeout)\b",
    ),
    // What comes after: a shell, a launcher or `make` names the code, and the reason stands above it or nowhere.
    line(
        "command-not-found",
        Role::Follower,
        &[": command not found", ": not found"],
        r"^(?:/\S*/)?(?:ba|z|da|k)?sh: (?:line )?(?:\d+: )?(?P<command>[\w./-]+): (?:command )?not found\s*$",
    ),
    line(
        "ended-with-code",
        Role::Follower,
        &["exit code", "exit status", "Exit code", "exit_code", "EXIT_CODE", "] Error ", "Exit Code"],
        r"(?i)(?:failed|terminated|exited|ended|finished) with (?:a )?(?:non-?zero )?exit[ _](?:code|status)[ :=]+[1-9]\d{0,2}\b|^\s*exit[ _](?:code|status)\s*[:=]?\s*[1-9]\d{0,2}\s*$|^make(?:\[\d+\])?: \*\*\* .*\bError [1-9]",
    ),
    line(
        "fatal-line",
        Role::Follower,
        &["FATAL", "CRITICAL"],
        r"^\s*\[?(?:FATAL|CRITICAL)\]?(?:: | - |\s+\[|\s+\w)",
    ),
    // The hardware and its driver complain; a run may live with it.
    line(
        "nic-health-lost",
        Role::Warning,
        &["mlx5_core"],
        r"mlx5_core (?P<device>[0-9a-f:.]+)\S*.*(?:assert_var\[|health_care|device's health compromised|handling bad device|[Ff]atal error|firmware (?:internal )?error)",
    ),
    line(
        "link-went-down",
        Role::Warning,
        &["Link down", "able unplugged", "Got async event", "Lost carrier"],
        r"mlx5\S* .*(?:Link down|[Cc]able unplugged)|Got async event\s*: (?:port error|device fatal|IBV_EVENT_PORT_ERR|local catastrophic)|: Lost carrier",
    ),
    line(
        "host-memory-error",
        Role::Warning,
        &["EDAC ", "[Hardware Error]"],
        r"EDAC \S+: [1-9]\d* UE\b|\[Hardware Error\]:.*(?:[Uu]ncorrected|[Ff]atal|Uncorrectable)",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "xid",
        needs: &["gpu-ecc-error"],
        confidence: Confidence::Likely,
        because: "a GPU reports memory errors that its ECC cannot correct: a fault of the GPU, not of the program",
        rules_out: &["a program's own stray access is reported as an illegal address, not as an ECC error"],
        refine: Some(ecc),
        ..Rule::LIKELY
    },
    Rule {
        cause: "xid",
        needs: &["xid-of-program"],
        unless: &["xid-of-hardware"],
        confidence: Confidence::Possible,
        because: "the driver reports Xid {xid} of the GPU at {pci}: most often a program's own fault, and its log says which",
        refine: Some(program_fault),
        ..Rule::LIKELY
    },
    Rule {
        cause: "host-out-of-memory",
        needs: &["host-allocation-failed"],
        unless: &["oom-killed"],
        confidence: Confidence::Possible,
        because: "an allocation of host memory was refused: the host or the container's limit is full, or far too much was asked for",
        refine: Some(refused),
        ..Rule::LIKELY
    },
    Rule {
        cause: "nic-errors",
        any: &["nic-health-lost", "link-went-down"],
        confidence: Confidence::Likely,
        because: "a NIC or its link failed on a node: the kernel or a library of communication says so",
        rules_out: &["a link that is only slow is not reported as down"],
        refine: Some(slows),
        ..Rule::LIKELY
    },
    Rule {
        cause: "host-memory-fault",
        needs: &["host-memory-error"],
        confidence: Confidence::Likely,
        because: "a host's memory has an error that could not be corrected",
        rules_out: &["errors that were corrected are counted as CE"],
        refine: Some(slows),
        ..Rule::LIKELY
    },
];

/// Whether a run fell over it no such line tells: it is said beside what else is found.
fn slows(case: &Case, mut claim: Claim) -> Option<Claim> {
    claim.caution = true;
    let event = claim.evidence.first().and_then(|&place| case.at(place))?;
    let device = event.field("device").map(|device| device.trim_end_matches(':'));
    claim.subject = match (device, event.node.as_deref()) {
        (Some(device), Some(node)) => Some(format!("{device} of {node}")),
        (Some(device), None) => Some(device.to_owned()),
        (None, node) => node.map(str::to_owned),
    };
    Some(claim)
}

fn ecc(case: &Case, claim: Claim) -> Option<Claim> {
    let event = case.first("gpu-ecc-error")?;
    let claim = claim.next(
        "`nvidia-smi -q -d ECC,ROW_REMAPPER` and Xids 48, 63, 64, 94, 95 of the kernel log of that host",
    );
    let claim = match writer(event) {
        Some(writer) => claim.about(writer),
        None => claim,
    };
    unless_fine(case, claim)
}

fn program_fault(case: &Case, claim: Claim) -> Option<Claim> {
    // 43, 45 and the like follow a fault or a program that was ended.
    let fault = |event: &&crate::diagnose::Event| {
        event.number("xid").is_some_and(|xid| [13, 31, 68, 69].contains(&xid))
    };
    if !case.events("xid-of-program").any(|event| fault(&event)) {
        return None;
    }
    // Kernel logs keep what happened to other jobs.
    if case.events.iter().any(whole) {
        return None;
    }
    Some(claim.next("the output of the process that the line names: its first CUDA error"))
}

fn refused(case: &Case, claim: Claim) -> Option<Claim> {
    let event = case.first("host-allocation-failed")?;
    if ended_well(case, event) {
        return None;
    }
    Some(claim.next("how much was asked for (the lines above it), and `free -g` or the container's memory limit on that host"))
}
