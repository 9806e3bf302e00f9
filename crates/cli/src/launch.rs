//! `expertrail launch`.

mod ab;
mod draft;
mod screen;

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use expertrail_cluster::diagnose;
use expertrail_cluster::kube::Process;
use expertrail_launch::bundle::analyse::told;
use expertrail_launch::bundle::launch_files;
use expertrail_launch::drive::command::SearchPath;
use expertrail_launch::drive::kube::{self, KubeSystem, RealClock};
use expertrail_launch::drive::launch::{self, Launched, Plan};
use expertrail_launch::drive::process::Hosts;
use expertrail_launch::drive::slurm::Slurm;
use expertrail_launch::drive::{DriveError, System};
use expertrail_launch::files::FileSet;
use expertrail_launch::run::{self, Run, Target};

use crate::node::{Stop, finish, itself, print};
use crate::render::{Describe, fits, write};
use draft::Draft;
use screen::{Keyboard, Screen};

/// Arguments of `launch`.
#[allow(clippy::struct_excessive_bools)] // each is a switch of its own
#[derive(Debug, Args)]
#[command(
    after_help = "DIR is a rendered run (`expertrail render`); its files may have been edited by hand. With a run.toml, or with --name and other\n\
    options, and --target it is rendered first, into -o. Everything of the run is shown before anything is made, and is removed at the end, also\n\
    after Ctrl-C; a second Ctrl-C skips what is left to collect. Results are in one directory, DIR/results/N: report.html, outcome.json, verdict,\n\
    diagnosis, logs, facts of all nodes.\n\
    --ab A.toml B.toml runs both on the same nodes, one after the other, and tells the cluster layer from the software layer.\n\
    Exit codes: 0 pass (with --ab: decided; with --dry-run: shown), 1 failed, or a verdict of FAIL, 2 bad arguments, 3 inconclusive, not run, not\n\
    decided, 4 no access, 124 deadline, 130 interrupted."
)]
pub(crate) struct LaunchArgs {
    #[command(flatten)]
    describe: Describe,
    /// Kind of launch files, where DIR is not rendered yet.
    #[arg(long, value_name = "TARGET", value_parser = |name: &str| run::target(name).map_err(|error| error.to_string()))]
    target: Option<Target>,
    /// Where a description is rendered to [default: ./RUN-ID].
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Context of the kubeconfig; refused where the run was rendered for another.
    #[arg(long)]
    context: Option<String>,
    /// Namespace, where it is not the rendered one.
    #[arg(long)]
    namespace: Option<String>,
    /// Show what would be started, with its files, and neither start nor write anything.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// The longest that it may take, waiting included: 90s, 20m, 2h [default: the run's own].
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Leave the run's objects on the system.
    #[arg(long)]
    keep: bool,
    /// Directory for the results, new or empty.
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Target ssh: copy the files and this binary to all hosts first.
    #[arg(long)]
    copy: bool,
    /// Two descriptions to be run on the same nodes.
    #[arg(long, num_args = 2, value_names = ["A.TOML", "B.TOML"], requires = "variable", conflicts_with_all = ["file", "bundle", "keep"])]
    ab: Vec<PathBuf>,
    /// The key that may differ between A and B: image, engine, command, env.NAME, ...; repeat it for more.
    #[arg(long, value_name = "KEY", requires = "ab")]
    variable: Vec<String>,
}

fn time(text: &str) -> Result<Duration, String> {
    run::duration(text).map(Duration::from_secs).map_err(|error| error.to_string())
}

impl From<DriveError> for Stop {
    fn from(error: DriveError) -> Self {
        match error.exit_code() {
            2 => Self::usage(error.to_string()),
            code => Self::with_code(error.to_string(), code),
        }
    }
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &LaunchArgs) -> u8 {
    finish(if args.ab.is_empty() { single(args) } else { ab::main(args) })
}

/// A rendered run.
struct Rendered {
    run: Run,
    folder: PathBuf,
    /// With --dry-run, of a description: its files are in `folder` only for as long as they are looked at.
    draft: Option<Draft>,
}

