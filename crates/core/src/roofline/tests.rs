//! The model's algebra. Published figures are checked in `tests/roofline_published.rs`.
use super::*;

const H200: Machine = Machine { scale_up_gb_s: 450.0, scale_out_gb_s: 50.0, alpha_us: 30.0 };

fn load(ranks_per_token: f64, nodes_per_token: f64) -> Load {
    Load { tokens: 1000, row_bytes: 2000, top_k: 8, ranks_per_token, nodes_per_token }
}

#[test]
fn two_hops_by_hand() {
    let t = Topology::new(16, 8).unwrap();
    // 2 MB per copy; 6 ranks * 7/8 = 5.25 copies, 2 nodes * 1/2 = 1 copy.
    let wire = wire_bytes(&t, &load(6.0, 2.0), Transfer::TwoHop);
    assert_eq!(wire, WireBytes { scale_up: 10.5e6, scale_out: 2e6 });
    // 10.5 MB / 450 GB/s = 23.3 us; 2 MB / 50 GB/s = 40 us.
    let floor = time_floor_us(&H200, &wire);
    assert!((floor.value - 70.0).abs() < 1e-9);
    assert_eq!(floor.binds, Some(Link::ScaleOut));
}

#[test]
fn one_node_has_no_scale_out() {
    let t = Topology::one_node(8).unwrap();
    let wire = wire_bytes(&t, &load(4.0, 1.0), Transfer::TwoHop);
    assert_eq!(wire, WireBytes { scale_up: 7e6, scale_out: 0.0 });
    let no_nic = Machine { scale_out_gb_s: 0.0, ..H200 };
    let floor = time_floor_us(&no_nic, &wire);
    assert!((floor.value - (30.0 + 7e6 / 450e3)).abs() < 1e-9);
    assert_eq!(floor.binds, Some(Link::ScaleUp));
    // All transfers of one copy per rank are the same there.
    assert_eq!(wire_bytes(&t, &load(4.0, 1.0), Transfer::DirectPerRank), wire);
}

#[test]
fn low_latency_by_hand() {
    // 2 MB * 8 copies = 16 MB over 32 ranks: 0.5 MB each; 24 are on other nodes, 7 are neighbours.
    let t = Topology::new(32, 8).unwrap();
    let wire = wire_bytes(&t, &load(7.0, 3.0), Transfer::DirectPerExpert);
    assert_eq!(wire, WireBytes { scale_up: 3.5e6, scale_out: 12e6 });
    let wire = wire_bytes(&t, &load(6.4, 3.0), Transfer::DirectPerRank);
    assert_eq!(wire, WireBytes { scale_up: 2.8e6, scale_out: 9.6e6 });
    // Scale-up switched off: (R-1)/R.
    let flat = wire_bytes(&Topology::new(32, 1).unwrap(), &load(7.0, 3.0), Transfer::DirectPerExpert);
    assert_eq!(flat, WireBytes { scale_up: 0.0, scale_out: 15.5e6 });
}

#[test]
fn ceiling_of_the_printed_figure() {
    let ceiling = |nodes: usize, load: &Load, figure| {
        logical_ceiling_gb_s(&H200, &Topology::new(nodes * 8, 8).unwrap(), load, (Transfer::TwoHop, figure))
    };
    let near = |got: Bound, want: f64, binds| {
        assert!((got.value - want).abs() < 1e-9, "{} is not {want}", got.value);
        assert_eq!(got.binds, Some(binds));
    };
    // "At N=2 a 50 GB/s NIC can print up to 100; 4 nodes 66.7; 8 nodes 57.1."
    near(ceiling(2, &load(6.0, 2.0), Figure::Nodes), 100.0, Link::ScaleOut);
    near(ceiling(4, &load(7.0, 3.6), Figure::Nodes), 200.0 / 3.0, Link::ScaleOut);
    near(ceiling(8, &load(7.4, 4.0), Figure::Nodes), 400.0 / 7.0, Link::ScaleOut);
    // Few tokens leave the node, each goes to all its ranks: 450 * 8/7 * 1.1/8 binds below 100.
    near(ceiling(2, &load(8.0, 1.1), Figure::Nodes), 450.0 * 8.0 / 7.0 * 1.1 / 8.0, Link::ScaleUp);
    // Inside a node the own rank's share comes for free: 450 * 8/7.
    near(ceiling(1, &load(5.3, 1.0), Figure::Ranks), 450.0 * 8.0 / 7.0, Link::ScaleUp);
    // The same time bounds both figures: they stand as U_R to U_N.
    near(ceiling(2, &load(6.0, 2.0), Figure::Ranks), 300.0, Link::ScaleOut);
}

#[test]
fn nothing_to_move_binds_nothing() {
    let alone = Topology::one_node(1).unwrap();
    let wire = wire_bytes(&alone, &load(1.0, 1.0), Transfer::TwoHop);
    assert_eq!(time_floor_us(&H200, &wire), Bound { value: 30.0, binds: None });
    let ceiling = logical_ceiling_gb_s(&H200, &alone, &load(1.0, 1.0), (Transfer::TwoHop, Figure::Ranks));
    assert_eq!(ceiling, Bound { value: f64::INFINITY, binds: None });
    assert_eq!(logical_to_wire(100.0, 1), 0.0);
    assert_eq!(wire_to_logical(100.0, 1), None);
    assert_eq!(alltoall_busbw_ceiling(50.0, &alone), None);
}

#[test]
fn a_link_that_carries_nothing_need_not_exist() {
    let no_scale_up = Machine { scale_up_gb_s: 0.0, ..H200 };
    let flat = Topology::new(4, 1).unwrap();
    let ceiling =
        logical_ceiling_gb_s(&no_scale_up, &flat, &load(3.0, 3.0), (Transfer::TwoHop, Figure::Nodes));
    assert!((ceiling.value - 200.0 / 3.0).abs() < 1e-9);
    assert_eq!(ceiling.binds, Some(Link::ScaleOut));
    // Where it carries something, the exchange never ends.
    let wire = wire_bytes(&Topology::new(4, 2).unwrap(), &load(3.0, 2.0), Transfer::TwoHop);
    assert_eq!(
        time_floor_us(&no_scale_up, &wire),
        Bound { value: f64::INFINITY, binds: Some(Link::ScaleUp) }
    );
}

#[test]
fn conversions_are_inverse() {
    for parts in 2..100 {
        let there = logical_to_wire(43.5, parts);
        assert!((wire_to_logical(there, parts).unwrap() - 43.5).abs() < 1e-12);
    }
}

#[test]
fn row_sizes() {
    assert_eq!(ll_fp8_row_bytes(7168), 7408);
    assert_eq!(logfmt10_row_bytes(7168), 8960 + 224);
}
