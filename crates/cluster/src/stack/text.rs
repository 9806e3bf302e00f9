//! The verdict as text.

use std::fmt::Write;

use super::{Effect, Judgement, Verdict};
use crate::render::one_line;

/// Verdict first, then why and the smallest fix, then what was judged and from where.
pub fn text(verdict: &Verdict) -> String {
    let mut out = String::new();
    let word = match verdict.judgement {
        Judgement::KnownGood => "KNOWN GOOD",
        Judgement::KnownBad if verdict.unless_patched => "KNOWN BAD unless patched",
        Judgement::KnownBad => "KNOWN BAD",
        Judgement::Unverified => "UNVERIFIED",
    };
    let _ = writeln!(out, "{word}");
    for found in &verdict.applies {
        let row = &found.row;
        let kind = match row.verdict {
            Judgement::KnownGood => "good",
            Judgement::KnownBad => "bad",
            Judgement::Unverified => "unverified",
        };
        let _ = writeln!(out, "\n{kind}: {}", row.mechanism);
        if !row.fix.is_empty() {
            let _ = writeln!(out, "  fix: {}", row.fix);
        }
        let _ = writeln!(out, "  when {} ({}: {})", row.when.join(" "), row.id, row.source);
    }
    for found in &verdict.cautions {
        let row = &found.row;
        let kind = if row.effect == Effect::Slower { "slower" } else { "tests fail" };
        let _ = writeln!(out, "\n{kind}: {}\n  fix: {}", row.mechanism, row.fix);
        let _ = writeln!(out, "  when {} ({}: {})", row.when.join(" "), row.id, row.source);
    }
    if verdict.unless_patched {
        let _ = writeln!(
            out,
            "\nOnly the commit tells that pull request 564 is missing; a build of it with the patch is good. Confirm by its source\n\
             (expertrail stack --source-root DIR), or by a dispatch between two nodes."
        );
    }
    for found in &verdict.possible {
        let _ =
            writeln!(out, "\nmay be bad, {} not known: {}", found.open.join(" and "), found.row.mechanism);
        let _ = writeln!(out, "  ({}: {})", found.row.id, found.row.source);
    }
    if verdict.applies.is_empty() && verdict.possible.is_empty() && verdict.cautions.is_empty() {
        out.push_str("\nNothing in the table is about this combination. Run a dispatch between two nodes before a large job.\n");
    }
    if verdict.judgement == Judgement::Unverified && verdict.question.get("transport").is_none() {
        out.push_str("\nThe transport between nodes is not known, and most of the table is about one: give --transport ibgda, efa or none.\n");
    }
    out.push_str("\njudged:\n");
    for (key, known) in &verdict.question.known {
        let (value, source) = (one_line(&known.value), one_line(&known.source));
        let _ = writeln!(out, "  {key:<14} {value:<16} {source}");
    }
    if verdict.question.known.is_empty() {
        out.push_str("  nothing was found: neither DeepEP nor NVSHMEM nor NCCL\n");
    }
    for note in &verdict.question.notes {
        let _ = writeln!(out, "note: {}", one_line(note));
    }
    out
}
