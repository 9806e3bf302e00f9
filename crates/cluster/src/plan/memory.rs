//! Memory of each GPU: the buffers of the engine, and what it hands out.

use expertrail_core::output::{OutputKind, OutputLayout, generous, uniform_arrivals};
use expertrail_core::{Dtype, Placement, Shape};

use super::document::{Memory, MemoryPart};
use super::request::{Chunks, Engine, Mode, Request, Sizes};

/// DeepEP's buffers are multiples of this.
const V1_GRAIN: u128 = 128;
/// Physical memory of CUDA is handed out in multiples of this.
const PAGE: u64 = 2 << 20;
const MIB: u64 = 1 << 20;

/// Bytes of the two buffers of `DeepEP` V1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct V1Buffers {
    pub(super) nvl: u64,
    pub(super) rdma: u64,
    /// What its own hints give.
    pub(super) nvl_hint: u64,
    pub(super) rdma_hint: u64,
    /// What this workload's rows take: the hints provide for 128 choices of a token.
    pub(super) nvl_need: u64,
    pub(super) rdma_need: u64,
}

fn saturating(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn rounded(bytes: u128) -> u64 {
    saturating(bytes.div_ceil(V1_GRAIN) * V1_GRAIN)
}

/// Bytes of `num_nvl_bytes` by `Config.get_nvl_buffer_size_hint` of 567632d: C channels, g ranks of a node, m nodes,
/// 64-bit ids.
fn nvl_hint(ranks: usize, sms: usize, chunks: Chunks, row: usize) -> u64 {
    nvl_bytes(ranks, sms, chunks, row + 8 + 128 * 8 + 128 * 4 + 128 * 4)
}

/// The same with a slot of so many bytes.
fn nvl_bytes(ranks: usize, sms: usize, chunks: Chunks, slot: usize) -> u64 {
    let (g, m) = (ranks.min(8) as u128, (ranks / 8).max(1) as u128);
    let c = (sms / 2) as u128;
    let slots = chunks.nvl_recv.min(u32::MAX as usize) as u128;
    rounded(c * g * (2 * m + 3) * 4 + c * g * slots * slot as u128)
}

/// Bytes of `num_rdma_bytes` by `Config.get_rdma_buffer_size_hint` of 567632d.
fn rdma_hint(ranks: usize, sms: usize, chunks: Chunks, row: usize) -> u64 {
    rdma_bytes(ranks, sms, chunks, row + 8 + 128 * 8 + 512 + 512 + 16)
}

/// The same with a slot of so many bytes.
fn rdma_bytes(ranks: usize, sms: usize, chunks: Chunks, slot: usize) -> u64 {
    if ranks <= 8 {
        return 0;
    }
    let (m, c) = ((ranks / 8) as u128, (sms / 2) as u128);
    // The constructor rounds the receive chunk up to a multiple of the send chunk.
    let slots = chunks.rdma_recv.min(u32::MAX as usize).next_multiple_of(chunks.rdma_send.max(1)) as u128;
    rounded(c * m * 18 * 2 * 4 + 2 * c * m * slots * slot as u128)
}

/// Bytes of the low-latency buffer, `get_low_latency_rdma_size_hint(M, hidden, num_ranks, num_experts)` of 567632d.
pub fn ll_buffer_bytes(tokens: usize, hidden: usize, experts: usize) -> u64 {
    let (m, h, e) = (tokens as u128, hidden as u128, experts as u128);
    let scales = 4 * (h / 128);
    let dispatch = 16 + (2 * h).max(h + scales);
    let combine = 2 * h + scales;
    let send = (m * dispatch).max(e * m * combine);
    let receive = e * m * dispatch.max(combine);
    let signals = (4 * e).div_ceil(128) * 128;
    let total = 2 * (send + receive + signals);
    saturating((total + 128) / 128 * 128)
}

/// Bytes of the `NVLink` buffer in the guide's intra-node script: `max(256 MiB, (sms/2) ranks 6 hidden 2 4)`.
pub fn guide_nvl_bytes(sms: usize, ranks: usize, hidden: usize) -> u64 {
    let rows = (sms / 2) as u128 * ranks as u128 * 6 * hidden as u128 * 2 * 4;
    saturating(rows).max(256 * MIB)
}

/// The default configurations of `DeepEP` V1 at 567632d (`get_dispatch_config`, `get_combine_config`); none for ranks
/// that it has none for.
pub(super) fn v1_configs(ranks: usize) -> Option<[Chunks; 2]> {
    let pair = |dispatch: [usize; 3], combine: [usize; 3]| {
        [dispatch, combine].map(|[nvl_send, nvl_recv, rdma_send]| Chunks {
            nvl_send,
            nvl_recv,
            rdma_send,
            rdma_recv: 128,
        })
    };
    Some(match ranks {
        2 => pair([24, 256, 6], [10, 256, 6]),
        4 => pair([6, 256, 6], [9, 256, 6]),
        8 => pair([6, 256, 6], [4, 256, 6]),
        16 => pair([36, 288, 20], [4, 288, 12]),
        24 | 32 | 48 | 64 => pair([32, 288, 8], [1, 288, 8]),
        96 => pair([20, 480, 12], [1, 480, 8]),
        128 => pair([20, 560, 12], [1, 560, 8]),
        144 => pair([32, 720, 12], [2, 720, 8]),
        160 => pair([28, 720, 12], [2, 720, 8]),
        _ => return None,
    })
}

/// The buffers of `DeepEP` V1's normal kernels; none where neither chunks were given nor a default exists.
pub(super) fn v1_buffers(request: &Request) -> Option<V1Buffers> {
    let ranks = request.ranks();
    let configs = match request.settings.chunks {
        Some(chunks) => [chunks; 2],
        None => v1_configs(ranks)?,
    };
    let sms = super::lint::sms(request).unwrap_or(0);
    // Rows are sized as BF16, whatever dispatch moves: combine needs that.
    let row = 2 * request.hidden;
    let most = |hint: fn(usize, usize, Chunks, usize) -> u64| {
        configs.iter().map(|&chunks| hint(ranks, sms, chunks, row)).max().unwrap_or(0)
    };
    let (nvl_hint, rdma_hint) = (most(nvl_hint), most(rdma_hint));
    // A dispatched row with its origin, ids, weights and scales; a combined one with its origin and weights.
    let k = request.top_k;
    let scales = 4 * request.dtype().scales_per_row(request.hidden);
    let slots = [request.dtype().row_bytes(request.hidden) + 8 + 12 * k + scales, row + 8 + 4 * k];
    let need = |bytes: fn(usize, usize, Chunks, usize) -> u64, more: usize| {
        configs
            .iter()
            .zip(slots)
            .map(|(&chunks, slot)| bytes(ranks, sms, chunks, slot + more))
            .max()
            .unwrap_or(0)
    };
    let (nvl_need, rdma_need) = (need(nvl_bytes, 0), need(rdma_bytes, 16));
    let (nvl, rdma) = match (request.settings.guide_buffers, request.nodes > 1) {
        (true, false) => (guide_nvl_bytes(sms, ranks, request.hidden), 0),
        (true, true) => (1024 * MIB, 512 * MIB),
        (false, _) => (nvl_hint, rdma_hint),
    };
    Some(V1Buffers {
        nvl: request.settings.nvl_bytes.unwrap_or(nvl),
        rdma: request.settings.rdma_bytes.unwrap_or(rdma),
        nvl_hint,
        rdma_hint,
        nvl_need,
        rdma_need,
    })
}

/// Bytes of symmetric memory of one rank of this project's CUDA backend: words, the landing for a dispatch that does not
/// fit, and `live_outputs` + 1 slices, in whole pages of 2 MiB. The division is that of crates/cuda (world.rs,
/// `Regions`); a test holds it against the heaps of measured runs.
pub fn own_heap_bytes(placement: &Placement, shape: &Shape, live_outputs: usize) -> u64 {
    let ranks = placement.ranks();
    let Shape { max_tokens, hidden, top_k, .. } = *shape;
    let line = |bytes: usize| bytes.next_multiple_of(128);
    let pages = |bytes: usize| bytes.next_multiple_of(4096);
    let local = placement.most_local_experts();
    let notify = line(8 * ranks * (8 + ranks));
    let counts = line(8 * ranks * local) + line(4 * ranks * max_tokens);
    let words = pages(notify + counts + 128 * ranks + 128);
    let kind = OutputKind { dtype: Dtype::Bf16, hidden, top_k, cached: false, weights: true };
    let output = |rows: usize| OutputLayout::new(&kind, rows, rows).bytes;
    let returning = max_tokens * top_k.min(ranks.saturating_sub(1)) * (2 * hidden + 4 * top_k);
    let landing = pages(output(ranks * max_tokens).max(returning).max(1));
    let route = 16 + 4 * (ranks * ranks + local + max_tokens * ranks);
    let slice = pages(output(generous(uniform_arrivals(max_tokens, ranks, top_k))))
        + pages(route)
        + pages(2 * hidden * max_tokens)
        + pages(4 * top_k * max_tokens);
    let slices = (live_outputs.max(1) as u128 + 1) * slice as u128;
    saturating((words as u128 + landing as u128 + slices).div_ceil(PAGE as u128) * PAGE as u128)
}

/// The memory of a plan.
pub(super) fn memory(request: &Request, sizes: &Sizes, ranks_per_token: f64) -> Memory {
    let mut parts = Vec::new();
    match (request.engine, request.mode) {
        (Engine::Expertrail, _) => own(request, sizes, &mut parts),
        (Engine::DeepepV1, Mode::Ht) => {
            v1(request, &mut parts);
            outputs(request, sizes, ranks_per_token, &mut parts);
        }
        (Engine::DeepepV1, Mode::Ll) => low_latency(request, sizes, &mut parts),
        (Engine::DeepepV2, Mode::Ht) => {
            v2(request, sizes, &mut parts);
            outputs(request, sizes, ranks_per_token, &mut parts);
        }
        // Refused by a lint: there is nothing to size.
        (Engine::DeepepV2, Mode::Ll) => {}
    }
    let total_bytes = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes));
    Memory { total_bytes, parts }
}

