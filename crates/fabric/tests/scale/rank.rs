//! One rank: what its thread does in a dispatch, a step at a time, beside its proxy's turns.

use expertrail_core::Plan;
use expertrail_core::hop::CallHeader;
use expertrail_core::hop::call::HeaderBounds;
use expertrail_core::hop::chunk::{Bounds, Choices, Entry, Place};
use expertrail_core::hop::immediate::{low_epoch, low_sequence};
use expertrail_core::plan::Destination;
use expertrail_fabric::rail::{Proxy, Rail, Way};
use expertrail_fabric::ring::{Command, Kind, LENGTH_UNIT};

use crate::job::{Common, EMPTY, HIDDEN, Node};

const CHANNEL: usize = 0;

/// The stream to one node and the one from it.
#[derive(Clone, Debug, Default)]
struct Streams {
    /// Tokens of this rank that go there.
    tokens: Vec<u32>,
    packed: usize,
    /// Chunks sent in all calls.
    sent: u64,
    /// Tokens that come from there.
    announced: usize,
    /// Chunks read, of those of this call.
    read: Vec<bool>,
    /// Chunks received in earlier calls.
    received: u64,
}

#[derive(Debug)]
pub(crate) struct Rank {
    number: usize,
    rail: Rail,
    proxy: Proxy,
    epoch: u64,
    plan: Option<Plan>,
    /// By node.
    streams: Vec<Streams>,
    /// How often each outgoing slot was given to the proxy.
    given: Vec<u64>,
    headers_are_in: bool,
    done: bool,
}

/// A row's bytes: a function of whose it is.
fn row(source: usize, token: u32, epoch: u64) -> [u8; 2 * HIDDEN] {
    let mut bytes = [source as u8 ^ token as u8; 2 * HIDDEN];
    bytes[..8].copy_from_slice(&(source as u64).to_le_bytes());
    bytes[8..12].copy_from_slice(&token.to_le_bytes());
    bytes[12..20].copy_from_slice(&epoch.to_le_bytes());
    bytes
}

