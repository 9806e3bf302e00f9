//! `status`, `logs`, `clean` and `rbac` against a program that stands for kubectl.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "../../launch/tests/drive_kube/folder.rs"]
mod folder;

use std::process::Output;

use assert_cmd::Command;
use folder::Folder;
use serde_json::{Value, json};

const RUN: &str = "bringup-abc123";

fn pod(index: u32, state: &Value) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"name": format!("{RUN}-{index}-abcde"), "creationTimestamp": "2026-03-01T00:00:00Z", "labels": {"expertrail.dev/run": RUN, "batch.kubernetes.io/job-completion-index": index.to_string()}},
        "spec": {"nodeName": format!("gpu-{index}"), "containers": [{"name": "ranks", "image": "i"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "ranks", "restartCount": 0, "state": state}]}
    })
}

fn folder() -> Folder {
    let running = json!({"running": {}});
    let broken =
        json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-03-01T00:01:00Z"}});
    let done =
        json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-03-01T00:01:00Z"}});
    let folder = Folder::new(&[pod(0, &running), pod(1, &broken)], &[pod(0, &done), pod(1, &broken)], &[]);
    folder.write("applied", "x");
    folder
}

fn run(folder: &Folder, args: &[&str]) -> (Output, String, String) {
    let output = Command::cargo_bin("expertrail")
        .unwrap()
        .args(args)
        .env("EXPERTRAIL_KUBECTL", folder.program())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    (output, stdout, stderr)
}

