//! The pairs: clusters of which one has a fault and the other nearly has it.

use expertrail_cluster::check::Target;
use expertrail_cluster::finding::Status::{self, Fail, Pass, Unknown, Warn};
use expertrail_cluster::kube::{Options, Output, ProbeHost, Report};
use serde_json::json;

use crate::Pair;
use crate::world::{Fake, Inside, World, failed, node, options};

/// The healthy cluster after a change, for IBGDA.
fn on(change: impl Fn(&mut World)) -> Report {
    aimed(Target::DeepepIbgda, change)
}

/// The same for another target.
fn aimed(target: Target, change: impl Fn(&mut World)) -> Report {
    let mut world = World::healthy();
    change(&mut world);
    Fake::new(world).report(&Options { target, ..options() })
}

/// The same with the topology file looked for.
fn probed(fake: &Fake) -> Report {
    fake.report(&Options { probe_host: ProbeHost::EveryNode, ..options() })
}

fn pair(
    id: &'static str,
    raised: Report,
    (status, words): (Status, &'static str),
    near: Report,
    instead: impl Into<Option<&'static str>>,
) -> Pair {
    Pair { id, raised: (raised, status, words), near: (near, instead.into()) }
}

/// What the second node's driver pod shows.
fn inside(change: impl Fn(&mut Inside)) -> Report {
    on(|world| change(world.inside.get_mut("driver-b").unwrap()))
}

pub(crate) fn all() -> Vec<Pair> {
    let parts = [access(), operators(), resources(), pods(), kernels(), nodes(), offers(), jobs(), hosts()];
    parts.into_iter().flatten().collect()
}

fn access() -> Vec<Pair> {
    let answer = |word: &'static str, code: i32| Output {
        code: Some(code),
        stdout: format!("{word}\n").into_bytes(),
        stderr: Vec::new(),
    };
    let with = |output: Output| {
        Fake::new(World::healthy()).when(&["auth", "--subresource=exec"], output).report(&options())
    };
    vec![pair(
        "P300",
        with(answer("no - no RBAC policy matched", 1)),
        (Unknown, "not permitted: create pods/exec in nvidia-gpu-operator"),
        // A reason may follow the answer.
        with(answer("yes - RBAC: allowed by RoleBinding", 0)),
        "all 13 that are used",
    )]
}

fn operators() -> Vec<Pair> {
    vec![
        pair(
            "P301",
            on(|world| world.at("deployments", 0)["status"]["readyReplicas"] = json!(0)),
            (Warn, "gpu-operator 0/1 ready"),
            // Two of two are ready.
            on(|world| {
                world.at("deployments", 0)["spec"]["replicas"] = json!(2);
                world.at("deployments", 0)["status"]["readyReplicas"] = json!(2);
            }),
            "gpu-operator 2/2 ready",
        ),
        pair(
            "P301",
            on(|world| {
                world.lists.insert("deployments", vec![]);
            }),
            (Warn, "its definitions exist, no deployment does"),
            on(|world| {
                world.lists.insert("deployments", vec![]);
                world.definitions.clear();
            }),
            "none; GPUs are offered all the same",
        ),
        pair(
            "P302",
            on(|world| world.at("nicclusterpolicies", 0)["status"]["state"] = json!("notReady")),
            (Warn, "nic-cluster-policy notReady"),
            // One policy of two serves.
            on(|world| {
                let other = json!({"metadata": {"name": "old"}, "status": {"state": "ignore"}});
                world.lists.get_mut("nicclusterpolicies").unwrap().push(other);
            }),
            "old ignore",
        ),
        pair(
            "P303",
            on(|world| world.at("nvidiadrivers", 0)["status"]["state"] = json!("notReady")),
            (Fail, "notReady"),
            // One that backs no node is nobody's concern.
            on(|world| {
                let mut other = world.at("nvidiadrivers", 0).clone();
                other["metadata"]["name"] = json!("b200");
                other["spec"]["nodeSelector"] = json!({"pool": "b200"});
                other["status"]["state"] = json!("notReady");
                world.lists.get_mut("nvidiadrivers").unwrap().push(other);
            }),
            "notReady; it backs no node with GPUs",
        ),
        pair(
            "P304",
            selected("other"),
            (Fail, "no driver resource selects gpu-c"),
            selected("h200"),
            "backed by",
        ),
        pair(
            "P304",
            labelled(&json!({"nvidia.com/gpu.present": "true"})),
            (Warn, "no driver resource selects gpu-c, whose product is not labelled"),
            // It brings a driver of its own.
            labelled(
                &json!({"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.driver": "pre-installed"}),
            ),
            "a driver of their own: gpu-c",
        ),
    ]
}

