//! Groups of threads: results, deadlines, mismatches, farewells, smaller groups.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

use std::thread;
use std::time::{Duration, Instant};

use expertrail_group::{CancelToken, Group, GroupError, JoinOptions, MAX_BLOB};

const SECOND: Duration = Duration::from_secs(1);

/// Runs `rank` in a thread for each rank and gives their results in order of rank.
fn ranks<T: Send>(count: usize, rank: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let groups = Group::local_threads(count).unwrap();
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What rank `rank` gives in round `round`: every length differs, some are zero.
fn blob(rank: usize, round: usize) -> Vec<u8> {
    vec![(rank * 7 + round) as u8; (rank * 31 + round * 5) % 97]
}

#[test]
fn all_gather_of_any_size() {
    for count in [1, 2, 3, 8, 64] {
        let results = ranks(count, |group| {
            (0..3)
                .map(|round| group.all_gather("gather", &blob(group.rank(), round)).unwrap())
                .collect::<Vec<_>>()
        });
        for result in results {
            for (round, blobs) in result.iter().enumerate() {
                let wanted: Vec<_> = (0..count).map(|rank| blob(rank, round)).collect();
                assert_eq!(*blobs, wanted, "{count} ranks, round {round}");
            }
        }
    }
}

#[test]
fn large_blobs_cross_whole() {
    let results = ranks(3, |group| {
        let mine = vec![group.rank() as u8 + 1; 5_000_000 + group.rank()];
        group.all_gather("large", &mine).unwrap()
    });
    for blobs in results {
        for (rank, blob) in blobs.iter().enumerate() {
            assert_eq!(blob.len(), 5_000_000 + rank);
            assert!(blob.iter().all(|byte| *byte == rank as u8 + 1));
        }
    }
}

#[test]
fn broadcast_from_each_rank() {
    ranks(4, |group| {
        for source in 0..4 {
            let got = group.broadcast("b", source, format!("from {}", group.rank()).as_bytes()).unwrap();
            assert_eq!(got, format!("from {source}").as_bytes());
        }
        assert!(matches!(group.broadcast("b", 4, b""), Err(GroupError::Argument(_))));
        // A misuse that all see alike leaves the group sound.
        group.barrier("after").unwrap();
    });
}

#[test]
fn a_barrier_holds_until_the_last_one() {
    let start = Instant::now();
    let results = ranks(3, |group| {
        if group.rank() == 2 {
            thread::sleep(Duration::from_millis(300));
        }
        group.barrier("b").unwrap();
        start.elapsed()
    });
    assert!(results.iter().all(|elapsed| *elapsed >= Duration::from_millis(300)), "{results:?}");
}

#[test]
fn places_are_known_to_all() {
    ranks(3, |group| {
        assert_eq!((group.size(), group.local_rank(), group.local_size()), (3, group.rank(), 3));
        assert_eq!((group.node(), group.nodes(), group.node_ranks()), (0, 1, vec![0, 1, 2]));
        assert_eq!(group.pids(), [std::process::id(); 3]);
        assert!(group.hosts().iter().all(|host| !host.is_empty()));
        assert_eq!(group.node_of(), [0, 0, 0]);
        // So that rank 0's service outlives everybody's look.
        group.barrier("end").unwrap();
    });
}

#[test]
fn a_world_of_one_needs_nobody() {
    let group = Group::single();
    assert_eq!(group.all_gather("g", b"x").unwrap(), [b"x"]);
    assert_eq!(group.broadcast("b", 0, b"y").unwrap(), b"y");
    group.barrier("w").unwrap();
    group.check().unwrap();
    assert_eq!(group.subset("s", &[0]).unwrap().size(), 1);
}

#[test]
fn different_calls_name_both_ranks_on_all() {
    let errors = ranks(3, |group| match group.rank() {
        0 => group.barrier("x").unwrap_err(),
        1 => {
            thread::sleep(Duration::from_millis(100));
            group.all_gather("y", b"").unwrap_err()
        }
        _ => {
            thread::sleep(Duration::from_millis(200));
            group.barrier("x").unwrap_err()
        }
    });
    for error in &errors {
        let GroupError::Mismatch { first, second } = error else { panic!("{error}") };
        assert_eq!((first.peer.rank, first.call.as_str()), (0, "barrier \"x\""));
        assert_eq!((second.peer.rank, second.call.as_str()), (1, "all_gather \"y\""));
    }
}

#[test]
fn the_deadline_names_who_is_missing_and_stays_the_first_error() {
    let errors = ranks(4, |group| {
        group.set_deadline(SECOND / 2);
        if group.rank() == 1 || group.rank() == 3 {
            thread::sleep(SECOND);
            return group.check().unwrap_err();
        }
        let first = group.barrier("late").unwrap_err();
        assert_eq!(group.barrier("other").unwrap_err(), first);
        assert_eq!(group.all_gather("more", b"").unwrap_err(), first);
        assert_eq!(group.check().unwrap_err(), first);
        first
    });
    for error in errors {
        assert_eq!(error.culprits(), [1, 3]);
        assert_eq!(error.exit_code(), 124);
        assert!(error.to_string().starts_with("barrier \"late\": ranks [1, 3]"), "{error}");
        assert!(error.to_string().contains("did not arrive within 0.5 s"), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_early_is_named_as_having_left() {
    for leaver in [0, 2] {
        let errors = ranks(3, |group| {
            group.barrier("one").unwrap();
            if group.rank() == leaver { None } else { Some(group.barrier("two").unwrap_err()) }
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(&error, GroupError::Left { peer, .. } if peer.rank == leaver), "{error}");
            assert!(error.to_string().contains("barrier \"two\""), "{error}");
        }
    }
}

#[test]
fn leaving_together_is_no_error_however_the_last_messages_fall() {
    for _ in 0..20 {
        ranks(4, |group| {
            group.barrier("last").unwrap();
            group.check().unwrap();
        });
    }
}

#[test]
fn a_rank_that_panics_is_dead_to_the_others() {
    for dead in [0, 1] {
        let groups = Group::local_threads(3).unwrap();
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| {
                thread::spawn(move || {
                    group.barrier("start").unwrap();
                    // A panic without the noise of its message.
                    if group.rank() == dead {
                        let _group = group;
                        std::panic::resume_unwind(Box::new("dies"));
                    }
                    let begun = Instant::now();
                    (group.barrier("go").unwrap_err(), begun.elapsed())
                })
            })
            .collect();
        for (rank, result) in threads.into_iter().map(thread::JoinHandle::join).enumerate() {
            if rank == dead {
                assert!(result.is_err());
                continue;
            }
            let (error, took) = result.unwrap();
            assert!(matches!(&error, GroupError::Died { peer, .. } if peer.rank == dead), "{error}");
            assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
            assert!(error.to_string().contains("during barrier \"go\""), "{error}");
            assert!(took < 2 * SECOND, "{took:?}");
        }
    }
}

#[test]
fn deaths_show_between_calls_too() {
    let mut groups = Group::local_threads(3).unwrap();
    let dying = groups.remove(1);
    let _ = thread::spawn(move || {
        let _group = dying;
        std::panic::resume_unwind(Box::new("dies"));
    })
    .join();
    for group in &groups {
        let until = Instant::now() + 2 * SECOND;
        let error = loop {
            match group.check() {
                Err(error) => break error,
                Ok(()) => assert!(Instant::now() < until),
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(error.to_string().contains("between calls"), "{error}");
        assert_eq!(error.culprits(), [1]);
    }
}

#[test]
fn a_rank_can_tell_the_others_why_it_gives_up() {
    let errors = ranks(3, |group| {
        if group.rank() == 1 {
            group.fail("GPU 3 fell off the bus");
            group.barrier("b").unwrap_err()
        } else {
            group.barrier("b").unwrap_err()
        }
    });
    for error in errors {
        assert_eq!(error.culprits(), [1]);
        assert!(error.to_string().contains("GPU 3 fell off the bus"), "{error}");
    }
}

#[test]
fn a_failure_told_by_another_thread_ends_the_wait() {
    let groups = Group::local_threads(2).unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| groups[1].barrier("b").unwrap_err());
        thread::sleep(SECOND / 5);
        groups[1].fail("told from outside");
        let error = waiting.join().unwrap();
        assert!(error.to_string().contains("told from outside"), "{error}");
    });
    // Rank 1 had entered, so this barrier may still complete, if rank 0's entry is read first.
    let error = groups[0].barrier("b").and_then(|()| groups[0].barrier("next")).unwrap_err();
    assert!(error.to_string().contains("told from outside"), "{error}");
    assert!(begun.elapsed() < 2 * SECOND);
}

#[test]
fn a_cancel_stops_the_wait_here_and_there() {
    let cancel = CancelToken::new();
    let options = JoinOptions { cancel: cancel.clone(), ..JoinOptions::default() };
    let groups = Group::local_threads_with(2, &options).unwrap();
    let stopper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        cancel.cancel();
    });
    let begun = Instant::now();
    let error = groups[1].barrier("never").unwrap_err();
    assert!(matches!(error, GroupError::Cancelled { .. }), "{error}");
    assert_eq!((error.exit_code(), error.culprits()), (130, vec![1]));
    assert!(begun.elapsed() < 2 * SECOND);
    let other = groups[0].barrier("never").and_then(|()| groups[0].barrier("next")).unwrap_err();
    assert!(matches!(other, GroupError::Cancelled { .. }), "{other}");
    stopper.join().unwrap();
}

