//! What all ranks of a communicator share, and how one waits for another.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use expertrail_core::{Placement, Shape, Topology};
use expertrail_group::CancelToken;

use crate::control::Control;
use crate::error::{Cause, Failure, HostError, Phase, Result};
use crate::futex::SharedFutex;
use crate::pool::Pool;
use crate::rail::RailNames;
use crate::segment::Segment;
use crate::simd::Simd;

/// How long a waiter sleeps before it looks at poison, cancellation and the deadline again; bounds how late a
/// failure is seen, far below the two seconds allowed.
const SLICE: Duration = Duration::from_millis(50);

/// Spins before the first sleep, where every rank has a core of its own. A futex wake costs 15 us between
/// processes (deps.md 2f) and a spinning hand-over 0.2 us; about 20 us of spinning hide most waits.
const SPINS: u32 = 2_000;

/// Regions of every rank's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Regions {
    pub(crate) staging: usize,
    pub(crate) pool: usize,
    pub(crate) pool_bytes: usize,
    /// Two slices that fit any counts, by parity of the call.
    pub(crate) fallback: [usize; 2],
    pub(crate) fallback_bytes: usize,
    pub(crate) total: usize,
}

/// Everything about a communicator that does not change after build.
///
/// Ranks are global, of the declared topology; `segments` and `controls` hold those of this node only, by
/// [`World::local`].
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) rank: usize,
    /// The ranks that share memory with this one: all, or those of this node where a network joins several.
    pub(crate) node_ranks: Range<usize>,
    pub(crate) token: u64,
    pub(crate) topology: Topology,
    pub(crate) placement: Placement,
    pub(crate) shape: Shape,
    pub(crate) simd: Simd,
    pub(crate) regions: Regions,
    pub(crate) deadline: Duration,
    pub(crate) cancel: CancelToken,
    /// Whether waiters may spin: every rank has a core.
    pub(crate) spin: bool,
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) controls: Vec<Control>,
    pub(crate) pool: Pool,
    /// Where several nodes are joined: what messages say of the ways between them.
    pub(crate) rails: Option<RailNames>,
    /// What else is known of the failure that ended this communicator.
    pub(crate) detail: OnceLock<String>,
}

/// One wait's circumstances, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) phase: Phase,
    pub(crate) epoch: u64,
    pub(crate) until: Instant,
}

impl World {
    pub(crate) fn ranks(&self) -> usize {
        self.topology.ranks()
    }

    /// Place of a rank of this node among `segments` and `controls`.
    pub(crate) fn local(&self, rank: usize) -> usize {
        rank - self.node_ranks.start
    }

    /// The control area of a rank of this node.
    pub(crate) fn control(&self, rank: usize) -> &Control {
        &self.controls[self.local(rank)]
    }

    /// This rank's own control area.
    pub(crate) fn own(&self) -> &Control {
        self.control(self.rank)
    }

