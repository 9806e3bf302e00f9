//! Findings with lines of logs as evidence.

use super::causes::CHECKS;
use super::model::Place;
use crate::facts::Scope;
use crate::finding::Finding;

/// A finding of this part.
pub(super) fn finding(id: &str) -> Finding {
    let title = CHECKS.iter().find(|(known, _)| *known == id).map_or("", |(_, title)| title);
    Finding::new(id, title)
}

/// A line that a finding rests on.
pub(super) trait At {
    /// Adds it.
    fn line(self, place: &Place) -> Self;
}

impl At for Finding {
    fn line(self, place: &Place) -> Self {
        self.at(place.to_string(), Scope::Unknown)
    }
}

/// `0, 1, 2 and 5 more`.
pub(super) fn list(numbers: &[u64]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(u64::to_string).collect();
    match numbers.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// What a run is called in findings: its kind, and its file where several were read.
pub(super) fn subject(known: &super::weigh::Known<'_>) -> String {
    format!("{} ({})", known.run.kind.label(), known.run.place.file)
}
