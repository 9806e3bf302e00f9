//! What goes wrong silently when it is written by hand.

use std::collections::BTreeMap;

use expertrail_launch::run::Target;
use serde_json::{Value, json};

use super::cases::{
    CPU, EVERYTHING, ID, all, all_documents, at, aws, aws_own, environment, files, guide, object, try_files,
    upstream,
};

/// Every container of a document, wherever it is.
fn containers<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if matches!(key.as_str(), "containers" | "initContainers") {
                    found.extend(value.as_array().unwrap());
                }
                containers(value, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| containers(value, found)),
        _ => {}
    }
}

/// A list for the whole pod gives all ranks its first device.
#[test]
fn no_pod_has_a_list_of_hcas() {
    let mut pinned = 0;
    for case in all() {
        for document in all_documents(&case.files()) {
            let mut found = Vec::new();
            containers(&document, &mut found);
            for container in found {
                let environment = environment(container);
                assert!(!environment.iter().any(|(name, _)| name == "NVSHMEM_HCA_LIST"), "{}", case.folder);
            }
            let text = document.to_string();
            assert!(
                !text.contains("export NVSHMEM_HCA_LIST") && !text.contains("-x NVSHMEM_HCA_LIST"),
                "{}",
                case.folder
            );
            pinned += usize::from(text.contains("--pins mlx5_"));
        }
    }
    // Guide and command on InfiniBand, the one with everything, DeepEP's tests excepted: 3 + 3 + 1, and one MPIJob.
    assert_eq!(pinned, 8);
}

#[test]
fn variables_that_differ_between_ranks_are_refused() {
    for (name, words) in [
        ("NVSHMEM_HCA_LIST", "network.hcas"),
        ("RANK", "each rank its own"),
        ("WORLD_SIZE", "nodes and gpus_per_node"),
        ("MASTER_ADDR", "first pod's name"),
    ] {
        let text = guide("deepep", "crusoe-b200", 2) + &format!("[env]\n\"{name}\" = \"x\"\n");
        for target in [Target::K8sJob, Target::Mpijob] {
            let message = try_files(&text, target).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(words), "{message}");
        }
    }
}

/// Programs that count nodes by `WORLD_SIZE` must not find a number of ranks there.
#[test]
fn programs_that_count_nodes_get_no_world_size_of_ranks() {
    let names = |text: &str| -> Vec<String> {
        let job = object(&files(text, Target::K8sJob), "Job", ID);
        environment(at(&job, "/spec/template/spec/containers/0")).into_iter().map(|(name, _)| name).collect()
    };
    assert!(!names(&upstream()).contains(&"WORLD_SIZE".to_owned()));
    assert!(names(&guide("command", "crusoe-b200", 2)).contains(&"WORLD_SIZE".to_owned()));
    let counted = guide("command", "crusoe-b200", 2) + "contract = \"nodes\"\n";
    assert!(!names(&counted).contains(&"WORLD_SIZE".to_owned()));
}

/// Kubernetes replaces `$(NAME)` in values, and `$$` is its `$`.
#[test]
fn values_arrive_as_they_are_written() {
    let job = object(&files(EVERYTHING, Target::K8sJob), "Job", ID);
    let environment: BTreeMap<String, Value> =
        environment(at(&job, "/spec/template/spec/containers/0")).into_iter().collect();
    assert_eq!(environment["PRICE"], "5$$ $$(HOME) $$$$ it's \"quoted\"");
    // What Kubernetes makes of it: `$$` to `$`, and no `$(` is left that it would look up.
    let expanded = environment["PRICE"].as_str().unwrap().replace("$$", "$");
    assert_eq!(expanded, "5$ $(HOME) $$ it's \"quoted\"");
}