impl Rank {
    pub(crate) fn new(rank: usize, rail: Rail, proxy: Proxy) -> Self {
        let sizes = rail.layout().sizes();
        Self {
            number: rank,
            rail,
            proxy,
            epoch: 0,
            plan: None,
            streams: vec![Streams::default(); sizes.nodes],
            given: vec![0; sizes.outgoing],
            headers_are_in: false,
            done: true,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Announces a call to the rail peers; rows for this node are put in their places when all counts are known.
    pub(crate) fn begin(&mut self, common: &Common, epoch: u64, plan: Plan, nodes: &mut [Node]) {
        (self.epoch, self.done, self.headers_are_in) = (epoch, false, false);
        for (node, shared) in nodes.iter_mut().enumerate() {
            let ranks = common.ranks_of(node);
            let experts = common.placement.experts_of_ranks(ranks.clone());
            let (to_rank, to_expert) = (&plan.rank_counts()[ranks.clone()], &plan.expert_counts()[experts]);
            self.streams[node].tokens = plan.tokens_to(ranks).map(|token| token.token).collect();
            self.streams[node].packed = 0;
            if node == self.rail.node() {
                shared.learn(common, node, (self.number, to_rank, to_expert));
                continue;
            }
            let header = CallHeader {
                epoch,
                tokens_to_node: self.streams[node].tokens.len() as u32,
                to_rank: to_rank.to_vec(),
                to_expert: to_expert.to_vec(),
                ..CallHeader::default()
            };
            let layout = self.rail.layout();
            let (at, room) = (layout.out_header(node, epoch), layout.sizes().header_bytes);
            // SAFETY: the layout has room for a header there, and the one of two calls ago has left.
            let region = unsafe { std::slice::from_raw_parts_mut(self.rail.base().add(at), room) };
            let bytes = header.encode(region).unwrap();
            self.push(Kind::Header, node, (0, 0), bytes);
        }
        self.plan = Some(plan);
    }

    fn push(&mut self, kind: Kind, node: usize, (sequence, slot): (u64, usize), bytes: usize) {
        let command = Command {
            kind,
            channel: CHANNEL as u8,
            peer: node as u16,
            sequence: low_sequence(sequence),
            epoch: low_epoch(self.epoch),
            slot: slot as u32,
            length: bytes.div_ceil(LENGTH_UNIT as usize) as u32,
        };
        self.rail.push(&command).unwrap();
    }

    /// A turn of the proxy and one of the rank. Says whether anything moved.
    pub(crate) fn turn(&mut self, common: &Common, nodes: &mut [Node]) -> bool {
        let mut worked = self.proxy.turn();
        if self.done {
            return worked;
        }
        let own = self.rail.node();
        let others = (0..nodes.len()).filter(|&node| node != own);
        if !self.headers_are_in {
            for node in others.clone() {
                let way = self.rail.flags().way(node);
                assert_eq!(way, Way::Open, "rank {} to node {node}", self.number);
            }
            if !others.clone().all(|node| self.rail.flags().header_is_there(node, self.epoch)) {
                return worked;
            }
            for node in others.clone() {
                self.read_header(common, node, &mut nodes[own]);
            }
            self.headers_are_in = true;
            worked = true;
        }
        if nodes[own].matrix.is_none() {
            return worked;
        }
        let mut left = false;
        for node in others {
            worked |= self.pack(common, node);
            worked |= self.forward(common, node, &mut nodes[own]);
            let streams = &self.streams[node];
            left |= streams.packed < common.layout.frame().chunks(streams.tokens.len())
                || streams.read.contains(&false);
        }
        if !left {
            self.put_own(&mut nodes[own]);
            for streams in &mut self.streams {
                streams.received += streams.read.len() as u64;
            }
            self.done = true;
            worked = true;
        }
        worked
    }

    fn read_header(&mut self, common: &Common, node: usize, own: &mut Node) {
        let layout = self.rail.layout();
        let (at, room) = (layout.header(node, self.epoch), layout.sizes().header_bytes);
        // SAFETY: the layout has a header there, which nobody writes until this rank has sent its next but one.
        let region = unsafe { std::slice::from_raw_parts(self.rail.base().add(at).cast_const(), room) };
        let here = common.ranks_of(self.rail.node());
        let bounds = HeaderBounds {
            ranks: here.len(),
            experts: common.placement.experts_of_ranks(here).len(),
            max_tokens: common.shape.max_tokens,
            top_k: common.shape.top_k,
        };
        let header = CallHeader::decode(region, self.epoch, &bounds).unwrap();
        let source = common.ranks_of(node).start + common.topology.local_rank(self.number);
        own.learn(common, self.rail.node(), (source, &header.to_rank, &header.to_expert));
        let streams = &mut self.streams[node];
        streams.announced = header.tokens_to_node as usize;
        streams.read = vec![false; common.layout.frame().chunks(streams.announced)];
    }

    /// The destinations of a token on a node.
    fn destinations(plan: &Plan, token: u32, common: &Common, node: usize) -> Vec<Destination> {
        let ranks = common.ranks_of(node);
        plan.destinations(token as usize)
            .iter()
            .filter(|d| ranks.contains(&(d.rank as usize)))
            .copied()
            .collect()
    }

    /// Packs and sends the next chunk for a node, if there are one, a credit and a slot.
    fn pack(&mut self, common: &Common, node: usize) -> bool {
        let Self { rail, streams, given, plan, .. } = self;
        let (frame, streams) = (common.layout.frame(), &mut streams[node]);
        let window = rail.layout().sizes().window as u64;
        if streams.packed == frame.chunks(streams.tokens.len())
            || streams.sent >= rail.flags().credited(CHANNEL, node) + window
        {
            return false;
        }
        let Some(slot) = (0..given.len()).find(|&slot| rail.flags().sent(slot) == given[slot]) else {
            return false;
        };
        let place = Place {
            epoch: self.epoch,
            sequence: streams.sent,
            index: streams.packed,
            tokens: streams.tokens.len(),
        };
        let range = frame.tokens_of(streams.packed, streams.tokens.len());
        let bytes = frame.bytes(range.len());
        // SAFETY: the layout has room for a chunk in every outgoing slot, and the proxy is done with this one.
        let chunk =
            unsafe { std::slice::from_raw_parts_mut(rail.base().add(rail.layout().out_chunk(slot)), bytes) };
        frame.write_head(chunk, &place).unwrap();
        let ranks = common.ranks_of(node);
        let experts = common.placement.experts_of_ranks(ranks.clone());
        let ids = vec![-1; common.shape.top_k];
        let plan = plan.as_ref().unwrap();
        for (i, &token) in streams.tokens[range].iter().enumerate() {
            chunk[common.layout.row(i)].copy_from_slice(&row(self.number, token, self.epoch));
            let entries: Vec<Entry> = Self::destinations(plan, token, common, node)
                .iter()
                .map(|destination| Entry::new(destination, None, ranks.start, experts.start))
                .collect();
            let choices = Choices { ids: &ids, weights: None, experts: experts.clone() };
            common.layout.write(chunk, i, (token, &entries), &choices).unwrap();
        }
        let sequence = streams.sent;
        streams.packed += 1;
        streams.sent += 1;
        given[slot] += 1;
        self.push(Kind::Write, node, (sequence, slot), bytes);
        true
    }

    /// Puts the rows of one chunk from a node in their places, if one has come, and gives it back.
    fn forward(&mut self, common: &Common, node: usize, own: &mut Node) -> bool {
        let streams = &self.streams[node];
        let Some(index) = (0..streams.read.len()).find(|&index| {
            !streams.read[index]
                && self.rail.flags().chunk_is_there(CHANNEL, node, streams.received + index as u64)
        }) else {
            return false;
        };
        let sequence = streams.received + index as u64;
        let layout = self.rail.layout();
        let (at, room) = (layout.chunk(CHANNEL, node, sequence), layout.sizes().chunk_bytes[CHANNEL]);
        // SAFETY: the layout has a slot there, which its sender writes again only after the credit.
        let slot = unsafe { std::slice::from_raw_parts(self.rail.base().add(at).cast_const(), room) };
        let source = common.ranks_of(node).start + common.topology.local_rank(self.number);
        let matrix = own.matrix.as_ref().unwrap();
        let bounds = Bounds::new(matrix, source, common.shape.max_tokens);
        let place = Place { epoch: self.epoch, sequence, index, tokens: streams.announced };
        let chunk = common.layout.read(slot, &place, &bounds).unwrap();
        let first = common.ranks_of(self.rail.node()).start;
        for i in 0..chunk.records() {
            let record = chunk.record(i).unwrap();
            assert_eq!(record.row, row(source, record.token, self.epoch), "from rank {source}");
            for entry in record.entries() {
                let local = usize::from(entry.local_rank);
                let arrival = matrix.arrival_offset(source, first + local) + entry.slot as usize;
                put(&mut own.arrivals[local][arrival], (source, record.token));
            }
        }
        self.streams[node].read[index] = true;
        self.push(Kind::Credit, node, (sequence, 0), 0);
        true
    }

    /// Rows of this rank for its own node cross no network.
    fn put_own(&self, own: &mut Node) {
        let plan = self.plan.as_ref().unwrap();
        let matrix = own.matrix.as_ref().unwrap();
        let here = matrix.ranks();
        for token in 0..plan.tokens() {
            for destination in plan.destinations(token).iter().filter(|d| here.contains(&(d.rank as usize))) {
                let to = destination.rank as usize;
                let arrival = matrix.arrival_offset(self.number, to) + destination.slot as usize;
                put(&mut own.arrivals[to - here.start][arrival], (self.number, token as u32));
            }
        }
    }
}

fn put(place: &mut (u32, u32), (source, token): (usize, u32)) {
    assert_eq!(*place, EMPTY, "two rows for one place, the second of token {token} of rank {source}");
    *place = (source as u32, token);
}
