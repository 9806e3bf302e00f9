//! Combine: every source reads its tokens' rows from the ranks of their experts and sums them.

use std::time::Instant;

use expertrail_core::plan::Destination;
use expertrail_core::{Bf16, CoreError, Handle, Layout};

use crate::call::{Combine, CombinePhases, Signature};
use crate::communicator::HostCommunicator;
use crate::control::{NOWHERE, Record};
use crate::copy::Copier;
use crate::error::{Phase, Result};
use crate::output::{Memory, Rows};
use crate::rail::CombineRun;
use crate::reduce::{self, MAX_ROWS, Sum};
use crate::staging::Exchange;
use crate::world::{Wait, World};

/// The most biases of a combine (DeepEP takes two).
pub const MAX_BIASES: usize = 2;

/// What a combine gave.
#[derive(Debug)]
pub struct Combined {
    rows: Option<Rows>,
    weights: Option<Vec<f32>>,
    phases: CombinePhases,
}

impl Combined {
    /// One row for each token of the dispatch, `[tokens, hidden]`. Empty after
    /// [`HostCommunicator::combine_into`], which wrote them to its caller's slice.
    pub fn rows(&self) -> &[Bf16] {
        self.rows.as_ref().map_or(&[], Rows::as_slice)
    }

    /// The weights that came back, `[tokens, top_k]`, if any were sent.
    pub fn weights(&self) -> Option<&[f32]> {
        self.weights.as_deref()
    }

    /// Where the time of this call went.
    pub fn phases(&self) -> CombinePhases {
        self.phases
    }
}

impl HostCommunicator {
    /// Sums what the experts made of every token; the rows come from this rank's pool. Collective.
    ///
    /// One node: partial rows are added in f32 in ascending rank and rounded once. Several declared nodes: each
    /// node's sum is rounded to BF16 first. Expert-major rows are first reduced to one partial per rank, in
    /// ascending choice, and rounded.
    ///
    /// After an error of kind [`HostError::Failed`](crate::HostError::Failed) peers may still be reading `args.rows` for a moment; what they make
    /// of them is an error on their side too.
    ///
    /// # Errors
    /// As [`HostCommunicator::dispatch`].
    pub fn combine(&self, args: &Combine<'_>) -> Result<Combined> {
        let mut rows = self.alloc_rows(args.handle.tokens())?;
        let mut combined = self.combine_into(args, rows.as_mut_slice())?;
        combined.rows = Some(rows);
        Ok(combined)
    }

