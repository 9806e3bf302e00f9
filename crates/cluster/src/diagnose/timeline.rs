//! How far each rank came, and what it wrote first of failures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::case::Case;
use super::event::{Event, Role};
use super::verdict::{Line, line};

/// Ranks listed at most: more than any run of today has, and a bound for what a log may claim.
const LISTED: usize = 4096;

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

/// What is known of a rank while lines are read.
#[derive(Default)]
struct Story<'a> {
    progress: Option<&'a Event>,
    failure: Option<&'a Event>,
    node: Option<&'a str>,
}

impl<'a> Story<'a> {
    fn take(&mut self, event: &'a Event) {
        if self.node.is_none() {
            self.node = event.node.as_deref();
        }
        match event.role {
            Role::Progress | Role::Success => self.progress = Some(event),
            Role::Failure | Role::Follower => {
                let earlier = self.failure.is_none_or(|known| {
                    event.before(known) == Some(true)
                        || (known.role == Role::Follower && event.role == Role::Failure)
                });
                if earlier {
                    self.failure = Some(event);
                }
            }
            Role::Warning | Role::Context => {}
        }
    }

    /// Failures before followers, earlier before later as far as clocks of one kind tell, ranks without either last: a total order.
    fn order(&self) -> (bool, bool, u8, f64) {
        self.failure.map_or((true, true, u8::MAX, f64::INFINITY), |event| {
            (false, event.role != Role::Failure, event.clock, event.time.unwrap_or(f64::INFINITY))
        })
    }
}

/// Ranks of which anything is known beside that they wrote: those whose failure came first before the others.
pub(super) fn ranks(case: &Case) -> Vec<RankLine> {
    let mut stories: BTreeMap<u32, Story<'_>> = BTreeMap::new();
    for event in &case.events {
        if let Some(rank) = event.rank {
            stories.entry(rank).or_default().take(event);
        }
    }
    let mut all: Vec<(u32, Story<'_>)> = stories
        .into_iter()
        .filter(|(_, story)| story.progress.is_some() || story.failure.is_some())
        .collect();
    all.sort_by(|(a, first), (b, second)| {
        let (one, two) = (first.order(), second.order());
        (one.0, one.1, one.2).cmp(&(two.0, two.1, two.2)).then(one.3.total_cmp(&two.3)).then(a.cmp(b))
    });
    all.into_iter()
        .take(LISTED)
        .map(|(rank, story)| RankLine {
            rank,
            node: story.node.map(str::to_owned),
            progress: story.progress.map(|event| line(case, event)),
            failure: story.failure.map(|event| line(case, event)),
        })
        .collect()
}
