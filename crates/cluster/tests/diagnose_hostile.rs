//! Logs that were called healthy, or of which the wrong line was called the first: small texts, and what must be said of them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use expertrail_cluster::diagnose::{self, Diagnosis, Evidence, Input, Outcome, ReadError};

fn diagnose(files: &[(&str, &str)]) -> Diagnosis {
    let inputs = files
        .iter()
        .map(|(name, text)| Input::Text { name: (*name).to_owned(), bytes: text.as_bytes().to_vec() })
        .collect();
    diagnose::conclude(&diagnose::read(inputs, Evidence::default()).unwrap())
}

fn one(text: &str) -> Diagnosis {
    diagnose(&[("run.log", text)])
}

/// Rank and line of the first failure.
fn first(diagnosis: &Diagnosis) -> (Option<u32>, u64) {
    let first = diagnosis.first_failure.as_ref().unwrap();
    (first.rank, first.line)
}

#[test]
fn what_failed_is_not_healthy() {
    for text in [
        "step 4\nKilled\n",
        "[rank6]: CUDA error: uncorrectable ECC error encountered\n",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29400, EADDRINUSE: in use\n",
        "bash: line 3: torchrun: command not found\n",
        "[rank0]: MemoryError\n",
        "panic: runtime error: index out of range [3] with length 3\n",
        "thread 'main' panicked at src/main.rs:4:5:\n",
        "Received Signals.SIGTERM death signal, shutting down workers\n",
        "ERROR: run_ep failed with exit code 1\n",
        "make: *** [Makefile:3: run] Error 1\n",
        "exit code: 7\n",
        "FATAL: job aborted\n",
        "[ 77.1] NVRM: Xid (PCI:0000:1b:00): 31, pid=9, name=python, Ch 00000008, MMU Fault\n",
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-01T12:00:00 DUE TO PREEMPTION ***\n",
        "JobID|JobName|State|ExitCode\n7|t|PREEMPTED|0:0\n",
        "JobID|JobName|State|ExitCode\n7|t|BOOT_FAIL|0:0\n",
        "7005 train FAILED 1:0\n",
        "7005|train|FAILED|1:0|\n",
        "JobID JobName Partition Account AllocCPUS State ExitCode\n7 train gpu root 64 OUT_OF_ME+ 0:125\n",
        "NAME   READY   STATUS             RESTARTS   AGE\ne-0    0/1     CrashLoopBackOff   4          9m\n",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"e-0"},"status":{"phase":"Failed","containerStatuses":[{"name":"c","state":{"terminated":{"exitCode":2,"reason":"Error"}}}]}}"#,
        r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n4"},"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}"#,
        r#"{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod","#,
        "",
        " \n\n",
    ] {
        assert_ne!(one(text).outcome, Outcome::NothingFound, "{text}");
    }
    for text in ["7005 train COMPLETED 0:0\n", "exit code: 0\n", "NAME READY\n[rank0]: iteration 3/30\n"] {
        assert_eq!(one(text).outcome, Outcome::NothingFound, "{text}");
    }
}

#[test]
fn exceptions_behind_loggers() {
    for (text, rank) in [
        ("[rank4]: ERROR 11-29 12:00:00 [core.py:842] ValueError: bad shape\n", Some(4)),
        ("(EngineCore_DP3 pid=77) ERROR KeyError: 1\n", Some(3)),
        ("2026-11-29 12:00:00,123 ERROR worker.py:33 -- [rank5] KeyError: 3\n", Some(5)),
        ("[rank99999999999999]: KeyError: 1\n", None),
        ("[rank-1]: ValueError: x\n", None),
    ] {
        // The name of the file seems to say rank 2, and no line agrees.
        let diagnosis = diagnose(&[("r2.log", text)]);
        assert_eq!(diagnosis.findings[0].cause, "application-error", "{text}");
        let seen = diagnosis.findings[0].evidence[0].rank;
        assert!(seen == rank || rank.is_none(), "{text}: {seen:?}");
    }
    // A message of a logger is no exception.
    assert!(one("ERROR 11-29 12:00:00 [a.py:8] could not raise ValueError: x\n").findings.is_empty());
}

