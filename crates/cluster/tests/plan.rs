//! Plans against published figures: every check of the project's reference facts on the roofline, each on what a plan
//! itself says. Closed forms to the printed digit, simulated ones within 1 %.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "plan/mod.rs"]
mod requests;

use expertrail_cluster::plan::{
    CombineType, Engine, Link, LinkArgs, Mode, Plan, Request, Routing, own_heap_bytes, plan,
};
use expertrail_core::roofline::alltoall_busbw_ceiling;
use expertrail_core::{Placement, Shape, Topology};
use requests::{figure, guide_inter, guide_intra, near, on, prints, v3};

/// `DeepEP`'s README: at most 4 nodes for a token, on H800 of which about 160 GB/s are reached.
fn readme(nodes: usize) -> Plan {
    let links = LinkArgs { nvlink_gb_s: Some(160.0), nic: Some("cx7-400"), ..LinkArgs::default() };
    let routing = Routing::Groups { groups: nodes, chosen: nodes.min(4) };
    plan(&Request { links: links.resolve().unwrap(), routing, ..v3(nodes) }).unwrap()
}

#[test]
fn guide_totals() {
    for (dispatch, combine, total) in
        [(276.9, 245.1, "260.0"), (275.4, 243.4, "258.4"), (274.8, 289.4, "281.9"), (277.5, 290.3, "283.8")]
    {
        prints(Plan::guide_total(dispatch, combine), total);
    }
    // A plan's own total row is put together the same way: 450 GB/s in both directions.
    let plan = plan(&guide_intra()).unwrap();
    let total = figure(&plan, "guide-intra", "total");
    near(total.ceiling_gb_s.unwrap(), 450.0, 1e-12);
    near(total.counted_bytes, 2.0 * figure(&plan, "guide-intra", "combine").counted_bytes, 1e-12);
}

#[test]
fn guide_intranode() {
    let b200 = plan(&on(guide_intra(), "b200", "cx7-400")).unwrap();
    prints(b200.destinations.ranks / 8.0, "0.8819");
    let dispatch = &b200.operations[0];
    prints(dispatch.scale_up_bytes / 6144.0, "404588");
    prints(dispatch.scale_up_bytes / 1e9, "2.486");
    let intra = figure(&b200, "guide-intra", "dispatch");
    // The own rank is not counted, so the figure is the wire.
    assert_eq!((intra.counted_bytes, intra.scale_up_per_printed), (dispatch.scale_up_bytes, 1.0));
    let read = intra.reading(276.9, &b200.links);
    prints(read.time_us / 1e3, "8.98");
    prints(read.scale_up_share * 100.0, "31");
    // Both nodes of the sample are within what is expected there, and far below the link.
    for (operation, printed) in [("dispatch", [276.9, 275.4]), ("combine", [245.1, 243.4])] {
        let expected = figure(&b200, "guide-intra", operation).expected.clone().unwrap();
        for printed in printed {
            assert!(expected.low_gb_s < printed && printed < expected.high_gb_s, "{expected:?} {printed}");
        }
        assert!(expected.high_gb_s < 0.4 * 900.0);
    }
    // The signature of a build without TMA is outside.
    let missing_tma = figure(&b200, "guide-intra", "dispatch").expected.clone().unwrap();
    assert!(150.0 < missing_tma.low_gb_s);

    let h200 = plan(&guide_intra()).unwrap();
    let intra = figure(&h200, "guide-intra", "dispatch");
    for printed in [274.8, 277.5, 289.4, 290.3] {
        let expected = intra.expected.as_ref().unwrap();
        assert!((expected.low_gb_s..=expected.high_gb_s).contains(&printed), "{expected:?} {printed}");
    }
    // 275 to 278 are 61 % of 450, and 62.
    prints(intra.reading(274.8, &h200.links).scale_up_share * 100.0, "61");
    // "A portable band of 270 to 300."
    near(intra.expected.as_ref().unwrap().low_gb_s, 270.0, 1e-12);
    near(intra.expected.as_ref().unwrap().high_gb_s, 300.0, 1e-12);
}

