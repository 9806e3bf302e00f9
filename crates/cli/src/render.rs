//! `expertrail render`.

#[path = "render_setup.rs"]
mod setup;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use expertrail_cluster::facts::Facts;
use expertrail_launch::files::{self, FileSet, WriteError};
use expertrail_launch::render::{self, RenderError};
use expertrail_launch::run::{Run, RunError, Target};
use expertrail_launch::spec::{Spec, SpecError};

use crate::node::{Source, Stop, collecting, finish, print};

/// Systems that there are launch files for.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "The description is run.toml, or options alone. Every file is written anew and the same description gives the same files.\n\
                  Exit codes: 0 written, 2 a description that cannot be run (the message says what to change), 4 no access to a file."
)]
pub(crate) enum RenderCommand {
    /// Kubernetes: an indexed Job with all it needs.
    K8sJob(RunArgs),
    /// Kubernetes with Kubeflow's MPI operator: `MPIJob`s.
    Mpijob(RunArgs),
    /// Slurm: a batch script, on bare hosts or in a container by Pyxis.
    Slurm(RunArgs),
    /// A torchrun line to start on each node.
    Torchrun(RunArgs),
    /// One mpirun line and its hostfile.
    Mpirun(RunArgs),
    /// A worker on each host over ssh.
    Ssh(RunArgs),
    /// Each of the above that fits the description, in a directory of its own.
    All(RunArgs),
    /// The NVIDIA driver's parameters for IBGDA: through the GPU Operator, or on a host.
    DriverConfig(setup::DriverConfigArgs),
    /// Numbered scripts that set a host up, each with its check.
    HostSetup(setup::HostSetupArgs),
    /// A Containerfile with the script that builds it.
    Image(setup::ImageArgs),
}

/// Arguments of every target that runs something.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) describe: Describe,
    /// Directory for the files, new, empty or of an earlier render; - prints them.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

/// The description of a run: a file, and options that go before it.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Describe {
    /// The description [default: ./run.toml where there is one; options alone will do].
    #[arg(value_name = "RUN.TOML")]
    pub(crate) file: Option<PathBuf>,
    /// A key of the description, with dots, as kubernetes.namespace=bench; goes before the file.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Name of the run's objects [default: the name and six digits that follow from the description].
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<String>,
    /// Facts of one of the nodes (of `expertrail facts`); what they show goes before the profile.
    #[arg(long, value_name = "FILE")]
    pub(crate) facts: Option<PathBuf>,
    /// Key `name`.
    #[arg(long)]
    name: Option<String>,
    /// Key `profile`: kind of node.
    #[arg(long)]
    profile: Option<String>,
    /// Key `nodes`.
    #[arg(long)]
    nodes: Option<u32>,
    /// Key `gpus_per_node`: GPUs, and so ranks, of each node.
    #[arg(long)]
    gpus_per_node: Option<u32>,
    /// Key `engine`: expertrail, deepep or command.
    #[arg(long)]
    engine: Option<String>,
    /// Key `image`.
    #[arg(long)]
    image: Option<String>,
}