    /// The same into `out`, `[tokens, hidden]`.
    ///
    /// # Errors
    /// As [`HostCommunicator::combine`].
    pub fn combine_into(&self, args: &Combine<'_>, out: &mut [Bf16]) -> Result<Combined> {
        let mut state = self.begin()?;
        let world = self.world();
        let epoch = state.epoch;
        if let Err(error) = check(world, args, out) {
            return Err(self.refuse(&mut state, error));
        }
        let carried = args.handle.arrivals().source_tokens.len() * world.shape.top_k;
        let weights = args.topk_weights.map(|weights| self.share_weights(&weights[..carried]));
        let mut in_place = match args.handle.layout() {
            Layout::BySource => world.offset_of(args.rows),
            // The rows of a token are reduced here first: only the partial crosses.
            Layout::ExpertMajor { .. } => None,
        };
        // Between nodes any rank of this one may forward any row of this rank's: they all lie in shared memory.
        let shared = match (&state.crossings, in_place) {
            (Some(_), None) => {
                let shared = self.share_partials(args);
                in_place = Some(shared.offset());
                Some(shared)
            }
            _ => None,
        };
        let record = Record {
            signature: Signature::combine(args).0,
            origin: args.handle.origin().epoch,
            base: in_place.map_or(NOWHERE, |offset| offset as u64),
            weights: match &weights {
                Some(Shared::At(offset) | Shared::Copied(_, offset)) => *offset as u64,
                None => NOWHERE,
            },
            fixed_rows: NOWHERE,
            ..Record::default()
        };
        let clock = Instant::now();
        let wait = world.wait(Phase::CombineNotify, epoch);
        let (records, _) = self.announce(&mut state, wait, record, (Some(args.handle.plan()), false))?;
        let sources = state.keep(Sources::new(world, wait, args, &records))?;
        let notify = clock.elapsed();

        let clock = Instant::now();
        let weights = if let Some(crossings) = &mut state.crossings {
            let run = CombineRun {
                world,
                epoch,
                args,
                rows: sources.firsts.clone(),
                arrivals: sources.arrivals.clone(),
                weights: sources.first_weights.clone(),
                copier: self.copier(std::mem::size_of_val(out)),
            };
            let crossed = run.run(crossings, out);
            state.keep(crossed)?
        } else {
            let weights = sources.gather_weights(args.handle, world.shape.top_k);
            let reduced = self.reduce(args, &sources, out, epoch);
            state.keep(reduced)?;
            weights
        };
        let reduce = clock.elapsed();

        let clock = Instant::now();
        world.own().set_done(epoch);
        let wait = world.wait(Phase::CombineDone, epoch);
        state.keep(world.wait_done(wait, epoch))?;
        // A rank that was done and then failed (cancelled, late) has its rows back while slower ones still read them.
        // It wrote everybody's poison word before it returned, so whoever may have read changed rows fails here.
        state.keep(world.check(wait))?;
        drop(shared);
        Ok(Combined { rows: None, weights, phases: CombinePhases { notify, reduce, wait: clock.elapsed() } })
    }

    /// Puts weights where peers can read them, unless they are there already.
    fn share_weights(&self, weights: &[f32]) -> Shared {
        let world = self.world();
        if let Some(offset) = world.offset_of(weights) {
            return Shared::At(offset);
        }
        let bytes = std::mem::size_of_val(weights);
        let Some(range) = world.pool.take(bytes) else {
            // The pool is full of live outputs: the fallback of this call's parity is free outside a dispatch.
            let offset = world.regions.fallback[0];
            // SAFETY: see `copy_to`; the fallback holds every dispatch output, ids and weights included.
            unsafe { copy_to(world, offset, weights) };
            return Shared::At(offset);
        };
        // SAFETY: the range was just taken for these bytes.
        unsafe { copy_to(world, range.offset, weights) };
        Shared::Copied(Memory::Pool(world.clone(), range), range.offset)
    }

    /// Puts this rank's partial row of every arrival where its node's ranks can read it.
    fn share_partials(&self, args: &Combine<'_>) -> Shared {
        let world = self.world();
        let hidden = world.shape.hidden;
        let arrivals = args.handle.arrivals().source_tokens.len();
        let (shared, offset) = match world.pool.take(2 * hidden * arrivals) {
            Some(range) => (Shared::Copied(Memory::Pool(world.clone(), range), range.offset), range.offset),
            // The pool is full of live outputs: the fallback that `share_weights` does not use is free outside a dispatch.
            None => (Shared::At(world.regions.fallback[1]), world.regions.fallback[1]),
        };
        let base = world.segment().base().wrapping_add(offset).cast::<Bf16>();
        for arrival in 0..arrivals {
            // SAFETY: the range (or the fallback, which holds every output) has room for a row of each arrival, and nobody
            // else uses it now.
            let row = unsafe { std::slice::from_raw_parts_mut(base.add(arrival * hidden), hidden) };
            partial(world, args, arrival, row);
        }
        shared
    }