#[test]
fn guide_internode() {
    let plan = plan(&guide_inter()).unwrap();
    prints(plan.destinations.nodes, "1.992");
    prints(plan.destinations.nodes * 8192.0, "16320");
    let inter = figure(&plan, "guide-inter", "dispatch");
    prints(inter.counted_bytes / 1e6, "100.27");
    prints(plan.operations[0].scale_out_bytes / 1e6, "50.1");
    for (printed, ms, wire, gbit, percent, nvl) in [
        ((56.1, 51.0, 51.9), ("1.787", "1.966", "0.111"), 28.05, "224", "56", "182"),
        ((54.1, 45.8, 48.6), ("1.853", "2.189", "0.084"), 27.05, "216", "54", "175"),
    ] {
        let times = plan.guide_times(printed).unwrap();
        prints(times.dispatch_us / 1e3, ms.0);
        prints(times.combine_us / 1e3, ms.1);
        prints(times.layout_us / 1e3, ms.2);
        let read = inter.reading(printed.0, &plan.links);
        near(read.scale_out_gb_s, wire, 1e-12);
        prints(read.scale_out_gb_s * 8.0, gbit);
        prints(read.scale_out_share.unwrap() * 100.0, percent);
        near(read.time_us, times.dispatch_us, 1e-12);
        // The NVLink leg with the own rank counted is what V1's NVL figure counts.
        let by_rank = figure(&plan, "deepep-v1-nvl", "dispatch").counted_bytes;
        prints(by_rank / times.dispatch_us / 1e3, nvl);
        let own = if printed.0 > 55.0 { "b200" } else { "h200" };
        let own = expertrail_cluster::plan::plan(&on(guide_inter(), own, "cx7-400")).unwrap();
        for (operation, printed) in [("dispatch", printed.0), ("combine", printed.1)] {
            let expected = figure(&own, "guide-inter", operation).expected.clone().unwrap();
            assert!((expected.low_gb_s..=expected.high_gb_s).contains(&printed), "{expected:?} {printed}");
            // And not much beyond it: single digits, or the whole link, are no guide's run.
            assert!(expected.low_gb_s > 40.0 && expected.high_gb_s < 62.5, "{expected:?}");
        }
    }
    let combine = figure(&plan, "guide-inter", "combine");
    prints(combine.reading(51.0, &plan.links).scale_out_share.unwrap(), "0.51");
    prints(combine.reading(45.8, &plan.links).scale_out_share.unwrap(), "0.46");
    assert_eq!(inter.binds, Some(Link::ScaleOut));
    near(inter.ceiling_gb_s.unwrap(), 100.0, 1e-12);
}

#[test]
fn guide_on_four_nodes() {
    // "A 4-node run and two 2-node runs, agreeing within a few percent": what is printed stays, 50.5 to 61.7 and 45.9 to 56.1.
    for nodes in [2, 4] {
        let request = Request { nodes, ..on(guide_inter(), "b200", "cx7-400") };
        let plan = plan(&request).unwrap();
        for (operation, low, high) in [("dispatch", 50.49, 61.71), ("combine", 45.9, 56.1)] {
            let expected = figure(&plan, "guide-inter", operation).expected.clone().unwrap();
            near(expected.low_gb_s, low, 1e-9);
            near(expected.high_gb_s, high, 1e-9);
            let basis = &figure(&plan, "guide-inter", operation).basis;
            assert!(basis.contains("judge"), "{basis}");
        }
    }
    // Other numbers of nodes hold both ends, and say that nobody measured them; the H200 was on two nodes only. 0.9 x 54.1 at two
    // nodes is 48.7 % of the NIC, 1.1 x 56.1 at four 92.6 %.
    for (gpu, nodes, wire) in [("b200", 8, 7.0 / 8.0), ("h200", 4, 3.0 / 4.0)] {
        let plan = plan(&Request { nodes, ..on(guide_inter(), gpu, "cx7-400") }).unwrap();
        let inter = figure(&plan, "guide-inter", "dispatch");
        let expected = inter.expected.clone().unwrap();
        near(expected.low_gb_s, 0.9 * 54.1 / 2.0 / wire, 1e-9);
        near(expected.high_gb_s, 1.1 * 56.1 * 0.75 / wire, 1e-9);
        assert!(inter.basis.contains("not measured"), "{}", inter.basis);
    }
}

