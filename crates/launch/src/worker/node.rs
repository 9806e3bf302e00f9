//! `expertrail worker node`: preflight of this node, then its ranks, then what they left.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use expertrail_cluster::check::{self, Report, Target};
use expertrail_cluster::facts::Facts;
use expertrail_cluster::profile::Profile;
use expertrail_group::spawn::{Crew, End, Outcome, RankExit};

use super::identity::{self, Master, NodeRank};
use super::pins::{self, Pins, Wanted};
use super::preflight::{self, Mode};
use super::store::Store;
use super::variables::{self, Member};
use super::words::{Place, is_of_rank};
use super::{Contract, EXEC, Lookup, SUBCOMMAND, Shape, WorkerError, exits, say};

/// How this machine is read, and which program this is.
pub struct Site<'a> {
    /// This program, to start the ranks through.
    pub program: PathBuf,
    /// Reads the facts of this node.
    pub facts: &'a dyn Fn() -> Result<Facts, WorkerError>,
    /// Chooses the provider profile to cross-check with.
    pub profile: &'a dyn Fn(&Facts) -> Result<Option<Profile>, WorkerError>,
    /// The worker's own variables.
    pub vars: Lookup<'a>,
}

/// The node and what it is looked at for.
#[derive(Clone, Debug)]
pub struct Preflight {
    /// Nodes of the run.
    pub nodes: usize,
    /// Index of this one, where it is given.
    pub node_rank: Option<usize>,
    /// What a failure does.
    pub mode: Mode,
    /// What the node is wanted for.
    pub target: Target,
    /// Where documents go.
    pub store: Store,
}

/// Everything that `worker node` is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node and its preflight.
    pub preflight: Preflight,
    /// Names the run.
    pub run: String,
    /// Nodes, ranks, contract.
    pub shape: Shape,
    /// Host (and port) of the first node.
    pub master: Option<String>,
    /// Port of the rendezvous.
    pub master_port: Option<u16>,
    /// NICs of the ranks.
    pub pins: Wanted,
    /// The ranks' NICs must be there and active.
    pub require_active: bool,
    /// Files to keep at the end.
    pub collect: Vec<String>,
    /// The worker's deadline.
    pub timeout: Option<Duration>,
    /// How long the others may go on after the first failure.
    pub grace: Duration,
    /// The ranks' program and its arguments.
    pub argv: Vec<String>,
}

/// Runs `worker preflight`; gives the exit code.
///
/// # Errors
/// When the node cannot be told or read, or is refused.
pub fn preflight(options: &Preflight, site: &Site<'_>) -> Result<u8, WorkerError> {
    let NodeRank { node, .. } = identity::node_rank(options.node_rank, options.nodes, site.vars)?;
    if options.mode == Mode::Off {
        say(&format!("node {node}: preflight is off"));
        return Ok(0);
    }
    look(options, site, node, &identity::host())?;
    Ok(0)
}

/// The preflight; gives the facts.
fn look(options: &Preflight, site: &Site<'_>, node: usize, host: &str) -> Result<Facts, WorkerError> {
    let facts = (site.facts)()?;
    let profile = (site.profile)(&facts)?;
    let wanted = check::Options { target: options.target, profile, rails: None };
    let report: Report = check::run(&facts, &wanted);
    let found = preflight::Node { index: node, host, facts: &facts, report: &report };
    preflight::run(options.mode, &found, &options.store)?;
    Ok(facts)
}

/// A node of a run, as far as it is known before its ranks start.
struct Placed<'a> {
    options: &'a Options,
    node: usize,
    host: String,
    master: Master,
    pins: Pins,
}

/// Runs `worker node`; gives the exit code: that of the first failure (128 and the number for a signal), 124 for the deadline, 130 when
/// interrupted.
///
/// # Errors
/// When the ranks are not started: wrong arguments, a node that is refused, or a system that does not start them.
pub fn run(options: &Options, site: &Site<'_>) -> Result<u8, WorkerError> {
    super::bond::watch(site.vars);
    let begun = Instant::now();
    let shape = options.shape;
    let NodeRank { node, source } = identity::node_rank(options.preflight.node_rank, shape.nodes, site.vars)?;
    let master = identity::master(options.master.as_deref(), options.master_port, shape.nodes, site.vars)?;
    let host = identity::host();
    say(&format!(
        "node {node} of {} ({source}) on {host}: run {}, {}, contract {}, rendezvous {}:{}",
        shape.nodes,
        options.run,
        identity::block(shape, node),
        shape.contract,
        master.host,
        master.port
    ));
    let needed = pins::wants_facts(&options.pins, options.require_active);
    let facts = match options.preflight.mode {
        Mode::Off if needed => Some((site.facts)()?),
        Mode::Off => None,
        Mode::Report | Mode::Strict => Some(look(&options.preflight, site, node, &host)?),
    };
    let pins = pins::resolve(&options.pins, shape, facts.as_ref(), site.vars)?;
    if options.require_active {
        pins::require_active(&pins, shape, facts.as_ref().unwrap_or(&Facts::default()), site.vars)?;
    }
    let left = match options.timeout.map(|timeout| timeout.checked_sub(begun.elapsed())) {
        Some(None) => {
            say(&format!("node {node}: the deadline passed before a rank was started"));
            return Ok(124);
        }
        Some(left) => left,
        None => None,
    };
    Placed { options, node, host, master, pins }.ranks(site, left)
}

