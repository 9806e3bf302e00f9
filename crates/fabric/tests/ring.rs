//! The command ring: bits, refusals, counts, threads, and that the device's half has the same fields.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use expertrail_fabric::RingMemory;
use expertrail_fabric::ring::{
    CHANNEL, Cells, Command, Consumer, EPOCH, Entry, Field, KIND, Kind, LENGTH, LENGTH_UNIT, PARITY, PEER,
    Producer, RingError, SEQUENCE, SLOT,
};
use proptest::prelude::*;

const NONE: Command =
    Command { kind: Kind::Write, channel: 0, peer: 0, sequence: 0, epoch: 0, slot: 0, length: 0 };

fn pair(entries: usize) -> (Producer<RingMemory>, Consumer<RingMemory>, Arc<RingMemory>) {
    let memory = Arc::new(RingMemory::new(entries).unwrap());
    (Producer::new(memory.clone()).unwrap(), Consumer::new(memory.clone()).unwrap(), memory)
}

/// Bit positions are counted here by hand: parity 0, kind 1 to 3, channel 4 to 6, peer 7 to 18, sequence 19 to 28, epoch 29
/// to 32; parity 0, slot 1 to 20, length 21 to 44.
#[test]
fn fields_have_their_places() {
    let cases = [
        (NONE, [1 << 1, 0]),
        (Command { kind: Kind::Stop, ..NONE }, [6 << 1, 0]),
        (Command { channel: 7, ..NONE }, [1 << 1 | 7 << 4, 0]),
        (Command { peer: 4095, ..NONE }, [1 << 1 | 0xFFF << 7, 0]),
        (Command { sequence: 1023, ..NONE }, [1 << 1 | 0x3FF << 19, 0]),
        (Command { epoch: 15, ..NONE }, [1 << 1 | 15 << 29, 0]),
        (Command { slot: 0xF_FFFF, ..NONE }, [1 << 1, 0xF_FFFF << 1]),
        (Command { length: 0xFF_FFFF, ..NONE }, [1 << 1, 0xFF_FFFF << 21]),
    ];
    for (command, halves) in cases {
        assert_eq!(command.encode(), Ok(halves), "{command:?}");
        assert_eq!(Command::decode(halves), Some(command));
        assert_eq!(Command::decode([halves[0] | 1, halves[1] | 1]), Some(command), "parity is not its part");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_pushed() {
    let (mut producer, mut consumer, _) = pair(2);
    for (field, most, command) in [
        ("channel", 7, Command { channel: 8, ..NONE }),
        ("peer", 4095, Command { peer: 4096, ..NONE }),
        ("sequence", 1023, Command { sequence: 1024, ..NONE }),
        ("epoch", 15, Command { epoch: 16, ..NONE }),
        ("slot", 0xF_FFFF, Command { slot: 0x10_0000, ..NONE }),
        ("length", 0xFF_FFFF, Command { length: 0x100_0000, ..NONE }),
    ] {
        let error = RingError::Field { field, value: most + 1, most };
        assert_eq!(producer.try_push(&command), Err(error));
    }
    assert_eq!((producer.pushed(), consumer.try_pop()), (0, Ok(None)));
}

#[test]
fn sizes_are_powers_of_two() {
    for entries in [0, 3, 6, 1000, 1 << 27] {
        assert_eq!(RingMemory::new(entries).err(), Some(RingError::Size { entries }));
    }
    pair(1);
}

#[test]
fn a_full_ring_refuses_then_takes_again_and_counts_its_stalls() {
    let (mut producer, mut consumer, _) = pair(4);
    // Three laps and a half.
    for round in 0..7u32 {
        for slot in 0..4 {
            assert_eq!(producer.try_push(&Command { slot: round * 4 + slot, ..NONE }), Ok(true));
        }
        assert_eq!(producer.try_push(&NONE), Ok(false));
        let mut looks = 0;
        let full = producer.push(&NONE, || {
            looks += 1;
            looks < 1000
        });
        assert_eq!((full, looks), (Err(RingError::Full { taken: u64::from(round) * 4 }), 1000));
        assert_eq!((producer.stalls(), producer.is_empty()), (u64::from(round) + 1, Ok(false)));
        for slot in 0..4 {
            let taken = consumer.try_pop().unwrap().unwrap();
            assert_eq!(taken.slot, round * 4 + slot);
        }
        assert_eq!((consumer.try_pop(), producer.is_empty()), (Ok(None), Ok(true)));
    }
}

#[test]
fn one_half_of_a_lap_is_no_command() {
    for (first, second) in [(0, 1), (1, 0)] {
        let (_, mut consumer, memory) = pair(1);
        let entry = &memory.entries()[0];
        let halves = [&entry.a, &entry.b];
        // Laps of parity 1, 0, 1: the other half is still of the lap before.
        for (lap, parity) in [(1u32, 1), (2, 0), (3, 1)] {
            let command = Command { peer: lap as u16, slot: lap, ..NONE };
            let encoded = command.encode().unwrap();
            halves[first].store(encoded[first] | parity, Ordering::Relaxed);
            assert_eq!(consumer.try_pop(), Ok(None));
            halves[second].store(encoded[second] | parity, Ordering::Relaxed);
            assert_eq!(consumer.try_pop(), Ok(Some(command)));
            assert_eq!(consumer.try_pop(), Ok(None));
        }
    }
}

#[test]
fn damaged_memory_is_an_error() {
    for (a, b) in [(1, 1), (1 | 1 << 1 | 1 << 33, 1), (1 | 1 << 1, 1 | 1 << 45)] {
        let (_, mut consumer, memory) = pair(2);
        memory.entries()[0].a.store(a, Ordering::Relaxed);
        memory.entries()[0].b.store(b, Ordering::Relaxed);
        assert_eq!(consumer.try_pop(), Err(RingError::Garbled { position: 0, a, b }));
        assert_eq!(consumer.taken(), 0);
    }
    let (mut producer, _, memory) = pair(1);
    assert_eq!(producer.try_push(&NONE), Ok(true));
    memory.taken().store(5, Ordering::Relaxed);
    assert_eq!(producer.try_push(&NONE), Err(RingError::Credit { taken: 5, pushed: 1 }));
}

proptest! {
    #[test]
    fn every_command_survives_the_ring(
        kind in 0..6usize, channel in 0..8u8, peer in 0..4096u16, sequence in 0..1024u16, epoch in 0..16u8,
        slot in 0..1u32 << 20, length in 0..1u32 << 24,
    ) {
        let kinds = [
            Kind::Write,
            Kind::Credit,
            Kind::Header,
            Kind::Status,
            Kind::Flush,
            Kind::Stop,
            Kind::Poison,
        ];
        let command = Command { kind: kinds[kind], channel, peer, sequence, epoch, slot, length };
        let (mut producer, mut consumer, _) = pair(1);
        for _ in 0..3 {
            prop_assert_eq!(producer.try_push(&command), Ok(true));
            prop_assert_eq!(consumer.try_pop(), Ok(Some(command)));
        }
    }

    /// Any two halves are a command or an error, and what decodes encodes to the same.
    #[test]
    fn any_halves_are_read_without_a_panic(a: u64, b: u64, small: bool) {
        let halves = if small { [a >> 31, b >> 19] } else { [a, b] };
        if let Some(command) = Command::decode(halves) {
            prop_assert_eq!(command.encode(), Ok(halves.map(|half| half & !1)));
        }
    }
}

#[test]
fn threads_lose_nothing_and_a_stopped_wait_says_so() {
    // A small ring changes threads with nearly every command, which takes long on a busy machine.
    for (entries, count) in [(1, 5_000), (2, 5_000), (64, 200_000)] {
        let (mut producer, mut consumer, _) = pair(entries);
        let proxy = std::thread::spawn(move || {
            for slot in 0..count {
                let taken = loop {
                    if let Some(command) = consumer.try_pop().unwrap() {
                        break command;
                    }
                    std::thread::yield_now();
                };
                assert_eq!((taken.slot, taken.length), (slot, !slot & 0xFF_FFFF));
            }
        });
        for slot in 0..count {
            producer.push(&Command { slot, length: !slot & 0xFF_FFFF, ..NONE }, || true).unwrap();
        }
        proxy.join().unwrap();
        assert_eq!(producer.is_empty(), Ok(true));
    }

    let (mut producer, _, _) = pair(1);
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = stop.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        stopper.store(true, Ordering::Relaxed);
    });
    producer.push(&NONE, || true).unwrap();
    let blocked = producer.push(&NONE, || !stop.load(Ordering::Relaxed));
    assert_eq!(blocked, Err(RingError::Full { taken: 0 }));
    thread.join().unwrap();
}

