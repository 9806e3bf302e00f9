//! The diagnosis as text.

use std::fmt::Write;

use super::rule::Confidence;
use super::timeline::RankLine;
use super::verdict::{Diagnosed, Diagnosis, Line, Outcome};
use crate::causes;
use crate::render::{count, one_line};

/// Evidence lines printed of one finding.
const EVIDENCE: usize = 4;
/// What to collect where no hypothesis says better.
const EVERYTHING: &str = "the output of every rank (one file each, stdout and stderr), from the start of the run, and \
                          `expertrail facts -o FILE` of each node";
/// Ranks printed.
const RANKS: usize = 8;
/// Characters of a log line that are printed.
const WIDTH: usize = 160;

/// The answer first, then what it rests on.
pub fn text(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    match diagnosis.outcome {
        Outcome::CauseFound => {
            let causes: Vec<&str> = diagnosis.findings.iter().map(|found| found.cause.as_str()).collect();
            let _ = writeln!(out, "CAUSE FOUND: {}", causes.join(", then "));
        }
        Outcome::NotDeterminable => {
            let nothing = diagnosis.first_failure.is_none() && diagnosis.hypotheses.is_empty();
            out.push_str(if nothing {
                "NOT DETERMINABLE: nothing wrong was found in what could be read, and that was not all (see the notes)\n"
            } else {
                "NOT DETERMINABLE: something is wrong, and these logs alone do not say what\n"
            });
        }
        Outcome::NothingFound if diagnosis.cautions.is_empty() => {
            out.push_str("NOTHING WRONG FOUND in these logs\n");
        }
        Outcome::NothingFound => {
            let causes: Vec<&str> = diagnosis.cautions.iter().map(|found| found.cause.as_str()).collect();
            let _ = writeln!(out, "NO FAILURE in these logs, but look at: {}", causes.join(", "));
        }
    }
    if let Some(first) = &diagnosis.first_failure {
        let _ = writeln!(out, "first failure: {}", place(first));
        let _ = writeln!(out, "    {}", short(&first.text));
    }
    for (index, found) in diagnosis.findings.iter().enumerate() {
        let _ = write!(out, "\n{}. ", index + 1);
        finding(&mut out, found);
    }
    hypotheses(&mut out, diagnosis);
    for found in &diagnosis.cautions {
        out.push_str("\ncaution (ended no run in these logs): ");
        finding(&mut out, found);
    }
    // Without findings everything is unexplained, and the first failure stands above.
    if !diagnosis.findings.is_empty() {
        lines(&mut out, "earlier, and not explained by these findings", &diagnosis.unexplained);
    }
    lines(&mut out, "followers (no causes)", &diagnosis.followers);
    lines(&mut out, "taken back by a later success", &diagnosis.healed);
    if !diagnosis.questions.is_empty() {
        out.push_str("\nquestions that separate the causes:\n");
        for answered in &diagnosis.questions {
            let at = answered.evidence.first().map(|line| format!(" ({})", place(line))).unwrap_or_default();
            let _ = writeln!(out, "  {}: {}{at}", answered.question, one_line(&answered.answer));
        }
    }
    ranks(&mut out, diagnosis);
    if !diagnosis.versions.is_empty() {
        out.push_str("\nversions:\n");
        for (key, known) in &diagnosis.versions {
            let (value, source) = (one_line(&known.value), one_line(&known.source));
            let _ = writeln!(out, "  {key:<14} {value:<16} {source}");
        }
    }
    for note in &diagnosis.notes {
        let _ = writeln!(out, "note: {}", one_line(note));
    }
    let _ = writeln!(out, "\nread: {}", count(diagnosis.files.len(), "file"));
    out
}

