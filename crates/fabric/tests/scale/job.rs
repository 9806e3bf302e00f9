//! A whole job: its ranks, what the ranks of a node share, and the loop that gives everybody turns.

use std::ops::Range;

use expertrail_core::hop::chunk::DispatchLayout;
use expertrail_core::hop::{CallHeader, Limits};
use expertrail_core::output::OutputKind;
use expertrail_core::{CountMatrix, Dtype, Layout, Placement, Plan, Routing, Shape, Topology, oracle};
use expertrail_fabric::rail::{Listener, ProxyConfig, RailEnd, RailLayout, RailSizes};
use expertrail_fabric::sim::{self, Network};

use crate::rank::Rank;

/// Elements of a row: small, since it is the number of messages that is looked at.
pub(crate) const HIDDEN: usize = 32;

/// Slots of each stream, and chunks packed at once.
const WINDOW: usize = 2;
const OUTGOING: usize = 8;

/// A place of an output that nothing was written to.
pub(crate) const EMPTY: (u32, u32) = (u32::MAX, u32::MAX);

/// What every rank sends in a call.
#[derive(Clone, Copy)]
pub(crate) struct Routes {
    pub tokens: usize,
    pub top_k: usize,
}

/// What all ranks know.
pub(crate) struct Common {
    pub topology: Topology,
    pub placement: Placement,
    pub shape: Shape,
    pub layout: DispatchLayout,
}

impl Common {
    pub(crate) fn ranks_of(&self, node: usize) -> Range<usize> {
        let here = self.topology.ranks_per_node();
        node * here..(node + 1) * here
    }
}

/// What the ranks of a node share in one call: in a real job it lies in shared memory.
pub(crate) struct Node {
    /// `[source, rank of the node]` and `[source, expert of the node]`, as headers bring them.
    to_rank: Vec<u32>,
    to_expert: Vec<u32>,
    /// Sources whose counts are not known yet.
    unknown: usize,
    pub matrix: Option<CountMatrix>,
    /// `[local rank][arrival]`: whose token lies there.
    pub arrivals: Vec<Vec<(u32, u32)>>,
}

impl Node {
    fn new(common: &Common, node: usize) -> Self {
        let (ranks, sources) = (common.ranks_of(node), common.topology.ranks());
        let experts = common.placement.experts_of_ranks(ranks.clone()).len();
        Self {
            to_rank: vec![0; sources * ranks.len()],
            to_expert: vec![0; sources * experts],
            unknown: sources,
            matrix: None,
            arrivals: Vec::new(),
        }
    }

    /// The counts of `source` for node `node`, this one. With the last source's every row has its place.
    pub(crate) fn learn(
        &mut self,
        common: &Common,
        node: usize,
        (source, ranks, experts): (usize, &[u32], &[u32]),
    ) {
        self.to_rank[source * ranks.len()..][..ranks.len()].copy_from_slice(ranks);
        self.to_expert[source * experts.len()..][..experts.len()].copy_from_slice(experts);
        self.unknown -= 1;
        if self.unknown == 0 {
            let here = common.ranks_of(node);
            let (to_rank, to_expert) =
                (std::mem::take(&mut self.to_rank), std::mem::take(&mut self.to_expert));
            let matrix =
                CountMatrix::of_node(common.placement, Layout::BySource, here.clone(), to_rank, to_expert)
                    .unwrap();
            self.arrivals = here.map(|rank| vec![EMPTY; matrix.arrivals(rank)]).collect();
            self.matrix = Some(matrix);
        }
    }
}

/// Nobody sleeps here, and nobody may fail.
struct Quiet;

impl Listener for Quiet {
    fn wake(&self) {}
    fn told(&self, node: usize, word: u64) {
        panic!("node {node} tells of a failure, {word:#x}");
    }
}

pub(crate) struct Job {
    common: Common,
    network: Network,
    ranks: Vec<Rank>,
    nodes: Vec<Node>,
    routes: Routes,
    region: usize,
}

