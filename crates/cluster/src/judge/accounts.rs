//! Figures against the bytes and times that stand beside them.
//!
//! A bandwidth is bytes by time. Where an output prints two of the three and the third follows, they must agree within 5 %; where
//! the bytes are known in bounds only (`DeepEP`'s V1 tests print neither how many copies they sent), within those; and ranks that
//! do the same must have moved the same.

use super::causes::ACCOUNTS;
use super::evidence::{At, finding};
use super::model::{Counts, Figure, Kind, Section};
use super::peers::median;
use super::weigh::Known;
use crate::finding::{Finding, Status};

/// By how much a figure may differ from what its bytes and time make: rounding, and no more.
const ROUNDING: f64 = 0.05;

/// The same for bytes that are those of other calls of the run: the times of V1's tests have a part that not all versions count in.
const CALLS: f64 = 0.15;

/// Bytes of an FP8 element with its scale: one of 4 bytes for 128 (`DeepEP` `tests/test_internode.py`).
const FP8_BYTES: f64 = 1.0 + 4.0 / 128.0;

pub(super) fn findings(known: &Known<'_>) -> Vec<Finding> {
    let found: Vec<(&Figure, String)> = match known.run.kind {
        Kind::Guide => guide(known),
        Kind::Intranode | Kind::Internode => normal(known),
        Kind::LowLatency | Kind::V2 => ranks(known),
        Kind::Alltoall => collective(known),
        Kind::Expertrail => own(known),
        _ => Vec::new(),
    };
    let mut found = found.into_iter();
    let Some((figure, first)) = found.next() else { return Vec::new() };
    let more = match found.count() {
        0 => String::new(),
        more => format!(" ({more} more like this)"),
    };
    let rank = figure.rank.map_or(String::new(), |rank| format!(", rank {rank}"));
    vec![
        finding("J024")
            .about(format!("{} {}{rank}", figure.section.label(), figure.op))
            .outcome(Status::Fail, &ACCOUNTS)
            .saw(format!("{first}{more}"), "a figure that its bytes and time make")
            .line(&figure.place)
            .remedy("Read the figure from the benchmark's own output again, whole.", &[]),
    ]
}

fn apart(value: f64, made: f64, within: f64) -> bool {
    !(made.is_finite() && value >= made * (1.0 - within) && value <= made * (1.0 + within))
}

/// The times of the guide's inter-node part: 8192 tokens of 3072 elements of BF16, to as many nodes as eight draws with replacement
/// hit, `N (1 - (1 - 1/N)^8)`.
fn guide<'a>(known: &Known<'a>) -> Vec<(&'a Figure, String)> {
    let settings = known.settings(Section::Internode);
    let (Some(nodes), Some(tokens), Some(hidden), Some(top_k)) =
        (settings.node_count(), settings.tokens, settings.hidden, settings.top_k)
    else {
        return Vec::new();
    };
    let (nodes, top_k) = (nodes as f64, i32::try_from(top_k).unwrap_or(1));
    let copies = nodes * (1.0 - (1.0 - 1.0 / nodes).powi(top_k));
    let bytes = tokens as f64 * hidden as f64 * 2.0 * copies;
    let between = known.run.figures.iter().filter(|figure| figure.section == Section::Internode);
    between
        .filter_map(|figure| {
            let time = figure.time_us.filter(|time| *time > 0.0)?;
            let calls = if figure.op == "total" { 2.0 } else { 1.0 };
            let made = calls * bytes / time / 1e3;
            apart(figure.value, made, ROUNDING).then(|| {
                let text = format!(
                    "{:.1} GB/s, and {:.1} MB in the {time:.0} us that its time makes a call are {made:.1}",
                    figure.value,
                    calls * bytes / 1e6
                );
                (figure, text)
            })
        })
        .collect()
}

/// V1's tests: figure by time is copies of a token times its bytes, at least one copy and at most one for each node (NVL: rank); and
/// NVL beside RDMA is as much more as there are more ranks than nodes to a token.
fn normal<'a>(known: &Known<'a>) -> Vec<(&'a Figure, String)> {
    let run = known.run;
    let mut all = Vec::new();
    let mut copies: Vec<(&Figure, f64)> = Vec::new();
    for figure in &run.figures {
        let settings = known.settings(figure.section);
        if let (Some(tokens), Some(hidden), Some(time)) =
            (settings.tokens, settings.hidden, figure.time_us.filter(|time| *time > 0.0))
        {
            let element = if figure.dtype == "fp8" { FP8_BYTES } else { 2.0 };
            copies.push((figure, figure.value * time * 1e3 / (tokens as f64 * hidden as f64 * element)));
        }
        let places = match figure.counts {
            Counts::Nodes => settings.node_count(),
            _ => settings.rank_count().or(settings.ranks_per_node),
        };
        let most = match (places, settings.top_k) {
            (Some(places), Some(top_k)) => places.min(top_k) as f64,
            _ => continue,
        };
        if let Some((_, sent)) = copies.last().filter(|(of, _)| std::ptr::eq(*of, figure))
            && (*sent < 1.0 - CALLS || *sent > most * (1.0 + CALLS))
        {
            all.push((
                figure,
                format!(
                    "{:.1} GB/s in {:.0} us are {sent:.2} copies of each token, and there are 1 to {most:.0}",
                    figure.value,
                    figure.time_us.unwrap_or(0.0)
                ),
            ));
        }
        if let (Some(nvl), Some(per)) = (figure.beside_gb_s, settings.ranks_per_node) {
            let ratio = nvl / figure.value;
            let all_ratios = run.figures.iter().filter_map(|other| Some(other.beside_gb_s? / other.value));
            let usual = median(&mut all_ratios.collect::<Vec<_>>()).unwrap_or(ratio);
            if ratio < 1.0 - ROUNDING || ratio > per as f64 * (1.0 + ROUNDING) || apart(ratio, usual, CALLS) {
                all.push((
                    figure,
                    format!(
                        "{:.1} GB/s to nodes beside {nvl:.1} to ranks: {ratio:.2} ranks of a node for each token, and there are 1 to {per}, {usual:.2} in the other lines",
                        figure.value
                    ),
                ));
            }
        }
    }
    let usual = median(&mut copies.iter().map(|(_, sent)| *sent).collect::<Vec<_>>());
    if let Some(usual) = usual.filter(|_| copies.len() > 2 && all.is_empty()) {
        for (figure, sent) in copies {
            if apart(sent, usual, CALLS) {
                all.push((
                    figure,
                    format!(
                        "{:.1} GB/s in {:.0} us are {sent:.2} copies of each token, and other lines have {usual:.2}",
                        figure.value,
                        figure.time_us.unwrap_or(0.0)
                    ),
                ));
            }
        }
    }
    all
}

