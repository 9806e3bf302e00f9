//! Objects of a cluster, as far as they matter here. What is missing or has another type is as if it were not there.

use std::collections::BTreeMap;

use serde_json::Value;

use super::values::{quantity, seconds};

/// Name of the resource of whole GPUs.
pub(super) const GPU: &str = "nvidia.com/gpu";
/// Name of the resource of EFA devices.
pub(super) const EFA: &str = "vpc.amazonaws.com/efa";
/// Name of the resource of huge pages of 2 MiB.
pub(super) const HUGE: &str = "hugepages-2Mi";
/// The driver's own container.
pub(super) const DRIVER_CONTAINER: &str = "nvidia-driver-ctr";

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn time(value: &Value) -> Option<u64> {
    value.as_str().and_then(seconds)
}

/// Strings of an object, by key.
fn strings(value: &Value) -> BTreeMap<String, String> {
    let object = value.as_object();
    object.into_iter().flatten().filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

/// Quantities of an object, by key.
pub(super) fn quantities(value: &Value) -> BTreeMap<String, u64> {
    let whole = |value: &Value| value.as_u64().or_else(|| value.as_str().and_then(quantity));
    let object = value.as_object();
    object.into_iter().flatten().filter_map(|(key, value)| Some((key.clone(), whole(value)?))).collect()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    /// The condition `Ready`; none where it has none.
    pub(super) ready: Option<bool>,
    pub(super) cordoned: bool,
    /// `crusoe://<id>`, `aws:///<zone>/<id>`: what the provider's controller says of it.
    pub(super) provider: Option<String>,
    /// `key=value:Effect`.
    pub(super) taints: Vec<String>,
    pub(super) capacity: BTreeMap<String, u64>,
    pub(super) allocatable: BTreeMap<String, u64>,
    /// Conditions of pressure that are true.
    pub(super) pressures: Vec<String>,
}

impl Node {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let (spec, status) = (&value["spec"], &value["status"]);
        let mut node = Self {
            name: text(&value["metadata"]["name"])?,
            labels: strings(&value["metadata"]["labels"]),
            provider: text(&spec["providerID"]),
            cordoned: spec["unschedulable"] == Value::Bool(true),
            capacity: quantities(&status["capacity"]),
            allocatable: quantities(&status["allocatable"]),
            ..Self::default()
        };
        for taint in items(&spec["taints"]) {
            let part = |name: &str| taint[name].as_str().unwrap_or_default();
            let value = if part("value").is_empty() { String::new() } else { format!("={}", part("value")) };
            node.taints.push(format!("{}{value}:{}", part("key"), part("effect")));
        }
        for condition in items(&status["conditions"]) {
            let (kind, is) = (condition["type"].as_str().unwrap_or_default(), condition["status"].as_str());
            match kind {
                "Ready" => node.ready = is.map(|is| is == "True"),
                _ if kind.ends_with("Pressure") && is == Some("True") => node.pressures.push(kind.to_owned()),
                _ => {}
            }
        }
        Some(node)
    }

    /// GPUs that pods can ask for.
    pub(super) fn gpus(&self) -> u64 {
        self.allocatable.get(GPU).copied().unwrap_or(0)
    }

    /// Whether it is a node with GPUs: it offers some, had some, or is labelled so.
    pub(super) fn has_gpus(&self) -> bool {
        self.gpus() > 0
            || self.capacity.get(GPU).is_some_and(|gpus| *gpus > 0)
            || self.labels.get("nvidia.com/gpu.present").is_some_and(|value| value == "true")
            || self.product().is_some()
    }

    /// Whether its provider is `name`: by its provider id, or by a label of that provider (`crusoe.ai/...`).
    pub(super) fn is_of(&self, name: &str) -> bool {
        let scheme = self.provider.as_deref().and_then(|id| id.split_once("://")).map(|(scheme, _)| scheme);
        let domain = |label: &String| {
            label.split_once('/').is_some_and(|(domain, _)| domain.split('.').any(|part| part == name))
        };
        scheme == Some(name) || self.labels.keys().any(domain)
    }

    /// Whether it brings a driver of its own: the operator's label says so, and the operator then leaves it alone.
    pub(super) fn brings_driver(&self) -> bool {
        let label = self.labels.get("nvidia.com/gpu.deploy.driver").map(String::as_str);
        matches!(label, Some("pre-installed" | "false"))
    }

    /// The GPU's product, as GPU Feature Discovery labels it.
    pub(super) fn product(&self) -> Option<&str> {
        self.labels.get("nvidia.com/gpu.product").map(String::as_str).filter(|product| !product.is_empty())
    }

    /// Resources of RDMA devices, by name, with how many pods can ask for.
    pub(super) fn rdma(&self) -> Vec<(&str, u64)> {
        let all = self.allocatable.iter().filter(|(name, _)| is_rdma(name));
        all.map(|(name, count)| (name.as_str(), *count)).collect()
    }
}

