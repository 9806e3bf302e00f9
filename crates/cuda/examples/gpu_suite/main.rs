//! Conformance, stress and faults of the GPU backend, for a machine with GPUs and without Rust: `gpu_suite STAGE`.
//!
//! This program is its own launcher: it starts itself once for each GPU, as a rank. It prints one line for each check and
//! writes a summary. `scripts/test-gpu` runs it.

mod beside;
mod check;
mod conformance;
mod faults;
mod gpu;
mod launch;
mod list;
mod misuse;
mod player;
mod prepared;
mod random;
mod report;
mod settings;
mod shared;
mod slots;
mod stages;
mod stress;
mod wanted;
mod works;

use std::process::ExitCode;

use expertrail_cuda::{Driver, Search};
use expertrail_group::Group;
use report::Machine;
use settings::{Settings, Stage, USAGE};

fn main() -> ExitCode {
    let settings = match Settings::from_args(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Some(checks) = settings.checks.clone() {
        return rank(&settings, &checks);
    }
    if settings.list {
        // The list needs no GPU: with none known, for two.
        for name in stages::names(settings.stage, settings.gpus.unwrap_or(2)) {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    let driver = match Driver::load(&Search::driver()) {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(4);
        }
    };
    let machine = Machine::of(&driver);
    let gpus = settings.gpus.unwrap_or(machine.gpus()).min(machine.gpus());
    if gpus == 0 {
        eprintln!("error: no GPU to run on (--gpus {:?}, {} visible)", settings.gpus, machine.gpus());
        return ExitCode::from(4);
    }
    stages::run(settings, &machine, gpus)
}

/// One rank: every check in turn, until one fails here.
fn rank(settings: &Settings, checks: &[usize]) -> ExitCode {
    let group = match Group::from_env() {
        Ok(group) => group,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(error.exit_code());
        }
    };
    let gpus = settings.gpus.unwrap_or(group.size());
    for &check in checks {
        let result = one(settings, &group, (gpus, check));
        launch::say(check, &result);
        if result.is_err() {
            // The others are elsewhere in this check by now: what followed would only say so again.
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// One check on one rank.
fn one(settings: &Settings, group: &Group, (gpus, check): (usize, usize)) -> Result<(), String> {
    let unknown = || "no such check".to_owned();
    match settings.stage {
        Stage::Conformance => {
            let listed = list::listed(gpus).into_iter().nth(check).ok_or_else(unknown)?;
            conformance::run(group, &listed, settings)
        }
        Stage::Stress => {
            stress::CHECKS.get(check).ok_or_else(unknown)?.run(&stress::Seat { group, settings })
        }
        Stage::Faults => {
            let &(_, fault) = faults::CHECKS.get(check).ok_or_else(unknown)?;
            faults::Seat { group, settings, gpus, check }.run(fault)
        }
    }
}
