//! One HTML page with everything in it: no script, no font, no image, no address to load from.

mod charts;
mod svg;

use std::fmt::Write;

use crate::schema::{OpResult, ResultFile, SCHEMA_ID, Span, Status};

use super::{count_text, notes, percent_text, rate_text, settings_rows, time_text, variant_text};
pub(crate) use svg::escape;

pub(crate) const STYLE: &str = include_str!("style.css");

/// The page of `result`.
pub fn to_html(result: &ResultFile) -> String {
    let mut out = String::with_capacity(64 * 1024);
    let title = format!("Expertrail benchmark: {}", result.settings.preset);
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{} - {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        escape(&title),
        result.verdict.status.label()
    );
    head(&mut out, result, &title);
    tiles(&mut out, result);
    results(&mut out, result);
    warnings(&mut out, result);
    all_charts(&mut out, result);
    settings(&mut out, result);
    let _ = write!(
        out,
        "<footer>Written by {} {} from a result of schema <code>{SCHEMA_ID}</code>.</footer>\n</main>\n</body>\n</html>\n",
        escape(&result.tool.name),
        escape(&result.tool.version)
    );
    out
}

fn head(out: &mut String, result: &ResultFile, title: &str) {
    let class = match result.verdict.status {
        Status::Pass => "pass",
        Status::Fail => "fail",
        Status::NotVerified | Status::Inconclusive | Status::NotRun => "warn",
    };
    let (s, t) = (&result.settings, &result.topology);
    let _ = write!(
        out,
        "<header><h1>{}</h1><span class=\"verdict {class}\">{}</span></header>\n\
         <p class=\"lead\">{} tokens x {} per rank, top-{} of {} experts, {} ranks, {} backend, {}</p>\n",
        escape(title),
        result.verdict.status.label(),
        count_text(s.tokens),
        count_text(s.hidden),
        s.top_k,
        count_text(s.experts),
        t.ranks,
        escape(&result.backend.name),
        escape(&result.started_at)
    );
    if !result.verdict.reasons.is_empty() {
        out.push_str("<ul class=\"reasons\">");
        for reason in &result.verdict.reasons {
            let _ = write!(out, "<li>{}</li>", escape(reason));
        }
        out.push_str("</ul>\n");
    }
}

fn tiles(out: &mut String, result: &ResultFile) {
    out.push_str("<section class=\"tiles\" aria-label=\"Summary\">\n");
    let mut tile = |name: &str, value: &str, unit: &str, below: &str| {
        let _ = writeln!(
            out,
            "<div class=\"card tile\"><span>{}</span><b>{} <small>{}</small></b><span>{}</span></div>",
            escape(name),
            escape(value),
            escape(unit),
            escape(below)
        );
    };
    for op in isolated(result) {
        let name = format!("{}{}", op.op, variant_text(op));
        tile(&format!("{name}, p50"), &time_text(op.time_us.p50), "µs", "slowest rank");
        let below = match op.ceiling_ratio {
            Some(_) => format!("logical; {} of ceiling", percent_text(op.ceiling_ratio)),
            None => "logical, per rank".to_owned(),
        };
        tile(&format!("{name}, rate"), &rate_text(op.logical_gbps), "GB/s", &below);
    }
    let v = &result.verification;
    tile("rows checked", &count_text(v.rows_checked), "", &format!("of {}", count_text(v.rows_total)));
    tile("rows wrong", &count_text(v.mismatches), "", &format!("verification {}", v.mode));
    out.push_str("</section>\n");
}

/// The operations that tiles and charts show: calls one by one. Aligned and chained ones are in the table.
fn isolated(result: &ResultFile) -> impl Iterator<Item = &OpResult> {
    result.ops.iter().filter(|op| op.span == Span::Isolated)
}

fn results(out: &mut String, result: &ResultFile) {
    if result.ops.is_empty() {
        out.push_str("<h2>Results</h2>\n<p class=\"note\">Nothing was measured.</p>\n");
        return;
    }
    out.push_str(
        "<h2>Results</h2>\n<div class=\"card scroll\"><table><thead><tr><th>Operation</th>\
         <th class=\"text\">Payload</th><th class=\"text\">Span</th><th>p50 µs</th><th>p95 µs</th>\
         <th>p99 µs</th><th>max µs</th><th>logical GB/s</th><th>wire GB/s</th><th>of ceiling</th>\
         </tr></thead><tbody>\n",
    );
    for op in &result.ops {
        result_row(out, op);
    }
    out.push_str("</tbody></table></div>\n");
    let phases: Vec<String> = result.ops.iter().filter_map(phases_text).collect();
    out.push_str(
        "<p class=\"note\">Times: maximum over ranks in each iteration, then percentiles. GB/s = 1e9 bytes/s \
         per rank at p50. Logical: all rows asked for, own rank included; wire: rows that went to other ranks.",
    );
    for text in phases.into_iter().chain(notes(result)) {
        let _ = write!(out, "<br>{}", escape(&text));
    }
    out.push_str("</p>\n");
}

