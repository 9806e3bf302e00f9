//! Shared device memory, over a fake driver whose memory is memfds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/ranks.rs"]
mod ranks;
mod support;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use expertrail_cuda::{BuildError, Context, Mesh, Physical, Pinned, SymmetricHeap, granularity};
use expertrail_group::Group;
use ranks::{alive, driver, ranks, says};

const GRANULE: usize = 2 << 20;

fn heap(group: &Group, context: &Context, bytes: usize) -> Result<SymmetricHeap, BuildError> {
    let mesh = Mesh::connect_in(group, Duration::from_secs(20), None).unwrap();
    SymmetricHeap::create(group, &mesh, context, bytes)
}

/// Every rank's result of a heap of `bytes(rank)`; nothing of the driver may be alive afterwards.
fn heaps(
    test: &str,
    count: usize,
    defines: &[&str],
    bytes: impl Fn(usize) -> usize + Sync,
) -> Vec<BuildError> {
    driver(test, defines, |driver, path| {
        let errors = ranks(count, |group| {
            let context = driver.device(group.rank()).unwrap().context().unwrap();
            heap(&group, &context, bytes(group.rank())).unwrap_err()
        });
        assert_eq!(alive(path), 0);
        errors
    })
}

/// The bytes at a "device" address of the fake: plain memory of this process.
fn memory(address: u64, bytes: usize) -> *mut [u8] {
    std::ptr::slice_from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address as usize), bytes)
}

#[test]
fn what_one_rank_writes_the_others_read() {
    for count in [1_usize, 2, 4] {
        driver(&format!("heap-{count}"), &["COUNT=4"], |driver, path| {
            ranks(count, |group| {
                let rank = group.rank();
                let context = driver.device(rank).unwrap().context().unwrap();
                let heap = heap(&group, &context, GRANULE + 1).unwrap();
                assert_eq!(heap.bytes(), 2 * GRANULE);
                assert_eq!(heap.own(), heap.peer(rank));
                let mut addresses: Vec<u64> = (0..count).map(|peer| heap.peer(peer)).collect();
                addresses.sort_unstable();
                assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= 2 * GRANULE as u64));
                // Each writes its part of everybody's memory, through its own mapping of it.
                let part = heap.bytes() / count;
                for peer in 0..count {
                    // SAFETY: mapped read-write, as long as that; the parts of the ranks are apart.
                    unsafe {
                        (&mut *memory(heap.peer(peer) + (rank * part) as u64, part))
                            .fill((16 * rank + peer) as u8);
                    };
                }
                group.barrier("written").unwrap();
                // SAFETY: nobody writes any more.
                let own = unsafe { &*memory(heap.own(), heap.bytes()) };
                for (writer, bytes) in own.chunks(part).enumerate() {
                    assert!(
                        bytes.iter().all(|byte| *byte == (16 * writer + rank) as u8),
                        "{writer} to {rank}"
                    );
                }
                group.barrier("read").unwrap();
            });
            assert_eq!(alive(path), 0);
        });
    }
}

#[test]
fn a_survivors_mapping_keeps_the_memory() {
    driver("outlives", &[], |driver, path| {
        ranks(2, |group| {
            let context = driver.device(group.rank()).unwrap().context().unwrap();
            let heap = heap(&group, &context, 1).unwrap();
            // SAFETY: mapped, and only its owner writes.
            unsafe { (&mut *memory(heap.own(), GRANULE)).fill(7 + group.rank() as u8) };
            group.barrier("written").unwrap();
            if group.rank() == 0 {
                drop(heap);
                group.barrier("dropped").unwrap();
            } else {
                group.barrier("dropped").unwrap();
                // SAFETY: still mapped here.
                assert!(unsafe { &*memory(heap.peer(0), GRANULE) }.iter().all(|byte| *byte == 7));
            }
        });
        assert_eq!(alive(path), 0);
    });
}

