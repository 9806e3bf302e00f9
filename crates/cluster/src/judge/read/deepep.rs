//! DeepEP's own tests: V1 intranode, internode and low-latency, and V2's `test_ep`.

use super::super::lines::{before, number, rate, short, whole};
use super::super::model::{Counts, Figure, Kind, Mark, Place, Said, Section};
use super::{Line, Scan};

pub(super) fn line(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text;
    if text.contains("[config] num_tokens=") {
        return config(scan, line);
    }
    if text.contains("[testing] ") {
        return testing(scan, line);
    }
    if text.contains("[tuning] Best ") {
        return best(scan, line);
    }
    if text.contains("bandwidth: ") && text.contains("[rank ") {
        return low_latency(scan, line);
    }
    if text.contains(" EP: ") && text.contains(" (SO)") {
        return elastic(scan, line);
    }
    v2_settings(scan, line)
}

/// `[config] num_tokens=4096, hidden=7168, num_topk_groups=2, num_topk=8`: groups are of the test between nodes, and no
/// more than four nodes.
fn config(scan: &mut Scan, line: &Line<'_>) -> bool {
    const MOST_GROUPS: u64 = 4;
    let text = line.text;
    let groups = whole(text, "num_topk_groups=");
    let kind = if groups.is_some() { Kind::Internode } else { Kind::Intranode };
    // Without launchers' tags a second round of the test inside a node is a second run.
    let again = kind == Kind::Intranode
        && line.origin.task.is_none()
        && line.origin.host.is_none()
        && scan.current().kind == kind
        && !scan.current().figures.is_empty();
    let run = if again { scan.another(kind, line) } else { scan.open(kind, line) };
    let settings = &mut run.settings;
    settings.tokens = whole(text, "num_tokens=");
    settings.hidden = whole(text, "hidden=");
    settings.top_k = whole(text, "num_topk=");
    settings.experts = whole(text, "num_experts=").or(settings.experts);
    settings.groups = groups;
    if kind == Kind::Intranode {
        settings.nodes = Some(1);
    } else if let Some(groups) = groups {
        if groups < MOST_GROUPS {
            settings.nodes = settings.nodes.or(Some(groups));
        } else {
            settings.nodes_at_least = Some(groups);
        }
    }
    true
}

fn testing(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text;
    let place = scan.place(line);
    let run = scan.current();
    if text.contains("Running with ") {
        run.tests.begun += text.matches("Running with ").count() as u64;
    }
    run.tests.passed += text.matches(" passed").count() as u64;
    for dtype in ["BF16", "FP8"] {
        if text.contains(&format!("Running with {dtype}")) {
            run.tests.dtypes.insert(dtype.to_lowercase());
        }
    }
    if (text.contains(" failed") || text.contains(" FAILED"))
        && run.tests.wrong.len() < super::super::model::MARKS
    {
        run.tests.wrong.push(Said { text: short(text), place });
    }
    true
}

