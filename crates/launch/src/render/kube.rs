//! What both kinds of Kubernetes jobs are made of.

mod binary;
mod prepull;

pub(super) use binary::{binary, copy_lines};
pub(super) use prepull::prepull;

use expertrail_cluster::kube::client::quoted;

use super::RenderError;
use crate::doc::Node;
pub(super) use crate::engine::Place;
use crate::engine::{DEEPEP_FILE, DEEPEP_TEXT, SCOPE, Word};
use crate::files::FileSet;
use crate::platform::Fabric;
use crate::run::{Run, Step, Toleration};
use crate::spec::{Binary, Engine};
use crate::{list, map};

/// Where pods see the rendered files.
pub(super) const FILES: &str = "/etc/expertrail";
/// Where ranks leave their files; made by the worker.
pub(super) const OUT: &str = "/tmp/expertrail";
/// Where pods see this project's binary that is not in their image.
const BINARY_FOLDER: &str = "/opt/expertrail";
/// `kubectl apply` keeps a copy of what it applies in an annotation, and annotations end at 256 KiB.
const LARGEST_CONFIG_MAP: usize = 256 << 10;

/// Seconds beyond the run's timeout after which the cluster ends it: a first pull of 20 GB took the guide's readers more than ten
/// minutes, and this time counts from the Job's creation. `expertrail launch` is stricter and collects the logs first.
pub(super) const MARGIN_S: u64 = 1800;

/// Variables that the worker, the Job controller or these files set, and why a description must not.
const TAKEN: [(&str, &str); 10] = [
    (
        "NVSHMEM_HCA_LIST",
        "in a pod's variables it would give all ranks the same NIC; network.hcas names one for each GPU",
    ),
    ("RANK", "the worker gives each rank its own"),
    ("LOCAL_RANK", "the worker gives each rank its own"),
    ("WORLD_SIZE", "it follows from nodes and gpus_per_node"),
    ("NODE_RANK", "it is the pod's index"),
    ("JOB_COMPLETION_INDEX", "the Job controller sets it"),
    ("NUM_NODES", "it follows from nodes"),
    ("NUM_GPUS_PER_NODE", "it follows from gpus_per_node"),
    ("MASTER_ADDR", "it is the first pod's name"),
    ("MASTER_PORT", "it is network.port"),
];

/// A part of a run that has pods of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Pods with ranks.
    Ranks,
    /// The pod of `mpirun`.
    Launcher,
    /// Pods that pull images.
    Prepull,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::Launcher => "launcher",
            Self::Prepull => "prepull",
        }
    }
}

/// Labels of every object of a run.
pub(super) fn labels(run: &Run) -> Node {
    map! {
        "app.kubernetes.io/name": "expertrail",
        "app.kubernetes.io/managed-by": "expertrail",
        "expertrail.dev/run": &run.id,
        "app": &run.id,
    }
}

/// Labels of the pods of `part`. Pods that only pull must not have the label `app` of those with ranks: the Service would send to them
/// and the anti-affinity would keep ranks off their nodes.
pub(super) fn pod_labels(run: &Run, part: Part) -> Node {
    let app = match part {
        Part::Prepull => format!("{}-prepull", run.id),
        Part::Ranks | Part::Launcher => run.id.clone(),
    };
    let mut labels = map! {
        "app.kubernetes.io/name": "expertrail",
        "app.kubernetes.io/managed-by": "expertrail",
        "app.kubernetes.io/component": part.name(),
        "expertrail.dev/run": &run.id,
        "app": app,
    };
    if part == Part::Ranks && run.engine == Engine::Expertrail {
        labels.set(SCOPE.0, Node::from(SCOPE.1).note("each node is measured by itself: no NIC is asked for"));
    }
    labels
}

/// `metadata` of the object `name`.
pub(super) fn metadata(run: &Run, name: &str) -> Node {
    map! { "name": name, "namespace": &run.kubernetes.namespace, "labels": labels(run) }
}

/// The namespace, in a file of its own: it is created where it is missing and never laid over one that somebody else made.
pub(super) fn namespace(run: &Run) -> Result<FileSet, RenderError> {
    let name = &run.kubernetes.namespace;
    let document = map! {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": map! { "name": name, "labels": labels(run) },
    };
    let head = format!(
        "Namespace of run {}. Only where there is none yet: `kubectl create` leaves one that is there as it is, and\n\
         `kubectl apply` would put this run's labels on it.",
        run.id
    );
    let mut files = FileSet::default();
    files.text("namespace.yaml", document.yaml(&head).map_err(RenderError::Yaml)?);
    Ok(files)
}

