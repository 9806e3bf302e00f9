//! Ranks whose commands the caller made: a part of a larger world, or programs that know nothing of groups.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::output::{Forwarder, Marked};
use super::{LaunchError, Outcome, Prefix, supervise, system};
use crate::parent::PARENT_PID;

/// When ranks are stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) grace: Duration,
    pub(super) term_grace: Duration,
    pub(super) deadline: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), term_grace: Duration::from_secs(3), deadline: None }
    }
}

/// Processes of this host that are ranks of something, each with a number of the caller's and a command that the caller made.
///
/// What [`LocalLaunch`](super::LocalLaunch) does for a whole world (whole marked lines, process groups, the first failure, deadlines,
/// signals, every process reaped) this does for any commands. No identity is given to them. Each is told its launcher
/// (`EXPERTRAIL_PARENT_PID`), so that one that calls [`exec_bound`](crate::exec_bound) or
/// [`bind_to_parent`](crate::bind_to_parent) ends with it.
#[derive(Debug)]
pub struct Crew {
    ranks: Vec<(usize, Command)>,
    prefix: Prefix,
    inherit: bool,
    limits: Limits,
}

impl Crew {
    /// Ranks with their numbers, in the order in which they are started.
    pub fn new(ranks: Vec<(usize, Command)>) -> Self {
        Self { ranks, prefix: Prefix::All, inherit: false, limits: Limits::default() }
    }

    /// Chooses whose lines are marked.
    #[must_use]
    pub fn prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// The ranks write to this process's own standard output and error, unmarked, and not through it.
    #[must_use]
    pub fn inherit_output(mut self) -> Self {
        self.inherit = true;
        self
    }

    /// How long the other ranks may go on after the first failure; 5 s unless set.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.limits.grace = grace;
        self
    }

    /// How long after SIGTERM the ranks get SIGKILL; 3 s unless set.
    #[must_use]
    pub fn term_grace(mut self, term_grace: Duration) -> Self {
        self.limits.term_grace = term_grace;
        self
    }

    /// Stops all ranks after this time; none unless set.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.limits.deadline = Some(deadline);
        self
    }

    pub(super) fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Runs the ranks to their end; signals and the calling thread are as in [`LocalLaunch::run`](super::LocalLaunch::run).
    /// [`Outcome::ranks`] is in the order of [`Crew::new`].
    ///
    /// # Errors
    /// When not all ranks could be started; none is left running then.
    pub fn run(self) -> Result<Outcome, LaunchError> {
        self.run_to(std::io::stdout(), std::io::stderr())
    }

    /// As [`run`](Self::run), with the output going elsewhere.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_to(
        self,
        out: impl Write + Send + 'static,
        err: impl Write + Send + 'static,
    ) -> Result<Outcome, LaunchError> {
        let Self { ranks, prefix, inherit, limits } = self;
        // Two pipes and a process handle for each rank.
        crate::listen::raise_descriptor_limit(3 * ranks.len());
        // Before the first child is there: an interrupt must not leave one behind.
        let signals = crate::interrupt::Watch::new().map_err(system("installing signal handlers"))?;
        let (numbers, mut children) = start(ranks, inherit)?;
        let marked = Marked { numbers: &numbers, prefix };
        let forwarder = Forwarder::start(&mut children, &marked, (Box::new(out), Box::new(err)));
        let forwarder = forwarder.inspect_err(|_| supervise::kill_all(&mut children))?;
        let outcome = supervise::supervise(numbers.into_iter().zip(children).collect(), limits, &signals);
        forwarder.finish(&signals);
        Ok(outcome)
    }
}

fn start(ranks: Vec<(usize, Command)>, inherit: bool) -> Result<(Vec<usize>, Vec<Child>), LaunchError> {
    let mut numbers = Vec::with_capacity(ranks.len());
    let mut children = Vec::with_capacity(ranks.len());
    for (rank, mut command) in ranks {
        command.process_group(0).env(PARENT_PID, std::process::id().to_string());
        if !inherit {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        // What a command holds (the socket of rank 0) goes with it at the end of this turn.
        match command.spawn() {
            Ok(child) => {
                numbers.push(rank);
                children.push(child);
            }
            Err(error) => {
                supervise::kill_all(&mut children);
                let program = command.get_program().display().to_string();
                return Err(LaunchError::Start { program, rank, reason: error.to_string() });
            }
        }
    }
    Ok((numbers, children))
}
