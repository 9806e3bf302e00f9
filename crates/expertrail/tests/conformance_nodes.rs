//! The conformance suite with nodes joined by a network: the simulated one, by many seeds, and libfabric where it is
//! installed. Ranks are threads; those of one node share memory, the others only reach each other through a transport.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod conformance;

use std::time::Instant;

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

/// How often all cases run, each time with other networks: one for each thousand of `EXPERTRAIL_SIM_SEEDS`.
fn passes() -> u64 {
    std::env::var("EXPERTRAIL_SIM_SEEDS").map_or(1, |text| {
        let seeds: u64 = text
            .parse()
            .unwrap_or_else(|error| panic!("EXPERTRAIL_SIM_SEEDS={text}: {error}; give a number"));
        seeds.div_ceil(1000).max(1)
    })
}

#[test]
fn every_case_gives_the_oracles_bits_over_a_network_without_order() {
    let mut failures = Vec::new();
    for (seed, case) in (0..passes()).flat_map(|_| cases()).enumerate() {
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

fn library() -> Option<Library> {
    match Library::open() {
        Ok(library) => Some(library),
        Err(error) => {
            // scripts/test installs one and sets the variable: then it must be there.
            assert!(std::env::var_os(ofi::VARIABLE).is_none(), "{error}");
            println!("NOT RUN: {error}");
            None
        }
    }
}

fn options(provider: &str) -> OpenOptions {
    OpenOptions {
        provider: Provider::Named(provider.to_owned()),
        domain: (provider == "tcp").then(|| "lo".to_owned()),
        queue_depth: 64,
        arrivals: 256,
        ..OpenOptions::default()
    }
}

/// Eight nodes of eight, with few tokens: every rank has seven rail peers, and every node forwards for seven others.
fn eight_nodes() -> Case {
    Case {
        name: "eight nodes of eight",
        ranks: 64,
        ranks_per_node: 8,
        tokens: &[12, 5, 0, 9],
        hidden: 64,
        top_k: 4,
        experts: 96,
        inputs: &[conformance::Inputs::Private],
        rounds: 1,
        ..conformance::cases().swap_remove(0)
    }
}

#[test]
fn sixty_four_ranks_on_eight_nodes_give_the_oracles_bits() {
    let case = eight_nodes();
    let start = Instant::now();
    let network = Network::new(Plan::reordering(64));
    let found = run(&case, &small(2, 3), &|rank| Ok(Box::new(network.endpoint(rank as u32))));
    assert!(found.is_empty(), "{} failures:\n{}", found.len(), found.join("\n"));
    println!("64 ranks over sim: {:.1} s", start.elapsed().as_secs_f64());
    let Some(library) = library() else { return };
    let (options, start) = (options("tcp"), Instant::now());
    let found = run(&case, &small(2, 3), &|_| ofi::open_with(&library, &options));
    assert!(found.is_empty(), "{} failures:\n{}", found.len(), found.join("\n"));
    println!("64 ranks over tcp: {:.1} s", start.elapsed().as_secs_f64());
}

/// Over libfabric, between threads: the kernel's TCP. `EXPERTRAIL_LIBFABRIC` chooses the library. The shm provider is for
/// processes: between threads of one process it reads a peer's memory at the peer's own mapping, gone or not (1.17 and 2.5
/// both crashed here); `network_failures` runs it between processes.
#[test]
fn every_case_gives_the_oracles_bits_over_libfabric() {
    let Some(library) = library() else { return };
    let options = options("tcp");
    let mut failures = Vec::new();
    for case in cases().filter(is_small) {
        let found = run(&case, &small(2, 3), &|_| ofi::open_with(&library, &options));
        failures.extend(
            found
                .into_iter()
                .map(|text| format!("{} on nodes of {}: {text}", case.name, case.ranks_per_node)),
        );
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Connections and threads of the provider for every pair make cases of many ranks slow, and those of many megabytes take a
/// second each where cores are few: the simulated network has them all.
fn is_small(case: &Case) -> bool {
    let large = case.name.starts_with("large rows");
    case.ranks <= 4 && (!large || case.name == "large rows" && case.ranks_per_node == 1)
}
