//! The verdict as text.

use std::fmt::Write;

use super::model::Kind;
use super::report::{Report, RunSummary};
use super::weigh::{Basis, Metric, Used};
use crate::finding::{Finding, Status};
use crate::render::{self, one_line};

/// Figures of a run that are listed; of those that do not pass, more. JSON has all.
const LISTED: usize = 40;
const MOST: usize = 200;

pub(super) fn report(report: &Report) -> String {
    let mut out = String::new();
    let verdict = &report.verdict;
    let warnings = match verdict.warnings {
        0 => String::new(),
        count => format!(", {}", render::count(count, "warning")),
    };
    let _ = writeln!(
        out,
        "{}: {}, {}{warnings}",
        verdict.status.label(),
        render::count(report.runs.len(), "run"),
        render::count(report.metrics.len(), "figure"),
    );
    for (index, run) in report.runs.iter().enumerate() {
        let metrics: Vec<&Metric> = report.metrics.iter().filter(|metric| metric.run == index).collect();
        let _ = writeln!(out, "\n{}", one_line(&heading(run)));
        training(&mut out, run);
        figures(&mut out, &metrics);
        for note in &run.notes {
            let _ = writeln!(out, "  note: {}", one_line(note));
        }
    }
    if !report.findings.is_empty() {
        findings(&mut out, &report.findings);
    }
    provenance(&mut out, report);
    out
}

fn heading(run: &RunSummary) -> String {
    let mut parts = Vec::new();
    if !run.gpu.is_empty() {
        parts.push(run.gpu.clone());
    }
    match (run.settings.nodes, run.settings.ranks_per_node, run.settings.ranks) {
        (Some(nodes), Some(per), _) => {
            parts.push(format!("{} x {per} ranks", render::count(nodes as usize, "node")));
        }
        (Some(nodes), None, _) => parts.push(render::count(nodes as usize, "node")),
        (None, _, Some(ranks)) => parts.push(render::count(ranks as usize, "rank")),
        _ => {}
    }
    if let Some(up) = run.nvlink_gb_s {
        parts.push(format!("NVLink {up:.0}"));
    }
    if let Some(out) = run.nic_gb_s {
        parts.push(format!("NIC {out:.0} GB/s a GPU{}", if run.nic_given { "" } else { " (assumed)" }));
    }
    let what = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    format!("{} ({}){what}", run.kind.label(), run.place)
}

fn training(out: &mut String, run: &RunSummary) {
    let Some(training) = run.training.as_ref().filter(|_| matches!(run.kind, Kind::Training | Kind::Summary))
    else {
        return;
    };
    let mut parts = Vec::new();
    if run.kind == Kind::Training {
        let of = training.steps.or(training.summary_steps).map_or("?".to_owned(), |steps| steps.to_string());
        parts.push(format!("{} of {of} iterations", training.done.len()));
    }
    let mut push = |name: &str, value: Option<f64>, digits: usize, unit: &str| {
        if let Some(value) = value {
            parts.push(format!("{name} {value:.digits$}{unit}"));
        }
    };
    push("step", training.step_s, 3, " s");
    push("loss", training.loss, 4, "");
    push("MFU", training.mfu_percent, 4, " %");
    push("peak memory", training.memory_gb, 2, " GB");
    push("setup", training.setup_s, 2, " s");
    push("warm-up", training.warmup_s, 2, " s");
    push("measured", training.measured_s, 2, " s");
    let _ = writeln!(out, "  {}", parts.join(", "));
}

