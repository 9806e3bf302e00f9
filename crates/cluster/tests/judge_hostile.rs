//! `judge` against edited logs: small changes of the composed logs in `judge/` that no honest run prints, each with the verdict that it
//! must get and the finding that must say why. What is expected is arithmetic, written beside the edit.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

use expertrail_cluster::judge::{self, Accept, Options, Outcome, Report, Run};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/judge")
}

fn text(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap()
}

fn judged(text: &str) -> Report {
    judge::judge(&judge::read("log", text.as_bytes()), &Options::default())
}

/// The base must be no failure before the edit, so that the edit is what is found.
#[track_caller]
fn edited(base: &str, edit: impl Fn(&str) -> String) -> Report {
    let before = text(base);
    let after = edit(&before);
    assert_ne!(before, after, "{base}: the edit changes nothing");
    judged(&after)
}

#[track_caller]
fn expect(report: &Report, (status, id): (Outcome, &str), what: &str) {
    assert_eq!(report.verdict.status, status, "{what}: {}", report.text());
    let there = report.findings.iter().any(|finding| {
        finding.id == id && !matches!(finding.status, expertrail_cluster::finding::Status::Pass)
    });
    assert!(there, "{what}: no {id} in {}", report.text());
}

const GUIDE: &str = "guide/b200-whole.log";
const INTER: &str = "v1/internode-h800.log";

const LOW: &str = "v1/ll-h800-16.log";
const V2: &str = "v2/h100-8x2.log";
const NCCL: &str = "nccl/alltoall-h100-32.log";

/// Base, text, its replacement (all of them), verdict, finding.
type Edit = (&'static str, &'static str, &'static str, Outcome, &'static str);

fn table(edits: &[Edit]) {
    for (base, from, to, status, id) in edits {
        let report = edited(base, |text| text.replace(from, to));
        expect(&report, (*status, id), &format!("{base}: {from} -> {to}"));
    }
}

#[test]
fn the_bases_pass() {
    for base in [GUIDE, INTER, LOW, V2, NCCL] {
        let report = judged(&text(base));
        assert_eq!(report.verdict.status, Outcome::Pass, "{base}: {}", report.text());
    }
}

/// What is no number, negative, or in another unit is no figure: its part has not run.
#[test]
fn figures_that_are_none() {
    for value in ["nan GB/s", "inf GB/s", "-inf GB/s", "NaN GB/s", "9e999 GB/s", "-273.2 GB/s"] {
        let report = edited(GUIDE, |text| text.replace("dispatch=273.2 GB/s", &format!("dispatch={value}")));
        expect(&report, (Outcome::NotRun, "J003"), value);
    }
    for value in ["273.2 MB/s", "273.2 Gb/s", "273.2 GiB/s", "273.2", "273,2 GB/s", "273.2 GB/sec", "GB/s"] {
        let report = edited(GUIDE, |text| text.replace("dispatch=273.2 GB/s", &format!("dispatch={value}")));
        expect(&report, (Outcome::NotRun, "J003"), value);
    }
    table(&[
        (INTER, "45.10 GB/s (RDMA)", "nan GB/s (RDMA)", Outcome::NotRun, "J003"),
        (INTER, "45.10 GB/s (RDMA)", "45.10 Gb/s (RDMA)", Outcome::NotRun, "J003"),
        (LOW, "62.69 GB/s", "nan GB/s", Outcome::NotRun, "J003"),
        (LOW, "62.69 GB/s", "62.69 Gb/s", Outcome::NotRun, "J003"),
        (V2, "89 GB/s (SO)", "nan GB/s (SO)", Outcome::NotRun, "J003"),
        (NCCL, " 53.10 ", " nan ", Outcome::NotRun, "J003"),
        (GUIDE, "  Node 1: dispatch", "  Xode 1: dispatch", Outcome::NotRun, "J003"),
    ]);
    // A number that the end of the file cuts.
    for end in ["total=5", "total=51.2", "combine=50.2 G", "dispatch=55.4 GB/s, combine=5"] {
        let whole = text(GUIDE);
        let at = whole.find(end).unwrap() + end.len();
        expect(&judged(&whole[..at]), (Outcome::NotRun, "J003"), end);
    }
}

