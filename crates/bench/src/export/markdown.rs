//! A Markdown report (GitHub's tables).

use std::fmt::Write;

use crate::schema::ResultFile;

use super::{notes, percent_text, rate_text, settings_rows, time_text, variant_text};

/// Verdict, results, warnings and settings as Markdown.
pub fn to_markdown(result: &ResultFile) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "## Expertrail benchmark: {}\n", result.verdict.status.label());
    for reason in &result.verdict.reasons {
        let _ = writeln!(out, "- {}", cell(reason));
    }
    out.push_str(
        "\n| operation | payload | span | p50 µs | p95 µs | p99 µs | max µs | logical GB/s | wire GB/s | of ceiling |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for op in &result.ops {
        let times = [op.time_us.p50, op.time_us.p95, op.time_us.p99, op.time_us.max].map(time_text);
        let _ = writeln!(
            out,
            "| {}{} | {} | {} | {} | {} | {} | {} |",
            op.op,
            variant_text(op),
            cell(&op.dtype),
            op.span,
            times.join(" | "),
            rate_text(op.logical_gbps),
            rate_text(op.wire_gbps),
            percent_text(op.ceiling_ratio)
        );
    }
    out.push_str("\nTimes are the maximum over ranks, then percentiles; GB/s = 1e9 bytes/s per rank.\n");
    for note in notes(result) {
        let _ = write!(out, "\n{}.\n", cell(&note));
    }
    if !result.warnings.is_empty() {
        out.push_str("\n### Warnings\n\n");
        for warning in &result.warnings {
            let _ = writeln!(out, "- {}", cell(warning));
        }
    }
    out.push_str("\n### Settings\n\n| setting | value |\n|---|---|\n");
    for (name, value) in settings_rows(result) {
        let _ = writeln!(out, "| {name} | {} |", cell(&value));
    }
    out
}

/// Text that stays inside its cell and starts no markup.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '|' | '\\' | '`' | '*' | '_' | '<' | '[' | ']' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn tables_have_equal_columns() {
        let mut result = sample::result(2);
        result.warnings = vec!["a | b\n<script>".to_owned()];
        result.command = vec!["x|y".to_owned()];
        let text = to_markdown(&result);
        let columns = |line: &str| line.replace("\\|", "").matches('|').count();
        let tables: Vec<usize> = text.lines().filter(|l| l.starts_with('|')).map(columns).collect();
        assert!(tables.iter().all(|&n| n == 11 || n == 3), "{text}");
        assert!(text.starts_with("## Expertrail benchmark: PASS\n"));
        assert!(text.contains("- a \\| b \\<script>"), "{text}");
        assert!(text.contains("| dispatch | bf16 | isolated | "));
    }
}
