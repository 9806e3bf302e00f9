//! Dispatch: counts are exchanged once, then every row is written once, to its final place.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use expertrail_core::handle::{Arrivals, Forwards, Origin};
use expertrail_core::hop::Status;
use expertrail_core::output::{OutputKind, OutputLayout, generous};
use expertrail_core::plan::NO_ROW;
use expertrail_core::{CoreError, CountMatrix, Handle, Layout, Plan, Routing};

use crate::call::{Dispatch, DispatchPhases, Payload, Route, Signature};
use crate::communicator::{HostCommunicator, Stats};
use crate::control::{NOWHERE, Record};
use crate::copy::Copier;
use crate::error::{Cause, HostError, Phase, Result};
use crate::output::{Memory, Received};
use crate::pool::Range;
use crate::rail::DispatchRun;
use crate::world::{Wait, World};

/// A dispatch whose arguments have been checked.
pub(crate) struct Prepared<'a> {
    pub(crate) payload: Payload<'a>,
    pub(crate) plan: Cow<'a, Plan>,
    cached: Option<&'a Handle>,
    pub(crate) routing: Option<&'a Routing>,
    pub(crate) weights: Option<&'a [f32]>,
    pub(crate) kind: OutputKind,
    pub(crate) layout: Layout,
    fixed_rows: Option<usize>,
}

/// Where the output of one rank of this node lies.
pub(crate) struct Target {
    pub(crate) base: *mut u8,
    pub(crate) layout: OutputLayout,
    /// This source's first arrival there.
    arrival: usize,
    pub(crate) first_expert: i32,
    pub(crate) experts: i32,
}

/// The answer to other nodes when an output of this one is too small, or not.
fn status_of(small: Option<&HostError>) -> Status {
    match small {
        Some(&HostError::TooSmall { rank, needed, given }) => {
            Status::TooSmall { rank: rank as u32, needed: needed as u64, given: given as u64 }
        }
        _ => Status::Ready,
    }
}

/// The error that a status stands for.
fn error_of(status: Status) -> Option<HostError> {
    match status {
        Status::TooSmall { rank, needed, given } => {
            Some(HostError::TooSmall { rank: rank as usize, needed: needed as usize, given: given as usize })
        }
        // A failure is told as a poison word, never so.
        Status::Ready | Status::Failed(_) => None,
    }
}

