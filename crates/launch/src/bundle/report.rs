//! The bundle as one page: no script, nothing loaded from elsewhere.

use std::fmt::Write;

use expertrail_cluster::diagnose::Diagnosed;
use expertrail_cluster::finding::Status;

use super::analyse::Analysis;
use super::clock::span;
use super::outcome::{Node, Outcome, RankEnd};
use crate::words::count;

mod figures;

const STYLE: &str = include_str!("report.css");

/// Rows of a table; the documents have all.
const ROWS: usize = 500;

/// Text for HTML: markup escaped, control characters replaced.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' | ' ' => out.push(c),
            c if c.is_whitespace() => out.push(' '),
            c if c.is_control() => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

/// The page.
pub fn html(outcome: &Outcome, analysis: &Analysis) -> String {
    let title = format!("Expertrail run {}: {}", outcome.run, head(outcome).1);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        title = escape(&title),
    );
    summary(&mut out, outcome);
    figures::write(&mut out, outcome, analysis);
    diagnosis(&mut out, outcome, analysis);
    nodes(&mut out, outcome);
    ranks(&mut out, &outcome.ranks);
    missing(&mut out, outcome);
    timeline(&mut out, outcome);
    files(&mut out, outcome);
    let _ = write!(
        out,
        "<footer>Written by expertrail {} beside outcome.json, which has the same as data. Secrets were taken out.</footer>\n\
         </main>\n</body>\n</html>\n",
        escape(&outcome.tool)
    );
    out
}

/// Class and word of the whole.
fn head(outcome: &Outcome) -> (&'static str, &'static str) {
    match outcome.exit_code {
        0 => ("good", "PASS"),
        1 => ("bad", "FAIL"),
        3 if outcome.ending.kind == "never-started" => ("bad", "NOT RUN"),
        3 => ("warn", "INCONCLUSIVE"),
        5 => ("warn", "WARN"),
        124 => ("bad", "DEADLINE"),
        130 => ("warn", "INTERRUPTED"),
        2 => ("bad", "REFUSED"),
        _ => ("bad", "NO ACCESS"),
    }
}