fn single(args: &LaunchArgs) -> Result<u8, Stop> {
    let rendered = rendered(args)?;
    if !confirmed(args, std::slice::from_ref(&rendered))? {
        return Ok(if args.dry_run { 0 } else { 3 });
    }
    let keyboard = Keyboard::new()?;
    let launched = start(args, &rendered, &keyboard, args.bundle.as_deref())?;
    print(&summary(&launched))?;
    Ok(launched.code)
}

/// The run of a rendered directory, or of a description that is rendered now.
fn rendered(args: &LaunchArgs) -> Result<Rendered, Stop> {
    if let Some(folder) = args.describe.file.as_ref().filter(|path| path.is_dir()) {
        let plain = args.describe.overrides().is_empty()
            && args.describe.run_id.is_none()
            && args.describe.facts.is_none();
        if !plain || args.target.is_some() || args.output.is_some() {
            return Err(Stop::usage(format!(
                "{} is rendered already: options that change the description, --target and -o have no effect on it. Change run.toml there and \
                 render it again, or give run.toml instead of the directory",
                folder.display()
            )));
        }
        return Ok(Rendered { run: launch::read(folder)?, folder: folder.clone(), draft: None });
    }
    if let Some(path) = args.describe.file.as_ref().filter(|path| !path.exists()) {
        return Err(Stop::usage(format!(
            "{}: there is no such file or directory. launch takes the directory of a rendered run (`expertrail render TARGET run.toml -o DIR`), or \
             a description, as run.toml, with --target {}",
            path.display(),
            targets()
        )));
    }
    let target = args.target.ok_or_else(|| {
        Stop::usage(format!(
            "--target is missing: a description can be launched on {}; or give the directory of a rendered run",
            targets()
        ))
    })?;
    let (run, files) = args.describe.read()?.files(target)?;
    let folder = args.output.clone().unwrap_or_else(|| PathBuf::from(&run.id));
    laid(args, run, &files, folder)
}

fn targets() -> String {
    Target::ALL.map(Target::name).join(", ")
}

/// Writes a run's files into `folder`; with --dry-run into a folder of their own, since nothing is to be left.
fn laid(args: &LaunchArgs, run: Run, files: &FileSet, folder: PathBuf) -> Result<Rendered, Stop> {
    if args.dry_run {
        fits(&run, &folder)?;
        let draft = Draft::new(folder)?;
        files.write(&draft.files)?;
        return Ok(Rendered { run, folder: draft.files.clone(), draft: Some(draft) });
    }
    write(&run, files, &folder)?;
    Ok(Rendered { run, folder, draft: None })
}

/// Shows what would be made, and asks. False where nothing is to be started.
fn confirmed(args: &LaunchArgs, all: &[Rendered]) -> Result<bool, Stop> {
    let mut text = String::new();
    for one in all {
        let _ = match &one.draft {
            Some(draft) => writeln!(
                text,
                "run {}: nothing is written; without --dry-run its files would be in {}",
                one.run.id,
                draft.meant.display()
            ),
            None => writeln!(text, "run {} from {}", one.run.id, one.folder.display()),
        };
        let lines = with_system(args, one, |system| Ok(system.describe()?))?;
        for line in lines {
            let line = one.draft.as_ref().map_or_else(|| line.clone(), |draft| draft.words(&line));
            let _ = writeln!(text, "  {line}");
        }
        for note in &one.run.notes {
            let _ = writeln!(text, "  note: {note}");
        }
        if args.dry_run {
            for (name, path) in launch_files(&one.folder) {
                let content = std::fs::read_to_string(&path)
                    .map_err(|error| Stop::access(format!("cannot read {}: {error}", path.display())))?;
                let _ = write!(text, "\n--- {name}\n{content}");
            }
        }
    }
    print(&text)?;
    if args.dry_run {
        return Ok(false);
    }
    Ok(args.yes || ask()?)
}