#[test]
fn the_first_failure_comes_first() {
    let ecc = "[rank3]: CUDA error: uncorrectable ECC error encountered\n";
    let timeout = "[rank0]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    assert_eq!(first(&one(&format!("{ecc}{timeout}"))), (Some(3), 1));
    let import = "[rank2]: ModuleNotFoundError: No module named 'deep_ep'\n";
    assert_eq!(first(&one(&format!("{import}{timeout}"))), (Some(2), 1));
    let bus = one("[rank3]: Bus error (core dumped)\n[rank0]: Fatal Python error: Segmentation fault\n");
    assert_eq!(first(&bus), (Some(3), 1));
    // Around midnight, with times of day only.
    let a = "23:59:50 [rank0]: iteration 9/100\n00:00:40 [rank0]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    let b = "23:59:55 [rank8]: KeyError: 1\n";
    assert_eq!(first(&diagnose(&[("a.log", a), ("b.log", b)])), (Some(8), 1));
    // Nothing tells which came first: the finding is not contradicted by what stands above it.
    let plain = "[rank11]: Traceback (most recent call last):\n[rank11]: KeyError: 'zz'\n";
    let both = diagnose(&[("rank-10.log", timeout), ("rank-11.log", plain)]);
    assert_eq!(both.findings.first().map(|found| found.cause.as_str()), Some("application-error"));
    assert_eq!(first(&both), (Some(11), 2));
}

#[test]
fn long_lines_and_packed_files() {
    // 3 MiB of a progress bar, and a failure, in one line.
    let mut bar = "12%|#   |\r".repeat(300_000);
    bar.push_str("an illegal memory access was encountered\n");
    assert_ne!(one(&bar).outcome, Outcome::NothingFound);
    let place = tempfile::tempdir().unwrap();
    for (name, start) in
        [("a.xz", &b"\xfd7zXZ\0\0"[..]), ("a.zst", b"\x28\xb5\x2f\xfd\x04"), ("a.bz2", b"BZh91AY")]
    {
        let path = place.path().join(name);
        std::fs::write(&path, start).unwrap();
        let error = diagnose::read(vec![Input::Path(path.clone())], Evidence::default()).unwrap_err();
        assert!(matches!(&error, ReadError::Nothing(why) if why[0].contains("unpack it first")), "{error}");
        // Beside a good log it is no good sign.
        let good = Input::Text { name: "b.log".into(), bytes: b"iteration 30/30\n".to_vec() };
        let case = diagnose::read(vec![Input::Path(path), good], Evidence::default()).unwrap();
        assert_eq!(diagnose::conclude(&case).outcome, Outcome::NotDeterminable, "{name}");
    }
}

#[test]
fn states_in_one_line_are_told_apart() {
    let oom = r#"{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod","metadata":{"name":"e-0","namespace":"ml"},"status":{"phase":"Running","containerStatuses":[{"name":"c","restartCount":3,"state":{"running":{}},"lastState":{"terminated":{"exitCode":137,"reason":"OOMKilled"}}}]}}]}"#;
    let found = one(oom).findings.remove(0);
    assert_eq!((found.cause.as_str(), found.evidence.len()), ("host-out-of-memory", 1));
    assert!(found.evidence[0].text.contains("last-terminated=OOMKilled"), "{}", found.evidence[0].text);
    // The failed pod is not hidden by the other's finding.
    let table = "NAME  READY  STATUS            RESTARTS  AGE\ne-0   0/1    ImagePullBackOff  0         9m\ne-1   0/1    Error             0         9m\n";
    let two = one(table);
    assert_eq!(two.findings[0].cause, "image-pull-failed");
    assert!(two.unexplained.iter().any(|line| line.text.contains("e-1")), "{:?}", two.unexplained);
}

