//! Ids of findings and lints, with the causes that each can name.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{Explanation, explain};
use crate::{check, compare, judge, kube, plan, probe, stack, topo};

/// Which causes each finding can name. The findings are made by code; a test holds this table against its lists.
const TABLE: &str = include_str!("../../data/finding-causes.json");

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// `expertrail.finding-causes/1`.
    #[serde(rename = "schema")]
    _schema: String,
    findings: BTreeMap<String, Vec<String>>,
}

fn table() -> &'static BTreeMap<String, Vec<String>> {
    static READ: LazyLock<BTreeMap<String, Vec<String>>> =
        LazyLock::new(|| serde_json::from_str::<File>(TABLE).unwrap_or_default().findings);
    &READ
}

/// A finding, or a lint of a plan, by its id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingId {
    /// `P010`, `J013`, `L016`.
    pub id: String,
    /// What it looks at.
    pub title: String,
    /// The command that prints it.
    pub command: String,
    /// Where a lint's rule is from; empty for findings, whose causes have sources.
    pub source: String,
    /// What it can name as the cause. Lints have none: the rule is the cause.
    pub causes: Vec<Explanation>,
}

/// Ids of a part, and what each looks at.
type Checks = &'static [(&'static str, &'static str)];

/// The parts with the command that prints their findings.
fn parts() -> [(Checks, &'static str); 7] {
    [
        (check::CHECKS, "expertrail check"),
        (topo::CHECKS, "expertrail check and topo"),
        (stack::CHECKS, "expertrail check"),
        (kube::CHECKS, "expertrail check --kube"),
        (probe::CHECKS, "expertrail check --probe"),
        (compare::CHECKS, "expertrail compare"),
        (judge::CHECKS, "expertrail judge"),
    ]
}

/// Every id of a finding with its title and command.
fn all() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    parts()
        .into_iter()
        .flat_map(|(checks, command)| checks.iter().map(move |(id, title)| (*id, *title, command)))
}

/// Causes that the finding `id` can name. The verdict on versions names those of the table's rows, too.
fn causes_of(id: &str) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = table().get(id).into_iter().flatten().map(String::as_str).collect();
    if id == "P200" {
        for row in stack::matrix().rows.iter().filter(|row| !row.cause.is_empty()) {
            if !found.contains(&row.cause.as_str()) {
                found.push(&row.cause);
            }
        }
    }
    found
}

/// The finding or lint with this id, in any case; none if there is no such one.
pub fn finding(id: &str) -> Option<FindingId> {
    let id = id.to_ascii_uppercase();
    if let Some((id, title, command)) = all().find(|(known, ..)| *known == id) {
        return Some(FindingId {
            id: id.to_owned(),
            title: title.to_owned(),
            command: command.to_owned(),
            source: String::new(),
            causes: causes_of(id).into_iter().filter_map(explain).collect(),
        });
    }
    let (id, title, source) = plan::LINTS.iter().find(|(known, ..)| *known == id)?;
    Some(FindingId {
        id: (*id).to_owned(),
        title: (*title).to_owned(),
        command: "expertrail plan".to_owned(),
        source: (*source).to_owned(),
        causes: Vec::new(),
    })
}

/// Ids of the findings that can name the cause `id`, with the command that prints each.
pub(super) fn naming(id: &str) -> Vec<(&'static str, &'static str)> {
    all()
        .filter(|(finding, ..)| causes_of(finding).contains(&id))
        .map(|(finding, _, command)| (finding, command))
        .collect()
}

impl FindingId {
    /// As text: the cause where it is always the same one, else the causes that it can name.
    pub fn text(&self) -> String {
        use std::fmt::Write;
        let mut out = format!("{}: {} ({})\n", self.id, self.title, self.command);
        match self.causes.as_slice() {
            [] if !self.source.is_empty() => {
                let _ = write!(
                    out,
                    "\nA rule of the launch lint: `{}` prints it with the numbers put in and what to change.\n\nsources:\n  {}\n",
                    self.command, self.source
                );
            }
            [] => out.push_str("\nIt informs, and names no cause.\n"),
            [only] => {
                out.push('\n');
                out.push_str(&only.text());
            }
            many => {
                out.push_str("\nIt can name these causes; `expertrail explain CAUSE` says more of one:\n");
                for cause in many {
                    let _ = writeln!(out, "  {:<34} {}", cause.id, cause.title);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::causes;

    #[test]
    fn the_table_has_every_finding_and_every_cause_of_its_parts() {
        let file: File = serde_json::from_str(TABLE).unwrap();
        let listed: BTreeSet<&str> = file.findings.keys().map(String::as_str).collect();
        let known: BTreeSet<&str> = all().map(|(id, ..)| id).collect();
        assert_eq!(listed, known);
        for (id, named) in &file.findings {
            for cause in named {
                assert!(causes::get(cause).is_some(), "{id}: {cause} is no cause");
            }
        }
        let parts: [&[&[causes::CauseEntry]]; 7] = [
            check::CAUSES,
            topo::CAUSES,
            stack::CAUSES,
            kube::CAUSES,
            probe::CAUSES,
            compare::CAUSES,
            judge::CAUSES,
        ];
        let named: BTreeSet<&str> = file.findings.values().flatten().map(String::as_str).collect();
        let idle: Vec<&str> = parts
            .into_iter()
            .flatten()
            .copied()
            .flatten()
            .map(|cause| cause.id)
            .filter(|id| !named.contains(id))
            .collect();
        assert_eq!(idle, Vec::<&str>::new(), "causes that no finding names");
    }

    #[test]
    fn ids_of_all_kinds() {
        let one = finding("p010").unwrap();
        assert_eq!(
            (one.id.as_str(), one.causes.len(), one.causes[0].id.as_str()),
            ("P010", 1, "peermem-missing")
        );
        let several = finding("J013").unwrap().text();
        assert!(
            several.contains("hca-list-wrong-device") && several.contains("pe-mapping-with-uid-bootstrap"),
            "{several}"
        );
        let lint = finding("L016").unwrap();
        assert_eq!(lint.command, "expertrail plan");
        assert!(lint.text().contains("test_internode.py"), "{}", lint.text());
        assert!(finding("P200").unwrap().causes.len() > 10);
        assert!(finding("D11").is_none() && finding("").is_none());
        assert!(finding("P327").unwrap().text().contains("names no cause"));
    }
}