impl Placed<'_> {
    fn ranks(&self, site: &Site<'_>, left: Option<Duration>) -> Result<u8, WorkerError> {
        let (node, shape) = (self.node, self.options.shape);
        self.pins.notes.iter().for_each(|note| say(&format!("node {node}: {note}")));
        let members: Vec<Member<'_>> = shape
            .numbers(node)
            .enumerate()
            .map(|(local_rank, number)| Member {
                shape,
                node: Some(node),
                number,
                local_rank,
                master: &self.master,
                run: &self.options.run,
                pin: self.pins.get(local_rank),
            })
            .collect();
        let settings: Vec<Vec<variables::Setting>> = members.iter().map(variables::of).collect();
        for note in variables::notes(&settings, shape.contract, site.vars) {
            say(&format!("node {node}: {note}"));
        }
        for member in &members {
            if let Some(pin) = member.pin {
                say(&format!("node {node}: rank {} uses {pin}", member.number));
            }
        }
        let commands = members
            .iter()
            .zip(settings)
            .map(|(member, set)| (member.number, self.command(member, set, &site.program)));
        let mut crew = Crew::new(commands.collect()).grace(self.options.grace);
        if let Some(left) = left {
            crew = crew.deadline(left);
        }
        say(&format!(
            "node {node} of {}: starting {} as {}",
            shape.nodes,
            identity::block(shape, node),
            self.options.argv.first().map_or("", String::as_str)
        ));
        let outcome = crew.run().map_err(|error| WorkerError::Access(format!("node {node}: {error}")))?;
        let code = self.report(&outcome)?;
        self.options.preflight.store.collect(node, &self.files());
        Ok(code)
    }

    /// The place that the words of arguments stand for.
    fn place(&self, local_rank: usize) -> Place<'_> {
        let shape = self.options.shape;
        let rank = match shape.contract {
            Contract::Ranks => self.node * shape.ranks_per_node + local_rank,
            Contract::Nodes => self.node,
        };
        Place {
            run: &self.options.run,
            node: self.node,
            rank,
            local_rank,
            nodes: shape.nodes,
            ranks: shape.ranks(),
            ranks_per_node: shape.ranks_per_node,
        }
    }

    fn command(&self, member: &Member<'_>, settings: Vec<variables::Setting>, program: &Path) -> Command {
        let place = self.place(member.local_rank);
        let mut command = Command::new(program);
        command.args([SUBCOMMAND, EXEC, "--"]).args(self.options.argv.iter().map(|arg| place.fill(arg)));
        command.stdin(Stdio::null());
        for (name, value) in settings {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Says how each rank ended; gives the exit code.
    fn report(&self, outcome: &Outcome) -> Result<u8, WorkerError> {
        let node = self.node;
        for result in &outcome.ranks {
            let (rank, after) = (result.rank, result.after.as_secs_f64());
            let verb = match result.exit {
                RankExit::Code(_) => "ended with",
                RankExit::Signal(_) => "was",
            };
            let ended = format!("{verb} {}", exits::words(result.exit));
            let stopped = if result.stopped { " (stopped by the worker)" } else { "" };
            say(&format!("node {node}: rank {rank} {ended} after {after:.1} s{stopped}"));
            let exit = exits::Exit::new(result, Some(node), &self.host);
            self.options.preflight.store.document(&exit.file(), &exit)?;
        }
        match outcome.end {
            End::Interrupted => say(&format!("node {node}: interrupted: its ranks were stopped")),
            End::Deadline => say(&format!("node {node}: the deadline passed: its ranks were stopped")),
            End::Ended => {}
        }
        if let Some(first) = outcome.first_failure {
            let after = outcome.ranks.iter().find(|result| result.rank == first.rank);
            let after = after.map_or(0.0, |result| result.after.as_secs_f64());
            say(&format!(
                "node {node}: first failure: rank {}, {} after {after:.1} s",
                first.rank,
                exits::words(first.exit)
            ));
        } else if outcome.end == End::Ended {
            say(&format!("node {node}: all ranks passed"));
        }
        Ok(exit_code(outcome))
    }

    /// The files to collect, a name for each rank where it differs from rank to rank.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        for pattern in &self.options.collect {
            let count = if is_of_rank(pattern) { self.options.shape.ranks_per_node } else { 1 };
            for local_rank in 0..count {
                let name = self.place(local_rank).fill(pattern);
                if !files.contains(&name) {
                    files.push(name);
                }
            }
        }
        files
    }
}

/// The exit code of what ended so.
pub(super) fn exit_code(outcome: &Outcome) -> u8 {
    match (outcome.end, outcome.first_failure) {
        (End::Interrupted, _) => 130,
        (_, Some(failure)) => exits::code(failure.exit),
        (End::Deadline, None) => 124,
        (End::Ended, None) => 0,
    }
}
