//! The command ring under loom: every interleaving, with halves that become visible in either order.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
    pub(crate) use loom::thread::{yield_now as pause, yield_now};
}

#[allow(dead_code, unreachable_pub, reason = "the crate uses the rest")]
#[path = "../src/ring.rs"]
mod ring;

use std::sync::Arc;

use loom::cell::UnsafeCell;

use atomics::{AtomicU64, Ordering, fence};
use ring::{Cells, Command, Consumer, Entry, Kind, PARITY, Producer, lap_parity};

/// The most that a test pushes.
const COMMANDS: u64 = 5;

/// A ring, and for each command the payload that it announces. Loom reports two threads at one payload. No payload is used
/// twice: the ring's credit says that commands were taken, not that what they name has left.
struct Model {
    entries: Vec<Entry>,
    taken: AtomicU64,
    payloads: Vec<UnsafeCell<u64>>,
}

// SAFETY: the payloads are what the model is about: loom stops it when two threads are at one of them.
unsafe impl Sync for Model {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Model {}

impl Model {
    fn new(entries: usize) -> Arc<Self> {
        Arc::new(Self {
            entries: (0..entries).map(|_| Entry { a: AtomicU64::new(0), b: AtomicU64::new(0) }).collect(),
            taken: AtomicU64::new(0),
            payloads: (0..COMMANDS).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn write(&self, position: u64) {
        let payload = &self.payloads[position as usize];
        // SAFETY: loom hands out the pointer only while nobody else has it.
        payload.with_mut(|payload| unsafe { *payload = 100 + position });
    }

    fn check(&self, position: u64) {
        let payload = &self.payloads[position as usize];
        // SAFETY: as above.
        assert_eq!(payload.with(|payload| unsafe { *payload }), 100 + position);
    }
}

impl Cells for Model {
    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn taken(&self) -> &AtomicU64 {
        &self.taken
    }
}

/// Different in both halves for every position, so that halves of two commands never make a third.
fn command(position: u64) -> Command {
    let n = position as u16 + 1;
    Command {
        kind: Kind::Write,
        channel: n as u8,
        peer: n,
        sequence: n,
        epoch: n as u8,
        slot: n.into(),
        length: n.into(),
    }
}

fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Takes `count` commands and compares all of them with what was pushed, with their payloads.
fn consume(model: &Arc<Model>, count: u64) {
    let mut consumer = Consumer::new(model.clone()).unwrap();
    for position in 0..count {
        let taken = loop {
            match consumer.try_pop().unwrap() {
                Some(command) => break command,
                None => loom::thread::yield_now(),
            }
        };
        assert_eq!(taken, command(position));
        model.check(position);
    }
    assert_eq!(consumer.try_pop(), Ok(None));
}

/// The ring's own producer, which blocks while the ring is full.
fn produce(model: &Arc<Model>, count: u64) {
    let mut producer = Producer::new(model.clone()).unwrap();
    for position in 0..count {
        model.write(position);
        producer.push(&command(position), || true).unwrap();
    }
    assert_eq!(producer.pushed(), count);
}

/// What a GPU does: credit by a load, a fence, and the halves in the order that `b_first` says.
fn device(model: &Model, count: u64, b_first: bool) {
    let entries = model.entries.len();
    for position in 0..count {
        while model.taken.load(Ordering::Acquire) + entries as u64 <= position {
            loom::thread::yield_now();
        }
        model.write(position);
        let [a, b] = command(position).encode().unwrap();
        let (entry, parity) = (&model.entries[position as usize % entries], lap_parity(position, entries));
        fence(Ordering::Release);
        if b_first {
            entry.b.store(b | parity, Ordering::Relaxed);
            entry.a.store(a | parity, Ordering::Relaxed);
        } else {
            entry.a.store(a | parity, Ordering::Relaxed);
            entry.b.store(b | parity, Ordering::Relaxed);
        }
    }
}

#[test]
fn commands_and_payloads_arrive_whole_over_several_laps_of_one_entry() {
    bounded(3, || {
        let model = Model::new(1);
        let other = model.clone();
        let thread = loom::thread::spawn(move || produce(&other, 3));
        consume(&model, 3);
        thread.join().unwrap();
    });
}

#[test]
fn commands_and_payloads_arrive_whole_over_a_wrap_of_two_entries() {
    // Two preemptions: three take a minute and find nothing more.
    bounded(2, || {
        let model = Model::new(2);
        let other = model.clone();
        let thread = loom::thread::spawn(move || produce(&other, 5));
        consume(&model, 5);
        thread.join().unwrap();
    });
}

#[test]
fn halves_in_either_order_make_the_same_commands() {
    for b_first in [false, true] {
        bounded(3, move || {
            let model = Model::new(2);
            let other = model.clone();
            let thread = loom::thread::spawn(move || device(&other, 4, b_first));
            consume(&model, 4);
            thread.join().unwrap();
        });
    }
}

#[test]
fn a_full_ring_blocks_its_producer_until_there_is_credit() {
    bounded(3, || {
        let model = Model::new(1);
        let mut producer = Producer::new(model.clone()).unwrap();
        model.write(0);
        assert_eq!(producer.try_push(&command(0)), Ok(true));
        assert_eq!(producer.try_push(&command(1)), Ok(false));
        let other = model.clone();
        let thread = loom::thread::spawn(move || {
            let mut consumer = Consumer::new(other.clone()).unwrap();
            assert_eq!(consumer.try_pop(), Ok(Some(command(0))));
            other.check(0);
            while consumer.try_pop().unwrap() != Some(command(1)) {
                loom::thread::yield_now();
            }
        });
        producer.push(&command(1), || true).unwrap();
        thread.join().unwrap();
        assert_eq!(producer.is_empty(), Ok(true));
    });
}

/// The model can fail: a consumer that looks at one half takes the other of an earlier lap.
fn pop_by_one_half(by_a: bool, b_first: bool) {
    loom::model(move || {
        let model = Model::new(1);
        let other = model.clone();
        let thread = loom::thread::spawn(move || device(&other, 2, b_first));
        for position in 0..2 {
            let entry = &model.entries[0];
            let half = if by_a { &entry.a } else { &entry.b };
            while half.load(Ordering::Acquire) & PARITY.most() != lap_parity(position, 1) {
                loom::thread::yield_now();
            }
            let halves = [&entry.a, &entry.b].map(|half| half.load(Ordering::Acquire));
            assert_eq!(Command::decode(halves), Some(command(position)), "torn");
            model.taken.store(position + 1, Ordering::Release);
        }
        thread.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "torn")]
fn looking_at_the_first_half_alone_tears_commands() {
    pop_by_one_half(true, false);
}

#[test]
#[should_panic(expected = "torn")]
fn looking_at_the_second_half_alone_tears_commands_written_the_other_way() {
    pop_by_one_half(false, true);
}

/// Even when the first half was written first, looking at the second alone is not enough: stores have no order.
#[test]
#[should_panic(expected = "torn")]
fn looking_at_the_second_half_alone_tears_commands_written_in_order() {
    pop_by_one_half(false, false);
}

/// The model can fail: a producer that waits for no credit writes over what was not taken.
#[test]
#[should_panic(expected = "left == right")]
fn without_credit_commands_are_lost() {
    loom::model(|| {
        let model = Model::new(1);
        let other = model.clone();
        let thread = loom::thread::spawn(move || {
            for position in 0..3 {
                let [a, b] = command(position).encode().unwrap();
                fence(Ordering::Release);
                other.entries[0].a.store(a | lap_parity(position, 1), Ordering::Relaxed);
                other.entries[0].b.store(b | lap_parity(position, 1), Ordering::Relaxed);
            }
        });
        thread.join().unwrap();
        let mut consumer = Consumer::new(model).unwrap();
        assert_eq!(consumer.try_pop().unwrap(), Some(command(0)));
    });
}

/// The model can fail: without the fence a command is seen before its payload.
#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_fence_the_payload_is_not_there() {
    loom::model(|| {
        let model = Model::new(1);
        let other = model.clone();
        let thread = loom::thread::spawn(move || {
            other.write(0);
            let [a, b] = command(0).encode().unwrap();
            other.entries[0].a.store(a | lap_parity(0, 1), Ordering::Relaxed);
            other.entries[0].b.store(b | lap_parity(0, 1), Ordering::Relaxed);
        });
        consume(&model, 1);
        thread.join().unwrap();
    });
}
