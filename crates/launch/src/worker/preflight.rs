//! The check of a node before its ranks start, in the run itself.

use std::fmt::Write;
use std::str::FromStr;

use expertrail_cluster::check::Report;
use expertrail_cluster::facts::Facts;
use expertrail_cluster::finding::Status;
use expertrail_cluster::render;

use super::store::Store;
use super::{WorkerError, say};

/// What a failure does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is reported, and the ranks start.
    #[default]
    Report,
    /// The ranks do not start.
    Strict,
    /// Nothing is looked at.
    Off,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "report" => Ok(Self::Report),
            "strict" => Ok(Self::Strict),
            "off" => Ok(Self::Off),
            other => Err(format!("`{other}` is not known; there are report, strict, off")),
        }
    }
}

/// A node and what was found on it.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Its index.
    pub index: usize,
    /// Its host name.
    pub host: &'a str,
    /// Its facts.
    pub facts: &'a Facts,
    /// What they mean.
    pub report: &'a Report,
}

/// Prints what was found, keeps `facts/node-N.json` and `findings/node-N.json`, and refuses a node that fails where `mode` is strict.
///
/// # Errors
/// When the node is refused, or a document cannot be kept.
pub fn run(mode: Mode, node: &Node<'_>, store: &Store) -> Result<(), WorkerError> {
    text(node).lines().for_each(say);
    let index = node.index;
    store.document(&format!("facts/node-{index}.json"), node.facts)?;
    store.document(&format!("findings/node-{index}.json"), node.report)?;
    if mode == Mode::Strict && node.report.counts.fail > 0 {
        return Err(WorkerError::Refused(format!(
            "node {index} ({}) is not fit for {}: {} of its checks failed, see above; no rank was started (--preflight report would start \
             them)",
            node.host, node.report.target, node.report.counts.fail
        )));
    }
    Ok(())
}

/// A line of counts, and a line for each failure and warning.
fn text(node: &Node<'_>) -> String {
    let counts = node.report.counts;
    let mut out = format!(
        "preflight of node {} ({}): {} pass, {} warn, {} fail",
        node.index, node.host, counts.pass, counts.warn, counts.fail
    );
    if counts.unknown > 0 {
        let _ = write!(out, ", {} not judged", counts.unknown);
    }
    for finding in &node.report.findings {
        if matches!(finding.status, Status::Fail | Status::Warn) {
            let _ = write!(out, "\n  {}", render::line(finding));
        }
    }
    out
}
