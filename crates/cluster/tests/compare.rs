//! Comparison of fleets. Expected lines follow from the rules: more than half of those known is the majority, what could not
//! be read has no vote.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use expertrail_cluster::collect;
use expertrail_cluster::compare::{self, CHECKS, Node, Report, Unread};
use expertrail_cluster::facts::{DriverVersion, Fact, Facts, Flavour, Module, Scope};
use expertrail_cluster::root::Root;

fn fact<T>(value: T) -> Fact<T> {
    Fact::read(value, "/somewhere", Scope::Host)
}

/// A node with a driver and the modules named.
fn facts(name: &str, driver: &str, modules: &[&str]) -> Facts {
    let mut facts =
        Facts { schema: "expertrail.facts/1".to_owned(), node: fact(name.to_owned()), ..Facts::default() };
    facts.driver.version =
        fact(DriverVersion { version: driver.to_owned(), flavour: Flavour::Open, line: String::new() });
    let module = |name: &&str| Module { name: (*name).to_owned(), ..Module::default() };
    facts.modules.loaded = fact(modules.iter().map(module).collect());
    facts
}

fn with_params(mut facts: Facts, params: &[(&str, &str)]) -> Facts {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    facts.driver.params = fact(params.iter().map(pair).collect::<BTreeMap<_, _>>());
    facts
}

fn compared(fleet: &[Facts]) -> Report {
    compared_without(fleet, &[])
}

fn line<'a>(text: &'a str, with: &str) -> Option<&'a str> {
    text.lines().find(|line| line.contains(with))
}

/// As [`compared`], with documents that could not be read.
fn compared_without(fleet: &[Facts], unread: &[(&str, &str)]) -> Report {
    let node = |(index, facts): (usize, &Facts)| Node::new(facts, format!("{index}.json"));
    let unread =
        unread.iter().map(|(file, reason)| Unread { file: (*file).into(), reason: (*reason).into() });
    compare::run(&fleet.iter().enumerate().map(node).collect::<Vec<_>>(), unread.collect())
}

/// For each finding a fleet that raises it, its line, and a fleet that nearly does.
#[test]
fn every_finding_is_raised_and_has_a_near_miss() {
    let versions = |all: &[(&str, &str)]| -> Vec<Facts> {
        all.iter().map(|(node, version)| facts(node, version, &[])).collect()
    };
    let params = |last: Fact<BTreeMap<String, String>>| {
        let mut fleet = ["a", "b", "c"].map(|node| with_params(facts(node, "1", &[]), &[("EnableMSI", "1")]));
        fleet[2].driver.params = last;
        fleet.to_vec()
    };
    let denied = Fact::unreadable("Permission denied", "/proc/driver/nvidia/params", Scope::HostKernel);
    // The file was read and the key is not in it: P500 says so.
    let without = fact(BTreeMap::new());
    let cases = [
        (
            compared(&versions(&[("a", "1"), ("b", "1"), ("c", "2")])),
            "WARN    P500 c: driver version 2, while 2 of 3 have 1",
            // One of each: nobody is the odd one.
            compared(&versions(&[("a", "1"), ("b", "2")])),
        ),
        (
            compared(&versions(&[("a", "1"), ("b", "1"), ("c", "2"), ("d", "2")])),
            "WARN    P501 driver version: no majority: 1 (a, b); 2 (c, d)",
            // Of five, three are more than half.
            compared(&versions(&[("a", "1"), ("b", "1"), ("c", "2"), ("d", "2"), ("e", "1")])),
        ),
        (
            compared(&versions(&[("a", "1"), ("a", "1")])),
            "WARN    P502 a: several documents of one node, each compared under the name of its file",
            compared(&versions(&[("a", "1"), ("a.", "1")])),
        ),
        (
            compared_without(&versions(&[("a", "1"), ("b", "1")]), &[("c.json", "Permission denied")]),
            "UNKNOWN P503 c.json: left out: Permission denied",
            compared_without(&versions(&[("a", "1"), ("c.json", "1")]), &[]),
        ),
        (
            compared(&params(denied)),
            "UNKNOWN P504 c: driver parameter EnableMSI is not known there: /proc/driver/nvidia/params: Permission denied",
            compared(&params(without)),
        ),
    ];
    let mut raised = Vec::new();
    for (report, wanted, near) in cases {
        let id = wanted.split_whitespace().nth(1).unwrap();
        let text = report.text();
        assert_eq!(text.lines().filter(|line| line.contains(id)).collect::<Vec<_>>(), [wanted], "{text}");
        assert_eq!(line(&near.text(), id), None);
        raised.push(id);
    }
    let known: Vec<&str> = CHECKS.iter().map(|(id, _)| *id).collect();
    assert_eq!(raised, known, "every finding, in this order");
}

