//! DeepEP V1, normal kernels.

use super::super::document::Level;
use super::super::memory::{self, v1_configs};
use super::super::request::{Chunks, Mode, Request};
use super::{Rules, experts_divide, most_nodes, sms};

const INT_MAX: u64 = i32::MAX as u64;
const REFUSE: Level = Level::Refuse;
/// `launch.cuh` of 567632d.
const NODES: [usize; 9] = [2, 3, 4, 6, 8, 12, 16, 18, 20];
/// Those that older builds and forks lack.
const NEWER: [usize; 3] = [3, 6, 12];
/// Default of `num_qps_per_rank`.
const QPS: usize = 24;

pub(super) fn lint(request: &Request, rules: &mut Rules) {
    menus(request, rules);
    experts(request, rules);
    sm_count(request, rules);
    row(request, rules);
    chunks(request, rules);
    buffers(request, rules);
    sm80(request, rules);
}

/// What a build for A100 (`DISABLE_SM90_FEATURES`) lacks.
pub(super) fn sm80(request: &Request, rules: &mut Rules) {
    if request.links.gpu.as_deref() != Some("a100") {
        return;
    }
    rules.want(
        ("L023", REFUSE),
        !request.fp8,
        "FP8 rows on an A100 (SM80): a build for it has none".to_owned(),
        "dispatch BF16",
    );
    rules.want(
        ("L023", REFUSE),
        request.nodes == 1 && request.mode == Mode::Ht,
        "an A100 (SM80): a build for it has neither inter-node nor low-latency kernels".to_owned(),
        "plan one node and --mode ht, or another GPU",
    );
}

fn menus(request: &Request, rules: &mut Rules) {
    let (nodes, per_node, ranks) = (request.nodes, request.gpus_per_node, request.ranks());
    if nodes == 1 && per_node <= 8 {
        rules.want(
            ("L001", REFUSE),
            [2, 4, 8].contains(&per_node),
            format!("{per_node} ranks in one node; built for 2, 4 and 8"),
            "use 2, 4 or 8 GPUs",
        );
        return;
    }
    rules.want(
        ("L002", REFUSE),
        per_node == 8,
        format!("{nodes} x {per_node} = {ranks} ranks; 8 ranks of a node are hard-coded"),
        "use all 8 GPUs of each node",
    );
    rules.want(
        ("L003", REFUSE),
        nodes == 1 || NODES.contains(&nodes),
        format!("{nodes} nodes ({ranks} ranks); built for {NODES:?}, at most 8 x 20 = 160 ranks"),
        "use a number of nodes of the menu, or another engine",
    );
    rules.want(
        ("L004", Level::Warn),
        !NEWER.contains(&nodes),
        format!("{nodes} nodes are in the menu of 567632d, and not of older builds and forks"),
        "see the menu in the launch.cuh that is built",
    );
}

fn experts(request: &Request, rules: &mut Rules) {
    experts_divide(request, rules);
    let local = request.experts.div_ceil(request.ranks());
    let on_node = local * request.gpus_per_node;
    let (holds, observed) = if request.nodes == 1 {
        (local <= 128, format!("{local} local experts > 128, the notify block of one node"))
    } else {
        (
            local <= 1024 && on_node <= 512,
            format!("{local} local experts (at most 1024), {on_node} of a node (at most 512)"),
        )
    };
    rules.want(("L019", REFUSE), holds, observed, "spread the experts over more ranks");
    if request.nodes > 1 {
        let reached = most_nodes(request);
        rules.want(
            ("L020", REFUSE),
            reached <= 8,
            format!("a token may reach {reached} nodes; inter-node dispatch has room for 8"),
            "limit the groups that a token may use (--groups, --top-groups)",
        );
    }
}

