//! Ranks that are killed or stopped, launchers that are: who says what, how soon, and that nothing is left.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{LONG, bench};

/// DESIGN section 6: a death is known to every survivor within this time.
const DETECTION: Duration = Duration::from_secs(2);

/// For starting, scheduling and reading on a busy machine of two cores.
const MARGIN: Duration = Duration::from_secs(1);

/// A run that would go on for hours, with 4 ranks in their iterations.
struct LongRun {
    launcher: Child,
    /// Process ids, by rank.
    ranks: Vec<i32>,
    /// Standard error: when a line came, and the line.
    lines: Receiver<(Instant, String)>,
    named: BTreeSet<String>,
}

/// How it ended.
struct Ended {
    code: Option<i32>,
    after: Duration,
    lines: Vec<(Duration, String)>,
    out: String,
}

impl LongRun {
    /// Starts one and waits until all ranks are in their iterations.
    fn start(more: &[&str]) -> Self {
        let mut run = Self::spawn(more);
        run.wait_for_iterations();
        run.ranks = run.children();
        assert_eq!(run.ranks.len(), 4, "four ranks run");
        run.check_nothing_is_named();
        run
    }

    /// Starts one and waits until its ranks are there, whatever they do.
    fn setting_up() -> Self {
        let (mut run, started) = (Self::spawn(&[]), Instant::now());
        while run.ranks.len() < 4 {
            assert!(started.elapsed() < LONG, "four ranks start");
            run.ranks = run.children();
        }
        run
    }

