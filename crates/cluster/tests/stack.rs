//! The compatibility verdict: every combination of the documents and of the version-related failure cases, with its source.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

use expertrail_cluster::stack::{Judgement, Question, judge, text};

use Judgement::{KnownBad, KnownGood, Unverified};

/// What is asked, the documented verdict, a row that must be among those that apply (or may), and where it is documented.
const DOCUMENTED: &[(&str, Judgement, &str, &str)] = &[
    // The report of a hang with a newer NVSHMEM.
    ("commit=4214430,nvshmem=3.6.5,transport=ibgda", KnownBad, "rc-layout", "report, control arm"),
    (
        "deep_ep=1.2.1+4214430,nvshmem=3.6.5,transport=ibgda",
        KnownBad,
        "rc-layout",
        "report: version as installed",
    ),
    (
        "commit=4214430,564=yes,nvshmem=3.6.5,transport=ibgda,sm=90",
        KnownGood,
        "rc-layout-good",
        "report, treatment arm",
    ),
    ("dispatcher=hybridep", KnownGood, "hybridep", "report, workaround"),
    (
        "commit=4214430,nvshmem=3.6.5,dispatcher=hybridep,transport=ibgda",
        KnownGood,
        "hybridep",
        "report, workaround: 36.462 s a step",
    ),
    // What was seen with 3.6.5 over InfiniBand says nothing of newer ones, nor of RoCE.
    ("564=yes,nvshmem=9.1.0,transport=ibgda", Unverified, "rc-layout-newer", "newer is not safer"),
    ("564=yes,nvshmem=3.6.5,transport=ibgda,roce=yes", Unverified, "rc-layout-roce", "shown on InfiniBand"),
    ("line=v1,nvshmem=3.4.5-0,transport=ibgda", KnownGood, "guide-stack", "a package's version"),
    ("line=v1,links_nvshmem=no", Unverified, "", "one node needs no NVSHMEM"),
    ("line=v1,links_nvshmem=no,transport=efa", KnownBad, "no-nvshmem-efa", "report: validation"),
    ("commit=4214430,nvshmem=3.6.5", Unverified, "rc-layout", "the transport is not known"),
    (
        "commit=4214430,nvshmem=3.6.5,transport=ibgda,links_nvshmem=no",
        KnownBad,
        "no-nvshmem",
        "report: a pass without NVSHMEM is none",
    ),
    // The guide to managed Kubernetes.
    (
        "line=hybrid-ep,nvshmem=3.4.5,transport=ibgda,cuda=13.0",
        KnownGood,
        "guide-stack",
        "guide: validated stack",
    ),
    ("line=hybrid-ep,564=no,nvshmem=3.6.5,transport=ibgda", KnownBad, "rc-layout", "guide: 3.6.5 fails"),
    ("line=hybrid-ep,564=no,nvshmem=3.7.2,transport=ibgda", KnownBad, "rc-layout", "guide: 3.7.x fails"),
    ("commit=94a9f8f,nvshmem=3.7.0,transport=ibgda", KnownBad, "rc-layout", "hybrid-ep's head lacks 564"),
    ("line=v2,nccl=none", KnownBad, "v2-no-nccl", "guide: main fails to build"),
    (
        "line=hybrid-ep,nvshmem=3.4.5,symbols=missing,transport=ibgda",
        KnownBad,
        "symbols",
        "guide: undefined symbol",
    ),
    (
        "line=hybrid-ep,nvshmem=3.4.5,aggressive_ptx=off,sm=100,transport=ibgda",
        KnownGood,
        "slow-ptx",
        "guide: B200 halves, a caution",
    ),
    (
        "line=hybrid-ep,nvshmem=3.4.5,arch=missing,transport=ibgda",
        KnownBad,
        "arch",
        "guide: image of another GPU",
    ),
    // AWS on EFA.
    ("commit=567632d,nvshmem=3.7.0,transport=efa,efa_patch=yes", KnownGood, "efa-good", "AWS: supported"),
    (
        "commit=567632d,nvshmem=3.4.5,transport=efa,efa_patch=yes",
        KnownBad,
        "efa-old-nvshmem",
        "AWS: 3.7.0 or newer",
    ),
    ("commit=567632d,nvshmem=3.7.0,transport=efa,efa_patch=no", KnownBad, "efa-unpatched", "AWS: the patch"),
    ("cuda=12.9,sm=103", Unverified, "cupti", "AWS: CUPTI on B300, of the tests only"),
    (
        "commit=567632d,nvshmem=3.7.0,efa_patch=yes,aggressive_ptx=off,sm=90,transport=efa",
        KnownGood,
        "slow-ptx",
        "AWS: the image as it is built for several architectures",
    ),
    ("cuda=13.0,sm=103", Unverified, "", "AWS: CUDA 13 serves"),
    ("line=v2,nccl=2.30.4,transport=efa", KnownBad, "efa-v2-nccl", "AWS V2: NCCL 2.31"),
    // The walk through the host set-up.
    ("nvshmem=3.4.5,cuda_major=differ,transport=ibgda", KnownBad, "cuda-major", "walk through, section 2"),
    // Failure cases.
    ("commit=309785a,nvshmem=3.5.19,transport=ibgda", KnownBad, "rc-layout", "F001"),
    ("commit=17cfb81,nvshmem=3.6.5,transport=ibgda", KnownBad, "rc-layout", "F003"),
    ("line=v1,nvshmem=3.4.5,nvshmem_device=3.6.5,transport=ibgda", KnownBad, "device-host", "F004"),
    ("564=yes,nvshmem=3.6.5,transport=ibgda,sm=100", Unverified, "rc-layout-b200", "F005 (pull request 623)"),
    ("line=v1,nvshmem=3.4.5,transport=ibgda,nic=efa", KnownBad, "not-mlx5-efa", "F010"),
    ("line=v1,nvshmem=3.4.5,transport=ibgda,nic=other", KnownBad, "not-mlx5-other", "F010"),
    ("line=v1,181=no", KnownBad, "qp-race", "F018"),
    ("line=v1,nvshmem=3.4.5,transport=ibgda,roce=yes", KnownBad, "roce-ah", "F027"),
    ("line=v1,564=yes,nvshmem=3.7.0,max_teams=7,transport=ibgda", KnownBad, "max-teams", "F040"),
    (
        "line=v1,564=yes,nvshmem=3.7.0,max_teams=8,transport=ibgda",
        Unverified,
        "rc-layout-newer",
        "F040, mended",
    ),
    ("line=v2,nccl=2.30.4,libmlx5_1_25=no,nic=mlx5", KnownBad, "v2-rdma-core", "F051, F058"),
    ("line=v2,630=no", KnownBad, "v2-gin-assert", "F052"),
    ("line=v2,nccl=2.30.7,nccl_built=2.29.2", KnownBad, "v2-built-old", "F054"),
    ("gdrdrv=2.4.1,driver=560.35.03", KnownBad, "gdrdrv", "F090"),
    ("gdrdrv=2.4.2,driver=560.35.03", Unverified, "", "F090, mended"),
    // On B300 the address handles failed with the wheel of 3.4.5, and with a newer NVSHMEM nothing is reported.
    ("line=v1,nvshmem=3.4.5,transport=ibgda,gpu=b300,sm=103", Unverified, "b300-ah", "F028, F029"),
    ("line=v1,nvshmem=3.4.5,transport=ibgda,gpu=b200,sm=100", KnownGood, "guide-stack", "guide: B200"),
    ("line=v1,nvshmem=3.4.5,transport=ibgda,rdma_core=mixed", KnownBad, "rdma-core-mixed", "F059"),
    ("line=v1,nvshmem=3.4.5,transport=ibgda,rdma_core=ok", KnownGood, "guide-stack", "F059, mended"),
    ("gpu=gb300,nccl=2.27.7,libmlx5_1_25=no,nic=mlx5", KnownBad, "rdma-core-dmabuf", "F058"),
    ("gpu=gb300,nccl=2.27.7,libmlx5_1_25=yes,nic=mlx5", Unverified, "", "F058, mended"),
    ("gpu=gb300,nccl=2.26.2,libmlx5_1_25=no,nic=mlx5", Unverified, "", "F058: NCCL 2.27 or newer"),
    ("line=v2,nccl=2.30.7,nccl_built=2.30.4", Unverified, "v2-nccl-split", "F054: two versions"),
    ("line=v2,nccl=2.31.0,transport=efa,efa_module=3.3.0", Unverified, "v2-efa-ring", "F073"),
    ("line=v2,nccl=2.31.0,transport=efa,efa_module=2.17.3", KnownBad, "v2-efa-module", "AWS V2: kmod 3.3.0"),
    ("efa_installer=1.26.1,nccl=2.19.4,transport=efa", KnownBad, "efa-sync-memops", "F068"),
    ("efa_installer=1.48.0,nccl=2.30.4,transport=efa", Unverified, "", "F068: newer"),
    ("efa_installer=1.26.1,nccl=2.18.5,transport=efa", Unverified, "", "F068: NCCL before cuMem"),
    (
        "gpu=gb200,transport=efa,libfabric=2.4.0amzn1.0,nvshmem=3.7.0",
        Unverified,
        "efa-gb200-registration",
        "F069",
    ),
    ("line=hybrid-ep,nvshmem=3.4.5,transport=ibgda,gpu=gb200", Unverified, "hybrid-ep-nvl72", "F048"),
    ("line=hybrid-ep,nvshmem=3.4.5,transport=ibgda,gpu=h200", KnownGood, "guide-stack", "F048: one host"),
    (
        "564=yes,nvshmem=3.6.5,transport=ibgda,rdc_guard=no,nvshmem_build=source",
        Unverified,
        "nvshmem-source-build",
        "F099",
    ),
    // Newer is not safer.
    (
        "commit=dd758ca,nvshmem=3.6.5,transport=ibgda,links_nvshmem=yes,nccl=2.30.7",
        KnownBad,
        "v2-legacy",
        "DeepEP 707",
    ),
    // What decides is not known.
    ("nvshmem=3.6.5,transport=ibgda", Unverified, "rc-layout", "564 not known"),
    ("commit=4214430,transport=ibgda", Unverified, "rc-layout", "NVSHMEM not known"),
    ("commit=1234567,nvshmem=3.6.5,transport=ibgda", Unverified, "rc-layout", "commit not known"),
    ("nvshmem=3.10.0,564=no,transport=ibgda", KnownBad, "rc-layout", "3.10 is newer than 3.5.19"),
    ("nvshmem=3.6.5,transport=none,564=no", Unverified, "", "one node"),
];