fn hypotheses(out: &mut String, diagnosis: &Diagnosis) {
    if diagnosis.outcome == Outcome::CauseFound {
        if !diagnosis.hypotheses.is_empty() {
            let _ = writeln!(out, "\nless likely ones ({}) are in --json", diagnosis.hypotheses.len());
        }
        return;
    }
    // One thing to do next, not a list: the others stand with their hypothesis.
    let next = diagnosis.hypotheses.iter().find_map(|found| found.next.as_deref());
    if !diagnosis.hypotheses.is_empty() {
        out.push_str("\nmay be (the signs fit, and fit others too):\n");
    }
    for found in &diagnosis.hypotheses {
        let _ = writeln!(out, "  {}: {}", found.cause, one_line(&found.because));
        if let Some(own) = found.next.as_deref().filter(|own| Some(*own) != next) {
            let _ = writeln!(out, "    would decide: {}", one_line(own));
        }
    }
    if diagnosis.outcome == Outcome::NotDeterminable {
        let _ = writeln!(out, "\ncollect next: {}", one_line(next.unwrap_or(EVERYTHING)));
    }
}

fn finding(out: &mut String, found: &Diagnosed) {
    let sure = match found.confidence {
        Some(Confidence::Certain) => "certain",
        Some(Confidence::Likely) => "likely",
        _ => "possible",
    };
    let _ = writeln!(out, "{} ({sure}): {}", found.cause, one_line(&found.title));
    if let Some(subject) = &found.subject {
        let _ = writeln!(out, "   at fault: {}", one_line(subject));
    }
    let _ = writeln!(out, "   because: {}", one_line(&found.because));
    for line in found.evidence.iter().take(EVIDENCE) {
        let _ = writeln!(out, "   {}\n       {}", place(line), short(&line.text));
    }
    if found.evidence.len() > EVIDENCE {
        let _ =
            writeln!(out, "   and {} (--json has them)", count(found.evidence.len() - EVIDENCE, "more line"));
    }
    for why in &found.rules_out {
        let _ = writeln!(out, "   not: {}", one_line(why));
    }
    for line in causes::remedies(&found.remedies).lines().filter(|line| !line.is_empty()) {
        let _ = writeln!(out, "   {line}");
    }
    if let Some(next) = &found.next {
        let _ = writeln!(out, "   to be sure: {}", one_line(next));
    }
    let _ = writeln!(out, "   more: expertrail explain {}", found.cause);
}

fn lines(out: &mut String, heading: &str, lines: &[Line]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{heading}:");
    for line in lines {
        let _ = writeln!(out, "  {}\n      {}", place(line), short(&line.text));
    }
}

fn ranks(out: &mut String, diagnosis: &Diagnosis) {
    if diagnosis.ranks.len() > 1 {
        out.push_str("\nranks, first failure first:\n");
        for RankLine { rank, node, progress, failure } in diagnosis.ranks.iter().take(RANKS) {
            let node = node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
            let of = |line: &Option<Line>| {
                line.as_ref()
                    .map_or("nothing".to_owned(), |line| format!("{} (line {})", line.signal, line.line))
            };
            let _ = writeln!(
                out,
                "  rank {rank}{}: last progress {}, failure {}",
                one_line(&node),
                of(progress),
                of(failure)
            );
        }
        if diagnosis.ranks.len() > RANKS {
            let _ = writeln!(
                out,
                "  and {} (--json has them)",
                count(diagnosis.ranks.len() - RANKS, "more rank")
            );
        }
    }
    if !diagnosis.silent_ranks.is_empty() {
        let list: Vec<String> = diagnosis.silent_ranks.iter().take(16).map(u32::to_string).collect();
        let more = if diagnosis.silent_ranks.len() > 16 { " ..." } else { "" };
        let _ = writeln!(
            out,
            "\n{} wrote nothing in these logs: {}{more}",
            count(diagnosis.silent_ranks.len(), "rank"),
            list.join(" ")
        );
    }
}

/// `run.log:12 (rank 3, node gpu-b)`.
fn place(line: &Line) -> String {
    let mut who: Vec<String> = line.rank.iter().map(|rank| format!("rank {rank}")).collect();
    who.extend(line.node.iter().map(|node| one_line(node)));
    let who = if who.is_empty() { String::new() } else { format!(" ({})", who.join(", ")) };
    format!("{}:{}{who}", one_line(&line.file), line.line)
}

fn short(text: &str) -> String {
    let text = one_line(text);
    if text.chars().count() <= WIDTH {
        return text;
    }
    text.chars().take(WIDTH).collect::<String>() + " ..."
}
