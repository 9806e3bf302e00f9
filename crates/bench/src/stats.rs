//! Percentiles of times, and the maximum over ranks that comes before them.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Summary of a list of times, in microseconds.
///
/// Percentiles interpolate linearly between the two nearest samples (the rule of `numpy.percentile`), so
/// that p50 of an even number of samples is their middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Slowest.
    pub max: f64,
    /// Fastest.
    pub min: f64,
    /// Arithmetic mean.
    pub mean: f64,
}

/// Times that cannot be summarised.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StatsError {
    /// There is nothing to summarise.
    #[error("no timed iteration: nothing was measured; run at least one (--iters 1 or more)")]
    Empty,
    /// A time is not a number, infinite or negative.
    #[error(
        "iteration {iteration} took {value} us: a time must be finite and not negative; the clock or its use is broken"
    )]
    NotATime {
        /// Iteration, from 0.
        iteration: usize,
        /// The value, as text.
        value: String,
    },
    /// Ranks report different numbers of iterations, so no maximum over ranks exists.
    #[error(
        "rank {rank} reports {got} timed iterations, rank {first_rank} reports {want}: all ranks must time the same iterations"
    )]
    Uneven {
        /// The rank that differs.
        rank: usize,
        /// Its iterations.
        got: usize,
        /// The rank it is compared with.
        first_rank: usize,
        /// That rank's iterations.
        want: usize,
    },
}

impl Times {
    /// Summarises `samples` (microseconds, any order).
    ///
    /// # Errors
    /// [`StatsError::Empty`] without samples, [`StatsError::NotATime`] at the first bad one.
    pub fn of(samples: &[f64]) -> Result<Self, StatsError> {
        if samples.is_empty() {
            return Err(StatsError::Empty);
        }
        if let Some((iteration, value)) =
            samples.iter().enumerate().find(|(_, v)| !v.is_finite() || **v < 0.0)
        {
            return Err(StatsError::NotATime { iteration, value: value.to_string() });
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Ok(Self {
            p50: percentile_of_sorted(&sorted, 50.0),
            p95: percentile_of_sorted(&sorted, 95.0),
            p99: percentile_of_sorted(&sorted, 99.0),
            max: sorted[sorted.len() - 1],
            min: sorted[0],
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
        })
    }
}

/// The `percent`-th percentile (0 to 100, clamped) of ascending `sorted`; 0 when it is empty.
pub fn percentile_of_sorted(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = percent.clamp(0.0, 100.0) / 100.0 * last as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

/// Per iteration, the slowest rank's time. `ranks` holds `(rank, times)`; the order of ranks is free.
///
/// The maximum comes first and percentiles after: a collective is as slow as its slowest rank in that
/// iteration, and the percentile of each rank alone would hide which iterations coincide.
///
/// # Errors
/// [`StatsError::Empty`] without ranks or iterations, [`StatsError::Uneven`] when ranks disagree about how
/// many iterations there were.
pub fn max_over_ranks(ranks: &[(usize, &[f64])]) -> Result<Vec<f64>, StatsError> {
    let Some(&(first_rank, first)) = ranks.first() else {
        return Err(StatsError::Empty);
    };
    if first.is_empty() {
        return Err(StatsError::Empty);
    }
    let mut slowest = first.to_vec();
    for &(rank, times) in &ranks[1..] {
        if times.len() != slowest.len() {
            return Err(StatsError::Uneven { rank, got: times.len(), first_rank, want: slowest.len() });
        }
        for (slow, &time) in slowest.iter_mut().zip(times) {
            // `max` would drop a NaN; keep it so that `Times::of` reports it.
            if time > *slow || time.is_nan() {
                *slow = time;
            }
        }
    }
    Ok(slowest)
}

/// GB/s (1e9 bytes per second) of `bytes` in `us` microseconds; 0 when the time is not positive.
pub fn gbps(bytes: f64, us: f64) -> f64 {
    if us > 0.0 { bytes / us / 1e3 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_one_to_a_hundred() {
        // numpy.percentile(range(1, 101), [50, 95, 99]) = [50.5, 95.05, 99.01]
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let t = Times::of(&samples).unwrap();
        assert!((t.p50 - 50.5).abs() < 1e-9 && (t.p95 - 95.05).abs() < 1e-9 && (t.p99 - 99.01).abs() < 1e-9);
        assert_eq!((t.min, t.max, t.mean), (1.0, 100.0, 50.5));
    }

    #[test]
    fn one_sample_is_every_percentile() {
        let t = Times::of(&[7.0]).unwrap();
        assert_eq!([t.p50, t.p95, t.p99, t.max, t.min, t.mean], [7.0; 6]);
    }

    #[test]
    fn the_maximum_comes_before_the_percentile() {
        // Each rank alone has a median of 1; together every iteration has a slow rank.
        let (a, b, c) = ([9.0, 1.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 9.0]);
        let slow = max_over_ranks(&[(0, &a), (1, &b), (2, &c)]).unwrap();
        assert_eq!(Times::of(&slow).unwrap().p50, 9.0);
    }

    #[test]
    fn what_cannot_be_summarised_is_an_error() {
        assert_eq!(Times::of(&[]), Err(StatsError::Empty));
        assert!(matches!(Times::of(&[1.0, f64::NAN]), Err(StatsError::NotATime { iteration: 1, .. })));
        assert!(Times::of(&[-1.0]).is_err());
        assert_eq!(max_over_ranks(&[]), Err(StatsError::Empty));
        let err = max_over_ranks(&[(4, &[1.0, 2.0]), (5, &[1.0])]).unwrap_err();
        assert_eq!(err, StatsError::Uneven { rank: 5, got: 1, first_rank: 4, want: 2 });
        let with_nan = max_over_ranks(&[(0, &[1.0]), (1, &[f64::NAN])]).unwrap();
        assert!(Times::of(&with_nan).is_err());
    }

    #[test]
    fn a_gigabyte_in_a_second() {
        assert_eq!(gbps(1e9, 1e6), 1.0);
        assert_eq!(gbps(1.0, 0.0), 0.0);
    }
}
