//! From the ranks' samples to an [`OpResult`], and from a verification to a verdict.

use std::collections::BTreeMap;

use expertrail_core::Dtype;

use crate::stats::{StatsError, Times, gbps, max_over_ranks};

use super::{ByteSpread, Ceiling, Op, OpResult, RankOp, Span, Status, Verdict, Verification, VerifyMode};

/// Names one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpKey {
    /// Which operation.
    pub op: Op,
    /// What it moved.
    pub dtype: Dtype,
    /// What the clock saw.
    pub span: Span,
}

/// One rank's samples of one operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankRun {
    /// The rank.
    pub rank: usize,
    /// Its time in each timed iteration, microseconds.
    pub times_us: Vec<f64>,
    /// Bytes of a call asked of it, own rank included (the mean over input sets).
    pub logical_bytes: f64,
    /// Bytes of a call that crossed to other ranks.
    pub wire_bytes: f64,
    /// Bytes of a call that count against the ceiling.
    pub ceiling_bytes: f64,
    /// Time of each phase in each timed iteration, microseconds.
    pub phases_us: BTreeMap<String, Vec<f64>>,
}

/// All ranks' samples of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct OpRun {
    /// Which measurement.
    pub key: OpKey,
    /// Every rank's samples.
    pub ranks: Vec<RankRun>,
    /// SMs held by the call; `None` on the CPU.
    pub sms: Option<u64>,
}

impl OpRun {
    /// Takes the maximum over ranks first and percentiles after, and the rates from the median of it.
    ///
    /// # Errors
    /// [`StatsError`] when there is no sample, a time is no time, or ranks differ in their iterations.
    pub fn summarise(&self, ceiling: Option<&Ceiling>) -> Result<OpResult, StatsError> {
        let by_rank: Vec<(usize, &[f64])> =
            self.ranks.iter().map(|r| (r.rank, r.times_us.as_slice())).collect();
        let samples_us = max_over_ranks(&by_rank)?;
        let time_us = Times::of(&samples_us)?;
        let per_rank = self.ranks.iter().map(rank_op).collect::<Result<Vec<_>, _>>()?;
        let spread = |of: fn(&RankRun) -> f64| ByteSpread {
            mean: self.ranks.iter().map(of).sum::<f64>() / self.ranks.len() as f64,
            max: self.ranks.iter().map(of).fold(0.0, f64::max),
        };
        let logical_bytes = spread(|r| r.logical_bytes);
        let wire_bytes = spread(|r| r.wire_bytes);
        let ceiling_bytes_gbps = gbps(spread(|r| r.ceiling_bytes).mean, time_us.p50);
        Ok(OpResult {
            op: self.key.op,
            dtype: self.key.dtype.to_string(),
            span: self.key.span,
            iterations: samples_us.len() as u64,
            time_us,
            samples_us,
            per_rank,
            logical_bytes,
            wire_bytes,
            logical_gbps: gbps(logical_bytes.mean, time_us.p50),
            wire_gbps: gbps(wire_bytes.mean, time_us.p50),
            ceiling_bytes_gbps,
            ceiling_ratio: ceiling.map(Ceiling::gbps).filter(|c| *c > 0.0).map(|c| ceiling_bytes_gbps / c),
            sms: self.sms,
            push_ratio: None,
            input: None,
            carries: None,
            phases_us: self.phases()?,
            host_return_us: None,
        })
    }

    fn phases(&self) -> Result<BTreeMap<String, f64>, StatsError> {
        let mut medians = BTreeMap::new();
        for name in self.ranks.iter().flat_map(|r| r.phases_us.keys()) {
            if medians.contains_key(name) {
                continue;
            }
            let by_rank: Vec<(usize, &[f64])> =
                self.ranks.iter().filter_map(|r| Some((r.rank, r.phases_us.get(name)?.as_slice()))).collect();
            medians.insert(name.clone(), Times::of(&max_over_ranks(&by_rank)?)?.p50);
        }
        Ok(medians)
    }
}

