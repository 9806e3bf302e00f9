//! The part of the page on figures: what was measured, how, and what it is worth.

use std::fmt::Write;

use expertrail_cluster::causes;
use expertrail_cluster::finding::{Finding, Status};
use expertrail_cluster::judge::{Kind, Metric, Report};

use super::{escape, status, table};
use crate::bundle::analyse::{Analysis, Measured};
use crate::bundle::outcome::Outcome;

pub(super) fn write(out: &mut String, outcome: &Outcome, analysis: &Analysis) {
    out.push_str("<h2>Verdict</h2>\n");
    let Some(report) = &analysis.verdict else {
        let why = analysis.notes.first().map_or_else(|| outcome.ending.words(), Clone::clone);
        let _ = writeln!(out, "<p>No figures: {}.</p>", escape(&why));
        return;
    };
    let rows: Vec<Vec<String>> = report.metrics.iter().map(|metric| row(report, analysis, metric)).collect();
    table(
        out,
        &["status", "figure", "node", "value", "time", "of expected", "preset", "backend", "machine", "why"],
        &rows,
    );
    let bad = report
        .findings
        .iter()
        .filter(|finding| matches!(finding.status, Status::Fail | Status::Warn | Status::Unknown));
    let rows: Vec<Vec<String>> = bad
        .map(|finding| {
            vec![
                status(finding.status),
                escape(&finding.id),
                escape(&finding.title),
                escape(&finding.observed),
                escape(&remedy(finding)),
            ]
        })
        .collect();
    if !rows.is_empty() {
        table(out, &["status", "id", "finding", "observed", "what to do"], &rows);
    }
}

fn row(report: &Report, analysis: &Analysis, metric: &Metric) -> Vec<String> {
    let run = report.runs.get(metric.run);
    // The documents are named from elsewhere: their own names tell them apart.
    let made = analysis.measured.iter().find(|made| base(&made.file) == base(&metric.place.file));
    let part = |of: fn(&Measured) -> &String| made.map(of).filter(|text| !text.is_empty()).cloned();
    let machine = [run.map(|run| run.gpu.clone()).filter(|gpu| !gpu.is_empty()), part(|made| &made.machine)];
    let machine = machine.into_iter().flatten().collect::<Vec<_>>().join("; ");
    let backend = part(|made| &made.backend).or_else(|| run.map(|run| run.engine.clone()));
    // Of other programs the time is what they print, which is mostly a mean.
    let p50 = if run.is_some_and(|run| run.kind == Kind::Expertrail) { " (p50)" } else { "" };
    let number = |text: &str| format!("<span class=\"number\">{}</span>", escape(text));
    let or_none =
        |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
    vec![
        status(metric.status),
        escape(&metric.name),
        escape(&or_none(metric.node.map(|node| node.to_string()))),
        number(&format!("{} {}", significant(metric.value), metric.unit)),
        number(&or_none(metric.time_us.map(|us| format!("{} us{p50}", significant(us))))),
        number(&or_none(metric.share.map(|share| format!("{:.0} %", share * 100.0)))),
        escape(&or_none(part(|made| &made.preset))),
        escape(&or_none(backend)),
        escape(&or_none(Some(machine))),
        escape(&metric.why),
    ]
}

fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// Three significant digits; what is above a thousand keeps its whole part.
fn significant(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 99.95 || size == 0.0 || !size.is_finite() => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        size if size >= 0.099_95 => 3,
        size if size >= 0.009_995 => 4,
        _ => return format!("{value:.2e}"),
    };
    format!("{value:.digits$}")
}

/// The finding's own remedy, or that of its cause.
fn remedy(finding: &Finding) -> String {
    let words = |remedy: &expertrail_cluster::finding::Remedy| match remedy.steps.first() {
        Some(step) => format!("{} ({step})", remedy.text),
        None => remedy.text.clone(),
    };
    if let Some(own) = finding.remedies.first() {
        return words(own);
    }
    let Some(known) = finding.cause.as_deref().and_then(causes::explain) else { return "-".to_owned() };
    known.remedies.first().map_or_else(|| format!("see: expertrail explain {}", known.id), words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_significant_digits() {
        let shown = [0.0, 326.4, 99.97, 1234.5, 45.104, 7.0, 0.5, 0.0123, 0.001_234].map(significant);
        assert_eq!(shown, ["0", "326", "100", "1234", "45.1", "7.00", "0.500", "0.0123", "1.23e-3"]);
    }

    #[test]
    fn what_to_do_comes_from_the_cause_where_the_finding_has_none() {
        let mut finding = Finding::new("J003", "parts of the run");
        assert_eq!(remedy(&finding), "-");
        // Its remedy in the registry of causes begins so, or the command that prints it is named.
        finding.cause = Some("k8s-dns-policy".to_owned());
        assert!(
            remedy(&finding).starts_with("Give the pods the cluster's resolver."),
            "{}",
            remedy(&finding)
        );
    }
}
