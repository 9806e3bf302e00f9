//! Ranks as processes: started, watched, killed, stopped.
//!
//! This test binary is also the rank and the launcher: with `EXPERTRAIL_TEST_ROLE` set it plays that role
//! in the test `role`, and otherwise that test does nothing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use expertrail_group::spawn::{Crew, End, Failure, LaunchError, LocalLaunch, Outcome, Prefix, RankExit};
use expertrail_group::{CancelToken, Group, JoinOptions, bind_to_parent, exec_bound};
use rustix::process::{Pid, Signal, getpid, kill_process, test_kill_process};

const SECOND: Duration = Duration::from_secs(1);
const ROLE: &str = "EXPERTRAIL_TEST_ROLE";

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // Out of the line that the test harness has begun.
    println!();
    let code = match role.split_once(' ').unwrap_or((&role, "")) {
        ("survive", dead) => survive(dead.parse().unwrap()),
        ("wait", _) => wait_for_ever(),
        ("gather", _) => gather(),
        ("sleep", _) => become_sleep(),
        ("launch", what) => launch_role(what),
        other => panic!("{other:?}"),
    };
    std::io::stdout().flush().unwrap();
    std::process::exit(code);
}

/// A rank of which `dead` is killed outright within a barrier.
fn survive(dead: usize) -> i32 {
    let group = Group::from_env().unwrap();
    group.barrier("start").unwrap();
    if group.rank() == dead {
        thread::sleep(SECOND / 5);
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    let begun = Instant::now();
    let error = group.barrier("work").unwrap_err();
    println!("after {} ms: {error}", begun.elapsed().as_millis());
    i32::from(error.exit_code())
}

fn wait_for_ever() -> i32 {
    let cancel = CancelToken::on_signals().unwrap();
    let group = Group::from_env_with(&JoinOptions { cancel, ..JoinOptions::default() }).unwrap();
    println!("pid {}", std::process::id());
    if group.rank() == 0 {
        loop {
            thread::sleep(SECOND);
        }
    }
    let error = group.barrier("for ever").unwrap_err();
    println!("{error}");
    i32::from(error.exit_code())
}

fn gather() -> i32 {
    let group = Group::from_env().unwrap();
    let blobs = group.all_gather("g", format!("{}/{}", group.node(), group.local_rank()).as_bytes()).unwrap();
    if group.rank() == 0 {
        let blobs: Vec<_> = blobs.iter().map(|blob| String::from_utf8_lossy(blob)).collect();
        println!("{}", blobs.join(" "));
    }
    // A second group of the same process finds the port as the first did.
    drop(group);
    let again = Group::from_env().unwrap();
    again.barrier("again").unwrap();
    0
}

/// A program that knows nothing of groups, bound to the launcher on its way in.
fn become_sleep() -> i32 {
    println!("pid {}", std::process::id());
    panic!("{}", exec_bound("sleep".as_ref(), ["60".into()]));
}

/// A launcher in a process of its own, to be killed or interrupted.
fn launch_role(what: &str) -> i32 {
    let launch = match what {
        "sleepers" => sh(2, "echo pid $$; trap '' TERM; while :; do sleep 0.1; done").term_grace(SECOND / 2),
        "bound" => ranks(2, "sleep"),
        // The shell is the launcher's child, the rank its grandchild.
        "shells" => {
            let me = std::env::current_exe().unwrap();
            let script = format!("'{}' role --exact --nocapture --test-threads=1; true", me.display());
            sh(2, &script).env(ROLE, "wait")
        }
        // A grandchild that wants to become a program which knows nothing of the launcher.
        "become" => {
            let me = std::env::current_exe().unwrap();
            let script = format!("'{}' role --exact --nocapture --test-threads=1; true", me.display());
            sh(2, &script).env(ROLE, "sleep")
        }
        _ => ranks(3, "wait"),
    };
    let outcome = launch.run().unwrap();
    println!("end {:?}, {} ranks", outcome.end, outcome.ranks.len());
    i32::from(outcome.exit_code())
}

fn ranks(count: usize, role: &str) -> LocalLaunch {
    LocalLaunch::new(std::env::current_exe().unwrap(), count)
        .args(["role", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
}

fn sh(count: usize, script: &str) -> LocalLaunch {
    LocalLaunch::new("sh", count).args(["-c", script])
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs a launch and gives its outcome, standard output and standard error.
fn run(launch: &LocalLaunch) -> (Outcome, String, String) {
    let (out, err) = (Sink::default(), Sink::default());
    let outcome = launch.run_to(out.clone(), err.clone()).unwrap();
    let text = |sink: Sink| String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    (outcome, text(out), text(err))
}

#[test]
fn ranks_find_each_other_and_their_declared_places() {
    let (outcome, out, err) = run(&ranks(5, "gather").ranks_per_node(2).prefix(Prefix::AllBut(0)));
    assert!(outcome.is_success(), "{outcome:?}\n{out}\n{err}");
    assert_eq!(outcome.exit_code(), 0);
    assert!(out.lines().any(|line| line == "0/0 0/1 1/0 1/1 2/0"), "{out}");
}

#[test]
fn ranks_of_the_callers_own_commands_keep_their_numbers() {
    let command = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    };
    let (out, err) = (Sink::default(), Sink::default());
    let crew = Crew::new(vec![
        (9, command("echo $WORLD_SIZE; sleep 0.3; exit 4")),
        (8, command("echo $EXPERTRAIL_PARENT_PID $EXPERTRAIL_RANK")),
    ]);
    let outcome = crew.run_to(out.clone(), err).unwrap();
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    // No identity is given to them, only the launcher's process.
    assert_eq!(lines, [format!("[rank 8] {}", std::process::id()).as_str(), "[rank 9] "]);
    assert_eq!(outcome.first_failure, Some(Failure { rank: 9, exit: RankExit::Code(4) }));
    assert_eq!(outcome.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [9, 8]);
    assert!(outcome.ranks[0].after >= SECOND * 3 / 10 && outcome.ranks[0].after < SECOND * 10);
}

#[test]
fn two_launches_side_by_side() {
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (outcome, out, err) = run(&ranks(2, "gather"));
                assert!(outcome.is_success(), "{outcome:?}\n{out}\n{err}");
            });
        }
    });
}

