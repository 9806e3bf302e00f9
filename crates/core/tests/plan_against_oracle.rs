#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

//! The plan and the count matrix put every row where the oracle, which knows neither, expects it.

use std::collections::HashMap;

use expertrail_core::oracle::{self, RowOrigin};
use expertrail_core::{Bf16, CountMatrix, Layout, Placement, Plan, Routing, Topology};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Case {
    placement: Placement,
    layout: Layout,
    routings: Vec<Routing>,
}

fn cases() -> impl Strategy<Value = Case> {
    (1usize..9, 1usize..20, 1usize..6, prop_oneof![Just(0usize), 1usize..9]).prop_flat_map(
        |(ranks, experts, top_k, alignment)| {
            let ids = prop::collection::vec(-1..experts as i32, 0..12 * top_k);
            prop::collection::vec(ids, ranks).prop_map(move |all| Case {
                placement: Placement::new(experts, ranks).unwrap(),
                layout: if alignment == 0 { Layout::BySource } else { Layout::ExpertMajor { alignment } },
                routings: all
                    .into_iter()
                    .map(|mut ids| {
                        ids.truncate(ids.len() / top_k * top_k);
                        Routing::new(ids, top_k, experts).unwrap()
                    })
                    .collect(),
            })
        },
    )
}

fn matrix(case: &Case, plans: &[Plan]) -> CountMatrix {
    CountMatrix::new(
        case.placement,
        case.layout,
        plans.iter().flat_map(|p| p.rank_counts().to_vec()).collect(),
        plans.iter().flat_map(|p| p.expert_counts().to_vec()).collect(),
    )
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rows_land_where_the_oracle_says(case in cases()) {
        let plans: Vec<Plan> =
            case.routings.iter().map(|r| Plan::new(r, &case.placement, case.layout).unwrap()).collect();
        let matrix = matrix(&case, &plans);
        let mut landed: Vec<HashMap<usize, RowOrigin>> = vec![HashMap::new(); case.placement.ranks()];
        for (source, (plan, routing)) in plans.iter().zip(&case.routings).enumerate() {
            let offsets = matrix.expert_offsets(source);
            for token in 0..routing.tokens() {
                let mut last = None;
                for d in plan.destinations(token) {
                    prop_assert!(last < Some(d.rank), "ranks ascend");
                    last = Some(d.rank);
                    if case.layout == Layout::BySource {
                        let row = matrix.arrival_offset(source, d.rank as usize) + d.slot as usize;
                        let origin = RowOrigin { source: source as u32, token: token as u32, choice: None };
                        prop_assert!(landed[d.rank as usize].insert(row, origin).is_none());
                    }
                }
                for (d, first) in plan.destinations(token).iter().zip(plan.first_choices(token)) {
                    let row = (offsets[first.expert as usize] + first.slot) as usize;
                    let choice = routing.row(token).iter().position(|&id| id == first.expert as i32).unwrap();
                    let origin = RowOrigin {
                        source: source as u32, token: token as u32, choice: Some(choice as u32),
                    };
                    prop_assert!(landed[d.rank as usize].insert(row, origin).is_none(), "a row is written once");
                }
            }
        }
        for (rank, landed) in landed.iter().enumerate() {
            let expected = oracle::dispatch(&case.placement, case.layout, rank, |s| &case.routings[s]);
            prop_assert_eq!(matrix.rows(rank), expected.rows.len());
            prop_assert_eq!(matrix.arrivals(rank), expected.arrivals.len());
            prop_assert_eq!(matrix.expert_counts(rank), expected.expert_counts);
            // By source every row is sent; expert-major, the first choice of every arrival is.
            let firsts: std::collections::HashSet<(u32, u32)> = expected.arrivals.iter().copied().collect();
            prop_assert_eq!(landed.len(), firsts.len());
            for (row, origin) in landed {
                prop_assert_eq!(Some(origin), expected.rows[*row].as_ref());
                let lowest = expected.rows.iter().flatten()
                    .filter(|o| (o.source, o.token) == (origin.source, origin.token))
                    .map(|o| o.choice).min().unwrap();
                prop_assert_eq!(origin.choice, lowest);
            }
            let starts = matrix.source_starts(rank);
            for (i, &(source, _)) in expected.arrivals.iter().enumerate() {
                prop_assert!((starts[source as usize]..starts[source as usize + 1]).contains(&(i as u32)));
            }
        }
    }

    /// A node that knows only its own columns comes to the same rows as one that knows all.
    #[test]
    fn a_window_of_columns_agrees_with_the_whole(case in cases(), a in 0usize..9, b in 0usize..9) {
        let plans: Vec<Plan> =
            case.routings.iter().map(|r| Plan::new(r, &case.placement, case.layout).unwrap()).collect();
        let ranks = case.placement.ranks();
        let window = a.min(b).min(ranks)..a.max(b).min(ranks);
        let experts = case.placement.experts_of_ranks(window.clone());
        let whole = matrix(&case, &plans);
        let part = CountMatrix::of_node(
            case.placement,
            case.layout,
            window.clone(),
            plans.iter().flat_map(|p| p.rank_counts()[window.clone()].to_vec()).collect(),
            plans.iter().flat_map(|p| p.expert_counts()[experts.clone()].to_vec()).collect(),
        ).unwrap();
        // Ranks behind the last one are outside of every window.
        for rank in 0..ranks + 2 {
            let inside = window.contains(&rank);
            for source in 0..ranks {
                prop_assert_eq!(part.count(source, rank), if inside { whole.count(source, rank) } else { 0 });
                let offset = if inside { whole.arrival_offset(source, rank) } else { 0 };
                prop_assert_eq!(part.arrival_offset(source, rank), offset);
            }
            prop_assert_eq!(part.arrivals(rank), if inside { whole.arrivals(rank) } else { 0 });
            prop_assert_eq!(part.rows(rank), if inside { whole.rows(rank) } else { 0 });
            let starts = if inside { whole.source_starts(rank) } else { vec![0; ranks + 1] };
            prop_assert_eq!(part.source_starts(rank), starts);
            let counts = if inside { whole.expert_counts(rank) } else { vec![0; case.placement.experts_of(rank).len()] };
            prop_assert_eq!(part.expert_counts(rank), counts);
        }
        for expert in 0..=case.placement.experts() {
            let start = if experts.contains(&expert) { whole.expert_start(expert) } else { 0 };
            prop_assert_eq!(part.expert_start(expert), start);
        }
        for (source, plan) in plans.iter().enumerate() {
            let mut want = whole.expert_offsets(source);
            let of_window = if want.is_empty() { vec![] } else { want[experts.clone()].to_vec() };
            for (expert, offset) in want.iter_mut().enumerate() {
                *offset *= u32::from(experts.contains(&expert));
            }
            prop_assert_eq!(part.expert_offsets(source), want);
            prop_assert_eq!(part.window_expert_offsets(source), of_window);
            prop_assert_eq!(part.to_ranks(source), &plan.rank_counts()[window.clone()]);
            prop_assert_eq!(part.to_experts(source), &plan.expert_counts()[experts.clone()]);
        }
        prop_assert!(part.to_ranks(ranks).is_empty() && part.to_experts(ranks).is_empty());
    }

    /// What a source packs for one node, against a walk over the routing.
    #[test]
    fn tokens_to_a_node(case in cases(), a in 0usize..9, b in 0usize..9) {
        let ranks = case.placement.ranks();
        let node = a.min(b).min(ranks)..a.max(b).min(ranks);
        for routing in &case.routings {
            let plan = Plan::new(routing, &case.placement, case.layout).unwrap();
            let mut got = plan.tokens_to(node.clone());
            for token in 0..routing.tokens() {
                let mut on_node: Vec<u32> = routing.row(token).iter().filter(|&&id| id >= 0)
                    .map(|&id| case.placement.rank_of(id as usize) as u32)
                    .filter(|&rank| node.contains(&(rank as usize))).collect();
                on_node.sort_unstable();
                on_node.dedup();
                if on_node.is_empty() {
                    continue;
                }
                let next = got.next().unwrap();
                prop_assert_eq!(next.token as usize, token);
                prop_assert_eq!(next.destinations.iter().map(|d| d.rank).collect::<Vec<_>>(), on_node.clone());
                if case.layout == Layout::BySource {
                    prop_assert!(next.firsts.is_empty());
                } else {
                    let of = next.firsts.iter().map(|f| case.placement.rank_of(f.expert as usize) as u32);
                    prop_assert_eq!(of.collect::<Vec<_>>(), on_node);
                }
                for d in next.destinations {
                    prop_assert!(plan.destinations(token).contains(d));
                }
            }
            prop_assert!(got.next().is_none());
        }
    }

    #[test]
    fn both_set_forms_agree(ids in prop::collection::vec(-1i32..60, 0..160)) {
        // 60 experts on 60 ranks use the word form, on 100 ranks (experts 60.. of 100) the sorted form:
        // expert e is on rank e in both.
        let ids: Vec<i32> = ids[..ids.len() / 4 * 4].to_vec();
        let a = Plan::new(&Routing::new(ids.clone(), 4, 60).unwrap(), &Placement::new(60, 60).unwrap(), Layout::BySource).unwrap();
        let b = Plan::new(&Routing::new(ids, 4, 100).unwrap(), &Placement::new(100, 100).unwrap(), Layout::BySource).unwrap();
        for token in 0..a.tokens() {
            prop_assert_eq!(a.destinations(token), b.destinations(token));
        }
    }
}

