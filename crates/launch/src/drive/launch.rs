//! One launch from its beginning to a clean system: look, start, watch, collect, remove, say what it means.
//!
//! Whatever happens on the way, the run's objects are removed (unless they are to be kept), after its logs were collected.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::{DriveError, Ending, Event, Show, Stop, System};
use crate::bundle::Bundle;
use crate::bundle::analyse::Analysis;
use crate::bundle::clock;
use crate::bundle::outcome::{self, End, Moment, Outcome};
use crate::bundle::report;
use crate::drive::Collect;
use crate::run::{self, Run};

/// Events that are kept: states of a day.
const EVENTS: usize = 10_000;

/// No launch takes longer, whatever `run.json` says: clocks end as well.
const LONGEST: Duration = Duration::from_hours(7 * 24);

/// What is launched.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its rendered directory.
    pub folder: &'a Path,
    /// Where results go; none: the next number under `results` of the rendered directory.
    pub bundle: Option<&'a Path>,
    /// The longest that it may take, waiting included.
    pub timeout: Duration,
    /// Leave the run's objects on the system.
    pub keep: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The exit code.
    pub code: u8,
    /// The directory of results; none where nothing was started.
    pub bundle: Option<PathBuf>,
    /// The same as in `outcome.json`.
    pub outcome: Outcome,
    /// What the figures and logs mean.
    pub analysis: Analysis,
}

/// The exit code of an interrupted launch.
pub const INTERRUPTED: u8 = 130;

/// Reads `run.json` of a rendered directory. A hand-edited manifest beside it is fine; another program's `run.json` is not.
///
/// # Errors
/// [`DriveError::Refused`] when there is none, or it is no resolved run of this version.
pub fn read(folder: &Path) -> Result<Run, DriveError> {
    let path = folder.join("run.json");
    let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DriveError::Refused(format!(
            "{} is no rendered run: it has no run.json. Render one first: expertrail render TARGET run.toml -o {}",
            folder.display(),
            folder.display()
        )),
        _ => DriveError::Refused(format!("cannot read {}: {error}", path.display())),
    })?;
    let refused = |reason: String| {
        DriveError::Refused(format!("{}: {reason}. Render the run again with this program", path.display()))
    };
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| refused(format!("no JSON: {error}")))?;
    match value.get("schema").and_then(serde_json::Value::as_str) {
        Some(run::SCHEMA) => {}
        Some(other) => {
            return Err(refused(format!("its schema is `{other}`, and this program reads {}", run::SCHEMA)));
        }
        None => return Err(refused(format!("it has no schema; wanted {}", run::SCHEMA))),
    }
    let run: Run =
        serde_json::from_value(value).map_err(|error| refused(format!("no resolved run: {error}")))?;
    // The file may have been edited: what a description may not say, it may not say either.
    run.sound().map_err(|error| refused(error.to_string()))?;
    Ok(run)
}

/// Launches, and comes back when the system is clean again.
///
/// # Errors
/// When nothing was started: the request is refused, there is no access, or results cannot be written. Everything that happens from the
/// start on is in [`Launched`].
pub fn run(
    system: &mut dyn System,
    plan: &Plan<'_>,
    show: &mut dyn Show,
    stop: &dyn Stop,
) -> Result<Launched, DriveError> {
    let mut seen = Seen { show, begun: Instant::now(), events: Vec::new() };
    system.ready(&mut seen)?;
    if stop.cancelled() {
        return Ok(stopped(plan, &mut seen));
    }
    let mut bundle = Bundle::create(plan.run, plan.folder, plan.bundle)?;
    // Copying launch files takes a while where the disk is slow.
    if stop.cancelled() {
        bundle.discard();
        return Ok(stopped(plan, &mut seen));
    }
    let started = SystemTime::now();
    let until = Instant::now() + plan.timeout.min(LONGEST);
    let mut end = match system.start(&mut seen) {
        Ok(()) => watch(system, &mut seen, stop, until),
        Err(error) if system.untouched() => {
            bundle.discard();
            return if stop.cancelled() { Ok(stopped(plan, &mut seen)) } else { Err(error) };
        }
        Err(error) => not_started(&error, &mut seen, stop),
    };
    let hosts = system.nodes();
    collect(system, &mut bundle, &mut seen, stop);
    let cleaned = clean(system, plan, &mut seen);
    if cleaned == Some(true) && !stop.hurried() {
        system.tidy(&mut seen);
    }
    records(plan.run, &bundle, &mut end);
    let mut launch = Finish { plan, started, hosts, cleaned, end };
    Ok(launch.finish(bundle, seen, stop))
}

