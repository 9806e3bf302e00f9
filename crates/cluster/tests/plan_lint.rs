//! Plans: launch lint with its numbers, refusals, memory, and the documents and pages.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "plan/mod.rs"]
mod requests;

use expertrail_cluster::plan::{
    Chunks, CombineType, Document, Engine, LINTS, Level, LinkArgs, Mode, PlanError, Request, Routing,
    Settings, SweptOver, html, plan, text,
};
use requests::{figure, guide_inter, guide_intra, near, on, v3};

/// Ids of the lints of a plan that are at least warnings, with their level.
fn ids(request: &Request) -> Vec<(String, Level)> {
    let plan = plan(request).unwrap();
    plan.lints
        .iter()
        .filter(|lint| lint.level != Level::Note)
        .map(|lint| (lint.id.clone(), lint.level))
        .collect()
}

#[track_caller]
fn refuses(request: &Request, id: &str) {
    let found = ids(request);
    assert!(found.contains(&(id.to_owned(), Level::Refuse)), "{id}: {found:?}");
    let document = Document::new(vec![plan(request).unwrap()], None);
    assert_eq!((document.exit_code(false), document.exit_code(true)), (1, 1));
}

#[track_caller]
fn allows(request: &Request) {
    assert_eq!(ids(request), []);
}

fn settings(request: Request, settings: Settings) -> Request {
    Request { settings, ..request }
}

#[test]
fn menus_of_v1() {
    for nodes in [1, 2, 4, 8] {
        allows(&v3(nodes));
    }
    for gpus_per_node in [2, 4] {
        allows(&Request { gpus_per_node, ..v3(1) });
    }
    refuses(&Request { gpus_per_node: 1, ..v3(1) }, "L001");
    refuses(&Request { gpus_per_node: 4, ..v3(4) }, "L002");
    // 5 nodes are in no menu, 24 above 160 ranks.
    refuses(&Request { experts: 240, ..v3(5) }, "L003");
    refuses(&Request { experts: 192, ..v3(24) }, "L003");
    let warned = Request { experts: 240, ..v3(3) };
    assert_eq!(ids(&warned), [("L004".to_owned(), Level::Warn)]);
    let document = Document::new(vec![plan(&warned).unwrap()], None);
    assert_eq!((document.exit_code(false), document.exit_code(true)), (0, 5));
    // 288 experts do not divide by 64 ranks: the default of the low-latency test fails there.
    refuses(&Request { experts: 288, tokens: 128, mode: Mode::Ll, ..v3(8) }, "L005");
}

#[test]
fn settings_of_v1() {
    let with = |sms, qps| settings(v3(2), Settings { sms, qps, ..Settings::default() });
    allows(&with(Some(24), None));
    refuses(&with(Some(23), Some(48)), "L006");
    refuses(&with(Some(2), None), "L007");
    // 24 queue pairs: neither half of 40 nor 40.
    refuses(&with(Some(40), None), "L008");
    allows(&with(Some(40), Some(20)));
    allows(&with(Some(40), Some(40)));
    // An H200 has 132 SMs, and all blocks run at once.
    refuses(&with(Some(134), Some(134)), "L022");
    assert!(!ids(&with(Some(132), Some(132))).iter().any(|(id, _)| id == "L022"));
    // Inside a node no queue pairs are used.
    allows(&settings(v3(1), Settings { sms: Some(40), ..Settings::default() }));
}