#[test]
fn parts_and_ranks_that_are_missing() {
    let without = |base: &str, lost: &dyn Fn(&str) -> bool| {
        edited(base, |text| text.split_inclusive('\n').filter(|line| !lost(line)).collect())
    };
    let rank_1 = |line: &str| line.starts_with("[rank1]");
    for part in ["Best combine", "Best dispatch (BF16)", "Best dispatch (FP8)"] {
        let report = without(INTER, &|line| rank_1(line) && line.contains(part));
        expect(&report, (Outcome::NotRun, "J004"), part);
    }
    // Eight of sixteen ranks are no EP8.
    let report = without(LOW, &|line| (8..16).any(|rank| line.starts_with(&format!("[rank {rank}]"))));
    expect(&report, (Outcome::NotRun, "J004"), "half of the ranks");
    // The rows of nccl-tests are of 32 ranks: 1048576 B / (8192 x 4 B).
    let report = without(NCCL, &|line| line.contains("Rank 31 "));
    expect(&report, (Outcome::NotRun, "J004"), "one rank of the header");
    let report = without(NCCL, &|line| line.contains("192-0-2-13") || line.contains("192-0-2-14"));
    expect(&report, (Outcome::NotRun, "J004"), "half of the header");
    table(&[
        (GUIDE, "2 nodes, 16 GPUs", "2 nodes, 24 GPUs", Outcome::NotRun, "J004"),
        (NCCL, "starting: alltoall_perf", "starting: all_gather_perf", Outcome::Inconclusive, "J001"),
    ]);
}

/// The median is fine in all of these. LL: 629.5 of a ceiling of 100, 6.295 is a tenth; V2: 890 of 100, 9 of 90.
#[test]
fn one_rank() {
    table(&[
        (
            LOW,
            "[rank 3] Dispatch bandwidth: 62.95 GB/s, avg_t=120.51",
            "[rank 3] Dispatch bandwidth: 629.5 GB/s, avg_t=12.051",
            Outcome::Fail,
            "J002",
        ),
        (
            LOW,
            "[rank 3] Dispatch bandwidth: 62.95 GB/s, avg_t=120.51",
            "[rank 3] Dispatch bandwidth: 6.295 GB/s, avg_t=1205.1",
            Outcome::Fail,
            "J008",
        ),
        (
            V2,
            "EP:   3/16 | dispatch: 89 GB/s (SO), 298 GB/s (SU), 1111.111 us",
            "EP:   3/16 | dispatch: 890 GB/s (SO), 2980 GB/s (SU), 111.111 us",
            Outcome::Fail,
            "J002",
        ),
        (
            V2,
            "EP:   3/16 | dispatch: 89 GB/s (SO), 298 GB/s (SU), 1111.111 us",
            "EP:   3/16 | dispatch: 9 GB/s (SO), 30 GB/s (SU), 11111.11 us",
            Outcome::Fail,
            "J008",
        ),
    ]);
    // Seven of sixteen.
    let report = edited(LOW, |text| {
        let mut text = text.to_owned();
        for rank in 0..7 {
            let head = format!("[rank {rank}] Dispatch bandwidth: ");
            let at = text.find(&head).unwrap() + head.len();
            text.replace_range(at..at + 5, "2.700");
        }
        text
    });
    expect(&report, (Outcome::Fail, "J008"), "seven slow ranks");
}

/// 100.27 MB a call: in 3.61 ms (180.5 ms by 50) they are 27.8 GB/s, not 55.4.
#[test]
fn figures_against_their_own_times() {
    table(&[
        (GUIDE, "dispatch=90.5ms", "dispatch=180.5ms", Outcome::Fail, "J024"),
        (INTER, "47 + 1151 us", "47 + 115100 us", Outcome::Fail, "J024"),
        (INTER, "147.20 GB/s (NVL)", "14.720 GB/s (NVL)", Outcome::Fail, "J024"),
        (LOW, "Dispatch bandwidth: 62.69", "Dispatch bandwidth: 98.00", Outcome::Fail, "J024"),
        (
            V2,
            "EP:   3/16 | dispatch: 89 GB/s (SO), 298 GB/s (SU), 1111.111 us",
            "EP:   3/16 | dispatch: 89 GB/s (SO), 298 GB/s (SU), 11111.11 us",
            Outcome::Fail,
            "J024",
        ),
        (
            V2,
            "EP:   3/16 | dispatch: 89 GB/s (SO), 298 GB/s (SU)",
            "EP:   3/16 | dispatch: 89 GB/s (SO), 30 GB/s (SU)",
            Outcome::Fail,
            "J024",
        ),
        (NCCL, "54.81   53.10", "54.81   63.10", Outcome::Fail, "J024"),
        (NCCL, " 4897.37 ", " 9794.74 ", Outcome::Fail, "J024"),
    ]);
}