/// A third node of a pool, without a driver pod.
fn selected(pool: &'static str) -> Report {
    on(|world| {
        let mut new = node("gpu-c");
        new["metadata"]["labels"]["pool"] = json!(pool);
        world.lists.get_mut("nodes").unwrap().push(new);
    })
}

/// A third node with these labels only, without a driver pod.
fn labelled(labels: &serde_json::Value) -> Report {
    on(|world| {
        let mut new = node("gpu-c");
        new["metadata"]["labels"] = labels.clone();
        world.lists.get_mut("nodes").unwrap().push(new);
    })
}

/// The driver resource after a change of its settings.
fn settings(change: impl Fn(&mut serde_json::Value)) -> Report {
    on(|world| change(&mut world.at("nvidiadrivers", 0)["spec"]))
}

/// The `ConfigMap` with another text.
fn config(text: &'static str) -> Report {
    on(|world| world.configs.get_mut("nvidia-kernel-params").unwrap()["data"]["nvidia.conf"] = json!(text))
}

fn resources() -> Vec<Pair> {
    let unset = |spec: &mut serde_json::Value| {
        spec.as_object_mut().unwrap().remove("gdrcopy");
    };
    vec![
        pair(
            "P305",
            settings(unset),
            (Fail, "kernelModuleConfig and rdma.enabled set, gdrcopy.enabled missing"),
            // Who needs no driver keys needs no patch.
            aimed(Target::Nccl, |world| unset(&mut world.at("nvidiadrivers", 0)["spec"])),
            "nccl needs none of them",
        ),
        pair(
            "P306",
            // A value that only begins like the wanted one.
            config("NVreg_EnableStreamMemOPs=10\nNVreg_RegistryDwords=\"PeerMappingOverride=1\"\n"),
            (Fail, "NVreg_EnableStreamMemOPs=1 is not in nvidia.conf"),
            config("NVreg_RegistryDwords=\"RMX=2;PeerMappingOverride=1;\"\nNVreg_EnableStreamMemOPs=1\n"),
            "both keys",
        ),
        pair(
            "P306",
            config("options nvidia NVreg_EnableStreamMemOPs=1\n"),
            (Fail, "a line of modprobe.d"),
            config(
                "NVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"PeerMappingOverride=1\"\nNVreg_NvLinkDisable=0\n",
            ),
            "both keys",
        ),
        pair(
            "P307",
            settings(|spec| spec["gdrcopy"]["version"] = json!("v2.4.9")),
            (Warn, "version v2.4.9"),
            settings(|spec| spec["gdrcopy"]["version"] = json!("v2.5.0")),
            "v2.5.0",
        ),
    ]
}

/// The first driver pod as it was before the patch: one container.
fn single(world: &mut World) {
    let pod = world.at("driver-pods", 0);
    for (path, key) in [("spec", "containers"), ("status", "containerStatuses")] {
        pod[path][key].as_array_mut().unwrap().truncate(1);
    }
}

/// The peermem container of the first driver pod in another state.
fn peermem(state: &serde_json::Value) -> Report {
    on(|world| {
        world.at("driver-pods", 0)["status"]["containerStatuses"][1] = state.clone();
        let modules = Some("gdrdrv 1 0 - Live 0x0\n".to_owned());
        world.inside.get_mut("driver-a").unwrap().modules = modules;
    })
}

/// A third node that has no driver pod.
fn unserved(label: &'static str) -> Report {
    on(|world| {
        let mut new = node("gpu-c");
        new["metadata"]["labels"]["nvidia.com/gpu.deploy.driver"] = json!(label);
        world.lists.get_mut("nodes").unwrap().push(new);
    })
}

