//! What is rendered.

use expertrail_launch::render::driver_config::{
    ClusterFacts, DriverConfigError, FactsError, Kind, Managed, Options, render,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scripts::{golden, shellcheck, text};
use crate::world::{bare_driver, options, patched_driver};

/// Keys and texts of the rendered `ConfigMap`.
fn config_map(files: &expertrail_launch::files::FileSet) -> Value {
    let file: Value = serde_saphyr::from_str(text(files, "configmap.yaml")).unwrap();
    file
}

fn config(name: &str, text: &str) -> Value {
    json!({"kind": "ConfigMap", "metadata": {"name": name}, "data": {"nvidia.conf": text, "other.conf": "kept\n"}})
}

#[test]
fn golden_files_of_an_h200_cluster() {
    let files = render(&options()).unwrap();
    for file in
        ["README.md", "nvidia.conf", "configmap.yaml", "patch.json", "settings.sh", "drain-override.json"]
    {
        golden("driver-config/h200", file, text(&files, file));
    }
    assert_eq!(files, render(&options()).unwrap(), "the same twice");
}

#[test]
fn golden_files_of_a_cluster_policy() {
    let options = Options { kind: Kind::ClusterPolicy, context: Some("site b".to_owned()), ..options() };
    let files = render(&options).unwrap();
    for file in ["configmap.yaml", "patch.json", "settings.sh", "drain-override.json"] {
        golden("driver-config/cluster-policy", file, text(&files, file));
    }
}

/// Checklist 19: which NIC is near which GPU, from a driver pod. Checklist 20: the topology files, by a pod that is deleted after.
#[test]
fn checklist_19_and_20_how_to_look_at_a_node() {
    let files = render(&options()).unwrap();
    let readme = text(&files, "README.md");
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("kubectl ")).collect();
    let one = |words: &[&str]| {
        let found: Vec<&&str> =
            commands.iter().filter(|line| words.iter().all(|word| line.contains(word))).collect();
        assert_eq!(found.len(), 1, "{words:?}: {commands:?}");
        commands.iter().position(|line| line == found[0]).unwrap()
    };
    one(&["-n nvidia-gpu-operator exec", "-c nvidia-driver-ctr", "-- nvidia-smi topo -m"]);
    one(&["-n nvidia-gpu-operator exec", "-c nvidia-driver-ctr", "-- ls /sys/class/infiniband/"]);
    one(&["get pods -l app.kubernetes.io/component=nvidia-driver"]);
    // It is told that the usual tool is missing there, and that no driver pod has the host's /etc.
    assert!(
        readme.contains("`ibdev2netdev` is not there") && readme.contains("does not mount the host's /etc")
    );
    let debug = one(&["debug node/NODE -it --image=busybox:1.36", "-- ls /host/etc/crusoe/nccl_topo/"]);
    assert!(one(&["delete", "POD-OF-THE-LINE-ABOVE"]) > debug);
    // Every command names its cluster, and none changes a driver.
    assert!(commands.iter().all(|line| line.contains("--context ")), "{commands:?}");
    let policy = Options { kind: Kind::ClusterPolicy, context: Some("site b".to_owned()), ..options() };
    let files = render(&policy).unwrap();
    let readme = text(&files, "README.md");
    assert!(readme.contains(
        "kubectl --context 'site b' -n nvidia-gpu-operator get pods -l app=nvidia-driver-daemonset"
    ));
}

/// Checklist 8: both parameters. Checklist 9: `ConfigMap` nvidia-kernel-params, key nvidia.conf, in nvidia-gpu-operator.
#[test]
fn checklist_8_and_9_both_parameters_in_the_config_map() {
    let map = config_map(&render(&options()).unwrap());
    assert_eq!(map["apiVersion"], "v1");
    assert_eq!(map["kind"], "ConfigMap");
    assert_eq!(map["metadata"], json!({"name": "nvidia-kernel-params", "namespace": "nvidia-gpu-operator"}));
    let lines: Vec<&str> = map["data"]["nvidia.conf"].as_str().unwrap().lines().collect();
    assert_eq!(lines, ["NVreg_EnableStreamMemOPs=1", "NVreg_RegistryDwords=\"PeerMappingOverride=1;\""]);
    assert_eq!(map["data"].as_object().unwrap().len(), 1);
}

