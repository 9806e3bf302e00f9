//! What lint says.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::rules;

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.lint/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.lint.1.schema.json");

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// It fails at once, or runs wrong without saying so.
    Fail,
    /// It may.
    Warn,
    /// Worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fail => "FAIL",
            Self::Warn => "WARN",
            Self::Note => "NOTE",
        })
    }
}

/// A thing that is wrong in a launch file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `N001`: stable, never used again for something else.
    pub id: &'static str,
    /// How bad it is here.
    pub severity: Severity,
    /// The file as it was named.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// What is there.
    pub what: String,
    /// What happens if it stays.
    pub why: &'static str,
    /// Document or report that says so.
    pub source: &'static str,
    /// What to type instead, or to do.
    pub fix: String,
}

impl Finding {
    /// Another severity than the rule's.
    pub(crate) fn weigh(&mut self, severity: Severity) -> &mut Self {
        self.severity = severity;
        self
    }

    /// What to type instead.
    pub(crate) fn fix(&mut self, fix: impl AsRef<str>) -> &mut Self {
        self.fix = printable(fix.as_ref());
        self
    }
}

/// A file and what was found to be in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileRead {
    /// As it was named.
    pub name: String,
    /// `Job`, `MPIJob`, `batch script`, ...
    pub kinds: Vec<String>,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The files.
    pub files: Vec<FileRead>,
    /// The profile of the nodes that offsets and names were judged by, and why that one.
    pub profile: Option<String>,
    /// By file and line.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Exit code: 1 with a failure, 5 with a warning where `strict`, or else 0.
    pub fn exit_code(&self, strict: bool) -> u8 {
        match (self.count(Severity::Fail), self.count(Severity::Warn)) {
            (0, 0) => 0,
            (0, _) => u8::from(strict) * 5,
            _ => 1,
        }
    }

    /// Findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// The report for people: a reason is printed once.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for file in &self.files {
            let _ = writeln!(out, "{}: {}", printable(&file.name), file.kinds.join(", "));
        }
        if let Some(profile) = &self.profile {
            let _ = writeln!(out, "nodes: {profile}");
        }
        let mut told = Vec::new();
        for finding in &self.findings {
            let file = printable(&finding.file);
            let _ = writeln!(
                out,
                "\n{} {} {file}:{}: {}",
                finding.severity, finding.id, finding.line, finding.what
            );
            if told.contains(&finding.id) {
                let _ = writeln!(out, "  why:  as above");
            } else {
                told.push(finding.id);
                let _ = writeln!(out, "  why:  {} [{}]", finding.why, finding.source);
            }
            if !finding.fix.is_empty() {
                let mut lines = finding.fix.lines();
                let _ = writeln!(out, "  type: {}", lines.next().unwrap_or_default());
                for line in lines {
                    let _ = writeln!(out, "        {line}");
                }
            }
        }
        let [fail, warn, note] = [Severity::Fail, Severity::Warn, Severity::Note].map(|s| self.count(s));
        let gap = if self.findings.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{gap}lint: {fail} failures, {warn} warnings, {note} notes");
        out
    }
}

/// A place in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    /// Index of the file.
    pub(crate) file: usize,
    /// Line, counted from 1.
    pub(crate) line: usize,
}

/// Where findings go.
pub(crate) struct Sink<'a> {
    /// Names of the files.
    pub(crate) names: &'a [String],
    /// What was found.
    pub(crate) findings: Vec<Finding>,
}

impl Sink<'_> {
    /// Adds a finding of rule `id`.
    pub(crate) fn add(&mut self, id: &'static str, at: At, what: impl AsRef<str>) -> &mut Finding {
        let (severity, why, source) =
            rules::find(id).map_or((Severity::Fail, "", ""), |rule| (rule.severity, rule.why, rule.source));
        let file = self.names.get(at.file).cloned().unwrap_or_default();
        let what = printable(what.as_ref());
        let finding =
            Finding { id, severity, file, line: at.line.max(1), what, why, source, fix: String::new() };
        let index = self.findings.len();
        self.findings.push(finding);
        // The element was pushed just above, so the slice is never empty.
        &mut self.findings[index]
    }
}

/// Text of a file as a terminal may have it: no control characters but line ends, and no more than is read.
pub(crate) fn printable(text: &str) -> String {
    const MOST: usize = 600;
    let mut out: String =
        text.chars().take(MOST).map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect();
    if text.chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}
