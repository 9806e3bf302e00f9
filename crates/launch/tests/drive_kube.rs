//! Launches on a scripted cluster: what the person is told, what is kept, and that nothing stays.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "drive_kube/answers.rs"]
mod answers;
#[path = "drive_kube/case.rs"]
mod case;
#[path = "drive_kube/trouble.rs"]
mod trouble;
#[path = "drive_kube/world.rs"]
mod world;

use expertrail_launch::drive::kube::Options;
use expertrail_launch::drive::{DriveError, Ending};
use serde_json::json;

use case::{Case, has};
use world::{Main, Moment, World, node, ok, pod, refused, stamp};

const RUN: &str = "bringup-abc123";
const NAMESPACE: &str = "expertrail";

fn name(index: u32) -> String {
    format!("{RUN}-{index}-abcde")
}

fn both(one: Main, other: Main) -> Vec<serde_json::Value> {
    vec![pod(RUN, 0, one), pod(RUN, 1, other)]
}

/// Logs of two nodes until second `t`: the ranks start at 30 and 40, and pass at 90.
fn logs(t: u64) -> Vec<(String, Vec<(u64, String)>)> {
    let node = |index: u64, start: u64| {
        let all = vec![
            (
                start - 10,
                format!(
                    "worker: node {index} of 2 (JOB_COMPLETION_INDEX) on x: run {RUN}, ranks, contract ranks"
                ),
            ),
            (start - 9, "::expertrail-file v1 facts/node-0.json 1/1 0 H4sI".to_owned()),
            (start, format!("worker: node {index} of 2: starting ranks as true")),
            (60, format!("[rank {}] dispatch 100 us", index * 8)),
            (60, format!("[rank {}] dispatch 101 us", index * 8 + 1)),
            (90, format!("worker: node {index}: all ranks passed")),
        ];
        let name = name(index as u32);
        (name, all.into_iter().filter(|(at, _)| *at <= t).collect())
    };
    vec![node(0, 30), node(1, 40)]
}

/// A run that goes well.
fn well(t: u64) -> Moment {
    let pulls = "Pulling image \"ghcr.io/owner/image:tag\"".to_owned();
    match t {
        0..=9 => Moment {
            pods: both(Main::Waits("ContainerCreating", ""), Main::Waits("ContainerCreating", "")),
            events: vec![(name(0), "Pulling", pulls.clone(), 1), (name(1), "Pulling", pulls, 1)],
            ..Moment::default()
        },
        10..=89 => Moment {
            pods: both(Main::Runs, Main::Runs),
            logs: logs(t).into_iter().collect(),
            ..Moment::default()
        },
        _ => Moment {
            pods: both(Main::Ended(0, "Completed", 90), Main::Ended(0, "Completed", 91)),
            conditions: if t >= 93 { vec![("Complete", "CompletionsReached", "")] } else { Vec::new() },
            logs: logs(t).into_iter().collect(),
            ..Moment::default()
        },
    }
}