/// Whether a resource is one of RDMA devices: host devices and EFA by their names, and what the RDMA and SR-IOV plugins name.
pub(super) fn is_rdma(name: &str) -> bool {
    if name == EFA || name.starts_with("rdma/") {
        return true;
    }
    let named = ["hostdev", "rdma", "sriov", "mlnx", "mellanox", "connectx", "infiniband"];
    name.split_once('/').is_some_and(|(_, kind)| {
        let kind = kind.to_ascii_lowercase();
        named.iter().any(|part| kind.contains(part))
    })
}

/// A container of a pod, as its status has it.
#[derive(Clone, Debug, Default)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) ready: bool,
    pub(super) restarts: u64,
    /// Why it waits: `CrashLoopBackOff`.
    pub(super) waiting: Option<String>,
    /// When it last started, if it runs.
    pub(super) started: Option<u64>,
    /// Exit status, if it has ended.
    pub(super) ended: Option<i64>,
}

impl Container {
    fn read(value: &Value) -> Option<Self> {
        let state = &value["state"];
        Some(Self {
            name: text(&value["name"])?,
            ready: value["ready"] == Value::Bool(true),
            restarts: value["restartCount"].as_u64().unwrap_or(0),
            waiting: text(&state["waiting"]["reason"]),
            started: time(&state["running"]["startedAt"]),
            ended: state["terminated"]["exitCode"].as_i64(),
        })
    }

    /// It runs now.
    pub(super) fn runs(&self) -> bool {
        self.waiting.is_none() && self.ended.is_none() && (self.started.is_some() || self.ready)
    }
}

/// A driver pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) node: Option<String>,
    pub(super) created: Option<u64>,
    pub(super) phase: String,
    /// It is being deleted.
    pub(super) leaving: bool,
    /// Names of its containers.
    pub(super) wanted: Vec<String>,
    pub(super) containers: Vec<Container>,
    pub(super) init: Vec<Container>,
    /// Name of the `DaemonSet` that made it.
    pub(super) daemonset: Option<String>,
    /// Generation of the template it was made from.
    pub(super) template: Option<String>,
    /// All words of its containers' commands: how a debugger pod of ours is known.
    pub(super) commands: Vec<String>,
    /// The label by which it was found.
    pub(super) label: Option<&'static str>,
}

impl Pod {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let (meta, spec, status) = (&value["metadata"], &value["spec"], &value["status"]);
        let containers = items(&spec["containers"]);
        let words =
            containers.iter().flat_map(|one| items(&one["command"]).iter().chain(items(&one["args"])));
        Some(Self {
            name: text(&meta["name"])?,
            node: text(&spec["nodeName"]),
            created: time(&meta["creationTimestamp"]),
            phase: text(&status["phase"]).unwrap_or_default(),
            leaving: meta["deletionTimestamp"].is_string(),
            wanted: containers.iter().filter_map(|one| text(&one["name"])).collect(),
            containers: items(&status["containerStatuses"]).iter().filter_map(Container::read).collect(),
            init: items(&status["initContainerStatuses"]).iter().filter_map(Container::read).collect(),
            daemonset: owner(meta, "DaemonSet"),
            template: text(&meta["labels"]["pod-template-generation"]),
            commands: words.filter_map(text).collect(),
            label: None,
        })
    }

    /// `3/3`: ready containers of those it has.
    pub(super) fn count(&self) -> String {
        let ready = self.containers.iter().filter(|one| one.ready).count();
        format!("{ready}/{}", self.wanted.len().max(self.containers.len()))
    }

    /// Its containers are all ready.
    pub(super) fn ready(&self) -> bool {
        !self.containers.is_empty()
            && self.containers.len() >= self.wanted.len()
            && self.containers.iter().all(|one| one.ready)
    }

    /// As `kubectl get pods` names its state: `Init:CrashLoopBackOff`, `Init:0/1`, `Running`.
    pub(super) fn state(&self) -> String {
        let unfinished = self.init.iter().find(|one| one.ended != Some(0));
        if let Some(init) = unfinished {
            if let Some(reason) = init.waiting.as_deref().filter(|reason| *reason != "PodInitializing") {
                return format!("Init:{reason}");
            }
            if let Some(code) = init.ended {
                return format!("Init:ExitCode:{code}");
            }
            let done = self.init.iter().filter(|one| one.ended == Some(0)).count();
            return format!("Init:{done}/{}", self.init.len());
        }
        let waiting = self.containers.iter().find_map(|one| one.waiting.clone());
        waiting
            .unwrap_or_else(|| if self.phase.is_empty() { "unknown".to_owned() } else { self.phase.clone() })
    }
}

