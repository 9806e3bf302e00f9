//! The model against published figures: every check of reference/validation-facts.md section 5.
#![allow(clippy::unwrap_used, reason = "helpers of tests unwrap as the tests do")]

use expertrail_core::expect::{Distinct, Draw, GroupLimit, distinct};
use expertrail_core::roofline::{
    Figure, GuideTimes, Link, Load, Machine, SharedNic, Transfer, alltoall_busbw_ceiling, guide_total,
    ll_fp8_row_bytes, logical_ceiling_gb_s, logical_to_wire, rate_gb_s, time_us, wire_bytes, wire_to_logical,
};
use expertrail_core::{Dtype, Placement, Topology};

fn near(got: f64, want: f64, relative: f64) {
    assert!((got / want - 1.0).abs() <= relative, "{got} is not within {relative} of {want}");
}

/// Equal as printed with `decimals` decimals.
fn prints(got: f64, want: &str) {
    let decimals = want.split_once('.').map_or(0, |(_, digits)| digits.len());
    assert_eq!(format!("{got:.decimals$}"), want);
}

fn destinations(nodes: usize, experts: usize, top_k: usize, draw: Draw) -> (Topology, Distinct) {
    let topology = Topology::new(nodes * 8, 8).unwrap();
    let placement = Placement::new(experts, nodes * 8).unwrap();
    (topology, distinct(&topology, &placement, top_k, draw).unwrap())
}

/// `DeepEP`'s README shape: top-8 of 256, at most 4 nodes.
fn deepep(nodes: usize) -> (Topology, Distinct) {
    destinations(nodes, 256, 8, Draw::GroupLimited(GroupLimit::new(nodes, nodes.min(4))))
}

#[test]
fn guide_totals_to_the_printed_digit() {
    prints(guide_total(276.9, 245.1), "260.0");
    prints(guide_total(275.4, 243.4), "258.4");
    prints(guide_total(274.8, 289.4), "281.9");
    prints(guide_total(277.5, 290.3), "283.8");
}

#[test]
fn guide_intranode() {
    let (topology, u) = destinations(1, 128, 16, Draw::WithReplacement);
    prints(u.ranks.value / 8.0, "0.8819");
    let load = Load::new(65_536, Dtype::Bf16.wire_row_bytes(3072), 16, &u);
    let wire = wire_bytes(&topology, &load, Transfer::TwoHop);
    prints(wire.scale_up / 6144.0, "404588");
    prints(wire.scale_up / 1e9, "2.486");
    // The script excludes the own rank, so its figure is the wire rate.
    prints(time_us(wire.scale_up, 276.9) / 1e3, "8.98");
    // H200 nodes print 274.8 and 277.5, "61 % of 450".
    for printed in [274.8, 277.5] {
        near(printed / 450.0, 0.61, 0.015);
    }
    prints(276.9 / 900.0 * 100.0, "31");
}

#[test]
fn guide_internode() {
    let (topology, u) = destinations(2, 128, 8, Draw::WithReplacement);
    prints(u.nodes.value, "1.992");
    prints(u.nodes.value * 8192.0, "16320");
    let load = Load::new(8192, Dtype::Bf16.wire_row_bytes(3072), 8, &u);
    let logical = load.logical_bytes(Figure::Nodes);
    prints(logical / 1e6, "100.27");
    prints(wire_bytes(&topology, &load, Transfer::TwoHop).scale_out / 1e6, "50.1");
    for (printed, times_ms, wire, wire_gbit, nic_percent, scale_up) in [
        ((56.1, 51.0, 51.9), ("1.787", "1.966", "0.111"), 28.05, "224", "56", "182"),
        ((54.1, 45.8, 48.6), ("1.853", "2.189", "0.084"), 27.05, "216", "54", "175"),
    ] {
        let times = GuideTimes::from_printed(logical, printed.0, printed.1, printed.2);
        prints(times.dispatch_us / 1e3, times_ms.0);
        prints(times.combine_us / 1e3, times_ms.1);
        prints(times.layout_us / 1e3, times_ms.2);
        near(times.total_gb_s(logical), printed.2, 1e-12);
        near(logical_to_wire(printed.0, 2), wire, 1e-12);
        prints(logical_to_wire(printed.0, 2) * 8.0, wire_gbit);
        prints(logical_to_wire(printed.0, 2) / 50.0 * 100.0, nic_percent);
        prints(rate_gb_s(load.logical_bytes(Figure::Ranks), times.dispatch_us), scale_up);
    }
    // Combine reaches 0.46 to 0.51 of the NIC.
    prints(logical_to_wire(51.0, 2) / 50.0, "0.51");
    prints(logical_to_wire(45.8, 2) / 50.0, "0.46");
}