/// Every published figure that ranges are made from is within the range of its own case.
#[test]
fn ranges_hold_their_sources() {
    let mut held = 0;
    for reference in &expertrail_cluster::judge::references().references {
        let setting = |key: &str| {
            reference.settings.get(key).and_then(serde_json::Value::as_u64).map(|number| number as usize)
        };
        let efa = reference.settings.get("transport").is_some_and(|transport| transport == "efa");
        let gpu = match reference.gpu.as_str() {
            "sm100" => "b200".to_owned(),
            "sm90" => "h200".to_owned(),
            gpu => gpu.to_lowercase(),
        };
        let nic = match (efa, gpu.as_str()) {
            (false, _) => "cx7-400",
            (true, "b300") => "efa-p6-b300",
            (true, "b200") => "efa-p6-b200",
            (true, _) => "efa-p5",
        };
        let section = format!("{:?}", reference.section);
        let id = match (reference.engine.as_str(), section.as_str()) {
            ("guide", "Intranode") => "guide-intra",
            ("guide", "Internode") => "guide-inter",
            ("deepep-v1", "Intranode") => "deepep-v1-nvl",
            ("deepep-v1", "Internode") => "deepep-v1-rdma",
            ("deepep-v2", "Intranode") => "deepep-v2-su",
            ("deepep-v2", "Internode") => "deepep-v2-so",
            ("deepep-ll", _) => "deepep-v1-ll",
            _ => continue,
        };
        let nodes = setting("nodes").unwrap_or(1);
        // Two ranks of one host are a baseline of their own, with bytes counted another way.
        if setting("ranks_per_node") != Some(8) {
            continue;
        }
        let guide = reference.engine == "guide";
        let request = Request {
            tokens: setting("tokens").unwrap(),
            hidden: setting("hidden").unwrap(),
            top_k: setting("top_k").unwrap(),
            experts: setting("experts").unwrap_or(256),
            fp8: reference.dtype == "fp8" || (!guide && reference.op == "combine"),
            routing: match id {
                "guide-intra" | "guide-inter" => Routing::WithReplacement,
                "deepep-v1-rdma" if gpu == "h800" => Routing::Groups { groups: nodes, chosen: nodes.min(4) },
                _ => Routing::Uniform,
            },
            mode: if id == "deepep-v1-ll" { Mode::Ll } else { Mode::Ht },
            ..on(v3(nodes), &gpu, nic)
        };
        let plan = plan(&request).unwrap();
        let figure = figure(&plan, id, &reference.op);
        let expected = figure.expected.clone().unwrap_or_else(|| panic!("{}: no range", reference.id));
        for sample in &reference.samples {
            // Layout comes on top of the guide's total between nodes.
            let low = if reference.op == "total" { 0.95 * expected.low_gb_s } else { expected.low_gb_s };
            assert!(
                low <= *sample && *sample <= expected.high_gb_s,
                "{} {sample}: {expected:?}",
                reference.id
            );
            held += 1;
        }
    }
    assert!(held > 50, "{held}");
    // The rate that DeepEP's README says it reached: 43 there, too.
    let expected = figure(&readme(2), "deepep-v1-rdma", "dispatch").expected.clone().unwrap();
    assert!((expected.low_gb_s..=expected.high_gb_s).contains(&43.0), "{expected:?}");
}

#[test]
fn aws_logged_bytes() {
    let bytes = |fp8| {
        let plan = plan(&Request { fp8, ..v3(1) }).unwrap();
        figure(&plan, "deepep-v1-nvl", "dispatch").counted_bytes
    };
    prints(bytes(false) / 1e6, "310.90");
    prints(bytes(true) / 1e6, "160.31");
    // Microseconds x GB/s of the log.
    near(bytes(false), 936.50 * 331.77e3, 1e-3);
    near(bytes(true), 499.58 * 320.68e3, 1e-3);
}