#[test]
fn documented_combinations_get_their_documented_verdict() {
    for (versions, expected, row, source) in DOCUMENTED {
        let verdict = judge(&Question::parse(versions).unwrap());
        let rows: Vec<&str> = verdict
            .applies
            .iter()
            .chain(&verdict.cautions)
            .chain(&verdict.possible)
            .map(|found| found.row.id.as_str())
            .collect();
        assert_eq!(verdict.judgement, *expected, "{versions} ({source}): {rows:?}");
        assert!(row.is_empty() || rows.contains(row), "{versions} ({source}): {rows:?}");
    }
}

#[test]
fn a_commit_alone_is_bad_unless_patched() {
    let alone = judge(&Question::parse("commit=4214430,nvshmem=3.6.5,transport=ibgda").unwrap());
    assert!(alone.unless_patched);
    let text = expertrail_cluster::stack::text(&alone);
    assert!(text.starts_with("KNOWN BAD unless patched\n"), "{text}");
    assert!(text.contains("--source-root"), "{text}");
    // Stronger evidence than a commit leaves no such doubt.
    let source = judge(&Question::parse("commit=4214430,564=no,nvshmem=3.6.5,transport=ibgda").unwrap());
    assert!(!source.unless_patched);
    assert!(expertrail_cluster::stack::text(&source).starts_with("KNOWN BAD\n"));
}

