//! `expertrail explain` as its user runs it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

fn run(args: &[&str]) -> Output {
    Command::new(assert_cmd::cargo::cargo_bin!("expertrail"))
        .env_clear()
        .arg("explain")
        .args(args)
        .output()
        .unwrap()
}

#[track_caller]
fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_cause_of_figures() {
    let text = ok(&["section-not-run"]);
    for wanted in ["signs:", "remedy:", "sources:", "J003, expertrail judge", "exit code 0"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(!text.contains("expertrail check` finds it"), "{text}");
}

#[test]
fn findings_and_lints() {
    let one = ok(&["P010"]);
    assert!(
        one.starts_with("P010: ") && one.contains("peermem-missing: ") && one.contains("sudo modprobe"),
        "{one}"
    );
    let several = ok(&["j013"]);
    assert!(
        several.contains("  hca-list-wrong-device") && several.contains("  pe-mapping-with-uid-bootstrap")
    );
    assert!(!several.contains("remedy"), "{several}");
    assert!(ok(&["L016"]).contains("DeepEP 567632d, tests/test_internode.py"));
    let json: Value = serde_json::from_str(&ok(&["J013", "--json", "-"])).unwrap();
    assert_eq!((json["id"].as_str(), json["causes"].as_array().map(Vec::len)), (Some("J013"), Some(2)));
}

#[test]
fn all_as_json_and_as_text() {
    let json: Value = serde_json::from_str(&ok(&["--json", "-"])).unwrap();
    let all = json.as_array().unwrap();
    let ids: Vec<&str> = all.iter().map(|cause| cause["id"].as_str().unwrap()).collect();
    assert!(ids.len() > 200 && ids.is_sorted() && ids.contains(&"section-not-run"));
    for cause in all {
        for list in ["signs", "remedies", "sources"] {
            assert!(!cause[list].as_array().unwrap().is_empty(), "{}: {list}", cause["id"]);
        }
    }
    let text = ok(&[]);
    assert_eq!(text.lines().count(), ids.len());
}

#[test]
fn what_is_not_there() {
    let output = run(&["D11"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no cause and no finding `D11`"));
    let near = run(&["peermem-gone"]);
    assert!(String::from_utf8_lossy(&near.stderr).contains("peermem-missing"));
}

/// A remedy that tells to run this program names options that it has.
#[test]
fn commands_of_remedies_are_commands() {
    let mut checked = 0;
    for text in expertrail_cluster::causes::texts() {
        for step in text.remedies.iter().flat_map(|remedy| &remedy.steps) {
            for line in step.lines().filter(|line| line.trim_start().starts_with("expertrail ")) {
                let command = line.split("  #").next().unwrap_or_default();
                if command.contains(['|', '$', '>', ';', '&']) && !command.contains('<') {
                    continue;
                }
                // A placeholder may hold blanks; a number does for most of them.
                let mut filled = String::new();
                let mut inside = false;
                for c in command.replace(['\'', '"'], "").chars() {
                    match c {
                        '<' => inside = true,
                        '>' => {
                            inside = false;
                            filled.push('1');
                        }
                        _ if inside => {}
                        _ => filled.push(c),
                    }
                }
                let words = filled.split_whitespace().skip(1).filter(|word| *word != "...");
                // With --help last an option that does not exist is still an error, and nothing runs.
                let output = assert_cmd::Command::cargo_bin("expertrail")
                    .unwrap()
                    .args(words)
                    .arg("--help")
                    .output()
                    .unwrap();
                let error = String::from_utf8_lossy(&output.stderr);
                // Values are placeholders; names are not.
                for wrong in ["unexpected argument", "unrecognized subcommand"] {
                    assert!(!error.contains(wrong), "{}: {line}\n{error}", text.id);
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 30, "{checked}");
}
