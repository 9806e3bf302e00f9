use super::*;

fn uniform(ranks: usize, per_node: usize, experts: usize) -> (Topology, Placement) {
    (Topology::new(ranks, per_node).unwrap(), Placement::new(experts, ranks).unwrap())
}

fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance, "{got} is not within {tolerance} of {want}");
}

/// Distinct blocks of `of` over all ordered draws of k experts, with or without repetition.
fn brute_force(experts: usize, top_k: usize, repeat: bool, of: &dyn Fn(usize) -> usize) -> f64 {
    let (mut total, mut draws) = (0u64, 0u64);
    for code in 0..experts.pow(top_k as u32) {
        let ids: Vec<usize> = (0..top_k).map(|i| code / experts.pow(i as u32) % experts).collect();
        if !repeat && (0..top_k).any(|i| ids[..i].contains(&ids[i])) {
            continue;
        }
        let blocks: std::collections::HashSet<usize> = ids.iter().map(|&id| of(id)).collect();
        total += blocks.len() as u64;
        draws += 1;
    }
    total as f64 / draws as f64
}

#[test]
fn exact_means_equal_enumeration_even_when_experts_do_not_divide() {
    for (ranks, per_node, experts, top_k) in
        [(4, 2, 7, 3), (6, 3, 4, 2), (6, 2, 8, 4), (3, 3, 5, 5), (1, 1, 3, 2)]
    {
        let (t, p) = uniform(ranks, per_node, experts);
        for (draw, repeat) in [(Draw::WithoutReplacement, false), (Draw::WithReplacement, true)] {
            let got = distinct(&t, &p, top_k, draw).unwrap();
            close(got.ranks.value, brute_force(experts, top_k, repeat, &|e| p.rank_of(e)), 1e-12);
            close(got.nodes.value, brute_force(experts, top_k, repeat, &|e| t.node_of(p.rank_of(e))), 1e-12);
            assert_eq!((got.ranks.standard_error, got.nodes.standard_error), (0.0, 0.0));
        }
    }
}

#[test]
fn published_shapes() {
    // validation-facts section 5.
    let (t, p) = uniform(8, 8, 256);
    close(distinct(&t, &p, 8, Draw::WithoutReplacement).unwrap().ranks.value, 5.295, 5e-4);
    let (t, p) = uniform(8, 8, 128);
    let guide = distinct(&t, &p, 16, Draw::WithReplacement).unwrap();
    close(guide.ranks.value / 8.0, 1.0 - 0.875f64.powi(16), 1e-14);
    let (t, p) = uniform(16, 8, 128);
    close(
        distinct(&t, &p, 8, Draw::WithReplacement).unwrap().nodes.value,
        2.0 * (1.0 - 0.5f64.powi(8)),
        1e-14,
    );
}

#[test]
fn small_chances_keep_their_digits() {
    // One expert per rank, k = 1: exactly one rank, at any size.
    let (t, p) = uniform(4096, 8, 65_536);
    let one = distinct(&t, &p, 1, Draw::WithoutReplacement).unwrap();
    close(one.ranks.value, 1.0, 1e-12);
    close(one.nodes.value, 1.0, 1e-12);
    close(hit_without_replacement(65_536, 1, 32), 32.0 / 65_536.0, 1e-18);
}

/// Distinct nodes with one group per node and a limit of m are min(m, distinct nodes of an unlimited draw):
/// until m groups have appeared nothing was skipped. Its distribution by counting subsets of k experts
/// that touch exactly d nodes.
fn exact_limited_nodes(nodes: usize, experts_per_node: usize, top_k: usize, m: usize) -> f64 {
    let choose = |n: usize, r: usize| (0..r).fold(1.0, |c, i| c * (n - i) as f64 / (i + 1) as f64);
    // ways[d][j]: subsets of j experts from the nodes so far that touch exactly d of them.
    let mut ways = vec![vec![0.0; top_k + 1]; nodes + 1];
    ways[0][0] = 1.0;
    for _ in 0..nodes {
        let before = ways.clone();
        for d in 1..=nodes {
            for j in 1..=top_k {
                for here in 1..=j.min(experts_per_node) {
                    ways[d][j] += before[d - 1][j - here] * choose(experts_per_node, here);
                }
            }
        }
    }
    let all: f64 = ways.iter().map(|w| w[top_k]).sum();
    ways.iter().enumerate().map(|(d, w)| d.min(m) as f64 * w[top_k]).sum::<f64>() / all
}

