//! Misuse across nodes: what one rank does wrong is told to all, nothing moves, and the communicator goes on. Ranks that
//! build unlike communicators are told so, and nothing stays behind. Also networks that break their promises.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod conformance;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use conformance::Case;
use expertrail::core::hop::Limits;
use expertrail::fabric::ofi::{self, Library, OpenOptions, Provider};
use expertrail::fabric::sim::{Network, Plan};
use expertrail::fabric::{FabricError, Transport};
use expertrail::host::{Cause, HostError};
use expertrail::{
    Bf16, Builder, Communicator, Crossing, Dispatch, Error, Group, Payload, Placement, RailConfig, Routing,
    Shape, Simd,
};

const SHAPE: Shape = Shape { max_tokens: 16, hidden: 64, top_k: 2, experts: 8 };

fn config() -> RailConfig {
    let limits = Limits { chunk_bytes: 4096, window: 2, small_chunks: true };
    RailConfig { limits, outgoing: 3, ..RailConfig::default() }
}

fn crossing(network: &Network, rank: usize) -> Crossing {
    Crossing { transport: Box::new(network.endpoint(rank as u32)), config: config() }
}

fn builder(group: &Group) -> Builder<'_> {
    Communicator::builder(group).shape(SHAPE).ranks_per_node(2).deadline(Duration::from_secs(20))
}

