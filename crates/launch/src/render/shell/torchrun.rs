//! `torchrun`, once on each node.

use std::fmt::Write;

use super::hosts;
use crate::engine::{self, Part, quote, worker};
use crate::files::FileSet;
use crate::render::RenderError;
use crate::render::script::{self, contract, exports, lines, live, place, supervision};
use crate::run::{RENDEZVOUS_S, Run, Step};
use crate::spec::Contract;
use crate::words::count;

pub(super) fn render(run: &Run) -> Result<FileSet, RenderError> {
    if let Some(step) = run.steps.iter().find(|step| step.contract == Contract::Nodes) {
        return Err(RenderError::Unfit(format!(
            "step `{}` counts nodes in RANK and WORLD_SIZE and starts its {} on each node itself, and torchrun sets both to count ranks: the \
             program would start ranks of ranks. Render mpirun, slurm or ssh, or set deepep.driver = \"own\" (contract = \"ranks\" for a \
             command)",
            step.name,
            count(run.gpus_per_node, "rank")
        )));
    }
    let mut files = FileSet::default();
    files.program(super::TORCHRUN, script(run));
    files.text("README.txt", hosts::page(run, &readme(run)));
    Ok(files)
}

fn readme(run: &Run) -> String {
    let start = if run.hosts.placeholders && run.nodes > 1 {
        format!(
            "NODE_RANK=0 MASTER_ADDR=FIRST-HOST ./{}     with NODE_RANK 0 to {}",
            super::TORCHRUN,
            run.nodes - 1
        )
    } else if run.nodes > 1 {
        format!(
            "./{}     (NODE_RANK is told by the host's name; set it where that is another)",
            super::TORCHRUN
        )
    } else {
        format!("./{}", super::TORCHRUN)
    };
    format!(
        "1. Put this directory on all nodes, with `{}` (hosts.binary) and torchrun on the search path.\n2. Start on each node, all within {}:\n\n    \
         {start}\n\nStop       Ctrl-C on each node\nOutputs    out/ beside the script, or $EXPERTRAIL_OUT: logs, exit codes, facts, findings of that \
         node\nAfterwards expertrail diagnose out/logs     with the logs of all nodes\n",
        run.hosts.binary,
        count(u32::try_from(RENDEZVOUS_S / 60).unwrap_or(15), "minute"),
    )
}

fn script(run: &Run) -> String {
    let mut text = script::head(
        run,
        "/usr/bin/env bash",
        &["Start it once on each node. Outputs go to $EXPERTRAIL_OUT, else to out/ beside this file."],
    );
    let _ = writeln!(text, "set -uo pipefail\n\nrun_id={}", run.id);
    text.push_str(&supervision(run));
    text.push('\n');
    text.push_str(&hosts::directory(run));
    let _ = writeln!(text, "files=$dir binary={}", quote(&run.hosts.binary));
    text.push_str(&identity(run));
    text.push_str(&outputs());
    text.push_str(&exports(run));
    text.push_str(
        "command -v torchrun >/dev/null || fail 4 \"no torchrun on this node: activate the environment that has PyTorch\"\n\
         command -v \"$binary\" >/dev/null || fail 4 \"no $binary on this node: install expertrail here, or set hosts.binary to its path\"\n\n",
    );
    text.push_str(&script::kept(run, "-node$NODE_RANK"));
    if engine::checks(run) {
        text.push_str(&preflight(run));
    }
    for step in &run.steps {
        text.push_str(&ranks(run, step));
    }
    text.push_str("finish\n");
    text
}

