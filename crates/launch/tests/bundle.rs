//! The directory of a run: no secret in it, documents as their schemas say, a page that is whole.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "drive_launch/fake.rs"]
mod fake;

use std::path::{Path, PathBuf};
use std::time::Duration;

use expertrail_launch::ab::{self, Difference, Layer, Side};
use expertrail_launch::bundle::outcome::{self, DiagnosisLine, End, Outcome, VerdictLine};
use expertrail_launch::drive::Ending;
use expertrail_launch::drive::launch::{self, Launched, Plan};
use expertrail_launch::render;
use expertrail_launch::run::{Run, Target};
use expertrail_launch::spec::Spec;
use expertrail_launch::worker::frame;
use fake::{Fake, Keys, Silent, rendered_with};

/// Planted secrets, none of them of anybody.
const SECRETS: [&str; 7] = [
    "plain-value-of-a-token-31337",
    "cGxhbnRlZDpwYXNzd29yZC1vZi1yZWdpc3RyeQ==",
    "password-of-registry",
    "AKIAPLANTED1234ABCDE",
    "s3cr3t/AccessKeyPlanted0123456789abcdefgh",
    "bearer0123456789planted",
    "hf_PlantedPlantedPlanted99",
];

fn go(fake: &mut Fake, folder: &Path) -> Launched {
    let run = launch::read(folder).unwrap();
    let plan = Plan { run: &run, folder, bundle: None, timeout: Duration::from_mins(1), keep: false };
    launch::run(fake, &plan, &mut Silent::default(), &Keys::default()).unwrap()
}

fn all_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            all_files(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

/// A failed run of two nodes with secrets in every kind of thing that is handed over.
fn failed() -> (tempfile::TempDir, PathBuf, Launched) {
    let [token, auth, password, id, key, bearer, hf] = SECRETS;
    let description = format!(
        "name = \"a\"\nengine = \"command\"\ncommand = [\"train\", \"--registry-password\", \"{password}\"]\nnodes = 2\ngpus_per_node = 2\n\
         [env]\nMY_TOKEN = \"{token}\"\n[hosts]\nnames = [\"gpu-1\", \"gpu-2\"]\n"
    );
    let (root, folder) = rendered_with(&description);
    std::fs::write(folder.join("manifest.yaml"), format!("env:\n- name: MY_TOKEN\n  value: {token}\n"))
        .unwrap();
    let mut log = Vec::new();
    let facts = format!(
        r#"{{"node":{{"value":"gpu-1"}},"environment":{{"variables":{{"AWS_SECRET_ACCESS_KEY":"{key}"}}}}}}"#
    );
    frame::write("facts/node-0.json", facts.as_bytes(), &mut log).unwrap();
    let findings = r#"{"node":"gpu-1","findings":[{"id":"P040","status":"fail","title":"<GPUs>","observed":"0 & none"},{"id":"P001","status":"pass","title":"x","observed":"y"}]}"#;
    frame::write("findings/node-0.json", findings.as_bytes(), &mut log).unwrap();
    let printed = format!(
        "before\nusing {token} as it is\nAWS_ACCESS_KEY_ID={id}\nAuthorization: Bearer {bearer}\ntoken {hf}\n<script>alert(1)</script>\n\
         RuntimeError: DeepEP error: timeout (dispatch CPU)\nafter\n"
    );
    log.extend(printed.bytes());
    let pods = format!(
        r#"{{"items":[{{"kind":"Secret","data":{{".dockerconfigjson":"{auth}"}}}},{{"spec":{{"containers":[{{"env":[{{"name":"MY_TOKEN","value":"{token}"}}]}}]}}}}]}}"#
    );
    let pull = format!(r#"{{"auths":{{"ghcr.io":{{"auth":"{auth}","password":"{password}"}}}}}}"#);
    let reason = format!("pod x-1: could not log in with {token}");
    let mut fake = Fake {
        logs: vec![("x-0/worker".to_owned(), log)],
        state: vec![
            ("pods.json".to_owned(), pods.into_bytes()),
            ("events.txt".to_owned(), format!("HF_TOKEN={hf}\n").into_bytes()),
        ],
        files: vec![
            ("collected/node-1/config.json".to_owned(), pull.into_bytes()),
            ("../../escape".to_owned(), b"x".to_vec()),
        ],
        ..Fake::ending(Ending::Failed { reason, code: Some(1) })
    };
    let launched = go(&mut fake, &folder);
    (root, folder, launched)
}

#[test]
fn no_planted_secret_is_in_any_file() {
    let (root, _folder, launched) = failed();
    let bundle = launched.bundle.unwrap();
    let mut files = Vec::new();
    all_files(&bundle, &mut files);
    assert!(files.len() > 10, "{files:?}");
    for file in &files {
        let text = String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} is in {}", file.display());
        }
    }
    assert!(!root.path().join("escape").exists() && !bundle.join("escape").exists());
    // What is no secret stays.
    let log = std::fs::read_to_string(bundle.join("logs/x-0_worker.log")).unwrap();
    assert!(
        log.starts_with("before\n") && log.ends_with("after\n") && !log.contains("::expertrail-file"),
        "{log}"
    );
}

