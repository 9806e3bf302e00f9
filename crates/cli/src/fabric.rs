//! `expertrail fabric probe`: starts the ranks, or is one of them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use expertrail::config::{Config, FabricName};
use expertrail::fabric::FabricError;
use expertrail::fabric::ofi::{self, Library};
use expertrail::fabric::sim::{Network, Plan};
use expertrail::group::spawn::{LocalLaunch, Prefix};
use expertrail::group::{CancelToken, Identity, JoinOptions, Launcher};
use expertrail::{Group, RailPlace, Rails};
use expertrail_bench::export::write_atomic;
use expertrail_bench::fabric_probe::{
    FABRIC_SCHEMA_ID, FabricFile, LibraryInfo, Measured, OfferInfo, ProbeOptions, run, to_html, to_text,
};
use expertrail_bench::run::{BenchError, now_rfc3339};
use expertrail_bench::schema::Tool;

use crate::args::seconds;
use crate::node::{Stop, check_output, finish, print};
use crate::rails::{self, FabricArgs};

/// What is asked of the network.
#[derive(Debug, Subcommand)]
pub(crate) enum FabricCommand {
    /// List providers and domains of libfabric, and measure latency and rate of every pair of ranks.
    Probe(Box<ProbeArgs>),
}

/// Arguments of `fabric probe`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every pair reaches the other (slow ones are named), 1 a pair does not or a rank died, \
                  2 bad arguments,\n4 no libfabric or no such provider."
)]
pub(crate) struct ProbeArgs {
    #[command(flatten)]
    fabric: FabricArgs,
    /// Rank processes to start on this machine; 1 only lists.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Ranks on each declared node: their NICs go round.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks_per_node: u32,
    /// How long each direction of a pair writes, seconds.
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    lasts: Duration,
    /// After how long a pair counts as unreachable, seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    deadline: Duration,
    /// Print the document, expertrail.fabric/1, instead of the text.
    #[arg(long)]
    json: bool,
    /// Write a page with heat maps, one file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// This process is one rank of an external launcher (torchrun, srun, mpirun, Kubernetes); start nothing.
    #[arg(long)]
    launched: bool,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(command: &FabricCommand) -> u8 {
    let FabricCommand::Probe(args) = command;
    finish(if args.launched { rank(args) } else { launch(args) })
}

fn no_fabric(error: &FabricError) -> Stop {
    Stop::with_code(error.to_string(), rails::exit_code(error))
}

fn failed(error: &BenchError) -> Stop {
    Stop::with_code(error.to_string(), error.exit_code())
}

/// The settings; what is not named is `auto`.
fn config(args: &ProbeArgs) -> Result<Config, Stop> {
    let mut config = args.fabric.config(None).map_err(|error| Stop::usage(error.to_string()))?;
    config.fabric.value.get_or_insert(FabricName::Auto);
    Ok(config)
}

fn launch(args: &ProbeArgs) -> Result<u8, Stop> {
    let config = config(args)?;
    check_output(args.html.as_deref())?;
    if config.fabric.value == Some(FabricName::Sim) {
        return simulate(args, &config);
    }
    let library = Library::open().map_err(|error| no_fabric(&error))?;
    let place = RailPlace { one_host: true, ..RailPlace::default() };
    Rails::find(&library, &config, &place).map_err(|error| no_fabric(&error))?;
    let program =
        std::env::current_exe().map_err(|error| Stop::access(format!("finding this program: {error}")))?;
    let outcome = LocalLaunch::new(program, args.ranks as usize)
        .args(std::env::args_os().skip(1))
        .args(["--launched"])
        .ranks_per_node(args.ranks_per_node as usize)
        .prefix(Prefix::AllBut(0))
        .run()
        .map_err(|error| Stop::access(error.to_string()))?;
    // A rank that failed has said why.
    Ok(outcome.exit_code())
}

fn joining(args: &ProbeArgs) -> JoinOptions {
    let cancel = CancelToken::on_signals().unwrap_or_default();
    // A meeting waits for a pair of others, which may take its deadline three times.
    let deadline = args.deadline * 4 + args.lasts * 2 + Duration::from_mins(1);
    JoinOptions { cancel, deadline, join_deadline: Duration::from_mins(2), ..JoinOptions::default() }
}

fn options(args: &ProbeArgs, config: &Config, rails: Rails) -> ProbeOptions {
    let asked = config.fabric.value.as_ref().map(ToString::to_string).unwrap_or_default();
    let simulated = config.fabric.value == Some(FabricName::Sim);
    ProbeOptions { asked, simulated, rails, lasts: args.lasts, deadline: args.deadline + args.lasts }
}

fn rank(args: &ProbeArgs) -> Result<u8, Stop> {
    let config = config(args)?;
    if config.fabric.value == Some(FabricName::Sim) {
        return Err(Stop::usage(
            "--fabric sim is a network in the memory of one process: leave --launched out",
        ));
    }
    let identity = Identity::from_env().map_err(|error| Stop::usage(error.to_string()))?;
    if identity.launcher == Launcher::Single {
        return Err(Stop::usage(
            "--launched, but the environment names no launcher (torchrun, srun, mpirun, Kubernetes); leave --launched out \
             to start the ranks here",
        ));
    }
    let group = Group::from_env_with(&joining(args)).map_err(|error| failed(&BenchError::from(error)))?;
    let found = Library::open().and_then(|library| {
        let place = rails::place(&group, Some(&library), &config);
        Rails::find(&library, &config, &place).map(|rails| (library, rails))
    });
    let (library, rails) =
        found.inspect_err(|error| group.fail(&error.to_string())).map_err(|error| no_fabric(&error))?;
    let measured = run(&group, &options(args, &config, rails)).map_err(|error| failed(&error))?;
    let Some(measured) = measured else { return Ok(0) };
    let offers = ofi::list(&library).map_err(|error| no_fabric(&error))?;
    let info = LibraryInfo { name: library.name(), path: loaded(&library) };
    show(args, Some(info), offers.iter().map(OfferInfo::from).collect(), measured)
}

/// The file behind a name that the loader resolved.
fn loaded(library: &Library) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| {
        path.rsplit('/').next().is_some_and(|name| name.starts_with("libfabric") && name.contains(".so"))
    });
    file.map_or_else(|| library.path().display().to_string(), str::to_owned)
}

