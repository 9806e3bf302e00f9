//! The table of known combinations.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::causes::CauseEntry;
use crate::check;

use super::Judgement;

const TEXT: &str = include_str!("../../data/stack-matrix.json");

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// `expertrail.stack-matrix/1`.
    pub schema: String,
    /// Combinations.
    pub rows: Vec<Row>,
    /// Commits of DeepEP, by their first seven digits.
    pub commits: BTreeMap<String, Commit>,
}

/// A combination of which something is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name of the row.
    pub id: String,
    /// One line.
    pub title: String,
    /// Conditions, all of which must hold: `KEY OP VALUE` in one word, with `=`, `!=`, `<`, `>=`; versions compare by their numbers.
    pub when: Vec<String>,
    /// What is known.
    pub verdict: Judgement,
    /// What comes of it; what does not stop a run is a caution beside the verdict.
    #[serde(default, skip_serializing_if = "Effect::fails")]
    pub effect: Effect,
    /// How it comes about.
    pub mechanism: String,
    /// The smallest change that mends it.
    pub fix: String,
    /// Cause id; empty for what is good.
    pub cause: String,
    /// Where it is from.
    pub source: String,
}

/// What comes of a bad combination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The run fails.
    #[default]
    Fails,
    /// It runs, slower.
    Slower,
    /// `DeepEP`'s own tests fail; what does not profile runs.
    Tests,
}

impl Effect {
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference
    fn fails(&self) -> bool {
        *self == Self::Fails
    }
}

/// A commit of DeepEP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Pull request 564 is in.
    pub patched: bool,
    /// `v1`, `hybrid-ep`, `v2`.
    pub line: String,
    /// Where it occurs.
    pub note: String,
}

/// The table. Its text is tested; were it broken, the table would be empty and every verdict "unverified".
pub fn matrix() -> &'static Matrix {
    // A verdict asks for it twice, and a fleet for each node.
    static READ: LazyLock<Matrix> = LazyLock::new(|| serde_json::from_str(TEXT).unwrap_or_default());
    &READ
}

/// Causes that rows name, each once, with the title and mechanism of the first row that has it.
pub fn causes() -> &'static [CauseEntry] {
    static MADE: LazyLock<Vec<CauseEntry>> = LazyLock::new(|| {
        let mut all: Vec<CauseEntry> = Vec::new();
        for row in matrix().rows.iter().filter(|row| !row.cause.is_empty()) {
            if all.iter().all(|known| known.id != row.cause) && !check::has_cause(&row.cause) {
                all.push(CauseEntry { id: &row.cause, title: &row.title, text: &row.mechanism });
            }
        }
        all
    });
    &MADE
}

/// Keys whose values are versions: 3.4.5-0 is 3.4.5.
pub(super) const VERSIONS: [&str; 10] = [
    "nvshmem",
    "nvshmem_device",
    "nccl",
    "nccl_built",
    "cuda",
    "torch",
    "gdrdrv",
    "driver",
    "efa_module",
    "efa_installer",
];

/// Whether a condition holds of `values`; none where its key has no value.
pub(super) fn holds(condition: &str, values: impl Fn(&str) -> Option<String>) -> Option<bool> {
    let (key, operator, wanted) = parts(condition)?;
    let value = values(key)?;
    let order = || compare(&value, wanted);
    Some(match operator {
        "=" => value == wanted || (VERSIONS.contains(&key) && order() == Ordering::Equal),
        "!=" => value != wanted && !(VERSIONS.contains(&key) && order() == Ordering::Equal),
        "<" => order() == Ordering::Less,
        _ => order() != Ordering::Less,
    })
}

/// `nvshmem>=3.5.19` as its key, operator and value.
pub(super) fn parts(condition: &str) -> Option<(&str, &str, &str)> {
    ["!=", ">=", "<", "="].into_iter().find_map(|operator| {
        let (key, value) = condition.split_once(operator)?;
        Some((key, operator, value))
    })
}

/// Versions by their numbers: 3.10 is newer than 3.9, and 3.5 is 3.5.0.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let numbers = |text: &str| -> Vec<u64> {
        let mut all: Vec<u64> = text
            .trim_start_matches('v')
            .split(['.', '-', '+'])
            .map_while(|part| {
                let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
                digits.parse().ok()
            })
            .collect();
        while all.last() == Some(&0) {
            all.pop();
        }
        all
    };
    numbers(a).cmp(&numbers(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let matrix: Matrix = serde_json::from_str(TEXT).unwrap();
        assert!(matrix.rows.len() > 20);
        for row in &matrix.rows {
            assert!(!row.source.is_empty() && !row.title.is_empty(), "{}", row.id);
            assert!(!row.mechanism.is_empty(), "{}", row.id);
            assert_eq!(row.verdict == Judgement::KnownGood, row.cause.is_empty(), "{}", row.id);
            assert_eq!(row.verdict == Judgement::KnownGood, row.fix.is_empty(), "{}", row.id);
            for condition in &row.when {
                let (key, ..) = parts(condition).unwrap_or_else(|| panic!("{}: {condition}", row.id));
                assert!(super::super::KEYS.iter().any(|(known, _)| *known == key), "{}: {condition}", row.id);
            }
        }
        let mut ids: Vec<&str> = matrix.rows.iter().map(|row| row.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), matrix.rows.len());
    }

    #[test]
    fn versions() {
        assert_eq!(compare("3.10.0", "3.9"), Ordering::Greater);
        assert_eq!(compare("3.5", "3.5.0"), Ordering::Equal);
        assert_eq!(compare("3.4.5-0", "3.5.19"), Ordering::Less);
        assert_eq!(compare("v2.5.1", "2.4.2"), Ordering::Greater);
        let of = |key: &str| (key == "nvshmem").then(|| "3.6.5".to_owned());
        assert_eq!(holds("nvshmem>=3.5.19", of), Some(true));
        assert_eq!(holds("nvshmem<3.5.19", of), Some(false));
        assert_eq!(holds("nvshmem!=3.4.5", of), Some(true));
        assert_eq!(holds("torch=2", of), None);
    }
}
