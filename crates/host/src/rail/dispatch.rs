//! Dispatch between nodes: own rows leave in chunks, chunks that come in are forwarded to their final rows.

use expertrail_core::handle::Forwards;
use expertrail_core::hop::Channel;
use expertrail_core::hop::chunk::{Bounds, Choices, ChunkError, DispatchLayout, DispatchRecord, Entry};
use expertrail_core::plan::NodeToken;
use expertrail_core::{CountMatrix, Layout};

use super::announce::experts_of;
use super::incoming::Incoming;
use super::outgoing::Stream;
use super::{Crossings, rank_on, wait_for_any};
use crate::copy::{Copier, Stores};
use crate::dispatch::{Prepared, Target, rows_of, send};
use crate::error::{Cause, Phase, Result};
use crate::world::World;

const CHANNEL: usize = Channel::Dispatch as usize;

/// Own tokens copied on the node between two looks at the rails. At 14 KiB a row that is 230 KB, some 30 us of copying for each
/// destination: chunks that arrive meanwhile wait no longer than that.
const TURN: usize = 16;

/// A dispatch that crosses nodes.
pub(crate) struct Run<'a> {
    pub(crate) world: &'a World,
    pub(crate) epoch: u64,
    pub(crate) prepared: &'a Prepared<'a>,
    pub(crate) matrix: &'a CountMatrix,
    pub(crate) targets: &'a [Target],
    pub(crate) copier: Copier,
}

/// What a source's rows need at this node.
struct Source {
    incoming: Incoming,
    rank: usize,
    /// By local rank: its first arrival there.
    arrivals: Vec<usize>,
    /// By expert: its first row.
    expert_rows: Vec<u32>,
}

