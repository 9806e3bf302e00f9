//! The ceiling of the same run: plain copies, as many processes at once as there are ranks.

use expertrail::Group;
use expertrail::host::{CopyProbe, Stores, available_memory};

use super::{BenchError, Team};
use crate::machine;
use crate::schema::Ceiling;

/// Copies of each kind; the best counts, because a ceiling is what the machine can do.
const REPEATS: usize = 4;

/// Without a known cache, and as the least.
const LEAST_WORKING_SET: u64 = 256 << 20;

/// A ceiling and whether it was measured beyond the cache.
pub(crate) struct Measured {
    pub(crate) ceiling: Ceiling,
    pub(crate) beyond_cache: bool,
}

/// Measures the ceiling. Collective over `world`.
pub(crate) fn measure(world: &Group, team: &Team) -> Result<Measured, BenchError> {
    let llc = machine::llc_bytes().unwrap_or(0);
    let wanted = (4 * llc + (64 << 20)).max(LEAST_WORKING_SET);
    let allowed = available_memory().map_or(wanted, |bytes| bytes / 4);
    // All ranks must use the same size; the least any rank would is safe for all.
    let offers = world.all_gather("ceiling size", &wanted.min(allowed).to_le_bytes())?;
    let total =
        offers.iter().filter_map(|b| b.as_slice().try_into().ok()).map(u64::from_le_bytes).min().unwrap_or(0);
    // Ranks of several hosts each load their own machine.
    let processes = world.local_size().max(1) as u64;
    let each = (total / processes / 2).max(1 << 20) as usize;
    let mut probe = CopyProbe::new(world.rank(), each, team.comm.host().simd())?;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..REPEATS {
        for (kind, stores) in [Stores::Cached, Stores::NonTemporal].into_iter().enumerate() {
            team.comm.barrier()?;
            let seconds = probe.copy(stores).as_secs_f64();
            let all = world.all_gather("ceiling copy", &seconds.to_le_bytes())?;
            let slowest = all
                .iter()
                .filter_map(|b| b.as_slice().try_into().ok())
                .map(f64::from_le_bytes)
                .fold(0.0, f64::max);
            best[kind] = best[kind].min(slowest);
        }
    }
    let gbps = |seconds: f64| probe.bytes() as f64 / seconds / 1e9;
    let ceiling =
        Ceiling::new(gbps(best[0]), gbps(best[1]), 2 * each as u64 * processes, world.size() as u64);
    Ok(Measured { ceiling, beyond_cache: ceiling.working_set_bytes > 4 * llc })
}