#[test]
fn status_says_what_there_is() {
    let folder = folder();
    let (output, text, _) = run(&folder, &["status", RUN]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for words in [
        "run bringup-abc123, context script-context, namespace expertrail",
        "Job bringup-abc123: not ended",
        "node 0 (pod bringup-abc123-0-abcde on gpu-0)",
        ": running",
        "node 1 (pod bringup-abc123-1-abcde on gpu-1)",
        "was killed for memory (OOMKilled, exit code 137)",
        "/dev/shm count as its memory",
        "objects: jobs.batch/bringup-abc123, pods/bringup-abc123",
        "remove with: expertrail clean bringup-abc123 --context script-context --namespace expertrail",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    std::fs::remove_file(folder.0.path().join("applied")).unwrap();
    let (output, _, error) = run(&folder, &["status", RUN]);
    assert_eq!(output.status.code(), Some(3));
    assert!(error.contains("nothing of run bringup-abc123 is in namespace expertrail"), "{error}");
    let (output, _, error) = run(&folder, &["status", "No_Id"]);
    assert_eq!(
        (output.status.code(), error.contains("neither a directory nor the id")),
        (Some(2), true),
        "{error}"
    );
    let (output, _, error) = run(&folder, &["status", RUN, "--namespace", "kube-system"]);
    assert_eq!((output.status.code(), error.contains("namespace of its own")), (Some(2), true), "{error}");
    folder.write("denied", "error: You must be logged in to the server (Unauthorized)");
    let (output, _, error) = run(&folder, &["status", RUN]);
    assert_eq!((output.status.code(), error.contains("expired")), (Some(4), true), "{error}");
}

#[test]
fn logs_leave_files_out() {
    let folder = folder();
    let (output, text, error) = run(&folder, &["logs", RUN]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(
        text,
        "worker: node 0 of 2: starting ranks as true\n[rank 0] dispatch 100 us\nworker: node 0: all ranks passed\n"
    );
    let (_, text, _) = run(&folder, &["logs", RUN, "--all"]);
    assert!(text.contains("[bringup-abc123-1-abcde/ranks] worker: node 1: all ranks passed"), "{text}");
    // Followed to the end: each line once.
    folder.write("looks", "0");
    let (output, text, _) = run(&folder, &["logs", RUN, "--follow"]);
    assert_eq!((output.status.code(), text.lines().count()), (Some(0), 3), "{text}");
    let (output, _, error) = run(&folder, &["logs", RUN, "--node", "7"]);
    assert_eq!(
        (output.status.code(), error.contains("has no node 7: it has 0, 1")),
        (Some(2), true),
        "{error}"
    );
}

/// Of all runs those that are over are removed, after a question; with --yes all are.
#[test]
fn clean_all_lists_and_asks() {
    let folder = folder();
    let here = tempfile::tempdir().unwrap();
    let clean = |args: &[&str]| {
        let mut command = Command::cargo_bin("expertrail").unwrap();
        // With a namespace: without one it would look at, and end, whatever else runs on this host.
        command.args(["clean", "--all", "--namespace", "expertrail"]).args(args).current_dir(here.path());
        let output = command.env("EXPERTRAIL_KUBECTL", folder.program()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Under way: it is shown, and stays.
    let (code, said) = clean(&[]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("run bringup-abc123 in namespace expertrail: under way"), "{said}");
    assert!(said.contains("nothing was removed") && !folder.read("applied").is_empty(), "{said}");
    // Over: nobody can be asked here.
    folder.write("looks", "9");
    let (code, said) = clean(&[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("namespace expertrail: over") && said.contains("add --yes"), "{said}");
    assert!(!folder.read("applied").is_empty());
    let (code, said) = clean(&["--yes"]);
    assert_eq!((code, folder.read("applied").as_str()), (Some(0), ""), "{said}");
    let (code, said) = clean(&["--yes"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("no run is found"), "{said}");
    // Under way, and --yes.
    folder.write("applied", "x");
    folder.write("looks", "0");
    let (code, said) = clean(&["--yes"]);
    assert_eq!((code, folder.read("applied").as_str()), (Some(0), ""), "{said}");
    // One of both.
    for args in [&["clean"][..], &["clean", RUN, "--all"]] {
        assert_eq!(run(&folder, args).0.status.code(), Some(2));
    }
}

#[test]
fn clean_asks_and_removes() {
    let folder = folder();
    let (output, _, error) = run(&folder, &["clean", RUN]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("add --yes") && error.contains("node 0"), "{error}");
    assert_eq!(folder.read("applied"), "x");
    let (output, _, error) = run(&folder, &["clean", RUN, "--yes", "--context", "other"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(error.contains("removing 2 objects of run bringup-abc123"), "{error}");
    assert_eq!(folder.read("applied"), "");
    let calls = folder.read("calls");
    let deletes: Vec<&str> = calls.lines().filter(|call| call.contains(" delete ")).collect();
    assert!(!deletes.is_empty());
    for call in deletes {
        assert!(
            call.starts_with("--context=other ")
                && call.contains("-n expertrail -l expertrail.dev/run=bringup-abc123"),
            "{call}"
        );
    }
    let (output, _, error) = run(&folder, &["clean", RUN, "--yes"]);
    assert_eq!((output.status.code(), error.contains("nothing of run")), (Some(0), true), "{error}");
}

#[test]
fn rbac_prints_the_roles() {
    let folder = folder();
    let (output, text, _) = run(&folder, &["rbac", "--namespace", "bench", "--service-account", "ci"]);
    assert_eq!(output.status.code(), Some(0));
    for words in [
        "kind: ClusterRole\n",
        "resources: [mpijobs]",
        "resources: [pods/exec]",
        "- {kind: ServiceAccount, namespace: bench, name: ci}",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    let file = folder.0.path().join("run.toml");
    std::fs::write(&file, "name = \"a\"\nimage = \"x\"\n[kubernetes]\nnamespace = \"mine\"\n").unwrap();
    let (output, text, error) =
        run(&folder, &["rbac", "--run", file.to_str().unwrap(), "--user", "alice@example.com"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(text.contains("namespace: mine}") && text.contains("name: \"alice@example.com\"}"), "{text}");
    assert!(!text.contains("mpijobs") && !text.contains("exec") && !text.contains("daemonsets"), "{text}");
    assert_eq!(folder.read("calls"), "", "no cluster is asked");
}
