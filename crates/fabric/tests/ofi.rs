//! The transport over libfabric: between threads and between processes, over tcp and shm.
//!
//! The library is what `EXPERTRAIL_LIBFABRIC` names, or what the loader finds; scripts/test runs this with 1.17 and with 2.x.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

mod ofi_support;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use expertrail_fabric::ofi::{self, Library, OpenOptions, Provider};
use expertrail_fabric::{
    Addressing, Completion, FabricError, Memory, Place, Posted, RemoteRegion, Transport,
};
use ofi_support::bodies::{self, SIZES};
use ofi_support::child::{Child, card_line, listen, read_card, role, say};
use ofi_support::{Bytes, Side, arrived, library, options, pattern, sent, shm_files};

/// Both kinds of remote address: tcp's are offsets, shm's virtual.
const PROVIDERS: [&str; 2] = ["tcp", "shm"];
fn each(body: impl Fn(&Library, &str)) {
    let Some(library) = library() else { return };
    for provider in PROVIDERS {
        body(&library, provider);
    }
}

#[test]
fn every_size_arrives_whole_with_its_immediate_between_threads() {
    each(bodies::every_size_arrives_whole_with_its_immediate);
}

#[test]
fn a_thousand_writes_in_flight_arrive_each_once_and_whole() {
    each(bodies::a_thousand_writes_in_flight_arrive_each_once_and_whole);
}

#[test]
fn a_full_queue_is_busy_and_serves_again() {
    each(bodies::a_full_queue_is_busy_and_serves_again);
}

#[test]
fn waiting_ends_when_something_arrives() {
    each(bodies::waiting_ends_when_something_arrives);
}

#[test]
fn what_is_outside_of_a_region_is_refused_before_anything_is_posted() {
    each(bodies::what_is_outside_of_a_region_is_refused_before_anything_is_posted);
}

#[test]
fn memory_is_given_up_when_the_transport_closes() {
    each(bodies::memory_is_given_up_when_the_transport_closes);
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
        if provider == "shm" && library.version() < (2, 0) {
            println!(
                "NOT RUN: shm of {} with a peer killed while it polls (it may die with a lock)",
                library.name()
            );
            child.tell("rest");
            assert_eq!(child.hear(), "resting");
        }
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
    let (rest, is_to_rest) = mpsc::channel();
    std::thread::spawn(move || rest.send(listen()));
    while is_to_rest.try_recv().is_err() {
        side.poll();
        side.completions.clear();
    }
    say("resting");
    loop {
        std::thread::park();
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
fn an_unasked_domain_is_the_one_that_is_named_when_asked() {
    let Some(library) = library() else { return };
    let on_lo =
        OpenOptions { provider: Provider::Auto, domain: Some("lo".to_owned()), ..OpenOptions::default() };
    let transport: Box<dyn Transport> = ofi::open_with(&library, &on_lo).unwrap();
    assert_eq!(transport.capabilities().domain, "lo");
}

/// Says that it is GPU memory.
#[derive(Debug)]
struct OnGpu(Arc<Bytes>);

// SAFETY: it is host memory, whatever it says.
unsafe impl Memory for OnGpu {
    fn base(&self) -> *mut u8 {
        self.0.base()
    }
    fn bytes(&self) -> usize {
        self.0.bytes()
    }
    fn place(&self) -> Place {
        Place::Cuda { device: 0, dmabuf: None }
    }
}

#[test]
fn gpu_memory_is_refused_where_it_was_not_asked_for_or_is_not_offered() {
    let Some(library) = library() else { return };
    let mut transport = ofi::open_with(&library, &options("tcp")).unwrap();
    let error = transport.register(Arc::new(OnGpu(Bytes::new(64)))).unwrap_err();
    assert!(
        matches!(&error, FabricError::Unsuitable { lacks, .. } if lacks.contains("GPU memory")),
        "{error:?}"
    );
    match ofi::open_with(&library, &OpenOptions { gpu: true, ..options("tcp") }) {
        Ok(transport) => assert!(transport.capabilities().gpu_memory),
        Err(error) => {
            println!("{error}");
            let text = error.to_string();
            assert!(text.contains("no provider tcp for GPU memory among"), "{text}");
        }
    }
}