/// The B200's references end at 304.6 inside and 61.7 between nodes; 1.5 times that is 456.9 and 92.6.
#[test]
fn figures_far_above_their_reference() {
    let no_times = |text: &str| text.replace("  layout=5.5ms, dispatch=90.5ms, combine=99.9ms\n", "");
    let fast = edited(GUIDE, |text| {
        no_times(text).replace(
            "dispatch=55.4 GB/s, combine=50.2 GB/s, total=51.2",
            "dispatch=99.0 GB/s, combine=98.0 GB/s, total=97.0",
        )
    });
    expect(&fast, (Outcome::Warn, "J002"), "between nodes");
    let fast = edited(GUIDE, |text| {
        text.replace(
            "dispatch=273.2 GB/s, combine=241.8 GB/s, total=256.5",
            "dispatch=890.0 GB/s, combine=880.0 GB/s, total=884.9",
        )
        .replace(
            "dispatch=274.9 GB/s, combine=244.0 GB/s, total=258.5",
            "dispatch=890.0 GB/s, combine=880.0 GB/s, total=884.9",
        )
    });
    expect(&fast, (Outcome::Warn, "J002"), "inside nodes");
    // The node that is as its reference is not the odd one.
    let odd = edited(GUIDE, |text| text.replace("dispatch=273.2", "dispatch=945.0"));
    assert!(odd.findings.iter().all(|finding| finding.id != "J008"), "{}", odd.text());
    // 99 and 50.2 have a mean of 66.6.
    let total = edited(GUIDE, |text| no_times(text).replace("dispatch=55.4", "dispatch=99.0"));
    expect(&total, (Outcome::Warn, "J015"), "total below its parts");
}

/// After the figures: the run did not end as it should. Before all of them: a warning.
#[test]
fn failures_in_the_log() {
    for line in [
        "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
        "srun: error: node-1: task 9: Killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
        "    Reason: OOMKilled",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1",
        "mpirun noticed that process rank 5 with PID 1 on node a exited on signal 9 (Killed).",
        "1 process returned a non-zero exit code",
        "/nvshmem/ibgda.cpp:4027: non-zero status: 7 init failed for transport: IBGDA",
        "WARN: device mlx5_3 cannot allocate buffer on the specified memory type. Skipping...",
        "slurmstepd: error: *** STEP 1.0 ON a CANCELLED AT 2026-11-30T10:00:00 DUE TO TIME LIMIT ***",
        "RuntimeError: DeepEP error: timeout (dispatch CPU)",
        "DeepEP dispatch NVL receiver timeout, channel: 1, RDMA: 0, nvl: 3",
        "[rank7]: Fatal Python error: Segmentation fault",
        "Signal: Bus error (7)",
    ] {
        let report = judged(&format!("{}{line}\n", text(GUIDE)));
        expect(&report, (Outcome::NotRun, "J020"), line);
        let report = judged(&format!("{line}\n{}", text(GUIDE)));
        expect(&report, (Outcome::Warn, "J020"), line);
        // A training run is not accepted with any of them.
        let runs = [training(), judge::read("node-06.log", format!("{line}\n").as_bytes())].concat();
        expect(&accepted(&runs), (Outcome::Fail, "J020"), line);
    }
    // What DeepEP's tests assert is the data.
    for base in [INTER, V2] {
        let report = judged(&format!("{}[rank5]: AssertionError: diff > 1e-5\n", text(base)));
        expect(&report, (Outcome::Fail, "J011"), base);
    }
}

#[test]
fn correctness_that_is_not_shown() {
    let without = |base: &str, lost: &[&str]| {
        edited(base, |text| {
            text.split_inclusive('\n').filter(|line| !lost.iter().all(|word| line.contains(word))).collect()
        })
    };
    expect(&without(INTER, &["[testing]"]), (Outcome::Warn, "J011"), "no tests");
    expect(&without(INTER, &["[testing]", "FP8"]), (Outcome::Warn, "J011"), "no tests of FP8");
    table(&[(NCCL, "       0  ", "     N/A  ", Outcome::Warn, "J011")]);
}

