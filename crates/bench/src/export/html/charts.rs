//! The charts of a report.

use crate::export::{count_text, time_text, variant_text};
use crate::schema::{Op, OpResult};
use crate::stats::Times;

use super::svg::{Plot, Scale, escape};

/// Bars and points beyond this are put together: an eye sees no more on a screen.
const MAX_BARS: usize = 160;
const MAX_POINTS: usize = 1200;
const MAX_LABELS: usize = 16;

/// A chart with its caption.
fn figure(title: &str, caption: &str, svg: &str) -> String {
    format!(
        "<figure class=\"card\"><figcaption><strong>{}</strong><span>{}</span></figcaption>{svg}</figure>\n",
        escape(title),
        escape(caption)
    )
}

/// The colour of an operation.
fn class(op: Op) -> &'static str {
    match op {
        Op::Dispatch => "a",
        Op::DispatchCached => "c",
        Op::Combine => "b",
    }
}

fn named(op: &OpResult) -> String {
    format!("{} {}{} ({})", op.op, op.dtype, variant_text(op), op.span)
}

/// Each rank's own times: p50 as the bar, p95 as a lighter one behind it.
pub(super) fn per_rank(op: &OpResult) -> String {
    let times: Vec<(u64, Times)> = op.per_rank.iter().map(|r| (r.rank, r.time_us)).collect();
    let groups = grouped(times.len());
    let top = times.iter().map(|(_, t)| t.p95).fold(op.time_us.p50, f64::max);
    let mut plot = Plot::new(Scale::from_zero(top), "rank", "µs");
    let slot = 1.0 / groups.len().max(1) as f64;
    for (i, range) in groups.iter().enumerate() {
        // Of ranks shown together the slowest counts.
        let slowest =
            |of: fn(&Times) -> f64| times[range.clone()].iter().map(|(_, t)| of(t)).fold(0.0, f64::max);
        let (p50, p95) = (slowest(|t| t.p50), slowest(|t| t.p95));
        let (first, last) = (times[range.start].0, times[range.end - 1].0);
        let name = if first == last { format!("rank {first}") } else { format!("ranks {first} to {last}") };
        let hint = format!("{name}: p50 {} µs, p95 {} µs", time_text(p50), time_text(p95));
        let (from, to) = (slot * (i as f64 + 0.14), slot * (i as f64 + 0.86));
        plot.bar(&format!("bar {} soft", class(op.op)), (from, to), p95, &hint);
        plot.bar(&format!("bar {}", class(op.op)), (from, to), p50, &hint);
        if i.is_multiple_of(groups.len().div_ceil(MAX_LABELS)) {
            plot.label(slot * (i as f64 + 0.5), &first.to_string());
        }
    }
    let title = format!("{}: time of each rank", named(op));
    let caption = "p50 (solid) and p95 (light) of each rank by itself";
    let svg = plot.finish(&title, caption);
    figure(&title, caption, &svg)
}

/// How often the maximum over ranks took how long.
pub(super) fn distribution(op: &OpResult) -> String {
    let samples = &op.samples_us;
    let x = Scale::holding(op.time_us.min, op.time_us.max);
    let bins = (samples.len() as f64).sqrt().ceil().clamp(20.0, 40.0) as usize;
    let mut counts = vec![0usize; bins];
    for &sample in samples {
        counts[((Plot::part(x, sample) * bins as f64) as usize).min(bins - 1)] += 1;
    }
    let highest = counts.iter().copied().max().unwrap_or(0);
    let mut plot =
        Plot::new(Scale::from_zero((highest as f64 * 1.15).ceil()), "µs, slowest rank", "iterations");
    let width = 1.0 / bins as f64;
    for (i, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let at = |i: usize| x.low + (x.high - x.low) * width * i as f64;
        let hint = format!(
            "{count} of {} between {} and {} µs",
            samples.len(),
            time_text(at(i)),
            time_text(at(i + 1))
        );
        plot.bar(
            &format!("bar {}", class(op.op)),
            (width * (i as f64 + 0.06), width * (i as f64 + 0.94)),
            count as f64,
            &hint,
        );
    }
    plot.x_ticks(x);
    plot.upright(Plot::part(x, op.time_us.p50), &format!("p50 {}", time_text(op.time_us.p50)), (true, 0));
    plot.upright(Plot::part(x, op.time_us.p95), &format!("p95 {}", time_text(op.time_us.p95)), (false, 1));
    let title = format!("{}: distribution", named(op));
    let caption = "maximum over ranks in each iteration";
    let svg = plot.finish(&title, caption);
    figure(&title, caption, &svg)
}