#[test]
fn a_run_that_goes_well() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let world = World::new(RUN, NAMESPACE, well);
    let launched = case.launch(&world, None);
    assert_eq!(launched.ending, Ok(Ending::Succeeded), "{:#?}", launched.shown.0);
    let lines = launched.lines.join("\n");
    has(
        &lines,
        &[
            "cluster: https://k8s.test:6443",
            "context: test-context, the current one",
            "user: alice",
            "namespace: expertrail (will be made)",
            "Job bringup-abc123: 2 pods, each 8 nvidia.com/gpu, 8 nvidia.com/hostdev, 158 CPUs, 900Gi memory; image ghcr.io/owner/image:tag",
            "Service bringup-abc123",
            "2 of 2 nodes can hold a pod of this run, if nothing else uses them: gpu-1, gpu-2",
        ],
    );
    has(
        &launched.shown.states(),
        &[
            "0 of 2 nodes at the rendezvous; node 0 (pod bringup-abc123-0-abcde on gpu-1): pulling the image on gpu-1",
            "1 of 2 nodes at the rendezvous; node 1 (pod bringup-abc123-1-abcde on gpu-2): runs, its ranks have not started yet",
            "running on 2 nodes",
        ],
    );
    // Rank 0's node, once each, without parts of files and without rank 1.
    assert_eq!(
        launched.shown.lines(),
        [
            "worker: node 0 of 2 (JOB_COMPLETION_INDEX) on x: run bringup-abc123, ranks, contract ranks",
            "worker: node 0 of 2: starting ranks as true",
            "[rank 0] dispatch 100 us",
            "worker: node 0: all ranks passed",
        ]
    );
    has(
        &launched.bundle.logs[&name(1)],
        &["[rank 9] dispatch 101 us", "::expertrail-file v1", "worker: node 1: all ranks passed"],
    );
    has(&launched.bundle.states["objects.json"], &["bringup-abc123-1-abcde", "\"Job\""]);
    assert!(
        launched.bundle.states.contains_key("events.json")
            && launched.bundle.states.contains_key("nodes.json")
    );
    launched.clean(&world);
    assert_eq!(
        world.objects(),
        Vec::<String>::new(),
        "the namespace was made by the run, so it goes with it"
    );
    // All logs were read before anything was deleted.
    let calls = world.calls();
    let first = calls.iter().position(|call| call.starts_with("delete")).unwrap();
    let last = calls.iter().rposition(|call| call.starts_with("logs")).unwrap();
    assert!(last < first);
    // The server was asked before anything was made.
    let applies: Vec<&String> = calls.iter().filter(|call| call.starts_with("apply")).collect();
    assert!(applies[1].contains("--dry-run=server") && !applies[2].contains("--dry-run"), "{applies:?}");
}

#[test]
fn complete_is_believed_only_with_each_workers_word() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    // The log of node 1 lacks the worker's last line.
    let world = World::new(RUN, NAMESPACE, |t| {
        let mut moment = well(t);
        moment.logs.get_mut(&name(1)).into_iter().for_each(|lines| lines.retain(|(at, _)| *at < 90));
        moment
    });
    let launched = case.launch(&world, None);
    has(&launched.failed().0, &["says it is complete", "node 1", "0 of 1 steps"]);
    // One pod is not there.
    let world = World::new(RUN, NAMESPACE, |t| {
        let mut moment = well(t);
        if t > 90 {
            moment.pods.pop();
        }
        moment
    });
    has(&case.launch(&world, None).failed().0, &["node 1 has no pod"]);
}

#[test]
fn what_is_there_already_is_not_touched() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let world = World::new(RUN, NAMESPACE, well);
    world.put(&json!({"kind": "Job", "metadata": {"name": RUN, "labels": {"expertrail.dev/run": RUN}}}));
    let launched = case.launch(&world, None);
    has(
        &launched.error().to_string(),
        &[
            "run bringup-abc123 exists already",
            "expertrail clean bringup-abc123 --context test-context --namespace expertrail",
            "--run-id",
        ],
    );
    assert_eq!(launched.error().exit_code(), 2);
    // A Service of that name that is somebody else's.
    let mut world = World::new(RUN, NAMESPACE, well);
    world.hook(|args, _| {
        args.contains(&"--ignore-not-found")
            .then(|| args.contains(&"-o").then(|| Ok(ok("service/bringup-abc123\n"))))?
    });
    let launched = case.launch(&world, None);
    has(&launched.error().to_string(), &["not of this run", "service/bringup-abc123"]);
    assert!(world.calls().iter().all(|call| !call.starts_with("apply") && !call.starts_with("delete")));
}