#[test]
fn intranode_figures_without_the_own_rank() {
    let of = |gpu: &str, id: &str, printed: f64| {
        let plan = plan(&on(v3(1), gpu, "cx7-400")).unwrap();
        let figure = figure(&plan, id, "dispatch");
        let expected = figure.expected.clone().unwrap();
        let read = figure.reading(printed, &plan.links);
        (
            read.scale_up_gb_s,
            read.scale_up_share * 100.0,
            (expected.low_gb_s..=expected.high_gb_s).contains(&printed),
        )
    };
    for (gpu, id, printed, wire) in [
        ("h200", "deepep-v1-nvl", 331.77, "290.3"),
        ("h200", "deepep-v1-nvl", 321.89, "281.7"),
        ("h200", "deepep-v1-nvl", 336.0, "294"),
        ("h200", "deepep-v1-nvl", 320.0, "280"),
        ("b200", "deepep-v1-nvl", 490.0, "429"),
        ("b200", "deepep-v1-nvl", 402.0, "352"),
        ("b200", "deepep-v2-su", 726.0, "635"),
        ("h800", "deepep-v1-nvl", 153.0, "134"),
    ] {
        let (got, _, expected) = of(gpu, id, printed);
        prints(got, wire);
        assert!(expected, "{gpu} {id} {printed}");
    }
    // 740 x 7/8 = 647.5.
    near(of("b200", "deepep-v2-su", 740.0).0, 647.5, 1e-12);
    prints(of("h200", "deepep-v1-nvl", 331.77).1, "64.5");
    prints(of("b200", "deepep-v2-su", 726.0).1, "71");
    // The guide's B200 figure is no floor of the hardware: V1 of others reaches much more.
    assert!(!of("b200", "deepep-v1-nvl", 276.9 * 8.0 / 7.0).2);
}

#[test]
fn deepep_readme() {
    // Closed forms where the limit of 4 nodes does not bite; else simulated.
    near(plan(&v3(1)).unwrap().destinations.ranks, 5.295, 1e-4);
    for (nodes, u_n, u_r) in [(2, 1.996, 6.45), (4, 3.61, 7.23), (8, 3.98, 7.44)] {
        let destinations = readme(nodes).destinations;
        near(destinations.nodes, u_n, 0.01);
        // 6.45 is itself a simulation of 1,500 tokens; the exact value is 6.523.
        near(destinations.ranks, u_r, 0.012);
    }
    near(readme(2).destinations.ranks, 6.523_279_533_5, 1e-10);
    near(readme(4).destinations.ranks, 7.266_799_917_3, 1e-10);
    for (nodes, printed, wire, percent, binds) in [
        (2, 43.0, "21.5", "43", Link::ScaleUp),
        (4, 58.0, "43.5", "87", Link::ScaleOut),
        (8, 51.0, "44.6", "89", Link::ScaleOut),
    ] {
        let plan = readme(nodes);
        let rdma = figure(&plan, "deepep-v1-rdma", "dispatch");
        let read = rdma.reading(printed, &plan.links);
        prints(read.scale_out_gb_s, wire);
        prints(read.scale_out_share.unwrap() * 100.0, percent);
        assert_eq!((rdma.binds, plan.operations[0].binds), (Some(binds), Some(binds)));
        assert!(read.of_ceiling.unwrap() < 1.0 && read.of_ceiling.unwrap() > 0.7, "{read:?}");
        if nodes == 2 {
            // 138.9 with the own rank, 121.5 without, listed with the simulated 6.45.
            let nvl = figure(&plan, "deepep-v1-nvl", "dispatch").counted_bytes / read.time_us / 1e3;
            near(nvl, 138.9, 0.015);
            near(read.scale_up_gb_s, 121.5, 0.015);
            near(read.scale_up_share, 0.76, 0.015);
        }
    }
    // With the nominal link of an H800 all six README figures are within what is expected.
    for (nodes, dispatch, combine) in [(2, 43.0, 43.0), (4, 58.0, 57.0), (8, 51.0, 50.0)] {
        let routing = Routing::Groups { groups: nodes, chosen: nodes.min(4) };
        let plan = plan(&Request { routing, ..on(v3(nodes), "h800", "cx7-400") }).unwrap();
        for (operation, printed) in [("dispatch", dispatch), ("combine", combine)] {
            let expected = figure(&plan, "deepep-v1-rdma", operation).expected.clone().unwrap();
            assert!(
                (expected.low_gb_s..=expected.high_gb_s).contains(&printed),
                "EP{} {expected:?}",
                nodes * 8
            );
        }
    }
}

