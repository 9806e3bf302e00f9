//! `--fabric`: ranks that reach other nodes through a network.

use std::process::Command;

use expertrail::fabric::ofi::{Library, VARIABLE};
use expertrail_bench::schema::{Op, ResultFile, Span};

use crate::common::{Folder, SMALL, bench, expertrail, finish, read_result, run};

const SHAPE: [&str; 12] = [
    "--nodes",
    "2",
    "--ranks-per-node",
    "2",
    "--experts",
    "4",
    "--top-k",
    "4",
    "--tokens",
    "40",
    "--hidden",
    "64",
];

/// Rows of [`SHAPE`] a call: every token goes to all four ranks, so two copies are asked of the other node and one crosses.
const LOGICAL: f64 = 40.0 * 2.0 * 128.0;
const CROSSES: f64 = 40.0 * 128.0;

/// Runs over `fabric` with the user's libfabric, and checks what holds over every network.
#[track_caller]
fn crosses(fabric: &str, more: &[&str]) -> (ResultFile, String) {
    let folder = Folder::new();
    let [json, csv, markdown, html] = ["r.json", "r.csv", "r.md", "r.html"].map(|name| folder.arg(name));
    let mut command = bench(&SHAPE);
    command.args(SMALL).args(["--fabric", fabric]).args(more);
    command.args(["--json", &json, "--csv", &csv, "--markdown", &markdown, "--html", &html]);
    if let Some(library) = std::env::var_os(VARIABLE) {
        command.env(VARIABLE, library);
    }
    let out = finish(command).exits(0).out;
    let result = read_result(&folder.path("r.json"));
    assert_eq!(result.verification.rows_total, 3 * 4 * (2 * 4 * 40 + 40));
    assert_eq!(
        (result.verification.rows_checked, result.verification.mismatches),
        (result.verification.rows_total, 0)
    );
    let crossed = result.fabric.clone().expect("a network was crossed");
    assert_eq!(crossed.asked, fabric);
    assert!(crossed.raw_gbps > 0.0);
    let places: Vec<(u64, u64, u64)> =
        crossed.rails.iter().map(|rail| (rail.rank, rail.node, rail.local_rank)).collect();
    assert_eq!(places, [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]);
    for rail in &crossed.rails {
        assert!(rail.raw_gbps > 0.0 && rail.utilisation > 0.0 && rail.utilisation <= 1.0, "{rail:?}");
        assert_eq!((rail.duplicates, rail.failed), (0, 0), "{rail:?}");
        for op in [Op::Dispatch, Op::DispatchCached, Op::Combine] {
            let (logical, wire) = (rail.logical_bytes[&op.to_string()], rail.wire_bytes[&op.to_string()]);
            assert_eq!(logical, LOGICAL, "{op}");
            // Heads, ids, weights and control come on top of the rows; of small rows they are much.
            assert!((CROSSES..4.0 * CROSSES).contains(&wire), "{op}: {wire}");
        }
    }
    for op in &crossed.ops {
        let rate = op.wire_bytes
            / result.ops.iter().find(|o| (o.op, o.span) == (op.op, op.span)).unwrap().time_us.p50;
        assert!((op.wire_gbps - rate / 1e3).abs() <= 1e-9 * rate, "{op:?}");
        // Numbers of a document may differ from the program's in their last digit.
        let part = op.wire_gbps / crossed.raw_gbps;
        assert!(op.raw_ratio.is_some_and(|ratio| (ratio - part).abs() <= 1e-9), "{op:?}");
    }
    assert_eq!(crossed.ops.iter().filter(|op| op.span == Span::Isolated).count(), 3);
    for name in ["r.md", "r.html"] {
        let text = std::fs::read_to_string(folder.path(name)).unwrap();
        assert!(text.contains("raw rate") && text.contains("rank 3 (node 1, rail 1)"), "{name}");
    }
    let csv = std::fs::read_to_string(folder.path("r.csv")).unwrap();
    assert!(csv.starts_with("record,") && csv.contains(",fabric_wire_gbps,fabric_raw_ratio,"), "{csv}");
    assert!(out.contains("of raw)") && out.contains("verdict: PASS"), "{out}");
    (result, out)
}

/// Whether there is a libfabric; where one is named it must be there.
fn has_libfabric(test: &str) -> bool {
    match Library::open() {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os(VARIABLE).is_none(), "{error}");
            println!("NOT RUN: {test}: {error}");
            false
        }
    }
}

#[test]
fn over_the_simulated_network() {
    let (result, out) = crosses("sim", &["--window", "2"]);
    let crossed = result.fabric.unwrap();
    assert!(crossed.simulated);
    assert_eq!((crossed.window, crossed.chunk_bytes), (2, 131_072));
    assert!(out.contains("ranks are threads of one process"), "{out}");
    assert_eq!(crossed.rails[2].domain, "sim2");
}

