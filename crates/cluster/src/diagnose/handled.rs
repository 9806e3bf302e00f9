//! Failures that are none of the run's end: exceptions that their process caught, and what kernel logs keep of other days.

use super::case::Case;
use super::event::{Event, Place, Role};
use super::heal::other_run;

/// What programs catch and go on from.
pub(super) const CATCHABLE: [&str; 3] =
    ["python-exception", "python-runtime-error-ordinary", "cuda-out-of-memory"];

/// Steps after it from which on a process surely went on: one may have stood in a buffer when the process ended.
const STEPS: usize = 2;

/// Whether whoever wrote the event did steps after it, and was not started again in between.
pub(super) fn handled(case: &Case, event: &Event) -> bool {
    if !CATCHABLE.contains(&event.signal) {
        return false;
    }
    let alone = case.ranks_seen.len() <= 1 && case.nodes_seen.len() <= 1;
    let same = |other: &&Event| {
        other.place.file == event.place.file
            && other.rank == event.rank
            && other.node == event.node
            && (event.rank.is_some() || alone)
    };
    let steps = || case.events("iteration").filter(same);
    let before =
        steps().filter(|step| step.before(event) == Some(true)).filter_map(|step| step.number("iter")).max();
    let after: Vec<&Event> = steps()
        .filter(|step| event.before(step) == Some(true))
        // A count that starts again is that of a process that was started again.
        .filter(|step| before.is_none_or(|before| step.number("iter").is_some_and(|iter| iter > before)))
        .collect();
    let numbers: std::collections::BTreeSet<i64> =
        after.iter().filter_map(|step| step.number("iter")).collect();
    let first = after.iter().map(|step| step.place).min();
    numbers.len() >= STEPS
        && first
            .is_some_and(|first| !other_run(case, event.place, Place { file: first.file, line: first.line }))
}

/// A day: what is further from the run than that is another job's.
const DAY: f64 = 86_400.0;

/// How a line of a kernel log stands to the run that the other files show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// It is the run's, or nothing speaks against it.
    OfTheRun,
    /// Days lie between.
    Stale,
    /// Its clock is not that of the run, and the run ended of an exception of its own, which needs no such fault.
    Unknown,
}

/// How the line stands to the run.
pub(super) fn age(case: &Case, event: &Event) -> Age {
    let elsewhere = || case.events.iter().filter(|other| other.place.file != event.place.file);
    let dated = || elsewhere().filter(|other| other.dated()).filter_map(|other| other.time);
    if let Some(time) = event.time
        && event.dated()
        && dated().next().is_some()
    {
        let near = dated().any(|other| (other - time).abs() <= DAY);
        return if near { Age::OfTheRun } else { Age::Stale };
    }
    let own = elsewhere().any(|other| {
        matches!(other.signal, "python-exception" | "python-runtime-error-ordinary")
            && other.role == Role::Failure
    });
    if own { Age::Unknown } else { Age::OfTheRun }
}

/// Whether the line is one of the kernel's out-of-memory killer, in a kernel log of another day.
fn of_another_day(case: &Case, event: &Event) -> bool {
    event.signal == "oom-killed" && event.text.contains("process") && age(case, event) == Age::Stale
}

/// Lines between a step's cancellation and what srun says of it.
const SAME_END: u64 = 4;

/// What Slurm says of steps that were cancelled in jobs that ended well: helpers that their script stops at its end.
fn ended_steps(case: &Case) -> Vec<usize> {
    let jobs: Vec<&str> = case
        .events("sacct-completed")
        .filter(|event| !event.text.contains(" step="))
        .filter_map(|event| event.text.strip_prefix("sacct job=")?.split_whitespace().next())
        .collect();
    let cancelled = || case.events.iter().enumerate().filter(|(_, event)| event.signal == "slurm-cancelled");
    let helpers: Vec<&Event> = cancelled()
        .map(|(_, event)| event)
        .filter(|event| jobs.iter().any(|job| event.text.contains(&format!("STEP {job}."))))
        .collect();
    cancelled()
        .filter(|(_, event)| {
            helpers.iter().any(|helper| {
                helper.place == event.place
                    || (event.text.contains("Job step aborted")
                        && helper.place.file == event.place.file
                        && helper.place.line.abs_diff(event.place.line) <= SAME_END)
            })
        })
        .map(|(index, _)| index)
        .collect()
}

/// What was caught is no first failure: it stays to be seen, as a follower. What is of another day is none of this run.
pub(super) fn demote(case: &mut Case) {
    let steps = ended_steps(case);
    let demoted: Vec<(usize, Role)> = case
        .events
        .iter()
        .enumerate()
        .filter(|(_, event)| event.role == Role::Failure)
        .filter_map(|(index, event)| {
            if handled(case, event) {
                Some((index, Role::Follower))
            } else {
                of_another_day(case, event).then_some((index, Role::Context))
            }
        })
        .collect();
    for (index, role) in demoted.into_iter().chain(steps.into_iter().map(|index| (index, Role::Context))) {
        if let Some(event) = case.events.get_mut(index) {
            event.role = role;
        }
    }
}