#[test]
fn logged_bytes_of_intranode_runs() {
    // AWS P5en logs: microseconds * GB/s = bytes moved, own rank included.
    let (_, u) = destinations(1, 256, 8, Draw::WithoutReplacement);
    let bytes =
        |dtype: Dtype| Load::new(4096, dtype.wire_row_bytes(7168), 8, &u).logical_bytes(Figure::Ranks);
    prints(bytes(Dtype::Bf16) / 1e6, "310.90");
    prints(bytes(Dtype::Fp8E4m3) / 1e6, "160.31");
    prints(936.50 * 331.77 / 1e3, "310.70");
    prints(499.58 * 320.68 / 1e3, "160.21");
    near(bytes(Dtype::Bf16), 936.50e-6 * 331.77e9, 1e-3);
    near(bytes(Dtype::Fp8E4m3), 499.58e-6 * 320.68e9, 1e-3);
}

#[test]
fn scale_up_figures_without_the_own_rank() {
    // Printed including the own rank -> on the wire.
    for (printed, wire) in [
        (331.77, "290.3"),
        (321.89, "281.7"),
        (336.0, "294"),
        (320.0, "280"),
        (490.0, "429"),
        (402.0, "352"),
        (726.0, "635"),
        (153.0, "134"),
    ] {
        prints(logical_to_wire(printed, 8), wire);
    }
    // 740 * 7/8 = 647.5, listed as 648.
    near(logical_to_wire(740.0, 8), 647.5, 1e-12);
    prints(logical_to_wire(331.77, 8) / 450.0 * 100.0, "64.5");
    prints(logical_to_wire(726.0, 8) / 900.0 * 100.0, "71");
}

#[test]
fn destinations_of_deepep_shapes() {
    for (nodes, u_n, u_r) in [(2, 1.996, 6.45), (4, 3.61, 7.23), (8, 3.98, 7.44)] {
        let (_, u) = deepep(nodes);
        near(u.nodes.value, u_n, 0.01);
        // The listed rank means come from 1,500 simulated tokens of deviation 0.9 at most: a standard error
        // of 0.024. Four of those.
        assert!((u.ranks.value - u_r).abs() < 4.0 * 0.024, "{} for {u_r}", u.ranks.value);
    }
    // What binomials give in whole-number arithmetic, where 2 of 2 and 4 of 4 nodes limit nothing:
    // 16 (1 - C(240,8)/C(256,8)) and 32 (1 - C(248,8)/C(256,8)).
    near(deepep(2).1.ranks.value, 6.523_279_533_5, 1e-10);
    near(deepep(4).1.ranks.value, 7.266_799_917_3, 1e-10);
}

#[test]
fn deepep_readme_h800() {
    // EP16 43 -> 21.5 on the wire, but 138.9 over NVLink (121.5 without the own rank, 76 % of 160);
    // EP32 58 -> 43.5 (87 %); EP64 51 -> 44.6 (89 %). The binding link is why EP16 prints less than EP32.
    let h800 = Machine { scale_up_gb_s: 160.0, scale_out_gb_s: 50.0, alpha_us: 0.0 };
    for (nodes, printed, wire, percent, binds) in [
        (2, 43.0, "21.5", "43", Link::ScaleUp),
        (4, 58.0, "43.5", "87", Link::ScaleOut),
        (8, 51.0, "44.6", "89", Link::ScaleOut),
    ] {
        let (topology, u) = deepep(nodes);
        prints(logical_to_wire(printed, nodes), wire);
        prints(logical_to_wire(printed, nodes) / 50.0 * 100.0, percent);
        let load = Load::new(4096, Dtype::Fp8E4m3.wire_row_bytes(7168), 8, &u);
        let ceiling = logical_ceiling_gb_s(&h800, &topology, &load, (Transfer::TwoHop, Figure::Nodes));
        assert_eq!(ceiling.binds, Some(binds));
        assert!(printed < ceiling.value && printed > 0.7 * ceiling.value, "{printed} of {}", ceiling.value);
        if nodes == 2 {
            let us = time_us(load.logical_bytes(Figure::Nodes), printed);
            // Listed with the simulated U_R of 6.45, which is 1.2 % below the exact 6.52.
            near(rate_gb_s(load.logical_bytes(Figure::Ranks), us), 138.9, 0.015);
            let wire = wire_bytes(&topology, &load, Transfer::TwoHop);
            near(rate_gb_s(wire.scale_up, us), 121.5, 0.015);
            near(rate_gb_s(wire.scale_up, us) / 160.0, 0.76, 0.015);
        }
    }
    // V2 on the same ground: 8 x 2 90 -> 45 (90 %), 8 x 4 61 -> 45.75 (91.5 %).
    prints(logical_to_wire(90.0, 2), "45");
    prints(logical_to_wire(61.0, 4), "45.75");
    prints(logical_to_wire(61.0, 4) / 50.0 * 100.0, "91.5");
}

