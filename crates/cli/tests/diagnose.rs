//! `expertrail diagnose` as its user runs it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod conforming;

use std::fs;
use std::process::Output;

use assert_cmd::Command;
use expertrail_cluster::diagnose;
use serde_json::Value;

fn run(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("expertrail"));
    command.env_clear().arg("diagnose").args(args).write_stdin(input).output().unwrap()
}

#[track_caller]
fn code(args: &[&str], input: &str, wanted: i32) -> String {
    let output = run(args, input);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(wanted), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap() + &error
}

fn case(name: &str) -> String {
    format!("{}/../cluster/tests/diagnose/cases/{name}", env!("CARGO_MANIFEST_DIR"))
}

const OUT_OF_MEMORY: &str =
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";

/// Both arms of the report: the run that stopped in its first dispatch, and the one that made all its steps.
#[test]
fn both_arms_of_the_report() {
    let control = code(&[&case("D20/a/control.log")], "", 1);
    assert!(control.starts_with("CAUSE FOUND: nvshmem-rc-layout-mismatch\n"), "{control}");
    let treatment = code(&[&case("healthy-21/a/treatment.log")], "", 0);
    assert!(treatment.starts_with("NOTHING WRONG FOUND"), "{treatment}");
}

#[test]
fn exit_codes() {
    assert!(code(&["-"], OUT_OF_MEMORY, 1).contains("gpu-memory-exhausted"));
    let open = code(&["-"], "RuntimeError: DeepEP error: timeout (dispatch CPU)\n", 3);
    assert!(open.starts_with("NOT DETERMINABLE") && open.contains("collect next: "), "{open}");
    code(&["/no/such/log"], "", 4);
    code(&[], "", 2);
    for (stack, says) in
        [("nvshmem", "--stack nvshmem"), ("colour=blue", "colour"), ("nvshmem=3.6.5,x", "`x`")]
    {
        let text = run(&["-", "--stack", stack], OUT_OF_MEMORY);
        let error = String::from_utf8(text.stderr).unwrap();
        assert!(matches!(text.status.code(), Some(2 | 4)) && error.contains(says), "{stack}: {error}");
    }
}

/// What is given beside a log counts as the log does.
#[test]
fn versions_beside_a_log() {
    let log = "NVSHMEM v3.6.5\n\
               [rank3]: Global rank: 3, num_recv_tokens: -1, num_rdma_recv_tokens: -1\n\
               [rank3]:   File \"/venv/deep_ep/buffer.py\", line 490, in internode_dispatch\n\
               [rank3]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n";
    let with = code(&["-", "--stack", "commit=4214430,nvshmem=3.6.5,transport=ibgda"], log, 1);
    assert!(with.contains("nvshmem-rc-layout-mismatch"), "{with}");
    // The document that `expertrail stack --json` writes says the same.
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("stack.json");
    let file = file.to_str().unwrap();
    let versions = ["stack", "--versions", "commit=4214430,nvshmem=3.6.5,transport=ibgda", "--json", file];
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("expertrail"));
    command.env_clear().args(versions).assert().code(1);
    assert!(code(&["-", "--stack", file], log, 1).contains("nvshmem-rc-layout-mismatch"));
    fs::write(file, "{}").unwrap();
    assert!(code(&["-", "--stack", file], log, 2).contains("expertrail.stack/1"));
}

#[test]
fn diagnoses_conform_to_their_schema() {
    for (name, wanted) in
        [("D20/a", 1), ("F001/u", 3), ("D2/m", 1), ("D13/m", 1), ("X4/a", 0), ("healthy-21/a", 0)]
    {
        let document: Value = serde_json::from_str(&code(&[&case(name), "--json", "-"], "", wanted)).unwrap();
        conforming::conforms(diagnose::JSON_SCHEMA, &document);
    }
}
