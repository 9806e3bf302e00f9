//! The verdict over a node's stack as findings.

use super::matrix::parts;
use super::{Judgement, Match, Question, Transport, Verdict, judge};
use crate::causes::{self, CauseEntry};
use crate::check::Target;
use crate::check::remedies::shell;
use crate::facts::Facts;
use crate::finding::{Finding, Status};

/// Rows have causes of their own; this one stands in for a row without.
const BAD: CauseEntry = CauseEntry {
    id: "stack-known-bad",
    title: "a combination of versions that is known to fail",
    text: "The table of known combinations has this one; the mechanism is in the finding.",
};
const UNVERIFIED: CauseEntry = CauseEntry {
    id: "stack-unverified",
    title: "a combination of versions of which nothing is known",
    text: "Neither a document nor a report speaks of it, or what decides could not be read. Newer is not always safe.",
};
const COPIES: CauseEntry = CauseEntry {
    id: "library-copies",
    title: "several copies of a library",
    text: "Which one loads depends on the order of search paths; another launcher or image layer may load the other.",
};
const VARIABLE: CauseEntry = CauseEntry {
    id: "variable-unknown-to-library",
    title: "a variable that the loaded NVSHMEM does not know",
    text: "NVSHMEM ignores variables it has no name for; a setting that seems to be made is not.",
};

/// Causes of this part. Rows of the table have their own ids, see `data/stack-matrix.json`.
pub const CAUSES: &[&[CauseEntry]] = &[&[BAD, UNVERIFIED, COPIES, VARIABLE]];

/// Ids of the checks of this part with what each looks at.
pub const CHECKS: &[(&str, &str)] = &[
    ("P200", "versions that load work together"),
    ("P201", "one copy of each library"),
    ("P202", "variables are known to the library"),
];

/// Findings about the loaded versions.
pub fn findings(facts: &Facts, target: Target) -> Vec<Finding> {
    let mut all = verdict(facts, target);
    all.extend(copies(facts, target));
    all.extend(ignored(facts, target));
    all
}

fn finding(id: &str) -> Finding {
    let title = CHECKS.iter().find(|(known, _)| *known == id).map_or("", |(_, title)| title);
    Finding::new(id, title)
}

fn deepep(target: Target) -> bool {
    matches!(target, Target::DeepepIbgda | Target::DeepepEfa)
}

/// One finding for each row of the table that decides, or one that says that none does.
fn verdict(facts: &Facts, target: Target) -> Vec<Finding> {
    let userspace = &facts.userspace;
    let new = || finding("P200");
    if !deepep(target) {
        return vec![new().not_applicable("the target loads neither DeepEP nor NVSHMEM")];
    }
    if userspace.deep_ep.is_empty() && userspace.library("libnvshmem_host.so.3").is_none() {
        return vec![
            new().not_applicable("neither DeepEP nor NVSHMEM is installed here (check inside the image)"),
        ];
    }
    let (transport, name) =
        if target == Target::DeepepEfa { (Transport::Efa, "efa") } else { (Transport::Ibgda, "ibgda") };
    let judged = judge(&Question::of(userspace, Some(facts), Some(transport)));
    let value = |key: &str| judged.question.get(key).map(|value| format!("{key} {value}"));
    let stack: Vec<String> =
        ["deep_ep", "nvshmem", "nccl", "torch", "cuda"].into_iter().filter_map(value).collect();
    let cautions = judged.cautions.iter().map(|found| row_finding(facts, &judged, found, Status::Warn));
    if judged.judgement == Judgement::KnownGood {
        let good = new().saw(stack.join(", "), "").at("libraries and packages", facts.node.scope);
        return std::iter::once(good).chain(cautions).collect();
    }
    let rows: Vec<_> = judged.applies.iter().filter(|found| found.row.verdict == judged.judgement).collect();
    if rows.is_empty() {
        let open: Vec<String> = judged
            .possible
            .iter()
            .map(|found| {
                format!("{} is not known, and with it whether {}", found.open.join(" and "), found.row.title)
            })
            .collect();
        let observed = [stack, open].concat().join("; ");
        let unverified = new()
            .outcome(Status::Warn, &UNVERIFIED)
            .saw(observed, "a combination that is known good")
            .at("libraries and packages", facts.node.scope)
            .remedy("See what decides.", &[&format!("expertrail stack --transport {name}")]);
        return std::iter::once(unverified).chain(cautions).collect();
    }
    let status = if judged.judgement == Judgement::KnownBad { Status::Fail } else { Status::Warn };
    rows.into_iter().map(|found| row_finding(facts, &judged, found, status)).chain(cautions).collect()
}