/// Our own binary traces nobody.
#[test]
fn the_native_engine_asks_for_no_ptrace_and_no_nics() {
    let job = object(&files(&guide("expertrail", "crusoe-b200", 2), Target::K8sJob), "Job", ID);
    let container = at(&job, "/spec/template/spec/containers/0");
    assert_eq!(container["securityContext"], json!({ "capabilities": { "add": ["IPC_LOCK"] } }));
    assert_eq!(container["resources"]["limits"], json!({ "memory": "950Gi", "nvidia.com/gpu": "8" }));
    // It says why, so that lint does not miss the NICs; pods that cross nodes do not say it.
    let label = |job: &Value| at(job, "/spec/template/metadata/labels").get("expertrail.dev/scope").cloned();
    assert_eq!(label(&job), Some(json!("node")));
    for engine in ["deepep", "command"] {
        assert_eq!(label(&object(&files(&guide(engine, "crusoe-b200", 2), Target::K8sJob), "Job", ID)), None);
    }
}

#[test]
fn ranks_on_the_cpu_ask_for_no_gpu() {
    let job = object(&files(CPU, Target::K8sJob), "Job", ID);
    let pod = at(&job, "/spec/template/spec");
    assert_eq!(pod["affinity"].as_object().unwrap().keys().collect::<Vec<_>>(), ["podAntiAffinity"]);
    let container = at(pod, "/containers/0");
    assert_eq!(
        container["resources"],
        json!({ "requests": { "cpu": "2", "memory": "2Gi" }, "limits": { "memory": "2Gi" } })
    );
    assert!(!job.to_string().contains("nvidia.com"));
}

/// The waiting container writes where the ranks' container reads, and sees the script that it runs.
#[test]
fn the_binary_comes_into_an_image_that_lacks_it() {
    let waits = object(&files(CPU, Target::K8sJob), "Job", ID);
    let init = at(&waits, "/spec/template/spec/initContainers/0");
    assert_eq!(
        (&init["name"], &init["image"]),
        (&json!("expertrail-binary"), &json!("debian:bookworm-slim"))
    );
    assert_eq!(init["command"], json!(["sh", "/etc/expertrail/wait-for-binary.sh"]));
    let ranks = at(&waits, "/spec/template/spec/containers/0");
    let mount = |container: &Value, name: &str| {
        let mounts = container["volumeMounts"].as_array().unwrap();
        mounts.iter().find(|mount| mount["name"] == name).cloned().unwrap_or_default()
    };
    assert_eq!(mount(init, "binary"), json!({ "name": "binary", "mountPath": "/opt/expertrail" }));
    assert_eq!(mount(ranks, "binary")["mountPath"], "/opt/expertrail");
    assert_eq!(mount(init, "files")["mountPath"], "/etc/expertrail");

    let copies = object(&files(EVERYTHING, Target::K8sJob), "Job", ID);
    let init = at(&copies, "/spec/template/spec/initContainers/0");
    assert_eq!(init["image"], "registry.example/expertrail:0.1.0");
    assert_eq!(init["command"], json!(["cp", "/usr/local/bin/expertrail", "/opt/expertrail/expertrail"]));

    let there = object(&files(&guide("expertrail", "crusoe-b200", 2), Target::K8sJob), "Job", ID);
    assert!(at(&there, "/spec/template/spec").get("initContainers").is_none());
    // Nothing waits for a binary in an MPIJob that runs DeepEP's own tests, and an init container brings it where it can.
    let own = object(&files(&aws_own(), Target::Mpijob), "MPIJob", "deepep");
    assert_eq!(at(&own, "/spec/mpiReplicaSpecs/Worker/template/spec/initContainers/0/command/0"), "cp");
}

