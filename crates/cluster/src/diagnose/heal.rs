//! Failures that a later success took back: a restart that went well, a fallback that works.

use std::collections::BTreeSet;

use super::case::Case;
use super::event::{Event, Place, Role};

/// Signs that a whole run, or the part of it that a failure could have spoiled, ended well. A sub-test that passed is none, and neither is
/// an exit code of 0: that of a clean-up step says nothing of the run, and scripts swallow errors.
const WHOLE: [&str; 13] = [
    "deepep-bandwidth",
    "deepep-tuning-best",
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

/// Errors that a script prints and goes on from: nothing that comes later takes them back.
const SWALLOWED: [&str; 2] = ["guide-section-error", "nccl-tests-wrong"];

/// What a line says that was the last one of its process.
const LAST_WORDS: [&str; 10] = [
    "Error: ",
    "Error(",
    "Exception",
    "Segmentation fault",
    "Bus error",
    "Killed",
    "core dumped",
    "timeout (dispatch",
    "recv timeout",
    "SIGKILL",
];

/// What no process of a GPU goes on from, whatever the line is in the story.
const DEADLY: [&str; 8] = [
    "illegal memory access",
    "Segmentation fault",
    "Bus error",
    "core dumped",
    "fallen off the bus",
    "uncorrectable ECC",
    "oom_kill event",
    "SIGKILL",
];

/// Whether a process does not outlive the line.
fn ends_a_process(event: &Event) -> bool {
    let bad = matches!(event.role, Role::Failure | Role::Follower | Role::Warning);
    if bad && DEADLY.iter().any(|words| event.text.contains(words)) {
        return true;
    }
    event.role == Role::Failure
        && (event.text.trim_end().ends_with("Error")
            || LAST_WORDS.iter().any(|words| event.text.contains(words)))
}

/// Whether the rank of an event is seen at work after it, or ranks were started again. Another rank's good end does not bring it back.
fn rank_lived_on(case: &Case, event: &Event, until: u64) -> bool {
    let Some(rank) = event.rank else { return true };
    let end = Place { file: event.place.file, line: until };
    other_run(case, event.place, end)
        || case.events.iter().any(|later| {
            later.rank == Some(rank)
                && later.place.file == event.place.file
                && later.place.line > event.place.line
                && matches!(later.role, Role::Progress | Role::Success)
        })
}

/// Which failures a success took back.
pub(super) struct Healed {
    /// Per file, the last line of a success of the whole run that no failure follows.
    until: Vec<Option<u64>>,
    /// Failures that no success takes back: their process is gone, or their error was swallowed.
    dead: BTreeSet<Place>,
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
        let mut healed = Self { until, dead: BTreeSet::new(), run_succeeded_after_all: false };
        healed.dead = case
            .events
            .iter()
            .filter(|event| {
                SWALLOWED.contains(&event.signal)
                    || (ends_a_process(event)
                        && healed.line(event).is_some_and(|until| !rank_lived_on(case, event, until)))
            })
            .map(|event| event.place)
            .collect();
        healed.run_succeeded_after_all = healed.until.iter().any(Option::is_some)
            && case.events.iter().filter(bad).all(|event| healed.has(event));
        healed
    }

    /// The line of the success that comes after the event in its file.
    fn line(&self, event: &Event) -> Option<u64> {
        let until = self.until.get(event.place.file as usize).copied().flatten();
        until.filter(|line| event.place.line <= *line)
    }

    /// Whether the event is a failure or follower that was taken back.
    pub(super) fn has(&self, event: &Event) -> bool {
        matches!(event.role, Role::Failure | Role::Follower | Role::Warning)
            && self.line(event).is_some()
            && !self.dead.contains(&event.place)
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
            .filter_map(|place| case.at(*place))
            .filter(|event| matches!(event.role, Role::Failure | Role::Follower | Role::Warning))
            .peekable();
        failures.peek().is_some() && failures.all(|event| self.has(event))
    }
}
