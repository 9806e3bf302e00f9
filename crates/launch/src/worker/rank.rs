//! `expertrail worker rank`: one rank under srun or mpirun. It sets the rank's variables and pins, then becomes the rank's program; or it
//! runs it as a child and writes down how it ended.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use expertrail_cluster::facts::Facts;
use expertrail_cluster::topo;
use expertrail_group::spawn::Crew;

use super::launched::{self, Launched};
use super::node::Site;
use super::pins::{self, Pins, Wanted};
use super::store::Store;
use super::variables::{self, Member, Setting};
use super::words::Place;
use super::{Contract, EXEC, SUBCOMMAND, WorkerError, exits, identity, node, say};

/// Everything that `worker rank` is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names the run.
    pub run: String,
    /// What `RANK` and `WORLD_SIZE` count.
    pub contract: Contract,
    /// Ranks of each node, where the launcher may not tell, or to be compared.
    pub ranks_per_node: Option<usize>,
    /// Host (and port) of the first node.
    pub master: Option<String>,
    /// Port of the rendezvous.
    pub master_port: Option<u16>,
    /// NICs of the ranks.
    pub pins: Wanted,
    /// The rank's NIC must be there and active.
    pub require_active: bool,
    /// Run the program as a child and write `exit/rank-N.json` under this folder.
    pub record: Option<PathBuf>,
    /// The program and its arguments.
    pub argv: Vec<String>,
}

/// Becomes the rank's program; comes back only with an error, or with the exit code of a recorded child.
///
/// # Errors
/// When the rank cannot be told, is refused, or does not start.
pub fn run(options: &Options, site: &Site<'_>) -> Result<u8, WorkerError> {
    let found = launched::find(options.contract, options.ranks_per_node, site.vars)?;
    let shape = found.shape;
    let master = identity::master(options.master.as_deref(), options.master_port, shape.nodes, site.vars)?;
    let pin = pin(options, &found, site)?;
    let member = Member {
        shape,
        node: found.node,
        number: found.rank,
        local_rank: found.local_rank,
        master: &master,
        run: &options.run,
        pin: pin.as_deref(),
    };
    let settings = variables::of(&member);
    announce(&found, &settings, site);
    if let Some(pin) = member.pin {
        say(&format!("rank {} uses {pin}", found.rank));
    }
    let place = Place {
        run: &options.run,
        // Words that nobody can fill are rare: ranks mapped by hand.
        node: found.node.unwrap_or(0),
        rank: found.rank,
        local_rank: found.local_rank,
        nodes: shape.nodes,
        ranks: shape.ranks(),
        ranks_per_node: shape.ranks_per_node,
    };
    if found.node.is_none() && options.argv.iter().any(|arg| arg.contains("{node}")) {
        return Err(WorkerError::Usage(format!(
            "{} does not tell which node rank {} is on, and the arguments hold {{node}}: map ranks in blocks or in turn, or leave it out",
            found.by, found.rank
        )));
    }
    let argv: Vec<String> = options.argv.iter().map(|arg| place.fill(arg)).collect();
    match &options.record {
        None => Err(become_it(&argv, settings)),
        Some(folder) => {
            super::bond::watch(site.vars);
            record(folder, &found, command(&site.program, &argv, settings))
        }
    }
}

/// The NICs of this rank.
fn pin(options: &Options, found: &Launched, site: &Site<'_>) -> Result<Option<String>, WorkerError> {
    let shape = found.shape;
    let facts =
        pins::wants_facts(&options.pins, options.require_active).then(|| (site.facts)()).transpose()?;
    let none = Facts::default();
    let facts = facts.as_ref().unwrap_or(&none);
    // Only the own one is asked of the topology: a launcher may show a rank no other GPU.
    let mut own = pins::resolve(&options.pins, shape, Some(facts), site.vars);
    if options.pins == Wanted::Auto && !matches!(&own, Ok(Pins { of, .. }) if of.is_empty()) {
        let pin = pins::of_rank(&topo::map(facts), found.local_rank, shape.ranks_per_node)?;
        own = Ok(Pins { of: vec![pin], notes: own.map(|pins| pins.notes).unwrap_or_default() });
    } else if let Ok(pins) = &mut own {
        pins.of = pins.get(found.local_rank).map(str::to_owned).into_iter().collect();
    }
    let own = own?;
    if found.local_rank == 0 {
        own.notes.iter().for_each(|note| say(note));
    }
    if options.require_active {
        pins::require_active(&own, shape, facts, site.vars)?;
    }
    Ok(own.of.into_iter().next())
}

/// Says what is replaced, once a node.
fn announce(found: &Launched, settings: &[Setting], site: &Site<'_>) {
    if found.local_rank != 0 {
        return;
    }
    let node = found.node.map_or_else(|| "a node".to_owned(), |node| format!("node {node}"));
    for note in variables::notes(&[settings.to_vec()], found.shape.contract, site.vars) {
        say(&format!("{node}: {note}"));
    }
    if found.node.is_none() {
        say(&format!(
            "rank {}: {} mapped ranks neither in blocks nor in turn: NODE_RANK and GROUP_RANK are not set",
            found.rank, found.by
        ));
    }
    let (shape, by) = (found.shape, found.by);
    say(&format!("{node} of {}: its ranks of {} were started by {by}", shape.nodes, shape.world()));
}

fn set(command: &mut Command, settings: Vec<Setting>) {
    for (name, value) in settings {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

fn become_it(argv: &[String], settings: Vec<Setting>) -> WorkerError {
    let Some((program, args)) = argv.split_first() else {
        return WorkerError::Usage("no program for the rank: give it after --".to_owned());
    };
    let mut command = Command::new(program);
    set(&mut command, settings);
    let error = command.args(args).exec();
    WorkerError::Access(format!("cannot start {program}: {error}"))
}

fn command(program: &Path, argv: &[String], settings: Vec<Setting>) -> Command {
    let mut command = Command::new(program);
    command.args([SUBCOMMAND, EXEC, "--"]).args(argv);
    set(&mut command, settings);
    command
}

/// Runs the child to its end, with this process's own output, and writes down how that was.
fn record(folder: &Path, found: &Launched, command: Command) -> Result<u8, WorkerError> {
    let crew = Crew::new(vec![(found.rank, command)]).inherit_output();
    let outcome = crew.run().map_err(|error| WorkerError::Access(error.to_string()))?;
    let store = Store { folder: Some(folder.to_owned()), frames: false };
    for result in &outcome.ranks {
        let exit = exits::Exit::new(result, found.node, &identity::host());
        store.document(&exit.file(), &exit)?;
    }
    Ok(node::exit_code(&outcome))
}
