//! The timed calls of one rank.
//!
//! All spans are of the whole call, count exchange included and with the output in the caller's hands, by events on the
//! communicator's stream:
//! - **isolated**: the ranks' hosts leave a barrier, the stream is idle, and the launch counts;
//! - **aligned**: the devices meet in the stream just before the first event, and stay there until the launch that
//!   follows is queued (where symmetric memory had no room for flags, the library's barrier lines them up, which does
//!   not stay);
//! - **chained**: [`CHAIN`] calls in a row, divided by their number.
//!
//! Host time to return is that of the isolated calls. The kernel alone is timed by the device's clock, from its start on.

use std::collections::BTreeMap;
use std::time::Instant;

use expertrail::cuda::{
    CudaCombine, CudaCommunicator, CudaDispatch, CudaError, CudaHandle, CudaPhases, CudaReceived,
    DeviceMemory, DeviceSlice, Event,
};
use serde::{Deserialize, Serialize};

use super::check::{Call, Checker};
use super::inputs::Inputs;
use super::kernels::{BenchKernels, Links};
use super::{Case, GpuTeam, Options};
use crate::run::BenchError;
use crate::run::verify::Tally;
use crate::schema::{Op, Span, VerifyMode};

/// Calls of a chained batch (DESIGN section 7).
const CHAIN: usize = 128;

/// Chained batches.
const BATCHES: usize = 3;

/// The phase that is the whole kernel.
const KERNEL: &str = "kernel";

/// How long each part of a call's kernel took, and all of it.
fn phases(times: CudaPhases) -> [(&'static str, f64); 5] {
    let CudaPhases { counted, notified, through, end, .. } = times;
    let us = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
    [
        ("count", us(0, counted)),
        ("notify", us(counted, notified)),
        ("send", us(notified, through)),
        ("finish", us(through, end)),
        (KERNEL, us(0, end)),
    ]
}

/// One rank's samples of a case in a span.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CaseSamples {
    pub(super) case: Case,
    pub(super) span: Span,
    pub(super) us: Vec<f64>,
    /// Host time to return, of isolated calls.
    pub(super) host_us: Vec<f64>,
    /// Parts of the kernel, and all of it ([`KERNEL`]), by the device's clock.
    pub(super) phases_us: BTreeMap<String, Vec<f64>>,
}

/// One rank's samples.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Samples {
    pub(super) cases: Vec<CaseSamples>,
    pub(super) tally: Tally,
    pub(super) rows: u64,
    pub(super) expert_counts: Vec<u64>,
    pub(super) fallbacks: u64,
    /// Timed isolated iterations of the first SM count, by set.
    pub(super) iterations_by_set: Vec<u64>,
}

