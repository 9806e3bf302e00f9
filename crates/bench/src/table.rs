//! What `expertrail bench` prints: a table, the ceiling, the verification and the verdict.

use std::ffi::OsStr;
use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

use crate::export::{count_text, notes, percent_text, plural, rate_text, time_text, variant_text};
use crate::schema::{OpResult, ResultFile, Span, Status, VerifyMode};

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether the verdict is coloured.
    pub color: bool,
    /// Columns of the terminal; `None` when there is none, then lines are as long as they need.
    pub width: Option<usize>,
}

impl Style {
    /// The style of an output: colour only on a terminal and when `NO_COLOR` (its value, if set) is absent
    /// or empty.
    pub fn of(terminal_width: Option<usize>, no_color: Option<&OsStr>) -> Self {
        let refused = no_color.is_some_and(|value| !value.is_empty());
        Self { color: terminal_width.is_some() && !refused, width: terminal_width }
    }
}

const HEADER: [&str; 8] =
    ["operation", "p50\nµs", "p95\nµs", "max\nµs", "logical\nGB/s", "wire\nGB/s", "of\nceiling", "verified"];

/// The report of `result`, ending in a line feed.
pub fn render(result: &ResultFile, style: Style) -> String {
    let mut out = String::new();
    out.push_str(&heading(result));
    let table = if result.ops.is_empty() { String::new() } else { format!("{}\n", table(result).trim_fmt()) };
    let needs = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if style.width.is_some_and(|width| width < needs) {
        // A table broken by the terminal cannot be read: one value per line instead.
        for op in &result.ops {
            listing(&mut out, op, result);
        }
    } else {
        out.push_str(&table);
    }
    if let Some(ceiling) = &result.ceiling {
        let _ = writeln!(
            out,
            "ceiling: {} GB/s per rank (memcpy {}, non-temporal {}; {} copying at once)",
            rate_text(ceiling.gbps()),
            rate_text(ceiling.memcpy_gbps),
            rate_text(ceiling.non_temporal_gbps),
            ceiling.processes
        );
    }
    for note in notes(result) {
        let _ = writeln!(out, "{note}");
    }
    if result.settings.hot {
        out.push_str("hot: the inputs fit the last-level cache, so the times flatter the memory\n");
    }
    for warning in &result.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    out.push_str(&verdict(result, style.color));
    out
}

fn heading(result: &ResultFile) -> String {
    let (s, t) = (&result.settings, &result.topology);
    format!(
        "{}: {} tokens x {}, top-{} of {}, {} on {}, {} backend\n",
        s.preset,
        count_text(s.tokens),
        s.hidden,
        s.top_k,
        s.experts,
        plural(t.ranks, "rank"),
        plural(t.nodes, "node"),
        result.backend.name
    )
}

/// Lines around the table and below its header only.
const LINES: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