    fn spawn(more: &[&str]) -> Self {
        let named = named_files();
        let shape = ["--ranks", "4", "--tokens", "128", "--hidden", "512", "--iters", "1000000"];
        let mut command = bench(&shape);
        // With this set rank 0 tells of every iteration, as it does when there is a bar to move.
        command.args(more).env("EXPERTRAIL_PROGRESS", "1");
        let mut launcher =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let stderr = launcher.stderr.take().expect("a pipe");
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // A test that ended early does not listen any more; the pipe must be emptied all the same.
                let _ = tell.send((Instant::now(), line));
            }
        });
        Self { launcher, ranks: Vec::new(), lines, named }
    }

    fn wait_for_iterations(&self) {
        let started = Instant::now();
        loop {
            let left = LONG.saturating_sub(started.elapsed());
            let (_, line) = self.lines.recv_timeout(left).expect("the ranks reach their iterations");
            // Some, so that all ranks are past the first.
            if line.contains("progress 5 ") {
                return;
            }
            assert!(is_progress(&line), "{line}");
        }
    }

    /// The launcher's children by rank, as the kernel knows them.
    fn children(&self) -> Vec<i32> {
        let mut ranks: Vec<(usize, i32)> = processes()
            .filter(|&pid| parent_of(pid) == i32::try_from(self.launcher.id()).ok())
            .filter_map(|pid| Some((rank_of(pid)?, pid)))
            .collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|rank| rank.1).collect()
    }

    /// No process of the run has a file of these folders open or mapped: then none can be left behind either.
    fn check_nothing_is_named(&self) {
        for pid in &self.ranks {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a running rank");
            let mapped = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned()));
            let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a running rank");
            let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            for path in mapped.chain(open.map(|path| path.to_string_lossy().into_owned())) {
                // The program itself may have been built below /tmp.
                let own = path == env!("CARGO_BIN_EXE_expertrail");
                assert!(own || !(path.starts_with("/tmp/") || path.starts_with("/dev/shm/")), "{path}");
            }
        }
    }

    /// Sends a signal, and waits for the launcher's end.
    fn end_after(mut self, pid: i32, signal: Signal) -> Ended {
        let sent = Instant::now();
        send(pid, signal);
        while self.launcher.try_wait().expect("waiting").is_none() {
            if sent.elapsed() > LONG {
                let _ = self.launcher.kill();
                panic!("the launcher is still there after {LONG:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let after = sent.elapsed();
        let code = self.launcher.wait().expect("waiting").code();
        self.check_all_gone(sent);
        let lines = self.lines.iter().filter(|(_, line)| !is_progress(line));
        let lines = lines.map(|(at, line)| (at.saturating_duration_since(sent), line)).collect();
        let mut out = String::new();
        self.launcher.stdout.take().expect("a pipe").read_to_string(&mut out).expect("UTF-8");
        Ended { code, after, lines, out }
    }

    /// Checks that every rank ends and is reaped in time, and that no file stays.
    fn check_all_gone(&self, since: Instant) {
        let by = since + DETECTION + MARGIN;
        while self.ranks.iter().any(|pid| is_there(*pid)) {
            assert!(Instant::now() < by, "ranks are left: {:?}", self.ranks);
            std::thread::sleep(Duration::from_millis(5));
        }
        let left: Vec<_> = named_files().difference(&self.named).cloned().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for LongRun {
    fn drop(&mut self) {
        // A failed check must not leave a run of hours behind. The ranks end with their launcher.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        for pid in self.ranks.iter().copied().filter(|pid| is_there(*pid)) {
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}

impl Ended {
    /// Lines of the ranks' or the launcher's errors that have this text: who and when.
    fn said(&self, text: &str) -> Vec<(Duration, &str)> {
        let with_text = self.lines.iter().filter(|(_, line)| line.contains(text));
        with_text.map(|(at, line)| (*at, line.split(": ").next().unwrap_or_default())).collect()
    }

    fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |text, (at, line)| format!("{text}{at:?} {line}\n"))
    }
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process id"), signal).expect("sending a signal");
}

fn is_progress(line: &str) -> bool {
    line.contains("\x1eprogress ")
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// State and parent: the fields after the name, which is in parentheses and may hold anything.
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn parent_of(pid: i32) -> Option<i32> {
    stat(pid).map(|(_, parent)| parent)
}

/// Whether a process runs. One that has ended and waits to be reaped is gone: once the launcher itself is gone,
/// that is up to init.
fn is_there(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

fn rank_of(pid: i32) -> Option<usize> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|b| *b == 0).find_map(|v| v.strip_prefix(b"EXPERTRAIL_RANK="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Files that could be ours: everything in /dev/shm, and in /tmp what bears our name (others work there too,
/// and tests of other crates have folders of that kind, which they remove).
fn named_files() -> BTreeSet<String> {
    let list = |folder: &str, ours: fn(&str) -> bool| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| ours(name)).map(|name| format!("{folder}/{name}")).collect::<Vec<_>>()
    };
    let mut all = list("/dev/shm", |name| !name.contains("chromium"));
    all.extend(list("/tmp", |name| name.contains("rail") && !name.starts_with("expertrail-")));
    all.into_iter().collect()
}

fn a_killed_rank_is_named_by_all(victim: usize) {
    let run = LongRun::start(&[]);
    let pid = run.ranks[victim];
    let ended = run.end_after(pid, Signal::KILL);
    assert_eq!(ended.code, Some(1), "{}", ended.text());
    assert!(ended.after < DETECTION + MARGIN, "the launcher took {:?}\n{}", ended.after, ended.text());
    let said = ended.said(&format!("rank {victim} died"));
    for survivor in (0..4).filter(|rank| *rank != victim) {
        let mark = format!("[rank {survivor}] error");
        let at = said.iter().find(|(_, who)| *who == mark).map(|(at, _)| *at);
        let at =
            at.unwrap_or_else(|| panic!("rank {survivor} does not name rank {victim}:\n{}", ended.text()));
        assert!(at < DETECTION, "rank {survivor} took {at:?}");
    }
    let last = &ended.lines.last().expect("the launcher's word").1;
    assert_eq!(*last, format!("error: rank {victim} was killed by signal 9 (SIGKILL)"));
    assert_eq!(ended.out, "");
}

#[test]
fn a_killed_rank_ends_the_run() {
    a_killed_rank_is_named_by_all(2);
}

#[test]
fn a_killed_rank_0_ends_the_run() {
    a_killed_rank_is_named_by_all(0);
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline() {
    let run = LongRun::start(&["--deadline", "1"]);
    let pid = run.ranks[3];
    let ended = run.end_after(pid, Signal::STOP);
    assert_eq!(ended.code, Some(124), "{}", ended.text());
    // A second until the deadline, 5 of grace after the first failure, and 3 before a rank that does not react to
    // SIGTERM is killed.
    let most = Duration::from_secs(1 + 5 + 3) + DETECTION;
    assert!(ended.after < most, "{:?}\n{}", ended.after, ended.text());
    let said = ended.said("rank 3 did not arrive before rank ");
    for survivor in 0..3 {
        let mark = format!("[rank {survivor}] error");
        let at = said.iter().find(|(_, who)| *who == mark).map(|(at, _)| *at);
        let at = at.unwrap_or_else(|| panic!("rank {survivor} does not name rank 3:\n{}", ended.text()));
        assert!(at >= Duration::from_millis(900) && at < DETECTION + MARGIN, "rank {survivor} took {at:?}");
    }
}

#[test]
fn a_rank_killed_while_setting_up_ends_the_run() {
    let run = LongRun::setting_up();
    let pid = run.ranks[1];
    let ended = run.end_after(pid, Signal::KILL);
    assert_eq!(ended.code, Some(1), "{}", ended.text());
    assert!(ended.after < DETECTION + MARGIN, "{:?}\n{}", ended.after, ended.text());
    let last = &ended.lines.last().expect("the launcher's word").1;
    assert_eq!(*last, "error: rank 1 was killed by signal 9 (SIGKILL)", "{}", ended.text());
}

fn an_interrupted_run_ends(run: LongRun, signal: Signal) {
    let launcher = i32::try_from(run.launcher.id()).expect("a process id");
    let ended = run.end_after(launcher, signal);
    assert_eq!(ended.code, Some(130), "{}", ended.text());
    assert!(ended.after < DETECTION, "{:?}\n{}", ended.after, ended.text());
    assert_eq!(ended.out, "", "an interrupted run reports nothing");
}

#[test]
fn an_interrupt_ends_the_run() {
    an_interrupted_run_ends(LongRun::start(&[]), Signal::INT);
}

#[test]
fn a_request_to_end_ends_the_run_while_setting_up() {
    an_interrupted_run_ends(LongRun::setting_up(), Signal::TERM);
}

#[test]
fn a_killed_launcher_takes_its_ranks_along() {
    let run = LongRun::start(&[]);
    let launcher = i32::try_from(run.launcher.id()).expect("a process id");
    let ended = run.end_after(launcher, Signal::KILL);
    assert_eq!(ended.code, None);
    assert_eq!(ended.out, "");
}
