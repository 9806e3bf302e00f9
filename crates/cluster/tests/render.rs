//! Whole reports as a user sees them, against `snapshots/*.txt`. A changed message shows as a changed line of a file, to be
//! read before it is committed. `EXPERTRAIL_SNAPSHOTS=write` renews the files.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use expertrail_cluster::check::{self, Options, Target};
use expertrail_cluster::collect;
use expertrail_cluster::facts::{Fact, Facts};
use expertrail_cluster::root::Root;

const RENEW: &str = "EXPERTRAIL_SNAPSHOTS=write cargo test -p expertrail-cluster --test render";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

/// The facts of the tree at `place`, which name neither the place nor the time of the reading in any report.
fn facts(place: &Path) -> Facts {
    let mut facts = collect::facts(&Root::captured(place), &collect::Options::default());
    assert_eq!(facts.root, place.to_str().unwrap());
    // Words that would show if they went into the text.
    "/LEAKED".clone_into(&mut facts.root);
    facts.captured_at = 4_242_424_242;
    facts
}

/// Lines of `now` and `then` where they differ, with their numbers.
fn differences(now: &str, then: &str) -> String {
    let (mut now_lines, mut then_lines) = (now.lines(), then.lines());
    let mut out = String::new();
    for number in 1.. {
        match (then_lines.next(), now_lines.next()) {
            (None, None) => break,
            (then, now) if then == now => {}
            (then, now) => {
                let end = "(no such line)";
                out.push_str(&format!(
                    "line {number}\n  file: {}\n  now:  {}\n",
                    then.unwrap_or(end),
                    now.unwrap_or(end)
                ));
            }
        }
    }
    // Lines say nothing of how the text ends.
    if out.is_empty() && now != then {
        out.push_str("the end of the last line\n");
    }
    out
}

/// Compares the whole report of `facts` with the file of that name.
fn is_as_kept(name: &str, facts: &Facts, target: Target) {
    let text = check::run(facts, &Options { target, ..Options::default() }).text(true);
    for leak in ["/LEAKED", "4242424242", "/tmp", env!("CARGO_MANIFEST_DIR")] {
        assert!(!text.contains(leak), "{leak} is in the report:\n{text}");
    }
    let file = here("snapshots").join(format!("{name}.txt"));
    if std::env::var_os("EXPERTRAIL_SNAPSHOTS").is_some_and(|value| value == "write") {
        fs::write(&file, &text).unwrap();
        return;
    }
    let kept =
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}; {RENEW}", file.display()));
    let differences = differences(&text, &kept);
    assert!(
        differences.is_empty(),
        "{} differs:\n{differences}\nThe text now:\n{text}\nThe file:\n{kept}\n\
         If the new text is right: {RENEW}",
        file.display()
    );
}

#[test]
fn the_virtual_machine_without_keys_and_modules() {
    let facts = facts(&here("fixtures/h200-vm-x2"));
    is_as_kept("h200-vm-x2-deepep-ibgda", &facts, Target::DeepepIbgda);
    is_as_kept("h200-vm-x2-expertrail", &facts, Target::Expertrail);
}

#[test]
fn a_node_that_has_all() {
    let place = tree::unpack("healthy");
    is_as_kept("healthy-deepep-ibgda", &facts(place.path()), Target::DeepepIbgda);
}

/// Facts of which what tells a virtual machine, a container or an operator was not captured.
fn without_environment(mut facts: Facts) -> Facts {
    facts.environment.container = Fact::default();
    facts.environment.operator_signs = Fact::default();
    facts.environment.kubernetes = Fact::default();
    facts.kernel.hypervisor = Fact::default();
    facts
}

#[test]
fn nodes_of_which_nobody_knows_who_manages_them() {
    let place = tree::unpack("b200-crusoe-vm");
    let b200 = without_environment(facts(place.path()));
    is_as_kept("b200-crusoe-vm-no-environment-deepep-ibgda", &b200, Target::DeepepIbgda);
    // There remedies differ by who manages the node: all are printed.
    let h200 = without_environment(facts(&here("fixtures/h200-vm-x2")));
    is_as_kept("h200-vm-x2-no-environment-deepep-ibgda", &h200, Target::DeepepIbgda);
}

#[test]
fn what_differs_is_found() {
    assert_eq!(differences("a\nb\n", "a\nb\n"), "");
    assert_eq!(differences("a\nc\n", "a\nb\n"), "line 2\n  file: b\n  now:  c\n");
    assert_eq!(differences("a\n", "a\nb\n"), "line 2\n  file: b\n  now:  (no such line)\n");
    assert_eq!(differences("a", "a\n"), "the end of the last line\n");
}