#[test]
fn aws_efa_tables() {
    let p6_b300 = [(2, 126.6, "63.3"), (4, 97.1, "72.8"), (8, 84.2, "73.7"), (16, 74.7, "70.0")];
    for (nodes, printed, wire) in p6_b300 {
        prints(logical_to_wire(printed, nodes), wire);
    }
    // Flat over 4 to 16 nodes: 70 to 74 % of 100 GB/s.
    for (nodes, printed, _) in &p6_b300[1..] {
        assert!((0.70..0.74).contains(&(logical_to_wire(*printed, *nodes) / 100.0)));
    }
    for (nodes, printed, wire, percent) in [
        (2, 78.14, "39.1", "78"), // p6-b200
        (4, 56.94, "42.7", "85"),
        (4, 43.7, "32.8", "66"), // p5
    ] {
        prints(logical_to_wire(printed, nodes), wire);
        prints(logical_to_wire(printed, nodes) / 50.0 * 100.0, percent);
    }
    // p5, 8 nodes: 39.6 * 7/8 = 34.65, listed as 34.6 and 69 %.
    near(logical_to_wire(39.6, 8), 34.65, 1e-12);
    prints(logical_to_wire(39.6, 8) / 50.0 * 100.0, "69");
}

#[test]
fn nccl_alltoall_ceilings() {
    for (nic, ranks, ceiling, peak, percent) in [
        (100.0, 16, 187.5, 179.6, "96"),
        (100.0, 32, 129.2, 116.9, "91"),
        (100.0, 64, 112.5, 103.2, "92"),
        (100.0, 128, 105.8, 84.0, "79"),
        (100.0, 256, 102.8, 74.4, "72"),
        (50.0, 32, 64.6, 53.9, "83"),
        (50.0, 64, 56.25, 51.1, "91"),
    ] {
        let got = alltoall_busbw_ceiling(nic, &Topology::new(ranks, 8).unwrap()).unwrap();
        near(got, ceiling, 5e-4);
        prints(peak / got * 100.0, percent);
    }
}

#[test]
fn low_latency_tables() {
    // 128 tokens, hidden 7168, top-8, one copy per (token, expert), own rank included.
    let bytes = |row_bytes| {
        let load = Load { tokens: 128, row_bytes, top_k: 8, ranks_per_token: 0.0, nodes_per_token: 0.0 };
        load.logical_bytes(Figure::Experts)
    };
    let dispatch = bytes(ll_fp8_row_bytes(7168));
    let combine = bytes(Dtype::Bf16.wire_row_bytes(7168));
    prints(dispatch / 1e6, "7.586");
    prints(combine / 1e6, "14.680");
    let table: [(f64, f64, f64, f64); 6] = [
        (77.0, 98.0, 114.0, 127.0),
        (118.0, 63.0, 195.0, 74.0),
        (155.0, 48.0, 273.0, 53.0),
        (173.0, 43.0, 314.0, 46.0),
        (192.0, 39.0, 369.0, 39.0),
        (194.0, 39.0, 360.0, 40.0),
    ];
    for (dispatch_us, dispatch_printed, combine_us, combine_printed) in table {
        // The README drops decimals; with that undone the model is within 2 %.
        near(rate_gb_s(dispatch, dispatch_us), dispatch_printed + 0.5, 0.02);
        near(rate_gb_s(combine, combine_us), combine_printed + 0.5, 0.02);
    }
    for (us, listed) in [(77.0, "98.5"), (118.0, "64.3"), (155.0, "48.9"), (192.0, "39.5"), (194.0, "39.1")] {
        prints(rate_gb_s(dispatch, us), listed);
    }
    for (us, listed) in [(114.0, "128.8"), (195.0, "75.3"), (273.0, "53.8"), (314.0, "46.8"), (369.0, "39.8")]
    {
        prints(rate_gb_s(combine, us), listed);
    }
    // At 256 ranks 78 % of a 50 GB/s line.
    prints(rate_gb_s(dispatch, 194.0) / 50.0 * 100.0, "78");
}

#[test]
fn wrong_nic_signatures() {
    // All 8 ranks on one 400 Gb/s rail, on a 200 Gb/s frontend, one rail per socket of 4 ranks.
    let shared = SharedNic::new(50.0, 8, 2);
    assert_eq!((shared.wire_gb_s, shared.printed_gb_s), (6.25, Some(12.5)));
    let frontend = SharedNic::new(25.0, 8, 2);
    near(frontend.wire_gb_s, 3.1, 0.01);
    near(frontend.printed_gb_s.unwrap(), 6.3, 0.01);
    assert_eq!(SharedNic::new(50.0, 4, 2), SharedNic { wire_gb_s: 12.5, printed_gb_s: Some(25.0) });
    assert_eq!(wire_to_logical(6.25, 2), Some(12.5));
}
