//! Files for a driver that the GPU Operator owns.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::host_setup::word;
use super::facts::{ClusterFacts, DriverFacts};
use super::{DriverConfigError, Kind, Options, parameters, pretty};
use crate::doc::Node;
use crate::files::FileSet;
use crate::map;

/// The `ConfigMap` that the guide creates, where the resource names none.
const CONFIG_MAP: &str = "nvidia-kernel-params";
/// The key in it that the driver container reads.
const CONFIG_KEY: &str = "nvidia.conf";
/// Labels of driver pods.
const DRIVER_LABEL: &str = "app.kubernetes.io/component=nvidia-driver";
const POLICY_LABEL: &str = "app=nvidia-driver-daemonset";
/// `GDRCopy`'s container as the guide has it.
const GDRCOPY: [(&str, &str); 3] =
    [("image", "gdrdrv"), ("repository", "nvcr.io/nvidia/cloud-native"), ("version", "v2.5.1")];
/// What lets the driver manager evict pods itself (guide, Step 9).
const OVERRIDES: [&str; 3] = ["ENABLE_GPU_POD_EVICTION", "DRAIN_USE_FORCE", "DRAIN_DELETE_EMPTYDIR_DATA"];
/// Names of tests that providers run on new nodes: an extended regular expression, for lower-case text.
const QUALIFICATION: &str = "burn-?in|qualif|acceptance";

const SCRIPTS: [(&str, &str); 5] = [
    ("01-apply.sh", include_str!("../../../assets/driver-config/01-apply.sh")),
    ("02-before-recycling.sh", include_str!("../../../assets/driver-config/02-before-recycling.sh")),
    ("03-recycle.sh", include_str!("../../../assets/driver-config/03-recycle.sh")),
    ("04-verify.sh", include_str!("../../../assets/driver-config/04-verify.sh")),
    ("optional-drain-override.sh", include_str!("../../../assets/driver-config/optional-drain-override.sh")),
];
const LIBRARY: &str = include_str!("../../../assets/driver-config/lib.sh");

/// What the files say, after the cluster was asked where it could be.
struct Plan {
    kind: Kind,
    resource: Option<String>,
    config: String,
    /// Keys and texts of the `ConfigMap`.
    data: Vec<(String, String)>,
    gdrcopy: Vec<(&'static str, String)>,
    env: Vec<Value>,
    /// What of it came from the cluster, for comments.
    kept: Vec<String>,
}

pub(super) fn render(options: &Options) -> Result<FileSet, DriverConfigError> {
    let plan = plan(options)?;
    let named = [
        ("namespace", Some(&options.namespace)),
        ("driver resource", plan.resource.as_ref()),
        ("ConfigMap", Some(&plan.config)),
    ];
    for (what, name) in named {
        if let Some(name) = name.filter(|name| !is_name(name)) {
            return Err(DriverConfigError::Name { what, name: name.clone() });
        }
    }
    let text = plan.data.iter().find(|(key, _)| key == CONFIG_KEY).map_or("", |(_, text)| text);
    let mut files = FileSet::default();
    files.text("README.md", readme(options, &plan));
    files.text(CONFIG_KEY, text);
    files.text("configmap.yaml", config_map(options, &plan)?);
    files.text("patch.json", pretty(&patch(&plan)));
    files.text("settings.sh", settings(options, &plan));
    files.text("lib.sh", LIBRARY);
    for (name, script) in SCRIPTS {
        files.program(name, script);
    }
    files.text("drain-override.json", pretty(&override_patch(&plan)));
    Ok(files)
}

/// Labels, namespaces and names of objects: DNS subdomains.
fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 253
        && name.chars().all(inner)
        && edge(name.chars().next())
        && edge(name.chars().next_back())
}

