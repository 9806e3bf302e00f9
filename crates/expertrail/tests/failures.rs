//! What happens when a rank misuses the library, differs from the others, is late, or goes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use expertrail::host::{Cause, HostError};
use expertrail::{
    Bf16, Builder, Combine, Communicator, Dispatch, Error, Group, Layout, Payload, Routing, Shape,
};

const SHAPE: Shape = Shape { max_tokens: 16, hidden: 64, top_k: 2, experts: 6 };

/// Runs `rank` on `ranks` threads with a communicator each, and gives what they return.
fn on_ranks<T: Send>(ranks: usize, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    on_groups(ranks, |group| rank(builder(group).build().expect("build")))
}

fn on_groups<T: Send>(ranks: usize, rank: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let groups = Group::local_threads(ranks).expect("groups");
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn builder(group: &Group) -> Builder<'_> {
    Communicator::builder(group).shape(SHAPE).deadline(Duration::from_secs(20))
}

/// 8 tokens, each to expert `token % 6` and its successor.
fn routing() -> Routing {
    Routing::new((0..8).flat_map(|t| [t % 6, (t + 1) % 6]).collect(), 2, 6).unwrap()
}

fn rows(tokens: usize, value: f32) -> Vec<Bf16> {
    vec![Bf16::from_f32(value); tokens * 64]
}

/// A round trip that everybody can check: each token comes back once from each of its ranks.
fn works(comm: &Communicator) {
    let received = comm.dispatch(&rows(8, 1.0), &routing()).unwrap();
    let combined = comm.combine(received.bf16().unwrap(), received.handle()).unwrap();
    let placement = expertrail::Placement::new(6, comm.topology().ranks()).unwrap();
    for (token, row) in combined.rows().chunks(64).enumerate() {
        let ranks = [token % 6, (token + 1) % 6].map(|e| placement.rank_of(e));
        let want = if ranks[0] == ranks[1] { 1.0 } else { 2.0 };
        assert!(row.iter().all(|v| v.to_f32() == want), "token {token}");
    }
}

