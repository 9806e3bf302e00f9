//! One `mpirun` a step.

use std::fmt::Write;

use super::hosts::{self, HOSTFILE};
use crate::engine::{self, Part, Word, quote, worker};
use crate::files::FileSet;
use crate::render::script::{self, contract, lines, live, per_node, place, printable, supervision};
use crate::run::{Run, Step};

pub(super) fn render(run: &Run) -> FileSet {
    let mut files = FileSet::default();
    files.program(super::MPIRUN, script(run));
    files.text(HOSTFILE, hosts::hostfile(run));
    files.text("README.txt", hosts::page(run, &readme(run)));
    files
}

fn readme(run: &Run) -> String {
    format!(
        "1. Put this directory at the same path on all hosts, best on a shared file system: what ranks leave (exit codes, facts, findings) is\n   \
         written on their own host.\n2. See that `{}` is on every host (hosts.binary), and that `ssh HOST true` asks for nothing.\n3. Hosts are in \
         `{HOSTFILE}`, the first has rank 0.\n\nStart      ./{}\nStop       Ctrl-C\nAfterwards expertrail diagnose OUT/logs       where it failed (OUT: the directory that it named at the end)\n           \
         expertrail judge OUT/result-*.json   where it passed\n\nOr all of it at once: expertrail launch .\n",
        run.hosts.binary,
        super::MPIRUN
    )
}

fn script(run: &Run) -> String {
    let mut text = script::head(
        run,
        "/usr/bin/env bash",
        &[
            "Start it on one host; Open MPI 4 and 5. Outputs go to $EXPERTRAIL_OUT, else to out-TIME beside this file.",
        ],
    );
    let _ = writeln!(text, "set -uo pipefail\n\nrun_id={}", run.id);
    text.push_str(&supervision(run));
    text.push('\n');
    text.push_str(&hosts::directory(run));
    let _ = writeln!(text, "files=$dir binary={}", quote(&run.hosts.binary));
    text.push_str(&hosts::read(run));
    text.push_str(hosts::outputs());
    text.push_str("host_out=$out\n\n");
    text.push_str(&common(run));
    if engine::checks(run) {
        text.push_str(&preflight(run));
    }
    for step in &run.steps {
        text.push_str(&ranks(run, step));
    }
    text.push_str("finish\n");
    text
}

/// The array `mpi` with what every `mpirun` has, and the function that keeps its output.
fn common(run: &Run) -> String {
    let program = quote(&run.hosts.mpirun);
    let mut text = format!(
        r#"command -v {program} >/dev/null || fail 4 "no mpirun on this host: install Open MPI, or set hosts.mpirun to its path"
echo "run $run_id on ${{hosts[*]}}, rendezvous $MASTER_ADDR:{port}, outputs in $out"

# Processes that mpirun starts over ssh inherit nothing: every variable is named. No list of HCAs among them: each rank gets its own, in its
# process.
mpi=({program} --hostfile "$dir/{HOSTFILE}" --bind-to none --tag-output -x PATH)
{image}# Open MPI refuses root unless asked.
[ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)
"#,
        port = run.port,
        image = inherited(run),
    );
    for setting in &run.env {
        let pair = quote(&format!("{}={}", setting.name, setting.value));
        let _ = writeln!(text, "mpi+=(-x {pair}) # {}", printable(&setting.why));
    }
    if !run.hosts.mpirun_args.is_empty() {
        let words: Vec<String> = run.hosts.mpirun_args.iter().map(|word| quote(word)).collect();
        let _ = writeln!(text, "# hosts.mpirun_args\nmpi+=({})", words.join(" "));
    }
    text.push('\n');
    text.push_str(&script::kept(run, ""));
    text
}

/// Lines that hand on what this shell has and the run does not set: `mpirun` would complain about one that is not set.
fn inherited(run: &Run) -> String {
    let names = ["LD_LIBRARY_PATH", "LD_PRELOAD"].into_iter().filter(|name| run.variable(name).is_none());
    names.map(|name| format!("[ -z \"${{{name}:-}}\" ] || mpi+=(-x {name})\n")).collect()
}

fn preflight(run: &Run) -> String {
    let Some(step) = script::everywhere(run) else { return String::new() };
    let words = worker(run, &step, Part::Preflight, &place(false));
    format!(
        "step preflight kept preflight \"${{mpi[@]}}\" {} \\\n    {}\n{}\n",
        processes(run.nodes, 1),
        lines(&words, "    "),
        script::after_preflight(run)
    )
}

/// So many processes on each node, node by node; both versions of Open MPI know this form.
fn processes(nodes: u32, per_node: u32) -> String {
    format!("-np {} --map-by ppr:{per_node}:node", nodes * per_node)
}

fn ranks(run: &Run, step: &Step) -> String {
    let words = worker(run, step, Part::Rank, &place(false));
    let mut text = contract(run, step);
    let _ = writeln!(
        text,
        "ranks {name} kept {name} \"${{mpi[@]}}\" {} \\\n    {}",
        processes(step.nodes, per_node(run, step)),
        lines(&words, "    "),
        name = step.name,
    );
    if let Some(words) = script::fetch(run, step, "$OMPI_COMM_WORLD_RANK") {
        let _ = writeln!(
            text,
            "# Files outside the outputs, from each node.\n\"${{mpi[@]}}\" {} \\\n    {}",
            processes(step.nodes, 1),
            words.iter().map(|word: &Word| live(word)).collect::<Vec<_>>().join(" ")
        );
    }
    text.push('\n');
    text
}