impl HostCommunicator {
    /// Sends rows to the ranks of their experts and gives the rows that arrive here. Collective.
    ///
    /// # Errors
    /// [`HostError::Misuse`] for wrong arguments, [`HostError::Refused`], [`HostError::Mismatch`] and
    /// [`HostError::TooSmall`] for what other ranks did: nothing moved and the communicator goes on.
    /// [`HostError::Failed`] when a rank died, left or missed the deadline: the communicator is over.
    pub fn dispatch(&self, args: &Dispatch<'_>) -> Result<Received> {
        let mut state = self.begin()?;
        let started = Instant::now();
        let world = self.world();
        let epoch = state.epoch;
        let prepared = match prepare(world, args) {
            Ok(prepared) => prepared,
            Err(error) => return Err(self.refuse(&mut state, error)),
        };
        let mut phases = DispatchPhases { plan: started.elapsed(), ..DispatchPhases::default() };

        let reserved = reserve(world, &prepared, &state.stats);
        let record = Record {
            signature: Signature::dispatch(args).0,
            origin: prepared.cached.map_or(0, |handle| handle.origin().epoch),
            base: reserved.map_or(0, |range| range.offset as u64),
            bytes: reserved.map_or(0, |range| range.bytes as u64),
            fixed_rows: prepared.fixed_rows.map_or(NOWHERE, |rows| rows as u64),
            weights: NOWHERE,
            ..Record::default()
        };
        // Until the rows are in, the slice goes back to the pool on every way out; after a failure nobody
        // publishes from this pool again, so a late writer cannot hit a later output.
        let reserved = reserved.map(|range| Memory::Pool(world.clone(), range));
        let clock = Instant::now();
        let wait = world.wait(Phase::DispatchNotify, epoch);
        let counted = prepared.cached.is_none();
        let (records, announced) =
            self.announce(&mut state, wait, record, (Some(&prepared.plan), counted))?;
        let matrix = match prepared.cached {
            Some(handle) => Cow::Borrowed(handle.matrix()),
            None => Cow::Owned(state.keep(read_matrix(world, wait, prepared.layout))?),
        };
        let mut small = too_small(&matrix, world.node_ranks.start, &records);
        let fixed = records.iter().any(|record| record.is_fixed() || record.heard.fixed != 0);
        if let Some(crossings) = state.crossings.as_mut().filter(|_| fixed) {
            let heard = crossings.exchange_status(world, epoch, status_of(small.as_ref()));
            small = state.keep(heard)?.and_then(error_of);
        }
        if let Some(error) = small {
            // Every rank sees the same counts and records (and statuses), so every rank gives up here.
            world.own().set_done(epoch);
            return Err(error);
        }
        let targets = state.keep(targets(world, wait, &prepared, (&matrix, &records)))?;
        phases.notify = clock.elapsed();

        let clock = Instant::now();
        let bytes = prepared.plan.copies() * prepared.kind.dtype.wire_row_bytes(prepared.kind.hidden);
        let copier = self.copier(bytes);
        let mut forwards = None;
        if let Some(crossings) = &mut state.crossings {
            let run =
                DispatchRun { world, epoch, prepared: &prepared, matrix: &matrix, targets: &targets, copier };
            let crossed = run.run(crossings, &announced.tokens);
            forwards = Some(state.keep(crossed)?);
        } else {
            // SAFETY: `targets` checked that every output lies inside its segment and has room for the counts
            // that all ranks exchanged; this source writes only its own rows of them.
            unsafe { send(world, &prepared, &matrix, (&targets, 0..prepared.plan.tokens()), copier) };
        }
        copier.finish();
        phases.send = clock.elapsed();

        let clock = Instant::now();
        world.own().set_done(epoch);
        let wait = world.wait(Phase::DispatchData, epoch);
        state.keep(world.wait_done(wait, epoch))?;
        phases.wait = clock.elapsed();

        let clock = Instant::now();
        let landed = Landed { reserved, record, epoch, forwards };
        let mut received = receive(world, prepared, matrix, landed, &mut state.stats)?;
        phases.finish = clock.elapsed();
        received.phases = phases;
        Ok(received)
    }
}

fn prepare<'a>(world: &World, args: &Dispatch<'a>) -> std::result::Result<Prepared<'a>, CoreError> {
    let shape = &world.shape;
    let (plan, cached, routing) = match args.route {
        Route::Cached(handle) => {
            handle.check(world.token, world.rank)?;
            (Cow::Borrowed(handle.plan()), Some(handle), None)
        }
        Route::Routing(routing) => {
            if routing.top_k() != shape.top_k {
                return Err(CoreError::Length {
                    what: "routing",
                    got: routing.top_k(),
                    want: shape.top_k,
                    why: "choices per token of the communicator's shape".to_owned(),
                });
            }
            let plan = Plan::new(routing, &world.placement, args.layout)?;
            (Cow::Owned(plan), None, Some(routing))
        }
    };
    let tokens = plan.tokens();
    if tokens > shape.max_tokens {
        return Err(CoreError::Tokens { tokens, limit: shape.max_tokens });
    }
    let expect = |what, got, want, why: &str| {
        if got == want {
            Ok(())
        } else {
            Err(CoreError::Length { what, got, want, why: format!("{tokens} tokens, {why}") })
        }
    };
    match args.payload {
        Payload::Bf16(rows) => {
            expect("rows", rows.len(), tokens * shape.hidden, &format!("hidden {}", shape.hidden))?;
        }
        Payload::Fp8 { codes, scales } => {
            shape.check(true)?;
            let per_row = args.payload.dtype().scales_per_row(shape.hidden);
            expect("FP8 rows", codes.len(), tokens * shape.hidden, &format!("hidden {}", shape.hidden))?;
            expect("scales", scales.len(), tokens * per_row, "one scale per 128 elements")?;
        }
    }
    if let Some(weights) = args.weights {
        if cached.is_some() {
            return Err(CoreError::Handle(
                "a cached dispatch carries no weights: they came with the dispatch that made the handle"
                    .to_owned(),
            ));
        }
        expect("weights", weights.len(), tokens * shape.top_k, &format!("top-k {}", shape.top_k))?;
    }
    let kind = OutputKind {
        dtype: args.payload.dtype(),
        hidden: shape.hidden,
        top_k: shape.top_k,
        cached: cached.is_some(),
        weights: args.weights.is_some(),
    };
    let fixed_rows = args.worst_case_rows;
    if let Some(rows) = fixed_rows {
        check_worst_case(world, &kind, (rows, args.layout))?;
    }
    Ok(Prepared {
        payload: args.payload,
        plan,
        cached,
        routing,
        weights: args.weights,
        kind,
        layout: args.layout,
        fixed_rows,
    })
}

