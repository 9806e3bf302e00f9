//! docs/causes.md is what the registry says.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::path::Path;

use expertrail_cluster::causes;

#[test]
fn the_catalogue_is_the_registrys() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/causes.md");
    let made = causes::catalogue();
    if std::env::var_os("EXPERTRAIL_WRITE_CAUSES").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == there,
        "docs/causes.md is old: EXPERTRAIL_WRITE_CAUSES=1 cargo test -p expertrail-cluster --test catalogue"
    );
}

#[test]
fn every_cause_has_its_section_and_a_way_to_be_found_or_a_sign() {
    let made = causes::catalogue();
    for cause in causes::all() {
        assert!(made.contains(&format!("\n## {}\n", cause.id)), "{}", cause.id);
    }
    // Each line of the table leads to one section.
    let rows = made.lines().filter(|line| line.starts_with("| [")).count();
    let sections = made.lines().filter(|line| line.starts_with("## ")).count();
    assert_eq!(rows, sections);
}