#[test]
fn what_a_description_asks_of_the_cluster_is_in_every_pod() {
    let files = files(EVERYTHING, Target::K8sJob);
    let (job, daemons) = (object(&files, "Job", ID), object(&files, "DaemonSet", "-prepull"));
    for pod in [at(&job, "/spec/template/spec"), at(&daemons, "/spec/template/spec")] {
        assert_eq!(pod["nodeSelector"], json!({ "nvidia.com/gpu.product": "NVIDIA-H200", "pool": "h200" }));
        assert_eq!(
            pod["tolerations"],
            json!([
                { "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" },
                { "key": "workload", "operator": "Equal", "value": "bench", "effect": "NoSchedule" },
                { "key": "reserved", "operator": "Exists" },
            ])
        );
        assert_eq!(pod["imagePullSecrets"], json!([{ "name": "deepep-pull" }]));
        assert_eq!((&pod["serviceAccountName"], &pod["priorityClassName"]), (&json!("bench"), &json!("low")));
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(
            pod["affinity"]["nodeAffinity"],
            at(&job, "/spec/template/spec/affinity/nodeAffinity").clone()
        );
        // A digest never changes.
        assert_eq!(at(pod, "/containers/0/imagePullPolicy"), "IfNotPresent");
    }
    assert_eq!(job["spec"]["ttlSecondsAfterFinished"], 600);
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 1800 + 1800);
    assert_eq!(at(&job, "/spec/template/spec/containers/0/resources/limits/hugepages-2Mi"), "1024Mi");
    // Pods that only pull ask for no GPU, and are none that the Service and the anti-affinity mean.
    assert!(!at(&daemons, "/spec/template/spec/containers").to_string().contains("nvidia.com/gpu"));
    let label = at(&daemons, "/spec/template/metadata/labels/app");
    assert_eq!(label, at(&daemons, "/spec/selector/matchLabels/app"));
    assert_ne!(label, ID);
    assert_eq!(at(&daemons, "/spec/template/metadata/labels/expertrail.dev~1run"), ID);
}

/// Runs of one node and runs of several, in every text that a person reads.
#[test]
fn one_of_a_thing_is_not_many() {
    let mut sets: Vec<_> = all().iter().map(|case| (case.folder.to_owned(), case.files())).collect();
    for target in
        [Target::K8sJob, Target::Mpijob, Target::Slurm, Target::Torchrun, Target::Mpirun, Target::Ssh]
    {
        let one = guide("command", "crusoe-h200", 1) + "gpus_per_node = 1\n";
        sets.push((format!("one {}", target.name()), files(&one, target)));
    }
    for (name, files) in sets {
        for file in files.files.iter().filter(|file| file.path != "run.json") {
            for thing in ["nodes", "hosts", "pods", "ranks", "GPUs", "MPIJobs", "steps"] {
                let wrong = format!(" 1 {thing}");
                assert!(!format!(" {}", file.text).contains(&wrong), "{name} {}: {wrong}", file.path);
            }
        }
    }
    let texts = |benchmarks: &str| {
        let text = aws("aws-p5en").replace("[\"intranode\", \"internode\", \"low-latency\"]", benchmarks);
        let files = files(&text, Target::Mpijob);
        files.files.iter().map(|file| file.text.clone()).collect::<String>()
    };
    assert!(texts("[\"intranode\"]").contains("1 MPIJob.\n"));
    assert!(texts("[\"intranode\"]").contains("one process on 1 node."));
    assert!(texts("[\"intranode\", \"internode\"]").contains("2 MPIJobs, one for each step.\n"));
    assert!(texts("[\"internode\"]").contains("one process on each of 2 nodes."));
}

#[test]
fn every_object_has_the_labels_by_which_it_is_removed() {
    for case in all() {
        for document in all_documents(&case.files()) {
            let labels = &document["metadata"]["labels"];
            for (key, value) in [
                ("app.kubernetes.io/name", "expertrail"),
                ("app.kubernetes.io/managed-by", "expertrail"),
                ("expertrail.dev/run", ID),
                ("app", ID),
            ] {
                assert_eq!(labels[key], value, "{} {} {key}", case.folder, document["kind"]);
            }
            let name = document["metadata"]["name"].as_str().unwrap();
            assert!(name.len() <= 63 && (name.starts_with(ID) || document["kind"] == "Namespace"));
        }
    }
}

