//! Every cause that a rule names has texts that hit, that nearly do, and that look alike: `tests/diagnose/rules/<cause>.txt`.
//!
//! `== hit`: the first confident finding is the cause. `== near miss: why`: it is not claimed with confidence. `== look-alike: other`: the
//! first confident finding is the other cause, or there is none (`undetermined`, `nothing`). `== hypothesis`: it is named as one, and no cause is. In a section `-- file NAME` starts another file,
//! `-- stack K=V,...` gives versions.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use expertrail_cluster::causes;
use expertrail_cluster::diagnose::{self, Diagnosis, Evidence, Input, Outcome, rules};
use expertrail_cluster::stack::Question;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/diagnose/rules")
}

struct Section {
    heading: String,
    files: Vec<(String, String)>,
    stack: Option<String>,
}

fn sections(text: &str) -> Vec<Section> {
    let mut all: Vec<Section> = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("== ") {
            all.push(Section {
                heading: heading.trim().to_owned(),
                files: vec![("run.log".to_owned(), String::new())],
                stack: None,
            });
            continue;
        }
        let Some(section) = all.last_mut() else { continue };
        if let Some(name) = line.strip_prefix("-- file ") {
            section.files.push((name.trim().to_owned(), String::new()));
        } else if let Some(stack) = line.strip_prefix("-- stack ") {
            section.stack = Some(stack.trim().to_owned());
        } else if let Some((_, text)) = section.files.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    for section in &mut all {
        section.files.retain(|(_, text)| !text.trim().is_empty());
    }
    all
}

fn diagnosis(section: &Section, name: &str) -> Diagnosis {
    let inputs = section
        .files
        .iter()
        .map(|(name, text)| Input::Text { name: name.clone(), bytes: text.clone().into_bytes() })
        .collect();
    let stack = section
        .stack
        .as_deref()
        .map(|text| Question::parse(text).unwrap_or_else(|error| panic!("{name}: {error}")));
    diagnose::conclude(&diagnose::read(inputs, Evidence { stack, facts: None }).unwrap())
}

fn answer(diagnosis: &Diagnosis) -> &str {
    match diagnosis.outcome {
        Outcome::CauseFound => &diagnosis.findings[0].cause,
        Outcome::NotDeterminable => "undetermined",
        Outcome::NothingFound => "nothing",
    }
}

#[test]
fn hits_near_misses_and_look_alikes() {
    let mut failures = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let cause = path.file_stem().unwrap().to_str().unwrap().to_owned();
        for (index, section) in sections(&fs::read_to_string(&path).unwrap()).iter().enumerate() {
            let name = format!("{cause}, section {} ({})", index + 1, section.heading);
            let diagnosis = diagnosis(section, &name);
            let answer = answer(&diagnosis);
            let named =
                diagnosis.findings.iter().chain(&diagnosis.cautions).any(|found| found.cause == cause);
            if section.heading == "hit" {
                // What only slows is a caution, and then the run may be healthy otherwise.
                let caution = diagnosis.cautions.iter().any(|found| found.cause == cause);
                if answer != cause && !caution {
                    failures.push(format!("{name}: answered {answer}"));
                }
            } else if section.heading.starts_with("near miss") {
                if named {
                    failures.push(format!("{name}: claimed"));
                }
            } else if section.heading.starts_with("hypothesis") {
                // What no log decides: named among what it may be, and no cause is.
                let may = diagnosis.hypotheses.iter().any(|found| found.cause == cause);
                if !may || answer != "undetermined" {
                    failures.push(format!("{name}: answered {answer}"));
                }
            } else if let Some(other) = section.heading.strip_prefix("look-alike:") {
                let other = other.split_whitespace().next().unwrap_or_default();
                if answer != other {
                    failures.push(format!("{name}: answered {answer}"));
                }
            } else {
                failures.push(format!("{name}: no such heading"));
            }
        }
    }
    failures.sort();
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_rule_has_texts_of_all_three_kinds_and_a_cause_with_a_remedy() {
    let named: BTreeSet<&str> = rules::rules().map(|rule| rule.cause).collect();
    assert!(named.len() > 60, "{}", named.len());
    let mut missing = Vec::new();
    for cause in named {
        let text = fs::read_to_string(folder().join(format!("{cause}.txt"))).unwrap_or_default();
        for kind in ["== hit", "== near miss", "== look-alike:"] {
            // Some causes are questions only: no log decides them.
            let only_asked = kind == "== hit" && text.contains("== hypothesis");
            if !text.contains(kind) && !only_asked {
                missing.push(format!("{cause}: no {kind}"));
            }
        }
        match causes::explain(cause) {
            None => missing.push(format!("{cause}: not in the registry")),
            Some(explanation) if explanation.remedies.is_empty() && explanation.versions.is_empty() => {
                missing.push(format!("{cause}: no remedy"));
            }
            Some(_) => {}
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn signals_are_well_formed() {
    let mut seen = BTreeSet::new();
    for signal in rules::signals() {
        assert!(seen.insert(signal.id), "{}: twice", signal.id);
        assert!(!signal.any.is_empty(), "{}: no literal", signal.id);
        for literal in signal.any {
            assert!(literal.len() >= 4, "{}: `{literal}` is in every line", signal.id);
        }
        if let Some(pattern) = signal.pattern {
            regex::bytes::Regex::new(pattern).unwrap_or_else(|error| panic!("{}: {error}", signal.id));
        }
    }
    for rule in rules::rules() {
        for id in rule.needs.iter().chain(rule.any).chain(rule.unless) {
            assert!(seen.contains(id), "{}: no signal {id}", rule.cause);
        }
        assert!(
            !rule.needs.is_empty() || !rule.any.is_empty() || rule.refine.is_some(),
            "{}: always applies",
            rule.cause
        );
    }
}
