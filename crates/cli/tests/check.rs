//! `expertrail check` as its user runs it: exit codes, output, documents.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

mod conforming;
#[path = "../../cluster/tests/tree/mod.rs"]
mod tree;

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use conforming::conforms;
use expertrail_cluster::{facts, finding, stack, topo};
use serde_json::Value;

/// Runs `check` with `args`; no variable of this process reaches it.
fn check(args: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("expertrail"));
    command.env_clear().arg("check").args(args).output().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The captured virtual machine of issue 4's "Done when".
fn virtual_machine() -> String {
    let folder = tree::folder().join("../fixtures/h200-vm-x2");
    folder.canonicalize().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_virtual_machine_fails_for_ibgda_and_not_for_our_library() {
    let root = virtual_machine();
    let output = check(&["--root", &root, "--for", "deepep-ibgda"]);
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let text = out(&output);
    for id in ["P001", "P002", "P010", "P011"] {
        assert!(text.contains(&format!("FAIL    {id} ")), "{id}\n{text}");
    }
    assert!(text.contains("/etc/modprobe.d/zz-nvidia-expertrail.conf"), "{text}");
    assert!(!text.contains("kubectl"), "{text}");
    // Failures stand first, and a pipe gets no colours.
    assert!(text.starts_with("FAIL "), "{text}");
    assert!(!text.contains('\u{1b}'));

    // Without --for it is our own library that is asked for. It demands none of the four.
    let output = check(&["--root", &root]);
    let text = out(&output);
    assert_ne!(output.status.code(), Some(1), "{text}");
    for id in ["P001", "P002", "P010", "P011"] {
        assert!(!text.contains(&format!("{id} ")), "{id}\n{text}");
    }
}

#[test]
fn exit_codes() {
    let place = tree::unpack("healthy");
    let root = place.path().to_str().unwrap();
    let code = |args: &[&str]| check(args).status.code();
    assert_eq!(code(&["--root", root, "--for", "deepep-ibgda", "--strict"]), Some(0));
    // Balancing is a warning.
    fs::write(place.path().join("proc/sys/kernel/numa_balancing"), "1\n").unwrap();
    assert_eq!(code(&["--root", root, "--for", "deepep-ibgda"]), Some(0));
    assert_eq!(code(&["--root", root, "--for", "deepep-ibgda", "--strict"]), Some(5));
    // What decides cannot be read: no verdict.
    fs::remove_file(place.path().join("proc/driver/nvidia/params")).unwrap();
    assert_eq!(code(&["--root", root, "--for", "deepep-ibgda"]), Some(3));
    let empty = tempfile::tempdir().unwrap();
    assert_ne!(code(&["--root", empty.path().to_str().unwrap()]), Some(0));
}

#[test]
fn wrong_arguments() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let old = file("old.json", r#"{"schema": "expertrail.facts/9"}"#);
    let text = file("text.json", "no JSON at all");
    for (args, says) in [
        (vec!["--for", "deepep"], "deepep-ibgda"),
        (vec!["--root", "/no/such/folder"], "/no/such/folder"),
        (vec!["--facts", &old], "expertrail.facts/9"),
        (vec!["--facts", &text], "text.json"),
        (vec!["--facts", &old, "--root", "/"], "cannot be used with"),
        (vec!["--facts", &old, "--probe"], "cannot be used with"),
        (vec!["--profile", "no-such-cloud", "--root", "/proc/self/fdinfo"], "no-such-cloud"),
    ] {
        let output = check(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", err(&output));
        assert!(err(&output).contains(says), "{args:?}: {}", err(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let output = check(&["--facts", "/no/such/file.json"]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(err(&output).contains("/no/such/file.json"));
}

#[test]
fn documents_conform_to_their_schemas() {
    for name in ["healthy", "h200-crusoe-vm", "p5en-efa"] {
        let place = tree::unpack(name);
        let root = place.path().to_str().unwrap();
        let document = place.path().join("facts.json");
        let written = Command::new(assert_cmd::cargo::cargo_bin!("expertrail"))
            .args(["facts", "--root", root, "-o"])
            .arg(&document)
            .output()
            .unwrap();
        assert_eq!(written.status.code(), Some(0), "{}", err(&written));
        let json: Value = serde_json::from_str(&fs::read_to_string(&document).unwrap()).unwrap();
        conforms(facts::JSON_SCHEMA, &json);

        for target in ["expertrail", "deepep-ibgda", "deepep-efa", "nccl"] {
            let output = check(&["--root", root, "--for", target, "--json", "-"]);
            let of_tree: Value = serde_json::from_str(out(&output)).unwrap();
            conforms(finding::JSON_SCHEMA, &of_tree);
            assert_eq!(of_tree["target"], target);
            // The document says the same as the tree it was made of.
            let output = check(&["--facts", document.to_str().unwrap(), "--for", target, "--json", "-"]);
            let of_document: Value = serde_json::from_str(out(&output)).unwrap();
            assert_eq!(of_document, of_tree, "{name} for {target}");
        }
    }
}

/// What another command prints as JSON.
fn json_of(args: &[&str]) -> Value {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("expertrail")).args(args).output().unwrap();
    serde_json::from_str(out(&output)).unwrap_or_else(|error| panic!("{args:?}: {error}\n{}", err(&output)))
}

#[test]
fn topology_and_stack_conform_to_their_schemas() {
    for name in
        ["healthy", "b200-crusoe-vm", "p5en-efa", "rail-down", "roce-unclear", "no-nics", "two-gpus-a-nic"]
    {
        let place = tree::unpack(name);
        let root = place.path().to_str().unwrap();
        conforms(topo::JSON_SCHEMA, &json_of(&["topo", "--root", root, "--emit", "json"]));
    }
    for versions in [
        "commit=4214430,nvshmem=3.6.5,transport=ibgda",
        "nvshmem=3.4.5,transport=ibgda",
        "nvshmem=3.6.5,transport=ibgda",
        "gpu=b300",
    ] {
        conforms(stack::JSON_SCHEMA, &json_of(&["stack", "--versions", versions, "--json", "-"]));
    }
    let place = tree::unpack("findings/P200.raise");
    let root = place.path().to_str().unwrap();
    let verdict = json_of(&["stack", "--image-root", root, "--transport", "ibgda", "--json", "-"]);
    conforms(stack::JSON_SCHEMA, &verdict);
    assert_eq!(verdict["judgement"], "known-bad");
    assert_eq!(verdict["unless_patched"], true);
}

#[test]
fn a_document_beside_the_text() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("findings.json");
    let output = check(&["--root", &virtual_machine(), "--json", file.to_str().unwrap()]);
    let json: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let ids = json["findings"].as_array().unwrap().iter().map(|finding| finding["id"].as_str().unwrap());
    // All are in the document, what passes and what does not matter too; the text has what is wrong or not known.
    let shown: Vec<&str> = out(&output).lines().filter(|line| line.contains(" P0")).collect();
    assert!(ids.count() > shown.len() + 10, "{shown:?}");
    // A file that cannot be written is known before anything is read.
    let output = check(&["--root", &virtual_machine(), "--json", "/no/such/folder/findings.json"]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn this_machine_is_checked_in_time() {
    // There may be no GPU here; it must say so, quickly, and in order.
    let start = std::time::Instant::now();
    let output = check(&["--all"]);
    let took = start.elapsed();
    let code = output.status.code().unwrap();
    assert!([0, 1, 3].contains(&code), "{code}: {}", err(&output));
    assert!(out(&output).contains("P006 NVIDIA driver"), "{}", out(&output));
    // Two seconds are promised of a release build on an idle machine.
    assert!(took.as_secs() < if cfg!(debug_assertions) { 20 } else { 2 }, "{took:?}");
    assert!(Path::new("/proc").exists());
}
