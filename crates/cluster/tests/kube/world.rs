//! A made-up cluster that tests change, and two stand-ins for kubectl that answer from it: one in this process, one a program.
//!
//! Two H200 nodes of eight GPUs (here two, to keep matrices small), a CPU node, one `NVIDIADriver` resource that was patched
//! before its pods were made: everything right for IBGDA.
// Each test file uses a part; what a test helper does not expect is the test's failure.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use expertrail_cluster::check::Target;
use expertrail_cluster::finding::{Finding, Status};
use expertrail_cluster::kube::{self, Kubectl, KubectlError, Options, Output, Report};
use serde_json::{Value, json};

/// 2026-03-01T12:00:00Z: 1,772,323,200 is midnight (`date -u -d 2026-03-01 +%s`).
pub const NOW: u64 = 1_772_323_200 + 12 * 3_600;

pub const NAMESPACE: &str = "nvidia-gpu-operator";

/// What one driver pod shows.
#[derive(Clone, Debug)]
pub struct Inside {
    pub params: Option<String>,
    pub modules: Option<String>,
    /// Name, state, rate, link layer.
    pub devices: Vec<(String, &'static str, &'static str, &'static str)>,
    pub version: &'static str,
    pub firmware: &'static str,
    pub matrix: String,
}

impl Inside {
    pub fn healthy() -> Self {
        let rail = |name: &str| (name.to_owned(), "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand");
        Self {
            params: Some(
                "ResmanDebugLevel: 4294967295\nEnableStreamMemOPs: 1\nRegistryDwords: \"PeerMappingOverride=1;\"\nRegistryDwordsPerDevice: \"\"\n"
                    .to_owned(),
            ),
            modules: Some(
                "nvidia_peermem 16384 0 - Live 0x0 (OE)\ngdrdrv 36864 0 - Live 0x0 (OE)\nnvidia 14548992 4 nvidia_peermem,gdrdrv, Live 0x0 (OE)\n"
                    .to_owned(),
            ),
            devices: vec![
                ("mlx5_0".to_owned(), "4: ACTIVE", "100 Gb/sec (4X EDR)", "Ethernet"),
                rail("mlx5_1"),
                rail("mlx5_2"),
            ],
            version: "580.95.05",
            firmware: "28.43.2026",
            matrix: "\t\u{1b}[4mGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\n\
                GPU0\t X \tNV18\tNODE\tPHB\tPHB\t0-87\t0\t\tN/A\nGPU1\tNV18\t X \tNODE\tPHB\tPHB\t0-87\t0\t\tN/A\n\
                NIC0\tNODE\tNODE\t X \tNODE\tNODE\nNIC1\tPHB\tPHB\tNODE\t X \tPHB\nNIC2\tPHB\tPHB\tNODE\tPHB\t X \n\n\
                Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n  NIC2: mlx5_2\n"
                .to_owned(),
        }
    }

    /// As the script of the check prints it.
    pub fn print(&self) -> String {
        let mut out = String::new();
        let mut file = |path: &str, text: Option<&str>| match text {
            Some(text) => {
                let _ = write!(out, "\n@@expertrail + {path}\n{}\n", text.trim_end());
            }
            None => {
                let _ = write!(out, "\n@@expertrail - {path}\n");
            }
        };
        file("/proc/driver/nvidia/params", self.params.as_deref());
        let line = format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build",
            self.version
        );
        file("/proc/driver/nvidia/version", self.params.as_ref().map(|_| line.as_str()));
        file("/proc/modules", self.modules.as_deref());
        for (name, state, rate, layer) in &self.devices {
            let at = |file: &str| format!("/sys/class/infiniband/{name}/{file}");
            file(&at("device/numa_node"), Some("0"));
            file(&at("fw_ver"), Some(self.firmware));
            file(&at("ports/1/state"), Some(state));
            file(&at("ports/1/rate"), Some(rate));
            file(&at("ports/1/link_layer"), Some(layer));
            file(&at("ports/1/pkeys/0"), Some("0xffff"));
        }
        out.push_str("\n@@expertrail . end\n");
        out
    }
}

