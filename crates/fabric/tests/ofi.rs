//! The transport over libfabric: between threads and between processes, over tcp and shm.
//!
//! The library is what `EXPERTRAIL_LIBFABRIC` names, or what the loader finds; scripts/test runs this with 1.17 and with 2.x.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

mod ofi_support;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use expertrail_fabric::ofi::{self, Library, OpenOptions, Provider};
use expertrail_fabric::{
    Addressing, Completion, FabricError, PeerId, Posted, RegionId, RemoteRegion, Transport,
};
use ofi_support::{
    Bytes, Child, DEADLINE, Side, arrived, card_line, library, listen, options, pattern, read_card, role,
    say, sent, shm_files,
};

/// Both kinds of remote address: tcp's are offsets, shm's virtual.
const PROVIDERS: [&str; 2] = ["tcp", "shm"];
const SIZES: [usize; 8] = [1, 8, 63, 4097, 16384, 65537, 1 << 20, 4 << 20];

/// Two sides in two threads, connected. Each runs to its end before either closes: what was sent may not have arrived.
fn pair(
    provider: &str,
    bytes: usize,
    a: impl FnOnce(&mut Side, RemoteRegion),
    b: impl FnOnce(&mut Side, RemoteRegion) + Send,
) {
    let Some(library) = library() else { return };
    let (to_a, from_b) = mpsc::channel();
    let (to_b, from_a) = mpsc::channel();
    let (a_done, a_is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let other = library.clone();
        let b = scope.spawn(move || {
            let mut side = Side::new(&other, &options(provider), bytes);
            to_a.send(side.card()).unwrap();
            let (address, region) = from_a.recv().unwrap();
            side.transport.connect(&[address]).unwrap();
            b(&mut side, region);
            // Some providers need this side's progress for that side's end.
            while a_is_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
                side.poll();
            }
            side.transport.close().unwrap();
        });
        let mut side = Side::new(&library, &options(provider), bytes);
        to_b.send(side.card()).unwrap();
        let (address, region) = from_b.recv().unwrap();
        side.transport.connect(&[address]).unwrap();
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

#[test]
fn every_size_arrives_whole_with_its_immediate_between_threads() {
    for provider in PROVIDERS {
        let (seen, words) = mpsc::channel();
        pair(
            provider,
            4 << 20,
            |side, remote| send_every_size(side, remote, |side| await_word(side, &words)),
            |side, _| take_every_size(side, provider, || seen.send(()).unwrap()),
        );
    }
}

#[test]
fn a_thousand_writes_in_flight_arrive_each_once_and_whole() {
    const WRITES: u32 = 1000;
    const BYTES: usize = 4096;
    for provider in PROVIDERS {
        pair(
            provider,
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
                println!(
                    "{provider}: {taken} taken before the first Busy (queue of {depth}), {busy} times Busy"
                );
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
}

#[test]
fn a_full_queue_is_busy_and_serves_again() {
    let Some(library) = library() else { return };
    for provider in PROVIDERS {
        let options = OpenOptions { queue_depth: 4, ..options(provider) };
        let mut side = Side::new(&library, &options, 4096);
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
}

#[test]
fn waiting_ends_when_something_arrives() {
    let Some(_) = library() else { return };
    for provider in PROVIDERS {
        let (ready, is_ready) = mpsc::channel();
        pair(
            provider,
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
}

#[test]
fn what_is_outside_of_a_region_is_refused_before_anything_is_posted() {
    let Some(library) = library() else { return };
    for provider in PROVIDERS {
        let mut side = Side::new(&library, &options(provider), 4096);
        let (address, remote) = side.card();
        let good = side.write(remote, 0, 4096, 0);
        let refused = |side: &mut Side, write: &expertrail_fabric::Write, part: &str| match side
            .transport
            .write(write)
        {
            Err(FabricError::Argument { what }) => assert!(what.contains(part), "{part:?} is not in: {what}"),
            other => panic!("{write:?}: {other:?}"),
        };
        refused(&mut side, &good, "peer 0 is not connected");
        side.transport.connect(&[address]).unwrap();
        let beyond = RemoteRegion { bytes: 4095, ..remote };
        for (write, part) in [
            (expertrail_fabric::Write { bytes: 0, ..good }, "0 bytes"),
            (expertrail_fabric::Write { local_offset: 1, ..good }, "outside of region 0"),
            (expertrail_fabric::Write { local_offset: u64::MAX, bytes: 2, ..good }, "outside of region 0"),
            (expertrail_fabric::Write { remote_offset: 1, ..good }, "region of peer 0"),
            (expertrail_fabric::Write { remote: beyond, ..good }, "region of peer 0, which has 4095"),
            (expertrail_fabric::Write { local: RegionId(2), ..good }, "region 2 is not registered"),
            (expertrail_fabric::Write { peer: PeerId(1), ..good }, "peer 1 is not connected; there are 1"),
        ] {
            refused(&mut side, &write, part);
        }
        side.post(&good);
        side.poll_until("the good one", |have| have.len() == 2);
        assert_eq!((sent(&side.completions).len(), arrived(&side.completions)), (1, vec![0]));
        assert!(matches!(side.transport.connect(&[]), Err(FabricError::Argument { .. })), "connected twice");
        side.transport.close().unwrap();
    }
}

#[test]
fn what_is_not_offered_is_named_with_what_is() {
    let Some(library) = library() else { return };
    let refusal = |options: &OpenOptions| ofi::open_with(&library, options).unwrap_err();
    let unknown = refusal(&options("warp"));
    assert!(
        matches!(&unknown, FabricError::NoProvider { wanted, .. } if wanted == "provider warp"),
        "{unknown:?}"
    );
    let (text, version) = (unknown.to_string(), library.name());
    for part in ["warp", "shm on shm", "tcp", &version] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let domain = OpenOptions { domain: Some("ib7".to_owned()), ..options("tcp") };
    let text = refusal(&domain).to_string();
    assert!(text.contains("provider tcp on domain ib7") && text.contains(" on lo"), "{text}");
    assert!(!text.contains("shm on shm"), "of another provider: {text}");
}

#[test]
fn no_library_is_an_error_that_says_where_it_was_looked_for() {
    let places = ["/nowhere/libfabric.so.1".into(), "libfabric.so.99".into()];
    let text = Library::open_first(&places).unwrap_err().to_string();
    for part in
        ["/nowhere/libfabric.so.1, libfabric.so.99", "cannot open shared object file", "EXPERTRAIL_LIBFABRIC"]
    {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    // A library, but another one.
    let text = Library::open_first(&["libm.so.6".into()]).unwrap_err().to_string();
    assert!(text.contains("fi_version"), "{text}");
}

#[test]
fn the_offers_say_what_the_transport_builds_on() {
    let Some(library) = library() else { return };
    let offers = ofi::list(&library).unwrap();
    let shm = offers.iter().find(|offer| offer.name == "shm").unwrap();
    assert!(
        shm.local_only && shm.addressing == Addressing::Virtual && shm.mr_mode.contains(&"virtual address")
    );
    let loopback = |name: &str| {
        let on = |offer: &&ofi::Offer| offer.provider.split(';').next() == Some(name) && offer.domain == "lo";
        offers.iter().find(on).cloned()
    };
    let tcp = loopback("tcp").unwrap();
    assert!(!tcp.local_only && tcp.addressing == Addressing::Offset && tcp.mr_mode.is_empty(), "{tcp:?}");
    let native = offers.iter().any(|offer| offer.name == "tcp");
    assert_eq!(native, library.version() >= (1, 18), "tcp without ofi_rxm since 1.18");
    for offer in [shm, &tcp] {
        assert_eq!((offer.cq_data_bytes, &offer.lacks), (8, &None));
        assert!(offer.max_message >= 1 << 30 && offer.queue_depth > 0);
    }
    let auto = ofi::open_with(&library, &OpenOptions::default()).unwrap();
    let has = auto.capabilities();
    assert!(
        has.provider.starts_with("tcp"),
        "unasked, of what a machine without a NIC of its own has: {has:?}"
    );
    assert_eq!(has.library, library.name());
    auto.close().unwrap();
}

#[test]
fn an_address_that_is_none_is_an_error_of_the_exchange() {
    let Some(library) = library() else { return };
    let mut shm = Side::new(&library, &options("shm"), 64);
    let (of_shm, _) = shm.card();
    for bad in [vec![], of_shm[..7].to_vec()] {
        let mut tcp = Side::new(&library, &options("tcp"), 64);
        let error = tcp.transport.connect(&[of_shm.clone(), bad.clone()]).unwrap_err();
        assert!(
            matches!(error, FabricError::Exchange { peer: 0, what } if what.contains("another provider")),
            "{error:?}"
        );
        let own = tcp.transport.address().unwrap();
        let error = tcp.transport.connect(&[own, bad]).unwrap_err();
        assert!(matches!(error, FabricError::Exchange { peer: 1, .. }), "{error:?}");
    }
}

#[test]
fn closing_leaves_nothing_in_shared_memory() {
    let Some(library) = library() else { return };
    // In a process of its own: other tests of this one have files, too.
    let mut child = Child::start("closes_and_reports", "shm");
    let own = child.id();
    assert_eq!(child.hear(), format!("open {}", true));
    assert!(!shm_files(own).is_empty());
    child.tell("close");
    assert_eq!(child.hear(), "closed");
    assert_eq!(shm_files(own), Vec::<String>::new());
    child.tell("end");
    assert!(child.passed());
    drop(library);
}

#[test]
#[ignore = "the other process of closing_leaves_nothing_in_shared_memory"]
fn closes_and_reports() {
    let Some(provider) = role() else { return };
    let library = library().unwrap();
    let mut sides = [(); 2].map(|()| Side::new(&library, &options(&provider), 1 << 20));
    let (address, remote) = sides[0].card();
    for side in &mut sides {
        side.transport.connect(std::slice::from_ref(&address)).unwrap();
    }
    let write = sides[1].write(remote, 0, 1 << 20, 5);
    // Both poll from the start: the connection takes progress on both sides.
    while sides[1].transport.write(&write).unwrap() == Posted::Busy {
        sides[0].poll();
        sides[1].poll();
    }
    while arrived(&sides[0].completions).is_empty() || sent(&sides[1].completions).is_empty() {
        sides[0].poll();
        sides[1].poll();
    }
    say(&format!("open {}", !shm_files(std::process::id()).is_empty()));
    assert_eq!(listen(), "close");
    let [first, second] = sides;
    first.transport.close().unwrap();
    // Dropping closes, too.
    drop(second);
    say("closed");
    assert_eq!(listen(), "end");
}

#[test]
fn every_size_arrives_whole_with_its_immediate_between_processes() {
    let Some(library) = library() else { return };
    for provider in PROVIDERS {
        let mut child = Child::start("takes_and_sends", provider);
        let mut side = Side::new(&library, &options(provider), 4 << 20);
        child.tell(&card_line(&side.card()));
        let (address, remote) = read_card(&child.hear());
        side.transport.connect(&[address]).unwrap();
        assert_eq!(child.hear(), "connected");
        for (number, bytes) in (0u32..).zip(SIZES) {
            side.own.put(0, &pattern(number, bytes));
            let write = side.write(remote, 0, bytes as u64, 0x8000_0000 | number);
            side.post(&write);
            // The other side answers with what it got, at the same place, with the immediate's bits turned over.
            side.poll_until(&format!("{provider}: {bytes} bytes back"), |have| {
                arrived(have).len() == number as usize + 1 && sent(have).len() == number as usize + 1
            });
            assert_eq!(arrived(&side.completions).last(), Some(&!(0x8000_0000 | number)));
            assert!(side.landing.get(0, bytes) == pattern(number, bytes), "{provider}: {bytes} bytes back");
        }
        child.tell("end");
        assert_eq!(child.hear(), "closing");
        side.transport.close().unwrap();
        assert!(child.passed());
    }
}

#[test]
#[ignore = "the other process of every_size_arrives_whole_with_its_immediate_between_processes"]
fn takes_and_sends() {
    let Some(provider) = role() else { return };
    let (mut side, remote) = join(&provider, 4 << 20);
    for (number, bytes) in (0usize..).zip(SIZES) {
        side.poll_until("the next size", |have| arrived(have).len() == number + 1);
        let immediate = *arrived(&side.completions).last().unwrap();
        side.own.put(0, &side.landing.get(0, bytes));
        let write = side.write(remote, 0, bytes as u64, !immediate);
        side.post(&write);
        side.poll_until("the answer to leave", |have| sent(have).len() == number + 1);
    }
    assert_eq!(listen(), "end");
    say("closing");
    side.transport.close().unwrap();
}

/// In the other process: a side that is connected with the one that started it.
fn join(provider: &str, bytes: usize) -> (Side, RemoteRegion) {
    let library = library().unwrap();
    let mut side = Side::new(&library, &options(provider), bytes);
    say(&card_line(&side.card()));
    let (address, remote) = read_card(&listen());
    side.transport.connect(&[address]).unwrap();
    say("connected");
    (side, remote)
}

#[test]
fn a_killed_peer_is_an_error_that_names_it_and_its_files_are_swept() {
    let Some(library) = library() else { return };
    for provider in PROVIDERS {
        let mut child = Child::start("takes_until_killed", provider);
        let mut side = Side::new(&library, &options(provider), 1 << 20);
        child.tell(&card_line(&side.card()));
        let (address, remote) = read_card(&child.hear());
        side.transport.connect(&[address]).unwrap();
        assert_eq!(child.hear(), "connected");
        let mut write = side.write(remote, 0, 1 << 20, 0);
        side.post(&write);
        side.poll_until("the first", |have| sent(have).len() == 1);
        // Some in flight when it dies, and more after that.
        for number in 1..=8 {
            write.context = number;
            let _ = side.transport.write(&write).unwrap();
        }
        child.kill();
        let (killed, mut in_flight_failed) = (Instant::now(), 0);
        side.completions.clear();
        let error = loop {
            assert!(killed.elapsed() < Duration::from_secs(20), "{provider}: no error");
            side.poll();
            let failures = side.completions.iter().filter_map(|completion| match completion {
                Completion::Failed { error, .. } => Some(error.clone()),
                _ => None,
            });
            let failures: Vec<_> = failures.collect();
            in_flight_failed = in_flight_failed.max(failures.len());
            if let Some(error) = failures.into_iter().next() {
                break error;
            }
            match side.transport.write(&write) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        println!(
            "{provider}: {:?} after the kill: {error}; {in_flight_failed} in flight failed",
            killed.elapsed()
        );
        assert!(matches!(error, FabricError::Peer { peer: 0, .. }), "{provider}: {error:?}");
        let pid = child.id();
        drop(child);
        side.transport.close().unwrap();
        if provider == "shm" {
            assert!(!shm_files(pid).is_empty(), "the provider has learned to clean up: drop the sweep");
            ofi::sweep_shm().unwrap();
        }
        assert_eq!(shm_files(pid), Vec::<String>::new());
        // The same process goes on with a new one.
        let mut again = Side::new(&library, &options(provider), 64);
        let (address, remote) = again.card();
        again.transport.connect(&[address]).unwrap();
        let write = again.write(remote, 0, 64, 3);
        again.post(&write);
        again.poll_until("a write of a new endpoint", |have| arrived(have) == [3]);
    }
}

#[test]
#[ignore = "the other process of a_killed_peer_is_an_error_that_names_it_and_its_files_are_swept"]
fn takes_until_killed() {
    let Some(provider) = role() else { return };
    let (mut side, _) = join(&provider, 1 << 20);
    loop {
        side.poll();
        side.completions.clear();
    }
}

#[test]
fn a_peer_that_is_not_there_is_an_error_and_no_hang() {
    let Some(library) = library() else { return };
    let mut gone = Side::new(&library, &options("tcp"), 64);
    let (address, remote) = gone.card();
    gone.transport.close().unwrap();
    let few = OpenOptions { unreachable_after: Duration::from_secs(1), ..options("tcp") };
    let mut side = Side::new(&library, &few, 64);
    side.transport.connect(&[address]).unwrap();
    let (write, started) = (side.write(remote, 0, 64, 1), Instant::now());
    let error = loop {
        assert!(started.elapsed() < Duration::from_secs(20), "no error");
        if let Err(error) = side.transport.write(&write) {
            break error;
        }
        side.poll();
        if let Some(Completion::Failed { error, .. }) = side.completions.first() {
            break error.clone();
        }
    };
    println!("{:?}: {error}", started.elapsed());
    assert!(matches!(error, FabricError::Peer { peer: 0, .. }), "{error:?}");
    side.transport.close().unwrap();
}

#[test]
fn memory_is_given_up_when_the_transport_closes() {
    let Some(library) = library() else { return };
    let mut transport = ofi::open_with(&library, &options("shm")).unwrap();
    let memory = Bytes::new(4096);
    let (first, remote) = transport.register(memory.clone()).unwrap();
    assert_eq!((first, remote.bytes), (RegionId(0), 4096));
    assert_eq!(transport.register(memory.clone()).unwrap().0, RegionId(1));
    assert_eq!(std::sync::Arc::strong_count(&memory), 3);
    transport.close().unwrap();
    assert_eq!(std::sync::Arc::strong_count(&memory), 1);
}

#[test]
fn an_unasked_domain_is_the_one_that_is_named_when_asked() {
    let Some(library) = library() else { return };
    let on_lo =
        OpenOptions { provider: Provider::Auto, domain: Some("lo".to_owned()), ..OpenOptions::default() };
    let transport: Box<dyn Transport> = ofi::open_with(&library, &on_lo).unwrap();
    assert_eq!(transport.capabilities().domain, "lo");
}
