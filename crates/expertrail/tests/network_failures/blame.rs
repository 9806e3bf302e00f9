//! Who is named when several ranks wait for one another, and who learns of a way that broke behind his back. Over the
//! simulated network, with deadlines that differ so that the rank that is to find it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use expertrail::fabric::Transport;
use expertrail::fabric::sim::{Cut, Network, Plan};
use expertrail::host::{Cause, HostError};
use expertrail::{Communicator, Crossing, Error, Group};

use super::line::When;
use super::rank::{SHAPE, crossing, works};
use super::trap::Trap;

/// Two chunks are all that a rank sends to another in a combine.
fn two_chunks(transport: Box<dyn Transport>) -> Crossing {
    let mut crossing = crossing(transport);
    crossing.config.limits.chunk_bytes = 8192;
    crossing
}

/// Runs `rank` on `ranks` threads, each with a communicator whose deadline it chooses.
fn on_nodes(
    (ranks, per_node): (usize, usize),
    open: impl Fn(usize) -> Box<dyn Transport> + Sync,
    deadline: impl Fn(usize) -> u64 + Sync,
    rank: impl Fn(&Communicator) -> Option<Error> + Sync,
) -> Vec<Option<HostError>> {
    let groups = Group::local_threads(ranks).expect("groups");
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .iter()
            .map(|group| {
                scope.spawn(|| {
                    let comm = Communicator::builder(group)
                        .shape(SHAPE)
                        .ranks_per_node(per_node)
                        .deadline(Duration::from_millis(deadline(group.rank())))
                        .build_across(Ok(two_chunks(open(group.rank()))))
                        .expect("build");
                    works(&comm).expect("a first round trip");
                    group.barrier("all have made it").expect("barrier");
                    rank(&comm)
                })
            })
            .collect();
        let errors = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        errors
            .map(|error| {
                error.map(|error| match error {
                    Error::Host(error) => error,
                    other => panic!("{other}"),
                })
            })
            .collect()
    })
}

fn all_say(errors: &[Option<HostError>], cause: Cause, culprit: usize, reporter: usize) {
    for (rank, error) in errors.iter().enumerate() {
        let Some(HostError::Failed { failure, .. }) = error else { panic!("rank {rank}: {error:?}") };
        assert_eq!((failure.cause, failure.culprit), (cause, culprit), "rank {rank}: {failure}");
        assert_eq!(failure.reporter, reporter, "rank {rank}: {failure}");
    }
}

/// Until the communicator fails, without a call.
fn idle(comm: &Communicator) -> Option<Error> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(15) {
        if let Err(error) = comm.status() {
            return Some(error);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// Rank 1 loses patience first. It waits for rank 0 of its node, which waits for rank 2, which does nothing.
#[test]
fn a_rank_that_waits_for_one_that_waits_names_the_last() {
    let network = Network::new(Plan::reordering(1));
    let errors = on_nodes(
        (4, 2),
        |rank| Box::new(network.endpoint(rank as u32)),
        |rank| if rank == 1 { 700 } else { 20_000 },
        |comm| if comm.rank() == 2 { idle(comm) } else { works(comm).err() },
    );
    all_say(&errors, Cause::Deadline, 2, 1);
}

/// Rank 2 loses patience first. It waits for rows of rank 0, which waits for rank 1, whose header to it is lost: rank 2 has
/// heard from rank 1, and of rank 0 only what it waits for.
#[test]
fn a_rank_is_not_blamed_for_what_it_waits_for_on_another_node() {
    let network = Network::new(Plan::reordering(2));
    let errors = on_nodes(
        (3, 1),
        |rank| Box::new(network.endpoint(rank as u32)),
        |rank| if rank == 2 { 4000 } else { 20_000 },
        |comm| {
            if comm.rank() == 1 {
                network.cut(Cut { from: 1, to: 0, both: false, at: 0, fail_after: None });
            } else {
                // Until the cut is there.
                std::thread::sleep(Duration::from_millis(200));
            }
            works(comm).err()
        },
    );
    all_say(&errors, Cause::Deadline, 1, 2);
}

/// Rank 0's last write of a call fails long after rank 0 has gone on to other things. It must tell rank 1, which waits.
#[test]
fn a_way_that_breaks_behind_an_idle_rank_is_told() {
    let network = Network::new(Plan { buffered: 0, ..Plan::reordering(3) });
    let armed = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let errors = on_nodes(
        (2, 1),
        |rank| {
            let transport = Box::new(network.endpoint(rank as u32));
            let cut = network.clone();
            let action = move || {
                // Whatever rank 1 has sent is acknowledged by then: it writes nothing more that could fail.
                std::thread::sleep(Duration::from_millis(300));
                cut.cut(Cut { from: 0, to: 1, both: false, at: 0, fail_after: Some(2000) });
            };
            if rank == 0 {
                Box::new(Trap::new(transport, armed.clone(), When::Combine, Box::new(action)))
            } else {
                transport
            }
        },
        |_| 20_000,
        |comm| {
            if comm.rank() == 0 {
                armed.store(true, Ordering::Release);
                // It has all that it needs itself, unless it was told of the break already.
                return works(comm).err().or_else(|| idle(comm));
            }
            works(comm).err()
        },
    );
    all_say(&errors, Cause::Network, 1, 0);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}