#[test]
fn what_a_log_does_not_say() {
    let strange = |from: &str, to: &str, count: usize| edited(GUIDE, |text| text.replacen(from, to, count));
    for (report, id) in [
        (strange("NVSHMEM_HCA_LIST mapping: mlx5_(local_rank+5):1 per rank\n", "", 1), "J006"),
        (strange("local_rank+5", "local_rank+None", 1), "J006"),
        (strange("NVSHMEM v3.4.5", "NVSHMEM v2.1.0", 1), "J005"),
    ] {
        assert!(
            report.findings.iter().any(|finding| finding.id == id && !finding.advisory),
            "{id}: {}",
            report.text()
        );
        assert!(report.verdict.warnings > 0, "{}", report.text());
    }
    // Two runs in one file: each has its own GPU.
    let both = judged(&format!("{}{}", text(GUIDE), text("guide/sample-h200.log")));
    let gpus: Vec<&str> = both.runs.iter().map(|run| run.gpu.as_str()).collect();
    assert_eq!(gpus, ["B200", "H200"]);
}

/// A change of a result.
type Change<'a> = &'a dyn Fn(&mut serde_json::Value);

/// Our own results: bytes by time, the data sheet, ranks beside each other, and what was verified.
#[test]
fn own_results() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/h200-x2/bench-guide-intranode.json");
    let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut document = document.clone();
        change(&mut document);
        judged(&document.to_string())
    };
    assert_eq!(with(&|_| ()).verdict.status, Outcome::Pass, "{}", with(&|_| ()).text());
    let cases: [(&str, Outcome, &str, Change<'_>); 11] = [
        ("time", Outcome::Fail, "J024", &|d| d["ops"][0]["time_us"]["p50"] = 12335.0.into()),
        ("figure", Outcome::Fail, "J024", &|d| d["ops"][0]["wire_gbps"] = 359.0.into()),
        ("negative", Outcome::NotRun, "J003", &|d| d["ops"][0]["wire_gbps"] = (-326.0).into()),
        ("iterations", Outcome::NotRun, "J003", &|d| d["ops"][0]["iterations"] = 0.into()),
        ("yardstick", Outcome::Fail, "J002", &|d| d["link_ceiling"]["copy_engine_gbps"] = 3817.0.into()),
        ("slow rank", Outcome::Fail, "J008", &|d| {
            d["ops"][0]["per_rank"][1]["time_us"]["p50"] = 5000.0.into();
        }),
        ("rows", Outcome::Inconclusive, "J011", &|d| d["verification"]["rows_checked"] = 10.into()),
        ("no rows", Outcome::Inconclusive, "J011", &|d| d["verification"]["rows_checked"] = 0.into()),
        ("received", Outcome::Inconclusive, "J011", &|d| {
            d["received"]["rows_per_rank"] = serde_json::json!([0, 0]);
        }),
        ("fallbacks", Outcome::Pass, "J023", &|d| d["backend"]["details"]["fallbacks"] = "7".into()),
        ("combine", Outcome::NotRun, "J003", &|d| {
            d["ops"].as_array_mut().unwrap().retain(|op| op["op"] != "combine");
        }),
    ];
    for (what, status, id, change) in cases {
        expect(&with(change), (status, id), what);
    }
}

/// Two nodes that each measured themselves (scope node) have no figures between them by design.
#[test]
fn own_results_of_scope_node_are_not_asked_for_figures_between_nodes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/h200-x2/bench-guide-intranode.json");
    let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let with = |combine: bool| {
        let mut document = document.clone();
        document["topology"]["nodes"] = 2.into();
        document["topology"]["ranks_per_node"] = 1.into();
        document["topology"]["scope"] = "node".into();
        if !combine {
            document["ops"].as_array_mut().unwrap().retain(|op| op["op"] != "combine");
        }
        let runs = judge::read("result.json", document.to_string().as_bytes());
        judge::judge(&runs, &Options { nodes: Some(2), ranks_per_node: Some(1), ..Options::default() })
    };
    let report = with(true);
    assert!(!report.findings.iter().any(|finding| finding.id == "J003"), "{}", report.text());
    assert_eq!(report.exit_code(), 0, "{}", report.text());
    expect(&with(false), (Outcome::NotRun, "J003"), "scope node without combine");
}

// Training.

fn training() -> Vec<Run> {
    judge::read_paths(&[folder().join("training/treatment")]).unwrap()
}

fn accepted(runs: &[Run]) -> Report {
    judge::judge(runs, &Options { accept: Some(Accept::default()), ..Options::default() })
}

