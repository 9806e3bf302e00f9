//! The transport over libfabric: between threads and between processes, over tcp and shm.
//!
//! The library is what EXPERTRAIL_LIBFABRIC names, or what the loader finds; scripts/test runs this with 1.17 and with 2.x.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

mod ofi_support;

use std::sync::mpsc;

use expertrail_fabric::ofi;
use ofi_support::{Side, arrived, library, options, pattern, sent};

/// Both kinds of remote address: tcp's are offsets, shm's virtual.
const PROVIDERS: [&str; 2] = ["tcp", "shm"];

#[test]
fn what_is_offered_is_listed() {
    let Some(library) = library() else { return };
    for offer in ofi::list(&library).unwrap() {
        println!("{offer:?}");
    }
}

/// Two sides in two threads: `a` on this one, `b` on another.
fn pair(provider: &str, bytes: usize, a: impl FnOnce(Side, expertrail_fabric::RemoteRegion), b: impl FnOnce(Side, expertrail_fabric::RemoteRegion) + Send) {
    let Some(library) = library() else { return };
    let (to_a, from_b) = mpsc::channel();
    let (to_b, from_a) = mpsc::channel();
    std::thread::scope(|scope| {
        let other = library.clone();
        scope.spawn(move || {
            let mut side = Side::new(&other, &options(provider), bytes);
            to_a.send(side.card()).unwrap();
            let (address, region) = from_a.recv().unwrap();
            side.transport.connect(&[address]).unwrap();
            b(side, region);
        });
        let mut side = Side::new(&library, &options(provider), bytes);
        to_b.send(side.card()).unwrap();
        let (address, region) = from_b.recv().unwrap();
        side.transport.connect(&[address]).unwrap();
        a(side, region);
    });
}

const SIZES: [usize; 8] = [1, 8, 63, 4097, 16384, 65537, 1 << 20, 4 << 20];

#[test]
fn every_size_arrives_whole_with_its_immediate() {
    for provider in PROVIDERS {
        let (done, wait) = mpsc::channel::<()>();
        let (ack, acks) = mpsc::channel::<()>();
        pair(
            provider,
            4 << 20,
            |mut side, remote| {
                for (number, bytes) in (0u32..).zip(SIZES) {
                    let immediate = 0x8000_0000 | number;
                    side.own.put(0, &pattern(number, bytes));
                    let write = side.write(remote, 0, bytes as u64, immediate);
                    side.post(&write);
                    side.poll_until("sent", |have| sent(have).contains(&write.context));
                    acks.recv().unwrap();
                }
                done.send(()).unwrap();
                side.transport.close().unwrap();
            },
            move |mut side, _| {
                for (number, bytes) in (0u32..).zip(SIZES) {
                    side.completions.clear();
                    side.poll_until(&format!("{provider} {bytes} bytes"), |have| !arrived(have).is_empty());
                    assert_eq!(arrived(&side.completions), [0x8000_0000 | number]);
                    assert!(side.landing.get(0, bytes) == pattern(number, bytes), "{provider} {bytes} bytes");
                    ack.send(()).unwrap();
                }
                let _ = wait.recv();
                side.transport.close().unwrap();
            },
        );
    }
}
