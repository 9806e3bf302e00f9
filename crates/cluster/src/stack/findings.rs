//! The verdict over a node's stack as findings.

use super::{Judgement, Question, Transport, judge};
use crate::causes::CauseEntry;
use crate::check::Target;
use crate::facts::Facts;
use crate::finding::{Finding, Status};

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

/// Findings about the loaded versions.
pub fn findings(facts: &Facts, target: Target) -> Vec<Finding> {
    let userspace = &facts.userspace;
    let deepep = matches!(target, Target::DeepepIbgda | Target::DeepepEfa);
    let mut all = Vec::new();
    let verdict = Finding::new("P200", "versions that load work together");
    if deepep && (!userspace.deep_ep.is_empty() || has(facts, "libnvshmem_host.so.3")) {
        let transport = if target == Target::DeepepEfa { Transport::Efa } else { Transport::Ibgda };
        let judged = judge(&Question::of(userspace, Some(facts), Some(transport)));
        let rows = judged.applies.iter().filter(|found| found.row.verdict == judged.judgement);
        let why: Vec<&str> = rows.clone().map(|found| found.row.mechanism.as_str()).collect();
        let fixes: Vec<&str> =
            rows.map(|found| found.row.fix.as_str()).filter(|fix| !fix.is_empty()).collect();
        let stack: Vec<String> = ["deep_ep", "nvshmem", "nccl", "torch", "cuda"]
            .into_iter()
            .filter_map(|key| judged.question.get(key).map(|value| format!("{key} {value}")))
            .collect();
        let finding = verdict
            .saw(stack.join(", "), "a combination that is known good")
            .at("libraries and packages", facts.node.scope);
        let mut finding = match judged.judgement {
            Judgement::KnownGood => finding,
            Judgement::KnownBad => finding.outcome(Status::Fail, &BAD),
            Judgement::Unverified => finding.outcome(Status::Warn, &UNVERIFIED),
        };
        if judged.judgement != Judgement::KnownGood {
            if !why.is_empty() {
                finding.observed = format!("{}: {}", finding.observed, why.join(" "));
            }
            if fixes.is_empty() {
                finding = finding
                    .remedy("See what decides.", &["expertrail stack --transport ibgda      # or efa"]);
            }
            for fix in fixes {
                finding = finding.remedy(fix, &[]);
            }
        }
        all.push(finding);
    } else {
        let reason = if deepep {
            "neither DeepEP nor NVSHMEM is installed here (check inside the image)"
        } else {
            "the target loads neither DeepEP nor NVSHMEM"
        };
        all.push(verdict.not_applicable(reason));
    }
    all.extend(copies(facts, target));
    all.extend(facts.userspace.ignored_variables.value().into_iter().flatten().filter(|_| deepep).map(
        |name| {
            Finding::new("P202", "variables are known to the library")
                .about(name.clone())
                .outcome(Status::Warn, &VARIABLE)
                .saw(
                    "set, and neither NVSHMEM nor its plugins have this name",
                    "variables of the loaded version",
                )
                .from_fact(&facts.userspace.ignored_variables)
                .remedy(
                    "Take it out, or load the NVSHMEM version that knows it.",
                    &[&format!("unset {name}")],
                )
        },
    ));
    all
}

fn has(facts: &Facts, name: &str) -> bool {
    facts.userspace.libraries.iter().any(|library| library.name == name)
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
        let finding = Finding::new("P201", "one copy of each library")
            .about(library.name.clone())
            .from_fact(&library.chosen);
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