/// The passing arm in a folder of its own, with one file changed.
fn arm(name: &str, edit: impl Fn(&str) -> String) -> Report {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder().join("training/treatment")).unwrap() {
        let path = entry.unwrap().path();
        fs::write(copy.path().join(path.file_name().unwrap()), fs::read(&path).unwrap()).unwrap();
    }
    let file = copy.path().join(name);
    let after = edit(&fs::read_to_string(&file).unwrap());
    fs::write(&file, after).unwrap();
    accepted(&judge::read_paths(&[copy.path().to_owned()]).unwrap())
}

#[test]
fn acceptance() {
    assert_eq!(accepted(&training()).verdict.status, Outcome::Pass, "{}", accepted(&training()).text());
    let log = |from: &str, to: &str| arm("rank-0.log", |text| text.replace(from, to));
    for (report, status, id, what) in [
        (log("loss=12.", "loss=nan "), Outcome::Fail, "J025", "losses"),
        (log("loss=12.2530", "loss=nan"), Outcome::Fail, "J025", "the last loss"),
        (log("MFU: 15.526800%", "MFU: nan%"), Outcome::Fail, "J025", "no utilisation"),
        (log("MFU: 15.526800%", "MFU: 215.526800%"), Outcome::Fail, "J025", "utilisation"),
        (log("Max iter time: 37.114000", "Max iter time: 0.000000"), Outcome::Fail, "J025", "no time"),
        // 742.27 s of 20 iterations are 37.11 each.
        (
            log("Average iteration time: 37.114", "Average iteration time: 3.7114"),
            Outcome::Fail,
            "J025",
            "average",
        ),
        (arm("summary.json", |_| String::new()), Outcome::Fail, "J018", "empty summary"),
        (arm("summary.json", |text| text.replacen('{', "", 1)), Outcome::Fail, "J018", "broken summary"),
        (
            arm("summary.json", |text| text.replace("\"world_size\": 128", "\"world_size\": 8")),
            Outcome::Fail,
            "J018",
            "ranks",
        ),
        // 128 ranks are 16 nodes of eight.
        (
            arm("launchers.txt", |text| text.replace("worker-15: torchrun exit code 0\n", "")),
            Outcome::Inconclusive,
            "J019",
            "15 launchers",
        ),
    ] {
        expect(&report, (status, id), what);
    }
    // Without the file its line in the log is not enough.
    let runs: Vec<Run> = training().into_iter().filter(|run| run.kind != judge::Kind::Summary).collect();
    expect(&accepted(&runs), (Outcome::Inconclusive, "J018"), "no summary");
}

/// Failures are looked for in the logs of all launchers, or it is not known that there is none.
#[test]
fn logs_of_all_ranks() {
    let sixteen = || Some(Accept { launchers: Some(16), ..Accept::default() });
    let judged = |runs: &[Run]| judge::judge(runs, &Options { accept: sixteen(), ..Options::default() });
    let only = |keep: &dyn Fn(&str) -> bool| {
        let runs: Vec<Run> = training().into_iter().filter(|run| keep(&run.place.file)).collect();
        judged(&runs)
    };
    let whole = only(&|_| true);
    assert_eq!(whole.verdict.status, Outcome::Pass, "{}", whole.text());
    assert!(whole.text().contains("the logs of 16 of 16 launchers"), "{}", whole.text());
    let first = only(&|name| !name.contains("node-"));
    expect(&first, (Outcome::Inconclusive, "J020"), "rank 0 alone");
    assert_eq!(first.exit_code(), 3);
    assert!(first.text().contains("logs of 1 of 16 launchers"), "{}", first.text());
    // A log without a word that is looked for counts, too.
    let lost = only(&|name| !name.contains("node-02"));
    expect(&lost, (Outcome::Inconclusive, "J020"), "one node");
    assert!(lost.text().contains("logs of 15 of 16 launchers"), "{}", lost.text());
    // One file, and its lines are of one task, or of sixteen.
    let log = text("training/treatment/rank-0.log");
    let rest: Vec<Run> = training()
        .into_iter()
        .filter(|run| run.place.file.contains("launchers") || run.kind == judge::Kind::Summary)
        .collect();
    let tagged = log.split_inclusive('\n').map(|line| format!("0: {line}")).collect::<Vec<_>>().concat();
    let with = |text: &str| judged(&[judge::read("train.log", text.as_bytes()), rest.clone()].concat());
    expect(&with(&tagged), (Outcome::Inconclusive, "J020"), "lines of task 0");
    let others: String = (1..16).map(|task| format!("{task}: started\n")).collect::<Vec<_>>().concat();
    assert_eq!(with(&format!("{tagged}{others}")).verdict.status, Outcome::Pass);
    assert_eq!(with(&log).verdict.status, Outcome::Pass, "{}", with(&log).text());
}

