//! What the numbers of a run mean.
//!
//! [`read`] takes the output of benchmarks and training runs apart, whatever launcher its lines came through; [`judge()`] holds
//! every figure against a reference of the same GPU, engine, build and settings if there is one, else against the roofline
//! and the share of it that the engine is known to reach, and says what the pattern of the figures means.
//!
//! What was not run is never a pass: a part that raised an error which its script swallowed, a rank or node without figures, a
//! heading with nothing below it.

mod accept;
mod accounts;
mod baseline;
mod causes;
mod ceiling;
mod checks;
mod coverage;
mod data;
mod evidence;
mod files;
mod lines;
mod merge;
mod model;
mod options;
mod pattern;
mod peers;
mod present;
mod read;
mod refs;
mod report;
mod text;
mod weigh;

pub use accept::Accept;
pub use causes::{CAUSES, CHECKS};
pub use ceiling::Ceiling;
pub use files::{InputError, read_baseline, read_paths};
pub use model::{
    Cases, Counts, Exit, Figure, Kind, LogFile, Mark, NicChoice, Place, Run, Said, Section, Settings,
    Speakers, Tests, Training,
};
pub use read::read;
pub use refs::{GpuMachine, Prior, REFERENCES_SCHEMA, Reference, References, references};
pub use report::{JSON_SCHEMA, Outcome, Report, RunSummary, SCHEMA, Verdict};
pub use weigh::{ABOVE_SHARE, Basis, FAIL_SHARE, FAR_SHARE, Metric, PASS_SHARE, Spread, Used};

use crate::finding::{Finding, Status};
use weigh::Known;

/// What the output does not say, and what is asked beyond a verdict of its figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// GPU, where the output names none: `h200`.
    pub gpu: Option<String>,
    /// GB/s of a GPU's NICs, one way; none: those of usual machines with the GPU.
    pub nic_gb_s: Option<f64>,
    /// GB/s of a GPU's `NVLink`, one way; none: its data sheet's.
    pub scale_up_gb_s: Option<f64>,
    /// Engine whose references and priors apply (`uccl`), where it is not the one that the output looks like.
    pub engine: Option<String>,
    /// Nodes, where the output does not say.
    pub nodes: Option<u64>,
    /// Ranks of a node, where the output does not say.
    pub ranks_per_node: Option<u64>,
    /// Tokens of a rank, where the output does not say.
    pub tokens: Option<u64>,
    /// Elements of a row, where the output does not say.
    pub hidden: Option<u64>,
    /// Experts of a token, where the output does not say.
    pub top_k: Option<u64>,
    /// Experts, where the output does not say.
    pub experts: Option<u64>,
    /// `ibgda` or `efa`, where the output does not say.
    pub transport: Option<String>,
    /// Further references, before those of the program.
    pub references: Vec<Reference>,
    /// An older verdict; what got slower since is a finding.
    pub baseline: Option<Report>,
    /// The criteria that a training run must meet.
    pub accept: Option<Accept>,
    /// Warnings make the exit code 5.
    pub strict: bool,
}

/// Judges runs, or parts of runs as [`read`] gives them for several files.
pub fn judge(parts: &[Run], options: &Options) -> Report {
    let runs = merge::join(parts, options.nodes);
    let known: Vec<Known<'_>> =
        runs.iter().enumerate().map(|(index, run)| Known::new(run, index, options)).collect();
    let mut metrics: Vec<Metric> = Vec::new();
    let mut findings: Vec<Finding> = Vec::new();
    for known in &known {
        let own = weigh::metrics(known);
        findings.extend(checks::figures(known, &own));
        findings.extend(checks::run(known));
        findings.extend(peers::symmetry(&own));
        findings.extend(pattern::findings(known, &own));
        metrics.extend(own);
    }
    findings.extend(baseline::between_runs(&known, &metrics));
    if let Some(old) = &options.baseline {
        findings.extend(baseline::regressions(old, &known, &metrics));
    }
    findings.extend(accept::findings(&known, options.accept.as_ref()));
    report::made(&known, metrics, findings, options.strict)
}

/// Findings that name a cause; the others say that something is low, missing or not confirmed.
const PATTERNS: [&str; 4] = ["J008", "J012", "J013", "J014"];

/// Causes that patterns of figures name, worst first: cause id, what was seen, and where (`file:line`).
pub fn patterns(report: &Report) -> Vec<(String, String, String)> {
    report
        .findings
        .iter()
        .filter(|finding| PATTERNS.contains(&finding.id.as_str()))
        .filter(|finding| matches!(finding.status, Status::Fail | Status::Warn))
        .filter_map(|finding| {
            let place = finding.evidence.first().map(|evidence| evidence.source.clone()).unwrap_or_default();
            Some((finding.cause.clone()?, finding.observed.clone(), place))
        })
        .collect()
}