#[test]
fn a_namespace_that_was_there_stays_as_it_was() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let world = World::new(RUN, NAMESPACE, well);
    let theirs = json!({"kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {"team": "x"}}});
    world.put(&theirs);
    let launched = case.launch(&world, None);
    assert_eq!(launched.ending, Ok(Ending::Succeeded));
    launched.clean(&world);
    assert_eq!(world.objects(), ["namespace/expertrail"]);
    assert!(world.calls().iter().all(|call| !call.starts_with("delete namespace")));
    // Made by the run, but somebody has put something into it since.
    let mut world = World::new(RUN, NAMESPACE, well);
    world.hook(|args, _| {
        let content = args[0] == "get" && args[1] == "secrets" && !args.contains(&"-l");
        content.then(|| Ok(ok(json!({"items": [{"metadata": {"name": "somebodys"}}]}).to_string())))
    });
    let launched = case.launch(&world, None);
    launched.clean(&world);
    has(&launched.shown.rest(), &["namespace expertrail stays: secrets/somebodys is in it"]);
    assert_eq!(world.objects(), ["namespace/expertrail"]);
}

#[test]
fn another_context_or_namespace_than_rendered_is_refused() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\ncontext = \"prod\"\n");
    let world = World::new(RUN, NAMESPACE, well);
    let other = Options { context: Some("dev".to_owned()), ..case.options() };
    let launched = case.launch_with(&world, None, other);
    has(
        &launched.error().to_string(),
        &["--context dev", "rendered for context prod", "--set kubernetes.context=dev"],
    );
    let other = Options { namespace: Some("elsewhere".to_owned()), ..case.options() };
    has(&case.launch_with(&world, None, other).error().to_string(), &["rendered for namespace expertrail"]);
    assert_eq!(world.calls(), Vec::<String>::new(), "nothing was asked");
    assert_eq!(case.launch(&world, None).ending, Ok(Ending::Succeeded));
    assert!(!world.calls().iter().any(|call| call.contains("current-context")));
    // A namespace of the system in a manifest that somebody edited.
    let mut case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    case.run.kubernetes.namespace = "kube-system".to_owned();
    let launched = case.launch(&world, None);
    assert!(matches!(launched.error(), DriveError::Refused(_)), "{:?}", launched.ending);
}

#[test]
fn requests_above_what_any_node_has_are_refused_and_small_clusters_warned_of() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    case.write("manifest.yaml", &case.manifest("3000Gi"));
    let world = World::new(RUN, NAMESPACE, well);
    let launched = case.launch(&world, None);
    assert_eq!(launched.error().exit_code(), 2);
    has(
        &launched.error().to_string(),
        &["above what is allocatable", "gpu-1 (memory: 3000Gi asked, 2000Gi allocatable)", "gpu-2"],
    );
    assert!(world.calls().iter().all(|call| !call.starts_with("apply")));
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let mut world = World::new(RUN, NAMESPACE, well);
    world.nodes = vec![node("gpu-1", 2000), node("gpu-2", 2000)];
    world.nodes[1]["spec"]["taints"] = json!([{"key": "workload", "value": "train", "effect": "NoSchedule"}]);
    let launched = case.launch(&world, None);
    has(
        &launched.shown.rest(),
        &["2 nodes are needed and 1 can hold a pod now", "gpu-2 has the taint workload=train:NoSchedule"],
    );
    assert_eq!(launched.ending, Ok(Ending::Succeeded));
}

#[test]
fn a_binary_is_copied_into_each_pod_that_waits_for_it() {
    let case = Case::new("[kubernetes]\nbinary = \"copy\"\n");
    let script = |t: u64| match t {
        0..=4 => {
            Moment { pods: both(Main::Binary, Main::Waits("ContainerCreating", "")), ..Moment::default() }
        }
        5..=9 => Moment { pods: both(Main::Binary, Main::Binary), ..Moment::default() },
        _ => well(t),
    };
    let world = World::new(RUN, NAMESPACE, script);
    let launched = case.launch(&world, None);
    assert_eq!(launched.ending, Ok(Ending::Succeeded), "{:#?}", launched.shown.0);
    assert_eq!(world.copied(), [(name(0), 1000), (name(1), 1000)]);
    // Where exec is refused the reason is given, with the way that needs none.
    let mut world = World::new(RUN, NAMESPACE, move |t| script(t.min(9)));
    world.hook(|args, _| {
        (args[0] == "exec").then(|| Ok(refused("error: unable to upgrade connection: Forbidden")))
    });
    let launched = case.launch(&world, None);
    has(
        launched.never(),
        &["cannot be copied into node 0", "unable to upgrade connection", "binary = \"init\""],
    );
    launched.clean(&world);
}

