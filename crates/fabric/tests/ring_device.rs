//! The device's half of the command ring, `ring.cuh` itself, compiled for this CPU and pushing to the host's half. What a GPU
//! alone can show (its stores crossing the bus) is not shown here.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::Command as Process;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use expertrail_fabric::RingMemory;
use expertrail_fabric::ring::{Cells, Command, Consumer, Entry, Kind};
use libloading::Library;

/// `RingProducer` of `ring.cuh`.
#[repr(C)]
#[derive(Debug)]
struct Producer {
    entries: *const Entry,
    taken: *const u64,
    capacity: u64,
    pushed: u64,
    credit: u64,
    stalls: u64,
}

/// `Command` of `ring.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Pushed {
    fields: [u32; 7],
}

type Push = unsafe extern "C" fn(*mut Producer, *const Pushed, u64) -> u32;

const PUSHED: u32 = 0;
const GIVEN_UP: u32 = 1;
const MISFIT: u32 = 2;
const DAMAGED: u32 = 3;

struct Device {
    library: Library,
    _folder: tempfile::TempDir,
}

impl Device {
    /// `None`, with a line that says so, without a C++ compiler.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            // Beside its stand-in: a quoted include looks there first.
            ("ring.cuh", include_str!("../../cuda/kernels/ring.cuh")),
            ("ptx.cuh", include_str!("device/ptx.cuh")),
            ("push.cpp", include_str!("device/push.cpp")),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let library: PathBuf = folder.path().join("libring.so");
        let flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"];
        let source = folder.path().join("push.cpp");
        match Process::new("c++").args(flags).args([&library, &source]).output() {
            Err(error) => {
                println!("NOT RUN: c++: {error}");
                return None;
            }
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        }
        // SAFETY: our own library, which runs nothing when it is loaded.
        let library = unsafe { Library::new(&library) }.unwrap();
        Some(Self { library, _folder: folder })
    }

    fn sizes(&self) -> u64 {
        // SAFETY: the type is that in push.cpp.
        let sizes = unsafe { self.library.get::<unsafe extern "C" fn() -> u64>("sizes") }.unwrap();
        // SAFETY: it computes a number.
        unsafe { sizes() }
    }

    fn push(&self, ring: &mut Producer, fields: [u32; 7], looks: u64) -> u32 {
        // SAFETY: the type is that in push.cpp.
        let push = unsafe { self.library.get::<Push>("push") }.unwrap();
        // SAFETY: both structures have the layout of their C++ selves (their sizes are compared by a test), and the ring's
        // memory outlives the call: every test holds it.
        unsafe { push(ring, &Pushed { fields }, looks) }
    }
}

fn ring(entries: usize) -> (Producer, Consumer<RingMemory>, Arc<RingMemory>) {
    let memory = Arc::new(RingMemory::new(entries).unwrap());
    let producer = Producer {
        entries: memory.entries().as_ptr(),
        taken: memory.taken().as_ptr(),
        capacity: entries as u64,
        pushed: 0,
        credit: 0,
        stalls: 0,
    };
    (producer, Consumer::new(memory.clone()).unwrap(), memory)
}

/// The fields of command `n`, over their whole ranges, as the device and as the host have them.
fn command(n: u32) -> ([u32; 7], Command) {
    let kinds =
        [Kind::Write, Kind::Credit, Kind::Header, Kind::Status, Kind::Flush, Kind::Stop, Kind::Poison];
    let spread = |odd: u32, bits: u32| n.wrapping_mul(odd) >> (32 - bits);
    let fields = [
        1 + n % 6,
        spread(0x9E37_79B1, 3),
        spread(0x85EB_CA77, 12),
        spread(0xC2B2_AE3D, 10),
        spread(0x27D4_EB2F, 4),
        spread(0x1656_67B1, 20),
        spread(0xD6E8_FEB9, 24),
    ];
    let [_, channel, peer, sequence, epoch, slot, length] = fields;
    let host = Command {
        kind: kinds[n as usize % 6],
        channel: channel as u8,
        peer: peer as u16,
        sequence: sequence as u16,
        epoch: epoch as u8,
        slot,
        length,
    };
    (fields, host)
}