fn owner(meta: &Value, kind: &str) -> Option<String> {
    items(&meta["ownerReferences"]).iter().find(|one| one["kind"] == kind).and_then(|one| text(&one["name"]))
}

/// A `DaemonSet`.
#[derive(Clone, Debug, Default)]
pub(super) struct DaemonSet {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Generation of its template now.
    pub(super) template: Option<String>,
    /// Name of the `NVIDIADriver` that made it.
    pub(super) driver: Option<String>,
    pub(super) desired: u64,
    pub(super) ready: u64,
}

impl DaemonSet {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let (meta, status) = (&value["metadata"], &value["status"]);
        Some(Self {
            namespace: text(&meta["namespace"]).unwrap_or_default(),
            name: text(&meta["name"])?,
            template: text(&meta["annotations"]["deprecated.daemonset.template.generation"]),
            driver: owner(meta, "NVIDIADriver"),
            desired: status["desiredNumberScheduled"].as_u64().unwrap_or(0),
            ready: status["numberReady"].as_u64().unwrap_or(0),
        })
    }
}

/// A `Deployment`.
#[derive(Clone, Debug, Default)]
pub(super) struct Deployment {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) wanted: u64,
    pub(super) ready: u64,
}

impl Deployment {
    pub(super) fn read(value: &Value) -> Option<Self> {
        Some(Self {
            namespace: text(&value["metadata"]["namespace"]).unwrap_or_default(),
            name: text(&value["metadata"]["name"])?,
            wanted: value["spec"]["replicas"].as_u64().unwrap_or(1),
            ready: value["status"]["readyReplicas"].as_u64().unwrap_or(0),
        })
    }
}

/// The settings of GDRCopy's container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GdrCopy {
    pub(super) enabled: Option<bool>,
    pub(super) image: Option<String>,
    pub(super) repository: Option<String>,
    pub(super) version: Option<String>,
}

/// The resource that says how a driver is installed: an `NVIDIADriver`, or the part of a `ClusterPolicy` that does.
#[derive(Clone, Debug, Default)]
pub(super) struct DriverResource {
    /// It is a `ClusterPolicy`.
    pub(super) policy: bool,
    pub(super) name: String,
    pub(super) state: Option<String>,
    pub(super) rdma: Option<bool>,
    pub(super) gdrcopy: GdrCopy,
    pub(super) config: Option<String>,
    /// Nodes it is for; empty: all.
    pub(super) selector: BTreeMap<String, String>,
    /// When its `spec` was last changed.
    pub(super) changed: Option<u64>,
    /// The driver manager's environment.
    pub(super) env: Vec<Value>,
    /// Of a `ClusterPolicy`: it installs drivers.
    pub(super) installs: bool,
    /// Of a `ClusterPolicy`: it leaves drivers to `NVIDIADriver` resources.
    pub(super) delegates: bool,
}

impl DriverResource {
    /// An `NVIDIADriver`.
    pub(super) fn driver(value: &Value) -> Option<Self> {
        let spec = &value["spec"];
        Some(Self {
            name: text(&value["metadata"]["name"])?,
            state: text(&value["status"]["state"]),
            rdma: spec["rdma"]["enabled"].as_bool(),
            gdrcopy: gdrcopy(&spec["gdrcopy"]),
            config: text(&spec["kernelModuleConfig"]["name"]).filter(|name| !name.is_empty()),
            selector: strings(&spec["nodeSelector"]),
            changed: changed(&value["metadata"]),
            env: items(&spec["manager"]["env"]).to_vec(),
            installs: true,
            ..Self::default()
        })
    }