/// A worst-case output must fit the fallback, which holds whatever can arrive: more rows could never be used.
fn check_worst_case(
    world: &World,
    kind: &OutputKind,
    (rows, layout): (usize, Layout),
) -> std::result::Result<(), CoreError> {
    let arrivals = world.ranks() * world.shape.max_tokens;
    let most = match layout {
        Layout::BySource => arrivals,
        Layout::ExpertMajor { alignment } => {
            let experts = world.placement.experts_of(world.rank).len();
            arrivals * world.shape.top_k + (alignment - 1) * experts
        }
    };
    // Rounded up a little is fine, as long as there is room.
    let fits = |rows: usize| {
        let entries = if layout == Layout::BySource { rows } else { rows.min(arrivals) };
        OutputLayout::new(kind, rows, entries).bytes <= world.regions.fallback_bytes
    };
    if rows <= most || (rows < u32::MAX as usize && fits(rows)) {
        return Ok(());
    }
    let why =
        format!("the most that can arrive at rank {} of {} with {}", world.rank, world.ranks(), world.shape);
    Err(CoreError::Length { what: "worst-case rows", got: rows, want: most, why })
}

/// Takes a slice for what will probably arrive: a quarter more than this rank sends itself or last received,
/// exactly what the handle says when cached. `None` when the pool is exhausted: the rows then land in the
/// fallback.
fn reserve(world: &World, prepared: &Prepared<'_>, stats: &Stats) -> Option<Range> {
    let (mut rows, mut arrivals) = if let Some(handle) = prepared.cached {
        (handle.rows(), handle.arrivals().source_tokens.len())
    } else {
        let arrivals = generous(prepared.plan.copies().max(stats.last_arrivals));
        let rows = match prepared.layout {
            Layout::BySource => arrivals,
            Layout::ExpertMajor { alignment } => {
                let choices: u32 = prepared.plan.expert_counts().iter().sum();
                let padding = alignment * world.placement.experts_of(world.rank).len();
                generous((choices as usize).max(stats.last_rows)) + padding
            }
        };
        (rows, arrivals)
    };
    if let Some(fixed) = prepared.fixed_rows {
        rows = fixed;
        if prepared.layout == Layout::BySource {
            arrivals = fixed;
        }
    }
    let bytes = OutputLayout::new(&prepared.kind, rows, arrivals).bytes;
    world.pool.take(bytes)
}

fn read_matrix(world: &World, wait: Wait, layout: Layout) -> Result<CountMatrix> {
    let (here, nodes) = (world.node_ranks.len(), world.ranks() / world.node_ranks.len());
    let experts = world.placement.experts_of_ranks(world.node_ranks.clone()).len();
    let (mut to_rank, mut to_expert) = (Vec::new(), Vec::new());
    to_rank.reserve_exact(world.ranks() * here);
    to_expert.reserve_exact(world.ranks() * experts);
    // Each rank of this node tells of the sources of its rail: ascending ranks are node by node.
    for node in 0..nodes {
        for control in &world.controls {
            let skip = node * (here + experts);
            control.read_counts(wait.epoch, skip, here, &mut to_rank);
            control.read_counts(wait.epoch, skip + here, experts, &mut to_expert);
        }
    }
    // Peers' counts: beyond what the shape allows their sums could wrap (`Shape::check_rows`).
    let tokens = world.shape.max_tokens as u64;
    for source in 0..world.ranks() {
        let choices: u64 =
            to_expert[source * experts..(source + 1) * experts].iter().map(|&n| u64::from(n)).sum();
        let most = to_rank[source * here..(source + 1) * here].iter().max().copied().unwrap_or(0);
        if u64::from(most) > tokens || choices > tokens * world.shape.top_k as u64 {
            return Err(world.fail(wait, Cause::Protocol, source));
        }
    }
    CountMatrix::of_node(world.placement, layout, world.node_ranks.clone(), to_rank, to_expert)
        .map_err(|error| HostError::Misuse { rank: world.rank, error })
}

