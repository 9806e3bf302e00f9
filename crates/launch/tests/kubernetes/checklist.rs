//! The guide's manifest, point by point: values are those of the document.

use std::collections::BTreeSet;

use expertrail_launch::run::Target;
use serde_json::{Value, json};

use super::cases::{ID, at, environment, files, guide, mounted, object};

fn job(profile: &str, nodes: u32) -> Value {
    object(&files(&guide("deepep", profile, nodes), Target::K8sJob), "Job", ID)
}

fn pod(job: &Value) -> &Value {
    at(job, "/spec/template/spec")
}

fn container(job: &Value) -> &Value {
    at(job, "/spec/template/spec/containers/0")
}

fn has(parts: &Value, wanted: &Value) {
    assert!(parts.as_array().unwrap().contains(wanted), "{wanted} is not in {parts:#}");
}

/// Which devices ranks get on both SKUs, and that the frontend is none: GPU N has `mlx5_(N+1)` of H200 and `mlx5_(N+5)` of B200.
#[test]
fn checklist_16_rails_of_both_skus() {
    for (profile, offset, frontend) in [("crusoe-h200", 1, "mlx5_0"), ("crusoe-b200", 5, "mlx5_4")] {
        let rendered = files(&guide("deepep", profile, 2), Target::K8sJob);
        let job = object(&rendered, "Job", ID);
        let rails: Vec<String> = (0..8).map(|gpu| format!("mlx5_{}:1", gpu + offset)).collect();
        let rails = rails.join(",");
        let environment = environment(container(&job));
        for (name, value) in [
            ("NVSHMEM_HCA_OFFSET", offset.to_string()),
            ("NCCL_IB_HCA", rails.clone()),
            ("UCX_NET_DEVICES", rails.clone()),
        ] {
            assert!(environment.contains(&(name.to_owned(), json!(value))), "{profile}: {name}={value}");
        }
        let script = mounted(&rendered, "run.sh");
        assert!(script.contains(&format!("--pins {rails} ")), "{script}");
        assert!(!script.contains(&format!("{frontend}:1")), "{script}");
        // The committed file says the same.
        let folder = if profile == "crusoe-h200" { "deepep-h200x2" } else { "deepep-b200x2" };
        let golden = format!("{}/tests/golden/k8s-job/{folder}/manifest.yaml", env!("CARGO_MANIFEST_DIR"));
        let golden = std::fs::read_to_string(golden).unwrap();
        assert_eq!(golden.matches(&rails).count(), 3, "the pins and two variables");
        assert!(!golden.contains(&format!("{frontend}:1")));
    }
}

/// The guide's settings are the benchmark's own, so that a run without `[workload]` names none: 37 inside a node, 38 between nodes.
#[test]
fn checklist_37_and_38_the_guides_settings_are_those_of_a_run_that_names_none() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/k8s-job/deepep-b200x2/manifest.yaml");
    let golden = std::fs::read_to_string(golden).unwrap();
    let (_, after) = golden.split_once("-- python3 /etc/expertrail/deepep_bench.py").unwrap();
    let (command, _) = after.split_once("\n\n").unwrap();
    let options: Vec<&str> = command.split_whitespace().filter(|word| word.starts_with("--")).collect();
    assert_eq!(options, ["--benchmarks", "--json"], "{command}");
    let mapped = mounted(&files(&guide("deepep", "crusoe-b200", 2), Target::K8sJob), "deepep_bench.py");
    for (name, numbers) in [
        ("intranode", [("tokens", 65536), ("hidden", 3072), ("experts", 128), ("top_k", 16), ("sms", 40)]),
        ("internode", [("tokens", 8192), ("hidden", 3072), ("experts", 128), ("top_k", 8), ("sms", 20)]),
    ] {
        let line =
            mapped.lines().find(|line| line.trim().starts_with(&format!("\"{name}\": dict("))).unwrap();
        for (key, number) in numbers.into_iter().chain([("warmup", 10), ("iters", 50)]) {
            let end = [format!("{key}={number},"), format!("{key}={number})")];
            assert!(end.iter().any(|text| line.contains(text.as_str())), "{name} {key}: {line}");
        }
    }
    // What a description does name is handed on.
    let text = guide("deepep", "crusoe-b200", 2) + "[workload]\ntokens = 4096\ntop_k = 4\n";
    let script = mounted(&files(&text, Target::K8sJob), "run.sh");
    assert!(script.contains("--tokens 4096") && script.contains("--top-k 4"), "{script}");
}