    /// This rank's own segment.
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segments[self.local(self.rank)]
    }

    /// Where `bytes` bytes at `offset` of the segment of a rank of this node lie. Offsets come from peers: they are checked.
    pub(crate) fn place(&self, wait: Wait, rank: usize, offset: u64, bytes: usize) -> Result<*mut u8> {
        let segment = &self.segments[self.local(rank)];
        let end = offset.checked_add(bytes as u64);
        if offset < self.regions.pool as u64 || end.is_none_or(|end| end > segment.bytes() as u64) {
            return Err(self.fail(wait, Cause::Protocol, rank));
        }
        Ok(segment.base().wrapping_add(offset as usize))
    }

    /// Where in this rank's pool a slice lies; `None` when it is other memory.
    pub(crate) fn offset_of<T>(&self, slice: &[T]) -> Option<usize> {
        let start = (slice.as_ptr() as usize).checked_sub(self.segment().base() as usize)?;
        let end = start + std::mem::size_of_val(slice);
        let pool = self.regions.pool..self.regions.pool + self.regions.pool_bytes;
        (pool.contains(&start) && end <= pool.end).then_some(start)
    }

    pub(crate) fn wait(&self, phase: Phase, epoch: u64) -> Wait {
        self.own().set_now(phase, epoch);
        Wait { phase, epoch, until: Instant::now() + self.deadline }
    }

    /// Waits until every rank of this node has announced call `epoch`.
    pub(crate) fn wait_notified(&self, wait: Wait) -> Result<()> {
        self.wait_each(wait, |peer| peer.notified() >= wait.epoch)
    }

    /// Waits until every rank of this node has finished call `epoch`.
    pub(crate) fn wait_done(&self, wait: Wait, epoch: u64) -> Result<()> {
        self.wait_each(wait, |peer| peer.done() >= epoch)
    }

    fn wait_each(&self, wait: Wait, ready: impl Fn(&Control) -> bool) -> Result<()> {
        for (peer, control) in self.node_ranks.clone().zip(&self.controls) {
            self.wait_until(wait, peer, control.published(), || ready(control))?;
        }
        Ok(())
    }

    /// Waits until `ready`, which `culprit` makes true and announces by ringing `bell`.
    pub(crate) fn wait_until(
        &self,
        wait: Wait,
        culprit: usize,
        bell: &crate::flag::Bell,
        ready: impl Fn() -> bool,
    ) -> Result<()> {
        self.wait_for(wait, &|| culprit, bell, ready)
    }

    /// As [`World::wait_until`], where the rank to blame is known only when the deadline passes.
    pub(crate) fn wait_for(
        &self,
        wait: Wait,
        culprit: &dyn Fn() -> usize,
        bell: &crate::flag::Bell,
        ready: impl Fn() -> bool,
    ) -> Result<()> {
        for _ in 0..if self.spin { SPINS } else { 1 } {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        // Late enough to be rare, early enough for others to know before their deadlines.
        let patience = (self.deadline / 2).min(Duration::from_secs(1)).as_millis() as u64;
        self.own().set_tell(millis() + patience);
        let waited = self.sleep_for(wait, culprit, bell, ready);
        self.own().set_tell(0);
        self.own().set_waits(0);
        waited
    }

    fn sleep_for(
        &self,
        wait: Wait,
        culprit: &dyn Fn() -> usize,
        bell: &crate::flag::Bell,
        ready: impl Fn() -> bool,
    ) -> Result<()> {
        loop {
            self.check(wait)?;
            let culprit = culprit();
            self.own().set_waits(WaitsFor::new(culprit).to_word());
            let slice = SLICE.min(wait.until.saturating_duration_since(Instant::now()));
            if bell.sleep_unless(&SharedFutex, slice, &ready) {
                return Ok(());
            }
            // A rank of another node that leaves is known by other means (`rail`).
            if self.node_ranks.contains(&culprit) && self.control(culprit).closed() && !ready() {
                return Err(self.fail(wait, Cause::Left, culprit));
            }
            if Instant::now() >= wait.until && !ready() {
                let culprit = blame(&self.controls, (self.node_ranks.start, self.rank), culprit);
                return Err(self.fail(wait, Cause::Deadline, culprit));
            }
        }
    }

    /// Gives the failure that another rank or the death watch has found, or a cancellation.
    pub(crate) fn check(&self, wait: Wait) -> Result<()> {
        let poison = self.own().poison();
        if poison != 0 {
            return Err(self.failed(poison));
        }
        if self.cancel.is_cancelled() {
            return Err(self.fail(wait, Cause::Cancelled, self.rank));
        }
        Ok(())
    }

    /// Records a failure here and at every peer, unless an earlier one is known; gives the one that stays.
    pub(crate) fn fail(&self, wait: Wait, cause: Cause, culprit: usize) -> HostError {
        let failure = Failure { cause, culprit, reporter: self.rank, phase: wait.phase, epoch: wait.epoch };
        let first = self.own().set_poison(failure.to_word());
        Self::poison(&self.controls, first);
        self.failed(first)
    }

    /// Records a failure that was found outside of a call, here and at every rank of this node: one that learnt of it
    /// later would take the first to close its communicator for the culprit.
    pub(crate) fn learn(&self, word: u64) {
        Self::poison(&self.controls, word);
    }

    /// Tells all ranks of a node of a failure, and wakes them wherever they wait.
    pub(crate) fn poison(controls: &[Control], word: u64) {
        for control in controls {
            control.set_poison(word);
        }
        controls.iter().for_each(Control::alarm);
    }

    /// Keeps what is known of a failure beyond its word, for this rank's message.
    pub(crate) fn note(&self, detail: String) {
        let _ = self.detail.set(detail);
    }

    fn failed(&self, poison: u64) -> HostError {
        self.pool.close();
        let failure = Failure::from_word(poison);
        let mut way = self.rails.as_ref().map_or_else(String::new, |rails| rails.describe(&failure));
        if let Some(detail) = self.detail.get() {
            way.push_str("; ");
            way.push_str(detail);
        }
        HostError::Failed { rank: self.rank, failure, way }
    }

    /// Called by the death watch: the process of rank `culprit`, whose place is `at`, has ended.
    pub(crate) fn peer_ended(
        controls: &[Control],
        (own, at): (usize, usize),
        (reporter, culprit): (usize, usize),
    ) {
        if !controls[at].closed() {
            let (phase, epoch) = controls[own].now();
            let failure = Failure { cause: Cause::Died, culprit, reporter, phase, epoch };
            Self::poison(controls, failure.to_word());
        }
    }
}

