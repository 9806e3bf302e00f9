//! Arguments that cannot work: exit code 2, a message that says what would, and nothing started.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Folder, Run, bench, expertrail, finish, finish_within, run};

/// Being refused takes milliseconds. What is not refused may go on, or take memory, for ever: not here.
const AT_ONCE: Duration = Duration::from_secs(10);

#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    finish_within(AT_ONCE, bench(args)).exits(2).started_nothing().says(parts);
}

#[test]
fn shapes_that_cannot_be() {
    refused(&["--iters", "0"], &["0 timed iterations", "--iters 1"]);
    refused(&["--top-k", "9", "--experts", "8"], &["9", "8 experts"]);
    refused(&["--top-k", "0"], &["top-k"]);
    refused(&["--experts", "0"], &["0 experts"]);
    refused(&["--hidden", "12"], &["12", "multiple of 8"]);
    refused(&["--hidden", "0"], &["hidden"]);
    refused(&["--hidden", "136", "--dtype", "fp8"], &["136", "multiple of 128"]);
    refused(&["--ranks", "0"], &["0"]);
    refused(&["--ranks", "10000000"], &["10000000"]);
    refused(&["--ranks", "4", "--nodes", "3"], &["--nodes 3", "4 ranks"]);
    refused(&["--ranks", "4", "--nodes", "0"], &["--nodes 0"]);
    refused(&["--ranks", "4", "--ranks-per-node", "3"], &["4", "3"]);
    refused(&["--tokens", "18446744073709551615"], &["18446744073709551615"]);
    refused(&["--tokens", "8", "--warmup", "18446744073709551615"], &["18446744073709551615"]);
}

#[test]
fn alignments_that_cannot_be() {
    for alignment in ["0", "1000000000", "18446744073709551615"] {
        refused(
            &["--layout", "expert-major", "--alignment", alignment],
            &[&format!("alignment {alignment}")],
        );
    }
}

#[test]
fn words_and_numbers_that_mean_nothing() {
    refused(&["--preset", "slow"], &["unknown preset `slow`", "quick", "guide-internode"]);
    refused(&["--dtype", "fp16"], &["fp16", "bf16, fp8"]);
    refused(&["--mode", "fast"], &["fast", "ht, ll"]);
    refused(&["--scope", "rack"], &["rack", "node, world"]);
    refused(&["--routing-skew=-1"], &["Zipf"]);
    refused(&["--routing-skew", "nan"], &["Zipf"]);
    refused(&["--deadline", "0"], &["seconds between"]);
    refused(&["--shm-limit", "1XB"], &["XB", "MiB"]);
    refused(&["--ranks", "two"], &["two"]);
    refused(&["--frobnicate"], &["--frobnicate"]);
    let three = ["--nodes", "2", "--ranks-per-node", "2", "--ranks", "3"];
    refused(&three, &["--nodes 2", "--ranks-per-node 2", "4 ranks"]);
    refused(&["--routing", "x.npy", "--routing-skew", "1"], &["--routing"]);
    finish(expertrail()).exits(2).started_nothing();
}

#[test]
fn help_is_no_error() {
    let mut command = expertrail();
    command.arg("--version");
    let version = finish(command).exits(0);
    assert_eq!(version.out, format!("expertrail {}\n", env!("CARGO_PKG_VERSION")));
    let help = run(&["--help"]).exits(0);
    for part in ["--preset", "guide-intranode", "deepseek-v3", "Exit codes", "--routing-skew"] {
        assert!(help.out.contains(part), "{part}");
    }
}

#[test]
fn reports_that_cannot_be_written_are_found_first() {
    let folder = Folder::new();
    for option in ["--json", "--csv", "--markdown", "--html"] {
        let started = run(&[option, "/nonexistent/x.json"]);
        // The default run takes several seconds.
        assert!(started.took < Duration::from_secs(2), "{:?}", started.took);
        started.exits(2).started_nothing().says(&["/nonexistent/x.json", "does not exist"]);
        run(&[option, &folder.arg("")]).exits(2).started_nothing().says(&["it is a folder"]);
    }
    // The first can be written, the second not: the first is not left behind.
    refused(&["--json", &folder.arg("r.json"), "--csv", "/nonexistent/r.csv"], &["/nonexistent/r.csv"]);
    assert!(folder.names().is_empty());
}

