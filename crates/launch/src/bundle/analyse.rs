//! What the logs and figures of a run mean: `judge` and `diagnose` over a bundle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use expertrail_cluster::collect;
use expertrail_cluster::diagnose::{self, Diagnosis, Evidence, Input};
use expertrail_cluster::facts::Facts;
use expertrail_cluster::judge::{self, Kind, Options, Report};
use serde_json::Value;

use super::Bundle;
use super::outcome::{DiagnosisLine, End, VerdictLine};
use crate::drive::{Collect, DriveError};
use crate::platform::Fabric;
use crate::run::{Run, Step, Target};
use crate::spec::Engine;

/// What was concluded.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// The figures.
    pub verdict: Option<Report>,
    /// The logs.
    pub diagnosis: Option<Diagnosis>,
    /// Results that steps should have left and that are not here, as `step: file`.
    pub absent: Vec<String>,
    /// What could not be analysed, and why.
    pub notes: Vec<String>,
    /// What result documents say of how they were made.
    pub measured: Vec<Measured>,
}

/// How a result was made, by its own document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The document, in the bundle.
    pub file: String,
    /// Preset of its sizes; empty: none.
    pub preset: String,
    /// Backend; empty: not said.
    pub backend: String,
    /// Machine of rank 0; empty: not said.
    pub machine: String,
}

impl Analysis {
    /// Looks at everything in `bundle`, for how the run ended, and writes `verdict.json`, `diagnosis.json` and their texts into it.
    ///
    /// # Errors
    /// When a document cannot be written.
    pub fn of(run: &Run, bundle: &mut Bundle, end: &End) -> Result<Self, DriveError> {
        let mut analysis = Self::default();
        // Somebody stopped it: nothing went wrong, and nothing was measured.
        if end.kind == "interrupted" {
            return Ok(analysis);
        }
        let succeeded = end.kind == "succeeded";
        let started = end.kind != "never-started" && end.kind != "refused";
        if started {
            analysis.absent = absent(run, bundle);
            for result in &analysis.absent {
                bundle.missing(
                    result,
                    if succeeded { "no rank left it, though all ended with 0" } else { "the run failed" },
                );
            }
            analysis.measured = measured(bundle);
            analysis.judge(run, bundle, succeeded);
        }
        let fails = analysis.verdict.as_ref().is_some_and(|report| report.exit_code() == 1);
        if !succeeded || fails {
            analysis.diagnose(run, bundle);
        }
        analysis.write(bundle)?;
        Ok(analysis)
    }

    fn judge(&mut self, run: &Run, bundle: &Bundle, succeeded: bool) {
        let paths = figures(bundle, self.absent.is_empty());
        if paths.is_empty() {
            self.notes.push("nothing to judge: there is neither a result nor a log".to_owned());
            return;
        }
        match judge::read_paths(&paths) {
            Ok(runs) => {
                let known = runs.iter().any(|run| !matches!(run.kind, Kind::Unknown | Kind::Fragment));
                if !known && (run.engine == Engine::Command || !succeeded) {
                    self.notes.push("the output holds no figures that `judge` knows".to_owned());
                    return;
                }
                self.verdict = Some(judge::judge(&runs, &options(run)));
            }
            Err(error) => self.notes.push(format!("the figures could not be read: {error}")),
        }
    }

    fn diagnose(&mut self, run: &Run, bundle: &Bundle) {
        let inputs: Vec<Input> = ["logs", "state"]
            .map(|name| bundle.folder().join(name))
            .into_iter()
            .filter(|path| path.is_dir())
            .map(Input::Path)
            .collect();
        if inputs.is_empty() {
            self.notes.push("nothing to diagnose: there is no log".to_owned());
            return;
        }
        let evidence = Evidence { stack: None, facts: worst_facts(bundle) };
        match diagnose::read(inputs, evidence) {
            Ok(case) => self.diagnosis = Some(possible(diagnose::conclude(&case), run.target)),
            Err(error) => self.notes.push(format!("the logs could not be read: {error}")),
        }
    }

    fn write(&self, bundle: &mut Bundle) -> Result<(), DriveError> {
        let failed =
            |error: serde_json::Error| DriveError::System(format!("a document cannot be written: {error}"));
        if let Some(report) = &self.verdict {
            let text = serde_json::to_string_pretty(report).map_err(failed)?;
            bundle.document("verdict.json", &(text + "\n"))?;
            bundle.document("verdict.txt", &report.text())?;
        }
        if let Some(diagnosis) = &self.diagnosis {
            let text = serde_json::to_string_pretty(diagnosis).map_err(failed)?;
            bundle.document("diagnosis.json", &(text + "\n"))?;
            bundle.document("diagnosis.txt", &told(diagnosis))?;
        }
        Ok(())
    }