/// Checklist 9: the CR names another `ConfigMap` already: its name, its other lines and its other keys stay.
#[test]
fn checklist_9_an_existing_config_map_is_reused() {
    let mut driver = patched_driver("h200");
    driver["spec"]["kernelModuleConfig"]["name"] = json!("site-params");
    let now = "# NUMA, ticket 12\nNVreg_EnableUserNUMAManagement=0\nNVreg_EnableStreamMemOPs=0\nNVreg_RegistryDwords=\"RMNumaOnlining=1;RMX=0x2\"\n";
    let facts = ClusterFacts::from_json(
        &json!({"kind": "List", "items": [driver]}),
        &json!({"kind": "List", "items": [config("site-params", now), config("else", "NVreg_X=1\n")]}),
    );
    let files = render(&Options { cluster: Some(facts.unwrap()), ..options() }).unwrap();
    let map = config_map(&files);
    assert_eq!(map["metadata"]["name"], "site-params");
    assert_eq!(
        map["data"],
        json!({
            "nvidia.conf": "# NUMA, ticket 12\nNVreg_EnableUserNUMAManagement=0\nNVreg_EnableStreamMemOPs=1\nNVreg_RegistryDwords=\"PeerMappingOverride=1;RMNumaOnlining=1;RMX=0x2;\"\n",
            "other.conf": "kept\n",
        })
    );
    assert_eq!(text(&files, "nvidia.conf"), map["data"]["nvidia.conf"]);
    let patch: Value = serde_json::from_str(text(&files, "patch.json")).unwrap();
    assert_eq!(patch["spec"]["kernelModuleConfig"], json!({"name": "site-params"}));
    golden("driver-config/existing", "configmap.yaml", text(&files, "configmap.yaml"));
    golden("driver-config/existing", "README.md", text(&files, "README.md"));
}

/// Checklist 10: one single merge patch with all three settings.
#[test]
fn checklist_10_one_patch_with_all_three_settings() {
    let files = render(&options()).unwrap();
    let patch: Value = serde_json::from_str(text(&files, "patch.json")).unwrap();
    let gdrcopy = json!({"enabled": true, "image": "gdrdrv", "repository": "nvcr.io/nvidia/cloud-native", "version": "v2.5.1"});
    assert_eq!(
        patch,
        json!({"spec": {"gdrcopy": gdrcopy, "kernelModuleConfig": {"name": "nvidia-kernel-params"}, "rdma": {"enabled": true}}})
    );
    let policy = render(&Options { kind: Kind::ClusterPolicy, ..options() }).unwrap();
    let patch: Value = serde_json::from_str(text(&policy, "patch.json")).unwrap();
    assert_eq!(
        patch,
        json!({"spec": {"gdrcopy": gdrcopy, "driver": {"kernelModuleConfig": {"name": "nvidia-kernel-params"}, "rdma": {"enabled": true}}}})
    );
    assert!(text(&policy, "settings.sh").contains("LABEL=app=nvidia-driver-daemonset\n"));
}

/// Checklist 10: the CR whose STATUS is ready and which is for this kind of GPU.
#[test]
fn checklist_10_the_ready_resource_of_this_sku() {
    let drivers =
        |items: Vec<Value>| ClusterFacts::from_json(&json!({"items": items}), &Value::Null).unwrap();
    let resource = |facts: ClusterFacts, sku: Option<&str>| {
        let options = Options { cluster: Some(facts), sku: sku.map(str::to_owned), ..Options::default() };
        render(&options).map(|files| {
            let line =
                text(&files, "settings.sh").lines().find(|line| line.starts_with("RESOURCE=")).unwrap();
            line.split(' ').next().unwrap().to_owned()
        })
    };
    let mixed = || {
        vec![
            bare_driver("b200", "ready", "NVIDIA-B200"),
            bare_driver("h200", "ready", "NVIDIA-H200"),
            bare_driver("h200-old", "notReady", "NVIDIA-H200"),
            bare_driver("gb200", "ready", "NVIDIA-GB200"),
        ]
    };
    assert_eq!(resource(drivers(mixed()), Some("h200")).unwrap(), "RESOURCE=${RESOURCE:-h200}");
    assert_eq!(resource(drivers(mixed()), Some("b200")).unwrap(), "RESOURCE=${RESOURCE:-b200}");
    let ambiguous = resource(drivers(mixed()), None).unwrap_err().to_string();
    assert!(
        ambiguous.contains("3 driver resources fit") && ambiguous.contains("h200-old (notReady"),
        "{ambiguous}"
    );
    assert!(ambiguous.contains("--resource"), "{ambiguous}");
    let none = resource(drivers(mixed()), Some("h100")).unwrap_err().to_string();
    assert!(none.contains("no driver resource in state ready is for h100"), "{none}");
    let empty = resource(drivers(vec![]), Some("h100")).unwrap_err().to_string();
    assert!(empty.contains("there is none"), "{empty}");
}