#[test]
fn too_little_shared_memory_says_how_much_is_needed() {
    let run = run(&["--ranks", "2", "--tokens", "32", "--hidden", "64", "--shm-limit", "1MiB"]).exits(2);
    assert_eq!(run.out, "");
    let run = run.says(&["shared memory too small", "2 ranks need about", "in all", "1.0 MiB"]);
    // Whatever it says is needed is enough.
    let total = run.err.split(" each, ").nth(1).and_then(|rest| rest.split(" in all").next());
    let (number, unit) = total.and_then(|total| total.split_once(' ')).expect("a size");
    let whole = number.parse::<f64>().expect("a number").ceil() + 1.0;
    let mut command = bench(&["--ranks", "2", "--tokens", "32", "--hidden", "64", "--iters", "2"]);
    command.args(["--shm-limit", &format!("{whole}{unit}")]);
    finish(command).exits(0);
}

/// A driver library that stands for CUDA's, with that many devices.
fn driver(folder: &Folder, devices: usize) -> String {
    let library = folder.arg("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/tests/fake/driver.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", &format!("-DCOUNT={devices}"), "-o", &library]).arg(source);
    assert!(cc.status().expect("cc, which Rust links with").success());
    library
}

/// `expertrail bench` with a driver at a place of the test's choice.
fn with_driver(library: &str, args: &[&str]) -> Run {
    let mut command = bench(args);
    command.env("EXPERTRAIL_LIBCUDA", library).env("EXPERTRAIL_NVRTC", "/nonexistent/libnvrtc.so");
    finish(command)
}

#[test]
fn gpus_without_a_driver_say_what_was_looked_for() {
    for args in [&["--backend", "cuda"][..], &["--sms", "16"]] {
        let run = with_driver("/nonexistent/libcuda.so.1", args).exits(4).started_nothing();
        run.says(&["/nonexistent/libcuda.so.1", "install the NVIDIA driver"]);
    }
}

#[test]
fn fewer_gpus_than_ranks_say_how_many() {
    let folder = Folder::new();
    let library = driver(&folder, 2);
    let run = with_driver(&library, &["--backend", "cuda", "--ranks", "3"]).exits(4).started_nothing();
    run.says(&["3 ranks need", "2 usable of 2 visible", "--ranks"]);
}

#[test]
fn declared_nodes_of_one_host_have_gpus_of_their_own() {
    let folder = Folder::new();
    let library = driver(&folder, 2);
    // It ends where kernels are wanted: the driver and NVRTC are not real.
    let run = with_driver(&library, &["--backend", "cuda", "--ranks", "2", "--nodes", "2"]).exits(4);
    assert!(!run.err.contains("would share one device"), "{}", run.err);
    run.says(&["run-time compiler"]);
    // Groups that do not know of each other would take the same GPUs.
    let scope = ["--backend", "cuda", "--ranks", "2", "--nodes", "2", "--scope", "node"];
    with_driver(&library, &scope).exits(2).says(&["--scope node", "--scope world"]);
}

#[test]
fn auto_is_host_where_gpus_are_too_few() {
    let folder = Folder::new();
    let shape = ["--tokens", "8", "--hidden", "128", "--iters", "1"];
    for (devices, ranks) in [(1, "2"), (2, "3")] {
        let library = driver(&folder, devices);
        let run = with_driver(&library, &[&["--ranks", ranks], &shape[..]].concat()).exits(0);
        assert!(run.out.contains("host backend"), "{}", run.out);
    }
    let run = with_driver("/nonexistent/libcuda.so.1", &[&["--ranks", "2"], &shape[..]].concat()).exits(0);
    assert!(run.out.contains("host backend") && run.err.is_empty(), "{}{}", run.out, run.err);
}

#[test]
fn sms_are_of_gpus_and_counted_from_one() {
    run(&["--backend", "host", "--sms", "16"]).exits(2).started_nothing().says(&["--sms", "--backend host"]);
    for sms in ["0", "4,x", "1025", "8,,16"] {
        run(&["--sms", sms]).exits(2).started_nothing().says(&["--sms"]);
    }
}

#[test]
fn expert_major_is_not_built_for_gpus() {
    let folder = Folder::new();
    let library = driver(&folder, 2);
    let args = ["--backend", "cuda", "--ranks", "2", "--layout", "expert-major"];
    with_driver(&library, &args).exits(3).started_nothing().says(&["expert-major", "not built"]);
}

#[test]
fn low_latency_is_not_passed_off_as_built() {
    // Asked for by name it is refused; a preset that is meant for it runs, and says how.
    run(&["--mode", "ll"]).exits(3).started_nothing().says(&["low-latency", "not built yet"]);
    let shape = ["--ranks", "2", "--tokens", "8", "--hidden", "128", "--iters", "1"];
    let run = run(&[&["--preset", "decode", "--backend", "host"], &shape[..]].concat()).exits(0);
    assert!(run.out.contains("LL mode is not built yet"), "{}", run.out);
    assert!(run.out.contains("host backend"), "{}", run.out);
}
