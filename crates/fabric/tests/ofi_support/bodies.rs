//! What holds over every provider: bodies of tests, for real libraries and for the fake.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use expertrail_fabric::ofi::{self, Library, OpenOptions};
use expertrail_fabric::{FabricError, PeerId, Posted, RegionId, RemoteRegion, Write};

use super::{Bytes, DEADLINE, Side, arrived, options, pattern, sent};

pub(crate) const SIZES: [usize; 8] = [1, 8, 63, 4097, 16384, 65537, 1 << 20, 4 << 20];

/// Two sides in two threads, connected. Each runs to its end before either closes: what was sent may not have arrived.
fn pair(
    (library, provider): (&Library, &str),
    bytes: usize,
    a: impl FnOnce(&mut Side, RemoteRegion),
    b: impl FnOnce(&mut Side, RemoteRegion) + Send,
) {
    let (to_a, from_b) = mpsc::channel();
    let (to_b, from_a) = mpsc::channel();
    let (a_done, a_is_done) = mpsc::channel::<()>();
    // Who is not known yet must not be written to by anybody: EFA drops that.
    let (a_connected, a_is_connected) = mpsc::channel();
    let (b_connected, b_is_connected) = mpsc::channel();
    // Moved, so that a side that fails drops its ends and the other does not wait for it.
    std::thread::scope(move |scope| {
        let b = scope.spawn(move || {
            let mut side = Side::new(library, &options(provider), bytes);
            to_a.send(side.card()).unwrap();
            let (address, region) = from_a.recv().unwrap();
            side.transport.connect(&[address]).unwrap();
            b_connected.send(()).unwrap();
            a_is_connected.recv().unwrap();
            b(&mut side, region);
            // Some providers need this side's progress for that side's end.
            while a_is_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
                side.poll();
            }
            side.transport.close().unwrap();
        });
        let mut side = Side::new(library, &options(provider), bytes);
        to_b.send(side.card()).unwrap();
        let (address, region) = from_b.recv().unwrap();
        side.transport.connect(&[address]).unwrap();
        a_connected.send(()).unwrap();
        b_is_connected.recv().unwrap();
        a(&mut side, region);
        drop(a_done);
        while !b.is_finished() {
            side.poll();
        }
        side.transport.close().unwrap();
    });
}

/// Writes every size once, each when the one before was seen.
fn send_every_size(side: &mut Side, remote: RemoteRegion, mut seen: impl FnMut(&mut Side)) {
    for (number, bytes) in (0u32..).zip(SIZES) {
        side.own.put(0, &pattern(number, bytes));
        let write = side.write(remote, 0, bytes as u64, 0x8000_0000 | number);
        side.post(&write);
        side.poll_until("sent", |have| sent(have).contains(&write.context));
        seen(side);
    }
}

fn take_every_size(side: &mut Side, provider: &str, mut seen: impl FnMut()) {
    for (number, bytes) in (0u32..).zip(SIZES) {
        side.completions.clear();
        side.poll_until(&format!("{provider} {bytes} bytes"), |have| !arrived(have).is_empty());
        assert_eq!(arrived(&side.completions), [0x8000_0000 | number]);
        assert!(side.landing.get(0, bytes) == pattern(number, bytes), "{provider} {bytes} bytes");
        seen();
    }
}

/// Waits for a word while polling.
fn await_word(side: &mut Side, words: &mpsc::Receiver<()>) {
    let deadline = Instant::now() + DEADLINE;
    while words.try_recv().is_err() {
        side.poll();
        assert!(Instant::now() < deadline, "no word");
    }
}

pub(crate) fn every_size_arrives_whole_with_its_immediate(library: &Library, provider: &str) {
    let (seen, words) = mpsc::channel();
    pair(
        (library, provider),
        4 << 20,
        |side, remote| send_every_size(side, remote, |side| await_word(side, &words)),
        |side, _| take_every_size(side, provider, || seen.send(()).unwrap()),
    );
}

pub(crate) fn a_thousand_writes_in_flight_arrive_each_once_and_whole(library: &Library, provider: &str) {
    const WRITES: u32 = 1000;
    const BYTES: usize = 4096;
    pair(
        (library, provider),
        WRITES as usize * BYTES,
        |side, remote| {
            for number in 0..WRITES {
                side.own.put(number as usize * BYTES, &pattern(number, BYTES));
            }
            // The first alone, because it makes the connection; then as many as fit before a poll, then the rest.
            let depth = side.transport.capabilities().queue_depth;
            let first = side.write(remote, 0, 1, WRITES);
            side.post(&first);
            side.poll_until("the first", |have| sent(have).len() == 1);
            side.completions.clear();
            let (mut taken, mut busy) = (0, 0);
            for number in 0..WRITES {
                let at = number as usize * BYTES;
                let write = side.write(remote, at as u64, BYTES as u64, number);
                if side.transport.write(&write).unwrap() == Posted::Yes {
                    taken += usize::from(busy == 0);
                    continue;
                }
                busy += 1 + side.post(&write);
            }
            println!("{provider}: {taken} taken before the first Busy (queue of {depth}), {busy} times Busy");
            side.poll_until("all sent", |have| sent(have).len() == WRITES as usize);
            let mut contexts = sent(&side.completions);
            contexts.sort_unstable();
            let wanted: Vec<u64> = (0..u64::from(WRITES)).map(|number| number | 7 << 40).collect();
            assert!(contexts == wanted, "{provider}: every context once");
        },
        |side, _| {
            side.poll_until("all arrived", |have| arrived(have).len() == WRITES as usize + 1);
            let mut immediates = arrived(&side.completions);
            immediates.sort_unstable();
            assert!(immediates == (0..=WRITES).collect::<Vec<_>>(), "{provider}: every immediate once");
            for number in 0..WRITES {
                let got = side.landing.get(number as usize * BYTES, BYTES);
                assert!(got == pattern(number, BYTES), "{provider}: write {number}");
            }
        },
    );
}

