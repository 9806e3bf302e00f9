//! `expertrail explain`.

use std::path::PathBuf;

use clap::Args;
use expertrail_cluster::causes;

use crate::node::{Stop, check_output, finish, print, show};

/// Arguments of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 printed, 2 no such cause, 4 no access.")]
pub(crate) struct ExplainArgs {
    /// Cause id, as `check`, `judge`, `stack` and `diagnose` print it; none lists all.
    #[arg(value_name = "CAUSE")]
    cause: Option<String>,
    /// Write the explanation as JSON here; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE", requires = "cause")]
    json: Option<PathBuf>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &ExplainArgs) -> u8 {
    finish(run(args))
}

fn run(args: &ExplainArgs) -> Result<u8, Stop> {
    check_output(args.json.as_deref())?;
    let Some(id) = &args.cause else {
        let mut all: Vec<String> =
            causes::all().map(|cause| format!("{:<34} {}\n", cause.id, cause.title)).collect();
        all.sort();
        print(&all.concat())?;
        return Ok(0);
    };
    let Some(explanation) = causes::explain(id) else {
        let near = causes::nearest(id);
        let hint = if near.is_empty() {
            "`expertrail explain` lists all".to_owned()
        } else {
            format!("near: {}; `expertrail explain` lists all", near.join(", "))
        };
        return Err(Stop::usage(format!("no cause `{id}`; {hint}")));
    };
    show(args.json.as_deref(), || serde_json::to_string_pretty(&explanation), &explanation.text())?;
    Ok(0)
}
