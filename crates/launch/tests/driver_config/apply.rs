//! `01-apply.sh` and the drain overrides.

use expertrail_launch::render::driver_config::{ClusterFacts, Options, render};
use serde_json::{Value, json};

use crate::scripts::Done;
use crate::world::{CONTEXT, Cluster, bare_driver, before_recycling, options};

fn unpatched() -> Value {
    let mut world = before_recycling();
    world["nvidiadrivers"] = json!([bare_driver("h200", "ready", "NVIDIA-H200")]);
    world
}

/// Checklist 9 and 10: shown first, then done with --yes: the ConfigMap, then one patch; a second time nothing.
#[test]
fn checklist_10_apply_is_one_patch_and_wants_yes() {
    let cluster = Cluster::new(&options(), &unpatched());
    cluster
        .on("01-apply.sh", &[])
        .ended(3)
        .says("https://cluster.test:6443")
        .says("NVreg_RegistryDwords=\"PeerMappingOverride=1;\"")
        .says("nothing was changed");
    assert!(cluster.changes().is_empty());
    cluster
        .on("01-apply.sh", &["--yes"])
        .ended(0)
        .says("applied and read back")
        .says("02-before-recycling.sh");
    let changes = cluster.changes();
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(changes[0].starts_with("apply -f ") && changes[0].ends_with("/configmap.yaml"), "{changes:?}");
    assert!(
        changes[1].starts_with("patch nvidiadrivers.nvidia.com h200 --type=merge --patch-file "),
        "{changes:?}"
    );
    let world = cluster.world();
    assert_eq!(world["nvidiadrivers"][0]["spec"]["gdrcopy"]["version"], "v2.5.1");
    assert_eq!(world["nvidiadrivers"][0]["spec"]["rdma"]["enabled"], true);
    assert_eq!(world["nvidiadrivers"][0]["spec"]["kernelModuleConfig"]["name"], "nvidia-kernel-params");
    // What the patch does not name stays.
    assert_eq!(world["nvidiadrivers"][0]["spec"]["nodeSelector"]["nvidia.com/gpu.product"], "NVIDIA-H200");
    assert_eq!(
        world["configmaps"][0]["data"]["nvidia.conf"],
        "NVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"PeerMappingOverride=1;\"\n"
    );
    cluster.on("01-apply.sh", &["--yes"]).ended(0).says("unchanged");
    assert_eq!(cluster.changes().len(), 2);
}

/// Checklist 10: a resource that does not show the patch afterwards is not patched.
#[test]
fn checklist_10_a_patch_that_is_set_back_is_told() {
    let mut world = unpatched();
    world["sets_back"] = json!(true);
    let cluster = Cluster::new(&options(), &world);
    cluster.on("01-apply.sh", &["--yes"]).ended(1).says("does not show what was patched").says("GitOps");
}

/// Checklist 10: STATUS and SKU choose; what is not clear is listed and refused.
#[test]
fn checklist_10_an_ambiguous_resource_is_listed_and_refused() {
    let mut world = unpatched();
    let two = json!([
        bare_driver("h200-a", "ready", "NVIDIA-H200"),
        bare_driver("h200-b", "ready", "NVIDIA-H200"),
        bare_driver("b200", "ready", "NVIDIA-B200"),
        bare_driver("gb200", "ready", "NVIDIA-GB200"),
    ]);
    world["nvidiadrivers"] = two;
    let cluster = Cluster::new(&options(), &world);
    let done = cluster.on("01-apply.sh", &["--yes"]).ended(1).says("2 of these fit").says("--resource");
    assert!(["h200-a", "h200-b", "b200", "gb200"].iter().all(|name| done.err.contains(name)), "{}", done.err);
    assert!(cluster.changes().is_empty());
    cluster.on("01-apply.sh", &["--resource", "h200-b", "--yes"]).ended(0);
    assert!(cluster.changes()[1].starts_with("patch nvidiadrivers.nvidia.com h200-b "));
    // b200 is not gb200.
    let b200 = Cluster::new(&Options { sku: Some("b200".to_owned()), ..Options::default() }, &world);
    b200.on("01-apply.sh", &["--yes"]).ended(0);
    assert!(b200.changes()[1].starts_with("patch nvidiadrivers.nvidia.com b200 "));
    // The one that is not ready backs no node; and one whose name says h200 and whose nodes are others.
    world["nvidiadrivers"] = json!([bare_driver("h200", "notReady", "NVIDIA-H200")]);
    cluster.change(&world);
    cluster.on("01-apply.sh", &["--yes"]).ended(1).says("no nvidiadrivers.nvidia.com fits").says("notReady");
    cluster
        .on("01-apply.sh", &["--resource", "h200", "--yes"])
        .ended(1)
        .says("the STATUS of h200 is notReady");
    cluster.on("01-apply.sh", &["--not-ready"]).ended(3).says("nvidiadrivers.nvidia.com h200");
    world["nvidiadrivers"] = json!([bare_driver("h200", "ready", "NVIDIA-H100")]);
    cluster.change(&world);
    cluster.on("01-apply.sh", &["--yes"]).ended(1).says("its selector does not");
}