fn simulate(args: &ProbeArgs, config: &Config) -> Result<u8, Stop> {
    let groups = Group::local_threads_with(args.ranks as usize, &joining(args))
        .map_err(|error| failed(&BenchError::from(error)))?;
    let network = Network::new(Plan { delay: (1, 8), shuffle: true, ..Plan::ordered() });
    let one = |group: &Group| {
        let place = RailPlace { rank: group.rank(), ..RailPlace::default() };
        run(group, &options(args, config, Rails::simulated(&network, config, &place)))
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| one(group))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut measured = None;
    for rank in all {
        let Ok(found) = rank else { return Ok(1) };
        measured = measured.or(found.map_err(|error| failed(&error))?);
    }
    measured.map_or(Ok(1), |measured| show(args, None, Vec::new(), measured))
}

fn show(
    args: &ProbeArgs,
    library: Option<LibraryInfo>,
    offers: Vec<OfferInfo>,
    measured: Measured,
) -> Result<u8, Stop> {
    let file = FabricFile {
        schema: FABRIC_SCHEMA_ID.to_owned(),
        tool: Tool {
            name: "expertrail".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("EXPERTRAIL_COMMIT").map(str::to_owned),
        },
        started_at: now_rfc3339(),
        library,
        offers,
        findings: measured.findings(),
        measured,
    };
    if args.json {
        let json = serde_json::to_string_pretty(&file).map_err(|error| Stop::access(error.to_string()))?;
        print(&(json + "\n"))?;
    } else {
        print(&to_text(&file))?;
    }
    if let Some(path) = &args.html {
        write_atomic(path, &to_html(&file)).map_err(|error| Stop::access(error.to_string()))?;
    }
    Ok(u8::from(!file.measured.all_reached()))
}
