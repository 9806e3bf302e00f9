//! Over simulated networks: everything is counted, and who does not answer is named.

use super::*;
use crate::sim::{Cut, Network, Plan};

const SIZES: MeasureSizes = MeasureSizes { participants: 3, message: 4096, window: 4 };

/// Three connected endpoints on a network, each for its own thread.
fn meters(network: &Network) -> Vec<Meter> {
    let ends: Vec<MeasureEnd> =
        (0..3).map(|node| MeasureEnd::new(Box::new(network.endpoint(node)), SIZES).unwrap()).collect();
    let cards: Vec<RailCard> = ends.iter().map(|end| end.card().clone()).collect();
    ends.into_iter().enumerate().map(|(me, end)| end.connect(me, &cards).unwrap()).collect()
}

fn each<T: Send>(meters: Vec<Meter>, run: impl Fn(usize, Meter) -> T + Sync) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            meters.into_iter().enumerate().map(|(me, meter)| scope.spawn(move || run(me, meter))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_mins(1);

#[test]
fn all_write_to_all_over_networks_without_order_and_everything_is_counted() {
    for seed in 0..12 {
        let network = Network::new(Plan::reordering(seed));
        let streamed = each(meters(&network), |me, mut meter| {
            meter.begin(1);
            let others: Vec<usize> = (0..3).filter(|&other| other != me).collect();
            meter.stream(&Stream { to: &others, from: &others, lasts: SHORT, deadline: LONG }).unwrap()
        });
        let bytes: u64 = streamed.iter().map(|streamed| streamed.bytes).sum();
        for one in &streamed {
            assert!(one.bytes > 0 && one.bytes.is_multiple_of(4096), "seed {seed}: {one:?}");
            assert!(one.seconds >= 0.02 && one.gbps() > 0.0, "seed {seed}: {one:?}");
        }
        // Beside the data: an end and a "whole" of 8 bytes for each of six directions.
        assert_eq!(network.counts().bytes, bytes + 6 * 2 * 8, "seed {seed}");
    }
}

#[test]
fn a_ping_goes_and_comes() {
    // Room for one write: the queue is full whenever the last has not been seen to leave.
    let network = Network::new(Plan { queue_depth: 1, ..Plan::reordering(5) });
    let halves = each(meters(&network), |me, mut meter| {
        meter.begin(7);
        match me {
            0 => meter.ping(2, 50, LONG).unwrap(),
            2 => meter.pong(0, 50, LONG).map(|()| Vec::new()).unwrap(),
            _ => Vec::new(),
        }
    });
    assert_eq!(halves.iter().map(Vec::len).collect::<Vec<_>>(), [50, 0, 0]);
    assert!(halves[0].iter().all(|half| *half > 0.0));
    assert_eq!(network.counts().writes, 100);
}

#[test]
fn who_does_not_answer_is_named_and_the_next_measurement_is_clean() {
    let network = Network::new(Plan::reordering(3));
    let found = each(meters(&network), |me, mut meter| {
        if me == 2 {
            // Rank 2 sleeps through the first measurement, and what it finds of it later is dropped.
            std::thread::sleep(Duration::from_millis(400));
        } else if me == 0 {
            meter.begin(1);
            let error = meter.ping(2, 3, Duration::from_millis(100)).unwrap_err().to_string();
            assert!(error.contains("participant 2"), "{error}");
            std::thread::sleep(Duration::from_millis(300));
        }
        meter.begin(2);
        match me {
            0 => meter.ping(2, 10, LONG).map(|halves| halves.len()),
            2 => meter.pong(0, 10, LONG).map(|()| 10),
            _ => Ok(10),
        }
    });
    assert_eq!(found, [Ok(10), Ok(10), Ok(10)]);
}

#[test]
fn a_cut_link_is_an_error_of_its_pair() {
    let network = Network::new(Plan::ordered());
    network.cut(Cut { from: 0, to: 1, both: true, at: 0, fail_after: Some(1) });
    let found = each(meters(&network), |me, mut meter| {
        meter.begin(1);
        let (to, from): (&[usize], &[usize]) = match me {
            0 => (&[1], &[]),
            1 => (&[], &[0]),
            _ => return Ok(Streamed::default()),
        };
        meter.stream(&Stream { to, from, lasts: SHORT, deadline: Duration::from_millis(300) })
    });
    assert!(found[0].is_err() && found[1].is_err() && found[2].is_ok(), "{found:?}");
    let text = found[1].as_ref().unwrap_err().to_string();
    assert!(text.contains("participant 0"), "{text}");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let network = Network::new(Plan::ordered());
    for sizes in [
        MeasureSizes { participants: 0, ..SIZES },
        MeasureSizes { window: 0, ..SIZES },
        MeasureSizes { message: 4, ..SIZES },
    ] {
        assert!(MeasureEnd::new(Box::new(network.endpoint(0)), sizes).is_err());
    }
    let end = MeasureEnd::new(Box::new(network.endpoint(0)), SIZES).unwrap();
    let card = end.card().clone();
    assert!(end.connect(0, &[card]).is_err());
}
