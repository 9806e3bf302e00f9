//! The simulated fabric does what its plan says, and the same for the same seed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use expertrail_fabric::sim::{Buffer, Cut, Network, Plan, SimTransport, Stall};
use expertrail_fabric::{Completion, FabricError, PeerId, Posted, RegionId, RemoteRegion, Transport, Write};

const REGION: usize = 4096;

/// Endpoints on nodes 0, 1, ..., all connected, each with one region.
struct Bench {
    network: Network,
    ends: Vec<SimTransport>,
    buffers: Vec<Arc<Buffer>>,
    regions: Vec<RemoteRegion>,
}

impl Bench {
    fn new(plan: Plan, count: u32) -> Self {
        let network = Network::new(plan);
        let mut ends: Vec<_> = (0..count).map(|node| network.endpoint(node)).collect();
        let buffers: Vec<_> = (0..count).map(|_| Arc::new(Buffer::new(REGION))).collect();
        let regions =
            ends.iter_mut().zip(&buffers).map(|(end, b)| end.register(b.clone()).unwrap().1).collect();
        let addresses: Vec<_> = ends.iter_mut().map(|end| end.address().unwrap()).collect();
        for end in &mut ends {
            end.connect(&addresses).unwrap();
        }
        Self { network, ends, buffers, regions }
    }

    /// A write of `bytes` bytes at 0 of both regions.
    fn write(&self, to: u32, bytes: u64, id: u32) -> Write {
        Write {
            peer: PeerId(to),
            local: RegionId(0),
            local_offset: 0,
            remote: self.regions[to as usize],
            remote_offset: 0,
            bytes,
            immediate: id,
            context: u64::from(id),
        }
    }

    fn post(&mut self, from: usize, to: u32, bytes: u64, id: u32) {
        let write = self.write(to, bytes, id);
        assert_eq!(self.ends[from].write(&write), Ok(Posted::Yes));
    }

    fn poll(&mut self, end: usize) -> Vec<Completion> {
        let mut out = Vec::with_capacity(64);
        let count = self.ends[end].poll(&mut out).unwrap();
        assert_eq!(count, out.len());
        out
    }

    fn advance(&self, ticks: u64) {
        (0..ticks).for_each(|_| _ = self.network.advance());
    }
}

