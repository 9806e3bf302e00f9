//! `expertrail worker`: what runs inside a job. Started by launch files, not by hand.

// Docs of arguments are the help that is shown.
#![allow(clippy::doc_markdown)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use expertrail_cluster::facts::Facts;
use expertrail_cluster::profile::Profile;
use expertrail_launch::worker::node::{self, Preflight, Site};
use expertrail_launch::worker::pins::Wanted;
use expertrail_launch::worker::preflight::Mode;
use expertrail_launch::worker::store::Store;
use expertrail_launch::worker::{Contract, Shape, WorkerError, environment, rank};

use crate::args::seconds;
use crate::check::TargetName;
use crate::node::{Source, Stop, collecting, finish, itself};
use crate::topo::profile;

/// What runs inside a job.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// One for each node: preflight, then the ranks of the node, then what they left.
    Node(Box<NodeArgs>),
    /// The preflight of a node alone.
    Preflight(PreflightArgs),
    /// One for each rank, under srun or mpirun: sets the rank's variables and NICs, then becomes its program.
    Rank(Box<RankArgs>),
    /// Binds a rank to the worker that started it and becomes its program.
    #[command(name = expertrail_launch::worker::EXEC, hide = true)]
    Exec(Argv),
}

/// The rank's program.
#[derive(Debug, Args)]
pub(crate) struct Argv {
    /// Program of the ranks and its arguments; {rank}, {local_rank}, {node}, {nodes}, {ranks}, {ranks_per_node} and {run} are replaced.
    #[arg(last = true, required = true)]
    argv: Vec<String>,
}

/// What is looked at before ranks start.
#[derive(Debug, Args)]
struct Look {
    #[command(flatten)]
    source: Source,
    /// What the node is wanted for.
    #[arg(long = "for", value_enum, value_name = "TARGET", default_value = "expertrail")]
    target: TargetName,
    /// Provider profile to cross-check with: auto, none, an id or a file.
    #[arg(long, value_name = "PROFILE", default_value = "auto")]
    profile: String,
}

/// Which node, and where documents go.
#[derive(Debug, Args)]
struct Place {
    /// Nodes of the run.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Index of this node [default: what the launcher's variables say].
    #[arg(long, value_name = "N")]
    node_rank: Option<usize>,
    /// Write facts, findings and exit codes under this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also put files into the log.
    #[arg(long)]
    frames: bool,
    /// What a failing check does: report, strict (no rank starts), off.
    #[arg(long, value_name = "MODE", default_value = "report", value_parser = |t: &str| t.parse::<Mode>())]
    preflight: Mode,
}

/// Where ranks meet, and with which NICs.
#[derive(Debug, Args)]
struct Meet {
    /// Names the run.
    #[arg(long, value_name = "ID", default_value = "run")]
    run_id: String,
    /// What RANK and WORLD_SIZE count: ranks (a process for each GPU) or nodes (one process a node, which starts its ranks itself).
    #[arg(long, default_value = "ranks", value_parser = |t: &str| t.parse::<Contract>())]
    contract: Contract,
    /// Host of the first node [default: MASTER_ADDR, this host for one node, the first host of a Slurm step].
    #[arg(long, value_name = "HOST[:PORT]")]
    master: Option<String>,
    /// Port where the ranks meet [default: 29400].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    master_port: Option<u16>,
    /// NIC of each local rank: auto (by the topology), none, or a list as mlx5_1:1,mlx5_2:1.
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = |t: &str| t.parse::<Wanted>())]
    pins: Wanted,
    /// Start no rank unless the NICs of the ranks are there and ACTIVE.
    #[arg(long)]
    require_hca_active: bool,
}

/// Arguments of `worker node`.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    look: Look,
    #[command(flatten)]
    meet: Meet,
    /// Ranks of each node, whoever starts them.
    #[arg(long, value_name = "G", default_value_t = 1)]
    ranks_per_node: usize,
    /// Files that the ranks leave, to be kept with the others; words are replaced as in the program's arguments.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    collect: Vec<String>,
    /// Stop the ranks after this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// How long the other ranks may go on after the first failure, to say what they saw.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    grace: Duration,
    #[command(flatten)]
    argv: Argv,
}