#[test]
fn the_one_of_thirty_two_is_named() {
    let mut fleet: Vec<Facts> =
        (0..32).map(|index| facts(&format!("node{index}"), "580.159.04", &["nvidia", "gdrdrv"])).collect();
    fleet[17] = facts("node17", "580.95.05", &["nvidia"]);
    let report = compared(&fleet);
    let text = report.text();
    assert_eq!(
        text.lines().take(2).collect::<Vec<_>>(),
        [
            "WARN    P500 node17: driver version 580.95.05, while 31 of 32 have 580.159.04",
            "WARN    P500 node17: module gdrdrv not there, while 31 of 32 have loaded",
        ]
    );
    assert!(text.ends_with(" properties: 1 node differs from the majority\n"), "{text}");
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn equal_nodes_do_not_differ() {
    let fleet = ["a", "b", "c"].map(|name| facts(name, "580.159.04", &["nvidia"]));
    let report = compared(&fleet);
    assert_eq!(report.differences, []);
    assert_eq!(report.exit_code(), 0);
    assert!(report.text().ends_with("no differences\n"));
}

#[test]
fn half_is_no_majority() {
    let fleet =
        [("a", "580.1"), ("b", "580.1"), ("c", "580.2"), ("d", "580.2")].map(|(n, v)| facts(n, v, &[]));
    let report = compared(&fleet);
    assert_eq!(
        line(&report.text(), "P501"),
        Some("WARN    P501 driver version: no majority: 580.1 (a, b); 580.2 (c, d)")
    );
    assert_eq!(line(&report.text(), "P500"), None);
    assert_eq!(report.exit_code(), 1);
    // Three of five are one.
    let fleet = [("a", "580.1"), ("b", "580.1"), ("c", "580.2"), ("d", "580.2"), ("e", "580.1")];
    let report = compared(&fleet.map(|(n, v)| facts(n, v, &[])));
    assert_eq!(
        line(&report.text(), "P500"),
        Some("WARN    P500 c, d: driver version 580.2, while 3 of 5 have 580.1")
    );
}

#[test]
fn what_could_not_be_read_is_not_the_same_as_not_there() {
    let mut fleet = ["a", "b", "c"].map(|name| with_params(facts(name, "580.1", &[]), &[("EnableMSI", "1")]));
    fleet[2].driver.params =
        Fact::unreadable("Permission denied", "/proc/driver/nvidia/params", Scope::HostKernel);
    let report = compared(&fleet);
    assert_eq!(report.differences, []);
    assert_eq!(
        line(&report.text(), "P504"),
        Some(
            "UNKNOWN P504 c: driver parameter EnableMSI is not known there: /proc/driver/nvidia/params: Permission denied"
        )
    );
    // There is a file and the key is not in it: that is known.
    fleet[2] = with_params(fleet[2].clone(), &[]);
    assert_eq!(
        line(&compared(&fleet).text(), "P500"),
        Some("WARN    P500 c: driver parameter EnableMSI not there, while 2 of 3 have 1")
    );
}

#[test]
fn the_order_of_registry_keys_is_no_difference() {
    let params = |text: &'static str| with_params(facts(text, "580.1", &[]), &[("RegistryDwords", text)]);
    let same = [params("PeerMappingOverride=1;RMOther=0x2"), params("RMOther=0x2; PeerMappingOverride=1;")];
    assert_eq!(compared(&same).differences, []);
    let other = [params("PeerMappingOverride=1;"), params("PeerMappingOverride=10;")];
    assert_eq!(compared(&other).differences.len(), 1);
}

#[test]
fn memory_may_differ_a_little_but_not_by_a_module() {
    let with = |name: &str, gib: u64, less: u64| {
        let mut facts = facts(name, "580.1", &[]);
        facts.memory.total = fact((gib << 30) - less);
        facts
    };
    let fleet = [with("a", 2016, 0), with("b", 2016, 512 << 20), with("c", 2015, 0)];
    assert_eq!(compared(&fleet).differences, []);
    // One of 16 modules of 128 GiB is gone.
    let fleet = [with("a", 2048, 0), with("b", 2048, 0), with("c", 1920, 0)];
    assert_eq!(
        line(&compared(&fleet).text(), "P500"),
        Some("WARN    P500 c: host: memory 1920 GiB, while 2 of 3 have 2048 GiB")
    );
}

#[test]
fn two_documents_of_one_node_are_told_apart() {
    let report = compared(&[facts("a", "580.1", &[]), facts("a", "580.2", &[])]);
    let text = report.text();
    assert_eq!(report.twice, ["a"]);
    assert_eq!(
        line(&text, "P501"),
        Some("WARN    P501 driver version: no majority: 580.1 (a (0.json)); 580.2 (a (1.json))")
    );
    assert!(line(&text, "P502").is_some_and(|line| line.starts_with("WARN    P502 a: several documents")));
    // A near miss: names that only begin alike.
    assert!(compared(&[facts("a", "580.1", &[]), facts("aa", "580.1", &[])]).twice.is_empty());
}

#[test]
fn names_of_hostile_documents_stay_on_their_line() {
    let report = compared(&[facts("a\u{1b}[31m\nFAIL", "1", &[]), facts("b", "2\n3", &[])]);
    let text = report.text();
    assert!(!text.contains('\u{1b}'));
    assert!(text.lines().all(|line| !line.starts_with("FAIL")));
    assert!(text.contains("2 3 (b)"));
}

#[test]
fn unreadable_documents_are_named_and_the_others_compared() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join(name);
    for name in ["a", "b"] {
        let json = serde_json::to_string(&facts(name, "580.1", &[])).unwrap();
        fs::write(file(&format!("{name}.json")), json).unwrap();
    }
    fs::write(file("c.json"), "{\"schema\": \"expertrail.facts/1\", \"node\": ").unwrap();
    fs::write(file("d.json"), "{\"schema\": \"expertrail.facts/9\"}").unwrap();
    fs::write(file("e.json"), [0xff_u8, 0xfe, 0x00]).unwrap();
    fs::write(file("notes.txt"), "not looked at").unwrap();
    let files = compare::files(&[place.path().to_owned(), file("gone.json")]).unwrap();
    let names: Vec<String> =
        files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["a.json", "b.json", "c.json", "d.json", "e.json", "gone.json"]);
    let captures = compare::read(&files);
    let read: Vec<bool> = captures.iter().map(Result::is_ok).collect();
    assert_eq!(read, [true, true, false, false, false, false]);
    let (nodes, unread): (Vec<_>, Vec<_>) = captures.into_iter().partition(Result::is_ok);
    let nodes: Vec<Node> = nodes.into_iter().filter_map(Result::ok).collect();
    let report = compare::run(&nodes, unread.into_iter().filter_map(Result::err).collect());
    assert_eq!((report.nodes.len(), report.unread.len()), (2, 4));
    assert_eq!(report.exit_code(), 3);
    let text = report.text();
    assert_eq!(text.matches("UNKNOWN P503").count(), 4);
    assert!(text.ends_with("no differences, 4 documents left out\n"));
}

