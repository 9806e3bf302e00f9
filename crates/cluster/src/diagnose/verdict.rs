//! From claims to an answer: which are confident, which came first, what nothing explains.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::case::{Case, earliest};
use super::event::{Event, Place, Role};
use super::heal::Healed;
use super::rule::{Claim, Confidence};
use super::rules;
use super::timeline::{self, RankLine};
use crate::causes;
use crate::environment;
use crate::finding::{Manager, Remedy};
use crate::stack::Known;

/// The name of the diagnosis document's version.
pub const SCHEMA: &str = "expertrail.diagnosis/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.diagnosis.1.schema.json");

/// What was concluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing wrong was found.
    NothingFound,
    /// At least one cause is named.
    CauseFound,
    /// Something is wrong, and these logs do not say what.
    #[default]
    #[serde(other)]
    NotDeterminable,
}

/// A line of a log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    /// File.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
    /// Rank that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Host or pod that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The kind of line.
    pub signal: String,
    /// The line, shortened.
    pub text: String,
}

/// A cause that the logs show, or may show.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Diagnosed {
    /// Cause id of the registry.
    pub cause: String,
    /// One line.
    pub title: String,
    /// How sure.
    pub confidence: Option<Confidence>,
    /// What was concluded from what.
    pub because: String,
    /// Rank, host, device, variable or package at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Lines that say so, most telling first.
    pub evidence: Vec<Line>,
    /// Look-alikes, and what rules each out.
    pub rules_out: Vec<String>,
    /// What to do, for this environment where it is known.
    pub remedies: Vec<Remedy>,
    /// The one fact to collect next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The answer to a separating question.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answered {
    /// The question.
    pub question: String,
    /// The answer; "not in these logs" where there is none.
    pub answer: String,
    /// Lines that say so.
    pub evidence: Vec<Line>,
}

/// The diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Diagnosis {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was concluded.
    pub outcome: Outcome,
    /// Causes, the first failure's first.
    pub findings: Vec<Diagnosed>,
    /// Causes that may be it.
    pub hypotheses: Vec<Diagnosed>,
    /// What slows the run and stops nothing.
    pub cautions: Vec<Diagnosed>,
    /// The first failure in time, as far as times and places tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<Line>,
    /// Failures that no finding explains.
    pub unexplained: Vec<Line>,
    /// Lines that only follow.
    pub followers: Vec<Line>,
    /// Failures that a later success on the same source took back.
    pub healed: Vec<Line>,
    /// How far each rank came and what it wrote first of failures; at most 4096, those that failed first.
    pub ranks: Vec<RankLine>,
    /// Ranks of the run that wrote nothing.
    pub silent_ranks: Vec<u32>,
    /// Questions that separate the causes of one message, where it occurs.
    pub questions: Vec<Answered>,
    /// Versions found, in the keys of `expertrail stack`.
    pub versions: BTreeMap<String, Known>,
    /// Files that were read.
    pub files: Vec<String>,
    /// What else should be said of the input.
    pub notes: Vec<String>,
}

/// Causes that say how a process ended and not why: others explain them.
const GENERIC: [&str; 5] =
    ["application-error", "rank-killed", "node-lost", "expertrail-rank-died", "efa-peer-unresponsive"];

/// Lines listed of each kind.
const LISTED: usize = 8;