/// Each case of V2's test prints the same lines.
#[test]
fn cases_of_v2() {
    for base in [V2, "v2/b200-8x1.log"] {
        let whole = text(base);
        let second = whole.rfind(" > Testing with").unwrap();
        // After the first case: its figures stand, and that it is all is not shown.
        let first = judged(&whole[..second]);
        expect(&first, (Outcome::Pass, "J016"), base);
        assert!(first.text().contains("BF16 dispatch"), "{}", first.text());
        // The second began: after its heading, each of its lines but the last.
        let lines: Vec<usize> = whole[second..].match_indices('\n').map(|(at, _)| second + at + 1).collect();
        for end in &lines[..lines.len() - 1] {
            expect(&judged(&whole[..*end]), (Outcome::NotRun, "J003"), &format!("{base}: {end} bytes"));
        }
        assert_eq!(judged(&whole).verdict.status, Outcome::Pass);
    }
}

// Files.

#[test]
fn copies_are_one_file() {
    let copy = tempfile::tempdir().unwrap();
    let whole = text(INTER);
    let node: String = whole
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("[rank1]"))
        .collect::<String>()
        .replace("[rank0]:", "");
    let (first, second) = (copy.path().join("k0.log"), copy.path().join("k1.log"));
    fs::write(&first, &node).unwrap();
    fs::write(&second, &node).unwrap();
    let options = Options { nodes: Some(2), ..Options::default() };
    let again = copy.path().join("./k0.log");
    for paths in [vec![first.clone(), second], vec![first, again]] {
        let report = judge::judge(&judge::read_paths(&paths).unwrap(), &options);
        expect(&report, (Outcome::NotRun, "J004"), "a copy is no other node");
    }
}

#[cfg(unix)]
#[test]
fn a_link_to_its_own_folder() {
    let loops = tempfile::tempdir().unwrap();
    fs::write(loops.path().join("a.log"), text(GUIDE)).unwrap();
    std::os::unix::fs::symlink(".", loops.path().join("self")).unwrap();
    let report = judge::judge(&judge::read_paths(&[loops.path().to_owned()]).unwrap(), &Options::default());
    assert_eq!((report.verdict.status, report.runs.len()), (Outcome::Pass, 1), "{}", report.text());
}

/// A gzip file that is cut says its name, and is no pass.
#[test]
fn a_file_that_is_cut() {
    use std::io::Write;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(text(GUIDE).as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("cut.log.gz");
    fs::write(&file, &packed[..packed.len() - 20]).unwrap();
    let report = judge::judge(&judge::read_paths(&[file]).unwrap(), &Options::default());
    expect(&report, (Outcome::NotRun, "J022"), "cut");
    assert!(report.text().contains("cut.log.gz stopped"), "{}", report.text());
}

#[test]
fn baselines_and_options() {
    let with = |baseline: &str| {
        let options = Options { baseline: Some(judged(baseline)), ..Options::default() };
        judge::judge(&judge::read("log", text(GUIDE).as_bytes()), &options)
    };
    expect(&with("junk"), (Outcome::Inconclusive, "J010"), "a baseline without figures");
    expect(&with(&text(INTER)), (Outcome::Inconclusive, "J010"), "a baseline of something else");
    let other = with(&text("guide/sample-h200.log"));
    assert!(other.text().contains("the baseline is of H200, this run of B200"), "{}", other.text());
    let options = Options {
        gpu: Some("H200".to_owned()),
        nodes: Some(4),
        hidden: Some(7168),
        engine: Some("deepep-v2".to_owned()),
        ..Options::default()
    };
    let report = judge::judge(&judge::read("log", text(GUIDE).as_bytes()), &options);
    let said: Vec<&str> = report
        .findings
        .iter()
        .filter(|finding| finding.id == "J026" && finding.advisory)
        .filter_map(|finding| finding.subject.as_deref())
        .collect();
    assert_eq!(said, ["--engine", "--gpu", "--hidden", "--nodes"]);
    assert_eq!(report.verdict.status, Outcome::Pass, "{}", report.text());
}