/// A cluster.
#[derive(Clone, Debug)]
pub struct World {
    /// Lists by kind: `nodes`, `driver-pods`, `nvidiadrivers`, `clusterpolicies`, `nicclusterpolicies`, `daemonsets`, `deployments`.
    pub lists: BTreeMap<&'static str, Vec<Value>>,
    pub configs: BTreeMap<String, Value>,
    pub definitions: Vec<&'static str>,
    /// Lines of pods that use nodes.
    pub usage: Vec<String>,
    pub inside: BTreeMap<String, Inside>,
    /// Logs by `pod/container`.
    pub logs: BTreeMap<String, String>,
    /// Files of the provider's folder, by node; none: there is no such folder.
    pub host: BTreeMap<String, Option<Vec<&'static str>>>,
}

pub fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H200", "pool": "h200"}},
        "spec": {"providerID": "crusoe://0b6d1f52-1b0e-4a53-9d2c-0f3c5a6b7c8d", "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "176", "nvidia.com/gpu": "2", "nvidia.com/hostdev": "2", "hugepages-2Mi": "0"},
            "allocatable": {"cpu": "175500m", "nvidia.com/gpu": "2", "nvidia.com/hostdev": "2", "hugepages-2Mi": "0"},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}]}})
}

pub fn container(name: &str, started: &str) -> Value {
    json!({"name": name, "ready": true, "restartCount": 0, "state": {"running": {"startedAt": started}}})
}

pub fn driver_pod(name: &str, node: &str) -> Value {
    let names = ["nvidia-driver-ctr", "nvidia-peermem-ctr", "nvidia-gdrcopy-ctr"];
    json!({"metadata": {"name": name, "creationTimestamp": "2026-03-01T10:05:00Z",
            "labels": {"app.kubernetes.io/component": "nvidia-driver", "pod-template-generation": "4"},
            "ownerReferences": [{"kind": "DaemonSet", "name": "nvidia-gpu-driver-ubuntu22.04-7c"}]},
        "spec": {"nodeName": node, "containers": names.map(|name| json!({"name": name, "image": format!("nvcr.io/nvidia/{name}:580")}))},
        "status": {"phase": "Running",
            "initContainerStatuses": [{"name": "k8s-driver-manager", "ready": true, "state": {"terminated": {"exitCode": 0}}}],
            "containerStatuses": names.map(|name| container(name, "2026-03-01T10:06:00Z"))}})
}

