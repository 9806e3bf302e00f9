//! A cluster in a folder, with the scripts beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use expertrail_launch::render::driver_config::{self, Options};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scripts::Done;

pub(crate) const CONTEXT: &str = "site-a";
pub(crate) const PARAMS: &str = "/proc/driver/nvidia/params";
pub(crate) const MODULES: &str = "/proc/modules";

pub(crate) fn options() -> Options {
    Options { sku: Some("h200".to_owned()), ..Options::default() }
}

/// A driver resource as the guide's first step finds it: nothing of the three settings.
pub(crate) fn bare_driver(name: &str, state: &str, product: &str) -> Value {
    json!({
        "kind": "NVIDIADriver",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"nvidia.com/gpu.product": product}, "rdma": {"enabled": false}},
        "status": {"state": state},
    })
}

/// One with all three settings of the guide's second step.
pub(crate) fn patched_driver(name: &str) -> Value {
    let mut driver = bare_driver(name, "ready", "NVIDIA-H200");
    driver["spec"]["gdrcopy"] = json!({"enabled": true, "image": "gdrdrv", "repository": "nvcr.io/nvidia/cloud-native", "version": "v2.5.1"});
    driver["spec"]["kernelModuleConfig"] = json!({"name": "nvidia-kernel-params"});
    driver["spec"]["rdma"] = json!({"enabled": true});
    driver
}

pub(crate) const THREE: [&str; 3] = ["nvidia-driver-ctr", "nvidia-gdrcopy-ctr", "nvidia-peermem-ctr"];

/// A driver pod with `ready` of its containers ready.
pub(crate) fn driver_pod(name: &str, node: &str, containers: &[&str], ready: usize) -> Value {
    let status = |(at, name): (usize, &&str)| json!({"name": name, "ready": at < ready, "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}});
    json!({
        "metadata": {
            "name": name, "namespace": "nvidia-gpu-operator", "uid": format!("uid-{name}"),
            "labels": {"app.kubernetes.io/component": "nvidia-driver"},
            "ownerReferences": [{"kind": "DaemonSet", "name": "nvidia-gpu-driver-ubuntu22.04-abc"}],
        },
        "spec": {"nodeName": node, "containers": containers.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()},
        "status": {"phase": "Running", "containerStatuses": containers.iter().enumerate().map(status).collect::<Vec<_>>()},
    })
}

/// A pod of somebody else.
pub(crate) fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "jobs", "labels": {"app": name}, "ownerReferences": [{"kind": "ReplicaSet", "name": "x"}]},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}], "volumes": [{"name": "v"}]},
        "status": {"phase": "Running"},
    })
}

pub(crate) fn gpu_pod(name: &str, node: &str) -> Value {
    let mut pod = pod(name, node);
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"cpu": "64", "nvidia.com/gpu": "8"});
    pod
}

pub(crate) fn scratch_pod(name: &str, node: &str) -> Value {
    let mut pod = pod(name, node);
    pod["spec"]["volumes"] = json!([{"name": "tmp", "emptyDir": {}}]);
    pod
}

/// What a driver shows: published values of a healthy node, and of the defaults.
pub(crate) fn good_files() -> Value {
    json!({
        PARAMS: "ResmanDebugLevel: 4294967295\nEnableStreamMemOPs: 1\nRmProfilingAdminOnly: 1\nRegistryDwords: \"PeerMappingOverride=1;\"\nRegistryDwordsPerDevice: \"\"\n",
        MODULES: "gdrdrv 36864 2 - Live 0x0000000000000000 (OE)\nnvidia_peermem 16384 0 - Live 0x0000000000000000 (OE)\nnvidia 8646656 31 nvidia_uvm,nvidia_peermem,gdrdrv, Live 0x0 (POE)\n",
    })
}

pub(crate) fn old_files() -> Value {
    json!({
        PARAMS: "EnableStreamMemOPs: 0\nRegistryDwords: \"\"\nRegistryDwordsPerDevice: \"\"\n",
        MODULES: "nvidia 8646656 31 nvidia_uvm, Live 0x0 (POE)\n",
    })
}

