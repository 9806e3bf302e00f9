//! A line for each check, and a summary as JSON.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use expertrail_cuda::Driver;
use serde_json::{Value, json};

use crate::settings::Settings;

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ok,
    Failed(String),
    NotRun(String),
}

/// What a stage has to say.
#[derive(Debug)]
pub(crate) struct Report {
    stage: &'static str,
    started: Instant,
    checks: Vec<(String, Verdict)>,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(stage: &'static str) -> Self {
        Self { stage, started: Instant::now(), checks: Vec::new(), notes: Vec::new() }
    }

    /// Prints a check's line and keeps it.
    pub(crate) fn check(&mut self, name: &str, verdict: Verdict) {
        match &verdict {
            Verdict::Ok => println!("ok {name}"),
            Verdict::Failed(why) => println!("FAILED {name}: {why}"),
            Verdict::NotRun(why) => println!("not run {name}: {why}"),
        }
        self.checks.push((name.to_owned(), verdict));
    }

    /// Prints what a rank measured, and keeps it.
    pub(crate) fn note(&mut self, note: String) {
        println!("note: {note}");
        self.notes.push(note);
    }

    /// Prints the counts and writes the summary. Nothing run is not a pass.
    pub(crate) fn finish(self, settings: &Settings, machine: &Machine) -> ExitCode {
        let count = |wanted: fn(&Verdict) -> bool| self.checks.iter().filter(|(_, v)| wanted(v)).count();
        let ok = count(|v| *v == Verdict::Ok);
        let failed = count(|v| matches!(v, Verdict::Failed(_)));
        let not_run = count(|v| matches!(v, Verdict::NotRun(_)));
        let seconds = self.started.elapsed().as_secs_f64();
        println!("{}: {ok} ok, {failed} failed, {not_run} not run, {seconds:.1} s", self.stage);
        if let Some(path) = &settings.json {
            let summary = json!({
                "schema": "expertrail.gpu_suite/1",
                "stage": self.stage,
                "machine": machine.json(),
                "commit": std::env::var("EXPERTRAIL_COMMIT").ok(),
                "settings": settings.json(),
                "counts": { "ok": ok, "failed": failed, "not_run": not_run },
                "seconds": seconds,
                "checks": self.checks.iter().map(|(name, v)| check_json(name, v)).collect::<Vec<_>>(),
                "notes": self.notes,
            });
            if let Err(why) = write(path, &summary) {
                eprintln!("error: {why}");
                return ExitCode::from(2);
            }
        }
        match (failed, ok) {
            (0, 0) => ExitCode::from(3),
            (0, _) => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

fn check_json(name: &str, verdict: &Verdict) -> Value {
    match verdict {
        Verdict::Ok => json!({ "name": name, "verdict": "ok" }),
        Verdict::Failed(why) => json!({ "name": name, "verdict": "failed", "why": why }),
        Verdict::NotRun(why) => json!({ "name": name, "verdict": "not run", "why": why }),
    }
}

fn write(path: &Path, summary: &Value) -> Result<(), String> {
    let text = serde_json::to_string_pretty(summary).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n")
        .map_err(|error| format!("{}: {error}; give --json a file that can be written", path.display()))
}

/// What the suite ran on.
#[derive(Debug)]
pub(crate) struct Machine {
    host: String,
    driver: String,
    cuda: String,
    gpus: Vec<String>,
}

impl Machine {
    pub(crate) fn of(driver: &Driver) -> Self {
        let line = |path: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().next().unwrap_or("unknown").trim().to_owned()
        };
        let devices = driver.devices().unwrap_or_default();
        Self {
            host: line("/proc/sys/kernel/hostname"),
            driver: line("/proc/driver/nvidia/version"),
            cuda: driver.version().to_string(),
            gpus: devices.iter().map(|d| d.name().unwrap_or_else(|error| error.to_string())).collect(),
        }
    }

    pub(crate) fn gpus(&self) -> usize {
        self.gpus.len()
    }

    fn json(&self) -> Value {
        let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        json!({
            "host": self.host,
            "driver": self.driver,
            "cuda": self.cuda,
            "gpus": self.gpus,
            "processors": processors,
        })
    }
}
