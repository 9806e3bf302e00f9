//! Starts ranks on this host, passes their output on, and reaps every one of them.
//!
//! Each rank gets the explicit `EXPERTRAIL_*` identity, so that
//! [`Group::from_env`](crate::Group::from_env) in it just works. The launcher binds rank 0's port itself,
//! to a free one, and hands the listening socket to rank 0 as its standard input: no other process can
//! take the port in between, and any number of launches run side by side.
//!
//! Each rank leads a process group of its own. Stopping a rank therefore reaches what it started, and
//! Ctrl-C reaches the launcher alone, which stops the ranks in order.

mod crew;
mod outcome;
mod output;
mod supervise;

pub use crew::Crew;
pub use outcome::{End, Failure, Outcome, RankExit, RankResult};

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use thiserror::Error;

use crate::identity::MAX_WORLD;
use crate::listen::LISTEN_FD;
use crate::token::JobToken;
use crew::Limits;

/// Whose lines are marked with `[rank N] `.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prefix {
    /// All lines of all ranks.
    #[default]
    All,
    /// All but the standard output of this rank, which passes unchanged: its tables and JSON stay what
    /// they are. Its standard error is marked.
    AllBut(usize),
    /// None.
    None,
}

/// Why the ranks could not be started. None is left running.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchError {
    /// The numbers make no sense.
    #[error(
        "{ranks} ranks, {ranks_per_node} per node: both must be at least 1, the ranks at most {MAX_WORLD}"
    )]
    Shape {
        /// Ranks asked for.
        ranks: usize,
        /// Ranks per node asked for.
        ranks_per_node: usize,
    },
    /// A rank's program did not start.
    #[error("cannot start {program} as rank {rank}: {reason}; the ranks started before it were stopped")]
    Start {
        /// The program.
        program: String,
        /// The rank.
        rank: usize,
        /// What the system said.
        reason: String,
    },
    /// The system refused something else.
    #[error("{what}: {reason}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
}

/// A launch of ranks on this host.
#[derive(Clone, Debug)]
pub struct LocalLaunch {
    program: OsString,
    args: Vec<OsString>,
    ranks: usize,
    ranks_per_node: usize,
    env: Vec<(OsString, OsString)>,
    prefix: Prefix,
    limits: Limits,
}

impl LocalLaunch {
    /// `ranks` processes of `program`, all on one declared node.
    pub fn new(program: impl AsRef<OsStr>, ranks: usize) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            ranks,
            ranks_per_node: ranks,
            env: Vec::new(),
            prefix: Prefix::All,
            limits: Limits::default(),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable of all ranks. The identity's own variables cannot be set this way.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Declares nodes of so many ranks each: a topology to test with, all on this host.
    #[must_use]
    pub fn ranks_per_node(mut self, ranks_per_node: usize) -> Self {
        self.ranks_per_node = ranks_per_node;
        self
    }

    /// Chooses whose lines are marked.
    #[must_use]
    pub fn prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// How long the other ranks may go on after the first failure, to notice it and say so themselves; 5 s
    /// unless set.
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

    /// Runs the ranks to their end; their output goes to this process's standard output and error.
    ///
    /// SIGINT and SIGTERM stop the ranks while this runs; a second one kills them. Call it from a thread
    /// that lives until it returns: the ranks' bond to their launcher is to that thread.
    ///
    /// # Errors
    /// When not all ranks could be started; none is left running then. How the ranks themselves fared is in
    /// the [`Outcome`].
    pub fn run(&self) -> Result<Outcome, LaunchError> {
        self.run_to(std::io::stdout(), std::io::stderr())
    }

    /// As [`run`](Self::run), with the output going elsewhere.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_to(
        &self,
        out: impl Write + Send + 'static,
        err: impl Write + Send + 'static,
    ) -> Result<Outcome, LaunchError> {
        if self.ranks == 0 || self.ranks > MAX_WORLD || self.ranks_per_node == 0 {
            return Err(LaunchError::Shape { ranks: self.ranks, ranks_per_node: self.ranks_per_node });
        }
        Crew::new(self.commands()?).prefix(self.prefix).limits(self.limits).run_to(out, err)
    }

    fn commands(&self) -> Result<Vec<(usize, Command)>, LaunchError> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("binding a port for rank 0"))?;
        let port = listener.local_addr().map_err(system("binding a port for rank 0"))?.port();
        let job = JobToken::random();
        // The socket goes with rank 0's command, once that is started: from then on the port lives and dies with rank 0.
        let mut stdin = Some(Stdio::from(OwnedFd::from(listener)));
        let commands = (0..self.ranks).map(|rank| {
            let mut command = self.command(rank, port, &job);
            command.stdin(stdin.take().unwrap_or_else(Stdio::null));
            (rank, command)
        });
        Ok(commands.collect())
    }

    fn command(&self, rank: usize, port: u16, job: &JobToken) -> Command {
        let (node, local_rank) = (rank / self.ranks_per_node, rank % self.ranks_per_node);
        let local_size = self.ranks_per_node.min(self.ranks - node * self.ranks_per_node);
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        // What a launch around this one, or the user's shell, said of ports is not about these ranks.
        for stale in ["EXPERTRAIL_PORT", LISTEN_FD] {
            command.env_remove(stale);
        }
        command
            .env("EXPERTRAIL_RANK", rank.to_string())
            .env("EXPERTRAIL_WORLD_SIZE", self.ranks.to_string())
            .env("EXPERTRAIL_LOCAL_RANK", local_rank.to_string())
            .env("EXPERTRAIL_LOCAL_SIZE", local_size.to_string())
            .env("EXPERTRAIL_NODE", node.to_string())
            .env("EXPERTRAIL_ROOT", format!("127.0.0.1:{port}"))
            .env("EXPERTRAIL_JOB", job.to_string());
        if rank == 0 {
            command.env(LISTEN_FD, "0");
        }
        command
    }
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> LaunchError {
    move |error| LaunchError::System { what, reason: error.to_string() }
}