/// Checklist 9: a ConfigMap of another name is reused, not doubled; lines of others are not lost.
#[test]
fn checklist_9_an_existing_config_map_is_not_overwritten() {
    let mut world = unpatched();
    world["nvidiadrivers"][0]["spec"]["kernelModuleConfig"] = json!({"name": "site-params"});
    let site = json!({"kind": "ConfigMap", "metadata": {"name": "site-params", "namespace": "nvidia-gpu-operator"}, "data": {"nvidia.conf": "NVreg_NvLinkDisable=0\n"}});
    world["configmaps"] = json!([site]);
    let cluster = Cluster::new(&options(), &world);
    cluster
        .on("01-apply.sh", &["--yes"])
        .ended(1)
        .says("names the ConfigMap site-params already")
        .says("--kube");
    assert!(cluster.changes().is_empty());
    // Rendered with what the cluster has, it goes there.
    let facts = ClusterFacts::from_json(&world["nvidiadrivers"][0], &world["configmaps"][0]).unwrap();
    let cluster = Cluster::new(&Options { cluster: Some(facts), ..options() }, &world);
    cluster.on("01-apply.sh", &["--yes"]).ended(0);
    let world = cluster.world();
    assert_eq!(world["configmaps"].as_array().unwrap().len(), 1);
    assert_eq!(
        world["configmaps"][0]["data"]["nvidia.conf"],
        "NVreg_NvLinkDisable=0\nNVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"PeerMappingOverride=1;\"\n"
    );
    // The usual name, with lines that came after the files were rendered.
    let mut world = unpatched();
    let usual = |text: &str| json!([{"metadata": {"name": "nvidia-kernel-params", "namespace": "nvidia-gpu-operator"}, "data": {"nvidia.conf": text}}]);
    world["configmaps"] =
        usual("NVreg_NvLinkDisable=0\nNVreg_RegistryDwords=\"RMX=1;PeerMappingOverride=1\"\n");
    let cluster = Cluster::new(&options(), &world);
    cluster
        .on("01-apply.sh", &["--yes"])
        .ended(1)
        .says("NVreg_NvLinkDisable=0")
        .says("NVreg_RegistryDwords entry RMX=1")
        .says("--kube");
    assert!(cluster.changes().is_empty());
    // Only ours, with other values: nothing is lost.
    world["configmaps"] =
        usual("# old\nNVreg_EnableStreamMemOPs=0\nNVreg_RegistryDwords=\"PeerMappingOverride=0\"\n");
    cluster.change(&world);
    cluster.on("01-apply.sh", &["--yes"]).ended(0);
}

#[test]
fn the_context_is_always_named() {
    let cluster = Cluster::new(&options(), &unpatched());
    let scripts = [
        "01-apply.sh",
        "02-before-recycling.sh",
        "03-recycle.sh",
        "04-verify.sh",
        "optional-drain-override.sh",
    ];
    for script in scripts {
        cluster.run(script, &["--yes"]).ended(2).says("no context");
        cluster.run(script, &["--context", "nowhere"]).ended(4).says("nowhere");
        cluster.on(script, &["--force"]).ended(2).says("unknown argument --force");
    }
    let bound = Cluster::new(&Options { context: Some(CONTEXT.to_owned()), ..options() }, &unpatched());
    bound.run("01-apply.sh", &["--context", "site-b", "--yes"]).ended(2).says("rendered for context site-a");
    bound.run("01-apply.sh", &[]).ended(3);
    assert!(bound.changes().is_empty());
    // Without kubectl.
    let empty = tempfile::TempDir::new().unwrap();
    let mut command = std::process::Command::new("/bin/bash");
    command.arg(cluster.scripts().join("04-verify.sh")).args(["--context", "x"]).env_clear();
    for program in ["dirname", "bash"] {
        std::os::unix::fs::symlink(format!("/usr/bin/{program}"), empty.path().join(program)).unwrap();
    }
    Done::of(command.env("PATH", empty.path())).ended(4).says("kubectl is not on PATH");
}

