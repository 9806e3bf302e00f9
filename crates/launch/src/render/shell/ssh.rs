//! A worker on each host over `ssh`.

use std::fmt::Write;

use super::hosts::{self, HOSTFILE};
use crate::engine::{self, DEEPEP_FILE, Part, Word, quote, worker};
use crate::files::FileSet;
use crate::render::script::{self, contract, exports, lines};
use crate::run::Run;
use crate::spec::Preflight;

/// The part of one node, which `ssh` hands to a shell there.
const NODE: &str = "node.sh";

/// What drives the hosts; the same for every run.
const DRIVER: &str = include_str!("../../../assets/ssh-driver.sh");

pub(super) fn render(run: &Run) -> FileSet {
    let mut files = FileSet::default();
    files.program(super::SSH, script(run));
    files.text(NODE, node(run));
    files.text(HOSTFILE, hosts::hostfile(run));
    files.text("README.txt", hosts::page(run, &readme(run)));
    files
}

fn readme(run: &Run) -> String {
    let directory = run.hosts.directory.as_deref().unwrap_or("this directory's path");
    format!(
        "1. Hosts are in `{HOSTFILE}`, the first has rank 0. `ssh HOST true` must ask for nothing.\n2. Files of the run lie in {directory} on every \
         host. `./{0} --copy` makes the directory and copies them there, with the expertrail of this host (or $EXPERTRAIL_BINARY), and uses that \
         one; without --copy they must be there, and `{1}` (hosts.binary) too.\n\nStart      ./{0} [--copy]\nStop       Ctrl-C: the workers on all \
         hosts are told to stop\nOutputs    out-TIME/logs/STEP-nodeN.log, with all files of the node in it (lines beginning ::expertrail-file)\n\
         Afterwards expertrail diagnose OUT/logs       where it failed (OUT: the directory that it named at the end)\n\nOr all of it at once: expertrail launch .\n",
        super::SSH,
        run.hosts.binary
    )
}

fn script(run: &Run) -> String {
    let mut text = script::head(
        run,
        "/usr/bin/env bash",
        &[
            "Start it on any host that reaches the others: ssh.sh [--copy]. Outputs go to $EXPERTRAIL_OUT, else to out-TIME beside this file.",
        ],
    );
    let _ = writeln!(text, "set -uo pipefail\n\nrun_id={} timeout_s={}", run.id, run.timeout_s);
    text.push_str("fail() {\n    echo \"expertrail: $2\" >&2\n    exit \"$1\"\n}\n\n");
    text.push_str("dir=$(cd -- \"$(dirname -- \"$0\")\" && pwd)\n");
    let _ = writeln!(
        text,
        "cd \"$dir\" && grep -q '\"id\": \"{0}\"' run.json || fail 4 \"$dir has no run.json of {0}: start ssh.sh in its own directory\"",
        run.id
    );
    let directory = run.hosts.directory.as_ref().map_or("$dir".to_owned(), |directory| quote(directory));
    let _ = writeln!(
        text,
        "# Where the files of the run lie on the hosts, and the binary.\ndirectory={directory} binary={}",
        quote(&run.hosts.binary)
    );
    text.push_str(&hosts::read(run));
    text.push_str(hosts::outputs());
    // BatchMode: a host that asks for a password would hang unseen among many.
    text.push_str("ssh=(-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15)\n");
    if let Some(user) = &run.hosts.user {
        let _ = writeln!(text, "ssh+=(-o {})", quote(&format!("User={user}")));
    }
    let copied =
        if run.needs_deepep_file { format!("run.json {DEEPEP_FILE}") } else { "run.json".to_owned() };
    let _ = writeln!(text, "copied=({copied})\n");
    text.push_str(DRIVER);
    text.push('\n');
    if engine::checks(run) {
        let _ = writeln!(text, "phase preflight {}", run.nodes);
        text.push_str(match run.preflight {
            Preflight::Strict => "# preflight = \"strict\": no rank starts on nodes that fail.\n[ \"$first\" = 0 ] || finish\n",
            Preflight::Report | Preflight::Off => {
                "# preflight = \"report\": what it found is in the logs; the run goes on. A host that cannot be reached ends it.\n\
                 [ \"$first\" != 255 ] || finish\nfirst=0\n"
            }
        });
    }
    for step in &run.steps {
        let _ = writeln!(text, "phase {} {}", step.name, step.nodes);
    }
    text.push_str("finish\n");
    text
}

/// The part of one node: the variables, then the worker of the step.
fn node(run: &Run) -> String {
    let mut text = script::head(
        run,
        "/bin/sh",
        &[
            "The part of one node; ssh.sh hands it to a shell there: STEP NODE MASTER DIRECTORY OUTPUTS BINARY.",
        ],
    );
    text.push_str(
        "set -u\nstep=$1 node=$2 MASTER_ADDR=$3 files=$4 out=$5 binary=$6\n\
         cd \"$files\" && mkdir -p \"$out\" || { echo \"expertrail: no $files on $(hostname): ssh.sh --copy makes it\" >&2; exit 4; }\n\
         command -v \"$binary\" >/dev/null || { echo \"expertrail: no $binary on $(hostname): ssh.sh --copy brings it, or set hosts.binary to its path\" >&2; exit 4; }\n\
         # By this the processes of one start are told from those of another.\n\
         export EXPERTRAIL_OUT=\"$out\"\n\
         # ssh.sh stops the worker by this number: the shell becomes the worker.\n\
         echo \"$$\" >\"$out/worker-$node.pid\"\n\n",
    );
    text.push_str(&exports(run));
    text.push_str("case $step in\n");
    let place = script::place(true);
    if engine::checks(run)
        && let Some(step) = script::everywhere(run)
    {
        text.push_str(&arm("preflight", worker(run, &step, Part::Preflight, &place), ""));
    }
    // Every node was looked at in a step of its own.
    let quiet = Run { preflight: Preflight::Off, ..run.clone() };
    for step in &run.steps {
        text.push_str(&arm(&step.name, worker(&quiet, step, Part::Node, &place), &contract(run, step)));
    }
    text.push_str("*)\n    echo \"expertrail: no step $step in this run\" >&2\n    exit 2\n    ;;\nesac\n");
    text
}

fn arm(name: &str, mut words: Vec<Word>, comment: &str) -> String {
    // Options end where the program begins.
    let at = words.iter().position(|word| *word == Word::from("--")).unwrap_or(words.len());
    words.splice(at..at, [Word::from("--node-rank"), Word::Shell("\"$node\"".to_owned())]);
    let comment = if comment.is_empty() { String::new() } else { format!("    {comment}") };
    format!("{name})\n{comment}    exec {}\n    ;;\n", lines(&words, "        "))
}
