//! The ids of all findings of this crate.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use expertrail_cluster::{check, compare, kube, probe, stack, topo};

/// Ids and what each check looks at.
type Checks = &'static [(&'static str, &'static str)];

/// Every part with its ids and the numbers that it may take.
fn parts() -> [(&'static str, Checks, Range<u32>); 6] {
    [
        ("check", check::CHECKS, 1..100),
        ("topo", topo::CHECKS, 100..200),
        ("stack", stack::CHECKS, 200..300),
        ("kube", kube::CHECKS, 300..400),
        ("probe", probe::CHECKS, 400..500),
        ("compare", compare::CHECKS, 500..600),
    ]
}

fn number(id: &str) -> Option<u32> {
    let digits = id.strip_prefix('P').filter(|digits| digits.len() == 3)?;
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().unwrap())
}

/// The words of `text` that have the form of an id, and whether each is a whole string (`"P001"`).
fn ids(text: &str) -> Vec<(&str, bool)> {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(inside).map(|offset| at + offset) {
        let end = text[start..].find(|c| !inside(c)).map_or(text.len(), |offset| start + offset);
        let word = &text[start..end];
        if number(word).is_some() {
            found.push((word, text[..start].ends_with('"') && text[end..].starts_with('"')));
        }
        at = end;
    }
    found
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn words_that_are_ids() {
    let text = "finding(\"P001\") of P2P, P0011, XP001 and P100; (P030 says how) \"P03\" é\"P500\"";
    assert_eq!(ids(text), [("P001", true), ("P100", false), ("P030", false), ("P500", true)]);
}

#[test]
fn every_id_is_of_one_check_with_a_title() {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for (part, checks, range) in parts() {
        let mut last = 0;
        for (id, title) in checks {
            if let Some(other) = seen.insert(id, part) {
                panic!("{id} is of {other} and of {part}");
            }
            let number = number(id).unwrap_or_else(|| panic!("{part}: {id} is no id"));
            assert!(range.contains(&number), "{part}: {id} is not within {range:?}");
            assert!(number > last, "{part}: {id} is out of order");
            last = number;
            assert!(!title.is_empty() && title.trim() == *title, "{id}: `{title}`");
        }
        let titles: BTreeSet<&str> = checks.iter().map(|(_, title)| *title).collect();
        assert_eq!(titles.len(), checks.len(), "{part}: two checks with one title");
    }
}

#[test]
fn the_source_uses_the_ids_of_the_lists_and_no_others() {
    let known: BTreeSet<&str> =
        parts().iter().flat_map(|(_, checks, _)| *checks).map(|(id, _)| *id).collect();
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for (id, whole) in ids(&text) {
            // Remedies and comments refer to other checks by their ids too.
            assert!(known.contains(id), "{}: {id} is in no list", file.display());
            *uses.entry(id.to_owned()).or_default() += usize::from(whole);
        }
    }
    // Once in its list, and where the finding is made.
    let idle: Vec<&&str> = known.iter().filter(|id| uses.get(**id).is_none_or(|uses| *uses < 2)).collect();
    assert!(idle.is_empty(), "in a list and nowhere else: {idle:?}");
}
