//! Combine on the host's side: checks, memory, launch.

use expertrail_core::{CoreError, Shape};

use crate::address;
use crate::call::{CudaCombine, DeviceSlice, at_least};
use crate::communicator::CudaCommunicator;
use crate::dispatch::{contiguous, present};
use crate::error::{CudaError, Result};
use crate::launch::Launch;
use crate::output::CudaCombined;
use crate::protocol::{COMBINE_TABLES, CombineArgs, NOWHERE, Signature};
use crate::tune::Rings;
use crate::world::{Memory, World};

/// Bias rows that a combine adds, at most.
pub const MAX_BIASES: usize = 2;

/// Warps of a block: `__launch_bounds__` of the kernel.
const WARPS: u32 = 20;

/// Pushing warps of a block; the others publish and sum.
const MOST_PUSHERS: usize = 8;
const LEAST_PUSHERS: usize = 4;

/// Pushing warps of all blocks together. Each takes shared memory and issue slots from the summing warps. With 16 SMs 7
/// of 20 warps gave 222 us, 6 230 and 8 242 (results/h200-x2/NOTES.md, Backend); with more SMs fewer are enough.
const PUSHERS: usize = 112;

impl CudaCommunicator {
    /// Sends rows back to their tokens and sums them: biases first, then ranks ascending in f32, one rounding.
    /// Collective; returns at once.
    ///
    /// # Errors
    /// [`CudaError::Misuse`], [`CudaError::Address`] and [`CudaError::Setting`] for wrong arguments: nothing moved and
    /// the communicator goes on. What other ranks did is told by [`status`](CudaCommunicator::status) and
    /// [`synchronize`](CudaCommunicator::synchronize).
    pub fn combine(&self, args: &CudaCombine<'_>) -> Result<CudaCombined> {
        let mut state = self.begin()?;
        let world = self.world().clone();
        if let Err(error) = check(&world, args) {
            return Err(self.refuse(&mut state, &args.on, error));
        }
        let lane = match self.lane(&state, &args.on, true) {
            Ok(lane) => lane,
            Err(error) => return Err(self.refuse(&mut state, &args.on, error)),
        };
        let Shape { hidden, top_k, .. } = world.shape;
        let (tokens, row_bytes) = (args.handle.tokens(), 2 * hidden);
        let reserve = || -> Result<_> {
            args.handle.used_on(world.rank, lane.stream, lane.capturing)?;
            let take = |bytes| Memory::take(&world, bytes, lane.stream);
            let memory = args.out.is_none().then(|| take(tokens * row_bytes)).transpose()?;
            let weights = args.weights.map(|_| take(4 * tokens * top_k)).transpose()?;
            Ok((memory, weights.map(|memory| (memory, 4 * tokens * top_k))))
        };
        let (memory, weights) = match reserve() {
            Ok(reserved) => reserved,
            Err(error) => return Err(self.refuse(&mut state, &args.on, error)),
        };
        let address =
            args.out.map(DeviceSlice::address).or(memory.as_ref().map(Memory::address)).unwrap_or(0);

        // Rows that lie in the pool are read there by the peers. Nothing is pushed then, unless weights are.
        let rows = args.rows.slice;
        let base = world.offset_of(rows.address, rows.bytes.max(1));
        let mut rings = Rings::new(row_bytes, lane.sms, (PUSHERS, LEAST_PUSHERS, MOST_PUSHERS));
        if base.is_some() && args.weights.is_none() {
            rings.warps = 0;
        }
        // Own rows come ahead where a token has at most one other; rings give up a stage for that.
        let plain = world.ranks() == 2 && world.topology.nodes() == 1 && args.biases.is_empty();
        let own_bytes = |rings: &Rings| {
            let summing = WARPS - rings.warps - u32::from(rings.warps > 0);
            2 * summing as usize * rings.chunk as usize
        };
        let room = world.shared - COMBINE_TABLES;
        if rings.bytes() + own_bytes(&rings) > room {
            rings.stages -= 1;
        }
        let own_ahead = plain && rings.bytes() + own_bytes(&rings) <= room;
        let rings = rings.within(room);
        let ahead = if own_ahead { own_bytes(&rings) } else { 0 };
        let mut biases = [0; MAX_BIASES];
        for (address, bias) in biases.iter_mut().zip(args.biases) {
            *address = bias.address;
        }
        let raw = CombineArgs {
            world: world.constants.address(),
            rows: rows.address,
            weights: args.weights.map_or(0, present),
            route: args.handle.address(),
            out: address,
            out_weights: weights.as_ref().map_or(0, |(memory, _)| memory.address()),
            biases,
            base: base.map_or(NOWHERE, |offset| offset as u64),
            stress_seed: world.stress_seed,
            signature: Signature::combine(args.weights.is_some()).0,
            row_bytes: row_bytes as u32,
            pushers: rings.warps,
            stages: rings.stages,
            chunk: rings.chunk,
            pieces: rings.pieces,
            own_ahead: own_ahead.into(),
            spare: 0,
        };
        let shape = Launch {
            blocks: lane.sms,
            threads: 32 * WARPS,
            shared: (rings.bytes() + COMBINE_TABLES + ahead) as u32,
            cooperative: true,
            cluster: 1,
        };
        // SAFETY: `CombineArgs` is the kernel's parameter. Rows, weights, biases and outputs were checked to be as long
        // as the handle says; peers' memory stays mapped while the world lives.
        if let Err(error) = unsafe { world.functions.combine.launch(lane.stream, shape, &raw) } {
            return Err(self.refuse(&mut state, &args.on, error));
        }
        if lane.capturing {
            for memory in memory.iter().chain(weights.as_ref().map(|(memory, _)| memory)) {
                memory.keep_for_graph();
            }
        }
        let done = self.launched(&mut state, &lane)?;
        Ok(CudaCombined { memory, weights, bytes: tokens * row_bytes, done })
    }
}

