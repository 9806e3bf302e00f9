//! AWS's `MPIJob`s, value by value.

use expertrail_launch::files::FileSet;
use expertrail_launch::render;
use expertrail_launch::run::{Run, Target};
use expertrail_launch::spec::Spec;
use serde_json::{Value, json};

use super::cases::{CPU, ID, at, aws, aws_own, environment, files, guide, mounted, object};

const STEPS: [(&str, u32); 3] = [("intranode", 1), ("internode", 2), ("low-latency", 2)];

fn spec(job: &Value, replica: &str) -> Value {
    at(job, &format!("/spec/mpiReplicaSpecs/{replica}/template/spec")).clone()
}

/// EFA devices of the instance types, huge pages and memory of the page's files.
#[test]
fn section_2_workers_have_the_instances_devices() {
    for (profile, instance, efa) in [
        ("aws-p5", "p5.48xlarge", "32"),
        ("aws-p5e", "p5e.48xlarge", "32"),
        ("aws-p5en", "p5en.48xlarge", "16"),
        ("aws-p6-b200", "p6-b200.48xlarge", "8"),
        ("aws-p6-b300", "p6-b300.48xlarge", "16"),
    ] {
        let files = files(&aws(profile), Target::Mpijob);
        for (step, nodes) in STEPS {
            let job = object(&files, "MPIJob", step);
            assert_eq!(job["apiVersion"], "kubeflow.org/v2beta1");
            assert_eq!(at(&job, "/spec/mpiReplicaSpecs/Worker/replicas"), nodes);
            let worker = spec(&job, "Worker");
            let wanted = json!({
                "memory": "32000Mi", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": efa, "hugepages-2Mi": "5120Mi",
            });
            assert_eq!(
                at(&worker, "/containers/0/resources"),
                &json!({ "requests": wanted, "limits": wanted })
            );
            for pod in [worker, spec(&job, "Launcher")] {
                assert_eq!(pod["nodeSelector"], json!({ "node.kubernetes.io/instance-type": instance }));
            }
        }
    }
}

#[test]
fn section_2_policy_and_launcher() {
    let files = files(&aws("aws-p5en"), Target::Mpijob);
    for (step, _) in STEPS {
        let job = object(&files, "MPIJob", step);
        assert_eq!(at(&job, "/spec/slotsPerWorker"), 1);
        assert_eq!(at(&job, "/spec/runPolicy/cleanPodPolicy"), "Running");
        // Where the page says 3 and OnFailure, a benchmark says 0 and Never: a second try would hide the first failure.
        assert_eq!(at(&job, "/spec/runPolicy/backoffLimit"), 0);
        assert_eq!(at(&job, "/spec/mpiReplicaSpecs/Launcher/restartPolicy"), "Never");
        assert_eq!(at(&job, "/spec/mpiReplicaSpecs/Launcher/replicas"), 1);
        let launcher = spec(&job, "Launcher");
        assert_eq!(
            at(&launcher, "/containers/0/resources/requests"),
            &json!({ "cpu": "1", "memory": "2Gi" })
        );
        assert!(!launcher.to_string().contains("vpc.amazonaws.com/efa"));
        assert_eq!(launcher["tolerations"], json!([gpu_taint(), bench_taint(), reserved_taint()]));
        // The image is the workers', since ssh and mpirun must be of one kind on both sides.
        assert_eq!(at(&launcher, "/containers/0/image"), at(&spec(&job, "Worker"), "/containers/0/image"));
    }
}

fn gpu_taint() -> Value {
    json!({ "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" })
}

fn bench_taint() -> Value {
    json!({ "key": "workload", "operator": "Equal", "value": "bench", "effect": "NoSchedule" })
}

fn reserved_taint() -> Value {
    json!({ "key": "capacity-reservation", "operator": "Exists", "effect": "NoSchedule" })
}

