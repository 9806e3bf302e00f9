//! `expertrail bench`: starts the ranks, or is one of them.

mod across;

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expertrail::config::{Config, ConfigError, FabricName};
use expertrail::cuda::Search;
use expertrail::fabric::FabricError;
use expertrail::group::spawn::{Failure, LocalLaunch, Prefix, RankExit};
use expertrail::group::{CancelToken, GroupError, Identity, JoinOptions, Launcher};
use expertrail::{Backend, Group, Layout, Routing};
use expertrail_bench::export::{self, Format};
use expertrail_bench::preset::{Mode, Overrides, Scope};
use expertrail_bench::routing_file::Wanted;
use expertrail_bench::run::{self, BenchError, GpuOptions, Gpus, Options, Outcome};
use expertrail_bench::schema::{RowsIn, Status};
use expertrail_bench::table::{self, Style};

use crate::args::{BenchArgs, FormatName, InputName};
use crate::{progress, rails};

/// Tells rank 0 how wide the launcher's terminal is.
const WIDTH: &str = "EXPERTRAIL_TERMINAL_WIDTH";

/// On GPUs a call takes less than a millisecond: medians of fewer say little.
const GPU_ITERS: usize = 50;
const GPU_WARMUP: usize = 10;

/// Why there is no result: what to print and the exit code.
struct Stop {
    message: String,
    code: u8,
}

impl Stop {
    fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }
}

impl From<ConfigError> for Stop {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<FabricError> for Stop {
    fn from(error: FabricError) -> Self {
        Self { message: error.to_string(), code: rails::exit_code(&error) }
    }
}

impl From<BenchError> for Stop {
    fn from(error: BenchError) -> Self {
        Self { message: error.to_string(), code: error.exit_code() }
    }
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &BenchArgs) -> u8 {
    let result = if args.launched { rank(args) } else { launch(args) };
    result.unwrap_or_else(|Stop { message, code }| {
        eprintln!("error: {message}");
        code
    })
}

/// Checks everything that can be checked, then starts this program once for each rank.
fn launch(args: &BenchArgs) -> Result<u8, Stop> {
    // Of `auto` the ranks find out: they agree on what each of them sees.
    let config = args.fabric.config(args.deadline)?;
    let options = options(args, &config, None, across::backend(args, &config)?)?;
    check_outputs(args)?;
    across::check(&options, &config)?;
    if config.fabric.value == Some(FabricName::Sim) {
        return across::simulate(args, &config, &options);
    }
    if options.backend == Backend::Cuda {
        let gpus = Gpus::look(&Search::driver()).map_err(BenchError::from)?;
        gpus.enough_for(options.resolved.topology.ranks())?;
    }
    let program = std::env::current_exe()
        .map_err(|e| Stop { message: format!("finding this program: {e}"), code: 4 })?;
    let topology = options.resolved.topology;
    let bar = std::io::stderr().is_terminal();
    let mut launch = LocalLaunch::new(program, topology.ranks())
        .args(std::env::args_os().skip(1))
        .args(["--launched"])
        .ranks_per_node(topology.ranks_per_node())
        // Rank 0 prints the table; it must come out as it is.
        .prefix(Prefix::AllBut(0))
        // Ranks that wait for a dead one find out at once; those still joining are not told in every case.
        .grace(Duration::from_millis(1500));
    if bar {
        launch = launch.env(progress::VARIABLE, "1");
    }
    if let Some(width) = terminal_width() {
        launch = launch.env(WIDTH, width.to_string());
    }
    let output = Output::default();
    let outcome = launch
        .run_to(output.clone(), progress::Sink::new(bar))
        .map_err(|e| Stop { message: e.to_string(), code: 4 })?;
    // A rank that exited has said why; one that was killed could not.
    if let Some(failure @ Failure { exit: RankExit::Signal(_), .. }) = outcome.first_failure {
        eprintln!("error: {failure}");
    }
    match (outcome.exit_code(), output.failure()) {
        (0, Some(reason)) => Err(Stop { message: format!("writing to standard output: {reason}"), code: 4 }),
        // A rank that panicked; the message is the runtime's.
        (101, _) => Ok(1),
        (code, _) => Ok(code),
    }
}

/// One rank.
fn rank(args: &BenchArgs) -> Result<u8, Stop> {
    let config = args.fabric.config(args.deadline)?;
    if config.fabric.value == Some(FabricName::Sim) {
        return Err(Stop::usage(
            "--fabric sim is a network in the memory of one process: leave --launched out, and its threads are the ranks",
        ));
    }
    let cancel = CancelToken::on_signals().unwrap_or_default();
    let identity = Identity::from_env().map_err(|e| Stop::from(BenchError::from(GroupError::from(e))))?;
    if identity.launcher == Launcher::Single {
        return Err(Stop::usage(
            "--launched, but the environment names no launcher (torchrun, srun, Open MPI's mpirun, a Kubernetes \
             indexed Job); set EXPERTRAIL_RANK, EXPERTRAIL_WORLD_SIZE and EXPERTRAIL_ROOT=host:port, or leave \
             --launched out to start the ranks here",
        ));
    }
    let group =
        Group::from_env_with(&joining(&config, cancel)).map_err(|e| Stop::from(BenchError::from(e)))?;
    let backend = match across::backend(args, &config)? {
        Backend::Auto => run::choose(&group, args.layout(), &Search::driver())?,
        named => named,
    };
    let mut options = options(args, &config, Some(&group), backend)?;
    options.across = across::of_rank(&options, &config, &group)?;
    if group.rank() == 0 {
        check_outputs(args)?;
    }
    let shows_progress = group.rank() == 0 && std::env::var_os(progress::VARIABLE).is_some();
    let mut progress = |done, all| {
        if shows_progress {
            progress::report(done, all);
        }
    };
    match run::run(&group, options, &mut progress)? {
        Some(outcome) => show(args, &outcome),
        None => Ok(0),
    }
}

fn joining(config: &Config, cancel: CancelToken) -> JoinOptions {
    let deadline = config.deadline.value;
    JoinOptions {
        cancel,
        deadline,
        // Ranks of a cluster start minutes apart; a short deadline is about calls.
        join_deadline: deadline.max(Duration::from_mins(1)),
        ..JoinOptions::default()
    }
}

/// Prints and writes the result; gives the exit code of its verdict.
fn show(args: &BenchArgs, outcome: &Outcome) -> Result<u8, Stop> {
    let text = match args.format {
        FormatName::Table => {
            let width = std::env::var(WIDTH).ok().and_then(|w| w.parse().ok()).or_else(terminal_width);
            let style = Style::of(width, std::env::var_os("NO_COLOR").as_deref());
            table::render(&outcome.result, style)
        }
        FormatName::Guide => run::guide_text(outcome),
    };
    let printed = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    for (path, format) in outputs(args) {
        let text = export::render(&outcome.result, format)
            .map_err(|e| Stop { message: format!("{}: {e}", path.display()), code: 4 })?;
        export::write_atomic(&path, &text).map_err(|e| Stop { message: e.to_string(), code: 4 })?;
    }
    match printed {
        // A reader that has seen enough is no failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            return Err(Stop { message: format!("writing to standard output: {error}"), code: 4 });
        }
        _ => {}
    }
    Ok(match outcome.result.verdict.status {
        Status::Pass => 0,
        Status::Fail => 1,
        Status::NotVerified | Status::Inconclusive | Status::NotRun => 3,
    })
}