#[test]
fn the_image_is_pulled_first_where_that_is_asked_for() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\nprepull = true\n");
    // The DaemonSet's time runs until it is ready at 100; then the Job's begins.
    let world =
        World::new(RUN, NAMESPACE, |t| Moment { pulled: (2, if t >= 100 { 2 } else { 1 }), ..well(t) });
    // While only the DaemonSet is there its pods are asked for, not the Job's.
    let launched = case.launch(&world, None);
    assert_eq!(launched.ending, Ok(Ending::Succeeded), "{:#?}", launched.shown.0);
    has(&launched.shown.states(), &["the image is on 1 of 2 nodes"]);
    has(
        &launched.shown.rest(),
        &[
            "applying DaemonSet bringup-abc123-prepull",
            "the image is on 2 nodes",
            "applying Service bringup-abc123, Job bringup-abc123",
        ],
    );
    let calls = world.calls();
    let gone = calls.iter().position(|call| call.starts_with("delete daemonsets")).unwrap();
    let applied = calls.iter().rposition(|call| call.starts_with("apply")).unwrap();
    assert!(gone < applied);
    launched.clean(&world);
}

#[test]
fn ctrl_c_in_each_phase_leaves_logs_and_no_objects() {
    for (extra, at) in [("", 0), ("", 5), ("", 50), ("", 92), ("prepull = true\n", 20)] {
        let case = Case::new(&format!("[kubernetes]\nbinary = \"image\"\n{extra}"));
        let world = World::new(RUN, NAMESPACE, |t| Moment { pulled: (2, 0), ..well(t) });
        let launched = case.launch(&world, Some(at));
        assert_eq!(launched.ending, Ok(Ending::Interrupted), "at {at}");
        launched.clean(&world);
        assert_eq!(world.objects(), Vec::<String>::new(), "at {at}");
        if at >= 50 {
            has(&launched.bundle.logs[&name(1)], &["starting ranks"]);
        }
    }
}

#[test]
fn cleaning_twice_is_no_error_and_what_stays_is_named() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let mut world = World::new(RUN, NAMESPACE, well);
    // A pod whose node is away does not go.
    world.hook(|args, t| {
        (t > 92 && args[0] == "get" && args[1] == "pods" && args.contains(&"name"))
            .then(|| Ok(ok(format!("pod/{}\n", name(1)))))
    });
    let launched = case.launch(&world, None);
    let error = launched.cleaned.unwrap_err().to_string();
    has(
        &error,
        &["not wholly removed", &name(1), "whose node does not answer", "expertrail clean bringup-abc123"],
    );
    let world = World::new(RUN, NAMESPACE, well);
    let launched = case.launch(&world, None);
    launched.clean(&world);
    let again = case.launch(&world, Some(0));
    assert_eq!(again.cleaned, Ok(()));
}

/// A launcher or a worker of the `MPIJob` that runs.
fn mpi_pod(role: &str, state: &serde_json::Value) -> serde_json::Value {
    let index = role.rsplit_once('-').map(|(_, index)| index);
    let mut value = json!({
        "kind": "Pod",
        "metadata": {
            "name": format!("JOB-{role}"),
            "labels": {"expertrail.dev/run": RUN, "training.kubeflow.org/job-name": "JOB", "training.kubeflow.org/job-role": role.split('-').next().unwrap()},
            "ownerReferences": [{"kind": "MPIJob", "name": "JOB"}],
            "creationTimestamp": stamp(0)
        },
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "restartCount": 0, "state": state}]}
    });
    if let Some(index) = index {
        value["metadata"]["labels"]["training.kubeflow.org/replica-index"] = json!(index);
    }
    value
}

