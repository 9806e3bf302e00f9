//! The script that each pod of an indexed Job runs.

use std::fmt::Write;

use crate::engine::{Part, Word, shell_long, worker};
use crate::render::kube;
use crate::run::{Run, Step};
use crate::spec::{Binary, Preflight};

/// Its name under [`kube::FILES`].
pub(super) const NAME: &str = "run.sh";

/// What starts a step and ends the script; the same for every run.
const STEPS: &str = include_str!("../../../assets/kubernetes/steps.sh");

/// Name of rank 0's pod. Without the cluster's domain, which is not `cluster.local` everywhere: the resolver of a pod completes
/// `NAME.SERVICE.NAMESPACE.svc` from its search list.
pub(super) fn master(run: &Run) -> String {
    format!("{id}-0.{id}.{}.svc", run.kubernetes.namespace, id = run.id)
}

/// The script.
pub(super) fn text(run: &Run) -> String {
    let nodes = run.nodes;
    let id = &run.id;
    let mut text = format!(
        "#!/bin/sh\n\
         # What every pod of run {id} does: this node's part of each step, in turn. Pods see this file as {files}/{NAME}.\n\
         set -u\n\
         \n\
         # The Job controller gives JOB_COMPLETION_INDEX to every container of an indexed Job. It adds it behind the manifest's own\n\
         # variables, so that a value `$(JOB_COMPLETION_INDEX)` there would stay these letters; and the label with the index, which\n\
         # the manifest could name, is there since Kubernetes 1.28 only. So the node's rank is taken from it here.\n\
         if [ -z \"${{JOB_COMPLETION_INDEX:-}}\" ]; then\n\
         \x20   echo \"{NAME}: JOB_COMPLETION_INDEX is not set, so this is no pod of an indexed Job: start the run by manifest.yaml\" >&2\n\
         \x20   exit 2\n\
         fi\n\
         NODE_RANK=$JOB_COMPLETION_INDEX\n\
         NCCL_DEBUG=${{NCCL_DEBUG:-WARN}} # failures only; INFO in [env] of run.toml shows transports\n\
         export NODE_RANK NCCL_DEBUG\n",
        files = kube::FILES,
    );
    if run.needs_deepep_file {
        let _ = write!(
            text,
            "PYTHONPATH={}${{PYTHONPATH:+:$PYTHONPATH}} # processes that Python starts find the benchmark's file as well\n\
             export PYTHONPATH\n",
            kube::FILES
        );
    }
    let _ = write!(
        text,
        "nodes={nodes}\n\
         echo \"=== node $NODE_RANK of $nodes: run {id} on ${{EXPERTRAIL_HOST:-this host}} ===\"\n\n"
    );
    if run.kubernetes.binary == Binary::Image {
        let _ = write!(
            text,
            "if ! command -v expertrail >/dev/null 2>&1; then\n\
             \x20   echo \"{NAME}: the image has no program expertrail on its search path: kubernetes.binary = \\\"copy\\\" in run.toml brings it\" >&2\n\
             \x20   exit 3\n\
             fi\n\n"
        );
    }
    text.push_str(STEPS);
    text.push('\n');
    text.push_str(&steps(run));
    text.push_str("finish\n");
    text
}

fn steps(run: &Run) -> String {
    let mut text = String::new();
    let master = Word::from(master(run));
    let mut run = run.clone();
    // With several steps a node is checked once, before the first, whether it takes part in that or not.
    if let (true, Some(first)) =
        (run.steps.len() > 1 && run.preflight != Preflight::Off, run.steps.first().cloned())
    {
        let place = kube::Place { out: kube::OUT.to_owned(), ..kube::place(&run, &first, master.clone()) };
        let all = Step { nodes: run.nodes, ..first };
        let words = worker(&run, &all, Part::Preflight, &place);
        let _ = write!(
            text,
            "step preflight \\\n    {}\n[ \"$first\" -eq 0 ] || finish\n\n",
            shell_long(&words, "    ")
        );
        run.preflight = Preflight::Off;
    }
    for step in &run.steps {
        let words = worker(&run, step, Part::Node, &kube::place(&run, step, master.clone()));
        let line = shell_long(&words, "        ");
        if step.nodes < run.nodes {
            let who =
                if step.nodes == 1 { "node 0".to_owned() } else { format!("nodes 0 to {}", step.nodes - 1) };
            let _ = write!(
                text,
                "if [ \"$NODE_RANK\" -lt {} ]; then\n    step {name} \\\n        {line}\nelse\n    echo \"=== step {name} is for {who}: \
                 node $NODE_RANK begins the next and waits there, at a port of its own ===\"\nfi\n\n",
                step.nodes,
                name = step.name,
            );
        } else {
            let line = shell_long(&words, "    ");
            let _ = write!(text, "step {} \\\n    {line}\n\n", step.name);
        }
    }
    text
}