impl World {
    pub fn healthy() -> Self {
        let driver = json!({"metadata": {"name": "h200", "generation": 3, "managedFields": [
                {"manager": "kubectl-patch", "time": "2026-03-01T10:00:00Z", "fieldsV1": {"f:spec": {"f:rdma": {}}}},
                {"manager": "gpu-operator", "time": "2026-03-01T10:07:00Z", "subresource": "status", "fieldsV1": {"f:status": {}}}]},
            "spec": {"driverType": "gpu", "nodeSelector": {"pool": "h200"}, "rdma": {"enabled": true},
                "kernelModuleConfig": {"name": "nvidia-kernel-params"},
                "gdrcopy": {"enabled": true, "image": "gdrdrv", "repository": "nvcr.io/nvidia/cloud-native", "version": "v2.5.1"}},
            "status": {"state": "ready"}});
        let policy = json!({"metadata": {"name": "cluster-policy"}, "spec": {"driver": {"enabled": true, "useNvidiaDriverCRD": true}},
            "status": {"state": "ready"}});
        let config = json!({"metadata": {"name": "nvidia-kernel-params", "managedFields": [
                {"time": "2026-03-01T09:55:00Z", "fieldsV1": {"f:data": {}}}]},
            "data": {"nvidia.conf": "NVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"PeerMappingOverride=1\"\n"}});
        let set = json!({"metadata": {"name": "nvidia-gpu-driver-ubuntu22.04-7c", "namespace": NAMESPACE,
                "annotations": {"deprecated.daemonset.template.generation": "4"},
                "ownerReferences": [{"kind": "NVIDIADriver", "name": "h200"}]},
            "status": {"desiredNumberScheduled": 2, "numberReady": 2}});
        let deployment = |name: &str, namespace: &str| json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"replicas": 1}, "status": {"readyReplicas": 1}});
        let cpu = json!({"metadata": {"name": "cpu-1", "labels": {}}, "spec": {},
            "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}});
        let lists = [
            ("nodes", vec![node("gpu-a"), node("gpu-b"), cpu]),
            ("driver-pods", vec![driver_pod("driver-a", "gpu-a"), driver_pod("driver-b", "gpu-b")]),
            ("nvidiadrivers", vec![driver]),
            ("clusterpolicies", vec![policy]),
            (
                "nicclusterpolicies",
                vec![json!({"metadata": {"name": "nic-cluster-policy"}, "status": {"state": "ready"}})],
            ),
            ("daemonsets", vec![set]),
            (
                "deployments",
                vec![
                    deployment("gpu-operator", NAMESPACE),
                    deployment("network-operator", "nvidia-network-operator"),
                ],
            ),
        ];
        let file = vec!["h200-141gb-sxm-ib-cloud-hypervisor.xml"];
        Self {
            lists: lists.into(),
            configs: [("nvidia-kernel-params".to_owned(), config)].into(),
            definitions: vec![
                "clusterpolicies.nvidia.com",
                "nvidiadrivers.nvidia.com",
                "nicclusterpolicies.mellanox.com",
            ],
            usage: vec![
                "kube-system\tproxy-x\tgpu-a\tDaemonSet\t\t{\"cpu\":\"100m\"} \t".to_owned(),
                "monitoring\tagent-7\tcpu-1\tReplicaSet\t{}\t{\"cpu\":\"1\"} \t".to_owned(),
            ],
            inside: ["driver-a", "driver-b"].map(|pod| (pod.to_owned(), Inside::healthy())).into(),
            logs: BTreeMap::new(),
            host: ["gpu-a", "gpu-b"].map(|node| (node.to_owned(), Some(file.clone()))).into(),
        }
    }

    /// An object of a list.
    pub fn at(&mut self, list: &'static str, place: usize) -> &mut Value {
        &mut self.lists.get_mut(list).unwrap()[place]
    }

    pub fn list(&self, kind: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "List", "items": self.lists[kind]})
    }

    /// Adds GPU nodes with driver pods like the first until there are `count`.
    pub fn grow(&mut self, count: usize) {
        for number in 2..count {
            let (name, pod) = (format!("gpu-{number:04}"), format!("driver-{number:04}"));
            self.lists.get_mut("nodes").unwrap().push(node(&name));
            self.lists.get_mut("driver-pods").unwrap().push(driver_pod(&pod, &name));
            self.inside.insert(pod, Inside::healthy());
        }
    }
}

/// What the stand-in does with a call before it looks into the cluster.
type Hook = Box<dyn Fn(&[&str]) -> Option<Output> + Sync>;

/// kubectl in this process.
pub struct Fake {
    pub world: World,
    pub calls: Mutex<Vec<Vec<String>>>,
    hooks: Vec<Hook>,
    pods: Mutex<Vec<(String, String, Vec<String>)>>,
    next: AtomicUsize,
}

pub fn said(text: impl Into<String>) -> Output {
    Output { code: Some(0), stdout: text.into().into_bytes(), stderr: Vec::new() }
}

pub fn failed(text: &str) -> Output {
    Output { code: Some(1), stdout: Vec::new(), stderr: text.as_bytes().to_vec() }
}

impl Fake {
    pub fn new(world: World) -> Self {
        Self {
            world,
            calls: Mutex::default(),
            hooks: Vec::new(),
            pods: Mutex::default(),
            next: AtomicUsize::new(0),
        }
    }