/// A mirror's repository stays; a version that is too old does not.
#[test]
fn settings_of_the_cluster_stay_where_they_will_do() {
    let mut driver = patched_driver("h200");
    driver["spec"]["gdrcopy"] =
        json!({"enabled": false, "repository": "mirror.test/nvidia", "version": "v2.4.4"});
    driver["spec"]["manager"] =
        json!({"env": [{"name": "SITE", "value": "x"}, {"name": "DRAIN_USE_FORCE", "value": "false"}]});
    let facts = ClusterFacts::from_json(&driver, &Value::Null).unwrap();
    let files = render(&Options { cluster: Some(facts), ..options() }).unwrap();
    let patch: Value = serde_json::from_str(text(&files, "patch.json")).unwrap();
    assert_eq!(
        patch["spec"]["gdrcopy"],
        json!({"enabled": true, "image": "gdrdrv", "repository": "mirror.test/nvidia", "version": "v2.5.1"})
    );
    // D13: the overrides, beside what is there: a merge patch replaces lists.
    let patch: Value = serde_json::from_str(text(&files, "drain-override.json")).unwrap();
    let env: Vec<(&str, &str)> = patch["spec"]["manager"]["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), entry["value"].as_str().unwrap()))
        .collect();
    assert_eq!(
        env,
        [
            ("SITE", "x"),
            ("ENABLE_GPU_POD_EVICTION", "true"),
            ("DRAIN_USE_FORCE", "true"),
            ("DRAIN_DELETE_EMPTYDIR_DATA", "true")
        ]
    );
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let facts = ClusterFacts::from_json(
        &patched_driver("h200"),
        &config("nvidia-kernel-params", "blacklist nouveau\n"),
    );
    let error = render(&Options { cluster: Some(facts.unwrap()), ..options() }).unwrap_err();
    assert!(
        matches!(&error, DriverConfigError::Lines { lines, .. } if lines == "blacklist nouveau"),
        "{error}"
    );
    let error = render(&Options { namespace: "a; rm -rf /".to_owned(), ..options() }).unwrap_err();
    assert!(matches!(error, DriverConfigError::Name { what: "namespace", .. }));
    let error = ClusterFacts::from_json(&json!({"kind": "Pod", "metadata": {"name": "x"}}), &Value::Null)
        .unwrap_err();
    assert!(matches!(error, FactsError::Kind { .. }) && error.to_string().contains("kubectl get"), "{error}");
}

/// A policy that leaves drivers to `NVIDIADriver` resources is no driver resource.
#[test]
fn policies_that_install_drivers() {
    let policy = |driver: Value| json!({"kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": {"driver": driver}, "status": {"state": "ready"}});
    let count = |driver: Value| ClusterFacts::from_json(&policy(driver), &Value::Null).unwrap().drivers.len();
    assert_eq!(count(json!({"useNvidiaDriverCRD": true})), 0);
    assert_eq!(count(json!({"enabled": false})), 0);
    assert_eq!(count(json!({"enabled": true})), 1);
    let facts =
        ClusterFacts::from_json(&policy(json!({"kernelModuleConfig": {"name": "mine"}})), &Value::Null)
            .unwrap();
    let files = render(&Options { cluster: Some(facts), ..options() }).unwrap();
    let patch: Value = serde_json::from_str(text(&files, "patch.json")).unwrap();
    assert_eq!(patch["spec"]["driver"]["kernelModuleConfig"]["name"], "mine");
}

/// Checklist 13 and D12: the way of a machine has none of the operator's, and the other way round.
#[test]
fn checklist_13_the_files_of_a_host() {
    let host = render(&Options { managed: Managed::Host, ..options() }).unwrap();
    let names: Vec<&str> = host.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        names,
        [
            "README.md",
            "settings.sh",
            "lib.sh",
            "10-driver-options.sh",
            "20-gdrcopy.sh",
            "60-memlock.sh",
            "70-runtime-restart.sh",
            "all.sh",
            "files/etc/modprobe.d/zz-nvidia-expertrail.conf",
            "files/etc/modules-load.d/expertrail-gpudirect.conf",
            "files/etc/modules-load.d/expertrail-gdrdrv.conf",
            "files/etc/security/limits.d/90-expertrail-memlock.conf",
            "files/etc/systemd/system/containerd.service.d/expertrail-memlock.conf",
        ]
    );
    assert!(!host.files.iter().any(|file| file.text.contains("nvidiadriver")));
    let operator = render(&options()).unwrap();
    assert!(!operator.files.iter().any(|file| file.text.contains("update-initramfs")));
    assert!(text(&operator, "README.md").contains("Do not use the files for hosts"));
}

#[test]
fn scripts_pass_shellcheck() {
    for options in [
        options(),
        Options { kind: Kind::ClusterPolicy, context: Some("it's".to_owned()), ..Options::default() },
        Options { managed: Managed::Host, ..options() },
    ] {
        let folder = TempDir::new().unwrap();
        render(&options).unwrap().write(folder.path()).unwrap();
        shellcheck(folder.path());
    }
}
