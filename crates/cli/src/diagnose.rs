//! `expertrail diagnose`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use expertrail_cluster::collect;
use expertrail_cluster::diagnose::{self, Evidence, Input, ReadError};
use expertrail_cluster::facts::Facts;
use expertrail_cluster::stack::{Question, Verdict};

use crate::node::{Stop, check_output, finish, show};

/// Arguments of `diagnose`.
#[derive(Debug, Args)]
#[command(
    after_help = "Give everything there is: every rank's output from the start of the run, `kubectl get pods,events -o json`, `kubectl logs\n\
    --previous`, sacct, the kernel log, the build log. The first failure counts, and it is rarely on rank 0.\n\
    Exit codes: 0 nothing wrong found, 1 cause found, 2 bad arguments, 3 something is wrong but these logs do not say what, 4 no access."
)]
pub(crate) struct DiagnoseArgs {
    /// Logs: files (also .gz), folders of them, or - for standard input.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Facts of a node of the run (of `expertrail facts -o FILE`): what `check` finds in them is evidence.
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,
    /// Versions that were loaded: the verdict of `expertrail stack --json FILE`, or KEY=VALUE,... as `expertrail stack --versions` takes them.
    #[arg(long, value_name = "FILE|K=V,...")]
    stack: Option<String>,
    /// Write the diagnosis (expertrail.diagnosis/1) here; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &DiagnoseArgs) -> u8 {
    finish(run(args))
}

fn run(args: &DiagnoseArgs) -> Result<u8, Stop> {
    check_output(args.json.as_deref())?;
    let facts = args.facts.as_deref().map(facts).transpose()?;
    let stack = args.stack.as_deref().map(stack).transpose()?;
    let inputs = args.logs.iter().cloned().map(Input::Path).collect();
    let case = diagnose::read(inputs, Evidence { stack, facts }).map_err(|error| match error {
        ReadError::NotAFile(..) => Stop::usage(error.to_string()),
        ReadError::Nothing(_) => Stop::access(error.to_string()),
    })?;
    let diagnosis = diagnose::conclude(&case);
    show(args.json.as_deref(), || serde_json::to_string_pretty(&diagnosis), &diagnose::text(&diagnosis))?;
    Ok(diagnosis.exit_code())
}

fn facts(file: &Path) -> Result<Facts, Stop> {
    collect::load(file).map_err(|error| match error {
        collect::LoadError::Read { .. } => Stop::access(format!("--facts: {error}")),
        _ => Stop::usage(format!("--facts: {error}")),
    })
}

fn stack(text: &str) -> Result<Question, Stop> {
    // Versions have an equals sign; a file of such a name can be given as ./name.
    if text.contains('=') && !Path::new(text).is_file() {
        return Question::parse(text).map_err(|error| Stop::usage(format!("--stack: {error}")));
    }
    let bytes = fs::read(text).map_err(|error| Stop::access(format!("--stack {text}: {error}")))?;
    let verdict: Verdict = serde_json::from_slice(&bytes).map_err(|error| {
        Stop::usage(format!("--stack {text}: no document of `expertrail stack --json`: {error}"))
    })?;
    if verdict.schema != expertrail_cluster::stack::SCHEMA {
        return Err(Stop::usage(format!(
            "--stack {text}: its schema is `{}`; `expertrail stack --json FILE` writes {}",
            verdict.schema,
            expertrail_cluster::stack::SCHEMA
        )));
    }
    Ok(verdict.question)
}
