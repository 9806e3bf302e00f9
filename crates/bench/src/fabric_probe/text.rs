//! A probe as people read it in a terminal.

use std::fmt::Write;

use super::document::{FabricFile, Measured, Pair};
use crate::export::{bytes_text, rate_text};

/// A matrix of more ranks does not fit a terminal: then only its extremes are printed.
const MOST: usize = 12;

/// Offers, each rank's NIC, the matrices, and what is wrong; ends in a line feed.
pub fn to_text(file: &FabricFile) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    match &file.library {
        Some(library) => {
            let _ = writeln!(out, "{} ({})", library.name, library.path);
        }
        None => out.push_str("simulated network: ranks are threads of one process\n"),
    }
    if !file.offers.is_empty() {
        offers(&mut out, file);
    }
    let measured = &file.measured;
    out.push('\n');
    for rank in &measured.ranks {
        let _ = writeln!(
            out,
            "rank {} (node {}, rail {}, {}): {} on {} ({})",
            rank.rank, rank.node, rank.local_rank, rank.host, rank.provider, rank.domain, rank.chosen
        );
    }
    if !measured.pairs.is_empty() {
        let _ = writeln!(out, "\nhalf a round trip of 8 bytes, us, p50/p99 of {} pings", measured.pings);
        matrix(&mut out, measured, |pair| {
            let (p50, p99) = (pair.latency_p50_us?, pair.latency_p99_us?);
            Some((format!("{p50:.1}/{p99:.1}"), p50))
        });
        let _ = writeln!(
            out,
            "\nGB/s from the row's rank to the column's, {} a write, {} in flight, {} s each; {}",
            bytes_text(measured.message_bytes),
            measured.window,
            measured.seconds,
            match measured.pairs_at_once {
                1 => "one pair after the other".to_owned(),
                pairs => format!("{pairs} pairs at once"),
            }
        );
        matrix(&mut out, measured, |pair| Some((rate_text(pair.gbps?), pair.gbps?)));
    }
    out.push('\n');
    if file.findings.is_empty() {
        out.push_str("every pair reaches the other, none is slow\n");
    }
    for finding in &file.findings {
        let _ = writeln!(out, "{finding}");
    }
    out
}

fn offers(out: &mut String, file: &FabricFile) {
    let dash = || "-".to_owned();
    let header = ["name", "domain", "fabric", "address", "Gb/s", "PCI", "NUMA", "usable"].map(str::to_owned);
    let mut rows = vec![header];
    for offer in &file.offers {
        rows.push([
            offer.name.clone(),
            offer.domain.clone(),
            offer.fabric.clone(),
            offer.address.clone().unwrap_or_else(dash),
            offer.link_gbits.map_or_else(dash, |gbits| format!("{gbits:.0}")),
            offer.pci.clone().unwrap_or_else(dash),
            offer.numa_node.map_or_else(dash, |node| node.to_string()),
            match (&offer.lacks, offer.local_only) {
                (Some(lacks), _) => format!("no: {lacks}"),
                (None, true) => "on this machine".to_owned(),
                (None, false) => "yes".to_owned(),
            },
        ]);
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
}

fn matrix(out: &mut String, measured: &Measured, cell: impl Fn(&Pair) -> Option<(String, f64)>) {
    let ranks = measured.ranks.len();
    if ranks > MOST {
        let mut all: Vec<(f64, &Pair)> =
            measured.pairs.iter().filter_map(|pair| Some((cell(pair)?.1, pair))).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let show = |(value, pair): &(f64, &Pair)| format!("{value:.2} (rank {} to {})", pair.from, pair.to);
        if let (Some(least), Some(most)) = (all.first(), all.last()) {
            let middle = &all[all.len() / 2];
            let (least, middle, most) = (show(least), show(middle), show(most));
            let _ = writeln!(out, "  least {least}, median {middle}, most {most}; all in --json and --html");
        }
        return;
    }
    let texts: Vec<String> = measured
        .pairs
        .iter()
        .map(|pair| cell(pair).map_or_else(|| "none".to_owned(), |(text, _)| text))
        .collect();
    let width = texts.iter().map(String::len).max().unwrap_or(4).max(4);
    let _ = writeln!(
        out,
        "      {}",
        (0..ranks).map(|to| format!("{to:>width$}")).collect::<Vec<_>>().join("  ")
    );
    let mut next = texts.iter();
    for from in 0..ranks {
        let row: Vec<String> = (0..ranks)
            .map(|to| {
                let text = if to == from { "-" } else { next.next().map_or("", String::as_str) };
                format!("{text:>width$}")
            })
            .collect();
        let _ = writeln!(out, "  {from:>2}  {}", row.join("  "));
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::file;
    use super::*;

    #[test]
    fn offers_ranks_matrices_and_findings_are_there() {
        let text = to_text(&file());
        for part in [
            "libfabric 1.17 (/lib/libfabric.so.1)\n",
            "0000:36:00.0  0     no: nothing <really>\n",
            "rank 3 (node 1, rail 1, host-1): verbs;ofi_rxm on mlx5_1 (in turn, 1 of 2 equal ones)\n",
            "   0        -  2.0/3.0  2.0/3.0     none\n",
            "   1  40.00      -  40.00   1.00\n",
            "one pair after the other",
            "unreachable: rank 0",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn many_ranks_are_summed_up() {
        let mut many = file();
        let rank = many.measured.ranks[0].clone();
        many.measured.ranks.resize(13, rank);
        let text = to_text(&many);
        assert!(text.contains("least 1.00 (rank 1 to 3), median 40.00"), "{text}");
    }
}