    fn reduce(&self, args: &Combine<'_>, sources: &Sources, out: &mut [Bf16], epoch: u64) -> Result<()> {
        let world = self.world();
        let hidden = world.shape.hidden;
        let handle = args.handle;
        let copier = self.copier(std::mem::size_of_val(out));
        let mut scratch = Scratch { out: vec![Bf16(0); hidden], own: vec![Bf16(0); hidden] };
        let own_staged = sources.owners[world.local(world.rank)].is_none();
        let to_push: Vec<u32> = world
            .node_ranks
            .clone()
            .map(|source| {
                let staged = own_staged && source != world.rank;
                if staged { handle.matrix().count(source, world.rank) as u32 } else { 0 }
            })
            .collect();
        let wait = world.wait(Phase::CombineStaging, epoch);
        let mut exchange = Exchange::new(world, self.rings(), wait, to_push);
        let mut next = 0;
        loop {
            let pushed = exchange.push(|source, index, slot| {
                let source = world.node_ranks.start + source;
                let arrival = handle.arrivals().source_starts[source] as usize + index;
                // SAFETY: a free slot of this rank's own ring holds one row.
                let slot = unsafe { std::slice::from_raw_parts_mut(slot, hidden) };
                partial(world, args, arrival, slot);
            });
            let first = next;
            let mut needed = None;
            while next < handle.tokens() {
                needed = sources.missing(handle, next, &mut exchange);
                // A turn ends now and then, so that the other sources' rings do not run dry meanwhile.
                if needed.is_some() || (!exchange.all_pushed() && next - first >= TURN) {
                    break;
                }
                let to = &mut out[next * hidden..(next + 1) * hidden];
                sources.sum(args, next, &mut exchange, &mut scratch, (to, copier));
                next += 1;
                if next.is_multiple_of(CHECK) {
                    world.check(wait)?;
                }
            }
            if next == handle.tokens() && exchange.all_pushed() {
                break;
            }
            if !pushed && next == first {
                exchange.sleep(needed)?;
            }
        }
        exchange.announce_all();
        copier.finish();
        Ok(())
    }
}

/// Tokens summed before rows are pushed again.
const TURN: usize = 16;

/// Tokens between two looks at the abort word.
const CHECK: usize = 256;

