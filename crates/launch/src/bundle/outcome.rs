//! `outcome.json`: what came of a run, in one document.

use std::collections::BTreeMap;

use expertrail_cluster::finding::Status;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Bundle;
use super::analyse::Analysis;
use crate::drive::Ending;
use crate::run::{Run, Target};

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.outcome/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.outcome.1.schema.json");

/// The JSON Schema (draft 2020-12) of `run.json`.
pub const RUN_JSON_SCHEMA: &str = include_str!("../../schema/expertrail.run.1.schema.json");

/// A file of the bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Relative path.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// CRC-32 of the content, eight hexadecimal digits.
    pub crc32: String,
}

/// Something that should be here and is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// How the run ended, as a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// `succeeded`, `failed`, `never-started`, `deadline`, `interrupted`, `refused` (the system took it not), `lost` (the system
    /// could not be asked any more).
    pub kind: String,
    /// In words; empty for a success.
    pub reason: String,
    /// The first failure's exit code, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
}

impl End {
    /// The document of an ending.
    pub fn of(ending: &Ending) -> Self {
        let end =
            |kind: &str, reason: &str| Self { kind: kind.to_owned(), reason: reason.to_owned(), code: None };
        match ending {
            Ending::Succeeded => end("succeeded", ""),
            Ending::Failed { reason, code } => Self { code: *code, ..end("failed", reason) },
            Ending::NeverStarted { reason } => end("never-started", reason),
            Ending::Deadline { state } => end("deadline", state),
            Ending::Interrupted => end("interrupted", "stopped by Ctrl-C or SIGTERM"),
        }
    }

    /// One sentence.
    pub fn words(&self) -> String {
        let what = match self.kind.as_str() {
            "succeeded" => return "every rank ended with 0".to_owned(),
            "failed" => "failed",
            "never-started" => "never started",
            "deadline" => "the deadline passed",
            "interrupted" => "interrupted",
            "refused" => "could not be started",
            _ => "the system could not be asked any more",
        };
        format!("{what}: {}", self.reason)
    }
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its index.
    pub node: u32,
    /// Its host, where something tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether its facts are here.
    pub facts: bool,
    /// Checks by outcome; none where its findings are not here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<BTreeMap<String, usize>>,
    /// What fails or warns: id and title, what was seen.
    pub findings: Vec<Noted>,
}

/// A finding of a node that is not a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// `P001`.
    pub id: String,
    /// `fail`, `warn`.
    pub status: String,
    /// What was looked at.
    pub title: String,
    /// What is there.
    pub observed: String,
}

/// How one rank ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankEnd {
    /// Number of the process.
    pub rank: u64,
    /// Index of its node, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Its host.
    pub host: String,
    /// Exit code; none where a signal ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// The signal's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal_name: Option<String>,
    /// Seconds from its start to its end.
    pub seconds: f64,
    /// Whether the worker stopped it.
    pub stopped: bool,
}

/// Something that a person saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since the launch began.
    pub at_s: f64,
    /// `step`, `state`, `warning`.
    pub kind: String,
    /// In words.
    pub text: String,
}

/// What the figures are worth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictLine {
    /// `pass`, `warn`, `fail`, `not-run`, `inconclusive`.
    pub status: String,
    /// One line for each reason.
    pub reasons: Vec<String>,
}

/// What the logs say of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiagnosisLine {
    /// `cause-found`, `not-determinable`, `nothing-found`.
    pub outcome: String,
    /// Cause ids, the first failure's first.
    pub causes: Vec<String>,
    /// The first failure: where, and the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<String>,
}