fn host(error: Error) -> HostError {
    match error {
        Error::Host(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_refused_call_is_an_error_everywhere_and_the_next_works() {
    for round in 0..3 {
        let errors = on_ranks(3, |comm| {
            works(&comm);
            // Rank 1 gives a row too few, several times in a row, so that it runs ahead of the others.
            let mut errors = Vec::new();
            for _ in 0..=round {
                let tokens = if comm.rank() == 1 { 7 } else { 8 };
                errors.push(host(comm.dispatch(&rows(tokens, 1.0), &routing()).unwrap_err()));
                if comm.rank() != 1 {
                    std::thread::sleep(Duration::from_millis(5 * comm.rank() as u64));
                }
            }
            works(&comm);
            comm.status().unwrap();
            errors
        });
        for (rank, errors) in errors.iter().enumerate() {
            for error in errors {
                match error {
                    HostError::Misuse { rank: 1, .. } => assert_eq!(rank, 1),
                    HostError::Refused { peer: 1, .. } => assert_ne!(rank, 1),
                    other => panic!("rank {rank}: {other}"),
                }
            }
        }
    }
}

#[test]
fn misuse_says_what_was_given_and_wanted() {
    let texts = on_ranks(1, |comm| {
        let received = comm.dispatch(&rows(8, 1.0), &routing()).unwrap();
        let text = |e: Error| {
            assert_eq!(e.exit_code(), 2, "{e}");
            e.to_string()
        };
        let wide = Routing::new(vec![0; 30], 3, 6).unwrap();
        let other = Routing::new(vec![0; 16], 2, 9).unwrap();
        let many = Routing::new(vec![0; 34], 2, 6).unwrap();
        let (weights, biases) = (vec![0f32; 15], [&rows(8, 0.0)[..]; 3].map(<[Bf16]>::to_vec));
        let biases: Vec<&[Bf16]> = biases.iter().map(|b| &b[..]).collect();
        let codes = vec![0u8; 8 * 64];
        vec![
            text(comm.dispatch(&rows(8, 1.0), &wide).unwrap_err()),
            text(comm.dispatch(&rows(8, 1.0), &other).unwrap_err()),
            text(comm.dispatch(&rows(17, 1.0), &many).unwrap_err()),
            text(
                comm.dispatch_with(
                    &Dispatch::new(Payload::Bf16(&rows(8, 1.0)), &routing()).weights(&weights),
                )
                .unwrap_err(),
            ),
            text(
                comm.dispatch_with(&Dispatch::new(Payload::Fp8 { codes: &codes, scales: &[] }, &routing()))
                    .unwrap_err(),
            ),
            text(
                comm.dispatch_with(
                    &Dispatch::new(Payload::Bf16(&rows(8, 1.0)), &routing())
                        .layout(Layout::ExpertMajor { alignment: 0 }),
                )
                .unwrap_err(),
            ),
            text(
                comm.dispatch_with(
                    &Dispatch::new(Payload::Bf16(&rows(8, 1.0)), &routing()).worst_case_rows(1 << 50),
                )
                .unwrap_err(),
            ),
            text(comm.combine(&rows(7, 1.0), received.handle()).unwrap_err()),
            text(
                comm.combine_with(
                    &Combine::new(received.bf16().unwrap(), received.handle()).row_weights(&weights),
                )
                .unwrap_err(),
            ),
            text(
                comm.combine_with(&Combine::new(received.bf16().unwrap(), received.handle()).biases(&biases))
                    .unwrap_err(),
            ),
            text(
                comm.combine_into(
                    &Combine::new(received.bf16().unwrap(), received.handle()),
                    &mut rows(7, 0.0),
                )
                .unwrap_err(),
            ),
        ]
    });
    let wanted = [
        "3 elements given, 2 wanted",
        "9 experts",
        "17 tokens",
        "weights: 15 elements given, 16 wanted",
        "hidden size 64",
        "alignment 0",
        "worst-case rows",
        "448 elements given, 512 wanted",
        "row weights",
        "biases: 3 elements given, 2 wanted",
        "448 elements given, 512 wanted",
    ];
    for (text, want) in texts[0].iter().zip(wanted) {
        assert!(text.contains(want), "{text} should say {want}");
    }
}

#[test]
fn ranks_in_different_calls_are_both_named() {
    let errors = on_ranks(3, |comm| {
        let received = comm.dispatch(&rows(8, 1.0), &routing()).unwrap();
        let error = if comm.rank() == 2 {
            comm.combine(received.bf16().unwrap(), received.handle()).unwrap_err()
        } else {
            comm.dispatch(&rows(8, 1.0), &routing()).unwrap_err()
        };
        works(&comm);
        error.to_string()
    });
    for text in errors {
        assert!(text.contains("rank 0 called dispatch (bf16, rows by source)"), "{text}");
        assert!(text.contains("rank 2 called combine"), "{text}");
    }
}

#[test]
fn handles_of_different_dispatches_do_not_mix() {
    let errors = on_ranks(2, |comm| {
        let first = comm.dispatch(&rows(8, 1.0), &routing()).unwrap();
        let second = comm.dispatch(&rows(8, 1.0), &routing()).unwrap();
        let mine = if comm.rank() == 0 { &first } else { &second };
        let error = host(comm.combine(mine.bf16().unwrap(), mine.handle()).unwrap_err());
        works(&comm);
        error
    });
    assert!(errors.iter().all(|e| matches!(e, HostError::Mismatch { a: 0, b: 1, .. })), "{errors:?}");
}

#[test]
fn a_stale_handle_is_refused() {
    on_groups(2, |group| {
        let old = builder(group).build().unwrap();
        let received = old.dispatch(&rows(8, 1.0), &routing()).unwrap();
        drop(old);
        let new = builder(group).build().unwrap();
        let error = new.combine(received.bf16().unwrap(), received.handle()).unwrap_err();
        assert!(error.to_string().contains("stale"), "{error}");
        assert_eq!(error.exit_code(), 2);
        works(&new);
    });
}

#[test]
fn a_too_small_worst_case_output_is_named_on_all_ranks() {
    // Experts 2 and 3 are rank 1's: of the 8 tokens of each of 3 ranks, 1, 2, 3 and 7 choose one of them.
    let errors = on_ranks(3, |comm| {
        let (x, routing) = (rows(8, 1.0), routing());
        let args = Dispatch::new(Payload::Bf16(&x), &routing);
        let room = |rank_1: usize| args.worst_case_rows(if comm.rank() == 1 { rank_1 } else { 48 });
        let errors = [0, 5, 11].map(|rows| host(comm.dispatch_with(&room(rows)).unwrap_err()));
        let exact = comm.dispatch_with(&room(12)).unwrap();
        assert_eq!(exact.rows(), if comm.rank() == 1 { 12 } else { 48 });
        works(&comm);
        errors
    });
    for errors in errors {
        for (error, rows) in errors.into_iter().zip([0, 5, 11]) {
            let wanted = matches!(error, HostError::TooSmall { rank: 1, needed: 12, given } if given == rows);
            assert!(wanted, "{error}");
        }
    }
}

#[test]
fn the_largest_worst_case_that_can_arrive_is_accepted() {
    // 2 ranks x 16 tokens x top-2, all to rank 0's experts: 64 rows, and 3 experts padded to 1024 each.
    on_ranks(2, |comm| {
        let routing = Routing::new(vec![0; 32], 2, 6).unwrap();
        let x = rows(16, 2.0);
        for (layout, most) in
            [(Layout::BySource, 32), (Layout::ExpertMajor { alignment: 1024 }, 64 + 3 * 1023)]
        {
            let args = Dispatch::new(Payload::Bf16(&x), &routing).layout(layout).worst_case_rows(most);
            let received = comm.dispatch_with(&args).unwrap();
            assert_eq!(received.rows(), most);
            let arrived = if comm.rank() == 0 { 32 } else { 0 };
            assert_eq!(received.arrivals(), arrived);
        }
        works(&comm);
    });
}

#[test]
fn a_late_rank_is_named_by_everybody_and_for_ever() {
    let started = Instant::now();
    let errors = on_groups(3, |group| {
        let comm = builder(group).deadline(Duration::from_millis(300)).build().unwrap();
        works(&comm);
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1500));
        }
        let error = comm.dispatch(&rows(8, 1.0), &routing()).unwrap_err();
        let again = comm.barrier().unwrap_err();
        assert_eq!(error.to_string(), again.to_string());
        assert_eq!(comm.status().unwrap_err().to_string(), error.to_string());
        (host(error.clone()), error.exit_code())
    });
    for (error, code) in errors {
        let HostError::Failed { failure, .. } = error else { panic!("{error}") };
        assert_eq!((failure.cause, failure.culprit, code), (Cause::Deadline, 1, 124), "{failure}");
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_failure_found_by_another_rank_ends_the_wait_of_all() {
    // Rank 1 sleeps. Rank 2 loses patience after 200 ms and tells everybody; rank 0 would wait for 20 s.
    let errors = on_groups(3, |group| {
        let patience = if group.rank() == 2 { Duration::from_millis(200) } else { Duration::from_secs(20) };
        let comm = builder(group).deadline(patience).build().unwrap();
        works(&comm);
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        let started = Instant::now();
        let error = host(comm.barrier().unwrap_err());
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        // A late writer of the failed call must not find memory of anybody else's.
        assert!(!comm.alloc_rows(1).unwrap().is_shared());
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let HostError::Failed { failure, .. } = error else { panic!("{error}") };
        assert_eq!((failure.cause, failure.culprit, failure.reporter), (Cause::Deadline, 1, 2), "{failure}");
    }
}

/// A rank that was done with a combine and then gave up has its rows back: whoever still read them must fail, not
/// return what it read of changed rows.
#[test]
fn rows_changed_after_a_failure_are_never_somebodys_result() {
    // Long enough for rank 1 that rank 0 notices the cancellation (within 50 ms) while rank 1 still reads.
    let shape = Shape { max_tokens: 12_000, hidden: 4096, top_k: 2, experts: 2 };
    let outcomes = on_groups(2, |group| {
        let token = expertrail::CancelToken::new();
        let slow = expertrail::Simd::Portable;
        let comm =
            Communicator::builder(group).shape(shape).simd(slow).cancel(token.clone()).build().unwrap();
        // All of rank 1's tokens go to both ranks; rank 0 has one token, so it is done at once.
        let tokens = if comm.rank() == 0 { 1 } else { 12_000 };
        let routing = Routing::new([0, 1].repeat(tokens), 2, 2).unwrap();
        let mut received = comm.dispatch(&vec![Bf16::from_f32(1.0); tokens * 4096], &routing).unwrap();
        let handle = received.handle().clone();
        std::thread::scope(|scope| {
            if comm.rank() == 0 {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(2));
                    token.cancel();
                });
            }
            let result = comm
                .combine(received.bf16().unwrap(), &handle)
                .map(|out| out.rows().iter().filter(|v| v.to_f32() != 2.0).count());
            if result.is_err() {
                received.bf16_mut().unwrap().fill(Bf16::from_f32(7.0));
            }
            result
        })
    });
    // Either the cancellation came too late and all is right, or nobody has a result.
    for wrong in outcomes.iter().flatten() {
        assert_eq!(*wrong, 0, "{outcomes:?}");
    }
}

