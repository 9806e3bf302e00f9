//! For every check of a cluster a case that raises its finding and a near miss: one close by that is looked at and must not.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "kube/pairs.rs"]
mod pairs;
#[path = "kube/world.rs"]
mod world;

use std::collections::BTreeSet;

use expertrail_cluster::causes;
use expertrail_cluster::finding::{Finding, Status};
use expertrail_cluster::kube::{CHECKS, Report};
use world::of;

/// Two clusters, and what is said of them.
pub(crate) struct Pair {
    pub(crate) id: &'static str,
    /// The cluster with the fault, and the status and words of the finding.
    pub(crate) raised: (Report, Status, &'static str),
    /// The cluster that only looks like it, and words of what is said instead; none where there is nothing to say.
    pub(crate) near: (Report, Option<&'static str>),
}

fn seen(findings: &[&Finding]) -> Vec<String> {
    findings.iter().map(|finding| format!("{} {}", finding.status, finding.observed)).collect()
}

/// What a raised finding lacks.
fn lacks(finding: &Finding) -> Vec<&'static str> {
    let cause = finding.cause.as_deref().unwrap_or_default();
    let all = [
        (causes::get(cause).is_none(), "a cause of the registry"),
        (finding.remedies.is_empty(), "a remedy"),
        (finding.evidence.is_empty(), "evidence"),
        (finding.wanted.is_empty() && finding.status != Status::Unknown, "what is wanted"),
    ];
    all.into_iter().filter(|(lacks, _)| *lacks).map(|(_, what)| what).collect()
}

#[test]
fn every_check_is_raised_and_has_a_near_miss() {
    let pairs = pairs::all();
    let mut wrong = Vec::new();
    for Pair { id, raised: (report, status, words), near: (close, instead) } in &pairs {
        let found = of(report, id);
        let said = found.iter().find(|one| one.status == *status && one.observed.contains(words));
        match said {
            None => wrong.push(format!("{id}: wanted {status} {words}, is {:?}", seen(&found))),
            // P327 only tells; nothing is wrong about a taint.
            Some(_) if *status == Status::Pass => assert_eq!(*id, "P327"),
            Some(finding) => {
                wrong.extend(lacks(finding).iter().map(|what| format!("{id}: {words}: lacks {what}")));
            }
        }
        let found = of(close, id);
        let right = |one: &&Finding| matches!(one.status, Status::Pass | Status::NotApplicable);
        let still =
            found.iter().any(|one| !right(one) || *status == Status::Pass && one.observed.contains(words));
        let as_told = match instead {
            Some(words) => found.iter().any(|one| one.observed.contains(words)),
            None => found.is_empty(),
        };
        if still || !as_told {
            wrong.push(format!("{id}, near miss of {words}: wanted {instead:?}, is {:?}", seen(&found)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let ids: BTreeSet<&str> = pairs.iter().map(|pair| pair.id).collect();
    let known: BTreeSet<&str> = CHECKS.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, known, "a pair for every check, and none for others");
}