#[test]
fn the_parts_are_in_their_places_and_the_missing_are_named() {
    let (_root, _folder, launched) = failed();
    let bundle = launched.bundle.clone().unwrap();
    for name in [
        "run.json",
        "run.toml",
        "rendered/manifest.yaml",
        "facts/node-0.json",
        "findings/node-0.json",
        "result/node-1-config.json",
        "state/pods.json",
        "state/events.txt",
        "diagnosis.json",
        "diagnosis.txt",
        "report.html",
        "outcome.json",
    ] {
        assert!(bundle.join(name).is_file(), "{name}");
    }
    let outcome = &launched.outcome;
    let node = &outcome.per_node[0];
    assert_eq!((node.host.as_deref(), node.facts, node.findings.len()), (Some("gpu-1"), true, 1));
    assert_eq!(node.checks.as_ref().unwrap()["pass"], 1);
    assert!(!outcome.per_node[1].facts && outcome.per_node[1].checks.is_none());
    let missing: Vec<&str> = outcome.missing.iter().map(|one| one.what.as_str()).collect();
    assert!(
        missing.contains(&"facts/node-1.json") && missing.contains(&"findings/node-1.json"),
        "{missing:?}"
    );
    assert_eq!(launched.code, 1);
}

/// Every element that is opened is closed, in order, and nothing that a log holds becomes markup or is loaded.
#[test]
fn the_page_is_well_formed_and_loads_nothing() {
    let (_root, _folder, launched) = failed();
    let html = std::fs::read_to_string(launched.bundle.unwrap().join("report.html")).unwrap();
    let mut open: Vec<String> = Vec::new();
    for piece in html.split('<').skip(1) {
        let tag = piece.split('>').next().unwrap();
        assert!(piece.contains('>'), "{tag}");
        let name = tag.split_whitespace().next().unwrap();
        if name.starts_with('!') || matches!(name, "meta" | "br") {
            continue;
        }
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop().as_deref(), Some(name)),
            None => open.push(name.to_owned()),
        }
    }
    assert_eq!(open, Vec::<String>::new());
    for word in ["<script", "href=\"http", "src=", "<link", "@import", "url("] {
        assert!(!html.contains(word), "{word}");
    }
    for word in
        ["&lt;GPUs&gt;", "0 &amp; none", "What is missing", "FAIL", "facts/node-1.json", "default-src 'none'"]
    {
        assert!(html.contains(word), "{word}");
    }
}

#[test]
fn logs_of_two_attempts_do_not_overwrite_each_other() {
    let (_root, folder) = rendered_with(
        "name = \"a\"\nengine = \"command\"\ncommand = [\"x\"]\npreflight = \"off\"\nnodes = 1\n[hosts]\nnames = [\"h\"]\n",
    );
    let log = |text: &str| ("x-0".to_owned(), text.as_bytes().to_vec());
    let mut fake =
        Fake { logs: vec![log("one\n"), log("two\n"), log("one\n")], ..Fake::ending(Ending::Succeeded) };
    let bundle = go(&mut fake, &folder).bundle.unwrap();
    let read = |name: &str| std::fs::read_to_string(bundle.join("logs").join(name)).unwrap();
    assert_eq!([read("x-0.log"), read("x-0.2.log")], ["one\n", "two\n"]);
    assert_eq!(std::fs::read_dir(bundle.join("logs")).unwrap().count(), 2);
}

fn side(name: &str, kind: &str, code: u8, cause: Option<&str>, between_nodes: bool) -> Side {
    let line = |cause: &str| DiagnosisLine {
        outcome: "cause-found".to_owned(),
        causes: vec![cause.to_owned()],
        first_failure: Some("a.log:3: something 7 broke".to_owned()),
    };
    let outcome = Outcome {
        ending: End { kind: kind.to_owned(), reason: "r".to_owned(), code: None },
        exit_code: code,
        hosts: vec!["gpu-1".to_owned(), "gpu-2".to_owned()],
        diagnosis: cause.map(line),
        ..Outcome::default()
    };
    Side { name: name.to_owned(), between_nodes, outcome, ..Side::default() }
}

