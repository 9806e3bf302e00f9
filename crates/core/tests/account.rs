//! Byte accounting against enumeration with sets, against the means of `expect`, and by hand.
#![allow(clippy::unwrap_used, reason = "helpers of tests unwrap as the tests do")]

use std::collections::HashSet;

use expertrail_core::account::{
    LinkBytes, OpBytes, Reach, RowSize, Traffic, rank_traffic, topk_metadata_bytes,
};
use expertrail_core::expect::{Draw, distinct};
use expertrail_core::roofline::{Load, Transfer, wire_bytes};
use expertrail_core::{Dtype, Placement, Routing, Topology};
use proptest::prelude::*;

fn brute_force(t: &Topology, p: &Placement, routing: &Routing, source: usize) -> Traffic {
    let ids = |token| routing.row(token).iter().filter(|&&id| id >= 0).map(|&id| id as usize);
    let reach = |ranks: &mut dyn Iterator<Item = usize>| {
        let mut reach = Reach::default();
        for rank in ranks {
            if rank == source {
                reach.own_rank += 1;
            } else if t.node_of(rank) == t.node_of(source) {
                reach.own_node += 1;
            } else {
                reach.other_nodes += 1;
            }
        }
        reach
    };
    let mut all = Traffic { tokens: routing.tokens() as u64, ..Traffic::default() };
    for token in 0..routing.tokens() {
        let ranks: HashSet<usize> = ids(token).map(|expert| p.rank_of(expert)).collect();
        let nodes: HashSet<usize> = ranks.iter().map(|&rank| t.node_of(rank)).collect();
        all.tokens_without_destination += u64::from(ranks.is_empty());
        all.selections += reach(&mut ids(token).map(|expert| p.rank_of(expert)));
        all.rank_copies += reach(&mut ranks.iter().copied());
        all.own_node_copies += u64::from(nodes.contains(&t.node_of(source)));
        for &node in nodes.iter().filter(|&&node| node != t.node_of(source)) {
            all.other_node_copies += 1;
            let arrives_at = node * t.ranks_per_node() + t.local_rank(source);
            all.forwards +=
                ranks.iter().filter(|&&rank| t.node_of(rank) == node && rank != arrives_at).count() as u64;
        }
    }
    all
}

prop_compose! {
    fn machines()(
        (nodes, per_node) in (1usize..5, 1usize..5),
        (experts, top_k) in (1usize..40, 1usize..9),
        source in any::<prop::sample::Index>(),
        ids in prop::collection::vec(any::<u16>(), 0..160),
    ) -> (Topology, Placement, Routing, usize) {
        let ranks = nodes * per_node;
        let whole = ids.len() / top_k * top_k;
        // One more value than experts: the lowest is "no expert".
        let ids = ids[..whole].iter().map(|&id| i32::from(id) % (experts as i32 + 1) - 1).collect();
        (
            Topology::new(ranks, per_node).unwrap(),
            Placement::new(experts, ranks).unwrap(),
            Routing::new(ids, top_k, experts).unwrap(),
            source.index(ranks),
        )
    }
}

proptest! {
    #[test]
    fn counts_equal_enumeration((t, p, routing, source) in machines()) {
        let got = rank_traffic(&t, &p, &routing, source).unwrap();
        prop_assert_eq!(got, brute_force(&t, &p, &routing, source));
        // A row reaches each rank of another node by landing on its rail or by a forward.
        prop_assert!(got.forwards <= got.rank_copies.other_nodes);
        prop_assert!(got.rank_copies.other_nodes <= got.forwards + got.other_node_copies);
        // One node: every copy to another rank crosses scale-up, none scale-out, by any way.
        if t.nodes() == 1 {
            for transfer in [Transfer::TwoHop, Transfer::DirectPerRank] {
                let bytes = got.dispatch_bytes(transfer, RowSize { row: 16, metadata: 0 });
                let scale_up = 16 * got.rank_copies.remote();
                prop_assert_eq!(bytes.wire, LinkBytes { scale_up, scale_out: 0 });
            }
        }
    }
}

/// 2 nodes of 2 ranks, 4 experts, one per rank; the source is rank 1 (rail 1, which on node 1 is rank 3).
fn example() -> Traffic {
    let t = Topology::new(4, 2).unwrap();
    let p = Placement::new(4, 4).unwrap();
    let ids = vec![
        1, 0, 2, // own rank, neighbour, rank 2 by way of rank 3
        3, 3, 2, // rank 3 once, then rank 2
        3, -1, -1, // rank 3 only
        -1, -1, -1, // nowhere
        0, 0, 1, // own node only
    ];
    rank_traffic(&t, &p, &Routing::new(ids, 3, 4).unwrap(), 1).unwrap()
}

#[test]
fn two_by_two_by_hand() {
    let want = Traffic {
        tokens: 5,
        tokens_without_destination: 1,
        selections: Reach { own_rank: 2, own_node: 3, other_nodes: 5 },
        rank_copies: Reach { own_rank: 2, own_node: 2, other_nodes: 4 },
        own_node_copies: 2,
        other_node_copies: 3,
        forwards: 2,
    };
    assert_eq!(example(), want);
    assert_eq!((want.rank_copies.total(), want.rank_copies.remote(), want.node_copies()), (8, 6, 5));
}