/// All pods of a run on GPUs stand the taint that providers put on such nodes, and on EFA those of AWS's files; the instance type is
/// wanted by both kinds of jobs, in place of a label that GPU feature discovery would have to set.
#[test]
fn section_2_every_target_and_the_prepull_reach_tainted_nodes() {
    let prepull = "[kubernetes]\nprepull = true\n";
    let text = aws("aws-p5en").replace("[deepep]", &format!("{prepull}[deepep]"));
    let text = text.replace(
        "benchmarks = [\"intranode\", \"internode\", \"low-latency\"]",
        "benchmarks = [\"internode\"]",
    );
    let own = aws_own()
        .replace("tolerations = [\"workload=bench:NoSchedule\", \"capacity-reservation:NoSchedule\"]\n", "");
    for (text, target) in
        [(&text, Target::K8sJob), (&text, Target::Mpijob), (&own, Target::K8sJob), (&own, Target::Mpijob)]
    {
        let files = files(text, target);
        let mut pods = Vec::new();
        if target == Target::K8sJob {
            pods.push(at(&object(&files, "Job", ID), "/spec/template/spec").clone());
        } else {
            let job = object(&files, "MPIJob", "");
            pods.extend([spec(&job, "Launcher"), spec(&job, "Worker")]);
        }
        if text.contains("prepull") {
            pods.push(at(&object(&files, "DaemonSet", "-prepull"), "/spec/template/spec").clone());
        }
        for pod in pods {
            assert_eq!(
                pod["tolerations"],
                json!([gpu_taint(), bench_taint(), reserved_taint()]),
                "{target:?}"
            );
            assert_eq!(
                pod["nodeSelector"],
                json!({ "node.kubernetes.io/instance-type": "p5en.48xlarge" }),
                "{target:?}"
            );
            assert!(pod.pointer("/affinity/nodeAffinity").is_none(), "{target:?}");
        }
    }
    // Elsewhere only the first of them, and nothing where the run has no GPU.
    for (target, kind) in [(Target::K8sJob, "Job"), (Target::Mpijob, "MPIJob")] {
        let job = object(&files(&guide("command", "crusoe-h200", 2), target), kind, "");
        let pods = if kind == "Job" {
            vec![at(&job, "/spec/template/spec").clone()]
        } else {
            vec![spec(&job, "Launcher"), spec(&job, "Worker")]
        };
        assert!(pods.iter().all(|pod| pod["tolerations"] == json!([gpu_taint()])), "{pods:#?}");
    }
    let cpu = object(&files(CPU, Target::K8sJob), "Job", ID);
    assert!(at(&cpu, "/spec/template/spec").get("tolerations").is_none());
}

#[test]
fn section_2_taints_of_the_description_come_on_top() {
    let text = aws_own().replace("tolerations = [", "tolerations = [\"team=moe:NoExecute\", ");
    let job =
        object(&files(&text.replace("workload=bench", "workload=train"), Target::Mpijob), "MPIJob", "deepep");
    for replica in ["Launcher", "Worker"] {
        assert_eq!(
            spec(&job, replica)["tolerations"],
            json!([
                gpu_taint(),
                { "key": "team", "operator": "Equal", "value": "moe", "effect": "NoExecute" },
                { "key": "workload", "operator": "Equal", "value": "train", "effect": "NoSchedule" },
                reserved_taint(),
            ])
        );
    }
    let job = object(&files(&aws_own(), Target::Mpijob), "MPIJob", "deepep");
    for replica in ["Launcher", "Worker"] {
        assert_eq!(
            spec(&job, replica)["tolerations"],
            json!([
                { "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" },
                { "key": "workload", "operator": "Equal", "value": "bench", "effect": "NoSchedule" },
                { "key": "capacity-reservation", "operator": "Exists", "effect": "NoSchedule" },
            ])
        );
    }
}

