//! An indexed Job with its headless Service, as in the Kubernetes guide's step 7.

mod readme;
mod script;

use super::{RenderError, kube};
use crate::doc::{self, Node};
use crate::files::FileSet;
use crate::run::Run;
use crate::spec::Contract;
use crate::{list, map};

/// Files for an indexed Job: `namespace.yaml`, `manifest.yaml`, `prepull.yaml` where it is asked for, and `README.txt`.
///
/// # Errors
/// When the run has no image, a variable that cannot be given to a pod, or files that are too large for a `ConfigMap`.
pub fn render(run: &Run) -> Result<FileSet, RenderError> {
    let mut files = kube::namespace(run)?;
    if let Some(text) = kube::prepull(run)? {
        files.text("prepull.yaml", text);
    }
    let scripts = vec![(script::NAME.to_owned(), script::text(run))];
    let documents = [kube::config_map(run, scripts)?, service(run), job(run)?];
    let text = doc::stream(&readme::head(run), &documents).map_err(RenderError::Yaml)?;
    files.text("manifest.yaml", text);
    files.text("README.txt", readme::text(run));
    Ok(files)
}

/// Gives each pod its name; by it the others find rank 0.
fn service(run: &Run) -> Node {
    map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": kube::metadata(run, &run.id),
        "spec": map! {
            "clusterIP": Node::from("None").note("headless: a DNS name for each pod, no balancing"),
            "selector": map! { "app": &run.id },
            "publishNotReadyAddresses": Node::from(true).note("nodes must find rank 0 before its pod is ready"),
            "ports": list![map! {
                "name": "rendezvous",
                "port": u32::from(run.port),
                "targetPort": u32::from(run.port),
                "protocol": "TCP",
            }],
        },
    }
}

fn job(run: &Run) -> Result<Node, RenderError> {
    let kubernetes = &run.kubernetes;
    Ok(map! {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": kube::metadata(run, &run.id),
        "spec": map! {
            "completionMode": Node::from("Indexed").note("gives each pod its node rank"),
            "completions": Node::from(run.nodes).note("nodes; moves together with parallelism, --nodes, NUM_NODES and WORLD_SIZE"),
            "parallelism": Node::from(run.nodes).note("all at once: they wait for each other"),
            "backoffLimit": Node::from(0u32).note("a second try would hide the first failure"),
            "ttlSecondsAfterFinished": Node::from(kubernetes.ttl_seconds).note("then the cluster deletes the Job with its logs"),
            "activeDeadlineSeconds": Node::Number((run.timeout_s + kube::MARGIN_S) as i64).note(
                format!("the run's {} s and {} s for pulls and waiting for nodes", run.timeout_s, kube::MARGIN_S)
            ),
            "template": map! {
                "metadata": map! { "labels": kube::pod_labels(run, kube::Part::Ranks) },
                "spec": pod(run)?,
            },
        },
    })
}

fn pod(run: &Run) -> Result<Node, RenderError> {
    let image = kube::image(run)?;
    let mut spec = kube::pod(run);
    spec.set("subdomain", Node::from(&run.id).note("the Service above"));
    spec.set("restartPolicy", "Never");
    let mut affinity = map! {};
    if let Some(nodes) = kube::node_affinity(run) {
        affinity.set("nodeAffinity", nodes);
    }
    affinity.set("podAntiAffinity", kube::apart(map! { "app": &run.id }));
    spec.set("affinity", affinity);
    let mut volumes = kube::volumes(run);
    if let Some(binary) = kube::binary(run, image) {
        volumes.push(binary.volume);
        spec.set("initContainers", list![binary.container]);
    }
    let (volumes, mounts): (Vec<Node>, Vec<Node>) = volumes.into_iter().unzip();
    let mut container = map! {
        "name": "ranks",
        "image": image,
        "imagePullPolicy": kube::pull_policy(image),
        "command": list!["sh", format!("{}/{}", kube::FILES, script::NAME)],
        "env": Node::List(variables(run)?),
        "resources": kube::resources(run)?,
    };
    if let Some(security) = kube::security(&run.kubernetes.capabilities) {
        container.set("securityContext", security);
    }
    container.set("volumeMounts", Node::List(mounts));
    spec.set("containers", list![container]);
    spec.set("volumes", Node::List(volumes));
    Ok(spec)
}

/// The run's variables, and those that say how large it is.
fn variables(run: &Run) -> Result<Vec<Node>, RenderError> {
    let mut variables = kube::variables(run)?;
    variables.push(kube::variable("NUM_NODES", run.nodes.to_string(), "moves together with completions"));
    variables.push(kube::variable("NUM_GPUS_PER_NODE", run.gpus_per_node.to_string(), "ranks of each node"));
    // For programs that count nodes by WORLD_SIZE, a pod-wide count of ranks would be wrong; the worker gives each its own.
    if run.steps.iter().all(|step| step.contract == Contract::Ranks) {
        variables.push(kube::variable(
            "WORLD_SIZE",
            run.ranks().to_string(),
            "ranks: NUM_NODES x NUM_GPUS_PER_NODE",
        ));
    }
    variables.push(map! {
        "name": "EXPERTRAIL_HOST",
        "valueFrom": map! { "fieldRef": map! { "fieldPath": Node::from("spec.nodeName").note("for the log's first line") } },
    });
    Ok(variables)
}
