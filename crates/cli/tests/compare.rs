//! `expertrail compare` as its user runs it, on documents that `expertrail facts` wrote.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

#[path = "../../cluster/tests/tree/mod.rs"]
mod tree;

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

fn expertrail(args: &[&str]) -> Output {
    Command::new(assert_cmd::cargo::cargo_bin!("expertrail")).env_clear().args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const NICS: &str = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0";

/// Documents `n1.json` to `n3.json` of three equal nodes, the last of which has `change`.
fn fleet(change: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let place = tree::unpack("healthy");
    for name in ["n1", "n2", "n3"] {
        tree::apply(place.path(), &format!("proc/sys/kernel/hostname: {name}\n"));
        if name == "n3" {
            tree::apply(place.path(), change);
        }
        let file = folder.path().join(format!("{name}.json"));
        let root = place.path().to_str().unwrap();
        let output = expertrail(&["facts", "--root", root, "-o", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    folder
}

fn compare(place: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let folder = place.to_str().unwrap();
    let output = expertrail(&[&["compare", folder], more].concat());
    (output.status.code(), text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
}

#[test]
fn equal_nodes() {
    let (code, out, err) = compare(fleet("").path(), &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.ends_with("properties: no differences\n") && out.contains("3 nodes, "), "{out}");
    assert!(!out.contains("WARN"), "{out}");
}

#[test]
fn the_node_that_differs_is_named_with_its_value() {
    let version = "proc/driver/nvidia/version <<<\nNVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n>>>\n";
    let firmware = format!("{NICS}/0000:17:01.0/0000:19:00.0/infiniband/mlx5_0/fw_ver: 28.39.1002\n");
    let params = "proc/driver/nvidia/params <<<\nEnableMSI: 0\n>>>\n";
    // The device of the last rail is gone; its function is still on the bus.
    let rail = "remove sys/class/infiniband/mlx5_9\n";
    let numa = format!("{NICS}/0000:17:00.0/0000:18:00.0/numa_node: 1\n");
    for (change, lines) in [
        (version, vec!["n3: driver version 570.86.15, while 2 of 3 have 580.105.08"]),
        (
            &firmware,
            vec!["n3: firmware of MT_0000000838 28.39.1002 and 28.43.2026, while 2 of 3 have 28.43.2026"],
        ),
        (
            params,
            vec![
                "n3: driver parameter EnableMSI 0, while 2 of 3 have 1",
                "n3: driver parameter EnableStreamMemOPs not there, while 2 of 3 have 1",
            ],
        ),
        (rail, vec!["n3: NICs: rails 7, while 2 of 3 have 8", "n3: NICs: devices 8, while 2 of 3 have 9"]),
        (&numa, vec!["n3: GPUs: NUMA nodes 1,0,0,0,1,1,1,1, while 2 of 3 have 0,0,0,0,1,1,1,1"]),
    ] {
        let (code, out, err) = compare(fleet(change).path(), &[]);
        assert_eq!((code, err.as_str()), (Some(1), ""), "{change}\n{out}");
        for line in lines {
            assert!(out.lines().any(|shown| shown == format!("WARN    P500 {line}")), "{line}\n{out}");
        }
        // Only that node is an outlier.
        let outliers: Vec<&str> = out.lines().filter(|line| line.starts_with("WARN")).collect();
        assert!(outliers.iter().all(|line| line.starts_with("WARN    P500 n3: ")), "{out}");
        assert!(out.ends_with(" from the majority\n"), "{out}");
    }
}

#[test]
fn the_document_says_the_same() {
    let place = fleet("proc/sys/kernel/osrelease: 6.8.0-1020\n");
    let (code, out, _) = compare(place.path(), &["--json", "-"]);
    assert_eq!(code, Some(1));
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], "expertrail.fleet/1");
    assert_eq!(json["nodes"], serde_json::json!(["n1", "n2", "n3"]));
    let differences = json["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 1, "{out}");
    assert_eq!(differences[0]["majority"], "5.15.0-1063-generic");
    assert_eq!(differences[0]["with_majority"], 2);
    assert_eq!(differences[0]["others"], serde_json::json!([{ "value": "6.8.0-1020", "nodes": ["n3"] }]));
}

#[test]
fn a_file_that_is_no_document_is_named_and_nothing_else_is_lost() {
    // `.json` files of the folder in order of their names: n1, n2, n3, then what is no document.
    for (change, code, end) in [
        ("", 3, ": no differences, 3 documents left out\n"),
        ("proc/sys/kernel/osrelease: 6.8.0-1020\n", 1, " from the majority, 3 documents left out\n"),
    ] {
        let place = fleet(change);
        fs::write(place.path().join("notes.json"), "the nodes of rack 7\n").unwrap();
        fs::write(place.path().join("old.json"), "{\"schema\": \"expertrail.facts/9\"}").unwrap();
        fs::write(place.path().join("other.json"), "{\"schema\": \"expertrail.findings/1\"}").unwrap();
        let (found, out, err) = compare(place.path(), &[]);
        assert_eq!((found, err.as_str()), (Some(code), ""), "{out}");
        for name in ["notes.json", "old.json", "other.json"] {
            let lines = out.lines().filter(|line| line.starts_with("UNKNOWN P503 ") && line.contains(name));
            assert_eq!(lines.count(), 1, "{name}\n{out}");
        }
        assert!(out.contains("\n3 nodes, ") && out.ends_with(end), "{out}");
        assert_eq!(out.contains("n3: host: kernel 6.8.0-1020"), code == 1, "{out}");
    }
}

#[test]
fn too_few_documents() {
    let place = fleet("");
    let file = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    fs::write(file("text.json"), "no JSON at all").unwrap();
    for (args, says) in [
        (vec![file("n1.json")], "1 of 1 can be read"),
        (vec![file("n1.json"), file("text.json")], "text.json is no facts document"),
        (vec![file("n1.json"), file("gone.json")], "gone.json"),
        (vec![], "required"),
    ] {
        let args: Vec<&str> = ["compare"].into_iter().chain(args.iter().map(String::as_str)).collect();
        let output = expertrail(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
    // A result that cannot be written is known before anything is read.
    let (code, out, err) = compare(place.path(), &["--json", "/no/such/folder/fleet.json"]);
    assert_eq!((code, out.as_str()), (Some(4), ""), "{err}");
    assert!(err.contains("/no/such/folder/fleet.json"));
}