#[test]
fn huge_pages_without_memory_and_endless_commands_are_refused() {
    let text = "name = \"bringup\"\nengine = \"command\"\ncommand = [\"x\"]\nimage = \"x\"\n[kubernetes]\nhugepages_2mi = \"2Mi\"\n";
    let message = try_files(text, Target::K8sJob).unwrap_err().to_string();
    assert!(message.contains("kubernetes.memory"), "{message}");
    let long = "x".repeat(150_000);
    let text = format!("name = \"bringup\"\nengine = \"command\"\ncommand = [\"{long}\"]\nimage = \"x\"\n");
    let message = try_files(&text, Target::K8sJob).unwrap_err().to_string();
    assert!(message.contains("ConfigMap"), "{message}");
}

/// A run that names its context has it in every command that its files print, and the others say that one is to be named.
#[test]
fn printed_commands_name_the_context() {
    let named = "[kubernetes]\ncontext = \"my cluster\"\nprepull = true\n";
    let expertrail = format!("{}{named}binary = \"copy\"\n", guide("expertrail", "crusoe-h200", 2));
    for (text, target) in
        [(expertrail, Target::K8sJob), (format!("{}{named}", aws("aws-p5en")), Target::Mpijob)]
    {
        let mut commands = 0;
        for file in files(&text, target).files.iter().filter(|file| file.path != "run.json") {
            let outside = file.text.replace("kubectl config current-context", "");
            for (at, _) in outside.match_indices("kubectl ") {
                let rest = &outside[at..];
                // In backquotes and with a verb alone it is the name of a command, not a line to copy.
                // `$kubectl` is set above, with the context.
                if outside[..at].ends_with(['`', '$']) {
                    continue;
                }
                commands += 1;
                let line = rest.lines().next().unwrap();
                // Within a value of a script the quotes are quoted.
                let named = ["kubectl --context 'my cluster' ", "kubectl --context '\\''my cluster'\\'' -n "];
                assert!(named.iter().any(|start| line.starts_with(start)), "{}: {line}", file.path);
            }
            if file.path == "README.txt" {
                assert!(file.text.contains("expertrail launch DIRECTORY --context 'my cluster'\n"));
            }
        }
        assert!(commands >= 10, "{commands}");
    }
    let text = guide("expertrail", "crusoe-h200", 2);
    let readme = files(&text, Target::K8sJob);
    let readme = &readme.get("README.txt").unwrap().text;
    assert!(readme.contains("launch DIRECTORY --context CONTEXT") && !readme.contains("kubectl --context"));
}

/// DeepEP's own tests take no number of SMs, warmups or iterations: the files say so where the description asks for them.
#[test]
fn what_deepeps_tests_do_not_take_is_said() {
    let plain = aws("aws-p5en");
    let asked = format!("{plain}[workload]\nsms = 48\niters = 7\ntokens = 256\n");
    for target in Target::ALL.into_iter().filter(|target| *target != Target::Torchrun) {
        let (Ok(plain), Ok(asked)) = (try_files(&plain, target), try_files(&asked, target)) else { continue };
        let holding = |files: &expertrail_launch::files::FileSet| {
            let said = |text: &str| text.contains("workload.sms = 48, workload.iters = 7 have no effect");
            files
                .files
                .iter()
                .filter(|file| said(&file.text))
                .map(|file| file.path.clone())
                .collect::<Vec<_>>()
        };
        assert!(holding(&plain).is_empty());
        // The page, run.json, and what is started.
        let found = holding(&asked);
        assert!(found.len() >= 3 && found.iter().any(|path| path == "README.txt"), "{target:?}: {found:?}");
        assert!(!asked.files.iter().any(|file| file.text.contains("workload.tokens = 256")), "{target:?}");
    }
}