    /// Answers calls that contain all words of `words` with `output`.
    pub fn when(self, words: &[&'static str], output: Output) -> Self {
        let words = words.to_vec();
        self.hook(move |args| {
            words.iter().all(|word| args.iter().any(|arg| arg == word)).then(|| output.clone())
        })
    }

    pub fn hook(mut self, hook: impl Fn(&[&str]) -> Option<Output> + Sync + 'static) -> Self {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Refuses `kind` to this caller, as an API server does.
    pub fn forbid(self, kind: &'static str) -> Self {
        let short = kind.split('.').next().unwrap_or(kind);
        let refusal = failed(&format!(
            "Error from server (Forbidden): {kind} is forbidden: User \"me\" cannot list resource \"{short}\"\n"
        ));
        let no = Output { stdout: b"no\n".to_vec(), stderr: Vec::new(), code: Some(1) };
        self.when(&["auth", kind], no).when(&["get", kind], refusal)
    }

    pub fn report(&self, options: &Options) -> Report {
        kube::check(options, self).unwrap()
    }

    /// All calls, each as one line.
    pub fn lines(&self) -> Vec<String> {
        self.calls.lock().unwrap().iter().map(|call| call.join(" ")).collect()
    }

    fn answer(&self, args: &[&str]) -> Output {
        let args: Vec<&str> = args
            .iter()
            .filter(|arg| !arg.starts_with("--context=") && !arg.starts_with("--request-timeout="))
            .copied()
            .collect();
        let after =
            |word: &str| args.iter().position(|arg| *arg == word).and_then(|at| args.get(at + 1)).copied();
        let world = &self.world;
        match args.as_slice() {
            ["config", "current-context"] => said("test-context\n"),
            ["config", "view", ..] => {
                said(r#"{"clusters":[{"cluster":{"server":"https://admin:hunter2@k8s.test:6443"}}]}"#)
            }
            ["version", ..] => said(r#"{"serverVersion":{"gitVersion":"v1.31.4"}}"#),
            ["auth", "can-i", ..] => said("yes\n"),
            ["get", "nodes", ..] => said(world.list("nodes").to_string()),
            ["get", "pods", "--all-namespaces", ..] => said(world.usage.join("\n") + "\n"),
            ["get", "nvidiadrivers.nvidia.com", ..] => said(world.list("nvidiadrivers").to_string()),
            ["get", "clusterpolicies.nvidia.com", ..] => said(world.list("clusterpolicies").to_string()),
            ["get", "nicclusterpolicies.mellanox.com", ..] => {
                said(world.list("nicclusterpolicies").to_string())
            }
            ["get", "daemonsets", ..] => said(world.list("daemonsets").to_string()),
            ["get", "deployments", ..] => said(world.list("deployments").to_string()),
            ["get", "customresourcedefinitions", wanted @ ..] => said(
                world
                    .definitions
                    .iter()
                    // Of those that are there only the ones that are asked for, as kubectl does.
                    .filter(|name| wanted.contains(*name))
                    .map(|name| format!("customresourcedefinition.apiextensions.k8s.io/{name}\n"))
                    .collect::<Vec<_>>()
                    .concat(),
            ),
            ["get", "configmap", name, ..] => match world.configs.get(*name) {
                Some(config) => said(config.to_string()),
                None => failed(&format!("Error from server (NotFound): configmaps \"{name}\" not found\n")),
            },
            ["get", "pods", "-n", _, "-l", label, ..] => {
                let newer = *label == "app.kubernetes.io/component=nvidia-driver";
                said(if newer {
                    world.list("driver-pods").to_string()
                } else {
                    json!({"items": []}).to_string()
                })
            }
            ["get", "pods", "-n", _, selector, ..] => {
                let node = selector.rsplit_once("spec.nodeName=").unwrap().1;
                let pods = self.pods.lock().unwrap();
                let items: Vec<Value> = pods
                    .iter()
                    .filter(|(_, at, _)| at == node)
                    .map(|(name, node, command)| {
                        let there = world.host.get(node).is_some_and(Option::is_some);
                        json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "debugger", "command": command}]},
                            "status": {"phase": if there { "Succeeded" } else { "Failed" }}})
                    })
                    .collect();
                said(json!({"items": items}).to_string())
            }
            ["logs", pod, ..] => {
                if let Some((_, node, _)) = self.pods.lock().unwrap().iter().find(|(name, _, _)| name == pod)
                {
                    return match world.host.get(node) {
                        Some(Some(files)) => said(files.join("\n") + "\n"),
                        _ => said("ls: /host/etc/crusoe/nccl_topo: No such file or directory\n"),
                    };
                }
                let key = format!("{pod}/{}", after("-c").unwrap_or_default());
                match world.logs.get(&key) {
                    Some(log) => said(log.clone()),
                    None => {
                        failed("Error from server (BadRequest): previous terminated container not found\n")
                    }
                }
            }
            ["exec", "-n", _, pod, "-c", "nvidia-driver-ctr", "--", rest @ ..] => {
                match world.inside.get(*pod) {
                    Some(inside) if rest.first() == Some(&"nvidia-smi") => said(inside.matrix.clone()),
                    Some(inside) => said(inside.print()),
                    None => failed(
                        "error: unable to upgrade connection: container not found (\"nvidia-driver-ctr\")\n",
                    ),
                }
            }
            ["debug", target, "-n", _, _, "--", command @ ..] => {
                let node = target.trim_start_matches("node/");
                let name = format!("node-debugger-{node}-{}", self.next.fetch_add(1, Ordering::Relaxed));
                let command = command.iter().map(|word| (*word).to_owned()).collect();
                self.pods.lock().unwrap().push((name.clone(), node.to_owned(), command));
                said(format!("Creating debugging pod {name} with container debugger on node {node}.\n"))
            }
            ["delete", "pod", name, ..] => {
                self.pods.lock().unwrap().retain(|(pod, _, _)| pod != name);
                said(format!("pod \"{name}\" deleted\n"))
            }
            _ => failed(&format!("error: the stand-in does not know: {args:?}\n")),
        }
    }

    /// Debug pods that are still there.
    pub fn left(&self) -> usize {
        self.pods.lock().unwrap().len()
    }

    /// A debug pod of somebody else.
    pub fn stranger(&self, node: &str) {
        let command = vec!["sh".to_owned()];
        self.pods.lock().unwrap().push((format!("node-debugger-{node}-zzzzz"), node.to_owned(), command));
    }
}