    /// A `ClusterPolicy`.
    pub(super) fn policy(value: &Value) -> Option<Self> {
        let driver = &value["spec"]["driver"];
        Some(Self {
            policy: true,
            name: text(&value["metadata"]["name"])?,
            state: text(&value["status"]["state"]),
            rdma: driver["rdma"]["enabled"].as_bool(),
            gdrcopy: gdrcopy(&value["spec"]["gdrcopy"]),
            config: text(&driver["kernelModuleConfig"]["name"]).filter(|name| !name.is_empty()),
            changed: changed(&value["metadata"]),
            env: items(&driver["manager"]["env"]).to_vec(),
            installs: driver["enabled"] != Value::Bool(false),
            delegates: driver["useNvidiaDriverCRD"] == Value::Bool(true),
            ..Self::default()
        })
    }

    /// `nvidiadriver h200`.
    pub(super) fn title(&self) -> String {
        format!("{} {}", if self.policy { "clusterpolicy" } else { "nvidiadriver" }, self.name)
    }

    /// Whether it is for `node`.
    pub(super) fn selects(&self, node: &Node) -> bool {
        self.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
    }

    /// Whether it is ready; none where it has no state.
    pub(super) fn ready(&self) -> Option<bool> {
        self.state.as_deref().map(|state| state.eq_ignore_ascii_case("ready"))
    }
}

fn gdrcopy(value: &Value) -> GdrCopy {
    GdrCopy {
        enabled: value["enabled"].as_bool(),
        image: text(&value["image"]),
        repository: text(&value["repository"]),
        version: text(&value["version"]),
    }
}

/// When anybody last changed the object's own fields: the operator's writes of its status do not count.
fn changed(meta: &Value) -> Option<u64> {
    items(&meta["managedFields"])
        .iter()
        .filter(|entry| entry["subresource"].as_str().is_none_or(str::is_empty))
        .filter(|entry| ["f:spec", "f:data"].iter().any(|part| entry["fieldsV1"].get(*part).is_some()))
        .filter_map(|entry| time(&entry["time"]))
        .max()
}

/// A `ConfigMap` with the driver's parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct ConfigMap {
    pub(super) name: String,
    pub(super) data: BTreeMap<String, String>,
    pub(super) changed: Option<u64>,
}

impl ConfigMap {
    pub(super) fn read(value: &Value) -> Option<Self> {
        Some(Self {
            name: text(&value["metadata"]["name"])?,
            data: strings(&value["data"]),
            changed: changed(&value["metadata"]),
        })
    }
}

/// What a pod uses of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) requests: BTreeMap<String, u64>,
    /// Kind of its owner: `Job`, `ReplicaSet`, `DaemonSet`.
    pub(super) owner: String,
    /// It has a volume of kind `emptyDir`.
    pub(super) scratch: bool,
}

/// Prints a line for each pod: name space, name, node, owner, `emptyDir` volumes, requests of its containers, and of its init
/// containers. Whole pods of 1,000 nodes would be hundreds of megabytes.
pub(super) const USAGE_TEMPLATE: &str = "jsonpath={range .items[*]}{.metadata.namespace}{\"\\t\"}{.metadata.name}{\"\\t\"}\
    {.spec.nodeName}{\"\\t\"}{.metadata.ownerReferences[*].kind}{\"\\t\"}{.spec.volumes[*].emptyDir}{\"\\t\"}\
    {range .spec.containers[*]}{.resources.requests}{\" \"}{end}{\"\\t\"}\
    {range .spec.initContainers[*]}{.resources.requests}{\" \"}{end}{\"\\n\"}{end}";

impl Usage {
    /// A line of [`USAGE_TEMPLATE`]; none where it is no such line, or the pod is on no node.
    pub(super) fn read(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let (namespace, name, node) = (fields.next()?, fields.next()?, fields.next()?);
        let (owner, volumes, requests) = (fields.next()?, fields.next()?, fields.next()?);
        if node.is_empty() || name.is_empty() {
            return None;
        }
        // Containers run together, init containers one after the other: a pod needs the larger of both (as the scheduler counts).
        let mut total = BTreeMap::new();
        for (key, count) in maps(requests) {
            let sum: &mut u64 = total.entry(key).or_default();
            *sum = sum.saturating_add(count);
        }
        for (key, count) in maps(fields.next().unwrap_or_default()) {
            let most: &mut u64 = total.entry(key).or_default();
            *most = count.max(*most);
        }
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            node: node.to_owned(),
            requests: total,
            owner: owner.split_whitespace().next().unwrap_or_default().to_owned(),
            scratch: !volumes.trim().is_empty(),
        })
    }

    /// `namespace/name`.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The JSON objects of a text, one after the other.