fn result_row(out: &mut String, op: &OpResult) {
    let _ = write!(
        out,
        "<tr><td>{}{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td>",
        op.op,
        variant_text(op),
        escape(&op.dtype),
        op.span
    );
    let times = [op.time_us.p50, op.time_us.p95, op.time_us.p99, op.time_us.max].map(time_text);
    let rates = [rate_text(op.logical_gbps), rate_text(op.wire_gbps), percent_text(op.ceiling_ratio)];
    for value in times.iter().chain(&rates) {
        let _ = write!(out, "<td>{value}</td>");
    }
    out.push_str("</tr>\n");
}

fn phases_text(op: &OpResult) -> Option<String> {
    if op.phases_us.is_empty() {
        return None;
    }
    let parts: Vec<String> =
        op.phases_us.iter().map(|(name, us)| format!("{name} {} µs", time_text(*us))).collect();
    let variant = variant_text(op);
    // On GPUs one operation has many rows.
    let of = if variant.is_empty() { String::new() } else { format!(" {}{variant}, {}", op.dtype, op.span) };
    Some(format!("Phases of {}{of} (p50): {}.", op.op, parts.join(", ")))
}

fn warnings(out: &mut String, result: &ResultFile) {
    if result.warnings.is_empty() {
        return;
    }
    out.push_str("<h2>Warnings</h2>\n<ul class=\"warnings\">");
    for warning in &result.warnings {
        let _ = write!(out, "<li>{}</li>", escape(warning));
    }
    out.push_str("</ul>\n");
}

fn all_charts(out: &mut String, result: &ResultFile) {
    let received = &result.received;
    if result.ops.is_empty() && received.rows_per_rank.is_empty() {
        return;
    }
    out.push_str("<h2>Charts</h2>\n<div class=\"charts\">\n");
    for chart in [charts::per_rank, charts::distribution, charts::over_iterations] {
        for op in isolated(result) {
            out.push_str(&chart(op));
        }
    }
    if !received.rows_per_rank.is_empty() {
        out.push_str(&charts::counts("rank", "rows", &received.rows_per_rank));
    }
    if !received.tokens_per_expert.is_empty() {
        out.push_str(&charts::counts("expert", "tokens", &received.tokens_per_expert));
    }
    out.push_str("</div>\n");
}

fn settings(out: &mut String, result: &ResultFile) {
    out.push_str(
        "<h2>Settings and environment</h2>\n<div class=\"card\"><table class=\"settings\"><tbody>\n",
    );
    for (name, value) in settings_rows(result) {
        let _ = writeln!(out, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape(&value));
    }
    out.push_str("</tbody></table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn one_page_with_no_outside_resource() {
        let page = to_html(&sample::result(8));
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link", "<img"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for part in
            ["PASS", "Settings and environment", "prefers-color-scheme", "role=\"img\"", "logical GB/s"]
        {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg").count(), 8);
        assert!(!page.contains("NaN") && !page.contains("inf\""));
    }

    #[test]
    fn tags_are_balanced() {
        let page = to_html(&sample::result(3));
        for tag in [
            "svg", "figure", "table", "tr", "td", "section", "div", "ul", "li", "text", "title", "rect",
            "main",
        ] {
            let open = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn outside_text_is_escaped() {
        let mut result = sample::result(1);
        let evil = "<script>alert(\"x\")</script>&'".to_owned();
        result.settings.preset.clone_from(&evil);
        result.warnings = vec![evil.clone()];
        result.verdict.reasons = vec![evil.clone()];
        result.command = vec![evil.clone()];
        result.backend.name.clone_from(&evil);
        result.ops[0].dtype.clone_from(&evil);
        result.tool.name.clone_from(&evil);
        result.hosts[0].name.clone_from(&evil);
        result.versions.insert("x".to_owned(), evil);
        let page = to_html(&result);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    }

    #[test]
    fn nothing_measured_is_a_page_too() {
        let mut result = sample::result(1);
        result.ops.clear();
        result.received = crate::schema::Received::default();
        result.verdict.status = Status::NotRun;
        let page = to_html(&result);
        assert!(page.contains("NOT RUN") && page.contains("Nothing was measured") && !page.contains("<svg"));
    }

    #[test]
    fn many_ranks_and_experts_stay_small() {
        let mut result = sample::result(512);
        result.received.tokens_per_expert = (0..65_536).map(|i| i % 17).collect();
        assert!(to_html(&result).len() < 400_000);
    }
}
