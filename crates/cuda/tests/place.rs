//! Which device each rank takes, against fake drivers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/ranks.rs"]
mod ranks;
mod support;

use expertrail_cuda::{BuildError, Driver, HandleTypes, Placed, choose, handle_types};
use ranks::{driver, ranks, says};

/// What `count` ranks get from a driver with these defines.
fn chosen(test: &str, count: usize, defines: &[&str]) -> Vec<Result<Placed, BuildError>> {
    driver(test, defines, |driver, _| ranks(count, |group| choose(&driver, &group)))
}

/// The errors, when every rank has one.
fn errors(test: &str, count: usize, defines: &[&str]) -> Vec<BuildError> {
    chosen(test, count, defines).into_iter().map(Result::unwrap_err).collect()
}

/// That rank 1 of two is at fault as `parts` say, and rank 0 has it from there.
fn second_refuses(test: &str, defines: &[&str], parts: &[&str]) -> BuildError {
    let mut errors = errors(test, 2, defines);
    says(&errors[0], parts);
    says(&errors[0], &["rank 0 cannot build because rank 1 cannot: "]);
    assert!(matches!(&errors[0], BuildError::PeerBuild { rank: 0, peer: 1, .. }), "{}", errors[0]);
    assert_eq!(errors[0].exit_code(), 1);
    let own = errors.remove(1);
    says(&own, parts);
    assert_eq!(own.exit_code(), 4);
    own
}

#[test]
fn ranks_take_devices_in_order() {
    for (count, devices) in [(1, "COUNT=1"), (1, "COUNT=2"), (2, "COUNT=2"), (2, "COUNT=4"), (4, "COUNT=4")] {
        for (rank, placed) in
            chosen(&format!("order-{count}-{devices}"), count, &[devices]).into_iter().enumerate()
        {
            let placed = placed.unwrap();
            assert_eq!((placed.ordinal, placed.device.ordinal()), (rank, rank));
            let uuids: Vec<[u8; 16]> = (0..count).map(|rank| [40 + rank as u8; 16]).collect();
            assert_eq!(placed.uuids, uuids);
        }
    }
}

#[test]
fn the_only_visible_device_is_taken_whatever_the_rank() {
    let uuids = driver("only-a", &["COUNT=1", "UUID=7"], |first, _| {
        driver("only-b", &["COUNT=1", "UUID=8"], |second, _| {
            ranks(2, |group| {
                let driver = if group.rank() == 0 { &first } else { &second };
                let placed = choose(driver, &group).unwrap();
                assert_eq!(placed.ordinal, 0);
                placed.uuids
            })
        })
    });
    assert_eq!(uuids, [[[7; 16], [8; 16]], [[7; 16], [8; 16]]]);
}