fn maps(text: &str) -> Vec<(String, u64)> {
    let objects = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    objects.map_while(Result::ok).flat_map(|object| quantities(&object)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_uses_the_sum_of_its_containers_or_its_largest_init_container() {
        let line = "team\ttrain-0\tn1\tJob\t{} {\"medium\":\"Memory\"}\t{\"cpu\":\"500m\",\"nvidia.com/gpu\":\"4\"} {\"nvidia.com/gpu\":\"2\"} \t{\"nvidia.com/gpu\":\"8\"} ";
        let usage = Usage::read(line).unwrap();
        assert_eq!(usage.requests["nvidia.com/gpu"], 8);
        assert_eq!((usage.owner.as_str(), usage.scratch), ("Job", true));
        let plain =
            Usage::read("a\tb\tn\t\t\t{\"nvidia.com/gpu\":\"4\"} {\"nvidia.com/gpu\":\"2\"} \t").unwrap();
        assert_eq!(plain.requests["nvidia.com/gpu"], 6);
        assert!(!plain.scratch);
        assert!(Usage::read("pending\tpod\t\t\t\t\t").is_none());
        assert!(Usage::read("garbage").is_none());
        assert!(Usage::read("a\tb\tn\t\t\t{{{\t").unwrap().requests.is_empty());
    }

    #[test]
    fn wrong_types_are_as_if_missing() {
        let node = Node::read(
            &json!({"metadata": {"name": "n", "labels": [1]}, "spec": {"taints": "x", "unschedulable": "yes"},
            "status": {"allocatable": {"nvidia.com/gpu": {}, "cpu": 4}, "conditions": {"a": 1}}}),
        )
        .unwrap();
        assert_eq!((node.gpus(), node.ready, node.cordoned), (0, None, false));
        assert_eq!(node.allocatable["cpu"], 4);
        assert!(Node::read(&json!({"metadata": {"name": 5}})).is_none());
        assert!(Pod::read(&json!([])).is_none());
        assert!(
            Pod::read(
                &json!({"metadata": {"name": "p"}, "status": {"containerStatuses": [1, null, {"name": "c"}]}})
            )
            .unwrap()
            .containers
            .len()
                == 1
        );
    }

    #[test]
    fn states_as_kubectl_names_them() {
        let pod =
            |status: Value| Pod::read(&json!({"metadata": {"name": "p"}, "status": status})).unwrap().state();
        assert_eq!(pod(json!({"phase": "Running"})), "Running");
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        assert_eq!(
            pod(json!({"phase": "Pending", "initContainerStatuses": [{"name": "m", "state": waiting}]})),
            "Init:CrashLoopBackOff"
        );
        assert_eq!(
            pod(
                json!({"phase": "Pending", "initContainerStatuses": [{"name": "m", "state": {"running": {}}}]})
            ),
            "Init:0/1"
        );
        let done = json!({"name": "m", "state": {"terminated": {"exitCode": 0}}});
        assert_eq!(
            pod(
                json!({"phase": "Running", "initContainerStatuses": [done], "containerStatuses": [{"name": "c", "state": waiting}]})
            ),
            "CrashLoopBackOff"
        );
    }

    #[test]
    fn only_changes_of_the_spec_count() {
        let resource = DriverResource::driver(&json!({"metadata": {"name": "h200", "managedFields": [
            {"time": "2026-03-01T00:00:00Z", "fieldsV1": {"f:spec": {}}},
            {"time": "2026-03-02T00:00:00Z", "subresource": "status", "fieldsV1": {"f:status": {}}},
            {"time": "2026-03-03T00:00:00Z", "fieldsV1": {"f:metadata": {}}}]}}))
        .unwrap();
        assert_eq!(resource.changed, Some(1_772_323_200));
    }

    #[test]
    fn resources_of_rdma_devices() {
        for name in [
            "nvidia.com/hostdev",
            "rdma/rdma_shared_device_a",
            "vpc.amazonaws.com/efa",
            "nvidia.com/mlnxnics",
            "openshift.io/mellanoxnics",
        ] {
            assert!(is_rdma(name), "{name}");
        }
        for name in ["nvidia.com/gpu", "cpu", "memory", "hugepages-2Mi", "nvidia.com/mig-1g.10gb"] {
            assert!(!is_rdma(name), "{name}");
        }
    }
}
