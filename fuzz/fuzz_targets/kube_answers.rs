//! Any answers of kubectl are judged: no panic, text and typed commands without control characters, a document that reads back as
//! it was written, and no credentials of the kubeconfig.
//!
//! The input is a list of answers, each after a line `@KEY`: what kubectl prints for the call of that key. A key with `!` behind it
//! fails, with the answer as its error. Calls without an answer fail, too.
#![no_main]

use std::collections::HashMap;
use std::time::Duration;

use expertrail_cluster::causes;
use expertrail_cluster::check::Target;
use expertrail_cluster::finding::Status;
use expertrail_cluster::kube::{self, Kubectl, KubectlError, Options, Output, ProbeHost, Report};
use libfuzzer_sys::fuzz_target;

/// Answers by the key of a call, and whether the call fails.
struct Script<'a>(HashMap<&'a [u8], (bool, &'a [u8])>);

/// The key of a call: what it is about.
fn key<'a>(args: &[&'a str]) -> &'a str {
    let words: Vec<&str> = args.iter().filter(|arg| !arg.starts_with("--")).copied().collect();
    match words.as_slice() {
        ["exec", .., "topo", "-m"] => "topo",
        ["exec", ..] => "inside",
        ["get", "pods", "-o", _] => "usage",
        ["get", "pods", "-n", _, "-l", label, ..] if label.starts_with("app=") => "older",
        ["get", "pods", "-n", _, "-l", ..] => "pods",
        ["get", "pods", ..] => "debuggers",
        ["get", kind, ..] => kind,
        ["config", what, ..] => what,
        [verb, ..] => verb,
        [] => "",
    }
}

impl Kubectl for Script<'_> {
    fn run(&self, args: &[&str], _: Duration) -> Result<Output, KubectlError> {
        let (fails, text) = self.0.get(key(args).as_bytes()).copied().unwrap_or((true, b"error: no answer"));
        Ok(if fails {
            Output { code: Some(1), stdout: Vec::new(), stderr: text.to_vec() }
        } else {
            Output { code: Some(0), stdout: text.to_vec(), stderr: Vec::new() }
        })
    }
}

impl<'a> Script<'a> {
    fn read(data: &'a [u8]) -> Self {
        let mut answers: HashMap<&[u8], (bool, &[u8])> = HashMap::new();
        let mut open: Option<(&[u8], usize)> = None;
        let mut at = 0;
        let mut keep = |open: Option<(&'a [u8], usize)>, end: usize| {
            if let Some((name, start)) = open {
                let (name, fails) = name.strip_suffix(b"!").map_or((name, false), |name| (name, true));
                answers.insert(name, (fails, &data[start..end]));
            }
        };
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            // Two of them mark the parts of an answer to `exec`.
            if let Some(name) = line.strip_prefix(b"@").filter(|rest| !rest.starts_with(b"@")) {
                keep(open, at);
                open = Some((name.strip_suffix(b"\n").unwrap_or(name), at + line.len()));
            }
            at += line.len();
        }
        keep(open, data.len());
        Self(answers)
    }
}

/// Nothing of a cluster may steer a terminal.
fn plain(text: &str) {
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

/// What is typed into a shell: quotations are closed, and nothing outside of them is expanded.
fn typed(step: &str) {
    let mut chars = step.chars();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        match c {
            '\'' => assert!(chars.by_ref().any(|c| c == '\''), "open quotation: {step}"),
            '\\' => drop(chars.next()),
            '#' if before == ' ' => return,
            _ => assert!(!"$`".contains(c), "{c} outside of quotes: {step}"),
        }
        before = c;
    }
}

fuzz_target!(|data: &[u8]| {
    let script = Script::read(data);
    for target in [Target::DeepepIbgda, Target::DeepepEfa, Target::Nccl] {
        let options = Options {
            target,
            // One thread: what a run covers must not depend on the scheduler.
            threads: 1,
            now: Some(1_772_323_200),
            // A debug pod that never ends is waited for.
            probe_host: ProbeHost::No,
            ..Options::default()
        };
        match kube::check(&options, &script) {
            Ok(report) => judged(&report),
            Err(error) => plain(&error.to_string()),
        }
    }
});

fn judged(report: &Report) {
    for finding in report.findings() {
        if let Some(cause) = &finding.cause {
            assert!(causes::get(cause).is_some(), "{cause} is in no registry");
        }
        assert!(finding.status != Status::Fail || !finding.observed.is_empty(), "{finding:?}");
        for step in finding.remedies.iter().flat_map(|remedy| &remedy.steps) {
            plain(step);
            if step.starts_with("kubectl") || step.starts_with("printf") {
                typed(step);
            }
        }
    }
    plain(&report.text(true));
    plain(&report.text(false));
    let json = serde_json::to_vec(report).unwrap();
    assert_eq!(&serde_json::from_slice::<Report>(&json).unwrap(), report);
}
