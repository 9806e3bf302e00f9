//! The timed calls of one rank.

use std::collections::BTreeMap;
use std::time::Instant;

use expertrail::host::{CombinePhases, DispatchPhases, RailReport};
use expertrail::{Combine, Dispatch, Received};
use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::rails::RailSamples;
use super::verify::{Tally, Verifier};
use super::{BenchError, Options, Team};
use crate::machine;

/// The most calls of a chained batch (DESIGN section 7 names 128).
const CHAIN: usize = 128;

/// Chained batches. Together they make about as many calls as are timed one by one, so that `--iters` sets the
/// length of both.
const BATCHES: usize = 3;

/// One rank's samples.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Samples {
    /// By operation: `dispatch`, `dispatch_cached`, `combine`.
    pub(crate) isolated: BTreeMap<String, Samples1>,
    /// Per call of each batch.
    pub(crate) chained: BTreeMap<String, Vec<f64>>,
    pub(crate) tally: Tally,
    /// Rows that this rank received in the first set, and choices of its experts.
    pub(crate) rows: u64,
    pub(crate) expert_counts: Vec<u64>,
    pub(crate) peak_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) fallbacks: u64,
    pub(crate) iterations_by_set: Vec<u64>,
    pub(crate) rail: RailSamples,
}

/// Samples of one operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Samples1 {
    pub(crate) us: Vec<f64>,
    pub(crate) phases_us: BTreeMap<String, Vec<f64>>,
}