#[test]
fn a_killed_rank_is_named_by_every_survivor_within_two_seconds() {
    for dead in [2, 0] {
        let (outcome, out, err) = run(&ranks(4, &format!("survive {dead}")));
        let exit = RankExit::Signal(9);
        assert_eq!(outcome.first_failure, Some(Failure { rank: dead, exit }), "{outcome:?}\n{out}\n{err}");
        assert_eq!(
            outcome.first_failure.unwrap().to_string(),
            format!("rank {dead} was killed by signal 9 (SIGKILL)")
        );
        assert_eq!((outcome.end, outcome.exit_code(), outcome.ranks.len()), (End::Ended, 1, 4));
        for rank in (0..4).filter(|rank| *rank != dead) {
            let result = outcome.ranks[rank];
            assert_eq!(
                (result.exit, result.stopped),
                (RankExit::Code(1), false),
                "rank {rank}: {out}\n{err}"
            );
            let start = format!("[rank {rank}] after ");
            let line =
                out.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("{out}"));
            let (millis, text) = line.split_once(" ms: ").unwrap();
            assert!(millis.parse::<u64>().unwrap() < 2000, "{line}");
            assert!(text.starts_with(&format!("rank {dead} (host ")), "{line}");
            assert!(
                text.contains("pid ") && text.contains(" died") && text.contains("barrier \"work\""),
                "{line}"
            );
        }
    }
}

#[test]
fn lines_are_marked_and_whole() {
    let script =
        "for i in 1 2 3; do echo \"out $i $EXPERTRAIL_RANK\"; echo \"err $i\" >&2; done; printf tail";
    let (outcome, out, err) = run(&sh(3, script));
    assert!(outcome.is_success());
    for rank in 0..3 {
        let mine: Vec<_> =
            out.lines().filter_map(|line| line.strip_prefix(&format!("[rank {rank}] "))).collect();
        assert_eq!(
            mine,
            [&format!("out 1 {rank}")[..], &format!("out 2 {rank}"), &format!("out 3 {rank}"), "tail"]
        );
        assert_eq!(err.lines().filter(|line| line.starts_with(&format!("[rank {rank}] err "))).count(), 3);
    }
    assert_eq!((out.lines().count(), err.lines().count()), (12, 9));
}

#[test]
fn the_chosen_rank_passes_unmarked_and_the_rest_marked() {
    let (_, out, err) = run(&sh(2, "echo o; echo e >&2").prefix(Prefix::AllBut(1)));
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[rank 0] o", "o"]);
    let mut lines: Vec<_> = err.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[rank 0] e", "[rank 1] e"]);
    let (_, out, _) = run(&sh(2, "echo o").prefix(Prefix::None));
    assert_eq!(out, "o\no\n");
}

#[test]
fn a_huge_line_arrives_in_full() {
    // Ten million bytes without a line end, while another rank speaks too.
    let script =
        "if [ $EXPERTRAIL_RANK = 0 ]; then head -c 10000000 /dev/zero | tr '\\0' x; echo; else echo hi; fi";
    let (outcome, out, _) = run(&sh(2, script).prefix(Prefix::AllBut(0)));
    assert!(outcome.is_success());
    let mut lengths: Vec<usize> = out.lines().map(str::len).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, ["[rank 1] hi".len(), 10_000_000]);
    let (_, out, _) = run(&sh(1, script));
    assert_eq!(out.bytes().filter(|byte| *byte == b'x').count(), 10_000_000);
    assert!(out.lines().all(|line| line.starts_with("[rank 0] ") && line.len() < 150_000));
}

