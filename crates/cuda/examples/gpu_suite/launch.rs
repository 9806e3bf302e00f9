//! Starts ranks, one for each GPU, and gathers what they say of their checks.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use expertrail_group::spawn::{LocalLaunch, Outcome, Prefix, RankExit};

use crate::settings::Settings;

/// What a rank prints before a check's number, and after it what went wrong (nothing if all is well).
const DONE: &str = "suite-check ";
/// What a rank prints before something it measured.
const NOTE: &str = "suite-note ";

/// Says how a check went on this rank. One write for each line: the launcher reads whole lines.
pub(crate) fn say(check: usize, result: &Result<(), String>) {
    let text = result.as_ref().err().map_or_else(String::new, |error| error.replace('\n', " "));
    println!("{DONE}{check} {text}");
}

/// Says something for the report.
pub(crate) fn note(text: &str) {
    println!("{NOTE}{text}");
}

/// Ranks of one launch.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) ranks: usize,
    pub(crate) gpus: usize,
    pub(crate) checks: Vec<usize>,
    /// Variables of all ranks.
    pub(crate) env: Vec<(&'static str, String)>,
    /// More than it takes: a rank that hangs must not hang the suite.
    pub(crate) limit: Duration,
    /// How long the others go on after one rank ended badly.
    pub(crate) grace: Duration,
}

/// How a launch went.
#[derive(Debug)]
pub(crate) struct Ended {
    ranks: usize,
    /// (rank, check, what went wrong).
    said: Vec<(usize, usize, String)>,
    pub(crate) notes: Vec<String>,
    outcome: Result<Outcome, String>,
    errors: String,
}

impl Launch<'_> {
    pub(crate) fn run(&self) -> Ended {
        let (out, err) = (Shared::default(), Shared::default());
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"));
        let outcome = program.and_then(|program| {
            let mut launch = LocalLaunch::new(program, self.ranks)
                .args(self.settings.for_rank(&self.checks, self.gpus))
                .prefix(Prefix::All)
                .grace(self.grace)
                .deadline(self.limit);
            for (name, value) in &self.env {
                launch = launch.env(name, value);
            }
            launch.run_to(out.clone(), err.clone()).map_err(|error| error.to_string())
        });
        let text = out.text();
        let notes = text.lines().filter_map(|line| Some(line.split_once(NOTE)?.1.to_owned())).collect();
        let said = text.lines().filter_map(done_line).collect();
        Ended { ranks: self.ranks, said, notes, outcome, errors: err.text() }
    }
}

impl Ended {
    /// What is wrong with a check that every rank in `wanted` must have come through.
    pub(crate) fn problem(&self, check: usize, wanted: impl Fn(usize) -> bool) -> Option<String> {
        let of_check: Vec<_> = self.said.iter().filter(|(_, number, _)| *number == check).collect();
        let wrong: Vec<String> = of_check
            .iter()
            .filter(|(_, _, text)| !text.is_empty())
            .map(|(rank, _, text)| format!("rank {rank}: {text}"))
            .collect();
        if !wrong.is_empty() {
            return Some(wrong.join("; "));
        }
        let missing: Vec<usize> = (0..self.ranks)
            .filter(|rank| wanted(*rank) && !of_check.iter().any(|(said, _, _)| said == rank))
            .collect();
        (!missing.is_empty()).then(|| format!("ranks {missing:?} did not come through: {}", self.ending()))
    }

    /// Whether SIGKILL ended the rank, and not the launcher's.
    pub(crate) fn was_killed(&self, rank: usize) -> bool {
        let end = self.outcome.as_ref().ok().and_then(|outcome| outcome.ranks.get(rank));
        end.is_some_and(|end| end.exit == RankExit::Signal(9) && !end.stopped)
    }

    /// What is wrong with the ranks' ends, those in `wanted`, after all checks were through.
    pub(crate) fn bad_end(&self, wanted: impl Fn(usize) -> bool) -> Option<String> {
        let fine = self.outcome.as_ref().is_ok_and(|outcome| {
            outcome.ranks.iter().enumerate().all(|(rank, end)| !wanted(rank) || end.exit.is_success())
        });
        (!fine).then(|| self.ending())
    }

    fn ending(&self) -> String {
        let ends = match &self.outcome {
            Ok(outcome) => {
                let ranks = outcome.ranks.iter().enumerate();
                let mut ends: Vec<String> =
                    ranks.map(|(rank, end)| format!("rank {rank} {}", end.exit)).collect();
                ends.push(format!("{:?}", outcome.end));
                ends.join(", ")
            }
            Err(error) => error.clone(),
        };
        // The end of what was written there: a panic's or the loader's words.
        let tail: Vec<&str> = self.errors.lines().rev().take(6).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        if tail.is_empty() { ends } else { format!("{ends}; {}", tail.join(" | ")) }
    }
}

/// `[rank 3] suite-check 7 text` into its parts.
fn done_line(line: &str) -> Option<(usize, usize, String)> {
    let (rank, rest) = line.split_once(DONE)?;
    let rank = rank.trim().strip_prefix("[rank ")?.strip_suffix(']')?.parse().ok()?;
    let (check, text) = rest.split_once(' ')?;
    Some((rank, check.parse().ok()?, text.to_owned()))
}

/// Collects what the ranks print.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        assert_eq!(done_line("[rank 3] suite-check 12 "), Some((3, 12, String::new())));
        let wrong = Some((0, 4, "row 7, 2 wanted".to_owned()));
        assert_eq!(done_line("[rank 0] suite-check 4 row 7, 2 wanted"), wrong);
        assert_eq!(done_line("[rank 0] something else"), None);
    }

    #[test]
    fn silence_is_no_success() {
        let said = vec![(0, 5, String::new()), (0, 6, "bad".to_owned())];
        let ended = Ended {
            ranks: 2,
            said,
            notes: Vec::new(),
            outcome: Err("gone".to_owned()),
            errors: String::new(),
        };
        assert_eq!(ended.problem(5, |rank| rank == 0), None);
        assert!(ended.problem(5, |_| true).is_some_and(|text| text.contains("ranks [1]")));
        assert_eq!(ended.problem(6, |_| true).as_deref(), Some("rank 0: bad"));
        assert!(ended.problem(7, |_| true).is_some());
        assert!(ended.bad_end(|_| true).is_some());
    }
}
