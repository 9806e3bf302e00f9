//! What the API server refuses, and what is no answer at all.

use expertrail_launch::drive::kube::Options;
use serde_json::json;

use crate::case::{Case, has};
use crate::world::{Main, Moment, World, ok, refused};
use crate::{NAMESPACE, RUN, both, well};

/// 2 for a manifest that is wrong, 1 for a quota, 4 for rights, credentials and the connection alone.
#[test]
fn a_refused_manifest_has_the_exit_code_of_its_cause() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    for (said, code, words) in [
        (
            "The Job \"bringup-abc123\" is invalid: spec.completions: Invalid value: -1: must be greater than or equal to 0",
            2,
            &["spec.completions", "render again"][..],
        ),
        (
            "Error from server (BadRequest): error when creating \"STDIN\": Job in version \"v1\" cannot be handled as a Job: strict decoding error: \
             unknown field \"spec.complections\"",
            2,
            &["spec.complections"],
        ),
        (
            "error: error validating \"STDIN\": error validating data: unknown object type",
            2,
            &["unknown object type"],
        ),
        (
            "Error from server (Forbidden): error when creating \"STDIN\": admission webhook \"policy.example\" denied the request: no host paths",
            2,
            &["policy.example", "no host paths"],
        ),
        (
            "Error from server (Forbidden): error when creating \"STDIN\": jobs.batch \"bringup-abc123\" is forbidden: exceeded quota: bench-quota, \
             requested: count/jobs.batch=1, used: count/jobs.batch=4, limited: count/jobs.batch=4",
            1,
            &["bench-quota", "kubectl --context test-context -n expertrail describe quota bench-quota"],
        ),
        (
            "Error from server (Forbidden): error when creating \"STDIN\": jobs.batch is forbidden: User \"alice\" cannot create resource \"jobs\"",
            4,
            &["cannot create resource"],
        ),
        ("error: You must be logged in to the server (Unauthorized)", 4, &["expired"]),
        ("Unable to connect to the server: dial tcp: i/o timeout", 4, &["does not answer"]),
    ] {
        let mut world = World::new(RUN, NAMESPACE, well);
        world.hook(move |args, _| args.contains(&"--dry-run=server").then(|| Ok(refused(said))));
        let launched = case.launch(&world, None);
        let error = launched.error();
        has(&error.to_string(), words);
        assert_eq!(error.exit_code(), code, "{error}");
    }
}

/// A page, an object of another kind or name, nothing: an error that names the command and what came back, and nothing is started.
#[test]
fn what_is_no_answer_is_no_verdict() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\n");
    let page = "<html><title>Log in</title></html>\n".to_owned();
    let pods = json!({"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "x"}}]}).to_string();
    for (asked, answer, words) in [
        (&["config", "view"][..], page.clone(), "kubectl config view"),
        (&["config", "current-context"], "Welcome!\nprod\n".to_owned(), "kubectl config current-context"),
        (&["get", "namespace"], page.clone(), "kubectl get namespace expertrail"),
        (&["get", "namespace"], "namespace/other\n".to_owned(), "the name other"),
        (&["get", "nodes"], page.clone(), "kubectl get nodes"),
        (&["get", "nodes"], pods.clone(), "kind Pod"),
        (&["get", "nodes"], json!({"kind": "Status"}).to_string(), "kind Status"),
        (&["get", "-n"], page.clone(), "kubectl get -n expertrail"),
        (&["apply"], page.clone(), "did not name the objects"),
        (&["apply"], String::new(), "it said nothing"),
        (&["apply"], "job.batch/other\n".to_owned(), "job.batch/other"),
    ] {
        let mut world = World::new(RUN, NAMESPACE, well);
        world.hook(move |args, _| {
            (args.starts_with(asked) && !args.contains(&"--dry-run=server")).then(|| Ok(ok(answer.clone())))
        });
        let launched = case.launch(&world, None);
        let error = launched.ending.clone().unwrap_err();
        has(&error.to_string(), &[words]);
        assert_eq!(error.exit_code(), 4, "{error}");
    }
    // Who may do what cannot be asked: said, and no verdict.
    let mut world = World::new(RUN, NAMESPACE, well);
    world.hook(move |args, _| (args[0] == "auth").then(|| Ok(ok(page.clone()))));
    let launched = case.launch(&world, None);
    has(&launched.shown.rest(), &["cannot be asked", "kubectl auth can-i", "<html>"]);
    // While it runs: pods that are none.
    let mut world = World::new(RUN, NAMESPACE, well);
    world.hook(move |args, t| {
        (t > 40 && args[0] == "get" && args.contains(&"json")).then(|| Ok(ok("<html>\n")))
    });
    let error = case.launch(&world, None).ending.unwrap_err();
    has(&error.to_string(), &["is no JSON", "<html>"]);
}

/// What is copied from a message reaches the cluster of the run.
#[test]
fn commands_in_messages_name_the_context() {
    let case = Case::new("[kubernetes]\nbinary = \"image\"\ncontext = \"prod\"\n");
    for wait in [
        Main::Waits("CrashLoopBackOff", "back-off"),
        Main::Waits("ErrImagePull", "401 Unauthorized"),
        Main::NoNode("0/6 nodes are available: 6 Insufficient memory."),
    ] {
        let world =
            World::new(RUN, NAMESPACE, move |_| Moment { pods: both(wait, wait), ..Moment::default() });
        let options = Options { context: Some("prod".to_owned()), ..case.options() };
        let launched = case.launch_with(&world, None, options);
        let said = format!("{}\n{}\n{:?}", launched.shown.states(), launched.shown.rest(), launched.ending);
        assert!(said.contains("kubectl --context prod "), "{said}");
        for (at, _) in said.match_indices("kubectl ") {
            assert!(said[at..].starts_with("kubectl --context prod "), "{}", &said[at..]);
        }
    }
}