impl Run<'_> {
    /// Sends and forwards until nothing is left of either. `tokens[n]` is what the source on node n has announced.
    pub(crate) fn run(&self, crossings: &mut Crossings, tokens: &[u32]) -> Result<Forwards> {
        let (world, prepared) = (self.world, self.prepared);
        let most = expertrail_core::hop::Limits::most_destinations(&world.topology, &world.shape);
        let slot_bytes = crossings.limits.slot_bytes(&world.topology, &world.shape);
        let layout = DispatchLayout::new(&prepared.kind, most, slot_bytes)
            .map_err(|error| self.broken(rank_on(world, crossings.rail.node()), &error))?;
        let frame = *layout.frame();
        let lists: Vec<Vec<NodeToken<'_>>> = (0..world.topology.nodes())
            .map(|node| prepared.plan.tokens_to(world.topology.ranks_of(node)).collect())
            .collect();
        let mut streams: Vec<Stream> =
            crossings.others().map(|node| Stream::new(node, lists[node].len(), &frame)).collect();
        let mut sources: Vec<Source> = crossings
            .others()
            .map(|node| self.source(Incoming::new(crossings, CHANNEL, (node, tokens[node] as usize), &frame)))
            .collect();
        let mut forwards = Forwards::new(most, tokens);
        let mut own = 0;
        let total = prepared.plan.tokens();
        loop {
            let mut moved = false;
            for stream in &mut streams {
                if !stream.is_done()
                    && crossings.has_credit(CHANNEL, stream.node)
                    && let Some(slot) = crossings.free_slot()
                {
                    self.pack(crossings, &layout, stream, (&lists[stream.node], slot))?;
                    moved = true;
                }
            }
            for source in &mut sources {
                if let Some(index) = source.incoming.next(crossings, CHANNEL) {
                    self.forward(crossings, &layout, (source, index), &mut forwards)?;
                    source.incoming.give_back(crossings, CHANNEL, (index, self.epoch));
                    moved = true;
                }
            }
            // The network first: own rows fill the time in which it has neither credit nor chunks.
            if !moved && own < total {
                let until = (own + TURN).min(total);
                // SAFETY: `targets` are the outputs of this node's ranks for the counts in `matrix`.
                unsafe { send(world, prepared, self.matrix, (self.targets, own..until), self.copier) };
                own = until;
                moved = true;
            }
            if moved {
                crossings.check(world, world.wait(Phase::RailDispatch, self.epoch))?;
            } else if own == total
                && streams.iter().all(Stream::is_done)
                && sources.iter().all(|s| s.incoming.is_done())
            {
                crossings.intact(world, world.wait(Phase::RailDispatch, self.epoch))?;
                return Ok(forwards);
            } else {
                self.sleep(crossings, &streams, &sources)?;
            }
        }
    }

    fn source(&self, incoming: Incoming) -> Source {
        let world = self.world;
        let rank = rank_on(world, incoming.node);
        Source {
            incoming,
            rank,
            arrivals: world.node_ranks.clone().map(|to| self.matrix.arrival_offset(rank, to)).collect(),
            expert_rows: self.matrix.expert_offsets(rank),
        }
    }

    /// Packs the next chunk of a stream, whose tokens are `list`, into outgoing `slot` and gives it to the proxy.
    fn pack(
        &self,
        crossings: &mut Crossings,
        layout: &DispatchLayout,
        stream: &mut Stream,
        (list, slot): (&[NodeToken<'_>], usize),
    ) -> Result<()> {
        let (world, prepared) = (self.world, self.prepared);
        let (frame, node) = (layout.frame(), stream.node);
        let broken = |error: &ChunkError| self.broken(world.rank, error);
        // SAFETY: the slot is free, and is given to the proxy at the end.
        let opened = unsafe { stream.open(crossings, frame, (CHANNEL, slot), self.epoch) };
        let (chunk, range) = opened.map_err(|error| broken(&error))?;
        let length = chunk.len();
        let (ranks, experts) = (world.topology.ranks_of(node), experts_of(world, node));
        let (rows, scales) = rows_of(&prepared.payload);
        let (row_bytes, scale_bytes) = prepared.kind.row_parts();
        let top_k = prepared.kind.top_k;
        let mut entries: Vec<Entry> = Vec::with_capacity(top_k);
        // The proxy reads the chunk again at once, and all outgoing slots fit in a cache.
        let copier = Copier::new(world.simd, Stores::Cached);
        for (i, token) in list[range].iter().enumerate() {
            let at = token.token as usize;
            // SAFETY: the payload has this token, the record room for its row and scales.
            unsafe {
                copier.copy(rows.add(at * row_bytes), chunk.as_mut_ptr().add(layout.row(i).start), row_bytes);
                if scale_bytes > 0 {
                    std::ptr::copy_nonoverlapping(
                        scales.add(at * scale_bytes),
                        chunk.as_mut_ptr().add(layout.scales(i).start),
                        scale_bytes,
                    );
                }
            }
            entries.clear();
            entries.extend(token.destinations.iter().enumerate().map(|(d, destination)| {
                Entry::new(destination, token.firsts.get(d), ranks.start, experts.start)
            }));
            let choices = Choices {
                ids: prepared.routing.map_or(&[], |routing| routing.row(at)),
                weights: prepared.weights.map(|all| &all[at * top_k..(at + 1) * top_k]),
                experts: experts.clone(),
            };
            layout.write(chunk, i, (token.token, &entries), &choices).map_err(|error| broken(&error))?;
        }
        stream.packed += 1;
        crossings.send(CHANNEL, node, (slot, length), self.epoch);
        Ok(())
    }

    /// Writes the rows of a chunk to their final places on this node.
    fn forward(
        &self,
        crossings: &Crossings,
        layout: &DispatchLayout,
        (source, index): (&Source, usize),
        forwards: &mut Forwards,
    ) -> Result<()> {
        let incoming = &source.incoming;
        let at = crossings.rail.layout().chunk(CHANNEL, incoming.node, incoming.sequence(index));
        let bytes = crossings.rail.layout().sizes().chunk_bytes[CHANNEL];
        // SAFETY: the layout has a slot there; its sender writes it again only after the credit.
        let slot = unsafe { std::slice::from_raw_parts(crossings.rail.base().add(at).cast_const(), bytes) };
        let bounds = Bounds::new(self.matrix, source.rank, self.world.shape.max_tokens);
        let broken = |error: ChunkError| self.broken(source.rank, &error);
        let chunk = layout.read(slot, &incoming.place(index, self.epoch), &bounds).map_err(broken)?;
        let first = layout.frame().tokens_of(index, incoming.tokens).start;
        for i in 0..chunk.records() {
            let record = chunk.record(i).map_err(broken)?;
            for entry in record.entries() {
                let arrival = source.arrivals[usize::from(entry.local_rank)] + entry.slot as usize;
                let target = &self.targets[usize::from(entry.local_rank)];
                let row = match self.prepared.layout {
                    Layout::BySource => arrival,
                    Layout::ExpertMajor { .. } => {
                        let expert = self.matrix.experts().start + usize::from(entry.expert);
                        (source.expert_rows[expert] + entry.first_slot) as usize
                    }
                };
                forwards.add((incoming.node, first + i), (entry.local_rank, arrival as u32));
                // SAFETY: the record was checked against the counts that the output was laid out for.
                unsafe { self.put(target, &record, (row, arrival)) };
            }
        }
        self.copier.finish();
        Ok(())
    }

    /// Writes one arrival.
    ///
    /// # Safety
    /// `row` and `arrival` must be of this source in the target.
    unsafe fn put(&self, target: &Target, record: &DispatchRecord<'_>, (row, arrival): (usize, usize)) {
        let kind = &self.prepared.kind;
        let (row_bytes, scale_bytes) = kind.row_parts();
        // SAFETY: the caller's promise; the parts of the record have these sizes.
        unsafe {
            self.copier.copy(record.row.as_ptr(), target.base.add(row * row_bytes), row_bytes);
            if scale_bytes > 0 {
                let to = target.base.add(target.layout.scales + row * scale_bytes);
                std::ptr::copy_nonoverlapping(record.scales.as_ptr(), to, scale_bytes);
            }
            if kind.cached {
                return;
            }
            target.base.add(target.layout.tokens).cast::<u32>().add(arrival).write(record.token);
            let ids = target.base.add(target.layout.ids).cast::<i32>().add(arrival * kind.top_k);
            for (k, id) in record.ids().enumerate() {
                let local = id - target.first_expert;
                let here = id >= 0 && (0..target.experts).contains(&local);
                ids.add(k).write(if here { local } else { -1 });
            }
            if kind.weights {
                let weights = target.base.add(target.layout.weights).cast::<f32>().add(arrival * kind.top_k);
                for (k, (id, weight)) in record.ids().zip(record.weights()).enumerate() {
                    let local = id - target.first_expert;
                    let here = id >= 0 && (0..target.experts).contains(&local);
                    weights.add(k).write(if here { weight } else { 0.0 });
                }
            }
        }
    }

    /// A chunk that cannot be: the communicator is over.
    fn broken(&self, culprit: usize, error: &ChunkError) -> crate::HostError {
        self.world.note(error.to_string());
        self.world.fail(self.world.wait(Phase::RailDispatch, self.epoch), Cause::Protocol, culprit)
    }

    fn sleep(&self, crossings: &mut Crossings, streams: &[Stream], sources: &[Source]) -> Result<()> {
        crossings.stalls += 1;
        let wait = self.world.wait(Phase::RailDispatch, self.epoch);
        let needed: Vec<usize> = sources
            .iter()
            .filter(|source| !source.incoming.is_done())
            .map(|source| source.incoming.node)
            .chain(streams.iter().filter(|stream| !stream.is_done()).map(|stream| stream.node))
            .collect();
        let crossings = std::cell::RefCell::new(crossings);
        wait_for_any(self.world, wait, (&crossings, &needed), || {
            let mut crossings = crossings.borrow_mut();
            sources.iter().any(|source| source.incoming.next(&crossings, CHANNEL).is_some())
                || streams.iter().any(|stream| stream.may_go_on(&mut crossings, CHANNEL))
        })
    }
}