fn rank_op(run: &RankRun) -> Result<RankOp, StatsError> {
    Ok(RankOp {
        rank: run.rank as u64,
        time_us: Times::of(&run.times_us)?,
        logical_bytes: run.logical_bytes,
        wire_bytes: run.wire_bytes,
        ceiling_bytes: run.ceiling_bytes,
    })
}

impl Verification {
    /// The verdict that this verification alone allows: any mismatch fails, nothing checked (of something)
    /// is "not verified", and full verification that left rows out fails too.
    pub fn verdict(&self) -> Verdict {
        let Self { mode, rows_checked, rows_total, mismatches, .. } = *self;
        let (status, reason) = if mismatches > 0 {
            let first = self.first_mismatch.as_deref().unwrap_or("no detail was recorded");
            (Status::Fail, format!("{mismatches} of {rows_checked} checked rows are wrong; first: {first}"))
        } else if mode == VerifyMode::Off || (rows_checked == 0 && rows_total > 0) {
            (Status::NotVerified, "no row was compared with the oracle (--verify off)".to_owned())
        } else if mode == VerifyMode::Full && rows_checked < rows_total {
            (
                Status::Fail,
                format!("only {rows_checked} of {rows_total} rows were checked under --verify full"),
            )
        } else {
            (Status::Pass, format!("{rows_checked} of {rows_total} rows bit-exact with the oracle"))
        };
        Verdict { status, reasons: vec![reason] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> OpRun {
        let rank = |rank: usize, times_us: Vec<f64>, bytes: f64| RankRun {
            rank,
            phases_us: BTreeMap::from([("send".to_owned(), times_us.iter().map(|t| t / 2.0).collect())]),
            times_us,
            logical_bytes: bytes,
            wire_bytes: bytes / 2.0,
            ceiling_bytes: bytes,
        };
        OpRun {
            key: OpKey { op: Op::Dispatch, dtype: Dtype::Bf16, span: Span::Isolated },
            ranks: vec![rank(0, vec![100.0, 50.0, 70.0], 1e6), rank(1, vec![60.0, 200.0, 80.0], 3e6)],
            sms: None,
        }
    }

    #[test]
    fn rates_come_from_the_median_of_the_maximum() {
        let op = run().summarise(Some(&Ceiling::new(10.0, 40.0, 1, 2))).unwrap();
        assert_eq!(op.samples_us, [100.0, 200.0, 80.0]);
        assert_eq!((op.time_us.p50, op.time_us.max), (100.0, 200.0));
        // Mean of 1 and 3 MB in 100 us: 20 GB/s, half of the better copy.
        assert_eq!((op.logical_gbps, op.wire_gbps, op.ceiling_ratio), (20.0, 10.0, Some(0.5)));
        assert_eq!((op.logical_bytes.mean, op.logical_bytes.max), (2e6, 3e6));
        assert_eq!(op.per_rank[0].time_us.p50, 70.0);
        assert_eq!(op.phases_us["send"], 50.0);
    }

    #[test]
    fn nothing_measured_is_an_error() {
        let mut none = run();
        none.ranks[1].times_us.clear();
        assert!(none.summarise(None).is_err());
        none.ranks.clear();
        assert_eq!(none.summarise(None), Err(StatsError::Empty));
    }

    #[test]
    fn verdicts() {
        let v = |mode, rows_checked, rows_total, mismatches| {
            Verification { mode, rows_checked, rows_total, mismatches, first_mismatch: None }.verdict().status
        };
        assert_eq!(v(VerifyMode::Full, 10, 10, 0), Status::Pass);
        assert_eq!(v(VerifyMode::Full, 0, 0, 0), Status::Pass);
        assert_eq!(v(VerifyMode::Full, 9, 10, 0), Status::Fail);
        assert_eq!(v(VerifyMode::Sample, 2, 10, 0), Status::Pass);
        assert_eq!(v(VerifyMode::Sample, 0, 10, 0), Status::NotVerified);
        assert_eq!(v(VerifyMode::Off, 0, 10, 0), Status::NotVerified);
        assert_eq!(v(VerifyMode::Sample, 2, 10, 1), Status::Fail);
    }
}