#[test]
fn checklist_29_namespace_and_headless_service() {
    let files = files(&guide("deepep", "crusoe-b200", 2), Target::K8sJob);
    let namespace = object(&files, "Namespace", "");
    let service = object(&files, "Service", ID);
    assert_eq!(at(&namespace, "/metadata/labels/app.kubernetes.io~1managed-by"), "expertrail");
    assert_eq!(at(&service, "/metadata/namespace"), at(&namespace, "/metadata/name"));
    assert_eq!(at(&service, "/spec/clusterIP"), "None");
    assert_eq!(at(&service, "/spec/publishNotReadyAddresses"), true);
    assert_eq!(at(&service, "/spec/ports/0/port"), 29400);
    assert_eq!(at(&service, "/spec/ports/0/targetPort"), 29400);
    // What it selects are the pods of the Job.
    let job = object(&files, "Job", ID);
    assert_eq!(at(&service, "/spec/selector/app"), at(&job, "/spec/template/metadata/labels/app"));
}

#[test]
fn checklist_30_the_job() {
    let job = job("crusoe-b200", 2);
    for (key, value) in [
        ("backoffLimit", json!(0)),
        ("completions", json!(2)),
        ("parallelism", json!(2)),
        ("completionMode", json!("Indexed")),
        ("ttlSecondsAfterFinished", json!(3600)),
    ] {
        assert_eq!(job["spec"][key], value, "{key}");
    }
    let pod = pod(&job);
    // The Service's name: without it pods have no name to be found by.
    assert_eq!(pod["subdomain"], ID);
    assert_eq!(pod["restartPolicy"], "Never");
    let affinity = &pod["affinity"];
    assert_eq!(
        at(
            affinity,
            "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions"
        ),
        &json!([{ "key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"] }])
    );
    assert_eq!(
        at(affinity, "/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution"),
        &json!([{ "labelSelector": { "matchLabels": { "app": ID } }, "topologyKey": "kubernetes.io/hostname" }])
    );
    assert_eq!(at(&job, "/spec/template/metadata/labels/app"), ID);
    // 20 min of the run and half an hour for pulls and waiting.
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 1200 + 1800);
}

#[test]
fn checklist_30_a_pool_is_chosen_by_its_label() {
    let text = guide("deepep", "crusoe-h200", 2)
        + "[kubernetes]\nnode_selector = { \"nvidia.com/gpu.product\" = \"NVIDIA-H200\" }\n";
    let job = object(&files(&text, Target::K8sJob), "Job", ID);
    assert_eq!(pod(&job)["nodeSelector"], json!({ "nvidia.com/gpu.product": "NVIDIA-H200" }));
}

#[test]
fn checklist_31_volumes_and_pulls() {
    let job = job("crusoe-b200", 2);
    let (pod, container) = (pod(&job), container(&job));
    has(&pod["volumes"], &json!({ "name": "dshm", "emptyDir": { "medium": "Memory", "sizeLimit": "64Gi" } }));
    has(
        &pod["volumes"],
        &json!({ "name": "topology", "hostPath": { "path": "/etc/crusoe", "type": "Directory" } }),
    );
    has(&container["volumeMounts"], &json!({ "name": "dshm", "mountPath": "/dev/shm" }));
    has(
        &container["volumeMounts"],
        &json!({ "name": "topology", "mountPath": "/etc/crusoe", "readOnly": true }),
    );
    assert_eq!(container["imagePullPolicy"], "Always");
}

/// The file is optional, and goes with its variable.
#[test]
fn checklist_31_without_a_topology_file_there_is_no_host_folder() {
    let text = guide("deepep", "crusoe-b200", 2) + "[network]\nnccl_topo_file = \"\"\n";
    let job = object(&files(&text, Target::K8sJob), "Job", ID);
    assert!(!job.to_string().contains("hostPath"), "{job:#}");
    assert!(!environment(container(&job)).iter().any(|(name, _)| name == "NCCL_TOPO_FILE"));
}

#[test]
fn checklist_32_resources_and_capabilities() {
    for (profile, request, limit) in [("crusoe-b200", "900Gi", "950Gi"), ("crusoe-h200", "1700Gi", "1700Gi")]
    {
        let job = job(profile, 2);
        assert_eq!(
            container(&job)["resources"],
            json!({
                "requests": { "cpu": "158", "memory": request, "nvidia.com/gpu": "8", "nvidia.com/hostdev": "8" },
                "limits": { "memory": limit, "nvidia.com/gpu": "8", "nvidia.com/hostdev": "8" },
            })
        );
        assert_eq!(
            container(&job)["securityContext"],
            json!({ "capabilities": { "add": ["IPC_LOCK", "SYS_PTRACE"] } })
        );
    }
}

