//! Findings: what a check says of a node, with the evidence, the cause and what to type.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::causes::CauseEntry;
use crate::facts::{Fact, Scope};

/// The name of the findings document's version.
pub const SCHEMA: &str = "expertrail.findings/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../schema/expertrail.findings.1.schema.json");

/// Outcome of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It will fail, or crawl.
    Fail,
    /// It may.
    Warn,
    /// It is right.
    Pass,
    /// It does not matter for what was asked, or on this hardware.
    NotApplicable,
    /// It could not be judged: a fact is missing.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Status {
    /// Place in a report: failures first.
    pub fn order(self) -> u8 {
        match self {
            Self::Fail => 0,
            Self::Warn => 1,
            Self::Unknown => 2,
            Self::Pass => 3,
            Self::NotApplicable => 4,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fail => "FAIL",
            Self::Warn => "WARN",
            Self::Unknown => "UNKNOWN",
            Self::Pass => "PASS",
            Self::NotApplicable => "N/A",
        })
    }
}

/// Who can change a node's driver, limits and modules, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manager {
    /// A virtual machine or bare-metal host that its user administers: modprobe files, reboot.
    Machine,
    /// A node whose driver the NVIDIA GPU Operator manages: custom resource, ConfigMap, driver pods.
    Operator,
    /// A container of which nothing else is known: the remedy belongs to its host.
    Container,
    /// No evidence either way.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What to do, for one kind of environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remedy {
    /// For whom; none: it is the same everywhere.
    pub manager: Option<Manager>,
    /// One sentence.
    pub text: String,
    /// Commands or file lines, in order.
    pub steps: Vec<String>,
}

/// Where a finding comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// Path, command or library.
    pub source: String,
    /// Whose view it is.
    pub scope: Scope,
}

/// What one check says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// `P001`: stable, never used again for something else.
    pub id: String,
    /// Cause id of the registry ([`crate::causes`]); none for a pass.
    pub cause: Option<String>,
    /// Outcome.
    pub status: Status,
    /// What was looked at, in a few words.
    pub title: String,
    /// The device, library or node it is about; none: the whole node.
    pub subject: Option<String>,
    /// What is there.
    pub observed: String,
    /// What is wanted.
    pub wanted: String,
    /// Where that was seen.
    pub evidence: Vec<Evidence>,
    /// Why it matters: what happens if it stays.
    pub why: String,
    /// What to do.
    pub remedies: Vec<Remedy>,
    /// Not knowing it leaves the verdict as it is: the target does not depend on it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub advisory: bool,
}

impl Finding {
    /// A finding that passes until something else is said.
    pub fn new(id: &str, title: &str) -> Self {
        Self { id: id.to_owned(), title: title.to_owned(), status: Status::Pass, ..Self::default() }
    }

    /// The device, library or node it is about.
    #[must_use]
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// What is there and what is wanted.
    #[must_use]
    pub fn saw(mut self, observed: impl Into<String>, wanted: impl Into<String>) -> Self {
        self.observed = observed.into();
        self.wanted = wanted.into();
        self
    }

    /// Where it was seen.
    #[must_use]
    pub fn at(mut self, source: impl Into<String>, scope: Scope) -> Self {
        self.evidence.push(Evidence { source: source.into(), scope });
        self
    }

    /// As [`Finding::at`], of a fact.
    #[must_use]
    pub fn from_fact<T>(self, fact: &Fact<T>) -> Self {
        self.at(fact.source.clone(), fact.scope)
    }

    /// Its outcome and cause.
    #[must_use]
    pub fn outcome(mut self, status: Status, cause: &CauseEntry) -> Self {
        self.status = status;
        self.cause = Some(cause.id.to_owned());
        cause.text.clone_into(&mut self.why);
        self
    }

    /// It could not be judged: `reason` says what is missing.
    #[must_use]
    pub fn unknown(mut self, reason: impl Into<String>) -> Self {
        self.status = Status::Unknown;
        self.observed = reason.into();
        self
    }

    /// Not knowing it leaves the verdict as it is.
    #[must_use]
    pub fn advisory(mut self) -> Self {
        self.advisory = true;
        self
    }

    /// It does not matter here: `reason` says why.
    #[must_use]
    pub fn not_applicable(mut self, reason: impl Into<String>) -> Self {
        self.status = Status::NotApplicable;
        self.observed = reason.into();
        self
    }

    /// What to do everywhere.
    #[must_use]
    pub fn remedy(self, text: &str, steps: &[&str]) -> Self {
        self.remedy_for(None, text, steps)
    }

    /// What to do where `manager` manages the node.
    #[must_use]
    pub fn remedy_for(mut self, manager: Option<Manager>, text: &str, steps: &[&str]) -> Self {
        let steps = steps.iter().map(|step| (*step).to_owned()).collect();
        self.remedies.push(Remedy { manager, text: text.to_owned(), steps });
        self
    }

    /// Adds remedies that were made before.
    #[must_use]
    pub fn remedies(mut self, remedies: impl IntoIterator<Item = Remedy>) -> Self {
        self.remedies.extend(remedies);
        self
    }
}
