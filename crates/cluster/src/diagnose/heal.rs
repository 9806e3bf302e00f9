//! Failures that a later success took back: a restart that went well, a fallback that works.

use super::case::Case;
use super::event::{Event, Place, Role};

/// Signs that a whole run, or the part of it that a failure could have spoiled, ended well: a sub-test that passed is none.
const WHOLE: [&str; 14] = [
    "deepep-bandwidth",
    "deepep-tuning-best",
    "exit-zero",
    "expertrail-bench-pass",
    "guide-figures",
    "iterations-done",
    "kube-pod-succeeded",
    "nccl-tests-busbw",
    "nccl-tests-ok",
    "osu-benchmark-done",
    "sacct-completed",
    "server-ready",
    "tests-passed",
    "training-finished",
];

/// Whether the event says that a whole run, or the part of it that a failure could have spoiled, ended well.
pub(super) fn whole(event: &Event) -> bool {
    event.role == Role::Success && WHOLE.contains(&event.signal)
}

/// Whether a line between the two, in their file, says that another run began: one that someone started again, or with something changed.
/// What went well after it says nothing of what the run before it failed of.
pub(super) fn other_run(case: &Case, bad: Place, good: Place) -> bool {
    bad.file == good.file
        && case
            .events("another-run")
            .any(|event| event.place.file == bad.file && (bad.line..good.line).contains(&event.place.line))
}

/// Which failures a success took back.
pub(super) struct Healed {
    /// Per file, the last line of a success of the whole run that no failure follows.
    until: Vec<Option<u64>>,
    /// Every file that shows a failure ends in such a success, or the run as a whole did.
    pub(super) run_succeeded_after_all: bool,
}

impl Healed {
    /// Of a case.
    pub(super) fn of(case: &Case) -> Self {
        let bad = |event: &&Event| matches!(event.role, Role::Failure | Role::Follower);
        let files = case.files.len();
        let mut until = vec![None; files];
        for (file, until) in until.iter_mut().enumerate() {
            let here = |event: &&Event| event.place.file as usize == file;
            let last_success = case
                .events
                .iter()
                .filter(here)
                .filter(|event| whole(event))
                .map(|event| event.place.line)
                .max();
            let last_failure = case
                .events
                .iter()
                .filter(here)
                .filter(|event| event.role == Role::Failure)
                .map(|event| event.place.line)
                .max();
            *until = last_success.filter(|success| last_failure.is_none_or(|failure| failure < *success));
        }
        let all = case.events.iter().filter(bad).all(|event| {
            until
                .get(event.place.file as usize)
                .copied()
                .flatten()
                .is_some_and(|line| event.place.line <= line)
        });
        let any_success = until.iter().any(Option::is_some);
        Self { run_succeeded_after_all: any_success && all, until }
    }

    /// Whether the event is a failure or follower that was taken back.
    pub(super) fn has(&self, event: &Event) -> bool {
        matches!(event.role, Role::Failure | Role::Follower | Role::Warning)
            && self
                .until
                .get(event.place.file as usize)
                .copied()
                .flatten()
                .is_some_and(|line| event.place.line <= line)
    }

    /// Whether another run began between one of these places and the success that would take it back.
    pub(super) fn by_other_run(&self, case: &Case, places: &[Place]) -> bool {
        let until = |place: &Place| self.until.get(place.file as usize).copied().flatten();
        places.iter().any(|place| {
            until(place).is_some_and(|line| other_run(case, *place, Place { file: place.file, line }))
        })
    }

    /// Whether all of these places were taken back; not where there are none.
    pub(super) fn all(&self, case: &Case, places: &[Place]) -> bool {
        let mut failures = places
            .iter()
            .filter_map(|place| case.events.iter().find(|event| event.place == *place))
            .filter(|event| matches!(event.role, Role::Failure | Role::Follower | Role::Warning))
            .peekable();
        failures.peek().is_some() && failures.all(|event| self.has(event))
    }
}
