//! Verbs libraries, locked memory, and UCX over them.

use crate::diagnose::Case;
use crate::diagnose::context::MEMLOCK;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::rules::process::story::{about, line, text, unless_fine, writer};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "verbs-symbol-version-missing",
        Role::Failure,
        &["IBVERBS_PRIVATE_", "IBVERBS_1."],
        r"version [`'‘](?P<symbol>IBVERBS_(?:PRIVATE_)?[\d.]+)['’] not found \(required by (?P<wants>[^)]+)\)",
    ),
    line(
        "verbs-provider-abi",
        Role::Warning,
        &["does not support the kernel ABI of"],
        r"Driver (?P<driver>\w+) does not support the kernel ABI of (?P<abi>\d+) \(supports (?P<from>\d+) to (?P<to>\d+)\) for device (?P<device>\S+)",
    ),
    text(
        "verbs-no-devices",
        Role::Warning,
        &["No IB devices found", "NET/IB : No device found", "No RDMA devices found"],
    ),
    // A run goes on over TCP: that it ends well takes nothing back.
    line(
        "ucx-device-not-available",
        Role::Context,
        &["is not available, please use one or more of"],
        r"network device '(?P<device>[^']+)' is not available, please use one or more of: (?P<offered>.*)",
    ),
    line(
        "verbs-no-memory",
        Role::Warning,
        &["Cannot allocate memory"],
        r"(?:ibv_\w+|create_cq|reg_mr|create_qp|create_srq|reg_dmabuf_mr)\b.*?Cannot allocate memory",
    ),
    line(
        "verbs-call-without-errno",
        Role::Failure,
        &["Call to ibv_create_cq failed", "Call to ibv_reg_mr failed", "Call to ibv_create_qp failed"],
        r"Call to (?P<call>ibv_\w+) failed\s*$",
    ),
    line(
        "memlock-limit-small",
        Role::Context,
        &["max locked memory", "Max locked memory", "RLIMIT_MEMLOCK", "ulimit -l", "LimitMEMLOCK"],
        r"(?:[Mm]ax locked memory\s+(?:\(k\w*, -l\)\s*)?|\(current: |RLIMIT_MEMLOCK\D{0,12}|LimitMEMLOCK=|ulimit -l\W{1,4})(?P<limit>\d{1,8})\b",
    ),
    line(
        "memlock-limit-none",
        Role::Context,
        &["unlimited"],
        r"(?:[Mm]ax locked memory\s+(?:\(k\w*, -l\)\s*)?|RLIMIT_MEMLOCK\D{0,12}|LimitMEMLOCK=|ulimit -l\W{1,4})(?:unlimited|infinity)",
    ),
    // The header is printed by rank 0 once MPI is up.
    line("osu-benchmark-done", Role::Success, &["# OSU MPI"], r"# OSU MPI.* (?:Test|Benchmark)"),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "rdma-core-mixed",
        needs: &["verbs-symbol-version-missing"],
        confidence: Confidence::Certain,
        because: "{wants} was built with another rdma-core than the libibverbs that loads: {symbol} is private to one build",
        rules_out: &[
            "an rdma-core that is merely old lacks a public symbol (MLX5_1.x), never a private one of its own build",
            "`couldn't load driver 'lib...-rdmav34.so': cannot open shared object file` is harmless: that provider's package is not installed",
        ],
        refine: Some(mixed),
        ..Rule::LIKELY
    },
    Rule {
        cause: "rdma-provider-kernel-abi",
        needs: &["verbs-provider-abi"],
        confidence: Confidence::Certain,
        because: "the kernel's {driver} driver speaks ABI {abi} and the image's provider {from} to {to}, so {device} cannot be opened",
        rules_out: &["the device is there (/sys lists it): what lists devices by /sys alone passes"],
        refine: Some(abi),
        ..Rule::LIKELY
    },
    Rule {
        cause: "ucx-without-ib",
        needs: &["ucx-device-not-available"],
        confidence: Confidence::Likely,
        because: "UCX was told to use {device} and offers tcp only: this UCX has no verbs transport, or no verbs library to load",
        rules_out: &["with a misspelt device the list would hold RDMA devices under their right names"],
        refine: Some(tcp_only),
        ..Rule::LIKELY
    },
    Rule {
        cause: "memlock-limited",
        needs: &["memlock-limit-small"],
        any: &["verbs-no-memory", "verbs-call-without-errno"],
        unless: &["memlock-limit-none"],
        confidence: Confidence::Certain,
        because: "verbs calls are refused memory while at most {limit} (kbytes, or bytes where the line says so) may be locked",
        rules_out: &["`Cannot allocate memory` of a verbs call is about locked memory, not about RAM"],
        refine: Some(unless_fine),
    },
    Rule {
        cause: "memlock-limited",
        any: &["verbs-no-memory", "verbs-call-without-errno"],
        unless: &["memlock-limit-small"],
        confidence: Confidence::Possible,
        because: "a verbs call was refused: most often the limit of locked memory, at times a limit of the device",
        refine: Some(limit_unknown),
        ..Rule::LIKELY
    },
];

