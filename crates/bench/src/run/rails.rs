//! Between nodes: the raw rate of the same endpoints, and what the rails did in the timed calls.

use std::collections::BTreeMap;
use std::time::Duration;

use expertrail::fabric::FabricError;
use expertrail::fabric::measure::{MeasureEnd, MeasureSizes, Meter, Stream};
use expertrail::fabric::rail::RailCard;
use expertrail::host::RailReport;
use expertrail::{Group, Rails, Topology};
use serde::{Deserialize, Serialize};

use super::report::{Card, Run};
use super::{BenchError, Options};
use crate::machine;
use crate::schema::{FabricOp, FabricRun, Op, OpResult, RailRun};
use crate::stats;

/// How ranks reach other nodes.
#[derive(Clone, Debug)]
pub struct Across {
    /// What was asked for, as the result names it.
    pub asked: String,
    /// This rank's endpoint: which, and how it is opened.
    pub rails: Rails,
    /// Whether ranks are threads of one process, over the simulated network.
    pub simulated: bool,
}

/// How long one half of the raw measurement writes.
const RAW: Duration = Duration::from_millis(300);

/// How long a first round writes that makes the connections; it does not count.
const WARM: Duration = Duration::from_millis(30);

/// The endpoints of the raw measurement, which live as long as the run: measured before the calls and after.
pub(crate) struct Raw {
    meter: Meter,
    others: Vec<usize>,
    sizes: MeasureSizes,
    rounds: usize,
    gbps: Vec<f64>,
    /// Private memory of the process that opening it took.
    memory_bytes: u64,
}

/// What one rank's raw measurement gave, for its card.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RawRates {
    pub(crate) message_bytes: u64,
    /// What the provider and the measurement keep for an endpoint; the communicator's is as large.
    pub(crate) memory_bytes: u64,
    pub(crate) gbps: Vec<f64>,
}

impl Raw {
    /// Opens and connects an endpoint to the rail peers, as the communicator will. Collective; a rank that cannot is named
    /// by all.
    pub(crate) fn open(world: &Group, options: &Options, across: &Across) -> Result<Self, BenchError> {
        let before = machine::private_bytes();
        let topology = options.resolved.topology;
        let limits = across.rails.config().limits;
        let sizes = MeasureSizes {
            participants: topology.nodes(),
            message: limits.slot_bytes(&topology, &options.resolved.shape),
            window: limits.window,
        };
        let end = across.rails.open().and_then(|transport| MeasureEnd::new(transport, sizes));
        let end = agree(world, "endpoints of the raw rate", end, |end| end.card().encode())?;
        let (end, cards) = end;
        let (node, rail) = (topology.node_of(world.rank()), topology.local_rank(world.rank()));
        let of_rail: Option<Vec<RailCard>> = cards
            .iter()
            .skip(rail)
            .step_by(topology.ranks_per_node())
            .map(|card| RailCard::decode(card))
            .collect();
        let garbled = || FabricError::Exchange { peer: rail as u32, what: "an endpoint's card" };
        let meter = of_rail.ok_or_else(garbled).and_then(|cards| end.connect(node, &cards));
        let (meter, _) = agree(world, "raw rate connected", meter, |_| Vec::new())?;
        let others = (0..topology.nodes()).filter(|&other| other != node).collect();
        let mut raw = Self { meter, others, sizes, rounds: 0, gbps: Vec::new(), memory_bytes: 0 };
        raw.round(world, WARM, options.deadline)?;
        raw.memory_bytes = machine::private_bytes().saturating_sub(before);
        Ok(raw)
    }

    /// One half of the measurement. Collective.
    pub(crate) fn measure(&mut self, world: &Group, deadline: Duration) -> Result<(), BenchError> {
        let gbps = self.round(world, RAW, deadline)?;
        self.gbps.push(gbps);
        Ok(())
    }

    fn round(&mut self, world: &Group, lasts: Duration, deadline: Duration) -> Result<f64, BenchError> {
        self.rounds += 1;
        self.meter.begin(self.rounds);
        world.barrier("raw rate")?;
        let stream = Stream { to: &self.others, from: &self.others, lasts, deadline };
        let streamed = self.meter.stream(&stream);
        let (streamed, _) = agree(world, "raw rate measured", streamed, |_| Vec::new())?;
        Ok(streamed.gbps())
    }

    /// What was measured. Closes the endpoint: all ranks have met since the last round.
    pub(crate) fn into_rates(self) -> RawRates {
        RawRates {
            message_bytes: self.sizes.message as u64,
            memory_bytes: self.memory_bytes,
            gbps: self.gbps,
        }
    }
}

/// Exchanges what each rank has, or why it has nothing: then all give up together. Collective.
pub(crate) fn agree<T>(
    world: &Group,
    phase: &'static str,
    own: Result<T, FabricError>,
    say: impl Fn(&T) -> Vec<u8>,
) -> Result<(T, Vec<Vec<u8>>), BenchError> {
    let word = match &own {
        Ok(own) => [&[1], say(own).as_slice()].concat(),
        Err(error) => [&[0], error.to_string().as_bytes()].concat(),
    };
    let words = world.all_gather(phase, &word)?;
    let own = own.map_err(|error| BenchError::Fabric { rank: world.rank(), error })?;
    if let Some((peer, word)) = words.iter().enumerate().find(|(_, word)| word.first() != Some(&1)) {
        let reason = String::from_utf8_lossy(word.get(1..).unwrap_or_default()).into_owned();
        return Err(BenchError::PeerFabric { peer, reason });
    }
    Ok((own, words.into_iter().map(|mut word| word.split_off(1)).collect()))
}

