//! `expertrail compare`.

use std::path::PathBuf;

use clap::Args;
use expertrail_cluster::compare;

use crate::node::{Stop, check_output, finish, show};

/// Arguments of `compare`.
#[derive(Debug, Args)]
#[command(
    after_help = "A value that more than half of the nodes have is the majority; nodes with another are named. What could not be\n\
    read has no vote. Exit codes: 0 no differences, 1 nodes differ, 2 bad arguments or fewer than two readable documents,\n\
    3 no differences among those that could be read, 4 no access."
)]
pub(crate) struct CompareArgs {
    /// Facts documents (of `expertrail facts -o FILE`), or folders of them (*.json).
    #[arg(required = true, value_name = "FILE")]
    documents: Vec<PathBuf>,
    /// Write the comparison (expertrail.fleet/1) here; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &CompareArgs) -> u8 {
    finish(run(args))
}

fn run(args: &CompareArgs) -> Result<u8, Stop> {
    check_output(args.json.as_deref())?;
    let files = compare::files(&args.documents).map_err(Stop::usage)?;
    let (mut nodes, mut unread) = (Vec::new(), Vec::new());
    for capture in compare::read(&files) {
        match capture {
            Ok(node) => nodes.push(node),
            Err(reason) => unread.push(reason),
        }
    }
    if nodes.len() < 2 {
        let why = unread
            .first()
            .map_or(String::new(), |first| format!("; the first that is not: {}", first.reason));
        let count = nodes.len();
        return Err(Stop::usage(format!(
            "a comparison takes two documents or more; {count} of {} can be read{why}",
            files.len()
        )));
    }
    let report = compare::run(&nodes, unread);
    show(args.json.as_deref(), || serde_json::to_string_pretty(&report), &report.text())?;
    Ok(report.exit_code())
}