fn peer_error(completion: &Completion) -> (u64, u32) {
    match completion {
        Completion::Failed { context, error: FabricError::Peer { peer, provider, .. } }
            if provider == "sim" =>
        {
            (*context, *peer)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_ordered_plan_delivers_in_order_one_tick_after_the_post() {
    let mut bench = Bench::new(Plan::ordered(), 2);
    bench.buffers[0].put(0, b"payload").unwrap();
    (0..20).for_each(|id| bench.post(0, 1, 7, id));
    assert_eq!(bench.buffers[1].get(0..7).unwrap(), [0; 7], "nothing lands without a tick");
    let arrived: Vec<_> = (0..20).map(|immediate| Completion::Arrived { immediate }).collect();
    assert_eq!(bench.poll(1), arrived);
    assert_eq!(bench.buffers[1].get(0..8).unwrap(), b"payload\0");
    let sent: Vec<_> = (0..20).map(|context| Completion::Sent { context }).collect();
    assert_eq!(bench.poll(0), sent);
    let counts = bench.network.counts();
    assert_eq!((counts.writes, counts.bytes, counts.arrived, counts.sent), (20, 140, 20, 20));
    assert_eq!((counts.failed, counts.lost, counts.duplicates, counts.most_in_flight), (0, 0, 0, 20));
    assert!(bench.network.is_idle());
}

/// Every poll's answer of a run with traffic in all directions.
fn trace(seed: u64) -> Vec<(usize, Completion)> {
    let mut bench = Bench::new(Plan { duplicate: 100, ..Plan::reordering(seed) }, 3);
    let mut trace = Vec::new();
    let mut todo: Vec<(usize, Write)> =
        (0..60).map(|id| (id as usize % 3, bench.write((id + 1) % 3, 1 + u64::from(id) * 7, id))).collect();
    let mut idle = 0;
    while idle < 2000 {
        todo.retain(|(from, write)| bench.ends[*from].write(write).unwrap() == Posted::Busy);
        for end in 0..3 {
            let found = bench.poll(end);
            idle = if found.is_empty() { idle + 1 } else { 0 };
            trace.extend(found.into_iter().map(|completion| (end, completion)));
        }
    }
    assert!(todo.is_empty());
    trace
}

#[test]
fn a_seed_gives_the_same_run_and_another_seed_another() {
    let all: Vec<_> = (0..20).map(trace).collect();
    for (seed, first) in all.iter().enumerate() {
        assert_eq!(*first, trace(seed as u64), "seed {seed}");
        let sent = first.iter().filter(|(_, c)| matches!(c, Completion::Sent { .. })).count();
        assert_eq!(sent, 60, "seed {seed}");
    }
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    let in_order = |run: &&Vec<(usize, Completion)>| {
        let arrived = |(end, completion): &(usize, Completion)| match completion {
            Completion::Arrived { immediate } if *end == 1 => Some(*immediate),
            _ => None,
        };
        run.iter().filter_map(arrived).is_sorted()
    };
    assert!(all.iter().filter(in_order).count() < 7, "seeds reorder");
}

#[test]
fn duplicates_are_given_and_counted() {
    let mut bench = Bench::new(Plan { duplicate: 1000, ..Plan::ordered() }, 2);
    (0..3).for_each(|id| bench.post(0, 1, 1, id));
    bench.advance(5);
    let mut ids: Vec<_> = bench
        .poll(1)
        .into_iter()
        .map(|c| if let Completion::Arrived { immediate } = c { immediate } else { panic!("{c:?}") })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 0, 1, 1, 2, 2]);
    assert_eq!(bench.network.counts().duplicates, 3);
}

#[test]
fn a_payload_lands_in_pieces_before_its_arrival_and_late_when_completions_are_early() {
    let pieces = Plan { delay: (1, 50), pieces: 8, completion_lag: 5, shuffle: true, ..Plan::ordered() };
    let (mut partly, mut early) = (0, 0);
    for seed in 0..50 {
        for early_completion in [false, true] {
            let mut bench = Bench::new(Plan { seed, early_completion, ..pieces.clone() }, 2);
            bench.buffers[0].put(0, &[7; 800]).unwrap();
            bench.post(0, 1, 800, 1);
            let mut torn = false;
            while bench.poll(1).is_empty() {
                let there = bench.buffers[1].get(0..800).unwrap();
                torn |= there.contains(&7) && there.contains(&0);
            }
            partly += u32::from(torn && !early_completion);
            let whole = bench.buffers[1].get(0..800).unwrap() == [7; 800];
            assert!(whole || early_completion, "seed {seed}");
            early += u32::from(!whole);
        }
    }
    assert!(partly > 20 && early > 20, "{partly} {early}");
}

#[test]
fn memory_may_change_only_after_sent_unless_the_network_took_the_payload() {
    for (buffered, expected) in [(0, 2), (1000, 1)] {
        let mut bench = Bench::new(Plan { buffered, ..Plan::ordered() }, 2);
        bench.buffers[0].put(0, &[1]).unwrap();
        bench.post(0, 1, 1, 0);
        bench.buffers[0].put(0, &[2]).unwrap();
        bench.advance(2);
        assert_eq!(bench.buffers[1].get(0..1).unwrap(), [expected]);
    }
}

#[test]
fn the_queue_is_full_until_completions_are_polled() {
    let mut bench = Bench::new(Plan { queue_depth: 2, ..Plan::ordered() }, 2);
    let write = bench.write(1, 1, 0);
    let posts: Vec<_> = (0..3).map(|_| bench.ends[0].write(&write).unwrap()).collect();
    assert_eq!(posts, [Posted::Yes, Posted::Yes, Posted::Busy]);
    bench.advance(10);
    assert_eq!(bench.ends[0].write(&write), Ok(Posted::Busy), "the completions lie unread");
    assert_eq!(bench.poll(0).len(), 2);
    assert_eq!(bench.ends[0].write(&write), Ok(Posted::Yes));
    assert_eq!(bench.network.counts().busy, 2);
}

#[test]
fn a_poll_gives_at_most_the_spare_capacity_and_at_least_one() {
    let mut bench = Bench::new(Plan::ordered(), 2);
    (0..4).for_each(|id| bench.post(0, 1, 1, id));
    bench.advance(3);
    let mut out = Vec::new();
    assert_eq!(bench.ends[1].poll(&mut out), Ok(1));
    let mut out = Vec::with_capacity(2);
    assert_eq!(bench.ends[1].poll(&mut out), Ok(2));
    assert_eq!(out.len(), 2);
}

#[test]
fn a_cut_fails_the_writer_after_its_time_or_keeps_silent() {
    for fail_after in [Some(10), None] {
        let cut = Cut { from: 0, to: 1, both: false, at: 5, fail_after };
        let mut bench = Bench::new(Plan { cuts: vec![cut], ..Plan::ordered() }, 3);
        bench.post(0, 1, 1, 1);
        bench.advance(2);
        assert_eq!(bench.poll(0), [Completion::Sent { context: 1 }]);
        bench.advance(1);
        assert_eq!(bench.network.now(), 4);
        // On its way when the cut comes at tick 5: lost there, told at 15.
        bench.post(0, 1, 1, 2);
        bench.post(0, 2, 1, 3);
        bench.advance(9);
        assert_eq!(bench.poll(0), [Completion::Sent { context: 3 }]);
        assert_eq!(bench.network.now(), 14);
        let failed = bench.poll(0);
        match fail_after {
            Some(_) => assert_eq!(failed.iter().map(peer_error).collect::<Vec<_>>(), [(2, 1)]),
            None => assert_eq!(failed, []),
        }
        assert_eq!(bench.poll(1), [Completion::Arrived { immediate: 1 }]);
        assert_eq!(bench.network.counts().lost, 1);
    }
}

#[test]
fn a_cut_of_the_way_back_loses_the_acknowledgement_alone() {
    for both in [false, true] {
        let mut bench = Bench::new(Plan::ordered(), 2);
        bench.network.cut(Cut { from: 1, to: 0, both, at: 0, fail_after: Some(3) });
        bench.buffers[0].put(0, &[9]).unwrap();
        bench.post(0, 1, 1, 1);
        bench.advance(10);
        let landed = bench.buffers[1].get(0..1).unwrap() == [9];
        assert_eq!((landed, bench.poll(1).len()), if both { (false, 0) } else { (true, 1) });
        assert_eq!(bench.poll(0).iter().map(peer_error).collect::<Vec<_>>(), [(1, 1)]);
    }
}

#[test]
fn a_stalled_node_takes_nothing_and_sends_nothing_until_its_end() {
    let mut bench = Bench::new(Plan::ordered(), 3);
    bench.network.stall(Stall { node: 1, from: 2, until: 20 });
    bench.advance(1);
    bench.post(0, 1, 1, 1);
    bench.post(1, 2, 1, 2);
    bench.post(0, 2, 1, 3);
    bench.advance(17);
    assert_eq!(bench.poll(1), []);
    assert_eq!(bench.network.now(), 19);
    // The stall is over at tick 20, which this poll is.
    assert_eq!(bench.poll(1)[..1], [Completion::Arrived { immediate: 1 }]);
    assert_eq!(bench.poll(2), [Completion::Arrived { immediate: 3 }, Completion::Arrived { immediate: 2 }]);
}

#[test]
fn a_throttle_spreads_writes_over_ticks() {
    // 100 bytes a tick: the k-th write of 50 bytes has left at tick k/2, rounded up, and lands a tick later.
    let mut bench = Bench::new(Plan { bytes_per_tick: Some(100), ..Plan::ordered() }, 2);
    (1..=6).for_each(|id| bench.post(0, 1, 50, id));
    for (tick, expected) in [(1, 0), (2, 2), (3, 2), (4, 2)] {
        assert_eq!((bench.poll(1).len(), bench.network.now()), (expected, tick));
    }
    // A rate of the node's own goes before the plan's: 1 byte a tick, from tick 4 on.
    bench.network.throttle(0, Some(1));
    bench.post(0, 1, 5, 7);
    bench.advance(4);
    assert_eq!(bench.poll(1), []);
    assert_eq!((bench.poll(1).len(), bench.network.now()), (1, 10));
}

#[test]
fn what_the_peer_does_not_have_fails_at_the_writer() {
    let mut bench = Bench::new(Plan::ordered(), 3);
    let good = bench.write(1, 8, 1);
    let long = RemoteRegion { bytes: 1 << 40, ..good.remote };
    let writes = [
        Write { remote: RemoteRegion { key: good.remote.key + 1, ..good.remote }, ..good },
        Write { remote: bench.regions[2], context: 2, ..good },
        Write { remote: long, remote_offset: REGION as u64 - 7, context: 3, ..good },
    ];
    for write in &writes {
        assert_eq!(bench.ends[0].write(write), Ok(Posted::Yes));
    }
    bench.advance(3);
    assert_eq!(bench.poll(0).iter().map(peer_error).collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(bench.poll(1), []);
}

#[test]
fn a_peer_that_has_not_connected_or_is_closed_takes_nothing() {
    let mut bench = Bench::new(Plan { gone_after: Some(4), ..Plan::ordered() }, 2);
    let mut stranger = bench.network.endpoint(7);
    let (_, region) = stranger.register(Arc::new(Buffer::new(64))).unwrap();
    let mut late = bench.network.endpoint(8);
    late.register(Arc::new(Buffer::new(64))).unwrap();
    late.connect(&[stranger.address().unwrap()]).unwrap();
    let to_stranger = Write { peer: PeerId(0), remote: region, ..bench.write(1, 8, 5) };
    assert_eq!(late.write(&to_stranger), Ok(Posted::Yes));
    drop(bench.ends.pop());
    bench.post(0, 1, 8, 6);
    bench.advance(10);
    let mut out = Vec::new();
    late.poll(&mut out).unwrap();
    assert_eq!(out.iter().map(peer_error).collect::<Vec<_>>(), [(5, 0)]);
    assert_eq!(bench.poll(0).iter().map(peer_error).collect::<Vec<_>>(), [(6, 1)]);
    stranger.poll(&mut out).unwrap();
    assert_eq!(out.len(), 1);
}

#[test]
fn addresses_of_others_and_a_second_connect_are_refused() {
    let network = Network::new(Plan::ordered());
    let mut end = network.endpoint(0);
    let own = end.address().unwrap();
    for other in [&own[1..], b"sim1\x05\0\0\0", b"", b"fi_sockaddr_in://"] {
        let refused = end.connect(&[own.clone(), other.to_vec()]);
        assert_eq!(refused, Err(FabricError::Exchange { peer: 1, what: "an address" }));
    }
    end.connect(std::slice::from_ref(&own)).unwrap();
    assert!(matches!(end.connect(&[own]), Err(FabricError::Argument { .. })));
}

#[test]
fn a_stalled_node_does_not_even_get_what_came_before() {
    let mut bench = Bench::new(Plan::ordered(), 2);
    bench.post(0, 1, 1, 1);
    bench.advance(2);
    bench.network.stall(Stall { node: 1, from: 0, until: 5 });
    assert_eq!((bench.poll(1), bench.poll(1), bench.network.now()), (vec![], vec![], 4));
    assert_eq!(bench.poll(1), [Completion::Arrived { immediate: 1 }]);
}

#[test]
fn shuffled_events_of_one_tick_come_in_any_order() {
    let arrivals = |shuffle| {
        let mut bench = Bench::new(Plan { shuffle, ..Plan::ordered() }, 2);
        (0..20).for_each(|id| bench.post(0, 1, 1, id));
        bench.poll(1)
    };
    let (calm, shuffled) = (arrivals(false), arrivals(true));
    assert_eq!((calm.len(), shuffled.len()), (20, 20));
    assert!(shuffled != calm && shuffled.iter().all(|completion| calm.contains(completion)));
}

#[test]
fn a_closed_writer_takes_its_writes_with_it_unless_the_network_has_them() {
    for (buffered, expected) in [(0, 0), (1000, 1)] {
        let mut bench = Bench::new(Plan { buffered, ..Plan::ordered() }, 2);
        bench.post(1, 0, 8, 1);
        drop(bench.ends.pop());
        bench.advance(5);
        assert_eq!(bench.poll(0).len(), expected);
        assert!(bench.network.is_idle());
    }
}

/// 1,024 endpoints that each write to 16 others: what a plan of that size needs must be light.
#[test]
fn a_thousand_endpoints_are_light() {
    let plan = Plan { delay: (0, 20_000), shuffle: true, pieces: 4, ..Plan::ordered() };
    let mut bench = Bench::new(plan, 1024);
    for from in 0..1024 {
        (1..=16).for_each(|hop| bench.post(from as usize, (from + hop * 61) % 1024, 1000, hop));
    }
    let mut seen = (0, 0);
    while seen != (16 * 1024, 16 * 1024) {
        for end in 0..1024 {
            for completion in bench.poll(end) {
                match completion {
                    Completion::Arrived { .. } => seen.0 += 1,
                    Completion::Sent { .. } => seen.1 += 1,
                    Completion::Failed { .. } => panic!("{completion:?}"),
                }
            }
        }
    }
    assert_eq!(bench.network.counts().bytes, 16_384_000);
}