/// The maximum over ranks, iteration by iteration.
pub(super) fn over_iterations(op: &OpResult) -> String {
    let samples = &op.samples_us;
    let mut plot = Plot::new(Scale::holding(op.time_us.min, op.time_us.max), "iteration", "µs, slowest rank");
    let last = samples.len().saturating_sub(1).max(1) as f64;
    // Of iterations drawn in one place the slowest is shown: it is what one looks for.
    let step = samples.len().div_ceil(MAX_POINTS).max(1);
    let points: Vec<(usize, f64)> = samples
        .chunks(step)
        .enumerate()
        .map(|(i, chunk)| (i * step, chunk.iter().copied().fold(0.0, f64::max)))
        .collect();
    plot.polyline(&format!("line {}", class(op.op)), points.iter().map(|&(i, v)| (i as f64 / last, v)));
    if points.len() <= 120 {
        for &(i, value) in &points {
            let hint = format!("iteration {i}: {} µs", time_text(value));
            plot.dot(&format!("dot {}", class(op.op)), (i as f64 / last, value), &hint);
        }
    }
    plot.x_ticks(Scale::whole(samples.len()));
    plot.level(op.time_us.p50);
    let title = format!("{}: iteration by iteration", named(op));
    let caption = format!(
        "slowest rank, in the order they ran; dashed: p50 {} µs; axis not from 0",
        time_text(op.time_us.p50)
    );
    let svg = plot.finish(&title, &caption);
    figure(&title, &caption, &svg)
}

/// Counts by rank or expert, with their mean.
pub(super) fn counts(what: &str, unit: &str, values: &[u64]) -> String {
    let groups = grouped(values.len());
    let total: u64 = values.iter().sum();
    let mean = total as f64 / values.len().max(1) as f64;
    let highest = values.iter().copied().max().unwrap_or(0);
    let mut plot = Plot::new(Scale::from_zero(highest as f64), what, unit);
    let slot = 1.0 / groups.len().max(1) as f64;
    let gap = if groups.len() > 48 { 0.06 } else { 0.14 };
    for (i, range) in groups.iter().enumerate() {
        let part = &values[range.clone()];
        let value = part.iter().sum::<u64>() as f64 / part.len() as f64;
        let hint = if part.len() == 1 {
            format!("{what} {}: {} {unit}", range.start, count_text(part[0]))
        } else {
            format!("{what}s {} to {}: mean {value:.1} {unit}", range.start, range.end - 1)
        };
        plot.bar("bar n", (slot * (i as f64 + gap), slot * (i as f64 + 1.0 - gap)), value, &hint);
        if i.is_multiple_of(groups.len().div_ceil(MAX_LABELS)) {
            plot.label(slot * (i as f64 + 0.5), &range.start.to_string());
        }
    }
    plot.level(mean);
    let title = format!("Received {unit} per {what}");
    let lowest = values.iter().copied().min().unwrap_or(0);
    let each = groups.first().map_or(1, std::ops::Range::len);
    let together = if each > 1 { format!("; each bar is the mean of {each} {what}s") } else { String::new() };
    let caption = format!(
        "total {}, mean {} (dashed), fewest {}, most {} ({:.2} x mean){together}",
        count_text(total),
        count_text(mean.round() as u64),
        count_text(lowest),
        count_text(highest),
        if mean > 0.0 { highest as f64 / mean } else { 0.0 }
    );
    let svg = plot.finish(&title, &caption);
    figure(&title, &caption, &svg)
}

/// `n` values as at most [`MAX_BARS`] runs of equal length (the last may be shorter).
fn grouped(n: usize) -> Vec<std::ops::Range<usize>> {
    let each = n.div_ceil(MAX_BARS).max(1);
    (0..n).step_by(each).map(|start| start..(start + each).min(n)).collect()
}

impl Scale {
    /// Iteration numbers from 0 to `n` - 1, with labels inside the plot only.
    fn whole(n: usize) -> Self {
        let mut scale = Self::holding(0.0, n as f64);
        scale.high = n.saturating_sub(1).max(1) as f64;
        scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn groups_cover_all_values_once() {
        for n in [0, 1, 160, 161, 4096, 65_536] {
            let groups = grouped(n);
            assert!(groups.len() <= MAX_BARS);
            assert_eq!(groups.iter().map(std::ops::Range::len).sum::<usize>(), n);
        }
    }

    #[test]
    fn every_sample_stands_in_the_histogram() {
        let op = &sample::result(4).ops[0];
        let svg = distribution(op);
        let of = svg.split("<title>").skip(1).map(|t| t.split(' ').next().unwrap().parse::<usize>().unwrap());
        assert_eq!(of.sum::<usize>(), 40);
    }

    #[test]
    fn bars_of_every_rank() {
        let op = &sample::result(7).ops[1];
        assert_eq!(per_rank(op).matches("<rect").count(), 14);
        assert_eq!(counts("rank", "rows", &[0, 0, 0]).matches("<rect").count(), 3);
        assert!(counts("expert", "rows", &vec![1; 65_536]).contains("mean of 410 experts"));
        assert!(!counts("rank", "rows", &[]).contains("NaN"));
    }
}