#[test]
fn section_2_shared_memory_runtime_and_capabilities() {
    let files = files(&aws("aws-p6-b300"), Target::Mpijob);
    for (step, nodes) in STEPS {
        let worker = spec(&object(&files, "MPIJob", step), "Worker");
        let container = at(&worker, "/containers/0");
        let shm = json!({ "name": "dshm", "emptyDir": { "medium": "Memory", "sizeLimit": "200Gi" } });
        assert!(worker["volumes"].as_array().unwrap().contains(&shm));
        assert_eq!(environment(container), [("NVIDIA_GDRCOPY".to_owned(), json!("enabled"))]);
        let wanted = (nodes > 1).then(|| json!({ "capabilities": { "add": ["IPC_LOCK", "SYS_ADMIN"] } }));
        assert_eq!(container.get("securityContext"), wanted.as_ref(), "{step}");
        // No command: the operator starts sshd.
        assert!(container.get("command").is_none() && container.get("args").is_none());
    }
}

/// Launcher and workers of a step between nodes are in one zone: both have the term, and both are meant by it.
#[test]
fn section_2_one_zone_for_launcher_and_workers() {
    let zone = "/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let files = files(&aws("aws-p6-b300"), Target::Mpijob);
    for (step, nodes) in STEPS {
        let job = object(&files, "MPIJob", step);
        for replica in ["Launcher", "Worker"] {
            let pod = spec(&job, replica);
            if nodes == 1 {
                assert!(pod.pointer(zone).is_none(), "{step} {replica}");
                continue;
            }
            let terms = at(&pod, zone).as_array().unwrap();
            assert_eq!(terms.len(), 1);
            assert_eq!(terms[0]["topologyKey"], "topology.kubernetes.io/zone", "{step} {replica}");
            let wanted = at(&terms[0], "/labelSelector/matchLabels").as_object().unwrap();
            assert!(wanted.contains_key("expertrail.dev/step"), "another step must not pull this one");
            for meant in ["Launcher", "Worker"] {
                let labels = at(&job, &format!("/spec/mpiReplicaSpecs/{meant}/template/metadata/labels"));
                assert!(
                    wanted.iter().all(|(key, value)| labels[key] == *value),
                    "{step}: {meant} of {replica}'s term"
                );
            }
        }
    }
    let launcher = spec(&object(&files_without_zone(), "MPIJob", "internode"), "Launcher");
    assert!(launcher.pointer(zone).is_none());
}

fn files_without_zone() -> FileSet {
    files(&aws("aws-p5en").replace("[deepep]", "[kubernetes]\nsame_zone = false\n[deepep]"), Target::Mpijob)
}

/// Only `DeepEP`'s own tests take times with a profiler.
#[test]
fn section_1i_sys_admin_only_where_a_profiler_runs() {
    let worker = spec(&object(&files(&aws_own(), Target::Mpijob), "MPIJob", "deepep"), "Worker");
    assert_eq!(
        at(&worker, "/containers/0/securityContext"),
        &json!({ "capabilities": { "add": ["IPC_LOCK"] } })
    );
}

#[test]
fn section_2_the_mpirun_line() {
    let files = files(&aws("aws-p5en"), Target::Mpijob);
    for (step, nodes, test) in [
        ("intranode", 1, "test_intranode"),
        ("internode", 2, "test_internode"),
        ("low-latency", 2, "test_low_latency"),
    ] {
        let script = mounted(&files, &format!("launcher-{step}.sh"));
        for part in [
            "ssh_options=\"-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR\"\n",
            "ssh -o ConnectTimeout=3 -o BatchMode=yes $ssh_options \"$host\" true",
            "--mca plm_rsh_args \"$ssh_options\" ",
            "hostfile=${EXPERTRAIL_HOSTFILE:-/etc/mpi/hostfile}",
            "mpirun=/opt/amazon/openmpi/bin/mpirun\n",
            &format!("exec \"$mpirun\" --allow-run-as-root --tag-output -np {nodes} -N 1 --bind-to none"),
            "-x PATH ",
            "set -- \"$@\" -x LD_LIBRARY_PATH\n",
            "set -- \"$@\" -x LD_PRELOAD\n",
            "-x FI_PROVIDER=efa ",
            "-x NVSHMEM_REMOTE_TRANSPORT=libfabric ",
            "-x NVSHMEM_LIBFABRIC_PROVIDER=efa ",
            "-x NVSHMEM_NETDEVS_POLICY=EXTERNAL_SHARING_PCIE_SWITCH_NIC_EXCLUSIVE ",
            "-x NCCL_SOCKET_IFNAME=^docker,lo,veth ",
            "-x MASTER_ADDR ",
            "-x MASTER_PORT=29400 ",
            &format!(
                "sh -c 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE python3 /DeepEP/tests/{test}.py'"
            ),
        ] {
            assert!(script.contains(part), "{step}: {part:?} is not in {script}");
        }
        let job = object(&files, "MPIJob", step);
        assert_eq!(
            at(&spec(&job, "Launcher"), "/containers/0/command"),
            &json!(["sh", format!("/etc/expertrail/launcher-{step}.sh")])
        );
    }
}

