//! What this project renders passes its own lint: no failure and no warning, on any system.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use expertrail_cluster::profile;
use expertrail_launch::files::FileSet;
use expertrail_launch::lint::{Input, Options, Severity, lint};
use expertrail_launch::render;
use expertrail_launch::run::{Run, Target};
use expertrail_launch::spec::Spec;

/// Profiles, and what their pods need beside it.
const PROFILES: [(&str, &str); 5] = [
    ("crusoe-h200", ""),
    ("crusoe-b200", ""),
    ("aws-p5en", ""),
    ("aws-p6-b300", ""),
    ("nebius-h200", "rdma_resource = \"nvidia.com/hostdev\"\nrdma_count = 8\nmemory = \"1200Gi\"\n"),
];

/// Engines, with what each wants in the description.
const ENGINES: [(&str, &str); 4] = [
    ("expertrail", ""),
    ("deepep", ""),
    ("deepep", "[deepep]\ndriver = \"upstream-tests\"\n"),
    ("command", "command = [\"python3\", \"-m\", \"train\"]\n"),
];

fn description(profile: &str, pods: &str, (engine, more): (&str, &str), benchmarks: &str) -> String {
    format!(
        "name = \"bringup\"\nprofile = \"{profile}\"\nengine = \"{engine}\"\nimage = \"registry.example/bench:1\"\n{benchmarks}{more}\
         [kubernetes]\nbinary = \"image\"\n{pods}[hosts]\nnames = [\"gpu-a\", \"gpu-b\"]\n"
    )
}

fn files(text: &str, target: Target) -> FileSet {
    let run = Run::resolve(&Spec::parse("run.toml", text, &[]).unwrap(), target, None, None).unwrap();
    render::run(&run).unwrap_or_else(|error| panic!("{}: {error}\n{text}", target.name()))
}

/// Everything that lint reads, together; with what it says that is worse than a note.
fn judge(files: &FileSet, options: &Options) -> (usize, Vec<String>) {
    let read = |path: &str| [".yaml", ".sh", ".sbatch"].iter().any(|end| path.ends_with(end));
    let inputs: Vec<Input> = files
        .files
        .iter()
        .filter(|file| read(&file.path))
        .map(|file| Input { name: file.path.clone(), bytes: file.text.clone().into_bytes() })
        .collect();
    let report = lint(&inputs, options).unwrap();
    let serious = report.findings.iter().filter(|finding| finding.severity != Severity::Note);
    (inputs.len(), serious.map(|finding| format!("{finding:?}")).collect())
}

#[test]
fn every_rendered_run_passes_lint() {
    let mut wrong = Vec::new();
    let mut judged = 0;
    for (profile, pods) in PROFILES {
        for engine in ENGINES {
            let all = if engine.0 == "deepep" {
                "benchmarks = [\"intranode\", \"internode\", \"low-latency\"]\n"
            } else {
                ""
            };
            let text = description(profile, pods, engine, all);
            for target in Target::ALL {
                // DeepEP's own tests start their ranks themselves, which torchrun cannot have.
                if target == Target::Torchrun && engine.1.contains("upstream-tests") {
                    continue;
                }
                let files = files(&text, target);
                for options in [
                    Options::default(),
                    Options { profile: Some(profile::get(profile).unwrap()), facts: None },
                ] {
                    let (count, serious) = judge(&files, &options);
                    assert!(count > 0, "{}", target.name());
                    judged += 1;
                    wrong.extend(serious.iter().map(|finding| {
                        let given = if options.profile.is_some() { " with its profile" } else { "" };
                        format!("{profile} {engine:?} {}{given}: {finding}", target.name())
                    }));
                }
            }
        }
    }
    assert_eq!(judged, 2 * 5 * (4 * 6 - 1));
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
}

/// What pods run lies in a `ConfigMap`, which lint does not look into: the scripts by themselves.
#[test]
fn scripts_in_manifests_pass_lint() {
    let mut scripts = 0;
    let mut wrong = Vec::new();
    for (profile, pods) in PROFILES {
        for engine in ENGINES {
            let text = description(profile, pods, engine, "");
            for target in [Target::K8sJob, Target::Mpijob] {
                let files = files(&text, target);
                let documents: Vec<serde_json::Value> =
                    serde_saphyr::from_multiple(&files.get("manifest.yaml").unwrap().text).unwrap();
                let map = documents.iter().find(|document| document["kind"] == "ConfigMap").unwrap();
                for (name, script) in map["data"].as_object().unwrap() {
                    if name.strip_suffix(".sh").is_none() {
                        continue;
                    }
                    let bytes = script.as_str().unwrap().as_bytes().to_vec();
                    let report = lint(&[Input { name: name.clone(), bytes }], &Options::default()).unwrap();
                    scripts += 1;
                    let serious = report.findings.iter().filter(|finding| finding.severity != Severity::Note);
                    wrong.extend(
                        serious.map(|finding| format!("{profile} {engine:?} {}: {finding:?}", target.name())),
                    );
                }
            }
        }
    }
    // One of a Job; one of each step of an MPIJob: two of DeepEP's own tests, else one.
    assert_eq!(scripts, 5 * (4 + 5));
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
}

/// The test above can fail: a pod-wide list of NICs in a rendered manifest is found.
#[test]
fn a_spoiled_manifest_does_not_pass() {
    let text = description("crusoe-h200", "", ENGINES[1], "");
    let mut files = files(&text, Target::K8sJob);
    let manifest = files.files.iter_mut().find(|file| file.path == "manifest.yaml").unwrap();
    let good = "        - name: NVSHMEM_HCA_OFFSET\n";
    assert!(manifest.text.contains(good));
    manifest.text = manifest
        .text
        .replace(good, &format!("        - name: NVSHMEM_HCA_LIST\n          value: mlx5_1:1\n{good}"));
    let (_, serious) = judge(&files, &Options::default());
    assert!(serious.iter().any(|finding| finding.contains("N002")), "{serious:?}");
}

/// A step's object is named RUNID-STEP: the id in it is the run's, and no note says that every run has this name.
#[test]
fn objects_of_steps_are_known_by_the_runs_id() {
    let text = description("aws-p5en", "", ENGINES[2], "");
    let found = files(&text, Target::Mpijob);
    let input = |name: &str, text: &str| Input { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
    let file = &found.get("mpijob-internode.yaml").unwrap().text;
    let ids = |text: &str| -> Vec<&'static str> {
        let report = lint(&[input("mpijob.yaml", text)], &Options::default()).unwrap();
        report.findings.iter().map(|finding| finding.id).collect()
    };
    assert!(!ids(file).contains(&"N065"), "{:?}", ids(file));
    // Without the label the step may be any word.
    let bare = file.replace("expertrail.dev/step", "example.org/step");
    assert!(ids(&bare).contains(&"N065"));
}
