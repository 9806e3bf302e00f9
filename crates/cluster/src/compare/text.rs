//! The comparison as text.

use std::fmt::Write;

use super::{Difference, Report, Share};
use crate::finding::Status;
use crate::render::{self, one_line};

/// Names and values of one line, before the rest is counted only. JSON has all.
const NAMES: usize = 8;
const VALUES: usize = 4;
const LONGEST: usize = 200;

fn names(nodes: &[String]) -> String {
    let shown: Vec<&str> = nodes.iter().take(NAMES).map(String::as_str).collect();
    match nodes.len().saturating_sub(NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn value(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None if text.is_empty() => "(empty)".to_owned(),
        None => text.to_owned(),
    }
}

fn line(out: &mut String, status: Status, id: &str, text: &str) {
    let _ = writeln!(out, "{status:<7} {id} {}", one_line(text));
}

pub(super) fn report(report: &Report) -> String {
    let mut out = String::new();
    for difference in &report.differences {
        match &difference.majority {
            Some(majority) => {
                for share in &difference.others {
                    line(&mut out, Status::Warn, "P500", &outlier(difference, share, majority));
                }
            }
            None => line(&mut out, Status::Warn, "P501", &split(difference)),
        }
    }
    for name in &report.twice {
        let text = format!("{name}: several documents of one node, each compared under the name of its file");
        line(&mut out, Status::Warn, "P502", &text);
    }
    for unread in &report.unread {
        line(&mut out, Status::Unknown, "P503", &format!("{}: left out: {}", unread.file, unread.reason));
    }
    for unknown in &report.unknown {
        let text =
            format!("{}: {} is not known there: {}", names(&unknown.nodes), unknown.property, unknown.reason);
        line(&mut out, Status::Unknown, "P504", &text);
    }
    if !out.is_empty() {
        out.push('\n');
    }
    let outliers: std::collections::BTreeSet<&String> = report
        .differences
        .iter()
        .filter(|difference| difference.majority.is_some())
        .flat_map(|difference| difference.others.iter().flat_map(|share| &share.nodes))
        .collect();
    let splits = report.differences.iter().filter(|difference| difference.majority.is_none()).count();
    let verdict = match (outliers.len(), splits) {
        (0, 0) => "no differences".to_owned(),
        (1, 0) => "1 node differs from the majority".to_owned(),
        (nodes, 0) => format!("{nodes} nodes differ from the majority"),
        (0, 1) => "split in 1 property, no majority there".to_owned(),
        (0, splits) => format!("split in {splits} properties, no majority there"),
        (nodes, splits) => {
            let differ = if nodes == 1 { "differs" } else { "differ" };
            let split = if splits == 1 { "property is" } else { "properties are" };
            format!("{} {differ} from the majority, and {splits} {split} split", render::count(nodes, "node"))
        }
    };
    let left_out = match report.unread.len() {
        0 => String::new(),
        count => format!(", {} left out", render::count(count, "document")),
    };
    let _ =
        writeln!(out, "{} nodes, {} properties: {verdict}{left_out}", report.nodes.len(), report.properties);
    out
}

fn outlier(difference: &Difference, share: &Share, majority: &str) -> String {
    format!(
        "{}: {} {}, while {} of {} have {}",
        names(&share.nodes),
        difference.property,
        value(&share.value),
        difference.with_majority,
        difference.known,
        value(majority)
    )
}

fn split(difference: &Difference) -> String {
    let mut parts: Vec<String> = difference
        .others
        .iter()
        .take(VALUES)
        .map(|share| format!("{} ({})", value(&share.value), names(&share.nodes)))
        .collect();
    if difference.others.len() > VALUES {
        let more = difference.others.len() - VALUES;
        parts.push(format!("{more} more value{}", if more == 1 { "" } else { "s" }));
    }
    format!("{}: no majority: {}", difference.property, parts.join("; "))
}
