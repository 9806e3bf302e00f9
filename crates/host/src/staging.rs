//! Rows that combine cannot read where they lie go through small rings in the owner's segment.
//!
//! Every owner has one ring per source. It fills slots in the order in which the source consumes them (ascending
//! token) and publishes how many it has filled; the source publishes how many it has taken. Each rank is owner and
//! source at once and never blocks in one role while it can go on in the other. No deadlock: the next token a
//! source needs has its rows at the heads of its rings, every ring has at least one slot, and an owner with a free
//! slot always fills it.

use expertrail_core::Bf16;

use crate::error::{HostError, Phase, Result};
use crate::futex::SharedFutex;
use crate::world::{Wait, World};

/// Bytes of staging in a segment (the limit).
pub(crate) const STAGING_BYTES: usize = 32 << 20;

/// Slots of a ring at the most. With 2 to 8 ranks and 14 KiB rows all rings of an owner then stay near the
/// size of a second-level cache (2 MiB), so that staged rows do not travel to memory and back.
const MOST_SLOTS: usize = 32;

/// Rows pushed or taken before the other side is told.
const BATCH: usize = 8;

/// Shape of the rings, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rings {
    slots: usize,
    slot_bytes: usize,
}

impl Rings {
    pub(crate) fn new(ranks: usize, hidden: usize) -> Result<Self> {
        let slot_bytes = (2 * hidden).next_multiple_of(64);
        let slots = (STAGING_BYTES / (slot_bytes * ranks)).min(MOST_SLOTS);
        if slots == 0 {
            return Err(HostError::Staging { row_bytes: slot_bytes, ranks });
        }
        Ok(Self { slots, slot_bytes })
    }

    /// Bytes of all rings of one owner.
    pub(crate) fn bytes(self, ranks: usize) -> usize {
        self.slots * self.slot_bytes * ranks
    }

    /// Where row `index` of the stream from `owner` to `source` lies; both by their place on the node.
    fn slot(self, world: &World, (owner, source): (usize, usize), index: usize) -> *mut u8 {
        let slot = source * self.slots + index % self.slots;
        world.segments[owner].base().wrapping_add(world.regions.staging + slot * self.slot_bytes)
    }
}

/// Both roles' progress in one combine. Owners and sources are given by their place on the node ([`World::local`]).
pub(crate) struct Exchange<'a> {
    world: &'a World,
    rings: Rings,
    wait: Wait,
    /// This rank's place on its node.
    me: usize,
    /// As owner, for each source: rows to stage in all, staged so far.
    to_push: Vec<(u32, u32)>,
    /// As source, for each owner: rows seen as staged, taken, and announced as taken.
    taken: Vec<Taken>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    available: u32,
    used: u32,
    announced: u32,
}

impl<'a> Exchange<'a> {
    /// `to_push[source]` rows will be pushed to each source.
    pub(crate) fn new(world: &'a World, rings: Rings, wait: Wait, to_push: Vec<u32>) -> Self {
        let taken = vec![Taken::default(); to_push.len()];
        let me = world.local(world.rank);
        Self { world, rings, wait, me, to_push: to_push.into_iter().map(|rows| (rows, 0)).collect(), taken }
    }

    /// Pushes what there is room for; `fill(source, index, slot)` writes one row. Says whether anything moved.
    pub(crate) fn push(&mut self, mut fill: impl FnMut(usize, usize, *mut Bf16)) -> bool {
        let mut moved = false;
        let epoch = self.wait.epoch;
        for source in 0..self.to_push.len() {
            let (rows, pushed) = self.to_push[source];
            if pushed == rows {
                continue;
            }
            let now = self.free(source, pushed).min(rows - pushed).min(BATCH as u32);
            for index in pushed..pushed + now {
                let slot = self.rings.slot(self.world, (self.me, source), index as usize);
                fill(source, index as usize, slot.cast());
            }
            if now > 0 {
                self.to_push[source].1 += now;
                self.world.own().produced(source).set(epoch, pushed + now);
                self.world.controls[source].door().ring(&SharedFutex);
                moved = true;
            }
        }
        moved
    }

    /// Free slots of the ring to `source`. Saturating: a peer's count is outside data.
    fn free(&self, source: usize, pushed: u32) -> u32 {
        let consumed = self.world.controls[source].consumed(self.me).get(self.wait.epoch);
        (self.rings.slots as u32).saturating_sub(pushed.saturating_sub(consumed))
    }

    /// Whether everything is pushed.
    pub(crate) fn all_pushed(&self) -> bool {
        self.to_push.iter().all(|&(rows, pushed)| rows == pushed)
    }

    /// Whether row `index` from `owner` is there.
    pub(crate) fn is_there(&mut self, owner: usize, index: u32) -> bool {
        let taken = &mut self.taken[owner];
        if index >= taken.available {
            taken.available = self.world.controls[owner].produced(self.me).get(self.wait.epoch);
        }
        index < taken.available
    }

    /// Where row `index` from `owner` lies while it is there and not taken.
    pub(crate) fn row(&self, owner: usize, index: u32) -> *const Bf16 {
        self.rings.slot(self.world, (owner, self.me), index as usize).cast_const().cast()
    }

    /// Row `index` from `owner` has been read.
    pub(crate) fn take(&mut self, owner: usize, index: u32) {
        self.taken[owner].used = index + 1;
        if self.taken[owner].used - self.taken[owner].announced >= BATCH as u32 {
            self.announce(owner);
        }
    }

    fn announce(&mut self, owner: usize) {
        let taken = &mut self.taken[owner];
        if taken.announced < taken.used {
            taken.announced = taken.used;
            self.world.own().consumed(owner).set(self.wait.epoch, taken.used);
            self.world.controls[owner].door().ring(&SharedFutex);
        }
    }

    /// Tells every owner what has been taken.
    pub(crate) fn announce_all(&mut self) {
        for owner in 0..self.taken.len() {
            self.announce(owner);
        }
    }

    /// Sleeps until a peer has moved: a free slot for a row to push, or the row `needed` (owner, index) that the
    /// next token waits for.
    pub(crate) fn sleep(&mut self, needed: Option<(usize, u32)>) -> Result<()> {
        self.announce_all();
        let (world, epoch) = (self.world, self.wait.epoch);
        let full = self.to_push.iter().position(|&(rows, pushed)| pushed < rows);
        let me = self.me;
        let culprit = world.node_ranks.start + needed.map(|(owner, _)| owner).or(full).unwrap_or(me);
        let ready = || {
            needed.is_some_and(|(owner, index)| world.controls[owner].produced(me).get(epoch) > index)
                || self
                    .to_push
                    .iter()
                    .enumerate()
                    .any(|(source, &(rows, pushed))| pushed < rows && self.free(source, pushed) > 0)
        };
        let wait = world.wait(Phase::CombineStaging, epoch);
        world.wait_until(wait, culprit, world.own().door(), ready)
    }
}
