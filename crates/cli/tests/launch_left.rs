//! What a launch on hosts leaves when it is killed, hurried, or beaten to the start: real processes, a stand-in for `mpirun` and for `ssh`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Starts one process of one and is told nothing more: it ends at SIGTERM without its rank, as a launcher does that is signalled twice.
const MPIRUN: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in ppr:*) shift; break ;; esac
    shift
done
export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1
trap 'exit 1' TERM
"$@" &
wait $!
"#;

/// Options, a host, a command line for a shell. The session ends with this process.
const SSH: &str = r#"#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
shift
sh -c "$1"
"#;

fn program(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A directory of a run whose ranks write their number and sleep.
fn rendered(folder: &Path, target: &str, nodes: usize, timeout: &str) -> PathBuf {
    let mpirun = program(folder, "mpirun", MPIRUN);
    program(folder, "ssh", SSH);
    let names: Vec<String> = (0..nodes).map(|node| format!("\"stand-in-{node}\"")).collect();
    let text = format!(
        "name = \"left\"\nengine = \"command\"\ncommand = [\"sh\", \"-c\", '''echo $$ > {}/pid-$RANK; exec sleep 300''']\nnodes = {nodes}\n\
         gpus_per_node = 1\ntimeout = \"{timeout}\"\npreflight = \"off\"\n[hosts]\nnames = [{}]\nmpirun = \"{}\"\nbinary = \"{}\"\n",
        folder.display(),
        names.join(", "),
        mpirun.display(),
        env!("CARGO_BIN_EXE_expertrail"),
    );
    fs::write(folder.join("run.toml"), text).unwrap();
    let output = expertrail(folder, &["render", target, "run.toml", "-o", "run"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join("run")
}

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_expertrail"));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.args(args).current_dir(folder).stdin(Stdio::null()).env("PATH", path);
    command
}

fn expertrail(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

fn launched(folder: &Path) -> Child {
    let mut command = command(folder, &["launch", "run", "--yes"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The ranks' processes, when all have begun.
fn ranks(folder: &Path, count: usize) -> Vec<u32> {
    let until = Instant::now() + Duration::from_mins(1);
    loop {
        let pid = |rank: usize| {
            let text = fs::read_to_string(folder.join(format!("pid-{rank}"))).ok()?;
            text.strip_suffix('\n')?.parse().ok()
        };
        let pids: Vec<u32> = (0..count).filter_map(pid).collect();
        if pids.len() == count {
            return pids;
        }
        assert!(Instant::now() < until, "the ranks do not begin");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Processes among whose arguments or variables is `words`, other than this one.
fn with(words: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        if line.contains(words) || String::from_utf8_lossy(&read("environ")).contains(words) {
            found.push(format!("{}: {line}", entry.file_name().display()));
        }
    }
    found
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

/// Waits until nothing with `words` lives.
fn none(words: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    while !with(words).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(with(words), Vec::<String>::new());
}

fn outcome(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("results/1/outcome.json")).unwrap()).unwrap()
}

#[test]
fn at_the_time_limit_no_rank_outlives_its_launcher() {
    let root = tempfile::tempdir().unwrap();
    let run = rendered(root.path(), "mpirun", 1, "4s");
    let output = launched(root.path()).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(outcome(&run)["cleaned"], true);
    assert!(with(&run.display().to_string()).is_empty(), "{:?}", with(&run.display().to_string()));
}

#[test]
fn a_killed_launch_is_cleaned_up_with_its_silent_ranks() {
    for (target, nodes) in [("mpirun", 1), ("ssh", 2)] {
        let root = tempfile::tempdir().unwrap();
        let run = rendered(root.path(), target, nodes, "5m");
        let mut launch = launched(root.path());
        ranks(root.path(), nodes);
        launch.kill().unwrap();
        // Its end of the pipe closes here: words of the script go nowhere from now on.
        launch.wait_with_output().unwrap();
        let output = expertrail(root.path(), &["clean", "run", "--yes"]);
        assert_eq!(output.status.code(), Some(0), "{target}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(with(&run.display().to_string()), Vec::<String>::new(), "{target}");
        assert!(!run.join(".launched").exists());
    }
}

/// `clean --all` finds a run by its directory and by its processes; what a launch supervises is ended with --yes alone.
#[test]
fn clean_all_finds_what_runs_on_this_host() {
    let root = tempfile::tempdir().unwrap();
    rendered(root.path(), "mpirun", 1, "5m");
    let mut launch = launched(root.path());
    let rank = ranks(root.path(), 1)[0];
    // No kubectl, and other tests' runs are on this host too: only this one's lines are looked at.
    let clean = |folder: &Path| {
        let mut command = command(folder, &["clean", "--all"]);
        let output = command.env("EXPERTRAIL_KUBECTL", "/nonexistent/kubectl").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (_, said) = clean(root.path());
    assert!(said.contains("Kubernetes is not looked at") && said.contains("under way"), "{said}");
    assert!(
        said.contains(&format!("in {}", root.path().canonicalize().unwrap().join("run").display())),
        "{said}"
    );
    assert!(Path::new(&format!("/proc/{rank}")).exists());
    // From another folder by its processes.
    let other = tempfile::tempdir().unwrap();
    let (_, said) = clean(other.path());
    assert!(said.contains(&root.path().join("run").display().to_string()), "{said}");
    signal("-KILL", launch.id());
    launch.wait().unwrap();
    let (code, said) = clean(root.path());
    assert!(said.contains(": over") && said.contains("add --yes") && code == Some(2), "{said}");
    let output = expertrail(root.path(), &["clean", "run", "--yes"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn workers_notice_that_their_session_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let run = rendered(root.path(), "ssh", 2, "5m");
    let mut launch = launched(root.path());
    ranks(root.path(), 2);
    let sessions = with(&format!("{}/ssh ", root.path().display()));
    assert!(!sessions.is_empty());
    for session in sessions {
        signal("-KILL", session.split(':').next().unwrap().parse().unwrap());
    }
    assert!(!launch.wait().unwrap().success());
    none(&run.display().to_string());
}

#[test]
fn a_second_ctrl_c_still_reaches_the_hosts() {
    let root = tempfile::tempdir().unwrap();
    let run = rendered(root.path(), "ssh", 2, "5m");
    let mut launch = launched(root.path());
    ranks(root.path(), 2);
    signal("-INT", launch.id());
    std::thread::sleep(Duration::from_millis(300));
    signal("-INT", launch.id());
    assert_eq!(launch.wait().unwrap().code(), Some(130));
    none(&run.display().to_string());
    assert_eq!(outcome(&run)["cleaned"], true);
}

#[test]
fn of_three_launches_at_once_one_starts_and_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    rendered(root.path(), "mpirun", 1, "5m");
    let mut all: Vec<Child> = (0..3).map(|_| launched(root.path())).collect();
    let rank = ranks(root.path(), 1)[0];
    let until = Instant::now() + Duration::from_secs(30);
    while all.iter_mut().filter_map(|one| one.try_wait().unwrap()).count() < 2 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    let codes: Vec<_> = all.iter_mut().map(|one| one.try_wait().unwrap().map(|end| end.code())).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(Some(2))).count(), 2, "{codes:?}");
    assert!(Path::new(&format!("/proc/{rank}")).exists());
    for mut one in all {
        if one.try_wait().unwrap().is_none() {
            signal("-INT", one.id());
            assert_eq!(one.wait().unwrap().code(), Some(130));
        }
    }
    // Those that were beaten left no results.
    let results: Vec<_> =
        fs::read_dir(root.path().join("run/results")).unwrap().flatten().map(|one| one.path()).collect();
    assert!(matches!(&results[..], [one] if one.join("outcome.json").is_file()), "{results:?}");
    let output = expertrail(root.path(), &["logs", "run"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("logs/command.log <=="), "{text}");
}

#[test]
fn a_limit_beyond_all_clocks_is_no_panic() {
    let root = tempfile::tempdir().unwrap();
    let run = rendered(root.path(), "mpirun", 1, "5m");
    let text = fs::read_to_string(run.join("run.json")).unwrap();
    let changed = text.replace("\"timeout_s\": 300", &format!("\"timeout_s\": {}", u64::MAX));
    assert_ne!(text, changed);
    fs::write(run.join("run.json"), changed).unwrap();
    // A description may not say that, and a file may not either.
    assert_eq!(launched(root.path()).wait().unwrap().code(), Some(2));
}