pub(crate) fn a_full_queue_is_busy_and_serves_again(library: &Library, provider: &str) {
    let options = OpenOptions { queue_depth: 4, ..options(provider) };
    let mut side = Side::new(library, &options, 4096);
    assert_eq!(side.transport.capabilities().queue_depth, 4);
    // To itself: what goes out comes in.
    let (address, remote) = side.card();
    side.transport.connect(&[address]).unwrap();
    let mut write = side.write(remote, 0, 64, 0);
    let mut posted = 0;
    for _ in 0..8 {
        match side.transport.write(&write).unwrap() {
            Posted::Yes => posted += 1,
            Posted::Busy => break,
        }
    }
    assert!(posted <= 4, "{provider}: {posted} in a queue of 4");
    write.immediate = 99;
    side.post(&write);
    side.poll_until("all arrived", |have| arrived(have).len() == posted + 1);
    assert!(arrived(&side.completions).contains(&99));
    side.transport.close().unwrap();
}

pub(crate) fn waiting_ends_when_something_arrives(library: &Library, provider: &str) {
    let (ready, is_ready) = mpsc::channel();
    pair(
        (library, provider),
        4096,
        |side, remote| {
            // Once before, so that the connection is there.
            let write = side.write(remote, 0, 8, 1);
            side.post(&write);
            await_word(side, &is_ready);
            std::thread::sleep(Duration::from_millis(300));
            side.post(&write);
            side.poll_until("both sent", |have| sent(have).len() == 2);
        },
        |side, _| {
            side.poll_until("first", |have| arrived(have).len() == 1);
            ready.send(()).unwrap();
            let (started, mut waits) = (Instant::now(), 0);
            while arrived(&side.completions).len() < 2 {
                side.transport.wait(Duration::from_secs(5)).unwrap();
                waits += 1;
                side.transport.poll(&mut side.completions).unwrap();
                assert!(started.elapsed() < DEADLINE);
            }
            let took = started.elapsed();
            println!("{provider}: {waits} waits in {took:?}");
            assert!(took < Duration::from_secs(4), "{provider}: {took:?}");
            // One nap of 50 us after another would be 6000; a queue that is spun on, millions.
            assert!(waits < 20_000, "{provider}: {waits} waits");
        },
    );
}

pub(crate) fn what_is_outside_of_a_region_is_refused_before_anything_is_posted(
    library: &Library,
    provider: &str,
) {
    let mut side = Side::new(library, &options(provider), 4096);
    let (address, remote) = side.card();
    let good = side.write(remote, 0, 4096, 0);
    let refused = |side: &mut Side, write: &Write, part: &str| match side.transport.write(write) {
        Err(FabricError::Argument { what }) => assert!(what.contains(part), "{part:?} is not in: {what}"),
        other => panic!("{write:?}: {other:?}"),
    };
    refused(&mut side, &good, "peer 0 is not connected");
    side.transport.connect(&[address]).unwrap();
    let beyond = RemoteRegion { bytes: 4095, ..remote };
    for (write, part) in [
        (Write { bytes: 0, ..good }, "0 bytes"),
        (Write { local_offset: 1, ..good }, "outside of region 0"),
        (Write { local_offset: u64::MAX, bytes: 2, ..good }, "outside of region 0"),
        (Write { remote_offset: 1, ..good }, "region of peer 0"),
        (Write { remote: beyond, ..good }, "region of peer 0, which has 4095"),
        (Write { local: RegionId(2), ..good }, "region 2 is not registered"),
        (Write { peer: PeerId(1), ..good }, "peer 1 is not connected; there are 1"),
    ] {
        refused(&mut side, &write, part);
    }
    side.post(&good);
    side.poll_until("the good one", |have| have.len() == 2);
    assert_eq!((sent(&side.completions).len(), arrived(&side.completions)), (1, vec![0]));
    assert!(matches!(side.transport.connect(&[]), Err(FabricError::Argument { .. })), "connected twice");
    side.transport.close().unwrap();
}

pub(crate) fn memory_is_given_up_when_the_transport_closes(library: &Library, provider: &str) {
    let mut transport = ofi::open_with(library, &options(provider)).unwrap();
    let memory = Bytes::new(4096);
    let (first, remote) = transport.register(memory.clone()).unwrap();
    assert_eq!((first, remote.bytes), (RegionId(0), 4096));
    assert_eq!(transport.register(memory.clone()).unwrap().0, RegionId(1));
    assert_eq!(std::sync::Arc::strong_count(&memory), 3);
    transport.close().unwrap();
    assert_eq!(std::sync::Arc::strong_count(&memory), 1);
}