/// Runs `cases` (a list for each SM count), with a checker and the links that ranks line up by. Collective.
pub(super) fn measure(
    options: &Options,
    team: &GpuTeam<'_>,
    inputs: &Inputs,
    (mut checker, links): (Checker<'_>, Option<&Links>),
    cases: &[Vec<Case>],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Samples, BenchError> {
    if options.verify != VerifyMode::Off {
        checker.prove()?;
    }
    let context = team.comm.context();
    let tokens = (0..inputs.rotation.token_sets).map(|set| inputs.token_count(set)).max().unwrap_or(0);
    let mut bench = Bench {
        inputs,
        checker,
        timer: Timer {
            team,
            links,
            start: Event::new(context, true)?,
            end: Event::new(context, true)?,
            samples: Vec::new(),
        },
        out: DeviceMemory::new(context, tokens * 2 * options.resolved.shape.hidden)?,
        hidden: options.resolved.shape.hidden,
        received: (0, Vec::new()),
    };
    let spans = [Span::Isolated, Span::Aligned];
    let (warmup, iters) = (options.resolved.warmup, options.resolved.iters);
    let all = cases.len() * spans.len() * (warmup + iters);
    let mut done = 0;
    let mut iterations_by_set = vec![0; inputs.rotation.token_sets];
    for (index, cases) in cases.iter().enumerate() {
        for span in spans {
            for iteration in 0..warmup + iters {
                let timed = iteration >= warmup;
                bench.iteration(cases, span, iteration, timed)?;
                if timed && index == 0 && span == Span::Isolated {
                    iterations_by_set[iteration % inputs.rotation.token_sets] += 1;
                }
                done += 1;
                progress(done, all);
            }
        }
        bench.chained(cases)?;
    }
    let (rows, expert_counts) = bench.received;
    Ok(Samples {
        cases: in_order(bench.timer.samples, cases),
        tally: bench.checker.tally,
        rows,
        expert_counts,
        fallbacks: team.comm.stats().fallbacks,
        iterations_by_set,
    })
}

/// By case, then by span, as reports show them.
fn in_order(mut samples: Vec<CaseSamples>, cases: &[Vec<Case>]) -> Vec<CaseSamples> {
    let place = |case: &Case| cases.iter().flatten().position(|other| other == case);
    let spans = [Span::Isolated, Span::Aligned, Span::Chained];
    samples.sort_by_key(|one| (place(&one.case), spans.iter().position(|span| *span == one.span)));
    samples
}

/// Puts events around calls.
struct Timer<'a> {
    team: &'a GpuTeam<'a>,
    links: Option<&'a Links>,
    start: Event,
    end: Event,
    samples: Vec<CaseSamples>,
}

impl Timer<'_> {
    /// One call by itself. `kernels` are those that line up.
    fn one<T>(
        &mut self,
        kernels: &BenchKernels,
        (case, span): (Case, Span),
        timed: bool,
        call: impl FnOnce(&CudaCommunicator) -> Result<T, CudaError>,
    ) -> Result<T, BenchError> {
        let comm = &self.team.comm;
        comm.barrier()?;
        match (span, self.links) {
            (Span::Aligned, Some(links)) => links.line_up(kernels, comm.stream())?,
            (Span::Aligned, None) => comm.barrier_on(comm.stream())?,
            _ => {}
        }
        self.start.record(comm.stream())?;
        let clock = Instant::now();
        let out = call(comm)?;
        let host = clock.elapsed().as_secs_f64() * 1e6;
        self.end.record(comm.stream())?;
        let us = self.elapsed()?;
        if timed {
            let phases = phases(comm.last_phases());
            let samples = self.samples_of(case, span);
            samples.us.push(us);
            for (name, us) in phases {
                samples.phases_us.entry(name.to_owned()).or_default().push(us);
            }
            if span == Span::Isolated {
                samples.host_us.push(host);
            }
        }
        Ok(out)
    }

    /// Many calls in a row; the time of each is their mean.
    fn chain<T>(
        &mut self,
        case: Case,
        mut call: impl FnMut(&CudaCommunicator, usize) -> Result<T, CudaError>,
    ) -> Result<Option<T>, BenchError> {
        let comm = &self.team.comm;
        let mut last = None;
        comm.barrier()?;
        self.start.record(comm.stream())?;
        for number in 0..CHAIN {
            last = Some(call(comm, number)?);
        }
        self.end.record(comm.stream())?;
        let us = self.elapsed()? / CHAIN as f64;
        self.samples_of(case, Span::Chained).us.push(us);
        Ok(last)
    }

    fn elapsed(&self) -> Result<f64, BenchError> {
        self.team.comm.synchronize()?;
        // The end of the stream, not of the calls alone.
        self.end.synchronize()?;
        if let Some(links) = self.links
            && let Some(rank) = links.late()?
        {
            return Err(BenchError::Late { rank });
        }
        Ok(f64::from(self.end.since(&self.start)?) * 1e3)
    }

    fn samples_of(&mut self, case: Case, span: Span) -> &mut CaseSamples {
        let at = self.samples.iter().position(|one| one.case == case && one.span == span);
        let at = at.unwrap_or_else(|| {
            self.samples.push(CaseSamples {
                case,
                span,
                us: Vec::new(),
                host_us: Vec::new(),
                phases_us: BTreeMap::new(),
            });
            self.samples.len() - 1
        });
        &mut self.samples[at]
    }
}

