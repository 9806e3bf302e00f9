//! `expertrail bench`: starts the ranks, or is one of them.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use expertrail::group::spawn::{Failure, LocalLaunch, Prefix, RankExit};
use expertrail::group::{CancelToken, JoinOptions};
use expertrail::{Backend, Group};
use expertrail_bench::export::{self, Format};
use expertrail_bench::preset::{Overrides, PresetError, Resolved};
use expertrail_bench::run::{self, BenchError, CombineInput, Given, Options, Outcome};
use expertrail_bench::schema::Status;
use expertrail_bench::table::{self, Style};

use crate::args::{BackendName, BenchArgs, FormatName, InputName};
use crate::progress;

/// Tells rank 0 how wide the launcher's terminal is.
const WIDTH: &str = "EXPERTRAIL_TERMINAL_WIDTH";

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
    let (options, _) = options(args, resolve(args, None)?).with_files_read()?;
    for (path, _) in outputs(args) {
        export::check_writable(&path).map_err(|e| Stop::usage(e.to_string()))?;
    }
    if options.backend == Backend::Cuda {
        return Err(BenchError::from(expertrail::Error::NotBuilt { backend: "cuda" }).into());
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
        .prefix(Prefix::AllBut(0));
    if bar {
        launch = launch.env(progress::VARIABLE, "1");
    }
    if let Some(width) = terminal_width() {
        launch = launch.env(WIDTH, width.to_string());
    }
    let outcome = launch
        .run_to(std::io::stdout(), progress::Sink::new(bar))
        .map_err(|e| Stop { message: e.to_string(), code: 4 })?;
    // A rank that exited has said why; one that was killed could not.
    if let Some(failure @ Failure { exit: RankExit::Signal(_), .. }) = outcome.first_failure {
        eprintln!("error: {failure}");
    }
    Ok(outcome.exit_code())
}

/// One rank.
fn rank(args: &BenchArgs) -> Result<u8, Stop> {
    let cancel = CancelToken::on_signals().unwrap_or_default();
    let join =
        JoinOptions { cancel, deadline: args.deadline.max(Duration::from_mins(1)), ..JoinOptions::default() };
    let group = Group::from_env_with(&join).map_err(|e| Stop::from(BenchError::from(e)))?;
    let options = options(args, resolve(args, Some(&group))?);
    if group.rank() == 0 {
        for (path, _) in outputs(args) {
            export::check_writable(&path).map_err(|e| Stop::usage(e.to_string()))?;
        }
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

/// Prints and writes the result; gives the exit code of its verdict.
fn show(args: &BenchArgs, outcome: &Outcome) -> Result<u8, Stop> {
    match args.format {
        FormatName::Table => {
            let width = std::env::var(WIDTH).ok().and_then(|w| w.parse().ok()).or_else(terminal_width);
            let style = Style::of(width, std::env::var_os("NO_COLOR").as_deref());
            print!("{}", table::render(&outcome.result, style));
        }
        FormatName::Guide => print!("{}", run::guide_text(outcome)),
    }
    for (path, format) in outputs(args) {
        let text = export::render(&outcome.result, format)
            .map_err(|e| Stop { message: format!("{}: {e}", path.display()), code: 4 })?;
        export::write_atomic(&path, &text).map_err(|e| Stop { message: e.to_string(), code: 4 })?;
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

/// Applies the arguments to the preset. Under an external launcher the group says how many ranks there are.
fn resolve(args: &BenchArgs, group: Option<&Group>) -> Result<Resolved, Stop> {
    let ranks = match (group.map(Group::size), args.ranks) {
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
    let over = Overrides {
        ranks: Some(ranks),
        ranks_per_node: per_node,
        tokens: args.tokens,
        hidden: args.hidden,
        top_k: args.top_k,
        experts: args.experts,
        dtype: args.dtype,
        with_replacement: args.with_replacement,
        scope: args.scope,
        mode: args.mode,
        warmup: args.warmup,
        iters: args.iters,
    };
    args.preset.resolve(&over).map_err(|e: PresetError| Stop::from(BenchError::from(e)))
}

fn options(args: &BenchArgs, resolved: Resolved) -> Options {
    Options {
        resolved,
        routing_files: args.routing.clone(),
        given: Given { tokens: args.tokens.is_some(), top_k: args.top_k.is_some() },
        skew: args.routing_skew,
        seed: args.seed,
        verify: args.verify.into(),
        deadline: args.deadline,
        backend: match args.backend {
            BackendName::Auto => Backend::Auto,
            BackendName::Host => Backend::Host,
            BackendName::Cuda => Backend::Cuda,
        },
        layout: args.layout(),
        combine_input: match args.combine_input {
            InputName::Shared => CombineInput::Shared,
            InputName::Private => CombineInput::Private,
        },
        memory_limit: args.shm_limit,
        command: std::env::args().filter(|arg| arg != "--launched").collect(),
    }
}