const B200_RAILS: &str = "mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1,mlx5_10:1,mlx5_11:1,mlx5_12:1";

/// Each variable of the guide's manifest; `NODE_RANK` comes from the script.
const GUIDE: [(&str, &str); 28] = [
    ("NVSHMEM_HCA_OFFSET", "5"),
    ("NVSHMEM_IB_ENABLE_IBGDA", "1"),
    ("NCCL_IB_HCA", B200_RAILS),
    ("UCX_NET_DEVICES", B200_RAILS),
    ("NCCL_IB_DISABLE", "0"),
    ("NCCL_NVLS_ENABLE", "1"),
    ("NCCL_IB_SL", "1"),
    ("NCCL_IB_PCI_RELAXED_ORDERING", "1"),
    ("NCCL_IB_SPLIT_DATA_ON_QPS", "0"),
    ("NCCL_IB_QPS_PER_CONNECTION", "2"),
    ("NCCL_IBEXT_DISABLE", "1"),
    ("NCCL_IB_MERGE_VFS", "0"),
    ("NCCL_MAX_CTAS", "32"),
    ("NCCL_MIN_CTAS", "32"),
    ("NCCL_TOPO_FILE", "/etc/crusoe/nccl_topo/b200-180gb-sxm-ib-cloud-hypervisor.xml"),
    ("NCCL_SOCKET_IFNAME", "eth0"),
    ("NCCL_SOCKET_FAMILY", "AF_INET"),
    ("GLOO_SOCKET_IFNAME", "eth0"),
    ("GLOO_SOCKET_FAMILY", "AF_INET"),
    ("UCX_MEMTYPE_CACHE", "n"),
    ("NVSHMEM_BOOTSTRAP", "UID"),
    ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "eth0"),
    ("NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", "AF_INET"),
    ("NVSHMEM_IB_SL", "1"),
    ("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1"),
    ("NUM_NODES", "2"),
    ("NUM_GPUS_PER_NODE", "8"),
    ("WORLD_SIZE", "16"),
];

#[test]
fn checklist_33_all_variables() {
    let files = files(&guide("deepep", "crusoe-b200", 2), Target::K8sJob);
    let job = object(&files, "Job", ID);
    let found = environment(container(&job));
    for (name, value) in GUIDE {
        assert!(found.contains(&(name.to_owned(), json!(value))), "{name}={value} is not in {found:#?}");
    }
    let names: BTreeSet<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    let mut wanted: BTreeSet<&str> = GUIDE.iter().map(|(name, _)| *name).collect();
    wanted.insert("EXPERTRAIL_HOST");
    assert_eq!(names, wanted);
    assert_eq!(found.len(), names.len(), "a variable is there twice");
    // In the shell: the node's rank from the index that the Job controller hands over, and the two of the guide's script.
    let script = mounted(&files, "run.sh");
    for line in [
        "NODE_RANK=$JOB_COMPLETION_INDEX\n",
        "NCCL_DEBUG=${NCCL_DEBUG:-WARN}",
        "PYTHONPATH=/etc/expertrail${PYTHONPATH:+:$PYTHONPATH}",
        "export NODE_RANK NCCL_DEBUG\n",
        "export PYTHONPATH\n",
    ] {
        assert!(script.contains(line), "{line:?} is not in {script}");
    }
}

/// torchrun's arguments in the guide, as those of this project's worker.
#[test]
fn checklist_34_where_ranks_meet() {
    let text = guide("deepep", "crusoe-b200", 2) + "[kubernetes]\nnamespace = \"deepep-test\"\n";
    let files = files(&text, Target::K8sJob);
    let script = mounted(&files, "run.sh");
    // The guide: NAME-0.SERVICE.NAMESPACE.svc.cluster.local; the domain is left to the pod's search list.
    for part in [
        "--nodes 2",
        "--ranks-per-node 8",
        "--master bringup-0.bringup.deepep-test.svc ",
        "--master-port 29400",
    ] {
        assert!(script.contains(part), "{part:?} is not in {script}");
    }
    assert_eq!(expertrail_launch::run::RENDEZVOUS_S, 900);
    // Each rank its own rail, GPU N with mlx5_(N+5).
    assert!(script.contains(&format!("--pins {B200_RAILS} ")), "{script}");
    assert!(files.get("README.txt").unwrap().text.contains("900 s"));
}

