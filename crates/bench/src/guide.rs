//! The text of the Kubernetes guide's benchmark script: same lines, same formulas.
//!
//! What it counts differs from the rest of this crate, so it is kept apart:
//! - **intra-node**: a token counts once for each rank of its node that it goes to, its own rank **excluded**;
//! - **inter-node**: a token counts once for each node that it goes to, its own node **included**;
//! - dispatch and combine rates are counted bytes over summed time; the total is twice the bytes over
//!   dispatch + combine (intra) or layout + dispatch + combine (inter).
//!
//! Numbers are of one rank (local rank 0 of each node, global rank 0), not a maximum over ranks.

use std::fmt::Write;

use expertrail_core::{Placement, Routing, Topology};

/// The line that the script prints around its banner.
const RULE: &str = "======================================================================";

/// What the banner says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Banner {
    /// Nodes of the run.
    pub nodes: usize,
    /// Ranks of the run.
    pub ranks: usize,
    /// What a rank is: `GPUs`, or `ranks` on the CPU backend.
    pub unit: &'static str,
    /// What the `Driver:` line says. The script prints the GPU's product name there, not a driver; the CPU
    /// backend gives its own name and the CPU's.
    pub driver: String,
    /// More lines, such as versions loaded.
    pub details: Vec<String>,
}

/// Sums over the timed iterations of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Tokens counted, over all iterations: see [`intra_tokens`] and [`inter_tokens`].
    pub tokens: u64,
    /// Bytes of one token. The script moves BF16: twice the hidden size.
    pub bytes_per_token: u64,
    /// Time to make the layout (the plan), milliseconds.
    pub layout_ms: f64,
    /// Time of dispatch, milliseconds.
    pub dispatch_ms: f64,
    /// Time of combine, milliseconds.
    pub combine_ms: f64,
}

/// Rates in GB/s (1e9 bytes per second).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Of dispatch.
    pub dispatch: f64,
    /// Of combine.
    pub combine: f64,
    /// Of both.
    pub total: f64,
}

impl Sums {
    /// The rates of an intra-node run: the layout's time does not count.
    pub fn intra_rates(&self) -> Rates {
        self.rates(self.dispatch_ms + self.combine_ms)
    }

    /// The rates of an inter-node run: the layout's time counts in the total.
    pub fn inter_rates(&self) -> Rates {
        self.rates(self.layout_ms + self.dispatch_ms + self.combine_ms)
    }

    fn rates(&self, total_ms: f64) -> Rates {
        let bytes = self.tokens as f64 * self.bytes_per_token as f64;
        let gbps = |bytes: f64, ms: f64| if ms > 0.0 { bytes / (ms / 1e3) / 1e9 } else { 0.0 };
        Rates {
            dispatch: gbps(bytes, self.dispatch_ms),
            combine: gbps(bytes, self.combine_ms),
            total: gbps(2.0 * bytes, total_ms),
        }
    }
}

/// Tokens that the script counts in an intra-node call: pairs of token and destination rank, own rank left
/// out. `placement` spreads the experts over the ranks of one node; `rank` is the rank's index there.
pub fn intra_tokens(routing: &Routing, placement: &Placement, rank: usize) -> u64 {
    count_destinations(routing, placement.ranks(), |expert| {
        let destination = placement.rank_of(expert);
        (destination != rank).then_some(destination)
    })
}

/// Tokens that the script counts in an inter-node call: pairs of token and destination node, own node
/// included. `placement` spreads the experts over all ranks.
pub fn inter_tokens(routing: &Routing, placement: &Placement, topology: &Topology) -> u64 {
    count_destinations(routing, topology.nodes(), |expert| Some(topology.node_of(placement.rank_of(expert))))
}

/// Distinct destinations of each token, summed.
fn count_destinations(routing: &Routing, places: usize, of: impl Fn(usize) -> Option<usize>) -> u64 {
    // The last token that went to each place, plus one; so nothing is cleared between tokens.
    let mut last = vec![0usize; places];
    let mut pairs = 0;
    for token in 0..routing.tokens() {
        for &expert in routing.row(token).iter().filter(|&&expert| expert >= 0) {
            if let Some(slot) = of(expert as usize).and_then(|place| last.get_mut(place)) {
                pairs += u64::from(*slot != token + 1);
                *slot = token + 1;
            }
        }
    }
    pairs
}

/// The banner.
pub fn banner(banner: &Banner) -> String {
    let Banner { nodes, ranks, unit, driver, details } = banner;
    let mut out = format!("{RULE}\nExpertrail Benchmark: {nodes} nodes, {ranks} {unit}\nDriver: {driver}\n");
    for line in details {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "{RULE}");
    out
}

/// The intra-node section: `link` names what carries the data (`NVLink`, `shared memory`), `nodes` holds the
/// sums of local rank 0 of each node.
pub fn intra_section(link: &str, nodes: &[Sums]) -> String {
    let mut out = format!("\n--- Intra-node Expertrail ({link}) ---\n");
    for (node, sums) in nodes.iter().enumerate() {
        let _ = writeln!(out, "  Node {node}: {}", rates_text(sums.intra_rates()));
    }
    out
}