/// The device's constants are written by hand in its own language: they must be these.
#[test]
fn the_device_has_the_same_fields() {
    let source = include_str!("../../cuda/kernels/ring.cuh");
    let number = |name: &str| -> u64 {
        let start = format!("constexpr u32 {name} = ");
        let line = source.lines().find_map(|line| line.strip_prefix(start.as_str()));
        let line = line.unwrap_or_else(|| panic!("ring.cuh has no {name}"));
        line.split(';').next().unwrap().parse().unwrap_or_else(|_| panic!("{name} is {line}"))
    };
    let fields: [(&str, Field); 8] = [
        ("PARITY", PARITY),
        ("KIND", KIND),
        ("CHANNEL", CHANNEL),
        ("PEER", PEER),
        ("SEQUENCE", SEQUENCE),
        ("EPOCH", EPOCH),
        ("SLOT", SLOT),
        ("LENGTH", LENGTH),
    ];
    for (name, field) in fields {
        let device = [number(&format!("RING_{name}_SHIFT")), number(&format!("RING_{name}_BITS"))];
        assert_eq!(device, [u64::from(field.shift), u64::from(field.bits)], "{name}");
    }
    assert_eq!(number("RING_LENGTH_UNIT"), LENGTH_UNIT);
    assert_eq!(number("RING_ENTRY_BYTES"), size_of::<Entry>() as u64);
    let kinds = [
        ("WRITE", Kind::Write),
        ("CREDIT", Kind::Credit),
        ("HEADER", Kind::Header),
        ("STATUS", Kind::Status),
        ("FLUSH", Kind::Flush),
        ("STOP", Kind::Stop),
        ("POISON", Kind::Poison),
    ];
    for (name, kind) in kinds {
        assert_eq!(number(&format!("RING_{name}")), kind as u64, "{name}");
    }
}