/// `NODE_RANK` and `MASTER_ADDR`.
fn identity(run: &Run) -> String {
    let last = run.nodes - 1;
    if run.nodes == 1 {
        return "NODE_RANK=0 MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}\n".to_owned();
    }
    let mut text = String::new();
    if run.hosts.placeholders {
        let _ = writeln!(
            text,
            "[ -n \"${{MASTER_ADDR:-}}\" ] || fail 2 \"set MASTER_ADDR to an address of the first node that all nodes reach (or hosts.names in \
             run.toml)\""
        );
    } else {
        let names: Vec<String> = run.hosts.names.iter().map(|name| quote(name)).collect();
        let _ = writeln!(
            text,
            "# hosts.names, the first has rank 0.\nhosts=({})\nMASTER_ADDR=${{MASTER_ADDR:-${{hosts[0]}}}}\n\
             if [ -z \"${{NODE_RANK:-}}\" ]; then\n    own=\" $(hostname) $(hostname -s) $(hostname -I 2>/dev/null) \"\n    \
             for index in \"${{!hosts[@]}}\"; do\n        case $own in *\" ${{hosts[index]}} \"*) NODE_RANK=$index ;; esac\n    done\nfi",
            names.join(" ")
        );
    }
    let _ = writeln!(
        text,
        "case ${{NODE_RANK:-}} in\n    '' | *[!0-9]*) fail 2 \"nothing tells which node this is: set NODE_RANK, 0 to {last}, another on each node\" ;;\n\
         esac\n[ \"$NODE_RANK\" -le {last} ] || fail 2 \"NODE_RANK=$NODE_RANK: the run has {} nodes, numbered from 0\"",
        run.nodes
    );
    text
}

/// The directory for outputs. Nodes may share it, so only the own marker tells an earlier start.
fn outputs() -> String {
    "out=${EXPERTRAIL_OUT:-$dir/out}\n\
     mkdir -p \"$out/logs\" && out=$(cd -- \"$out\" && pwd) || fail 4 \"cannot write $out\"\n\
     host_out=$out\n\
     # Exit codes of an earlier start would be read as those of this one.\n\
     mkdir \"$out/started-node$NODE_RANK\" 2>/dev/null || fail 2 \"$out has the outputs of an earlier start: move it away, or set EXPERTRAIL_OUT to another directory\"\n\
     echo \"node $NODE_RANK of run $run_id, rendezvous $MASTER_ADDR, outputs in $out\"\n\n"
        .to_owned()
}

fn preflight(run: &Run) -> String {
    let Some(step) = script::everywhere(run) else { return String::new() };
    let mut words = worker(run, &step, Part::Preflight, &place(false));
    words.extend(["--node-rank".into(), engine::Word::Shell("\"$NODE_RANK\"".to_owned())]);
    format!("step preflight kept preflight {}\n{}\n", lines(&words, "    "), script::after_preflight(run))
}

fn ranks(run: &Run, step: &Step) -> String {
    let words = worker(run, step, Part::Rank, &place(false));
    let mut text = contract(run, step);
    let _ = writeln!(
        text,
        "# A static rendezvous, not c10d: that one numbers nodes in the order in which they come, and NODE_RANK would mean nothing.\n\
         # {RENDEZVOUS_S} s for all nodes to come, as long as a first pull of an image may take. --no-python: each rank goes through the worker,\n\
         # which gives it its NIC before its program starts.\n\
         ranks {name} kept {name} torchrun \\\n    --nnodes={nodes} --nproc_per_node={ranks} --node_rank=\"$NODE_RANK\" \\\n    \
         --master_addr=\"$MASTER_ADDR\" --master_port={port} --rdzv_id=\"$run_id\" --rdzv_conf=timeout={RENDEZVOUS_S} \\\n    \
         --log_dir=\"$out/logs/{name}-ranks-node$NODE_RANK\" --tee=3 --no-python -- \\\n    \
         {words}",
        name = step.name,
        nodes = step.nodes,
        ranks = run.gpus_per_node,
        port = run.port_of(step),
        words = lines(&words, "    "),
    );
    if let Some(words) = script::fetch(run, step, "$NODE_RANK") {
        let _ = writeln!(
            text,
            "# Files outside the outputs.\nexport NODE_RANK\n{}",
            words.iter().map(live).collect::<Vec<_>>().join(" ")
        );
    }
    text.push('\n');
    text
}
