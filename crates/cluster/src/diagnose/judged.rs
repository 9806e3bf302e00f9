//! What `judge` makes of benchmark figures in the logs: half of the known faults end no run, they slow it.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use super::case::Case;
use super::event::{Event, Place, Role};
use crate::finding::{Finding, Status};
use crate::{causes, judge};

/// Kinds of lines that say that a file has figures.
const FIGURES: [&str; 6] = [
    "guide-figures",
    "deepep-tuning-best",
    "deepep-bandwidth",
    "nccl-tests-busbw",
    "nccl-tests-ok",
    "expertrail-bench-pass",
];

/// The kind of the lines that are made here.
pub(super) const SIGNAL: &str = "judged-figure";

/// Bytes that tell whether a file begins as a JSON document.
const HEAD: u64 = 64;
/// A document of `judge --json` is not larger.
const DOCUMENT: u64 = 8 << 20;

/// Where a file can be read once more.
#[derive(Clone, Debug)]
pub(super) enum Again {
    /// On disk.
    Path(PathBuf),
    /// In memory.
    Bytes(Vec<u8>),
    /// Not at all: standard input.
    No,
}

/// Adds what figures mean, and what verdicts among the files say; `again` is in the order of [`Case::files`].
pub(super) fn add(case: &mut Case, again: &[(String, Again)]) {
    let mut runs = Vec::new();
    let mut found: Vec<(String, String, Place)> = Vec::new();
    for index in 0..case.files.len() {
        let Some((name, source)) = again.iter().find(|(name, _)| *name == case.files[index]) else {
            continue;
        };
        if let Some(report) = verdict(source) {
            let place = Place { file: index as u32, line: 1 };
            failing(case, &report);
            found.extend(judge::patterns(&report).into_iter().map(|(cause, why, _)| (cause, why, place)));
            continue;
        }
        let has_figures =
            FIGURES.iter().any(|signal| case.events(signal).any(|event| event.place.file as usize == index));
        if !has_figures {
            continue;
        }
        match source {
            Again::Path(path) => match judge::read_paths(std::slice::from_ref(path)) {
                Ok(more) => runs.extend(more),
                Err(error) => case.notes.push(format!("figures are not judged: {error}")),
            },
            Again::Bytes(bytes) => runs.extend(judge::read(name, bytes.as_slice())),
            Again::No => case.notes.push(format!(
                "{name}: its figures are not judged, because it can be read only once; give a file, or run `expertrail judge`"
            )),
        }
    }
    if !runs.is_empty() {
        let report = judge::judge(&runs, &judge::Options::default());
        failing(case, &report);
        for (cause, why, at) in judge::patterns(&report) {
            let place = place(case, &at);
            found.push((cause, why, place));
        }
    }
    for (cause, why, place) in found {
        let Some(entry) = causes::get(&cause) else { continue };
        record(case, &why, place);
        case.judged.push((entry.id, why, place));
    }
}

/// Finding of `judge` that one node or rank is far below the others. Figures that are low on all may be of a slower machine than assumed.
const LOW: &str = "J008";

/// Notes figures that fail without a pattern: something is wrong, and the figures alone do not say what.
fn failing(case: &mut Case, report: &judge::Report) {
    let low = |finding: &&Finding| finding.status == Status::Fail && finding.id == LOW;
    if let Some(finding) = report.findings.iter().find(low) {
        case.figures_fail = true;
        case.notes
            .push(format!("figures fail ({}): `expertrail judge` says which and against what", finding.id));
    }
}

/// The verdict that a file holds, if it holds one.
fn verdict(source: &Again) -> Option<judge::Report> {
    let document = |bytes: &[u8]| bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let bytes = match source {
        Again::Path(path) => {
            let mut file = File::open(path).ok()?;
            let mut bytes = Vec::new();
            file.by_ref().take(HEAD).read_to_end(&mut bytes).ok()?;
            if !document(&bytes) {
                return None;
            }
            file.take(DOCUMENT).read_to_end(&mut bytes).ok()?;
            Cow::Owned(bytes)
        }
        Again::Bytes(text) if document(text) => Cow::Borrowed(text.as_slice()),
        Again::Bytes(_) | Again::No => return None,
    };
    let report: judge::Report = serde_json::from_slice(&bytes).ok()?;
    (report.schema == judge::SCHEMA).then_some(report)
}

/// `file:line` of one of the case's files; the start of the first where it is none.
fn place(case: &Case, at: &str) -> Place {
    let (name, line) = at.rsplit_once(':').unwrap_or((at, "1"));
    let file = case.files.iter().position(|known| known == name).unwrap_or(0);
    Place { file: file as u32, line: line.parse().unwrap_or(1) }
}

/// A line of the case at that place, so that there is evidence to show.
fn record(case: &mut Case, why: &str, place: Place) {
    if case.at(place).is_some() {
        return;
    }
    let index = case.events.len();
    case.events.push(Event {
        signal: SIGNAL,
        role: Role::Warning,
        place,
        rank: None,
        node: None,
        time: None,
        clock: 0,
        fields: Vec::new(),
        text: why.to_owned(),
    });
    let tally = case.tallies.entry(SIGNAL).or_default();
    tally.lines += 1;
    tally.events.push(index);
}