/// The inter-node section, of global rank 0.
pub fn inter_section(link: &str, sums: &Sums) -> String {
    format!(
        "\n--- Inter-node Expertrail ({link}) ---\n  {}\n  layout={:.1}ms, dispatch={:.1}ms, combine={:.1}ms\n",
        rates_text(sums.inter_rates()),
        sums.layout_ms,
        sums.dispatch_ms,
        sums.combine_ms
    )
}

/// The line of a section that failed. The script goes on after it, so its exit code alone is no verdict;
/// this program's is.
pub fn error_line(intra: bool, rank: usize, message: &str) -> String {
    format!("  [rank {rank}] {} ERROR: {message}\n", if intra { "INTRA" } else { "INTER" })
}

/// The closing lines.
pub fn closing() -> String {
    format!("\n{RULE}\nExpertrail benchmark complete.\n")
}

fn rates_text(rates: Rates) -> String {
    let Rates { dispatch, combine, total } = rates;
    format!("dispatch={dispatch:.1} GB/s, combine={combine:.1} GB/s, total={total:.1} GB/s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::RoutingSpec;

    #[test]
    fn totals_follow_from_the_guides_own_rates() {
        // The guide's B200 run prints 276.9 / 245.1 / 260.0: the total is the harmonic mean of the two.
        let bytes = 1e9 * 276.9;
        let sums = Sums {
            tokens: 1_000_000,
            bytes_per_token: (bytes / 1e6) as u64,
            layout_ms: 500.0,
            dispatch_ms: 1000.0,
            combine_ms: 1000.0 * 276.9 / 245.1,
        };
        let text = intra_section("NVLink", &[sums]);
        assert_eq!(
            text,
            "\n--- Intra-node Expertrail (NVLink) ---\n  Node 0: dispatch=276.9 GB/s, combine=245.1 GB/s, total=260.0 GB/s\n"
        );
    }

    #[test]
    fn the_layout_counts_across_nodes_only() {
        let sums = Sums {
            tokens: 1000,
            bytes_per_token: 1_000_000,
            layout_ms: 1.0,
            dispatch_ms: 9.0,
            combine_ms: 10.0,
        };
        assert!((sums.inter_rates().total - 100.0).abs() < 1e-9);
        assert!((sums.intra_rates().total - 2000.0 / 19.0).abs() < 1e-9);
        assert_eq!(
            inter_section("tcp", &sums),
            "\n--- Inter-node Expertrail (tcp) ---\n  dispatch=111.1 GB/s, combine=100.0 GB/s, total=100.0 GB/s\n  \
             layout=1.0ms, dispatch=9.0ms, combine=10.0ms\n"
        );
        assert_eq!(Sums::default().inter_rates(), Rates { dispatch: 0.0, combine: 0.0, total: 0.0 });
    }

    #[test]
    fn the_banner_keeps_its_shape() {
        let text = banner(&Banner {
            nodes: 2,
            ranks: 8,
            unit: "ranks",
            driver: "CPU backend (avx512), AMD EPYC".to_owned(),
            details: vec!["Expertrail: 0.1.0, kernel 6.1.0".to_owned()],
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0].len(), lines[0]), (70, lines[4]));
        assert_eq!(lines[1], "Expertrail Benchmark: 2 nodes, 8 ranks");
        assert_eq!(lines[2], "Driver: CPU backend (avx512), AMD EPYC");
        assert!(closing().ends_with("Expertrail benchmark complete.\n"));
        assert_eq!(error_line(true, 3, "x"), "  [rank 3] INTRA ERROR: x\n");
    }

    #[test]
    fn own_rank_is_out_and_own_node_is_in() {
        // Experts 0..4 on ranks 0..4, two ranks per node.
        let placement = Placement::new(4, 4).unwrap();
        let topology = Topology::new(4, 2).unwrap();
        let routing = Routing::new(vec![0, 0, 1, -1, 2, 3, 3, 1], 2, 4).unwrap();
        assert_eq!(intra_tokens(&routing, &placement, 0), 5);
        assert_eq!(intra_tokens(&routing, &placement, 3), 4);
        assert_eq!(inter_tokens(&routing, &placement, &topology), 5);
    }

    #[test]
    fn the_guides_shapes_give_its_byte_counts() {
        // Inter: 8192 tokens, top-8 of 128 with replacement, 2 nodes: 2 * (1 - 2^-8) nodes per token.
        let draw = |top_k, tokens| {
            let spec = RoutingSpec { with_replacement: true, ..RoutingSpec::uniform(top_k, 128, 11) };
            spec.routing(tokens, 0, 0).unwrap()
        };
        let placement = Placement::new(128, 16).unwrap();
        let nodes = inter_tokens(&draw(8, 8192), &placement, &Topology::new(16, 8).unwrap()) as f64 / 8192.0;
        assert!((nodes - 1.9922).abs() < 0.01, "{nodes}");
        // Intra: 65,536 tokens, top-16 of 128, 8 ranks: 7 * (1 - (7/8)^16) other ranks per token.
        let node = Placement::new(128, 8).unwrap();
        let ranks = intra_tokens(&draw(16, 65_536), &node, 0) as f64 / 65_536.0;
        assert!((ranks - 6.1735).abs() < 0.02, "{ranks}");
    }
}
