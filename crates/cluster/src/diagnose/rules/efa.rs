//! EFA and libfabric.

use super::process::story::{failed_before, line, text, unless_fine, writers};
use crate::diagnose::Case;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "ofi-getinfo-no-data",
        Role::Failure,
        &["No data available", "No eligible providers were found", "find any optimal provider"],
        r"fi_getinfo\S* (?:call )?failed:? .*No data available|NET/OFI .*(?:No eligible providers were found|find any optimal provider)",
    ),
    line(
        "fi-info-no-data",
        Role::Warning,
        &["fi_getinfo: -61", "fi_getinfo(): -61", "No data available"],
        r"fi_getinfo(?:\(\))?:? -61|fi_info.*(?:-61|No data available)",
    ),
    line("efa-hmem-asked", Role::Context, &["FI_HMEM"], r"FI_HMEM\b"),
    text("efa-empty-list", Role::Warning, &["provider efa output empty list"]),
    line(
        "ofi-endpoint-failed",
        Role::Failure,
        &["Creating new endpoint for domain"],
        r"Creating new endpoint for domain \S* ?failed",
    ),
    line(
        "efa-machine",
        Role::Context,
        &[
            "p4d.24xlarge",
            "p4de.24xlarge",
            "p5.48xlarge",
            "p5e.48xlarge",
            "p5en.48xlarge",
            "p5.4xlarge",
            "p6-b200",
            "p6-b300",
            "p6e-gb200",
            "Elastic Fabric Adapter",
            "rdmap",
            "vpc.amazonaws.com/efa",
            "[1d0f:efa",
        ],
        r"p[456]\w*[.-]\w+|Elastic Fabric Adapter|\brdmap\d+s\d+|vpc\.amazonaws\.com/efa|1d0f:efa",
    ),
    line(
        "infiniband-nodes-absent",
        Role::Warning,
        &["/dev/infiniband"],
        r"/dev/infiniband\S*\W*: No such file|/dev/infiniband\S* (?:is )?(?:missing|not (?:found|present|mounted))",
    ),
    text(
        "efa-in-order-not-available",
        Role::Failure,
        &[
            "Couldn't set FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES",
            "Couldn't set FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES",
        ],
    ),
    line(
        "efa-option-not-available",
        Role::Warning,
        &["Protocol not available"],
        r"(?i)(?:OFI|libfabric|efa|FI_OPT|shared memory).*Protocol not available",
    ),
    line(
        "libfabric-version",
        Role::Context,
        &["libfabric"],
        r"(?i)libfabric(?:-aws)?(?:\W+(?:version|v|api))?\W{0,4}(?P<version>\d+\.\d+(?:\.\d+)?\w*)",
    ),
    text(
        "efa-sync-memops-refused",
        Role::Failure,
        &[
            "unable to set memops for cuda ptr",
            "Failed to perform cuPointerSetAttribute: CUDA_ERROR_NOT_SUPPORTED",
        ],
    ),
    line(
        "efa-registration-failed",
        Role::Failure,
        &["Unable to register MR"],
        r"Unable to register MR(?: of (?P<bytes>\d+) bytes)?: (?P<reason>[A-Za-z ]+)",
    ),
    text("efa-dmabuf-status", Role::Context, &["dmabuf support status"]),
    line(
        "uccl-registration-failed",
        Role::Failure,
        &["MR registration failed", "ibv_reg_mr failed"],
        r"(?:RDMA buffer|\[RDMA\]|UCCL|uccl).*?(?:MR registration failed|ibv_reg_mr failed)(?:: (?P<reason>.*))?",
    ),
    line(
        "peermem-module-not-found",
        Role::Warning,
        &["nvidia-peermem", "nvidia_peermem"],
        r"Module nvidia[-_]peermem not found|nvidia[-_]peermem\W+(?:is )?not (?:loaded|found|present)|[Nn]o nvidia[-_]peermem",
    ),
    line(
        "efa-unresponsive-receiver",
        Role::Follower,
        &["Unresponsive receiver", "Error: 4123"],
        r"Error: 4123|Unresponsive receiver",
    ),
    line("nvshmem-topo-status-28", Role::Failure, &["nvshmem detect topo failed"], r"non-zero status: 28\b"),
    line(
        "gin-ring-full",
        Role::Failure,
        &["GIN request ring", "request ring full", "ring full"],
        r"(?i)GIN.*ring.*full|request ring full",
    ),
    line("v2-queue-pairs", Role::Context, &["num_allocated_qps"], r"num_allocated_qps\W+(?P<qps>\d+)"),
    text("v2-hang", Role::Warning, &["hang in ElasticBuffer", "ElasticBuffer dispatch"]),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "verbs-device-hidden",
        needs: &["ofi-getinfo-no-data"],
        unless: &["efa-empty-list"],
        confidence: Confidence::Likely,
        because: "libfabric finds no EFA device inside the container although the machine has them",
        rules_out: &[
            "a mismatch of versions would fail later, with a device found; ping and TCP say nothing of EFA",
        ],
        refine: Some(no_data),
        ..Rule::LIKELY
    },
    Rule {
        cause: "efa-gpu-registration",
        any: &["efa-empty-list", "ofi-endpoint-failed"],
        confidence: Confidence::Possible,
        because: "libfabric offers no EFA endpoint for GPU memory here; whether device files, the efa module, libfabric or the driver are at fault does not show",
        refine: Some(no_hmem),
        ..Rule::LIKELY
    },
    Rule {
        cause: "libfabric-build-runtime-mismatch",
        needs: &["efa-in-order-not-available"],
        confidence: Confidence::Likely,
        because: "the plugin asks libfabric for an option that this libfabric does not know: it was built with a newer one than it loads",
        rules_out: &[
            "`Disabling shared memory failed: Protocol not available` is another option and has another cause (build flags of the plugin)",
        ],
        refine: Some(unless_fine),
        ..Rule::LIKELY
    },
    Rule {
        cause: "libfabric-build-runtime-mismatch",
        needs: &["efa-option-not-available"],
        unless: &["efa-in-order-not-available"],
        confidence: Confidence::Possible,
        because: "libfabric does not know an option that the plugin sets: another version at build time, or build flags",
        refine: Some(other_option),
        ..Rule::LIKELY
    },
    Rule {
        cause: "efa-sync-memops",
        needs: &["efa-sync-memops-refused"],
        confidence: Confidence::Certain,
        because: "libfabric sets SYNC_MEMOPS on a CUDA buffer and CUDA refuses it for memory of cuMem: the registration fails after that",
        rules_out: &[
            "`Unable to register MR` alone would fit other causes; the refused attribute comes before it here",
        ],
        refine: Some(unless_fine),
        ..Rule::LIKELY
    },
    Rule {
        cause: "efa-gpu-registration",
        needs: &["efa-registration-failed"],
        unless: &["efa-sync-memops-refused"],
        confidence: Confidence::Likely,
        because: "EFA's registration of a buffer fails with `{reason}`: the provider registers GPU memory as if it were the host's",
        rules_out: &["no attribute of CUDA was refused before it, as where SYNC_MEMOPS is at fault"],
        refine: Some(registration),
        ..Rule::LIKELY
    },
    Rule {
        cause: "ep-wheel-without-dmabuf",
        needs: &["uccl-registration-failed"],
        confidence: Confidence::Likely,
        because: "registering the RDMA buffer fails and the machine has no nvidia_peermem: this build has no dma-buf path to take instead",
        rules_out: &["a run inside one node registers nothing, so its pass says nothing"],
        refine: Some(wheel),
        ..Rule::LIKELY
    },
    Rule {
        cause: "efa-peer-unresponsive",
        needs: &["efa-unresponsive-receiver"],
        confidence: Confidence::Likely,
        because: "EFA gives up on a receiver: its process ended, or the security group, the subnet or the hardware keeps packets from it",
        refine: Some(unresponsive),
        ..Rule::LIKELY
    },
    Rule {
        cause: "transport-without-device",
        needs: &["nvshmem-topo-status-28"],
        confidence: Confidence::Possible,
        because: "NVSHMEM finds no device for the transport it was told to use; an image made for EFA on a cluster without it looks like this",
        refine: Some(status_28),
        ..Rule::LIKELY
    },
    Rule {
        cause: "efa-gin-ring",
        any: &["gin-ring-full", "v2-queue-pairs"],
        confidence: Confidence::Likely,
        because: "DeepEP V2's queue pairs overflow the 128 places of NCCL's GIN ring on EFA",
        rules_out: &["a dead peer would be reported by EFA as an unresponsive receiver"],
        refine: Some(ring),
        ..Rule::LIKELY
    },
];

