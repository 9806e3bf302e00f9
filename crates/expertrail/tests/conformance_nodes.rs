//! The conformance suite with nodes joined by a network: the simulated one, by many seeds, and libfabric where it is
//! installed. Ranks are threads; those of one node share memory, the others only reach each other through a transport.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod conformance;

use conformance::Case;
use expertrail::core::hop::Limits;
use expertrail::fabric::sim::{Network, Plan};
use expertrail::fabric::{FabricError, Transport};
use expertrail::{Crossing, Group, RailConfig, Simd};

/// Every case on every number of nodes that its ranks can be split into, from two on.
fn cases() -> impl Iterator<Item = Case> {
    conformance::cases().into_iter().flat_map(|case| {
        let ranks = case.ranks;
        (1..ranks).filter(move |per| ranks.is_multiple_of(*per)).map(move |ranks_per_node| Case {
            ranks_per_node,
            ..case.clone()
        })
    })
}

/// Chunks of a few tokens and a window of `window`, so that small cases fill many chunks.
fn small(window: usize, outgoing: usize) -> RailConfig {
    let limits = Limits { chunk_bytes: 4096, window, small_chunks: true };
    RailConfig { limits, outgoing, ..RailConfig::default() }
}

/// Runs `case` with ranks as threads; `open` gives each rank its endpoint.
fn run(
    case: &Case,
    config: &RailConfig,
    open: &(dyn Fn(usize) -> Result<Box<dyn Transport>, FabricError> + Sync),
) -> Vec<String> {
    let simd = Simd::available().last().unwrap();
    let groups = Group::local_threads(case.ranks).expect("groups");
    std::thread::scope(|scope| {
        let ranks: Vec<_> = groups
            .iter()
            .map(|group| {
                scope.spawn(|| {
                    let crossing = open(group.rank())
                        .map(|transport| Crossing { transport, config: config.clone() });
                    conformance::run_over(group, case, simd, Some(crossing))
                })
            })
            .collect();
        ranks.into_iter().filter_map(|rank| rank.join().expect("no panic").err()).collect()
    })
}

#[test]
fn every_case_gives_the_oracles_bits_over_a_network_without_order() {
    let mut failures = Vec::new();
    for (seed, case) in cases().enumerate() {
        eprintln!("{} {} {}", case.name, case.ranks, case.ranks_per_node);
        let network = Network::new(Plan::reordering(seed as u64));
        let (window, outgoing) = [(1, 1), (2, 3), (8, 4)][seed % 3];
        let found = run(&case, &small(window, outgoing), &|rank| Ok(Box::new(network.endpoint(rank as u32))));
        for f in &found { eprintln!("{f}"); }
        failures.extend(found.into_iter().map(|text| {
            format!("{} on nodes of {} (seed {seed}, window {window}): {text}", case.name, case.ranks_per_node)
        }));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
