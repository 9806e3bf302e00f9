//! Reading logs into a case: who wrote a line, when, and what it means.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::collections::BTreeSet;

use expertrail_cluster::diagnose::{Case, read_texts};

fn one(text: &str) -> Case {
    read_texts(&[("run.out", text)])
}

fn set(ranks: &[u32]) -> BTreeSet<u32> {
    ranks.iter().copied().collect()
}

const IMA: &str = "cuda-illegal-memory-access";

/// The same line behind each prefix: rank, node.
#[test]
fn prefixes_alone_and_nested() {
    let body = "RuntimeError: CUDA error: an illegal memory access was encountered";
    let rows: &[(&str, Option<u32>, Option<&str>)] = &[
        ("", None, None),
        ("[rank3]: ", Some(3), None),
        ("[default3]: ", Some(3), None),
        ("[rank12]:[E1129 12:00:00.123456789 ProcessGroupNCCL.cpp:629] ", Some(12), None),
        ("[1,3]<stderr>:", Some(3), None),
        ("[1,3]<stdout>: ", Some(3), None),
        ("[prterun-node-a-12@1,3]<stderr>: ", Some(3), None),
        ("Sun Nov 29 12:00:00 2026[1,7]<stderr>:", Some(7), None),
        ("3: ", Some(3), None),
        (" 12: ", Some(12), None),
        ("[pod/deepep-bench-1-x7k2p/deepep-bench] ", None, Some("deepep-bench-1-x7k2p")),
        ("[pod/w-1/main] [rank9]: ", Some(9), Some("w-1")),
        ("1: [rank9]: ", Some(9), None),
        ("[1,1]<stderr>:[rank9]: ", Some(9), None),
        ("(RayWorker pid=123, ip=192.0.2.3) ", None, Some("192.0.2.3")),
        ("(MegatronPolicyWorker[rank=9] pid=4, ip=192.0.2.3) ", Some(9), Some("192.0.2.3")),
        ("(RayWorker[rank=9]) ", Some(9), None),
        ("(EngineCore_DP4 pid=2344883) ", Some(4), None),
        ("(Worker_DP0_TP1_EP5 pid=4) ", Some(5), None),
        ("[2026-11-29 12:03:11 DP2 TP16 EP16] ", Some(16), None),
        ("[12:03:11 DP2 TP16 EP16] ", Some(16), None),
        ("gpu-a:946:988 [0] ", None, Some("gpu-a")),
        ("[rank2]: gpu-a:946:988 [0] ", Some(2), Some("gpu-a")),
        ("2026-11-29T12:00:00.123456789Z stdout F ", None, None),
        ("2026-11-29T12:00:00.123456789Z stderr F [rank5]: ", Some(5), None),
        ("Nov 29 12:00:00 node-b python[123]: ", None, Some("node-b")),
        ("[node-b:3667226] ", None, Some("node-b")),
        ("[ampere:1188443:0] ", None, Some("ampere")),
        ("[  123.456789] ", None, None),
        ("[Tue Sep  8 17:16:02 2026] ", None, None),
        ("\u{1b}[31m[rank3]:\u{1b}[0m \u{1b}[1m", Some(3), None),
    ];
    for (prefix, rank, node) in rows {
        let case = one(&format!("{prefix}{body}\n"));
        let event = case.first(IMA).unwrap_or_else(|| panic!("{prefix}"));
        assert_eq!(event.rank, *rank, "{prefix}");
        assert_eq!(event.node.as_deref(), *node, "{prefix}");
        assert!(event.text.ends_with(body), "{prefix}: {}", event.text);
        assert_eq!(case.ranks_seen, rank.iter().copied().collect(), "{prefix}");
        assert_eq!(case.count(IMA), 1);
    }
}