#[test]
fn mpijobs_run_one_after_the_other_and_the_first_failure_ends_them() {
    let case = Case::mpi();
    let names: Vec<&str> = case.run.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["intranode", "internode", "low-latency"]);
    let running = json!({"running": {}});
    let well = move |t: u64| Moment {
        pods: match t {
            0..=29 => vec![
                mpi_pod("launcher", &running),
                mpi_pod("worker-0", &running),
                mpi_pod("worker-1", &running),
            ],
            _ => vec![mpi_pod(
                "launcher",
                &json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": stamp(30)}}),
            )],
        },
        conditions: if t >= 32 { vec![("Succeeded", "MPIJobSucceeded", "")] } else { Vec::new() },
        logs: [(
            "JOB-launcher".to_owned(),
            vec![(10, "[1,0]<stdout>:Best dispatch: 50 GB/s (RDMA)".to_owned())],
        )]
        .into(),
        ..Moment::default()
    };
    let world = World::new(RUN, NAMESPACE, well.clone());
    let launched = case.launch(&world, None);
    assert_eq!(launched.ending, Ok(Ending::Succeeded), "{:#?}", launched.shown.0);
    has(&launched.shown.states(), &["2 of 2 workers are up, the launcher runs"]);
    let order: Vec<usize> = [
        "made mpijob/bringup-abc123-intranode",
        "applying MPIJob bringup-abc123-internode",
        "applying MPIJob bringup-abc123-low-latency",
    ]
    .map(|words| launched.shown.rest().find(words).unwrap_or_else(|| panic!("{}", launched.shown.rest())))
    .to_vec();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(launched.shown.lines().len(), 3, "each launcher's line once: {:?}", launched.shown.lines());
    // Logs of launchers that were followed, of all three.
    for step in names {
        has(&launched.bundle.logs[&format!("{RUN}-{step}-launcher")], &["Best dispatch"]);
    }
    launched.clean(&world);
    // The launcher fails in the first: the others are not begun.
    let world = World::new(RUN, NAMESPACE, move |t| {
        let mut moment = well(t.min(31));
        if t >= 30 {
            moment.pods = vec![mpi_pod(
                "launcher",
                &json!({"terminated": {"exitCode": 2, "reason": "Error", "finishedAt": stamp(30)}}),
            )];
            moment.conditions = vec![("Failed", "BackoffLimitExceeded", "")];
        }
        moment
    });
    let launched = case.launch(&world, None);
    let (reason, code) = launched.failed();
    has(&reason, &["launcher (pod bringup-abc123-intranode-launcher on gpu-1) ended with exit code 2"]);
    assert_eq!(code, Some(2));
    assert!(!launched.shown.rest().contains("applying MPIJob bringup-abc123-internode"));
    launched.clean(&world);
    // The cluster knows no MPIJobs.
    let mut world = World::new(RUN, NAMESPACE, |_| Moment::default());
    world.hook(|args, _| {
        let asked = args.contains(&"customresourcedefinitions") && args[0] == "get";
        asked.then(|| Ok(refused("Error from server (NotFound): customresourcedefinitions.apiextensions.k8s.io \"mpijobs.kubeflow.org\" not found")))
    });
    has(&case.launch(&world, None).error().to_string(), &["MPI Operator is not installed", "k8s-job"]);
}

