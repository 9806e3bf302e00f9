//! A full result for tests of the schema and of every report.

use std::collections::BTreeMap;

use expertrail_core::Dtype;

use crate::preset::{Mode, Scope};
use crate::schema::{
    Backend, Ceiling, FabricOp, FabricRun, Host, Machine, Memory, Op, OpKey, OpRun, RailRun, RankRun,
    Received, ResultFile, SCHEMA_ID, Settings, Span, Tool, TopologyInfo, Verification, VerifyMode,
};

/// A result of `ranks` ranks with every field set. The same on every call.
pub(crate) fn result(ranks: usize) -> ResultFile {
    let ceiling = Ceiling::new(8.4, 9.6, 1 << 30, ranks as u64);
    let verification = Verification {
        mode: VerifyMode::Full,
        rows_checked: 131_072,
        rows_total: 131_072,
        mismatches: 0,
        first_mismatch: None,
    };
    ResultFile {
        schema: SCHEMA_ID.to_owned(),
        tool: Tool {
            name: "expertrail".to_owned(),
            version: "0.1.0".to_owned(),
            commit: Some("5d04fdc".to_owned()),
        },
        started_at: "2026-11-29T22:30:00Z".to_owned(),
        command: ["expertrail", "bench", "--ranks", "8"].map(str::to_owned).to_vec(),
        settings: settings(),
        topology: TopologyInfo {
            ranks: ranks as u64,
            ranks_per_node: ranks as u64,
            nodes: 1,
            scope: Scope::World,
        },
        hosts: vec![Host { name: "node-a".to_owned(), ranks: (0..ranks as u64).collect() }],
        backend: Backend {
            name: "host".to_owned(),
            simd: Some("avx512".to_owned()),
            copy: Some("non_temporal".to_owned()),
            details: BTreeMap::from([("segment".to_owned(), "memfd".to_owned())]),
        },
        versions: BTreeMap::from([("kernel".to_owned(), "6.1.0".to_owned())]),
        machine: Machine {
            cpu: Some("AMD EPYC 9B14".to_owned()),
            cores: Some(2),
            llc_bytes: Some(32 << 20),
            memory_bytes: Some(24 << 30),
            kernel: Some("6.1.0".to_owned()),
        },
        ops: vec![op(Op::Dispatch, ranks, &ceiling), op(Op::Combine, ranks, &ceiling)],
        ceiling: Some(ceiling),
        link_ceiling: None,
        fabric: None,
        received: Received {
            rows_per_rank: (0..ranks).map(|r| 15_800 + wave(r) * 40).collect(),
            tokens_per_expert: (0..64).map(|e| 900 + wave(e * 3) * 25).collect(),
        },
        verdict: verification.verdict(),
        verification,
        memory: Some(Memory { peak_bytes_per_rank: vec![310 << 20; ranks], budget_bytes: Some(400 << 20) }),
        warnings: vec!["more ranks than cores: times include waiting for a core".to_owned()],
        rails: Vec::new(),
        parts: Vec::new(),
    }
}

fn settings() -> Settings {
    Settings {
        preset: "quick".to_owned(),
        tokens: 1024,
        hidden: 2048,
        top_k: 8,
        experts: 64,
        dispatch_dtype: "bf16".to_owned(),
        combine_dtype: "bf16".to_owned(),
        mode: Mode::Ht,
        routing: "uniform".to_owned(),
        routing_skew: 0.0,
        routing_files: Vec::new(),
        seed: 1,
        layout: "by_source".to_owned(),
        alignment: 1,
        warmup: 3,
        iters: 40,
        sms: Vec::new(),
        spans: vec![Span::Isolated],
        verify: VerifyMode::Full,
        hot: false,
        rotation_sets: 4,
        deadline_s: Some(60.0),
    }
}

fn op(op: Op, ranks: usize, ceiling: &Ceiling) -> crate::schema::OpResult {
    let base = if op == Op::Combine { 5200.0 } else { 4100.0 };
    let rank = |rank: usize| {
        let times_us: Vec<f64> = (0..40)
            .map(|i| {
                let spike = if i == 17 { 900.0 } else { 0.0 };
                base + wave(i * 7 + rank * 13) as f64 * 18.0 + rank as f64 * 25.0 + spike
            })
            .collect();
        RankRun {
            rank,
            phases_us: BTreeMap::from([
                ("plan".to_owned(), vec![120.0; 40]),
                ("notify".to_owned(), vec![60.0; 40]),
                ("send".to_owned(), times_us.iter().map(|t| t - 300.0).collect()),
            ]),
            times_us,
            logical_bytes: 30.0e6,
            wire_bytes: 26.0e6,
            ceiling_bytes: 30.0e6,
        }
    };
    OpRun {
        key: OpKey { op, dtype: Dtype::Bf16, span: Span::Isolated },
        ranks: (0..ranks).map(rank).collect(),
        sms: None,
    }
    .summarise(Some(ceiling))
    .unwrap()
}

/// A network for a result: two nodes of one rank.
pub(crate) fn fabric() -> FabricRun {
    let rail = |rank: u64| RailRun {
        rank,
        node: rank,
        local_rank: 0,
        provider: "tcp;ofi_rxm".to_owned(),
        domain: "lo".to_owned(),
        chosen: "loopback: all ranks are on one host".to_owned(),
        library: "libfabric 1.17".to_owned(),
        cpus: vec![0, 1],
        raw_gbps: 2.5,
        logical_bytes: BTreeMap::from([("dispatch".to_owned(), 20.0e6)]),
        wire_bytes: BTreeMap::from([("dispatch".to_owned(), 16.4e6)]),
        utilisation: 0.25,
        writes: 640,
        sleeps: 3,
        busy: 1,
        ring_stalls: 0,
        call_stalls: 12,
        duplicates: 0,
        failed: 0,
    };
    FabricRun {
        asked: "tcp".to_owned(),
        simulated: false,
        chunk_bytes: 131_072,
        window: 8,
        raw_message_bytes: 131_072,
        raw_seconds: 0.6,
        raw_gbps: 2.5,
        ops: vec![FabricOp {
            op: Op::Dispatch,
            span: Span::Isolated,
            logical_bytes: 20.0e6,
            wire_bytes: 16.4e6,
            wire_gbps: 2.0,
            raw_ratio: Some(0.8),
        }],
        rails: vec![rail(0), rail(1)],
    }
}

/// A wave of small numbers, without a random generator.
fn wave(i: usize) -> u64 {
    [3, 7, 1, 12, 5, 9, 0, 6, 15, 4, 8][i % 11] as u64
}
