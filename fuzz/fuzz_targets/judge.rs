//! Any bytes are read as results and judged: no panic, figures are finite and above zero, what the verdict is stands in the exit code.
#![no_main]

use expertrail_cluster::judge::{Options, judge, patterns, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let runs = read("log", data);
    let report = judge(&runs, &Options::default());
    assert!(matches!(report.exit_code(), 0 | 1 | 3), "{}", report.exit_code());
    // Nothing of a log reaches a terminal raw.
    assert!(!report.text().chars().any(|c| c.is_control() && c != '\n'));
    assert!(serde_json::to_string(&report).is_ok());
    let _ = patterns(&report);
    // A run without a figure and without a training run's end is no pass.
    if report.metrics.is_empty() && report.exit_code() == 0 {
        assert!(runs.iter().any(|run| run.training.is_some()), "{}", report.text());
    }
});
