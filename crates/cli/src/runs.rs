//! Runs that were started: what there is of one, its logs, its removal, and the rights that a launch needs on Kubernetes.

#[path = "runs_all.rs"]
mod all;
#[path = "runs_elsewhere.rs"]
mod elsewhere;

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use expertrail::group::CancelToken;
use expertrail_cluster::kube::Process;
use expertrail_cluster::kube::rights::Subject;
use expertrail_launch::drive::kube::{self, Place, RealClock, Site, Uses, Which};
use expertrail_launch::drive::launch::read;
use expertrail_launch::drive::{Event, Show};
use expertrail_launch::run::{self, Run, Target};
use expertrail_launch::spec::Spec;

use crate::node::{Stop, finish, print, safe};

/// The namespace of runs that name none.
const NAMESPACE: &str = "expertrail";

/// Which run, and where.
#[derive(Clone, Debug, Args)]
pub(crate) struct Where {
    /// Context of the kubeconfig [default: the run's, else the current one].
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// Namespace [default: the run's, else expertrail].
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The kubeconfig, where it is not the usual one.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// Arguments of `status`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit codes: 0 the run is there, 2 bad arguments, 3 nothing of it is there, 4 no access to the cluster."
)]
pub(crate) struct StatusArgs {
    /// Run id, or a directory that `expertrail render` wrote. None: all runs of the namespace.
    run: Option<String>,
    #[command(flatten)]
    place: Where,
}

/// Arguments of `logs`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LogsArgs {
    /// Run id, or a directory that `expertrail render` wrote.
    run: String,
    /// All nodes and all containers.
    #[arg(long, conflicts_with = "node")]
    all: bool,
    /// This node, counted from 0 [default: node 0, or the launcher where there is one].
    #[arg(long, value_name = "K")]
    node: Option<u32>,
    /// Go on until the pods have ended.
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    place: Where,
}

/// Arguments of `clean`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "--all lists the runs of the namespace, those with a directory here, and those that processes of this host or Slurm jobs of this user\n\
    work for, and removes those that are over; with --yes all of them. With --context, --namespace or --kubeconfig only the runs of the namespace are meant.\n\
    Exit codes: 0 removed, 2 bad arguments, 3 nothing was there or nothing was removed, 4 something stays or no access."
)]
pub(crate) struct CleanArgs {
    /// Run id, or a directory that `expertrail render` wrote.
    #[arg(required_unless_present = "all")]
    run: Option<String>,
    /// Every run that is found from here.
    #[arg(long, conflicts_with = "run")]
    all: bool,
    /// Do not ask; with --all also those that are under way.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    place: Where,
}

/// Arguments of `rbac`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RbacArgs {
    /// Only what this run needs: a run.toml, or a directory that `expertrail render` wrote [default: what any run may need].
    #[arg(long, value_name = "FILE|DIR")]
    run: Option<PathBuf>,
    /// With a run.toml: the target.
    #[arg(long, value_name = "TARGET", default_value = "k8s-job")]
    target: String,
    /// Namespace [default: the run's, else expertrail].
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Give the rights to this user.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["group", "service_account"])]
    user: Option<String>,
    /// Give the rights to this group.
    #[arg(long, value_name = "NAME", conflicts_with = "service_account")]
    group: Option<String>,
    /// Give the rights to this service account.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    service_account: Option<String>,
}

/// Shows what happens, on standard error.
struct Terminal;

impl Show for Terminal {
    fn show(&mut self, event: Event) {
        match event {
            Event::Step(text) | Event::State(text) | Event::Line(text) => eprintln!("{}", safe(&text)),
            Event::Warning(text) => eprintln!("warning: {}", safe(&text)),
        }
    }
}

struct Keyboard(CancelToken);