fn sm_count(request: &Request, rules: &mut Rules) {
    let Some(sms) = sms(request) else { return };
    rules.want(
        ("L006", REFUSE),
        sms.is_multiple_of(2) && sms > 0,
        format!("num_sms {sms}; even and above 0 wanted"),
        "give an even --sms",
    );
    if let Some(device) = request.links.device_sms {
        rules.want(
            ("L022", REFUSE),
            sms <= device as usize,
            format!("num_sms {sms}; the GPU has {device}, and all blocks of a call must run at once"),
            "give fewer SMs",
        );
    }
    if request.nodes == 1 {
        return;
    }
    rules.want(
        ("L007", REFUSE),
        sms >= 4,
        format!("num_sms {sms} < 4, which inter-node kernels need"),
        "give --sms 4 or more",
    );
    let qps = request.settings.qps.unwrap_or(QPS);
    rules.want(
        ("L008", REFUSE),
        qps == sms / 2 || qps >= sms,
        format!("num_qps_per_rank {qps}; {} (num_sms / 2) or at least {sms} (num_sms) wanted", sms / 2),
        "set num_qps_per_rank to num_sms",
    );
}

fn row(request: &Request, rules: &mut Rules) {
    let elements = request.dtype().row_bytes(request.hidden);
    let scales = request.dtype().scales_per_row(request.hidden);
    rules.want(
        ("L017", REFUSE),
        elements.is_multiple_of(16) && (2 * request.hidden).is_multiple_of(16),
        format!("a row of {elements} bytes; a multiple of 16 wanted"),
        "pad the hidden size",
    );
    if request.nodes == 1 {
        // Both types go through the same kernel: a BF16 dispatch is the wider one.
        rules.want(
            ("L017", REFUSE),
            elements.is_multiple_of(32) && elements / 2 + 8 <= 8192,
            format!(
                "intra-node dispatch on SM90 and later: {elements} bytes; a multiple of 32 wanted, and half of it + 8 = {} \
                 within 8192",
                elements / 2 + 8
            ),
            "hidden up to 8176 in BF16 (16,352 in FP8), in multiples of 32 bytes",
        );
        return;
    }
    let record = (elements + 4 * scales + 8 + 8 * request.top_k).next_multiple_of(16);
    rules.want(
        ("L017", REFUSE),
        record + 8 <= 16_384,
        format!(
            "inter-node dispatch: a token's record of {elements} + {} + 8 + 8 x {} bytes, rounded to {record}, + 8 > 16384",
            4 * scales,
            request.top_k
        ),
        "dispatch FP8, or a smaller hidden size",
    );
    rules.want(
        ("L017", REFUSE),
        request.hidden.is_multiple_of(256),
        format!("inter-node combine: hidden {}; a multiple of 256 wanted", request.hidden),
        "pad the hidden size to a multiple of 256",
    );
}

fn chunks(request: &Request, rules: &mut Rules) {
    let (ranks, nodes) = (request.ranks(), request.nodes);
    let configs = request.settings.chunks.map(|chunks| [chunks; 2]).or_else(|| v1_configs(ranks));
    rules.want(
        ("L021", REFUSE),
        configs.is_some(),
        format!("get_dispatch_config has no entry for {ranks} ranks"),
        "give a Config of your own (--chunks)",
    );
    let [dispatch, combine] = configs.map_or([None; 2], |configs| configs.map(Some));
    // Chunks that were given are the same for both.
    let second = combine.filter(|_| request.settings.chunks.is_none());
    for (name, chunks) in [("dispatch", dispatch), ("combine", second)] {
        if let Some(chunks) = chunks {
            constructor(name, chunks, rules);
        }
    }
    if let Some(chunks) = combine.filter(|_| nodes > 1) {
        per_node(chunks, nodes, rules);
    }
    // Who gives chunks has edited the test, or runs something else.
    if nodes > 1 && request.settings.chunks.is_none() {
        own_test(ranks, nodes, rules);
    }
}

/// What the constructor of `Config` asserts.
fn constructor(name: &str, chunks: Chunks, rules: &mut Rules) {
    let Chunks { nvl_send, nvl_recv, rdma_send, rdma_recv } = chunks;
    let rounded = if rdma_send == 0 { 0 } else { rdma_recv.div_ceil(rdma_send).saturating_mul(rdma_send) };
    let holds = nvl_send > 0
        && nvl_send < nvl_recv
        && rdma_send > 0
        && rdma_send < rounded
        && rdma_send <= rounded / 2;
    rules.want(
        ("L014", REFUSE),
        holds,
        format!(
            "{name}: NVLink send {nvl_send} < receive {nvl_recv}, RDMA send {rdma_send} <= half of receive {rounded} \
             wanted, all above 0"
        ),
        "make the receive chunks larger",
    );
}

