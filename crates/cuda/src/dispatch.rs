//! Dispatch on the host's side: checks, memory, launch.

use expertrail_core::output::{OutputKind, OutputLayout, generous, uniform_arrivals};
use expertrail_core::{CoreError, Dtype, Shape};

use crate::address;
use crate::call::{CudaDispatch, DevicePayload, DeviceRoute, DeviceSlice, at_least};
use crate::communicator::{CudaCommunicator, Lane, State};
use crate::error::{CudaError, Result};
use crate::launch::Launch;
use crate::memory::clear;
use crate::moment::Moment;
use crate::output::{CudaHandle, CudaReceived, HandleInner};
use crate::protocol::{self, DISPATCH_TABLES, DispatchArgs, NOT_FIXED, Signature};
use crate::tune::Rings;
use crate::world::{Memory, Slice, World};

/// Warps of a block that carry ids, weights, source tokens and scales beside the sending warps.
const CARRIERS: u32 = 8;

/// Sending warps of all blocks together. Some 125 pieces of 3,584 bytes under way at once is the most that the link of an
/// H200 takes without slowing down (450 KB; results/h200-x2/NOTES.md, a: 174 us with 16 x 8 warps, 193 with 16 x 15).
const SENDERS: usize = 128;

/// `__launch_bounds__` of the kernel is 24 warps.
const MOST_SENDERS: usize = 16;

/// Fewer sending warps than this cannot keep the link busy from few SMs.
const LEAST_SENDERS: usize = 4;

/// A dispatch whose arguments have been checked.
struct Prepared<'a> {
    args: &'a CudaDispatch<'a>,
    kind: OutputKind,
    cached: Option<&'a CudaHandle>,
    /// Rows of the output where they do not depend on what arrives: worst case, or known from the handle.
    known_rows: Option<usize>,
}

impl Prepared<'_> {
    fn tokens(&self) -> usize {
        self.args.tokens
    }

    /// Whether the host must learn from the device how many rows there are.
    fn waits(&self) -> bool {
        self.known_rows.is_none()
    }
}

/// Memory of a dispatch that is under way.
struct Reserved {
    output: Option<Slice>,
    route: Option<Memory>,
}

impl CudaCommunicator {
    /// Sends rows to the ranks of their experts and gives the rows that arrive here. Collective.
    ///
    /// Without worst-case rows and handle the call returns once the counts of all ranks are known; otherwise at once.
    /// Either way the rows are there when work behind it on its stream runs, unless the communicator fails meanwhile: then
    /// the next call and [`status`](CudaCommunicator::status) say so.
    ///
    /// # Errors
    /// [`CudaError::Misuse`], [`CudaError::Address`] and [`CudaError::Setting`] for wrong arguments,
    /// [`CudaError::Refused`], [`CudaError::Mismatch`] and [`CudaError::TooSmall`] for what other ranks did: nothing
    /// moved and the communicator goes on. What a call that does not wait finds is told by
    /// [`status`](CudaCommunicator::status) and [`synchronize`](CudaCommunicator::synchronize).
    /// [`CudaError::Failed`] when a rank died, left or missed the deadline: the communicator is over.
    pub fn dispatch(&self, args: &CudaDispatch<'_>) -> Result<CudaReceived> {
        let mut state = self.begin()?;
        let world = self.world().clone();
        let prepared = match prepare(&world, args) {
            Ok(prepared) => prepared,
            Err(error) => return Err(self.refuse(&mut state, &args.on, error)),
        };
        let lane = match self.lane(&state, &args.on, false) {
            Ok(lane) => lane,
            Err(error) => return Err(self.refuse(&mut state, &args.on, error)),
        };
        if lane.capturing && prepared.waits() {
            return Err(CudaError::Capture {
                rank: world.rank,
                call: "a dispatch that waits for its counts",
                reason: "give it worst_case_rows, or a handle",
            });
        }
        let reserved = match reserve(&world, &prepared, &state, &lane) {
            Ok(reserved) => reserved,
            Err(error) => return Err(self.refuse(&mut state, &args.on, error)),
        };
        let ticket = if prepared.waits() {
            state.ticket = state.ticket.wrapping_add(1).max(1);
            state.ticket
        } else {
            0
        };
        if let Err(error) = self.send(&prepared, &reserved, &lane, ticket) {
            return Err(self.refuse(&mut state, &args.on, error));
        }
        if lane.capturing {
            reserved.output.as_ref().inspect(|slice| slice.keep_for_graph());
            reserved.route.as_ref().inspect(|memory| _ = memory.keep_for_graph());
        }
        let done = self.launched(&mut state, &lane)?;
        if prepared.waits() {
            self.await_report(&mut state, ticket, &done)?;
            if world.board.report().0 {
                return Err(world.refusal().unwrap_or(CudaError::Lost { rank: world.rank }));
            }
        }
        self.receive(&mut state, &prepared, reserved, (&lane, done))
    }