impl expertrail_launch::drive::Stop for Keyboard {
    fn cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    fn pause(&self, time: Duration) {
        let until = std::time::Instant::now() + time;
        while !self.cancelled() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The run in a directory.
fn load(folder: &Path) -> Result<Run, Stop> {
    Ok(read(folder)?)
}

/// A run's id, and where it is.
fn find(given: &str, place: &Where) -> Result<(String, Place), Stop> {
    let folder = Path::new(given);
    let (id, rendered) = if folder.is_dir() {
        let run = load(folder)?;
        (run.id, Some(run.kubernetes))
    } else {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if given.is_empty() || given.len() > 63 || !given.chars().all(good) {
            return Err(Stop::usage(format!(
                "{given:?} is neither a directory nor the id of a run, as bringup-1a2b3c; `expertrail status` lists the runs of a namespace"
            )));
        }
        (given.to_owned(), None)
    };
    let context = place.context.clone().or_else(|| rendered.as_ref().and_then(|one| one.context.clone()));
    let namespace = place.namespace.clone().or_else(|| rendered.map(|one| one.namespace));
    Ok((id, Place { context, namespace: namespace.unwrap_or_else(|| NAMESPACE.to_owned()) }))
}

impl Where {
    fn kubectl(&self) -> Result<Process, Stop> {
        if let Some(file) = self.kubeconfig.as_ref().filter(|file| !file.is_file()) {
            return Err(Stop::access(format!("--kubeconfig {}: no such file", file.display())));
        }
        let mut kubectl = Process::from_env();
        kubectl.kubeconfig.clone_from(&self.kubeconfig);
        Ok(kubectl)
    }
}

/// Runs `status`; gives the exit code.
pub(crate) fn status(args: &StatusArgs) -> u8 {
    finish(try_status(args))
}

fn try_status(args: &StatusArgs) -> Result<u8, Stop> {
    if let Some(run) = args.run.as_deref().map(elsewhere::of).transpose()?.flatten() {
        return elsewhere::status(&run);
    }
    let kubectl = args.place.kubectl()?;
    let (id, place) = if let Some(run) = &args.run {
        let (id, place) = find(run, &args.place)?;
        (Some(id), place)
    } else {
        let namespace = args.place.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
        (None, Place { context: args.place.context.clone(), namespace })
    };
    let site = Site::open(&kubectl, &RealClock, &place)?;
    let lines = if let Some(id) = &id {
        kube::status(&site, id)?
    } else {
        let runs = kube::runs(&site)?;
        let line = |(id, pods): (&String, &usize)| format!("{id}: {pods} pods");
        Some(runs.iter().map(line).collect()).filter(|lines: &Vec<String>| !lines.is_empty())
    };
    match lines {
        Some(lines) => print(&(lines.join("\n") + "\n")).map(|()| 0),
        None => Err(Stop::inconclusive(format!(
            "nothing of {} is in namespace {}",
            id.map_or_else(|| "any run".to_owned(), |id| format!("run {id}")),
            place.namespace
        ))),
    }
}

/// Runs `logs`; gives the exit code.
pub(crate) fn logs(args: &LogsArgs) -> u8 {
    finish(try_logs(args))
}

fn try_logs(args: &LogsArgs) -> Result<u8, Stop> {
    if let Some(run) = elsewhere::of(&args.run)? {
        return elsewhere::logs(&run, args.all);
    }
    let (id, place) = find(&args.run, &args.place)?;
    let kubectl = args.place.kubectl()?;
    let site = Site::open(&kubectl, &RealClock, &place)?;
    let which = match args.node {
        Some(node) => Which::Node(node),
        None if args.all => Which::All,
        None => Which::First,
    };
    let keyboard = Keyboard(CancelToken::on_signals().unwrap_or_default());
    let follow = args.follow.then_some(&keyboard as &dyn expertrail_launch::drive::Stop);
    let mut broken = false;
    let mut out = |line: &str| {
        let mut stdout = std::io::stdout().lock();
        broken |= writeln!(stdout, "{}", safe(line)).and_then(|()| stdout.flush()).is_err();
    };
    kube::logs(&site, &id, which, follow, &mut out)?;
    // A reader that has gone (`| head`) is no error.
    Ok(if keyboard.0.is_cancelled() && !broken { 130 } else { 0 })
}

/// Runs `clean`; gives the exit code.
pub(crate) fn clean(args: &CleanArgs) -> u8 {
    finish(try_clean(args))
}

fn try_clean(args: &CleanArgs) -> Result<u8, Stop> {
    let Some(run) = &args.run else { return all::clean(&args.place, args.yes) };
    if let Some(run) = elsewhere::of(run)? {
        return elsewhere::clean(&run, args.yes);
    }
    let (id, place) = find(run, &args.place)?;
    let kubectl = args.place.kubectl()?;
    let site = Site::open(&kubectl, &RealClock, &place)?;
    if !args.yes {
        let there = kube::status(&site, &id)?;
        if let Some(lines) = there
            && !agreed(&lines)?
        {
            return Err(Stop::inconclusive("nothing was removed"));
        }
    }
    kube::remove(&site, &id, &mut Terminal)?;
    Ok(0)
}

/// Asks the person.
fn agreed(lines: &[String]) -> Result<bool, Stop> {
    eprintln!("{}", lines.join("\n"));
    confirm("remove all of it?")
}

/// Asks a question; without a terminal an error.
fn confirm(question: &str) -> Result<bool, Stop> {
    if !std::io::stdin().is_terminal() {
        return Err(Stop::usage(
            "this is no terminal, so nobody can be asked whether to remove it: add --yes",
        ));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Stop::access(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Runs `rbac`; gives the exit code.
pub(crate) fn rbac(args: &RbacArgs) -> u8 {
    finish(try_rbac(args))
}

fn try_rbac(args: &RbacArgs) -> Result<u8, Stop> {
    let run = args.run.as_deref().map(|path| resolve(path, &args.target)).transpose()?;
    if let Some(run) = run.as_ref().filter(|run| !matches!(run.target, Target::K8sJob | Target::Mpijob)) {
        let target = run.target.name();
        return Err(Stop::usage(format!(
            "the run was rendered for {target}, which needs no rights in Kubernetes"
        )));
    }
    let uses = run.as_ref().map_or(Uses::ALL, |run| Uses::of(run, true));
    let namespace = args.namespace.clone().or_else(|| run.map(|run| run.kubernetes.namespace));
    let namespace = namespace.unwrap_or_else(|| NAMESPACE.to_owned());
    let subject = match (&args.user, &args.group, &args.service_account) {
        (_, Some(group), _) => Subject::Group(group.clone()),
        (_, _, Some(account)) => match account.split_once('/') {
            Some((namespace, name)) => Subject::Account(namespace.to_owned(), name.to_owned()),
            None => Subject::Account(namespace.clone(), account.clone()),
        },
        (user, None, None) => Subject::User(user.clone().unwrap_or_else(|| "USER".to_owned())),
    };
    let head = "# What `expertrail launch`, status, logs and clean use, and nothing more. The Role's namespace must exist.\n";
    print(&format!("{head}{}", kube::roles(&namespace, uses, &subject)))?;
    Ok(0)
}

/// A run of a directory or a description.
fn resolve(path: &Path, target: &str) -> Result<Run, Stop> {
    if path.is_dir() {
        return load(path);
    }
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| Stop::access(format!("{name}: {error}")))?;
    let spec = Spec::parse(&name, &text, &[]).map_err(|error| Stop::usage(error.to_string()))?;
    let target = run::target(target).map_err(|error| Stop::usage(error.to_string()))?;
    Run::resolve(&spec, target, None, None).map_err(|error| Stop::usage(format!("{name}: {error}")))
}
