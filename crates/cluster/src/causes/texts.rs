//! Texts about causes that logs show: signs, remedies and sources.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::CauseEntry;
use crate::finding::Remedy;

/// One file for each half of the rules.
const FILES: [&str; 2] =
    [include_str!("../../data/causes-deepep.json"), include_str!("../../data/causes-system.json")];

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
}
