//! NCCL.

use super::process::story::{failed_before, line, one_node, steps_before, text, unless_fine};
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::{Case, Event};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line("nccl-comm-shape", Role::Context, &["nNodes "], r"nRanks (?P<ranks>\d+) nNodes (?P<nodes>\d+)"),
    text(
        "nccl-no-dmabuf-symbol",
        Role::Context,
        &["dlvsym failed on mlx5dv_reg_dmabuf_mr", "dlvsym failed on ibv_reg_dmabuf_mr"],
    ),
    line(
        "verbs-local-protection",
        Role::Failure,
        &["IBV_WC_LOC_PROT_ERR", "local protection error", "Got completion with error 4", "with status=4"],
        r"LOC_PROT_ERR|local protection error|completion with error 4\b|with status=4\b",
    ),
    text("nccl-no-plugin", Role::Context, &["Could not find: libnccl-net"]),
    text("verbs-not-opened", Role::Context, &["Failed to open libibverbs"]),
    text(
        "nccl-network-socket",
        Role::Context,
        &["Using network Socket", "Assigned NET plugin Socket", "Initialized NET plugin Socket"],
    ),
    text(
        "nccl-network-rdma",
        Role::Context,
        &[
            "NET/IB : Using [0]",
            "Using network IB",
            "Assigned NET plugin IB",
            "Using network AWS",
            "Using network Libfabric",
            "via NET/IB/",
            "via NET/OFI/",
        ],
    ),
    text("nccl-ib-off", Role::Context, &["NCCL_IB_DISABLE set by environment to 1", "NCCL_IB_DISABLE=1"]),
    line(
        "rdma-retry-exceeded",
        Role::Failure,
        &[
            "Got completion with error 12",
            "RETRY_EXC_ERR",
            "retry counter exceeded",
            "status=12",
            "ransport retry count exceeded",
        ],
        r"completion with error 12\b|WC_RETRY_EXC_ERR|retry counter exceeded|status=12\b|ransport retry count exceeded",
    ),
    line("gid-link-local", Role::Context, &["fe80:"], r"(?i)gid.*\bfe80:|^\S+\s+\d+\s+\d+\s+fe80:"),
    line(
        "gid-chosen-link-local",
        Role::Context,
        &["fe80:"],
        r"(?i)(?:local ?gid\S*|using gid|chosen gid|selected gid|gid (?:index )?0\b|gid_index\W+0\b|source gid).*?\bfe80:",
    ),
    line(
        "gid-ipv4",
        Role::Context,
        &["::ffff:", ":ffff:"],
        r"(?i)\b(?:::|0000:0000:0000:0000:0000:)ffff:[0-9a-f.]+",
    ),
    line(
        "gid-no-ipv4",
        Role::Context,
        &["IPv4", "ipv4"],
        r"(?i)\bno\b.{0,30}ipv4.{0,20}gid|gid.{0,40}\b(?:no|not|none)\b.{0,20}ipv4|all gids? (?:are )?ipv6",
    ),
    line(
        "gid-index",
        Role::Context,
        &["GID_INDEX", "gid index", "GID index", "gid_index", "GID Index", "gidIndex", "gid idx"],
        r"(?i)gid[ _]?(?:index|idx)\D{0,28}(?P<index>\d+)",
    ),
    line(
        "roce-link",
        Role::Context,
        &["RoCE", "ROCE", "link_layer", "Link layer", "Link Layer", "link layer"],
        r"RoCE|ROCE|(?i)link[_ ]layer:?\s+Ethernet",
    ),
    text("bnxt-nic", Role::Context, &["bnxt_re"]),
    text("uccl-used", Role::Context, &["UCCL", "uccl"]),
    line(
        "shm-no-space",
        Role::Failure,
        &["No space left on device", "No space left on device (28)", "Not enough space in /dev/shm"],
        r"posix_fallocate failed ?: No space left|/dev/shm.*No space left on device|nccl-\S*.*No space left on device|No space left on device.*(?:/dev/shm|shared memory)|Not enough space in /dev/shm",
    ),
    text("shm-segment-failed", Role::Follower, &["Error while creating shared memory segment"]),
    text(
        "shm-bus-error",
        Role::Failure,
        &["might be out of shared memory", "workers are out of shared memory"],
    ),
    line("acs-redirects", Role::Context, &["ACSCtl:"], r"ACSCtl:.*(?:ReqRedir\+|CmpltRedir\+)"),
    text(
        "p2p-used",
        Role::Context,
        &["via P2P/direct pointer", "via P2P/CUMEM", "via P2P/IPC", "via P2P/indirect"],
    ),
    // A second run without direct access, to see whether it is to blame.
    line(
        "p2p-off",
        Role::Context,
        &["NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"],
        r"NCCL_P2P_DISABLE(?:\W{1,3}| set by environment to )1\b|NCCL_P2P_LEVEL(?:\W{1,3}| set by environment to )(?:LOC|0)\b",
    ),
    // What NCCL's callers raise: something failed, here or at a peer, and the lines before say what.
    text(
        "nccl-call-failed",
        Role::Follower,
        &[
            "DistBackendError: NCCL error",
            "unhandled system error",
            "unhandled cuda error",
            "ncclSystemError: ",
            "ncclInternalError: ",
            "ncclUnhandledCudaError: ",
        ],
    ),
    // A remark in place of output.
    line(
        "run-hangs-remark",
        Role::Follower,
        &[
            "silence",
            "hang:",
            "hangs",
            "hung",
            "stuck",
            "o output",
            "o progress",
            "urther output",
            "hen nothing",
            "othing more",
        ],
        r"(?i)^\s*[(\[<#*.-]*\s*(?:silence|(?:it |job |run )?(?:hangs?|hung|(?:is )?stuck)|(?:and )?then nothing|nothing more|no (?:more |further )?(?:output|progress))\b[^=/]{0,80}$",
    ),
    text(
        "machine-is-virtual",
        Role::Context,
        &[
            "Hypervisor detected",
            "Hypervisor vendor",
            "Hypervisor:",
            "Standard PC (Q35",
            "systemd-detect-virt: kvm",
            "QEMU",
        ],
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "rdma-core-too-old-for-dmabuf",
        needs: &["verbs-local-protection", "nccl-no-dmabuf-symbol"],
        confidence: Confidence::Certain,
        because: "libmlx5 lacks mlx5dv_reg_dmabuf_mr, NCCL registers cuMem buffers by another way, and the NIC refuses these memory regions",
        rules_out: &["all_reduce can pass here: all-to-all and send/receive take the path that fails"],
        refine: Some(unless_fine),
        ..Rule::LIKELY
    },
    Rule {
        cause: "rdma-core-too-old-for-dmabuf",
        needs: &["verbs-local-protection"],
        unless: &["nccl-no-dmabuf-symbol"],
        confidence: Confidence::Possible,
        because: "a NIC refuses a memory region of NCCL: wrongly registered buffers are one cause",
        refine: Some(protection),
        ..Rule::LIKELY
    },
    Rule {
        cause: "verbs-library-missing",
        needs: &["nccl-network-socket"],
        any: &["verbs-not-opened", "nccl-no-plugin"],
        unless: &["nccl-network-rdma", "nccl-ib-off"],
        confidence: Confidence::Likely,
        because: "NCCL finds neither a network plugin nor a usable libibverbs and sends everything over TCP",
        rules_out: &[
            "NCCL was not told to leave InfiniBand alone (NCCL_IB_DISABLE)",
            "`Could not find: libnccl-net.so` alone is harmless: NCCL then uses its own plugin",
        ],
        refine: Some(over_tcp),
    },
    Rule {
        cause: "nccl-ib-disabled",
        needs: &["nccl-network-socket", "nccl-ib-off"],
        confidence: Confidence::Likely,
        because: "NCCL sends over TCP because NCCL_IB_DISABLE=1 says so",
        rules_out: &["the verbs library is not to blame: NCCL was told not to look"],
        refine: Some(told_so),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gid-autodetect-ipv6",
        needs: &["rdma-retry-exceeded"],
        any: &["gid-link-local", "gid-no-ipv4", "bnxt-nic"],
        unless: &["gid-ipv4"],
        confidence: Confidence::Likely,
        because: "no GID of these NICs is an IPv4 one, so the automatic choice fell back to index 0, which is link-local and does not leave its link",
        rules_out: &[
            "with an IPv4 GID in the table, a wrong index would have been configured instead",
            "the vendor's error code differs by maker of NIC: the status, 12, is what counts",
        ],
        refine: Some(ipv6),
    },
    Rule {
        cause: "roce-gid-index",
        needs: &["rdma-retry-exceeded"],
        confidence: Confidence::Likely,
        because: "the first packets between nodes get no answer (retries exceeded) though TCP works: the NICs' GIDs do not reach each other",
        rules_out: &["it is the first traffic: a link that goes down, or a peer that dies, fails later"],
        refine: Some(gid),
        ..Rule::LIKELY
    },
    Rule {
        cause: "shm-small",
        needs: &["shm-no-space"],
        confidence: Confidence::Certain,
        because: "/dev/shm is full: NCCL cannot make a shared segment there",
        rules_out: &["`No space left on device` is about /dev/shm here, not about a disk"],
        refine: Some(unless_fine),
        ..Rule::LIKELY
    },
    Rule {
        cause: "shm-small",
        needs: &["shm-bus-error"],
        unless: &["shm-no-space"],
        confidence: Confidence::Likely,
        because: "workers of a data loader die by bus errors in shared memory",
        refine: Some(unless_fine),
        ..Rule::LIKELY
    },
    Rule {
        cause: "acs-redirect",
        needs: &["acs-redirects", "p2p-used"],
        confidence: Confidence::Likely,
        because: "NCCL uses direct access between GPUs, PCIe bridges redirect it (ReqRedir+ or CmpltRedir+), and the run hangs without an error",
        rules_out: &[
            "SrcValid+ alone redirects nothing",
            "nothing failed before: no error of a library explains the hang",
        ],
        refine: Some(redirected),
        ..Rule::LIKELY
    },
];

