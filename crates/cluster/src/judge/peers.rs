//! Nodes and ranks beside each other.

use super::causes::UNEVEN;
use super::evidence::{At, finding};
use super::model::Place;
use super::weigh::{ABOVE_SHARE, FAIL_SHARE, FAR_SHARE, Metric};
use crate::finding::{Finding, Status};

/// Slower than its peers by more than this is a finding (reference/validation-facts.md section 5).
const UNEVEN_BY: f64 = 0.10;

/// Nodes and ranks that are slower than the median of the others.
pub(super) fn symmetry(metrics: &[Metric]) -> Vec<Finding> {
    let mut all = Vec::new();
    let new = |name: &str, who: String, slow: f64, others: f64, place: &Place| {
        let status = if slow < others * FAIL_SHARE { Status::Fail } else { Status::Warn };
        finding("J008")
            .about(who)
            .outcome(status, &UNEVEN)
            .saw(
                format!(
                    "{name} {slow:.1} GB/s, {:.0} % below the median of its peers, {others:.1}",
                    (1.0 - slow / others) * 100.0
                ),
                "within 10 % of its peers",
            )
            .line(place)
            .remedy(
                "Look at that machine, and compare it with the others.",
                &["expertrail check", "expertrail compare FACTS..."],
            )
    };
    // What no link carries is no measure of others.
    let can_be = |metric: &&Metric| metric.fraction.is_none_or(|fraction| fraction <= ABOVE_SHARE);
    for metric in metrics.iter().filter(|metric| metric.node.is_some()) {
        let mut peers: Vec<f64> = metrics
            .iter()
            .filter(can_be)
            .filter(|other| {
                other.node.is_some()
                    && other.node != metric.node
                    && (other.section, &other.op, &other.dtype) == (metric.section, &metric.op, &metric.dtype)
            })
            .map(|other| other.value)
            .collect();
        let Some(others) = median(&mut peers) else { continue };
        // What is as its reference got is not low because its peers are above what any got.
        let usual = metric
            .reference
            .as_ref()
            .is_some_and(|used| metric.value >= used.low && others > used.high * FAR_SHARE);
        if usual {
            continue;
        }
        if metric.op != "total" && metric.value < others * (1.0 - UNEVEN_BY) {
            let who = format!("node {}", metric.node.unwrap_or(0));
            all.push(new(
                &format!("{} {}", metric.section.label(), metric.op),
                who,
                metric.value,
                others,
                &metric.place,
            ));
        }
    }
    for metric in metrics {
        let Some(spread) = metric.spread.as_ref().filter(|spread| spread.count > 1) else { continue };
        if spread.least < metric.value * (1.0 - UNEVEN_BY) {
            let who = spread.least_rank.map_or("a rank".to_owned(), |rank| format!("rank {rank}"));
            all.push(new(&metric.name, who, spread.least, metric.value, &spread.place));
        }
    }
    all
}

pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = values.get(half).copied()?;
    if values.len() % 2 == 1 { Some(upper) } else { Some((upper + values.get(half.checked_sub(1)?)?) / 2.0) }
}