/// What came of a run (`expertrail.outcome/1`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of Expertrail that launched it.
    pub tool: String,
    /// Run id.
    pub run: String,
    /// Name in the description.
    pub name: String,
    /// Target.
    pub target: String,
    /// Engine.
    pub engine: String,
    /// Nodes.
    pub nodes: u32,
    /// Ranks of each.
    pub ranks_per_node: u32,
    /// When it was started, UTC.
    pub started: String,
    /// When everything was collected and removed, UTC.
    pub ended: String,
    /// How it ended.
    pub ending: End,
    /// Exit code of `launch`.
    pub exit_code: u8,
    /// Whether everything was removed; none where `--keep` left it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleaned: Option<bool>,
    /// The figures; none where they were not judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictLine>,
    /// The logs; none where they were not diagnosed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<DiagnosisLine>,
    /// Hosts that it ran on, as the system names them.
    pub hosts: Vec<String>,
    /// Every node of the run.
    pub per_node: Vec<Node>,
    /// Every rank that left a record.
    pub ranks: Vec<RankEnd>,
    /// Versions that the logs name.
    pub versions: BTreeMap<String, String>,
    /// What should be here and is not.
    pub missing: Vec<Missing>,
    /// What happened, in order.
    pub events: Vec<Moment>,
    /// All other files of the bundle.
    pub files: Vec<Kept>,
}

/// Hosts of the pods of a run by its objects as Kubernetes described them at the end, node 0's first: known also where no pod came so far as
/// to say it itself. A node whose pod was placed nowhere has none.
pub fn placed(bundle: &Bundle) -> BTreeMap<u32, String> {
    /// Labels that tell which node of the run a pod is: of indexed Jobs, and of workers of an `MPIJob`.
    const INDEX: [&str; 2] =
        ["batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index"];
    let objects = document(bundle, "state/objects.json");
    let items = objects.as_ref().and_then(|objects| objects.get("items")?.as_array());
    let mut hosts = BTreeMap::new();
    // A later attempt of the same node takes the place of an earlier one.
    for pod in items.into_iter().flatten().filter(|item| text(item, "kind") == "Pod") {
        let host = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        let labels = pod.pointer("/metadata/labels");
        let index = labels.and_then(|labels| INDEX.iter().find_map(|name| labels.get(name)?.as_str()));
        if let Some(index) = index.and_then(|index| index.parse::<u32>().ok())
            && labels.is_none_or(|labels| text(labels, "training.kubeflow.org/job-role") != "launcher")
            && !host.is_empty()
        {
            hosts.insert(index, host.to_owned());
        }
    }
    hosts
}

impl Outcome {
    /// What the bundle itself shows of `run`; the rest is filled in by the launch.
    pub fn of(run: &Run, bundle: &Bundle, analysis: &Analysis) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            tool: env!("CARGO_PKG_VERSION").to_owned(),
            run: run.id.clone(),
            name: run.name.clone(),
            target: run.target.name().to_owned(),
            engine: run.engine.name().to_owned(),
            nodes: run.nodes,
            ranks_per_node: run.gpus_per_node,
            verdict: analysis.verdict_line(),
            diagnosis: analysis.diagnosis_line(),
            per_node: nodes(run, bundle),
            ranks: ranks(bundle),
            versions: analysis.versions(),
            missing: bundle.missing_parts().to_vec(),
            files: bundle.files().cloned().collect(),
            ..Self::default()
        }
    }
}

/// Every node, with the host of its pod where it left neither facts nor findings.
fn nodes(run: &Run, bundle: &Bundle) -> Vec<Node> {
    let placed = placed(bundle);
    let mut nodes: Vec<Node> = (0..run.nodes).map(|node| Node::of(bundle, node)).collect();
    for node in &mut nodes {
        node.host = node.host.take().or_else(|| placed.get(&node.node).cloned());
    }
    nodes
}

impl Node {
    fn of(bundle: &Bundle, node: u32) -> Self {
        let facts = document(bundle, &format!("facts/node-{node}.json"));
        let findings = document(bundle, &format!("findings/node-{node}.json"));
        let host = [&facts, &findings].into_iter().flatten().find_map(host);
        let list = findings.as_ref().and_then(|found| found.get("findings")?.as_array());
        let checks = list.map(|list| {
            let mut counts = BTreeMap::new();
            for finding in list {
                *counts.entry(text(finding, "status")).or_insert(0) += 1;
            }
            counts
        });
        let bad = |finding: &&Value| {
            let status = finding.get("status").and_then(|status| Status::deserialize(status).ok());
            matches!(status, Some(Status::Fail | Status::Warn))
        };
        let noted = |finding: &Value| Noted {
            id: text(finding, "id"),
            status: text(finding, "status"),
            title: text(finding, "title"),
            observed: text(finding, "observed"),
        };
        let findings = list.map(|list| list.iter().filter(bad).map(noted).collect());
        Self { node, host, facts: facts.is_some(), checks, findings: findings.unwrap_or_default() }
    }
}