#[test]
fn sizes_must_agree() {
    for error in heaps("sizes", 3, &["COUNT=3"], |rank| if rank == 2 { 2 * GRANULE } else { GRANULE }) {
        says(&error, &["rank 0 has 2097152, rank 2 has 4194304", "same settings"]);
        assert!(matches!(error, BuildError::Disagree { a: 0, b: 2, .. }));
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn a_rank_without_memory_says_how_much_there_is() {
    let errors = heaps("oom", 2, &["ODD=1", "FREE=3145728"], |_| 2 * GRANULE);
    let parts = ["device 1 (Fake B, GPU-29292929-", "3.0 MiB of 2.0 MiB free", "4.0 MiB are needed"];
    says(&errors[1], &parts);
    assert!(matches!(errors[1], BuildError::OutOfMemory { needed: 4_194_304, free: 3_145_728, .. }));
    assert_eq!(errors[1].exit_code(), 2);
    says(&errors[0], &parts);
    assert!(matches!(errors[0], BuildError::PeerBuild { rank: 0, peer: 1, .. }), "{}", errors[0]);
    // More than addresses can count.
    for error in heaps("oom-absurd", 2, &[], |_| usize::MAX) {
        assert!(matches!(error, BuildError::OutOfMemory { .. }), "{error}");
    }
}

#[test]
fn memory_that_cannot_be_mapped_names_the_peer() {
    for (rank, error) in heaps("import", 2, &["IMPORT=101"], |_| GRANULE).into_iter().enumerate() {
        let peer = 1 - rank;
        says(
            &error,
            &[&format!("rank {rank} cannot map the memory of rank {peer}: cuMemImportFromShareableHandle")],
        );
        says(&error, &["topo -p2p", "--gpus all"]);
        assert!(matches!(error, BuildError::PeerMemory { .. }));
        assert_eq!(error.exit_code(), 4);
    }
    for error in heaps("access", 2, &["ACCESS=801"], |_| GRANULE) {
        says(&error, &["cuMemSetAccess", "801"]);
    }
}

#[test]
fn a_rank_that_ends_before_the_exchange_is_noticed() {
    driver("ends", &[], |driver, path| {
        let errors = ranks(2, |group| {
            let context = driver.device(group.rank()).unwrap().context().unwrap();
            let mesh = Mesh::connect_in(&group, Duration::from_secs(20), None).unwrap();
            if group.rank() == 1 {
                return None;
            }
            Some(SymmetricHeap::create(&group, &mesh, &context, GRANULE).unwrap_err())
        });
        says(errors[0].as_ref().unwrap(), &["rank 1"]);
        assert_eq!(alive(path), 0);
    });
}

#[test]
fn physical_memory_crosses_as_a_descriptor() {
    driver("physical", &["RDMA=0"], |driver, path| {
        let context = driver.device(1).unwrap().context().unwrap();
        assert_eq!(granularity(&context).unwrap(), GRANULE);
        let physical = Physical::new(&context, 0).unwrap();
        assert_eq!(physical.bytes(), GRANULE);
        let fd = physical.export().unwrap();
        let (first, second) = (
            physical.map().unwrap(),
            Physical::import(&context, fd.as_fd(), GRANULE).unwrap().map().unwrap(),
        );
        drop(fd);
        assert_ne!(first.address(), second.address());
        assert_eq!((second.bytes(), second.physical().bytes()), (GRANULE, GRANULE));
        // SAFETY: both are mapped, one is written before the other is read.
        unsafe {
            (&mut *memory(first.address(), GRANULE))[GRANULE - 1] = 9;
            assert_eq!((&*memory(second.address(), GRANULE))[GRANULE - 1], 9);
        }
        let file = std::fs::File::open(path).unwrap();
        let error = Physical::import(&context, file.as_fd(), GRANULE).unwrap().map().unwrap_err();
        says(&error, &["cuMemMap"]);
        drop((first, second, context));
        assert_eq!(alive(path), 0);
    });
}

#[test]
fn pinned_words_are_zero_and_shared() {
    driver("pinned", &[], |driver, path| {
        let context = driver.device(0).unwrap().context().unwrap();
        let pinned = Pinned::new(&context, 100).unwrap();
        assert_eq!(pinned.bytes(), 104);
        assert!((0..104).step_by(4).all(|at| pinned.word32(at).load(Ordering::Relaxed) == 0));
        pinned.word64(96).store(0x1122_3344_5566_7788, Ordering::Relaxed);
        assert_eq!(pinned.word32(96).load(Ordering::Relaxed), 0x5566_7788);
        pinned.word32(4).store(5, Ordering::Relaxed);
        // SAFETY: the fake's device addresses are plain memory.
        assert_eq!(unsafe { &*memory(pinned.address(), 104) }[4], 5);
        drop((pinned, context));
        assert_eq!(alive(path), 0);
    });
    driver("pinned-none", &["ALLOC=2"], |driver, path| {
        let context = driver.device(0).unwrap().context().unwrap();
        says(&Pinned::new(&context, 8).unwrap_err(), &["cuMemHostAlloc", "OUT_OF_MEMORY"]);
        drop(context);
        assert_eq!(alive(path), 0);
    });
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only debug builds check")]
fn words_outside_are_refused_in_debug_builds() {
    driver("pinned-outside", &[], |driver, _| {
        let context = driver.device(0).unwrap().context().unwrap();
        let pinned = Pinned::new(&context, 16).unwrap();
        for offset in [16, 2, usize::MAX - 3] {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pinned.word32(offset).load(Ordering::Relaxed)
            }));
            assert!(caught.is_err(), "{offset}");
        }
    });
}