/// Scripts, the benchmark's file and the run itself, as pods see them under [`FILES`].
pub(super) fn config_map(run: &Run, scripts: Vec<(String, String)>) -> Result<Node, RenderError> {
    let mut texts = scripts;
    if run.kubernetes.binary == Binary::Copy {
        texts.push((binary::WAIT.0.to_owned(), binary::WAIT.1.to_owned()));
    }
    if run.needs_deepep_file {
        texts.push((DEEPEP_FILE.to_owned(), DEEPEP_TEXT.to_owned()));
    }
    texts.push(("run.json".to_owned(), run.to_json()?));
    let data = texts.into_iter().map(|(name, text)| (name, block(text))).collect();
    let document = map! {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(run, &run.id),
        "data": Node::Map(data),
    };
    let bytes = serde_json::to_string(&document.json())?.len();
    if bytes >= LARGEST_CONFIG_MAP {
        return Err(RenderError::Unfit(format!(
            "the run's ConfigMap has {bytes} bytes and `kubectl apply` takes less than {LARGEST_CONFIG_MAP}: shorten command or [env] of \
             run.toml"
        )));
    }
    Ok(document)
}

/// `text` as a block, or quoted where a block cannot hold one of its characters.
fn block(text: String) -> Node {
    let odd = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
    if text.chars().any(odd) || text.starts_with([' ', '\n']) || !text.ends_with('\n') {
        Node::Text(text)
    } else {
        Node::Block(text)
    }
}

/// The run's variables, as the list of a container.
pub(super) fn variables(run: &Run) -> Result<Vec<Node>, RenderError> {
    check_variables(run)?;
    let one = |setting: &crate::run::Setting| {
        // Kubernetes replaces `$(NAME)` in values and takes `$$` for `$`; what is in run.toml is meant as it is written.
        let value = setting.value.replace('$', "$$");
        map! { "name": &setting.name, "value": Node::from(value).note(&setting.why) }
    };
    Ok(run.env.iter().map(one).collect())
}

/// Sees that no variable is one that must differ between ranks or that these files set, and that a pod can have each.
pub(super) fn check_variables(run: &Run) -> Result<(), RenderError> {
    for setting in &run.env {
        let name = &setting.name;
        if let Some((_, why)) = TAKEN.iter().find(|(taken, _)| taken == name) {
            return Err(RenderError::Unfit(format!(
                "variable {name} ({}) cannot be given: {why}",
                setting.why
            )));
        }
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !first || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(RenderError::Unfit(format!(
                "[env] of run.toml: {name:?} is no variable's name: wanted a letter or `_`, then letters, digits and `_`"
            )));
        }
        if setting.value.contains('\0') {
            return Err(RenderError::Unfit(format!(
                "[env] of run.toml: {name} has a NUL character in its value"
            )));
        }
    }
    Ok(())
}

/// A variable with a note.
pub(super) fn variable(name: &str, value: impl Into<Node>, note: &str) -> Node {
    map! { "name": name, "value": value.into().note(note) }
}

/// Whether and when the image is pulled.
pub(super) fn pull_policy(image: &str) -> Node {
    if image.contains("@sha256:") {
        Node::from("IfNotPresent").note("a digest is always the same image")
    } else {
        Node::from("Always").note("a tag may have moved; layers that the node has are not pulled again")
    }
}

/// Requests and limits of a container with ranks.
pub(super) fn resources(run: &Run) -> Result<Node, RenderError> {
    let kubernetes = &run.kubernetes;
    if kubernetes.hugepages_2mi.is_some() && kubernetes.memory.is_none() && kubernetes.cpu.is_none() {
        return Err(RenderError::Unfit(
            "huge pages without a request for memory are refused by Kubernetes: set kubernetes.memory a little below Allocatable in \
             `kubectl describe node`, or kubernetes.hugepages_2mi = \"\""
                .to_owned(),
        ));
    }
    let mut requests = map! {};
    let mut limits = map! {};
    if let Some(cpu) = &kubernetes.cpu {
        // No limit: throttled threads would show up as slow NICs.
        requests
            .set("cpu", Node::from(cpu).note("run.toml or the profile; no limit, so nothing is throttled"));
    }
    if let Some(memory) = &kubernetes.memory {
        requests
            .set("memory", Node::from(memory).note("run.toml or the profile; must fit a node's Allocatable"));
    }
    if let Some(limit) = &kubernetes.memory_limit {
        limits.set("memory", limit);
    }
    let mut both = Vec::new();
    if let Some(name) = &kubernetes.gpu_resource {
        both.push((name.clone(), run.gpus_per_node.to_string()));
    }
    if let Some((name, count)) = &kubernetes.rdma {
        both.push((name.clone(), count.to_string()));
    }
    if let Some(pages) = &kubernetes.hugepages_2mi {
        both.push(("hugepages-2Mi".to_owned(), pages.clone()));
    }
    for (name, count) in both {
        requests.set(&name, &count);
        limits.set(&name, &count);
    }
    let mut resources = map! {};
    for (name, part) in [("requests", requests), ("limits", limits)] {
        if part != map! {} {
            resources.set(name, part);
        }
    }
    Ok(resources)
}

