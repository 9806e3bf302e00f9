//! The guide's benchmark: banner, figures of each node, figures between nodes.

use super::super::lines::{number, rate, short, whole, word};
use super::super::model::{Counts, Figure, Kind, Mark, Place, Said, Section};
use super::{Line, Run, Scan};

/// Iterations that the script times between nodes.
const ITERATIONS: f64 = 50.0;

pub(super) fn line(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text;
    let place = scan.place(line);
    if let Some(nodes) = whole(text, "DeepEP Benchmark: ").filter(|_| text.contains(" GPUs")) {
        let fresh = scan.current().kind != Kind::Guide
            || (scan.current().figures.is_empty() && scan.current().settings.ranks.is_none());
        scan.heading = None;
        let run = if fresh { scan.open(Kind::Guide, line) } else { scan.another(Kind::Guide, line) };
        if !fresh {
            // Another banner is of another machine, until it says which.
            run.gpu = None;
        }
        run.settings.nodes = Some(nodes);
        run.settings.ranks = whole(text, "nodes, ");
        if let (Some(ranks), true) = (run.settings.ranks, nodes > 0) {
            run.settings.ranks_per_node = Some(ranks.div_ceil(nodes));
        }
        return true;
    }
    if text.contains("NVSHMEM_HCA_LIST mapping:") {
        let offset = whole(text, "local_rank+");
        let run = scan.open(Kind::Guide, line);
        run.hca_offset = offset.map(|offset| (offset, place));
        return true;
    }
    if text.contains("PyTorch: ") && text.contains("NCCL: ") {
        versions(scan, text, &place);
        return true;
    }
    for (heading, section) in
        [("--- Intra-node DeepEP", Section::Intranode), ("--- Inter-node DeepEP", Section::Internode)]
    {
        if text.contains(heading) {
            let again = scan.current().kind == Kind::Guide
                && (scan.current().sections.contains_key(&section)
                    || scan.current().figures.iter().any(|figure| figure.section == section));
            let run = if again { scan.another(Kind::Guide, line) } else { scan.open(Kind::Guide, line) };
            run.sections.insert(section, place);
            scan.heading = Some(section);
            let run = scan.current();
            if text.contains("IBGDA") {
                run.settings.transport = Some("ibgda".to_owned());
            }
            return true;
        }
    }
    for (name, section) in [("INTRA ERROR:", Section::Intranode), ("INTER ERROR:", Section::Internode)] {
        if text.contains(name) {
            let rank = whole(text, "[rank ").and_then(|rank| u32::try_from(rank).ok()).or(line.origin.task);
            let run = scan.open(Kind::Guide, line);
            run.mark(Mark { section: Some(section), rank, text: short(text), place });
            return true;
        }
    }
    if text.contains("layout=") && text.contains("ms, dispatch=") {
        times(scan.open(Kind::Guide, line), text, &place);
        return true;
    }
    if text.contains("DeepEP benchmark complete.") {
        scan.open(Kind::Guide, line).ended = Some(place);
        return true;
    }
    figures(scan, line, &place)
}

fn figures(scan: &mut Scan, line: &Line<'_>, place: &Place) -> bool {
    let text = line.text;
    let Some(at) = text.find("dispatch=") else { return false };
    let (head, from) = text.split_at(at);
    if !from.contains(" GB/s") && !from.contains("combine=") {
        return false;
    }
    let head = head.trim();
    let node = whole(head, "Node ").and_then(|node| u32::try_from(node).ok());
    let (section, counts) = match (node, scan.heading) {
        // Below the heading of the part inside nodes a line must say of which node it is.
        (None, Some(Section::Intranode)) if !head.is_empty() => {
            return bad(scan, line, (Section::Intranode, place), "it does not say of which node it is");
        }
        (Some(_), _) => (Section::Intranode, Counts::OtherRanks),
        (None, _) => (Section::Internode, Counts::Nodes),
    };
    let mut values = Vec::new();
    for op in ["dispatch", "combine", "total"] {
        match rate(from, &format!("{op}=")) {
            Some(Ok(value)) => values.push((op, value)),
            Some(Err(there)) => {
                let why = format!("{op}={} is no figure in GB/s", short(there));
                return bad(scan, line, (section, place), &why);
            }
            None => return bad(scan, line, (section, place), &format!("the line has no {op}")),
        }
    }
    let again = scan.current().kind == Kind::Guide
        && scan.current().figures.iter().any(|figure| figure.section == section && figure.node == node);
    let run = if again { scan.another(Kind::Guide, line) } else { scan.open(Kind::Guide, line) };
    for (op, value) in values {
        run.figure(Figure {
            section,
            op: op.to_owned(),
            dtype: "bf16".to_owned(),
            counts,
            node,
            value,
            place: place.clone(),
            ..Figure::default()
        });
    }
    true
}

/// A line of figures that cannot be taken: its part has not run as far as the log shows.
fn bad(scan: &mut Scan, line: &Line<'_>, (section, place): (Section, &Place), why: &str) -> bool {
    let text = format!("{why}: {}", short(line.text));
    let run = scan.open(Kind::Guide, line);
    run.mark(Mark { section: Some(section), rank: None, text, place: place.clone() });
    true
}

/// `layout=5.5ms, dispatch=90.5ms, combine=99.9ms`: milliseconds of all [`ITERATIONS`] of the figures above.
fn times(run: &mut Run, text: &str, place: &Place) {
    let ms = |key: &str| {
        let rest = text.get(text.find(key)?..)?;
        number(rest, key).filter(|ms| ms.is_finite() && *ms > 0.0)
    };
    let Some(layout) = ms("layout=") else { return };
    let (Some(dispatch), Some(combine)) = (ms("dispatch="), ms("combine=")) else { return };
    for figure in run.figures.iter_mut().filter(|figure| figure.section == Section::Internode) {
        let ms = match figure.op.as_str() {
            "dispatch" => dispatch,
            "combine" => combine,
            _ => layout + dispatch + combine,
        };
        figure.time_us = Some(ms * 1000.0 / ITERATIONS);
    }
    run.layout = Some(place.clone());
}

/// `PyTorch: 2.9.0a0+145a3a7bda.nv25.10, CUDA: 13.0, NCCL: (2, 27, 7)`.
fn versions(scan: &mut Scan, text: &str, place: &Place) {
    let nccl = text.split("NCCL: ").nth(1).map(|rest| {
        rest.chars()
            .take_while(|c| *c != ')')
            .filter(|c| c.is_ascii_digit() || matches!(c, ',' | '.'))
            .map(|c| if c == ',' { '.' } else { c })
            .collect::<String>()
    });
    let found = [
        ("torch", word(text, "PyTorch: ").map(str::to_owned)),
        ("cuda", word(text, "CUDA: ").map(str::to_owned)),
        ("nccl", nccl),
    ];
    let run = scan.current();
    for (name, version) in found {
        if let Some(text) = version.filter(|version| !version.is_empty()) {
            run.versions.insert(name.to_owned(), Said { text, place: place.clone() });
        }
    }
}
