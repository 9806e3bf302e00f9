//! Lines about waits that ended, and about how far the run had come.

use super::Signals;
use crate::diagnose::event::{Role, Signal};

/// Kinds of lines.
pub(in super::super) const SIGNALS: Signals = &[
    // NixlEP, grpcoll and mscclpp::ep print DeepEP's loop under their own names.
    Signal {
        id: "dispatch-timeout",
        any: &["dispatch CPU)", "combine CPU)"],
        pattern: Some(r"(?:(?P<library>[\w:]+) error: )?timeout \((?:internode_)?(?:dispatch|combine) CPU\)"),
        role: Role::Failure,
    },
    Signal {
        id: "cpu-recv-timeout",
        any: &["CPU recv timeout", "timeout (intranode_dispatch CPU)"],
        pattern: Some(r"(?:(?P<library>[\w:]+) error: )?(?:CPU recv timeout|timeout \(intranode)"),
        role: Role::Failure,
    },
    Signal {
        id: "v2-dispatch-wait",
        any: &["Dispatch CPU wait"],
        pattern: Some(r"Dispatch CPU wait exception"),
        role: Role::Failure,
    },
    Signal {
        id: "recv-counters-unset",
        any: &["num_recv_tokens: -1", "num_rdma_recv_tokens: -1", "moe_recv_expert_counter["],
        pattern: Some(
            r"(?:Global rank: (?P<rank>\d+), )?(?:num_(?:rdma_)?recv_tokens|moe_recv_expert_counter\[\d+\]): -1",
        ),
        role: Role::Failure,
    },
    Signal {
        id: "recv-counters-set",
        any: &["num_recv_tokens: "],
        pattern: Some(r"num_recv_tokens: \d+"),
        role: Role::Context,
    },
    Signal {
        id: "kernel-timeout",
        any: &[
            "timeout, channel:",
            "timeout (RDMA",
            "timeout (NVL",
            "(RDMA check) timeout",
            "(NVL check) timeout",
        ],
        pattern: Some(
            r"(?P<call>dispatch|combine)?\W*(?P<part>RDMA sender|forwarder|NVL receiver|NVL sender|RDMA receiver|RDMA forwarder|NVL forwarder|coordinator)?.{0,24}timeout.{0,16}?channel: (?P<channel>\d+), (?:RDMA|IB): (?P<rdma>\d+), nvl:? (?P<nvl>\d+)(?:.*?(?:src|dst) (?:RDMA|IB) lane: (?P<lane>\d+))?(?:.*?src RDMA: (?P<source>\d+))?(?:.*?src nvl: (?P<source_nvl>\d+))?(?:.*?meta: (?P<meta>-?\d+, -?\d+, -?\d+, -?\d+))?",
        ),
        role: Role::Failure,
    },
    Signal {
        id: "timeout-check-failed",
        any: &["timeout check failed"],
        pattern: Some(r"timeout check failed: rank = (?P<rank>\d+)"),
        role: Role::Failure,
    },
    Signal {
        id: "low-latency-timeout",
        any: &["timeout for dispatch", "timeout for combine", "timeout for barrier"],
        pattern: Some(
            r"(?:^|[^:] )DeepEP timeout for (?:dispatch|combine|barrier).*?rank:? (?P<rank>\d+)(?:.*?(?:src_rank|dst_rank):? (?P<peer>\d+))?",
        ),
        role: Role::Failure,
    },
    // A buffer in shrink mode masks the rank and goes on.
    Signal {
        id: "low-latency-masked",
        any: &["Warning: DeepEP timeout"],
        pattern: None,
        role: Role::Warning,
    },
    Signal {
        id: "internode-frame",
        any: &["internode_dispatch", "internode_combine"],
        pattern: None,
        role: Role::Context,
    },
    Signal {
        id: "intranode-frame",
        any: &["intranode_dispatch", "intranode_combine"],
        pattern: None,
        role: Role::Context,
    },
    Signal {
        id: "low-latency-frame",
        any: &["low_latency_dispatch", "low_latency_combine", "internode_ll"],
        pattern: None,
        role: Role::Context,
    },
    Signal { id: "deepep-named", any: &["deep_ep", "DeepEP", "deepep"], pattern: None, role: Role::Context },
    Signal {
        id: "jit-compiling",
        any: &[
            "DeepGEMM warmup",
            "DeepGEMM JIT",
            "JIT Pre-Compile",
            "DeepGEMM Warmup",
            "DeepGEMM pre-compile",
            "Precompiling DeepGEMM",
            "DeepGEMM kernels",
            "warming up DeepGEMM",
            "Warming up DeepGEMM",
            "compiling kernel",
            "Compiling kernel",
            "JIT compil",
            "jit compil",
            "JIT-compil",
            "kernel warmup",
            "Kernel warmup",
            "Warmup kernels",
            "DeepGemm warmup",
        ],
        pattern: Some(r"(?:(?P<percent>\d{1,3})%)?"),
        role: Role::Progress,
    },
    Signal {
        id: "jit-finished",
        any: &["DeepGEMM", "JIT ", " JIT", "warmup", "Warmup"],
        pattern: Some(
            r"(?i)(?:deepgemm|jit|kernel)\b.{0,60}(?:\b100%|finished|completed?\b|\bdone\b|took [\d.]+|loaded from cache|cache hit)|warmup (?:finished|done|complete)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "serving",
        any: &[
            "Prefill batch",
            "Decode batch",
            "fired up and ready",
            "Application startup complete",
            "Avg prompt throughput",
            "POST /v1/",
            "POST /generate",
        ],
        pattern: None,
        role: Role::Progress,
    },
    Signal {
        id: "served",
        any: &["Decode batch", "200 OK", "Avg generation throughput"],
        pattern: None,
        role: Role::Progress,
    },
    Signal { id: "deepep-subtest", any: &["[testing] Running with"], pattern: None, role: Role::Progress },
    Signal {
        id: "deepep-subtest-passed",
        any: &["passed"],
        pattern: Some(r"\[testing\] Running with.*passed|^\s*passed\s*$|\.\.\. ?passed"),
        role: Role::Progress,
    },
    Signal { id: "deepep-tuning", any: &["[tuning]"], pattern: Some(r"GB/s"), role: Role::Progress },
    Signal {
        id: "internode-start",
        any: &["test_internode", "Inter-node DeepEP", "test_low_latency", "num_topk_groups="],
        pattern: None,
        role: Role::Progress,
    },
    Signal {
        id: "intranode-start",
        any: &["test_intranode", "Intra-node DeepEP"],
        pattern: None,
        role: Role::Progress,
    },
    Signal { id: "internode-section", any: &["--- Inter-node DeepEP"], pattern: None, role: Role::Progress },
    Signal {
        id: "figures",
        any: &["dispatch=", "Dispatch + combine bandwidth", "GB/s (RDMA)"],
        pattern: Some(r"(?:dispatch=|bandwidth: |: |BW: )[\d.]+ GB/s"),
        role: Role::Progress,
    },
    Signal {
        id: "test-config",
        any: &["num_tokens=", "num-tokens"],
        pattern: Some(r"num[_-]tokens[= ](?P<tokens>\d+)"),
        role: Role::Context,
    },
    Signal {
        id: "first-pass",
        any: &[
            "first ",
            "iteration 0",
            "Iteration 0",
            "iter 0",
            "step 0",
            "Step 0",
            "iteration=0",
            "step=0",
            "iteration-0",
            "iteration: 0",
            "Iteration: 0",
            "| 0/",
            " 0/3",
        ],
        pattern: Some(
            r"(?i)\bfirst (?:\w+ )?(?:dispatch|forward|logprob|iteration|step|micro-?batch|moe|batch|all-to-all|pass)|\b(?:iter(?:ation)?|step)s?[ =:#\[-]*0\b|\b0/\d+ \[",
        ),
        role: Role::Progress,
    },
    Signal {
        id: "framework-image",
        any: &[
            "nv25.",
            "nv26.",
            "pytorch:25",
            "pytorch:26",
            "nemo:26",
            "nemo:25",
            "NVIDIA Release",
            "pytorch 26",
            "pytorch 25",
            "NGC 26",
            "NGC base",
        ],
        pattern: Some(r"(?:nv|pytorch[: ]|nemo:|Release |NGC )(?P<year>2[4-9])\.(?P<month>\d\d)"),
        role: Role::Context,
    },
    Signal {
        id: "other-image-passes",
        any: &["alidated image", "torch29-nvshmem345", "previous image", "old image", "same nodes"],
        pattern: Some(
            r"(?i)(?:validated|previous|old|earlier|reference)[^\n]{0,80}(?:pass|works?\b|complete|ok\b|GB/s)|(?:pass|works?\b|complete|ok\b)[^\n]{0,80}(?:validated image|same nodes|torch29-nvshmem345)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "versions-aligned",
        any: &["align", "same error", "still fails", "still hangs", "still times out"],
        pattern: Some(
            r"(?i)(?:align|rebuilt|pinned)[^\n]{0,120}(?:same error|still|no change|not help|did not)|nvshmem[^\n]{0,120}(?:same error|still (?:fails|hangs|times out))",
        ),
        role: Role::Context,
    },
    Signal { id: "vllm-engine", any: &["EngineCore", "vllm"], pattern: None, role: Role::Context },
];