#[test]
fn ceilings_of_printed_rdma() {
    for (nodes, ceiling) in [(2, "100.0"), (4, "66.7"), (8, "57.1")] {
        let plan = plan(&v3(nodes)).unwrap();
        let rdma = figure(&plan, "deepep-v1-rdma", "dispatch");
        prints(rdma.ceiling_gb_s.unwrap(), ceiling);
        // V2 counts alike; without local traffic it is the NIC itself.
        prints(figure(&plan, "deepep-v2-so", "combine").ceiling_gb_s.unwrap(), ceiling);
        near(figure(&plan, "deepep-v2-so-remote", "dispatch").ceiling_gb_s.unwrap(), 50.0, 1e-12);
    }
}

#[test]
fn deepep_v2() {
    for (nodes, printed, wire, percent) in [(2, 90.0, "45", "90.0"), (4, 61.0, "45.75", "91.5")] {
        let plan = plan(&Request { tokens: 8192, engine: Engine::DeepepV2, ..v3(nodes) }).unwrap();
        let so = figure(&plan, "deepep-v2-so", "dispatch");
        let read = so.reading(printed, &plan.links);
        prints(read.scale_out_gb_s, wire);
        prints(read.scale_out_share.unwrap() * 100.0, percent);
        let expected = so.expected.as_ref().unwrap();
        assert!((expected.low_gb_s..=expected.high_gb_s).contains(&printed), "{expected:?}");
    }
    // Its bytes hold ids of 8 and weights of 4 bytes for each choice.
    let plan = plan(&v3(2)).unwrap();
    let (v1, v2) = (figure(&plan, "deepep-v1-nvl", "dispatch"), figure(&plan, "deepep-v2-su", "dispatch"));
    near(v2.counted_bytes / v1.counted_bytes, (7392.0 + 96.0) / 7392.0, 1e-12);
    // Sources of the same GPU index are local to it: 7 of 8.
    let remote = figure(&plan, "deepep-v2-su-remote", "dispatch");
    near(remote.counted_bytes / v2.counted_bytes, 0.875, 1e-12);
    assert_eq!(remote.scale_up_per_printed, 1.0);
}

#[test]
fn aws_efa_tables() {
    let wire = |nic: &str, nodes: usize, printed: f64| {
        let plan = plan(&on(v3(nodes), "b300", nic)).unwrap();
        let read = figure(&plan, "deepep-v1-rdma", "dispatch").reading(printed, &plan.links);
        (read.scale_out_gb_s, read.scale_out_share.unwrap() * 100.0)
    };
    for (nodes, printed, listed) in
        [(2, 126.6, "63.3"), (4, 97.1, "72.8"), (8, 84.2, "73.7"), (16, 74.7, "70.0")]
    {
        let (gb_s, percent) = wire("efa-p6-b300", nodes, printed);
        prints(gb_s, listed);
        // The decay with scale is the accounting: the wire is flat.
        assert!(nodes == 2 || (70.0..74.0).contains(&percent), "{percent}");
    }
    for (nic, nodes, printed, listed, percent) in [
        ("efa-p6-b200", 2, 78.14, "39.1", "78"),
        ("efa-p6-b200", 4, 56.94, "42.7", "85"),
        ("efa-p5", 4, 43.7, "32.8", "66"),
    ] {
        let got = wire(nic, nodes, printed);
        prints(got.0, listed);
        prints(got.1, percent);
    }
    // 39.6 x 7/8 = 34.65, listed as 34.6.
    let (gb_s, percent) = wire("efa-p5", 8, 39.6);
    near(gb_s, 34.65, 1e-12);
    prints(percent, "69");
    // V2's SO figures there, 39 and 43, leave local traffic out: they are the wire.
    let plan = plan(&on(v3(4), "b200", "efa-p6-b200")).unwrap();
    for printed in [39.0, 43.0] {
        let read = figure(&plan, "deepep-v2-so-remote", "dispatch").reading(printed, &plan.links);
        near(read.scale_out_gb_s, printed, 1e-12);
    }
}