#[test]
fn bytes_by_hand() {
    // BF16 rows of 8 elements, ids and weights of 3 choices.
    let size = RowSize { row: Dtype::Bf16.wire_row_bytes(8), metadata: topk_metadata_bytes(3) };
    assert_eq!(size, RowSize { row: 16, metadata: 24 });
    assert_eq!(
        example().dispatch_bytes(Transfer::TwoHop, size),
        OpBytes {
            logical: 8 * 16,
            logical_nodes: 5 * 16,
            wire: LinkBytes { scale_up: (2 + 2) * 16, scale_out: 3 * 16 },
            metadata: LinkBytes { scale_up: 4 * 24, scale_out: 3 * 24 },
        }
    );
    let direct = example().dispatch_bytes(Transfer::DirectPerRank, size);
    assert_eq!(direct.wire, LinkBytes { scale_up: 2 * 16, scale_out: 4 * 16 });
    let per_expert = example().dispatch_bytes(Transfer::DirectPerExpert, size);
    assert_eq!(
        (per_expert.logical, per_expert.wire),
        (160, LinkBytes { scale_up: 3 * 16, scale_out: 5 * 16 })
    );
    // Combine: rows of rank 2 to the rail and of rank 0 to the source, three partial sums across.
    assert_eq!(
        example().combine_bytes(Transfer::TwoHop, 32),
        OpBytes {
            logical: 8 * 32,
            logical_nodes: 5 * 32,
            wire: LinkBytes { scale_up: 4 * 32, scale_out: 3 * 32 },
            metadata: LinkBytes::default(),
        }
    );
}

struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) as usize * bound) >> 32
    }
}

/// Mean copies per token over all sources, against the means of `expect` and the shares of the roofline.
#[test]
fn random_routings_agree_with_the_model() {
    const TOKENS: usize = 4000;
    let mut random = Xorshift(0x2545_F491_4F6C_DD1D);
    // The last has experts that do not divide by ranks.
    for (ranks, per_node, experts, top_k) in
        [(8, 8, 256, 8), (16, 8, 128, 8), (32, 8, 256, 8), (12, 4, 50, 6)]
    {
        let t = Topology::new(ranks, per_node).unwrap();
        let p = Placement::new(experts, ranks).unwrap();
        for draw in [Draw::WithoutReplacement, Draw::WithReplacement] {
            let mut all = Traffic::default();
            for source in 0..ranks {
                let mut ids = Vec::with_capacity(TOKENS * top_k);
                for _ in 0..TOKENS {
                    let start = ids.len();
                    while ids.len() < start + top_k {
                        let id = random.below(experts) as i32;
                        if draw == Draw::WithReplacement || !ids[start..].contains(&id) {
                            ids.push(id);
                        }
                    }
                }
                all += rank_traffic(&t, &p, &Routing::new(ids, top_k, experts).unwrap(), source).unwrap();
            }
            let u = distinct(&t, &p, top_k, draw).unwrap();
            let one = Load::new(1, 1, top_k, &u);
            let two_hop = wire_bytes(&t, &one, Transfer::TwoHop);
            let per_rank = wire_bytes(&t, &one, Transfer::DirectPerRank);
            let per_expert = wire_bytes(&t, &one, Transfer::DirectPerExpert);
            let row = RowSize { row: 1, metadata: 0 };
            let seen = |transfer| all.dispatch_bytes(transfer, row).wire;
            let tokens = (ranks * TOKENS) as f64;
            // A token's count is a sum over places of "hit or not", never positively correlated: its
            // variance is at most the sum of p (1 - p), which is largest for equal p.
            let agrees = |count: u64, mean: f64, places: usize| {
                let variance = mean * (1.0 - mean / places as f64).max(0.0);
                let (got, sigma) = (count as f64 / tokens, (variance / tokens).sqrt());
                assert!((got - mean).abs() <= 4.0 * sigma + 1e-12, "{got} not near {mean} (sigma {sigma})");
            };
            assert_eq!(all.selections.total(), (ranks * TOKENS * top_k) as u64);
            agrees(all.rank_copies.total(), u.ranks.value, ranks);
            agrees(all.node_copies(), u.nodes.value, t.nodes());
            agrees(seen(Transfer::TwoHop).scale_up, two_hop.scale_up, ranks - t.nodes());
            agrees(seen(Transfer::DirectPerRank).scale_up, per_rank.scale_up, per_node - 1);
            agrees(seen(Transfer::DirectPerExpert).scale_up, per_expert.scale_up, top_k);
            if t.nodes() > 1 {
                agrees(seen(Transfer::TwoHop).scale_out, two_hop.scale_out, t.nodes() - 1);
                agrees(seen(Transfer::DirectPerRank).scale_out, per_rank.scale_out, ranks - per_node);
                agrees(seen(Transfer::DirectPerExpert).scale_out, per_expert.scale_out, top_k);
            }
        }
    }
}

#[test]
fn misuse_is_refused() {
    let t = Topology::new(4, 2).unwrap();
    let p = Placement::new(8, 4).unwrap();
    let routing = Routing::new(vec![0, 1], 2, 8).unwrap();
    assert!(rank_traffic(&t, &p, &routing, 3).is_ok());
    let err = rank_traffic(&t, &p, &routing, 4).unwrap_err().to_string();
    assert!(err.contains("source rank 4"), "{err}");
    assert!(rank_traffic(&Topology::new(2, 2).unwrap(), &p, &routing, 0).is_err());
    assert!(rank_traffic(&t, &Placement::new(9, 4).unwrap(), &routing, 0).is_err());
}
