//! The transport over a fake libfabric with the attributes of EFA's `efa-direct`: see `fake/fake_libfabric.c` for how hard it
//! is on its caller. No EFA or InfiniBand hardware is needed, and none was used.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

mod ofi_support;

use std::path::Path;
use std::process::Command;

use expertrail_fabric::ofi::{self, Library};
use expertrail_fabric::{Addressing, Completion, FabricError, RemoteRegion};
use ofi_support::{Side, arrived, bodies, options, sent};

const NAME: &str = "efa-direct";

/// The fake, compiled with `defines`. Its file goes at once: it is loaded.
fn fake(defines: &[&str]) -> Library {
    let folder =
        tempfile::Builder::new().prefix("fake-libfabric").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (library, sources) =
        (folder.path().join("libfabric.so.1"), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake"));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .arg(&library)
        .args(defines.iter().map(|define| format!("-D{define}")))
        .args([sources.join("fake_libfabric.c"), sources.join("fake_info.c")])
        .status()
        .expect("cc, which Rust links with");
    assert!(status.success());
    Library::open_first(&[library]).unwrap()
}

/// Over both kinds: immediates that need nothing, and immediates that use up posted receives.
fn each(body: impl Fn(&Library, &str)) {
    for defines in [&[][..], &["RECEIVES"]] {
        body(&fake(defines), NAME);
    }
}

#[test]
fn the_offer_says_all_that_the_provider_wants() {
    for (defines, receives) in [(&[][..], false), (&["RECEIVES"], true)] {
        let offers = ofi::list(&fake(defines)).unwrap();
        let [offer] = &offers[..] else { panic!("{offers:?}") };
        assert_eq!(
            (offer.name.as_str(), offer.provider.as_str(), offer.domain.as_str()),
            (NAME, "efa", "rdmap54s0-rdm")
        );
        assert_eq!(offer.mr_mode, ["local", "virtual address", "allocated", "provider key"]);
        assert_eq!(
            (offer.addressing, offer.cq_data_bytes, offer.context_bytes),
            (Addressing::Virtual, 4, 64)
        );
        assert_eq!((offer.needs_receives, offer.local_only, &offer.lacks), (receives, false, &None));
        assert_eq!(
            (offer.pci.as_deref(), offer.link_bits_per_second),
            (Some("0000:36:00.0"), Some(100_000_000_000))
        );
        assert_eq!((offer.max_message, offer.queue_depth, offer.inject_bytes), (16 << 20, 64, 0));
        assert_eq!((offer.threading, offer.progress), ("domain", "manual"));
    }
}

#[test]
fn every_size_arrives_whole_with_its_immediate() {
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

/// What the failure of one write says.
fn failure(side: &mut Side) -> (u64, String) {
    side.poll_until("a failure", |have| !have.is_empty());
    match side.completions.remove(0) {
        Completion::Failed { context, error: error @ FabricError::Peer { peer: 0, code: 5, .. } } => {
            (context, error.to_string())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_write_comes_back_with_the_providers_words() {
    each(|library, provider| {
        let mut side = Side::new(library, &options(provider), 4096);
        let mut other = Side::new(library, &options(provider), 4096);
        let (address, remote) = other.card();
        side.transport.connect(&[address]).unwrap();
        // The other does not know this side.
        let write = side.write(remote, 0, 64, 9);
        side.post(&write);
        while side.completions.is_empty() {
            other.poll();
            side.poll();
        }
        let (context, text) = failure(&mut side);
        assert_eq!(context, write.context);
        assert!(
            text.contains("the target does not know this endpoint")
                && text.contains("efa-direct on rdmap54s0"),
            "{text}"
        );
        // Now it does, but the key is wrong.
        let own = side.transport.address().unwrap();
        other.transport.connect(&[own]).unwrap();
        let bad = RemoteRegion { key: remote.key ^ 1, ..remote };
        let write = side.write(bad, 0, 64, 9);
        side.post(&write);
        while side.completions.is_empty() {
            other.poll();
            side.poll();
        }
        assert!(failure(&mut side).1.contains("no such remote memory"));
        // And a good one still goes.
        let write = side.write(remote, 0, 64, 9);
        side.post(&write);
        while arrived(&other.completions).is_empty() || sent(&side.completions).is_empty() {
            other.poll();
            side.poll();
        }
        assert_eq!(arrived(&other.completions), [9], "the rubbish above the 4 bytes is gone");
        // What is on its way to an endpoint that closes fails.
        side.completions.clear();
        side.post(&write);
        other.transport.close().unwrap();
        assert!(failure(&mut side).1.contains("the target is gone"));
        side.transport.close().unwrap();
    });
}
