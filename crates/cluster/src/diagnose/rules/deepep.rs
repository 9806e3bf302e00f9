//! DeepEP outside of its timeouts: V2, hybrid-ep, forks, frameworks around it.

use super::timeout::{failing, saying, weigh};
use crate::diagnose::Case;
use crate::diagnose::event::{Event, Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    Signal {
        id: "gpu-kind",
        any: &["B200", "B300", "H100", "H200", "H800", " H20", "xH20", "A100", "NVL72"],
        pattern: Some(
            r"(?:^|[^0-9A-Za-z]|\dx)(?P<gpu>GB200|GB300|B200|B300|H100|H200|H800|H20|A100|NVL72)(?:[^0-9A-Za-z]|$)",
        ),
        role: Role::Context,
    },
    Signal { id: "nccl-one-node", any: &["nNodes 1 "], pattern: None, role: Role::Context },
    Signal {
        id: "mnnvl-on",
        any: &["MNNVL"],
        pattern: Some(
            r"(?:^|(?P<no>(?i:\b(?:no|not|non|without|disabled?|off|lacks)\b)[ -]?)|[\s,;(\[])MNNVL(?: 1\b|[=:] ?(?:1|[Tt]rue|on|yes)\b|[,;.)\]]|\s*$| (?:domain|clique|fabric|rack|on\b|is on|enabled|active))",
        ),
        role: Role::Context,
    },
    Signal {
        id: "hybrid-ep-banner",
        any: &["num_of_ranks_per_node"],
        pattern: Some(
            r"num_of_ranks_per_node ?[=:] ?(?P<ranks>\d+)(?:.*num_of_nodes ?[=:] ?(?P<nodes>\d+))?",
        ),
        role: Role::Context,
    },
    Signal {
        id: "local-world",
        any: &[
            "LOCAL_WORLD_SIZE",
            "local_world_size",
            "nproc_per_node",
            "nproc-per-node",
            "ntasks-per-node",
            "gpus-per-node",
            "SLURM_NTASKS_PER_NODE",
            "GPUs per node",
            "GPUs/node",
            "gpus per node",
            "local world size",
            "per tray",
            "local_rank ",
            "local rank ",
            "localRanks ",
        ],
        pattern: Some(
            r"(?:LOCAL_WORLD_SIZE|local_world_size|nproc[_-]per[_-]node|ntasks-per-node|gpus-per-node|SLURM_NTASKS_PER_NODE|local world size)\D{1,5}(?P<count>\d+)|(?P<each>\d+) ?(?:GPUs per node|gpus per node|GPUs/node|GPUs per tray)|local[_ ]rank \d+ ?(?:of|/) ?(?P<of>\d+)\b|nRanks (?P<ranks>\d+) nNodes \d+ localRanks (?P<here>\d+)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "invalid-resource-handle",
        any: &["invalid resource handle"],
        pattern: Some(r"(?:(?P<file>\w+\.(?:cpp|cu|cuh)):\d+)?"),
        role: Role::Failure,
    },
    Signal {
        id: "buffer-init-frame",
        any: &["deep_ep/buffer.py", "deep_ep/buffers/"],
        pattern: Some(r"in __init__|in sync"),
        role: Role::Context,
    },
    Signal {
        id: "gpus-per-task",
        any: &["--gpus-per-task", "gpus-per-task", "--gpu-bind", "gpu-bind=single"],
        pattern: None,
        role: Role::Context,
    },
    Signal {
        id: "fabric-create-refused",
        any: &["fabric_prop_", "CU_MEM_HANDLE_TYPE_FABRIC"],
        pattern: Some(r"(?i)cuMemCreate.*(?:not permitted|not supported|NOT_PERMITTED|NOT_SUPPORTED)"),
        role: Role::Failure,
    },
    Signal {
        id: "mlx5-symbol-missing",
        any: &["dlvsym failed on mlx5dv_reg_dmabuf_mr", "dlvsym failed on mlx5dv"],
        pattern: Some(r"MLX5_1\.\d+"),
        role: Role::Warning,
    },
    Signal {
        id: "deepep-v2-gin-assert",
        any: &["!= NCCL_GIN_TYPE_NONE"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "gin-disabled",
        any: &["EP_DISABLE_GIN"],
        pattern: Some(r"EP_DISABLE_GIN\W{1,6}(?:1|true|True)"),
        role: Role::Context,
    },
    Signal {
        id: "nccl-devcomm-requirements",
        any: &["NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "deepep-source-date",
        any: &["DeepEP", "deep_ep", "deepep"],
        pattern: Some(
            r"(?P<year>20\d\d)-(?P<month>\d\d)-\d\d[ )]|(?:Date: +\w+ )?(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* (?:\d+,? )?(?:[\d:]+ )?(?P<year2>20\d\d)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "deepep-version-line",
        any: &["deep_ep", "deep-ep", "DeepEP"],
        pattern: Some(
            r"(?i)deep[_-]?ep[\s:=@v-]+(?P<version>\d+\.\d+\.\d+)(?:\+(?P<commit>[0-9a-f]{7,40}))?|deep[_-]?ep[^\n]{0,80}?\b(?P<named>[0-9a-f]{7,40})\b",
        ),
        role: Role::Context,
    },
    Signal {
        id: "deepep-hybrid-line",
        any: &["hybrid-ep", "hybrid_ep"],
        pattern: Some(
            r"(?i)(?:branch|deep_?ep|checkout|origin)[^\n]{0,40}hybrid[-_]ep\b|hybrid-ep (?:branch|@|[0-9a-f]{7})",
        ),
        role: Role::Context,
    },
    Signal {
        id: "deepep-multi-qp",
        any: &["multi-QP", "Multi-QP", "multi QP", "multiple QPs", "multi-qp", "multi qp", "multi_qp"],
        pattern: None,
        role: Role::Context,
    },
    Signal { id: "bonded-nic", any: &["mlx5_bond_"], pattern: None, role: Role::Context },
    Signal {
        id: "vllm-dbo",
        any: &["-dbo", "_dbo", "dbo_", " DBO", "DBO ", "ubatch", "dual batch", "dual-batch", "Dual Batch"],
        pattern: Some(
            r"--enable-dbo|enable_dbo['\x22]?[=:] ?(?:True|true)|\b(?:DBO|dbo)[ _-]enabled|[Dd]ual[ -][Bb]atch [Oo]verlap|ubatch_wrapper|ubatching|dbo_(?:current|yield|enabled|register|switch)",
        ),
        role: Role::Context,
    },
    Signal { id: "vllm-finalize-async", any: &["finalize_async"], pattern: None, role: Role::Context },
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "framework-dual-batch-bug",
        needs: &["cpu-recv-timeout"],
        any: &["vllm-dbo"],
        unless: &["dispatch-timeout"],
        confidence: Confidence::Likely,
        because: "A dispatch inside a node timed out in vLLM with dual batch overlap on: its two micro-batches share one DeepEP buffer, and ranks enter calls in another order.",
        rules_out: &["The network: the frame is the one inside a node, and no RDMA takes part in it."],
        refine: Some(dual_batch),
    },
    Rule {
        cause: "hybrid-ep-domain-overcount",
        any: &["hybrid-ep-banner"],
        confidence: Confidence::Likely,
        refine: Some(overcount),
        ..Rule::CERTAIN
    },
    Rule {
        cause: "cuda-ipc-across-hosts",
        any: &["invalid-resource-handle"],
        confidence: Confidence::Likely,
        because: "DeepEP opened a CUDA IPC handle of a GPU in another host while it made its buffer: within an NVLink domain of several hosts the buffer must use fabric handles.",
        refine: Some(ipc),
        ..Rule::CERTAIN
    },
    Rule {
        cause: "fabric-handle-unsupported",
        any: &["fabric-create-refused"],
        because: "Memory with a fabric handle was refused: fabric handles work on NVL72 systems, and this is an HGX node, whatever the device attribute claims.",
        refine: Some(|case, claim| fabric(case, claim, false)),
        ..Rule::CERTAIN
    },
    Rule {
        cause: "imex-channel-missing",
        any: &["fabric-create-refused"],
        confidence: Confidence::Likely,
        because: "Memory with a fabric handle was refused on a system that has them: the process has no IMEX channel.",
        refine: Some(|case, claim| fabric(case, claim, true)),
        ..Rule::CERTAIN
    },
    Rule {
        cause: "rdma-core-too-old",
        needs: &["deepep-v2-gin-assert", "mlx5-symbol-missing"],
        confidence: Confidence::Likely,
        because: "libmlx5 lacks symbols that NCCL's GIN asks for, and NCCL then offers DeepEP V2 no GIN type.",
        rules_out: &[
            "GIN itself: `Assigned GIN plugin` and `GPU Direct RDMA Enabled` are written before the type is decided.",
            "V2's assertion where GIN is not needed: here NCCL looked for symbols that are not there.",
        ],
        ..Rule::CERTAIN
    },
    Rule {
        cause: "deepep-v2-gin-assert",
        needs: &["deepep-v2-gin-assert"],
        unless: &["mlx5-symbol-missing"],
        confidence: Confidence::Likely,
        because: "DeepEP V2 insists on NCCL's GIN when it starts, though GIN is switched off or only one node takes part.",
        refine: Some(gin),
        ..Rule::CERTAIN
    },
    Rule {
        cause: "nccl-build-runtime-differ",
        needs: &["nccl-devcomm-requirements"],
        confidence: Confidence::Likely,
        because: "NCCL does not take the structure that the extension passes: its initialiser is of the headers it was compiled with, and those are of another version than the library that loads.",
        rules_out: &[
            "A library that is too old at run time alone: what pip lists is the library, and the structure comes from the headers.",
        ],
        ..Rule::CERTAIN
    },
];

/// The GPU that the log names, and the major number of its architecture.
pub(super) fn gpu(case: &Case) -> Option<(&'static str, u32)> {
    const KINDS: [(&str, u32); 10] = [
        ("GB300", 10),
        ("GB200", 10),
        ("NVL72", 10),
        ("B300", 10),
        ("B200", 10),
        ("H100", 9),
        ("H200", 9),
        ("H800", 9),
        ("H20", 9),
        ("A100", 8),
    ];
    let named = |kind: &str| case.events("gpu-kind").any(|event| event.field("gpu") == Some(kind));
    let known = case.version("gpu").map(str::to_uppercase);
    KINDS.into_iter().find(|(kind, _)| known.as_deref().map_or_else(|| named(kind), |known| known == *kind))
}

/// Whether one NVLink domain spans hosts here; none where the log does not name the GPUs.
fn rack(case: &Case) -> Option<bool> {
    if case.events("mnnvl-on").any(|event| event.field("no").is_none()) {
        return Some(true);
    }
    // A host of such a domain has four GPUs.
    if gpu(case).is_none() && local_world(case).is_some_and(|count| count >= 8) {
        return Some(false);
    }
    gpu(case).map(|(kind, _)| matches!(kind, "GB200" | "GB300" | "NVL72"))
}

/// Ranks of a node, where something says so.
pub(super) fn local_world(case: &Case) -> Option<u32> {
    let number = |event: &Event| event.number("count").or(event.number("each")).or(event.number("of"));
    let line = case.events("local-world").find_map(number);
    // Communicators may be of some of a node's ranks: the largest counts.
    let of_nccl = || {
        case.events("local-world")
            .filter_map(|event| Some((event.number("ranks")?, event.number("here")?)))
            .max()
            .map(|(_, here)| here)
    };
    let line = line.or_else(of_nccl);
    case.per_node.or_else(|| line.and_then(|count| u32::try_from(count).ok())).filter(|count| *count > 0)
}

fn dual_batch(case: &Case, mut claim: Claim) -> Option<Claim> {
    claim.evidence.extend(case.first("intranode-frame").map(|event| event.place));
    if case.has("internode-frame") && !case.has("intranode-frame") {
        return None;
    }
    let questions = super::timeout::Questions::of(case)?;
    Some(if questions.someone_else() { weigh(claim, Confidence::Possible) } else { claim })
}

fn overcount(case: &Case, mut claim: Claim) -> Option<Claim> {
    let banner = case.first("hybrid-ep-banner")?;
    let counted = banner.number("ranks")?;
    if !failing(case) {
        return None;
    }
    let hangs =
        case.first_of(&["nccl-watchdog", "low-latency-timeout", "kernel-timeout", "timeout-check-failed"]);
    let local = local_world(case).or_else(|| (rack(case) == Some(true)).then_some(4));
    claim.evidence = [Some(banner), hangs].into_iter().flatten().map(|event| event.place).collect();
    let Some(local) = local else {
        claim.because = format!(
            "hybrid-ep counts {counted} ranks in a node. If a node has fewer, it counts GPUs of other hosts as its own and waits for them for ever."
        );
        return Some(
            weigh(claim, Confidence::Possible)
                .next("The number of GPUs of a node (LOCAL_WORLD_SIZE of a rank)."),
        );
    };
    if counted <= i64::from(local) {
        return None;
    }
    claim.because = format!(
        "hybrid-ep counts {counted} ranks in a node, and a node has {local}: it takes GPUs of other hosts in the NVLink domain for local ones, and its barrier waits for increments that never come."
    );
    claim.subject = Some(format!("num_of_ranks_per_node={counted}"));
    Some(claim.not(
        "A network fault: DeepEP reports nothing, and the wait is a device barrier inside the counted node.",
    ))
}

fn ipc(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("invalid-resource-handle")?;
    let deepep =
        event.text.contains("deep_ep") || event.text.contains("DeepEP") || case.has("buffer-init-frame");
    if !deepep || case.has("gpus-per-task") || rack(case) == Some(false) {
        return None;
    }
    claim.evidence.extend(case.first("mnnvl-on").map(|event| event.place));
    claim.evidence.extend(case.first("buffer-init-frame").map(|event| event.place));
    claim = claim
        .not("One visible GPU for each task: the launch does not isolate GPUs.")
        .not("A fault of memory: the illegal accesses come after the handle was refused.");
    if rack(case) == Some(true) || case.has("hybrid-ep-banner") {
        return Some(claim);
    }
    Some(weigh(claim, Confidence::Possible).next("Whether the ranks of the group are on several hosts of one NVLink domain (GB200 or GB300), and CUDA_VISIBLE_DEVICES of two ranks of one host."))
}

fn fabric(case: &Case, claim: Claim, wanted: bool) -> Option<Claim> {
    match rack(case) {
        Some(rack) => (rack == wanted).then_some(claim),
        None => Some(weigh(claim, Confidence::Possible).next("The product of the GPUs (`nvidia-smi -L`): GB200 or GB300 points to IMEX, HGX to fabric handles.")),
    }
}

fn gin(case: &Case, mut claim: Claim) -> Option<Claim> {
    let disabled = case.has("gin-disabled")
        || case
            .variable("EP_DISABLE_GIN")
            .is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
    let one_node = case.has("nccl-one-node")
        || matches!((case.world, local_world(case)), (Some(world), Some(local)) if world <= local);
    if case.version("libmlx5_1_25") == Some("no") {
        return None;
    }
    if disabled || one_node || case.version("630") == Some("no") {
        claim.evidence.extend(case.first("gin-disabled").map(|event| event.place));
        return Some(
            claim.not("A libmlx5 that is too old: no `dlvsym failed on mlx5dv_...` line stands before it."),
        );
    }
    claim = saying(
        claim,
        "DeepEP V2 got no GIN type of NCCL. Its own check (before pull request 630) or a libmlx5 without the symbols of MLX5_1.25 do that.",
    );
    Some(
        weigh(claim, Confidence::Possible).next(
            "The run again with NCCL_DEBUG=INFO: a line `dlvsym failed on mlx5dv_reg_dmabuf_mr` decides.",
        ),
    )
}