/// `[tuning] Best dispatch (FP8): SMs 24, NVL chunk 8, RDMA chunk 16: 45 + 1196 us, 43.24 GB/s (RDMA), 141.14 GB/s (NVL)`
/// and two older spellings.
fn best(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text.split("[tuning] Best ").nth(1).unwrap_or_default();
    let Some(op @ ("dispatch" | "combine")) = text.split([' ', ':']).next() else { return false };
    let dtype = match text.split('(').nth(1).and_then(|rest| rest.split(')').next()) {
        Some("FP8") => "fp8",
        _ => "bf16",
    };
    let nvl = before(text, " GB/s (NVL)");
    let rdma = before(text, " GB/s (RDMA)");
    let Some((kind, section, counts, value)) =
        rdma.map(|rdma| (Kind::Internode, Section::Internode, Counts::Nodes, rdma)).or_else(|| {
            // With an RDMA figure that cannot be read, NVL's is no figure inside a node.
            let alone = nvl.filter(|_| !text.contains("(RDMA)"));
            alone.map(|nvl| (Kind::Intranode, Section::Intranode, Counts::Ranks, nvl))
        })
    else {
        let (kind, section) = if text.contains("RDMA") {
            (Kind::Internode, Section::Internode)
        } else {
            (Kind::Intranode, Section::Intranode)
        };
        return bad(scan, line, (kind, section, None));
    };
    let time_us = number(text, "transmit: ").or_else(|| number(text, "t: ")).or_else(|| before(text, " us"));
    let place = scan.place(line);
    let node = node(scan.open(kind, line), line, (op, dtype));
    let repeated = {
        let run = scan.current();
        kind == Kind::Intranode
            && line.origin.task.is_none()
            && run.figures.iter().any(|figure| figure.op == op && figure.dtype == dtype)
    };
    let run = if repeated { scan.another(kind, line) } else { scan.current() };
    run.figure(Figure {
        section,
        op: op.to_owned(),
        dtype: dtype.to_owned(),
        counts,
        node: if repeated { Some(0) } else { Some(node) },
        value,
        beside_gb_s: rdma.and(nvl),
        time_us,
        sms: whole(text, "SMs "),
        place,
        ..Figure::default()
    });
    true
}

/// A line of figures that cannot be taken: a unit that is not GB/s, no number, a line that is cut.
fn bad(scan: &mut Scan, line: &Line<'_>, (kind, section, rank): (Kind, Section, Option<u32>)) -> bool {
    let mark = Mark {
        section: Some(section),
        rank,
        text: format!("no figure in GB/s: {}", short(line.text)),
        place: scan.place(line),
    };
    scan.open(kind, line).mark(mark);
    true
}

/// The node of a line that local rank 0 of each node prints: its launcher's tag (one task on each node; else eight), else its turn.
fn node(run: &super::Run, line: &Line<'_>, (op, dtype): (&str, &str)) -> u32 {
    match line.origin.task {
        Some(task) => task,
        None => run.figures.iter().filter(|figure| figure.op == op && figure.dtype == dtype).count() as u32,
    }
}

/// `[rank 3] Dispatch + combine bandwidth: 60.51 GB/s, avg_t=367.92 us, ...`, then
/// `[rank 3] Dispatch bandwidth: 63.21 GB/s, avg_t=120.01 us | Combine bandwidth: 74.10 GB/s, avg_t=198.11 us`.
fn low_latency(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text;
    let Some(rank) = whole(text, "[rank ").and_then(|rank| u32::try_from(rank).ok()) else { return false };
    let place = scan.place(line);
    let mut found = Vec::new();
    for part in text.split('|') {
        for (name, op, dtype) in [
            ("Dispatch + combine bandwidth: ", "dispatch+combine", ""),
            ("Dispatch bandwidth: ", "dispatch", "fp8"),
            ("Combine bandwidth: ", "combine", "bf16"),
        ] {
            match rate(part, name) {
                Some(Ok(value)) => {
                    // A time without its unit is cut.
                    let time = number(part, "avg_t=").filter(|_| part.contains(" us"));
                    found.push((op, dtype, value, time));
                }
                Some(Err(_)) => {
                    return bad(scan, line, (Kind::LowLatency, Section::LowLatency, Some(rank)));
                }
                None => {}
            }
        }
    }
    if found.is_empty() {
        return false;
    }
    let (first, ..) = found.first().copied().unwrap_or_default();
    let again = scan.current().kind == Kind::LowLatency
        && scan.current().figures.iter().any(|figure| figure.op == first && figure.rank == Some(rank));
    let run = if again { scan.another(Kind::LowLatency, line) } else { scan.open(Kind::LowLatency, line) };
    for (op, dtype, value, time_us) in found {
        run.figure(Figure {
            section: Section::LowLatency,
            op: op.to_owned(),
            dtype: dtype.to_owned(),
            counts: Counts::Experts,
            rank: Some(rank),
            value,
            time_us,
            place: place.clone(),
            ..Figure::default()
        });
    }
    true
}

