//! Starting, watching, collecting and cleaning up.

pub mod command;
mod files;
pub mod follow;
pub mod kube;
pub mod launch;
pub mod process;
pub mod slurm;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use thiserror::Error;

/// What a person sees of a run that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A step of the launch itself: "applying 3 objects".
    Step(String),
    /// The state in plain words: "1 of 2 nodes at rendezvous; pod x-1: pulling the image (3 min)". Shown again only when it changes.
    State(String),
    /// A line of rank 0's log.
    Line(String),
    /// Something that a person should know at once.
    Warning(String),
}

/// Where events go.
pub trait Show {
    /// Shows one.
    fn show(&mut self, event: Event);
}

/// How a run ended, as far as the system tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every rank ended with 0.
    Succeeded,
    /// Something failed: what, in words; with the exit code of the first failure where it is known.
    Failed {
        /// "pod x-1: rank 9 ended with exit code 1".
        reason: String,
        /// The first failure's exit code.
        code: Option<i32>,
    },
    /// It could not start in time or cannot start at all (image, resources, rights): what to do.
    NeverStarted {
        /// In plain words.
        reason: String,
    },
    /// The deadline passed.
    Deadline {
        /// What it was doing.
        state: String,
    },
    /// Ctrl-C or SIGTERM.
    Interrupted,
}

/// Why nothing could be done.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DriveError {
    /// The program that talks to the system is not there: exit code 4.
    #[error("{0}")]
    NoProgram(String),
    /// Rights, credentials, connection: exit code 4.
    #[error("{0}")]
    Access(String),
    /// The request itself: another context, a namespace of the system, a run of that name that exists: exit code 2.
    #[error("{0}")]
    Refused(String),
    /// The system has no room for it by a rule of its own, as a quota: exit code 1.
    #[error("{0}")]
    Full(String),
    /// The system answered something that cannot be used: exit code 4.
    #[error("{0}")]
    System(String),
    /// A file of the bundle: exit code 4.
    #[error("cannot write {}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

impl DriveError {
    /// The exit code of a command that ends with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 2,
            Self::Full(_) => 1,
            Self::NoProgram(_) | Self::Access(_) | Self::System(_) | Self::File { .. } => 4,
        }
    }
}

/// How long to go on, and whether somebody asked to stop.
pub trait Stop {
    /// Ctrl-C or SIGTERM came.
    fn cancelled(&self) -> bool;
    /// It came a second time: what is left is to remove the run, and nothing else.
    fn hurried(&self) -> bool {
        false
    }
    /// Waits for so long, or until [`Stop::cancelled`].
    fn pause(&self, time: Duration);
}

/// Takes what a system hands over for the run's directory.
pub trait Collect {
    /// A log: of pod `x-0`, of `slurm-12`, of rank 3. It is cleaned of frames and secrets on its way.
    ///
    /// # Errors
    /// When it cannot be written.
    fn log(&mut self, name: &str, text: &[u8]) -> Result<(), DriveError>;
    /// A description of the system's objects at the end (`kubectl get events -o json`, `sacct`): useful to `diagnose`.
    ///
    /// # Errors
    /// When it cannot be written.
    fn state(&mut self, name: &str, text: &[u8]) -> Result<(), DriveError>;
    /// A file that workers left on a disk that is shared with this machine, under the worker's own name: `facts/node-0.json`,
    /// `exit/rank-3.json`, `collected/node-0/result.json`. Systems without such a disk leave it: their files come with the logs.
    ///
    /// # Errors
    /// When it cannot be written.
    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), DriveError> {
        self.state(name, bytes)
    }
    /// What could not be collected, and why: it is said, never passed over.
    fn missing(&mut self, what: &str, why: &str);
}

/// A system on which runs are started: Kubernetes, Slurm, processes over ssh.
pub trait System {
    /// Where it runs and what will be made, one line each, for the person to confirm.
    ///
    /// # Errors
    /// When the system cannot be asked.
    fn describe(&mut self) -> Result<Vec<String>, DriveError>;
    /// Looks whether the run may and can start: rights, a run of the same name, capacity. Changes nothing.
    ///
    /// # Errors
    /// When it may not or cannot; the message has the remedy (a minimal Role, `expertrail clean RUN`).
    fn ready(&mut self, show: &mut dyn Show) -> Result<(), DriveError>;
    /// Starts it. After an error, [`System::clean`] is called, unless it is [`System::untouched`].
    ///
    /// # Errors
    /// When the system refuses.
    fn start(&mut self, show: &mut dyn Show) -> Result<(), DriveError>;
    /// After a start that failed: whether it made nothing, as where another launch of the run came first. Whatever there is of the run is
    /// then another's, and is neither collected nor removed.
    fn untouched(&self) -> bool {
        false
    }
    /// Watches until the end, `until`, or a stop.
    ///
    /// # Errors
    /// When the system cannot be asked any more; the run may go on, and is collected and cleaned all the same.
    fn watch(&mut self, show: &mut dyn Show, stop: &dyn Stop, until: Instant) -> Result<Ending, DriveError>;
    /// Names of the nodes that it ran on, the node of rank 0 first; empty where the system does not tell. Asked after the run and
    /// before [`System::clean`]: `launch --ab` puts the other side on the same nodes.
    fn nodes(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// Hands over all logs of all nodes and ranks, before anything is deleted.
    ///
    /// # Errors
    /// When a file cannot be written. What the system does not give goes to [`Collect::missing`].
    fn collect(&mut self, to: &mut dyn Collect) -> Result<(), DriveError>;
    /// Removes from the run's directory what this launch wrote there and [`System::collect`] has handed over; what was not taken whole stays.
    /// Called after [`System::clean`], when nothing writes any more.
    fn tidy(&mut self, _: &mut dyn Show) {}
    /// Removes everything of this run, by its label or id alone. Nothing left is a success.
    ///
    /// # Errors
    /// When something stays; the message has the command that removes it.
    fn clean(&mut self, show: &mut dyn Show) -> Result<(), DriveError>;
}