fn document(bundle: &Bundle, name: &str) -> Option<Value> {
    serde_json::from_slice(&bundle.read(name)?).ok()
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The node's name: a fact in facts, a text in findings.
fn host(document: &Value) -> Option<String> {
    let name = document.get("node")?;
    let name = name.as_str().or_else(|| name.get("value")?.as_str());
    name.filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Records of ranks, in order. Node 0's copy and node 1's are different files, so every rank is here once.
pub fn ranks(bundle: &Bundle) -> Vec<RankEnd> {
    let records = bundle.files().filter(|file| file.path.starts_with("exit/"));
    let mut ranks: Vec<RankEnd> =
        records.filter_map(|file| serde_json::from_slice(&bundle.read(&file.path)?).ok()).collect();
    ranks.sort_by_key(|rank| rank.rank);
    ranks
}

impl RankEnd {
    /// Whether it was killed by the signal of that name and number, as the system or a shell around the rank says it.
    fn killed_by(&self, name: &str, number: i64) -> bool {
        self.code == Some(128 + number) || self.code.is_none() && self.signal_name.as_deref() == Some(name)
    }
}

/// Whether the system says that a rank of the run was killed for memory. Slurm's words; they stand in its own log and in its accounting.
fn out_of_memory(run: &Run, bundle: &Bundle) -> bool {
    const WORDS: [&str; 3] = ["oom_kill", "oom-kill", "OUT_OF_MEMORY"];
    let (log, end) = (format!("logs/{}", run.id), ["state/sacct.txt", "state/scontrol-job.txt"]);
    let from = |file: &&Kept| file.path.starts_with(&log) || end.contains(&file.path.as_str());
    let says = |file: &Kept| {
        let text = bundle.read(&file.path).unwrap_or_default();
        WORDS.iter().any(|word| text.windows(word.len()).any(|part| part == word.as_bytes()))
    };
    bundle.files().filter(from).any(says)
}

/// The first rank of `run` that failed by itself. On Slurm the end of one task ends its step: the other ranks get SIGTERM and SIGKILL from
/// outside, with nobody's word for it, and their clocks, which begin with each rank, may say that they were first.
pub fn first_of(run: &Run, bundle: &Bundle) -> Option<(String, Option<i32>)> {
    let ranks = ranks(bundle);
    if run.target != Target::Slurm {
        return first_failure(&ranks);
    }
    let terminated = |rank: &RankEnd| rank.killed_by("SIGTERM", 15);
    let killed = |rank: &RankEnd| rank.killed_by("SIGKILL", 9);
    let by_itself = |rank: &RankEnd| rank.code != Some(0) && !rank.stopped && !terminated(rank);
    // Of ranks that were killed one may be the first, for memory; where others ended by themselves only Slurm's word decides for it.
    let others = ranks.iter().any(|rank| by_itself(rank) && !killed(rank));
    let step = others && !out_of_memory(run, bundle);
    let own: Vec<RankEnd> =
        ranks.into_iter().filter(|rank| by_itself(rank) && !(step && killed(rank))).collect();
    first_failure(&own)
}

/// The first rank that failed by itself, in words: `rank 9 on gpu-2 ended with exit code 1 after 204.5 s`; with its code.
fn first_failure(ranks: &[RankEnd]) -> Option<(String, Option<i32>)> {
    let failed = |rank: &&RankEnd| rank.code != Some(0) && !rank.stopped;
    let first = ranks.iter().filter(failed).min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let how = match (first.code, &first.signal_name) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by {signal}"),
        (None, None) => "was killed by a signal".to_owned(),
    };
    let host = if first.host.is_empty() { String::new() } else { format!(" on {}", first.host) };
    let code = first.code.and_then(|code| i32::try_from(code).ok());
    Some((format!("rank {}{host} {how} after {:.1} s", first.rank, first.seconds), code))
}
