//! A case: everything that rules may ask about a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::event::{Event, Place, Role};
use crate::facts::Facts;
use crate::finding::{Finding, Status};
use crate::stack::{self, Judgement, Question};

/// How often a signal occurred, also where its events were too many to keep.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Lines.
    pub lines: u64,
    /// Ranks that wrote them, where known.
    pub ranks: BTreeSet<u32>,
    /// Hosts or pods that wrote them, where known.
    pub nodes: BTreeSet<Arc<str>>,
    /// Indexes into the events that are kept, in order of reading.
    pub events: Vec<usize>,
}

/// A variable's value, as a log shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The value.
    pub value: String,
    /// Where.
    pub place: Place,
}

/// What is known of a run: its logs, and what was given beside them.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is something that the logs show or do not")]
pub struct Case {
    /// Names of the files.
    pub files: Vec<String>,
    /// Events that are kept, in order of reading.
    pub events: Vec<Event>,
    /// By signal id.
    pub tallies: BTreeMap<&'static str, Tally>,
    /// Ranks that wrote anything at all.
    pub ranks_seen: BTreeSet<u32>,
    /// Hosts or pods that wrote anything at all.
    pub nodes_seen: BTreeSet<Arc<str>>,
    /// Lines name pods as their writers (`[pod/<name>/<container>]`).
    pub pods: bool,
    /// Number of ranks of the run, where something says so.
    pub world: Option<u32>,
    /// Ranks of one node, where something says so.
    pub per_node: Option<u32>,
    /// Environment variables as the logs show them, first value seen.
    pub variables: BTreeMap<String, Variable>,
    /// An environment was printed whole for at least one process: a variable that is not in it was not set.
    pub environment_printed: bool,
    /// Versions, from the logs, `--stack` and facts, in the keys of `expertrail stack`.
    pub question: Question,
    /// The verdict of the table of versions over [`Case::question`].
    pub stack: stack::Verdict,
    /// Facts of a node, where given.
    pub facts: Option<Box<Facts>>,
    /// What `check` says of those facts.
    pub preflight: Vec<Finding>,
    /// Causes that `judge` reads from benchmark figures in the logs: cause id, why, where.
    pub judged: Vec<(&'static str, String, Place)>,
    /// `judge` fails figures of these logs, for whatever cause.
    pub figures_fail: bool,
    /// Part of the input was not read, or nothing in it is known: without a finding it says nothing good either.
    pub incomplete: bool,
    /// What should be said of the input: files that could not be read, several versions of one library.
    pub notes: Vec<String>,
}

impl Case {
    /// Name of a file.
    pub fn file(&self, file: u32) -> &str {
        self.files.get(file as usize).map_or("?", String::as_str)
    }

    /// The event at a place, the first of several, of those that are kept.
    pub fn at(&self, place: Place) -> Option<&Event> {
        self.events.iter().find(|event| event.place == place)
    }

    /// Whether the signal occurred.
    pub fn has(&self, signal: &str) -> bool {
        self.tallies.get(signal).is_some_and(|tally| tally.lines > 0)
    }

    /// Whether one of the signals occurred.
    pub fn has_any(&self, signals: &[&str]) -> bool {
        signals.iter().any(|signal| self.has(signal))
    }

    /// Lines of the signal.
    pub fn count(&self, signal: &str) -> u64 {
        self.tallies.get(signal).map_or(0, |tally| tally.lines)
    }

    /// Events of the signal that are kept, in order of reading.
    pub fn events<'a>(&'a self, signal: &str) -> impl Iterator<Item = &'a Event> + use<'a> {
        let kept: &'a [usize] = self.tallies.get(signal).map_or(&[], |tally| tally.events.as_slice());
        kept.iter().filter_map(|&index| self.events.get(index))
    }

    /// The earliest event of the signal: by time where comparable, else in order of reading.
    pub fn first<'a>(&'a self, signal: &str) -> Option<&'a Event> {
        earliest(self.events(signal))
    }

    /// The earliest event of any of the signals.
    pub fn first_of<'a>(&'a self, signals: &[&str]) -> Option<&'a Event> {
        earliest(signals.iter().filter_map(|signal| self.first(signal)))
    }

    /// Ranks that wrote the signal.
    pub fn ranks(&self, signal: &str) -> BTreeSet<u32> {
        self.tallies.get(signal).map(|tally| tally.ranks.clone()).unwrap_or_default()
    }

    /// Hosts or pods that wrote the signal.
    pub fn nodes(&self, signal: &str) -> BTreeSet<Arc<str>> {
        self.tallies.get(signal).map(|tally| tally.nodes.clone()).unwrap_or_default()
    }

    /// The earliest failure: what went wrong first, as far as times and places tell.
    pub fn first_failure(&self) -> Option<&Event> {
        earliest(self.events.iter().filter(|event| event.role == Role::Failure))
    }

    /// Whether every line of `first` that is kept came before the first of `second`; none where times and places do not tell.
    pub fn before(&self, first: &str, second: &str) -> Option<bool> {
        self.first(first)?.before(self.first(second)?)
    }

    /// Node of a rank, by [`Case::per_node`].
    pub fn node_of(&self, rank: u32) -> Option<u32> {
        self.per_node.filter(|per| *per > 0).map(|per| rank / per)
    }

    /// Ranks of the run that did not write the signal; none where the number of ranks is not known.
    pub fn ranks_without(&self, signal: &str) -> Option<BTreeSet<u32>> {
        let with = self.ranks(signal);
        self.world.map(|world| (0..world).filter(|rank| !with.contains(rank)).collect())
    }

    /// A variable's value, as the logs show it.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|variable| variable.value.as_str())
    }

    /// A version, in the keys of `expertrail stack` (`nvshmem`, `deep_ep`, `commit`, `564`, `nccl` ...).
    pub fn version(&self, key: &str) -> Option<&str> {
        self.question.get(key)
    }

    /// Whether the table of versions says that this stack fails by `cause`. `Some(false)`: it applies no row of it; `None`: it may.
    pub fn stack_says(&self, cause: &str) -> Option<bool> {
        let of = |rows: &[stack::Match]| {
            rows.iter().any(|found| found.row.cause == cause && found.row.verdict == Judgement::KnownBad)
        };
        if of(&self.stack.applies) || of(&self.stack.cautions) {
            Some(true)
        } else if of(&self.stack.possible) {
            None
        } else {
            Some(false)
        }
    }

    /// Whether `check` finds `cause` on the node whose facts were given; none without facts.
    pub fn preflight_says(&self, cause: &str) -> Option<bool> {
        self.facts.as_ref()?;
        let bad = |finding: &&Finding| matches!(finding.status, Status::Fail | Status::Warn);
        Some(self.preflight.iter().filter(bad).any(|finding| finding.cause.as_deref() == Some(cause)))
    }
}

/// The earliest of events that may not all compare: the first one that no other is known to precede.
pub fn earliest<'a>(events: impl Iterator<Item = &'a Event>) -> Option<&'a Event> {
    events.fold(None, |best: Option<&Event>, event| match best {
        Some(best) if event.before(best) != Some(true) => Some(best),
        _ => Some(event),
    })
}