fn plan(options: &Options) -> Result<Plan, DriverConfigError> {
    let cluster = options.cluster.as_ref();
    let driver = cluster.map(|cluster| choose(options, cluster)).transpose()?;
    let config = driver.and_then(|driver| driver.config.clone()).unwrap_or_else(|| CONFIG_MAP.to_owned());
    let mut kept = Vec::new();
    if driver.is_some_and(|driver| driver.config.is_some()) {
        kept.push(format!("the driver resource names the ConfigMap {config} already: its name is kept"));
    }
    let found = cluster.and_then(|cluster| cluster.config(&config));
    let now = found.and_then(|found| found.data.get(CONFIG_KEY)).map_or("", String::as_str);
    let (text, strange) = parameters::merged(now);
    if !strange.is_empty() {
        return Err(DriverConfigError::Lines { name: config, lines: strange.join(", ") });
    }
    if text.lines().count() > 2 {
        kept.push(format!("other lines of {config} are kept"));
    }
    let mut data = vec![(CONFIG_KEY.to_owned(), text)];
    if let Some(found) = found {
        let others = found.data.iter().filter(|(key, _)| *key != CONFIG_KEY);
        data.extend(others.map(|(key, text)| (key.clone(), text.clone())));
    }
    let mut gdrcopy = Vec::new();
    for (key, usual) in GDRCOPY {
        let current = driver.and_then(|driver| driver.gdrcopy.get(key));
        let current = current.filter(|text| key != "version" || !older(text));
        let value = current.map_or(usual, String::as_str);
        if value != usual {
            kept.push(format!("gdrcopy.{key} {value} is kept (usual: {usual})"));
        }
        gdrcopy.push((key, value.to_owned()));
    }
    Ok(Plan {
        kind: driver.map_or(options.kind, |driver| driver.kind),
        resource: driver.map(|driver| driver.name.clone()).or_else(|| options.resource.clone()),
        config,
        data,
        gdrcopy,
        env: driver.map(|driver| driver.env.clone()).unwrap_or_default(),
        kept,
    })
}

/// The driver resource that is meant: the one that is named, or the only ready one for this kind of GPU.
fn choose<'a>(options: &Options, cluster: &'a ClusterFacts) -> Result<&'a DriverFacts, DriverConfigError> {
    let refuse = |message: String| {
        let lines: Vec<String> = cluster.drivers.iter().map(DriverFacts::line).collect();
        let listing = if lines.is_empty() { "there is none".to_owned() } else { lines.join("; ") };
        DriverConfigError::Resource { message, listing }
    };
    if let Some(name) = &options.resource {
        let found = cluster.drivers.iter().find(|driver| driver.name == *name);
        return found.ok_or_else(|| refuse(format!("there is no driver resource {name}")));
    }
    let sku = options.sku.as_deref();
    let fits = |driver: &&DriverFacts| driver.ready() && sku.is_none_or(|sku| driver.fits(sku));
    let fitting: Vec<&DriverFacts> = cluster.drivers.iter().filter(fits).collect();
    match fitting.as_slice() {
        [one] => Ok(one),
        // One policy for the whole cluster has no kind of GPU in its name.
        [] if matches!(cluster.drivers.as_slice(), [one] if one.kind == Kind::ClusterPolicy && one.ready()) => {
            cluster.drivers.first().ok_or_else(|| refuse("there is none".to_owned()))
        }
        [] => Err(refuse(format!("no driver resource in state ready is for {}", sku.unwrap_or("GPUs")))),
        many => Err(refuse(format!("{} driver resources fit {}", many.len(), sku.unwrap_or("any GPU")))),
    }
}

/// Whether a version of `GDRCopy` is older than 2.5, the oldest that the documents accept.
fn older(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-']).map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < (2, 5),
        _ => false,
    }
}