/// `* EP:   0/16 | dispatch: 90 GB/s (SO), 310 GB/s (SU), 866.000 us, 1 bytes | copy: ...`.
fn elastic(scan: &mut Scan, line: &Line<'_>) -> bool {
    /// Operations that are counted: the test has five.
    const OPS: usize = 16;
    let text = line.text;
    let Some(rank) = whole(text, " EP: ").and_then(|rank| u32::try_from(rank).ok()) else { return false };
    let ranks = text.split(" EP: ").nth(1).and_then(|rest| whole(rest, "/"));
    let part = text.split('|').nth(1).unwrap_or_default();
    let (Some(op), Some(out), Some(up)) =
        (part.split(':').next(), before(part, " GB/s (SO)"), before(part, " GB/s (SU)"))
    else {
        let section = if part.contains(" 0 GB/s (SO)") { Section::Intranode } else { Section::Internode };
        return bad(scan, line, (Kind::V2, section, Some(rank)));
    };
    let op = op.trim().replace(' ', "-");
    let place = scan.place(line);
    let dtype = if op.contains("combine") { "bf16".to_owned() } else { scan.v2_dtype.clone() };
    let run = scan.open(Kind::V2, line);
    if run.cases.lines.len() < OPS || run.cases.lines.contains_key(&op) {
        *run.cases.lines.entry(op.clone()).or_default() += 1;
    }
    run.settings.ranks = ranks.or(run.settings.ranks);
    let (section, counts, value, beside) = if out > 0.0 {
        (Section::Internode, Counts::Nodes, out, Some(up))
    } else {
        (Section::Intranode, Counts::Ranks, up, None)
    };
    // Each case of the test prints the same lines: the first of a type is the one that tables quote.
    let known = run.figures.iter().any(|figure| {
        figure.op == op && figure.dtype == dtype && figure.rank == Some(rank) && figure.section == section
    });
    if !known {
        let sms = run.versions.get("sms").and_then(|sms| sms.text.parse().ok());
        run.figure(Figure {
            section,
            op,
            dtype,
            counts,
            rank: Some(rank),
            value,
            beside_gb_s: beside,
            time_us: before(part, " us"),
            bytes: before(part, " bytes").into_iter().collect(),
            sms,
            place,
            ..Figure::default()
        });
    }
    true
}

/// V2's `Config:` block and the case that runs.
fn v2_settings(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text.trim_start();
    let Some(text) = text.strip_prefix("> ") else { return false };
    if text.starts_with("Testing with ") {
        scan.v2_dtype = match whole(text, "use_fp8_dispatch=") {
            Some(1) => "fp8".to_owned(),
            Some(_) => "bf16".to_owned(),
            None => String::new(),
        };
        let place = scan.place(line);
        let run = scan.open(Kind::V2, line);
        run.tests.begun += 1;
        run.cases.begun += 1;
        run.cases.latest = Some(place);
        return true;
    }
    if let Some(rest) = text.strip_prefix("Ranks: ") {
        let (nodes, per) = (whole(rest, ""), whole(rest, " x "));
        let settings = &mut scan.open(Kind::V2, line).settings;
        settings.nodes = nodes;
        settings.ranks_per_node = per;
        return true;
    }
    if let Some(rest) = text.strip_prefix("Experts: ") {
        let settings = &mut scan.open(Kind::V2, line).settings;
        (settings.top_k, settings.experts) = (whole(rest, ""), whole(rest, "/"));
        return true;
    }
    if text.starts_with("Tokens: ") && text.contains("hidden: ") {
        let settings = &mut scan.open(Kind::V2, line).settings;
        settings.tokens = whole(text, "max: ");
        settings.hidden = whole(text, "hidden: ");
        return true;
    }
    if let Some(sms) = text.strip_prefix("#SM: ").and_then(|rest| whole(rest, "")) {
        let place: Place = scan.place(line);
        scan.open(Kind::V2, line).versions.insert("sms".to_owned(), Said { text: sms.to_string(), place });
        return true;
    }
    false
}
