//! The conformance suite with nodes joined by a network: the simulated one, by many seeds, and libfabric where it is
//! installed. Ranks are threads; those of one node share memory, the others only reach each other through a transport.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod conformance;

use conformance::Case;
use expertrail::core::hop::Limits;
use expertrail::fabric::ofi::{self, Library, OpenOptions, Provider};
use expertrail::fabric::sim::{Network, Plan};
use expertrail::fabric::{FabricError, Transport};
use expertrail::{Crossing, Group, RailConfig, Simd};

/// Every case on every number of nodes that its ranks can be split into, from two on.
fn cases() -> impl Iterator<Item = Case> {
    conformance::cases().into_iter().flat_map(|case| {
        let ranks = case.ranks;
        (1..ranks)
            .filter(move |per| ranks.is_multiple_of(*per))
            .map(move |ranks_per_node| Case { ranks_per_node, ..case.clone() })
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
                    let crossing =
                        open(group.rank()).map(|transport| Crossing { transport, config: config.clone() });
                    conformance::run(group, case, simd, Some(crossing))
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
        let network = Network::new(Plan::reordering(seed as u64));
        let (window, outgoing) = [(1, 1), (2, 3), (8, 4)][seed % 3];
        let found = run(&case, &small(window, outgoing), &|rank| Ok(Box::new(network.endpoint(rank as u32))));
        failures.extend(found.into_iter().map(|text| {
            format!(
                "{} on nodes of {} (seed {seed}, window {window}): {text}",
                case.name, case.ranks_per_node
            )
        }));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Over libfabric, between threads: the kernel's TCP, and shared memory. `EXPERTRAIL_LIBFABRIC` chooses the library.
#[test]
fn every_case_gives_the_oracles_bits_over_libfabric() {
    let library = match Library::open() {
        Ok(library) => library,
        Err(error) => {
            // scripts/test installs one and sets the variable: then it must be there.
            assert!(std::env::var_os(ofi::VARIABLE).is_none(), "{error}");
            println!("NOT RUN: {error}");
            return;
        }
    };
    let mut failures = Vec::new();
    for provider in ["tcp", "shm"] {
        let options = OpenOptions {
            provider: Provider::Named(provider.to_owned()),
            domain: (provider == "tcp").then(|| "lo".to_owned()),
            queue_depth: 64,
            arrivals: 256,
            ..OpenOptions::default()
        };
        // Connections and threads of the provider for every pair make large cases slow; the simulated network has them all.
        for case in cases().filter(|case| case.ranks <= 4) {
            let found = run(&case, &small(2, 3), &|_| ofi::open_with(&library, &options));
            failures.extend(found.into_iter().map(|text| {
                format!("{} on nodes of {} over {provider}: {text}", case.name, case.ranks_per_node)
            }));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
