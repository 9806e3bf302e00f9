//! `expertrail judge` as its user runs it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod conforming;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use conforming::conforms;
use expertrail_cluster::judge;
use serde_json::Value;

fn logs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster/tests/judge").canonicalize().unwrap()
}

fn expertrail(args: &[&str], input: &[u8]) -> Output {
    Command::new(assert_cmd::cargo::cargo_bin!("expertrail"))
        .env_clear()
        .current_dir(logs())
        .arg("judge")
        .args(args)
        .write_stdin(input)
        .output()
        .unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[track_caller]
fn code(args: &[&str], wanted: i32) -> Output {
    let output = expertrail(args, b"");
    assert_eq!(output.status.code(), Some(wanted), "{args:?}\n{}{}", out(&output), err(&output));
    output
}

#[test]
fn exit_codes() {
    let sample = "guide/sample-b200.log";
    let text = code(&[sample], 0);
    assert!(out(&text).starts_with("PASS: 1 run, 9 figures, 1 warning\n"), "{}", out(&text));
    for part in [
        "inter-node dispatch bf16",
        "56.1",
        "28.1",
        "100 % of 56.1 (range 50.5-61.7)",
        "The guide's table of ranges is not in the copy used.",
    ] {
        assert!(out(&text).contains(part), "{part}\n{}", out(&text));
    }
    code(&[sample, "--strict"], 5);
    code(&["guide/b200-whole.log", "--strict"], 0);
    code(&["guide/b200-slow-ptx.log"], 1);
    code(&["guide/h200-inter-error.log"], 3);
    code(&["v1/intranode-plain.log"], 3);
    code(&["v1/intranode-plain.log", "--gpu", "h200"], 0);
}

#[test]
fn bad_arguments() {
    for (args, why) in [
        (&[][..], "required"),
        (&["nothing.log"], "no such file"),
        (&["guide/b200-whole.log", "--gpu", "rtx9"], "its links are not known"),
        (&["guide/b200-whole.log", "--nic-gb-s", "0"], "above 0"),
        (&["guide/b200-whole.log", "--nic-gb-s", "50", "--nic", "400"], "cannot be used with"),
        (&["guide/b200-whole.log", "--steps", "3"], "--accept"),
        (&["guide/b200-whole.log", "--refs", "guide/b200-whole.log"], "not a references file"),
        (&["guide/b200-whole.log", "--baseline", "nothing.json"], "no such file"),
    ] {
        let output = code(args, 2);
        assert!(err(&output).contains(why), "{args:?}: {}", err(&output));
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(err(&code(&[empty.path().to_str().unwrap()], 2)).contains("no files in this folder"));
    code(&["guide/b200-whole.log", "--json", "/nowhere/at/all.json"], 4);
}

/// The wire of 400 Gb/s is 50 GB/s: with half of it the same figures are twice the share, and above 52.5 printed are wrong.
#[test]
fn the_nic_is_given() {
    let json = |args: &[&str]| -> Value { serde_json::from_str(out(&expertrail(args, b""))).unwrap() };
    let log = "guide/h200-4-nodes.log";
    let ceiling = |value: &Value| {
        let all = value["metrics"].as_array().unwrap();
        let inter = all.iter().find(|metric| metric["name"] == "inter-node dispatch bf16").unwrap();
        inter["ceiling"]["logical_gb_s"].as_f64().unwrap()
    };
    for (args, wanted) in [
        (&["--nic", "400"], 200.0 / 3.0),
        (&["--nic-gb-s", "25"], 100.0 / 3.0),
        (&["--nic", "800"], 400.0 / 3.0),
    ] {
        let value = json(&[&[log, "--json", "-"][..], args].concat());
        assert!((ceiling(&value) - wanted).abs() < 1e-9, "{args:?}");
        assert_eq!(value["runs"][0]["nic_given"], true);
    }
    // 35.9 printed of 33.3.
    code(&[log, "--nic-gb-s", "25"], 1);
}

#[test]
fn standard_input_folders_and_gzip() {
    let log = fs::read(logs().join("guide/b200-whole.log")).unwrap();
    let piped = expertrail(&["-"], &log);
    assert_eq!(piped.status.code(), Some(0), "{}", out(&piped));
    assert!(out(&piped).contains("(standard input:"), "{}", out(&piped));
    let place = tempfile::tempdir().unwrap();
    let mut packed = flate2_of(&log);
    fs::write(place.path().join("run.log.gz"), &packed).unwrap();
    fs::write(place.path().join("notes.md"), "nothing\n").unwrap();
    fs::write(place.path().join(".hidden"), "[rank 0] INTRA ERROR: x\n").unwrap();
    let folder = place.path().to_str().unwrap();
    assert!(out(&code(&[folder], 0)).starts_with("PASS: 1 run, 9 figures"));
    // Cut in the middle: what can be unpacked is judged, and that something is missing is said.
    packed.truncate(packed.len() / 2);
    fs::write(place.path().join("run.log.gz"), &packed).unwrap();
    let output = expertrail(&[folder], b"");
    assert!(matches!(output.status.code(), Some(1 | 3)), "{}", out(&output));
    assert!(out(&output).contains("run.log.gz stopped"), "{}", out(&output));
    code(&["guide/pods"], 0);
    code(&["v1/pods"], 0);
}

fn flate2_of(bytes: &[u8]) -> Vec<u8> {
    // Stored blocks: the form needs no compressor.
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut chunks = bytes.chunks(65_535).peekable();
    while let Some(chunk) = chunks.next() {
        out.push(u8::from(chunks.peek().is_none()));
        let length = chunk.len() as u16;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.write_all(chunk).unwrap();
    }
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    out.extend_from_slice(&(!crc).to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out
}

#[test]
fn acceptance() {
    let summary = "training/treatment/summary.json";
    let treatment = ["training/treatment", "--accept", "--steps", "30", "--launchers", "16"];
    let passed = code(&[&treatment[..], &["--summary", summary]].concat(), 0);
    assert!(out(&passed).contains("30 of 30 iterations"), "{}", out(&passed));
    let control = code(&["training/control", "--accept", "--steps", "30", "--launchers", "16"], 1);
    assert!(out(&control).contains("0 of 30 ended: it stopped in iteration 0"), "{}", out(&control));
    // The summary that was named is not there, or is something else.
    code(&[&treatment[..], &["--summary", "training/none.json"]].concat(), 1);
    code(&[&treatment[..], &["--summary", "training/megatron.log"]].concat(), 1);
    code(&["training/treatment", "--accept", "--steps", "31"], 1);
    code(&["training/treatment", "--accept", "--launchers", "17"], 3);
    code(&["training/control"], 1);
}

#[test]
fn baselines() {
    let place = tempfile::tempdir().unwrap();
    let old = place.path().join("old.json");
    let (old, whole) = (old.to_str().unwrap(), "guide/b200-whole.log");
    code(&[whole, "--json", old], 0);
    code(&[whole, "--baseline", old, "--strict"], 0);
    // 140 of 273: a log serves as well.
    let slow = code(&["guide/b200-slow-ptx.log", "--baseline", whole], 1);
    assert!(out(&slow).contains("J010 intra-node dispatch bf16, node 0"), "{}", out(&slow));
}

#[test]
fn verdicts_conform_to_their_schema() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results").canonicalize().unwrap();
    let results = |name: &str| results.join(name).to_str().unwrap().to_owned();
    for args in [
        vec!["guide/sample-b200.log".to_owned()],
        vec!["guide/b200-slow-ptx.log".to_owned(), "--strict".to_owned()],
        vec!["guide/h200-inter-error.log".to_owned()],
        vec!["v1".to_owned()],
        vec!["v2".to_owned()],
        vec!["nccl".to_owned()],
        vec!["training/treatment".to_owned(), "--accept".to_owned()],
        vec!["training/control".to_owned()],
        vec![results("h200-x2")],
        vec![results("cpu-2core/quick.json")],
        vec![results("h200-x2/NOTES.md")],
    ] {
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(["--json", "-"]);
        let output = expertrail(&args, b"");
        let document: Value =
            serde_json::from_str(out(&output)).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        conforms(judge::JSON_SCHEMA, &document);
    }
}