/// Concludes from everything that rules claim about `case`.
pub fn conclude(case: &Case) -> Diagnosis {
    let healed = Healed::of(case);
    let mut claims = merge(rules::rules().filter_map(|rule| rule.apply(case)).collect());
    // What a later success took back is no cause any more; what only slows a run stays, and so does what is known of a run that another
    // one came after.
    claims.retain(|claim| {
        let why = claim.confidence > Confidence::Possible && !GENERIC.contains(&claim.cause);
        claim.caution
            || !healed.all(case, &claim.evidence)
            || (why && healed.by_other_run(case, &claim.evidence))
    });
    claims.sort_by(|a, b| order(case, a, b));
    let (cautions, claims): (Vec<Claim>, Vec<Claim>) = claims.into_iter().partition(|claim| claim.caution);
    let (findings, hypotheses): (Vec<Claim>, Vec<Claim>) =
        claims.into_iter().partition(|claim| claim.confidence > Confidence::Possible);

    let live: Vec<&Event> = case.events.iter().filter(|event| !healed.has(event)).collect();
    let failures = || live.iter().copied().filter(|event| event.role == Role::Failure);
    let explained: BTreeSet<&str> = findings
        .iter()
        .flat_map(|claim| &claim.evidence)
        .filter_map(|place| Some(case.at(*place)?.signal))
        .collect();
    let first_evidence = findings.first().and_then(|claim| first_event(case, claim));
    // What is of a kind that a finding names, or surely later than the first of them, needs no cause of its own.
    let unexplained: Vec<&Event> = failures()
        .filter(|event| !explained.contains(event.signal))
        .filter(|event| first_evidence.is_none_or(|first| event.before(first) == Some(true)))
        .chain(other_pods(case, &findings))
        .collect();
    let follows = live.iter().copied().filter(|event| event.role == Role::Follower);
    // What the message of an event of Kubernetes quotes is told by the event, which has a rule of its own.
    let suspicious = failures().next().is_some()
        || follows.clone().any(|event| !event.text.starts_with("kube-event "))
        || hypotheses.iter().any(|claim| !claim.evidence.is_empty());
    // A run that ends well may have been slow all the same, and no caution says why.
    let slow = cautions.is_empty() && hypotheses.iter().any(|claim| rests_on_figure(case, claim));
    let outcome = if !findings.is_empty() {
        Outcome::CauseFound
    } else if slow || case.incomplete || case.figures_fail || (suspicious && !healed.run_succeeded_after_all)
    {
        Outcome::NotDeterminable
    } else {
        Outcome::NothingFound
    };
    // A line may be of several kinds: what is a failure, or evidence, is no mere follower.
    let primary: BTreeSet<Place> = failures()
        .map(|event| event.place)
        .chain(findings.iter().flat_map(|claim| claim.evidence.iter().copied()))
        .chain(unexplained.iter().map(|event| event.place))
        .collect();
    // What a finding rests on may be a warning, and where nothing tells which came first it stands before what nothing explains.
    let telling = |event: &&Event| matches!(event.role, Role::Failure | Role::Follower | Role::Warning);
    let first = earliest(first_evidence.into_iter().filter(telling).chain(failures()))
        .or_else(|| earliest(follows.clone()))
        .filter(|_| outcome != Outcome::NothingFound || failures().next().is_some());
    // An illegal access mostly follows. One that surely came before everything else does not.
    let access = || follows.clone().filter(|event| event.signal == "cuda-illegal-memory-access");
    let first = first
        .map(|known| earliest(access().filter(|event| event.before(known) == Some(true))).unwrap_or(known));
    let managers = managers(case);
    let diagnosed = |claims: &[Claim]| claims.iter().map(|claim| diagnosed(case, claim, &managers)).collect();
    let lines = |events: &mut dyn Iterator<Item = &Event>| one_of_each(case, events);
    let mut notes = case.notes.clone();
    notes.extend(case.question.notes.iter().cloned());
    Diagnosis {
        schema: SCHEMA.to_owned(),
        outcome,
        findings: diagnosed(&findings),
        hypotheses: diagnosed(&hypotheses),
        cautions: diagnosed(&cautions),
        first_failure: first.map(|event| line(case, event)),
        unexplained: lines(&mut unexplained.into_iter()),
        followers: lines(&mut follows.clone().filter(|event| !primary.contains(&event.place))),
        healed: lines(&mut case.events.iter().filter(|event| healed.has(event))),
        ranks: timeline::ranks(case),
        silent_ranks: silent(case),
        questions: rules::questions(case),
        versions: case.question.known.clone(),
        files: case.files.clone(),
        notes,
    }
}