/// Rows and entries of the output of `rank`.
fn extent(matrix: &CountMatrix, rank: usize, record: &Record) -> (usize, usize) {
    let (mut rows, mut entries) = (matrix.rows(rank), matrix.arrivals(rank));
    if record.fixed_rows != NOWHERE {
        rows = record.fixed_rows as usize;
        if matrix.layout() == Layout::BySource {
            entries = rows;
        }
    }
    (rows, entries)
}

/// The first rank of this node, whose first is `first`, that gave its output fewer rows than it receives.
fn too_small(matrix: &CountMatrix, first: usize, records: &[Record]) -> Option<HostError> {
    records.iter().zip(first..).find_map(|(record, rank)| {
        let (needed, given) = (matrix.rows(rank), record.fixed_rows as usize);
        (record.fixed_rows != NOWHERE && given < needed).then_some(HostError::TooSmall {
            rank,
            needed,
            given,
        })
    })
}

/// Finds the outputs of this node's ranks.
fn targets(
    world: &World,
    wait: Wait,
    prepared: &Prepared<'_>,
    (matrix, records): (&CountMatrix, &[Record]),
) -> Result<Vec<Target>> {
    let mut targets = Vec::with_capacity(records.len());
    for (rank, record) in world.node_ranks.clone().zip(records) {
        if record.fixed_rows != NOWHERE && record.fixed_rows > u64::from(u32::MAX) {
            return Err(world.fail(wait, Cause::Protocol, rank));
        }
        let (rows, entries) = extent(matrix, rank, record);
        let layout = OutputLayout::new(&prepared.kind, rows, entries);
        // A slice that was announced must lie in the pool; the fallback is where the shape puts it.
        let base = if layout.bytes as u64 <= record.bytes {
            world.place(wait, rank, record.base, record.bytes as usize)?
        } else if layout.bytes <= world.regions.fallback_bytes {
            world.place(wait, rank, world.regions.fallback[(wait.epoch % 2) as usize] as u64, layout.bytes)?
        } else {
            return Err(world.fail(wait, Cause::Protocol, rank));
        };
        let local = world.placement.experts_of(rank);
        targets.push(Target {
            base,
            layout,
            arrival: matrix.arrival_offset(world.rank, rank),
            first_expert: local.start as i32,
            experts: local.len() as i32,
        });
    }
    Ok(targets)
}

/// The first bytes of a payload's rows and scales; no scales for BF16.
pub(crate) fn rows_of(payload: &Payload<'_>) -> (*const u8, *const u8) {
    match *payload {
        Payload::Bf16(rows) => (rows.as_ptr().cast(), std::ptr::null()),
        Payload::Fp8 { codes, scales } => (codes.as_ptr(), scales.as_ptr().cast()),
    }
}

