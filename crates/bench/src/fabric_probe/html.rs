//! A probe as one page with two heat maps: no script, no address to load from.

use std::fmt::Write;

use super::document::{FabricFile, Measured, Pair};
use crate::export::{STYLE, escape, rate_text};

/// Side of a cell with its number; smaller where there are many.
const CELL: f64 = 46.0;
/// The picture is not wider than this.
const WIDTH: f64 = 1100.0;
/// Room for the ranks' numbers.
const EDGE: f64 = 40.0;

/// The page of `file`.
pub fn to_html(file: &FabricFile) -> String {
    let measured = &file.measured;
    let (class, label) = match (measured.all_reached(), file.findings.is_empty()) {
        (false, _) => ("fail", "UNREACHABLE PAIRS"),
        (true, false) => ("warn", "SLOW PAIRS"),
        (true, true) => ("pass", "ALL PAIRS REACHED"),
    };
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Expertrail fabric probe - {label}</title>\n<style>\n{STYLE}\
         .heat text {{ font: 11px system-ui, sans-serif; fill: #10151d; text-anchor: middle; }}\n\
         .heat .edge {{ fill: var(--muted); }}\n.heat {{ max-width: 100%; }}\n</style>\n</head>\n<body>\n<main>\n\
         <header><h1>Expertrail fabric probe</h1><span class=\"verdict {class}\">{label}</span></header>\n\
         <p class=\"lead\">{} ranks, {}, {}</p>\n",
        measured.ranks.len(),
        escape(file.library.as_ref().map_or("simulated network", |library| &library.name)),
        escape(&file.started_at)
    );
    if !file.findings.is_empty() {
        out.push_str("<ul class=\"warnings\">");
        for finding in &file.findings {
            let _ = write!(out, "<li>{}</li>", escape(finding));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<h2>GB/s from the row's rank to the column's</h2>\n");
    heat(&mut out, measured, &|pair| Some((pair.gbps?, rate_text(pair.gbps?), true)));
    out.push_str("<h2>Half a round trip of 8 bytes, median, us</h2>\n");
    heat(&mut out, measured, &|pair| {
        Some((pair.latency_p50_us?, format!("{:.1}", pair.latency_p50_us?), false))
    });
    out.push_str(
        "<h2>Ranks</h2>\n<div class=\"card scroll\"><table><thead><tr><th>Rank</th><th class=\"text\">Host</th>\
         <th>Node</th><th>Rail</th><th class=\"text\">Provider</th><th class=\"text\">Domain</th>\
         <th class=\"text\">Why</th></tr></thead><tbody>\n",
    );
    for rank in &measured.ranks {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td>\
             <td class=\"text\">{}</td><td class=\"text\">{}</td></tr>",
            rank.rank,
            escape(&rank.host),
            rank.node,
            rank.local_rank,
            escape(&rank.provider),
            escape(&rank.domain),
            escape(&rank.chosen)
        );
    }
    let _ = write!(
        out,
        "</tbody></table></div>\n<footer>Written by {} {}.</footer>\n</main>\n</body>\n</html>\n",
        escape(&file.tool.name),
        escape(&file.tool.version)
    );
    out
}

/// A value, its text, and whether more is better.
type Cell<'a> = &'a dyn Fn(&Pair) -> Option<(f64, String, bool)>;

fn heat(out: &mut String, measured: &Measured, cell: Cell<'_>) {
    let ranks = measured.ranks.len().max(1);
    let side = CELL.min((WIDTH - EDGE) / ranks as f64);
    let values = || measured.pairs.iter().filter_map(|pair| Some(cell(pair)?.0));
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let extent = EDGE + side * ranks as f64;
    let _ = write!(
        out,
        "<div class=\"card scroll\"><svg class=\"heat\" role=\"img\" aria-label=\"a cell for each pair of ranks\" \
         width=\"{extent:.0}\" height=\"{extent:.0}\" viewBox=\"0 0 {extent:.0} {extent:.0}\">"
    );
    // Beyond this numbers overlap; pointing at a cell tells.
    let with_text = side > 30.0;
    for rank in (0..measured.ranks.len()).step_by((14.0 / side).ceil().max(1.0) as usize) {
        let at = EDGE + side * (rank as f64 + 0.5);
        let _ = write!(
            out,
            "<text class=\"edge\" x=\"{at:.1}\" y=\"{:.1}\">{rank}</text><text class=\"edge\" x=\"{:.1}\" y=\"{:.1}\">{rank}</text>",
            EDGE - 8.0,
            EDGE / 2.0,
            at + 4.0
        );
    }
    for pair in &measured.pairs {
        let (x, y) = (EDGE + side * pair.to as f64, EDGE + side * pair.from as f64);
        let found = cell(pair);
        let (fill, text, hint) = if let Some((value, text, more)) = &found {
            // 0 is best. One value alone is neither good nor bad.
            let part = if high > low { (value - low) / (high - low) } else { 0.0 };
            let bad = if *more && high > low { 1.0 - part } else { part };
            let hue = 130.0 - 120.0 * bad;
            (format!("hsl({hue:.0} 62% 62%)"), text.clone(), text.clone())
        } else {
            let why = pair.error.clone().unwrap_or_else(|| "not measured".to_owned());
            ("#b3261e".to_owned(), "x".to_owned(), why)
        };
        let _ = write!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"><title>rank {} to {}: {}</title></rect>",
            side - 1.0,
            side - 1.0,
            pair.from,
            pair.to,
            escape(&hint)
        );
        if with_text {
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + side / 2.0,
                y + side / 2.0 + 4.0,
                escape(&text)
            );
        }
    }
    out.push_str("</svg></div>\n");
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::file;
    use super::*;

    #[test]
    fn one_page_with_a_cell_for_each_pair_and_no_outside_resource() {
        let mut probed = file();
        probed.measured.ranks[2].host = "<script>".to_owned();
        let page = to_html(&probed);
        for outside in ["http:", "https:", "src=", "href=", "url(", "<script", "<link", "<img"] {
            assert!(!page.contains(outside), "{outside}");
        }
        // Twelve ordered pairs in two maps.
        assert_eq!(page.matches("<rect").count(), 24);
        assert_eq!(page.matches("fill=\"#b3261e\"").count(), 2);
        assert!(page.contains("UNREACHABLE PAIRS") && page.contains("rank 0 to 3: no answer within"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
        // The slow pair is red, the others green.
        assert!(page.contains("fill=\"hsl(10 62% 62%)\"><title>rank 1 to 3: 1.00"), "{page}");
        assert!(page.contains("fill=\"hsl(130 62% 62%)\"><title>rank 1 to 2: 40.00"), "{page}");
    }

    #[test]
    fn one_rank_is_a_page_too() {
        let mut alone = file();
        alone.measured.ranks.truncate(1);
        alone.measured.pairs.clear();
        alone.findings.clear();
        assert!(!to_html(&alone).contains("NaN"));
    }
}