#[test]
fn too_much_is_refused_on_all_ranks() {
    let errors = ranks(2, |group| {
        let bytes = if group.rank() == 1 { vec![0; MAX_BLOB + 1] } else { Vec::new() };
        group.all_gather("big", &bytes).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, GroupError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn smaller_groups_form_at_once() {
    let lists: [&[usize]; 3] = [&[4, 0, 2], &[1, 5], &[3]];
    ranks(6, |group| {
        let me = group.rank();
        let list = lists.into_iter().find(|list| list.contains(&me)).unwrap();
        let small = group.subset("halves", list).unwrap();
        assert_eq!((small.size(), list[small.rank()]), (list.len(), me));
        let gathered = small.all_gather("inside", &[me as u8]).unwrap();
        let wanted: Vec<Vec<u8>> = list.iter().map(|rank| vec![*rank as u8]).collect();
        assert_eq!(gathered, wanted);
        // The parent is as good as before.
        assert_eq!(group.all_gather("parent", &[me as u8]).unwrap().len(), 6);
        small.barrier("end").unwrap();
    });
}

#[test]
fn lists_that_overlap_are_refused_on_all_ranks_alike() {
    let errors = ranks(3, |group| {
        let list: &[usize] = if group.rank() == 0 { &[0, 1] } else { &[1, 2] };
        let error = group.subset("s", list).unwrap_err();
        // The parent is as good as before.
        group.barrier("after").unwrap();
        error.to_string()
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    assert!(errors[0].contains("rank 0 gave the list [0, 1], rank 1 [1, 2]"), "{}", errors[0]);
}

#[test]
fn groups_move_and_are_shared_between_threads() {
    fn sound<T: Send + Sync>() {}
    sound::<Group>();
    sound::<GroupError>();
}