fn layer(a: Side, b: Side) -> Layer {
    let comparison = ab::decide(&["image".to_owned()], Vec::new(), a, b);
    assert!(!comparison.evidence.is_empty());
    comparison.layer
}

/// The guide: a validated image that passes on the same nodes clears the cluster; the benchmark that fails as the training does
/// convicts it. The fourth document: one message alone does not prove one cause.
#[test]
fn layers() {
    let pass = |name: &str| side(name, "succeeded", 0, None, true);
    let fail = |name: &str, cause: &str| side(name, "failed", 1, Some(cause), true);
    assert_eq!(layer(pass("A"), fail("B", "nvshmem-rc-layout-mismatch")), Layer::Software);
    assert_eq!(layer(fail("A", "application-error"), pass("B")), Layer::Software);
    assert_eq!(layer(fail("A", "peermem-missing"), fail("B", "peermem-missing")), Layer::Cluster);
    assert_eq!(layer(fail("A", "rail-down"), fail("B", "shm-small")), Layer::NotDecided);
    assert_eq!(layer(pass("A"), pass("B")), Layer::NotDecided);
    // The same software fault twice, and a fault of the machine that came and went.
    assert_eq!(layer(fail("A", "gpu-arch-missing"), fail("B", "gpu-arch-missing")), Layer::Software);
    assert_eq!(layer(pass("A"), fail("B", "xid")), Layer::NotDecided);
    // A benchmark inside each node says nothing of the network between them.
    let inside = side("A", "succeeded", 0, None, false);
    assert_eq!(layer(inside, fail("B", "dispatch-peer-absent")), Layer::NotDecided);
    let never = side("A", "never-started", 3, None, true);
    assert_eq!(layer(never, fail("B", "rail-down")), Layer::NotDecided);
    let mut elsewhere = pass("A");
    elsewhere.outcome.hosts = vec!["gpu-1".to_owned(), "gpu-7".to_owned()];
    assert_eq!(layer(elsewhere, fail("B", "application-error")), Layer::NotDecided);
}

