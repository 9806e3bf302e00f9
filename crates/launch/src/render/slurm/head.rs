//! `#SBATCH` lines, and where the script finds things.

use std::fmt::Write;

use crate::engine::quote;
use crate::run::Run;
use crate::words::count;

/// Slurm sends the signal up to 60 s early, and 30 s before the end: ranks still have all of their time.
const MARGIN_S: u64 = 120;

/// Seconds as Slurm writes a time.
pub(super) fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest % 3600 / 60, rest % 60);
    if days > 0 { format!("{days}-{clock}") } else { clock }
}

/// The `#SBATCH` lines, each that needs one under its reason.
pub(super) fn options(run: &Run) -> String {
    let slurm = &run.slurm;
    let mut text = String::new();
    let mut add = |name: &str, value: Option<&str>, why: &str| {
        if !why.is_empty() {
            let _ = writeln!(text, "# {why}");
        }
        // Slurm splits these lines as a shell does.
        let value = value.map(|value| format!("={}", quote(value))).unwrap_or_default();
        let _ = writeln!(text, "#SBATCH --{name}{value}");
    };
    add("job-name", Some(&run.id), "");
    add("nodes", Some(&run.nodes.to_string()), "");
    let ranks = run.gpus_per_node.to_string();
    add("ntasks-per-node", Some(&ranks), "A task for each rank; a step may start fewer.");
    if slurm.request_gpus {
        add("gpus-per-node", Some(&ranks), "");
    }
    if slurm.exclusive {
        add("exclusive", None, "Whole nodes: a neighbour on the same NIC or CPU would be measured too.");
        add("mem", Some("0"), "All memory of them; the default may be a share for each CPU.");
    }
    add(
        "time",
        Some(&time(run.timeout_s + MARGIN_S)),
        &format!("timeout of {} s, and {MARGIN_S} s to start and to stop.", run.timeout_s),
    );
    add(
        "signal",
        Some("B:TERM@30"),
        "The script is told 30 s before the end, so that it can stop the ranks and say so.",
    );
    add(
        "wait-all-nodes",
        Some("1"),
        "No step starts before every node is up: one that boots would be missed at the rendezvous.",
    );
    add("no-requeue", None, "A run that was started twice would mix two outputs.");
    add("propagate", Some("NONE"), "Limits of the nodes (memlock), not those of the login shell.");
    for (name, value) in [
        ("partition", &slurm.partition),
        ("account", &slurm.account),
        ("qos", &slurm.qos),
        ("reservation", &slurm.reservation),
        ("nodelist", &slurm.nodelist),
        ("constraint", &slurm.constraint),
    ] {
        if let Some(value) = value {
            add(name, Some(value), "");
        }
    }
    match &slurm.directory {
        Some(directory) => {
            add("chdir", Some(directory), "slurm.directory, which all nodes share.");
            add("output", Some(&format!("{}/%x-%j.log", directory.trim_end_matches('/'))), "");
        }
        None => add("output", Some("%x-%j.log"), ""),
    }
    text
}

/// Sees that the surroundings are those that the script was written for, and finds directory, binary and the first node.
pub(super) fn surroundings(run: &Run) -> String {
    let directory = match &run.slurm.directory {
        Some(directory) => quote(directory),
        None => "${SLURM_SUBMIT_DIR:-$PWD}".to_owned(),
    };
    let binary = quote(&run.slurm.binary);
    let (nodes, id) = (run.nodes, &run.id);
    let place = if run.slurm.container_image.is_some() {
        format!(
            "# On the hosts, and in the container.\nhost_out=$dir/job-$SLURM_JOB_ID\nwanted={binary}\n\
             host_binary=$(command -v \"$wanted\") || fail 4 \"no $wanted on $(hostname): install expertrail there, or set slurm.binary to its path\"\nfiles=/expertrail/run out=/expertrail/out \
             binary=/expertrail/bin/expertrail\n"
        )
    } else {
        format!(
            "host_out=$dir/job-$SLURM_JOB_ID\nfiles=$dir out=$host_out \
             binary={binary}\n"
        )
    };
    format!(
        r#"[ -n "${{SLURM_JOB_ID:-}}" ] || fail 2 "this is a batch script of Slurm: sbatch run.sbatch"
[ "${{SLURM_JOB_NUM_NODES:-}}" = {nodes} ] || fail 2 "written for {many}, and the job has ${{SLURM_JOB_NUM_NODES:-none}}: set nodes in run.toml and render again, because ranks, steps and variables move with it"
dir={directory}
cd "$dir" && [ -f run.json ] && grep -q '"id": "{id}"' run.json || fail 4 "$dir has no run.json of {id}: submit run.sbatch in its own directory, which all nodes must share, or set slurm.directory"
{place}mkdir -p "$host_out/logs" || fail 4 "cannot write under $dir"

# The list is compressed (gpu[01-04]): only Slurm itself can tell the first name of it.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
[ -n "$MASTER_ADDR" ] || fail 4 "scontrol does not tell the names of $SLURM_JOB_NODELIST"
echo "run $run_id as job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, rendezvous $MASTER_ADDR, port {ports}, outputs in $host_out"

"#,
        many = count(nodes, "node"),
        ports = run.ports(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_slurm_reads_them() {
        assert_eq!(
            [time(1320), time(3600), time(90_061), time(604_800)],
            ["00:22:00", "01:00:00", "1-01:01:01", "7-00:00:00"]
        );
    }
}