#[test]
fn simulated_nodes_agree_with_the_exact_distribution() {
    for (nodes, chosen) in [(8, 4), (8, 2), (8, 1), (4, 3), (16, 4)] {
        let (t, p) = uniform(nodes * 8, 8, 256);
        let limited = Draw::GroupLimited(GroupLimit::new(nodes, chosen));
        let got = distinct(&t, &p, 8, limited).unwrap().nodes;
        let want = exact_limited_nodes(nodes, 256 / nodes, 8, chosen);
        close(got.value, want, 4.0 * got.standard_error);
        assert!(got.standard_error < 0.005);
    }
}

/// Sorting scores as routers do, with another generator.
fn sorted_reference(t: &Topology, p: &Placement, top_k: usize, limit: GroupLimit) -> (f64, f64) {
    let groups = Placement::new(p.experts(), limit.groups).unwrap();
    let mut state = 88_172_645_463_325_252u64;
    let mut score = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut ranks, mut nodes) = (0, 0);
    for _ in 0..limit.samples {
        let scores: Vec<u64> = (0..p.experts()).map(|_| score()).collect();
        let mut order: Vec<usize> = (0..limit.groups).collect();
        order.sort_by_key(|&g| std::cmp::Reverse(groups.experts_of(g).map(|e| scores[e]).max()));
        let mut ids: Vec<usize> = order[..limit.chosen].iter().flat_map(|&g| groups.experts_of(g)).collect();
        ids.sort_by_key(|&e| std::cmp::Reverse(scores[e]));
        let hit: std::collections::HashSet<usize> = ids[..top_k].iter().map(|&e| p.rank_of(e)).collect();
        nodes += hit.iter().map(|&r| t.node_of(r)).collect::<std::collections::HashSet<_>>().len();
        ranks += hit.len();
    }
    (ranks as f64 / limit.samples as f64, nodes as f64 / limit.samples as f64)
}

#[test]
fn simulated_ranks_agree_with_sorting_scores() {
    // The last has groups that are neither nodes nor of equal size.
    for (ranks, per_node, experts, groups, chosen) in [(64, 8, 256, 8, 4), (12, 4, 50, 7, 3)] {
        let (t, p) = uniform(ranks, per_node, experts);
        let limit = GroupLimit { samples: 20_000, ..GroupLimit::new(groups, chosen) };
        let got = distinct(&t, &p, 8, Draw::GroupLimited(limit)).unwrap();
        let (want_ranks, want_nodes) = sorted_reference(&t, &p, 8, limit);
        // Two independent estimates of the same size: sqrt(2) of one error.
        close(got.ranks.value, want_ranks, 4.0 * 1.415 * got.ranks.standard_error);
        close(got.nodes.value, want_nodes, 4.0 * 1.415 * got.nodes.standard_error);
    }
}

#[test]
fn a_limit_that_cannot_bite_is_exact() {
    let (t, p) = uniform(32, 8, 256);
    let free = distinct(&t, &p, 8, Draw::WithoutReplacement).unwrap();
    for (groups, chosen) in [(4, 4), (32, 8), (64, 20)] {
        assert_eq!(distinct(&t, &p, 8, Draw::GroupLimited(GroupLimit::new(groups, chosen))).unwrap(), free);
    }
    assert_ne!(distinct(&t, &p, 8, Draw::GroupLimited(GroupLimit::new(32, 7))).unwrap(), free);
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let (t, p) = uniform(64, 8, 256);
    let limit = GroupLimit { samples: 100, ..GroupLimit::new(8, 4) };
    let draw = |seed| distinct(&t, &p, 8, Draw::GroupLimited(GroupLimit { seed, ..limit })).unwrap();
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let one = GroupLimit { samples: 1, ..limit };
    assert!(distinct(&t, &p, 8, Draw::GroupLimited(one)).unwrap().ranks.standard_error.is_finite());
}

#[test]
fn misuse_is_refused() {
    let (t, p) = uniform(8, 8, 16);
    let limited = |groups, chosen| Draw::GroupLimited(GroupLimit::new(groups, chosen));
    assert!(distinct(&t, &p, 0, Draw::WithReplacement).is_err());
    assert!(distinct(&t, &p, 17, Draw::WithoutReplacement).is_err());
    assert!(distinct(&t, &p, 17, Draw::WithReplacement).is_ok());
    assert!(distinct(&t, &p, 33, Draw::WithReplacement).is_err());
    assert!(distinct(&t, &p, 2, limited(0, 0)).is_err());
    assert!(distinct(&t, &p, 2, limited(4, 0)).is_err());
    // Groups of 6, 5, 5 experts: one chosen group surely holds 5 only.
    assert!(distinct(&t, &p, 5, limited(3, 1)).is_ok());
    assert!(distinct(&t, &p, 6, limited(3, 1)).is_err());
    assert!(distinct(&Topology::new(4, 4).unwrap(), &p, 2, Draw::WithReplacement).is_err());
}