fn protection(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = claim.next("NCCL's lines at start with NCCL_DEBUG=INFO: `dlvsym failed on mlx5dv_reg_dmabuf_mr` names an old libmlx5");
    unless_fine(case, claim)
}

fn over_tcp(case: &Case, mut claim: Claim) -> Option<Claim> {
    if one_node(case) || case.variable("NCCL_IB_DISABLE") == Some("1") {
        return None;
    }
    if case.has("verbs-not-opened") {
        claim.confidence = Confidence::Certain;
    } else if case.has("infiniband-nodes-absent") {
        return None;
    }
    Some(claim.about("libibverbs.so.1"))
}

fn told_so(case: &Case, mut claim: Claim) -> Option<Claim> {
    claim.caution = true;
    (!one_node(case)).then(|| claim.about("NCCL_IB_DISABLE"))
}

/// Whether the first failed completion came with the first traffic, and nothing failed before it.
fn at_first_traffic(case: &Case, event: &Event) -> bool {
    !steps_before(case, event) && !failed_before(case, event, &["rdma-retry-exceeded"])
}

fn ipv6(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("rdma-retry-exceeded")?;
    if !at_first_traffic(case, event) {
        return None;
    }
    let shown = case.first_of(&["gid-chosen-link-local", "gid-no-ipv4", "gid-link-local"]);
    let index_0 = case.events("gid-index").any(|event| event.number("index") == Some(0));
    if shown.is_none() || !(case.has_any(&["gid-no-ipv4", "bnxt-nic"]) || index_0 && case.has("uccl-used")) {
        claim.confidence = Confidence::Possible;
        claim.next = Some(
            "the GIDs of the NICs and the index in use: `show_gids`, beside the library's line about its GID"
                .to_owned(),
        );
    }
    claim.evidence.extend(shown.map(|event| event.place));
    unless_fine(case, claim)
}

