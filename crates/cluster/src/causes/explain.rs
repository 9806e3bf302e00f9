//! Everything that is known of one cause: `expertrail explain`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::findings::naming;
use super::{all, get, texts};
use crate::finding::{Manager, Remedy};
use crate::render::one_line;
use crate::{diagnose, stack};

/// What is known of a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The cause.
    pub id: String,
    /// One line.
    pub title: String,
    /// The mechanism.
    pub text: String,
    /// What finds it: ids of findings with the command that prints each (`P010, expertrail check`), or the command alone.
    pub found_by: Vec<String>,
    /// What is seen in logs.
    pub signs: Vec<String>,
    /// What to do, by who manages the node.
    pub remedies: Vec<Remedy>,
    /// Combinations of versions that have it.
    pub versions: Vec<VersionRow>,
    /// Documents and reports that say so.
    pub sources: Vec<String>,
}

/// A row of the table of versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRow {
    /// Conditions, in the keys of `expertrail stack --versions`.
    pub when: Vec<String>,
    /// The smallest change that mends it.
    pub fix: String,
}

/// What is known of the cause `id`; none if there is no such cause.
pub fn explain(id: &str) -> Option<Explanation> {
    let entry = get(id)?;
    let mut made = Explanation {
        id: entry.id.to_owned(),
        title: entry.title.to_owned(),
        text: entry.text.to_owned(),
        found_by: naming(id).into_iter().map(|(finding, command)| format!("{finding}, {command}")).collect(),
        ..Explanation::default()
    };
    if diagnose::rules::rules().any(|rule| rule.cause == id) {
        made.found_by.push("expertrail diagnose".to_owned());
    }
    if let Some(text) = texts().iter().find(|text| text.id == id) {
        made.signs.clone_from(&text.signs);
        made.remedies.clone_from(&text.remedies);
        made.sources.clone_from(&text.sources);
    }
    for row in stack::matrix().rows.iter().filter(|row| row.cause == id) {
        made.versions.push(VersionRow { when: row.when.clone(), fix: row.fix.clone() });
        if !made.sources.contains(&row.source) {
            made.sources.push(row.source.clone());
        }
    }
    Some(made)
}

/// Causes whose id has most of `id`'s words, for a message about an id that does not exist: at most five.
pub fn nearest(id: &str) -> Vec<&'static str> {
    let words: Vec<String> =
        id.split(['-', '_', ' ']).map(str::to_lowercase).filter(|word| word.len() > 1).collect();
    let mut scored: Vec<(usize, &'static str)> = all()
        .map(|cause| {
            let hits = words.iter().filter(|word| cause.id.contains(word.as_str())).count();
            (hits, cause.id)
        })
        .filter(|(hits, _)| *hits > 0)
        .collect();
    scored.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    scored.dedup();
    scored.into_iter().take(5).map(|(_, id)| id).collect()
}

impl Explanation {
    /// As text.
    pub fn text(&self) -> String {
        let mut out = format!("{}: {}\n\n{}\n", self.id, self.title, one_line(&self.text));
        if !self.signs.is_empty() {
            out.push_str("\nsigns:\n");
            for sign in &self.signs {
                let _ = writeln!(out, "  {}", one_line(sign));
            }
        }
        if !self.versions.is_empty() {
            out.push_str("\ncombinations of versions that have it (expertrail stack judges yours):\n");
            for row in &self.versions {
                let _ = writeln!(out, "  {}\n    fix: {}", row.when.join(" "), row.fix);
            }
        }
        if !self.found_by.is_empty() {
            let _ = writeln!(out, "\nfound by (which prints the remedy for the case at hand):");
            for by in &self.found_by {
                let _ = writeln!(out, "  {by}");
            }
        }
        out.push_str(&remedies(&self.remedies));
        if !self.sources.is_empty() {
            out.push_str("\nsources:\n");
            for source in &self.sources {
                let _ = writeln!(out, "  {}", one_line(source));
            }
        }
        out
    }
}

/// Remedies as text, each under the heading of who manages the node.
pub(crate) fn remedies(all: &[Remedy]) -> String {
    let mut out = String::new();
    for remedy in all {
        let whom = match remedy.manager {
            None | Some(Manager::Unknown) => "",
            Some(Manager::Machine) => ", on a machine you administer",
            Some(Manager::Operator) => ", where the GPU Operator manages the driver",
            Some(Manager::Container) => ", from inside a container",
        };
        let _ = writeln!(out, "\nremedy{whom}:\n  {}", one_line(&remedy.text));
        for step in &remedy.steps {
            // As in the report of `check`: a text of several lines is pasted whole, and must stand at the margin.
            let margin = if step.contains('\n') { "" } else { "    " };
            for line in step.lines() {
                let _ = writeln!(out, "{margin}{}", one_line(line));
            }
        }
    }
    out
}