    /// The exit code of a run whose ranks all ended with 0.
    pub fn exit_code(&self) -> u8 {
        match self.verdict.as_ref().map(Report::exit_code) {
            // A result that is not here was not measured, whatever a log says beside it.
            None | Some(0) if !self.absent.is_empty() => 3,
            Some(code) => code,
            // Engine `command`: its own exit codes are all there is to judge.
            None if self.notes.iter().any(|note| note.contains("could not be read")) => 3,
            None => 0,
        }
    }

    /// The verdict, in short.
    pub fn verdict_line(&self) -> Option<VerdictLine> {
        let verdict = &self.verdict.as_ref()?.verdict;
        Some(VerdictLine { status: word(&verdict.status), reasons: verdict.reasons.clone() })
    }

    /// The diagnosis, in short.
    pub fn diagnosis_line(&self) -> Option<DiagnosisLine> {
        let diagnosis = self.diagnosis.as_ref()?;
        let mut causes: Vec<String> = Vec::new();
        for finding in &diagnosis.findings {
            if !causes.contains(&finding.cause) {
                causes.push(finding.cause.clone());
            }
        }
        let first = diagnosis.first_failure.as_ref();
        let first = first.map(|line| format!("{}:{}: {}", base(&line.file), line.line, line.text));
        Some(DiagnosisLine { outcome: word(&diagnosis.outcome), causes, first_failure: first })
    }

    /// Versions that logs and results name.
    pub fn versions(&self) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        for run in self.verdict.iter().flat_map(|report| &report.runs) {
            versions.extend(run.versions.clone());
        }
        for (key, known) in self.diagnosis.iter().flat_map(|diagnosis| &diagnosis.versions) {
            versions.insert(key.clone(), known.value.clone());
        }
        versions
    }
}

/// A diagnosis without causes that only Kubernetes has, where the run is not on Kubernetes: a name that `ssh` cannot resolve reads the same
/// in both.
fn possible(mut diagnosis: Diagnosis, target: Target) -> Diagnosis {
    const OF_KUBERNETES: [&str; 3] = ["k8s-", "kube-", "mpijob-"];
    if matches!(target, Target::K8sJob | Target::Mpijob) {
        return diagnosis;
    }
    let stays = |cause: &str| !OF_KUBERNETES.iter().any(|start| cause.starts_with(start));
    for list in [&mut diagnosis.findings, &mut diagnosis.hypotheses, &mut diagnosis.cautions] {
        list.retain(|one| stays(&one.cause));
    }
    if diagnosis.findings.is_empty() && diagnosis.outcome == diagnose::Outcome::CauseFound {
        diagnosis.outcome = diagnose::Outcome::NotDeterminable;
    }
    diagnosis
}

/// The diagnosis as text. It is made of runs that did not pass, so that logs in which nothing is wrong are no good news.
pub fn told(diagnosis: &Diagnosis) -> String {
    let text = diagnose::text(diagnosis);
    if diagnosis.outcome != diagnose::Outcome::NothingFound {
        return text;
    }
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    let look: Vec<&str> = diagnosis.cautions.iter().map(|one| one.cause.as_str()).collect();
    let look = if look.is_empty() { String::new() } else { format!("; but look at: {}", look.join(", ")) };
    format!("THE LOGS NAME NO CAUSE{look}\n{rest}")
}

/// The word of a unit variant, as documents write it.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

fn measured(bundle: &Bundle) -> Vec<Measured> {
    let results = bundle.files().filter(|file| file.path.starts_with("result/"));
    let read = |path: &String| -> Option<Measured> {
        let document: Value = serde_json::from_slice(&bundle.read(path)?).ok()?;
        let at =
            |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let cores = document.pointer("/machine/cores").and_then(Value::as_u64);
        let machine = match (at("/machine/cpu"), cores) {
            (cpu, Some(cores)) if !cpu.is_empty() => format!("{cpu}, {cores} cores"),
            (cpu, _) => cpu,
        };
        let known = Measured {
            file: path.clone(),
            preset: at("/settings/preset"),
            backend: at("/backend/name"),
            machine,
        };
        (!known.preset.is_empty() || !known.backend.is_empty()).then_some(known)
    };
    results.filter_map(|file| read(&file.path)).collect()
}

/// Results where every step left its own, else also the logs: what a step wrote before it failed counts as well.
fn figures(bundle: &Bundle, whole: bool) -> Vec<PathBuf> {
    let there = |name: &str| bundle.files().any(|file| file.path.starts_with(name));
    let mut paths = Vec::new();
    if there("result/") {
        paths.push(bundle.folder().join("result"));
    }
    if there("logs/") && (!whole || paths.is_empty()) {
        paths.push(bundle.folder().join("logs"));
    }
    paths
}

