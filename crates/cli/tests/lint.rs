//! `expertrail lint` as its user runs it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod conforming;

use std::fs;

use assert_cmd::Command;
use conforming::conforms;
use serde_json::Value;
use tempfile::TempDir;

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../launch/tests/lint");

fn lint(args: &[&str], input: &str) -> (Option<i32>, String, String) {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("expertrail"))
        .env_clear()
        .arg("lint")
        .args(args)
        .write_stdin(input)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn guide() -> String {
    fs::read_to_string(format!("{FILES}/guide-b200.yaml")).unwrap()
}

#[test]
fn the_guides_manifest_passes_with_notes() {
    let (code, out, err) = lint(&[&format!("{FILES}/guide-b200.yaml"), "--strict"], "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(
        out.contains("nodes: crusoe-b200") && out.ends_with("lint: 0 failures, 0 warnings, 4 notes\n"),
        "{out}"
    );
}

#[test]
fn standard_input_and_what_to_type() {
    let text = guide().replace("value: \"5\"", "value: \"1\"");
    let (code, out, _) = lint(&["-"], &text);
    assert_eq!(code, Some(1), "{out}");
    let line = 1 + text.lines().position(|line| line.contains("value: \"1\"")).unwrap();
    assert!(out.contains(&format!("FAIL N004 -:{line}: NVSHMEM_HCA_OFFSET is 1")), "{out}");
    assert!(out.contains("  type: NVSHMEM_HCA_OFFSET=\"5\"\n"), "{out}");
}

#[test]
fn warnings_count_with_strict_only() {
    let text = guide().replace("backoffLimit: 0", "backoffLimit: 2");
    assert_eq!(lint(&["-"], &text).0, Some(0));
    assert_eq!(lint(&["-", "--strict"], &text).0, Some(5));
}

#[test]
fn a_profile_by_name() {
    let file = format!("{FILES}/guide-b200.yaml");
    let (code, out, _) = lint(&[&file, "--profile", "crusoe-h200"], "");
    assert!(code == Some(1) && out.contains("N004") && out.contains("nodes: profile crusoe-h200"), "{out}");
    let (code, _, err) = lint(&[&file, "--profile", "crusoe-h2000"], "");
    assert!(code == Some(2) && err.contains("crusoe-h200"), "{err}");
}

#[path = "../../cluster/tests/tree/mod.rs"]
mod tree;

/// The rails that a node has count more than what any document says of its kind.
#[test]
fn facts_of_a_node() {
    let folder = TempDir::new().unwrap();
    let place = tree::unpack("h200-crusoe-vm");
    let facts = folder.path().join("facts.json");
    let output = Command::new(assert_cmd::cargo::cargo_bin!("expertrail"))
        .env_clear()
        .args(["facts", "--root", place.path().to_str().unwrap(), "-o", facts.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let facts = facts.to_str().unwrap();
    let (code, out, err) = lint(&[&format!("{FILES}/guide-h200.yaml"), "--facts", facts], "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let (code, out, _) = lint(&[&format!("{FILES}/guide-b200.yaml"), "--facts", facts], "");
    assert!(code == Some(1) && out.contains("N004") && out.contains("the node of --facts"), "{out}");
}

#[test]
fn the_document_is_as_its_schema_says() {
    let schema = expertrail_launch::lint::JSON_SCHEMA;
    for file in ["guide-b200.yaml", "eks-internode.yaml", "internode.sbatch", "ranks.env"] {
        let (_, out, err) = lint(&[&format!("{FILES}/{file}"), "--json", "-"], "");
        let json: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
        conforms(schema, &json);
    }
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("lint.json");
    let broken = guide().replace("WORLD_SIZE\n          value: \"16\"", "WORLD_SIZE\n          value: \"2\"");
    let (code, out, _) = lint(&["-", "--json", file.to_str().unwrap()], &broken);
    assert!(code == Some(1) && out.contains("N042"));
    let json: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    conforms(schema, &json);
    let found = json["findings"].as_array().unwrap().iter().find(|finding| finding["id"] == "N042").unwrap();
    assert_eq!((&found["severity"], &found["fix"]), (&Value::from("fail"), &Value::from("WORLD_SIZE=16")));
}

#[test]
fn what_cannot_be_read() {
    assert_eq!(lint(&["no-such-file.yaml"], "").0, Some(4));
    assert_eq!(lint(&[], "").0, Some(2));
    assert_eq!(lint(&["-", "-"], "").0, Some(2));
    assert_eq!(lint(&[FILES], "").0, Some(2));
    let (code, _, err) = lint(&["-"], "kind: Job\napiVersion: batch/v1\n  spec: x\n");
    assert!(code == Some(2) && err.contains("-:3: "), "{err}");
    let (code, _, err) = lint(&["-"], "[run]\nname = \"a\"\n");
    assert!(code == Some(2) && err.contains("expertrail render"), "{err}");
    let (code, _, err) = lint(&["-"], &"x".repeat(5 << 20));
    assert!(code == Some(2) && err.contains("more than"), "{err}");
}

#[test]
fn all_rules_are_listed() {
    let (code, out, _) = lint(&["--rules"], "");
    assert_eq!(code, Some(0));
    for rule in expertrail_launch::lint::RULES {
        assert!(out.contains(&format!("{} {}", rule.id, rule.severity)), "{}", rule.id);
    }
}