/// Resources of a container that only copies, waits or pulls; quotas of a namespace may demand that every container names some.
pub(super) fn small_resources() -> Node {
    map! {
        "requests": map! { "cpu": "100m", "memory": "256Mi" },
        "limits": map! { "memory": "256Mi" },
    }
}

/// What all pods of a run share: no token of the cluster, no variables of other Services, and where they may run.
pub(super) fn pod(run: &Run) -> Node {
    let kubernetes = &run.kubernetes;
    let mut pod = map! {
        "automountServiceAccountToken": Node::from(false).note("ranks never talk to the cluster"),
        "enableServiceLinks": Node::from(false).note("no variables of other Services of the namespace"),
    };
    if let Some(account) = &kubernetes.service_account {
        pod.set("serviceAccountName", account);
    }
    if let Some(class) = &kubernetes.priority_class {
        pod.set("priorityClassName", class);
    }
    if let Some(secret) = &kubernetes.pull_secret {
        pod.set("imagePullSecrets", list![map! { "name": secret }]);
    }
    if !kubernetes.node_selector.is_empty() {
        let labels = kubernetes.node_selector.iter().map(|(key, value)| (key.clone(), Node::from(value)));
        pod.set("nodeSelector", Node::Map(labels.collect()));
    }
    let taints = tolerations(run);
    if !taints.is_empty() {
        pod.set("tolerations", Node::List(taints));
    }
    pod
}

/// Taints that nodes with GPUs usually have, with their value: the one that providers put on them, and on EFA those of AWS's examples too.
fn usual_taints(run: &Run) -> &'static [(&'static str, Option<&'static str>)] {
    const USUAL: [(&str, Option<&str>); 3] =
        [("nvidia.com/gpu", None), ("workload", Some("bench")), ("capacity-reservation", None)];
    if !run.kubernetes.gpu_resource.as_deref().is_some_and(|name| name.starts_with("nvidia.com/")) {
        return &[];
    }
    match run.fabric {
        Fabric::Efa => &USUAL,
        _ => &USUAL[..1],
    }
}

/// Taints that pods accept: the usual ones, unless the description has its own of that key, and those of the description.
fn tolerations(run: &Run) -> Vec<Node> {
    let given = &run.kubernetes.tolerations;
    let usual = usual_taints(run).iter().filter(|(key, _)| !given.iter().any(|taint| taint.key == *key));
    let usual = usual.map(|&(key, value)| Toleration {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: Some("NoSchedule".to_owned()),
    });
    let one = |taint: Toleration| {
        let mut node = map! { "key": taint.key };
        match taint.value {
            Some(value) => {
                node.set("operator", "Equal");
                node.set("value", value);
            }
            None => node.set("operator", "Exists"),
        }
        if let Some(effect) = taint.effect {
            node.set("effect", effect);
        }
        node
    };
    usual.chain(given.iter().cloned()).map(one).collect()
}

/// Nodes that the run may be on: with GPUs, unless ranks are on the CPU, the GPUs are not NVIDIA's, or an instance type says as much (its
/// label is there where GPU feature discovery is not); and those that are named. None where any will do.
pub(super) fn node_affinity(run: &Run) -> Option<Node> {
    let mut wanted = Vec::new();
    let gpus = !run.kubernetes.node_selector.contains_key("node.kubernetes.io/instance-type");
    let nvidia = run.kubernetes.gpu_resource.as_deref().is_some_and(|name| name.starts_with("nvidia.com/"));
    if gpus && nvidia {
        wanted.push(map! {
            "key": Node::from("nvidia.com/gpu.present").note("set by GPU feature discovery; absent for a while after a driver's restart"),
            "operator": "In",
            "values": list!["true"],
        });
    }
    let names = &run.kubernetes.hostnames;
    if !names.is_empty() {
        wanted.push(map! {
            "key": Node::from("kubernetes.io/hostname").note("kubernetes.hostnames: these nodes and no others"),
            "operator": "In",
            "values": Node::List(names.iter().map(Node::from).collect()),
        });
    }
    if wanted.is_empty() {
        return None;
    }
    Some(map! {
        "requiredDuringSchedulingIgnoredDuringExecution": map! {
            "nodeSelectorTerms": list![map! { "matchExpressions": Node::List(wanted) }],
        },
    })
}

