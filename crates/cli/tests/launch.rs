//! The command `launch`, with real processes: the rendered mpirun script, a stand-in for `mpirun` itself, and the worker of this binary.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod conforming;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use conforming::conforms;
use expertrail_launch::ab;
use expertrail_launch::bundle::outcome;
use serde_json::Value;

/// What comes before the program in the rendered lines is for `mpirun`; it starts one process of one.
const MPIRUN: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in ppr:*) shift; break ;; esac
    shift
done
export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1
exec "$@"
"#;

fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_expertrail"))
}

/// A folder with `mpirun` and a description whose rank runs `script`.
fn described(folder: &Path, name: &str, script: &str) -> PathBuf {
    let mpirun = folder.join("mpirun");
    fs::write(&mpirun, MPIRUN).unwrap();
    fs::set_permissions(&mpirun, fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!(
        "name = \"{name}\"\nengine = \"command\"\ncommand = [\"sh\", \"-c\", '''{script}''']\nnodes = 1\ngpus_per_node = 1\n\
         [hosts]\nnames = [\"localhost\"]\nmpirun = \"{}\"\nbinary = \"{}\"\n",
        mpirun.display(),
        binary().display()
    );
    let file = folder.join(format!("{name}.toml"));
    fs::write(&file, text).unwrap();
    file
}

fn launch(folder: &Path, args: &[&str]) -> Output {
    Command::new(binary()).arg("launch").args(args).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_run_passes_and_its_documents_are_as_their_schemas_say() {
    let root = tempfile::tempdir().unwrap();
    described(root.path(), "good", "echo rank $RANK of $WORLD_SIZE");
    let output = launch(root.path(), &["good.toml", "--target", "mpirun", "-o", "run", "--yes"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("rank 0 of 1"));
    let bundle = root.path().join("run/results/1");
    let found = json(&bundle.join("outcome.json"));
    conforms(outcome::JSON_SCHEMA, &found);
    // Profile and platform are documents of their own, and are open in this schema.
    conforms(outcome::RUN_JSON_SCHEMA, &json(&bundle.join("run.json")));
    assert_eq!(found["ending"]["kind"], "succeeded");
    assert_eq!(found["per_node"][0]["facts"], true);
    assert_eq!(found["ranks"][0]["code"], 0);
    assert!(bundle.join("report.html").is_file() && bundle.join("facts/node-0.json").is_file());
    // A second launch of the directory has results of its own.
    let output = launch(root.path(), &["run", "--yes"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(root.path().join("run/results/2/outcome.json").is_file());
}

#[test]
fn a_rank_that_fails_is_named_with_its_exit_code() {
    let root = tempfile::tempdir().unwrap();
    described(root.path(), "bad", "echo broken >&2; exit 7");
    let output = launch(root.path(), &["bad.toml", "--target", "mpirun", "-o", "run", "--yes"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let found = json(&root.path().join("run/results/1/outcome.json"));
    conforms(outcome::JSON_SCHEMA, &found);
    assert_eq!(
        (&found["ending"]["kind"], &found["ending"]["code"]),
        (&Value::from("failed"), &Value::from(7))
    );
    assert!(found["ending"]["reason"].as_str().unwrap().contains("rank 0"), "{}", found["ending"]["reason"]);
    assert!(root.path().join("run/results/1/diagnosis.json").is_file());
}

#[test]
fn nothing_starts_unasked_and_what_is_missing_is_named() {
    let root = tempfile::tempdir().unwrap();
    described(root.path(), "one", "touch started");
    let output = launch(root.path(), &["one.toml", "--target", "mpirun", "-o", "run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--yes"), "{}", text(&output.stderr));
    let output = launch(root.path(), &["run", "--dry-run"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("bash mpirun.sh")
            && shown.contains("--- mpirun.sh")
            && shown.contains("localhost slots=1"),
        "{shown}"
    );
    assert!(!root.path().join("run/results").exists() && !root.path().join("run/started").exists());
    fs::remove_file(root.path().join("mpirun")).unwrap();
    let output = launch(root.path(), &["run", "--yes"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("install Open MPI"), "{}", text(&output.stderr));
    let output = launch(root.path(), &["one.toml", "--yes"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--target is missing"), "{}", text(&output.stderr));
    for args in [&["nosuch"][..], &["nosuch", "--target", "slurm", "--yes"]] {
        let output = launch(root.path(), args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("nosuch: there is no such file or directory") && said.contains("run.toml"),
            "{said}"
        );
        assert!(!said.contains("missing"), "{said}");
    }
}

/// `--dry-run` of a description shows the same as that of its directory, and writes nothing, here or elsewhere.
#[test]
fn a_dry_run_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    described(root.path(), "one", "touch started");
    let scratch = root.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let dry = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("launch").args(args).arg("--dry-run").current_dir(root.path()).stdin(Stdio::null());
        command.env("TMPDIR", &scratch).output().unwrap()
    };
    let listed = || {
        let entries = fs::read_dir(root.path()).unwrap().chain(fs::read_dir(&scratch).unwrap());
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    };
    let before = listed();
    let output = dry(&["one.toml", "--target", "mpirun", "-o", "run"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(listed(), before);
    let meant = root.path().join("run");
    assert!(shown.contains("files would be in run") && shown.contains("--- mpirun.sh"), "{shown}");
    assert!(shown.contains(&format!("bash mpirun.sh, in {}", meant.display())), "{shown}");
    assert!(!shown.contains("expertrail-dry-run"), "{shown}");
    // A directory that a launch would not write into is refused as by the launch itself.
    let output = dry(&["one.toml", "--target", "mpirun", "-o", "."]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    described(root.path(), "two", "exit 3");
    let before = listed();
    let output =
        dry(&["--ab", "one.toml", "two.toml", "--target", "mpirun", "--variable", "command", "-o", "ab"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("files would be in ab/b"), "{}", text(&output.stdout));
    assert_eq!(listed(), before);
}

#[test]
fn ctrl_c_stops_the_ranks_and_collects() {
    let root = tempfile::tempdir().unwrap();
    described(root.path(), "long", "echo $$ > pid; echo here; exec sleep 300");
    let mut child = Command::new(binary())
        .args(["launch", "long.toml", "--target", "mpirun", "-o", "run", "--yes"])
        .current_dir(root.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let file = root.path().join("run/pid");
    let until = Instant::now() + Duration::from_mins(1);
    while !fs::read_to_string(&file).is_ok_and(|pid| pid.ends_with('\n')) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let rank: u32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert!(Path::new(&format!("/proc/{rank}")).exists());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!Path::new(&format!("/proc/{rank}")).exists(), "the rank lives on");
    let found = json(&root.path().join("run/results/1/outcome.json"));
    conforms(outcome::JSON_SCHEMA, &found);
    assert_eq!(found["ending"]["kind"], "interrupted");
    assert!(found["files"].as_array().unwrap().iter().any(|file| file["path"] == "logs/command.log"));
}

#[test]
fn an_a_b_tells_the_layer_and_refuses_a_second_difference() {
    let root = tempfile::tempdir().unwrap();
    let a = described(root.path(), "a", "echo broken >&2; exit 7");
    described(root.path(), "b", "echo fine");
    let args =
        ["--ab", "a.toml", "b.toml", "--variable", "command", "--target", "mpirun", "-o", "both", "--yes"];
    let output = launch(root.path(), &args);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let found = json(&root.path().join("both/ab.json"));
    conforms(ab::JSON_SCHEMA, &found);
    assert_eq!(found["layer"], "software");
    assert!(root.path().join("both/a/results/1/report.html").is_file());
    assert!(root.path().join("both/b/results/1/report.html").is_file());
    let more = fs::read_to_string(&a).unwrap().replace("nodes = 1\n", "nodes = 1\ntimeout = \"5m\"\n");
    fs::write(&a, more).unwrap();
    let output = launch(root.path(), &args);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("timeout: A 5m"), "{}", text(&output.stderr));
}

/// The most memory that a process had so far, in KiB.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A rank that prints so many MB as fast as it can: the launch ends in time, holds a part of it at once, keeps beginning and end of the
/// log, and says what it dropped.
fn loud(megabytes: u64, within: Duration) {
    let root = tempfile::tempdir().unwrap();
    let bytes = megabytes * 1_000_000;
    // Lines of 100 bytes, with the first and the last of their own.
    let script = format!("echo the first line; yes {} | head -c {bytes}; echo the last line", "x".repeat(99));
    let file = described(root.path(), "loud", &script);
    fs::write(&file, format!("preflight = \"off\"\n{}", fs::read_to_string(&file).unwrap())).unwrap();
    let screen = root.path().join("screen");
    let begun = Instant::now();
    let mut child = Command::new(binary())
        .args(["launch", "loud.toml", "--target", "mpirun", "-o", "run", "--yes"])
        .current_dir(root.path())
        .stdin(Stdio::null())
        .stdout(fs::File::create(&screen).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut most = 0;
    let code = loop {
        most = peak(child.id()).unwrap_or(0).max(most);
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        assert!(begun.elapsed() < within, "no end after {within:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    println!("{megabytes} MB: {:.1} s, at most {most} KiB in memory", begun.elapsed().as_secs_f64());
    assert_eq!(code, Some(0));
    // The log that is kept has 32 MiB, and is in memory some times over while secrets are taken out of it.
    assert!(most < 400 << 10, "{most} KiB");
    let bundle = root.path().join("run/results/1");
    let kept = fs::read(bundle.join("logs/command.log")).unwrap();
    assert!(kept.len() < 40 << 20, "{} bytes", kept.len());
    assert!(kept.windows(14).any(|part| part == b"the first line") && kept.ends_with(b"the last line\n"));
    let outcome = json(&bundle.join("outcome.json"));
    let said = outcome["missing"].to_string();
    assert!(said.contains("command.log") && said.contains("bytes from its middle"), "{said}");
    let shown = fs::read(&screen).unwrap();
    let end = text(&shown[shown.len().saturating_sub(4000)..]);
    assert!(end.contains("bytes from its middle"), "{end}");
}

#[test]
fn a_loud_rank_is_no_harm() {
    loud(36, Duration::from_mins(2));
}

#[test]
#[ignore = "300 MB take longer than all other tests of this file together"]
fn a_very_loud_rank_is_no_harm() {
    loud(300, Duration::from_mins(5));
}