fn terminal_width() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    rustix::termios::tcgetwinsize(&stdout)
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns > 0)
}

fn outputs(args: &BenchArgs) -> Vec<(PathBuf, Format)> {
    [
        (&args.json, Format::Json),
        (&args.csv, Format::Csv),
        (&args.markdown, Format::Markdown),
        (&args.html, Format::Html),
    ]
    .into_iter()
    .filter_map(|(path, format)| Some((path.clone()?, format)))
    .collect()
}

/// Finds an output that cannot be written, or two that are one, before anything runs.
fn check_outputs(args: &BenchArgs) -> Result<(), Stop> {
    let all = outputs(args);
    for (i, (path, _)) in all.iter().enumerate() {
        if all[..i].iter().any(|(earlier, _)| earlier == path) {
            return Err(Stop::usage(format!(
                "{}: named for two reports; give each its own file",
                path.display()
            )));
        }
        export::check_writable(path).map_err(|e| Stop::usage(e.to_string()))?;
    }
    Ok(())
}

/// Applies the arguments to the preset, with what routing files say. Under an external launcher the group says how
/// many ranks there are.
fn options(
    args: &BenchArgs,
    config: &Config,
    group: Option<&Group>,
    backend: Backend,
) -> Result<Options, Stop> {
    let declared = match (args.nodes, args.ranks_per_node) {
        (Some(nodes), Some(each)) => {
            let all = nodes.saturating_mul(each);
            if args.ranks.is_some_and(|ranks| ranks != all) {
                return Err(Stop::usage(format!(
                    "--nodes {nodes} of --ranks-per-node {each} are {all} ranks; leave --ranks out"
                )));
            }
            Some(all)
        }
        _ => args.ranks,
    };
    let ranks = match (group.map(Group::size), declared) {
        (Some(size), Some(ranks)) if size != ranks => {
            return Err(Stop::usage(format!(
                "--ranks {ranks}, but the launcher started {size}; leave --ranks out"
            )));
        }
        (size, ranks) => size.or(ranks).unwrap_or(args.preset.ranks),
    };
    let per_node = match args.nodes {
        Some(nodes) if nodes > 0 && ranks.is_multiple_of(nodes) => Some(ranks / nodes),
        Some(nodes) => {
            return Err(Stop::usage(format!(
                "--nodes {nodes}: {ranks} ranks do not divide into {nodes} nodes"
            )));
        }
        // Real nodes are not overridden by a preset's declared ones.
        None => args.ranks_per_node.or_else(|| group.filter(|g| g.nodes() > 1).map(Group::local_size)),
    };
    let replayed = if args.routing.is_empty() {
        None
    } else {
        let experts = args.experts.unwrap_or(args.preset.experts);
        let want = Wanted { tokens: args.tokens, top_k: args.top_k, experts };
        Some(run::replay(&args.routing, ranks, &want)?)
    };
    let files = replayed.as_deref();
    let over = Overrides {
        ranks: Some(ranks),
        ranks_per_node: per_node,
        tokens: files.and_then(|all| all.iter().map(Routing::tokens).max()).or(args.tokens),
        hidden: args.hidden,
        top_k: files.and_then(|all| all.first().map(Routing::top_k)).or(args.top_k),
        experts: args.experts,
        dtype: args.dtype,
        with_replacement: args.with_replacement,
        scope: args.scope,
        mode: args.mode,
        warmup: args.warmup.or((backend == Backend::Cuda).then_some(args.preset.warmup.max(GPU_WARMUP))),
        iters: args.iters.or((backend == Backend::Cuda).then_some(args.preset.iters.max(GPU_ITERS))),
    };
    if args.mode == Some(Mode::Ll) {
        let message =
            "--mode ll: low-latency mode is not built yet; leave --mode out to run the same shape in ht mode";
        return Err(Stop { message: message.to_owned(), code: 3 });
    }
    let resolved = args.preset.resolve(&over).map_err(BenchError::from)?;
    if config.fabric.value.is_some() && resolved.scope == Scope::Node {
        return Err(Stop::usage(
            "--fabric with --scope node: groups of one node cross no network; leave --fabric out, or use --scope world",
        ));
    }
    args.layout().check().map_err(BenchError::from)?;
    if backend == Backend::Cuda && args.layout() != Layout::BySource {
        let message =
            "--layout expert-major: not built for GPUs yet; leave --layout out, or choose --backend host";
        return Err(Stop { message: message.to_owned(), code: 3 });
    }
    let gpu = GpuOptions::new(
        args.sms.clone(),
        resolved.dispatch_dtype,
        args.dtype.is_some(),
        args.combine_input.map_or_else(|| vec![RowsIn::Private, RowsIn::Shared], |name| vec![rows_in(name)]),
    );
    Ok(Options {
        resolved,
        replayed,
        routing_files: args.routing.clone(),
        skew: args.routing_skew,
        seed: args.seed,
        verify: args.verify.into(),
        deadline: config.deadline.value,
        backend,
        gpu,
        across: None,
        layout: args.layout(),
        combine_input: args.combine_input.map_or(RowsIn::Shared, rows_in),
        memory_limit: args.shm_limit,
        // Without the folder this program happens to lie in.
        command: std::iter::once("expertrail".to_owned())
            .chain(std::env::args().skip(1).filter(|arg| arg != "--launched"))
            .collect(),
    })
}

fn rows_in(name: InputName) -> RowsIn {
    match name {
        InputName::Shared => RowsIn::Shared,
        InputName::Private => RowsIn::Private,
    }
}

/// Standard output for the ranks' lines, which remembers that it could not be written.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Option<String>>>);

impl Output {
    /// Why something was lost; a reader that went away is no failure.
    fn failure(&self) -> Option<String> {
        self.0.lock().ok()?.clone()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush());
        if let (Err(error), Ok(mut failure)) = (&written, self.0.lock())
            && error.kind() != ErrorKind::BrokenPipe
        {
            failure.get_or_insert_with(|| error.to_string());
        }
        written.map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush()
    }
}