fn no_data(case: &Case, mut claim: Claim) -> Option<Claim> {
    let hidden = case.first("infiniband-nodes-absent");
    let machine = case.first("efa-machine");
    match (hidden, machine) {
        (Some(_), _) => claim.confidence = Confidence::Certain,
        (None, Some(_)) => {}
        (None, None) => {
            claim.confidence = Confidence::Possible;
            claim.because = "libfabric finds no EFA device: none in the machine, its module not loaded, or its files not in the container".into();
            claim.next = Some("`ls /sys/class/infiniband /dev/infiniband` inside the container: names in the first and nothing in the second is this cause".to_owned());
        }
    }
    claim.evidence.extend(
        [hidden, machine, case.first("fi-info-no-data")].into_iter().flatten().map(|event| event.place),
    );
    unless_fine(case, claim.about("/dev/infiniband"))
}

fn no_hmem(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = claim.next(
        "`fi_info -p efa -t FI_EP_RDM -c FI_HMEM` on the host and in the container: only in the container empty is about device files or its libfabric, on both it is the host's driver",
    );
    unless_fine(case, claim)
}

fn other_option(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = claim.next("the libfabric that the plugin was built with (its configure log, or the EFA installer of its image) beside `fi_info --version` at run time");
    unless_fine(case, claim)
}