#[test]
fn the_first_failure_ends_the_others_after_their_grace() {
    let script = "if [ $EXPERTRAIL_RANK = 1 ]; then exit 7; fi; exec sleep 60";
    let begun = Instant::now();
    let (outcome, ..) = run(&sh(3, script).grace(SECOND / 2));
    assert!(begun.elapsed() >= SECOND / 2 && begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(outcome.first_failure, Some(Failure { rank: 1, exit: RankExit::Code(7) }));
    assert_eq!((outcome.end, outcome.exit_code(), outcome.is_success()), (End::Ended, 7, false));
    assert_eq!(outcome.ranks[0].exit, RankExit::Signal(15));
    assert_eq!(outcome.ranks.iter().map(|rank| rank.stopped).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let script = "if [ $EXPERTRAIL_RANK = 1 ]; then exit 3; fi; trap '' TERM; while :; do sleep 0.1; done";
    let begun = Instant::now();
    let (outcome, ..) = run(&sh(2, script).grace(SECOND / 5).term_grace(SECOND / 2));
    assert!(begun.elapsed() < 5 * SECOND);
    assert_eq!(outcome.ranks[0].exit, RankExit::Signal(9));
}

#[test]
fn the_launchs_deadline() {
    let (outcome, ..) = run(&sh(2, "exec sleep 60").deadline(SECOND / 2));
    assert_eq!((outcome.end, outcome.exit_code(), outcome.first_failure), (End::Deadline, 124, None));
}

#[test]
fn what_a_rank_leaves_behind_goes_with_it() {
    let begun = Instant::now();
    let (outcome, out, _) = run(&sh(1, "sleep 60 & echo $!"));
    assert!(outcome.is_success());
    // The sleeper holds the pipes open; the launch does not wait for it.
    assert!(begun.elapsed() < 5 * SECOND);
    gone(out.trim().rsplit(' ').next().unwrap().parse().unwrap());
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let error = LocalLaunch::new("/no/such/program", 2).run().unwrap_err();
    assert!(matches!(error, LaunchError::Start { rank: 0, .. }), "{error}");
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    assert!(matches!(LocalLaunch::new("true", 0).run(), Err(LaunchError::Shape { .. })));
    assert!(matches!(LocalLaunch::new("true", 2).ranks_per_node(0).run(), Err(LaunchError::Shape { .. })));
}

#[test]
fn standard_input_is_empty() {
    let (outcome, out, _) = run(&sh(2, "if [ $EXPERTRAIL_RANK = 1 ]; then cat; echo done; fi"));
    assert!(outcome.is_success());
    assert_eq!(out, "[rank 1] done\n");
}

#[test]
fn binding_to_nobody_does_nothing() {
    if std::env::var_os(ROLE).is_none() {
        bind_to_parent().unwrap();
    }
}

/// Starts a launcher process and gives it with the pids its ranks print.
fn launcher(
    what: &str,
    count: usize,
) -> (std::process::Child, Vec<i32>, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["role", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("launch {what}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut pids = Vec::new();
    while pids.len() < count {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "the launcher ended early");
        if let Some((_, pid)) = line.trim().split_once("pid ") {
            pids.push(pid.parse().unwrap());
        }
    }
    (child, pids, out)
}

/// Waits until a process has ended (one that nobody reaped counts).
fn gone(pid: i32) {
    let until = Instant::now() + 5 * SECOND;
    while test_kill_process(Pid::from_raw(pid).unwrap()).is_ok() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')) {
            return;
        }
        assert!(Instant::now() < until, "process {pid} is still there");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn no_rank_outlives_a_launcher_that_is_killed_outright() {
    for (what, count) in [("ranks", 3), ("shells", 2), ("bound", 2)] {
        let (mut launcher, pids, _out) = launcher(what, count);
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        for pid in pids {
            gone(pid);
        }
    }
}

#[test]
fn a_grandchild_does_not_become_a_program_that_would_outlive_its_launcher() {
    let (mut launcher, pids, _out) = launcher("become", 2);
    // They end by themselves, while the launcher lives.
    for pid in pids {
        gone(pid);
    }
    launcher.wait().unwrap();
}

#[test]
fn an_interrupted_launcher_stops_and_reaps_its_ranks() {
    for (what, signal) in [("ranks", Signal::INT), ("ranks", Signal::TERM), ("sleepers", Signal::INT)] {
        let (mut launcher, pids, mut out) = launcher(what, if what == "ranks" { 3 } else { 2 });
        let begun = Instant::now();
        kill_process(Pid::from_child(&launcher), signal).unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(launcher.wait().unwrap().code(), Some(130), "{rest}");
        assert!(begun.elapsed() < 8 * SECOND, "{:?}", begun.elapsed());
        assert!(rest.contains("end Interrupted"), "{rest}");
        for pid in pids {
            assert!(test_kill_process(Pid::from_raw(pid).unwrap()).is_err(), "{pid} was not reaped");
        }
    }
}