fn row(values: &[f32]) -> Vec<Bf16> {
    values.iter().map(|&v| Bf16::from_f32(v)).collect()
}

/// 256 + 1 = 257 needs nine significand bits, BF16 has eight, so it rounds to even: 256. Added one at a
/// time with rounding it stays 256; summed in f32 first, 1 + 1 = 2 survives.
#[test]
fn two_level_rounds_each_node_and_flat_does_not() {
    let (big, one) = (row(&[256.0]), row(&[1.0]));
    let partials: Vec<(usize, &[Bf16])> = vec![(0, &big), (1, &one), (2, &one), (3, &one)];
    let mut out = row(&[0.0]);
    oracle::combine_token(&Topology::new(4, 4).unwrap(), &[], &partials, &mut out);
    // 259 lies between 258 and 260; the tie goes to the even significand, 260 = 1.000001b * 2^8 * ...
    assert_eq!(out, row(&[260.0]));
    oracle::combine_token(&Topology::new(4, 2).unwrap(), &[], &partials, &mut out);
    // node 0: 257 -> 256; node 1: 2; 256 + 2 = 258, exact.
    assert_eq!(out, row(&[258.0]));
    oracle::combine_token(&Topology::new(4, 1).unwrap(), &[&one], &partials, &mut out);
    assert_eq!(out, row(&[260.0])); // 1 + 256 + 1 + 1 + 1 = 260 in f32
}