struct Bench<'a> {
    inputs: &'a Inputs,
    checker: Checker<'a>,
    timer: Timer<'a>,
    /// Where combine writes.
    out: DeviceMemory,
    hidden: usize,
    /// Rows of the first dispatch, and choices of the local experts.
    received: (u64, Vec<u64>),
}

impl Bench<'_> {
    /// Every case once, each by itself.
    fn iteration(
        &mut self,
        cases: &[Case],
        span: Span,
        iteration: usize,
        timed: bool,
    ) -> Result<(), BenchError> {
        let inputs = self.inputs;
        let set = iteration % inputs.rotation.token_sets;
        let mut handle: Option<CudaHandle> = None;
        for &case in cases {
            let call = Call { case, set, iteration };
            match (case.op, &handle) {
                (Op::Dispatch, _) => {
                    let Some(args) = dispatch_args(inputs, case, set, self.hidden) else { continue };
                    let kernels = &self.checker.kernels;
                    let got = self.timer.one(kernels, (case, span), timed, |comm| comm.dispatch(&args))?;
                    self.look(&got);
                    if timed {
                        self.checker.dispatch(&got, call)?;
                    }
                    handle = Some(got.handle().clone());
                }
                (Op::DispatchCached, Some(handle)) => {
                    let Some(args) = cached_args(inputs, (case, set), self.hidden, handle) else { continue };
                    let kernels = &self.checker.kernels;
                    let got = self.timer.one(kernels, (case, span), timed, |comm| comm.dispatch(&args))?;
                    if timed {
                        self.checker.dispatch(&got, call)?;
                    }
                }
                (Op::Combine, Some(handle)) => {
                    let out = part(&self.out, inputs.token_count(set) * 2 * self.hidden)?;
                    self.checker.kernels.poison(out)?;
                    let Some(args) = combine_args(inputs, (case, set), self.hidden, handle) else { continue };
                    let args = args.out(out);
                    let kernels = &self.checker.kernels;
                    self.timer.one(kernels, (case, span), timed, |comm| comm.combine(&args))?;
                    if timed {
                        self.checker.combine(out, call)?;
                    }
                }
                // Every list of cases begins with a dispatch.
                (Op::DispatchCached | Op::Combine, None) => {}
            }
        }
        Ok(())
    }

    /// Call after call; the last one is compared.
    fn chained(&mut self, cases: &[Case]) -> Result<(), BenchError> {
        let inputs = self.inputs;
        let sets = inputs.rotation.token_sets;
        let Some(&first) = cases.first() else { return Ok(()) };
        let mut handles: Vec<CudaHandle> = Vec::with_capacity(sets);
        for set in 0..sets {
            let Some(args) = dispatch_args(inputs, first, set, self.hidden) else { return Ok(()) };
            handles.push(self.timer.team.comm.dispatch(&args)?.handle().clone());
        }
        let hidden = self.hidden;
        for batch in 0..BATCHES {
            for &case in cases {
                let call = Call { case, set: (CHAIN - 1) % sets, iteration: batch };
                if case.op == Op::Combine {
                    let out = DeviceSlice::of(&self.out);
                    self.checker.kernels.poison(out)?;
                    let args: Option<Vec<CudaCombine<'_>>> = (0..sets)
                        .map(|set| Some(combine_args(inputs, (case, set), hidden, &handles[set])?.out(out)))
                        .collect();
                    let Some(args) = args else { continue };
                    self.timer.chain(case, |comm, number| comm.combine(&args[number % sets]))?;
                    self.checker.combine(out, call)?;
                } else {
                    let args: Option<Vec<CudaDispatch<'_>>> = (0..sets)
                        .map(|set| match case.op {
                            Op::DispatchCached => cached_args(inputs, (case, set), hidden, &handles[set]),
                            _ => dispatch_args(inputs, case, set, hidden),
                        })
                        .collect();
                    let Some(args) = args else { continue };
                    let last = self.timer.chain(case, |comm, number| comm.dispatch(&args[number % sets]))?;
                    if let Some(got) = last {
                        self.checker.dispatch(&got, call)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn look(&mut self, got: &CudaReceived) {
        if self.received.1.is_empty() {
            let counts = got.expert_counts().iter().map(|&count| u64::from(count)).collect();
            self.received = (got.rows() as u64, counts);
        }
    }
}

fn dispatch_args(inputs: &Inputs, case: Case, set: usize, hidden: usize) -> Option<CudaDispatch<'_>> {
    let payload = inputs.payload(set, case.dtype(), hidden)?;
    let args = CudaDispatch::new(payload, inputs.token_count(set), inputs.ids(set));
    Some(args.weights(inputs.weights(set)).sms(case.sms))
}

fn cached_args<'a>(
    inputs: &'a Inputs,
    (case, set): (Case, usize),
    hidden: usize,
    handle: &'a CudaHandle,
) -> Option<CudaDispatch<'a>> {
    let payload = inputs.payload(set, case.dtype(), hidden)?;
    Some(CudaDispatch::cached(payload, handle).sms(case.sms))
}

fn combine_args<'a>(
    inputs: &'a Inputs,
    (case, set): (Case, usize),
    hidden: usize,
    handle: &'a CudaHandle,
) -> Option<CudaCombine<'a>> {
    let rows = inputs.experts(set, case.input?, handle.rows() * 2 * hidden)?;
    Some(CudaCombine::new(rows, handle).sms(case.sms))
}