/// Whether a claim's first evidence is a figure of a benchmark.
fn rests_on_figure(case: &Case, claim: &Claim) -> bool {
    const FIGURES: [&str; 5] =
        ["judged-figure", "ep-figure", "guide-figures", "deepep-tuning-best", "deepep-bandwidth"];
    let first = claim.evidence.first();
    first.is_some_and(|place| {
        case.events.iter().any(|event| event.place == *place && FIGURES.contains(&event.signal))
    })
}

impl Diagnosis {
    /// 0 nothing wrong found, 1 cause found, 3 something is wrong but not determinable.
    pub fn exit_code(&self) -> u8 {
        match self.outcome {
            Outcome::NothingFound => 0,
            Outcome::CauseFound => 1,
            Outcome::NotDeterminable => 3,
        }
    }
}

/// Claims of one cause about one subject are one.
fn merge(claims: Vec<Claim>) -> Vec<Claim> {
    let mut merged: Vec<Claim> = Vec::new();
    for claim in claims {
        let same = |known: &&mut Claim| {
            known.cause == claim.cause
                && known.caution == claim.caution
                && (known.subject == claim.subject || known.subject.is_none() || claim.subject.is_none())
        };
        let Some(known) = merged.iter_mut().find(same) else {
            merged.push(claim);
            continue;
        };
        let (mut keep, add) =
            if claim.confidence > known.confidence { (claim, known.clone()) } else { (known.clone(), claim) };
        for place in add.evidence {
            if !keep.evidence.contains(&place) {
                keep.evidence.push(place);
            }
        }
        keep.subject = keep.subject.or(add.subject);
        keep.next = keep.next.or(add.next);
        *known = keep;
    }
    merged
}

/// Surest first, then those that say why before those that say how, then the earliest.
fn order(case: &Case, a: &Claim, b: &Claim) -> Ordering {
    let generic = |claim: &Claim| GENERIC.contains(&claim.cause);
    generic(a).cmp(&generic(b)).then(b.confidence.cmp(&a.confidence)).then_with(|| {
        match (first_event(case, a), first_event(case, b)) {
            (Some(a), Some(b)) => match a.before(b) {
                Some(true) => Ordering::Less,
                Some(false) => Ordering::Greater,
                None => a.place.cmp(&b.place),
            },
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    })
}

/// The earliest line of a claim's evidence.
fn first_event<'a>(case: &'a Case, claim: &Claim) -> Option<&'a Event> {
    earliest(claim.evidence.iter().filter_map(|place| case.at(*place)))
}

fn diagnosed(case: &Case, claim: &Claim, managers: &[Manager]) -> Diagnosed {
    let explanation = causes::explain(claim.cause).unwrap_or_default();
    let mut remedies = explanation.remedies;
    for row in &explanation.versions {
        let known =
            case.stack.applies.iter().chain(&case.stack.cautions).any(|found| found.row.fix == row.fix);
        if known || remedies.is_empty() {
            remedies.push(Remedy { text: row.fix.clone(), ..Remedy::default() });
        }
    }
    let fits = |remedy: &Remedy| remedy.manager.is_none_or(|manager| managers.contains(&manager));
    if remedies.iter().any(fits) {
        remedies.retain(fits);
    }
    remedies.dedup();
    Diagnosed {
        cause: claim.cause.to_owned(),
        title: explanation.title,
        confidence: Some(claim.confidence),
        because: claim.because.clone(),
        subject: claim.subject.clone(),
        evidence: evidence(case, claim),
        rules_out: claim.rules_out.clone(),
        remedies,
        next: claim.next.clone(),
    }
}