/// A table: heads, and rows of cells that are HTML already.
fn table(out: &mut String, heads: &[&str], rows: &[Vec<String>]) {
    out.push_str("<div class=\"card\"><table><thead><tr>");
    for head in heads {
        let _ = write!(out, "<th>{}</th>", escape(head));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows.iter().take(ROWS) {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    if rows.len() > ROWS {
        let more = rows.len() - ROWS;
        let _ = writeln!(
            out,
            "<tr><td colspan=\"{}\">{more} more in the documents of this directory</td></tr>",
            heads.len()
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn marked(class: &str, text: &str) -> String {
    format!("<span class=\"{class}\">{}</span>", escape(text))
}

fn summary(out: &mut String, outcome: &Outcome) {
    let (class, word) = head(outcome);
    let _ = write!(
        out,
        "<h1>{} {}</h1>\n<p class=\"soft\">{} on {}, {} of {}, engine {}; exit code {}</p>\n<div class=\"card pad\">\n",
        marked(class, word),
        escape(&outcome.run),
        escape(&outcome.name),
        escape(&outcome.target),
        count(outcome.nodes, "node"),
        count(outcome.ranks_per_node, "rank"),
        escape(&outcome.engine),
        outcome.exit_code,
    );
    let _ =
        writeln!(out, "<p>Started {}, ended {} (UTC).</p>", escape(&outcome.started), escape(&outcome.ended));
    let _ = writeln!(out, "<p>Ending: {}.</p>", escape(&outcome.ending.words()));
    if let Some(verdict) = &outcome.verdict {
        // The first reason: all of them are in the tables below.
        let more = match verdict.reasons.len() {
            0 | 1 => String::new(),
            all => format!("; {} more below", all - 1),
        };
        let first = verdict.reasons.first().map(|reason| format!(": {}", escape(reason))).unwrap_or_default();
        let _ = writeln!(out, "<p>Verdict of the figures: {}{first}{more}.</p>", escape(&verdict.status));
    } else {
        out.push_str("<p>The figures were not judged.</p>\n");
    }
    let hosts = outcome.hosts.join(", ");
    if !hosts.is_empty() {
        let _ = writeln!(out, "<p>Hosts: {}.</p>", escape(&hosts));
    }
    let cleaned = match outcome.cleaned {
        Some(true) => "Everything of the run was removed from the system.",
        Some(false) => "Something of the run may be left on the system: see the warnings below.",
        None => "The run was kept on the system (--keep).",
    };
    let _ = writeln!(out, "<p>{cleaned}</p>\n</div>");
}

fn status(status: Status) -> String {
    let class = match status {
        Status::Fail => "bad",
        Status::Warn | Status::Unknown => "warn",
        Status::Pass | Status::NotApplicable => "good",
    };
    marked(class, &status.to_string())
}

fn diagnosis(out: &mut String, outcome: &Outcome, analysis: &Analysis) {
    let Some(found) = &analysis.diagnosis else { return };
    out.push_str("<h2>Diagnosis</h2>\n");
    if let Some(line) = outcome.diagnosis.as_ref().and_then(|short| short.first_failure.as_ref()) {
        let _ =
            writeln!(out, "<div class=\"card pad\"><p>First failure</p><pre>{}</pre></div>", escape(line));
    }
    if found.findings.is_empty() {
        out.push_str("<p>The logs name no cause with confidence.</p>\n");
    }
    for (class, kind, list) in [("bad", "cause", &found.findings), ("warn", "may be", &found.hypotheses)] {
        for one in list.iter().take(20) {
            cause(out, (class, kind), one);
        }
    }
}

fn cause(out: &mut String, (class, kind): (&str, &str), one: &Diagnosed) {
    let _ = writeln!(
        out,
        "<div class=\"card pad\"><p>{} {} <code>{}</code></p><p>{}</p>",
        marked(class, kind),
        escape(&one.title),
        escape(&one.cause),
        escape(&one.because)
    );
    for line in one.evidence.iter().take(5) {
        let file = line.file.rsplit('/').next().unwrap_or(&line.file);
        let _ = writeln!(out, "<pre>{}:{}: {}</pre>", escape(file), line.line, escape(&line.text));
    }
    for remedy in &one.remedies {
        let _ = writeln!(out, "<p>{}</p>", escape(&remedy.text));
        if !remedy.steps.is_empty() {
            let _ = writeln!(out, "<pre>{}</pre>", escape(&remedy.steps.join("\n")));
        }
    }
    out.push_str("</div>\n");
}

fn nodes(out: &mut String, outcome: &Outcome) {
    out.push_str("<h2>Nodes</h2>\n");
    let counts = |node: &Node| match &node.checks {
        Some(checks) => {
            checks.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
        }
        None => "no findings here".to_owned(),
    };
    let rows: Vec<Vec<String>> = outcome
        .per_node
        .iter()
        .map(|node| {
            let facts = if node.facts { marked("good", "yes") } else { marked("warn", "missing") };
            vec![
                node.node.to_string(),
                escape(node.host.as_deref().unwrap_or("-")),
                facts,
                escape(&counts(node)),
                escape(&codes(outcome, node.node)),
            ]
        })
        .collect();
    table(out, &["node", "host", "facts", "checks", "exit codes of its ranks"], &rows);
    let rows: Vec<Vec<String>> = outcome
        .per_node
        .iter()
        .flat_map(|node| node.findings.iter().map(move |finding| (node.node, finding)))
        .map(|(node, finding)| {
            let class = if finding.status == "fail" { "bad" } else { "warn" };
            vec![
                node.to_string(),
                marked(class, &finding.status),
                escape(&finding.id),
                escape(&finding.title),
                escape(&finding.observed),
            ]
        })
        .collect();
    if !rows.is_empty() {
        table(out, &["node", "status", "id", "check", "observed"], &rows);
    }
}

/// `0 (2 ranks), 7 (1 rank)`: how the ranks of a node ended.
fn codes(outcome: &Outcome, node: u32) -> String {
    let mut counts: std::collections::BTreeMap<String, u32> = std::collections::BTreeMap::new();
    for rank in outcome.ranks.iter().filter(|rank| rank.node == Some(node)) {
        let how = rank.code.map_or_else(|| ended(rank), |code| code.to_string());
        *counts.entry(how).or_insert(0) += 1;
    }
    if counts.is_empty() {
        return "no record here".to_owned();
    }
    counts
        .iter()
        .map(|(how, number)| format!("{how} ({})", count(*number, "rank")))
        .collect::<Vec<_>>()
        .join(", ")
}

fn ended(rank: &RankEnd) -> String {
    match (rank.code, &rank.signal_name) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by {signal}"),
        (None, None) => "killed".to_owned(),
    }
}

fn ranks(out: &mut String, ranks: &[RankEnd]) {
    if ranks.is_empty() {
        return;
    }
    let well = ranks.iter().filter(|rank| rank.code == Some(0)).count();
    let _ =
        writeln!(out, "<h2>Exit codes</h2>\n<p>{well} of {} recorded ranks ended with 0.</p>", ranks.len());
    // Of many ranks the first rows alone are shown: those that failed.
    let mut sorted: Vec<&RankEnd> = ranks.iter().collect();
    sorted.sort_by_key(|rank| (rank.code == Some(0), rank.stopped, rank.rank));
    let rows: Vec<Vec<String>> = sorted
        .iter()
        .map(|rank| {
            let class = if rank.code == Some(0) { "good" } else { "bad" };
            let by = if rank.stopped { "stopped after another's failure" } else { "by itself" };
            vec![
                rank.node.map_or_else(|| "-".to_owned(), |node| node.to_string()),
                rank.rank.to_string(),
                escape(&rank.host),
                marked(class, &ended(rank)),
                by.to_owned(),
                format!("{:.1} s", rank.seconds),
            ]
        })
        .collect();
    table(out, &["node", "rank", "host", "ended with", "how", "after"], &rows);
}

fn missing(out: &mut String, outcome: &Outcome) {
    out.push_str("<h2>What is missing</h2>\n");
    if outcome.missing.is_empty() {
        out.push_str("<p>Nothing.</p>\n");
        return;
    }
    let rows: Vec<Vec<String>> =
        outcome.missing.iter().map(|one| vec![escape(&one.what), escape(&one.why)]).collect();
    table(out, &["what", "why"], &rows);
}

fn timeline(out: &mut String, outcome: &Outcome) {
    if outcome.events.is_empty() {
        return;
    }
    out.push_str("<h2>What happened</h2>\n");
    let rows: Vec<Vec<String>> = outcome
        .events
        .iter()
        .map(|event| {
            let text =
                if event.kind == "warning" { marked("warn", &event.text) } else { escape(&event.text) };
            vec![escape(&span(event.at_s.max(0.0) as u64)), escape(&event.kind), text]
        })
        .collect();
    table(out, &["after", "", "event"], &rows);
}

fn files(out: &mut String, outcome: &Outcome) {
    out.push_str("<h2>Files</h2>\n");
    let rows: Vec<Vec<String>> = outcome
        .files
        .iter()
        .map(|file| {
            vec![
                format!("<a href=\"{0}\">{0}</a>", escape(&file.path)),
                format!("<span class=\"number\">{}</span>", file.bytes),
                format!("<code>{}</code>", escape(&file.crc32)),
            ]
        })
        .collect();
    table(out, &["file", "bytes", "CRC-32"], &rows);
}
