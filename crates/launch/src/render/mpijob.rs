//! Kubeflow's `MPIJob` (`kubeflow.org/v2beta1`), one for each step, as AWS runs `DeepEP`'s tests on EFA.

mod readme;
mod script;

use super::{RenderError, kube};
use crate::doc::Node;
use crate::files::FileSet;
use crate::run::{Run, Step};
use crate::spec::{Benchmark, Binary, Contract};
use crate::{list, map};

/// Characters of a host name, which is the name of a pod.
const LONGEST_HOST: usize = 63;

/// Files for `MPIJob`s: `namespace.yaml`, `manifest.yaml` (what all steps share), `mpijob-STEP.yaml` for each step, to be applied one after
/// the other, `prepull.yaml` where it is asked for, and `README.txt`.
///
/// # Errors
/// When the run has no image, a variable that cannot be given, a name too long for the operator's pods, or files that are too large for
/// a `ConfigMap`.
pub fn render(run: &Run) -> Result<FileSet, RenderError> {
    kube::check_variables(run)?;
    let mut files = kube::namespace(run)?;
    if let Some(text) = kube::prepull(run)? {
        files.text("prepull.yaml", text);
    }
    let scripts = run.steps.iter().map(|step| (script::name(step), script::text(run, step))).collect();
    let shared = kube::config_map(run, scripts)?;
    files.text("manifest.yaml", shared.yaml(&readme::head(run)).map_err(RenderError::Yaml)?);
    for step in &run.steps {
        let text = mpijob(run, step)?.yaml(&readme::step_head(run, step)).map_err(RenderError::Yaml)?;
        files.text(file(step), text);
    }
    files.text("README.txt", readme::text(run));
    Ok(files)
}

/// The file of a step.
fn file(step: &Step) -> String {
    format!("mpijob-{}.yaml", step.name)
}

/// Whether this project's binary starts the ranks of `step`. `DeepEP`'s own tests start theirs themselves, so an image without our binary
/// can run them as it is; everything else needs somebody who gives each rank its number and its NIC.
fn ours(run: &Run, step: &Step) -> bool {
    run.kubernetes.binary != Binary::Copy || step.contract == Contract::Ranks
}

/// The name of a step's object, refused where the operator could not name its pods.
fn name(run: &Run, step: &Step) -> Result<String, RenderError> {
    let name = format!("{}-{}", run.id, step.name);
    let longest =
        format!("{name}-worker-{}", step.nodes.saturating_sub(1)).len().max(format!("{name}-launcher").len());
    if longest > LONGEST_HOST {
        return Err(RenderError::Unfit(format!(
            "the pods of MPIJob {name} would have names of {longest} characters and hosts have at most {LONGEST_HOST}: shorten name (or \
             --run-id) by {} characters",
            longest - LONGEST_HOST
        )));
    }
    Ok(name)
}

/// The labels that tell this step's pods from those of others.
fn step_labels(run: &Run, step: &Step, part: kube::Part) -> Node {
    let mut labels = kube::pod_labels(run, part);
    labels.set("expertrail.dev/step", &step.name);
    labels
}

fn mpijob(run: &Run, step: &Step) -> Result<Node, RenderError> {
    let mut metadata = kube::metadata(run, &name(run, step)?);
    if let Node::Map(entries) = &mut metadata
        && let Some((_, labels)) = entries.iter_mut().find(|(key, _)| key == "labels")
    {
        labels.set("expertrail.dev/step", &step.name);
    }
    Ok(map! {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": map! {
            "slotsPerWorker": Node::from(1u32).note("one process for each node; it starts the ranks"),
            "runPolicy": map! {
                "cleanPodPolicy": Node::from("Running").note("sshd ends with the run; the launcher stays, its log has all ranks"),
                "backoffLimit": Node::from(0u32).note("a second try would hide the first failure; the launcher waits for sshd itself"),
                "ttlSecondsAfterFinished": Node::from(run.kubernetes.ttl_seconds).note("then the cluster deletes it with its logs"),
                "activeDeadlineSeconds": Node::Number((run.timeout_s + kube::MARGIN_S) as i64).note(
                    format!("the run's {} s and {} s for pulls and waiting for nodes", run.timeout_s, kube::MARGIN_S)
                ),
            },
            "mpiReplicaSpecs": map! {
                "Launcher": launcher(run, step)?,
                "Worker": worker(run, step)?,
            },
        },
    })
}