/// Ranks of one call: bytes (figure times time) of each beside the median, by the bytes that it prints, if it does.
fn ranks<'a>(known: &Known<'a>) -> Vec<(&'a Figure, String)> {
    let mut all = Vec::new();
    let mut done: Vec<(&str, &str)> = Vec::new();
    for first in &known.run.figures {
        if done.contains(&(first.op.as_str(), first.dtype.as_str())) {
            continue;
        }
        done.push((&first.op, &first.dtype));
        let group: Vec<(&Figure, f64)> = known
            .run
            .figures
            .iter()
            .filter(|figure| (&figure.op, &figure.dtype) == (&first.op, &first.dtype))
            .filter_map(|figure| {
                let time = figure.time_us.filter(|time| *time > 0.0)?;
                Some((figure, figure.value * time / figure.bytes.first().map_or(1.0, |bytes| bytes / 1e3)))
            })
            .collect();
        let Some(usual) = median(&mut group.iter().map(|(_, moved)| *moved).collect::<Vec<_>>()) else {
            continue;
        };
        for (figure, moved) in group {
            // V2 prints whole numbers.
            let within =
                ROUNDING + if known.run.kind == Kind::V2 { 0.5 / figure.value.max(1.0) } else { 0.0 };
            let text = if apart(moved, usual, within) {
                format!(
                    "{:.1} GB/s in {:.1} us are {:.2} times the bytes of the other ranks",
                    figure.value,
                    figure.time_us.unwrap_or(0.0),
                    moved / usual
                )
            } else if let Some(up) = figure.beside_gb_s.filter(|up| *up < figure.value * (1.0 - ROUNDING)) {
                format!(
                    "{:.1} GB/s to nodes beside {up:.1} to ranks: a node has one rank of a token at least",
                    figure.value
                )
            } else {
                continue;
            };
            all.push((figure, text));
        }
    }
    all
}

/// Rows of nccl-tests: algbw is size by time, busbw `(n - 1) / n` of it.
fn collective<'a>(known: &Known<'a>) -> Vec<(&'a Figure, String)> {
    let run = known.run;
    if run.versions.get("collective").is_none_or(|said| said.text != "alltoall") {
        return Vec::new();
    }
    let ranks = run.settings.ranks_of_rows.or(run.settings.ranks).filter(|ranks| *ranks > 1);
    run.figures
        .iter()
        .filter_map(|figure| {
            // Two decimals: small ones say little.
            let alg = figure.beside_gb_s.filter(|alg| *alg > 1.0)?;
            let size: f64 = figure.details.get("size")?.parse().ok()?;
            let made = size / figure.time_us.filter(|time| *time > 0.0)? / 1e3;
            if apart(alg, made, ROUNDING) {
                return Some((
                    figure,
                    format!("algbw {alg:.2}, and {size:.0} bytes in its time are {made:.2}"),
                ));
            }
            let bus = ranks.map(|ranks| alg * (ranks as f64 - 1.0) / ranks as f64)?;
            apart(figure.value, bus, ROUNDING)
                .then(|| (figure, format!("busbw {:.2}, and algbw {alg:.2} makes {bus:.2}", figure.value)))
        })
        .collect()
}

/// Our own results have bytes of the mean rank and of the one with most, and the median time.
fn own<'a>(known: &Known<'a>) -> Vec<(&'a Figure, String)> {
    known
        .run
        .figures
        .iter()
        .filter_map(|figure| {
            let time = figure.time_us?;
            let made: Vec<f64> = figure.bytes.iter().map(|bytes| bytes / time / 1e3).collect();
            let first = made.first()?;
            made.iter().all(|made| apart(figure.value, *made, ROUNDING)).then(|| {
                (
                    figure,
                    format!("{:.1} GB/s, and its bytes in its {time:.1} us are {first:.1}", figure.value),
                )
            })
        })
        .collect()
}