#[test]
fn partials_use_fused_multiply_add() {
    // weight and value are BF16-exact; w * v needs 24+ bits: fused keeps them, separate rounding loses.
    let w = f32::from_bits(0x3F80_0001); // 1 + 2^-23
    let v = row(&[1.0 + 1.0 / 128.0]);
    let minus = row(&[-(1.0 + 1.0 / 128.0)]);
    let mut out = row(&[0.0]);
    oracle::expert_partial(&[(Some(1.0), &minus), (Some(w), &v)], &mut out);
    // (1 + 2^-23)(1 + 2^-7) - (1 + 2^-7) = 2^-23 (1 + 2^-7), exactly representable in BF16.
    assert_eq!(out[0].to_f32(), (1.0 + 1.0 / 128.0) * 2f32.powi(-23));
}

#[test]
fn zero_starts_positive_and_nan_is_canonical() {
    let (minus_zero, nan) = (vec![Bf16(0x8000)], vec![Bf16(0xFFC1)]);
    let mut out = vec![Bf16(1)];
    let one = Topology::one_node(2).unwrap();
    oracle::combine_token(&one, &[], &[(0, &minus_zero)], &mut out);
    assert_eq!(out[0].0, 0);
    oracle::combine_token(&one, &[], &[(0, &nan), (1, &minus_zero)], &mut out);
    assert_eq!(out[0].0, 0x7FFF);
    oracle::combine_token(&one, &[], &[], &mut out);
    assert_eq!(out[0].0, 0);
}

#[test]
fn plan_of_a_large_call_is_fast_enough_to_be_invisible() {
    // Not a timed test: only that the shape of the target is accepted and its counts add up.
    let (tokens, top_k, experts, ranks) = (65_536usize, 16usize, 256usize, 64usize);
    let mut state = 1u64;
    let ids: Vec<i32> = (0..tokens * top_k)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % experts as u64) as i32
        })
        .collect();
    let routing = Routing::new(ids, top_k, experts).unwrap();
    let plan = Plan::new(&routing, &Placement::new(experts, ranks).unwrap(), Layout::BySource).unwrap();
    assert_eq!(plan.expert_counts().iter().sum::<u32>() as usize, tokens * top_k);
    assert_eq!(plan.rank_counts().iter().sum::<u32>() as usize, plan.copies());
    // with replacement: 64 * (1 - (63/64)^16) = 14.256 distinct ranks a token; sigma of the mean < 0.005
    let mean = plan.copies() as f64 / tokens as f64;
    assert!((mean - 64.0 * (1.0 - (63.0f64 / 64.0).powi(16))).abs() < 0.03, "{mean}");
}