fn mixed(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = about(case, claim, "wants");
    unless_fine(case, claim)
}

fn abi(case: &Case, claim: Claim) -> Option<Claim> {
    let event = case.first("verbs-provider-abi")?;
    let mut claim = unless_fine(case, claim)?;
    claim.evidence.extend(case.first("verbs-no-devices").map(|event| event.place));
    let subject = writer(event).or_else(|| event.field("device").map(str::to_owned))?;
    Some(claim.about(subject))
}

fn tcp_only(case: &Case, claim: Claim) -> Option<Claim> {
    let offered = case.first("ucx-device-not-available")?.field("offered")?;
    let claim = claim.about("UCX_NET_DEVICES");
    if !offered.contains("(ib)") && !offered.contains("mlx5") && offered.contains("tcp") {
        return Some(claim);
    }
    let device = case.first("ucx-device-not-available")?.field("device").unwrap_or_default();
    let mut claim = claim.next("the names of this node's RDMA devices: `ucx_info -d | grep Device` in the image, beside UCX_NET_DEVICES");
    claim.confidence = Confidence::Possible;
    claim.because = format!(
        "UCX has RDMA devices, and none is named {device}: the name is wrong here, or this one's library is missing"
    );
    claim.rules_out.clear();
    unless_fine(case, claim)
}

/// A limit of locked memory, KiB, that is surely too small for buffers of GPUs: 64 GiB would not be.
const SMALL: u64 = 16 << 20;

fn limit_unknown(case: &Case, claim: Claim) -> Option<Claim> {
    let mut claim = unless_fine(case, claim)?;
    let shown = case.variables.get(MEMLOCK).filter(|_| !case.has("memlock-limit-none"));
    if let Some((shown, limit)) = shown.and_then(|shown| Some((shown, shown.value.parse::<u64>().ok()?)))
        && limit <= SMALL
    {
        claim.confidence = Confidence::Certain;
        claim.because =
            format!("verbs calls are refused memory while at most {limit} KiB may be locked (ulimit -l)");
        claim.evidence.push(shown.place);
        return Some(claim);
    }
    let call = claim.evidence.iter().find_map(|&place| case.at(place)?.field("call").map(str::to_owned));
    let claim = match call {
        Some(call) => claim.about(call),
        None => claim,
    };
    if case.has("memlock-limit-none") {
        return Some(claim.next("whether that limit is the one of the launched task, and the device's own limits: `ibv_devinfo -v | grep -E 'max_cqe|max_cq|max_mr'`"));
    }
    Some(claim.next(
        "the limit inside the launched task, not in a login shell: `srun bash -c 'ulimit -l'`, or `kubectl exec <pod> -- bash -c 'ulimit -l'`",
    ))
}
