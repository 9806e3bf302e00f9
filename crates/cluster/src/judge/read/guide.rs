//! The guide's benchmark: banner, figures of each node, figures between nodes.

use super::super::lines::{number, short, whole, word};
use super::super::model::{Counts, Figure, Kind, Mark, Place, Said, Section};
use super::{Line, Scan};

pub(super) fn line(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text;
    let place = scan.place(line);
    if let Some(nodes) = whole(text, "DeepEP Benchmark: ").filter(|_| text.contains(" GPUs")) {
        let fresh = scan.current().kind != Kind::Guide
            || (scan.current().figures.is_empty() && scan.current().settings.ranks.is_none());
        let run = if fresh { scan.open(Kind::Guide, line) } else { scan.another(Kind::Guide, line) };
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
        scan.open(Kind::Guide, line).layout = Some(place);
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
    let Some(from) = text.find("dispatch=").and_then(|at| text.get(at..)) else { return false };
    let (Some(dispatch), Some(combine), Some(total)) =
        (number(from, "dispatch="), number(from, "combine="), number(from, "total="))
    else {
        return false;
    };
    if !from.contains(" GB/s") {
        return false;
    }
    let node = whole(text, "Node ").and_then(|node| u32::try_from(node).ok());
    let (section, counts) = match node {
        Some(_) => (Section::Intranode, Counts::OtherRanks),
        None => (Section::Internode, Counts::Nodes),
    };
    let again = scan.current().kind == Kind::Guide
        && scan.current().figures.iter().any(|figure| figure.section == section && figure.node == node);
    let run = if again { scan.another(Kind::Guide, line) } else { scan.open(Kind::Guide, line) };
    for (op, value) in [("dispatch", dispatch), ("combine", combine), ("total", total)] {
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