#[test]
fn chunks_of_v1() {
    let ep128 = |nvl_recv| {
        let chunks = Some(Chunks { nvl_send: 7, nvl_recv, rdma_send: 32, rdma_recv: 128 });
        settings(v3(16), Settings { chunks, ..Settings::default() })
    };
    // 512 / 16 = 32 is not above 32; 720 / 16 = 45 is.
    refuses(&ep128(512), "L015");
    assert!(!ids(&ep128(720)).iter().any(|(_, level)| *level == Level::Refuse));
    refuses(&ep128(730), "L015");
    // DeepEP's own test uses 512 at 128 ranks.
    assert_eq!(ids(&v3(16)), [("L016".to_owned(), Level::Warn)]);
    let chunks = |nvl_send, nvl_recv, rdma_send, rdma_recv| {
        let chunks = Some(Chunks { nvl_send, nvl_recv, rdma_send, rdma_recv });
        settings(v3(2), Settings { chunks, ..Settings::default() })
    };
    for broken in
        [chunks(8, 8, 6, 128), chunks(0, 256, 6, 128), chunks(8, 256, 128, 128), chunks(8, 256, 0, 128)]
    {
        refuses(&broken, "L014");
    }
}

#[test]
fn buffers_of_v1() {
    let with = |request, nvl_bytes, rdma_bytes| {
        settings(request, Settings { nvl_bytes, rdma_bytes, ..Settings::default() })
    };
    // DeepEP's own tests: 2 GB and 1 GB.
    allows(&with(v3(2), Some(2_000_000_000), Some(1_000_000_000)));
    refuses(&with(v3(2), None, Some(1 << 31)), "L009");
    refuses(&with(v3(1), None, Some(1 << 20)), "L009");
    refuses(&with(v3(2), Some(1 << 31), None), "L010");
    allows(&with(v3(1), Some(1 << 32), None));
    refuses(&with(v3(1), Some(1 << 35), None), "L011");
    refuses(&with(v3(1), Some((1 << 30) + 64), None), "L012");
    // 10 channels x 8 ranks x 288 slots: of 7168 + 8 + 96 + 224 bytes in FP8 dispatch 172.7 MB, of 14336 + 8 + 32 in combine
    // 331.2 MB; 128 MiB hold neither, 340 MiB both.
    refuses(&with(v3(2), Some(128 << 20), None), "L013");
    refuses(&with(v3(2), None, Some(128)), "L013");
    let note =
        |request: &Request| plan(request).unwrap().lints.into_iter().find(|lint| lint.id == "L013").unwrap();
    let fits = with(v3(2), Some(340 << 20), None);
    allows(&fits);
    assert_eq!(note(&fits).level, Level::Note);
    // The guide's own script: 256 MiB at 40 SMs, where 20 x 8 x 256 x (6144 + 8 + 192) = 259.9 MB are taken of 268.4.
    let guide = Settings { guide_buffers: true, sms: Some(40), ..Settings::default() };
    let guide = settings(guide_intra(), guide);
    allows(&guide);
    assert!(note(&guide).observed.contains("top-k 16"), "{:?}", note(&guide));
    // Low-latency memory may pass INT_MAX: 2.15 GB at 288 experts is such.
    let ll = Request { tokens: 128, experts: 288, mode: Mode::Ll, ..v3(1) };
    allows(&ll);
    let memory = plan(&ll).unwrap().memory;
    near(memory.parts[0].bytes as f64, 2.15e9, 0.01);
    // The guide's script on one node: 256 MiB, and at two 1 GiB + 512 MiB.
    let guide = |request| {
        let sms = Some(20);
        plan(&settings(request, Settings { guide_buffers: true, sms, ..Settings::default() })).unwrap().memory
    };
    assert_eq!(guide(guide_intra()).parts[0].bytes, 256 << 20);
    let two: Vec<u64> = guide(guide_inter()).parts.iter().map(|part| part.bytes).take(2).collect();
    assert_eq!(two, [1 << 30, 512 << 20]);
}

