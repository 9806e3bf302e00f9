//! Slurm: one batch script, its steps started by `srun`, on bare hosts or in a container by Pyxis.

mod container;
mod head;
mod readme;

use std::fmt::Write;

use super::RenderError;
use super::script::{self, contract, exports, lines, live, per_node, place, supervision};
use crate::engine::{self, Part, Word, quote, worker};
use crate::files::FileSet;
use crate::run::{Run, Step};
use crate::spec::Contract;
use crate::words::count;

/// The script's name.
pub const SCRIPT: &str = "run.sbatch";

/// `run.sbatch` and a page on how to use it.
///
/// # Errors
/// When Slurm cannot run this description.
pub fn render(run: &Run) -> Result<FileSet, RenderError> {
    if run.slurm.container_image.is_some()
        && let Some(file) = run.steps.iter().flat_map(script::elsewhere).next()
    {
        return Err(RenderError::Unfit(format!(
            "collect = {file:?}: with slurm.container_image that file lies in a container which is gone when its step ends; let the program \
             write to \"{{out}}/NAME\" and collect that"
        )));
    }
    let mut files = FileSet::default();
    files.program(SCRIPT, script(run));
    script::benchmark_file(run, &mut files);
    files.text("README.txt", readme::text(run));
    Ok(files)
}

fn script(run: &Run) -> String {
    let mut text = script::head(
        run,
        "/usr/bin/env bash",
        &["Submit it in a directory that all nodes share: sbatch run.sbatch"],
    );
    text.push_str(&head::options(run));
    text.push_str("set -uo pipefail\n\n");
    let _ = writeln!(text, "run_id={}", run.id);
    text.push_str(&supervision(run));
    text.push('\n');
    text.push_str(&head::surroundings(run));
    text.push_str(&exports(run));
    let _ = writeln!(
        text,
        "# With `sbatch --export=NONE` srun would hand on nothing of the above.\nexport SLURM_EXPORT_ENV=ALL\n"
    );
    text.push_str(&container::arguments(run));
    text.push_str(&look(run));
    if engine::checks(run) {
        text.push_str(&preflight(run));
    }
    for step in &run.steps {
        text.push_str(&ranks(run, step));
    }
    text.push_str("finish\n");
    text
}

/// `srun` with what every step has; `per_node` processes on each of the first `nodes` nodes.
fn srun(run: &Run, nodes: u32, per_node: u32) -> String {
    let mut text = format!("srun --nodes={nodes} --ntasks={} --ntasks-per-node={per_node}", nodes * per_node);
    if nodes < run.nodes {
        // The first ones: MASTER_ADDR is among them.
        text.push_str(" --relative=0");
    }
    text
}

/// Before anything else: is the directory there on every node, and the binary.
fn look(run: &Run) -> String {
    let binary = if run.slurm.container_image.is_some() { "$host_binary" } else { "$binary" };
    format!(
        r#"# Whether every node sees the directory and the binary: else each rank would fail with a message of its own.
# shellcheck disable=SC2016 # expanded on the nodes
step files {srun} \
    sh -c 'test -f "$1/run.json" || {{ echo "$(hostname): no $1/run.json: the directory of the run must be shared by all nodes (slurm.directory)" >&2; exit 4; }}
command -v "$2" >/dev/null || {{ echo "$(hostname): no $2: install expertrail there, or set slurm.binary to its path" >&2; exit 4; }}' sh "$dir" "{binary}"
[ "$first" = 0 ] || finish

"#,
        srun = srun(run, run.nodes, 1)
    )
}

/// The check of every node, in the surroundings that the ranks will have.
fn preflight(run: &Run) -> String {
    // In the surroundings of the ranks.
    let Some(step) = script::everywhere(run) else { return String::new() };
    let words = worker(run, &step, Part::Preflight, &place(false));
    format!(
        "step preflight {} --label{} \\\n    {}\n{}\n",
        srun(run, run.nodes, 1),
        container::use_them(run),
        lines(&words, "    "),
        script::after_preflight(run)
    )
}

fn ranks(run: &Run, step: &Step) -> String {
    let words = worker(run, step, Part::Rank, &place(false));
    let of = match step.contract {
        Contract::Ranks => "rank",
        Contract::Nodes => "node",
    };
    let mut text = contract(run, step);
    let _ = writeln!(
        text,
        "ranks {name} {srun} \\\n    --mpi={mpi} --cpu-bind=none --kill-on-bad-exit=1{container} \\\n    --output=\"$host_out/logs/{name}-{of}%t.log\" \\\n    {words}",
        name = step.name,
        srun = srun(run, step.nodes, per_node(run, step)),
        mpi = quote(&run.slurm.mpi),
        container = container::use_them(run),
        words = lines(&words, "    "),
    );
    if let Some(words) = script::fetch(run, step, "$SLURM_NODEID") {
        let _ = writeln!(
            text,
            "# Files outside the outputs, from each node.\n{} \\\n    {}",
            srun(run, step.nodes, 1),
            words.iter().map(|word: &Word| live(word)).collect::<Vec<_>>().join(" ")
        );
    }
    text.push('\n');
    text
}

/// `20 minutes` for people.
pub(super) fn minutes(seconds: u64) -> String {
    count(u32::try_from(seconds.div_ceil(60)).unwrap_or(u32::MAX), "minute")
}