fn pods() -> Vec<Pair> {
    let failing = json!({"name": "nvidia-peermem-ctr", "ready": false, "restartCount": 9,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    let starting = json!({"name": "nvidia-peermem-ctr", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "PodInitializing"}}});
    vec![
        pair(
            "P308",
            on(single),
            (Fail, "1/1, without nvidia-peermem-ctr and nvidia-gdrcopy-ctr: made before the patch"),
            // The resource does not ask for them.
            on(|world| {
                for part in ["rdma", "gdrcopy"] {
                    world.at("nvidiadrivers", 0)["spec"].as_object_mut().unwrap().remove(part);
                }
                single(world);
            }),
            "1/1, as the resource asks",
        ),
        pair(
            "P309",
            on(|world| {
                world.at("driver-pods", 0)["status"]["containerStatuses"][1]["ready"] = json!(false);
            }),
            (Fail, "2/3 "),
            // One that restarted before, and runs now.
            on(|world| {
                world.at("driver-pods", 0)["status"]["containerStatuses"][1]["restartCount"] = json!(4);
            }),
            "3/3 Running",
        ),
        pair(
            "P310",
            on(|world| {
                world.at("driver-pods", 1)["metadata"]["labels"]["pod-template-generation"] = json!("3");
                world.inside.get_mut("driver-b").unwrap().modules =
                    Some("nvidia 1 0 - Live 0x0\n".to_owned());
            }),
            (Fail, "made from template 3 of its DaemonSet, which has 4 now"),
            // The resource was changed, which its template does not show: a label, say.
            on(|world| {
                world.at("nvidiadrivers", 0)["metadata"]["managedFields"][0]["time"] =
                    json!("2026-03-01T11:00:00Z");
            }),
            "made from the configuration that holds now",
        ),
        pair(
            "P311",
            unserved("true"),
            (Warn, "no driver pod; 2 GPUs allocatable"),
            // It brings a driver of its own.
            unserved("pre-installed"),
            "one on each of 2 GPU nodes; a driver of their own: gpu-c",
        ),
        pair(
            "P314",
            peermem(&failing),
            (Fail, "nvidia-peermem-ctr CrashLoopBackOff"),
            // Nothing is said of it; the other node's are ready.
            peermem(&starting),
            "nvidia-peermem-ctr and nvidia-gdrcopy-ctr ready",
        ),
    ]
}

fn kernels() -> Vec<Pair> {
    let params = |stream: &str, dwords: &str| {
        Some(format!("EnableStreamMemOPs: {stream}\nRegistryDwords: \"{dwords}\"\n"))
    };
    vec![
        pair(
            "P312",
            inside(|inside| inside.params = params("1", "XPeerMappingOverride=1")),
            (Fail, "params=1/2"),
            inside(|inside| inside.params = params("1", "RMX=2; PeerMappingOverride=0x1;")),
            "params=2/2",
        ),
        pair(
            "P313",
            inside(|inside| {
                inside.modules = Some("nvidia_peermem 1 0 - Live 0x0\nxgdrdrv 1 0 - Live 0x0\n".to_owned());
            }),
            (Fail, "modules=1/2: gdrdrv not loaded"),
            inside(|inside| {
                inside.modules = Some("gdrdrv 1 0 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0\n".to_owned());
            }),
            "modules=2/2",
        ),
        pair(
            "P315",
            inside(|inside| inside.devices[2].1 = "1: DOWN"),
            (Fail, "mlx5_2 1: DOWN"),
            // The frontend is no rail.
            inside(|inside| inside.devices[0].1 = "1: DOWN"),
            "2 of 3 devices look like rails: mlx5_1 mlx5_2",
        ),
        pair(
            "P315",
            inside(|inside| {
                inside.devices.push(("mlx5_3".to_owned(), "1: DOWN", "10 Gb/sec (4X SDR)", "InfiniBand"));
            }),
            (Warn, "mlx5_3 1: DOWN, and 2 rails for 2 GPUs are up"),
            // A spare port that is up.
            inside(|inside| {
                inside.devices.push(("mlx5_3".to_owned(), "4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand"));
            }),
            "2 of 4 devices look like rails: mlx5_1 mlx5_2",
        ),
        pair(
            "P326",
            inside(|inside| inside.matrix = inside.matrix.replace("NV18", "SYS")),
            (Fail, "no NVLink between GPU0 and GPU1"),
            // Fewer links than its siblings have, but links.
            inside(|inside| inside.matrix = inside.matrix.replace("NV18", "NV1")),
            "2 GPUs, joined by NVLink",
        ),
        pair(
            "P328",
            inside(|inside| inside.version = "570.86.15"),
            (Warn, "driver: 1 x 570.86.15, 1 x 580.95.05"),
            // The one that differs is of another product.
            on(|world| {
                world.grow(3);
                world.at("nodes", 1)["metadata"]["labels"]["nvidia.com/gpu.product"] = json!("NVIDIA-B200");
                world.inside.get_mut("driver-b").unwrap().version = "570.86.15";
            }),
            "2 nodes alike",
        ),
    ]
}

