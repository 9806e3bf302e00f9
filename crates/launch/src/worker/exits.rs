//! How ranks ended, as documents of one rank each: `exit/rank-N.json`.

use serde::{Deserialize, Serialize};

use expertrail_group::spawn::{RankExit, RankResult};

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.exit/1";

/// How one rank ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// [`SCHEMA`].
    pub schema: String,
    /// Number of the process: its global rank; with the contract of nodes, the index of its node.
    pub rank: usize,
    /// Index of the node, where it is known.
    pub node: Option<usize>,
    /// Name of the host.
    pub host: String,
    /// Exit code; none where a signal ended it.
    pub code: Option<i32>,
    /// Number of the signal that ended it.
    pub signal: Option<i32>,
    /// Name of that signal: `SIGKILL`.
    pub signal_name: Option<String>,
    /// Seconds from its start to its end.
    pub seconds: f64,
    /// The worker stopped it: another rank had failed, the deadline had passed, or the run was interrupted.
    pub stopped: bool,
}

impl Exit {
    /// The end of one process on `host`.
    pub fn new(result: &RankResult, node: Option<usize>, host: &str) -> Self {
        let (code, signal) = match result.exit {
            RankExit::Code(code) => (Some(code), None),
            RankExit::Signal(signal) => (None, Some(signal)),
        };
        Self {
            schema: SCHEMA.to_owned(),
            rank: result.rank,
            node,
            host: host.to_owned(),
            code,
            signal,
            signal_name: result.exit.signal_name().map(str::to_owned),
            // A thousandth is as exact as the wait is.
            seconds: (result.after.as_secs_f64() * 1000.0).round() / 1000.0,
            stopped: result.stopped,
        }
    }

    /// Name of the document.
    pub fn file(&self) -> String {
        format!("exit/rank-{}.json", self.rank)
    }
}

/// `exit code 1`, `killed by SIGKILL`.
pub fn words(exit: RankExit) -> String {
    match (exit, exit.signal_name()) {
        (RankExit::Code(code), _) => format!("exit code {code}"),
        (RankExit::Signal(_), Some(name)) => format!("killed by {name}"),
        (RankExit::Signal(signal), None) => format!("killed by signal {signal}"),
    }
}

/// The exit code that a shell gives: a signal is 128 and its number.
pub fn code(exit: RankExit) -> u8 {
    match exit {
        RankExit::Code(code) => u8::try_from(code).unwrap_or(1),
        RankExit::Signal(signal) => u8::try_from(signal).ok().and_then(|n| n.checked_add(128)).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_signal_has_no_code_and_a_code_no_signal() {
        let result =
            |exit| RankResult { rank: 9, exit, stopped: false, after: Duration::from_micros(204_512_700) };
        let exit = Exit::new(&result(RankExit::Signal(9)), Some(1), "gpu-1");
        assert_eq!((exit.code, exit.signal, exit.signal_name.as_deref()), (None, Some(9), Some("SIGKILL")));
        assert_eq!((exit.file().as_str(), exit.seconds), ("exit/rank-9.json", 204.513));
        let exit = Exit::new(&result(RankExit::Code(1)), None, "gpu-1");
        assert_eq!((exit.code, exit.signal, exit.signal_name), (Some(1), None, None));
        assert_eq!(
            (code(RankExit::Signal(9)), code(RankExit::Signal(15)), code(RankExit::Code(3))),
            (137, 143, 3)
        );
    }
}
