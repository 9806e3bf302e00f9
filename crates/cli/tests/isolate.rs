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
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(8), "{took:?}");
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

#[test]
fn a_child_ends_with_its_parent() {
    let place = tempfile::tempdir().unwrap();
    let (file, define) = trace(place.path());
    let library = fake::library("nvml", &["HANG", &define]);
    let mut parent = Command::new(expertrail())
        .arg("facts")
        .env("EXPERTRAIL_NVML", library)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let child = process(&file);
    assert_ne!(child, parent.id());
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for_end(child);
}

#[test]
fn the_hidden_subcommand() {
    let help = Command::new(expertrail()).arg("--help").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("isolated"));
    let answer = |request: &str| {
        let request = Stdio::from(tempfile_with(request));
        let output = Command::new(expertrail()).arg("isolated").stdin(request).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(answer("{}"), (Some(2), String::new()));
    // A parent that is gone: another process has taken its place.
    assert_eq!(answer(r#"{"parent": 1, "task": {"probe": {"lock": {"available": 0}}}}"#).0, Some(2));
    let request = format!(
        r#"{{"parent": {}, "task": {{"probe": {{"lock": {{"available": 0}}}}}}}}"#,
        std::process::id()
    );
    let (code, text) = answer(&request);
    assert_eq!(code, Some(0));
    assert!(text.contains("only 0 MiB of memory are free"), "{text}");
}

fn tempfile_with(text: &str) -> std::fs::File {
    use std::io::{Seek, Write};
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file
}

/// Probes in children, with nothing of this machine but what `options` has.
fn probes(limit: u64, options: probe::Options) -> Vec<Finding> {
    let device = |name: &str| RdmaDevice {
        name: name.to_owned(),
        pci: Some("0000:9b:00.0".to_owned()),
        ..RdmaDevice::default()
    };
    let devices = vec![device("mlx5_0"), device("mlx5_1")];
    let mut facts =
        Facts { rdma: Fact::read(devices, "/sys/class/infiniband", Scope::HostKernel), ..Facts::default() };
    facts.memory.available = Fact::read(0, "/proc/meminfo", Scope::HostKernel);
    let none = || Some(PathBuf::from("/no/such/library"));
    let options = probe::Options {
        libcuda: options.libcuda.or_else(none),
        libibverbs: options.libibverbs.or_else(none),
        libgdrapi: options.libgdrapi.or_else(none),
        limit: Some(Duration::from_secs(limit)),
        program: Some(expertrail()),
        ..options
    };
    probe::run(&facts, &options)
}

#[track_caller]
fn is(findings: &[Finding], id: &str, status: Status, says: &str) {
    let finding = findings.iter().find(|finding| finding.id == id).unwrap();
    assert!(finding.status == status && finding.observed.contains(says), "{finding:?}");
}

#[test]
fn probes_of_a_healthy_node_pass_in_children() {
    let findings = probes(
        60,
        probe::Options {
            libcuda: Some(fake::library("cuda", &[])),
            libibverbs: Some(fake::library("verbs", &["SAYS=\"no driver for mlx9\""])),
            libgdrapi: Some(fake::library("gdr", &[])),
            ..probe::Options::default()
        },
    );
    is(&findings, "P400", Status::Unknown, "not run: only 0 MiB of memory are free");
    is(&findings, "P401", Status::Pass, "written and read back");
    is(&findings, "P402", Status::Pass, "2 GPUs");
    is(&findings, "P403", Status::Pass, "run: 2 devices opened");
    is(&findings, "P404", Status::Pass, "0 to 1 ");
}

#[test]
fn a_probe_that_crashes_is_one_failure() {
    let findings = probes(
        60,
        probe::Options {
            libcuda: Some(fake::library("cuda", &["CRASH_IN_INIT"])),
            libibverbs: Some(fake::library("verbs", &["COUNT=1", "SAYS=\"no driver for mlx9\""])),
            ..probe::Options::default()
        },
    );
    is(&findings, "P402", Status::Fail, "run: it crashed with SIGABRT");
    is(&findings, "P404", Status::Fail, "run: it crashed with SIGABRT");
    // The others ran; what the library complained of stands beside its failure.
    is(&findings, "P401", Status::Unknown, "not run: ");
    is(
        &findings,
        "P403",
        Status::Fail,
        "not listed by libibverbs: mlx5_1; on standard error: libibverbs: Warning: no driver for mlx9",
    );
}

#[test]
fn a_probe_that_hangs_is_one_failure() {
    let started = Instant::now();
    let findings = probes(
        4,
        probe::Options {
            libcuda: Some(fake::library("cuda", &["HANG_IN_PEER"])),
            libibverbs: Some(fake::library("verbs", &["HANG"])),
            ..probe::Options::default()
        },
    );
    let took = started.elapsed();
    for id in ["P403", "P404"] {
        is(&findings, id, Status::Fail, "run: it did not answer within 4 s: the driver or a device hangs");
    }
    is(&findings, "P402", Status::Pass, "2 GPUs");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_driver_that_hangs_is_asked_once() {
    let findings = probes(
        4,
        probe::Options {
            libcuda: Some(fake::library("cuda", &["HANG_IN_INIT"])),
            libibverbs: Some(fake::library("verbs", &[])),
            ..probe::Options::default()
        },
    );
    is(&findings, "P402", Status::Fail, "run: it did not answer within 4 s: the driver or a device hangs");
    is(&findings, "P404", Status::Unknown, "not run: the driver did not answer the probe before");
    // What does not go through the driver is still run.
    is(&findings, "P403", Status::Pass, "");
}

/// `check --probe` with `library` for NVML and nothing else of a driver.
fn check(library: &Path) -> (Output, Duration) {
    let started = Instant::now();
    let output = Command::new(expertrail())
        .args(["check", "--probe", "--all"])
        .env("EXPERTRAIL_NVML", library)
        .env("EXPERTRAIL_LIBCUDA", "/no/such/libcuda.so.1")
        .output()
        .unwrap();
    (output, started.elapsed())
}

#[test]
fn the_command_ends_although_nvml_does_not() {
    let (output, took) = check(&fake::library("nvml", &["HANG"]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("NVML did not answer within 5 s"), "{text}");
    // Checks of files and probes are there too.
    assert!(text.contains(" P034 ") && text.contains(" P404 "), "{text}");
    // NVML's 5 s and what locking 1 GiB takes: together 6 s where nothing else runs. No probe had to wait for its own limit of 30 s.
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(25), "{took:?}");
}

#[test]
fn the_command_survives_a_crash_of_nvml() {
    let (output, took) = check(&fake::library("nvml", &["CRASH", "SAYS=\"corrupted size\""]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("NVML crashed with SIGABRT"), "{text}");
    assert!(text.contains("corrupted size"), "{text}");
    assert!(text.contains(" P034 ") && text.contains(" P404 "), "{text}");
    assert!(output.status.code().is_some(), "{:?}", output.status);
    // What a library says is not the command's own.
    assert!(!String::from_utf8(output.stderr).unwrap().contains("corrupted size"));
    assert!(took < Duration::from_secs(25), "{took:?}");
}