#[test]
fn invisible_characters_do_not_reach_the_terminal() {
    let shown = diagnose::text(&one("[rank1]: KeyError: 'a\u{202e}b\u{2066}c\u{200b}d'\n"));
    assert!(shown.contains("'abcd'"), "{shown}");
}

#[test]
fn own_errors_that_name_no_cause_are_failures() {
    for (text, field) in [
        ("no device 3: 2 visible, numbered from 0; look at CUDA_VISIBLE_DEVICES", None),
        ("dispatch.cu does not compile for sm_90a with NVRTC 12.4 (code 6):", None),
        (
            "rank 2 was refused by rank 0 at 10.0.0.1:29400: world size 8, not 16",
            Some(("own-join-refused", "rank", "2")),
        ),
        ("the ranks do not agree on who runs where: rank 3 says 2 nodes", None),
        (
            "rank 3 (host n1) failed during barrier \"start\": out of memory",
            Some(("own-peer-failed", "rank", "3")),
        ),
        (
            "rank 5 cannot map the memory of rank 1: CUDA error 217; `nvidia-smi topo -p2p rw` shows",
            Some(("own-rank-refused", "peer", "1")),
        ),
        (
            "hidden size 100: it must be a multiple of 128 between 128 and 16384 (rows are moved in units of 16 bytes)",
            None,
        ),
        (
            "ranks 1 (host a) and 9 (host b) do not share memory: the CPU backend joins ranks of one machine",
            None,
        ),
    ] {
        let text = format!("error: {text}\n");
        let case = diagnose::read_texts(&[("run.log", &text)]);
        assert_ne!(diagnose::conclude(&case).outcome, Outcome::NothingFound, "{text}");
        assert!(case.first_failure().is_some(), "{text}");
        if let Some((signal, name, value)) = field {
            assert_eq!(case.first(signal).and_then(|event| event.field(name)), Some(value), "{text}");
        }
    }
    let differ = one(
        "error: ranks disagree about hidden size: rank 0 has 7168, rank 4 has 4096; every rank must build with the same settings\n",
    );
    assert_eq!(differ.findings[0].cause, "expertrail-calls-differ");
}

/// A success that no rank signed does not bring a rank back that cannot have gone on.
#[test]
fn unsigned_success_heals_no_dead_rank() {
    for dead in [
        "CUDA error: an illegal memory access was encountered",
        "Bus error (core dumped)",
        "Segmentation fault (core dumped)",
        "CUDA error: uncorrectable ECC error encountered",
        "KeyError: 'tokens'",
    ] {
        for good in
            ["Training finished.", "# Avg bus bandwidth    : 19.62", "[rank0]: iteration 30/30 loss 2.1"]
        {
            let diagnosis = one(&format!("[rank3]: {dead}\n{good}\n"));
            assert_ne!(diagnosis.outcome, Outcome::NothingFound, "{dead}, then {good}");
        }
    }
}

/// An illegal access that surely came first is no follower.
#[test]
fn an_illegal_access_may_be_first() {
    let diagnosis =
        one("2026-05-02 10:00:00 [rank4]: CUDA error: an illegal memory access was encountered\n\
                         2026-05-02 10:01:40 [rank0]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n");
    assert_eq!(first(&diagnosis), (Some(4), 1));
}

/// With one file for each rank the last step of every rank is known, however many files there are.
#[test]
fn the_last_step_of_each_of_many_files() {
    let texts: Vec<(String, String)> = (0..12)
        .map(|rank| {
            let last = if rank == 7 { 31 } else { 90 };
            let steps: Vec<String> =
                (1..=last).map(|step| format!("iteration {step}/2000 loss 3.0")).collect();
            (format!("rank-{rank}.log"), steps.join("\n"))
        })
        .collect();
    let files: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let diagnosis = diagnose(&files);
    let line = |rank: u32| {
        diagnosis.ranks.iter().find(|known| known.rank == rank).unwrap().progress.as_ref().unwrap().line
    };
    assert_eq!((line(0), line(7), line(11)), (90, 31, 90));
}
