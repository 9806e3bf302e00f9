//! Combine between nodes: this rank sums what its node's ranks made of the tokens of its rail peers and sends one row for
//! each; at home the rows of all nodes are summed.

use expertrail_core::Bf16;
use expertrail_core::handle::Forwards;
use expertrail_core::hop::Channel;
use expertrail_core::hop::chunk::{ChunkError, CombineLayout};
use expertrail_core::plan::Destination;

use super::incoming::Incoming;
use super::outgoing::Stream;
use super::{Crossings, rank_on, wait_for_any};
use crate::call::Combine;
use crate::combine::MAX_BIASES;
use crate::copy::Copier;
use crate::error::{Cause, Phase, Result};
use crate::reduce::{self, MAX_ROWS, Sum};
use crate::world::World;

const CHANNEL: usize = Channel::Combine as usize;

/// Own tokens summed between two looks at the rails.
const TURN: usize = 32;

/// A combine that crosses nodes. The rows (and weights) of this node's ranks lie in shared memory.
pub(crate) struct Run<'a> {
    pub(crate) world: &'a World,
    pub(crate) epoch: u64,
    pub(crate) args: &'a Combine<'a>,
    /// By local rank: its first arrival's row.
    pub(crate) rows: Vec<*const Bf16>,
    /// By local rank: its first arrival's weights; empty when none were sent.
    pub(crate) weights: Vec<*const f32>,
    /// By local rank: this rank's first arrival there.
    pub(crate) arrivals: Vec<usize>,
    pub(crate) copier: Copier,
}

/// What comes back from one node.
struct Back {
    incoming: Incoming,
    /// Tokens used so far, by their place in the stream.
    used: usize,
    /// Chunks whose head was checked.
    checked: usize,
}