fn part(name: &str, bytes: u64, rule: &str, source: &str) -> MemoryPart {
    MemoryPart { name: name.to_owned(), bytes, rule: rule.to_owned(), source: source.to_owned() }
}

fn own(request: &Request, sizes: &Sizes, parts: &mut Vec<MemoryPart>) {
    let live = request.settings.live_outputs.unwrap_or(super::lint::DEFAULT_LIVE_OUTPUTS);
    let shape = Shape {
        max_tokens: request.tokens,
        hidden: request.hidden,
        top_k: request.top_k,
        experts: request.experts,
    };
    parts.push(part(
        "symmetric memory",
        own_heap_bytes(&sizes.placement, &shape, live),
        &format!(
            "landing for the worst case and {} slices of 1.25 x the expected rows ({live} outputs alive and the next); \
             outputs lie in it",
            live.max(1) + 1
        ),
        "crates/cuda, world.rs",
    ));
}

fn v1(request: &Request, parts: &mut Vec<MemoryPart>) {
    const SOURCE: &str = "DeepEP 567632d, Config";
    if let Some(buffers) = v1_buffers(request) {
        let (rule, source) = match (request.settings.nvl_bytes, request.settings.guide_buffers) {
            (Some(_), _) => ("as given", "--nvl-bytes"),
            (None, true) if request.nodes == 1 => {
                ("max(256 MiB, (sms/2) x ranks x 6 x hidden x 2 x 4)", "the Kubernetes guide's script")
            }
            (None, true) => ("1 GiB", "the Kubernetes guide's script"),
            (None, false) => {
                ("get_nvl_buffer_size_hint(2 x hidden, ranks), larger of dispatch and combine", SOURCE)
            }
        };
        parts.push(part("NVLink buffer", buffers.nvl, rule, source));
        let (rule, source) = match (request.settings.rdma_bytes, request.settings.guide_buffers) {
            (Some(_), _) => ("as given", "--rdma-bytes"),
            (None, true) => ("512 MiB between nodes, else 0", "the Kubernetes guide's script"),
            (None, false) => {
                ("get_rdma_buffer_size_hint(2 x hidden, ranks), larger of dispatch and combine", SOURCE)
            }
        };
        parts.push(part("RDMA buffer", buffers.rdma, rule, source));
    }
    parts.push(part("workspace", 32 * MIB, "fixed", "DeepEP 567632d, Buffer"));
}

