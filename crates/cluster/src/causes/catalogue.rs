//! The catalogue of causes as a Markdown page: made from the registry, so that it cannot say anything else.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Explanation, all, explain};
use crate::finding::Manager;
use crate::render::one_line;

const HEAD: &str = "# Causes\n\n\
    Made from the registry of causes by a test; do not edit. `EXPERTRAIL_WRITE_CAUSES=1 cargo test -p expertrail-cluster --test catalogue` \
    writes it anew.\n\n\
    Every cause that `check`, `topo`, `stack`, `compare`, `judge` and `diagnose` name. `expertrail explain ID` prints one of them, with the \
    remedy as commands.\n";

/// The page.
pub fn catalogue() -> String {
    let ids: BTreeSet<&str> = all().map(|cause| cause.id).collect();
    let mut out = HEAD.to_owned();
    let _ = write!(out, "\n{} causes.\n\n| id | what it is |\n|---|---|\n", ids.len());
    let explained: Vec<Explanation> = ids.into_iter().filter_map(explain).collect();
    for cause in &explained {
        let _ = writeln!(out, "| [{0}](#{0}) | {1} |", cause.id, text(&cause.title));
    }
    for cause in &explained {
        section(&mut out, cause);
    }
    out
}

fn section(out: &mut String, cause: &Explanation) {
    let _ = write!(out, "\n## {}\n\n{}. {}\n", cause.id, text(&cause.title), text(&cause.text));
    list(out, "Signs", cause.signs.iter().map(|sign| code(sign)));
    let versions =
        cause.versions.iter().map(|row| format!("{}: {}", code(&row.when.join(" ")), text(&row.fix)));
    list(out, "Versions", versions);
    list(out, "Found by", cause.found_by.iter().map(|by| text(by)));
    for remedy in &cause.remedies {
        let whom = match remedy.manager {
            None | Some(Manager::Unknown) => "Remedy",
            Some(Manager::Machine) => "Remedy on a machine you administer",
            Some(Manager::Operator) => "Remedy where the GPU Operator manages the driver",
            Some(Manager::Container) => "Remedy from inside a container",
        };
        let _ = write!(out, "\n{whom}: {}\n", text(&remedy.text));
        if !remedy.steps.is_empty() {
            let steps = remedy.steps.join("\n").replace("```", "'''");
            let _ = write!(out, "\n```\n{}\n```\n", steps.trim_end());
        }
    }
    list(out, "Sources", cause.sources.iter().map(|source| text(source)));
}

fn list(out: &mut String, title: &str, items: impl Iterator<Item = String>) {
    let items: Vec<String> = items.collect();
    if items.is_empty() {
        return;
    }
    let _ = write!(out, "\n{title}:\n\n");
    for item in items {
        let _ = writeln!(out, "- {item}");
    }
}

/// As prose: nothing of it is taken for Markdown's own signs.
fn text(words: &str) -> String {
    let mut out = String::new();
    for c in one_line(words).chars() {
        if "*_<>[]|\\".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn code(words: &str) -> String {
    let words = one_line(words);
    if words.contains('`') { format!("`` {words} ``") } else { format!("`{words}`") }
}