/// What this rank's rail did in timed calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RailSamples {
    /// By operation: timed calls, and bytes written in them.
    ops: BTreeMap<String, (u64, u64)>,
    turns: u64,
    working_turns: u64,
    writes: u64,
    sleeps: u64,
    busy: u64,
    ring_stalls: u64,
    call_stalls: u64,
    duplicates: u64,
    failed: u64,
}

impl RailSamples {
    /// Adds a call between `before` and `after`, which includes the meeting behind it (a header to each rail peer): only
    /// then is it sure that the proxy has counted everything.
    pub(crate) fn add(&mut self, op: &str, before: &RailReport, after: &RailReport) {
        let (from, to) = (before.proxy, after.proxy);
        let of = self.ops.entry(op.to_owned()).or_default();
        of.0 += 1;
        of.1 += to.bytes - from.bytes;
        self.turns += to.turns - from.turns;
        self.working_turns += to.working_turns - from.working_turns;
        self.writes += to.writes - from.writes;
        self.sleeps += to.sleeps - from.sleeps;
        self.busy += to.busy - from.busy;
        self.ring_stalls += after.ring_stalls - before.ring_stalls;
        self.call_stalls += after.call_stalls - before.call_stalls;
        self.duplicates += to.duplicates - from.duplicates;
        self.failed += to.failed - from.failed;
    }

    fn wire_bytes(&self) -> BTreeMap<String, f64> {
        let mean = |(calls, bytes): (u64, u64)| bytes as f64 / calls.max(1) as f64;
        self.ops.iter().map(|(name, of)| (name.clone(), mean(*of))).collect()
    }
}

/// One rank's rail, for its card.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RailCardOf {
    provider: String,
    domain: String,
    library: String,
    chosen: String,
    cpus: Vec<u64>,
    raw: RawRates,
    /// Bytes asked of other nodes: of a dispatch, of a combine.
    logical: [f64; 2],
    samples: RailSamples,
}

impl RailCardOf {
    pub(crate) fn new(
        (across, report): (&Across, &RailReport),
        raw: RawRates,
        logical: [f64; 2],
        samples: RailSamples,
    ) -> Self {
        Self {
            provider: report.provider.clone(),
            domain: report.domain.clone(),
            library: report.library.clone(),
            chosen: across.rails.why().to_owned(),
            cpus: across.rails.config().cpus.iter().map(|&cpu| cpu as u64).collect(),
            raw,
            logical,
            samples,
        }
    }

    /// Bytes of the endpoints: the raw measurement's, and the communicator's, which is as large.
    pub(crate) fn memory_bytes(&self) -> u64 {
        2 * self.raw.memory_bytes
    }

    /// GB/s of both halves together: both wrote for as long.
    fn raw_gbps(&self) -> f64 {
        mean(self.raw.gbps.iter().copied())
    }

    /// The library with its version.
    pub(crate) fn library(&self) -> &str {
        &self.library
    }

    fn run(&self, rank: usize, topology: &Topology) -> RailRun {
        let samples = &self.samples;
        let [dispatch, combine] = self.logical;
        RailRun {
            rank: rank as u64,
            node: topology.node_of(rank) as u64,
            local_rank: topology.local_rank(rank) as u64,
            provider: self.provider.clone(),
            domain: self.domain.clone(),
            chosen: self.chosen.clone(),
            library: self.library.clone(),
            cpus: self.cpus.clone(),
            raw_gbps: self.raw_gbps(),
            logical_bytes: [(Op::Dispatch, dispatch), (Op::DispatchCached, dispatch), (Op::Combine, combine)]
                .map(|(op, bytes)| (op.to_string(), bytes))
                .into(),
            wire_bytes: samples.wire_bytes(),
            utilisation: samples.working_turns as f64 / samples.turns.max(1) as f64,
            writes: samples.writes,
            sleeps: samples.sleeps,
            busy: samples.busy,
            ring_stalls: samples.ring_stalls,
            call_stalls: samples.call_stalls,
            duplicates: samples.duplicates,
            failed: samples.failed,
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// The result's part of the network; `None` where none was crossed.
pub(crate) fn fabric_run(run: &Run<'_>, cards: &[Card], ops: &[OpResult]) -> Option<FabricRun> {
    let across = run.options.across.as_ref()?;
    let topology = run.options.resolved.topology;
    let rails: Vec<RailRun> = cards
        .iter()
        .enumerate()
        .filter_map(|(rank, card)| Some(card.rail.as_ref()?.run(rank, &topology)))
        .collect();
    let first = cards.first()?.rail.as_ref()?;
    let raw_gbps = mean(rails.iter().map(|rail| rail.raw_gbps));
    let limits = across.rails.config().limits;
    let crossed = |op: &OpResult| {
        let name = op.op.to_string();
        let of = |bytes: &BTreeMap<String, f64>| bytes.get(&name).copied().unwrap_or(0.0);
        let wire_bytes = mean(rails.iter().map(|rail| of(&rail.wire_bytes)));
        let wire_gbps = stats::gbps(wire_bytes, op.time_us.p50);
        FabricOp {
            op: op.op,
            span: op.span,
            logical_bytes: mean(rails.iter().map(|rail| of(&rail.logical_bytes))),
            wire_bytes,
            wire_gbps,
            raw_ratio: (raw_gbps > 0.0).then(|| wire_gbps / raw_gbps),
        }
    };
    Some(FabricRun {
        asked: across.asked.clone(),
        simulated: across.simulated,
        chunk_bytes: limits.slot_bytes(&topology, &run.options.resolved.shape) as u64,
        window: limits.window as u64,
        raw_message_bytes: first.raw.message_bytes,
        raw_seconds: RAW.as_secs_f64() * first.raw.gbps.len() as f64,
        raw_gbps,
        ops: ops.iter().map(crossed).collect(),
        rails,
    })
}