/// How a run came to its end, with the exit code where that is decided already.
struct Ended {
    end: End,
    /// None: the figures decide.
    code: Option<u8>,
}

/// What is handed back where a stop came before anything was started.
fn stopped(plan: &Plan<'_>, seen: &mut Seen<'_>) -> Launched {
    seen.show(Event::Step("stopped before anything was started".to_owned()));
    let outcome = Outcome { run: plan.run.id.clone(), exit_code: INTERRUPTED, ..Outcome::default() };
    Launched { code: INTERRUPTED, bundle: None, outcome, analysis: Analysis::default() }
}

/// A start that failed half-way: a stop that came meanwhile is the cause, whatever the system says of it.
fn not_started(error: &DriveError, seen: &mut Seen<'_>, stop: &dyn Stop) -> Ended {
    seen.show(Event::Warning(error.to_string()));
    if stop.cancelled() {
        let end = End::of(&Ending::Interrupted);
        let reason = format!("{} while it was started: {error}", end.reason);
        return Ended { end: End { reason, ..end }, code: Some(INTERRUPTED) };
    }
    Ended {
        end: End { kind: "refused".to_owned(), reason: error.to_string(), code: None },
        code: Some(error.exit_code()),
    }
}

/// Watches what was started.
fn watch(system: &mut dyn System, seen: &mut Seen<'_>, stop: &dyn Stop, until: Instant) -> Ended {
    let ending = match system.watch(seen, stop, until) {
        Ok(ending) => ending,
        Err(error) => {
            seen.show(Event::Warning(error.to_string()));
            return Ended {
                end: End { kind: "lost".to_owned(), reason: error.to_string(), code: None },
                code: Some(error.exit_code()),
            };
        }
    };
    let code = match &ending {
        Ending::Succeeded => None,
        Ending::Failed { .. } => Some(1),
        Ending::NeverStarted { .. } => Some(3),
        Ending::Deadline { .. } => Some(124),
        Ending::Interrupted => Some(INTERRUPTED),
    };
    Ended { end: End::of(&ending), code }
}

/// Collects, whatever happened. What fails is said in the bundle, and stops nothing.
fn collect(system: &mut dyn System, bundle: &mut Bundle, seen: &mut Seen<'_>, stop: &dyn Stop) {
    if !stop.hurried() {
        seen.show(Event::Step("collecting logs".to_owned()));
        let mut to = Hurried { bundle, stop };
        if let Err(error) = system.collect(&mut to) {
            seen.show(Event::Warning(format!("not everything was collected: {error}")));
            bundle.missing("logs", &error.to_string());
        }
    }
    if stop.hurried() {
        seen.show(Event::Warning("a second Ctrl-C: the rest is not collected, only removed".to_owned()));
        bundle.missing("logs", "a second Ctrl-C stopped their collection");
    }
}

/// Removes the run; none where it is kept.
fn clean(system: &mut dyn System, plan: &Plan<'_>, seen: &mut Seen<'_>) -> Option<bool> {
    if plan.keep {
        let folder = plan.folder.display();
        seen.show(Event::Step(format!("kept, as --keep wants; `expertrail clean {folder}` removes it")));
        return None;
    }
    match system.clean(seen) {
        Ok(()) => Some(true),
        Err(error) => {
            seen.show(Event::Warning(format!("something of the run may be left: {error}")));
            Some(false)
        }
    }
}

