//! Plans as text.

use std::fmt::Write;

use super::document::{Document, Expected, Figure, Level, Lint, Memory, Operation, Plan, Workload};
use super::request::{CombineType, Mode};
use crate::render::{count, one_line};

/// The plan, or the table of a sweep.
pub fn text(document: &Document) -> String {
    match (&document.sweep, document.plans.as_slice()) {
        (None, [plan]) => single(plan),
        _ => sweep(document),
    }
}

/// `4096 tokens x 7168, top-8 of 256`.
pub(super) fn shape(w: &Workload) -> String {
    format!("{} tokens x {}, top-{} of {}, {}", w.tokens, w.hidden, w.top_k, w.experts, w.routing)
}

/// What moves the rows, and as what.
pub(super) fn way(w: &Workload) -> String {
    let mode = match w.mode {
        Mode::Ht => "high throughput",
        Mode::Ll if w.ll_without_nvlink => "low latency without NVLink",
        Mode::Ll => "low latency",
    };
    let sms = w.sms.map_or(String::new(), |sms| format!(", {sms} SMs"));
    format!(
        "{}, {mode}, dispatch {}, combine {}{sms}",
        w.engine.name(),
        if w.fp8_dispatch { "FP8 + scales" } else { "BF16" },
        match w.combine {
            CombineType::Bf16 => "BF16",
            CombineType::Logfmt => "logfmt",
        }
    )
}