/// The lines that a claim rests on, each once. A document in one line has many states in one place: of them the one counts whose kind the
/// cause's rules ask for.
fn evidence(case: &Case, claim: &Claim) -> Vec<Line> {
    let kinds: BTreeSet<&str> = rules::rules()
        .filter(|rule| rule.cause == claim.cause)
        .flat_map(|rule| rule.needs.iter().chain(rule.any))
        .copied()
        .collect();
    let mut lines: Vec<Line> = Vec::new();
    for place in &claim.evidence {
        let asked = case.events.iter().find(|event| event.place == *place && kinds.contains(event.signal));
        let Some(event) = asked.or_else(|| case.at(*place)) else { continue };
        let made = line(case, event);
        if !lines
            .iter()
            .any(|known| (&known.file, known.line, &known.text) == (&made.file, made.line, &made.text))
        {
            lines.push(made);
        }
    }
    lines
}

/// Pods that failed and that no finding is about: a table or list of them tells no order, so that none comes after another.
fn other_pods<'a>(case: &'a Case, findings: &[Claim]) -> Vec<&'a Event> {
    let name = |text: &str| -> Option<String> {
        let mut parts = text.split_whitespace().nth(1)?.split('/');
        let (_, pod) = (parts.next()?, parts.next()?);
        Some(pod.to_owned())
    };
    let told: BTreeSet<String> = findings
        .iter()
        .flat_map(|claim| evidence(case, claim))
        .filter(|line| line.text.starts_with("kube-"))
        .filter_map(|line| name(&line.text))
        .chain(
            findings
                .iter()
                .filter_map(|claim| Some(claim.subject.as_deref()?.rsplit('/').next()?.to_owned())),
        )
        .collect();
    if findings.is_empty() {
        return Vec::new();
    }
    case.events("kube-pod-failed")
        .filter(|event| name(&event.text).is_some_and(|pod| !told.contains(&pod)))
        .collect()
}

/// Who may manage the node: of the facts, else by what the logs show. All where nothing tells.
fn managers(case: &Case) -> Vec<Manager> {
    if let Some(facts) = &case.facts {
        let manager = environment::manager(facts).manager;
        if manager != Manager::Unknown {
            return vec![manager];
        }
    }
    // Kubernetes shows in what it puts into each container's environment, and in the prefixes and names of its pods.
    let variable = |prefix: &str| case.variables.keys().any(|name| name.starts_with(prefix));
    let signal = |prefix: &str| case.tallies.keys().any(|id| id.starts_with(prefix));
    let kubernetes =
        variable("KUBERNETES_") || variable("JOB_COMPLETION_INDEX") || signal("kube-") || case.pods;
    let machine = variable("SLURM_") || signal("slurm-") || signal("sacct-");
    match (kubernetes, machine) {
        (true, false) => vec![Manager::Operator, Manager::Container],
        (false, true) => vec![Manager::Machine],
        _ => vec![Manager::Machine, Manager::Operator, Manager::Container, Manager::Unknown],
    }
}

fn silent(case: &Case) -> Vec<u32> {
    // Without ranks on lines nobody can be missed.
    let Some(world) = case.world.filter(|_| case.ranks_seen.len() > 1) else { return Vec::new() };
    (0..world.min(65_536)).filter(|rank| !case.ranks_seen.contains(rank)).collect()
}

/// A line of the report.
pub(super) fn line(case: &Case, event: &Event) -> Line {
    Line {
        file: case.file(event.place.file).to_owned(),
        line: event.place.line,
        rank: event.rank,
        node: event.node.as_deref().map(str::to_owned),
        signal: event.signal.to_owned(),
        text: event.text.clone(),
    }
}

/// The earliest line of each kind, at most [`LISTED`] kinds, in order of reading.
fn one_of_each(case: &Case, events: &mut dyn Iterator<Item = &Event>) -> Vec<Line> {
    let mut kinds: Vec<&str> = Vec::new();
    let mut of: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in events {
        if !of.contains_key(event.signal) {
            kinds.push(event.signal);
        }
        of.entry(event.signal).or_default().push(event);
    }
    let first = |kind: &str| of.get(kind).and_then(|events| earliest(events.iter().copied()));
    kinds.into_iter().filter_map(first).take(LISTED).map(|event| line(case, event)).collect()
}