fn config_map(options: &Options, plan: &Plan) -> Result<String, DriverConfigError> {
    let mut data = Vec::new();
    for (key, text) in &plan.data {
        data.push((key.clone(), Node::Block(text.clone())));
    }
    // Without the labels of a run: cleaning up a run must never take the driver's configuration away.
    let document = map! {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": map! { "name": plan.config.as_str(), "namespace": options.namespace.as_str() },
        "data": Node::Map(data),
    };
    let mut head = "Parameters of the NVIDIA driver that IBGDA needs. The driver container reads the key nvidia.conf when it loads the driver.\nEnableStreamMemOPs: stream memory operations, for work submission from the GPU. PeerMappingOverride: the GPU may map the doorbells of NICs.".to_owned();
    for line in &plan.kept {
        let _ = write!(head, "\nFrom the cluster: {line}.");
    }
    document.yaml(&head).map_err(DriverConfigError::Yaml)
}

/// Puts the driver's part of a spec where the kind of resource has it.
fn spec(kind: Kind, driver: Value) -> Value {
    match kind {
        Kind::NvidiaDriver => driver,
        Kind::ClusterPolicy => json!({ "driver": driver }),
    }
}

/// All three settings in one patch.
fn patch(plan: &Plan) -> Value {
    let mut gdrcopy = serde_json::Map::from_iter([("enabled".to_owned(), Value::Bool(true))]);
    gdrcopy.extend(plan.gdrcopy.iter().map(|(key, value)| ((*key).to_owned(), value.as_str().into())));
    let mut whole = spec(
        plan.kind,
        json!({ "kernelModuleConfig": { "name": plan.config }, "rdma": { "enabled": true } }),
    );
    whole["gdrcopy"] = gdrcopy.into();
    json!({ "spec": whole })
}

/// The drain overrides. A merge patch replaces a list whole, so entries of the cluster are in it.
fn override_patch(plan: &Plan) -> Value {
    let ours = |entry: &&Value| !OVERRIDES.iter().any(|name| entry["name"] == *name);
    let mut env: Vec<Value> = plan.env.iter().filter(ours).cloned().collect();
    env.extend(OVERRIDES.iter().map(|name| json!({ "name": name, "value": "true" })));
    json!({ "spec": spec(plan.kind, json!({ "manager": { "env": env } })) })
}

fn settings(options: &Options, plan: &Plan) -> String {
    let (kind, spec, label) = match plan.kind {
        Kind::NvidiaDriver => ("nvidiadrivers.nvidia.com", ".spec", DRIVER_LABEL),
        Kind::ClusterPolicy => ("clusterpolicies.nvidia.com", ".spec.driver", POLICY_LABEL),
    };
    // A policy is for all nodes of the cluster: it is not chosen by a kind of GPU.
    let sku = match plan.kind {
        Kind::NvidiaDriver => options.sku.as_deref().unwrap_or_default(),
        Kind::ClusterPolicy => "",
    };
    let context = options.context.as_deref().unwrap_or_default();
    let part = |key: &str| plan.gdrcopy.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value);
    let mut text = String::from(
        "# shellcheck shell=bash disable=SC2034\n# Settings of the scripts in this folder, as rendered. Those in ${...} can be given in the environment, too.\n",
    );
    let fixed = [
        ("RENDERED_CONTEXT", context),
        ("NAMESPACE", &options.namespace),
        ("KIND", kind),
        ("SPEC", spec),
        ("SELECTOR", &format!("{spec}.nodeSelector")),
        ("LABEL", label),
        ("CONFIG_MAP", &plan.config),
        ("GDRCOPY_REPOSITORY", part("repository")),
        ("GDRCOPY_IMAGE", part("image")),
        ("GDRCOPY_VERSION", part("version")),
    ];
    for (name, value) in fixed {
        let _ = writeln!(text, "{name}={}", word(value));
    }
    let open = [
        ("CONTEXT", context, "which cluster; no script takes the current context by itself"),
        (
            "RESOURCE",
            plan.resource.as_deref().unwrap_or_default(),
            "driver resource; empty: chosen by STATUS and SKU",
        ),
        ("SKU", sku, "kind of GPU, as in the name or selector of the resource; empty: any"),
        ("QUALIFICATION", QUALIFICATION, "how tests are known that must never be deleted"),
        ("SETTLE", "60", "seconds that module loaders need after their start"),
        ("WAIT", "900", "seconds to wait for one node's driver pod"),
        ("POLL", "5", "seconds between looks"),
    ];
    for (name, value, what) in open {
        let _ = writeln!(text, "{name}=${{{name}:-{}}} # {what}", word(value));
    }
    text
}

