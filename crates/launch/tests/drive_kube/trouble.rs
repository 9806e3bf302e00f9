//! What goes wrong before and while a run runs, and what the person is told of it.

use expertrail_cluster::kube::KubectlError;
use expertrail_launch::drive::kube::KubeSystem;
use expertrail_launch::drive::{DriveError, Ending, System};
use serde_json::json;

use crate::case::{Case, has};
use crate::world::{Main, Moment, Shown, World, pod, refused, stamp};
use crate::{NAMESPACE, RUN, both, logs, name, well};

#[test]
fn pending_says_why_and_gives_up_after_its_time() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let world = World::new(RUN, NAMESPACE, |_| Moment {
        pods: both(
            Main::NoNode(
                "0/6 nodes are available: 4 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {workload: bench}.",
            ),
            Main::NoNode(
                "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector. preemption: no.",
            ),
        ),
        ..Moment::default()
    });
    let launched = case.launch(&world, None);
    has(
        launched.never(),
        &[
            "node 0",
            "for 10 min",
            "4 too few GPUs",
            "2 with a taint that the pod does not tolerate (workload: bench)",
            "kubernetes.tolerations",
        ],
    );
    has(&launched.shown.states(), &["node 1", "6 without the labels", "kubernetes.node_selector"]);
    // Said at once and every half minute, not at each of the 300 looks.
    let states = launched.shown.states().lines().count();
    assert!((15..=25).contains(&states), "{states}");
    assert_eq!(launched.bundle.missing.len(), 2, "{:?}", launched.bundle.missing);
    launched.clean(&world);
}

#[test]
fn an_image_that_cannot_be_pulled() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let said = "Failed to pull image \"ghcr.io/owner/image:tag\": failed to authorize: authorization failed: no basic auth credentials";
    let world = World::new(RUN, NAMESPACE, move |t| Moment {
        pods: both(
            Main::Runs,
            if t % 20 < 10 {
                Main::Waits("ErrImagePull", "rpc error")
            } else {
                Main::Waits("ImagePullBackOff", "Back-off pulling")
            },
        ),
        events: vec![
            (name(1), "Failed", said.to_owned(), 3),
            (name(1), "Failed", "Error: ErrImagePull".to_owned(), 3),
            (name(1), "FailedToRetrieveImagePullSecret", "Unable".to_owned(), 2),
        ],
        ..Moment::default()
    });
    let launched = case.launch(&world, None);
    has(
        launched.never(),
        &[
            "node 1",
            "on gpu-2",
            "90 s",
            "does not accept the credentials",
            "no basic auth credentials",
            "pull secret is not in namespace expertrail",
            "create secret docker-registry pull-secret --docker-server=ghcr.io",
            "ghcr.io/OWNER/IMAGE:TAG",
            "read:packages",
        ],
    );
    launched.clean(&world);
}

#[test]
fn what_else_keeps_a_pod_from_starting() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let never = |main: Main, event: Option<(&'static str, &'static str)>| {
        let world = World::new(RUN, NAMESPACE, move |_| Moment {
            pods: both(Main::Runs, main),
            events: event
                .into_iter()
                .map(|(reason, message)| (name(1), reason, message.to_owned(), 5))
                .collect(),
            ..Moment::default()
        });
        let launched = case.launch(&world, None);
        launched.clean(&world);
        launched.never().to_owned()
    };
    let creating = Main::Waits("ContainerCreating", "");
    has(
        &never(
            creating,
            Some((
                "FailedMount",
                "MountVolume.SetUp failed for volume \"topo\" : hostPath type check failed: /etc/crusoe is not a directory",
            )),
        ),
        &["gpu-2", "cannot mount a volume", "/etc/crusoe", "network.nccl_topo_file", "2 min"],
    );
    has(
        &never(Main::Waits("CreateContainerConfigError", "secret \"x\" not found"), None),
        &["cannot be made", "secret \"x\" not found", "60 s"],
    );
    has(
        &never(Main::Waits("InvalidImageName", "couldn't parse image name"), None),
        &["this is no name of an image"],
    );
    // Pods that cannot be made at all.
    let world = World::new(RUN, NAMESPACE, |_| Moment {
        events: vec![(
            RUN.to_owned(),
            "FailedCreate",
            "Error creating: pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\"".to_owned(),
            3,
        )],
        ..Moment::default()
    });
    has(case.launch(&world, None).never(), &["cannot make its pods", "violates PodSecurity"]);
}