fn figures(out: &mut String, metrics: &[&Metric]) {
    let metrics: Vec<&&Metric> = metrics.iter().filter(|metric| metric.unit == "GB/s").collect();
    if metrics.is_empty() {
        return;
    }
    let widest = metrics.iter().map(|metric| metric.name.len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        out,
        "          {:<widest$}  printed  logical     wire  ceiling  of it  held against",
        "GB/s"
    );
    let passes = |metric: &Metric| matches!(metric.status, Status::Pass | Status::NotApplicable);
    let mut shown = 0;
    for (index, metric) in metrics.iter().enumerate() {
        if index >= LISTED && (passes(metric) || shown >= MOST) {
            continue;
        }
        shown += 1;
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let ceiling = metric.ceiling.as_ref().map(|ceiling| ceiling.logical_gb_s);
        let fraction = metric.fraction.map_or("-".to_owned(), |fraction| format!("{fraction:.2}"));
        let against = match (metric.basis, &metric.reference) {
            (Basis::Reference, Some(used)) => format!("{} [{}]", metric.why, used.id),
            _ => metric.why.clone(),
        };
        let spread = metric.spread.as_ref().map_or(String::new(), |spread| {
            let rank = spread.least_rank.map_or(String::new(), |rank| format!(" (rank {rank})"));
            format!("; median of {}, least {:.1}{rank}", spread.count, spread.least)
        });
        let place = match metric.status {
            Status::Pass | Status::NotApplicable => String::new(),
            _ => format!(" [{}]", metric.place),
        };
        let status = match metric.status {
            Status::Unknown => "?".to_owned(),
            status => status.to_string(),
        };
        let _ = writeln!(
            out,
            "  {status:<7} {:<widest$} {:>8.1} {:>8} {:>8} {:>8} {fraction:>6}  {}",
            metric.name,
            metric.value,
            number(metric.logical_gb_s),
            number(metric.wire_gb_s),
            number(ceiling),
            one_line(&format!("{against}{spread}{place}")),
        );
    }
    if metrics.len() > shown {
        let _ = writeln!(out, "  and {} more (--json has all)", metrics.len() - shown);
    }
}

/// One line each with where it is seen, then what to do. The table has figures that are too low already.
fn findings(out: &mut String, findings: &[Finding]) {
    let mut lines = String::new();
    for finding in findings.iter().filter(|finding| finding.id != "J001") {
        let place = finding.evidence.first().map(|evidence| format!(" [{}]", one_line(&evidence.source)));
        let _ = writeln!(lines, "{}{}", render::line(finding), place.unwrap_or_default());
    }
    if !lines.is_empty() {
        let _ = write!(out, "\n{lines}");
    }
    let whole = render::findings(findings);
    if let Some(remedies) = whole.find("\nTo mend ").and_then(|at| whole.get(at..)) {
        out.push_str(remedies);
    }
}

/// Where the references come from, each source once.
fn provenance(out: &mut String, report: &Report) {
    struct Source<'a> {
        of: &'a Used,
        ids: Vec<&'a str>,
        how: Vec<String>,
    }
    let mut told: Vec<Source<'_>> = Vec::new();
    for used in report.metrics.iter().filter_map(|metric| metric.reference.as_ref()) {
        let how = format!("{}: {}", used.machine, used.timing);
        let same = |known: &&mut Source<'_>| {
            (&known.of.source, &known.of.date, &known.of.note) == (&used.source, &used.date, &used.note)
        };
        match told.iter_mut().find(same) {
            Some(known) => {
                if !known.ids.contains(&used.id.as_str()) {
                    known.ids.push(&used.id);
                }
                if !known.how.contains(&how) {
                    known.how.push(how);
                }
            }
            None => told.push(Source { of: used, ids: vec![&used.id], how: vec![how] }),
        }
    }
    if told.is_empty() {
        return;
    }
    out.push_str("\nReferences:\n");
    for Source { of, ids, how } in told {
        let _ = writeln!(out, "  {}", one_line(&ids.join(", ")));
        let _ = writeln!(out, "    {} ({})", one_line(&of.source), one_line(&of.date));
        for how in how {
            let _ = writeln!(out, "    {}", one_line(&how));
        }
        if !of.note.is_empty() {
            let _ = writeln!(out, "    {}", one_line(&of.note));
        }
    }
}
