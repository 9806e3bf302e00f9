//! DeepEP V1, low-latency kernels.

use super::super::document::Level;
use super::super::links::NicKind;
use super::super::memory;
use super::super::request::Request;
use super::{Rules, experts_divide};

const REFUSE: Level = Level::Refuse;
/// Hidden sizes that the kernels are built for.
const HIDDEN: [usize; 8] = [2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192];
/// `NVSHMEM_QP_DEPTH` where nobody sets it.
const QP_DEPTH: usize = 1024;

pub(super) fn lint(request: &Request, rules: &mut Rules) {
    let (ranks, hidden, tokens) = (request.ranks(), request.hidden, request.tokens);
    experts_divide(request, rules);
    super::v1::sm80(request, rules);
    rules.want(
        ("L030", REFUSE),
        ranks < 8 || ranks.is_multiple_of(8),
        format!("{ranks} ranks; less than 8 or a multiple of 8 wanted"),
        "use whole nodes of 8 GPUs",
    );
    rules.want(
        ("L031", REFUSE),
        HIDDEN.contains(&hidden),
        format!("hidden {hidden}; built for {HIDDEN:?}"),
        "pad the hidden size, or add it to SWITCH_HIDDEN and rebuild",
    );
    if request.fp8 {
        rules.want(
            ("L031", REFUSE),
            hidden.is_multiple_of(512) && (ranks * tokens).is_multiple_of(4),
            format!("FP8: hidden {hidden} % 512 and ranks x tokens {ranks} x {tokens} % 4 must be 0"),
            "dispatch BF16, or pad",
        );
    }
    rules.want(
        ("L032", REFUSE),
        request.top_k <= 11,
        format!("top-k {} > 11", request.top_k),
        "choose at most 11 experts (older builds: 9)",
    );
    queues(request, rules);
    rules.want(
        ("L035", REFUSE),
        tokens < 1024,
        format!("{tokens} tokens of a rank may go to one expert; less than 1024 wanted (an internal tag)"),
        "send fewer tokens in a call",
    );
    warp_groups(request, rules);
    efa(request, rules);
    let rdma = request
        .settings
        .rdma_bytes
        .unwrap_or_else(|| memory::ll_buffer_bytes(tokens, hidden, request.experts));
    rules.want(
        ("L011", REFUSE),
        i32::try_from(rdma / 16).is_ok(),
        format!("num_rdma_bytes {rdma} / 16 = {} >= 2^31", rdma / 16),
        "send fewer tokens in a call",
    );
    rules.want(
        ("L012", REFUSE),
        rdma.is_multiple_of(128),
        format!("num_rdma_bytes {rdma} is no multiple of 128"),
        "round it up",
    );
    let hint = memory::ll_buffer_bytes(tokens, hidden, request.experts);
    rules.want(
        ("L013", REFUSE),
        rdma >= hint,
        format!("num_rdma_bytes {rdma} is less than get_low_latency_rdma_size_hint, {hint}"),
        "leave --rdma-bytes out",
    );
}

fn queues(request: &Request, rules: &mut Rules) {
    let local = request.experts.div_ceil(request.ranks());
    let qps = request.settings.qps.unwrap_or(local);
    rules.want(
        ("L033", REFUSE),
        qps >= local,
        format!("num_qps_per_rank {qps}; the {local} local experts or more wanted"),
        "set num_qps_per_rank to the number of local experts",
    );
    let (depth, needed) = (request.settings.qp_depth.unwrap_or(QP_DEPTH), 2 * (request.tokens + 1));
    rules.want(
        ("L034", REFUSE),
        depth >= needed,
        format!("NVSHMEM_QP_DEPTH {depth} < 2 x ({} + 1) = {needed}", request.tokens),
        "set NVSHMEM_QP_DEPTH, or send fewer tokens in a call",
    );
}

fn warp_groups(request: &Request, rules: &mut Rules) {
    let Some(sms) = request.settings.sms.or(request.links.device_sms.map(|sms| sms as usize)) else { return };
    let groups = request.experts.div_ceil(sms.max(1));
    rules.want(
        ("L036", REFUSE),
        groups < 15,
        format!("{} experts / {sms} SMs = {groups} warp groups; less than 15 wanted", request.experts),
        "use fewer experts",
    );
}

fn efa(request: &Request, rules: &mut Rules) {
    if request.links.nic_kind != NicKind::Efa || request.nodes == 1 {
        return;
    }
    let ranks = request.ranks();
    let level = if ranks >= 128 { REFUSE } else { Level::Warn };
    rules.want(
        ("L037", level),
        ranks <= 64,
        format!("{ranks} ranks; 64 were seen to work over the host proxy, 128 to fail"),
        "use at most 64 ranks",
    );
}
