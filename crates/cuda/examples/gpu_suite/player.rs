//! Random calls on one communicator, everything they give compared by hash.
//!
//! What must agree between ranks (which call, which routing) comes from one seed, what may differ (SMs, streams,
//! where combine's rows lie, when outputs are dropped) from another on each rank.

use std::time::Duration;

use expertrail_core::{Dtype, Shape};
use expertrail_cuda::{
    CudaCombine, CudaCommunicator, CudaDispatch, CudaHandle, CudaReceived, DeviceMemory, DeviceRows,
    DeviceSlice, Event, Stream,
};

use crate::check::Checker;
use crate::gpu::{Outcome, copy, during, poison, poisoned};
use crate::prepared::{Prepared, VERSIONS};
use crate::random::Random;
use crate::slots::Slots;
use crate::wanted::Wanted;

/// The most SMs a call asks for.
const MOST_SMS: usize = 24;

/// Steps between two in which one rank is slow.
const SLOW_EVERY: usize = 100;
/// A hundred times what a call of these sizes takes (some 200 us under stress).
const SLOW: Duration = Duration::from_millis(20);
/// More slots than one step takes.
const SLOTS_OF_STEP: usize = 64;

/// The forms of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Exact,
    WorstCase,
    Cached,
}

/// An output that is still held.
struct Live {
    received: CudaReceived,
    world: usize,
    version: usize,
    form: Form,
    /// The stream that used it last.
    stream: usize,
    /// Whether its rows are still those that came.
    untouched: bool,
}

/// Where the players of one process get everything from.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) comm: &'a CudaCommunicator,
    pub(crate) checker: &'a Checker,
    pub(crate) worlds: &'a [Prepared],
    pub(crate) streams: &'a [&'a Stream],
    pub(crate) shape: Shape,
    /// Outputs held at once, at most.
    pub(crate) most_live: usize,
    /// Whether calls without a stream argument are made too.
    pub(crate) streamless_calls: bool,
    pub(crate) seed: u64,
}

/// One communicator's calls.
pub(crate) struct Player<'a> {
    on: Stage<'a>,
    slots: Slots<'a>,
    common: Random,
    own: Random,
    handles: Vec<Option<(CudaHandle, Option<usize>)>>,
    live: Vec<Live>,
    /// Results that callers own, one for each stream.
    outs: Vec<DeviceMemory>,
    calls: usize,
    steps: usize,
}

impl<'a> Player<'a> {
    pub(crate) fn new(on: Stage<'a>) -> Result<Self, String> {
        let context = on.comm.context();
        let out = on.shape.max_tokens * Dtype::Bf16.row_bytes(on.shape.hidden);
        Ok(Self {
            on,
            slots: Slots::new(context, on.checker)?,
            common: Random::new(on.seed),
            own: Random::new(on.seed ^ (on.comm.rank() as u64 + 1) << 48),
            handles: on.worlds.iter().map(|_| None).collect(),
            live: Vec::new(),
            outs: on.streams.iter().map(|_| poisoned(context, out)).collect::<Result<_, _>>()?,
            calls: 0,
            steps: 0,
        })
    }

    /// Calls made.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Outputs compared.
    pub(crate) fn compared(&self) -> usize {
        self.slots.compared()
    }