    fn send(&self, prepared: &Prepared<'_>, reserved: &Reserved, lane: &Lane<'_>, ticket: u32) -> Result<()> {
        let world = self.world();
        let args = prepared.args;
        let kind = &prepared.kind;
        let row_bytes = kind.dtype.row_bytes(kind.hidden);
        let ranks = world.ranks();
        let tables = DISPATCH_TABLES + 4 * (ranks * ranks + world.shape.experts);
        let rings = Rings::new(row_bytes, lane.sms, (SENDERS, LEAST_SENDERS, MOST_SENDERS))
            .within(world.shared - tables);
        let (scales, scale_token_stride, scale_block_stride) = match args.payload {
            DevicePayload::Bf16(_) => (0, 0, 0),
            DevicePayload::Fp8 { scales, .. } => {
                (scales.words.address, scales.token_stride, scales.block_stride)
            }
        };
        let ids = match args.route {
            DeviceRoute::Ids(ids) => Some(ids),
            DeviceRoute::Cached(_) => None,
        };
        let route = match (&reserved.route, prepared.cached) {
            (Some(memory), _) => memory.address(),
            (None, Some(handle)) => handle.address(),
            (None, None) => 0,
        };
        let raw = DispatchArgs {
            world: world.constants.address(),
            rows: args.payload.rows().slice.address,
            scales,
            scale_token_stride,
            scale_block_stride,
            ids: ids.map_or(0, |ids| ids.slice().address),
            weights: args.weights.map_or(0, present),
            route,
            base: reserved.output.as_ref().map_or(0, |slice| slice.offset() as u64),
            room: reserved.output.as_ref().map_or(0, |slice| slice.bytes() as u64),
            stress_seed: world.stress_seed,
            ids_are_64: ids.map_or(0, |ids| u32::from(ids.bytes_each() == 8)),
            tokens: prepared.tokens() as u32,
            row_bytes: row_bytes as u32,
            scales_per_row: kind.dtype.scales_per_row(kind.hidden) as u32,
            // A handle's too: after a worst case its output has more rows than arrive, and scales lie behind all of them.
            fixed_rows: prepared.known_rows.map_or(NOT_FIXED, |rows| rows as u32),
            cached: u32::from(kind.cached),
            signature: Signature::dispatch(kind.dtype, kind.weights, kind.cached).0,
            ticket,
            senders: rings.warps,
            stages: rings.stages,
            chunk: rings.chunk,
            pieces: rings.pieces,
        };
        let shape = Launch {
            blocks: lane.sms,
            threads: 32 * (rings.warps + CARRIERS),
            shared: (rings.bytes() + tables) as u32,
            cooperative: true,
            cluster: 1,
        };
        // SAFETY: `DispatchArgs` is the kernel's parameter. Rows, scales, ids and weights were checked to be as long as
        // their shapes; the route and the output are this call's; peers' memory stays mapped while the world lives.
        unsafe { world.functions.dispatch.launch(lane.stream, shape, &raw) }
    }

