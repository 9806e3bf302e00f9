//! The conformance suite over the simulated fabric, and proof that it can fail.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

mod suite;

use expertrail_fabric::Transport;
use expertrail_fabric::sim::{Network, Plan};
use suite::{Rule, conforms, slots};

const ENDS: u32 = 4;

fn ends(network: &Network) -> Vec<Box<dyn Transport>> {
    (0..ENDS).map(|node| Box::new(network.endpoint(node)) as Box<dyn Transport>).collect()
}

fn run_slots(plan: Plan, rule: Rule) -> Result<(), String> {
    slots(ends(&Network::new(plan)), rule)
}

/// How many schedules: `EXPERTRAIL_SIM_SEEDS`, or 1,000.
fn seeds() -> u64 {
    std::env::var("EXPERTRAIL_SIM_SEEDS").map_or(1000, |text| {
        text.parse().unwrap_or_else(|error| panic!("EXPERTRAIL_SIM_SEEDS={text}: {error}; give a number"))
    })
}

#[test]
fn an_ordered_network_conforms() {
    conforms(&mut || ends(&Network::new(Plan::ordered()))).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn every_reordering_network_conforms() {
    let mut busy = 0;
    for seed in 0..seeds() {
        let mut networks = Vec::new();
        let result = conforms(&mut || {
            let network = Network::new(Plan::reordering(seed));
            networks.push(network.clone());
            ends(&network)
        });
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        busy += networks.iter().map(|network| network.counts().busy).sum::<u64>();
    }
    assert!(busy > seeds(), "queues were full: {busy} times");
}

/// Seeds of the first 200 that `rule` fails with under a change of the reordering plan, and what it said.
fn failures(rule: Rule, change: impl Fn(&mut Plan)) -> Vec<String> {
    let run = |seed| {
        let mut plan = Plan::reordering(seed);
        change(&mut plan);
        run_slots(plan, rule).err()
    };
    (0..200).filter_map(run).collect()
}

#[test]
fn a_protocol_that_leans_on_order_fails_and_an_ordered_network_hides_it() {
    assert_eq!(run_slots(Plan::ordered(), Rule::Order), Ok(()));
    let failures = failures(Rule::Order, |_| ());
    println!("{} of 200 schedules show it", failures.len());
    assert!(failures.len() > 100, "{}", failures.len());
    assert!(failures.iter().all(|error| error.contains("before it was there")), "{failures:?}");
}

#[test]
fn completions_before_their_payload_are_noticed() {
    let failures = failures(Rule::Counts, |plan| plan.early_completion = true);
    assert!(failures.len() > 100, "{}", failures.len());
    assert!(failures.iter().all(|error| error.contains("before it was there")), "{failures:?}");
}

#[test]
fn duplicated_completions_are_noticed() {
    let failures = failures(Rule::Counts, |plan| plan.duplicate = 20);
    assert!(failures.len() > 100, "{}", failures.len());
    assert!(failures.iter().all(|error| error.contains("came twice")), "{failures:?}");
}

/// The suite itself can fail, in each of its parts that look at what arrives.
#[test]
fn networks_that_break_their_promises_do_not_conform() {
    let broken = |change: fn(&mut Plan)| {
        let run = |seed| {
            let mut plan = Plan::reordering(seed);
            change(&mut plan);
            conforms(&mut || ends(&Network::new(plan.clone()))).err()
        };
        (0..50).filter_map(run).count()
    };
    assert_eq!(broken(|plan| plan.duplicate = 300), 50);
    assert!(broken(|plan| plan.early_completion = true) > 40);
}