#[test]
fn an_empty_folder_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let error = compare::files(&[place.path().to_owned()]).unwrap_err();
    assert!(error.ends_with("has no *.json files"), "{error}");
}

/// Facts of a whole tree, with `change` applied to it.
fn collected(name: &str, node: &str, change: &str) -> Facts {
    let place = tree::unpack(name);
    tree::apply(place.path(), &format!("proc/sys/kernel/hostname: {node}\n{change}"));
    collect::facts(&Root::captured(place.path()), &collect::Options::default())
}

const GPU0: &str = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
const NIC0: &str =
    "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/infiniband/mlx5_0";

#[test]
fn hardware_of_one_node_differs() {
    let mut fleet: Vec<Facts> = (0..4).map(|index| collected("healthy", &format!("n{index}"), "")).collect();
    assert_eq!(compared(&fleet).differences, []);
    fleet[3] = collected(
        "healthy",
        "n3",
        &format!(
            "{GPU0}/numa_node: 1\n{GPU0}/current_link_width: 8\n{NIC0}/fw_ver: 28.39.1002\n\
             {NIC0}/ports/1/rate: 200 Gb/sec (4X HDR)\n{NIC0}/ports/1/pkeys/0: 0x8001\n"
        ),
    );
    let text = compared(&fleet).text();
    for wanted in [
        "n3: GPUs: NUMA nodes 1,0,0,0,1,1,1,1, while 3 of 4 have 0,0,0,0,1,1,1,1",
        "n3: GPUs: link width 7 x x16 of x16, 1 x x8 of x16, while 3 of 4 have 8 x x16 of x16",
        "n3: firmware of MT_0000000838 28.39.1002 and 28.43.2026, while 3 of 4 have 28.43.2026",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    assert!(text.contains("n3: NICs: rates of rails"), "{text}");
}

#[test]
fn a_thousand_documents() {
    let place = tempfile::tempdir().unwrap();
    let mut facts = collected("p5-efa", "n", "");
    let count = 1000;
    let files: Vec<PathBuf> = (0..count).map(|index| place.path().join(format!("{index:04}.json"))).collect();
    for (index, file) in files.iter().enumerate() {
        facts.node = fact(format!("n{index}"));
        if index == 41 {
            facts.driver.efa_version = fact("2.13.0".to_owned());
        }
        fs::write(file, serde_json::to_string_pretty(&facts).unwrap()).unwrap();
        if index == 41 {
            facts.driver.efa_version = collected("p5-efa", "n", "").driver.efa_version;
        }
    }
    let start = Instant::now();
    let nodes: Vec<Node> = compare::read(&files).into_iter().map(Result::unwrap).collect();
    let report = compare::run(&nodes, Vec::new());
    let took = start.elapsed();
    assert_eq!(report.differences.len(), 1, "{}", report.text());
    assert_eq!(report.differences[0].others[0].nodes, ["n41"]);
    // A release build is to take less than 5 s; other builds and busy machines take longer.
    assert!(cfg!(debug_assertions) || took < Duration::from_secs(5), "{took:?}");
    println!("{count} documents in {took:?}");
}
