//! Findings as text: one line each, failures first, remedies below.

use std::fmt::Write;

use crate::finding::{Finding, Manager, Remedy, Status};

/// One line: status, id, subject, what is there and what is wanted.
pub fn line(finding: &Finding) -> String {
    let mut line = format!("{:<7} {} ", finding.status, finding.id);
    // A variable may be the title, too.
    if let Some(subject) = finding.subject.as_ref().filter(|subject| **subject != finding.title) {
        let _ = write!(line, "{subject}: ");
    }
    line.push_str(&finding.title);
    if !finding.observed.is_empty() {
        let _ = write!(line, ": {}", finding.observed);
    }
    if !finding.wanted.is_empty() && matches!(finding.status, Status::Fail | Status::Warn | Status::Unknown) {
        let _ = write!(line, " (wanted: {})", finding.wanted);
    }
    one_line(&line)
}

/// `1 warning`, `2 warnings`.
pub(crate) fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// Control characters of files and kernels must not reach a terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .filter(|c| !formatting(*c))
        .map(|c| if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') { ' ' } else { c })
        .collect()
}

/// Whether a character only changes how others are shown (Unicode's general category Cf, version 16): such a one can turn a line of a
/// terminal around or hide a part of it.
fn formatting(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// The findings, failures first, and below them what to do: each remedy once, with the findings it mends and why they matter.
pub fn findings(findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by(|a, b| (a.status.order(), &a.id, &a.subject).cmp(&(b.status.order(), &b.id, &b.subject)));
    let mut out = String::new();
    for finding in &sorted {
        let _ = writeln!(out, "{}", line(finding));
    }
    let mut remedies: Vec<(&Remedy, Vec<&Finding>)> = Vec::new();
    for finding in sorted
        .iter()
        .filter(|finding| matches!(finding.status, Status::Fail | Status::Warn | Status::Unknown))
    {
        for remedy in &finding.remedies {
            match remedies.iter_mut().find(|(known, _)| *known == remedy) {
                Some((_, mended)) => mended.push(finding),
                None => remedies.push((remedy, vec![finding])),
            }
        }
    }
    for (remedy, mended) in remedies {
        let mut ids: Vec<&str> = mended.iter().map(|finding| finding.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut why: Vec<&str> = mended.iter().map(|finding| finding.why.as_str()).collect();
        why.dedup();
        let _ = write!(out, "\nTo mend {}", ids.join(", "));
        match remedy.manager {
            None => {}
            Some(Manager::Machine) => out.push_str(", on a machine you administer"),
            Some(Manager::Operator) => out.push_str(", where the GPU Operator manages the driver"),
            Some(Manager::Container) => out.push_str(", from inside a container"),
            Some(Manager::Unknown) => out.push_str(", where it is not known who manages the node"),
        }
        out.push_str(":\n");
        for why in why.into_iter().filter(|why| !why.is_empty()) {
            let _ = writeln!(out, "  why: {}", one_line(why));
        }
        let _ = writeln!(out, "  {}", one_line(&remedy.text));
        for step in &remedy.steps {
            // A text of several lines is pasted whole, and must stand at the margin (YAML, the end of a here-document).
            let margin = if step.contains('\n') { "" } else { "    " };
            for line in step.lines() {
                let _ = writeln!(out, "{margin}{}", one_line(line));
            }
        }
    }
    out
}
