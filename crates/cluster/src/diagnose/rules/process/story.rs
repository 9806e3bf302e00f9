//! What rules of several parts ask of a run's story.

use std::collections::BTreeSet;

use crate::diagnose::event::{Role, Signal};
use crate::diagnose::heal::whole;
use crate::diagnose::rule::{Claim, Confidence};
use crate::diagnose::{Case, Event};

/// A signal whose texts are enough.
pub(in crate::diagnose::rules) const fn text(
    id: &'static str,
    role: Role,
    any: &'static [&'static str],
) -> Signal {
    Signal { id, any, pattern: None, role }
}

/// A signal whose lines must match `pattern` as well.
pub(in crate::diagnose::rules) const fn line(
    id: &'static str,
    role: Role,
    any: &'static [&'static str],
    pattern: &'static str,
) -> Signal {
    Signal { id, any, pattern: Some(pattern), role }
}

/// Whether the run went on to a good end after `event`: a success of the whole run later than it, and nothing bad after that.
pub(in crate::diagnose::rules) fn ended_well(case: &Case, event: &Event) -> bool {
    let later = case.events.iter().filter(|good| whole(good) && event.before(good) == Some(true));
    let last = later.fold(None, |best: Option<&Event>, good| match best {
        Some(best) if best.before(good) != Some(true) => Some(best),
        _ => Some(good),
    });
    last.is_some_and(|good| {
        !case
            .events
            .iter()
            .any(|bad| matches!(bad.role, Role::Failure | Role::Follower) && good.before(bad) == Some(true))
    })
}

/// The claim, unless the run went on to a good end after all of its evidence.
pub(in crate::diagnose::rules) fn unless_fine(case: &Case, claim: Claim) -> Option<Claim> {
    let events = || claim.evidence.iter().filter_map(|&place| case.at(place));
    let bad = |event: &&Event| matches!(event.role, Role::Failure | Role::Follower);
    // A warning beside a failure may stand in a file of its own, where other things went well.
    let fine = if events().any(|event| bad(&event)) {
        events().filter(bad).any(|event| ended_well(case, event))
    } else {
        events().filter(|event| event.role == Role::Warning).any(|event| ended_well(case, event))
    };
    (!fine).then_some(claim)
}

/// The claim, about the field `name` of the first event that has it.
pub(in crate::diagnose::rules) fn about(case: &Case, claim: Claim, name: &str) -> Claim {
    let value = claim.evidence.iter().find_map(|&place| {
        case.events
            .iter()
            .filter(|event| event.place == place)
            .find_map(|event| event.field(name).map(str::to_owned))
    });
    match value {
        Some(value) => claim.about(value),
        None => claim,
    }
}

/// Whether all ranks run on one node, as far as something says so.
pub(in crate::diagnose::rules) fn one_node(case: &Case) -> bool {
    let shapes: BTreeSet<i64> =
        case.events("nccl-comm-shape").filter_map(|event| event.number("nodes")).collect();
    match shapes.last() {
        Some(nodes) => *nodes == 1,
        None => matches!((case.world, case.per_node), (Some(world), Some(per)) if world <= per),
    }
}

/// What every confident claim of rules other than `except` rests on; rules that take this into account must be in `except`.
pub(in crate::diagnose::rules) fn confident_claims(case: &Case, except: &[&str]) -> Vec<Claim> {
    crate::diagnose::rules::rules()
        .filter(|rule| !except.contains(&rule.cause))
        .filter_map(|rule| rule.apply(case))
        .filter(|claim| claim.confidence > Confidence::Possible && !claim.caution)
        .collect()
}

/// Causes that say how a run ended and not why: they give way to others.
pub(in crate::diagnose::rules) const RESIDUAL: &[&str] =
    &["application-error", "rank-killed", "node-lost", "slurm-time-limit", "rendezvous-peer-missing"];

/// Whether a step after the first was done before `event`.
pub(in crate::diagnose::rules) fn steps_before(case: &Case, event: &Event) -> bool {
    case.events.iter().any(|step| {
        step.role == Role::Progress
            && step.number("iter").is_some_and(|number| number >= 1)
            && step.before(event) == Some(true)
    })
}

/// Whether a failure of another kind than `signals` is known to come before `event`.
pub(in crate::diagnose::rules) fn failed_before(case: &Case, event: &Event, signals: &[&str]) -> bool {
    case.events.iter().any(|other| {
        other.role == Role::Failure
            && other.place != event.place
            && !signals.contains(&other.signal)
            && other.before(event) == Some(true)
    })
}

/// Rank, or else node, that wrote an event.
pub(in crate::diagnose::rules) fn writer(event: &Event) -> Option<String> {
    event.rank.map(|rank| format!("rank {rank}")).or_else(|| event.node.as_deref().map(str::to_owned))
}

/// Number of processes that wrote the signal, as far as ranks, nodes and files tell them apart.
pub(in crate::diagnose::rules) fn writers(case: &Case, signal: &str) -> usize {
    let files: BTreeSet<u32> = case.events(signal).map(|event| event.place.file).collect();
    case.ranks(signal).len().max(case.nodes(signal).len()).max(files.len())
}

/// What the parts hold, in one table of `N`; `blank` is what it is filled with before.
pub(in crate::diagnose::rules) const fn join<T: Copy, const N: usize>(blank: T, parts: &[&[T]]) -> [T; N] {
    let mut all = [blank; N];
    let (mut part, mut filled) = (0, 0);
    while part < parts.len() {
        let mut index = 0;
        while index < parts[part].len() {
            all[filled] = parts[part][index];
            filled += 1;
            index += 1;
        }
        part += 1;
    }
    all
}
