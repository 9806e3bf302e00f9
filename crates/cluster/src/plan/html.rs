//! Plans as one HTML page: no script, nothing loaded from elsewhere.

use std::fmt::Write;

use super::SCHEMA;
use super::document::{Document, Figure, Level, Plan, SweptOver};
use super::svg::{Chart, Series, escape};
use super::text::{memory_text, names, place, range, rate, shape, way};

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn html(document: &Document) -> String {
    let Some(first) = document.plans.first() else { return String::new() };
    let w = &first.workload;
    let places = places(document);
    let title = match &document.sweep {
        Some(swept) => format!("Expertrail plan over {}", swept.parameter),
        None => format!("Expertrail plan: {}", place(w)),
    };
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         <p>{}</p>\n<p>{}</p>\n",
        escape(&shape(w)),
        escape(&way(w)),
        title = escape(&title),
    );
    links(&mut out, first);
    overview(&mut out, document, &places);
    charts(&mut out, document, &places);
    figures(&mut out, document, &places);
    lints(&mut out, document, &places);
    let _ = write!(
        out,
        "<footer>Ceilings are the roofline's; expected ranges are shares of it that were published or measured. GB/s = \
         1e9 bytes/s of each GPU, as each tool prints it. Written by expertrail {} from a document of schema \
         <code>{SCHEMA}</code>.</footer>\n</main>\n</body>\n</html>\n",
        escape(&document.tool)
    );
    out
}

fn parameter(document: &Document) -> &str {
    document.sweep.as_ref().map_or("nodes", |swept| swept.parameter.as_str())
}

/// What each plan is called.
fn places(document: &Document) -> Vec<String> {
    match &document.sweep {
        Some(SweptOver { values, .. }) => values.iter().map(usize::to_string).collect(),
        None => document.plans.iter().map(|plan| plan.workload.nodes.to_string()).collect(),
    }
}

fn row(out: &mut String, tag: &str, cells: impl IntoIterator<Item = String>) {
    out.push_str("<tr>");
    for cell in cells {
        let _ = write!(out, "<{tag}>{}</{tag}>", escape(&cell));
    }
    out.push_str("</tr>\n");
}