/// For whom a rank waits, and when it last said so: one that is stopped waits for nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitsFor {
    rank: usize,
    millis: u64,
}

/// A rank that waits says so once a [`SLICE`]; what is older than a few is not believed.
const FRESH: u64 = 4 * SLICE.as_millis() as u64;

impl WaitsFor {
    fn new(rank: usize) -> Self {
        Self { rank, millis: millis() }
    }

    /// The rank (+ 1) in the upper 16 bits, milliseconds of the machine's clock below.
    fn to_word(self) -> u64 {
        (self.rank as u64 + 1) << 48 | self.millis & ((1 << 48) - 1)
    }

    /// The rank of a word that was written just now.
    fn fresh(word: u64) -> Option<usize> {
        let (rank, then) = ((word >> 48) as usize, word & ((1 << 48) - 1));
        (rank > 0 && millis().saturating_sub(then) <= FRESH).then(|| rank - 1)
    }
}

/// The rank that keeps `culprit` from going on, if `culprit` only waits too, for another rank of its node or of its rail:
/// whoever waits for somebody who waits must not take the wrong one for the cause, though both deadlines pass together.
///
/// `controls` are those of the node whose first rank is `first`, seen by its rank `own`.
pub(crate) fn blame(controls: &[Control], (first, own): (usize, usize), culprit: usize) -> usize {
    let here = controls.len();
    let (mut seen, mut last) = (vec![own], culprit);
    loop {
        seen.push(last);
        let next = match last.checked_sub(first).and_then(|at| controls.get(at)) {
            Some(control) => WaitsFor::fresh(control.waits()),
            None => controls[last % here].far_waits(last / here),
        };
        match next {
            // Two that wait for each other: something between them was lost.
            Some(next) if !seen.contains(&next) => last = next,
            _ => return last,
        }
    }
}

/// For whom a rank of the node has been waiting for long, as a word for its rail peers: that rank + 1; 0 for nobody.
pub(crate) fn long_wait(controls: &[Control], (first, own): (usize, usize)) -> u64 {
    let control = &controls[own - first];
    let tell = control.tell();
    if tell == 0 || millis() < tell {
        return 0;
    }
    WaitsFor::fresh(control.waits()).map_or(0, |rank| blame(controls, (first, own), rank) as u64 + 1)
}

/// The machine's clock, the same for all its processes.
fn millis() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_believed_only_for_a_moment() {
        assert_eq!(WaitsFor::fresh(WaitsFor::new(4095).to_word()), Some(4095));
        assert_eq!(WaitsFor::fresh(0), None);
        let old = WaitsFor { rank: 3, millis: millis() - FRESH - 1 };
        assert_eq!(WaitsFor::fresh(old.to_word()), None);
    }

    /// Ranks 2 3 of a node between two others of two ranks.
    fn node() -> Vec<Control> {
        let layout = crate::control::ControlLayout::new((3, 2), 4);
        let segment = || Arc::new(Segment::create(0, layout.bytes).unwrap());
        (0..2).map(|_| Control::new(segment(), layout)).collect()
    }

    #[test]
    fn the_end_of_a_chain_of_waits_is_to_blame() {
        let controls = node();
        let blamed = |culprit| blame(&controls, (2, 3), culprit);
        assert_eq!([2, 0, 5].map(blamed), [2, 0, 5]);
        // Rank 2 waits for rank 0, its rail peer, which has told it that it waits for rank 4.
        controls[0].set_waits(WaitsFor::new(0).to_word());
        assert_eq!(blamed(2), 0);
        controls[0].set_far_waits(0, 4 + 1);
        assert_eq!([2, 0].map(blamed), [4, 4]);
        // Rank 4 tells it that it waits for rank 5, which told rank 3 that it waits for that: nobody is behind them.
        controls[0].set_far_waits(2, 5 + 1);
        controls[1].set_far_waits(2, 3 + 1);
        assert_eq!(blamed(2), 5);
        // Two that wait for each other have lost something between them.
        controls[1].set_far_waits(2, 4 + 1);
        assert_eq!(blamed(2), 5);
        // A rank that is on no node: nobody told anything of it.
        controls[0].set_far_waits(0, 4000 + 1);
        assert_eq!(blamed(2), 4000);
    }

    #[test]
    fn a_short_wait_is_told_to_nobody() {
        let controls = node();
        controls[1].set_waits(WaitsFor::new(5).to_word());
        assert_eq!(long_wait(&controls, (2, 3)), 0);
        controls[1].set_tell(millis() + 60_000);
        assert_eq!(long_wait(&controls, (2, 3)), 0);
        controls[1].set_tell(1);
        assert_eq!(long_wait(&controls, (2, 3)), 5 + 1);
    }
}
