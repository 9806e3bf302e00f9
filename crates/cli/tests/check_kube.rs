//! `expertrail check --kube`, with a program that stands for kubectl, and with kubectl itself where no cluster is.
#![allow(clippy::unwrap_used)] // what a helper does not expect is the test's failure

#[path = "../../cluster/tests/kube/folder.rs"]
mod folder;
#[path = "../../cluster/tests/kube/world.rs"]
mod world;

use assert_cmd::Command;
use folder::Folder;
use serde_json::{Value, json};
use world::World;

fn check(folder: &Folder, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("expertrail").unwrap();
    command.env("EXPERTRAIL_KUBECTL", folder.program()).args(["check", "--kube"]).args(args);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_healthy_cluster() {
    let folder = Folder::new(&World::healthy());
    let (code, out, error) = check(&folder, &["--for", "deepep-ibgda", "--strict"]);
    assert_eq!(code, 0, "{out}{error}");
    let line = format!("{:<55} ready=true/true/true params=2/2 modules=2/2\n", "gpu-a");
    assert!(out.contains(&line), "{out}");
    assert!(
        out.starts_with("context script-context, server https://k8s.test:6443, Kubernetes v1.31.4\n"),
        "{out}"
    );
    assert!(out.contains("script-context for deepep-ibgda: PASS"), "{out}");
    // No terminal: nothing but the report.
    assert_eq!(error, "");
}

#[test]
fn a_patch_that_was_applied_in_part() {
    let mut world = World::healthy();
    world.at("nvidiadrivers", 0)["spec"]["rdma"]["enabled"] = json!(false);
    let folder = Folder::new(&world);
    let (code, out, _) = check(&folder, &["--for", "deepep-ibgda", "--context", "lab"]);
    assert_eq!(code, 1, "{out}");
    let first = out.lines().find(|line| line.starts_with("FAIL")).unwrap();
    assert!(first.starts_with("FAIL    P305 nvidiadriver h200: "), "{first}");
    assert!(out.contains("kubectl --context lab patch nvidiadriver h200 --type=merge -p '{"), "{out}");
    // Our own library does not demand it.
    let (code, out, _) = check(&folder, &[]);
    assert_eq!(code, 0, "{out}");
}

#[test]
fn the_document() {
    let folder = Folder::new(&World::healthy());
    let (code, out, _) = check(&folder, &["--json", "-"]);
    assert_eq!(code, 0);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["schema"], "expertrail.findings/1");
    assert_eq!(document["verdict"], "pass");
    assert_eq!(document["nodes"].as_array().unwrap().len(), 2);
}

#[test]
fn arguments() {
    let folder = Folder::new(&World::healthy());
    for wrong in [
        &["--probe"][..],
        &["--facts", "x.json"],
        &["--root", "/"],
        &["--kube-timeout", "0"],
        &["--profile", "no-such"],
        &["--probe-host=some"],
    ] {
        let (code, _, error) = check(&folder, wrong);
        assert_eq!(code, 2, "{wrong:?}: {error}");
    }
    let alone = Command::cargo_bin("expertrail").unwrap().args(["check", "--context", "x"]).output().unwrap();
    assert_eq!(alone.status.code(), Some(2));
}

#[test]
fn no_access_is_four() {
    let folder = Folder::new(&World::healthy());
    folder.write(
        "version.json.err",
        "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?\n",
    );
    let (code, out, error) = check(&folder, &["--context", "lab"]);
    assert_eq!((code, out.as_str()), (4, ""));
    assert!(error.contains("context `lab`") && error.contains("10.0.0.1:6443 was refused"), "{error}");
    let missing = Command::cargo_bin("expertrail")
        .unwrap()
        .env("EXPERTRAIL_KUBECTL", "/no/such/kubectl")
        .args(["check", "--kube"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(4));
}

/// kubectl as it is installed here, and a port where nobody listens.
#[test]
fn kubectl_itself_finds_no_cluster() {
    if !std::process::Command::new("kubectl")
        .args(["version", "--client"])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("not run: there is no kubectl here");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": format!("http://{free}")}}],
        "users": [], "contexts": [{"name": "lab", "context": {"cluster": "c", "user": ""}}]});
    let file = home.path().join("config");
    std::fs::write(&file, config.to_string()).unwrap();
    let output = Command::cargo_bin("expertrail")
        .unwrap()
        .env("HOME", home.path())
        .env_remove("EXPERTRAIL_KUBECTL")
        .env_remove("KUBECTL")
        .env_remove("KUBECONFIG")
        .args(["check", "--kube", "--context", "lab", "--kubeconfig"])
        .arg(&file)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("context `lab`") && error.contains(&free.to_string()), "{error}");
}
