//! Comparison of a fleet: properties of many nodes, the majority of each, and who differs.
//!
//! A property's majority is a value that more than half of the nodes have of which it is known. Without one the nodes are
//! split, and nobody is called an outlier. What could not be read has no vote and is never the same as "not there".

mod read;
mod sheet;
mod text;
mod vote;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::causes::CauseEntry;
use crate::facts::Facts;
use sheet::Sheet;

pub use read::{Capture, Unread, files, read};

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.fleet/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.fleet.1.schema.json");

const OUTLIER: CauseEntry = CauseEntry {
    id: "fleet-outlier",
    title: "a node differs from most others",
    text: "It may pass alone and still be the one that slows down or breaks a job over many nodes: another driver, firmware, parameter or library than its peers have.",
};
const SPLIT: CauseEntry = CauseEntry {
    id: "fleet-split",
    title: "nodes differ and no value has a majority",
    text: "The fleet was changed in part, or is made of several kinds of machines; which value is right cannot be told by counting.",
};
const TWICE: CauseEntry = CauseEntry {
    id: "fleet-node-twice",
    title: "two documents are of one node",
    text: "Both are compared, under the names of their files, so that two captures of one node can be set side by side; in a vote over a fleet the node counts twice.",
};
const UNREAD: CauseEntry = CauseEntry {
    id: "fleet-document-unreadable",
    title: "a document could not be read",
    text: "Its node is in no comparison, so the fleet may differ there without anybody being told.",
};
const BLIND: CauseEntry = CauseEntry {
    id: "fleet-property-unknown",
    title: "a property is known of some nodes and not of others",
    text: "Where it could not be read the node may differ unseen: the capture lacked a right, a library or a part of the file system.",
};

/// Causes of this part.
pub const CAUSES: &[&[CauseEntry]] = &[&[OUTLIER, SPLIT, TWICE, UNREAD, BLIND]];

/// Ids of the findings of a comparison with what each looks at. An id is never used again for something else.
pub const CHECKS: &[(&str, &str)] = &[
    ("P500", "nodes that differ from most others"),
    ("P501", "properties without a majority"),
    ("P502", "several documents of one node"),
    ("P503", "documents that cannot be read"),
    ("P504", "properties that are known of some nodes only"),
];

/// What is compared of one node; its facts are no longer needed.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    file: PathBuf,
    sheet: Sheet,
}

impl Node {
    /// The properties of `facts`, which came from `file`.
    pub fn new(facts: &Facts, file: impl Into<PathBuf>) -> Self {
        let file = file.into();
        let stem = || file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let name = facts.node.value().filter(|name| !name.is_empty()).cloned().unwrap_or_else(stem);
        Self { name, sheet: Sheet::of(facts), file }
    }
}

/// What the nodes of a fleet have in common and where they differ (`expertrail.fleet/1`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of Expertrail.
    pub tool: String,
    /// Nodes that were compared, by the names used below.
    pub nodes: Vec<String>,
    /// How many properties were compared.
    pub properties: usize,
    /// Where nodes differ.
    pub differences: Vec<Difference>,
    /// Names of nodes of which there are several documents.
    pub twice: Vec<String>,
    /// Documents that could not be read.
    pub unread: Vec<Unread>,
    /// Properties that are known of some nodes only.
    pub unknown: Vec<NotKnown>,
}

/// A property that is not the same on all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Difference {
    /// `driver version`.
    pub property: String,
    /// The value that more than half have; none: the nodes are split.
    pub majority: Option<String>,
    /// How many nodes have the majority's value.
    pub with_majority: usize,
    /// Of how many nodes it is known.
    pub known: usize,
    /// The other values; of a split all values.
    pub others: Vec<Share>,
}

/// A value and the nodes that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Share {
    /// The value.
    pub value: String,
    /// Nodes.
    pub nodes: Vec<String>,
}

/// A property that is not known of some nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotKnown {
    /// The property.
    pub property: String,
    /// Why, as the first of the nodes has it.
    pub reason: String,
    /// Nodes.
    pub nodes: Vec<String>,
}

impl Report {
    /// Exit code: 1 nodes differ, 3 they do not but a document was left out, else 0.
    pub fn exit_code(&self) -> u8 {
        match (self.differences.is_empty(), self.unread.is_empty()) {
            (false, _) => 1,
            (true, false) => 3,
            (true, true) => 0,
        }
    }

    /// One line a difference, outliers first.
    pub fn text(&self) -> String {
        text::report(self)
    }
}

/// Compares `nodes`; `unread` are the documents that gave none.
pub fn run(nodes: &[Node], unread: Vec<Unread>) -> Report {
    let (labels, twice) = labels(nodes);
    let sheets: Vec<&Sheet> = nodes.iter().map(|node| &node.sheet).collect();
    let outcome = vote::count(&sheets, &labels);
    Report {
        schema: SCHEMA.to_owned(),
        tool: env!("CARGO_PKG_VERSION").to_owned(),
        nodes: labels,
        properties: outcome.properties,
        differences: outcome.differences,
        twice,
        unread,
        unknown: outcome.unknown,
    }
}

/// What each node is called, and the names that several have.
fn labels(nodes: &[Node]) -> (Vec<String>, Vec<String>) {
    let mut count: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for node in nodes {
        *count.entry(&node.name).or_default() += 1;
    }
    let several = |name: &str| count.get(name).is_some_and(|count| *count > 1);
    let label = |node: &Node| {
        if several(&node.name) {
            format!("{} ({})", node.name, node.file.display())
        } else {
            node.name.clone()
        }
    };
    let twice = count.iter().filter(|(_, count)| **count > 1).map(|(name, _)| (*name).to_owned()).collect();
    (nodes.iter().map(label).collect(), twice)
}
