//! The script of an `MPIJob`'s launcher.

use std::fmt::Write;

use crate::engine::{Part, Word, argv, quote, shell, shell_long, worker};
use crate::platform::Fabric;
use crate::render::kube;
use crate::run::{Run, Step};
use crate::words::count;

use super::ours;

/// Waits until every node answers by ssh; the same for every run.
const WAIT: &str = include_str!("../../../assets/kubernetes/wait-for-nodes.sh");

/// How `mpirun` calls ssh, whatever the image's own configuration says. The operator's value of the same parameter, which this one
/// replaces, is `-o ConnectionAttempts=10`. Open MPI 5 has another name for it, and reads it from the variable.
const SSH: &str = "\n# mpirun's own ssh needs the same; the operator's ConnectionAttempts is kept. Open MPI 4 reads the argument, 5 the variable.\n\
    ssh_options=\"$ssh_options -o ConnectionAttempts=10\"\n\
    export PRTE_MCA_plm_ssh_args=\"$ssh_options\"\n";

/// Where the EFA installer puts Open MPI, which is not on the search path of every image.
const EFA_MPIRUN: &str = "/opt/amazon/openmpi/bin/mpirun";

/// The name of `step`'s script under [`kube::FILES`].
pub(super) fn name(step: &Step) -> String {
    format!("launcher-{}.sh", step.name)
}

/// The script.
pub(super) fn text(run: &Run, step: &Step) -> String {
    let id = &run.id;
    let mut text = format!(
        "#!/bin/sh\n\
         # What the launcher of step {step} of run {id} does. Its pod sees this file as {files}/{name}.\n\
         set -u\n\
         nodes={nodes}\n",
        step = step.name,
        files = kube::FILES,
        name = name(step),
        nodes = step.nodes,
    );
    // For its messages: the cluster that whoever reads them has to ask.
    let kubectl = format!("{} -n {}", kube::kubectl(run), run.kubernetes.namespace);
    let _ = writeln!(text, "kubectl={}", quote(&kubectl));
    text.push_str(WAIT);
    text.push('\n');
    text.push_str(&mpirun_path(run));
    text.push_str(&variables(run));
    text.push_str(SSH);
    let _ = write!(
        text,
        "\n# One process for each node, which starts its ranks. Each variable is named: what sshd starts on a node has none of the image's.\n\
         echo \"=== step {name}: {many}, rank 0 on $MASTER_ADDR ===\"\n\
         {remark}exec \"$mpirun\" --allow-run-as-root --tag-output -np {nodes} -N 1 --bind-to none \\\n\
         \x20   --mca plm_rsh_args \"$ssh_options\" \\\n",
        name = step.name,
        many = count(step.nodes, "node"),
        nodes = step.nodes,
        remark = if ours(run, step) {
            ""
        } else {
            "# shellcheck disable=SC2016 # Open MPI's variables are those of the started process\n"
        },
    );
    let mut passed = vec!["-x PATH".to_owned()];
    passed.extend(
        run.env.iter().map(|setting| format!("-x {}", quote(&format!("{}={}", setting.name, setting.value)))),
    );
    passed.push("-x MASTER_ADDR".to_owned());
    passed.push(format!("-x MASTER_PORT={}", run.port_of(step)));
    for words in passed {
        let _ = writeln!(text, "    {words} \\");
    }
    let _ = writeln!(text, "    \"$@\" \\");
    let _ = writeln!(text, "    {}", program(run, step));
    text
}

/// Which `mpirun`, with a message where there is none.
fn mpirun_path(run: &Run) -> String {
    let mut text = String::new();
    if run.fabric == Fabric::Efa {
        let _ = write!(
            text,
            "# The EFA installer's Open MPI, which may not be on the search path.\n\
             mpirun={EFA_MPIRUN}\n\
             [ -x \"$mpirun\" ] || mpirun=mpirun\n"
        );
    } else {
        text.push_str("mpirun=mpirun\n");
    }
    text.push_str(
        "if ! command -v \"$mpirun\" >/dev/null 2>&1; then\n\
         \x20   echo \"launcher: the image has no mpirun: an MPIJob needs Open MPI and sshd in its image; target k8s-job needs neither\" >&2\n\
         \x20   exit 3\n\
         fi\n\n",
    );
    text
}

/// Why each variable has its value, and those that only some images have.
fn variables(run: &Run) -> String {
    let mut text = String::new();
    for setting in &run.env {
        let _ = writeln!(text, "# {}: {}", setting.name, setting.why.replace(['\n', '\r'], " "));
    }
    text.push_str("# These are the image's own, where it has them; mpirun would complain about one that is not set.\nset --\n");
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD"] {
        if run.variable(name).is_none() {
            let _ = writeln!(text, "[ -z \"${{{name}:-}}\" ] || set -- \"$@\" -x {name}");
        }
    }
    text
}

/// What `mpirun` starts on each node.
fn program(run: &Run, step: &Step) -> String {
    let place = kube::place(run, step, Word::Shell("\"$MASTER_ADDR\"".to_owned()));
    if ours(run, step) {
        return shell_long(&worker(run, step, Part::Node, &place), "    ");
    }
    // DeepEP's own tests count nodes: RANK is the node's index and WORLD_SIZE the number of nodes. Open MPI's names for both are known
    // in the started process alone.
    let line =
        format!("RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE {}", shell(&argv(step, &place)));
    format!("sh -c {}", quote(&line))
}