impl Samples1 {
    fn add(&mut self, us: f64, phases: &[(&str, std::time::Duration)]) {
        self.us.push(us);
        for (name, time) in phases {
            self.phases_us.entry((*name).to_owned()).or_default().push(micros(*time));
        }
    }
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn dispatch_phases(p: &DispatchPhases) -> [(&'static str, std::time::Duration); 5] {
    [("plan", p.plan), ("notify", p.notify), ("send", p.send), ("wait", p.wait), ("finish", p.finish)]
}

fn combine_phases(p: &CombinePhases) -> [(&'static str, std::time::Duration); 3] {
    [("notify", p.notify), ("reduce", p.reduce), ("wait", p.wait)]
}

pub(crate) fn measure(
    options: &Options,
    team: &Team,
    inputs: &Inputs,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Samples, BenchError> {
    let mut bench = Bench {
        options,
        team,
        inputs,
        samples: Samples { iterations_by_set: vec![0; inputs.rotation.token_sets], ..Samples::default() },
        verifier: Verifier::new(options, team, inputs),
    };
    let (warmup, iters) = (options.resolved.warmup, options.resolved.iters);
    for iteration in 0..warmup + iters {
        bench.isolated(iteration, iteration >= warmup)?;
        progress(iteration + 1, warmup + iters);
    }
    bench.chained()?;
    bench.samples.tally = bench.verifier.into_tally();
    bench.samples.fallbacks = team.comm.host().stats().fallbacks;
    Ok(bench.samples)
}

struct Bench<'a> {
    options: &'a Options,
    team: &'a Team,
    inputs: &'a Inputs,
    samples: Samples,
    verifier: Verifier<'a>,
}

impl Bench<'_> {
    fn args(&self, set: usize) -> Dispatch<'_> {
        let me = self.team.me();
        Dispatch::new(self.inputs.tokens(set).payload(), &self.inputs.routing(set)[me])
            .layout(self.options.layout)
            .weights(&self.inputs.weights(set)[me])
    }

    /// Each call by itself: ranks aligned by a barrier, the clock around the whole call, and a barrier again before
    /// anybody verifies. Without the second, ranks that share cores verify while another's clock still runs:
    /// with 4 ranks on 2 cores the preset `quick` then showed 6.9 ms for a dispatch of 2.9 ms.
    fn isolated(&mut self, iteration: usize, timed: bool) -> Result<(), BenchError> {
        let set = iteration % self.inputs.rotation.token_sets;
        let comm = &self.team.comm;
        comm.barrier()?;
        let rail = self.rail();
        let clock = Instant::now();
        let received = comm.dispatch_with(&self.args(set))?;
        let dispatch = micros(clock.elapsed());
        comm.barrier()?;
        if timed {
            let samples = self.samples.isolated.entry("dispatch".to_owned()).or_default();
            samples.add(dispatch, &dispatch_phases(&received.phases()));
            self.crossed("dispatch", rail);
            self.samples.iterations_by_set[set] += 1;
            self.verifier.dispatch(&received, set, iteration);
        }
        self.look_at_memory(&received);
        let handle = received.handle().clone();
        drop(received);

        comm.barrier()?;
        let rail = self.rail();
        let clock = Instant::now();
        let cached = comm.dispatch_with(&Dispatch::cached(self.inputs.tokens(set).payload(), &handle))?;
        let us = micros(clock.elapsed());
        comm.barrier()?;
        if timed {
            let samples = self.samples.isolated.entry("dispatch_cached".to_owned()).or_default();
            samples.add(us, &dispatch_phases(&cached.phases()));
            self.crossed("dispatch_cached", rail);
            self.verifier.dispatch(&cached, set, iteration);
        }
        drop(cached);

        let rows = &self.inputs.experts(set).rows()[..handle.rows() * self.options.resolved.shape.hidden];
        comm.barrier()?;
        let rail = self.rail();
        let clock = Instant::now();
        let combined = comm.combine_with(&Combine::new(rows, &handle))?;
        let us = micros(clock.elapsed());
        comm.barrier()?;
        if timed {
            let samples = self.samples.isolated.entry("combine".to_owned()).or_default();
            samples.add(us, &combine_phases(&combined.phases()));
            self.crossed("combine", rail);
            self.verifier.combine(combined.rows(), set, iteration);
        }
        Ok(())
    }

    fn rail(&self) -> Option<RailReport> {
        self.team.comm.host().rail_stats()
    }

    /// Counts what crossed the network since `before`.
    fn crossed(&mut self, op: &str, before: Option<RailReport>) {
        if let (Some(before), Some(after)) = (before, self.rail()) {
            self.samples.rail.add(op, &before, &after);
        }
    }

    /// Call after call with no barrier between: the time per call of a batch.
    fn chained(&mut self) -> Result<(), BenchError> {
        let calls = self.options.resolved.iters.div_ceil(BATCHES).clamp(2, CHAIN);
        let comm = &self.team.comm;
        let sets = self.inputs.rotation.token_sets;
        let mut handles = Vec::with_capacity(sets);
        for set in 0..sets.min(calls) {
            handles.push(comm.dispatch_with(&self.args(set))?.handle().clone());
        }
        for _ in 0..BATCHES {
            comm.barrier()?;
            let clock = Instant::now();
            for call in 0..calls {
                comm.dispatch_with(&self.args(call % sets))?;
            }
            self.chain("dispatch", micros(clock.elapsed()) / calls as f64);
            comm.barrier()?;
            let clock = Instant::now();
            for call in 0..calls {
                let set = call % sets;
                let handle = &handles[set];
                let rows =
                    &self.inputs.experts(set).rows()[..handle.rows() * self.options.resolved.shape.hidden];
                comm.combine_with(&Combine::new(rows, handle))?;
            }
            self.chain("combine", micros(clock.elapsed()) / calls as f64);
        }
        Ok(())
    }

    fn chain(&mut self, op: &str, us: f64) {
        self.samples.chained.entry(op.to_owned()).or_default().push(us);
    }

    fn look_at_memory(&mut self, received: &Received) {
        if self.samples.rows == 0 {
            self.samples.rows = received.rows() as u64;
            self.samples.expert_counts = received.expert_counts().iter().map(|&n| u64::from(n)).collect();
        }
        let shape = self.options.resolved.shape;
        let row = received.dtype().wire_row_bytes(shape.hidden) + 8 * shape.top_k + 4;
        let output = received.rows() * row + 2 * received.handle().tokens() * shape.hidden;
        self.samples.output_bytes = self.samples.output_bytes.max(output as u64);
        // Threads of one process: what is whose cannot be told, so each answers for its share.
        let sharers = match &self.options.across {
            Some(across) if across.simulated => self.options.resolved.topology.ranks() as u64,
            _ => 1,
        };
        let now = machine::private_bytes() / sharers + self.team.comm.host().resident_bytes();
        self.samples.peak_bytes = self.samples.peak_bytes.max(now);
    }
}