/// A description that was read.
pub(crate) struct Described {
    /// What it says.
    pub(crate) spec: Spec,
    /// Its text with all options in it.
    pub(crate) text: String,
    /// Facts of a node.
    pub(crate) facts: Option<Facts>,
    run_id: Option<String>,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(command: &RenderCommand) -> u8 {
    finish(match command {
        RenderCommand::K8sJob(args) => one(Target::K8sJob, args),
        RenderCommand::Mpijob(args) => one(Target::Mpijob, args),
        RenderCommand::Slurm(args) => one(Target::Slurm, args),
        RenderCommand::Torchrun(args) => one(Target::Torchrun, args),
        RenderCommand::Mpirun(args) => one(Target::Mpirun, args),
        RenderCommand::Ssh(args) => one(Target::Ssh, args),
        RenderCommand::All(args) => all(args),
        RenderCommand::DriverConfig(args) => setup::driver_config(args),
        RenderCommand::HostSetup(args) => setup::host_setup(args),
        RenderCommand::Image(args) => setup::image(args),
    })
}

impl From<SpecError> for Stop {
    fn from(error: SpecError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<RenderError> for Stop {
    fn from(error: RenderError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<WriteError> for Stop {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Foreign(_) => Self::usage(error.to_string()),
            WriteError::System { .. } => Self::access(error.to_string()),
        }
    }
}

impl Describe {
    /// Reads the description.
    pub(crate) fn read(&self) -> Result<Described, Stop> {
        let overrides = self.overrides();
        let usual = Path::new("run.toml");
        let file = self.file.as_deref().or_else(|| usual.is_file().then_some(usual));
        let (name, text) = match file {
            Some(file) => {
                if self.file.is_none() {
                    eprintln!("description: ./run.toml, since none was named");
                }
                let text = bounded(file)
                    .map_err(|error| Stop::access(format!("cannot read {}: {error}", file.display())))?;
                (file.display().to_string(), text)
            }
            None if overrides.is_empty() => {
                return Err(Stop::usage(
                    "no description: give the path of a run.toml, or options such as --name bringup --profile crusoe-h200 --engine deepep",
                ));
            }
            None => ("options".to_owned(), String::new()),
        };
        let spec = Spec::parse(&name, &text, &overrides)?;
        let text = Spec::merged(&name, &text, &overrides)?;
        // A path in the file is meant from where the file lies.
        let beside = file.and_then(Path::parent).unwrap_or(Path::new(""));
        let facts = self.facts.clone().or_else(|| spec.facts.as_ref().map(|path| beside.join(path)));
        let facts = match facts {
            Some(file) => Some(Source { facts: Some(file), root: None }.read(&collecting())?),
            None => None,
        };
        Ok(Described { spec, text, facts, run_id: self.run_id.clone() })
    }

    /// Options as keys; those by name come last and win.
    pub(crate) fn overrides(&self) -> Vec<String> {
        let mut all = self.set.clone();
        // Quoted, so that a name such as 2024 stays a text.
        let quoted = |value: &String| format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
        for (key, value) in [
            ("name", self.name.as_ref().map(quoted)),
            ("profile", self.profile.as_ref().map(quoted)),
            ("nodes", self.nodes.map(|nodes| nodes.to_string())),
            ("gpus_per_node", self.gpus_per_node.map(|gpus| gpus.to_string())),
            ("engine", self.engine.as_ref().map(quoted)),
            ("image", self.image.as_ref().map(quoted)),
        ] {
            all.extend(value.map(|value| format!("{key}={value}")));
        }
        all
    }
}

impl Described {
    /// The run on `target`.
    pub(crate) fn run(&self, target: Target) -> Result<Run, RunError> {
        Run::resolve(&self.spec, target, self.facts.as_ref(), self.run_id.as_deref())
    }

    /// The run and all files of its directory.
    pub(crate) fn files(&self, target: Target) -> Result<(Run, FileSet), Stop> {
        let run = self.run(target)?;
        let mut files = render::run(&run)?;
        files.text("run.toml", self.text.clone());
        Ok((run, files))
    }
}

fn one(target: Target, args: &RunArgs) -> Result<u8, Stop> {
    let (run, files) = args.describe.read()?.files(target)?;
    if args.output == Path::new("-") {
        print(&on_paper(&files))?;
        return Ok(0);
    }
    write(&run, &files, &args.output)?;
    print(&summary(&run, &files, &args.output))?;
    Ok(0)
}

/// Writes the files, where they fit.
pub(crate) fn write(run: &Run, files: &FileSet, folder: &Path) -> Result<(), Stop> {
    fits(run, folder)?;
    Ok(files.write(folder)?)
}

/// Refuses a directory that may not be written: of something else, or of another system, whose scripts would stay beside the new ones.
pub(crate) fn fits(run: &Run, folder: &Path) -> Result<(), Stop> {
    let old = std::fs::read_to_string(folder.join("run.json")).ok();
    let old: Option<serde_json::Value> = old.and_then(|text| serde_json::from_str(&text).ok());
    let old = old.as_ref().and_then(|old| old.get("target")?.as_str());
    if let Some(old) = old.filter(|old| *old != run.target.name()) {
        return Err(Stop::usage(format!(
            "{} holds a run rendered for {old}: its files would stay beside those for {}; give another directory with -o",
            folder.display(),
            run.target.name()
        )));
    }
    Ok(files::fits(folder)?)
}

/// What was decided and written, and what to type next.
fn summary(run: &Run, files: &FileSet, folder: &Path) -> String {
    let mut text = format!(
        "run {}: {}, profile {}, {} x {} ranks, engine {}\n",
        run.id,
        run.target.name(),
        run.profile.id,
        run.nodes,
        run.gpus_per_node,
        run.engine.name()
    );
    text.push_str(&written(files, folder));
    for note in &run.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if run.hosts.placeholders
        && matches!(run.target, Target::Mpirun | Target::Ssh | Target::Torchrun)
        && run.nodes > 1
    {
        let _ = writeln!(
            text,
            "note: hosts.names is not given: {}",
            if run.target == Target::Torchrun {
                "set MASTER_ADDR and NODE_RANK on each node"
            } else {
                "put the hosts' names into the file hostfile before you start it"
            }
        );
    }
    let next = if run.target == Target::Torchrun && run.nodes > 1 {
        format!("start {}/torchrun.sh on every node (see README.txt there)", folder.display())
    } else {
        format!("expertrail launch {} (by hand: see README.txt there)", folder.display())
    };
    let _ = writeln!(text, "next: {next}");
    text
}

/// What was written where.
fn written(files: &FileSet, folder: &Path) -> String {
    let mut text = format!("written to {}:\n", folder.display());
    for file in &files.files {
        let _ = writeln!(text, "  {}", file.path);
    }
    text
}

/// The files one after the other, without those that only the directory needs.
fn on_paper(files: &FileSet) -> String {
    let kept: Vec<_> = files
        .files
        .iter()
        .filter(|file| !["run.json", "run.toml", "README.txt"].contains(&file.path.as_str()))
        .collect();
    let mut text = String::new();
    for file in &kept {
        // One file alone can be piped on as it is.
        if kept.len() > 1 {
            let _ = writeln!(text, "# ==== {}", file.path);
        }
        text.push_str(&file.text);
    }
    text
}

/// Every target that fits, each in its directory.
fn all(args: &RunArgs) -> Result<u8, Stop> {
    if args.output == Path::new("-") {
        return Err(Stop::usage("-o -: all targets do not fit on one output; give a directory"));
    }
    let described = args.describe.read()?;
    let mut text = String::new();
    let mut fit = 0;
    for target in Target::ALL {
        match described.files(target) {
            Ok((run, files)) => {
                let folder = args.output.join(target.name());
                write(&run, &files, &folder)?;
                fit += 1;
                let _ = writeln!(text, "{:<9} run {} in {}", target.name(), run.id, folder.display());
            }
            Err(stop) => {
                let _ = writeln!(text, "{:<9} not rendered: {}", target.name(), stop.message());
            }
        }
    }
    print(&text)?;
    if fit == 0 {
        return Err(Stop::usage("no target fits this description; the reasons are above"));
    }
    Ok(0)
}
/// The text of a description. One byte more than the largest is read: the parser then says that it is too large.
fn bounded(file: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(file)?.take(expertrail_launch::spec::LARGEST as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}