/// Holds the ending against the ranks' own records: a rank that failed is no success, whatever the system says.
fn records(run: &Run, bundle: &Bundle, ended: &mut Ended) {
    let Some((words, code)) = outcome::first_of(run, bundle) else {
        if ended.end.kind == "succeeded" && unseen(run, bundle) {
            // An mpirun or srun that is another program than it seems ends well, too.
            let reason =
                "the system says success, and no rank left a record of its end: nothing shows that any ran";
            ended.end = End { kind: "never-started".to_owned(), reason: reason.to_owned(), code: None };
            ended.code = Some(3);
        }
        return;
    };
    let end = &mut ended.end;
    match end.kind.as_str() {
        "succeeded" => {
            *end = End {
                kind: "failed".to_owned(),
                reason: format!("{words}, though the system says success"),
                code,
            };
            ended.code = Some(1);
        }
        "failed" => {
            if !end.reason.contains(words.as_str()) {
                end.reason = format!("{}; first: {words}", end.reason);
            }
            end.code = code.or(end.code);
        }
        // Exit code 124 of a rank is that of its own wait for another rank, and not the run's time.
        "deadline" if code == Some(124) => {
            *end = End { kind: "failed".to_owned(), reason: words, code };
            ended.code = Some(1);
        }
        _ => {}
    }
}

/// Whether ranks run under our worker, which writes a record of each of its ranks' ends, and there is none. On Kubernetes the
/// pods' own states are held against the steps.
fn unseen(run: &Run, bundle: &Bundle) -> bool {
    let whole = bundle.missing_parts().iter().all(|part| part.what != "logs");
    run.target.starts_workers_here() && whole && outcome::ranks(bundle).is_empty()
}

/// What is known when the system is clean again.
struct Finish<'a> {
    plan: &'a Plan<'a>,
    started: SystemTime,
    hosts: Vec<String>,
    cleaned: Option<bool>,
    end: Ended,
}

impl Finish<'_> {
    fn finish(&mut self, mut bundle: Bundle, mut seen: Seen<'_>, stop: &dyn Stop) -> Launched {
        let run = self.plan.run;
        let mut code = self.end.code;
        let analysis = if stop.hurried() {
            Analysis::default()
        } else {
            Analysis::of(run, &mut bundle, &self.end.end).unwrap_or_else(|error| {
                seen.show(Event::Warning(error.to_string()));
                code = code.or(Some(error.exit_code()));
                Analysis::default()
            })
        };
        let mut code = code.unwrap_or_else(|| analysis.exit_code());
        if self.cleaned == Some(false) && code == 0 {
            code = 4;
        }
        self.expect(&mut bundle, &analysis);
        let events =
            seen.events.iter().map(|moment| Moment { text: bundle.clean(&moment.text), ..moment.clone() });
        let end = &self.end.end;
        let outcome = Outcome {
            started: clock::rfc3339(self.started),
            ended: clock::rfc3339(SystemTime::now()),
            ending: End { reason: bundle.clean(&end.reason), ..end.clone() },
            exit_code: code,
            cleaned: self.cleaned,
            hosts: self.hosts(&bundle),
            events: events.collect(),
            ..Outcome::of(run, &bundle, &analysis)
        };
        let written = write(&mut bundle, &outcome, &analysis);
        if let Err(error) = written {
            seen.show(Event::Warning(error.to_string()));
            code = if code == 0 { error.exit_code() } else { code };
        }
        let folder = bundle.folder().to_owned();
        Launched { code, bundle: Some(folder), outcome: Outcome { exit_code: code, ..outcome }, analysis }
    }

    /// Hosts as the system names them, or those on which its objects say that they were.
    fn hosts(&self, bundle: &Bundle) -> Vec<String> {
        if self.hosts.is_empty() {
            outcome::placed(bundle).into_values().collect()
        } else {
            self.hosts.clone()
        }
    }

    /// Says what a started run should have left.
    fn expect(&self, bundle: &mut Bundle, analysis: &Analysis) {
        for note in &analysis.notes {
            bundle.missing("analysis", note);
        }
        if matches!(self.end.end.kind.as_str(), "never-started" | "refused") {
            return;
        }
        if self.plan.run.preflight != crate::spec::Preflight::Off {
            for node in 0..self.plan.run.nodes {
                for what in ["facts", "findings"] {
                    let name = format!("{what}/node-{node}.json");
                    if !bundle.has(&name) {
                        let whole = bundle.missing_parts().iter().all(|part| part.what != "logs");
                        bundle.missing(
                            &name,
                            if whole {
                                "the preflight of this node left none: its log says how far it came"
                            } else {
                                "not everything was collected"
                            },
                        );
                    }
                }
            }
        }
    }
}