#[test]
fn unknown_keys_and_halves_are_refused() {
    let error = Question::parse("nvshmen=3").unwrap_err();
    assert!(error.contains("nvshmem_device"), "{error}");
    assert!(Question::parse("nvshmem").is_err());
    for (text, says) in [
        ("nvshmem=garbage", "a version"),
        ("564=Yes", "yes or no"),
        ("transport=IBGDA", "ibgda or efa or none"),
        ("commit=zzz", "seven or more digits"),
        ("564=yes,564=no", "twice"),
        ("sm=hopper", "a number"),
    ] {
        let error = Question::parse(text).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
    assert!(Question::parse("").unwrap().known.is_empty());
}

#[test]
fn every_bad_row_has_a_fix_and_says_where_it_is_from() {
    let matrix = expertrail_cluster::stack::matrix();
    assert!(matrix.rows.iter().all(|row| !row.source.is_empty()));
    // Every row is asked for by the table above, or a case of its own would be missing.
    for row in &matrix.rows {
        let asked = DOCUMENTED.iter().any(|(versions, ..)| {
            let verdict = judge(&Question::parse(versions).unwrap());
            verdict.applies.iter().chain(&verdict.cautions).any(|found| found.row.id == row.id)
        });
        assert!(asked || row.id == "v2-old-nccl", "no case of the table reaches row {}", row.id);
    }
    let verdict = judge(&Question::parse("line=v2,nccl=2.29.0").unwrap());
    assert!(verdict.applies.iter().any(|found| found.row.id == "v2-old-nccl"));
}

#[test]
fn values_stay_on_their_line() {
    let question = Question::parse("nvshmem=3.4.5\u{1b}[2J\nKNOWN GOOD").unwrap();
    let mut verdict = judge(&question);
    verdict.question.notes.push("a\rb".to_owned());
    let text = text(&verdict);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.contains("3.4.5 [2J KNOWN GOOD"), "{text:?}");
    assert!(!text.contains("\nKNOWN GOOD"), "{text:?}");
}
