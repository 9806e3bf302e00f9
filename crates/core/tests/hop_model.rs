#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

//! Every interleaving of the protocol between nodes, walked over the real state machines with the smallest window.
//!
//! What is checked in every state that can be reached: some step is possible until all nodes have closed; no slot and no
//! region is written while it may still be read; every chunk is read exactly once; nothing arrives at a closed node, and
//! nothing but its goodbye is on its way from it; a completion that comes twice is reported. Then rules are broken on purpose, and the walk must find what goes wrong.

#[path = "hop_model/search.rs"]
mod search;
#[path = "hop_model/world.rs"]
mod world;

use expertrail_core::hop::Channel::{Combine, Dispatch};

use search::{Outcome, explore};
use world::{Admission, Credits, Eager, Reading, Rules, Violation};

/// Window 1, dispatch then combine then dispatch, as the protocol is meant.
const GOOD: Rules = Rules {
    calls: &[Dispatch, Combine, Dispatch],
    chunks: 2,
    sender_window: 1,
    receiver_window: 1,
    credits: Credits::Reserved,
    admission: Admission::AtPost,
    reading: Reading::Each,
    duplicates: 0,
    eager: Eager::Nothing,
};

fn good<const N: usize>(what: &str, rules: Rules) {
    match explore::<N>(rules) {
        Outcome::Good { states, ends } => println!("{N} nodes, {what}: {states} states, {ends} ends"),
        Outcome::Bad { violation, trace, states } => {
            panic!("{what}: {violation:?} after {states} states:\n{}", trace.join("\n"))
        }
    }
}

fn bad<const N: usize>(what: &str, rules: Rules) -> Violation {
    match explore::<N>(rules) {
        Outcome::Good { states, .. } => panic!("{what}: {states} states and nothing found"),
        Outcome::Bad { violation, trace, states } => {
            println!(
                "{N} nodes, {what}: {violation:?} in {} steps, found after {states} states",
                trace.len()
            );
            violation
        }
    }
}

#[test]
fn two_nodes() {
    good::<2>("2 chunks", GOOD);
    good::<2>(
        "2 chunks, window 2",
        Rules { sender_window: 2, receiver_window: 2, calls: &[Dispatch, Combine], ..GOOD },
    );
}

#[test]
fn three_nodes() {
    let three = Rules { eager: Eager::AllButLane, ..GOOD };
    good::<3>("2 chunks, only the lanes interleaved", three);
    let control = Rules { chunks: 1, eager: Eager::Control, ..GOOD };
    good::<3>("1 chunk, chunks interleaved", Rules { calls: &[Dispatch, Combine], ..control });
}

#[test]
fn a_completion_that_comes_twice_is_always_reported() {
    good::<2>("1 chunk, one duplicate", Rules { chunks: 1, duplicates: 1, ..GOOD });
}

/// A credit behind a chunk that itself waits for a credit: both nodes wait for each other.
#[test]
fn credits_without_a_lane_of_their_own_deadlock() {
    assert_eq!(
        bad::<2>("credits in the data lane", Rules { credits: Credits::Shared, ..GOOD }),
        Violation::Deadlock
    );
}

#[test]
fn a_sender_with_a_larger_window_overwrites() {
    let violation = bad::<2>("window off by one", Rules { sender_window: 2, ..GOOD });
    assert!(matches!(violation, Violation::Overwritten { .. }), "{violation:?}");
}

/// A reducer that needs a chunk of every node at once: then a chunk that waits in the lane for its credit may hold up the
/// very chunk that would bring it. Chunks must be admitted to the lane only when they can go, or in one global order.
#[test]
fn reading_several_streams_at_once_needs_chunks_that_never_wait_in_the_lane() {
    let joint = Rules {
        calls: &[Combine],
        reading: Reading::Joint,
        admission: Admission::AtPost,
        eager: Eager::AllButLane,
        ..GOOD
    };
    assert_eq!(bad::<3>("joint reading, any order", joint), Violation::Deadlock);
    good::<3>("joint reading, admitted when ready", Rules { admission: Admission::WhenReady, ..joint });
    good::<3>("joint reading, one order", Rules { admission: Admission::InOrder, ..joint });
}