fn v2(request: &Request, sizes: &Sizes, parts: &mut Vec<MemoryPart>) {
    let token = (sizes.dispatch_row.max(sizes.combine_row) + 12 * request.top_k) as u128;
    let slots = request.ranks() as u128 * request.tokens as u128;
    let bytes = (slots * token).div_ceil(PAGE as u128) * PAGE as u128;
    parts.push(part(
        "receive slots",
        saturating(bytes),
        "ranks x tokens x (row, ids, weights); at least: ElasticBuffer.get_buffer_size_hint has the exact size",
        "DeepEP dd758ca, ElasticBuffer",
    ));
}

fn outputs(request: &Request, sizes: &Sizes, ranks_per_token: f64, parts: &mut Vec<MemoryPart>) {
    let rows = (request.tokens as f64 * ranks_per_token).ceil() as u64;
    let row = (sizes.dispatch_row + 12 * request.top_k) as u64;
    parts.push(part(
        "received rows",
        rows.saturating_mul(row),
        "tokens x U_R rows with 64-bit ids and weights, uniform routing; alive until the caller drops them",
        "DeepEP, Buffer.dispatch",
    ));
    let combined = request.tokens as u64 * 2 * request.hidden as u64;
    parts.push(part("combined rows", combined, "tokens x hidden x 2", "DeepEP, Buffer.combine"));
}