/// Pods with these labels, never two on one node.
pub(super) fn apart(labels: Node) -> Node {
    map! {
        "requiredDuringSchedulingIgnoredDuringExecution": list![map! {
            "labelSelector": map! { "matchLabels": labels },
            "topologyKey": Node::from("kubernetes.io/hostname").note("one pod for each node"),
        }],
    }
}

/// A volume with its mount.
pub(super) type Volume = (Node, Node);

/// The volumes of pods with ranks.
pub(super) fn volumes(run: &Run) -> Vec<Volume> {
    let mut volumes = vec![(
        map! {
            "name": "dshm",
            "emptyDir": map! {
                "medium": Node::from("Memory").note("the runtime's own /dev/shm has 64 MiB"),
                "sizeLimit": Node::from(&run.kubernetes.shm).note("what lies in it counts as the pod's memory"),
            },
        },
        map! { "name": "dshm", "mountPath": "/dev/shm" },
    )];
    if let Some(folder) = &run.topo_mount {
        volumes.push((
            map! {
                "name": "topology",
                "hostPath": map! {
                    "path": folder,
                    "type": Node::from("Directory").note("must be on the node; else drop it with NCCL_TOPO_FILE: network.nccl_topo_file = \"\""),
                },
            },
            map! { "name": "topology", "mountPath": folder, "readOnly": true },
        ));
    }
    volumes.push(files_volume(run));
    volumes
}

/// The volume of the run's files.
pub(super) fn files_volume(run: &Run) -> Volume {
    (
        map! { "name": "files", "configMap": map! { "name": &run.id } },
        map! { "name": "files", "mountPath": FILES, "readOnly": true },
    )
}

/// `kubectl` as it is typed for this run: with the context that the run is for, where it names one.
pub(super) fn kubectl(run: &Run) -> String {
    match &run.kubernetes.context {
        Some(context) => format!("kubectl --context {}", quoted(context)),
        None => "kubectl".to_owned(),
    }
}

/// The command that starts the run in one.
pub(super) fn launch_line(run: &Run) -> String {
    let context = run.kubernetes.context.as_deref().map_or_else(|| "CONTEXT".to_owned(), quoted);
    format!("expertrail launch DIRECTORY --context {context}")
}

/// The command that removes the run's objects of `kinds`, and nothing else.
pub(super) fn delete_line(run: &Run, kinds: &str) -> String {
    let kubectl = kubectl(run);
    format!("{kubectl} -n {} delete {kinds} -l expertrail.dev/run={}", run.kubernetes.namespace, run.id)
}

/// The same above a manifest, a line each: whoever reads only that must see them, too.
pub(super) fn head_notes(run: &Run) -> String {
    let line = |note: &String| format!("\nNote: {}", super::script::printable(note));
    run.notes.iter().map(line).collect()
}

/// What the run's resolution has to say, for a README.
pub(super) fn notes(run: &Run, text: &mut String) {
    for note in &run.notes {
        text.push_str("Note: ");
        text.push_str(note);
        text.push('\n');
    }
    if !run.notes.is_empty() {
        text.push('\n');
    }
}

/// Where a pod finds things.
pub(super) fn place(run: &Run, step: &Step, master: Word) -> Place {
    let binary = match run.kubernetes.binary {
        Binary::Image => "expertrail".to_owned(),
        Binary::Init | Binary::Copy => format!("{BINARY_FOLDER}/expertrail"),
    };
    // Steps must not overwrite each other's files.
    let out = if run.steps.len() > 1 { format!("{OUT}/{}", step.name) } else { OUT.to_owned() };
    Place { binary: binary.into(), files: FILES.to_owned(), out, master, frames: true }
}

/// The run's image.
pub(super) fn image(run: &Run) -> Result<&str, RenderError> {
    run.image.as_deref().ok_or_else(|| {
        RenderError::Unfit(format!("target {} needs an image: set image in run.toml", run.target.name()))
    })
}

/// Capabilities of a container, where it needs any.
pub(super) fn security(capabilities: &[String]) -> Option<Node> {
    let added: Vec<Node> = capabilities.iter().map(Node::from).collect();
    (!added.is_empty()).then(|| map! { "capabilities": map! { "add": Node::List(added) } })
}