#[test]
fn weights_come_back_right_when_the_pool_is_full() {
    on_groups(2, |group| {
        let comm = builder(group).live_outputs(1).build().unwrap();
        let (x, routing) = (rows(8, 1.0), routing());
        let weights: Vec<f32> = (0..16).map(|i| i as f32 + 1.0).collect();
        let args = Dispatch::new(Payload::Bf16(&x), &routing).weights(&weights);
        let received = comm.dispatch_with(&args).unwrap();
        // Fill the pool to the last grain, with a pattern.
        let mut held = Vec::new();
        loop {
            let mut rows = comm.alloc_rows(1).unwrap();
            if !rows.is_shared() {
                break;
            }
            rows.as_mut_slice().fill(Bf16(0x1357));
            held.push(rows);
        }
        let carried = received.weights().unwrap().to_vec();
        let args = Combine::new(received.bf16().unwrap(), received.handle()).topk_weights(&carried);
        let combined = comm.combine_with(&args).unwrap();
        assert_eq!(combined.weights().unwrap(), weights);
        assert!(received.bf16().unwrap().iter().all(|v| v.to_f32() == 1.0));
        assert!(held.iter().all(|rows| rows.as_slice().iter().all(|v| v.0 == 0x1357)));
    });
}

#[test]
fn sizes_that_cannot_be_are_errors() {
    on_groups(1, |group| {
        for outputs in [4097, 1 << 40, usize::MAX] {
            let error = builder(group).live_outputs(outputs).build().unwrap_err();
            assert!(error.to_string().contains("at most 4096"), "{error}");
        }
        let comm = builder(group).deadline(Duration::MAX).build().unwrap();
        works(&comm);
        for rows in [1 << 56, 1 << 57, 1 << 60, usize::MAX] {
            assert!(comm.alloc_rows(rows).is_err(), "{rows} rows of 128 bytes");
        }
    });
}