#[test]
fn a_refusal_of_the_cluster_is_no_pass() {
    let mut world = unpatched();
    world["forbidden"] = json!(["nvidiadrivers"]);
    let cluster = Cluster::new(&options(), &world);
    for script in ["01-apply.sh", "02-before-recycling.sh", "03-recycle.sh", "04-verify.sh"] {
        cluster.on(script, &["--yes"]).ended(4).says("Forbidden").says("cannot read driver resources");
    }
    world["forbidden"] = json!(["pods"]);
    cluster.change(&world);
    for script in ["02-before-recycling.sh", "04-verify.sh"] {
        cluster.on(script, &[]).ended(4).says("cannot read driver pods");
    }
}

/// The operator that upgrades drivers by itself would not wait for step 3.
#[test]
fn automatic_upgrades_are_named_before_anything_is_applied() {
    let mut world = unpatched();
    world["clusterpolicies"][0]["spec"]["driver"]["upgradePolicy"] = json!({"autoUpgrade": true});
    Cluster::new(&options(), &world).on("01-apply.sh", &[]).ended(3).says("autoUpgrade");
    world["clusterpolicies"][0]["spec"]["driver"]["upgradePolicy"] = json!({"autoUpgrade": false});
    Cluster::new(&options(), &world).on("01-apply.sh", &[]).ended(3).lacks("autoUpgrade");
}

/// D13: the durable fix has its warning, wants --yes, and removes nothing of others.
#[test]
fn d13_drain_overrides_warn_of_scratch_data() {
    let mut world = before_recycling();
    let cluster = Cluster::new(&options(), &world);
    cluster.on("optional-drain-override.sh", &[]).ended(3).says("discards the scratch data");
    assert!(cluster.changes().is_empty());
    cluster.on("optional-drain-override.sh", &["--yes"]).ended(0);
    assert_eq!(
        cluster.world()["nvidiadrivers"][0]["spec"]["manager"]["env"],
        json!([
            {"name": "ENABLE_GPU_POD_EVICTION", "value": "true"},
            {"name": "DRAIN_USE_FORCE", "value": "true"},
            {"name": "DRAIN_DELETE_EMPTYDIR_DATA", "value": "true"},
        ])
    );
    // A second time: what is there is ours.
    cluster.on("optional-drain-override.sh", &["--yes"]).ended(0);
    world["nvidiadrivers"][0]["spec"]["manager"] = json!({"env": [{"name": "SITE_PROXY", "value": "x"}]});
    let cluster = Cluster::new(&options(), &world);
    cluster.on("optional-drain-override.sh", &["--yes"]).ended(1).says("manager.env SITE_PROXY");
    assert!(cluster.changes().is_empty());
}

/// Checklist 10, the other kind of operator: the same through a `ClusterPolicy`.
#[test]
fn a_cluster_policy_is_patched_in_its_own_places() {
    let mut world = unpatched();
    world["nvidiadrivers"] = json!([]);
    world["clusterpolicies"] = json!([{"kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": {"driver": {"enabled": true, "rdma": {"enabled": false}}}, "status": {"state": "ready"}}]);
    let facts = ClusterFacts::from_json(&world["clusterpolicies"][0], &Value::Null).unwrap();
    let options = Options { cluster: Some(facts), ..options() };
    assert!(render(&options).is_ok());
    let cluster = Cluster::new(&options, &world);
    cluster.on("01-apply.sh", &["--yes"]).ended(0);
    let spec = &cluster.world()["clusterpolicies"][0]["spec"];
    assert_eq!(
        spec["driver"],
        json!({"enabled": true, "rdma": {"enabled": true}, "kernelModuleConfig": {"name": "nvidia-kernel-params"}})
    );
    assert_eq!(spec["gdrcopy"]["enabled"], true);
}