fn registration(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = claim.evidence.first().and_then(|&place| case.at(place))?;
    let fault = event.field("reason").is_some_and(|reason| reason.starts_with("Bad address"));
    let context = ["efa-dmabuf-status", "libfabric-version", "efa-machine"]
        .iter()
        .find_map(|signal| case.first(signal));
    let table = case.stack_says("efa-gpu-registration") == Some(true);
    if !fault || context.is_none() && !table {
        claim.confidence = Confidence::Possible;
        claim.rules_out.clear();
        claim.next = Some(
            "the lines of libfabric before it (FI_LOG_LEVEL=warn): a refused SYNC_MEMOPS, or none; `lsmod | grep peermem`; and `fi_info --version`".to_owned(),
        );
    }
    claim.evidence.extend(context.map(|event| event.place));
    unless_fine(case, claim)
}

fn wheel(case: &Case, mut claim: Claim) -> Option<Claim> {
    if let Some(module) = case.first("peermem-module-not-found") {
        claim.evidence.push(module.place);
    } else {
        claim.confidence = Confidence::Possible;
        claim.because = "registering the RDMA buffer of GPU memory fails: no nvidia_peermem and no dma-buf path in this build, or a limit".into();
        claim.next = Some(
            "`lsmod | grep nvidia_peermem` on that host, and whether the wheel was built with USE_DMABUF=1"
                .to_owned(),
        );
    }
    unless_fine(case, claim)
}

fn unresponsive(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("efa-unresponsive-receiver")?;
    let first = case.first_failure();
    // Most often a rank ended before, and then its own failure is the answer.
    let earlier =
        failed_before(case, event, &[]) || first.is_some_and(|first| first.before(event) != Some(false));
    if earlier {
        return None;
    }
    let seen = writers(case, "efa-unresponsive-receiver");
    if seen < 2 && case.count("efa-unresponsive-receiver") < 2 && case.ranks_seen.len() < 2 {
        claim.confidence = Confidence::Possible;
        claim.next = Some("the log of the receiver's rank: an exception there that is earlier is the cause; none points to the security group (all traffic in and out to itself) or the subnet".to_owned());
    } else if seen >= 2 {
        claim.because.push_str("; several ranks report it and none failed before");
    }
    unless_fine(case, claim.not("no rank's log has an earlier failure"))
}

fn status_28(case: &Case, mut claim: Claim) -> Option<Claim> {
    let asked = case.variable("NVSHMEM_REMOTE_TRANSPORT") == Some("libfabric")
        || case.variable("FI_PROVIDER").is_some_and(|provider| provider.contains("efa"));
    let absent = case.first_of(&["fi-info-no-data", "ofi-getinfo-no-data", "verbs-no-devices"]);
    if let Some(absent) = absent.filter(|_| asked) {
        claim.confidence = Confidence::Likely;
        claim.because =
            "the variables ask NVSHMEM for libfabric over EFA, and this node has no such device".into();
        claim.evidence.push(absent.place);
        return unless_fine(case, claim.about("NVSHMEM_REMOTE_TRANSPORT"));
    }
    let claim = claim.next(
        "the image's variables: `env | grep -E 'NVSHMEM_REMOTE_TRANSPORT|FI_PROVIDER'` inside the container, beside `ls /sys/class/infiniband`",
    );
    unless_fine(case, claim)
}

fn ring(case: &Case, mut claim: Claim) -> Option<Claim> {
    let full = case.first("gin-ring-full");
    let many = case.events("v2-queue-pairs").find(|event| event.number("qps").is_some_and(|qps| qps > 128));
    let efa =
        case.has("efa-machine") || case.version("transport") == Some("efa") || case.has("libfabric-version");
    match (full, many) {
        (Some(_), Some(_)) => claim.confidence = Confidence::Certain,
        (Some(_), None) => {}
        (None, Some(_)) if efa && case.first_failure().is_none() => {
            if !case.has("v2-hang") {
                claim.confidence = Confidence::Possible;
                claim.next =
                    Some("where the ranks wait (`py-spy dump`), and the version of aws-ofi-nccl".to_owned());
            }
        }
        _ => return None,
    }
    claim.evidence =
        [full, many, case.first("v2-hang")].into_iter().flatten().map(|event| event.place).collect();
    unless_fine(case, claim)
}
