//! How to start, watch and remove the run by hand.

use std::fmt::Write;

use crate::render::kube;
use crate::run::{RENDEZVOUS_S, Run};
use crate::words::count;

/// The lines above the manifest.
pub(super) fn head(run: &Run) -> String {
    let kubectl = kube::kubectl(run);
    let (id, namespace) = (&run.id, &run.kubernetes.namespace);
    format!(
        "Run {id}: {nodes} x {gpus}, engine {engine}, profile {profile}. Rendered by `expertrail render k8s-job`.\n\
         `expertrail launch DIRECTORY` starts, watches, collects and removes it. By hand:\n\
         \n\
         \x20 apply    {kubectl} get namespace {namespace} || {kubectl} create -f namespace.yaml; {kubectl} apply -f manifest.yaml\n\
         \x20 watch    {kubectl} -n {namespace} get pods -l app={id} -o wide -w\n\
         \x20 logs     {rank0}\n\
         \x20 delete   {delete}\n\
         \n\
         README.txt beside this file says more.{notes}",
        notes = kube::head_notes(run),
        nodes = count(run.nodes, "node"),
        gpus = count(run.gpus_per_node, "rank"),
        engine = run.engine.name(),
        profile = run.profile.id,
        rank0 = rank0(run),
        delete = kube::delete_line(run, "job,service,configmap"),
    )
}

/// By the pod's name, ID-INDEX-xxxxx: the label with the index is there since Kubernetes 1.28 only.
fn rank0(run: &Run) -> String {
    let kubectl = kube::kubectl(run);
    let (id, namespace) = (&run.id, &run.kubernetes.namespace);
    format!(
        "{kubectl} -n {namespace} logs -f \"$({kubectl} -n {namespace} get pods -l app={id} -o name | grep '^pod/{id}-0-')\" -c ranks"
    )
}

/// `README.txt`.
pub(super) fn text(run: &Run) -> String {
    let kubectl = kube::kubectl(run);
    let (id, namespace) = (&run.id, &run.kubernetes.namespace);
    let mut text = format!(
        "Run {id}: an indexed Job of {pods}, one for each node, {gpus} in each.\n\n",
        pods = count(run.nodes, "pod"),
        gpus = count(run.gpus_per_node, "rank"),
    );
    kube::notes(run, &mut text);
    let mut add = |line: &str| {
        let _ = writeln!(text, "{line}");
    };
    add("Start, watch, collect, judge and remove it in one:");
    add("");
    add(&format!("  {}", kube::launch_line(run)));
    add("");
    add("By hand, in this directory:");
    add("");
    add(&format!("  {kubectl} get namespace {namespace} || {kubectl} create -f namespace.yaml"));
    if run.kubernetes.prepull {
        add(&format!("  {kubectl} apply -f prepull.yaml"));
        add(&format!("  {kubectl} -n {namespace} rollout status daemonset/{id}-prepull --timeout=30m"));
        add(&format!("  {kubectl} -n {namespace} delete daemonset {id}-prepull"));
    }
    add(&format!("  {kubectl} apply --dry-run=server -f manifest.yaml"));
    add(&format!("  {kubectl} apply -f manifest.yaml"));
    add(&format!("  {kubectl} -n {namespace} get pods -l app={id} -o wide -w"));
    for line in kube::copy_lines(run) {
        add(&format!("  {line}"));
    }
    add(&format!("  {}", rank0(run)));
    add(&format!(
        "  for pod in $({kubectl} -n {namespace} get pods -l app={id} -o name); do {kubectl} -n {namespace} logs \"$pod\" --all-containers \
         >\"${{pod#pod/}}.log\"; done"
    ));
    add(&format!("  {}", kube::delete_line(run, "job,service,configmap")));
    add("");
    add("What to know:");
    add("- The specification of a Job cannot be changed. To run again, delete it first and then apply.");
    add(&format!(
        "- {} s after its end the cluster deletes the Job with its pods and their logs. Collect the logs before.",
        run.kubernetes.ttl_seconds
    ));
    add(&format!(
        "- Ranks wait {RENDEZVOUS_S} s for each other. A node whose first pull takes longer than that makes the others fail; a second\n  \
         start finds the image on the node. kubernetes.prepull = true pulls it everywhere first."
    ));
    add(
        "- The first start spends minutes in ContainerCreating while the image is pulled; later ones start at once.",
    );
    add(
        "- A pod that failed stays for 30 s, because the Job controller then deletes the other pods with their logs.",
    );
    add(
        "- Pending pods: fewer free nodes than the run has, a label of nodeSelector that no node has at the moment (GPU feature",
    );
    add(
        "  discovery sets some of them, and they are absent while a driver restarts), or requests above what a node has to give.",
    );
    if run.steps.len() > 1 {
        let ports: Vec<String> =
            run.steps.iter().map(|step| format!("{} {}", step.name, run.port_of(step))).collect();
        add(&format!(
            "- Each step has a port of its own ({}): a node that a step leaves out begins the next one and waits there.",
            ports.join(", ")
        ));
    }
    add("- The exit code of a pod is that of its first failed step. 3 means that it was not run.");
    if let Some(folder) = &run.topo_mount {
        add(&format!(
            "- {folder} must be on every node: it holds the file of NCCL_TOPO_FILE. Where it is not, set network.nccl_topo_file = \"\"."
        ));
    }
    add(&format!(
        "- A namespace that enforces the Pod Security level baseline or restricted refuses these pods, for their capabilities and volumes:\n  \
         {kubectl} label namespace {namespace} pod-security.kubernetes.io/enforce=privileged"
    ));
    text
}