/// The pod of `mpirun`. It has no GPU, but stands with them: the image would fill the disk of a small node.
fn launcher(run: &Run, step: &Step) -> Result<Node, RenderError> {
    let image = kube::image(run)?;
    let (volume, mount) = kube::files_volume(run);
    let mut spec = kube::pod(run);
    // It starts ranks over the workers' network, and a zone of its own would also be one where nobody may have reserved such a node.
    if let Some(zone) = zone(run, step) {
        spec.set("affinity", map! { "podAffinity": zone });
    }
    spec.set(
        "containers",
        list![map! {
            "name": "launcher",
            "image": image,
            "imagePullPolicy": kube::pull_policy(image),
            "command": list!["sh", format!("{}/{}", kube::FILES, script::name(step))],
            "resources": map! { "requests": map! { "cpu": "1", "memory": "2Gi" } },
            "volumeMounts": list![mount],
        }],
    );
    spec.set("volumes", list![volume]);
    Ok(map! {
        "replicas": 1u32,
        "restartPolicy": "Never",
        "template": map! {
            "metadata": map! { "labels": step_labels(run, step, kube::Part::Launcher) },
            "spec": spec,
        },
    })
}

/// The pods with GPUs. The operator starts sshd in them.
fn worker(run: &Run, step: &Step) -> Result<Node, RenderError> {
    let image = kube::image(run)?;
    let mut spec = kube::pod(run);
    if let Some(affinity) = affinity(run, step) {
        spec.set("affinity", affinity);
    }
    let mut volumes = kube::volumes(run);
    if ours(run, step)
        && let Some(brought) = kube::binary(run, image)
    {
        volumes.push(brought.volume);
        spec.set("initContainers", list![brought.container]);
    }
    let (volumes, mounts): (Vec<Node>, Vec<Node>) = volumes.into_iter().unzip();
    let mut container = map! {
        "name": "ranks",
        "image": image,
        "imagePullPolicy": kube::pull_policy(image),
    };
    let runtime = runtime_variables(run);
    if !runtime.is_empty() {
        container.set("env", Node::List(runtime));
    }
    container.set("resources", kube::resources(run)?);
    // Within one node nothing is registered with a NIC, and the test of throughput takes its times without a profiler.
    if (step.nodes > 1 || step.name == Benchmark::LowLatency.name())
        && let Some(security) = kube::security(&run.kubernetes.capabilities)
    {
        container.set("securityContext", security);
    }
    container.set("volumeMounts", Node::List(mounts));
    spec.set("containers", list![container]);
    spec.set("volumes", Node::List(volumes));
    Ok(map! {
        "replicas": Node::from(step.nodes).note("nodes; moves together with -np"),
        "restartPolicy": "Never",
        "template": map! {
            "metadata": map! { "labels": step_labels(run, step, kube::Part::Ranks) },
            "spec": spec,
        },
    })
}

/// What the container runtime reads when it makes the container; what ranks read goes through `mpirun`, since sshd hands on nothing.
fn runtime_variables(run: &Run) -> Vec<Node> {
    let read = run.env.iter().filter(|setting| setting.name.starts_with("NVIDIA_"));
    read.map(|setting| kube::variable(&setting.name, setting.value.replace('$', "$$"), &setting.why))
        .collect()
}

/// GPUs, one pod for each node, one zone.
fn affinity(run: &Run, step: &Step) -> Option<Node> {
    let mut affinity = map! {};
    if let Some(nodes) = kube::node_affinity(run) {
        affinity.set("nodeAffinity", nodes);
    }
    if let Some(zone) = zone(run, step) {
        affinity.set("podAffinity", zone);
    }
    if step.nodes > 1 {
        let mut peers = step_peers(run, step);
        peers.set("app.kubernetes.io/component", kube::Part::Ranks.name());
        affinity.set("podAntiAffinity", kube::apart(peers));
    }
    (affinity != map! {}).then_some(affinity)
}

/// Labels of all pods of a step, the launcher's too.
fn step_peers(run: &Run, step: &Step) -> Node {
    map! { "app": &run.id, "expertrail.dev/step": &step.name }
}

/// One zone for a step between nodes, where the description or the fabric wants it.
fn zone(run: &Run, step: &Step) -> Option<Node> {
    (step.nodes > 1 && run.kubernetes.same_zone).then(|| {
        map! {
            "requiredDuringSchedulingIgnoredDuringExecution": list![map! {
                "labelSelector": map! { "matchLabels": step_peers(run, step) },
                "topologyKey": Node::from("topology.kubernetes.io/zone").note("RDMA ends at the border of a zone"),
            }],
        }
    })
}