#[test]
fn shapes_of_v1() {
    // 8176 in BF16 is the last that fits inside a node, 8192 fails.
    allows(&Request { hidden: 8176, fp8: false, ..v3(1) });
    refuses(&Request { hidden: 8192, fp8: false, ..v3(1) }, "L017");
    // Between nodes: combine needs a multiple of 256, and a record of 2 x 8192 + 8 + 64 does not fit 16384.
    refuses(&Request { hidden: 7296, ..v3(2) }, "L017");
    refuses(&Request { hidden: 8192, fp8: false, ..v3(2) }, "L017");
    allows(&Request { hidden: 8192, ..v3(2) });
    refuses(&Request { experts: 2048, ..v3(1) }, "L019");
    // 16 choices may reach 16 nodes; groups keep them to 4.
    let wide = Request { top_k: 16, ..v3(16) };
    refuses(&wide, "L020");
    let grouped = Request { routing: Routing::Groups { groups: 16, chosen: 4 }, ..wide };
    assert_eq!(ids(&grouped), [("L016".to_owned(), Level::Warn)]);
}

#[test]
fn low_latency_of_v1() {
    let ll = |nodes| Request { tokens: 128, mode: Mode::Ll, ..v3(nodes) };
    for nodes in [1, 2, 16, 32] {
        allows(&ll(nodes));
    }
    refuses(&Request { gpus_per_node: 12, experts: 240, ..ll(1) }, "L030");
    refuses(&Request { hidden: 1536, ..ll(1) }, "L031");
    refuses(&Request { top_k: 12, ..ll(1) }, "L032");
    let with = |qps, qp_depth, tokens| {
        settings(Request { tokens, ..ll(1) }, Settings { qps, qp_depth, ..Settings::default() })
    };
    // 256 experts over 8 ranks: 32.
    refuses(&with(Some(24), None, 128), "L033");
    allows(&with(Some(32), None, 511));
    // 2 x 513 > 1024.
    refuses(&with(None, None, 512), "L034");
    allows(&with(None, Some(1026), 512));
    refuses(&with(None, Some(4096), 1024), "L035");
    // 2,048 experts over 132 SMs: 16 groups of warps.
    refuses(&Request { experts: 2048, ..ll(1) }, "L036");
    // EFA: 64 ranks work, 128 fail; between them nobody knows.
    let efa = |nodes| on(ll(nodes), "h200", "efa-p5");
    allows(&efa(8));
    refuses(&efa(16), "L037");
    let between = Request { experts: 192, ..efa(12) };
    assert_eq!(ids(&between), [("L037".to_owned(), Level::Warn)]);
}

#[test]
fn v2_and_own_limits() {
    let v2 = |nodes| Request { engine: Engine::DeepepV2, ..v3(nodes) };
    allows(&v2(1));
    // No menu of nodes.
    allows(&Request { experts: 240, ..v2(5) });
    refuses(&Request { mode: Mode::Ll, ..v2(1) }, "L050");
    refuses(&Request { experts: 4096, ..v2(16) }, "L051");
    refuses(&Request { hidden: 7296, ..v2(1) }, "L053");
    refuses(&settings(v2(1), Settings { sms: Some(133), ..Settings::default() }), "L054");

    let own = |nodes| Request { engine: Engine::Expertrail, ..v3(nodes) };
    // 7 ranks and 250 experts are nobody else's shape.
    let odd = Request { gpus_per_node: 7, experts: 250, hidden: 1280, ..own(1) };
    allows(&odd);
    assert!(
        plan(&odd)
            .unwrap()
            .lints
            .iter()
            .any(|lint| lint.id == "L091" && lint.observed.contains("36, others 35"))
    );
    refuses(&Request { hidden: 7172, fp8: false, ..own(1) }, "L070");
    refuses(&Request { tokens: 1 << 20, top_k: 32, gpus_per_node: 128, ..own(1) }, "L071");
    refuses(&own(2), "L072");
    refuses(&Request { gpus_per_node: 73, ..own(1) }, "L072");
    refuses(&Request { experts: 4097, ..own(1) }, "L073");
    refuses(&settings(own(1), Settings { sms: Some(133), ..Settings::default() }), "L074");
    refuses(&Request { mode: Mode::Ll, ..own(1) }, "L075");
}