fn part(memory: &DeviceMemory, bytes: usize) -> Result<DeviceSlice<'_>, CudaError> {
    let all = DeviceSlice::of(memory);
    all.part(0, bytes).ok_or(CudaError::Range { offset: 0, bytes, room: all.bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_kernel() {
        let times =
            CudaPhases { counted: 6000, notified: 7500, sent: 150_000, through: 170_000, end: 174_250 };
        let want = [("count", 6.0), ("notify", 1.5), ("send", 162.5), ("finish", 4.25), ("kernel", 174.25)];
        assert_eq!(phases(times), want);
    }

    #[test]
    fn samples_are_shown_by_case_then_by_span() {
        let case = |op, sms| Case { op, fp8: false, input: None, sms };
        let cases = [vec![case(Op::Dispatch, 8), case(Op::Combine, 8)], vec![case(Op::Dispatch, 16)]];
        let one = |case, span| CaseSamples {
            case,
            span,
            us: vec![1.0],
            host_us: Vec::new(),
            phases_us: BTreeMap::new(),
        };
        let samples = vec![
            one(case(Op::Dispatch, 16), Span::Isolated),
            one(case(Op::Dispatch, 8), Span::Chained),
            one(case(Op::Combine, 8), Span::Isolated),
            one(case(Op::Dispatch, 8), Span::Isolated),
            one(case(Op::Dispatch, 8), Span::Aligned),
        ];
        let order: Vec<(Op, u32, Span)> =
            in_order(samples, &cases).iter().map(|s| (s.case.op, s.case.sms, s.span)).collect();
        assert_eq!(
            order,
            [
                (Op::Dispatch, 8, Span::Isolated),
                (Op::Dispatch, 8, Span::Aligned),
                (Op::Dispatch, 8, Span::Chained),
                (Op::Combine, 8, Span::Isolated),
                (Op::Dispatch, 16, Span::Isolated),
            ]
        );
    }
}
