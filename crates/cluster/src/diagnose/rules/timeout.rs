//! The timeouts of DeepEP: one text, many causes.
//!
//! What separates the causes are seven questions ([`Questions`]); a cause is claimed from their answers, and a timeout alone decides none.

mod causes;
mod kernel;
mod questions;
mod signals;

pub use kernel::{Silent, silent};
pub use questions::{Asked, Counts, Devices, Frame, Questions, Reached, When};
pub(super) use signals::SIGNALS;

use crate::diagnose::event::{Event, Role, Signal};
use crate::diagnose::heal::{other_run, whole};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::{Answered, Case};
use crate::stack::matrix;

use super::process::story::join;

/// Signals of a dispatch or combine that waited in vain.
pub(super) const TIMEOUTS: &[&str] = &[
    "dispatch-timeout",
    "cpu-recv-timeout",
    "v2-dispatch-wait",
    "recv-counters-unset",
    "kernel-timeout",
    "timeout-check-failed",
    "low-latency-timeout",
];

/// The same, and an illegal access, which follows a timeout or stands alone.
pub(super) const TIMEOUTS_AND_ACCESS: &[&str] =
    &join::<_, 8>("", &[TIMEOUTS, &["cuda-illegal-memory-access"]]);

/// The same, and a watchdog of NCCL, which a rank that waits elsewhere trips.
const TIMEOUTS_AND_WATCHDOG: &[&str] = &join::<_, 8>("", &[TIMEOUTS, &["nccl-watchdog"]]);

/// What every rule here has in common.
const BASE: Rule = Rule { any: TIMEOUTS, ..Rule::LIKELY };

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "nvshmem-rc-layout-mismatch",
        any: TIMEOUTS_AND_ACCESS,
        refine: Some(causes::rc_layout),
        ..BASE
    },
    Rule {
        cause: "nvshmem-device-host-differ",
        any: TIMEOUTS_AND_ACCESS,
        refine: Some(causes::split),
        ..BASE
    },
    Rule { cause: "jit-compile-skew", any: TIMEOUTS_AND_WATCHDOG, refine: Some(causes::jit), ..BASE },
    Rule { cause: "deepep-qp-race", any: &["kernel-timeout"], refine: Some(causes::qp_race), ..BASE },
    Rule { cause: "peermem-missing", refine: Some(causes::modules), ..BASE },
    Rule { cause: "driver-key-missing", refine: Some(causes::keys), ..BASE },
    Rule { cause: "dispatch-peer-absent", refine: Some(causes::absent), ..BASE },
    Rule { cause: "jit-compile-skew", refine: Some(causes::maybe_jit), ..BASE },
    Rule { cause: "hca-list-wrong-device", refine: Some(causes::mapping), ..BASE },
    Rule {
        cause: "framework-dual-batch-bug",
        any: &["cpu-recv-timeout"],
        refine: Some(causes::maybe_dual_batch),
        ..BASE
    },
    Rule {
        cause: "nvshmem-two-device-states",
        any: &["cuda-illegal-memory-access"],
        unless: TIMEOUTS,
        refine: Some(causes::device_states),
        ..BASE
    },
];

/// The seven questions with their answers, where a run waited in vain.
pub(super) fn answered(case: &Case) -> Vec<Answered> {
    Questions::of(case).map(|questions| questions.answers(case)).unwrap_or_default()
}

/// A claim at most as sure as `confidence`.
pub(super) fn weigh(mut claim: Claim, confidence: Confidence) -> Claim {
    claim.confidence = claim.confidence.min(confidence);
    claim
}

/// A claim that says something else.
pub(super) fn saying(mut claim: Claim, because: impl Into<String>) -> Claim {
    claim.because = because.into();
    claim
}

/// Whether the run failed: a failure, or what follows one, that no success of the whole run came after.
pub(super) fn failing(case: &Case) -> bool {
    let done: Vec<&Event> = case.events.iter().filter(|event| whole(event)).collect();
    let taken_back = |event: &Event| {
        done.iter().any(|done| {
            done.place.file == event.place.file
                && done.place.line > event.place.line
                && !other_run(case, event.place, done.place)
        })
    };
    let bad = |event: &&Event| matches!(event.role, Role::Failure | Role::Follower);
    if case.events.iter().filter(bad).any(|event| !taken_back(event)) {
        return true;
    }
    // The transport that did not come up is a failure where nothing went well without it; figures of a node's inside say nothing of it.
    case.first("ibgda-init-failed").is_some_and(|warning| {
        let well = |event: &Event| {
            event.role == Role::Success
                && event.before(warning) != Some(true)
                && !event.text.contains("Node ")
        };
        !case.events.iter().any(well)
    })
}

/// The numbers of a version.
pub(super) fn numbers(version: &str) -> (u32, u32, u32) {
    let mut parts = version
        .trim_start_matches('v')
        .split(['.', '-', '+'])
        .map(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

/// Whether `version` is lower than `bound`.
pub(super) fn below(version: &str, bound: (u32, u32, u32)) -> bool {
    numbers(version) < bound
}

/// The first NVSHMEM whose default RC queue pairs lie in another order (DeepEP pull request 564).
pub(super) const NEW_LAYOUT: (u32, u32, u32) = (3, 5, 19);

/// Whether DeepEP has pull request 564, and whether the commit alone says so.
pub(super) fn patched(case: &Case) -> Option<(bool, bool)> {
    if let Some(known) = case.version("564") {
        return Some((known == "yes", case.question.commit_alone));
    }
    let commits =
        case.events("deepep-version-line").filter_map(|event| event.field("commit").or(event.field("named")));
    let mut known = commits.filter_map(|commit| matrix().commits.get(commit.get(..7)?));
    known.next().map(|commit| (commit.patched, true))
}

/// Whether DeepEP looks queue pairs up where the NVSHMEM that loaded does not have them; none where versions are missing.
pub(super) fn known_bad(case: &Case) -> Option<bool> {
    if matches!(case.version("transport"), Some("efa" | "none"))
        || case.version("dispatcher") == Some("hybridep")
    {
        return Some(false);
    }
    if super::nvshmem::contradicted(case) {
        return None;
    }
    let new =
        super::nvshmem::loaded(case, case.first_of(TIMEOUTS)).map(|version| !below(&version, NEW_LAYOUT));
    match (new, patched(case)) {
        (Some(false), _) | (_, Some((true, _))) => Some(false),
        (Some(true), Some((false, _))) => Some(true),
        _ => None,
    }
}

/// Kinds of lines of one part.
type Signals = &'static [Signal];

#[cfg(test)]
mod tests {
    use super::{below, numbers};

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(numbers("v3.10.2-1"), (3, 10, 2));
        assert_eq!(numbers("3.4.5+12090"), (3, 4, 5));
        assert!(below("3.4.5", (3, 5, 19)));
        assert!(!below("3.5.19", (3, 5, 19)));
        assert!(!below("3.10.0", (3, 5, 19)));
    }
}