/// Two runs that end well and fail on figures: the same ones on the same nodes, and others.
#[test]
fn figures_of_two_failed_runs_are_set_beside_each_other() {
    let low = |name: &str, reasons: &[&str]| {
        let mut side = side(name, "succeeded", 1, None, true);
        side.bundle = format!("ab/{name}");
        let reasons = reasons.iter().map(|one| (*one).to_owned()).collect();
        side.outcome.verdict = Some(VerdictLine { status: "fail".to_owned(), reasons });
        side
    };
    let variables = ["image".to_owned()];
    let a = low("A", &["J001 inter-node dispatch bf16: 12.1 GB/s", "J009 x: y"]);
    let same = low("B", &["J001 inter-node dispatch bf16: 13.4 GB/s"]);
    let text = ab::text(&ab::decide(&variables, Vec::new(), a.clone(), same));
    for word in [
        "CLUSTER LAYER",
        "both fail on J001 inter-node dispatch bf16: A 12.1 GB/s; B 13.4 GB/s",
        "expertrail judge ab/B/result --baseline ab/A/verdict.json",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let other = low("B", &["J001 intra-node combine bf16: 100 GB/s"]);
    let text = ab::text(&ab::decide(&variables, Vec::new(), a, other));
    assert!(text.contains("NOT DECIDED") && text.contains("they fail on different figures"), "{text}");
    // Nothing is known of either: the next step can be typed.
    let broken = |name: &str| {
        let mut side = side(name, "failed", 1, None, true);
        side.bundle = format!("ab/{name}");
        side
    };
    let text = ab::text(&ab::decide(&variables, Vec::new(), broken("A"), broken("B")));
    assert!(text.contains("expertrail diagnose ab/A/logs ab/A/state"), "{text}");
}

/// Pods that were placed and never ran say nothing: their hosts are those of the objects.
#[test]
fn hosts_of_a_kubernetes_run_that_left_no_facts_come_from_its_pods() {
    let (_root, folder) = rendered_with(
        "name = \"a\"\nengine = \"command\"\ncommand = [\"x\"]\nnodes = 2\n[hosts]\nnames = [\"h\", \"i\"]\n",
    );
    let pod = |index: u32, host: &str| {
        format!(
            r#"{{"kind":"Pod","metadata":{{"labels":{{"batch.kubernetes.io/job-completion-index":"{index}"}}}},"spec":{{"nodeName":"{host}"}}}}"#
        )
    };
    let objects = format!(r#"{{"items":[{},{},{{"kind":"Job"}}]}}"#, pod(1, "gpu-b"), pod(0, "gpu-a"));
    let failed = Ending::Failed { reason: "r".to_owned(), code: Some(1) };
    let mut fake = Fake {
        hosts: Vec::new(),
        state: vec![("objects.json".to_owned(), objects.into_bytes())],
        ..Fake::ending(failed)
    };
    let outcome = go(&mut fake, &folder).outcome;
    assert_eq!(outcome.hosts, ["gpu-a", "gpu-b"]);
    let hosts: Vec<Option<&str>> = outcome.per_node.iter().map(|node| node.host.as_deref()).collect();
    assert_eq!(hosts, [Some("gpu-a"), Some("gpu-b")]);
}

/// One node of two ranks; a result beside it. What the page shows of both.
#[test]
fn the_page_has_settings_times_and_exit_codes() {
    let (_root, folder) =
        rendered_with("name = \"a\"\nnodes = 1\ngpus_per_node = 2\n[hosts]\nnames = [\"h\"]\n");
    let result = std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/h200-x2/bench-guide-intranode.json"),
    )
    .unwrap();
    let exit = |rank: u32| {
        let text = format!(r#"{{"rank":{rank},"node":0,"host":"h","code":0,"seconds":3.0,"stopped":false}}"#);
        (format!("exit/rank-{rank}.json"), text.into_bytes())
    };
    let mut fake = Fake {
        files: vec![("collected/node-0/result-intranode.json".to_owned(), result), exit(0), exit(1)],
        hosts: vec!["h".to_owned()],
        ..Fake::ending(Ending::Succeeded)
    };
    let launched = go(&mut fake, &folder);
    let html = std::fs::read_to_string(launched.bundle.unwrap().join("report.html")).unwrap();
    for word in [
        "1 node of 2 ranks",
        "guide-intranode",
        "<td>cuda</td>",
        "Intel(R) Xeon(R) Processor, 32 cores",
        " us (p50)",
        "0 (2 ranks)",
        "2 of 2 recorded ranks ended with 0",
        "exit code 0",
    ] {
        assert!(html.contains(word), "{word}: {html}");
    }
    assert!(!html.contains("1 nodes"), "{html}");
}

#[test]
fn the_text_of_a_comparison_has_answer_evidence_and_differences() {
    let difference = Difference { key: "image".into(), a: Some("x:1".into()), b: None };
    let a = side("A", "succeeded", 0, None, true);
    let b = side("B", "failed", 1, Some("nvshmem-rc-layout-mismatch"), true);
    let text = ab::text(&ab::decide(&["image".to_owned()], vec![difference], a, b));
    for word in
        ["SOFTWARE LAYER", "image: A x:1, B not set", "nvshmem-rc-layout-mismatch", "expertrail stack"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// `launch --ab`: B on the nodes of A, and on no others, in both Kubernetes targets and in Slurm.
#[test]
fn the_second_run_is_put_on_the_nodes_of_the_first() {
    let text = "name = \"b\"\nengine = \"deepep\"\nprofile = \"aws-p5en\"\nimage = \"x/deepep:efa1.48.0\"\n";
    let nodes = ["ip-10-0-0-7", "ip-10-0-0-9"].map(str::to_owned);
    for (target, words) in [
        (Target::K8sJob, &["key: kubernetes.io/hostname", "- ip-10-0-0-7", "- ip-10-0-0-9"][..]),
        (Target::Mpijob, &["key: kubernetes.io/hostname", "- ip-10-0-0-7", "- ip-10-0-0-9"]),
        (Target::Slurm, &["#SBATCH --nodelist=ip-10-0-0-7,ip-10-0-0-9"]),
    ] {
        let mut spec = Spec::parse("b.toml", text, &[]).unwrap();
        let all = |spec: &Spec| -> String {
            let run = Run::resolve(spec, target, None, Some("b-1")).unwrap();
            render::run(&run).unwrap().files.iter().map(|file| file.text.as_str()).collect()
        };
        assert!(!all(&spec).contains("ip-10-0-0-7"));
        assert!(!ab::pin(&mut spec.clone(), target, &[]), "nothing to pin to");
        assert!(ab::pin(&mut spec, target, &nodes));
        let files = all(&spec);
        for word in words {
            assert!(files.contains(word), "{target:?}: {word}");
        }
    }
}

/// The outcome is written out in both schemas, because a schema here refers to no other file: they move together.
#[test]
fn the_schema_of_a_comparison_holds_that_of_an_outcome() {
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let (whole, part) = (parse(outcome::JSON_SCHEMA), parse(ab::JSON_SCHEMA));
    let part = &part["properties"]["sides"]["items"]["properties"]["outcome"];
    assert_eq!(whole["properties"], part["properties"]);
    assert_eq!(whole["required"], part["required"]);
}
