//! Diagnoses of logs written by people who had seen the cases and not the rules: `tests/diagnose/cases`, with the expected causes in
//! `tests/diagnose/expected.json`. The confusion table is printed, and committed as `tests/diagnose/confusion.md`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use expertrail_cluster::causes;
use expertrail_cluster::diagnose::{self, Diagnosis, Evidence, Input, Outcome};
use expertrail_cluster::stack::Question;
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    class: String,
    cause: Option<String>,
}

#[derive(Deserialize)]
struct CaseFile {
    id: String,
    decidable: bool,
    stack: Option<String>,
    #[serde(default)]
    also: Vec<String>,
}

struct Variant {
    name: String,
    class: String,
    /// Causes that the first finding may name; empty: none may be named.
    wanted: Vec<String>,
    /// Causes that must all be among the findings.
    all: BTreeSet<String>,
    answer: String,
    found: BTreeSet<String>,
    /// Causes that are named with confidence beside the first one, and not among those expected.
    extra: Vec<String>,
}

/// Causes that a variant's log shows beside those expected, and why that is right.
const ALLOWED: [(&str, &str, &str); 1] = [(
    "D18/c",
    "peermem-missing",
    "the old driver pod has no container for the module: that it is missing is what follows",
)];

impl Variant {
    fn row(&self) -> String {
        match (self.class.as_str(), self.wanted.first()) {
            ("healthy", _) => "nothing".to_owned(),
            (_, Some(cause)) => cause.clone(),
            (_, None) => "undetermined".to_owned(),
        }
    }

    fn right(&self) -> bool {
        match self.class.as_str() {
            "healthy" => self.answer == "nothing",
            _ if self.wanted.is_empty() => self.answer == "undetermined",
            // What only slows is a caution, beside a run that is well otherwise.
            _ => {
                (self.wanted.contains(&self.answer) || self.answer == "nothing")
                    && self.all.is_subset(&self.found)
            }
        }
    }

