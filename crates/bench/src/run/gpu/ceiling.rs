//! The ceiling of the same run: plain rows from each GPU to the others, all at once.

use std::time::Duration;

use expertrail::cuda::{CudaError, Event, Stream};

use super::kernels::{BenchKernels, FLAG_BYTES, Links, MOST_WARPS, PUSHED_ROW};
use super::{Case, GpuTeam};
use crate::run::BenchError;
use crate::schema::{LinkCeiling, PushCeiling};

/// Bytes that each GPU sends, if symmetric memory has room for them: more than two L2 caches of 50 MiB.
pub(super) const ROOM: usize = 128 << 20;

/// Less than this says nothing about a link: launch and drain take most of the time.
const LEAST_ROOM: usize = 8 << 20;

/// Measurements of each kind; the best counts, because a ceiling is what the machine can do.
const REPEATS: usize = 7;

/// Memory that peers reach, and flags in it; `None` where the pool has no room at some rank. Collective.
pub(super) fn links(
    team: &GpuTeam<'_>,
    kernels: &BenchKernels,
    limit: Duration,
) -> Result<Option<Links>, BenchError> {
    let mut room = ROOM;
    loop {
        let rows = team.comm.alloc_rows(FLAG_BYTES + room, None)?;
        // Whatever used that memory before is done.
        team.comm.stream().synchronize()?;
        let there = team.gather("memory for the ceiling", u64::from(rows.is_shared()))?;
        if !there.contains(&0) {
            let links = Links::new(&team.comm, kernels, rows, room, limit)?;
            let all = team.gather("peers' memory", u64::from(links.is_some()))?;
            // Flags are cleared before anybody raises one.
            team.comm.barrier()?;
            return Ok(links.filter(|_| !all.contains(&0)));
        }
        drop(rows);
        room = match room {
            0 => return Ok(None),
            room if room / 2 < LEAST_ROOM => 0,
            room => room / 2,
        };
    }
}

/// Measures the ceiling for every SM count of `cases`; `None` when there was no room. Collective.
pub(super) fn measure(
    team: &GpuTeam<'_>,
    kernels: &BenchKernels,
    links: &Links,
    cases: &[Vec<Case>],
) -> Result<Option<LinkCeiling>, BenchError> {
    if links.bytes() < PUSHED_ROW {
        return Ok(None);
    }
    let mut sms: Vec<u32> = cases.iter().flatten().map(|case| case.sms).collect();
    sms.sort_unstable();
    sms.dedup();
    let stream = Stream::new(team.comm.context(), 0)?;
    let mut bench = Bench {
        team,
        kernels,
        links,
        start: Event::new(team.comm.context(), true)?,
        end: Event::new(team.comm.context(), true)?,
        stream,
    };
    let mut copied = 0;
    let copy = bench.best(&mut |stream| {
        copied = links.copy(stream)?;
        Ok(())
    })?;
    let mut push = Vec::new();
    for sms in sms {
        // Fewer warps keep fewer bytes in flight, which is faster on some links (results/h200-x2/NOTES.md, a).
        let mut best = f64::INFINITY;
        for warps in [MOST_WARPS, MOST_WARPS / 2] {
            best = best.min(bench.best(&mut |stream| links.push(kernels, stream, sms, warps))?);
        }
        push.push(PushCeiling { sms: u64::from(sms), gbps: links.bytes() as f64 / best / 1e9 });
    }
    Ok(Some(LinkCeiling {
        copy_engine_gbps: copied as f64 / copy / 1e9,
        push,
        bytes: links.bytes() as u64,
        gpus: team.topology.ranks() as u64,
    }))
}

struct Bench<'a> {
    team: &'a GpuTeam<'a>,
    kernels: &'a BenchKernels,
    links: &'a Links,
    stream: Stream,
    start: Event,
    end: Event,
}

impl Bench<'_> {
    /// Seconds of the slowest rank, in the best of several attempts.
    fn best(&mut self, send: &mut dyn FnMut(&Stream) -> Result<(), CudaError>) -> Result<f64, BenchError> {
        let mut best = f64::INFINITY;
        for _ in 0..REPEATS {
            self.team.comm.barrier()?;
            self.links.line_up(self.kernels, &self.stream)?;
            self.start.record(&self.stream)?;
            send(&self.stream)?;
            self.end.record(&self.stream)?;
            self.stream.synchronize()?;
            if let Some(rank) = self.links.late()? {
                return Err(BenchError::Late { rank });
            }
            let nanoseconds = (f64::from(self.end.since(&self.start)?) * 1e6) as u64;
            let slowest = self.team.gather("ceiling", nanoseconds)?.into_iter().max().unwrap_or(0);
            best = best.min(slowest.max(1) as f64 / 1e9);
        }
        Ok(best)
    }
}