/// Weights in shared memory: found there, or copied to a slice that lives until the call ends.
enum Shared {
    At(usize),
    Copied(#[allow(dead_code)] Memory, usize),
}

impl Shared {
    fn offset(&self) -> usize {
        match self {
            Self::At(offset) | Self::Copied(_, offset) => *offset,
        }
    }
}

/// # Safety
/// The own segment must have room for `values` at `offset`, and nobody may read it now.
unsafe fn copy_to(world: &World, offset: usize, values: &[f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let to = world.segment().base().add(offset).cast::<f32>();
        std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
    }
}

fn check(world: &World, args: &Combine<'_>, out: &[Bf16]) -> std::result::Result<(), CoreError> {
    let handle = args.handle;
    handle.check(world.token, world.rank)?;
    let hidden = world.shape.hidden;
    let expect = |what, got, want, why: String| {
        if got == want { Ok(()) } else { Err(CoreError::Length { what, got, want, why }) }
    };
    let sent = |n| format!("{} tokens were dispatched, {n}", handle.tokens());
    let received = |n| format!("dispatch gave {} rows, {n}", handle.rows());
    if args.rows.len() < handle.rows() * hidden {
        // More is allowed: a worst-case output has spare rows.
        expect(
            "rows to combine",
            args.rows.len(),
            handle.rows() * hidden,
            received(format!("hidden {hidden}")),
        )?;
    }
    expect("combined rows", out.len(), handle.tokens() * hidden, sent(format!("hidden {hidden}")))?;
    if let Some(weights) = args.row_weights {
        if handle.layout() == Layout::BySource {
            return Err(CoreError::Handle(
                "row weights were given for rows by source: such a row already stands for all experts of its \
                 rank; weight them before, or dispatch expert-major"
                    .to_owned(),
            ));
        }
        if weights.len() < handle.rows() {
            expect("row weights", weights.len(), handle.rows(), received("one weight each".to_owned()))?;
        }
    }
    if let Some(weights) = args.topk_weights {
        let want = handle.arrivals().source_tokens.len() * world.shape.top_k;
        if weights.len() < want {
            let why = format!(
                "{} tokens arrived, top-k {}",
                handle.arrivals().source_tokens.len(),
                world.shape.top_k
            );
            expect("top-k weights to combine", weights.len(), want, why)?;
        }
    }
    if args.biases.len() > MAX_BIASES {
        expect("biases", args.biases.len(), MAX_BIASES, "at most two are added".to_owned())?;
    }
    for bias in args.biases {
        expect("bias", bias.len(), handle.tokens() * hidden, sent(format!("hidden {hidden}")))?;
    }
    Ok(())
}

/// Reduces one arrival's rows to the partial that crosses to its source.
fn partial(world: &World, args: &Combine<'_>, arrival: usize, out: &mut [Bf16]) {
    let hidden = out.len();
    if args.handle.layout() == Layout::BySource {
        out.copy_from_slice(&args.rows[arrival * hidden..(arrival + 1) * hidden]);
        return;
    }
    let mut rows = [std::ptr::null(); MAX_ROWS];
    let mut weights = [0f32; MAX_ROWS];
    let mut count = 0;
    for (_, row) in args.handle.arrivals().rows_of(arrival, world.shape.top_k) {
        rows[count] = args.rows[row * hidden..(row + 1) * hidden].as_ptr();
        weights[count] = args.row_weights.map_or(0.0, |weights| weights[row]);
        count += 1;
    }
    let weights = if args.row_weights.is_some() { &weights[..count] } else { &[] };
    // SAFETY: every row was cut from `args.rows` with `hidden` elements.
    unsafe { reduce::weighted_sum(world.simd, &rows[..count], weights, out) };
}

/// Buffers of one row.
struct Scratch {
    out: Vec<Bf16>,
    own: Vec<Bf16>,
}

/// Where this source finds its rows at each owner, by the owner's place on the node.
struct Sources<'a> {
    world: &'a World,
    /// The first of this source's rows where the owner's input lies in shared memory; `None` where it stages.
    owners: Vec<Option<*const Bf16>>,
    /// The first of this source's weights at each owner; empty when none were sent.
    weights: Vec<*const f32>,
    /// The same of each owner's first arrival, whoever's it is; empty where an owner stages.
    firsts: Vec<*const Bf16>,
    first_weights: Vec<*const f32>,
    /// This source's first arrival at each owner.
    arrivals: Vec<usize>,
}

impl<'a> Sources<'a> {
    fn new(world: &'a World, wait: Wait, args: &Combine<'_>, records: &[Record]) -> Result<Self> {
        let matrix = args.handle.matrix();
        let (owners, weights) = (Vec::new(), Vec::new());
        let (firsts, first_weights, arrivals) = (Vec::new(), Vec::new(), Vec::new());
        let mut sources = Self { world, owners, weights, firsts, first_weights, arrivals };
        for (owner, record) in world.node_ranks.clone().zip(records) {
            let first = matrix.arrival_offset(world.rank, owner);
            sources.arrivals.push(first);
            let arrivals = matrix.arrivals(owner);
            sources.owners.push(if record.base == NOWHERE {
                None
            } else {
                let bytes = arrivals * world.shape.hidden * 2;
                let base = world.place(wait, owner, record.base, bytes)?;
                sources.firsts.push(base.cast_const().cast());
                Some(base.wrapping_add(first * world.shape.hidden * 2).cast_const().cast())
            });
            if record.weights != NOWHERE {
                let row = 4 * world.shape.top_k;
                let base = world.place(wait, owner, record.weights, arrivals * row)?;
                sources.first_weights.push(base.cast_const().cast());
                sources.weights.push(base.wrapping_add(first * row).cast_const().cast());
            }
        }
        Ok(sources)
    }