    /// A cause is named that is not there.
    fn confidently_wrong(&self) -> bool {
        self.answer != "nothing" && self.answer != "undetermined" && !self.wanted.contains(&self.answer)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/diagnose")
}

fn answer(diagnosis: &Diagnosis) -> String {
    match diagnosis.outcome {
        Outcome::CauseFound => diagnosis.findings[0].cause.clone(),
        Outcome::NotDeterminable => "undetermined".to_owned(),
        Outcome::NothingFound => "nothing".to_owned(),
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    all.sort();
    all
}

fn variants() -> Vec<Variant> {
    let expected: BTreeMap<String, Expected> =
        serde_json::from_str(&fs::read_to_string(folder().join("expected.json")).unwrap()).unwrap();
    let mut all = Vec::new();
    for case in folders(&folder().join("cases")) {
        for variant in folders(&case) {
            let name = format!(
                "{}/{}",
                case.file_name().unwrap().to_str().unwrap(),
                variant.file_name().unwrap().to_str().unwrap()
            );
            let file: CaseFile =
                serde_json::from_str(&fs::read_to_string(variant.join("case.json")).unwrap_or_default())
                    .unwrap_or_else(|error| panic!("{name}: case.json: {error}"));
            let mut files: Vec<PathBuf> = fs::read_dir(&variant)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| !path.ends_with("case.json"))
                .collect();
            files.sort();
            let stack = file
                .stack
                .as_deref()
                .map(|text| Question::parse(text).unwrap_or_else(|error| panic!("{name}: stack: {error}")));
            let inputs = files.into_iter().map(Input::Path).collect();
            let case = diagnose::read(inputs, Evidence { stack, facts: None })
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let diagnosis = diagnose::conclude(&case);
            let healthy = file.id.starts_with("healthy");
            let of = |id: &str| {
                let entry = expected.get(id).unwrap_or_else(|| panic!("{name}: {id} is not expected"));
                (entry.class.clone(), entry.cause.clone())
            };
            let (class, cause) = if healthy { ("healthy".to_owned(), None) } else { of(&file.id) };
            let mut wanted: Vec<String> = cause.filter(|_| file.decidable).into_iter().collect();
            let mut every: BTreeSet<String> = wanted.iter().cloned().collect();
            if file.decidable {
                for id in &file.also {
                    wanted.extend(of(id).1);
                    every.extend(of(id).1);
                }
            }
            let class = match class.as_str() {
                "established" | "likely" if !file.decidable => "undecidable".to_owned(),
                _ => class,
            };
            let extra = diagnosis
                .findings
                .iter()
                .skip(1)
                .map(|found| found.cause.clone())
                .filter(|cause| !every.contains(cause))
                .filter(|cause| {
                    !ALLOWED.iter().any(|(variant, allowed, _)| *variant == name && allowed == cause)
                })
                .collect();
            all.push(Variant {
                name,
                class,
                wanted,
                extra,
                all: every,
                answer: answer(&diagnosis),
                // What only slows is named beside the causes.
                found: diagnosis
                    .findings
                    .iter()
                    .chain(&diagnosis.cautions)
                    .map(|found| found.cause.clone())
                    .collect(),
            });
        }
    }
    all
}

/// Rows: what it is; columns: what was answered.
fn table(variants: &[Variant]) -> String {
    let mut out = String::from(
        "# Confusion of `diagnose` on logs written without sight of its rules\n\nMade by `cargo test -p expertrail-cluster --test diagnose_blind`; \
         scores of the first runs are in scores.md.\n\n| class | variants | right | confidently wrong | wrong beside the right one |\n|---|---|---|---|---|\n",
    );
    for class in ["established", "likely", "unknown", "undecidable", "healthy"] {
        let of: Vec<&Variant> = variants.iter().filter(|variant| variant.class == class).collect();
        let right = of.iter().filter(|variant| variant.right()).count();
        let wrong = of.iter().filter(|variant| variant.confidently_wrong()).count();
        let extra = of.iter().filter(|variant| !variant.extra.is_empty()).count();
        let _ = writeln!(out, "| {class} | {} | {right} | {wrong} | {extra} |", of.len());
    }
    out.push_str("\n| cause | variants | answers |\n|---|---|---|\n");
    let mut rows: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for variant in variants {
        *rows.entry(variant.row()).or_default().entry(variant.answer.clone()).or_default() += 1;
    }
    for (cause, answers) in rows {
        let total: usize = answers.values().sum();
        let cells: Vec<String> = answers.iter().map(|(answer, count)| format!("{answer} {count}")).collect();
        let _ = writeln!(out, "| {cause} | {total} | {} |", cells.join(", "));
    }
    out.push_str("\n## Not right\n\n");
    for variant in variants.iter().filter(|variant| !variant.right()) {
        let missing: Vec<&str> = variant.all.difference(&variant.found).map(String::as_str).collect();
        let _ = writeln!(
            out,
            "- {} ({}): answered {}, wanted {}{}",
            variant.name,
            variant.class,
            variant.answer,
            variant.row(),
            if missing.is_empty() { String::new() } else { format!("; not found: {}", missing.join(", ")) }
        );
    }
    let extra: Vec<&Variant> = variants.iter().filter(|variant| !variant.extra.is_empty()).collect();
    if !extra.is_empty() {
        out.push_str("\n## Wrong beside the first finding\n\n");
    }
    for variant in extra {
        let _ = writeln!(
            out,
            "- {} ({}): {}, beside {}",
            variant.name,
            variant.class,
            variant.extra.join(", "),
            variant.answer
        );
    }
    out
}

#[test]
fn confusion() {
    let variants = variants();
    let table = table(&variants);
    println!("{table}");
    let committed = folder().join("confusion.md");
    if std::env::var_os("EXPERTRAIL_WRITE_CONFUSION").is_some() {
        fs::write(&committed, &table).unwrap();
    }
    let wrong: Vec<&str> = variants
        .iter()
        .filter(|variant| variant.confidently_wrong())
        .map(|variant| variant.name.as_str())
        .collect();
    assert!(wrong.is_empty(), "confidently wrong: {wrong:?}");
    let beside: Vec<String> = variants
        .iter()
        .filter(|variant| !variant.extra.is_empty())
        .map(|variant| format!("{}: {}", variant.name, variant.extra.join(", ")))
        .collect();
    assert!(beside.is_empty(), "wrong beside the right one: {beside:?}");
    let known: Vec<&Variant> = variants
        .iter()
        .filter(|variant| matches!(variant.class.as_str(), "established" | "likely"))
        .collect();
    let right = known.iter().filter(|variant| variant.right()).count();
    assert!(known.len() >= 300, "three variants of each cause: {}", known.len());
    assert!(right * 10 >= known.len() * 9, "{right} of {} known causes", known.len());
    for class in ["unknown", "undecidable", "healthy"] {
        let bad: Vec<&str> = variants
            .iter()
            .filter(|variant| variant.class == class && !variant.right())
            .map(|variant| variant.name.as_str())
            .collect();
        assert!(bad.is_empty(), "{class}: {bad:?}");
    }
    assert_eq!(
        fs::read_to_string(&committed).unwrap_or_default(),
        table,
        "tests/diagnose/confusion.md is old: EXPERTRAIL_WRITE_CONFUSION=1 writes it"
    );
}

#[test]
fn every_expected_cause_is_in_the_registry() {
    let expected: BTreeMap<String, Expected> =
        serde_json::from_str(&fs::read_to_string(folder().join("expected.json")).unwrap()).unwrap();
    for (id, entry) in expected {
        if let Some(cause) = entry.cause {
            assert!(causes::get(&cause).is_some(), "{id}: {cause}");
        }
    }
}