#[test]
fn nccl_alltoall() {
    for (gpu, nic, nodes, ceiling, peak, percent) in [
        ("b300", "efa-p6-b300", 2, 187.5, 179.6, "96"),
        ("b300", "efa-p6-b300", 4, 129.2, 116.9, "91"),
        ("b300", "efa-p6-b300", 8, 112.5, 103.2, "92"),
        ("b300", "efa-p6-b300", 16, 105.8, 84.0, "79"),
        ("b300", "efa-p6-b300", 32, 102.8, 74.4, "72"),
        ("h100", "efa-p5", 4, 64.6, 53.9, "83"),
        ("h100", "efa-p5", 8, 56.25, 51.1, "91"),
    ] {
        let plan = plan(&on(v3(nodes), gpu, nic)).unwrap();
        let all = figure(&plan, "nccl-alltoall", "alltoall");
        near(all.ceiling_gb_s.unwrap(), ceiling, 5e-4);
        assert_eq!(all.binds, Some(Link::ScaleOut));
        let rate = plan.links.scale_out.as_ref().unwrap().gb_s;
        let closed = alltoall_busbw_ceiling(rate, &Topology::new(nodes * 8, 8).unwrap()).unwrap();
        near(all.ceiling_gb_s.unwrap(), closed, 1e-12);
        prints(all.reading(peak, &plan.links).of_ceiling.unwrap() * 100.0, percent);
        let expected = all.expected.as_ref().unwrap();
        // The range's ends are the same figures in whole percents.
        near(peak.clamp(expected.low_gb_s, expected.high_gb_s), peak, 0.01);
    }
}

#[test]
fn low_latency_rows() {
    let at = |nodes: usize| {
        let request = on(v3(nodes), "h800", "cx7-400");
        plan(&Request { tokens: 128, mode: Mode::Ll, ..request }).unwrap()
    };
    let one = at(1);
    assert_eq!(one.operations[0].row_bytes, 7408);
    prints(figure(&one, "deepep-v1-ll", "dispatch").counted_bytes / 1e6, "7.586");
    prints(figure(&one, "deepep-v1-ll", "combine").counted_bytes / 1e6, "14.680");
    let table: [(usize, f64, &str, f64, f64, &str, f64); 6] = [
        (1, 77.0, "98.5", 98.0, 114.0, "128.8", 127.0),
        (2, 118.0, "64.3", 63.0, 195.0, "75.3", 74.0),
        (4, 155.0, "48.9", 48.0, 273.0, "53.8", 53.0),
        (8, 173.0, "43.8", 43.0, 314.0, "46.8", 46.0),
        (16, 192.0, "39.5", 39.0, 369.0, "39.8", 39.0),
        (32, 194.0, "39.1", 39.0, 360.0, "40.8", 40.0),
    ];
    for (nodes, dispatch_us, dispatch, dispatch_readme, combine_us, combine, combine_readme) in table {
        let plan = at(nodes);
        for (operation, us, listed, readme) in [
            ("dispatch", dispatch_us, dispatch, dispatch_readme),
            ("combine", combine_us, combine, combine_readme),
        ] {
            let figure = figure(&plan, "deepep-v1-ll", operation);
            let printed = figure.counted_bytes / us / 1e3;
            // Listed with one decimal; 43.849 is listed as 43.8.
            assert!((printed - listed.parse::<f64>().unwrap()).abs() <= 0.0505, "{printed} {listed}");
            // The README drops decimals.
            near(printed, readme + 0.5, 0.02);
            let expected = figure.expected.clone().unwrap();
            near(printed.clamp(expected.low_gb_s, expected.high_gb_s), printed, 0.01);
        }
    }
    // With NVLink off (R-1)/R of the bytes are on the NIC: 78 % of the line at 256 ranks.
    let flat = Request { tokens: 128, mode: Mode::Ll, ll_without_nvlink: true, ..v3(32) };
    let plan = plan(&flat).unwrap();
    let ll = figure(&plan, "deepep-v1-ll", "dispatch");
    near(ll.scale_out_per_printed, 255.0 / 256.0, 1e-12);
    assert_eq!(ll.scale_up_per_printed, 0.0);
    prints(ll.reading(39.1, &plan.links).scale_out_share.unwrap() * 100.0, "78");
}

