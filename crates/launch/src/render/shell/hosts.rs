//! The hostfile, and where scripts on plain hosts find things.

use std::fmt::Write;

use crate::engine::quote;
use crate::render::script::headline;
use crate::run::Run;
use crate::words::count;

/// Name of the list of hosts.
pub(super) const HOSTFILE: &str = "hostfile";

/// The list of hosts, the first with rank 0, as Open MPI reads it.
pub(super) fn hostfile(run: &Run) -> String {
    let mut text = format!("# {} for run {}, the first has rank 0.\n", count(run.nodes, "host"), run.id);
    if run.hosts.placeholders {
        text.push_str("# hosts.names was not given: put your hosts' names here.\n");
    }
    for name in &run.hosts.names {
        let _ = writeln!(text, "{name} slots={}", run.gpus_per_node);
    }
    text
}

/// Shell text that reads the hostfile into `hosts` and the first host into `MASTER_ADDR`. Wants `fail`.
pub(super) fn read(run: &Run) -> String {
    let nodes = run.nodes;
    format!(
        r#"hosts=()
while read -r host _; do
    case $host in
        '' | '#'*) ;;
        HOST[0-9]*) fail 2 "{HOSTFILE} still has the placeholder $host: put the names of your {many} there, the first has rank 0" ;;
        *) hosts+=("$host") ;;
    esac
done <"$dir/{HOSTFILE}"
[ "${{#hosts[@]}}" = {nodes} ] || fail 2 "{HOSTFILE} has ${{#hosts[@]}} hosts and the run is for {nodes}: name each once; for another number set nodes in run.toml and render again"
MASTER_ADDR=${{hosts[0]}}
"#,
        many = count(nodes, "host"),
    )
}

/// Shell text that makes the directory for outputs, new for each start.
pub(super) fn outputs() -> &'static str {
    "# A new one for each start: outputs of two never mix.\n\
     out=${EXPERTRAIL_OUT:-$dir/out-$(date +%Y%m%d-%H%M%S)}\n\
     [ ! -e \"$out/logs\" ] || fail 2 \"$out has the outputs of an earlier start: set EXPERTRAIL_OUT to another directory\"\n\
     mkdir -p \"$out/logs\" && out=$(cd -- \"$out\" && pwd) || fail 4 \"cannot write $out\"\n"
}

/// Shell text for the run's own directory: that of the script, or the one that all hosts are said to have.
pub(super) fn directory(run: &Run) -> String {
    let id = &run.id;
    let dir = match &run.hosts.directory {
        Some(directory) => format!("# hosts.directory, the same on every host.\ndir={}\n", quote(directory)),
        None => "dir=$(cd -- \"$(dirname -- \"$0\")\" && pwd)\n".to_owned(),
    };
    format!(
        "{dir}cd \"$dir\" && grep -q '\"id\": \"{id}\"' run.json || fail 4 \"$dir has no run.json of {id}: the files of the run must lie there\"\n"
    )
}

/// The first and the last lines of a page on how to use the files.
pub(super) fn page(run: &Run, body: &str) -> String {
    let mut text = format!("{}\n\n{body}", headline(run));
    if !run.notes.is_empty() {
        text.push_str("\nNotes\n");
        for note in &run.notes {
            let _ = writeln!(text, "- {note}");
        }
    }
    text
}