/// What combine asserts between nodes.
fn per_node(chunks: Chunks, nodes: usize, rules: &mut Rules) {
    let Chunks { nvl_send, nvl_recv, rdma_send, .. } = chunks;
    let most = nvl_send.max(rdma_send);
    rules.want(
        ("L015", REFUSE),
        nvl_recv.is_multiple_of(nodes) && nvl_recv / nodes > most,
        format!(
            "combine: NVLink receive chunk {nvl_recv} / {nodes} nodes = {}; a whole number above the larger send chunk \
             {most} wanted",
            decimal(nvl_recv, nodes)
        ),
        "raise the NVLink receive chunk to a multiple of the nodes (720 at 128 ranks)",
    );
}

/// The test's sweep of combine goes to RDMA chunks of 32 with a receive chunk of 512, or 720 at some sizes.
fn own_test(ranks: usize, nodes: usize, rules: &mut Rules) {
    let receive = if [24, 48, 96, 144, 160].contains(&ranks) { 720 } else { 512 };
    rules.want(
        ("L016", Level::Warn),
        receive % nodes == 0 && receive / nodes > 32,
        format!(
            "test_internode.py uses an NVLink receive chunk of {receive}: {receive} / {nodes} nodes = {}, and its sweep \
             needs more than 32: its combine fails at {ranks} ranks",
            decimal(receive, nodes)
        ),
        "edit nvl_buffer_size in the test to 720, or measure with --chunks of your own",
    );
}

fn decimal(of: usize, by: usize) -> String {
    let text = format!("{:.2}", of as f64 / by.max(1) as f64);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn buffers(request: &Request, rules: &mut Rules) {
    let Some(sizes) = memory::v1_buffers(request) else {
        return;
    };
    let memory::V1Buffers { nvl, rdma, .. } = sizes;
    rules.want(
        ("L009", REFUSE),
        rdma <= INT_MAX,
        format!("num_rdma_bytes {rdma} > {INT_MAX} (INT_MAX), which only low-latency mode may exceed"),
        "use smaller chunks or fewer SMs",
    );
    rules.want(
        ("L010", REFUSE),
        nvl <= INT_MAX || rdma == 0,
        format!("num_nvl_bytes {nvl} > {INT_MAX} (INT_MAX) beside an RDMA buffer"),
        "use smaller chunks or fewer SMs",
    );
    for (name, bytes) in [("num_nvl_bytes", nvl), ("num_rdma_bytes", rdma)] {
        rules.want(
            ("L011", REFUSE),
            bytes / 16 <= INT_MAX,
            format!("{name} {bytes} / 16 = {} >= 2^31", bytes / 16),
            "use a smaller buffer",
        );
        rules.want(
            ("L012", REFUSE),
            bytes % 128 == 0,
            format!("{name} {bytes} is no multiple of 128"),
            "round it up",
        );
    }
    for (name, bytes, hint, need) in [
        ("num_nvl_bytes", nvl, sizes.nvl_hint, sizes.nvl_need),
        ("num_rdma_bytes", rdma, sizes.rdma_hint, sizes.rdma_need),
    ] {
        rules.want(
            ("L013", REFUSE),
            bytes >= need,
            format!(
                "{name} {bytes} is less than the {need} that these chunks take at top-k {} (size hint {hint})",
                request.top_k
            ),
            "make the buffer as large as its hint, or the chunks smaller",
        );
        rules.want(
            ("L013", Level::Note),
            bytes >= hint || bytes < need,
            format!(
                "{name} {bytes} is less than the size hint {hint}, which provides for 128 choices of a token; top-k {} takes \
                 {need}",
                request.top_k
            ),
            "nothing, while top-k and chunks stay",
        );
    }
    rules.want(
        ("L009", REFUSE),
        rdma == 0 || request.nodes > 1,
        format!("num_rdma_bytes {rdma} on one node, where it must be 0 outside low-latency mode"),
        "leave --rdma-bytes out",
    );
}
