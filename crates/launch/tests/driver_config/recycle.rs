//! `02-before-recycling.sh` and `03-recycle.sh`.

use serde_json::{Value, json};

use crate::world::{
    Cluster, THREE, bare_driver, before_recycling, driver_pod, good_files, gpu_pod, in_order, old_files,
    options, pod, scratch_pod,
};

/// The world with more pods in it.
fn with_pods(pods: &[Value]) -> Value {
    let mut world = before_recycling();
    world["pods"].as_array_mut().unwrap().extend(pods.iter().cloned());
    world
}

fn deleted(cluster: &Cluster) -> Vec<String> {
    cluster.changes().iter().map(|call| call.split_whitespace().nth(4).unwrap().to_owned()).collect()
}

/// Checklist 11 and D13: what will block the drain, of each node.
#[test]
fn checklist_11_what_stands_in_the_way_is_shown_for_each_node() {
    let mut daemon = scratch_pod("node-exporter", "gpu-1");
    daemon["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
    let mut ended = gpu_pod("yesterday", "gpu-1");
    ended["status"]["phase"] = json!("Succeeded");
    let mut alone = pod("by-hand", "gpu-1");
    alone["metadata"]["ownerReferences"] = json!([]);
    let mut none = gpu_pod("asks-for-none", "gpu-1");
    none["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "0"});
    let mut slice = pod("slice", "gpu-1");
    slice["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/mig-1g.10gb": "1"});
    let mut test = gpu_pod("node-burn-in-x7", "gpu-1");
    test["metadata"]["namespace"] = json!("platform");
    let pods = [
        gpu_pod("train-0", "gpu-1"),
        scratch_pod("loki-0", "gpu-1"),
        daemon,
        ended,
        alone,
        none,
        slice,
        test,
        pod("web", "gpu-1"),
    ];
    let cluster = Cluster::new(&options(), &with_pods(&pods));
    let done =
        cluster.on("02-before-recycling.sh", &[]).ended(1).says("1 of 2 nodes have something in the way");
    let line = |name: &str| {
        done.out.lines().find(|line| line.contains(name)).map(|line| line.split_whitespace().next().unwrap())
    };
    assert_eq!(line("jobs/train-0 "), Some("gpu"));
    assert_eq!(line("jobs/slice "), Some("gpu"));
    assert_eq!(line("jobs/loki-0 "), Some("emptydir"));
    assert_eq!(line("jobs/by-hand "), Some("bare"));
    assert_eq!(line("platform/node-burn-in-x7 "), Some("qualification"));
    for name in ["node-exporter", "yesterday", "asks-for-none", "web"] {
        assert_eq!(line(name), None, "{name}");
    }
    assert!(done.out.contains("NEVER delete it"), "{}", done.out);
    assert!(cluster.changes().is_empty());
    // The other node is free.
    cluster.on("02-before-recycling.sh", &["--node", "gpu-2"]).ended(0).says("nothing in the way");
    cluster
        .on("02-before-recycling.sh", &["--node", "cpu-9"])
        .ended(2)
        .says("none of these nodes has a driver pod");
}

/// Checklist 11: `OnDelete`: one node at a time, 0/3 -> 3/3 before the next.
#[test]
fn checklist_11_one_node_at_a_time() {
    let cluster = Cluster::new(&options(), &before_recycling());
    cluster.on("03-recycle.sh", &[]).ended(3).says("would delete pod old-1").says("would delete pod old-2");
    assert!(cluster.changes().is_empty());
    let done = cluster.on("03-recycle.sh", &["--yes"]).ended(0).says("2 recycled");
    let order: Vec<usize> = [
        "deleting pod old-1",
        "new-1 0/3",
        "new-1 2/3",
        "new-1 3/3",
        "gpu-1  3/3, params=2/2 modules=2/2",
        "deleting pod old-2",
        "new-2 0/3",
        "new-2 3/3",
    ]
    .iter()
    .map(|text| done.out.find(text).unwrap_or_else(|| panic!("no {text} in {}", done.out)))
    .collect();
    assert!(order.is_sorted(), "{}", done.out);
    assert_eq!(deleted(&cluster), ["old-1", "old-2"]);
    // Again: all is in order.
    cluster.on("03-recycle.sh", &["--yes"]).ended(0).says("gpu-1  in order already").says("0 recycled");
    assert_eq!(deleted(&cluster).len(), 2);
    // Only the node that is named.
    let cluster = Cluster::new(&options(), &before_recycling());
    cluster.on("03-recycle.sh", &["--node", "gpu-2", "--yes"]).ended(0);
    assert_eq!(deleted(&cluster), ["old-2"]);
    cluster
        .on("03-recycle.sh", &["--node", "cpu-9", "--yes"])
        .ended(2)
        .says("none of these nodes has a driver pod: cpu-9");
}

/// Checklist 11: only with no GPU workload on the node.
#[test]
fn checklist_11_a_node_with_a_gpu_workload_is_refused() {
    let cluster = Cluster::new(&options(), &with_pods(&[gpu_pod("train-0", "gpu-2")]));
    cluster
        .on("03-recycle.sh", &["--yes"])
        .ended(1)
        .says("jobs/train-0")
        .says("gpu-2 is not free")
        .says("(1 recycled)");
    assert_eq!(deleted(&cluster), ["old-1"]);
    let test = with_pods(&[gpu_pod("acceptance-9", "gpu-1")]);
    let cluster = Cluster::new(&options(), &test);
    cluster.on("03-recycle.sh", &["--yes"]).ended(1).says("NEVER delete it");
    assert!(cluster.changes().is_empty());
}

/// D13: pods with scratch data stop it, unless the driver manager evicts them.
#[test]
fn d13_scratch_data_blocks_unless_overridden() {
    let mut world = with_pods(&[scratch_pod("loki-0", "gpu-1")]);
    let cluster = Cluster::new(&options(), &world);
    cluster
        .on("03-recycle.sh", &["--yes"])
        .ended(1)
        .says("jobs/loki-0")
        .says("Cordon the node, delete this pod");
    assert!(cluster.changes().is_empty());
    world["nvidiadrivers"][0]["spec"]["manager"] =
        json!({"env": [{"name": "DRAIN_DELETE_EMPTYDIR_DATA", "value": "true"}]});
    cluster.change(&world);
    cluster.on("03-recycle.sh", &["--yes"]).ended(0);
    // GPU pods are no scratch data.
    world["pods"].as_array_mut().unwrap().push(gpu_pod("train-0", "gpu-1"));
    let cluster = Cluster::new(&options(), &world);
    cluster.on("03-recycle.sh", &["--yes"]).ended(1).says("jobs/train-0").lacks("loki-0");
}

/// Checklist 11, D18: 0/1 -> 1/1 is the old configuration, and is said at once.
#[test]
fn checklist_11_a_pod_with_one_container_is_the_old_configuration() {
    let mut world = before_recycling();
    world["after"]["gpu-1"] = json!([
        driver_pod("again-1", "gpu-1", &THREE[..1], 0),
        driver_pod("again-1", "gpu-1", &THREE[..1], 1)
    ]);
    let cluster = Cluster::new(&options(), &world);
    cluster
        .on("03-recycle.sh", &["--yes"])
        .ended(1)
        .says("gpu-1: the new pod again-1 has 1 container(s)")
        .says("0/1 -> 1/1: the old configuration");
    assert_eq!(deleted(&cluster), ["old-1"]);
}

/// D18: recycling before the patch is refused, and so is recycling before the operator took it up.
#[test]
fn d18_nothing_is_recycled_before_the_patch() {
    let mut world = before_recycling();
    world["nvidiadrivers"] = json!([bare_driver("h200", "ready", "NVIDIA-H200")]);
    let cluster = Cluster::new(&options(), &world);
    cluster.on("03-recycle.sh", &["--yes"]).ended(1).says("h200 is not patched").says("01-apply.sh");
    let mut world = before_recycling();
    world["daemonsets"][0]["spec"]["template"]["spec"]["containers"] =
        json!([{"name": "nvidia-driver-ctr"}, {"name": "nvidia-peermem-ctr"}]);
    cluster.change(&world);
    cluster.on("03-recycle.sh", &["--yes"]).ended(1).says("has no container nvidia-gdrcopy-ctr yet");
    assert!(cluster.changes().is_empty());
}

/// D13: Init:CrashLoopBackOff is explained by the log of its last attempt; other nodes are left alone.
#[test]
fn d13_a_blocked_drain_is_explained() {
    let mut stuck = driver_pod("new-1", "gpu-1", &THREE, 0);
    stuck["status"]["initContainerStatuses"] =
        json!([{"name": "k8s-driver-manager", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]);
    let mut world = before_recycling();
    world["after"]["gpu-1"] = json!([stuck]);
    world["logs"] = json!({"new-1": "draining\ncannot delete Pods with local storage (use the flag to override): monitoring/agent-0\ncannot proceed until all GPU pods are drained from the node\n"});
    let cluster = Cluster::new(&options(), &world);
    cluster
        .on("03-recycle.sh", &["--yes"])
        .ended(1)
        .says("monitoring/agent-0")
        .says("kubectl --context site-a cordon gpu-1")
        .says("Never delete a qualification test")
        .says("Init:CrashLoopBackOff. The nodes after it were not touched");
    assert_eq!(deleted(&cluster), ["old-1"]);
}

#[test]
fn a_pod_that_does_not_come_up_ends_the_wait() {
    let mut world = before_recycling();
    world["after"]["gpu-1"] = json!([driver_pod("new-1", "gpu-1", &THREE, 2)]);
    let cluster = Cluster::new(&options(), &world).with("WAIT", "2");
    cluster.on("03-recycle.sh", &["--yes"]).ended(1).says("no driver pod with 3/3 after 2 s (new-1 2/3)");
    // 3/3 whose driver is the old one.
    let mut world = before_recycling();
    world["files"]["new-1"] = old_files();
    let cluster = Cluster::new(&options(), &world);
    cluster.on("03-recycle.sh", &["--yes"]).ended(1).says("params=0/2 modules=0/2");
}

/// Driver pods of another kind of GPU are left alone.
#[test]
fn pods_of_another_resource_are_left_alone() {
    let mut world = before_recycling();
    world["nvidiadrivers"].as_array_mut().unwrap().push(bare_driver("b200", "ready", "NVIDIA-B200"));
    let mut other = driver_pod("b200-1", "gpu-9", &THREE[..1], 1);
    other["metadata"]["ownerReferences"][0]["name"] = json!("nvidia-gpu-driver-b200");
    world["pods"].as_array_mut().unwrap().push(other);
    let cluster = Cluster::new(&options(), &world);
    cluster.on("03-recycle.sh", &["--yes"]).ended(0).says("2 recycled").lacks("gpu-9");
    assert_eq!(deleted(&cluster), ["old-1", "old-2"]);
}

/// A node that is in order is not drained again, whatever runs on it.
#[test]
fn a_node_in_order_is_not_touched() {
    let mut world = in_order();
    world["pods"].as_array_mut().unwrap().push(gpu_pod("train-0", "gpu-1"));
    world["files"]["new-1"] = good_files();
    let cluster = Cluster::new(&options(), &world);
    cluster.on("03-recycle.sh", &["--yes"]).ended(0).says("0 recycled");
    assert!(cluster.changes().is_empty());
}