fn low_latency(request: &Request, sizes: &Sizes, parts: &mut Vec<MemoryPart>) {
    parts.push(part(
        "RDMA buffer",
        request
            .settings
            .rdma_bytes
            .unwrap_or_else(|| ll_buffer_bytes(request.tokens, request.hidden, request.experts)),
        if request.settings.rdma_bytes.is_some() {
            "as given"
        } else {
            "get_low_latency_rdma_size_hint(tokens, hidden, ranks, experts)"
        },
        "DeepEP 567632d",
    ));
    parts.push(part("workspace", 32 * MIB, "fixed", "DeepEP 567632d, Buffer"));
    let slots =
        sizes.placement.most_local_experts() as u128 * request.ranks() as u128 * request.tokens as u128;
    parts.push(part(
        "received rows",
        saturating(slots * sizes.dispatch_row as u128),
        "local experts x ranks x tokens rows, the worst case",
        "DeepEP 567632d, low_latency_dispatch",
    ));
    let combined = request.tokens as u64 * 2 * request.hidden as u64;
    parts.push(part("combined rows", combined, "tokens x hidden x 2", "DeepEP 567632d, low_latency_combine"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_latency_hint_of_the_test_default() {
        // "about 4 E M (2H + 4H/128) bytes = 2.15 GB for E=288, M=128, H=7168".
        let bytes = ll_buffer_bytes(128, 7168, 288) as f64;
        assert!((bytes / 2.15e9 - 1.0).abs() < 0.01, "{bytes}");
        // By hand: d = 16 + 14336, c = 14336 + 224; both sums are E M c; signals 1152.
        assert_eq!(ll_buffer_bytes(128, 7168, 288), 2 * (2 * 288 * 128 * 14_560 + 1152) + 128);
    }

    #[test]
    fn guide_buffer() {
        // 20 * 8 * 6 * 3072 * 8 = 23,592,960: below 256 MiB.
        assert_eq!(guide_nvl_bytes(40, 8, 3072), 256 << 20);
        assert_eq!(guide_nvl_bytes(40, 64, 65_536), 20 * 64 * 6 * 65_536 * 8);
    }

    #[test]
    fn normal_hints_by_hand() {
        let chunks = Chunks { nvl_send: 8, nvl_recv: 256, rdma_send: 6, rdma_recv: 128 };
        // C 10, g 8, m 1: 10*8*5*4 + 10*8*256*(14336 + 2056) = 1600 + 335,708,160, rounded up to 128.
        assert_eq!(nvl_hint(8, 20, chunks, 14_336), 335_709_824);
        assert_eq!(rdma_hint(8, 20, chunks, 14_336), 0);
        // m 2, receive chunk 132 (a multiple of 6): 10*2*144 + 2*10*2*132*(14336 + 2072) = 2880 + 86,634,240.
        assert_eq!(rdma_hint(16, 20, chunks, 14_336), 86_637_184);
    }
}