impl Run<'_> {
    /// Sends and sums until nothing is left of either; gives the weights that came back.
    pub(crate) fn run(&self, crossings: &mut Crossings, out: &mut [Bf16]) -> Result<Option<Vec<f32>>> {
        let (world, handle) = (self.world, self.args.handle);
        let Some(forwards) = handle.forwards() else {
            // A handle of this communicator always has them.
            return Err(world.fail(world.wait(Phase::RailCombine, self.epoch), Cause::Protocol, world.rank));
        };
        let (hidden, top_k) = (world.shape.hidden, world.shape.top_k);
        let carried = if self.weights.is_empty() { 0 } else { top_k };
        let slot_bytes = crossings.limits.slot_bytes(&world.topology, &world.shape);
        let layout = CombineLayout::new(hidden, carried, slot_bytes)
            .map_err(|error| self.broken(world.rank, &error))?;
        let frame = *layout.frame();
        let mut streams: Vec<Stream> =
            crossings.others().map(|node| Stream::new(node, forwards.tokens(node), &frame)).collect();
        let mut backs: Vec<Option<Back>> = (0..world.topology.nodes()).map(|_| None).collect();
        for node in crossings.others() {
            let tokens = handle.plan().tokens_to(world.topology.ranks_of(node)).count();
            let incoming = Incoming::new(crossings, CHANNEL, (node, tokens), &frame);
            backs[node] = Some(Back { incoming, used: 0, checked: 0 });
        }
        let mut gathered = (carried > 0).then(|| vec![0f32; handle.tokens() * top_k]);
        let mut scratch = vec![Bf16(0); hidden];
        let mut next = 0;
        loop {
            let mut moved = false;
            for stream in &mut streams {
                if !stream.is_done()
                    && crossings.has_credit(CHANNEL, stream.node)
                    && let Some(slot) = crossings.free_slot()
                {
                    self.pack(crossings, &layout, stream, (forwards, slot))?;
                    moved = true;
                }
            }
            let turn = next;
            while next < handle.tokens()
                && next - turn < TURN
                && self.is_there(crossings, &layout, &backs, next)
            {
                self.sum(crossings, &layout, (&mut backs, &mut scratch), next)?;
                let to = &mut out[next * hidden..(next + 1) * hidden];
                // SAFETY: two different rows of `hidden` elements.
                unsafe { self.copier.copy(scratch.as_ptr().cast(), to.as_mut_ptr().cast(), 2 * hidden) };
                if let Some(all) = &mut gathered {
                    self.gather(
                        crossings,
                        &layout,
                        &backs,
                        (next, &mut all[next * top_k..(next + 1) * top_k]),
                    );
                }
                self.give_back(crossings, &layout, &mut backs, next);
                next += 1;
            }
            moved |= next > turn;
            if moved {
                crossings.check(world, world.wait(Phase::RailCombine, self.epoch))?;
            } else if next == handle.tokens() && streams.iter().all(Stream::is_done) {
                self.copier.finish();
                crossings.intact(world, world.wait(Phase::RailCombine, self.epoch))?;
                return Ok(gathered);
            } else {
                self.sleep(crossings, &layout, (&streams, &backs), next)?;
            }
        }
    }

    /// Packs the next chunk of sums for a node into outgoing `slot`.
    fn pack(
        &self,
        crossings: &mut Crossings,
        layout: &CombineLayout,
        stream: &mut Stream,
        (forwards, slot): (&Forwards, usize),
    ) -> Result<()> {
        let (world, node) = (self.world, stream.node);
        let (hidden, top_k) = (world.shape.hidden, world.shape.top_k);
        // SAFETY: the slot is free, and is given to the proxy at the end.
        let opened = unsafe { stream.open(crossings, layout.frame(), (CHANNEL, slot), self.epoch) };
        let (chunk, range) = opened.map_err(|error| self.broken(world.rank, &error))?;
        let length = chunk.len();
        let mut weights = vec![0f32; top_k];
        for (i, token) in range.enumerate() {
            let entries = forwards.entries(node, token);
            let mut rows = [std::ptr::null(); MAX_ROWS];
            for (row, &(local, arrival)) in rows.iter_mut().zip(entries) {
                *row = self.rows[usize::from(local)].wrapping_add(arrival as usize * hidden);
            }
            let sum = Sum { biases: &[], rows: &rows[..entries.len()], node_ends: &[] };
            // SAFETY: arrivals were within their rank's output when they were forwarded, and that rank has announced where
            // all its rows lie; the record has room for a row.
            unsafe {
                let to = chunk.as_mut_ptr().add(layout.row(i).start).cast::<Bf16>();
                reduce::sum_rows(world.simd, &sum, to, hidden);
            }
            if !self.weights.is_empty() {
                weights.fill(0.0);
                for &(local, arrival) in entries {
                    let first = self.weights[usize::from(local)].wrapping_add(arrival as usize * top_k);
                    for (k, sum) in weights.iter_mut().enumerate() {
                        // SAFETY: as for the rows.
                        *sum += unsafe { first.add(k).read() };
                    }
                }
                layout.write_weights(chunk, i, &weights).map_err(|error| self.broken(world.rank, &error))?;
            }
        }
        stream.packed += 1;
        crossings.send(CHANNEL, node, (slot, length), self.epoch);
        Ok(())
    }

    /// The nodes other than the own one that `token` went to.
    fn away(&self, token: usize) -> impl Iterator<Item = usize> + '_ {
        let own = self.world.topology.node_of(self.world.rank);
        let node = |d: &Destination| self.world.topology.node_of(d.rank as usize);
        self.args
            .handle
            .plan()
            .destinations(token)
            .chunk_by(move |a, b| node(a) == node(b))
            .map(move |of_node| self.world.topology.node_of(of_node[0].rank as usize))
            .filter(move |&node| node != own)
    }

    /// Whether all rows of `token` from other nodes are there.
    fn is_there(
        &self,
        crossings: &Crossings,
        layout: &CombineLayout,
        backs: &[Option<Back>],
        token: usize,
    ) -> bool {
        let per_chunk = layout.frame().records_per_chunk();
        self.away(token).all(|node| {
            backs[node]
                .as_ref()
                .is_some_and(|back| back.incoming.is_there(crossings, CHANNEL, back.used / per_chunk))
        })
    }

    /// Sums `token`, whose rows are all there.
    fn sum(
        &self,
        crossings: &Crossings,
        layout: &CombineLayout,
        (backs, out): (&mut [Option<Back>], &mut [Bf16]),
        token: usize,
    ) -> Result<()> {
        let (world, hidden) = (self.world, out.len());
        let own = world.topology.node_of(world.rank);
        let node = |d: &Destination| world.topology.node_of(d.rank as usize);
        let mut rows = [std::ptr::null(); MAX_ROWS];
        let mut ends = [0u8; MAX_ROWS];
        let (mut count, mut nodes) = (0, 0);
        for of_node in self.args.handle.plan().destinations(token).chunk_by(|a, b| node(a) == node(b)) {
            let from = node(&of_node[0]);
            if from == own {
                for d in of_node {
                    let local = world.local(d.rank as usize);
                    let arrival = self.arrivals[local] + d.slot as usize;
                    rows[count] = self.rows[local].wrapping_add(arrival * hidden);
                    count += 1;
                }
            } else if let Some(back) = &mut backs[from] {
                rows[count] = self.row_of(crossings, layout, back)?;
                count += 1;
            }
            ends[nodes] = count as u8;
            nodes += 1;
        }
        let mut biases = [std::ptr::null(); MAX_BIASES];
        for (pointer, bias) in biases.iter_mut().zip(self.args.biases) {
            *pointer = bias[token * hidden..].as_ptr();
        }
        let sum = Sum {
            biases: &biases[..self.args.biases.len()],
            rows: &rows[..count],
            node_ends: &ends[..nodes],
        };
        // SAFETY: rows of this node lie in shared memory as announced, rows of others in slots that were checked.
        unsafe { reduce::sum_rows(world.simd, &sum, out.as_mut_ptr(), hidden) };
        Ok(())
    }

    /// The next row of a stream; its chunk's head is checked when it is first looked at.
    fn row_of(&self, crossings: &Crossings, layout: &CombineLayout, back: &mut Back) -> Result<*const Bf16> {
        let per_chunk = layout.frame().records_per_chunk();
        let (index, record) = (back.used / per_chunk, back.used % per_chunk);
        let base = slot_of(crossings, back, index);
        if back.checked == index {
            let bytes = crossings.rail.layout().sizes().chunk_bytes[CHANNEL];
            // SAFETY: the layout has a slot there; its sender writes it again only after the credit.
            let slot = unsafe { std::slice::from_raw_parts(base, bytes) };
            layout
                .read(slot, &back.incoming.place(index, self.epoch))
                .map_err(|error| self.broken(rank_on(self.world, back.incoming.node), &error))?;
            back.checked += 1;
        }
        Ok(base.wrapping_add(layout.row(record).start).cast())
    }

    /// Sums the weights of `token`, by node.
    fn gather(
        &self,
        crossings: &Crossings,
        layout: &CombineLayout,
        backs: &[Option<Back>],
        (token, sums): (usize, &mut [f32]),
    ) {
        let world = self.world;
        let (own, top_k) = (world.topology.node_of(world.rank), sums.len());
        let node = |d: &Destination| world.topology.node_of(d.rank as usize);
        let per_chunk = layout.frame().records_per_chunk();
        for of_node in self.args.handle.plan().destinations(token).chunk_by(|a, b| node(a) == node(b)) {
            let from = node(&of_node[0]);
            for (k, sum) in sums.iter_mut().enumerate() {
                let part = if from == own {
                    of_node.iter().fold(0.0, |sum, d| {
                        let local = world.local(d.rank as usize);
                        let arrival = self.arrivals[local] + d.slot as usize;
                        let at = self.weights[local].wrapping_add(arrival * top_k + k);
                        // SAFETY: that rank has announced where the weights of all its arrivals lie.
                        sum + unsafe { at.read() }
                    })
                } else if let Some(back) = &backs[from] {
                    let base = slot_of(crossings, back, back.used / per_chunk);
                    let at = layout.row(back.used % per_chunk).end + 4 * k;
                    // SAFETY: the chunk was checked when its row was read; the record has top-k weights behind it.
                    unsafe { base.add(at).cast::<f32>().read_unaligned() }
                } else {
                    0.0
                };
                *sum += part;
            }
        }
    }

    /// `token` is done: chunks whose last token it was go back.
    fn give_back(
        &self,
        crossings: &mut Crossings,
        layout: &CombineLayout,
        backs: &mut [Option<Back>],
        token: usize,
    ) {
        let per_chunk = layout.frame().records_per_chunk();
        for node in self.away(token) {
            if let Some(back) = &mut backs[node] {
                back.used += 1;
                if back.used.is_multiple_of(per_chunk) || back.used == back.incoming.tokens {
                    let index = (back.used - 1) / per_chunk;
                    back.incoming.give_back(crossings, CHANNEL, (index, self.epoch));
                }
            }
        }
    }

    fn broken(&self, culprit: usize, error: &ChunkError) -> crate::HostError {
        self.world.note(error.to_string());
        self.world.fail(self.world.wait(Phase::RailCombine, self.epoch), Cause::Protocol, culprit)
    }

    fn sleep(
        &self,
        crossings: &mut Crossings,
        layout: &CombineLayout,
        (streams, backs): (&[Stream], &[Option<Back>]),
        next: usize,
    ) -> Result<()> {
        crossings.stalls += 1;
        let wait = self.world.wait(Phase::RailCombine, self.epoch);
        let per_chunk = layout.frame().records_per_chunk();
        let is_last = next == self.args.handle.tokens();
        let missing = |crossings: &Crossings| -> Option<usize> {
            if is_last {
                return None;
            }
            self.away(next).find(|&node| {
                backs[node]
                    .as_ref()
                    .is_some_and(|back| !back.incoming.is_there(crossings, CHANNEL, back.used / per_chunk))
            })
        };
        let needed: Vec<usize> = missing(crossings)
            .into_iter()
            .chain(streams.iter().filter(|stream| !stream.is_done()).map(|stream| stream.node))
            .collect();
        let crossings = std::cell::RefCell::new(crossings);
        wait_for_any(self.world, wait, (&crossings, &needed), || {
            let mut crossings = crossings.borrow_mut();
            (!is_last && missing(&crossings).is_none())
                || streams.iter().any(|stream| stream.may_go_on(&mut crossings, CHANNEL))
        })
    }
}

/// Where chunk `index` of a stream lies.
fn slot_of(crossings: &Crossings, back: &Back, index: usize) -> *const u8 {
    let at = crossings.rail.layout().chunk(CHANNEL, back.incoming.node, back.incoming.sequence(index));
    crossings.rail.base().wrapping_add(at).cast_const()
}
