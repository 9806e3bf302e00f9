//! One rank of `scripts/test-network`, which gives each node a network namespace of its own: round trips over a real
//! interface, each result compared bit for bit, until the rounds are done or something fails.

use std::time::{Duration, Instant};

use expertrail::fabric::ofi::{self, OpenOptions, Provider};
use expertrail::group::{Endpoint, Identity, JobToken, JoinOptions};
use expertrail::{Bf16, Communicator, Error, Group, Placement, Routing, Shape};

use super::rank::crossing;

/// Rank, ranks, ranks of a node, host and port of rank 0, interface, rounds, deadline in milliseconds.
const ROLE: &str = "EXPERTRAIL_TEST_NAMESPACE";
const SHAPE: Shape = Shape { max_tokens: 128, hidden: 1024, top_k: 2, experts: 8 };

/// Runs as one rank, if this process was started to be one.
pub fn rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let &[rank, ranks, per_node, host, port, interface, rounds, deadline] = &words[..] else {
        panic!("{ROLE}={role}")
    };
    let number = |word: &str| -> usize { word.parse().unwrap() };
    let (rank, per_node) = (number(rank), number(per_node));
    let identity = Identity {
        rank,
        world_size: number(ranks),
        node: Some(rank / per_node),
        local_rank: Some(rank % per_node),
        local_size: Some(per_node),
        host: format!("node{}", rank / per_node),
        job: JobToken::from_parts(["namespaces", port]),
        root: Endpoint { host: host.to_owned(), port: number(port) as u16 },
        ..Identity::single()
    };
    let group = Group::join(&identity, &JoinOptions::default()).unwrap();
    let options = OpenOptions {
        provider: Provider::Named("tcp".to_owned()),
        domain: Some(interface.to_owned()),
        queue_depth: 64,
        arrivals: 256,
        ..OpenOptions::default()
    };
    let comm = Communicator::builder(&group)
        .shape(SHAPE)
        .ranks_per_node(per_node)
        .deadline(Duration::from_millis(number(deadline) as u64))
        .build_across(Ok(crossing(ofi::open(&options).unwrap())))
        .unwrap();
    let inputs = [Input::new(rank, 0), Input::new(rank, 1)];
    round(&comm, &inputs[0], 0).unwrap();
    let (started, before) = (Instant::now(), comm.host().rail_stats().unwrap().proxy.bytes);
    println!("\nrank {rank} started");
    let failure = (1..=number(rounds)).find_map(|number| round(&comm, &inputs[number % 2], number).err());
    let seconds = started.elapsed().as_secs_f64();
    if let Some(error) = failure {
        println!("\nrank {rank} failed after {seconds:.1} s: {error}");
        // What it waited for is gone: neither its end nor that of its group may hang.
        let ending = Instant::now();
        drop(comm);
        drop(group);
        println!("\nrank {rank} ended in {:.1} s", ending.elapsed().as_secs_f64());
        return;
    }
    let bytes = comm.host().rail_stats().unwrap().proxy.bytes - before;
    let rate = bytes as f64 * 8.0 / 1e6 / seconds;
    println!("\nrank {rank} right: {rounds} rounds in {seconds:.1} s, {rate:.0} Mbit/s sent");
}

/// The rows of a rank, and what comes back for a token that went to one rank, and to two. They differ in every element, and
/// sums of two equal small integers are exact.
struct Input {
    rows: Vec<Bf16>,
    doubled: Vec<Bf16>,
}

impl Input {
    fn new(rank: usize, version: usize) -> Self {
        let value = |at: usize| {
            let (token, i) = (at / SHAPE.hidden, at % SHAPE.hidden);
            ((rank * 53 + version * 31 + token * 7 + i * 3) % 128) as f32
        };
        let all = |times: f32| {
            (0..SHAPE.max_tokens * SHAPE.hidden).map(|at| Bf16::from_f32(times * value(at))).collect()
        };
        Self { rows: all(1.0), doubled: all(2.0) }
    }
}

/// One round trip; what comes back is compared bit for bit.
fn round(comm: &Communicator, input: &Input, number: usize) -> Result<(), Error> {
    let choice = |token: usize| [token % 8, (token * 5 + number + 3) % 8];
    let ids = (0..SHAPE.max_tokens).flat_map(choice).map(|expert| expert as i32).collect();
    let routing = Routing::new(ids, SHAPE.top_k, 8)?;
    let received = comm.dispatch(&input.rows, &routing)?;
    let combined = comm.combine(received.bf16().expect("BF16 rows"), received.handle())?;
    let placement = Placement::new(8, comm.topology().ranks()).expect("a placement");
    for (token, row) in combined.rows().chunks(SHAPE.hidden).enumerate() {
        let [a, b] = choice(token).map(|expert| placement.rank_of(expert));
        let want = if a == b { &input.rows } else { &input.doubled };
        let want = &want[token * SHAPE.hidden..(token + 1) * SHAPE.hidden];
        assert!(row == want, "rank {}, round {number}, token {token}", comm.rank());
    }
    Ok(())
}
