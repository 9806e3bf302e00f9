//! Nodes and ranks that a run had and its figures lack.

use std::collections::BTreeSet;

use super::causes::MISSING;
use super::checks::wanted;
use super::evidence::{At, finding, list};
use super::model::{Kind, Section};
use super::weigh::Known;
use crate::finding::{Finding, Status};

/// Ranks that the guide's script starts on a node.
const GUIDE_RANKS: u64 = 8;

/// Nodes and ranks that have no figures.
pub(super) fn findings(known: &Known<'_>) -> Vec<Finding> {
    let run = known.run;
    if run.figures.is_empty() {
        return Vec::new();
    }
    let place = run.figures.first().map_or(&run.place, |figure| &figure.place);
    let missing = |what: String, seen: String| {
        vec![
            finding("J004")
                .about(what)
                .outcome(Status::Unknown, &MISSING)
                .saw(seen, "figures of all")
                .line(place)
                .remedy("Give the logs of all nodes and ranks; if there are none, the run lost them.", &[]),
        ]
    };
    match run.kind {
        Kind::Guide | Kind::Internode => {
            let section = if run.kind == Kind::Guide { Section::Intranode } else { Section::Internode };
            let have: BTreeSet<u64> = run
                .figures
                .iter()
                .filter(|figure| figure.section == section)
                .filter_map(|figure| figure.node.map(u64::from))
                .collect();
            if have.is_empty() {
                return Vec::new();
            }
            if let (Kind::Guide, Some(nodes), Some(ranks)) =
                (run.kind, run.settings.nodes, run.settings.ranks)
                && ranks != nodes * GUIDE_RANKS
            {
                return missing(
                    "nodes".to_owned(),
                    format!(
                        "{nodes} nodes and {ranks} GPUs: the script starts {GUIDE_RANKS} ranks on each node"
                    ),
                );
            }
            let Some(nodes) = known.settings(section).nodes else {
                return missing(
                    "nodes".to_owned(),
                    "how many nodes there were is not known (--nodes says it)".to_owned(),
                );
            };
            if run.kind == Kind::Internode {
                return of_nodes(known, nodes, &missing);
            }
            let lost: Vec<u64> = (0..nodes.min(1 << 16)).filter(|node| !have.contains(node)).collect();
            if lost.is_empty() {
                return Vec::new();
            }
            missing(
                if nodes > 1 << 16 {
                    format!("{} nodes", nodes - have.len() as u64)
                } else {
                    format!("node {}", list(&lost))
                },
                format!("no figures; {} of {nodes} nodes have some", have.len()),
            )
        }
        Kind::Intranode => of_nodes(known, 1, &missing),
        Kind::Alltoall => {
            let settings = &run.settings;
            let collective = run.versions.get("collective").is_none_or(|said| said.text == "alltoall");
            let uneven = settings
                .nodes
                .zip(settings.ranks)
                .is_some_and(|(nodes, ranks)| nodes > 0 && ranks % nodes != 0);
            match (settings.ranks_listed.or(settings.ranks), settings.ranks, settings.ranks_of_rows) {
                (Some(listed), _, Some(of_rows)) if collective && listed != of_rows => missing(
                    "ranks".to_owned(),
                    format!(
                        "the header names {listed} ranks, and sizes and counts of the rows are those of {of_rows}"
                    ),
                ),
                (Some(listed), Some(ranks), _) if listed != ranks => {
                    missing("ranks".to_owned(), format!("the header names {listed} of {ranks} ranks"))
                }
                _ if uneven => missing(
                    "ranks".to_owned(),
                    format!(
                        "{} ranks on {} nodes: some of them are not named",
                        settings.ranks.unwrap_or(0),
                        settings.nodes.unwrap_or(0)
                    ),
                ),
                _ => Vec::new(),
            }
        }
        Kind::LowLatency | Kind::V2 => {
            let Some(ranks) = known.settings(Section::LowLatency).rank_count() else {
                return missing(
                    "ranks".to_owned(),
                    "how many ranks there were is not known (--nodes and --ranks-per-node say it)".to_owned(),
                );
            };
            let mut all = Vec::new();
            let mut told: Vec<Vec<u64>> = Vec::new();
            let groups: BTreeSet<(&str, &str)> =
                run.figures.iter().map(|figure| (figure.op.as_str(), figure.dtype.as_str())).collect();
            for (op, dtype) in groups {
                let have: BTreeSet<u64> = run
                    .figures
                    .iter()
                    .filter(|figure| figure.op == op && figure.dtype == dtype)
                    .filter_map(|figure| figure.rank.map(u64::from))
                    .collect();
                let lost: Vec<u64> = (0..ranks.min(1 << 16)).filter(|rank| !have.contains(rank)).collect();
                if lost.is_empty() || told.contains(&lost) {
                    continue;
                }
                all.extend(missing(
                    if ranks > 1 << 16 {
                        format!("{} ranks", ranks - have.len() as u64)
                    } else {
                        format!("rank {}", list(&lost))
                    },
                    format!("no figures of {op}; {} of {ranks} ranks have some", have.len()),
                ));
                told.push(lost);
            }
            all
        }
        _ => Vec::new(),
    }
}

/// Each operation must have a figure of each node. Launchers count tasks, so their names are not those of nodes; their number is.
fn of_nodes(known: &Known<'_>, nodes: u64, missing: &dyn Fn(String, String) -> Vec<Finding>) -> Vec<Finding> {
    let run = known.run;
    let of = |op: &str, dtype: &str| {
        let of = run.figures.iter().filter(|figure| figure.op == op && figure.dtype == dtype);
        of.filter_map(|figure| figure.node).collect::<BTreeSet<u32>>().len() as u64
    };
    let ops: Vec<(&str, &str, u64)> =
        wanted(known).into_iter().map(|(_, op, dtype)| (op, dtype, of(op, dtype))).collect();
    let most = ops.iter().map(|(.., have)| *have).max().unwrap_or(0);
    if most < nodes {
        return missing("nodes".to_owned(), format!("figures of {most} of {nodes} nodes"));
    }
    // Parts without any figure are said elsewhere.
    ops.iter()
        .filter(|(.., have)| *have > 0 && *have < most)
        .flat_map(|(op, dtype, have)| {
            missing(format!("{op} {dtype}"), format!("figures of {have} nodes, other calls have {most}"))
        })
        .collect()
}
