//! The command `launch` on Kubernetes: the files that `render` writes, a program that stands for kubectl, the real clock.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "../../launch/tests/drive_kube/folder.rs"]
mod folder;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use expertrail_launch::worker::frame;
use folder::Folder;
use serde_json::{Value, json};

const RUN: &str = "bringup-abc123";

fn pod(index: u32, state: &Value) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"name": format!("{RUN}-{index}-abcde"), "labels": {"expertrail.dev/run": RUN, "batch.kubernetes.io/job-completion-index": index.to_string()}, "ownerReferences": [{"kind": "Job", "name": RUN}]},
        "spec": {"nodeName": format!("gpu-{index}"), "containers": [{"name": "ranks", "image": "i"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "ranks", "restartCount": 0, "state": state}]}
    })
}

fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8", "cpu": "176", "memory": "2000Gi"}
        }
    })
}

/// A cluster on which the run's pods run for three looks and then are as `last` says.
fn cluster(last: &Value) -> Folder {
    let running = json!({"running": {}});
    let folder = Folder::new(
        &[pod(0, &running), pod(1, &running)],
        &[pod(0, last), pod(1, last)],
        &[node("gpu-0"), node("gpu-1")],
    );
    folder.write(
        "run.toml",
        "name = \"bringup\"\nengine = \"command\"\ncommand = [\"true\"]\nprofile = \"crusoe-h200\"\nimage = \"ghcr.io/owner/image:tag\"\n\
         [kubernetes]\nbinary = \"image\"\ntolerations = [\"nvidia.com/gpu\"]\n",
    );
    folder
}

/// The log of a node with a file in it, as the worker writes it.
fn log_with_file(node: u32) -> String {
    let mut frames = Vec::new();
    frame::write("collected/note.txt", format!("from node {node}\n").as_bytes(), &mut frames).unwrap();
    let frames = String::from_utf8(frames).unwrap();
    let mut text = format!("2026-03-01T00:00:01.1Z worker: node {node} of 2: starting ranks as true\n");
    for line in frames.lines() {
        text = text + "2026-03-01T00:00:02.1Z " + line + "\n";
    }
    text.push_str("2026-03-01T00:00:03.1Z [rank 0] dispatch 100 us\n");
    text + &format!("2026-03-01T00:00:09.1Z worker: node {node}: all ranks passed\n")
}

fn spawn(cluster: &Folder, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_expertrail"))
        .args(args)
        .current_dir(cluster.0.path())
        .env("EXPERTRAIL_KUBECTL", cluster.program())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn outcome(bundle: &Path) -> Value {
    serde_json::from_slice(&fs::read(bundle.join("outcome.json")).unwrap()).unwrap()
}

const LAUNCH: [&str; 9] =
    ["launch", "run.toml", "--target", "k8s-job", "-o", "run", "--run-id", RUN, "--yes"];

#[test]
fn from_run_toml_to_a_clean_cluster() {
    let ended =
        json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-03-01T00:01:00Z"}});
    let cluster = cluster(&ended);
    cluster.write("log-0", &log_with_file(0));
    cluster.write("log-1", &log_with_file(1));
    let output = spawn(&cluster, &LAUNCH).wait_with_output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for words in [
        "context: script-context",
        "Job bringup-abc123: 2 pods",
        "[rank 0] dispatch 100 us",
        "running on 2 nodes",
    ] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    assert_eq!(cluster.read("applied"), "", "nothing is left");
    let bundle = cluster.0.path().join("run/results/1");
    assert_eq!(outcome(&bundle)["ending"]["kind"], "succeeded");
    let log = fs::read_to_string(bundle.join(format!("logs/{RUN}-1-abcde.log"))).unwrap();
    assert!(log.contains("worker: node 1: all ranks passed") && !log.contains("::expertrail-file"), "{log}");
    // The files of both nodes came out of the logs; the second of one name has a name of its own.
    let mut notes: Vec<String> = fs::read_dir(bundle.join("collected"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    notes.sort();
    assert_eq!(notes, ["from node 0\n", "from node 1\n"]);
    // What was applied are the rendered files.
    let calls = cluster.read("calls");
    assert!(calls.contains("apply -n expertrail --dry-run=server"), "{calls}");
}

#[test]
fn ctrl_c_collects_and_cleans() {
    let cluster = cluster(&json!({"running": {}}));
    // The run never ends by itself.
    cluster.write("complete.json", &cluster.read("running.json"));
    let child = spawn(&cluster, &LAUNCH);
    let until = Instant::now() + Duration::from_mins(1);
    while !cluster.read("calls").contains("logs ") {
        assert!(Instant::now() < until, "no log was asked for: {}", cluster.read("calls"));
        std::thread::sleep(Duration::from_millis(50));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert_eq!(cluster.read("applied"), "", "nothing is left");
    let bundle = cluster.0.path().join("run/results/1");
    assert_eq!(outcome(&bundle)["ending"]["kind"], "interrupted");
    assert!(bundle.join(format!("logs/{RUN}-0-abcde.log")).is_file());
}

#[test]
fn who_may_not_gets_the_role() {
    let cluster = cluster(&json!({"running": {}}));
    let script = cluster
        .read("kubectl")
        .replace("\"auth can-i \"*) echo yes ;;", "\"auth can-i \"*) echo no; exit 1 ;;");
    assert!(script.contains("echo no"));
    cluster.write("kubectl", &script);
    let output = spawn(&cluster, &LAUNCH).wait_with_output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("kind: Role\n") && said.contains("create jobs.batch in expertrail"), "{said}");
    assert!(!cluster.read("calls").contains(" apply "));
}
