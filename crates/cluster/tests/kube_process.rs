//! The real way to kubectl: a process with a deadline. A script stands for kubectl; where kubectl itself is installed, that too.
#![allow(clippy::unwrap_used)] // what a helper does not expect is the test's failure

#[path = "kube/folder.rs"]
mod folder;
#[path = "kube/world.rs"]
mod world;

use std::time::{Duration, Instant};

use expertrail_cluster::check::Verdict;
use expertrail_cluster::finding::Status;
use expertrail_cluster::kube::{self, KubeError, Kubectl, KubectlError, Options, Process};
use folder::Folder;
use world::{World, options, worst};

#[test]
fn a_healthy_cluster_through_a_process() {
    let folder = Folder::new(&World::healthy());
    let mut kubectl = Process::new(folder.program());
    kubectl.kubeconfig = Some("/some/where".into());
    let report = kube::check(&options(), &kubectl).unwrap();
    assert_eq!(report.checks.verdict, Verdict::Pass, "{}", report.text(false));
    assert_eq!(report.context.as_deref(), Some("script-context"));
    assert!(report.nodes[1].to_string().ends_with(" ready=true/true/true params=2/2 modules=2/2"));
    let calls = folder.read("calls");
    for call in calls.lines() {
        assert!(call.starts_with("--kubeconfig /some/where "), "{call}");
        assert!(call.contains("--request-timeout=60s"), "{call}");
        assert!(call.contains("--context=script-context ") || call.contains("current-context"), "{call}");
        assert!(
            !["delete", "patch", "apply", "drain", "cordon", "debug"]
                .iter()
                .any(|verb| call.contains(&format!(" {verb} "))),
            "{call}"
        );
    }
    assert!(calls.lines().count() > 20);
}

#[test]
fn a_context_that_is_given_is_never_looked_up() {
    let folder = Folder::new(&World::healthy());
    let given = Options { context: Some("other".to_owned()), ..options() };
    let report = kube::check(&given, &Process::new(folder.program())).unwrap();
    assert_eq!(report.context.as_deref(), Some("other"));
    let calls = folder.read("calls");
    assert!(calls.lines().all(|call| call.starts_with("--context=other ")), "{calls}");
    assert!(
        report.text(false).starts_with("context other, server https://k8s.test:6443, Kubernetes v1.31.4\n")
    );
}

#[test]
fn a_call_that_hangs_is_ended_with_its_children_and_the_rest_goes_on() {
    let folder = Folder::new(&World::healthy());
    folder.write("topo-driver-a.hang", "");
    let start = Instant::now();
    let limited = Options { call_limit: Duration::from_secs(3), ..options() };
    let report = kube::check(&limited, &Process::new(folder.program())).unwrap();
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    assert_eq!(worst(&report, "P326"), Status::Unknown);
    assert_eq!(worst(&report, "P312"), Status::Pass);
    let sleeper = folder.read("sleepers").trim().to_owned();
    let ended = Instant::now() + Duration::from_secs(5);
    let runs =
        || std::fs::read_to_string(format!("/proc/{sleeper}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while runs() && Instant::now() < ended {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!runs(), "the child {sleeper} still runs");
}

#[test]
fn a_cluster_that_does_not_answer() {
    let folder = Folder::new(&World::healthy());
    folder.write("version.json.hang", "");
    let limited = Options { call_limit: Duration::from_secs(2), ..options() };
    let error = kube::check(&limited, &Process::new(folder.program())).unwrap_err();
    // kubectl gave no answer: it is not known whether the server or a credential plugin is why, so both are named.
    assert!(matches!(&error, KubeError::Kubectl { .. }), "{error}");
    for part in
        ["context `script-context`", "server https://k8s.test:6443", "within 2 s", "credential plugin"]
    {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    folder.write("version.json.hang", "");
    std::fs::remove_file(folder.path().join("version.json.hang")).unwrap();
    folder.write("version.json.err", "error: You must be logged in to the server (Unauthorized)\n");
    let error = kube::check(&options(), &Process::new(folder.program())).unwrap_err();
    assert!(error.to_string().contains("You must be logged in"), "{error}");
}

#[test]
fn what_is_refused_through_a_process() {
    let folder = Folder::new(&World::healthy());
    folder.write("nodes.json.err", "Error from server (Forbidden): nodes is forbidden: User \"me\" cannot list resource \"nodes\" in API group \"\" at the cluster scope\n");
    folder.write(
        "nicclusterpolicies.json.err",
        "error: the server doesn't have a resource type \"nicclusterpolicies\"\n",
    );
    let report = kube::check(&options(), &Process::new(folder.program())).unwrap();
    assert_eq!(worst(&report, "P318"), Status::Unknown);
    assert_eq!(worst(&report, "P312"), Status::Pass);
    assert_eq!(report.checks.verdict, Verdict::Inconclusive);
}

#[test]
fn too_much_is_not_taken() {
    let folder = Folder::new(&World::healthy());
    folder.write("nodes.json.big", "8388608");
    let mut kubectl = Process::new(folder.program());
    kubectl.output_limit = 1 << 20;
    let answer = kubectl.run(&["get", "nodes", "-o", "json"], Duration::from_secs(20));
    assert!(matches!(answer, Err(KubectlError::TooLong { limit: 1_048_576, .. })), "{answer:?}");
    let report = kube::check(&options(), &kubectl).unwrap();
    assert_eq!(worst(&report, "P318"), Status::Unknown);
}

#[test]
fn no_kubectl() {
    let error = kube::check(&options(), &Process::new("/no/such/kubectl")).unwrap_err();
    assert!(matches!(error, KubeError::Kubectl { .. }));
    assert_eq!(
        error.to_string(),
        "there is no program `/no/such/kubectl`: install kubectl, or name it in EXPERTRAIL_KUBECTL"
    );
    // A file that is no program.
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = kube::check(&options(), &Process::new(file.path())).unwrap_err();
    assert!(error.to_string().starts_with("cannot run"), "{error}");
}