    /// The first row of `token` that is not there yet: (owner, index).
    fn missing(&self, handle: &Handle, token: usize, exchange: &mut Exchange<'_>) -> Option<(usize, u32)> {
        handle.plan().destinations(token).iter().find_map(|d| {
            let owner = self.world.local(d.rank as usize);
            let staged = self.owners[owner].is_none() && d.rank as usize != self.world.rank;
            (staged && !exchange.is_there(owner, d.slot)).then_some((owner, d.slot))
        })
    }

    /// Sums `token`, whose rows are all there, and returns the slots it took.
    fn sum(
        &self,
        args: &Combine<'_>,
        token: usize,
        exchange: &mut Exchange<'_>,
        scratch: &mut Scratch,
        (out, copier): (&mut [Bf16], Copier),
    ) {
        let (world, hidden) = (self.world, out.len());
        let destinations = args.handle.plan().destinations(token);
        let mut rows = [std::ptr::null(); MAX_ROWS];
        let mut node_ends = [0u8; MAX_ROWS];
        let mut nodes = 0;
        for (i, d) in destinations.iter().enumerate() {
            let owner = world.local(d.rank as usize);
            rows[i] = match self.owners[owner] {
                Some(first) => first.wrapping_add(d.slot as usize * hidden),
                None if d.rank as usize == world.rank => {
                    let arrival = args.handle.arrivals().source_starts[world.rank] as usize + d.slot as usize;
                    if args.handle.layout() == Layout::BySource {
                        args.rows[arrival * hidden..].as_ptr()
                    } else {
                        partial(world, args, arrival, &mut scratch.own);
                        scratch.own.as_ptr()
                    }
                }
                None => exchange.row(owner, d.slot),
            };
            let node = |d: &Destination| world.topology.node_of(d.rank as usize);
            if destinations.get(i + 1).map(node) != Some(node(d)) {
                node_ends[nodes] = i as u8 + 1;
                nodes += 1;
            }
        }
        let mut biases = [std::ptr::null(); MAX_BIASES];
        for (pointer, bias) in biases.iter_mut().zip(args.biases) {
            *pointer = bias[token * hidden..].as_ptr();
        }
        let sum = Sum {
            biases: &biases[..args.biases.len()],
            rows: &rows[..destinations.len()],
            node_ends: if world.topology.nodes() > 1 { &node_ends[..nodes] } else { &[] },
        };
        // SAFETY: every row is there and has `hidden` elements: checked by `check` and `Sources::new` for rows
        // in place, by `missing` for staged ones. The scratch row overlaps none.
        unsafe {
            reduce::sum_rows(world.simd, &sum, scratch.out.as_mut_ptr(), hidden);
            copier.copy(scratch.out.as_ptr().cast(), out.as_mut_ptr().cast(), 2 * hidden);
        }
        for d in destinations {
            let owner = world.local(d.rank as usize);
            if self.owners[owner].is_none() && d.rank as usize != world.rank {
                exchange.take(owner, d.slot);
            }
        }
    }

    /// Sums each token's weights over the ranks of each node, ascending, and those sums over the nodes, ascending.
    fn gather_weights(&self, handle: &Handle, top_k: usize) -> Option<Vec<f32>> {
        if self.weights.is_empty() {
            return None;
        }
        let mut gathered = vec![0f32; handle.tokens() * top_k];
        for (token, sums) in gathered.chunks_exact_mut(top_k).enumerate() {
            let node = |d: &Destination| self.world.topology.node_of(d.rank as usize);
            for of_node in handle.plan().destinations(token).chunk_by(|a, b| node(a) == node(b)) {
                for (k, sum) in sums.iter_mut().enumerate() {
                    *sum += of_node.iter().fold(0.0, |sum, d| {
                        let owner = self.world.local(d.rank as usize);
                        let at = self.weights[owner].wrapping_add(d.slot as usize * top_k + k);
                        // SAFETY: `Sources::new` checked that all arrivals' weights lie in the owner's segment.
                        sum + unsafe { at.read() }
                    });
                }
            }
        }
        Some(gathered)
    }
}