#[test]
fn one_device_for_two_ranks_is_named_on_both() {
    for error in errors("shared", 2, &["COUNT=1"]) {
        says(&error, &["ranks 0 and 1", "GPU-28282828-2828-2828-2828-282828282828", "CUDA_VISIBLE_DEVICES"]);
        assert!(matches!(error, BuildError::SharedDevice { a: 0, b: 1, .. }));
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn too_few_devices_tell_both_numbers() {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES")
        .map_or("CUDA_VISIBLE_DEVICES is not set".to_owned(), |value| {
            format!("CUDA_VISIBLE_DEVICES={value:?}")
        });
    for error in errors("few", 3, &["COUNT=2"]) {
        says(&error, &["3 ranks on this host but 2 GPUs visible", &visible]);
        assert!(matches!(error, BuildError::Devices { ranks: 3, found: 2, .. }));
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn too_few_devices_of_one_rank_are_told_to_the_others() {
    let errors = driver("few-a", &["COUNT=3"], |first, _| {
        driver("few-b", &["COUNT=2"], |second, _| {
            ranks(3, |group| choose(if group.rank() == 1 { &second } else { &first }, &group).unwrap_err())
        })
    });
    assert!(matches!(errors[1], BuildError::Devices { found: 2, .. }));
    for rank in [0, 2] {
        assert!(matches!(&errors[rank], BuildError::PeerBuild { peer: 1, .. }));
        says(&errors[rank], &["3 ranks on this host but 2 GPUs visible"]);
    }
}

#[test]
fn a_prohibited_device_is_refused_and_an_exclusive_one_is_not() {
    let own = second_refuses(
        "prohibited",
        &["ODD=1", "MODE=2"],
        &["device 1 (Fake B, GPU-29292929-", "PROHIBITED", "-c DEFAULT"],
    );
    assert!(matches!(own, BuildError::Prohibited { .. }));
    assert!(chosen("exclusive", 2, &["MODE=3"]).iter().all(Result::is_ok));
}

#[test]
fn mig_slices_have_no_peers() {
    let define = r#"NAME="Fake H200 MIG 1g.18gb""#;
    let parts =
        ["device 1 (Fake H200 MIG 1g.18gb, MIG-29292929-", "no peer access between MIG slices", "-mig 0"];
    assert!(matches!(second_refuses("mig", &["ODD=1", define], &parts), BuildError::Mig { .. }));
    // A single rank has no peer to reach.
    assert!(chosen("mig-single", 1, &[define]).iter().all(Result::is_ok));
    assert!(chosen("no-mig", 2, &[r#"NAME="Fake MIGHTY""#]).iter().all(Result::is_ok));
}

#[test]
fn an_old_device_is_refused() {
    let own =
        second_refuses("old", &["ODD=1", "MAJOR=8"], &["device 1", "compute capability 8.0", "9.0 or newer"]);
    assert!(matches!(own, BuildError::Capability { major: 8, minor: 0, .. }));
}

#[test]
fn what_a_device_lacks_is_named() {
    for (define, feature) in [
        ("VMM=0", "virtual memory management"),
        ("FD=0", "file descriptor"),
        ("COOP=0", "cooperative launches"),
    ] {
        let own = second_refuses(define, &["ODD=1", define], &["device 1", "does not offer", feature]);
        assert!(matches!(own, BuildError::Lacks { .. }));
    }
}

#[test]
fn devices_that_do_not_reach_each_other_are_both_named() {
    let errors = errors("peers", 3, &["COUNT=3", "NO_PEER_A=0", "NO_PEER_B=2"]);
    for (at, rank, peer) in [(0, 0, 2), (2, 2, 0)] {
        let error = &errors[at];
        says(
            error,
            &[&format!("(Fake {}, GPU-", ['A', 'B', 'C'][rank]), &format!("of rank {rank} to device {peer}")],
        );
        says(error, &["topo -m", "IOMMU", "ACS", "--gpus all", &format!("of rank {peer};")]);
        assert!(
            matches!(error, BuildError::NoPeerAccess { rank: r, peer: p, .. } if (*r, *p) == (rank, peer)),
            "{error}"
        );
        assert_eq!(error.exit_code(), 4);
    }
    assert!(matches!(&errors[1], BuildError::PeerBuild { rank: 1, peer: 0, .. }), "{}", errors[1]);
    // A pair that no rank uses does not matter.
    let unused = ["COUNT=3", "NO_PEER_A=0", "NO_PEER_B=2"];
    assert!(chosen("peers-unused", 2, &unused).iter().all(Result::is_ok));
}

#[test]
fn a_rank_that_died_is_the_groups_error() {
    driver("died", &[], |driver: Driver, _| {
        let results = ranks(2, |group| {
            if group.rank() == 1 {
                group.fail("out of order");
                return None;
            }
            Some(choose(&driver, &group).unwrap_err())
        });
        says(results[0].as_ref().unwrap(), &["rank 1", "out of order"]);
        assert!(matches!(results[0], Some(BuildError::Group(_))));
    });
}

#[test]
fn ways_of_sharing_are_probed_apart() {
    for (defines, fd, fabric) in [
        (&["FABRIC=1"][..], true, true),
        (&["FABRIC=0"], true, false),
        // An old driver does not know the attribute.
        (&["FABRIC=-1"], true, false),
        (&["FD=0"], false, true),
        (&["FD=0", "FABRIC=0"], false, false),
    ] {
        let found = driver(&format!("handles-{fd}-{}", defines.join("-")), defines, |driver, _| {
            handle_types(&driver.device(0).unwrap())
        });
        assert_eq!(found, HandleTypes { fd, fabric });
    }
}
