//! The findings of a node as one document.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::Target;
use crate::environment::Managed;
use crate::finding::{Finding, Manager, SCHEMA, Status};
use crate::render;

/// How many findings have each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Counts {
    /// Failures.
    pub fail: usize,
    /// Warnings.
    pub warn: usize,
    /// Not judged for want of a fact.
    pub unknown: usize,
    /// Right.
    pub pass: usize,
    /// Of no matter here.
    pub not_applicable: usize,
}

/// What all findings come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing is wrong.
    Pass,
    /// Nothing fails, something may.
    Warn,
    /// Something fails.
    Fail,
    /// Nothing fails, and something that the target needs could not be judged.
    #[default]
    #[serde(other)]
    Inconclusive,
}

/// Findings of one node (`expertrail.findings/1`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of Expertrail.
    pub tool: String,
    /// Node.
    pub node: Option<String>,
    /// What it is wanted for.
    pub target: Target,
    /// Who manages it.
    pub managed: Managed,
    /// The verdict.
    pub verdict: Verdict,
    /// Counts.
    pub counts: Counts,
    /// Findings, failures first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Sorts, counts and judges `findings`.
    pub fn new(node: Option<String>, target: Target, managed: Managed, mut findings: Vec<Finding>) -> Self {
        findings.sort_by(|a, b| {
            (a.status.order(), &a.id, &a.subject).cmp(&(b.status.order(), &b.id, &b.subject))
        });
        let mut counts = Counts::default();
        for finding in &findings {
            match finding.status {
                Status::Fail => counts.fail += 1,
                Status::Warn => counts.warn += 1,
                Status::Unknown => counts.unknown += 1,
                Status::Pass => counts.pass += 1,
                Status::NotApplicable => counts.not_applicable += 1,
            }
        }
        let essential = findings.iter().any(|finding| finding.status == Status::Unknown && !finding.advisory);
        let verdict = match counts {
            Counts { fail: 1.., .. } => Verdict::Fail,
            _ if essential => Verdict::Inconclusive,
            Counts { warn: 1.., .. } => Verdict::Warn,
            _ => Verdict::Pass,
        };
        let (schema, tool) = (SCHEMA.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self { schema, tool, node, target, managed, verdict, counts, findings }
    }

    /// The same report with more findings.
    #[must_use]
    pub fn with(self, more: impl IntoIterator<Item = Finding>) -> Self {
        let Self { node, target, managed, mut findings, .. } = self;
        findings.extend(more);
        Self::new(node, target, managed, findings)
    }

    /// Exit code: 1 a failure, 3 something could not be judged, 5 warnings under `strict`, else 0.
    pub fn exit_code(&self, strict: bool) -> u8 {
        match self.verdict {
            Verdict::Fail => 1,
            Verdict::Inconclusive => 3,
            Verdict::Warn if strict => 5,
            Verdict::Warn | Verdict::Pass => 0,
        }
    }

    /// One line a finding, failures first, remedies below, the verdict last. `all` also shows what is right or does not matter.
    pub fn text(&self, all: bool) -> String {
        let shown: Vec<Finding> = self
            .findings
            .iter()
            .filter(|finding| all || !matches!(finding.status, Status::Pass | Status::NotApplicable))
            .cloned()
            .collect();
        let mut out = render::findings(&shown);
        if !out.is_empty() {
            out.push('\n');
        }
        let evidence = render::one_line(&self.managed.evidence);
        // For whom remedies are matters where some depend on it.
        if shown.iter().any(|finding| finding.remedies.iter().any(|remedy| remedy.manager.is_some())) {
            let _ = match self.managed.manager {
                Manager::Unknown => writeln!(out, "Remedies of every kind of node are printed: {evidence}."),
                Manager::Machine => {
                    writeln!(out, "Remedies are those for a machine you administer: {evidence}.")
                }
                Manager::Operator => {
                    writeln!(out, "Remedies are those for a node of the GPU Operator: {evidence}.")
                }
                Manager::Container => writeln!(out, "Remedies are those for a container: {evidence}."),
            };
        }
        if self.managed.container {
            out.push_str(
                "read inside a container: limits, libraries and device nodes are its own, not the host's; what cannot be judged from here are the host's modprobe files (P003, P004), daemons (P031, P032) and fabric manager (P044)\n",
            );
        }
        let Counts { fail, warn, unknown, pass, not_applicable } = self.counts;
        let verdict = match self.verdict {
            Verdict::Pass => "PASS",
            Verdict::Warn => "PASS with warnings",
            Verdict::Fail => "FAIL",
            Verdict::Inconclusive => "INCONCLUSIVE",
        };
        let node = render::one_line(self.node.as_deref().unwrap_or("node"));
        let _ = writeln!(
            out,
            "{node} for {}: {verdict} - {fail} failed, {}, {unknown} not judged, {pass} passed, {not_applicable} not applicable",
            self.target,
            render::count(warn, "warning")
        );
        out
    }
}