#[test]
fn the_structures_have_the_same_sizes() {
    let Some(device) = Device::new() else { return };
    let sizes = size_of::<Producer>() << 32 | size_of::<Pushed>() << 16 | size_of::<Entry>();
    assert_eq!(device.sizes(), sizes as u64);
}

#[test]
fn what_the_device_pushes_is_what_the_host_takes() {
    let Some(device) = Device::new() else { return };
    for entries in [1, 4, 64] {
        let (mut producer, mut consumer, _memory) = ring(entries);
        for n in 0..1000 {
            let (fields, host) = command(n);
            assert_eq!(device.push(&mut producer, fields, 0), PUSHED);
            assert_eq!(consumer.try_pop(), Ok(Some(host)), "{n}");
            assert_eq!(consumer.try_pop(), Ok(None));
        }
        assert_eq!((producer.pushed, producer.stalls), (1000, 0));
    }
}

#[test]
fn a_full_ring_holds_the_device_and_nothing_is_dropped() {
    let Some(device) = Device::new() else { return };
    let (mut producer, mut consumer, _memory) = ring(2);
    let push = |producer: &mut Producer, n| device.push(producer, command(n).0, 10);
    assert_eq!(
        [push(&mut producer, 0), push(&mut producer, 1), push(&mut producer, 2)],
        [PUSHED, PUSHED, GIVEN_UP]
    );
    assert_eq!((producer.pushed, producer.stalls), (2, 1));
    assert_eq!(consumer.try_pop(), Ok(Some(command(0).1)));
    assert_eq!(push(&mut producer, 2), PUSHED);
    assert_eq!(consumer.try_pop(), Ok(Some(command(1).1)));
    assert_eq!(consumer.try_pop(), Ok(Some(command(2).1)));
    assert_eq!((consumer.try_pop(), producer.stalls), (Ok(None), 1));
}

#[test]
fn the_device_refuses_what_does_not_fit_and_a_damaged_credit() {
    let Some(device) = Device::new() else { return };
    let (mut producer, mut consumer, memory) = ring(1);
    for (field, bits) in [3, 3, 12, 10, 4, 20, 24].into_iter().enumerate() {
        let mut fields = command(0).0;
        fields[field] = 1 << bits;
        assert_eq!(device.push(&mut producer, fields, 0), MISFIT, "field {field}");
    }
    assert_eq!((producer.pushed, consumer.try_pop()), (0, Ok(None)));
    assert_eq!(device.push(&mut producer, command(0).0, 0), PUSHED);
    memory.taken().store(9, Ordering::Relaxed);
    assert_eq!(device.push(&mut producer, command(1).0, 0), DAMAGED);
}

#[test]
fn a_device_thread_and_a_proxy_thread_lose_nothing() {
    let Some(device) = Device::new() else { return };
    for (entries, count) in [(1, 5_000), (32, 50_000)] {
        let (mut producer, mut consumer, _memory) = ring(entries);
        let proxy = std::thread::spawn(move || {
            for n in 0..count {
                let taken = loop {
                    match consumer.try_pop().unwrap() {
                        Some(command) => break command,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(taken, command(n).1, "{n}");
            }
        });
        for n in 0..count {
            // Ten looks, then the thread gives way: there may be one core for both. The test must not hang on a dead proxy.
            loop {
                match device.push(&mut producer, command(n).0, if proxy.is_finished() { 0 } else { 10 }) {
                    PUSHED => break,
                    GIVEN_UP => assert!(!proxy.is_finished(), "the proxy has failed"),
                    other => panic!("{n}: {other}"),
                }
                std::thread::yield_now();
            }
        }
        proxy.join().unwrap();
        assert_eq!(producer.pushed, u64::from(count));
    }
}