impl Job {
    pub(crate) fn new(nodes: usize, ranks_per_node: usize, routes: Routes) -> Self {
        let ranks = nodes * ranks_per_node;
        let topology = Topology::new(ranks, ranks_per_node).unwrap();
        let shape = Shape { max_tokens: routes.tokens, hidden: HIDDEN, top_k: routes.top_k, experts: ranks };
        let kind = OutputKind {
            dtype: Dtype::Bf16,
            hidden: HIDDEN,
            top_k: routes.top_k,
            cached: false,
            weights: false,
        };
        let most = Limits::most_destinations(&topology, &shape);
        // Two tokens a chunk, so that streams have several.
        let chunk_bytes = 64 + 2 * DispatchLayout::record_bytes(&kind, most);
        let limits = Limits { chunk_bytes, window: WINDOW, small_chunks: true };
        limits.check(&topology, &shape).unwrap();
        let slot = limits.slot_bytes(&topology, &shape);
        let rail = RailLayout::new(RailSizes {
            nodes,
            window: WINDOW,
            header_bytes: CallHeader::region_bytes(ranks_per_node, ranks_per_node),
            chunk_bytes: [slot; 2],
            outgoing: OUTGOING,
        });
        let network = Network::new(sim::Plan {
            delay: (0, 20),
            completion_lag: 5,
            pieces: 2,
            shuffle: true,
            queue_depth: 64,
            busy: 10,
            ..sim::Plan::ordered()
        });
        let ends: Vec<RailEnd> = (0..ranks as u32)
            .map(|rank| RailEnd::new(Box::new(network.endpoint(rank)), rail).unwrap())
            .collect();
        let cards: Vec<_> = ends.iter().map(|end| end.card().clone()).collect();
        let attached = ends.into_iter().enumerate().map(|(rank, end)| {
            let of_rail: Vec<_> =
                cards.iter().skip(topology.local_rank(rank)).step_by(ranks_per_node).cloned().collect();
            let node = topology.node_of(rank);
            let (rail, proxy) = end.attach(node, &of_rail, Box::new(Quiet), &ProxyConfig::default()).unwrap();
            Rank::new(rank, rail, proxy)
        });
        let attached = attached.collect();
        let placement = Placement::new(ranks, ranks).unwrap();
        let layout = DispatchLayout::new(&kind, most, slot).unwrap();
        let common = Common { topology, placement, shape, layout };
        Self { common, network, ranks: attached, nodes: Vec::new(), routes, region: rail.bytes() }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn region_bytes(&self) -> u64 {
        self.region as u64
    }

    /// Writes of all ranks so far.
    pub(crate) fn writes(&self) -> u64 {
        self.network.counts().writes
    }

    /// Any expert for every choice, the same one twice included, now and then none.
    fn routing(&self, epoch: u64, rank: usize) -> Routing {
        let mut state = (epoch << 32 | rank as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let experts = self.common.shape.experts;
        let ids = (0..self.routes.tokens * self.routes.top_k).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % (experts as u64 + 20)) as i64
        });
        let ids = ids.map(|id| if id < experts as i64 { id as i32 } else { -1 }).collect();
        Routing::new(ids, self.routes.top_k, experts).unwrap()
    }

    /// One dispatch of all ranks.
    pub(crate) fn dispatch(&mut self, epoch: u64) {
        self.nodes = (0..self.common.topology.nodes()).map(|node| Node::new(&self.common, node)).collect();
        for rank in 0..self.ranks.len() {
            let plan =
                Plan::new(&self.routing(epoch, rank), &self.common.placement, Layout::BySource).unwrap();
            self.ranks[rank].begin(&self.common, epoch, plan, &mut self.nodes);
        }
        let mut quiet = 0;
        while !self.ranks.iter().all(Rank::is_done) {
            let mut worked = false;
            for rank in &mut self.ranks {
                worked |= rank.turn(&self.common, &mut self.nodes);
            }
            // Writes take at most 20 ticks and their completions 5, and every rank's turn is one.
            quiet = if worked { 0 } else { quiet + 1 };
            assert!(
                quiet < 100,
                "call {epoch} stands still: {:?}",
                self.ranks.iter().find(|rank| !rank.is_done())
            );
        }
    }

    /// Every place of every output was written to once ([`Rank::turn`] refuses a second time), and by whom the oracle says.
    pub(crate) fn check(&self, epoch: u64) {
        let routings: Vec<Routing> = (0..self.ranks.len()).map(|rank| self.routing(epoch, rank)).collect();
        for rank in 0..self.ranks.len() {
            let got = &self.nodes[self.common.topology.node_of(rank)].arrivals
                [self.common.topology.local_rank(rank)];
            assert!(!got.contains(&EMPTY), "rank {rank}, call {epoch}: a row is missing");
            // The oracle walks all routings for each rank: some ranks of every kind of place are enough.
            if rank % 37 == 0 || rank + 1 == self.ranks.len() {
                let wanted =
                    oracle::dispatch(&self.common.placement, Layout::BySource, rank, |s| &routings[s]);
                assert_eq!(got, &wanted.arrivals, "rank {rank}, call {epoch}");
            }
        }
    }
}