/// What a row of the table says of this stack.
fn row_finding(facts: &Facts, judged: &Verdict, found: &Match, status: Status) -> Finding {
    let row = &found.row;
    let value = |key: &str| judged.question.get(key).map(|value| format!("{key} {value}"));
    let mut keys: Vec<&str> =
        row.when.iter().filter_map(|condition| parts(condition)).map(|(key, ..)| key).collect();
    // The commit is all that tells of the pull request.
    let alone = judged.unless_patched && keys.contains(&"564");
    keys.extend(alone.then_some("commit"));
    let mut seen: Vec<String> = keys.iter().copied().filter_map(value).collect();
    seen.dedup();
    let note = if alone { " (by the commit alone: a build of it with the patch is good)" } else { "" };
    let mut finding = finding("P200")
        .about(row.id.clone())
        .outcome(status, causes::get(&row.cause).unwrap_or(&BAD))
        .saw(format!("{}: {}{note}", seen.join(", "), row.title), "a combination that is known good")
        .remedy(&row.fix, &[]);
    finding.why.clone_from(&row.mechanism);
    for known in keys.iter().filter_map(|key| judged.question.known.get(*key)) {
        finding = finding.at(known.source.clone(), facts.node.scope);
    }
    if alone {
        let step = "expertrail stack --source-root DIR      # of the source it was built from";
        finding = finding.remedy("Confirm by the source, or by a dispatch between two nodes.", &[step]);
    }
    finding
}

/// Variables that the NVSHMEM which loads has no name for.
fn ignored(facts: &Facts, target: Target) -> Vec<Finding> {
    let fact = &facts.userspace.ignored_variables;
    let new = |name: &String| {
        finding("P202")
            .about(name.clone())
            .outcome(Status::Warn, &VARIABLE)
            .saw("set, and neither NVSHMEM nor its plugins have this name", "variables of the loaded version")
            .from_fact(fact)
            .remedy(
                "Take it out, or load the NVSHMEM version that knows it.",
                &[&format!("unset {}", shell(name))],
            )
    };
    fact.value().into_iter().flatten().filter(|_| deepep(target)).map(new).collect()
}

fn copies(facts: &Facts, target: Target) -> Vec<Finding> {
    let wanted: &[&str] = match target {
        Target::DeepepIbgda => &["libnvshmem_host.so.3"],
        Target::DeepepEfa => &["libnvshmem_host.so.3", "libfabric.so.1"],
        Target::Nccl => &["libnccl.so.2"],
        Target::Expertrail => &["libfabric.so.1"],
    };
    let mut all = Vec::new();
    for library in facts.userspace.libraries.iter().filter(|library| wanted.contains(&library.name.as_str()))
    {
        let mut versions: Vec<&str> = library
            .copies
            .iter()
            .filter_map(|copy| copy.version.as_ref())
            .map(|version| version.text.as_str())
            .collect();
        versions.sort_unstable();
        versions.dedup();
        let finding = finding("P201").about(library.name.clone()).from_fact(&library.chosen);
        let list: Vec<&str> = library.copies.iter().map(|copy| copy.path.as_str()).collect();
        if versions.len() < 2 {
            all.push(finding.saw(format!("{} of one version", list.len()), ""));
            continue;
        }
        let chosen = library
            .chosen
            .value()
            .map_or("none".to_owned(), |copy| format!("{} ({})", copy.path, library.how));
        all.push(
            finding
                .outcome(Status::Warn, &COPIES)
                .saw(
                    format!("versions {}: {}; loads: {chosen}", versions.join(", "), list.join(", ")),
                    "one version",
                )
                .remedy(
                    "Remove all but one, or put the wanted one first on the loader's path in every launcher.",
                    &[],
                ),
        );
    }
    all
}