fn gid(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("rdma-retry-exceeded")?;
    let ipv6_only = !case.has("gid-ipv4")
        && (case.has("gid-no-ipv4") || case.has("bnxt-nic") && case.has("gid-link-local"));
    if ipv6_only || failed_before(case, event, &["rdma-retry-exceeded"]) {
        return None;
    }
    let roce = case.first("roce-link");
    let evidence = case.first_of(&["gid-chosen-link-local", "gid-link-local", "gid-index", "gid-ipv4"]);
    let several = case.count("rdma-retry-exceeded") >= 2;
    if steps_before(case, event) {
        claim.confidence = Confidence::Possible;
        claim.because = "packets get no answer (retries exceeded) after steps that worked: a link went down, a peer ended, or the network dropped them".into();
        claim.rules_out.clear();
        claim.next = Some("the other ranks' logs before that time, and the state of the NICs' links (`dmesg -T | grep -i 'link down'`)".to_owned());
    } else if roce.is_none() || evidence.is_none() && !several {
        claim.confidence = Confidence::Possible;
        claim.rules_out.clear();
        claim.next = Some("whether the NICs are RoCE, and which GID index each node uses: `show_gids` on all nodes, beside NCCL_IB_GID_INDEX".to_owned());
    }
    claim.evidence.extend([roce, evidence].into_iter().flatten().map(|event| event.place));
    unless_fine(case, claim.about("NCCL_IB_GID_INDEX"))
}

fn redirected(case: &Case, mut claim: Claim) -> Option<Claim> {
    if case.first_failure().is_some() {
        return None;
    }
    let used = case.first("p2p-used")?;
    // What goes well without direct access speaks for this cause and not against it.
    let off = case.events("p2p-off").find(|off| used.before(off) != Some(false));
    let well = |good: &Event| {
        crate::diagnose::heal::whole(good)
            && used.before(good) == Some(true)
            && off.is_none_or(|off| off.before(good) == Some(false))
    };
    if super::process::story::ended_well(case, used) && case.events.iter().any(well) {
        return None;
    }
    if let Some(off) = off.filter(|_| case.events.iter().any(crate::diagnose::heal::whole)) {
        claim.because.push_str("; without direct access (NCCL_P2P_DISABLE=1) it passes");
        claim.evidence.push(off.place);
    }
    if let Some(machine) = case.first("machine-is-virtual") {
        claim.evidence.push(machine.place);
        claim.confidence = Confidence::Possible;
        claim.next = Some(
            "whether the hypervisor offers ATS with ACS on: in a virtual machine ACS must stay on".to_owned(),
        );
    }
    Some(claim)
}
