//! `expertrail explain`.

use std::path::PathBuf;

use clap::Args;
use expertrail_cluster::causes;

use crate::node::{Stop, check_output, finish, show};

/// Arguments of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 printed, 2 no such cause or finding, 4 no access.")]
pub(crate) struct ExplainArgs {
    /// Cause id, as `check`, `judge`, `stack` and `diagnose` print it, or the id of a finding or lint (P010, J013, L016);
    /// none lists all causes.
    #[arg(value_name = "ID")]
    cause: Option<String>,
    /// Write it as JSON here, without an id every cause; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &ExplainArgs) -> u8 {
    finish(run(args))
}

fn run(args: &ExplainArgs) -> Result<u8, Stop> {
    check_output(args.json.as_deref())?;
    let Some(id) = &args.cause else {
        let mut all: Vec<&causes::CauseEntry> = causes::all().collect();
        all.sort_by_key(|cause| cause.id);
        all.dedup_by_key(|cause| cause.id);
        let explained = || -> Vec<_> { all.iter().filter_map(|cause| causes::explain(cause.id)).collect() };
        let lines: Vec<String> =
            all.iter().map(|cause| format!("{:<34} {}\n", cause.id, cause.title)).collect();
        show(args.json.as_deref(), || serde_json::to_string_pretty(&explained()), &lines.concat())?;
        return Ok(0);
    };
    if let Some(finding) = causes::finding(id) {
        show(args.json.as_deref(), || serde_json::to_string_pretty(&finding), &finding.text())?;
        return Ok(0);
    }
    let Some(explanation) = causes::explain(id) else {
        let near = causes::nearest(id);
        let hint = if near.is_empty() {
            "`expertrail explain` lists all".to_owned()
        } else {
            format!("near: {}; `expertrail explain` lists all", near.join(", "))
        };
        return Err(Stop::usage(format!("no cause and no finding `{id}`; {hint}")));
    };
    show(args.json.as_deref(), || serde_json::to_string_pretty(&explanation), &explanation.text())?;
    Ok(0)
}