#[test]
fn settings_without_effect_are_said() {
    let chunks = Some(Chunks { nvl_send: 8, nvl_recv: 256, rdma_send: 16, rdma_recv: 128 });
    let given = Settings {
        chunks,
        nvl_bytes: Some(1 << 30),
        qps: Some(24),
        qp_depth: Some(2048),
        ..Settings::default()
    };
    let note = |request: Request| {
        plan(&settings(request, given)).unwrap().lints.into_iter().find(|lint| lint.id == "L092")
    };
    let v2 = note(Request { engine: Engine::DeepepV2, ..v3(2) }).unwrap();
    assert_eq!(
        (v2.level, v2.observed.as_str()),
        (Level::Note, "--chunks, --nvl-bytes, --qps, --qp-depth changes nothing here")
    );
    assert_eq!(note(v3(2)).unwrap().observed, "--qp-depth changes nothing here");
    assert!(
        note(Request { tokens: 128, mode: Mode::Ll, ..v3(2) })
            .unwrap()
            .observed
            .starts_with("--chunks, --nvl-bytes changes")
    );
    assert!(plan(&v3(2)).unwrap().lints.iter().all(|lint| lint.id != "L092"));
}

#[test]
fn an_a100_has_neither_fp8_nor_nodes() {
    let a100 = |request| on(request, "a100", "cx6-200");
    refuses(&a100(v3(1)), "L023");
    refuses(&a100(Request { fp8: false, ..v3(2) }), "L023");
    refuses(&a100(Request { fp8: false, tokens: 128, mode: Mode::Ll, ..v3(1) }), "L023");
    allows(&a100(Request { fp8: false, ..v3(1) }));
}

#[test]
fn assumed_rates_are_said() {
    let plan = plan(&on(v3(2), "b200", "cx8-800")).unwrap();
    let notes: Vec<&str> =
        plan.lints.iter().filter(|lint| lint.id == "L090").map(|lint| lint.observed.as_str()).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    let text = text(&Document::new(vec![plan], None));
    assert_eq!(text.matches("assumed: ").count(), 4, "{text}");
}

#[test]
fn what_cannot_be_planned() {
    let wrong = |request: Request| plan(&request).unwrap_err().to_string();
    let links = LinkArgs { gpu: Some("h200"), ..LinkArgs::default() }.resolve().unwrap();
    assert!(wrong(Request { links: links.clone(), ..v3(2) }).contains("--nic"));
    // One node needs none, unless LL is to go without NVLink.
    assert!(plan(&Request { links: links.clone(), ..v3(1) }).is_ok());
    let flat = Request { links, mode: Mode::Ll, ll_without_nvlink: true, ..v3(1) };
    assert!(wrong(flat).contains("--nic"));
    assert!(wrong(Request { hidden: 7100, ..v3(1) }).contains("128"));
    assert!(wrong(Request { combine: CombineType::Logfmt, ..v3(1) }).contains("--mode ll"));
    for alpha_us in [f64::NAN, -1.0, 1e308] {
        let text = wrong(Request { alpha_us, ..v3(1) });
        assert!(text.contains("--alpha-us") && text.len() < 100, "{text}");
    }
    for (groups, chosen) in [(8, 9), (7, 4), (0, 4), (8, 0), (usize::MAX, 1)] {
        let text = wrong(Request { routing: Routing::Groups { groups, chosen }, ..v3(2) });
        assert!(text.contains("--top-groups") && text.contains("256 experts"), "{text}");
    }
    assert!(wrong(Request { tokens: usize::MAX, ..v3(1) }).contains("tokens"));
    for top_k in [0, 33] {
        assert!(wrong(Request { top_k, ..v3(1) }).contains("32"));
    }
    for (nodes, gpus_per_node) in [(0, 8), (1, 0), (usize::MAX, 2), (600, 8)] {
        assert!(matches!(plan(&Request { gpus_per_node, ..v3(nodes) }), Err(PlanError::Core(_))));
    }
    // The largest sizes that are taken give numbers, not panics.
    let most = Request { tokens: 1 << 24, hidden: 1 << 20, top_k: 32, experts: 65_536, ..v3(512) };
    for engine in [Engine::Expertrail, Engine::DeepepV1, Engine::DeepepV2] {
        for mode in [Mode::Ht, Mode::Ll] {
            assert!(plan(&Request { engine, mode, ..most.clone() }).unwrap().refused());
        }
    }
    // Nothing to send is nothing to plan; nobody to send to is.
    assert!(wrong(Request { tokens: 0, ..v3(2) }).contains("tokens 0: 1 to 16777216"));
    let alone = plan(&Request { gpus_per_node: 1, ..v3(1) }).unwrap();
    assert_eq!(figure(&alone, "deepep-v1-nvl", "dispatch").ceiling_gb_s, None);
}

