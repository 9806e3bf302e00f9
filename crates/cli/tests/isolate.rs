//! Drivers' libraries that hang, crash or babble, called by children of the command.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "../../cluster/tests/fake/mod.rs"]
mod fake;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use expertrail_cluster::facts::{Fact, Facts, Nvml, RdmaDevice, Reading, Scope};
use expertrail_cluster::finding::{Finding, Status};
use expertrail_cluster::{nvml, probe};

fn expertrail() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("expertrail").to_path_buf()
}

/// Reads NVML by a child that is `program`.
fn by(program: impl Into<PathBuf>, library: &Path, limit: Duration) -> Fact<Nvml> {
    let program = Some(program.into());
    nvml::read(&nvml::Options { library: Some(library.to_owned()), limit: Some(limit), program })
}

fn read(library: &Path) -> Fact<Nvml> {
    by(expertrail(), library, Duration::from_secs(20))
}

#[track_caller]
fn fails<'a>(fact: &'a Fact<Nvml>, says: &str) -> &'a str {
    let Reading::Unreadable(reason) = fact.reading() else { panic!("{fact:?}") };
    assert!(reason.contains(says), "{reason}");
    reason
}

/// A file for a library's `TRACE`, and the define.
fn trace(place: &Path) -> (PathBuf, String) {
    let file = place.join("pid");
    let define = format!("TRACE=\"{}\"", file.display());
    (file, define)
}

fn process(trace: &Path) -> u32 {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match std::fs::read_to_string(trace) {
            Ok(text) => return text.parse().unwrap(),
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => panic!("the library was not called: {error}"),
        }
    }
}

/// Waits until the process has ended: it is gone, or nobody has asked for its status yet.
fn wait_for_end(pid: u32) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state follows the name in brackets.
        if stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z')) {
            return;
        }
        assert!(Instant::now() < until, "process {pid} still runs: {stat}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_child_answers_as_a_thread_does() {
    let place = tempfile::tempdir().unwrap();
    let (file, define) = trace(place.path());
    let library = fake::library("nvml", &[&define]);
    let apart = read(&library);
    let child = process(&file);
    assert_ne!(child, std::process::id());
    let here = nvml::read(&nvml::Options { library: Some(library.clone()), ..nvml::Options::default() });
    assert_eq!(process(&file), std::process::id());
    assert!(apart.value().is_some_and(|nvml| nvml.gpus.len() == 2), "{apart:?}");
    assert_eq!(apart, here);

    // The other outcomes travel too.
    assert!(read(Path::new("/no/such/libnvidia-ml.so.1")).is_absent());
    let fact = read(&fake::library("nvml", &["INIT=18"]));
    assert_eq!(fails(&fact, ""), "nvmlInit_v2 failed: Driver/library version mismatch (18)");
    let lost = read(&fake::library("nvml", &["LOST=1"]));
    assert_eq!(lost.value().unwrap().refused[&1], "GPU is lost (15)");
}

#[test]
fn a_child_that_hangs_is_ended() {
    let place = tempfile::tempdir().unwrap();
    let (file, define) = trace(place.path());
    let library = fake::library("nvml", &["HANG", &define]);
    let started = Instant::now();
    let fact = by(expertrail(), &library, Duration::from_secs(3));
    let took = started.elapsed();
    assert_eq!(fails(&fact, ""), "NVML did not answer within 3 s: the driver or a device hangs (see dmesg)");
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(5), "{took:?}");
    let child = process(&file);
    assert_ne!(child, std::process::id());
    wait_for_end(child);
}

#[test]
fn a_child_that_crashes_is_reported() {
    let fact = read(&fake::library("nvml", &["CRASH", "SAYS=\"free(): invalid\\033[1m pointer\""]));
    let reason = fails(&fact, "NVML crashed with SIGABRT: ");
    // The last line of its standard error, made harmless.
    assert!(reason.ends_with(": free(): invalid [1m pointer"), "{reason:?}");

    let fact = read(&fake::library("nvml", &["QUIT=3"]));
    assert_eq!(fails(&fact, ""), "NVML ended without an answer (exit status: 3)");

    // What a library leaves behind holds the pipes open.
    let started = Instant::now();
    let fact = read(&fake::library("nvml", &["HEIR", "CRASH"]));
    fails(&fact, "NVML crashed with SIGABRT");
    let fact = read(&fake::library("nvml", &["HEIR"]));
    assert!(fact.value().is_some(), "{fact:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn what_a_library_prints_does_not_disturb() {
    for noise in ["{\\\"nvml\\\"", "a line\\nand more", "\\377\\n\\n"] {
        let fact = read(&fake::library("nvml", &[&format!("NOISE=\"{noise}\""), "SAYS=\"a warning\""]));
        assert_eq!(fact.value().map(|nvml| nvml.gpus.len()), Some(2), "{noise}: {fact:?}");
    }
    // Without an end: it is cut off, and ends or is ended.
    let fact = by(expertrail(), &fake::library("nvml", &["FLOOD", "CRASH"]), Duration::from_secs(20));
    fails(&fact, "NVML crashed with SIGABRT");
}

#[test]
fn programs_that_are_not_the_command() {
    let library = fake::library("nvml", &[]);
    let limit = Duration::from_secs(20);
    // What cannot be started: a thread does it.
    assert!(by("/no/such/program", &library, limit).value().is_some());
    assert!(by("/proc/version", &library, limit).value().is_some());
    let fact = by("/bin/true", &library, limit);
    assert_eq!(fails(&fact, ""), "NVML ended without an answer (exit status: 0)");
    fails(&by("/bin/cat", &library, limit), "(exit status: 1): ");
}