impl Kubectl for Fake {
    fn run(&self, args: &[&str], _: Duration) -> Result<Output, KubectlError> {
        self.calls.lock().unwrap().push(args.iter().map(|arg| (*arg).to_owned()).collect());
        if let Some(output) = self.hooks.iter().find_map(|hook| hook(args)) {
            return Ok(output);
        }
        Ok(self.answer(args))
    }
}

pub fn options() -> Options {
    Options { target: Target::DeepepIbgda, now: Some(NOW), ..Options::default() }
}

/// The report of a cluster for IBGDA.
pub fn judged(world: World) -> Report {
    Fake::new(world).report(&options())
}

/// Findings of one id.
pub fn of<'a>(report: &'a Report, id: &str) -> Vec<&'a Finding> {
    report.findings().iter().filter(|finding| finding.id == id).collect()
}

/// The only finding of an id.
pub fn one<'a>(report: &'a Report, id: &str) -> &'a Finding {
    match of(report, id).as_slice() {
        [finding] => finding,
        others => panic!("{} findings {id}: {others:#?}", others.len()),
    }
}

/// The worst status of an id.
pub fn worst(report: &Report, id: &str) -> Status {
    of(report, id).iter().map(|finding| finding.status).min_by_key(|status| status.order()).unwrap()
}

/// All commands of a finding.
pub fn steps(finding: &Finding) -> String {
    finding.remedies.iter().flat_map(|remedy| remedy.steps.clone()).collect::<Vec<_>>().join("\n")
}
