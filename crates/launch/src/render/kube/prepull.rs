//! Images on all nodes before a run.

use super::{Part, image, metadata, node_affinity, pod, pod_labels, pull_policy, small_resources};
use crate::render::RenderError;
use crate::run::Run;
use crate::spec::Binary;
use crate::{list, map};

/// The `DaemonSet` that pulls the images on all nodes that the run may use, where the description asks for it.
pub(in crate::render) fn prepull(run: &Run) -> Result<Option<String>, RenderError> {
    if !run.kubernetes.prepull {
        return Ok(None);
    }
    let image = image(run)?;
    let mut spec = pod(run);
    spec.set("terminationGracePeriodSeconds", 5u32);
    if let Some(affinity) = node_affinity(run) {
        spec.set("affinity", map! { "nodeAffinity": affinity });
    }
    if let (Binary::Init, Some(ours)) = (run.kubernetes.binary, &run.kubernetes.expertrail_image) {
        spec.set(
            "initContainers",
            list![map! {
                "name": "pull-expertrail",
                "image": ours,
                "imagePullPolicy": pull_policy(ours),
                "command": list!["/usr/local/bin/expertrail", "--version"],
                "resources": small_resources(),
            }],
        );
    }
    spec.set(
        "containers",
        list![map! {
            "name": "pulled",
            "image": image,
            "imagePullPolicy": pull_policy(image),
            // PID 1 of a container ignores SIGTERM unless it has a handler.
            "command": list!["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"],
            "resources": small_resources(),
        }],
    );
    let name = format!("{}-prepull", run.id);
    let document = map! {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(run, &name),
        "spec": map! {
            "selector": map! { "matchLabels": map! { "app": &name } },
            "template": map! {
                "metadata": map! { "labels": pod_labels(run, Part::Prepull) },
                "spec": spec,
            },
        },
    };
    let (namespace, kubectl) = (&run.kubernetes.namespace, super::kubectl(run));
    let head = format!(
        "Pulls the image of run {id} on every node that the run may use, before it starts: pulls that end minutes apart can use up the\n\
         {window} s in which all nodes must meet. It asks for no GPU. Apply, wait, delete, then start the run:\n\
         \n\
         \x20 {kubectl} apply -f prepull.yaml\n\
         \x20 {kubectl} -n {namespace} rollout status daemonset/{name} --timeout=30m\n\
         \x20 {kubectl} -n {namespace} delete daemonset {name}",
        id = run.id,
        window = crate::run::RENDEZVOUS_S,
    );
    document.yaml(&head).map(Some).map_err(RenderError::Yaml)
}
