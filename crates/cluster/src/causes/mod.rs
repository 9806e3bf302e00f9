//! The registry of cause ids: what findings, verdicts and diagnoses of logs name as the cause, and what there is to say of each.
//!
//! An id is never used again for something else. Each part of this crate lists its own causes, the table of versions its rows', the
//! data files `data/causes-*.json` those that only logs show; [`all`] joins them.

mod catalogue;
mod explain;
mod findings;
mod texts;

pub use catalogue::catalogue;
pub(crate) use explain::remedies;
pub use explain::{Explanation, VersionRow, explain, nearest};
pub use findings::{FindingId, finding};
pub use texts::{CauseText, texts};

use crate::{check, compare, judge, kube, probe, stack, topo};

/// A cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CauseEntry {
    /// `driver-key-missing`: lower case, joined by hyphens.
    pub id: &'static str,
    /// One line.
    pub title: &'static str,
    /// What it is, what comes of it and how it is told from what looks alike.
    pub text: &'static str,
}

/// Every cause, by part.
pub fn all() -> impl Iterator<Item = &'static CauseEntry> {
    let parts: [&[&[CauseEntry]]; 7] = [
        check::CAUSES,
        topo::CAUSES,
        stack::CAUSES,
        kube::CAUSES,
        probe::CAUSES,
        compare::CAUSES,
        judge::CAUSES,
    ];
    parts.into_iter().flatten().copied().flatten().chain(stack::causes()).chain(texts::entries())
}

/// The cause with this id.
pub fn get(id: &str) -> Option<&'static CauseEntry> {
    all().find(|cause| cause.id == id)
}
