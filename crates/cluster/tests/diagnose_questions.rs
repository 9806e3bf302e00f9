//! The seven questions of a dispatch that waited in vain: what each log answers, and what it leaves open.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::collections::BTreeSet;

use expertrail_cluster::diagnose::rules::timeout::{
    Counts, Devices, Frame, Questions, Reached, Silent, When, silent,
};
use expertrail_cluster::diagnose::{Case, Evidence as Given, Input, Outcome, conclude, read, read_texts};
use expertrail_cluster::finding::{Evidence, Finding, Manager, Status};
use expertrail_cluster::stack::Question;

/// The timeout on each of these ranks.
fn waits(ranks: impl Iterator<Item = u32>) -> String {
    let lines: Vec<String> = ranks
        .map(|rank| format!("[rank{rank}]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n"))
        .collect();
    lines.concat()
}

fn questions(text: &str) -> Questions {
    Questions::of(&read_texts(&[("run.log", text)])).expect("a call that waited in vain")
}

#[test]
fn no_wait_no_questions() {
    assert!(Questions::of(&read_texts(&[("run.log", "NVSHMEM v3.6.5\niteration 3 loss 2.1\n")])).is_none());
}

#[test]
fn a_bare_timeout_answers_only_the_frame() {
    let asked = questions("[rank7]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n");
    assert_eq!(asked.frame.answer, Frame::InterNode);
    assert_eq!(asked.reached.answer, Reached::Unknown);
    assert!(asked.transport.answer.is_empty());
    assert_eq!(asked.devices.answer, Devices::NoneSkipped);
    assert_eq!(asked.when.answer, When::Unknown);
    assert_eq!(asked.counts.answer, Counts::Unknown);
    assert!(asked.versions.answer.is_empty());
    assert_eq!(asked.mismatch, None);
}

#[test]
fn a_bare_timeout_is_not_determinable_and_asks_for_one_fact() {
    let diagnosis = conclude(&read_texts(&[(
        "run.log",
        "[rank7]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n",
    )]));
    assert_eq!(diagnosis.outcome, Outcome::NotDeterminable);
    assert!(diagnosis.findings.is_empty());
    let causes: BTreeSet<&str> = diagnosis.hypotheses.iter().map(|found| found.cause.as_str()).collect();
    for cause in
        ["nvshmem-rc-layout-mismatch", "peermem-missing", "driver-key-missing", "dispatch-peer-absent"]
    {
        assert!(causes.contains(cause), "{cause} in {causes:?}");
    }
    let facts: BTreeSet<_> = diagnosis.hypotheses.iter().filter_map(|found| found.next.as_deref()).collect();
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!(diagnosis.questions.len(), 7);
}

#[test]
fn frames_inside_a_node_and_of_low_latency() {
    assert_eq!(questions("RuntimeError: DeepEP error: CPU recv timeout\n").frame.answer, Frame::IntraNode);
    let low = "DeepEP timeout for dispatch receive, rank 3, local_expert_idx 2, src_rank 17\n";
    assert_eq!(questions(low).frame.answer, Frame::LowLatency);
    for fork in
        ["NixlEP error: timeout (dispatch CPU)", "mscclpp::ep error: timeout (internode_dispatch CPU)"]
    {
        assert_eq!(questions(fork).frame.answer, Frame::InterNode, "{fork}");
    }
}

#[test]
fn all_ranks_of_a_known_number_reached_the_call() {
    let waits = waits(0..4);
    assert_eq!(questions(&format!("world_size=4\n{waits}")).reached.answer, Reached::All);
    assert_ne!(questions(&format!("world_size=8\n{waits}")).reached.answer, Reached::All);
}

#[test]
fn a_rank_that_wrote_and_shows_no_wait_is_a_suspect() {
    let waits = waits((0..16).filter(|rank| *rank != 11));
    let asked = questions(&format!("[rank11]: loading shard 3\n{waits}"));
    assert_eq!(asked.reached.answer, Reached::Not(BTreeSet::from([11])));
}

#[test]
fn a_rank_that_compiles_or_failed_before_did_not_reach_the_call() {
    let compiling =
        "[rank1]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n[rank0]: DeepGEMM warmup:  80%|###\n";
    assert_eq!(questions(compiling).reached.answer, Reached::Preparing);
    let failed = "[rank2]: Assertion failed: internode.cu:483, condition: ibgda_get_state()->num_rc_per_pe >= num_channels\n[rank1]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    assert!(matches!(questions(failed).reached.answer, Reached::Failed(_)));
    assert!(questions(failed).someone_else());
}

#[test]
fn devices_some_and_all() {
    let skip = "WARN: device mlx5_3 cannot allocate buffer on the specified memory type. Skipping...\n";
    let wait = "RuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    let some = questions(&format!("{skip}{wait}"));
    assert_eq!(some.devices.answer, Devices::Some(BTreeSet::from(["mlx5_3".to_owned()])));
    assert_eq!(some.transport.answer, ["ibgda-alloc-skip"]);
    let all = questions(&format!("{skip}x: init failed for transport: IBGDA\n{wait}"));
    assert_eq!(all.devices.answer, Devices::All);
}

