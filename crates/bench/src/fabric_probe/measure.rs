//! Every pair of ranks, one after the other: latency, then each direction's rate.

use std::time::Duration;

use expertrail::fabric::measure::{MeasureEnd, MeasureSizes, Meter, Stream};
use expertrail::fabric::rail::RailCard;
use expertrail::fabric::{FabricError, Result as FabricResult};
use expertrail::{Group, Rails};
use serde::{Deserialize, Serialize};

use super::document::{Measured, Pair, ProbedRank};
use super::schedule;
use crate::run::{BenchError, agree};
use crate::stats::Times;

/// Bytes of a write.
const MESSAGE: usize = 1 << 20;
/// Writes in flight.
const WINDOW: usize = 4;
/// Pings that are timed, after as many as make the connection and warm up.
const PINGS: usize = 200;
const WARM: usize = 20;

/// What a probe is told; equal on all ranks but for `rails`.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// What was asked for, as the document names it.
    pub asked: String,
    /// Whether the network is simulated.
    pub simulated: bool,
    /// This rank's endpoint.
    pub rails: Rails,
    /// How long each direction of a pair writes.
    pub lasts: Duration,
    /// After how long a measurement of a pair is given up.
    pub deadline: Duration,
}

/// What one rank measured of one pair.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Part {
    from: usize,
    to: usize,
    /// Median and 99th percentile, of whoever sent the pings.
    us: Option<(f64, f64)>,
    gbps: Option<f64>,
    error: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Card {
    provider: String,
    domain: String,
    chosen: String,
    parts: Vec<Part>,
}

/// Measures all pairs of `world`. Collective; rank 0 gets everything.
///
/// # Errors
/// When an endpoint cannot be opened, or a rank dies. A pair that does not reach each other is a part of the result.
pub fn run(world: &Group, options: &ProbeOptions) -> Result<Option<Measured>, BenchError> {
    let sizes = MeasureSizes { participants: world.size(), message: MESSAGE, window: WINDOW };
    let end = options.rails.open().and_then(|transport| MeasureEnd::new(transport, sizes));
    let (end, cards) = agree(world, "endpoints of the probe", end, |end| end.card().encode())?;
    let cards: Option<Vec<RailCard>> = cards.iter().map(|card| RailCard::decode(card)).collect();
    let garbled = || FabricError::Exchange { peer: 0, what: "an endpoint's card" };
    let meter = cards.ok_or_else(garbled).and_then(|cards| end.connect(world.rank(), &cards));
    let (mut meter, _) = agree(world, "probe connected", meter, |_| Vec::new())?;
    let rounds = schedule::rounds(world.size());
    let mut parts = Vec::new();
    for (number, round) in rounds.iter().enumerate() {
        let own = round.iter().find(|(a, b)| *a == world.rank() || *b == world.rank());
        pair(world, options, &mut meter, (number, own.copied()), &mut parts)?;
    }
    let capabilities = meter.capabilities();
    let card = Card {
        provider: capabilities.provider.clone(),
        domain: capabilities.domain.clone(),
        chosen: options.rails.why().to_owned(),
        parts,
    };
    // Plain numbers and text: always serialisable.
    let cards = world.all_gather("probe", &serde_json::to_vec(&card).unwrap_or_default())?;
    if world.rank() != 0 {
        return Ok(None);
    }
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        serde_json::from_slice(bytes).map_err(|e| BenchError::Report { rank, reason: e.to_string() })
    };
    let cards = cards.iter().enumerate().map(read).collect::<Result<Vec<Card>, _>>()?;
    let pairs_at_once = rounds.iter().map(Vec::len).max().unwrap_or(0) as u64;
    Ok(Some(Measured { pairs_at_once, ..merge(world, options, &cards) }))
}

/// One round: latency, then each direction. All ranks meet before each, those of no pair too.
fn pair(
    world: &Group,
    options: &ProbeOptions,
    meter: &mut Meter,
    (number, own): (usize, Option<(usize, usize)>),
    parts: &mut Vec<Part>,
) -> Result<(), BenchError> {
    let mut seen: FabricResult<()> = Ok(());
    let mut forth = Part::default();
    let mut back = Part::default();
    for step in 0..3 {
        meter.begin(3 * number + step + 1);
        world.barrier("pairs of the probe")?;
        let Some((a, b)) = own else { continue };
        if seen.is_err() {
            continue;
        }
        (forth.from, forth.to, back.from, back.to) = (a, b, b, a);
        let (writes, other) = (world.rank() == a, if world.rank() == a { b } else { a });
        let deadline = options.deadline;
        seen = match step {
            0 if writes => meter.ping(other, WARM + PINGS, deadline).map(|halves| {
                forth.us = Times::of(&halves[WARM..]).ok().map(|times| (times.p50, times.p99));
            }),
            0 => meter.pong(other, WARM + PINGS, deadline),
            _ => {
                let goes = (step == 1) == writes;
                let (to, from): (&[usize], &[usize]) = if goes { (&[other], &[]) } else { (&[], &[other]) };
                meter.stream(&Stream { to, from, lasts: options.lasts, deadline }).map(|streamed| {
                    if goes {
                        let part = if writes { &mut forth } else { &mut back };
                        part.gbps = Some(streamed.gbps());
                    }
                })
            }
        };
    }
    if own.is_some() {
        forth.error = seen.err().map(|error| error.to_string());
        back.error.clone_from(&forth.error);
        parts.extend([forth, back]);
    }
    Ok(())
}

fn merge(world: &Group, options: &ProbeOptions, cards: &[Card]) -> Measured {
    let (hosts, nodes) = (world.hosts(), world.node_of());
    let local = |rank: usize| nodes[..rank].iter().filter(|node| **node == nodes[rank]).count();
    let ranks: Vec<ProbedRank> = cards
        .iter()
        .enumerate()
        .map(|(rank, card)| ProbedRank {
            rank: rank as u64,
            host: hosts[rank].clone(),
            node: nodes[rank] as u64,
            local_rank: local(rank) as u64,
            provider: card.provider.clone(),
            domain: card.domain.clone(),
            chosen: card.chosen.clone(),
        })
        .collect();
    let size = ranks.len();
    let mut pairs = Vec::new();
    for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))).filter(|(a, b)| a != b) {
        let both = || [&cards[from], &cards[to]].into_iter().flat_map(|card| &card.parts);
        let parts = || both().filter(move |part| (part.from, part.to) == (from, to));
        // The pings of a pair stand for both ways.
        let us = both()
            .filter(|part| (part.from, part.to) == (from.min(to), from.max(to)))
            .find_map(|part| part.us);
        pairs.push(Pair {
            from: from as u64,
            to: to as u64,
            same_rail: ranks[from].node != ranks[to].node && ranks[from].local_rank == ranks[to].local_rank,
            latency_p50_us: us.map(|(p50, _)| p50),
            latency_p99_us: us.map(|(_, p99)| p99),
            gbps: parts().find_map(|part| part.gbps),
            error: parts().find_map(|part| part.error.clone()),
        });
    }
    Measured {
        asked: options.asked.clone(),
        simulated: options.simulated,
        message_bytes: MESSAGE as u64,
        window: WINDOW as u64,
        seconds: options.lasts.as_secs_f64(),
        pings: PINGS as u64,
        pairs_at_once: 0,
        ranks,
        pairs,
    }
}