#[test]
fn checklist_35_counts_move_together() {
    for (nodes, ranks) in [(2, "16"), (3, "24"), (4, "32")] {
        for engine in ["deepep", "expertrail", "command"] {
            let text = guide(engine, "crusoe-h200", nodes)
                + if engine == "deepep" { "[workload]\nexperts = 384\n" } else { "" };
            let files = files(&text, Target::K8sJob);
            let job = object(&files, "Job", ID);
            assert_eq!(
                (&job["spec"]["completions"], &job["spec"]["parallelism"]),
                (&json!(nodes), &json!(nodes))
            );
            let found = environment(container(&job));
            for (name, value) in [
                ("NUM_NODES", nodes.to_string()),
                ("NUM_GPUS_PER_NODE", "8".to_owned()),
                ("WORLD_SIZE", ranks.to_owned()),
            ] {
                assert!(found.contains(&(name.to_owned(), json!(value))), "{engine} {nodes}: {name}");
            }
            let script = mounted(&files, "run.sh");
            let given: Vec<&str> =
                script.split_whitespace().skip_while(|word| *word != "--nodes").take(2).collect();
            assert_eq!(given, ["--nodes", nodes.to_string().as_str()]);
            assert!(script.contains(&format!("\nnodes={nodes}\n")), "{script}");
        }
    }
}

/// Leaves that differ between two documents, by their place.
fn differing(one: &Value, other: &Value, place: &str, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let none = Value::Null;
                differing(
                    a.get(key).unwrap_or(&none),
                    b.get(key).unwrap_or(&none),
                    &format!("{place}/{key}"),
                    found,
                );
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                let name = a["name"].as_str().map_or_else(|| index.to_string(), str::to_owned);
                differing(a, b, &format!("{place}/{name}"), found);
            }
        }
        _ if one == other => {}
        _ => found.push(place.to_owned()),
    }
}

/// H200 from B200: six values, of which memory is in two places and the image in the waiting container as well.
#[test]
fn checklist_35_six_values_tell_h200_from_b200() {
    let mut found = Vec::new();
    differing(&job("crusoe-b200", 2), &job("crusoe-h200", 2), "", &mut found);
    found.sort();
    let env = "/spec/template/spec/containers/ranks/env";
    let mut wanted = vec![
        "/spec/template/spec/containers/ranks/image".to_owned(),
        "/spec/template/spec/containers/ranks/resources/limits/memory".to_owned(),
        "/spec/template/spec/containers/ranks/resources/requests/memory".to_owned(),
        format!("{env}/NCCL_IB_HCA/value"),
        format!("{env}/NCCL_TOPO_FILE/value"),
        format!("{env}/NVSHMEM_HCA_OFFSET/value"),
        format!("{env}/UCX_NET_DEVICES/value"),
        "/spec/template/spec/initContainers/expertrail-binary/image".to_owned(),
    ];
    wanted.sort();
    assert_eq!(found, wanted);
    // The script differs in the ranks' own devices alone, which follow from the offset.
    let script = |profile| mounted(&files(&guide("deepep", profile, 2), Target::K8sJob), "run.sh");
    let (b200, h200) = (script("crusoe-b200"), script("crusoe-h200"));
    let other: Vec<(&str, &str)> =
        b200.lines().zip(h200.lines()).filter(|(one, other)| one != other).collect();
    assert_eq!(b200.lines().count(), h200.lines().count());
    let h200_rails = "mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1";
    assert_eq!(
        other.iter().map(|(one, other)| (one.trim(), other.trim())).collect::<Vec<_>>(),
        [(format!("--pins {B200_RAILS} \\").as_str(), format!("--pins {h200_rails} \\").as_str())]
    );
}

#[test]
fn checklist_36_what_a_person_must_know_is_in_the_readme() {
    let readme =
        files(&guide("deepep", "crusoe-b200", 2), Target::K8sJob).get("README.txt").unwrap().text.clone();
    for words in [
        "cannot be changed",
        "delete it first and then apply",
        "3600 s after its end",
        "900 s for each other",
        "ContainerCreating",
        "-o wide -w",
        "kubectl apply -f manifest.yaml",
        "delete job,service,configmap -l expertrail.dev/run=bringup",
    ] {
        assert!(readme.contains(words), "{words:?} is not in {readme}");
    }
}