/// Arguments of `worker preflight`.
#[derive(Debug, Args)]
pub(crate) struct PreflightArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    look: Look,
}

/// Arguments of `worker rank`.
#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    #[command(flatten)]
    meet: Meet,
    #[command(flatten)]
    source: Source,
    /// Ranks of each node, where the launcher does not tell; where it does, both must agree.
    #[arg(long, value_name = "G")]
    ranks_per_node: Option<usize>,
    /// Run the program as a child, and write how it ended to exit/rank-N.json under this folder.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    #[command(flatten)]
    argv: Argv,
}

/// Runs the command; gives the exit code.
pub(crate) fn main(command: WorkerCommand) -> u8 {
    finish(match command {
        WorkerCommand::Node(args) => run_node(*args),
        WorkerCommand::Preflight(args) => {
            args.look.at(|site| node::preflight(&args.place.preflight(args.look.target), site))
        }
        WorkerCommand::Rank(args) => run_rank(*args),
        WorkerCommand::Exec(args) => {
            // Comes back only if it fails; shells know 127 for a program that does not start.
            let (program, rest) =
                args.argv.split_first().map_or((String::new(), Vec::new()), |(a, b)| (a.clone(), b.to_vec()));
            let error = expertrail_group::exec_bound(program.as_ref(), rest.into_iter().map(Into::into));
            Err(Stop::with_code(error.to_string(), 127))
        }
    })
}

impl From<WorkerError> for Stop {
    fn from(error: WorkerError) -> Self {
        Self::with_code(error.to_string(), error.exit_code())
    }
}

impl Place {
    fn preflight(&self, target: TargetName) -> Preflight {
        Preflight {
            nodes: self.nodes,
            node_rank: self.node_rank,
            mode: self.preflight,
            target: target.into(),
            store: Store { folder: self.out.clone(), frames: self.frames },
        }
    }
}

impl Look {
    fn at(&self, run: impl FnOnce(&Site<'_>) -> Result<u8, WorkerError>) -> Result<u8, Stop> {
        let choose = |facts: &Facts| match profile(&self.profile, facts) {
            Ok(chosen) => Ok(chosen.map(|(profile, _)| profile)),
            Err(stop) => Err(WorkerError::Usage(stop.message().to_owned())),
        };
        on_site(&self.source, &choose, run)
    }
}

/// Calls `run` with how this machine is read.
fn on_site(
    source: &Source,
    choose: &dyn Fn(&Facts) -> Result<Option<Profile>, WorkerError>,
    run: impl FnOnce(&Site<'_>) -> Result<u8, WorkerError>,
) -> Result<u8, Stop> {
    let program =
        itself().ok_or_else(|| Stop::access("this program cannot find its own file (/proc/self/exe)"))?;
    let read = || source.read(&collecting()).map_err(|stop| WorkerError::Access(stop.message().to_owned()));
    Ok(run(&Site { program, facts: &read, profile: choose, vars: &environment })?)
}

fn run_node(args: NodeArgs) -> Result<u8, Stop> {
    let NodeArgs { place, look, meet, ranks_per_node, collect, timeout, grace, argv } = args;
    let options = node::Options {
        shape: Shape::new(place.nodes, ranks_per_node, meet.contract)?,
        preflight: place.preflight(look.target),
        run: meet.run_id,
        master: meet.master,
        master_port: meet.master_port,
        pins: meet.pins,
        require_active: meet.require_hca_active,
        collect,
        timeout,
        grace,
        argv: argv.argv,
    };
    look.at(|site| node::run(&options, site))
}

fn run_rank(args: RankArgs) -> Result<u8, Stop> {
    let RankArgs { meet, source, ranks_per_node, record, argv } = args;
    let options = rank::Options {
        run: meet.run_id,
        contract: meet.contract,
        ranks_per_node,
        master: meet.master,
        master_port: meet.master_port,
        pins: meet.pins,
        require_active: meet.require_hca_active,
        record,
        argv: argv.argv,
    };
    on_site(&source, &|_| Ok(None), |site| rank::run(&options, site))
}
