//! How far each rank came, and what it wrote first of failures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::case::Case;
use super::event::{Event, Role};
use super::verdict::{Line, line};

/// Ranks listed at most.
const LISTED: usize = 64;

/// A rank's story.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankLine {
    /// The rank.
    pub rank: u32,
    /// Host or pod, where something tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its last sign of progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Line>,
    /// Its first failure, or what follows one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Line>,
}

/// Ranks of which anything is known beside that they wrote: those whose failure came first before the others.
pub(super) fn ranks(case: &Case) -> Vec<RankLine> {
    let mut stories: BTreeMap<u32, (Option<&Event>, Option<&Event>, Option<&str>)> = BTreeMap::new();
    for event in &case.events {
        let Some(rank) = event.rank else { continue };
        let (progress, failure, node) = stories.entry(rank).or_default();
        if node.is_none() {
            *node = event.node.as_deref();
        }
        match event.role {
            Role::Progress | Role::Success => *progress = Some(event),
            Role::Failure | Role::Follower => {
                let earlier = failure.is_none_or(|known: &Event| {
                    event.before(known) == Some(true)
                        || (known.role == Role::Follower && event.role == Role::Failure)
                });
                if earlier {
                    *failure = Some(event);
                }
            }
            Role::Warning | Role::Context => {}
        }
    }
    let mut all: Vec<(u32, (Option<&Event>, Option<&Event>, Option<&str>))> = stories
        .into_iter()
        .filter(|(_, (progress, failure, _))| progress.is_some() || failure.is_some())
        .collect();
    // A total order: by what the clocks of one kind say, then by place.
    all.sort_by(|(a, (_, first, _)), (b, (_, second, _))| {
        let key = |event: &Option<&Event>| {
            event.map_or((true, 0, f64::INFINITY), |event| {
                (event.role != Role::Failure, event.clock, event.time.unwrap_or(f64::INFINITY))
            })
        };
        let (one, two) = (key(first), key(second));
        one.0.cmp(&two.0).then(one.1.cmp(&two.1)).then(one.2.total_cmp(&two.2)).then(a.cmp(b))
    });
    all.into_iter()
        .take(LISTED)
        .map(|(rank, (progress, failure, node))| RankLine {
            rank,
            node: node.map(str::to_owned),
            progress: progress.map(|event| line(case, event)),
            failure: failure.map(|event| line(case, event)),
        })
        .collect()
}