fn table(result: &ResultFile) -> Table {
    let mut table = Table::new();
    table.load_style(LINES).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(HEADER);
    for op in &result.ops {
        table.add_row(cells(op, result));
    }
    for column in table.column_iter_mut().skip(1).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The cells of one operation, in the order of [`HEADER`].
fn cells(op: &OpResult, result: &ResultFile) -> [String; 8] {
    [
        match op.span {
            // The span that DESIGN's targets are given in; the others are named.
            Span::Isolated => format!("{} {}{}", op.op, op.dtype, variant_text(op)),
            span => format!("  {span} {}", op.dtype),
        },
        time_text(op.time_us.p50),
        time_text(op.time_us.p95),
        time_text(op.time_us.max),
        rate_text(op.logical_gbps),
        rate_text(op.wire_gbps),
        percent_text(op.ceiling_ratio),
        verified(result),
    ]
}

fn verified(result: &ResultFile) -> String {
    let v = &result.verification;
    match v.mode {
        _ if v.mismatches > 0 => format!("{} WRONG", count_text(v.mismatches)),
        VerifyMode::Full if v.rows_checked == v.rows_total => "every row".to_owned(),
        VerifyMode::Full | VerifyMode::Sample if v.rows_checked > 0 => {
            format!("{} rows", count_text(v.rows_checked))
        }
        _ => "no".to_owned(),
    }
}

fn listing(out: &mut String, op: &OpResult, result: &ResultFile) {
    let cells = cells(op, result);
    let _ = writeln!(out, "{}", cells[0]);
    for (name, value) in HEADER.iter().zip(&cells).skip(1) {
        let _ = writeln!(out, "  {:<12} {value}", name.replace('\n', " "));
    }
}

fn verdict(result: &ResultFile, color: bool) -> String {
    let status = result.verdict.status;
    let label = if color {
        let code = match status {
            Status::Pass => 32,
            Status::Fail => 31,
            Status::NotVerified | Status::Inconclusive | Status::NotRun => 33,
        };
        format!("\x1b[1;{code}m{}\x1b[0m", status.label())
    } else {
        status.label().to_owned()
    };
    let mut out = format!("verdict: {label}");
    if !result.verdict.reasons.is_empty() {
        let _ = write!(out, " - {}", result.verdict.reasons.join("; "));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    const PLAIN: Style = Style { color: false, width: None };

    #[test]
    fn the_table_holds_both_operations() {
        let text = render(&sample::result(4), PLAIN);
        assert!(
            text.starts_with("quick: 1,024 tokens x 2048, top-8 of 64, 4 ranks on 1 node, host backend\n")
        );
        for part in
            ["dispatch bf16", "combine bf16", "every row", "ceiling", "logical", "wire", "4341", "5.99"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(
            text.ends_with("verdict: PASS - 131072 of 131072 rows bit-exact with the oracle\n"),
            "{text}"
        );
        assert!(!text.contains('\x1b'));
        // Everything but the warnings and the verdict fits the usual terminal.
        assert!(text.lines().take(6).all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(render(&sample::result(4), Style { width: Some(80), ..PLAIN }), text);
    }

    #[test]
    fn rails_show_their_nic_their_bytes_and_their_part_of_the_raw_rate() {
        let mut result = sample::result(2);
        result.fabric = Some(sample::fabric());
        let text = render(&result, PLAIN);
        for part in [
            "between nodes (tcp): dispatch 2.00 GB/s (80 % of raw)",
            "raw rate: 2.50 GB/s from each rank",
            "rank 1 (node 1, rail 0): tcp;ofi_rxm on lo (libfabric 1.17; loopback: all ranks are on one host)",
            "dispatch 20.00 MB logical, 16.40 wire",
            "proxy busy in 25 % of its turns, 3 sleeps, 1 busy queue, 0 ring stalls, 12 call stalls, 0 duplicates",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn narrow_terminals_get_one_value_per_line() {
        let text = render(&sample::result(4), Style { color: false, width: Some(40) });
        assert!(text.contains("combine bf16\n  p50 µs       5441\n"), "{text}");
        assert!(!text.contains('─'));
    }

    #[test]
    fn colour_only_when_told() {
        let result = sample::result(1);
        let colour = |width, no_color: Option<&str>| {
            render(&result, Style::of(width, no_color.map(OsStr::new))).contains("\x1b[1;32mPASS\x1b[0m")
        };
        assert!(colour(Some(120), None) && colour(Some(120), Some("")));
        assert!(!colour(Some(120), Some("1")) && !colour(None, None));
    }

    #[test]
    fn failures_and_unverified_runs_show() {
        let mut result = sample::result(2);
        result.verification.mismatches = 3;
        result.verification.first_mismatch = Some("combine, rank 1, row 7".to_owned());
        result.verdict = result.verification.verdict();
        let text = render(&result, PLAIN);
        assert!(
            text.contains("3 WRONG") && text.contains("verdict: FAIL") && text.contains("rank 1, row 7"),
            "{text}"
        );

        result.verification.mismatches = 0;
        result.verification.mode = VerifyMode::Off;
        result.verdict = result.verification.verdict();
        assert!(render(&result, PLAIN).contains("verdict: NOT VERIFIED"));
        result.ops.clear();
        result.verdict.status = Status::NotRun;
        assert!(render(&result, PLAIN).contains("verdict: NOT RUN"));
    }
}