#[test]
fn over_tcp_between_processes() {
    if !has_libfabric("over_tcp_between_processes") {
        return;
    }
    let (result, out) = crosses("tcp", &["--chunk", "256KiB"]);
    let crossed = result.fabric.unwrap();
    assert_eq!((crossed.simulated, crossed.chunk_bytes), (false, 262_144));
    for rail in &crossed.rails {
        assert!(rail.provider.starts_with("tcp") && rail.domain == "lo", "{rail:?}");
        assert!(rail.library.starts_with("libfabric ") && rail.chosen.contains("one host"), "{rail:?}");
    }
    assert!(out.contains("rank 0 (node 0, rail 0): tcp"), "{out}");
    assert!(result.versions["fabric"].starts_with("libfabric "));
}

#[test]
fn a_variable_chooses_the_network_too() {
    let folder = Folder::new();
    let json = folder.arg("r.json");
    let mut command = bench(&SHAPE);
    command.args(SMALL).args(["--json", &json]).env("EXPERTRAIL_FABRIC", "sim");
    finish(command).exits(0);
    assert_eq!(read_result(&folder.path("r.json")).fabric.unwrap().asked, "sim");
}

#[test]
fn without_it_declared_nodes_share_memory() {
    let folder = Folder::new();
    let json = folder.arg("r.json");
    let mut command = bench(&SHAPE);
    command.args(SMALL).args(["--json", &json]);
    let out = finish(command).exits(0).out;
    assert!(read_result(&folder.path("r.json")).fabric.is_none());
    assert!(!out.contains("raw rate"), "{out}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let refused = |args: &[&str], code: i32, parts: &[&str]| {
        run(args).exits(code).started_nothing().says(parts);
    };
    refused(&["--fabric", "tcp", "--nodes", "1"], 2, &["--fabric tcp", "one node", "--nodes 2"]);
    refused(&["--fabric", "sim"], 2, &["--fabric sim", "one node"]);
    let three = ["--fabric", "sim", "--ranks", "3", "--nodes", "2"];
    refused(&three, 2, &["3 ranks", "2 nodes"]);
    let scope = ["--fabric", "sim", "--nodes", "2", "--scope", "node"];
    refused(&scope, 2, &["--scope node", "--fabric"]);
    let cuda = ["--fabric", "sim", "--nodes", "2", "--backend", "cuda"];
    refused(&cuda, 3, &["--backend cuda", "--backend host"]);
    let chunk = ["--fabric", "sim", "--nodes", "2", "--chunk", "1KiB"];
    refused(&chunk, 2, &["--chunk", "1024", "131072"]);
    refused(&["--fabric", "sim", "--nodes", "2", "--window", "0"], 2, &["--window", "256"]);
    refused(&["--fabric", "sim", "--nodes", "2", "--domain", "a,,b"], 2, &["--domain", "local rank"]);
    let mut command = bench(&["--fabric", "tcp", "--nodes", "2"]);
    command.env(VARIABLE, "/nowhere/libfabric.so.1");
    finish(command).exits(4).started_nothing().says(&["libfabric is not available", "/nowhere", VARIABLE]);
    let mut command = bench(&["--launched", "--fabric", "sim", "--nodes", "2"]);
    command.env("EXPERTRAIL_RANK", "0").env("EXPERTRAIL_WORLD_SIZE", "1");
    finish(command).exits(2).started_nothing().says(&["one process", "--launched"]);
    if has_libfabric("providers that are not there") {
        let named = |args: &[&str]| -> Command {
            let mut command = bench(args);
            command.args(["--nodes", "2"]);
            if let Some(library) = std::env::var_os(VARIABLE) {
                command.env(VARIABLE, library);
            }
            command
        };
        finish(named(&["--fabric", "nothing"]))
            .exits(4)
            .started_nothing()
            .says(&["provider nothing", "offers"]);
        let domain = ["--fabric", "tcp", "--domain", "eth77"];
        finish(named(&domain)).exits(4).started_nothing().says(&["tcp on domain eth77"]);
    }
}

/// One of 3 ranks on two nodes, as a launcher says.
#[test]
fn unequal_nodes_are_named() {
    if !has_libfabric("unequal_nodes_are_named") {
        return;
    }
    let port = {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        listener.local_addr().expect("an address").port()
    };
    let ranks: Vec<_> = [(0, 0, 0, 2), (1, 0, 1, 2), (2, 1, 0, 1)]
        .map(|(rank, node, local, size): (usize, usize, usize, usize)| {
            let mut command = expertrail();
            command.args(["bench", "--launched", "--fabric", "tcp", "--ranks-per-node", "1"]);
            command.env("EXPERTRAIL_RANK", rank.to_string()).env("EXPERTRAIL_WORLD_SIZE", "3");
            command.env("EXPERTRAIL_ROOT", format!("127.0.0.1:{port}"));
            command.env("EXPERTRAIL_LOCAL_RANK", local.to_string());
            command.env("EXPERTRAIL_LOCAL_SIZE", size.to_string());
            command.env("EXPERTRAIL_NODE", node.to_string());
            if let Some(library) = std::env::var_os(VARIABLE) {
                command.env(VARIABLE, library);
            }
            std::thread::spawn(move || finish(command))
        })
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect();
    for rank in ranks {
        rank.exits(2).says(&["unequal nodes", "node 0 has 2 ranks", "node 1 has 1"]);
    }
}
