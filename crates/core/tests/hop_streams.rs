#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

//! Streams under any order of arrivals, reads and credits, and with completions that come twice, against a plain model:
//! sets of whole sequence numbers.

use std::collections::BTreeSet;

use expertrail_core::hop::immediate::low_sequence;
use expertrail_core::hop::{Receiver, Sender, StreamError};
use proptest::prelude::*;
use proptest::sample::Index;

/// What happens next, where it can; the index picks one of the messages that are on their way.
#[derive(Clone, Debug)]
enum Step {
    Send,
    Arrive(Index),
    Read(Index),
    Credit(Index),
    ArriveAgain(Index),
    CreditAgain(Index),
    NeverSent(Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<Index>;
    let step = prop_oneof![
        8 => Just(Step::Send),
        8 => index().prop_map(Step::Arrive),
        8 => index().prop_map(Step::Read),
        8 => index().prop_map(Step::Credit),
        1 => index().prop_map(Step::ArriveAgain),
        1 => index().prop_map(Step::CreditAgain),
        1 => index().prop_map(Step::NeverSent),
    ];
    prop::collection::vec(step, 0..3000)
}

fn pick(set: &BTreeSet<u64>, index: Index) -> Option<u64> {
    if set.is_empty() { None } else { set.iter().nth(index.index(set.len())).copied() }
}

/// Numbers that were seen and lie at most 512 back from `now`, so that ten bits tell them from later ones.
fn recent(seen: &BTreeSet<u64>, now: u64) -> BTreeSet<u64> {
    seen.range(now.saturating_sub(512)..).copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn streams_agree_with_sets(window in prop_oneof![1usize..5, Just(8), Just(100), Just(256)], steps in steps()) {
        let (mut sender, mut receiver) = (Sender::new(window).unwrap(), Receiver::new(window).unwrap());
        let (mut travelling, mut unread, mut credits) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut arrived, mut credited) = (BTreeSet::new(), BTreeSet::new());
        let mut sent = 0;
        // The lowest number that is not in a set.
        let floor = |set: &BTreeSet<u64>| set.iter().enumerate().find(|&(i, &seq)| i as u64 != seq)
            .map_or(set.len() as u64, |(i, _)| i as u64);
        for step in steps {
            match step {
                Step::Send => {
                    // The rule itself: q < window, or the credit of q - window has come. And so for all before q.
                    let may = sent < window as u64 || credited.contains(&(sent - window as u64));
                    prop_assert_eq!(sender.ready(), may);
                    prop_assert_eq!(sender.send(), may.then_some(sent));
                    if may {
                        travelling.insert(sent);
                        sent += 1;
                    }
                }
                Step::Arrive(index) => if let Some(seq) = pick(&travelling, index) {
                    prop_assert!(!receiver.arrived(seq));
                    prop_assert_eq!(receiver.arrive(low_sequence(seq)), Ok(seq));
                    travelling.remove(&seq);
                    arrived.insert(seq);
                    unread.insert(seq);
                },
                Step::Read(index) => if let Some(seq) = pick(&unread, index) {
                    prop_assert!(receiver.readable(seq));
                    prop_assert_eq!(receiver.consume(seq), Ok(()));
                    prop_assert_eq!(receiver.consume(seq), Err(StreamError::Consumed { seq }));
                    unread.remove(&seq);
                    credits.insert(seq);
                },
                Step::Credit(index) => if let Some(seq) = pick(&credits, index) {
                    prop_assert_eq!(sender.credit(low_sequence(seq)), Ok(seq));
                    credits.remove(&seq);
                    credited.insert(seq);
                },
                Step::ArriveAgain(index) => if let Some(seq) = pick(&recent(&arrived, receiver.low()), index) {
                    let twice = Err(StreamError::Duplicate { what: "the arrival", seq });
                    prop_assert_eq!(receiver.arrive(low_sequence(seq)), twice);
                },
                Step::CreditAgain(index) => if let Some(seq) = pick(&recent(&credited, sender.floor()), index) {
                    let twice = Err(StreamError::Duplicate { what: "the credit", seq });
                    prop_assert_eq!(sender.credit(low_sequence(seq)), twice);
                },
                Step::NeverSent(index) => {
                    // Up to 511 ahead of what can be on its way.
                    let ahead = index.index(512 - window) as u64;
                    let (low, next) = (receiver.low(), sender.next());
                    let outside = receiver.arrive(low_sequence(low + window as u64 + ahead));
                    let is_outside = |result| matches!(result, Err(StreamError::OutsideWindow { .. }));
                    prop_assert!(is_outside(outside));
                    prop_assert!(is_outside(sender.credit(low_sequence(next + ahead.min(511 - sender.in_flight())))));
                }
            }
            prop_assert_eq!((sender.next(), sender.floor()), (sent, floor(&credited)));
            prop_assert_eq!(sender.in_flight(), sent - floor(&credited));
            let read: BTreeSet<u64> = arrived.difference(&unread).copied().collect();
            prop_assert_eq!(receiver.low(), floor(&read));
        }
    }
}

/// Long enough for the ten bits to go round many times, with the widest window and always the worst order.
#[test]
fn ten_bits_go_round() {
    let (mut sender, mut receiver) = (Sender::new(256).unwrap(), Receiver::new(256).unwrap());
    for round in 0..40u64 {
        let sent: Vec<u64> = std::iter::from_fn(|| sender.send()).collect();
        assert_eq!(sent, (round * 256..(round + 1) * 256).collect::<Vec<_>>());
        for &seq in sent.iter().rev() {
            assert_eq!(receiver.arrive(low_sequence(seq)), Ok(seq));
        }
        for &seq in sent.iter().rev() {
            receiver.consume(seq).unwrap();
            assert_eq!(sender.credit(low_sequence(seq)), Ok(seq));
        }
        // A second completion of anything of the last two rounds is told from those to come.
        for &seq in &sent {
            for old in [Some(seq), seq.checked_sub(256)].into_iter().flatten() {
                let twice = |what| Err(StreamError::Duplicate { what, seq: old });
                assert_eq!(receiver.arrive(low_sequence(old)), twice("the arrival"));
                assert_eq!(sender.credit(low_sequence(old)), twice("the credit"));
            }
        }
    }
}