fn ask() -> Result<bool, Stop> {
    if !std::io::stdin().is_terminal() {
        return Err(Stop::usage(
            "nothing was started: standard input is no terminal, so nobody can be asked. --yes starts it without a question, --dry-run only \
             shows it",
        ));
    }
    let mut out = std::io::stderr().lock();
    let _ = write!(out, "start it? [y/N] ");
    let _ = out.flush();
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Stop::access(format!("cannot read the answer: {error}")))?;
    let yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !yes {
        eprintln!("nothing was started");
    }
    Ok(yes)
}

/// Calls `act` with the system of the run's target.
fn with_system<T>(
    args: &LaunchArgs,
    one: &Rendered,
    act: impl FnOnce(&mut dyn System) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let kubernetes = matches!(one.run.target, Target::K8sJob | Target::Mpijob);
    if !kubernetes && (args.context.is_some() || args.namespace.is_some()) {
        return Err(Stop::usage(format!(
            "--context and --namespace are for Kubernetes, and this run was rendered for {}",
            one.run.target.name()
        )));
    }
    match one.run.target {
        Target::Slurm => act(&mut Slurm::new(&SearchPath, &one.run, &one.folder)),
        Target::Torchrun | Target::Mpirun | Target::Ssh => {
            let mut hosts = Hosts::new(&one.run, &one.folder);
            hosts.copy = args.copy;
            act(&mut hosts)
        }
        Target::K8sJob | Target::Mpijob => {
            let binary = itself().ok_or_else(|| Stop::access("this program's own file cannot be found"))?;
            let mut options = kube::Options::new(binary);
            options.context.clone_from(&args.context);
            options.namespace.clone_from(&args.namespace);
            let kubectl = Process::from_env();
            act(&mut KubeSystem::new(&kubectl, &RealClock, &one.run, &one.folder, options))
        }
    }
}

/// Launches one run.
fn start(
    args: &LaunchArgs,
    one: &Rendered,
    keyboard: &Keyboard,
    bundle: Option<&Path>,
) -> Result<Launched, Stop> {
    let own = Duration::from_secs(one.run.timeout_s);
    let timeout = args.timeout.unwrap_or(own);
    if timeout > own {
        eprintln!(
            "note: --timeout is longer than the run's own limit of {} s, at which its workers stop; render with a longer timeout to change that",
            own.as_secs()
        );
    }
    let plan = Plan { run: &one.run, folder: &one.folder, bundle, timeout, keep: args.keep };
    let mut screen = Screen::new();
    with_system(args, one, |system| Ok(launch::run(system, &plan, &mut screen, keyboard)?))
}

/// What came of it, for people.
fn summary(launched: &Launched) -> String {
    let outcome = &launched.outcome;
    let Some(bundle) = &launched.bundle else { return String::new() };
    let mut text = String::new();
    if let Some(report) = &launched.analysis.verdict {
        let _ = write!(text, "\n{}", report.text());
    }
    // Where the logs name no cause, the ending below says what happened.
    match launched.analysis.diagnosis.as_ref() {
        Some(diagnosis) if diagnosis.outcome == diagnose::Outcome::NothingFound => {
            text += "\nthe logs name no cause\n";
        }
        Some(diagnosis) => drop(write!(text, "\n{}", told(diagnosis))),
        None => {}
    }
    let _ = writeln!(text, "\nrun {}: {}", outcome.run, outcome.ending.words());
    for missing in outcome.missing.iter().take(10) {
        let _ = writeln!(text, "  missing: {}: {}", missing.what, missing.why);
    }
    if outcome.missing.len() > 10 {
        let _ = writeln!(text, "  and {} more, see outcome.json", outcome.missing.len() - 10);
    }
    let _ = writeln!(
        text,
        "launch: {} (exit code {}), everything in {}",
        word(launched),
        launched.code,
        bundle.display()
    );
    text
}

fn word(launched: &Launched) -> &'static str {
    match launched.code {
        0 => "PASS",
        1 => "FAIL",
        3 if launched.outcome.ending.kind == "succeeded" => "INCONCLUSIVE",
        3 => "NOT RUN",
        124 => "DEADLINE",
        130 => "INTERRUPTED",
        2 => "REFUSED",
        _ => "NO ACCESS",
    }
}