#[test]
fn a_rank_that_leaves_is_named() {
    let errors = on_ranks(3, |comm| {
        works(&comm);
        if comm.rank() == 2 {
            return None;
        }
        let started = Instant::now();
        let error = host(comm.dispatch(&rows(8, 1.0), &routing()).unwrap_err());
        assert!(started.elapsed() < Duration::from_secs(2));
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let HostError::Failed { failure, .. } = error else { panic!("{error}") };
        assert_eq!((failure.cause, failure.culprit), (Cause::Left, 2), "{failure}");
    }
}

#[test]
fn ranks_that_build_differently_learn_both_shapes() {
    let errors = on_groups(3, |group| {
        let hidden = if group.rank() == 1 { 128 } else { 64 };
        builder(group).hidden(hidden).build().unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("rank 0 has 16 tokens x 64 hidden, top-2 of 6"), "{text}");
        assert!(text.contains("rank 1 has 16 tokens x 128 hidden, top-2 of 6"), "{text}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn a_rank_that_cannot_build_is_named_by_the_others() {
    let errors = on_groups(2, |group| {
        let b = builder(group);
        let b = if group.rank() == 1 { b.memory_limit(1 << 12) } else { b };
        b.build().unwrap_err().to_string()
    });
    assert!(errors[1].contains("shared memory too small") && errors[1].contains("4.0 KiB"), "{}", errors[1]);
    assert!(errors[0].contains("rank 1") && errors[0].contains("shared memory too small"), "{}", errors[0]);
}

#[test]
fn outputs_outlive_later_calls_and_the_communicator() {
    on_groups(2, |group| {
        let comm = builder(group).live_outputs(1).build().unwrap();
        // More than the pool holds: the rest lands in private memory.
        let kept: Vec<_> =
            (0..40).map(|i| (i, comm.dispatch(&rows(8, i as f32), &routing()).unwrap())).collect();
        works(&comm);
        drop(comm);
        for (i, received) in kept {
            assert!(received.bf16().unwrap().iter().all(|v| v.to_f32() == i as f32), "output {i}");
        }
    });
}

#[test]
fn counts_that_grow_land_in_the_fallback_and_are_counted() {
    let counted = on_groups(4, |group| {
        let comm = Communicator::builder(group)
            .shape(Shape { max_tokens: 400, hidden: 64, top_k: 1, experts: 4 })
            .build()
            .unwrap();
        // All ranks send everything to rank 0: four times what any rank sends itself.
        let routing = Routing::new(vec![0; 400], 1, 4).unwrap();
        for round in 0..3 {
            let received = comm.dispatch(&rows(400, 3.0 + round as f32), &routing).unwrap();
            let want = if comm.rank() == 0 { 1600 } else { 0 };
            assert_eq!(received.rows(), want);
            assert!(received.bf16().unwrap().iter().all(|v| v.to_f32() == 3.0 + round as f32));
        }
        comm.host().stats().fallbacks
    });
    // Only the first: then the rank knows what to expect.
    assert_eq!(counted, [1, 0, 0, 0]);
}

#[test]
fn two_communicators_of_one_group_do_not_disturb_each_other() {
    on_groups(3, |group| {
        let (a, b) = (builder(group).build().unwrap(), builder(group).build().unwrap());
        for _ in 0..20 {
            works(&a);
            works(&b);
        }
    });
}

#[test]
fn cancelling_ends_the_wait() {
    let errors = on_groups(2, |group| {
        let token = expertrail::CancelToken::new();
        let comm = builder(group).cancel(token.clone()).build().unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1200));
            return None;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                token.cancel();
            });
            Some(comm.barrier().unwrap_err())
        })
    });
    assert_eq!(errors[0].as_ref().map(Error::exit_code), Some(130));
}

#[test]
fn each_backend_is_built_by_its_own_call() {
    on_groups(1, |group| {
        let error = builder(group).backend(expertrail::Backend::Cuda).build().unwrap_err();
        assert!(error.to_string().contains("build_cuda()"), "{error}");
        assert_eq!(error.exit_code(), 2);
        let error = builder(group).backend(expertrail::Backend::Host).build_cuda().unwrap_err();
        assert!(error.to_string().contains("call build()"), "{error}");
        assert_eq!(error.exit_code(), 2);
    });
}