    /// Makes of the memory that was reserved the output that was received.
    fn receive(
        &self,
        state: &mut State,
        prepared: &Prepared<'_>,
        reserved: Reserved,
        (lane, mut done): (&Lane<'_>, Moment),
    ) -> Result<CudaReceived> {
        let world = self.world();
        let ranks = world.ranks();
        let (mut fell_back, mut epoch, mut expert_counts) = (reserved.output.is_none(), 0, Vec::new());
        let mut arrivals = prepared.cached.and_then(CudaHandle::arrivals);
        if prepared.waits() {
            let (_, fallback, number) = world.board.report();
            let counts = world.board.counts(0, ranks * ranks);
            arrivals = Some((0..ranks).map(|source| counts[source * ranks + world.rank] as usize).sum());
            expert_counts = world.board.counts(ranks * ranks, world.placement.experts_of(world.rank).len());
            (fell_back, epoch) = (fallback, u64::from(number));
        }
        let rows = prepared.known_rows.or(arrivals).unwrap_or(0);
        let layout = OutputLayout::new(&prepared.kind, rows, rows);
        let memory = match reserved.output {
            Some(mut slice) if !fell_back => {
                slice.trim(layout.bytes);
                Memory::Pool(slice)
            }
            _ => {
                state.stats.fallbacks += 1;
                let memory = Memory::take(world, layout.bytes, lane.stream)?;
                // SAFETY: the landing holds this output until the next call of this communicator, which comes after
                // this copy; the memory is this call's.
                unsafe { lane.stream.copy(memory.address(), world.at(world.regions.landing), layout.bytes) }?;
                done = self.launched(state, lane)?;
                memory
            }
        };
        state.last_rows = arrivals.unwrap_or(state.last_rows);
        let handle = match (reserved.route, prepared.cached) {
            (Some(memory), _) => CudaHandle::new(HandleInner {
                communicator: world.token,
                rank: world.rank,
                tokens: prepared.tokens(),
                arrivals,
                rows,
                epoch,
                memory,
            }),
            (None, Some(handle)) => handle.clone(),
            (None, None) => return Err(CudaError::Lost { rank: world.rank }),
        };
        let counts_at = protocol::route_experts(ranks) as u64;
        Ok(CudaReceived {
            memory,
            layout,
            kind: prepared.kind,
            rows,
            device_expert_counts: (!prepared.kind.cached)
                .then(|| (handle.address() + counts_at, world.placement.experts_of(world.rank).len())),
            handle,
            expert_counts,
            done,
            fell_back,
        })
    }
}

fn prepare<'a>(world: &World, args: &'a CudaDispatch<'a>) -> Result<Prepared<'a>> {
    let misuse = |error: CoreError| CudaError::Misuse { rank: world.rank, error };
    let cached = match args.route {
        DeviceRoute::Cached(handle) => {
            handle.check(world.token, world.rank).map_err(misuse)?;
            Some(handle)
        }
        DeviceRoute::Ids(_) => None,
    };
    lengths(world, args, cached.is_some()).map_err(misuse)?;
    let rows = args.payload.rows();
    let row_bytes = args.payload.dtype().row_bytes(world.shape.hidden);
    contiguous(world, rows.stride, row_bytes)?;
    address::check(world, "rows", rows.slice, address::ROWS)?;
    if let DevicePayload::Fp8 { scales, .. } = args.payload {
        address::check(world, "scales", scales.words, address::WORDS)?;
    }
    if let DeviceRoute::Ids(ids) = args.route {
        address::check(world, "ids", ids.slice(), ids.bytes_each() as u64)?;
    }
    if let Some(weights) = args.weights {
        address::check(world, "weights", weights, address::WORDS)?;
    }
    let kind = OutputKind {
        dtype: args.payload.dtype(),
        hidden: world.shape.hidden,
        top_k: world.shape.top_k,
        cached: cached.is_some(),
        weights: args.weights.is_some(),
    };
    let known_rows = args.worst_case_rows.or_else(|| cached.map(CudaHandle::rows));
    Ok(Prepared { args, kind, cached, known_rows })
}

/// Where weights are. Empty ones may be nowhere, but the kernels take 0 as "none", and all ranks must take it alike.
pub(crate) fn present(weights: DeviceSlice<'_>) -> u64 {
    weights.address.max(address::ROWS)
}

/// Refuses rows with gaps between them.
pub(crate) fn contiguous(world: &World, stride: Option<usize>, row_bytes: usize) -> Result<()> {
    match stride {
        Some(stride) if stride != row_bytes => Err(CudaError::Setting {
            name: "row stride",
            value: format!("{stride} bytes"),
            wanted: format!(
                "{row_bytes}, contiguous rows (rank {}); make the tensor contiguous first",
                world.rank
            ),
        }),
        _ => Ok(()),
    }
}

fn lengths(world: &World, args: &CudaDispatch<'_>, cached: bool) -> std::result::Result<(), CoreError> {
    let Shape { max_tokens, hidden, top_k, .. } = world.shape;
    let (tokens, dtype) = (args.tokens, args.payload.dtype());
    if tokens > max_tokens {
        return Err(CoreError::Tokens { tokens, limit: max_tokens });
    }
    let rows = args.payload.rows().slice;
    at_least("rows in bytes", rows.bytes, tokens * dtype.row_bytes(hidden), || {
        format!("{tokens} tokens, hidden {hidden}, {dtype}")
    })?;
    if let DevicePayload::Fp8 { scales, .. } = args.payload {
        world.shape.check(true)?;
        let blocks = Dtype::Fp8E4m3.scales_per_row(hidden);
        let (token, block) = (scales.token_stride, scales.block_stride);
        if token < 0 || block < 0 {
            let got = usize::try_from(token.min(block).unsigned_abs()).unwrap_or(usize::MAX);
            let why = "strides of scales must not be negative".to_owned();
            return Err(CoreError::Length { what: "negative scale stride", got, want: 0, why });
        }
        let last = if tokens == 0 {
            0
        } else {
            ((tokens as u64 - 1).saturating_mul(token as u64))
                .saturating_add((blocks as u64 - 1).saturating_mul(block as u64))
                .saturating_add(1)
                .saturating_mul(4)
        };
        at_least("scales in bytes", scales.words.bytes, usize::try_from(last).unwrap_or(usize::MAX), || {
            format!("{tokens} tokens, {blocks} blocks of 128, strides {token} and {block}")
        })?;
    }
    if let DeviceRoute::Ids(ids) = args.route {
        at_least("ids in bytes", ids.slice().bytes, tokens * top_k * ids.bytes_each(), || {
            format!("{tokens} tokens, top-k {top_k}, {} bytes each", ids.bytes_each())
        })?;
    }
    if let Some(weights) = args.weights {
        if cached {
            return Err(CoreError::Handle(
                "a cached dispatch carries no weights: they came with the dispatch that made the handle"
                    .to_owned(),
            ));
        }
        at_least("weights in bytes", weights.bytes, 4 * tokens * top_k, || {
            format!("{tokens} tokens, top-k {top_k}, f32")
        })?;
    }
    let most = world.ranks() * max_tokens;
    match args.worst_case_rows {
        Some(got) if got > most => {
            let why = format!(
                "the most that can arrive at rank {} of {} with {}",
                world.rank,
                world.ranks(),
                world.shape
            );
            Err(CoreError::Length { what: "worst-case rows", got, want: most, why })
        }
        _ => Ok(()),
    }
}

/// Takes a slice for what will probably arrive: a quarter more than is likely or arrived last, exactly what is known
/// otherwise. None when the pool is exhausted: the rows then land beside it.
fn reserve(
    world: &std::sync::Arc<World>,
    prepared: &Prepared<'_>,
    state: &State,
    lane: &Lane<'_>,
) -> Result<Reserved> {
    let tokens = prepared.tokens();
    let likely = || {
        let uniform = uniform_arrivals(tokens, world.ranks(), world.shape.top_k);
        generous(uniform.max(state.last_rows)).min(world.ranks() * world.shape.max_tokens)
    };
    let rows = prepared.known_rows.unwrap_or_else(likely);
    let output = world.take(OutputLayout::new(&prepared.kind, rows, rows).bytes, lane.stream)?;
    if lane.capturing && output.is_none() {
        return Err(CudaError::Capture {
            rank: world.rank,
            call: "a dispatch whose output finds no room in the pool",
            reason: "build the communicator for more live outputs",
        });
    }
    let route = if let Some(handle) = prepared.cached {
        handle.used_on(world.rank, lane.stream, lane.capturing)?;
        None
    } else {
        let bytes = protocol::route_bytes(world.ranks(), world.placement.most_local_experts(), tokens);
        let route = Memory::take(world, bytes, lane.stream)?;
        if lane.capturing {
            // Its handle may be used before the graph has run: then it is one of a dispatch that moved nothing.
            // SAFETY: a route is as long, and whoever used its memory before was awaited when it was taken in a capture.
            unsafe { clear(&world.context, route.address(), protocol::ROUTE_BYTES) }?;
        }
        Some(route)
    };
    Ok(Reserved { output, route })
}