fn check(world: &World, args: &CudaCombine<'_>) -> Result<()> {
    let misuse = |error: CoreError| CudaError::Misuse { rank: world.rank, error };
    let handle = args.handle;
    handle.check(world.token, world.rank).map_err(misuse)?;
    let Shape { hidden, top_k, .. } = world.shape;
    let (tokens, rows) = (handle.tokens(), handle.rows());
    let received = |what: String| move || format!("dispatch gave {rows} rows, {what}");
    let sent = |what: String| move || format!("{tokens} tokens were dispatched, {what}");
    at_least(
        "rows to combine in bytes",
        args.rows.slice.bytes,
        2 * rows * hidden,
        received(format!("hidden {hidden}")),
    )
    .map_err(misuse)?;
    contiguous(world, args.rows.stride, 2 * hidden)?;
    address::check(world, "rows", args.rows.slice, address::ROWS)?;
    if let Some(weights) = args.weights {
        at_least(
            "top-k weights to combine in bytes",
            weights.bytes,
            4 * rows * top_k,
            received(format!("top-k {top_k}")),
        )
        .map_err(misuse)?;
        address::check(world, "top-k weights", weights, address::WORDS)?;
    }
    if args.biases.len() > MAX_BIASES {
        let why = "at most two are added".to_owned();
        return Err(misuse(CoreError::Length {
            what: "biases",
            got: args.biases.len(),
            want: MAX_BIASES,
            why,
        }));
    }
    for bias in args.biases {
        at_least("bias in bytes", bias.bytes, 2 * tokens * hidden, sent(format!("hidden {hidden}")))
            .map_err(misuse)?;
        address::check(world, "bias", *bias, address::ROWS)?;
    }
    if let Some(out) = args.out {
        at_least("combined rows in bytes", out.bytes, 2 * tokens * hidden, sent(format!("hidden {hidden}")))
            .map_err(misuse)?;
        address::check(world, "combined rows", out, address::ROWS)?;
        // Other ranks read rows, and this one pushes and sums them, while sums are written. A bias may be overwritten: each
        // of its elements is read by who writes there.
        let written = 2 * tokens * hidden;
        let weights = args.weights.map_or((0, 0), |weights| (weights.address, 4 * rows * top_k));
        for (address, bytes) in [(args.rows.slice.address, 2 * rows * hidden), weights] {
            if overlap((out.address, written), (address, bytes)) {
                return Err(CudaError::Address {
                    rank: world.rank,
                    what: "combined rows",
                    address: out.address,
                    problem: "it overlaps the rows or weights that are combined; give memory of its own"
                        .to_owned(),
                });
            }
        }
    }
    Ok(())
}

/// Whether two ranges of (address, bytes) have a byte in common.
fn overlap(a: (u64, usize), b: (u64, usize)) -> bool {
    let end = |(address, bytes): (u64, usize)| address.saturating_add(bytes as u64);
    a.1 > 0 && b.1 > 0 && a.0 < end(b) && b.0 < end(a)
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn neighbours_do_not_overlap() {
        assert!(overlap((16, 16), (31, 1)) && overlap((31, 1), (16, 16)) && overlap((0, 64), (16, 16)));
        assert!(!overlap((16, 16), (32, 16)) && !overlap((32, 16), (16, 16)));
        assert!(!overlap((16, 0), (0, 64)) && !overlap((0, 64), (16, 0)));
    }
}