fn nodes() -> Vec<Pair> {
    vec![
        pair(
            "P319",
            on(|world| {
                world.at("nodes", 1)["metadata"]["labels"]
                    .as_object_mut()
                    .unwrap()
                    .remove("nvidia.com/gpu.product");
            }),
            (Warn, "no label nvidia.com/gpu.product"),
            // GPU Feature Discovery adds this where GPUs are shared in time.
            on(|world| {
                world.at("nodes", 1)["metadata"]["labels"]["nvidia.com/gpu.product"] =
                    json!("NVIDIA-H200-SHARED");
            }),
            "NVIDIA-H200-SHARED",
        ),
        pair(
            "P320",
            on(|world| world.at("nodes", 0)["spec"]["unschedulable"] = json!(true)),
            (Warn, "cordoned"),
            // A node without GPUs is nobody's concern.
            on(|world| world.at("nodes", 2)["spec"]["unschedulable"] = json!(true)),
            "ready",
        ),
        pair(
            "P321",
            on(|world| {
                world.at("nodes", 1)["metadata"]["labels"]["nvidia.com/gpu.product"] = json!("NVIDIA-B200");
            }),
            (Warn, "NVIDIA-B200, NVIDIA-H200"),
            // A node that does not name its product is P319's.
            on(|world| {
                world.at("nodes", 1)["metadata"]["labels"]
                    .as_object_mut()
                    .unwrap()
                    .remove("nvidia.com/gpu.product");
            }),
            "NVIDIA-H200",
        ),
        pair(
            "P327",
            on(|_| {}),
            (Pass, "jobs must tolerate nvidia.com/gpu=present:NoSchedule"),
            // What does not keep a pod away, and what P320 says.
            on(|world| {
                for place in 0..2 {
                    world.at("nodes", place)["spec"]["taints"] = json!([
                        {"key": "pool", "value": "gpu", "effect": "PreferNoSchedule"},
                        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
                }
            }),
            "none",
        ),
    ]
}

/// The first node with another number of a resource.
fn offered(resource: &str, count: &str) -> Report {
    on(|world| world.at("nodes", 0)["status"]["allocatable"][resource] = json!(count))
}

/// Both nodes with EFA devices and huge pages, and the plugin's pods.
fn efa(huge: &str, ready: u32) -> Report {
    aimed(Target::DeepepEfa, |world| {
        for place in 0..2 {
            world.at("nodes", place)["status"]["allocatable"] =
                json!({"nvidia.com/gpu": "2", "vpc.amazonaws.com/efa": "16", "hugepages-2Mi": huge});
        }
        world.lists.get_mut("daemonsets").unwrap().push(
            json!({"metadata": {"name": "aws-efa-k8s-device-plugin-daemonset", "namespace": "kube-system"},
                "status": {"desiredNumberScheduled": 2, "numberReady": ready}}),
        );
    })
}

fn offers() -> Vec<Pair> {
    vec![
        pair(
            "P316",
            offered("nvidia.com/hostdev", "0"),
            (Fail, "nvidia.com/hostdev 0"),
            // The shared device plugin gives them instead.
            on(|world| {
                let allocatable = &mut world.at("nodes", 0)["status"]["allocatable"];
                allocatable["nvidia.com/hostdev"] = json!("0");
                allocatable["rdma/shared_a"] = json!("63");
            }),
            "rdma/shared_a 63",
        ),
        pair(
            "P316",
            offered("nvidia.com/hostdev", "1"),
            (Fail, "nvidia.com/hostdev 1 of 2"),
            // More than one for each GPU.
            on(|world| {
                for part in ["capacity", "allocatable"] {
                    world.at("nodes", 0)["status"][part]["nvidia.com/hostdev"] = json!("4");
                }
            }),
            "nvidia.com/hostdev 4",
        ),
        // The provider's examples ask for 5120 MiB.
        pair(
            "P317",
            efa("5118Mi", 2),
            (Warn, "hugepages-2Mi 5118Mi"),
            efa("5120Mi", 2),
            "hugepages-2Mi 5120Mi",
        ),
        pair("P317", efa("0", 2), (Warn, "hugepages-2Mi 0Mi"), on(|_| {}), "only EFA asks for them"),
        pair(
            "P323",
            efa("5120Mi", 1),
            (Warn, "aws-efa-k8s-device-plugin-daemonset 1/2 ready"),
            efa("5120Mi", 2),
            "aws-efa-k8s-device-plugin-daemonset 2/2 ready",
        ),
        pair(
            "P329",
            offered("nvidia.com/gpu", "1"),
            (Fail, "1 of 2 GPUs"),
            offered("nvidia.com/gpu", "2"),
            "2 GPUs",
        ),
    ]
}

/// A pod that uses the second node.
fn used(line: &'static str) -> Report {
    on(|world| world.usage.push(line.to_owned()))
}

fn jobs() -> Vec<Pair> {
    let mpi = |definitions: &'static [&'static str]| {
        aimed(Target::DeepepEfa, |world| world.definitions.extend(definitions))
    };
    vec![
        pair(
            "P318",
            used("team\ttrain-0\tgpu-b\tJob\t\t{\"nvidia.com/gpu\":\"1\"} \t"),
            (Warn, "1 of 2 GPU nodes are free: gpu-b 1/2 GPUs free, used by team/train-0"),
            // It uses the node, and none of what jobs are after.
            used("team\tx\tgpu-b\t\t\t{\"cpu\":\"100\"} \t"),
            "2 of 2 GPU nodes are free",
        ),
        pair(
            "P322",
            mpi(&["mpijobs.kubeflow.org.old", "pytorchjobs.kubeflow.org"]),
            (Warn, "no definition mpijobs.kubeflow.org"),
            mpi(&["mpijobs.kubeflow.org"]),
            "mpijobs.kubeflow.org",
        ),
    ]
}

const FILE: &str = "h200-141gb-sxm-ib-cloud-hypervisor.xml";

fn hosts() -> Vec<Pair> {
    let with = |files: &[&'static str]| {
        let mut world = World::healthy();
        world.host.insert("gpu-a".to_owned(), Some(files.to_vec()));
        probed(&Fake::new(world))
    };
    let deletion = |text: &str| probed(&Fake::new(World::healthy()).when(&["delete", "pod"], failed(text)));
    vec![
        pair(
            "P324",
            with(&["b200-180gb-sxm-ib-cloud-hypervisor.xml", "h200-141gb-sxm-ib-cloud-hypervisor.xml.old"]),
            (Warn, "/etc/crusoe/nccl_topo has b200-180gb-sxm-ib-cloud-hypervisor.xml"),
            with(&["b200-180gb-sxm-ib-cloud-hypervisor.xml", FILE]),
            "NCCL_TOPO_FILE=/etc/crusoe/nccl_topo/h200-141gb-sxm-ib-cloud-hypervisor.xml",
        ),
        pair(
            "P325",
            deletion("Error from server (Forbidden): pods is forbidden\n"),
            (Warn, "node-debugger-gpu-a-"),
            // Somebody else was faster.
            deletion("Error from server (NotFound): pods \"node-debugger-gpu-a-0\" not found\n"),
            "no pod of ours is left",
        ),
    ]
}