/// Runs `rank` on `ranks` threads; gives what they return.
fn on_groups<T: Send>(ranks: usize, rank: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let groups = Group::local_threads(ranks).expect("groups");
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Ranks 0 1 on one node, 2 3 on the other, over a network without order.
fn on_two_nodes<T: Send>(seed: u64, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let network = Network::new(Plan::reordering(seed));
    on_groups(4, |group| {
        rank(builder(group).build_across(Ok(crossing(&network, group.rank()))).expect("build"))
    })
}

fn routing() -> Routing {
    Routing::new((0..8).flat_map(|t| [t, (t + 3) % 8]).collect(), 2, 8).unwrap()
}

fn rows(tokens: usize) -> Vec<Bf16> {
    vec![Bf16::from_f32(1.0); tokens * SHAPE.hidden]
}

/// Each token comes back once from each of its ranks.
fn works(comm: &Communicator) {
    let received = comm.dispatch(&rows(8), &routing()).unwrap();
    let combined = comm.combine(received.bf16().unwrap(), received.handle()).unwrap();
    let placement = Placement::new(8, comm.topology().ranks()).unwrap();
    for (token, row) in combined.rows().chunks(SHAPE.hidden).enumerate() {
        let ranks = [token, (token + 3) % 8].map(|expert| placement.rank_of(expert));
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

/// Also when the rank refuses several calls in a row and so runs ahead of ranks that have not looked yet: the places of
/// their headers alternate, and the third must not land on the first.
#[test]
fn a_call_refused_on_one_node_is_an_error_on_all() {
    for (seed, refused) in [(1, 1), (2, 2), (3, 3), (4, 5)] {
        let errors = on_two_nodes(seed, |comm| {
            works(&comm);
            let errors: Vec<HostError> = (0..refused)
                .map(|_| {
                    let tokens = if comm.rank() == 2 { 7 } else { 8 };
                    let error = host(comm.dispatch(&rows(tokens), &routing()).unwrap_err());
                    if comm.rank() != 2 {
                        std::thread::sleep(Duration::from_millis(10 * comm.rank() as u64 + 10));
                    }
                    error
                })
                .collect();
            works(&comm);
            comm.status().unwrap();
            errors
        });
        for (rank, errors) in errors.iter().enumerate() {
            for error in errors {
                match error {
                    HostError::Misuse { rank: 2, .. } => assert_eq!(rank, 2),
                    HostError::Refused { peer: 2, .. } => assert_ne!(rank, 2),
                    other => panic!("rank {rank}: {other}"),
                }
            }
        }
    }
}

#[test]
fn ranks_of_two_nodes_in_different_calls_are_both_named() {
    let errors = on_two_nodes(5, |comm| {
        let received = comm.dispatch(&rows(8), &routing()).unwrap();
        let error = if comm.rank() == 3 {
            comm.combine(received.bf16().unwrap(), received.handle()).unwrap_err()
        } else {
            comm.dispatch(&rows(8), &routing()).unwrap_err()
        };
        works(&comm);
        host(error)
    });
    for (rank, error) in errors.iter().enumerate() {
        let HostError::Mismatch { a, a_call, b, b_call, .. } = error else { panic!("rank {rank}: {error}") };
        assert_ne!(a, b);
        for (who, call) in [(a, a_call), (b, b_call)] {
            let wanted = if *who == 3 { "combine" } else { "dispatch" };
            assert!(call.starts_with(wanted), "rank {who}: {call}");
        }
        assert!(*a == 3 || *b == 3, "rank {rank}: {error}");
    }
}

#[test]
fn a_whole_node_in_another_call_is_named_too() {
    let errors = on_two_nodes(6, |comm| {
        let error = if comm.rank() >= 2 {
            comm.barrier().unwrap_err()
        } else {
            comm.dispatch(&rows(8), &routing()).unwrap_err()
        };
        works(&comm);
        host(error)
    });
    for (rank, error) in errors.iter().enumerate() {
        let HostError::Mismatch { a, b, .. } = error else { panic!("rank {rank}: {error}") };
        assert_ne!(a / 2, b / 2, "one of each node: {error}");
    }
}

#[test]
fn a_worst_case_output_too_small_on_one_node_is_named_on_all() {
    // Experts 6 and 7 are rank 3's. Of the 8 tokens of each of 4 ranks, those that choose one of them are 3, 4, 6 and 7.
    let errors = on_two_nodes(7, |comm| {
        let (x, routing) = (rows(8), routing());
        let args = Dispatch::new(Payload::Bf16(&x), &routing);
        let room = |small: usize| if comm.rank() == 3 { args.worst_case_rows(small) } else { args };
        let errors = [0, 15].map(|rows| host(comm.dispatch_with(&room(rows)).unwrap_err()));
        let exact = comm.dispatch_with(&room(16)).unwrap();
        assert_eq!(exact.rows(), 16);
        works(&comm);
        errors
    });
    for errors in errors {
        for (error, rows) in errors.into_iter().zip([0, 15]) {
            let wanted = matches!(error, HostError::TooSmall { rank: 3, needed: 16, given } if given == rows);
            assert!(wanted, "{error}");
        }
    }
}

#[test]
fn outputs_too_small_on_several_nodes_are_named_alike() {
    // Three nodes of one rank. Rank 0 has experts 0 to 2, rank 1 has 3 to 5: all tokens choose both.
    let network = Network::new(Plan::reordering(8));
    let errors = on_groups(3, |group| {
        let build = builder(group).ranks_per_node(1);
        let comm = build.build_across(Ok(crossing(&network, group.rank()))).unwrap();
        let (x, routing) = (rows(8), Routing::new([0, 3].repeat(8), 2, 8).unwrap());
        let args = Dispatch::new(Payload::Bf16(&x), &routing).worst_case_rows([5, 6, 24][group.rank()]);
        let error = host(comm.dispatch_with(&args).unwrap_err());
        works(&comm);
        error
    });
    for error in errors {
        assert!(matches!(error, HostError::TooSmall { rank: 0, needed: 24, given: 5 }), "{error}");
    }
}

/// Threads of this process whose names are those of a communicator's.
fn threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("rail-") || name.starts_with("watch-")).count()
}

/// Builds with what `change` makes of each rank's settings; gives the errors of all ranks, and that they came at once.
fn refused_builds(
    change: impl Fn(usize, &Network) -> (Shape, usize, Result<Crossing, FabricError>) + Sync,
) -> Vec<String> {
    let network = Network::new(Plan::reordering(9));
    let started = Instant::now();
    let texts = on_groups(4, |group| {
        let (shape, per_node, crossing) = change(group.rank(), &network);
        let build = builder(group).shape(shape).ranks_per_node(per_node);
        let error = build.build_across(crossing).map(drop).expect_err("ranks differ");
        // The group is whole: the ranks can build again, alike.
        let network = &network;
        works(&builder(group).build_across(Ok(self::crossing(network, group.rank()))).expect("build"));
        error.to_string()
    });
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    texts
}

#[test]
fn ranks_that_build_unlike_rails_learn_both_values() {
    type Change = fn(&mut RailConfig);
    let changes: [(Change, &str, [&str; 2]); 3] = [
        (|c| c.limits.window = 4, "the window of the rails", ["2", "4"]),
        (|c| c.outgoing = 5, "the chunks on their way at once", ["3", "5"]),
        (|c| c.limits.chunk_bytes = 8192, "the bytes of a chunk", ["4096", "8192"]),
    ];
    for (change, what, [here, there]) in changes {
        for text in refused_builds(|rank, network| {
            let mut crossing = crossing(network, rank);
            if rank == 3 {
                change(&mut crossing.config);
            }
            (SHAPE, 2, Ok(crossing))
        }) {
            assert!(text.contains(what), "{text}");
            assert!(text.contains(&format!("rank 0 has {here}, rank 3 has {there}")), "{text}");
        }
    }
}

#[test]
fn ranks_of_two_nodes_with_other_shapes_learn_both() {
    for text in refused_builds(|rank, network| {
        let hidden = if rank == 2 { 128 } else { 64 };
        (Shape { hidden, ..SHAPE }, 2, Ok(crossing(network, rank)))
    }) {
        assert!(text.contains("rank 0 has 16 tokens x 64 hidden"), "{text}");
        assert!(text.contains("rank 2 has 16 tokens x 128 hidden"), "{text}");
    }
}

/// 1 rank a node and 2; 4 are one node, which needs no network; 3 do not divide 4 ranks.
#[test]
fn other_ranks_per_node_are_an_error_everywhere() {
    for (per_node, own, others) in [
        (1, "rank 0 has 2, rank 1 has 1", "rank 0 has 2, rank 1 has 1"),
        (4, "4 ranks on 1 nodes", "rank 1 cannot"),
        (3, "3", "rank 1 cannot"),
    ] {
        let texts = refused_builds(|rank, network| {
            (SHAPE, if rank == 1 { per_node } else { 2 }, Ok(crossing(network, rank)))
        });
        for (rank, text) in texts.iter().enumerate() {
            assert!(text.contains(if rank == 1 { own } else { others }), "rank {rank}: {text}");
        }
    }
}

#[test]
fn a_rank_without_an_endpoint_is_named_by_the_others() {
    let texts = refused_builds(|rank, network| {
        let none = FabricError::Unsuitable { provider: "verbs on mlx5_9".into(), lacks: "a cable".into() };
        (SHAPE, 2, if rank == 1 { Err(none) } else { Ok(crossing(network, rank)) })
    });
    for (rank, text) in texts.iter().enumerate() {
        assert!(text.contains("verbs on mlx5_9 cannot be used: a cable"), "rank {rank}: {text}");
        assert!(rank == 1 || text.contains("rank 1"), "rank {rank}: {text}");
    }
}

#[test]
fn rails_of_other_providers_are_not_joined() {
    let library = match Library::open() {
        Ok(library) => library,
        Err(error) => {
            assert!(std::env::var_os(ofi::VARIABLE).is_none(), "{error}");
            println!("NOT RUN: {error}");
            return;
        }
    };
    let options = OpenOptions { provider: Provider::Named("shm".into()), ..OpenOptions::default() };
    for text in refused_builds(|rank, network| {
        let transport: Box<dyn Transport> = if rank == 3 {
            ofi::open_with(&library, &options).unwrap()
        } else {
            Box::new(network.endpoint(rank as u32))
        };
        (SHAPE, 2, Ok(Crossing { transport, config: config() }))
    }) {
        assert!(text.contains("rank 0 has sim, rank 3 has shm"), "{text}");
    }
}

/// In a test process of its own thread count: other tests of this program run communicators at the same time.
#[test]
#[ignore = "counts this process's threads; started by the next"]
fn alone_builds_leave_no_threads() {
    refused_builds(|rank, network| {
        (
            SHAPE,
            2,
            if rank == 3 {
                Err(FabricError::Argument { what: "no".into() })
            } else {
                Ok(crossing(network, rank))
            },
        )
    });
    assert_eq!(threads(), 0);
    on_two_nodes(10, |comm| works(&comm));
    assert_eq!(threads(), 0);
}

#[test]
fn builds_leave_no_threads() {
    let program = std::env::current_exe().unwrap();
    let args = ["--ignored", "--exact", "alone_builds_leave_no_threads"];
    let output = std::process::Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Every rank says that something came twice, and names a rank of the other node.
#[test]
fn completions_that_come_twice_end_the_communicator_everywhere() {
    let mut fastest = Duration::MAX;
    for seed in 0..6 {
        let network = Network::new(Plan { duplicate: 200, ..Plan::reordering(seed) });
        let started = Instant::now();
        let together = Barrier::new(4);
        let errors = on_groups(4, |group| {
            let comm = builder(group).build_across(Ok(crossing(&network, group.rank()))).unwrap();
            let error = (0..200).find_map(|_| {
                let received = comm.dispatch(&rows(8), &routing());
                received.and_then(|r| comm.combine(r.bf16().unwrap(), r.handle())).err()
            });
            let error = host(error.expect("one write in five is told twice"));
            assert_eq!(error.to_string(), comm.barrier().unwrap_err().to_string());
            together.wait();
            error
        });
        assert!(network.counts().duplicates > 0);
        for (rank, error) in errors.iter().enumerate() {
            let HostError::Failed { failure, .. } = error else { panic!("rank {rank}: {error}") };
            assert_eq!(failure.cause, Cause::Repeated, "rank {rank}: {error}");
            assert_ne!(failure.culprit / 2, failure.reporter / 2, "{error}");
            assert!(error.to_string().contains("twice"), "{error}");
        }
        fastest = fastest.min(started.elapsed());
    }
    // No death could explain it: nobody waits a second and a half for news of one.
    assert!(fastest < Duration::from_millis(1500), "{fastest:?}");
}

/// The suite must notice a transport that tells of arrivals before they are there: else it would not notice code that
/// relies on an order.
#[test]
fn the_suite_fails_over_a_network_that_tells_too_early() {
    let simd = Simd::available().last().unwrap();
    let case = conformance::cases().into_iter().find(|case| case.ranks == 4).expect("a case of four ranks");
    let case = Case { ranks_per_node: 2, ..case };
    let mut caught = 0;
    for seed in 0..6 {
        let early = Plan { early_completion: true, delay: (20, 200), ..Plan::reordering(seed) };
        let network = Network::new(early);
        let failed = on_groups(case.ranks, |group| {
            conformance::run(group, &case, simd, Some(Ok(crossing(&network, group.rank())))).is_err()
        });
        caught += usize::from(failed.contains(&true));
    }
    assert!(caught >= 4, "{caught} of 6 seeds");
}
