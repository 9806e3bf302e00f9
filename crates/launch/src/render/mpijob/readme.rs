//! How to start, watch and remove the run by hand.

use std::fmt::Write;

use super::{file, ours};
use crate::render::kube;
use crate::render::script::each;
use crate::run::{RENDEZVOUS_S, Run, Step};
use crate::words::count;

/// The lines above what all steps share.
pub(super) fn head(run: &Run) -> String {
    format!(
        "Run {id}: {nodes} x {gpus}, engine {engine}, profile {profile}. Rendered by `expertrail render mpijob`.\n\
         What all steps share; README.txt beside this file has the commands.",
        id = run.id,
        nodes = count(run.nodes, "node"),
        gpus = count(run.gpus_per_node, "GPU"),
        engine = run.engine.name(),
        profile = run.profile.id,
    )
}

/// The lines above a step's `MPIJob`.
pub(super) fn step_head(run: &Run, step: &Step) -> String {
    let kubectl = kube::kubectl(run);
    let namespace = &run.kubernetes.namespace;
    let name = format!("{}-{}", run.id, step.name);
    format!(
        "Step {step} of run {id}: one process on {nodes}. After namespace.yaml and manifest.yaml:\n\
         \n\
         \x20 apply    {kubectl} apply -f {file}\n\
         \x20 logs     {kubectl} -n {namespace} logs -f job/{name}-launcher\n\
         \x20 delete   {kubectl} -n {namespace} delete mpijob {name}{notes}",
        notes = kube::head_notes(run),
        step = step.name,
        id = run.id,
        nodes = each(step.nodes, "node"),
        file = file(step),
    )
}

/// `README.txt`.
pub(super) fn text(run: &Run) -> String {
    let kubectl = kube::kubectl(run);
    let (id, namespace) = (&run.id, &run.kubernetes.namespace);
    let mut text = match run.steps.len() {
        1 => format!("Run {id}: 1 MPIJob.\n\n"),
        many => format!("Run {id}: {many} MPIJobs, one for each step.\n\n"),
    };
    kube::notes(run, &mut text);
    let mut add = |line: &str| {
        let _ = writeln!(text, "{line}");
    };
    add(&format!(
        "Needs the MPI operator ({kubectl} get crd mpijobs.kubeflow.org), and Open MPI and sshd in the image."
    ));
    add("");
    add("Start, watch, collect, judge and remove it in one:");
    add("");
    add(&format!("  {}", kube::launch_line(run)));
    add("");
    add("By hand, in this directory, one step after the other, since each takes whole nodes:");
    add("");
    add("  kubectl config current-context");
    if let Some(instance) = run.kubernetes.node_selector.get("node.kubernetes.io/instance-type") {
        add(&format!("  {kubectl} get nodes -l node.kubernetes.io/instance-type={instance}"));
    }
    add(&format!("  {kubectl} get namespace {namespace} || {kubectl} create -f namespace.yaml"));
    if run.kubernetes.prepull {
        add(&format!("  {kubectl} apply -f prepull.yaml"));
        add(&format!("  {kubectl} -n {namespace} rollout status daemonset/{id}-prepull --timeout=30m"));
        add(&format!("  {kubectl} -n {namespace} delete daemonset {id}-prepull"));
    }
    add(&format!("  {kubectl} apply -f manifest.yaml"));
    for step in &run.steps {
        let name = format!("{id}-{}", step.name);
        add("");
        add(&format!("  {kubectl} apply -f {}", file(step)));
        add(&format!(
            "  {kubectl} -n {namespace} get pods -l app={id},expertrail.dev/step={} -o wide -w",
            step.name
        ));
        if ours(run, step) {
            for line in kube::copy_lines(run) {
                add(&format!("  {line}"));
            }
        }
        add(&format!("  {kubectl} -n {namespace} logs -f job/{name}-launcher | tee {name}.log"));
        add(&format!("  {kubectl} -n {namespace} delete mpijob {name}"));
    }
    add("");
    add(&format!("  {}", kube::delete_line(run, "mpijob,configmap")));
    add("");
    add("What to know:");
    add(
        "- The log of the launcher has the output of all ranks; pods with GPUs only run sshd, and are removed at the end.",
    );
    add(&format!(
        "- {} s after its end the cluster deletes an MPIJob with its logs. Collect them before.",
        run.kubernetes.ttl_seconds
    ));
    add(&format!("- The launcher waits {RENDEZVOUS_S} s for sshd on all nodes, then ends with exit code 3."));
    add(
        "- The launcher stands on a node with GPUs too: the image is too large for the disks of small nodes.",
    );
    add("- An MPIJob is tried once. To run again, delete it and apply it.");
    if run.steps.iter().any(|step| !ours(run, step)) {
        add(
            "- Steps that run DeepEP's own tests start without this project's binary: no check of the nodes, and no exit code for each rank.",
        );
        add(
            "  kubernetes.expertrail_image in run.toml brings the binary by an init container, and both with it.",
        );
    }
    add(&format!(
        "- A namespace that enforces the Pod Security level baseline or restricted refuses these pods, for their capabilities and volumes:\n  \
         {kubectl} label namespace {namespace} pod-security.kubernetes.io/enforce=privileged"
    ));
    text
}
