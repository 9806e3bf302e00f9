//! `expertrail lint`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use expertrail_cluster::collect;
use expertrail_cluster::profile;
use expertrail_launch::lint::{self, Input, LintError, Options};

use crate::node::{Stop, check_output, finish, print, show};

/// Arguments of `lint`.
#[derive(Debug, Args)]
#[command(
    after_help = "Read are objects of Kubernetes (Job, MPIJob, JobSet, PyTorchJob, Service, the driver's ConfigMap and others with pods), batch scripts of\n\
    Slurm, shell scripts with torchrun, mpirun or srun, and files of NAME=value lines. Files that are given together are judged together. Values that a\n\
    template fills in are not judged.\n\
    Exit codes: 0 no failure, 1 failures, 2 bad arguments or a file that cannot be understood, 4 no access, 5 warnings with --strict."
)]
pub(crate) struct LintArgs {
    /// Launch files; - is standard input.
    #[arg(required_unless_present = "rules", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Kind of the nodes (crusoe-h200, aws-p5en, ...), or the path of a profile; by default what the files say of them.
    #[arg(long, value_name = "NAME", conflicts_with = "facts")]
    profile: Option<String>,
    /// Facts of one of the nodes (of `expertrail facts`): its own rails in place of a profile's.
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,
    /// Write the findings (expertrail.lint/1) here; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with 5 where there are warnings.
    #[arg(long)]
    strict: bool,
    /// Print every rule, with its reason and source, and read nothing.
    #[arg(long, conflicts_with_all = ["files", "profile", "facts", "json", "strict"])]
    rules: bool,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &LintArgs) -> u8 {
    finish(run(args))
}

fn run(args: &LintArgs) -> Result<u8, Stop> {
    if args.rules {
        print(&lint::rules_text())?;
        return Ok(0);
    }
    check_output(args.json.as_deref())?;
    if args.files.iter().filter(|file| file.as_path() == Path::new("-")).count() > 1 {
        return Err(Stop::usage("standard input (-) is named twice"));
    }
    let options = options(args)?;
    let inputs = args.files.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
    let report = lint::lint(&inputs, &options).map_err(|error: LintError| Stop::usage(error.to_string()))?;
    show(args.json.as_deref(), || serde_json::to_string_pretty(&report), &report.text())?;
    Ok(report.exit_code(args.strict))
}

fn options(args: &LintArgs) -> Result<Options, Stop> {
    let profile = match args.profile.as_deref() {
        None => None,
        // Names of profiles have no dot and no slash.
        Some(name) if name.contains(['/', '.']) => {
            Some(profile::load(Path::new(name)).map_err(|error| match error {
                profile::ProfileError::Read { .. } => Stop::access(error.to_string()),
                _ => Stop::usage(error.to_string()),
            })?)
        }
        Some(name) => Some(profile::get(name).map_err(|error| Stop::usage(error.to_string()))?),
    };
    let facts = args.facts.as_deref().map(collect::load).transpose().map_err(|error| match error {
        collect::LoadError::Read { .. } => Stop::access(error.to_string()),
        _ => Stop::usage(error.to_string()),
    })?;
    Ok(Options { profile, facts })
}

/// A file, or standard input; of what is larger than any launch file only the beginning.
fn read(file: &Path) -> Result<Input, Stop> {
    let name = file.display().to_string();
    let most = u64::try_from(lint::LARGEST).unwrap_or(u64::MAX) + 1;
    let mut bytes = Vec::new();
    let result = if file == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        if file.is_dir() {
            return Err(Stop::usage(format!("{name} is a folder: name its files ({name}/*)")));
        }
        File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    result.map_err(|error| Stop::access(format!("cannot read {name}: {error}")))?;
    Ok(Input { name, bytes })
}
