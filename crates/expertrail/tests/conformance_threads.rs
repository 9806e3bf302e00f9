//! The conformance suite with ranks as threads, under every instruction set of this CPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod conformance;

use expertrail::{Group, Simd};

#[test]
fn every_case_gives_the_oracles_bits() {
    let failures: Vec<String> = Simd::available().flat_map(run_all).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn run_all(simd: Simd) -> Vec<String> {
    let mut failures = Vec::new();
    for case in conformance::cases() {
        let groups = Group::local_threads(case.ranks).expect("groups");
        std::thread::scope(|scope| {
            let ranks: Vec<_> = groups
                .iter()
                .map(|group| scope.spawn(|| conformance::run(group, &case, simd, None)))
                .collect();
            failures.extend(ranks.into_iter().filter_map(|rank| rank.join().expect("no panic").err()));
        });
    }
    failures
}