/// Writes the rows of this source's `tokens` for the ranks of this node.
///
/// # Safety
/// `targets` must be the outputs of the node's ranks for the counts in `matrix`.
pub(crate) unsafe fn send(
    world: &World,
    prepared: &Prepared<'_>,
    matrix: &CountMatrix,
    (targets, tokens): (&[Target], std::ops::Range<usize>),
    copier: Copier,
) {
    let (row_bytes, scale_bytes) = prepared.kind.row_parts();
    let (rows, scales) = rows_of(&prepared.payload);
    let expert_rows = matrix.expert_offsets(world.rank);
    let plan = &*prepared.plan;
    for token in tokens {
        let row = rows.wrapping_add(token * row_bytes);
        Copier::prefetch(row.wrapping_add(row_bytes), 4);
        let firsts = plan.first_choices(token);
        for (i, destination) in plan.destinations(token).iter().enumerate() {
            if !world.node_ranks.contains(&(destination.rank as usize)) {
                continue;
            }
            let target = &targets[world.local(destination.rank as usize)];
            let arrival = target.arrival + destination.slot as usize;
            let to = match firsts.get(i) {
                None => arrival,
                Some(first) => (expert_rows[first.expert as usize] + first.slot) as usize,
            };
            // SAFETY: row, scales, ids, weights and token of this arrival lie inside the destination's output.
            unsafe {
                copier.copy(row, target.base.add(to * row_bytes), row_bytes);
                if scale_bytes > 0 {
                    std::ptr::copy_nonoverlapping(
                        scales.add(token * scale_bytes),
                        target.base.add(target.layout.scales + to * scale_bytes),
                        scale_bytes,
                    );
                }
                if let Some(routing) = prepared.routing {
                    carry(prepared, routing, target, token, arrival);
                }
            }
        }
    }
}

/// Writes what goes with an arrival: source token, local expert ids, weights.
///
/// # Safety
/// `arrival` must be an arrival of this source in `target`.
unsafe fn carry(prepared: &Prepared<'_>, routing: &Routing, target: &Target, token: usize, arrival: usize) {
    let top_k = routing.top_k();
    // SAFETY: the caller's promise; `OutputLayout` has `top_k` ids (and weights) and one token per arrival.
    unsafe {
        target.base.add(target.layout.tokens).cast::<u32>().add(arrival).write(token as u32);
        let ids = target.base.add(target.layout.ids).cast::<i32>().add(arrival * top_k);
        let weights = target.base.add(target.layout.weights).cast::<f32>().add(arrival * top_k);
        for (k, &id) in routing.row(token).iter().enumerate() {
            let local = id - target.first_expert;
            let here = id >= 0 && (0..target.experts).contains(&local);
            ids.add(k).write(if here { local } else { -1 });
            if let Some(all) = prepared.weights {
                weights.add(k).write(if here { all[token * top_k + k] } else { 0.0 });
            }
        }
    }
}

/// What landed here: the reserved slice, if any, and what was announced.
struct Landed {
    reserved: Option<Memory>,
    record: Record,
    epoch: u64,
    forwards: Option<Forwards>,
}

fn receive(
    world: &Arc<World>,
    prepared: Prepared<'_>,
    matrix: Cow<'_, CountMatrix>,
    landed: Landed,
    stats: &mut Stats,
) -> Result<Received> {
    let (rows, entries) = extent(&matrix, world.rank, &landed.record);
    let layout = OutputLayout::new(&prepared.kind, rows, entries);
    let mut kept = None;
    if layout.bytes as u64 <= landed.record.bytes {
        kept = landed.reserved.map(|memory| memory.trimmed(layout.bytes));
    }
    let memory = match kept {
        Some(memory) => memory,
        None => copy_out(world, landed.epoch, layout.bytes, stats)?,
    };

    let handle = if let Some(handle) = prepared.cached {
        handle.clone()
    } else {
        let arrivals = arrivals(world, &prepared, &matrix, &memory, &layout);
        stats.last_arrivals = arrivals.source_tokens.len();
        stats.last_rows = arrivals.rows;
        let origin = Origin { communicator: world.token, epoch: landed.epoch };
        let parts = (prepared.plan.into_owned(), matrix.into_owned(), arrivals);
        Handle::across(origin, world.rank, parts, landed.forwards)
    };
    let mut received = Received {
        memory,
        layout,
        kind: prepared.kind,
        rows,
        entries,
        handle,
        phases: DispatchPhases::default(),
    };
    complete(world, &mut received);
    Ok(received)
}

/// Moves rows that landed in the fallback to memory of their own, and the fallback's pages back to the system.
fn copy_out(world: &Arc<World>, epoch: u64, bytes: usize, stats: &mut Stats) -> Result<Memory> {
    let memory = Memory::take(world, bytes)?;
    let fallback = world.regions.fallback[(epoch % 2) as usize];
    // SAFETY: the fallback is as large as any output of this shape, all writers are done with it, and
    // `memory` is a fresh range of `bytes` bytes.
    unsafe { std::ptr::copy_nonoverlapping(world.segment().base().add(fallback), memory.base(), bytes) };
    world.segment().release(fallback, bytes);
    stats.fallbacks += 1;
    Ok(memory)
}

