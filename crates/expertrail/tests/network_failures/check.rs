//! Compares what the ranks told with what the line wants.

use std::time::{Duration, Instant};

use super::line::{Act, Line};
use super::rank::{RANKS, Report};

/// What the ranks of a run told, and when it was heard.
pub struct Seen {
    pub reports: Vec<(usize, Report, Instant)>,
    /// How much later than told it may have been heard.
    pub slack: Duration,
}

/// What is wrong with a run, if anything.
pub fn problems(line: &Line, seen: &Seen) -> Vec<String> {
    let mut problems = Vec::new();
    let of = |rank: usize| seen.reports.iter().filter(move |(from, ..)| *from == rank);
    for (rank, report, _) in &seen.reports {
        if let Report::Wrong(text) = report {
            problems.push(format!("rank {rank}: {text}"));
        }
    }
    let Some(acted) = seen.reports.iter().find_map(|(_, r, at)| (*r == Report::Acting).then_some(*at)) else {
        problems.push("it never happened".to_owned());
        return problems;
    };
    let killed = |rank: usize| line.act == Act::Kill && line.hit.contains(&rank);
    for rank in (0..RANKS).filter(|rank| !killed(*rank)) {
        let told = |wanted: &dyn Fn(&Report) -> bool| of(rank).find(|(_, report, _)| wanted(report));
        let left = line.act == Act::Leave && rank == line.victim;
        if line.causes.is_empty() || left {
            if told(&|report| *report == Report::Fine).is_none() {
                problems.push(format!("rank {rank} did not come through"));
            }
            if line.causes.is_empty() {
                continue;
            }
        } else if let Some((_, report, at)) = told(&|report| matches!(report, Report::Failed { .. })) {
            problems.extend(failure(line, rank, report));
            // One that was stopped counts from when it goes on.
            let stopped = line.act == Act::Stop && rank == line.victim;
            let took = at.saturating_duration_since(acted).saturating_sub(seen.slack);
            if !stopped && took > line.within {
                problems.push(format!("rank {rank} knew after {took:?}, not within {:?}", line.within));
            }
        } else {
            problems.push(format!("rank {rank} told of no failure"));
        }
        if told(&|report| *report == Report::Anew).is_none() {
            problems.push(format!("rank {rank} has no new communicator"));
        }
    }
    problems
}

/// What is wrong with a rank's first error.
fn failure(line: &Line, rank: usize, report: &Report) -> Vec<String> {
    let Report::Failed { cause, culprit, phase, text } = report else { return Vec::new() };
    let mut wrong = Vec::new();
    if !line.causes.contains(cause) {
        wrong.push(format!("cause {cause}"));
    }
    if !line.culprits.contains(culprit) {
        wrong.push(format!("culprit {culprit}"));
    }
    let phase_is_right = if line.phases.is_empty() { phase != "Idle" } else { line.phases.contains(phase) };
    if !phase_is_right {
        wrong.push(format!("phase {phase}"));
    }
    // Who is on another node must be found there: by node, rail and provider.
    let (node, rail) = (culprit / 2, culprit % 2);
    let place = format!("rank {culprit} is on node {node}, reached over rail {rail} ({}", line.over);
    if node != rank / 2 && !text.contains(&place) {
        wrong.push(format!("no {place:?}"));
    }
    if !text.contains(&format!("rank {culprit}")) {
        wrong.push("the culprit is not in the text".to_owned());
    }
    wrong.into_iter().map(|what| format!("rank {rank}: {what} in {text:?}")).collect()
}
