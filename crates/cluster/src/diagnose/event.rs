//! What is kept of a log: lines that mean something.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a kind of line is in the story of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A failure in its own right: it can be the first thing that went wrong.
    Failure,
    /// Comes after a failure elsewhere: teardown, watchdogs of waiting ranks, boilerplate of launchers. It can only be the first thing seen
    /// where everything else is missing.
    Follower,
    /// Scary, and harmless alone: it matters to a rule that asks for it.
    Warning,
    /// Says what is there: versions, settings, devices.
    Context,
    /// Says how far a rank came.
    Progress,
    /// Says that a run, a test or a step of it ended well.
    Success,
}

/// A kind of line.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// `deepep-timeout-dispatch-cpu`: lower case, joined by hyphens, unique.
    pub id: &'static str,
    /// Literal texts of which one must be in the line, after prefixes and colours are taken off. Long and telling ones: they are
    /// searched for in every line.
    pub any: &'static [&'static str],
    /// A regular expression that must match as well; its named groups become [`Event::field`]s.
    pub pattern: Option<&'static str>,
    /// What it is in the story.
    pub role: Role,
}

impl Signal {
    /// A signal of nothing, which tables are filled with before.
    pub const BLANK: Self = Self { id: "", any: &[], pattern: None, role: Role::Context };
}

/// Where a line stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Which of the files, from 0 ([`Case::file`](super::Case::file) names it).
    pub file: u32,
    /// Line number, from 1. A `\r` ends no line.
    pub line: u64,
}

/// The clock of times whose zone is known.
pub const ZONED: u8 = 254;

/// Zones are up to 14 hours from UTC: a time without one that differs by more is surely earlier or later.
const ZONES: f64 = 14.0 * 3600.0;

/// A line that means something.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its kind.
    pub signal: &'static str,
    /// What that is in the story.
    pub role: Role,
    /// Where it stands.
    pub place: Place,
    /// Rank that wrote it, where a prefix, the line itself or its file tells.
    pub rank: Option<u32>,
    /// Host or pod that wrote it, where something tells.
    pub node: Option<Arc<str>>,
    /// When, in seconds of the clock `clock`.
    pub time: Option<f64>,
    /// Which clock: times compare within one only (0: with date and without a zone; [`ZONED`]: with both; 1: time of day; 2 and more: the kernel log of one file, by seconds since its
    /// start).
    pub clock: u8,
    /// Named groups of the signal's pattern.
    pub fields: Vec<(&'static str, String)>,
    /// The line, shortened.
    pub text: String,
}

/// Seconds.
const HALF_A_DAY: f64 = 43_200.0;

impl Event {
    /// The text of the pattern's group `name`.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// The number in the pattern's group `name`.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.field(name)?.parse().ok()
    }

    /// Whether its time has a date.
    pub fn dated(&self) -> bool {
        self.time.is_some() && matches!(self.clock, 0 | ZONED)
    }

    /// Whether this came before `other`: by time where both have one of the same clock, else by place where both are in one file.
    pub fn before(&self, other: &Self) -> Option<bool> {
        match (self.time, other.time) {
            // Of times of day that far apart in two files, one may be after midnight.
            (Some(mine), Some(theirs))
                if self.clock == 1
                    && other.clock == 1
                    && self.place.file != other.place.file
                    && (mine - theirs).abs() > HALF_A_DAY =>
            {
                None
            }
            (Some(mine), Some(theirs)) if self.clock == other.clock && mine != theirs => Some(mine < theirs),
            (Some(mine), Some(theirs)) if self.dated() && other.dated() && (mine - theirs).abs() > ZONES => {
                Some(mine < theirs)
            }
            _ if self.place.file == other.place.file => Some(self.place.line < other.place.line),
            _ => None,
        }
    }
}