/// A table whose columns are as wide as they need to be: the first to the left, the others to the right.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = one_line(cell);
            let _ = match column {
                0 => write!(line, "  {cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// GB/s, short.
pub(super) fn rate(gb_s: f64) -> String {
    if gb_s >= 1000.0 { format!("{gb_s:.0}") } else { format!("{gb_s:.1}") }
}

/// A range of GB/s, or a dash.
pub(super) fn range(expected: Option<&Expected>) -> String {
    expected.map_or_else(|| "-".to_owned(), |e| format!("{}-{}", rate(e.low_gb_s), rate(e.high_gb_s)))
}

fn megabytes(bytes: f64) -> String {
    format!("{:.2}", bytes / 1e6)
}

/// Bytes in MiB or GiB.
pub(super) fn memory_text(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib >= 1024.0 { format!("{:.2} GiB", mib / 1024.0) } else { format!("{mib:.1} MiB") }
}

fn single(plan: &Plan) -> String {
    let w = &plan.workload;
    let mut out = format!("{}; {}\n{}\n\n", place(w), shape(w), way(w));
    out.push_str(&links(plan));
    let d = &plan.destinations;
    let simulated = if d.ranks_standard_error > 0.0 {
        format!(" (simulated, standard error {:.4} ranks)", d.ranks_standard_error)
    } else {
        String::new()
    };
    let _ = writeln!(
        out,
        "\nA token goes to {:.4} ranks and {:.4} nodes on average, own ones counted{simulated}.\n",
        d.ranks, d.nodes
    );
    out.push_str(&operations(plan));
    out.push('\n');
    out.push_str(&figures(&plan.figures));
    if !plan.wrong_nic.is_empty() {
        out.push_str("\nIf pins are wrong nothing fails, and RDMA figures are at most:\n");
        let row = |wrong: &super::document::WrongNic| {
            vec![
                wrong.case.clone(),
                format!("{} GB/s on the wire", rate(wrong.wire_gb_s)),
                format!("{} GB/s printed", rate(wrong.printed_gb_s)),
            ]
        };
        out.push_str(&table(&plan.wrong_nic.iter().map(row).collect::<Vec<_>>()));
    }
    out.push('\n');
    out.push_str(&memory(&plan.memory));
    out.push('\n');
    out.push_str(&lints(&plan.lints));
    out
}

/// `2 nodes x 8 GPUs = 16 ranks`.
pub(super) fn place(w: &Workload) -> String {
    format!("{} x {} = {}", count(w.nodes, "node"), count(w.gpus_per_node, "GPU"), count(w.ranks, "rank"))
}

fn links(plan: &Plan) -> String {
    let mut out = String::from("Links, one way, of each GPU:\n");
    let mut rows = Vec::new();
    for (name, link) in [("NVLink", Some(&plan.links.scale_up)), ("NIC", plan.links.scale_out.as_ref())] {
        let Some(link) = link else { continue };
        let assumed = if link.assumed { "assumed: " } else { "" };
        rows.push(vec![
            name.to_owned(),
            format!("{} GB/s", rate(link.gb_s)),
            link.product.clone(),
            format!("{assumed}{}", link.source),
        ]);
    }
    // Sources are long: as the last column they are to the left of nothing.
    let widths =
        [0, 1, 2].map(|at| rows.iter().map(|row: &Vec<String>| row[at].chars().count()).max().unwrap_or(0));
    for row in &rows {
        let _ = writeln!(
            out,
            "  {:<a$}  {:>b$}  {:<c$}  {}",
            row[0],
            row[1],
            one_line(&row[2]),
            one_line(&row[3]),
            a = widths[0],
            b = widths[1],
            c = widths[2]
        );
    }
    out
}

fn operations(plan: &Plan) -> String {
    let mut rows = vec![cells([
        "MB (1e6 bytes) of each GPU",
        "row bytes",
        "per node",
        "per rank",
        "per expert",
        "NVLink",
        "NIC",
        "floor",
        "binds",
    ])];
    for op in &plan.operations {
        let Operation { floor_us, binds, .. } = op;
        rows.push(vec![
            op.name.clone(),
            op.row_bytes.to_string(),
            megabytes(op.logical_node_bytes),
            megabytes(op.logical_rank_bytes),
            megabytes(op.logical_expert_bytes),
            megabytes(op.scale_up_bytes),
            megabytes(op.scale_out_bytes),
            format!("{floor_us:.1} µs"),
            binds.map_or("nothing", super::document::Link::name).to_owned(),
        ]);
    }
    let mut out = table(&rows);
    let ways: Vec<&str> = plan.operations.iter().map(|op| op.transfer.as_str()).collect();
    let way = match ways.as_slice() {
        [a, b] if a != b => format!("dispatch {a}; combine {b}"),
        all => all.first().copied().unwrap_or_default().to_owned(),
    };
    let alpha = plan.links.alpha_us;
    let fixed = if alpha > 0.0 {
        format!("; the floor has {alpha} µs of fixed time, ceilings of figures have none")
    } else {
        String::new()
    };
    let _ = writeln!(
        out,
        "  Logical bytes with a copy per node, rank or expert; then bytes on the wire: {way}{fixed}."
    );
    out
}

fn figures(figures: &[Figure]) -> String {
    let mut basis: Vec<&str> = Vec::new();
    let mut rows = vec![cells([
        "GB/s that tools print",
        "",
        "ceiling",
        "expected",
        "basis",
        "binds",
        "NIC wire",
        "NVLink wire",
    ])];
    for (figure, operations) in merged(figures) {
        if !basis.contains(&figure.basis.as_str()) {
            basis.push(&figure.basis);
        }
        let number = basis.iter().position(|known| *known == figure.basis).map_or(0, |at| at + 1);
        rows.push(vec![
            figure.tool.clone(),
            operations,
            figure.ceiling_gb_s.map_or_else(|| "-".to_owned(), rate),
            range(figure.expected.as_ref()),
            format!("[{number}]"),
            figure.binds.map_or("nothing", super::document::Link::name).to_owned(),
            format!("x {:.4}", figure.scale_out_per_printed),
            format!("x {:.4}", figure.scale_up_per_printed),
        ]);
    }
    let mut out = table(&rows);
    out.push_str("  Wire: GB/s on that link for each GB/s printed.\n");
    for (at, text) in basis.iter().enumerate() {
        let _ = writeln!(out, "  [{}] {}", at + 1, one_line(text));
    }
    out
}

/// Figures of one tool whose operations read alike are one row.
fn merged(figures: &[Figure]) -> Vec<(&Figure, String)> {
    let cell = |f: &Figure| {
        let numbers = [f.scale_out_per_printed, f.scale_up_per_printed].map(|per| format!("{per:.4}"));
        (f.ceiling_gb_s.map(rate), range(f.expected.as_ref()), numbers)
    };
    let mut rows: Vec<(&Figure, String)> = Vec::new();
    for figure in figures {
        let same = |row: &&mut (&Figure, String)| {
            row.0.id == figure.id && row.0.basis == figure.basis && cell(row.0) == cell(figure)
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.1 = format!("{}, {}", row.1, figure.operation),
            None => rows.push((figure, figure.operation.clone())),
        }
    }
    rows
}

fn memory(memory: &Memory) -> String {
    let mut out = format!("Memory of each GPU: {}\n", memory_text(memory.total_bytes));
    let width = memory.parts.iter().map(|part| part.name.chars().count()).max().unwrap_or(0);
    for part in &memory.parts {
        let _ = writeln!(
            out,
            "  {:<width$}  {:>11}  {} ({})",
            part.name,
            memory_text(part.bytes),
            part.rule,
            part.source
        );
    }
    out
}

fn lints(lints: &[Lint]) -> String {
    let mut out = String::new();
    for lint in lints {
        let _ = writeln!(
            out,
            "{:<7} {} {}: {} ({})",
            lint.level.name(),
            lint.id,
            lint.title,
            one_line(&lint.observed),
            lint.source
        );
        let _ = writeln!(out, "        {}", one_line(&lint.remedy));
    }
    let _ = writeln!(out, "{}", verdict(lints.iter()));
    out
}

/// What the lint says in all.
fn verdict<'a>(lints: impl Iterator<Item = &'a Lint>) -> String {
    let (mut refused, mut warned) = (0, 0);
    for lint in lints {
        refused += usize::from(lint.level == Level::Refuse);
        warned += usize::from(lint.level == Level::Warn);
    }
    match (refused, warned) {
        (0, 0) => "No rule of the engine is broken.".to_owned(),
        (0, warned) => format!("{} to look at; nothing is refused.", count(warned, "warning")),
        (refused, _) => format!("Cannot work as planned: {} broken.", count(refused, "rule")),
    }
}

fn sweep(document: &Document) -> String {
    let plans = &document.plans;
    let (Some(first), Some(swept)) = (plans.first(), &document.sweep) else { return String::new() };
    let w = &first.workload;
    let mut out = format!("{} per node; {}\n{}\n", count(w.gpus_per_node, "GPU"), shape(w), way(w));
    let _ = writeln!(out, "Swept: {}; what it changes above is of the first.\n", swept.parameter);
    out.push_str(&links(first));
    out.push('\n');
    let head = |name: &str| {
        std::iter::once(name.to_owned()).chain(swept.values.iter().map(usize::to_string)).collect::<Vec<_>>()
    };
    let line = |name: String, cell: &dyn Fn(&Plan) -> String| {
        std::iter::once(name).chain(plans.iter().map(cell)).collect::<Vec<_>>()
    };
    let mut rows = vec![head(&swept.parameter)];
    rows.push(line("ranks".to_owned(), &|plan| plan.workload.ranks.to_string()));
    rows.push(line("ranks of a token, U_R".to_owned(), &|plan| format!("{:.3}", plan.destinations.ranks)));
    rows.push(line("nodes of a token, U_N".to_owned(), &|plan| format!("{:.3}", plan.destinations.nodes)));
    for (at, op) in first.operations.iter().enumerate() {
        rows.push(line(format!("{} floor, µs (binds)", op.name), &|plan| {
            plan.operations.get(at).map_or_else(String::new, |op| {
                format!("{:.1} ({})", op.floor_us, op.binds.map_or("nothing", super::document::Link::name))
            })
        }));
    }
    rows.push(line("memory of each GPU".to_owned(), &|plan| memory_text(plan.memory.total_bytes)));
    rows.push(line("lint".to_owned(), &|plan| {
        if plan.refused() {
            "REFUSE".to_owned()
        } else if plan.warned() {
            "WARN".to_owned()
        } else {
            "ok".to_owned()
        }
    }));
    out.push_str(&table(&rows));
    out.push('\n');
    let mut rows = vec![head("GB/s printed: ceiling (expected)")];
    let mut ids: Vec<&str> = Vec::new();
    for (id, operation, tool) in names(plans) {
        let row = line(String::new(), &|plan| match plan.figure(id, operation) {
            Some(figure) => {
                let ceiling = figure.ceiling_gb_s.map_or_else(|| "-".to_owned(), rate);
                format!("{ceiling} ({})", range(figure.expected.as_ref()))
            }
            None => "-".to_owned(),
        });
        // Operations of one tool that read alike are one row.
        match rows.last_mut().filter(|last| ids.last() == Some(&id) && last[1..] == row[1..]) {
            Some(last) => last[0] = format!("{}, {operation}", last[0]),
            None => rows.push([&[format!("{tool} {operation}")], &row[1..]].concat()),
        }
        ids.push(id);
    }
    out.push_str(&table(&rows));
    out.push('\n');
    for (value, plan) in swept.values.iter().zip(plans) {
        for lint in plan.lints.iter().filter(|lint| lint.level != Level::Note) {
            let _ = writeln!(
                out,
                "{:<7} {} {} {value}: {}: {} ({})",
                lint.level.name(),
                lint.id,
                swept.parameter,
                lint.title,
                one_line(&lint.observed),
                lint.source
            );
        }
    }
    let _ = writeln!(out, "{}", verdict(plans.iter().flat_map(|plan| &plan.lints)));
    out
}

/// Every figure that one of the plans has: id, operation, tool.
pub(super) fn names(plans: &[Plan]) -> Vec<(&str, &str, &str)> {
    let mut names: Vec<(&str, &str, &str)> = Vec::new();
    // The plan with most figures gives the order.
    let mut order: Vec<&Plan> = plans.iter().collect();
    order.sort_by_key(|plan| std::cmp::Reverse(plan.figures.len()));
    for figure in order.into_iter().flat_map(|plan| &plan.figures) {
        let name = (figure.id.as_str(), figure.operation.as_str(), figure.tool.as_str());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