#[test]
fn tests_inside_a_node_say_nothing_of_dispatches_between_nodes() {
    let wait = "RuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    let passed = "[testing] Running with BF16, without top-k (async=False, previous=False) ... passed\n";
    let intra = format!(
        "python tests/test_intranode.py\n{passed}python tests/test_internode.py\n[testing] Running with BF16, without top-k (async=False, previous=False) ...\n{wait}"
    );
    assert_eq!(questions(&intra).when.answer, When::First);
    let inter = format!("python tests/test_internode.py\n{passed}{wait}");
    assert_eq!(questions(&inter).when.answer, When::Later);
    let guide = format!(
        "  Node 0: dispatch=276.9 GB/s, combine=245.1 GB/s, total=260.0 GB/s\n--- Inter-node DeepEP (RDMA + IBGDA) ---\n{wait}"
    );
    assert_eq!(questions(&guide).when.answer, When::First);
    let steps = format!("iteration 12/30 | loss 7.1 | elapsed time per iteration (ms): 36400\n{wait}");
    assert_eq!(questions(&steps).when.answer, When::Later);
    assert_eq!(questions(&format!("Iteration 0\n{wait}")).when.answer, When::First);
}

#[test]
fn smaller_numbers_of_tokens_that_passed() {
    let log = "[config] num_tokens=4096, hidden=7168, num_topk_groups=4, num_topk=8\n[testing] Running with BF16, without top-k (async=False, previous=False) ... passed\n[config] num_tokens=8192, hidden=7168, num_topk_groups=4, num_topk=8\nDeepEP timeout check failed: rank = 11, thread = 5\n";
    assert_eq!(questions(log).counts.answer, Counts::Tokens(vec![4096]));
}

#[test]
fn versions_decide_by_the_banner_of_the_same_file() {
    let wait = "RuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    // 309785a is of DeepEP issue 553 and lacks pull request 564; 567632d has it; NVSHMEM moved its queue pairs in 3.5.19.
    for (commit, nvshmem, mismatch) in [
        ("309785a", "3.5.19", Some(true)),
        ("309785a", "3.4.5", Some(false)),
        ("567632d", "3.6.5", Some(false)),
        ("0123456", "3.6.5", None),
    ] {
        let log = format!("deep_ep 1.2.1+{commit}\nNVSHMEM v{nvshmem}\n{wait}");
        assert_eq!(questions(&log).mismatch, mismatch, "{commit} {nvshmem}");
    }
    let case = read_texts(&[
        ("old.log", "NVSHMEM v3.4.5\n  dispatch=55.0 GB/s, combine=50.0 GB/s, total=51.0 GB/s\n"),
        ("new.log", &format!("deep_ep 1.2.1+309785a\nNVSHMEM v3.6.5\n{wait}")),
    ]);
    assert_eq!(Questions::of(&case).unwrap().mismatch, Some(true));
}

#[test]
fn kernels_name_the_node_they_wait_for() {
    let line = |channel: u32, rdma: u32, lane: u32| {
        format!(
            "DeepEP dispatch forwarder timeout (RDMA meta), channel: {channel}, RDMA: {rdma}, nvl: 7, src RDMA lane: {lane}, dst NVL: 0, meta: 0, 0, 0, 0\n"
        )
    };
    let of = |text: &str| silent(&read_texts(&[("run.log", text)])).map(|(silent, _)| silent);
    // Nodes 0, 1 and 3 wait for node 2; what a node waits for from itself never left it.
    let agreed = [line(4, 0, 2), line(1, 1, 2), line(9, 3, 2), line(2, 3, 3)].concat();
    assert_eq!(of(&agreed), Some(Silent::Node(2)));
    let several = [line(2, 1, 3), line(8, 1, 0)].concat();
    assert_eq!(of(&several), Some(Silent::Several(vec![0, 3])));
    // Newer versions print no meta.
    let newer = "DeepEP dispatch forwarder timeout (RDMA meta), channel: 1, RDMA: 0, nvl: 7, src RDMA lane: 1, dst NVL: 2\n";
    assert_eq!(of(newer), Some(Silent::Node(1)));
    // A receiver over NVLink waits for its own node's forwarder.
    let nvl = "DeepEP dispatch NVL receiver timeout, channel: 3, RDMA: 0, nvl: 6, src RDMA: 1, src nvl: 2, start: 0, end: 0\n";
    assert_eq!(of(nvl), None);
    let low = "DeepEP timeout for combine receive, rank 3, local_expert_idx 2, src_rank 17\nWarning: DeepEP timeout for dispatch receive, rank 5, local_expert_idx 0, src_rank 17\n";
    assert_eq!(of(low), Some(Silent::Rank(17)));
}

