//! Texts about causes that logs show: signs, remedies and sources.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::CauseEntry;
use crate::finding::Remedy;

/// One file for each half of the rules of `diagnose`, one for figures (`judge`), one for what is checked on nodes.
const FILES: [&str; 4] = [
    include_str!("../../data/causes-deepep.json"),
    include_str!("../../data/causes-system.json"),
    include_str!("../../data/causes-figures.json"),
    include_str!("../../data/causes-node.json"),
];

/// A data file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// `expertrail.causes/1`.
    #[serde(rename = "schema")]
    _schema: String,
    /// Its causes.
    causes: Vec<CauseText>,
}

/// What is said of a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseText {
    /// The cause.
    pub id: String,
    /// One line; empty where another part of the registry has it.
    pub title: String,
    /// What it is, what comes of it, how it is told from what looks alike; empty where another part has it.
    pub text: String,
    /// What is seen in logs.
    pub signs: Vec<String>,
    /// What to do.
    pub remedies: Vec<Remedy>,
    /// Documents and reports that say so.
    pub sources: Vec<String>,
}

/// Every text. The files are tested; were one broken, it would be empty and its causes without remedy.
pub fn texts() -> &'static [CauseText] {
    static READ: LazyLock<Vec<CauseText>> = LazyLock::new(|| {
        FILES.iter().flat_map(|text| serde_json::from_str::<File>(text).unwrap_or_default().causes).collect()
    });
    &READ
}

/// Causes that no other part has.
pub(super) fn entries() -> &'static [CauseEntry] {
    static MADE: LazyLock<Vec<CauseEntry>> = LazyLock::new(|| {
        texts()
            .iter()
            .filter(|text| !text.title.is_empty())
            .map(|text| CauseEntry { id: &text.id, title: &text.title, text: &text.text })
            .collect()
    });
    &MADE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_whole() {
        for text in FILES {
            let file: File = serde_json::from_str(text).unwrap();
            for cause in &file.causes {
                let id = &cause.id;
                let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
                assert!(!id.is_empty() && id.chars().all(word), "{id}");
                assert_eq!(cause.title.is_empty(), cause.text.is_empty(), "{id}: title and text go together");
                assert!(!cause.signs.is_empty(), "{id}: no signs");
                assert!(!cause.remedies.is_empty(), "{id}: no remedies");
                assert!(
                    cause.remedies.iter().all(|remedy| !remedy.text.is_empty()),
                    "{id}: a remedy says nothing"
                );
                assert!(!cause.sources.is_empty(), "{id}: no sources");
            }
        }
    }

    #[test]
    fn every_cause_is_explained() {
        // No cause is excused: outcomes of a comparison, too, have what is seen and what to do.
        let mut lacking = Vec::new();
        for cause in crate::causes::all() {
            let made = crate::causes::explain(cause.id).unwrap();
            let has = [
                ("title", !made.title.is_empty()),
                ("text", !made.text.is_empty()),
                ("sign", !made.signs.is_empty()),
                ("remedy", !made.remedies.is_empty()),
                ("source", !made.sources.is_empty()),
            ];
            lacking.extend(
                has.iter().filter(|(_, has)| !has).map(|(what, _)| format!("{}: no {what}", cause.id)),
            );
        }
        assert!(lacking.is_empty(), "{}", lacking.join("\n"));
    }

    #[test]
    fn no_cause_has_two_texts_and_every_text_has_a_cause() {
        let mut seen = std::collections::BTreeSet::new();
        for text in texts() {
            assert!(seen.insert(&text.id), "{}: two texts", text.id);
            let made =
                crate::causes::explain(&text.id).unwrap_or_else(|| panic!("{}: no such cause", text.id));
            assert!(!made.text.is_empty(), "{}", text.id);
        }
    }
}