#[test]
fn what_is_denied_comes_with_the_role_that_gives_it() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let mut world = World::new(RUN, NAMESPACE, well);
    world.denied = vec!["create jobs.batch", "list events"];
    let launched = case.launch(&world, None);
    assert_eq!(launched.error().exit_code(), 4);
    has(
        &launched.error().to_string(),
        &[
            "not permitted in the cluster (kubeconfig user alice): create jobs.batch in expertrail",
            "auth whoami",
            "kind: Role\nmetadata: {name: expertrail-launch, namespace: expertrail}",
            "- {apiGroups: [\"batch\"], resources: [jobs], verbs: [create, get, list, delete]}",
        ],
    );
    assert!(!launched.error().to_string().contains("pods/exec"), "nothing is copied, so no exec is needed");
    has(
        &launched.shown.rest(),
        &["not permitted: list events in expertrail; without it it cannot be said why pods wait"],
    );
    assert!(world.calls().iter().all(|call| !call.starts_with("apply") && !call.starts_with("delete")));
}

#[test]
fn a_rank_that_fails_is_named_and_the_logs_of_the_others_are_kept() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    // Node 1 fails; the controller then stops and deletes node 0's pod, with its log.
    let world = World::new(RUN, NAMESPACE, |t| {
        let mut moment = Moment {
            logs: logs(t.min(80)).into_iter().collect(),
            pods: both(Main::Runs, Main::Runs),
            ..Moment::default()
        };
        if t >= 80 {
            let failure = "worker: node 1: first failure: rank 9, exit code 1 after 40.0 s".to_owned();
            moment.logs.get_mut(&name(1)).unwrap().push((80, failure));
            moment.pods = vec![pod(RUN, 1, Main::Ended(1, "Error", 80))];
            moment.logs.remove(&name(0));
            moment.conditions =
                vec![("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")];
        }
        moment
    });
    let launched = case.launch(&world, None);
    let (reason, code) = launched.failed();
    assert_eq!(code, Some(1));
    has(
        &reason,
        &[
            "node 1 (pod bringup-abc123-1-abcde on gpu-2)",
            "ended with exit code 1",
            "rank 9, exit code 1 after 40.0 s",
        ],
    );
    has(&launched.bundle.logs[&name(0)], &["[rank 0] dispatch 100 us", "[rank 1] dispatch 101 us"]);
    has(&launched.bundle.logs[&name(1)], &["first failure: rank 9"]);
    has(
        &launched.bundle.missing.join("\n"),
        &["the end of log bringup-abc123-0-abcde", "what it had written until it was last read"],
    );
    launched.clean(&world);
}

#[test]
fn the_first_failure_in_time_counts_and_memory_is_named() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let failed = |one: Main, other: Main| {
        let world = World::new(RUN, NAMESPACE, move |t| Moment {
            pods: if t < 20 { both(Main::Runs, Main::Runs) } else { both(one, other) },
            conditions: if t < 20 { Vec::new() } else { vec![("Failed", "BackoffLimitExceeded", "")] },
            logs: logs(t.min(50)).into_iter().collect(),
            ..Moment::default()
        });
        case.launch(&world, None).failed()
    };
    let (reason, code) = failed(Main::Ended(1, "Error", 75), Main::Ended(137, "OOMKilled", 70));
    has(&reason, &["node 1", "killed for memory (OOMKilled, exit code 137)"]);
    assert_eq!(code, Some(137));
    // Within one second: the one that was stopped from outside came second.
    let (reason, code) = failed(Main::Ended(143, "Error", 70), Main::Ended(3, "Error", 70));
    has(&reason, &["node 1", "exit code 3"]);
    assert_eq!(code, Some(3));
}

#[test]
fn a_preempted_pod_is_named_though_it_is_gone() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let world = World::new(RUN, NAMESPACE, |t| {
        let mut moment = well(t.min(60));
        if t >= 50 {
            moment.pods[1]["metadata"]["deletionTimestamp"] = json!(stamp(50));
            moment.pods[1]["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempting to accommodate a higher priority pod"}]);
        }
        if t >= 60 {
            moment.pods.clear();
            moment.conditions = vec![("Failed", "BackoffLimitExceeded", "")];
        }
        moment
    });
    let launched = case.launch(&world, None);
    has(
        &launched.failed().0,
        &["node 1", "preempted by a pod of higher priority on gpu-2", "kubernetes.priority_class"],
    );
}

#[test]
fn one_node_that_does_not_come_to_the_rendezvous() {
    let case = Case::new("timeout = \"5m\"\n[kubernetes]\nbinary = \"image\"\n");
    let world = World::new(RUN, NAMESPACE, |t| Moment {
        pods: both(Main::Runs, Main::Waits("ContainerCreating", "")),
        events: vec![(name(1), "Pulling", "Pulling image".to_owned(), 1)],
        logs: logs(t.min(50)).into_iter().take(1).collect(),
        ..Moment::default()
    });
    let launched = case.launch(&world, None);
    let Ok(Ending::Deadline { state }) = &launched.ending else { panic!("{:?}", launched.ending) };
    has(state, &["1 of 2 nodes at the rendezvous", "node 1", "pulling the image on gpu-2", "min)"]);
    assert!(!state.contains("node 0"), "{state}");
    launched.clean(&world);
}