/// The files that `render` writes are understood: what they make, in which order, and what their pods ask for.
#[test]
fn rendered_files_are_what_is_launched() {
    let case = Case::new("[kubernetes]\nbinary = \"copy\"\nprepull = true\n").rendered();
    let world = World::new(RUN, NAMESPACE, |t| Moment {
        pulled: (2, 2),
        pods: if t < 10 { both(Main::Binary, Main::Binary) } else { well(t).pods },
        ..well(t)
    });
    let launched = case.launch(&world, None);
    assert_eq!(launched.ending, Ok(Ending::Succeeded), "{:#?}", launched.shown.0);
    // Checklist 32: 8 GPUs, 8 NICs and 1700Gi of an H200 node.
    has(
        &launched.lines.join("\n"),
        &[
            "Job bringup-abc123: 2 pods, each 8 nvidia.com/gpu, 8 nvidia.com/hostdev, 158 CPUs, 1700Gi memory",
            "host folder /etc/crusoe",
            "2 of 2 nodes can hold",
        ],
    );
    has(
        &launched.shown.rest(),
        &[
            "making namespace expertrail",
            "applying DaemonSet bringup-abc123-prepull",
            "the image is on 2 nodes",
        ],
    );
    assert_eq!(world.copied().len(), 2);
    launched.clean(&world);
    assert_eq!(world.objects(), Vec::<String>::new());
    let case = Case::mpi().rendered();
    let mut world = World::new(RUN, NAMESPACE, |t| Moment {
        pods: vec![mpi_pod("launcher", &json!({"running": {}}))],
        conditions: if t > 5 { vec![("Succeeded", "", "")] } else { Vec::new() },
        ..Moment::default()
    });
    let efa = json!({"vpc.amazonaws.com/efa": "16", "hugepages-2Mi": "5120Mi", "nvidia.com/gpu": "8", "memory": "2000Gi", "cpu": "190"});
    for node in &mut world.nodes {
        node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = json!("p5en.48xlarge");
        node["status"]["allocatable"] = efa.clone();
    }
    let launched = case.launch(&world, None);
    assert_eq!(launched.ending, Ok(Ending::Succeeded), "{:#?} {:#?}", launched.lines, launched.shown.0);
    // Section 2: 16 EFA devices and 5120Mi of huge pages of a p5en.
    has(
        &launched.lines.join("\n"),
        &["16 vpc.amazonaws.com/efa", "5120Mi hugepages-2Mi", "2 of 2 nodes can hold"],
    );
    let steps = launched.shown.rest();
    has(
        &steps,
        &[
            "MPIJob bringup-abc123-intranode",
            "applying MPIJob bringup-abc123-internode",
            "applying MPIJob bringup-abc123-low-latency",
        ],
    );
    launched.clean(&world);
}

/// kubectl's own parser takes every call: against a port where nobody listens, the refusal is the connection's and never an option's.
#[test]
fn kubectl_itself_knows_every_option() {
    if std::process::Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        eprintln!("not run: no kubectl");
        return;
    }
    let mut calls = std::collections::BTreeSet::new();
    for extra in ["binary = \"copy\"\nprepull = true\n", "binary = \"image\"\n"] {
        let case = Case::new(&format!("[kubernetes]\n{extra}"));
        let world = World::new(RUN, NAMESPACE, |t| {
            let mut moment = Moment { pulled: (2, 2), ..well(t) };
            if t < 10 {
                moment.pods = both(Main::Binary, Main::Binary);
            }
            moment
        });
        case.launch(&world, None);
        calls.extend(world.calls());
    }
    let kinds: std::collections::BTreeSet<String> =
        calls.iter().map(|call| call.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert!(kinds.len() > 15, "{kinds:?}");
    let mut seen = std::collections::BTreeSet::new();
    for call in &calls {
        // Calls that differ only in names and times are one.
        let shape: String = call.chars().filter(|c| !c.is_ascii_digit()).collect();
        if !seen.insert(shape) || call.starts_with("config") {
            continue;
        }
        let args: Vec<&str> = match call.split_once(" -- ") {
            Some((head, _)) => head.split(' ').chain(["--", "true"]).collect(),
            None => call.split(' ').collect(),
        };
        let output = std::process::Command::new("kubectl")
            .args(["--server=http://127.0.0.1:1", "--request-timeout=5s"])
            .args(&args)
            .env("KUBECONFIG", "/dev/null")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let connection = ["refused", "Unable to connect", "no objects passed to apply"];
        assert!(connection.iter().any(|word| said.contains(word)), "{call}: {said}");
    }
}