/// Two H200 nodes whose resource is patched and whose driver pods are old: what is there before recycling. Recycled, each pod comes up
/// 0/3, 2/3, 3/3.
pub(crate) fn before_recycling() -> Value {
    let node = |name: &str| json!({"metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H200"}}, "spec": {}});
    let coming = |name: &str, node: &str| {
        json!([
            driver_pod(name, node, &THREE, 0),
            driver_pod(name, node, &THREE, 2),
            driver_pod(name, node, &THREE, 3)
        ])
    };
    json!({
        "context": CONTEXT,
        "nvidiadrivers": [patched_driver("h200")],
        "clusterpolicies": [{"metadata": {"name": "cluster-policy"}, "spec": {"driver": {"useNvidiaDriverCRD": true}}}],
        "configmaps": [],
        "daemonsets": [{
            "metadata": {"name": "nvidia-gpu-driver-ubuntu22.04-abc", "namespace": "nvidia-gpu-operator", "ownerReferences": [{"kind": "NVIDIADriver", "name": "h200"}]},
            "spec": {"template": {"spec": {"containers": THREE.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}}},
        }],
        "nodes": [node("gpu-1"), node("gpu-2")],
        "pods": [driver_pod("old-1", "gpu-1", &THREE[..1], 1), driver_pod("old-2", "gpu-2", &THREE[..1], 1)],
        "after": {"gpu-1": coming("new-1", "gpu-1"), "gpu-2": coming("new-2", "gpu-2")},
        "files": {"old-1": old_files(), "old-2": old_files(), "new-1": good_files(), "new-2": good_files()},
    })
}

/// The same after recycling.
pub(crate) fn in_order() -> Value {
    let mut world = before_recycling();
    world["pods"] = json!([driver_pod("new-1", "gpu-1", &THREE, 3), driver_pod("new-2", "gpu-2", &THREE, 3)]);
    world
}

pub(crate) struct Cluster {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Cluster {
    pub(crate) fn new(options: &Options, world: &Value) -> Self {
        let cluster = Self { folder: TempDir::new().unwrap(), variables: Vec::new() };
        driver_config::render(options).unwrap().write(&cluster.scripts()).unwrap();
        let program = cluster.folder.path().join("bin/kubectl");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        let stand_in = stand_in();
        fs::write(
            &program,
            format!("#!/bin/sh\nexec python3 -I -S -B '{}' kubectl \"$@\"\n", stand_in.display()),
        )
        .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        cluster.change(world);
        cluster
    }

    pub(crate) fn change(&self, world: &Value) {
        fs::write(self.folder.path().join("world.json"), world.to_string()).unwrap();
    }

    pub(crate) fn world(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.folder.path().join("world.json")).unwrap()).unwrap()
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn scripts(&self) -> PathBuf {
        self.folder.path().join("scripts")
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs a script with only what it needs in its environment.
    pub(crate) fn run(&self, script: &str, arguments: &[&str]) -> Done {
        let mut command = Command::new("bash");
        command.arg(self.scripts().join(script)).args(arguments).env_clear();
        command.env("PATH", format!("{}:/usr/bin:/bin", self.folder.path().join("bin").display()));
        command.env("FAKE_CLUSTER", self.folder.path()).env("SETTLE", "0").env("POLL", "0").env("WAIT", "20");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Done::of(&mut command)
    }

    /// Runs it for the cluster's context.
    pub(crate) fn on(&self, script: &str, arguments: &[&str]) -> Done {
        let mut all = vec!["--context", CONTEXT];
        all.extend(arguments);
        self.run(script, &all)
    }

    /// Calls of kubectl that change something, each as its words without the options that say where.
    pub(crate) fn changes(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        let calls = calls.lines().map(|line| serde_json::from_str::<Vec<String>>(line).unwrap());
        calls
            .inspect(|call| assert_eq!(call[..2], ["--context", CONTEXT], "every call names the context"))
            .filter(|call| {
                call.iter().any(|word| {
                    ["apply", "patch", "delete", "cordon", "drain", "uncordon"].contains(&word.as_str())
                })
            })
            .map(|call| call.into_iter().skip(2).collect::<Vec<_>>().join(" "))
            .collect()
    }
}

pub(crate) fn stand_in() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/driver_config/cluster.py")
}