/// What arrived, from the counts and the carried ids and tokens.
fn arrivals(
    world: &World,
    prepared: &Prepared<'_>,
    matrix: &CountMatrix,
    memory: &Memory,
    layout: &OutputLayout,
) -> Arrivals {
    let (count, top_k) = (matrix.arrivals(world.rank), prepared.kind.top_k);
    // SAFETY: every source has written its arrivals' tokens and ids, and released them before `done`.
    let (tokens, ids) = unsafe {
        (
            std::slice::from_raw_parts(memory.base().add(layout.tokens).cast::<u32>(), count),
            std::slice::from_raw_parts(memory.base().add(layout.ids).cast::<i32>(), count * top_k),
        )
    };
    let mut choice_rows = Vec::new();
    if matches!(prepared.layout, Layout::ExpertMajor { .. }) {
        let local = world.placement.experts_of(world.rank);
        let mut next: Vec<usize> = local.map(|expert| matrix.expert_start(expert)).collect();
        // A peer's ids are outside data: one that is not an expert of this rank, or is beyond the rows that the counts
        // gave, counts as none.
        let rows = matrix.rows(world.rank);
        choice_rows.extend(ids.iter().map(|&id| match next.get_mut(id as usize) {
            Some(row) if id >= 0 && *row < rows => {
                *row += 1;
                (*row - 1) as u32
            }
            _ => NO_ROW,
        }));
    }
    Arrivals {
        source_starts: matrix.source_starts(world.rank),
        source_tokens: tokens.to_vec(),
        choice_rows,
        expert_counts: matrix.expert_counts(world.rank),
        rows: matrix.rows(world.rank),
    }
}

/// What the receiver adds to the rows that arrived: a token's rows beyond its first (each row crosses once per
/// rank), zero padding, and -1 behind the last arrival.
fn complete(world: &World, received: &mut Received) {
    let kind = received.kind;
    let handle = received.handle.clone();
    if let Layout::ExpertMajor { alignment } = handle.layout() {
        let scales_offset = received.layout.scales;
        let row_bytes = kind.dtype.row_bytes(kind.hidden);
        let scale_bytes = 4 * kind.dtype.scales_per_row(kind.hidden);
        let base = received.memory.base();
        let parts = [(0, row_bytes), (scales_offset, scale_bytes)];
        for arrival in 0..handle.arrivals().source_tokens.len() {
            let mut first = None;
            for (_, row) in handle.arrivals().rows_of(arrival, kind.top_k) {
                let from = *first.get_or_insert(row);
                if from != row {
                    for (offset, bytes) in parts {
                        // SAFETY: two different rows of this rank's own output, which all writers have left.
                        unsafe {
                            let part = base.add(offset);
                            std::ptr::copy_nonoverlapping(
                                part.add(from * bytes),
                                part.add(row * bytes),
                                bytes,
                            );
                        }
                    }
                }
            }
        }
        for (i, expert) in world.placement.experts_of(world.rank).enumerate() {
            let count = handle.arrivals().expert_counts[i] as usize;
            let end = handle.matrix().expert_start(expert) + count;
            let padding = count.next_multiple_of(alignment) - count;
            for (offset, bytes) in parts {
                // SAFETY: padding rows of this rank's own output.
                unsafe { base.add(offset + end * bytes).write_bytes(0, padding * bytes) };
            }
        }
    }
    if !kind.cached {
        let used = handle.arrivals().source_tokens.len();
        let (ids, weights) = (received.layout.ids, received.layout.weights);
        let spare = (received.entries - used) * kind.top_k;
        received.slice_mut::<i32>(ids + 4 * used * kind.top_k, spare).fill(-1);
        if kind.weights {
            received.slice_mut::<f32>(weights + 4 * used * kind.top_k, spare).fill(0.0);
        }
    }
}
