//! The launcher's side of each stage: which checks go into which launch.

use std::collections::BTreeMap;
use std::process::ExitCode;

use crate::faults::{self, Fault};
use crate::launch::Launch;
use crate::list::{Listed, listed};
use crate::report::{Machine, Report, Verdict};
use crate::settings::{Settings, Stage};
use crate::stress;

/// After so many failed checks of a stage the rest is not run: whatever is wrong is known by then.
const MOST_FAILURES: usize = 10;

/// A check of one launch.
struct Check {
    number: usize,
    name: String,
}

/// The names of a stage's checks.
pub(crate) fn names(stage: Stage, gpus: usize) -> Vec<String> {
    match stage {
        Stage::Conformance => listed(gpus).into_iter().map(|listed| listed.name).collect(),
        Stage::Stress => stress::CHECKS.iter().map(|check| check.name.to_owned()).collect(),
        Stage::Faults => faults::CHECKS.iter().map(|(name, _)| (*name).to_owned()).collect(),
    }
}

/// Runs a stage.
pub(crate) fn run(mut settings: Settings, machine: &Machine, gpus: usize) -> ExitCode {
    let folder = std::env::temp_dir().join(format!("expertrail-gpu-suite-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir_all(&folder) {
        eprintln!("error: {}: {error}; set TMPDIR to a folder that can be written", folder.display());
        return ExitCode::from(4);
    }
    settings.folder.clone_from(&folder);
    let mut report = Report::new(settings.stage.name());
    match settings.stage {
        Stage::Conformance => conformance(&settings, &mut report, gpus),
        Stage::Stress => stress(&settings, &mut report, gpus),
        Stage::Faults => faults(&settings, &mut report, (gpus, machine.gpus())),
    }
    // What ranks left for each other is of no use to anybody any more.
    let _ = std::fs::remove_dir_all(&folder);
    report.finish(&settings, machine)
}

fn conformance(settings: &Settings, report: &mut Report, gpus: usize) {
    let mut by_ranks: BTreeMap<usize, Vec<Check>> = BTreeMap::new();
    for (number, Listed { name, case, not_run }) in listed(gpus).into_iter().enumerate() {
        if !settings.takes(&name) {
            continue;
        }
        match not_run {
            Some(reason) => report.check(&name, Verdict::NotRun(reason)),
            None => by_ranks.entry(case.ranks).or_default().push(Check { number, name }),
        }
    }
    for (ranks, checks) in by_ranks {
        let launch = Launch {
            settings,
            ranks,
            gpus,
            checks: Vec::new(),
            env: Vec::new(),
            limit: settings.deadline(400),
            grace: settings.deadline(3),
        };
        in_turn(launch, checks, report);
    }
}

fn stress(settings: &Settings, report: &mut Report, gpus: usize) {
    let mut by_connections: BTreeMap<Option<&'static str>, Vec<Check>> = BTreeMap::new();
    for (number, check) in stress::CHECKS.iter().enumerate().filter(|(_, check)| settings.takes(check.name)) {
        let check_here = Check { number, name: check.name.to_owned() };
        by_connections.entry(check.connections).or_default().push(check_here);
    }
    for (connections, checks) in by_connections {
        let launch = Launch {
            settings,
            ranks: gpus,
            gpus,
            checks: Vec::new(),
            env: connections.map(|n| ("CUDA_DEVICE_MAX_CONNECTIONS", n.to_owned())).into_iter().collect(),
            limit: settings.deadline(400),
            grace: settings.deadline(3),
        };
        in_turn(launch, checks, report);
    }
}

/// Runs checks in one launch. One that fails ends its launch, and those behind it get another.
fn in_turn(mut launch: Launch<'_>, mut checks: Vec<Check>, report: &mut Report) {
    let mut failures = 0;
    while !checks.is_empty() {
        if failures == MOST_FAILURES {
            let why = format!("{failures} checks before it failed");
            checks.drain(..).for_each(|check| report.check(&check.name, Verdict::NotRun(why.clone())));
            return;
        }
        launch.checks = checks.iter().map(|check| check.number).collect();
        let ended = launch.run();
        ended.notes.iter().for_each(|note| report.note(note.clone()));
        let failed = checks.iter().position(|check| ended.problem(check.number, |_| true).is_some());
        let rest = checks.split_off(failed.map_or(checks.len(), |at| at + 1));
        let last = checks.len() - 1;
        for (at, check) in checks.iter().enumerate() {
            let mut problem = ended.problem(check.number, |_| true);
            // All came through and yet a rank failed, at its end: the last check gets the blame.
            if at == last && failed.is_none() && problem.is_none() {
                problem = ended.bad_end(|_| true).map(|end| format!("after the last check: {end}"));
            }
            failures += usize::from(problem.is_some());
            report.check(&check.name, problem.map_or(Verdict::Ok, Verdict::Failed));
        }
        checks = rest;
    }
}

/// Each fault in a launch of its own: most of them end a communicator, and some a process.
fn faults(settings: &Settings, report: &mut Report, (gpus, visible): (usize, usize)) {
    for (number, &(name, fault)) in faults::CHECKS.iter().enumerate().filter(|(_, c)| settings.takes(c.0)) {
        if fault.needs_two() && gpus < 2 {
            report.check(name, Verdict::NotRun("it needs 2 GPUs, there is 1".to_owned()));
            continue;
        }
        if matches!(fault, Fault::TooManyRanks) && gpus < visible {
            report.check(name, Verdict::NotRun(format!("{gpus} of {visible} GPUs are in use")));
            continue;
        }
        let launch = Launch {
            settings,
            ranks: fault.ranks(gpus),
            gpus,
            checks: vec![number],
            env: Vec::new(),
            limit: settings.deadline(60),
            // Survivors go on after a rank's death: that is what is tested.
            grace: settings.deadline(45),
        };
        let ended = launch.run();
        ended.notes.iter().for_each(|note| report.note(note.clone()));
        let lives = |rank: usize| fault.dies(gpus) != Some(rank);
        let mut problem = ended.problem(number, lives).or_else(|| ended.bad_end(lives));
        if problem.is_none() {
            problem = fault
                .dies(gpus)
                .filter(|victim| !ended.was_killed(*victim))
                .map(|victim| format!("rank {victim} was not killed"));
        }
        report.check(name, problem.map_or(Verdict::Ok, Verdict::Failed));
    }
}
