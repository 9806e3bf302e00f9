//! The API's JSON schemas, strict, read by another YAML parser: `EXPERTRAIL_KUBERNETES_VALIDATE` is the program of the Python package
//! `kubernetes-validate` (scripts/kubernetes-validate installs it).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use expertrail_launch::run::Target;
use serde_json::{Value, json};

use super::cases::{ID, all, at, documents, files, guide, is, object};
use super::typed::{JOB_TYPOS, SERVICE_TYPOS, planted};

fn validator() -> Option<PathBuf> {
    let found = std::env::var_os("EXPERTRAIL_KUBERNETES_VALIDATE").map(PathBuf::from);
    if found.is_none() {
        println!(
            "not run: EXPERTRAIL_KUBERNETES_VALIDATE names no kubernetes-validate (scripts/kubernetes-validate installs it)"
        );
    }
    found
}

/// Lines of the validator for `paths`, of the oldest and the newest version that it knows and whether all passed.
fn validate(program: &PathBuf, paths: &[PathBuf]) -> (bool, String) {
    let output = Command::new(program)
        .args(["--strict", "-k", "1.25.0", "-k", "1.37.0"])
        .args(paths)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn files_pass_the_strict_schemas_of_old_and_new_clusters() {
    let Some(program) = validator() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    let mut wanted = 0;
    for (index, case) in all().iter().enumerate() {
        for file in case.files().files.iter().filter(|file| is(&file.path, "yaml")) {
            let path = folder.path().join(format!("{index}-{}", file.path));
            if file.path.starts_with("mpijob-") {
                // There is no schema of MPIJob: its pods, as pods.
                let document = documents(&file.text).remove(0);
                let pods: Vec<String> =
                    ["Launcher", "Worker"].map(|replica| pod(&document, replica).to_string()).to_vec();
                fs::write(&path, pods.join("\n---\n")).unwrap();
                wanted += 2;
            } else {
                fs::write(&path, &file.text).unwrap();
                wanted += documents(&file.text).len();
            }
            paths.push(path);
        }
    }
    let (good, text) = validate(&program, &paths);
    assert!(good, "{text}");
    // Each document twice: a kind without a schema would only be a warning.
    assert_eq!(text.lines().filter(|line| line.starts_with("INFO")).count(), 2 * wanted, "{text}");
    println!("{wanted} documents pass the strict schemas of Kubernetes 1.25 and 1.37");
}

fn pod(mpijob: &Value, replica: &str) -> Value {
    let template = at(mpijob, &format!("/spec/mpiReplicaSpecs/{replica}/template"));
    let mut metadata = template["metadata"].clone();
    metadata["name"] =
        json!(format!("{}-{}", at(mpijob, "/metadata/name").as_str().unwrap(), replica.to_lowercase()));
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] })
}

#[test]
fn a_planted_typo_fails_the_strict_schema() {
    let Some(program) = validator() else { return };
    let folder = tempfile::tempdir().unwrap();
    let guide = files(&guide("deepep", "crusoe-b200", 2), Target::K8sJob);
    let mut paths = Vec::new();
    for (kind, typos) in [("Job", &JOB_TYPOS[..]), ("Service", &SERVICE_TYPOS[..])] {
        let good = object(&guide, kind, ID);
        for typo in typos {
            let path = folder.path().join(format!("{kind}-{}.yaml", typo.written));
            fs::write(&path, planted(&good, typo).to_string()).unwrap();
            paths.push((path, typo.written));
        }
    }
    let (good, text) = validate(&program, &paths.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>());
    assert!(!good);
    for (path, written) in paths {
        let errors = text
            .lines()
            .filter(|line| line.starts_with("ERROR") && line.contains(&path.display().to_string()));
        assert_eq!(errors.filter(|line| line.contains(written)).count(), 2, "{written}: {text}");
    }
}