#[test]
fn low_latency_formats() {
    let request = Request { tokens: 128, mode: Mode::Ll, ..v3(2) };
    let rows = |request: &Request| {
        let plan = plan(request).unwrap();
        [plan.operations[0].row_bytes, plan.operations[1].row_bytes]
    };
    // FP8: 7168 + 4 x 56 + 16; BF16: 2 x 7168 + 16; logfmt: 1.25 x 7168 + 4 x 56.
    assert_eq!(rows(&request), [7408, 14_336]);
    assert_eq!(
        rows(&Request { fp8: false, combine: CombineType::Logfmt, ..request.clone() }),
        [14_352, 9184]
    );
    // Ours sends a copy per rank, without a header.
    let own = plan(&Request { engine: Engine::Expertrail, ..request }).unwrap();
    assert_eq!(own.operations[0].row_bytes, 7392);
    let logical = figure(&own, "expertrail-logical", "dispatch");
    near(logical.counted_bytes, 128.0 * 7392.0 * own.destinations.ranks, 1e-12);
    assert_eq!(logical.expected, None);
    near(figure(&own, "expertrail-rule-k", "combine").counted_bytes, 14_680_064.0, 1e-12);
}

#[test]
fn wrong_nic_signatures() {
    let plan = plan(&Request { frontend_gb_s: Some(25.0), ..v3(2) }).unwrap();
    let numbers: Vec<(usize, f64, f64)> =
        plan.wrong_nic.iter().map(|wrong| (wrong.sharing, wrong.wire_gb_s, wrong.printed_gb_s)).collect();
    // 50/8 = 6.25 -> 12.5; a frontend of 200 Gb/s: 3.1 -> 6.3 ("single-digit"); one rail per socket: 12.5 -> 25.
    assert_eq!(numbers, [(8, 6.25, 12.5), (8, 3.125, 6.25), (4, 12.5, 25.0)]);
    let assumed = expertrail_cluster::plan::plan(&v3(2)).unwrap();
    assert_eq!(assumed.wrong_nic[1].wire_gb_s, 3.125);
    assert!(assumed.wrong_nic[1].case.contains("assumed") && !plan.wrong_nic[1].case.contains("assumed"));
    // Far below what is expected, so that a verdict can tell.
    let expected = figure(&plan, "deepep-v1-rdma", "dispatch").expected.clone().unwrap();
    assert!(numbers.iter().all(|wrong| wrong.2 < expected.low_gb_s / 2.0));
}

#[test]
fn floors() {
    // EP8 in BF16, 4096 x 7168: 310.9 MB x 7/8 over 450 GB/s, and 30 us of fixed time.
    let plan = plan(&Request { fp8: false, alpha_us: 30.0, ..v3(1) }).unwrap();
    near(plan.operations[0].floor_us, 30.0 + 310.90e6 * 0.875 / 450e3, 1e-4);
    assert_eq!(plan.operations[0].binds, Some(Link::ScaleUp));
    // Ceilings are without it.
    near(figure(&plan, "expertrail-wire", "dispatch").ceiling_gb_s.unwrap(), 450.0, 1e-12);
}

#[test]
fn own_results_are_expected() {
    // results/h200-x2: dispatch 193.8 us and combine 221.7 and 203.7 us in BF16, dispatch 116.0 us in FP8.
    for (fp8, operation, us) in [
        (false, "dispatch", 193.8),
        (true, "dispatch", 116.0),
        (false, "combine", 221.7),
        (false, "combine", 203.7),
    ] {
        let request = Request { gpus_per_node: 2, fp8, engine: Engine::Expertrail, ..v3(1) };
        let plan = plan(&request).unwrap();
        for id in ["expertrail-wire", "expertrail-logical"] {
            let figure = figure(&plan, id, operation);
            let printed = figure.counted_bytes / us / 1e3;
            let expected = figure.expected.as_ref().unwrap();
            assert!(
                (expected.low_gb_s..=expected.high_gb_s).contains(&printed),
                "{id} {printed} {expected:?}"
            );
        }
        assert!(plan.lints.is_empty(), "{:?}", plan.lints);
    }
}

#[test]
fn heaps_of_measured_runs() {
    // heap_bytes of results/h200-x2/bench-deepseek-v3.json and bench-guide-intranode.json, whose benchmark asks for 8 and
    // 6 live outputs.
    for (max_tokens, hidden, top_k, experts, live, measured) in
        [(4096, 7168, 8, 256, 8, 1_979_711_488), (65_536, 3072, 16, 128, 6, 10_875_830_272)]
    {
        let shape = Shape { max_tokens, hidden, top_k, experts };
        assert_eq!(own_heap_bytes(&Placement::new(experts, 2).unwrap(), &shape, live), measured);
    }
}