fn write(bundle: &mut Bundle, outcome: &Outcome, analysis: &Analysis) -> Result<(), DriveError> {
    // The outcome first, and again with the report among its files: where the disk is full, the small file is what counts.
    if let Err(error) = record(bundle, outcome) {
        // Even so the report may find room.
        let _ = bundle.document("report.html", &report::html(outcome, analysis));
        return Err(error);
    }
    bundle.document("report.html", &report::html(outcome, analysis))?;
    record(bundle, outcome)
}

/// Writes `outcome.json`.
fn record(bundle: &mut Bundle, outcome: &Outcome) -> Result<(), DriveError> {
    let files = bundle.files().cloned().collect();
    let outcome = Outcome { files, ..outcome.clone() };
    let text = serde_json::to_string_pretty(&outcome)
        .map_err(|error| DriveError::System(format!("outcome.json cannot be written: {error}")))?;
    bundle.document("outcome.json", &(text + "\n"))
}

/// A state without the time for which it has lasted: `step a: 4 of 4 ranks run, 2 min 5 s` is shown again and again, and kept once.
fn ageless(text: &str) -> &str {
    let spoken = |age: &str| {
        age.bytes().next().is_some_and(|first| first.is_ascii_digit())
            && [" s", " min"].iter().any(|unit| age.ends_with(unit))
    };
    text.rsplit_once(", ").filter(|(_, age)| spoken(age)).map_or(text, |(state, _)| state)
}

/// Keeps what is shown, for the report.
struct Seen<'a> {
    show: &'a mut dyn Show,
    begun: Instant,
    events: Vec<Moment>,
}

impl Show for Seen<'_> {
    fn show(&mut self, event: Event) {
        let kept = match &event {
            Event::Step(text) => Some(("step", text)),
            Event::State(text) => Some(("state", text)),
            Event::Warning(text) => Some(("warning", text)),
            // Logs are kept as logs.
            Event::Line(_) => None,
        };
        if let Some((kind, text)) = kept
            && self.events.len() < EVENTS
            && self.events.last().is_none_or(|last| last.kind != kind || ageless(&last.text) != ageless(text))
        {
            // A tenth of a second is as exact as a poll is.
            let at_s = (self.begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
            self.events.push(Moment { at_s, kind: kind.to_owned(), text: text.clone() });
        }
        self.show.show(event);
    }
}

/// A bundle that takes nothing more after a second Ctrl-C.
struct Hurried<'a> {
    bundle: &'a mut Bundle,
    stop: &'a dyn Stop,
}

impl Hurried<'_> {
    fn go_on(&self) -> Result<(), DriveError> {
        if self.stop.hurried() {
            return Err(DriveError::System("stopped by a second Ctrl-C".to_owned()));
        }
        Ok(())
    }
}

impl Collect for Hurried<'_> {
    fn log(&mut self, name: &str, text: &[u8]) -> Result<(), DriveError> {
        self.go_on()?;
        self.bundle.log(name, text)
    }

    fn state(&mut self, name: &str, text: &[u8]) -> Result<(), DriveError> {
        self.go_on()?;
        self.bundle.state(name, text)
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), DriveError> {
        self.go_on()?;
        self.bundle.file(name, bytes)
    }

    fn missing(&mut self, what: &str, why: &str) {
        self.bundle.missing(what, why);
    }
}

#[cfg(test)]
mod tests {
    use super::ageless;

    #[test]
    fn a_state_that_only_gets_older_is_one() {
        assert_eq!(ageless("step a: 4 of 4 ranks run, 2 min 5 s"), "step a: 4 of 4 ranks run");
        assert_eq!(ageless("step a: 4 of 4 ranks run, 1 h 5 min"), "step a: 4 of 4 ranks run");
        assert_eq!(ageless("2 pods, 1 of 2 nodes"), "2 pods, 1 of 2 nodes");
    }
}