#[test]
fn a_job_that_is_gone() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let world = World::new(RUN, NAMESPACE, |t| Moment { gone: t > 50, ..well(t.min(50)) });
    has(&case.launch(&world, None).failed().0, &["somebody deleted it while it ran"]);
    // The server was away for longer than a finished Job stays.
    let case = Case::new("timeout = \"2h\"\n[kubernetes]\nbinary = \"image\"\nttl_seconds = 60\n");
    let mut world = World::new(RUN, NAMESPACE, |t| Moment { gone: t > 100, ..well(t.min(50)) });
    world.hook(|args, t| {
        (args[0] == "get" && (60..200).contains(&t))
            .then(|| Ok(refused("Unable to connect to the server: dial tcp: i/o timeout")))
    });
    let launched = case.launch(&world, None);
    has(
        &launched.failed().0,
        &["a finished Job is removed after 60 s", "kubernetes.ttl_seconds", "How it ended is not known"],
    );
    has(&launched.bundle.logs[&name(0)], &["starting ranks"]);
}

#[test]
fn a_watch_that_is_cut_goes_on_and_shows_nothing_twice() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let mut world = World::new(RUN, NAMESPACE, well);
    world.hook(|args, t| {
        let cut = (35..55).contains(&t) || (62..70).contains(&t);
        (cut && args[0] == "get").then(|| Ok(refused("The connection to the server k8s.test:6443 was refused - did you specify the right host or port?")))
    });
    world.hook(|args, t| {
        (args[0] == "logs" && (70..80).contains(&t)).then(|| {
            Err(KubectlError::Deadline { what: "logs".to_owned(), limit: std::time::Duration::from_mins(1) })
        })
    });
    let launched = case.launch(&world, None);
    assert_eq!(launched.ending, Ok(Ending::Succeeded), "{:#?}", launched.shown.0);
    has(
        &launched.shown.rest(),
        &["the API server gives no answer", "the run goes on in the cluster", "the API server answers again"],
    );
    let lines = launched.shown.lines();
    assert_eq!(lines.len(), 4, "{lines:?}");
    // It never comes back.
    let mut world = World::new(RUN, NAMESPACE, well);
    world.hook(|args, t| {
        (t > 35 && t < 600 && args[0] == "get")
            .then(|| Ok(refused("Unable to connect to the server: i/o timeout")))
    });
    let launched = case.launch(&world, None);
    has(&launched.error().to_string(), &["does not answer", "https://k8s.test:6443"]);
    assert_eq!(launched.error().exit_code(), 4);
}

#[test]
fn credentials_that_have_expired() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let gone = "error: You must be logged in to the server (the server has asked for the client to provide credentials)";
    let mut world = World::new(RUN, NAMESPACE, well);
    world.hook(move |args, _| (args[0] != "config").then(|| Ok(refused(gone))));
    let launched = case.launch(&world, None);
    has(
        &launched.error().to_string(),
        &["credentials of context test-context are not accepted", "expired", "auth whoami"],
    );
    assert_eq!(launched.error().exit_code(), 4);
    // While it runs: a moment is borne, more is not; and what cannot be removed is said with the command that does.
    let mut world = World::new(RUN, NAMESPACE, well);
    world.hook(move |args, t| (t > 40 && args[0] != "config").then(|| Ok(refused(gone))));
    let launched = case.launch(&world, None);
    has(&launched.error().to_string(), &["expired"]);
    has(
        &launched.cleaned.unwrap_err().to_string(),
        &["expertrail clean bringup-abc123 --context test-context --namespace expertrail", "delete jobs"],
    );
    has(&launched.bundle.logs[&name(0)], &["starting ranks"]);
}

/// Another launch of the same run made its objects after this one had looked: they are its, and are neither collected nor removed.
#[test]
fn a_launch_that_was_beaten_to_the_start_leaves_the_other_alone() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let world = World::new(RUN, NAMESPACE, well);
    let mut shown = Shown::default();
    let mut system = KubeSystem::new(&world, &world.time, &case.run, case.folder.path(), case.options());
    system.ready(&mut shown).unwrap();
    assert!(!system.untouched());
    world.put(&json!({"kind": "Job", "metadata": {"name": RUN, "labels": {"expertrail.dev/run": RUN}}}));
    let error = system.start(&mut shown).unwrap_err();
    assert!(matches!(&error, DriveError::Refused(text) if text.contains("clean")), "{error}");
    assert!(system.untouched());
    assert!(!world.calls().iter().any(|call| call.starts_with("apply") || call.starts_with("delete")));
}
