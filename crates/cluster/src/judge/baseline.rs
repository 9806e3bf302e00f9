//! Figures against those of other runs: run to run, and now against before.

use std::collections::BTreeSet;

use super::causes::{GONE, SLOWER, VARY};
use super::evidence::{At, finding};
use super::peers::median;
use super::weigh::{FAIL_SHARE, Known, Metric, PASS_SHARE};
use super::{Report, references};
use crate::finding::{Finding, Status};

/// What figures must agree in to be compared: name, node, SMs.
type Key = (String, Option<u32>, Option<u64>);

fn key(metric: &Metric) -> Key {
    (metric.name.clone(), metric.node, metric.sms)
}

/// Spread of the same figure over runs of the same kind, settings and GPU.
pub(super) fn between_runs(known: &[Known<'_>], metrics: &[Metric]) -> Vec<Finding> {
    let same = |a: usize, b: usize| match (known.get(a), known.get(b)) {
        (Some(a), Some(b)) => {
            let steps = |known: &Known<'_>| {
                known.run.training.as_ref().map(|training| (training.steps, training.warmup))
            };
            a.run.kind == b.run.kind
                && steps(a) == steps(b)
                && a.gpu == b.gpu
                && a.run.settings.tokens == b.run.settings.tokens
                && a.run.settings.hidden == b.run.settings.hidden
                && a.run.settings.node_count() == b.run.settings.node_count()
                && a.run.settings.rank_count() == b.run.settings.rank_count()
        }
        _ => false,
    };
    let allowed = references().variation;
    let mut all = Vec::new();
    let mut done: Vec<(usize, Key)> = Vec::new();
    for metric in metrics {
        if done.iter().any(|(run, of)| *of == key(metric) && same(*run, metric.run)) {
            continue;
        }
        done.push((metric.run, key(metric)));
        let group: Vec<&Metric> =
            metrics.iter().filter(|other| key(other) == key(metric) && same(other.run, metric.run)).collect();
        let runs: BTreeSet<usize> = group.iter().map(|metric| metric.run).collect();
        if runs.len() < 2 {
            continue;
        }
        let mut values: Vec<f64> = group.iter().map(|metric| metric.value).collect();
        let Some(middle) = median(&mut values).filter(|middle| *middle > 0.0) else { continue };
        let (Some(least), Some(most)) = (values.first(), values.last()) else { continue };
        let spread = (most - least) / middle;
        if spread > allowed {
            let mut vary = finding("J009").about(metric.name.clone()).outcome(Status::Warn, &VARY).saw(
                format!(
                    "{least:.1} to {most:.1} {} in {} runs: {:.0} % apart",
                    metric.unit,
                    runs.len(),
                    spread * 100.0
                ),
                format!("{:.0} % or less", allowed * 100.0),
            );
            for metric in group.iter().take(8) {
                vary = vary.line(&metric.place);
            }
            all.push(vary);
        }
    }
    all
}

/// What is slower than in an older verdict, or is missing.
pub(super) fn regressions(old: &Report, known: &[Known<'_>], metrics: &[Metric]) -> Vec<Finding> {
    let mut all = Vec::new();
    let usable = |metric: &&Metric| metric.value.is_finite() && metric.value > 0.0;
    let common =
        old.metrics.iter().filter(usable).any(|before| metrics.iter().any(|now| key(now) == key(before)));
    if !common {
        let seen = if old.metrics.iter().any(|metric| usable(&metric)) {
            "no figure of the baseline is in this run: nothing was compared"
        } else {
            "the baseline has no figure that can be used: nothing was compared"
        };
        all.push(
            finding("J010")
                .about("baseline")
                .outcome(Status::Unknown, &GONE)
                .saw(seen, "a verdict (judge --json), or results of the same benchmark"),
        );
        return all;
    }
    let before: BTreeSet<&str> =
        old.runs.iter().map(|run| run.gpu.as_str()).filter(|gpu| !gpu.is_empty()).collect();
    let now: BTreeSet<&str> =
        known.iter().map(|run| run.gpu.as_str()).filter(|gpu| !gpu.is_empty()).collect();
    if !before.is_empty() && !now.is_empty() && before.is_disjoint(&now) {
        let names = |all: &BTreeSet<&str>| all.iter().copied().collect::<Vec<_>>().join(", ");
        all.push(finding("J010").about("baseline").outcome(Status::Warn, &GONE).saw(
            format!("the baseline is of {}, this run of {}", names(&before), names(&now)),
            "a baseline of the same GPU",
        ));
    }
    let mut seen: Vec<Key> = Vec::new();
    for before in &old.metrics {
        if seen.contains(&key(before)) || !usable(&before) {
            continue;
        }
        seen.push(key(before));
        let of_old: Vec<&Metric> = old.metrics.iter().filter(|metric| key(metric) == key(before)).collect();
        let of_new: Vec<&Metric> = metrics.iter().filter(|metric| key(metric) == key(before)).collect();
        let mid = |all: &[&Metric]| median(&mut all.iter().map(|metric| metric.value).collect::<Vec<_>>());
        let (Some(was), Some(now), Some(first)) = (mid(&of_old), mid(&of_new), of_new.first()) else {
            all.push(
                finding("J010")
                    .about(before.name.clone())
                    .outcome(Status::Unknown, &GONE)
                    .saw(
                        format!("{:.1} {} in the baseline, nothing now", before.value, before.unit),
                        "the same figures",
                    )
                    .line(&before.place),
            );
            continue;
        };
        // Of a time less is better.
        let share = if before.unit == "s" { was / now } else { now / was };
        if share < PASS_SHARE {
            let status = if share < FAIL_SHARE { Status::Fail } else { Status::Warn };
            all.push(
                finding("J010")
                    .about(before.name.clone())
                    .outcome(status, &SLOWER)
                    .saw(
                        format!("{now:.1} {}, {was:.1} in the baseline: {:.0} %", before.unit, share * 100.0),
                        "90 % of the baseline or more",
                    )
                    .line(&first.place)
                    .line(&before.place),
            );
        }
    }
    all
}