fn with_preflight(text: &str, cause: &str) -> Case {
    let mut case = read_texts(&[("run.log", text)]);
    case.facts = Some(Box::default());
    let mut finding = Finding::new("P000", "a check");
    finding.status = Status::Fail;
    finding.cause = Some(cause.to_owned());
    case.preflight = vec![finding];
    case
}

#[test]
fn facts_of_a_node_decide_like_lines() {
    let wait = "NVSHMEM v3.4.5\nRuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    for cause in ["peermem-missing", "driver-key-missing"] {
        let diagnosis = conclude(&with_preflight(wait, cause));
        assert_eq!(diagnosis.outcome, Outcome::CauseFound, "{cause}");
        assert_eq!(diagnosis.findings[0].cause, cause);
    }
    // Of something else they decide nothing.
    assert_eq!(conclude(&with_preflight(wait, "cpu-governor")).outcome, Outcome::NotDeterminable);
    // Nor inside a node.
    let inside = "RuntimeError: DeepEP error: CPU recv timeout\n";
    assert_eq!(conclude(&with_preflight(inside, "peermem-missing")).outcome, Outcome::NotDeterminable);
}

#[test]
fn figures_that_judge_reads_are_causes() {
    let mut case = read_texts(&[("run.log", "DeepEP Benchmark: 2 nodes, 16 GPUs\n")]);
    case.judged = vec![(
        "aggressive-ptx-off",
        "dispatch inside a node at half".to_owned(),
        expertrail_cluster::diagnose::event::Place { file: 0, line: 1 },
    )];
    let diagnosis = conclude(&case);
    assert_eq!(diagnosis.findings[0].cause, "aggressive-ptx-off");
    assert_eq!(diagnosis.findings[0].because, "dispatch inside a node at half");
}

#[test]
fn facts_give_way_to_steps_that_went_well_and_are_quoted_where_they_decide() {
    let steps: Vec<String> =
        (1..40).map(|step| format!("[rank3]: iteration {step}/900 loss 2.5\n")).collect();
    let steps = steps.concat();
    let late = format!("{steps}[rank3]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n");
    for cause in ["peermem-missing", "driver-key-missing"] {
        let diagnosis = conclude(&with_preflight(&late, cause));
        assert_eq!(diagnosis.outcome, Outcome::NotDeterminable, "{cause}");
    }
    let mut case = with_preflight("RuntimeError: DeepEP error: timeout (dispatch CPU)\n", "peermem-missing");
    case.preflight[0].observed = "not loaded".to_owned();
    case.preflight[0].evidence = vec![Evidence { source: "/proc/modules".to_owned(), ..Evidence::default() }];
    let because = conclude(&case).findings[0].because.clone();
    assert!(because.contains("/proc/modules") && because.contains("not loaded"), "{because}");
}

#[test]
fn a_banner_is_no_dispatch_and_two_frames_contradict_each_other() {
    let log = "NVSHMEM v3.6.5\n[rank3]:   File \"/opt/ep/deep_ep/buffer.py\", line 390, in intranode_dispatch\n\
               [rank3]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    let found = questions(log);
    assert_eq!(found.when.answer, When::Start);
    assert!(found.frames_differ);
}

#[test]
fn a_version_that_was_given_and_another_in_the_log_are_said_to_contradict() {
    let stack = Question::parse("nvshmem=3.4.5,564=no").unwrap();
    let input = vec![Input::Text {
        name: "run.log".to_owned(),
        bytes: b"NVSHMEM v3.6.5\n[rank1]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n".to_vec(),
    }];
    let diagnosis = conclude(&read(input, Given { stack: Some(stack), facts: None }).unwrap());
    assert_eq!(diagnosis.outcome, Outcome::NotDeterminable);
    let told =
        |note: &String| note.contains("3.4.5") && note.contains("3.6.5") && note.contains("contradict");
    assert!(diagnosis.notes.iter().any(told), "{:?}", diagnosis.notes);
}

#[test]
fn remedies_are_those_of_pods_where_pods_wrote_the_log() {
    let fault = "cudaHostRegister with IoMemory failed with error=800\nWARN: GPU cannot map UAR of device mlx5_1. Skipping...\n\
                 init failed for transport: IBGDA\nRuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    let managers = |text: &str| -> BTreeSet<Option<Manager>> {
        let diagnosis = conclude(&read_texts(&[("run.log", text)]));
        diagnosis.findings[0].remedies.iter().map(|remedy| remedy.manager).collect()
    };
    let pods: Vec<String> = fault.lines().map(|line| format!("[pod/moe-0/main] {line}\n")).collect();
    let pods = pods.concat();
    let variable = format!("KUBERNETES_SERVICE_HOST=198.51.100.1\n{fault}");
    for text in [pods.as_str(), variable.as_str()] {
        let found = managers(text);
        assert!(!found.contains(&Some(Manager::Machine)), "{found:?}");
        assert!(found.contains(&Some(Manager::Operator)), "{found:?}");
    }
    assert!(managers(fault).contains(&Some(Manager::Machine)));
}