fn readme(options: &Options, plan: &Plan) -> String {
    let resource = plan.resource.as_deref().map_or_else(
        || {
            let sku = options.sku.as_deref().unwrap_or("the GPUs that are meant");
            format!("chosen when a script runs: the one whose STATUS is ready and which is for {sku}")
        },
        str::to_owned,
    );
    let mut kept = String::new();
    for line in &plan.kept {
        let _ = writeln!(kept, "- From the cluster: {line}.");
    }
    format!(
        "# Driver parameters through the GPU Operator\n\n\
         Once for each cluster, and again for nodes that were there before. Nothing here is applied by itself: each script shows what it\n\
         would do; those that change something want `--yes`.\n\n\
         - Driver resource: {resource}.\n- ConfigMap: `{config}` in `{namespace}`.\n{kept}\n\
         1. `./01-apply.sh --context NAME`: the ConfigMap (`configmap.yaml`) and one merge patch (`patch.json`): gdrcopy, kernelModuleConfig\n   \
         and rdma together. A part of them leaves the driver inconsistent.\n\
         2. `./02-before-recycling.sh --context NAME`: what would block the reload on each node: GPU pods, pods with an emptyDir,\n   \
         qualification tests (never delete those).\n\
         3. `./03-recycle.sh --context NAME`: one node at a time, to 3/3. The resource's DaemonSet is OnDelete: without this running nodes keep\n   \
         the old driver. A new pod with 1/1 has the old configuration. Nodes that join later need no recycling.\n\
         4. `./04-verify.sh --context NAME`: a line for each node; in order is `ready=true/true/true params=2/2 modules=2/2`. Again whenever nodes\n   \
         are added or replaced.\n\n\
         {look}\n\
         `optional-drain-override.sh` lets the driver manager evict pods by itself. **It discards the scratch data of evicted pods.**\n\n\
         Do not use the files for hosts (modprobe.d, device nodes, modules inside pods) on these nodes, and no NVSHMEM variable stands in\n\
         for what is missing here.\n",
        config = plan.config,
        namespace = options.namespace,
        look = look(options, plan),
    )
}

/// How to look at the NICs of a node, which no script here changes.
fn look(options: &Options, plan: &Plan) -> String {
    let label = match plan.kind {
        Kind::NvidiaDriver => DRIVER_LABEL,
        Kind::ClusterPolicy => POLICY_LABEL,
    };
    let namespace = &options.namespace;
    let kubectl = match &options.context {
        Some(context) => format!("kubectl --context {}", word(context)),
        None => "kubectl --context NAME".to_owned(),
    };
    format!(
        "## To look at a node\n\n\
         Which NIC is near which GPU, from its driver pod, which sees the host's devices (`ibdev2netdev` is not there). Rails show PHB or\n\
         nearer, a frontend NODE:\n\n```\n\
         {kubectl} -n {namespace} get pods -l {label} -o wide\n\
         {kubectl} -n {namespace} exec POD -c nvidia-driver-ctr -- nvidia-smi topo -m\n\
         {kubectl} -n {namespace} exec POD -c nvidia-driver-ctr -- ls /sys/class/infiniband/\n```\n\n\
         The provider's topology files for NCCL. The driver pod does not mount the host's /etc, so a pod of its own looks, and is deleted:\n\n```\n\
         {kubectl} debug node/NODE -it --image=busybox:1.36 -- ls /host/etc/crusoe/nccl_topo/\n\
         {kubectl} get pods -o name | grep node-debugger\n\
         {kubectl} delete POD-OF-THE-LINE-ABOVE\n```\n"
    )
}