    /// Slots for checks of the caller's own.
    pub(crate) fn slots(&mut self) -> &mut Slots<'a> {
        &mut self.slots
    }

    /// A dispatch, perhaps combines and other calls, and perhaps drops.
    pub(crate) fn step(&mut self) -> Outcome {
        let step = self.steps;
        self.act().map_err(|error| format!("step {step}, call {}: {error}", self.calls))
    }

    fn act(&mut self) -> Outcome {
        self.steps += 1;
        if self.steps.is_multiple_of(SLOW_EVERY) {
            self.slow_one_rank()?;
        }
        let live = self.dispatch()?;
        let live = match self.common.below(10) {
            0 | 1 => live,
            2 => self.combine(live).and_then(|live| self.combine(live))?,
            _ => self.combine(live)?,
        };
        self.live.push(live);
        while self.live.len() > self.own.below(self.on.most_live.max(1)) {
            let index = self.own.below(self.live.len());
            self.finish(index)?;
        }
        if self.common.once_in(40) && self.on.streamless_calls {
            self.calls += 1;
            self.on.comm.barrier().map_err(during("barrier"))?;
        }
        if self.common.once_in(40) && self.on.streamless_calls {
            self.calls += 1;
            let world = &self.on.worlds[self.common.below(self.on.worlds.len())];
            let layout = self.on.comm.layout(world.ids.borrow(false), world.tokens, None);
            drop(layout.map_err(during("layout"))?);
        }
        if self.own.once_in(12) {
            self.on.comm.synchronize().map_err(during("synchronize"))?;
        }
        if self.own.once_in(10) {
            self.on.comm.status().map_err(during("status"))?;
        }
        if self.slots.have_room(SLOTS_OF_STEP) { Ok(()) } else { self.compare() }
    }

    /// Waits for everything and compares it.
    pub(crate) fn compare(&mut self) -> Outcome {
        self.on.comm.synchronize().map_err(during("synchronize"))?;
        self.slots.compare().map_err(|error| format!("up to call {}: {error}", self.calls))
    }

    /// Drops what is held, in random order, and compares everything.
    pub(crate) fn end(&mut self) -> Outcome {
        while !self.live.is_empty() {
            let index = self.own.below(self.live.len());
            self.finish(index)?;
            if !self.slots.have_room(SLOTS_OF_STEP) {
                self.compare()?;
            }
        }
        self.compare()
    }

    /// Dispatches and keeps the output, unchecked until it is dropped.
    pub(crate) fn keep(&mut self) -> Outcome {
        let live = self.dispatch_unchecked()?;
        self.live.push(live);
        Ok(())
    }

    fn slow_one_rank(&mut self) -> Outcome {
        let (rank, on_host) = (self.common.below(self.on.comm.topology().ranks()), self.common.once_in(2));
        if rank != self.on.comm.rank() {
            return Ok(());
        }
        if on_host {
            std::thread::sleep(SLOW);
            return Ok(());
        }
        let streams = self.on.streams;
        streams.iter().try_for_each(|stream| self.on.checker.idle(stream, SLOW)).map_err(during("idle"))
    }

    fn sms(&mut self) -> u32 {
        1 + self.own.below(MOST_SMS) as u32
    }

    fn dispatch(&mut self) -> Result<Live, String> {
        let live = self.dispatch_unchecked()?;
        self.expect(&live)?;
        Ok(live)
    }

    fn dispatch_unchecked(&mut self) -> Result<Live, String> {
        let world = self.common.below(self.on.worlds.len());
        let kind = self.common.below(20);
        let cached = self.handles[world].clone().filter(|_| kind < 6);
        let version = self.common.below(VERSIONS);
        let stream = self.own.below(self.on.streams.len());
        let (sms, wide) = (self.sms(), self.own.once_in(2));
        let it = &self.on.worlds[world];
        let payload = it.payloads[version].borrow();
        let fixed = match &cached {
            Some((_, fixed)) => *fixed,
            None => (kind < 13).then_some(it.worst),
        };
        let mut args = match &cached {
            Some((handle, _)) => CudaDispatch::cached(payload, handle),
            None => CudaDispatch::new(payload, it.tokens, it.ids.borrow(wide)),
        };
        args = args.sms(sms).stream(self.on.streams[stream]);
        if cached.is_none() && it.case.weights {
            args = args.weights(DeviceSlice::of(&it.weights));
        }
        if let Some(rows) = fixed {
            args = args.worst_case_rows(rows);
        }
        self.calls += 1;
        let received = self.on.comm.dispatch(&args).map_err(during("dispatch"))?;
        let rows = fixed.unwrap_or(it.arrivals);
        if received.rows() != rows {
            return Err(format!("{} rows came, {rows} wanted", received.rows()));
        }
        let form = match (&cached, fixed) {
            (Some(_), _) => Form::Cached,
            (None, Some(_)) => Form::WorstCase,
            (None, None) => Form::Exact,
        };
        if form != Form::Cached {
            self.handles[world] = Some((received.handle().clone(), fixed));
        }
        Ok(Live { received, world, version, form, stream, untouched: true })
    }

    /// Hashes all of an output on the stream that used it last.
    fn expect(&mut self, live: &Live) -> Outcome {
        let it = &self.on.worlds[live.world];
        let (case, rank, call) = (it.case, self.on.comm.rank(), self.calls);
        let stream = self.on.streams[live.stream];
        let got = &live.received;
        let named = |part: &'static str| {
            let (world, form) = (live.world, live.form);
            move || {
                format!("{part} of a dispatch ({form:?}, routing {world}) seen at call {call}, rank {rank}")
            }
        };
        let words = Wanted::row_words(case.dtype, case.hidden);
        let rows = (it.arrivals, words);
        self.slots.expect(stream, got.data(), rows, it.hashes.rows[live.version], named("rows"))?;
        if let Some(scales) = got.scales() {
            let rows = (it.arrivals, case.dtype.scales_per_row(case.hidden));
            self.slots.expect(stream, scales, rows, it.hashes.scales[live.version], named("scales"))?;
        }
        if live.form == Form::Cached {
            return Ok(());
        }
        let (entries, form) = (got.rows(), usize::from(live.form == Form::WorstCase));
        let choices = (entries, case.top_k);
        let ids = got.local_ids().ok_or("no ids came")?;
        self.slots.expect(stream, ids, choices, it.hashes.ids[form], named("ids"))?;
        let tokens = got.source_tokens().ok_or("no source tokens came")?;
        self.slots.expect(
            stream,
            tokens,
            (it.arrivals, 1),
            it.hashes.source_tokens,
            named("source tokens"),
        )?;
        let local = it.local_experts;
        let counts = got.device_expert_counts(local).ok_or("no expert counts came")?;
        self.slots.expect(stream, counts, (local, 1), it.hashes.expert_counts, named("expert counts"))?;
        match got.weights() {
            Some(weights) => {
                self.slots.expect(stream, weights, choices, it.hashes.weights[form], named("weights"))
            }
            None if case.weights => Err("no weights came".to_owned()),
            None => Ok(()),
        }
    }

    /// Lets the stream that takes over wait for the one that used the output last.
    fn move_to(&mut self, live: &mut Live, stream: usize) -> Outcome {
        if stream == live.stream {
            return Ok(());
        }
        let (from, to) = (self.on.streams[live.stream], self.on.streams[stream]);
        let event = Event::new(from.context(), false).map_err(during("an event"))?;
        event.record(from).and_then(|()| to.wait(&event)).map_err(during("ordering streams"))?;
        live.received.record_stream(to);
        live.stream = stream;
        Ok(())
    }

    fn combine(&mut self, mut live: Live) -> Result<Live, String> {
        let version = self.common.below(VERSIONS);
        let with_weights = self.common.once_in(2);
        let next = self.own.below(self.on.streams.len());
        self.move_to(&mut live, next)?;
        let (sms, wanted_out) = (self.sms(), self.own.once_in(3));
        let it = &self.on.worlds[live.world];
        let stream = self.on.streams[live.stream];
        let rows = live.received.rows();
        let made = it.made(version, rows)?;
        let mut shared = None;
        let input = match self.own.below(3) {
            0 if it.case.dtype == Dtype::Bf16 => {
                copy(stream, live.received.data(), made)?;
                live.untouched = false;
                live.received.data()
            }
            1 => {
                let memory =
                    self.on.comm.alloc_rows(made.bytes(), Some(stream)).map_err(during("alloc_rows"))?;
                copy(stream, memory.slice(), made)?;
                shared.insert(memory).slice()
            }
            _ => made,
        };
        let biases: Vec<DeviceSlice> = it.biases.iter().map(DeviceSlice::of).collect();
        let gradients = DeviceSlice::of(&it.gradients)
            .part(0, 4 * rows * it.case.top_k)
            .ok_or("the suite made too few gradients")?;
        let out = DeviceSlice::of(&self.outs[live.stream]);
        let mut args = CudaCombine::new(DeviceRows::new(input), live.received.handle())
            .biases(&biases)
            .sms(sms)
            .stream(stream);
        if with_weights {
            args = args.weights(gradients);
        }
        if wanted_out {
            args = args.out(out);
        }
        self.calls += 1;
        let combined = self.on.comm.combine(&args).map_err(during("combine"))?;
        let (world, call, rank) = (live.world, self.calls, self.on.comm.rank());
        let words = Wanted::row_words(Dtype::Bf16, it.case.hidden);
        let result = 2 * it.tokens * it.case.hidden;
        let result = combined.rows().or(out.part(0, result)).ok_or("the caller's memory is too short")?;
        let named = || format!("result of a combine (routing {world}) at call {call}, rank {rank}");
        self.slots.expect(stream, result, (it.tokens, words), it.hashes.combined[version], named)?;
        if with_weights {
            let weights = combined.weights().ok_or("no weights came back")?;
            let shape = (it.tokens, it.case.top_k);
            let named = || format!("weights of a combine (routing {world}) at call {call}, rank {rank}");
            self.slots.expect(stream, weights, shape, it.hashes.combined_weights, named)?;
            poison(stream, weights)?;
        }
        poison(stream, result)?;
        if let Some(memory) = &shared {
            poison(stream, memory.slice())?;
        }
        Ok(live)
    }

    /// Looks at an output for the last time, poisons it, and drops it.
    fn finish(&mut self, index: usize) -> Outcome {
        let mut live = self.live.swap_remove(index);
        let next = self.own.below(self.on.streams.len());
        self.move_to(&mut live, next)?;
        if live.untouched {
            self.expect(&live)?;
        }
        let stream = self.on.streams[live.stream];
        let got = &live.received;
        let parts = [Some(got.data()), got.scales(), got.local_ids(), got.weights(), got.source_tokens()];
        parts.into_iter().flatten().try_for_each(|part| poison(stream, part))
    }
}
