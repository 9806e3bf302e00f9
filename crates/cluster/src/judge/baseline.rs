//! Figures against those of other runs: run to run, and now against before.

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
        let runs: std::collections::BTreeSet<usize> = group.iter().map(|metric| metric.run).collect();
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
pub(super) fn regressions(old: &Report, metrics: &[Metric]) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut seen: Vec<Key> = Vec::new();
    for before in &old.metrics {
        if seen.contains(&key(before)) || before.value <= 0.0 {
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