/// Files that steps should have left and that no node has.
fn absent(run: &Run, bundle: &Bundle) -> Vec<String> {
    // What a program of the user's leaves is its own matter; the worker names what it did not find.
    if run.engine == Engine::Command {
        return Vec::new();
    }
    let wanted = |step: &Step| -> Vec<String> {
        step.collect.iter().map(|file| format!("{}: {}", step.name, base(file))).collect()
    };
    let kept: Vec<&str> = bundle.files().map(|file| base(&file.path)).collect();
    run.steps
        .iter()
        .flat_map(wanted)
        .filter(|wanted| {
            let name = wanted.rsplit(": ").next().unwrap_or(wanted);
            !kept.iter().any(|kept| matches(kept, name))
        })
        .collect()
}

/// Whether `kept` (`node-0-result.json`, `result.json`) is the file `name`, in which `{...}` stands for anything.
fn matches(kept: &str, name: &str) -> bool {
    let mut kept = kept;
    let of_node = kept.strip_prefix("node-").and_then(|rest| rest.split_once('-'));
    if let Some((number, rest)) = of_node
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        kept = rest;
    }
    match (name.split_once('{'), name.rsplit_once('}')) {
        (Some((start, _)), Some((_, end))) => {
            kept.len() >= start.len() + end.len() && kept.starts_with(start) && kept.ends_with(end)
        }
        _ => kept == name,
    }
}

/// What the run decided and its output may not say.
fn options(run: &Run) -> Options {
    let known = |gpu: &String| judge::references().machine(gpu).is_some();
    Options {
        gpu: run.platform.gpu.clone().filter(known),
        nic_gb_s: Some(run.profile.nic_gbytes_per_gpu)
            .filter(|rate| *rate > 0.0 && run.fabric != Fabric::Unknown),
        scale_up_gb_s: run.profile.nvlink_gbytes,
        nodes: Some(u64::from(run.nodes)),
        ranks_per_node: Some(u64::from(run.gpus_per_node)),
        transport: match run.fabric {
            Fabric::Infiniband => Some("ibgda".to_owned()),
            Fabric::Efa => Some("efa".to_owned()),
            Fabric::Unknown => None,
        },
        ..Options::default()
    }
}

/// Facts of the node with the most failed checks: `diagnose` takes one node's.
fn worst_facts(bundle: &Bundle) -> Option<Facts> {
    let fails = |name: &str| -> usize {
        let findings = bundle.read(&name.replacen("facts/", "findings/", 1));
        let findings = findings.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let list = findings.as_ref().and_then(|found| found.get("findings")?.as_array());
        list.map_or(0, |list| {
            list.iter().filter(|one| one.get("status") == Some(&Value::from("fail"))).count()
        })
    };
    let names = bundle.files().map(|file| file.path.as_str()).filter(|name| name.starts_with("facts/"));
    // The first of the worst: `max_by_key` would give the last.
    let mut worst: Option<(usize, &str)> = None;
    for name in names {
        let count = fails(name);
        if worst.is_none_or(|(most, _)| count > most) {
            worst = Some((count, name));
        }
    }
    collect::load(&bundle.folder().join(worst?.1)).ok()
}

#[cfg(test)]
mod tests {
    use expertrail_cluster::diagnose::{Diagnosed, Outcome};

    use super::*;

    fn of(outcome: Outcome, causes: &[&str]) -> Diagnosis {
        let one = |cause: &&str| Diagnosed { cause: (*cause).to_owned(), ..Diagnosed::default() };
        Diagnosis { outcome, findings: causes.iter().map(one).collect(), ..Diagnosis::default() }
    }

    #[test]
    fn causes_of_kubernetes_are_kept_for_kubernetes_alone() {
        let left = |target, causes: &[&str]| {
            let found = possible(of(Outcome::CauseFound, causes), target);
            (found.outcome, found.findings.into_iter().map(|one| one.cause).collect::<Vec<_>>())
        };
        assert_eq!(left(Target::Ssh, &["k8s-dns-policy"]), (Outcome::NotDeterminable, Vec::new()));
        assert_eq!(
            left(Target::Slurm, &["k8s-dns-policy", "xid"]),
            (Outcome::CauseFound, vec!["xid".to_owned()])
        );
        assert_eq!(left(Target::Mpijob, &["k8s-dns-policy"]).1, ["k8s-dns-policy"]);
    }

    #[test]
    fn nothing_found_is_no_good_news_of_a_run_that_did_not_pass() {
        let text = told(&of(Outcome::NothingFound, &[]));
        assert!(text.starts_with("THE LOGS NAME NO CAUSE\n") && !text.contains("NOTHING WRONG"), "{text}");
        let mut careful = of(Outcome::NothingFound, &[]);
        careful.cautions = of(Outcome::NothingFound, &["shm-small"]).findings;
        assert!(told(&careful).starts_with("THE LOGS NAME NO CAUSE; but look at: shm-small\n"));
    }

    #[test]
    fn results_are_known_by_their_names() {
        assert!(matches("node-0-result-intranode.json", "result-intranode.json"));
        assert!(matches("node-12-loss-3.json", "loss-{rank}.json"));
        assert!(!matches("node-0-result-internode.json", "result-intranode.json"));
        assert!(!matches("node-a-result.json", "result.json"));
    }
}