/// Plans over nodes, as a document.
fn sweep(nodes: &[usize]) -> Document {
    let plans = nodes.iter().map(|&nodes| plan(&v3(nodes)).unwrap()).collect();
    Document::new(plans, Some(SweptOver { parameter: "nodes".to_owned(), values: nodes.to_vec() }))
}

#[test]
fn a_sweep_is_a_table_and_a_page() {
    let document = sweep(&[1, 2, 4, 8, 16]);
    let table = text(&document);
    let row = table.lines().find(|line| line.contains("DeepEP V1 (RDMA) dispatch, combine")).unwrap();
    for cell in ["- ", "100.0 (", "66.7 (", "57.1 (", "53.3 ("] {
        assert!(row.contains(cell), "{row}");
    }
    assert!(table.contains("WARN    L016 nodes 16: "), "{table}");

    let page = html(&document);
    for outside in
        ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link", "<img", "NaN", "inf"]
    {
        assert!(!page.contains(outside), "{outside}");
    }
    for part in ["prefers-color-scheme", "role=\"img\"", "GB/s as printed", "DeepEP V1 (RDMA)", "nodes"] {
        assert!(page.contains(part), "{part}");
    }
    for tag in ["svg", "figure", "table", "tr", "td", "th", "div", "text", "title", "p", "main", "span"] {
        let open = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    let ids = ["deepep-v1-rdma", "deepep-v1-nvl", "deepep-v2-so", "deepep-v2-so-remote", "deepep-v2-su"];
    assert!(page.matches("<svg").count() >= ids.len());
}

#[test]
fn outside_text_is_escaped() {
    let mut document = sweep(&[2]);
    let evil = "<script>alert(\"x\")</script>&'\u{1b}[31m".to_owned();
    let swept = document.sweep.as_mut().unwrap();
    swept.parameter.clone_from(&evil);
    let plan = &mut document.plans[0];
    plan.links.scale_up.source.clone_from(&evil);
    plan.links.scale_up.product.clone_from(&evil);
    plan.figures[0].tool.clone_from(&evil);
    plan.figures[0].basis.clone_from(&evil);
    plan.figures[0].counts.clone_from(&evil);
    document.tool.clone_from(&evil);
    let page = html(&document);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;") && !page.contains('\u{1b}'));
    document.sweep = None;
    assert!(!text(&document).contains('\u{1b}'));
}

#[test]
fn documents_are_read_back() {
    let routing = Routing::Groups { groups: 8, chosen: 4 };
    let document = Document::new(vec![plan(&Request { routing, ..v3(8) }).unwrap()], None);
    let mut json = serde_json::to_value(&document).unwrap();
    // A field of a later version is passed over.
    json["plans"][0]["later"] = true.into();
    let read: Document = serde_json::from_value(json).unwrap();
    assert_eq!(read, document);
}

#[test]
fn ids_of_lints_are_unique_and_in_order() {
    let mut last = 0;
    for (id, title, source) in LINTS {
        let number: u32 = id.strip_prefix('L').unwrap().parse().unwrap();
        assert!(id.len() == 4 && number > last, "{id}");
        assert!(!title.is_empty() && !source.is_empty(), "{id}");
        last = number;
    }
}
