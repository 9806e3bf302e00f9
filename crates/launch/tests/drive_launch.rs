//! A launch from its beginning to its end, on a system in memory.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "drive_launch/fake.rs"]
mod fake;
#[path = "drive_launch/slurm.rs"]
mod slurm;

use std::time::Duration;

use expertrail_launch::bundle::outcome::Outcome;
use expertrail_launch::drive::launch::{self, Launched, Plan};
use expertrail_launch::drive::{DriveError, Ending};
use expertrail_launch::run::Target;
use fake::{Fake, Keys, Phase, Silent, rendered, rendered_for, rendered_with};

fn go(fake: &mut Fake, keys: &Keys, folder: &std::path::Path) -> Result<Launched, DriveError> {
    let run = launch::read(folder).unwrap();
    let plan = Plan { run: &run, folder, bundle: None, timeout: Duration::from_mins(1), keep: false };
    launch::run(fake, &plan, &mut Silent::default(), keys)
}

fn written(launched: &Launched) -> Outcome {
    let path = launched.bundle.as_ref().unwrap().join("outcome.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The exit codes of DESIGN section 6, for each way that a run ends. Engine `command`: its exit codes are all there is to judge.
#[test]
fn every_ending_has_its_exit_code_and_everything_is_collected_and_removed() {
    let failed = |code| Ending::Failed { reason: "pod x-1: rank 9 ended with exit code 7".to_owned(), code };
    for (ending, code, kind) in [
        (Ending::Succeeded, 0, "succeeded"),
        (failed(Some(7)), 1, "failed"),
        (failed(None), 1, "failed"),
        (Ending::NeverStarted { reason: "no node has 8 GPUs".to_owned() }, 3, "never-started"),
        (Ending::Deadline { state: "running".to_owned() }, 124, "deadline"),
        (Ending::Interrupted, 130, "interrupted"),
    ] {
        let (_root, folder) = rendered();
        let mut fake = Fake::ending(ending.clone());
        let launched = go(&mut fake, &Keys::default(), &folder).unwrap();
        assert_eq!(launched.code, code, "{ending:?}");
        assert_eq!(fake.calls, ["ready", "start", "watch", "collect", "clean"], "{ending:?}");
        let outcome = written(&launched);
        assert_eq!(
            (outcome.exit_code, outcome.ending.kind.as_str(), outcome.cleaned),
            (code, kind, Some(true))
        );
        assert_eq!(launched.bundle.unwrap(), folder.join("results/1"));
    }
}

#[test]
fn errors_of_the_system_have_their_codes_and_stop_no_cleaning() {
    for (fail, code, kind, calls) in [
        (Phase::Start, 2, "refused", &["ready", "start", "collect", "clean"][..]),
        (Phase::Watch, 4, "lost", &["ready", "start", "watch", "collect", "clean"]),
    ] {
        let (_root, folder) = rendered();
        let mut fake = Fake { fail: Some(fail), ..Fake::ending(Ending::Succeeded) };
        let launched = go(&mut fake, &Keys::default(), &folder).unwrap();
        assert_eq!((launched.code, fake.calls.as_slice()), (code, calls));
        assert_eq!(written(&launched).ending.kind, kind);
    }
    let (_root, folder) = rendered();
    let mut fake = Fake { fail: Some(Phase::Ready), ..Fake::ending(Ending::Succeeded) };
    assert!(matches!(go(&mut fake, &Keys::default(), &folder), Err(DriveError::Access(_))));
    assert_eq!(fake.calls, ["ready"]);
    assert!(!folder.join("results").exists(), "nothing was started");
}

#[test]
fn a_collection_that_fails_is_said_and_the_run_is_removed_all_the_same() {
    let (_root, folder) = rendered();
    let mut fake = Fake { fail: Some(Phase::Collect), ..Fake::ending(Ending::Succeeded) };
    let launched = go(&mut fake, &Keys::default(), &folder).unwrap();
    assert_eq!(fake.calls.last(), Some(&"clean"));
    let outcome = written(&launched);
    assert!(outcome.missing.iter().any(|one| one.what == "logs" && one.why.contains("the disk is full")));
}

#[test]
fn a_run_that_cannot_be_removed_is_no_pass() {
    let (_root, folder) = rendered();
    let mut fake = Fake { fail: Some(Phase::Clean), ..Fake::ending(Ending::Succeeded) };
    let launched = go(&mut fake, &Keys::default(), &folder).unwrap();
    let outcome = written(&launched);
    assert_eq!((launched.code, outcome.cleaned), (4, Some(false)));
    assert!(
        outcome
            .events
            .iter()
            .any(|event| event.kind == "warning" && event.text.contains("kubectl delete job"))
    );
    // A failure keeps its own code.
    let failed = Ending::Failed { reason: "x".to_owned(), code: Some(1) };
    let mut fake = Fake { fail: Some(Phase::Clean), ..Fake::ending(failed) };
    assert_eq!(go(&mut fake, &Keys::default(), &folder).unwrap().code, 1);
}

/// Once: stop, collect, remove. Twice: only remove.
#[test]
fn ctrl_c_in_every_phase() {
    for (press, code, calls) in [
        (Phase::Ready, 130, &["ready"][..]),
        (Phase::Start, 130, &["ready", "start", "watch", "collect", "clean"]),
        (Phase::Watch, 130, &["ready", "start", "watch", "collect", "clean"]),
        // The run itself had ended well.
        (Phase::Collect, 0, &["ready", "start", "watch", "collect", "clean"]),
        (Phase::Clean, 0, &["ready", "start", "watch", "collect", "clean"]),
    ] {
        let (_root, folder) = rendered();
        let keys = Keys::default();
        let mut fake = Fake { press: vec![(press, keys.clone())], ..Fake::ending(Ending::Succeeded) };
        let launched = go(&mut fake, &keys, &folder).unwrap();
        assert_eq!((launched.code, fake.calls.as_slice()), (code, calls), "{press:?}");
        assert_eq!(launched.bundle.is_some(), press != Phase::Ready);
    }
}

/// A start that fails because somebody stopped it is an interruption; one that made nothing collects and removes nothing (what there is of
/// the run is another launch's) and leaves no results.
#[test]
fn between_ready_and_start() {
    for (beaten, pressed, code, calls) in [
        (true, true, Some(130), &["ready", "start"][..]),
        (true, false, None, &["ready", "start"]),
        (false, true, Some(130), &["ready", "start", "collect", "clean"]),
        (false, false, Some(2), &["ready", "start", "collect", "clean"]),
    ] {
        let (_root, folder) = rendered();
        let keys = Keys::default();
        let press = if pressed { vec![(Phase::Start, keys.clone())] } else { Vec::new() };
        let mut fake = Fake { fail: Some(Phase::Start), press, beaten, ..Fake::ending(Ending::Succeeded) };
        let launched = go(&mut fake, &keys, &folder);
        assert_eq!(fake.calls, calls, "beaten {beaten}, pressed {pressed}");
        match (code, launched) {
            (Some(code), Ok(launched)) => {
                assert_eq!(launched.code, code);
                let kind = if pressed { "interrupted" } else { "refused" };
                assert!(beaten || written(&launched).ending.kind == kind);
            }
            (None, Err(error)) => assert_eq!(error.exit_code(), 2),
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!(folder.join("results").exists(), !beaten);
    }
}

/// Ctrl-C comes while launch files are copied: 130, and no directory of results. What was there before stays.
#[test]
fn a_stop_before_the_start_leaves_earlier_results_alone() {
    let (_root, folder) = rendered();
    let launched = go(&mut Fake::ending(Ending::Succeeded), &Keys::default(), &folder).unwrap();
    let keys = Keys::default();
    let mut fake = Fake {
        fail: Some(Phase::Start),
        press: vec![(Phase::Start, keys.clone())],
        beaten: true,
        ..Fake::ending(Ending::Succeeded)
    };
    assert_eq!(go(&mut fake, &keys, &folder).unwrap().code, 130);
    assert!(launched.bundle.unwrap().join("outcome.json").is_file() && !folder.join("results/2").exists());
}

#[test]
fn a_second_ctrl_c_skips_what_is_left_and_still_removes_the_run() {
    for (first, second, calls) in [
        (Phase::Watch, Phase::Watch, &["ready", "start", "watch", "clean"][..]),
        (Phase::Watch, Phase::Collect, &["ready", "start", "watch", "collect", "clean"]),
    ] {
        let (_root, folder) = rendered();
        let keys = Keys::default();
        let press = vec![(first, keys.clone()), (second, keys.clone())];
        let mut fake = Fake { press, ..Fake::ending(Ending::Succeeded) };
        let launched = go(&mut fake, &keys, &folder).unwrap();
        assert_eq!((launched.code, fake.calls.as_slice()), (130, calls));
        let outcome = written(&launched);
        assert!(outcome.missing.iter().any(|one| one.why.contains("second Ctrl-C")), "{:?}", outcome.missing);
        assert!(!outcome.files.iter().any(|file| file.path == "logs/b.log"), "taken after the second");
    }
}

/// The system says success, and a rank's own record says otherwise.
#[test]
fn a_rank_that_failed_is_no_success_whatever_the_system_says() {
    let (_root, folder) = rendered();
    let record = |rank: u32, code: i32, seconds: f64, stopped: bool| {
        let text = format!(
            r#"{{"schema":"expertrail.exit/1","rank":{rank},"node":1,"host":"gpu-2","code":{code},"seconds":{seconds},"stopped":{stopped}}}"#
        );
        (format!("exit/rank-{rank}.json"), text.into_bytes())
    };
    let files = vec![
        record(0, 0, 30.0, false),
        record(3, 143, 9.0, true),
        record(9, 7, 20.5, false),
        record(8, 1, 21.0, false),
    ];
    let mut fake = Fake { files, ..Fake::ending(Ending::Succeeded) };
    let launched = go(&mut fake, &Keys::default(), &folder).unwrap();
    let outcome = written(&launched);
    assert_eq!((launched.code, outcome.ending.kind.as_str(), outcome.ending.code), (1, "failed", Some(7)));
    // Rank 3 was earlier, and was stopped by its worker.
    assert!(
        outcome.ending.reason.starts_with("rank 9 on gpu-2 ended with exit code 7 after 20.5 s"),
        "{}",
        outcome.ending.reason
    );
}

/// Slurm kills the ranks of a step when one of them has failed: those are not the first failure, though their clocks say so.
#[test]
fn ranks_that_slurm_killed_with_their_step_are_not_the_first_failure() {
    let record = |rank: u32, end: &str, seconds: f64| {
        let text = format!(
            r#"{{"schema":"expertrail.exit/1","rank":{rank},"host":"gpu-{rank}",{end},"seconds":{seconds},"stopped":false}}"#
        );
        (format!("exit/rank-{rank}.json"), text.into_bytes())
    };
    let (term, kill) = (r#""signal_name":"SIGTERM""#, r#""signal_name":"SIGKILL""#);
    let one = r#""code":1"#;
    let no_words = "job 7 on gpu-[0-2] ended with exit code 1";
    for (target, ranks, oom, wanted) in [
        (
            Target::Slurm,
            vec![record(0, term, 9.0), record(1, one, 9.2), record(2, kill, 8.9)],
            false,
            Some("rank 1"),
        ),
        // A shell around the rank says the same in its own way.
        (
            Target::Slurm,
            vec![record(0, r#""code":143"#, 9.0), record(1, r#""code":7"#, 9.2)],
            false,
            Some("rank 1"),
        ),
        // Killed for memory, as Slurm says: the others followed.
        (Target::Slurm, vec![record(0, kill, 9.0), record(1, one, 9.5)], true, Some("rank 0")),
        // Nobody else failed: the one that was killed first is all that there is.
        (Target::Slurm, vec![record(0, kill, 9.5), record(2, kill, 9.0)], false, Some("rank 2")),
        // All were told to end from outside: no rank is to blame.
        (Target::Slurm, vec![record(0, term, 9.0), record(1, term, 9.1)], false, None),
        (Target::Mpirun, vec![record(0, kill, 9.0), record(1, one, 9.5)], false, Some("rank 0")),
    ] {
        let (_root, folder) = rendered_for(target);
        let ending = Ending::Failed { reason: no_words.to_owned(), code: Some(1) };
        let mut fake = Fake { files: ranks, ..Fake::ending(ending) };
        if oom {
            let line = b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n".to_vec();
            fake.logs.push((format!("{}-7", launch::read(&folder).unwrap().id), line));
        }
        let launched = go(&mut fake, &Keys::default(), &folder).unwrap();
        let reason = written(&launched).ending.reason;
        match wanted {
            Some(rank) => assert!(reason.starts_with(&format!("{no_words}; first: {rank} on ")), "{reason}"),
            None => assert_eq!(reason, no_words),
        }
    }
}

/// A rank that waits in vain for another ends with 124 too: the run failed, it did not run out of time.
#[test]
fn the_deadline_of_a_rank_is_not_that_of_the_run() {
    let record = |code: &str, stopped: bool| {
        let text = format!(
            r#"{{"schema":"expertrail.exit/1","rank":1,"host":"h","seconds":60.2,"stopped":{stopped},{code}}}"#
        );
        vec![("exit/rank-1.json".to_owned(), text.into_bytes())]
    };
    for (files, code, kind) in [
        (record(r#""code":124"#, false), 1, "failed"),
        (record(r#""signal_name":"SIGTERM""#, true), 124, "deadline"),
        (Vec::new(), 124, "deadline"),
    ] {
        let (_root, folder) = rendered();
        let ending = Ending::Deadline { state: "exit code 124".to_owned() };
        let launched = go(&mut Fake { files, ..Fake::ending(ending) }, &Keys::default(), &folder).unwrap();
        assert_eq!((launched.code, written(&launched).ending.kind.as_str()), (code, kind));
    }
}

/// A program called mpirun that prints something and ends with 0 has run no rank: the worker's records are missing.
#[test]
fn a_success_without_a_record_of_any_rank_is_no_pass() {
    let (_root, folder) = rendered();
    let mut fake = Fake { files: Vec::new(), ..Fake::ending(Ending::Succeeded) };
    let launched = go(&mut fake, &Keys::default(), &folder).unwrap();
    let outcome = written(&launched);
    assert_eq!((launched.code, outcome.ending.kind.as_str()), (3, "never-started"));
    assert!(outcome.ending.reason.contains("no rank left a record"), "{}", outcome.ending.reason);
    // Where not everything was collected, its absence shows nothing.
    let (_root, folder) = rendered();
    let mut fake = Fake { files: Vec::new(), fail: Some(Phase::Collect), ..Fake::ending(Ending::Succeeded) };
    let launched = go(&mut fake, &Keys::default(), &folder).unwrap();
    assert_eq!(written(&launched).ending.kind, "succeeded");
}

/// A benchmark without its result was not measured: 3, and the file is named.
#[test]
fn a_success_without_its_result_is_no_pass() {
    let (_root, folder) = rendered_with("name = \"a\"\nnodes = 1\ngpus_per_node = 2\n");
    let launched = go(&mut Fake::ending(Ending::Succeeded), &Keys::default(), &folder).unwrap();
    assert_eq!(launched.code, 3);
    let outcome = written(&launched);
    assert!(
        outcome.missing.iter().any(|one| one.what.contains("result-intranode.json")),
        "{:?}",
        outcome.missing
    );
    let nodes: Vec<bool> = outcome.per_node.iter().map(|node| node.facts).collect();
    assert_eq!(nodes, [false]);
}

/// Ended well and below what its figures must be, or never started: the logs that show nothing are no good news.
#[test]
fn logs_that_show_nothing_are_no_good_news_of_a_run_that_failed() {
    let (_root, folder) = rendered();
    let failed = Ending::Failed { reason: "x".to_owned(), code: Some(1) };
    let launched = go(&mut Fake::ending(failed), &Keys::default(), &folder).unwrap();
    let text = std::fs::read_to_string(launched.bundle.unwrap().join("diagnosis.txt")).unwrap();
    assert!(!text.contains("NOTHING WRONG"), "{text}");
}

#[test]
fn results_count_up_and_a_named_directory_is_never_overwritten() {
    let (_root, folder) = rendered();
    for number in 1..=3 {
        let launched = go(&mut Fake::ending(Ending::Succeeded), &Keys::default(), &folder).unwrap();
        assert_eq!(launched.bundle.unwrap(), folder.join(format!("results/{number}")));
    }
    let run = launch::read(&folder).unwrap();
    let taken = folder.join("results/2");
    let plan = Plan {
        run: &run,
        folder: &folder,
        bundle: Some(&taken),
        timeout: Duration::from_secs(1),
        keep: true,
    };
    let mut fake = Fake::ending(Ending::Succeeded);
    let error = launch::run(&mut fake, &plan, &mut Silent::default(), &Keys::default()).unwrap_err();
    assert!(matches!(&error, DriveError::Refused(text) if text.contains("never overwritten")), "{error}");
    assert_eq!(fake.calls, ["ready"]);
    // Kept: nothing is removed.
    let new = folder.join("mine");
    let plan = Plan { bundle: Some(&new), ..plan };
    let launched = launch::run(&mut fake, &plan, &mut Silent::default(), &Keys::default()).unwrap();
    assert_eq!(written(&launched).cleaned, None);
    assert!(!fake.calls.contains(&"clean"));
}

#[test]
fn another_run_json_is_refused_with_what_to_do() {
    let (_root, folder) = rendered();
    let path = folder.join("run.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (text, word) in [
        ("{".to_owned(), "no JSON"),
        ("{}".to_owned(), "no schema"),
        (text.replace("expertrail.run/1", "expertrail.run/9"), "expertrail.run/9"),
        (text.replace("\"nodes\": 2", "\"nodes\": \"two\""), "no resolved run"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = launch::read(&folder).unwrap_err();
        assert!(error.to_string().contains(word) && error.exit_code() == 2, "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(launch::read(&folder).unwrap_err().to_string().contains("expertrail render"));
}
