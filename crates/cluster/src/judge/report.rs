//! The verdict as a document.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::causes::UNSEEN;
use super::model::{Kind, Place, Settings, Training};
use super::text;
use super::weigh::{Known, Metric};
use crate::finding::{Finding, Status};

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.verdict/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.verdict.1.schema.json");

/// What everything comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every part ran, on every node and rank, and every figure is as it should be.
    Pass,
    /// Everything ran and nothing fails, and a figure is low or uneven.
    Warn,
    /// Something fails.
    Fail,
    /// Nothing that ran fails, and something did not run.
    NotRun,
    /// Everything ran, and something could not be judged.
    #[default]
    #[serde(other)]
    Inconclusive,
}

impl Outcome {
    /// As it is shown to people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
            Self::NotRun => "NOT RUN",
            Self::Inconclusive => "INCONCLUSIVE",
        }
    }
}

/// The verdict and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// The verdict.
    pub status: Outcome,
    /// Warnings beside it.
    pub warnings: usize,
    /// One line for each reason.
    pub reasons: Vec<String>,
}

/// A run, without its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSummary {
    /// What wrote it.
    pub kind: Kind,
    /// Where it begins.
    pub place: Place,
    /// GPU; empty: not known.
    pub gpu: String,
    /// Engine whose references apply.
    pub engine: String,
    /// GB/s of a GPU's NICs that the ceilings are made with.
    pub nic_gb_s: Option<f64>,
    /// Whether that was given, and not assumed from the GPU.
    pub nic_given: bool,
    /// GB/s of a GPU's `NVLink` that the ceilings are made with.
    pub nvlink_gb_s: Option<f64>,
    /// Settings, as far as they are known.
    pub settings: Settings,
    /// Versions that the output names.
    pub versions: BTreeMap<String, String>,
    /// Iterations, of a training run.
    pub training: Option<Training>,
    /// What was left out in reading, and what the run says of itself.
    pub notes: Vec<String>,
}

/// What runs are worth (`expertrail.verdict/1`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of Expertrail.
    pub tool: String,
    /// Runs.
    pub runs: Vec<RunSummary>,
    /// Judged figures.
    pub metrics: Vec<Metric>,
    /// Findings, failures first.
    pub findings: Vec<Finding>,
    /// The verdict.
    pub verdict: Verdict,
    /// Warnings make the exit code 5.
    pub strict: bool,
}

impl Report {
    /// Exit code: 0 pass, 1 fail, 3 not run or inconclusive, 5 warnings where it is strict.
    pub fn exit_code(&self) -> u8 {
        match self.verdict.status {
            Outcome::Fail => 1,
            Outcome::NotRun | Outcome::Inconclusive => 3,
            Outcome::Pass | Outcome::Warn if self.strict && self.verdict.warnings > 0 => 5,
            Outcome::Pass | Outcome::Warn => 0,
        }
    }

    /// For people: the verdict, runs, figures, findings, provenance.
    pub fn text(&self) -> String {
        text::report(self)
    }
}

/// Ids whose findings say that something did not run.
const NOT_RUN: [&str; 4] = ["J003", "J004", "J020", "J022"];

/// Ids whose findings are about figures, and not about what the log has to confirm them.
const OF_FIGURES: [&str; 9] = ["J001", "J002", "J008", "J009", "J010", "J011", "J014", "J015", "J020"];

pub(super) fn made(
    known: &[Known<'_>],
    metrics: Vec<Metric>,
    mut findings: Vec<Finding>,
    strict: bool,
) -> Report {
    findings
        .sort_by(|a, b| (a.status.order(), &a.id, &a.subject).cmp(&(b.status.order(), &b.id, &b.subject)));
    findings.dedup();
    let runs: Vec<RunSummary> = known.iter().map(summary).collect();
    let verdict = verdict(&runs, &metrics, &findings);
    Report {
        schema: SCHEMA.to_owned(),
        tool: env!("CARGO_PKG_VERSION").to_owned(),
        runs,
        metrics,
        findings,
        verdict,
        strict,
    }
}

fn summary(known: &Known<'_>) -> RunSummary {
    let run = known.run;
    RunSummary {
        kind: run.kind,
        place: run.place.clone(),
        gpu: known.gpu.clone(),
        engine: known.engine.clone(),
        nic_gb_s: known.links.scale_out,
        nic_given: known.nic_given,
        nvlink_gb_s: known.links.scale_up,
        settings: match (run.kind, run.figures.first()) {
            // Its two parts have different ones.
            (Kind::Guide, _) | (_, None) => run.settings.clone(),
            (_, Some(figure)) => known.settings(figure.section),
        },
        versions: run.versions.iter().map(|(name, said)| (name.clone(), said.text.clone())).collect(),
        training: run.training.clone(),
        notes: run.notes.clone(),
    }
}

fn verdict(runs: &[RunSummary], metrics: &[Metric], findings: &[Finding]) -> Verdict {
    let of =
        |status: Status| findings.iter().filter(move |finding| finding.status == status && !finding.advisory);
    let warnings = of(Status::Warn).count();
    let reason = |finding: &Finding| match &finding.subject {
        Some(subject) => format!("{} {subject}: {}", finding.id, finding.observed),
        None => format!("{} {}: {}", finding.id, finding.title, finding.observed),
    };
    let reasons: Vec<String> =
        of(Status::Fail).chain(of(Status::Unknown)).chain(of(Status::Warn)).map(reason).collect();
    let nothing = metrics.is_empty() && runs.iter().all(|run| run.training.is_none());
    let not_run = of(Status::Unknown).any(|finding| {
        // Logs that were not given say nothing of whether the run ran.
        NOT_RUN.contains(&finding.id.as_str()) && finding.cause.as_deref() != Some(UNSEEN.id)
    });
    let status = if of(Status::Fail).next().is_some() {
        Outcome::Fail
    } else if not_run || nothing {
        Outcome::NotRun
    } else if of(Status::Unknown).next().is_some() {
        Outcome::Inconclusive
    } else if of(Status::Warn).any(|finding| OF_FIGURES.contains(&finding.id.as_str())) {
        Outcome::Warn
    } else {
        Outcome::Pass
    };
    Verdict { status, warnings, reasons }
}