/// With our binary in the pods, it counts ranks, checks the node and pins.
#[test]
fn the_worker_starts_ranks_where_the_binary_is() {
    let script = mounted(&files(&aws_own(), Target::Mpijob), "launcher-deepep.sh");
    for part in [
        "/opt/expertrail/expertrail worker node",
        "--contract ranks",
        "--master \"$MASTER_ADDR\"",
        "-np 2 -N 1",
    ] {
        assert!(script.contains(part), "{part:?} is not in {script}");
    }
    // NVSHMEM pairs ranks and EFA devices itself.
    assert!(!script.contains("mlx5"), "{script}");
    let upstream =
        aws("aws-p5en").replace("[deepep]", "[kubernetes]\nexpertrail_image = \"ours:1\"\n[deepep]");
    let script = mounted(&files(&upstream, Target::Mpijob), "launcher-internode.sh");
    assert!(script.contains("--contract nodes") && !script.contains("sh -c"), "{script}");
    // Ranks that only the worker can number get the binary by a copy into waiting pods.
    let copied = object(&files(&guide("command", "crusoe-h200", 2), Target::Mpijob), "MPIJob", "command");
    assert_eq!(at(&spec(&copied, "Worker"), "/initContainers/0/name"), "expertrail-binary");
    assert!(spec(&copied, "Launcher").get("initContainers").is_none());
}

#[test]
fn names_that_are_too_long_for_pods_are_refused() {
    let resolve = |id: &str| {
        let spec = Spec::parse("run.toml", &aws("aws-p5en"), &[]).unwrap();
        render::run(&Run::resolve(&spec, Target::Mpijob, None, Some(id)).unwrap())
    };
    // `ID-low-latency-worker-1` and `ID-low-latency-launcher`: 21 characters behind the id, of 63.
    assert!(resolve(&"a".repeat(42)).is_ok());
    let message = resolve(&"a".repeat(43)).unwrap_err().to_string();
    assert!(message.contains("64 characters") && message.contains("by 1 characters"), "{message}");
}

#[test]
fn two_pods_of_a_step_are_never_on_one_node() {
    let files = files(&aws("aws-p5en"), Target::Mpijob);
    let job = object(&files, "MPIJob", "internode");
    let worker = spec(&job, "Worker");
    let term = at(&worker, "/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0");
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
    let labels = at(&job, "/spec/mpiReplicaSpecs/Worker/template/metadata/labels");
    let launcher = at(&job, "/spec/mpiReplicaSpecs/Launcher/template/metadata/labels");
    let wanted = at(term, "/labelSelector/matchLabels").as_object().unwrap();
    assert!(wanted.iter().all(|(key, value)| labels[key] == *value));
    // The launcher, which stands beside them, is not meant.
    assert!(wanted.iter().any(|(key, value)| launcher[key] != *value));
    assert_eq!(at(&job, "/metadata/labels/app"), ID);
}
