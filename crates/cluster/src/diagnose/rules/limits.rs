//! Limits of shapes, buffers and counts.

use super::process::story::{unless_fine, writer};
use super::timeout::weigh;
use crate::diagnose::case::earliest;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::{Case, Event};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    Signal {
        id: "deepep-assert-qps-channels",
        any: &["num_rc_per_pe >= num_channels", "num_rc_per_pe >= num_sms", "num_rc_per_pe == num_channels"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "deepep-assert-qps-experts",
        any: &["num_rc_per_pe >= num_local_experts"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "deepep-assert-nvl-chunk",
        any: &["num_max_nvl_chunked_recv_tokens / num_rdma_ranks >"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "deepep-unsupported-ranks",
        any: &["Unsupported RDMA ranks", "Unsupported number of EP ranks", "Unsupported ranks"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "uccl-write-out-of-bounds",
        any: &["Remote write OOB"],
        pattern: Some(r"(?:size=(?P<size>\d+))?"),
        role: Role::Failure,
    },
    Signal {
        id: "deepep-assert-ll-tokens",
        any: &["x.size(0) <= num_max_dispatch_tokens_per_rank"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "nvshmem-qp-creation-failed",
        any: &["qp creation failed"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "deepep-assert-qp-depth",
        any: &["nvshmem_qp_depth >= (num_max_dispatch_tokens_per_rank", "nvshmem_qp_depth >= 2 *"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "too-many-open-files",
        any: &["Too many open files"],
        // vLLM warns of it in backquotes, at every start.
        pattern: Some(r"^[^`]*Too many open files"),
        role: Role::Failure,
    },
    Signal {
        id: "storage-full",
        any: &["No space left on device", "Disk quota exceeded"],
        pattern: Some(
            r"(?:OSError|IOError|Error|error|[Ff]ailed|RuntimeError|cannot|write|Errno).*?(?:No space left on device|Disk quota exceeded)(?:: ?'(?P<path>/[^']+)')?",
        ),
        role: Role::Failure,
    },
    Signal {
        id: "deepep-assert-experts-divisible",
        any: &["num_experts % num_ranks == 0"],
        pattern: None,
        role: Role::Failure,
    },
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        rules_out: &["The program: the operating system refuses it one more descriptor (errno 24)."],
        refine: Some(still_open),
        ..Rule::plain(
            "nofile-low",
            &["too-many-open-files"],
            "A process has as many files, sockets and shared memories open as its limit allows: sockets and events to many peers are among them.",
        )
    },
    Rule {
        rules_out: &[
            "The program: the file system has no room left (errno 28), or the user's quota is used up.",
        ],
        confidence: Confidence::Likely,
        refine: Some(storage),
        ..Rule::plain("storage-full", &["storage-full"], "A write failed: the file system of {path} is full.")
    },
    Rule {
        rules_out: &[
            "A network fault: the assertion compares two counts of the configuration, and timeouts or illegal accesses of other ranks follow from the rank that stopped.",
        ],
        ..Rule::plain(
            "deepep-qps-too-few",
            &["deepep-assert-qps-channels"],
            "The kernel found fewer queue pairs per peer than it has channels: num_qps_per_rank of deep_ep.Buffer is too low for num_sms.",
        )
    },
    Rule {
        rules_out: &[
            "A network fault: the assertion compares the queue pairs of the buffer with the experts of a rank.",
        ],
        ..Rule::plain(
            "deepep-qps-too-few",
            &["deepep-assert-qps-experts"],
            "The low-latency kernel found fewer queue pairs per peer than a rank has experts: num_qps_per_rank is too low, or IBGDA came up with none.",
        )
    },
    Rule {
        rules_out: &["The fabric: figures before the assertion show that it carries data."],
        ..Rule::plain(
            "deepep-scale-config",
            &["deepep-assert-nvl-chunk"],
            "The NVLink receive buffer of the configuration, divided by the number of nodes, is not larger than a chunk: the setting does not serve this many nodes.",
        )
    },
    Rule {
        rules_out: &["The fabric: any smaller set of the same nodes works, since its count is in the list."],
        ..Rule::plain(
            "deepep-unsupported-rank-count",
            &["deepep-unsupported-ranks"],
            "DeepEP's kernels are compiled for a fixed list of node counts, and this count is not in it.",
        )
    },
    Rule {
        rules_out: &[
            "Memory corruption: the offset is past a buffer whose size is a round number of the configuration.",
        ],
        ..Rule::plain(
            "ep-rdma-buffer-too-small",
            &["uccl-write-out-of-bounds"],
            "A peer wrote past the end of the RDMA buffer: num_rdma_bytes is smaller than this number of nodes needs.",
        )
    },
    Rule {
        rules_out: &[
            "A NIC that refuses queue pairs: that message, where it follows, comes of a raised NVSHMEM_QP_DEPTH.",
        ],
        ..Rule::plain(
            "deepep-ll-token-limit",
            &["deepep-assert-ll-tokens", "deepep-assert-qp-depth"],
            "A rank called low-latency dispatch with more tokens than num_max_dispatch_tokens_per_rank.",
        )
    },
    Rule {
        unless: &["deepep-assert-ll-tokens", "deepep-assert-qp-depth"],
        confidence: Confidence::Likely,
        refine: Some(qp_depth),
        ..Rule::plain(
            "deepep-ll-token-limit",
            &["nvshmem-qp-creation-failed"],
            "NVSHMEM could not create a queue pair with NVSHMEM_QP_DEPTH raised: more depth than the NIC accepts.",
        )
    },
    Rule {
        rules_out: &[
            "The cluster: the test's default of 288 experts does not divide by this number of ranks.",
        ],
        ..Rule::plain(
            "experts-not-divisible",
            &["deepep-assert-experts-divisible"],
            "The number of experts does not divide by the number of ranks.",
        )
    },
];

fn still_open(case: &Case, claim: Claim) -> Option<Claim> {
    let event = case.first("too-many-open-files")?;
    let claim = match writer(event) {
        Some(writer) => claim.about(writer),
        None => claim,
    };
    unless_fine(case, claim)
}

/// A full disk of the node has a cause of its own, and so does shared memory, which is none.
fn storage(case: &Case, mut claim: Claim) -> Option<Claim> {
    let memory =
        |event: &Event| ["/dev/shm", "shm", "shared memory"].iter().any(|word| event.text.contains(word));
    let event = earliest(case.events("storage-full").filter(|event| !memory(event)))?;
    if case.has("kube-disk-pressure") {
        return None;
    }
    claim.evidence = vec![event.place];
    let path = event.field("path");
    if path.is_none() {
        // Semaphores, queues and GPU tables give the same number.
        claim = weigh(claim, Confidence::Possible)
            .next("Which path that was (the line above, or `strace -e trace=%file -f`), and `df -h <path>`.");
        claim.because = "A call failed with `No space left on device`, and of what does not show.".into();
        claim.rules_out.clear();
    } else if let Some(path) = path {
        claim.because =
            format!("A write failed: the file system of {path} is full, or the quota is used up.");
        claim.subject = Some(path.to_owned());
    }
    unless_fine(case, claim)
}

/// Queue pairs that cannot be made are a matter of depth only where the depth was raised (DeepEP's default is 1024).
#[expect(clippy::unnecessary_wraps, reason = "what a rule takes to look closer")]
fn qp_depth(case: &Case, claim: Claim) -> Option<Claim> {
    let depth = case.variable("NVSHMEM_QP_DEPTH").and_then(|depth| depth.parse::<u32>().ok());
    let claim = claim
        .next("The values of NVSHMEM_QP_DEPTH and num_max_dispatch_tokens_per_rank of the failing rank.");
    Some(match depth {
        Some(depth) if depth > 1024 => claim.about(format!("NVSHMEM_QP_DEPTH={depth}")),
        _ => weigh(claim, Confidence::Possible),
    })
}
