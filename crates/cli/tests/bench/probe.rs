//! `expertrail fabric probe` and `expertrail config`.

use expertrail::fabric::ofi::{Library, VARIABLE};
use expertrail_bench::fabric_probe::{FABRIC_SCHEMA, FabricFile};
use expertrail_bench::schema::conform::violations;
use serde_json::Value;

use crate::common::{Folder, Run, expertrail, finish};

fn probe(args: &[&str]) -> Run {
    let mut command = expertrail();
    command.args(["fabric", "probe", "--lasts", "0.03"]).args(args);
    if let Some(library) = std::env::var_os(VARIABLE) {
        command.env(VARIABLE, library);
    }
    finish(command)
}

#[track_caller]
fn document(text: &str) -> FabricFile {
    let document: Value = serde_json::from_str(text).expect("JSON");
    let schema: Value = serde_json::from_str(FABRIC_SCHEMA).expect("a schema");
    assert_eq!(violations(&schema, &document), Vec::<String>::new());
    serde_json::from_value(document).expect("a document")
}

#[test]
fn every_pair_is_measured_over_the_simulated_network() {
    let folder = Folder::new();
    let page = folder.arg("heat.html");
    let file = document(&probe(&["--fabric", "sim", "--ranks", "3", "--json", "--html", &page]).exits(0).out);
    let pairs: Vec<(u64, u64)> = file.measured.pairs.iter().map(|pair| (pair.from, pair.to)).collect();
    assert_eq!(pairs, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]);
    for pair in &file.measured.pairs {
        assert!(pair.error.is_none() && pair.gbps > Some(0.0), "{pair:?}");
        assert!(pair.latency_p50_us > Some(0.0) && pair.latency_p99_us >= pair.latency_p50_us, "{pair:?}");
    }
    assert!(file.measured.simulated && file.library.is_none() && file.offers.is_empty());
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<rect").count(), 12);
    let text = probe(&["--fabric", "sim"]).exits(0).out;
    assert!(text.contains("threads of one process") && text.contains("rank 1 (node 0, rail 1"), "{text}");
}

#[test]
fn processes_reach_each_other_over_tcp_and_offers_are_listed() {
    if let Err(error) = Library::open() {
        assert!(std::env::var_os(VARIABLE).is_none(), "{error}");
        println!("NOT RUN: {error}");
        return;
    }
    let file = document(&probe(&["--fabric", "tcp", "--json"]).exits(0).out);
    let library = file.library.expect("a library");
    assert!(library.name.starts_with("libfabric ") && library.path.contains("libfabric"), "{library:?}");
    assert!(file.offers.iter().any(|offer| offer.provider.starts_with("tcp") && offer.lacks.is_none()));
    assert_eq!(file.measured.ranks.len(), 2);
    assert!(file.measured.ranks.iter().all(|rank| rank.domain == "lo" && rank.local_rank == 0));
    assert!(file.measured.pairs.iter().all(|pair| pair.same_rail && pair.gbps > Some(0.0)));
    let text = probe(&["--fabric", "tcp", "--domain", "lo", "--ranks", "1"]).exits(0).out;
    assert!(text.contains("named (flag --domain)") && !text.contains("round trip"), "{text}");
    probe(&["--fabric", "nothing"]).exits(4).says(&["provider nothing"]);
}

#[test]
fn no_library_is_said() {
    let mut command = expertrail();
    command.args(["fabric", "probe"]).env(VARIABLE, "/nowhere/libfabric.so.1");
    finish(command).exits(4).started_nothing().says(&["libfabric is not available", "/nowhere"]);
}

#[test]
fn settings_are_printed_with_their_source_and_misspelt_variables_named() {
    let config = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = expertrail();
        command.arg("config").args(args).envs(variables.iter().copied());
        finish(command)
    };
    let variables =
        [("EXPERTRAIL_CHUNK", "256KiB"), ("EXPERTRAIL_WINDOWS", "3"), ("EXPERTRAIL_TOKEN", "very-secret")];
    let run = config(&["--window", "4"], &variables).exits(0);
    let line = |name: &str| {
        let found = run.out.lines().find(|line| line.split_whitespace().next() == Some(name));
        found
            .unwrap_or_else(|| panic!("{name} in\n{}", run.out))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("chunk"), "chunk 262144 bytes environment EXPERTRAIL_CHUNK --chunk, EXPERTRAIL_CHUNK");
    assert_eq!(line("window"), "window 4 chunks flag --window --window, EXPERTRAIL_WINDOW");
    assert_eq!(line("deadline"), "deadline 60 s default --deadline, EXPERTRAIL_DEADLINE");
    let unknown = "unknown variable EXPERTRAIL_WINDOWS: nothing reads it; did you mean EXPERTRAIL_WINDOW?";
    assert!(run.out.contains(unknown) && !run.out.contains("very-secret"), "{}", run.out);
    let json: Value = serde_json::from_str(&config(&["--json"], &variables).exits(0).out).unwrap();
    assert_eq!(json["unknown"][0]["nearest"], "EXPERTRAIL_WINDOW");
    assert!(json["settings"].as_array().unwrap().iter().any(|row| row["value"] == "262144 bytes"));
    config(&[], &[("EXPERTRAIL_CHUNK", "7")]).exits(2).says(&["EXPERTRAIL_CHUNK", "`7`"]);
}