fn links(out: &mut String, plan: &Plan) {
    out.push_str("<h2>Links, one way, of each GPU</h2>\n<div class=\"card\"><table><tbody>\n");
    for (name, link) in [("NVLink", Some(&plan.links.scale_up)), ("NIC", plan.links.scale_out.as_ref())] {
        let Some(link) = link else { continue };
        let assumed = if link.assumed { "assumed: " } else { "" };
        let _ = writeln!(
            out,
            "<tr><td>{name}</td><td>{} GB/s</td><td class=\"text\">{}</td><td class=\"text long\">{assumed}{}</td></tr>",
            rate(link.gb_s),
            escape(&link.product),
            escape(&link.source)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn overview(out: &mut String, document: &Document, places: &[String]) {
    out.push_str("<h2>Exchange</h2>\n<div class=\"card\"><table><thead>\n");
    let head = [
        parameter(document),
        "ranks",
        "ranks of a token",
        "nodes of a token",
        "dispatch floor, µs",
        "binds",
        "combine floor, µs",
        "binds",
        "memory of each GPU",
        "lint",
    ];
    row(out, "th", head.map(str::to_owned));
    out.push_str("</thead><tbody>\n");
    for (plan, place) in document.plans.iter().zip(places) {
        let mut cells = vec![
            place.clone(),
            plan.workload.ranks.to_string(),
            format!("{:.3}", plan.destinations.ranks),
            format!("{:.3}", plan.destinations.nodes),
        ];
        for op in &plan.operations {
            cells.push(format!("{:.1}", op.floor_us));
            cells.push(op.binds.map_or("nothing", super::document::Link::name).to_owned());
        }
        cells.push(memory_text(plan.memory.total_bytes));
        let (class, word) = match (plan.refused(), plan.warned()) {
            (true, _) => ("refuse", "refused"),
            (false, true) => ("warn", "warnings"),
            (false, false) => ("ok", "ok"),
        };
        out.push_str("<tr>");
        for cell in cells {
            let _ = write!(out, "<td>{}</td>", escape(&cell));
        }
        let _ = writeln!(out, "<td class=\"{class}\">{word}</td></tr>");
    }
    out.push_str("</tbody></table></div>\n");
}

/// A figure of one or more operations over all plans, GB/s.
struct Line {
    name: String,
    ceiling: Vec<Option<f64>>,
    expected: Vec<Option<(f64, f64)>>,
}

impl Line {
    fn new(document: &Document, id: &str, operation: &str) -> Self {
        let of: Vec<Option<&Figure>> = document.plans.iter().map(|plan| plan.figure(id, operation)).collect();
        let expected = |figure: &Figure| figure.expected.as_ref().map(|e| (e.low_gb_s, e.high_gb_s));
        Self {
            name: operation.to_owned(),
            ceiling: of.iter().map(|figure| figure.and_then(|f| f.ceiling_gb_s)).collect(),
            expected: of.iter().map(|figure| figure.and_then(expected)).collect(),
        }
    }

    /// Equal at the width of a line.
    fn looks_like(&self, other: &Self) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * a.abs().max(b.abs());
        let same = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => near(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let lines = self.ceiling.iter().zip(&other.ceiling).all(|(a, b)| same(*a, *b));
        let part = |band: &Option<(f64, f64)>, high: bool| band.map(|(l, h)| if high { h } else { l });
        let bands = self.expected.iter().zip(&other.expected);
        lines
            && bands
                .into_iter()
                .all(|(a, b)| [false, true].into_iter().all(|high| same(part(a, high), part(b, high))))
    }
}

/// One chart for each figure, with its operations.
fn charts(out: &mut String, document: &Document, places: &[String]) {
    out.push_str(
        "<h2>What tools print</h2>\n<p>Line: ceiling. Band: what is expected; none where nothing comparable was measured.</p>\n\
         <div class=\"charts\">\n",
    );
    let names = names(&document.plans);
    let mut ids: Vec<(&str, &str)> = Vec::new();
    for (id, _, tool) in &names {
        if !ids.iter().any(|(known, _)| known == id) {
            ids.push((id, tool));
        }
    }
    for (id, tool) in ids {
        let operations = names.iter().filter(|name| name.0 == id).map(|name| name.1);
        let mut lines: Vec<Line> = Vec::new();
        for operation in operations {
            let line = Line::new(document, id, operation);
            // Operations that look alike are one line.
            match lines.iter_mut().find(|known| known.looks_like(&line)) {
                Some(known) => known.name = format!("{}, {operation}", known.name),
                None => lines.push(line),
            }
        }
        let series = lines
            .iter()
            .zip(["a", "b", "c"])
            .map(|(line, class)| Series {
                name: &line.name,
                class,
                line: line.ceiling.clone(),
                band: line.expected.clone(),
            })
            .collect();
        let title = format!("{tool}, GB/s over {}", parameter(document));
        let chart = Chart {
            title: &title,
            x_name: parameter(document),
            y_name: "GB/s as printed",
            places: places.to_vec(),
            series,
        };
        let counts = document.plans.iter().flat_map(|plan| &plan.figures).find(|figure| figure.id == id);
        let _ = writeln!(
            out,
            "<figure class=\"card\"><figcaption>{}<span>{}</span></figcaption>{}</figure>",
            escape(tool),
            escape(counts.map_or("", |figure| figure.counts.as_str())),
            chart.svg()
        );
    }
    out.push_str("</div>\n");
}

fn figures(out: &mut String, document: &Document, places: &[String]) {
    out.push_str("<h2>Figures</h2>\n<div class=\"card\"><table><thead>\n<tr>");
    for (name, text) in [
        ("figure", true),
        ("operation", true),
        (parameter(document), false),
        ("ceiling, GB/s", false),
        ("expected, GB/s", false),
        ("binds", true),
        ("NIC wire per printed", false),
        ("NVLink wire per printed", false),
        ("basis of what is expected", true),
    ] {
        let class = if text { " class=\"text\"" } else { "" };
        let _ = write!(out, "<th{class}>{}</th>", escape(name));
    }
    out.push_str("</tr>\n</thead><tbody>\n");
    for (id, operation, tool) in names(&document.plans) {
        for (plan, place) in document.plans.iter().zip(places) {
            let Some(figure) = plan.figure(id, operation) else { continue };
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td>\
                 <td>{:.4}</td><td>{:.4}</td><td class=\"text long\">{}</td></tr>",
                escape(tool),
                escape(operation),
                escape(place),
                figure.ceiling_gb_s.map_or_else(|| "-".to_owned(), rate),
                range(figure.expected.as_ref()),
                figure.binds.map_or("nothing", super::document::Link::name),
                figure.scale_out_per_printed,
                figure.scale_up_per_printed,
                escape(&figure.basis)
            );
        }
    }
    out.push_str("</tbody></table></div>\n");
}

fn lints(out: &mut String, document: &Document, places: &[String]) {
    if document.plans.iter().all(|plan| plan.lints.is_empty()) {
        out.push_str("<h2>Launch lint</h2>\n<p>No rule of the engine is broken.</p>\n");
        return;
    }
    out.push_str("<h2>Launch lint</h2>\n<div class=\"card\"><table><thead>\n<tr>");
    for name in [parameter(document), "level", "id", "rule", "with the numbers", "what to change", "source"] {
        let _ = write!(out, "<th class=\"text\">{}</th>", escape(name));
    }
    out.push_str("</tr>\n</thead><tbody>\n");
    for (plan, place) in document.plans.iter().zip(places) {
        for lint in &plan.lints {
            let class = match lint.level {
                Level::Refuse => "refuse",
                Level::Warn => "warn",
                Level::Note => "note",
            };
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"text {class}\">{class}</td><td class=\"text\">{}</td><td class=\"text\">{}</td>\
                 <td class=\"text long\">{}</td><td class=\"text long\">{}</td><td class=\"text long\">{}</td></tr>",
                escape(place),
                escape(&lint.id),
                escape(&lint.title),
                escape(&lint.observed),
                escape(&lint.remedy),
                escape(&lint.source)
            );
        }
    }
    out.push_str("</tbody></table></div>\n");
}
