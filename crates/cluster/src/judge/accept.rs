//! Training runs: how far they came, and the criteria of acceptance.
//!
//! A run is accepted when every iteration ended, its summary file was written, every launcher ended with 0, no rank printed a
//! failure, and the build can talk between nodes (a pass of a build without NVSHMEM is none). Without `--accept` only what the
//! logs show is judged.

use std::collections::BTreeSet;

use super::causes::{LAUNCHER, MARKER, NO_NUMBER, NO_SUMMARY, STOPPED, UNSEEN};
use super::coverage;
use super::evidence::{At, finding, list, subject};
use super::model::{Kind, Training};
use super::weigh::Known;
use crate::causes;
use crate::finding::{Finding, Status};

/// What a training run must show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Iterations; none: as many as the log says were asked for.
    pub steps: Option<u64>,
    /// Launchers that must end with 0; none: one at least.
    pub launchers: Option<u64>,
    /// The summary file that was named and could not be read, and why.
    pub summary_unread: Option<String>,
}

pub(super) fn findings(known: &[Known<'_>], accept: Option<&Accept>) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut training = 0;
    for known in known {
        if let Some(run) = known.run.training.as_ref().filter(|_| known.run.kind == Kind::Training) {
            training += 1;
            all.push(iterations(known, run, accept));
            all.extend(figures(known, run));
        }
        if known.run.kind == Kind::Summary {
            let says = known.run.training.as_ref().and_then(|training| training.steps);
            let says = says.map_or("no number of".to_owned(), |steps| steps.to_string());
            all.push(
                finding("J017")
                    .about(subject(known))
                    .outcome(Status::Unknown, &STOPPED)
                    .saw(format!("a summary of {says} steps, and not the log of its run"), "the log")
                    .line(&known.run.place),
            );
        }
        if let Some(accept) = accept
            && matches!(known.run.kind, Kind::Training | Kind::Fragment | Kind::Summary)
        {
            all.extend(criteria(known, accept));
        }
    }
    if accept.is_some() && training == 0 {
        all.push(
            finding("J017")
                .outcome(Status::Unknown, &STOPPED)
                .saw("no log has an iteration of a training run", "the logs of a training run"),
        );
    }
    all
}

fn iterations(known: &Known<'_>, training: &Training, accept: Option<&Accept>) -> Finding {
    let new = || finding("J017").about(subject(known)).line(&training.place);
    let wanted = accept.and_then(|accept| accept.steps).or(training.steps).or(training.summary_steps);
    let done = training.done.len() as u64;
    let Some(wanted) = wanted.filter(|wanted| *wanted > 0) else {
        return new().outcome(Status::Unknown, &STOPPED).saw(
            format!("{done} iterations ended; how many were asked for is not known (--accept --steps N)"),
            "all iterations",
        );
    };
    let lost: Vec<u64> = (0..wanted.min(1 << 20)).filter(|step| !training.done.contains(step)).collect();
    if lost.is_empty() && done >= wanted {
        return new().saw(format!("{done} of {wanted} ended"), "");
    }
    let last = training.begun.iter().next_back();
    let seen = match last {
        Some(step) if !training.done.contains(step) => {
            format!("{done} of {wanted} ended: it stopped in iteration {step}")
        }
        Some(_) | None if done == 0 => format!("0 of {wanted} began"),
        _ => format!("{done} of {wanted} ended; not {}", list(&lost)),
    };
    new()
        .outcome(Status::Fail, &STOPPED)
        .saw(seen, format!("{wanted} of {wanted}"))
        .remedy("Name the cause from the logs of all ranks.", &["expertrail diagnose LOGS..."])
}

/// Losses, times and utilisation that cannot be, and an average that the times beside it do not make.
fn figures(known: &Known<'_>, training: &Training) -> Option<Finding> {
    /// By how much an average may differ from what the times make.
    const ROUNDING: f64 = 0.05;
    let mut wrong = Vec::new();
    if let Some(lost) = &training.lost {
        wrong.push(format!(
            "{} of {} losses are no number: {}",
            training.losses_lost,
            training.done.len(),
            lost.text
        ));
    }
    if let Some(mfu) = training.mfu_percent.filter(|mfu| !(*mfu > 0.0 && *mfu <= 100.0)) {
        wrong.push(format!("a utilisation (MFU) of {mfu:.1} %"));
    }
    for (what, time) in [("an iteration", training.iteration_s), ("the average", training.step_s)] {
        if let Some(time) = time.filter(|time| !(time.is_finite() && *time > 0.0)) {
            wrong.push(format!("a time of {time:.3} s for {what}"));
        }
    }
    let timed = training.steps.and_then(|steps| steps.checked_sub(training.warmup.unwrap_or(0)));
    if let (Some(average), Some(whole), Some(timed)) = (
        training.step_s.filter(|_| training.step_of_summary),
        training.measured_s,
        timed.filter(|timed| *timed > 0),
    ) {
        let made = whole / timed as f64;
        if average.is_finite() && (average / made - 1.0).abs() > ROUNDING {
            wrong.push(format!(
                "an average of {average:.3} s, and {timed} iterations in {whole:.2} s make {made:.3}"
            ));
        }
    }
    let place = training.lost.as_ref().map_or(&training.place, |lost| &lost.place);
    (!wrong.is_empty()).then(|| {
        finding("J025")
            .about(subject(known))
            .outcome(Status::Fail, &NO_NUMBER)
            .saw(wrong.join("; "), "figures that can be")
            .line(place)
    })
}

fn criteria(known: &Known<'_>, accept: &Accept) -> Vec<Finding> {
    let run = known.run;
    let mut all = vec![summary(known, accept), launchers(known, accept), support(known)];
    if run.marks.is_empty() {
        let new = finding("J020").about(subject(known)).line(&run.place);
        all.push(match coverage::of(run, wanted(known, accept)) {
            Ok(which) => new.saw(format!("no failure in {which}"), ""),
            Err(which) => new
                .outcome(Status::Unknown, &UNSEEN)
                .saw(format!("no failure, in {which}: the others may have one"), "the log of every rank")
                .remedy("Give the logs of all nodes.", &[]),
        });
    } else if run.marks.iter().all(|mark| mark.section.is_some()) {
        let first = run.marks.first();
        all.push(
            finding("J020")
                .about(subject(known))
                .outcome(Status::Fail, &MARKER)
                .saw(first.map_or_else(String::new, |mark| mark.text.clone()), "no failure in any rank's log")
                .line(first.map_or(&run.place, |mark| &mark.place)),
        );
    }
    all
}

fn summary(known: &Known<'_>, accept: &Accept) -> Finding {
    let new = || finding("J018").about(subject(known));
    let run = known.run;
    if let Some(why) = &accept.summary_unread {
        return new()
            .outcome(Status::Fail, &NO_SUMMARY)
            .saw(why.clone(), "the summary file")
            .line(&run.place);
    }
    let training = run.training.clone().unwrap_or_default();
    if let Some(file) = &training.summary_file {
        let wanted = accept.steps.or(training.steps);
        return match (training.summary_steps, wanted) {
            (Some(says), Some(wanted)) if says != wanted => new()
                .outcome(Status::Fail, &NO_SUMMARY)
                .saw(format!("it is of {says} steps"), format!("a summary of {wanted} steps"))
                .line(file),
            (None, _) => new()
                .outcome(Status::Fail, &NO_SUMMARY)
                .saw("it does not say how many steps it is of", "a whole summary")
                .line(file),
            _ => match ranks_disagree(known, &training) {
                Some(seen) => {
                    new().outcome(Status::Fail, &NO_SUMMARY).saw(seen, "a summary of this run").line(file)
                }
                None => new().saw("written", "").line(file),
            },
        };
    }
    match &training.summary {
        Some(said) => new()
            .outcome(Status::Unknown, &NO_SUMMARY)
            .saw(
                format!("the log says that {} was written, and the file was not given", said.text),
                "the summary file (--summary FILE)",
            )
            .line(&said.place),
        None => new()
            .outcome(Status::Fail, &NO_SUMMARY)
            .saw("no summary file, and no line that says it was written", "the summary file (--summary FILE)")
            .line(&run.place),
    }
}

/// Ranks that the summary says and that cannot be those of the log.
fn ranks_disagree(known: &Known<'_>, training: &Training) -> Option<String> {
    let says = training.summary_ranks?;
    if let Some(parallel) = training.data_parallel.filter(|parallel| *parallel > 0 && says % parallel != 0) {
        return Some(format!("it is of {says} ranks, and the log has {parallel} data-parallel ranks"));
    }
    let launchers = ended(known);
    if launchers > says {
        return Some(format!("it is of {says} ranks, and {launchers} launchers ended"));
    }
    let most = known.run.nvshmem_ranks.iter().next_back().copied()?;
    (u64::from(most) >= says).then(|| format!("it is of {says} ranks, and rank {most} is in a log"))
}

/// Launchers that ended with 0. One that says so twice is one; rows of Slurm's accounting are of the same launchers again.
fn ended(known: &Known<'_>) -> u64 {
    let count = |accounting: bool| {
        let good = known.run.exits.iter().filter(|exit| exit.code == 0 && exit.accounting == accounting);
        good.map(|exit| (&exit.place.file, &exit.who)).collect::<BTreeSet<_>>().len() as u64
    };
    count(false).max(count(true))
}

/// Ranks of a launcher at most: what a node has.
const RANKS_OF_A_LAUNCHER: u64 = 8;

/// Launchers that the run must have had.
fn wanted(known: &Known<'_>, accept: &Accept) -> u64 {
    let run = known.run;
    let good = ended(known);
    // Every launcher has as many ranks, and not more than a node has.
    let ranks = run.training.as_ref().and_then(|training| training.summary_ranks).filter(|ranks| *ranks > 0);
    accept.launchers.unwrap_or_else(|| match ranks {
        Some(ranks) if good == 0 || ranks % good != 0 || ranks / good > RANKS_OF_A_LAUNCHER => {
            ranks.div_ceil(RANKS_OF_A_LAUNCHER).max(good + 1)
        }
        _ => good.max(1),
    })
}

fn launchers(known: &Known<'_>, accept: &Accept) -> Finding {
    let run = known.run;
    let good = ended(known);
    let wanted = wanted(known, accept);
    let new = finding("J019").about(subject(known));
    if let Some(bad) = run.exits.iter().find(|exit| exit.code != 0) {
        return new
            .outcome(Status::Fail, &LAUNCHER)
            .saw(format!("exit code {}; {good} ended with 0", bad.code), format!("0 of {wanted} launchers"))
            .line(&bad.place);
    }
    // Slurm gives a step the highest code of its tasks.
    if let Some(step) = run.exits.iter().find(|exit| exit.step) {
        return new
            .saw("Slurm's step ended with 0:0, the highest code of all of its tasks", "")
            .line(&step.place);
    }
    if good < wanted {
        return new
            .outcome(Status::Unknown, &LAUNCHER)
            .saw(
                format!("{good} of {wanted} launchers are known to have ended with 0"),
                "exit code 0 of every launcher",
            )
            .line(run.exits.first().map_or(&run.place, |exit| &exit.place))
            .remedy(
                "Give what the scheduler says of each task's exit code, with the logs.",
                &["sacct -j JOB -o JobID,State,ExitCode"],
            );
    }
    new.saw(format!("{good} ended with 0"), "").line(run.exits.first().map_or(&run.place, |exit| &exit.place))
}

fn support(known: &Known<'_>) -> Finding {
    let run = known.run;
    let new = finding("J021").about(subject(known));
    let cause = causes::get("deepep-without-nvshmem").copied().unwrap_or(MARKER);
    if let Some(said) = &run.internode_missing {
        return new
            .outcome(Status::Fail, &cause)
            .saw(said.text.clone(), "a build with NVSHMEM")
            .line(&said.place);
    }
    match &run.internode_support {
        Some(said) => new.saw(said.text.clone(), "").line(&said.place),
        None => new
            .outcome(Status::Unknown, &cause)
            .saw(
                "nothing shows that NVSHMEM is in the build: no version line of it, no linked library",
                "NVSHMEM's line in the log, or ldd of deep_ep_cpp",
            )
            .line(&run.place)
            .remedy(
                "Give what the loader says with the logs.",
                &["python -c 'import deep_ep_cpp; print(deep_ep_cpp.__file__)' | xargs ldd | grep nvshmem"],
            ),
    }
}
