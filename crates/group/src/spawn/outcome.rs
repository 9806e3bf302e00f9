//! How a launch ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// How one rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankExit {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl RankExit {
    /// Whether it is exit code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// The signal's name, as `SIGKILL`; none for an exit code and for signals without a name.
    pub fn signal_name(self) -> Option<&'static str> {
        match self {
            Self::Signal(signal) => signal_name(signal),
            Self::Code(_) => None,
        }
    }

    pub(super) fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            // A status that is neither cannot come from waiting for an end.
            (None, None) => Self::Code(1),
        }
    }
}

impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "was killed by signal {signal} ({name})"),
                None => write!(f, "was killed by signal {signal}"),
            },
        }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    use signal_hook::consts::signal as s;
    Some(match signal {
        s::SIGHUP => "SIGHUP",
        s::SIGINT => "SIGINT",
        s::SIGQUIT => "SIGQUIT",
        s::SIGILL => "SIGILL",
        s::SIGTRAP => "SIGTRAP",
        s::SIGABRT => "SIGABRT",
        s::SIGBUS => "SIGBUS",
        s::SIGFPE => "SIGFPE",
        s::SIGKILL => "SIGKILL",
        s::SIGUSR1 => "SIGUSR1",
        s::SIGSEGV => "SIGSEGV",
        s::SIGUSR2 => "SIGUSR2",
        s::SIGPIPE => "SIGPIPE",
        s::SIGALRM => "SIGALRM",
        s::SIGTERM => "SIGTERM",
        s::SIGXCPU => "SIGXCPU",
        s::SIGXFSZ => "SIGXFSZ",
        s::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

/// How one rank fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankResult {
    /// Which.
    pub rank: usize,
    /// How it ended.
    pub exit: RankExit,
    /// Whether the launcher had told it to stop by then.
    pub stopped: bool,
    /// When it ended, from the start of the ranks.
    pub after: Duration,
}

/// The rank that failed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub rank: usize,
    /// How it ended.
    pub exit: RankExit,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.exit)
    }
}

/// What ended the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All ranks ended by themselves, or were stopped after one failed.
    Ended,
    /// SIGINT or SIGTERM.
    Interrupted,
    /// The launch's own deadline.
    Deadline,
}

/// How a launch ended; every rank is reaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What ended it.
    pub end: End,
    /// The first failure, before anything was stopped.
    pub first_failure: Option<Failure>,
    /// Every rank's end, in order of rank.
    pub ranks: Vec<RankResult>,
}

impl Outcome {
    /// Whether every rank exited with 0 by itself.
    pub fn is_success(&self) -> bool {
        self.end == End::Ended && self.ranks.iter().all(|rank| rank.exit.is_success())
    }

    /// The exit code of a program that only launches: 130 interrupted, 124 the launch's deadline, else the
    /// code of the first rank that failed (1 if a signal killed it), else 0.
    pub fn exit_code(&self) -> u8 {
        match (self.end, self.first_failure) {
            (End::Interrupted, _) => 130,
            (_, Some(Failure { exit: RankExit::Code(code), .. })) => u8::try_from(code).unwrap_or(1),
            (_, Some(Failure { exit: RankExit::Signal(_), .. })) => 1,
            (End::Deadline, None) => 124,
            (End::Ended, None) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_words() {
        let outcome = |end, first_failure| Outcome { end, first_failure, ranks: Vec::new() };
        let failure = |exit| Some(Failure { rank: 3, exit });
        assert_eq!(outcome(End::Ended, None).exit_code(), 0);
        assert_eq!(outcome(End::Ended, failure(RankExit::Code(124))).exit_code(), 124);
        assert_eq!(outcome(End::Ended, failure(RankExit::Signal(9))).exit_code(), 1);
        assert_eq!(outcome(End::Interrupted, failure(RankExit::Code(2))).exit_code(), 130);
        assert_eq!(outcome(End::Deadline, None).exit_code(), 124);
        assert_eq!(
            failure(RankExit::Signal(9)).unwrap().to_string(),
            "rank 3 was killed by signal 9 (SIGKILL)"
        );
        assert_eq!(failure(RankExit::Code(2)).unwrap().to_string(), "rank 3 exited with code 2");
        assert_eq!(RankExit::Signal(64).to_string(), "was killed by signal 64");
    }
}
