//! Ranges of this rank's symmetric memory that hold outputs, given back in stream order.
//!
//! On a GPU a range is dropped by the host while kernels may still read it. So a free range carries the events of the
//! streams that may (DESIGN 5.1, Pool), and whoever publishes it to peers again first waits for those. The host never
//! waits, and a range that nobody has used waits for nothing.
//!
//! This is not the allocator of the CPU backend: there a dropped range is free at once, so that neighbours always merge
//! and a free range is an offset and a length. Here neighbours merge only if they wait for the same events, and a
//! request may span several of them; what the two would share is a map and a lock.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// First-fit allocator over one range of symmetric memory, for any number of threads. The lowest fitting range is taken,
/// so that steady use touches the same pages again and again.
///
/// `E` stands for one recording of an event: equal tokens are the same point of the same stream, and a token that is
/// done stays done. An event that is recorded anew needs a new token.
#[derive(Debug)]
pub(crate) struct Pool<E> {
    state: Mutex<State<E>>,
    grain: usize,
}

#[derive(Debug)]
struct State<E> {
    /// Free pieces by offset. Adjacent ones differ in their events.
    free: BTreeMap<usize, Piece<E>>,
    /// Ranges that are out.
    live: usize,
    closed: bool,
}

#[derive(Debug)]
struct Piece<E> {
    bytes: usize,
    /// No two are equal. The order means nothing.
    ///
    /// There are as many as the `put` that freed the piece brought, without repetitions: merging cannot add any,
    /// since only pieces with the same events merge, and none is ever left out to keep the list short, because its
    /// reader's rows would be overwritten. Beyond some four to a `put` come only the streams that a user recorded.
    after: Vec<E>,
}

/// A range of the symmetric memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Where it starts, in bytes from the start of the memory.
    pub(crate) offset: usize,
    /// How long it is.
    pub(crate) bytes: usize,
}

impl Range {
    fn end(self) -> usize {
        self.offset + self.bytes
    }
}

/// A range that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken<E> {
    /// The range.
    pub(crate) range: Range,
    /// What must have happened before the range is published to peers, each event once. A range that is given back
    /// without having been published goes back with these.
    pub(crate) after: Vec<E>,
}

impl<E: Clone + PartialEq> Pool<E> {
    /// All whole grains of `offset..offset + bytes` are free and wait for nothing. Ranges start and end at multiples of
    /// `grain` bytes (at least 1).
    pub(crate) fn new(offset: usize, bytes: usize, grain: usize) -> Self {
        let grain = grain.max(1);
        let end = offset.saturating_add(bytes) / grain * grain;
        let start = offset.checked_next_multiple_of(grain).unwrap_or(end);
        let mut free = BTreeMap::new();
        if start < end {
            free.insert(start, Piece { bytes: end - start, after: Vec::new() });
        }
        Self { state: Mutex::new(State { free, live: 0, closed: false }), grain }
    }

    /// A poisoned lock is used on: the methods below run the code of `E` (clone, compare) before each change of the
    /// map, so that a panic in it loses at worst the range in hand, and no range is ever handed out twice.
    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `bytes` in whole grains, at least one.
    fn whole(&self, bytes: usize) -> Option<usize> {
        bytes.max(1).checked_next_multiple_of(self.grain)
    }

    /// Takes `bytes`, rounded up to whole grains; `None` when no contiguous free memory is large enough, or the pool is
    /// closed. Its events are those of every freed piece that the range overlaps, and no others.
    pub(crate) fn take(&self, bytes: usize) -> Option<Taken<E>> {
        let bytes = self.whole(bytes)?;
        let mut state = self.state();
        let range = Range { offset: state.first_fit(bytes)?, bytes };
        let mut after = Vec::new();
        let mut rest = None;
        for (&offset, piece) in state.free.range(range.offset..range.end()) {
            add_new(&mut after, &piece.after);
            let end = offset + piece.bytes;
            if end > range.end() {
                rest = Some(Piece { bytes: end - range.end(), after: piece.after.clone() });
            }
        }
        while let Some((&offset, _)) = state.free.range(range.offset..range.end()).next() {
            state.free.remove(&offset);
        }
        if let Some(rest) = rest {
            state.free.insert(range.end(), rest);
        }
        state.live += 1;
        Some(Taken { range, after })
    }

    /// Gives the end of a range back at once, keeping at least `bytes` in whole grains. The end waits for nothing, so
    /// the range must have been published (what it waited for has then happened) and nobody may have used the end: the
    /// counts that have arrived say that no row goes there.
    pub(crate) fn trim(&self, range: Range, bytes: usize) -> Range {
        let kept = self.whole(bytes).map_or(range.bytes, |kept| kept.min(range.bytes));
        let kept = Range { offset: range.offset, bytes: kept };
        self.state().free(Range { offset: kept.end(), bytes: range.bytes - kept.bytes }, Vec::new());
        kept
    }

    /// Gives a whole range back. Nobody is handed it again without `after`.
    pub(crate) fn put(&self, range: Range, after: Vec<E>) {
        let mut distinct = Vec::with_capacity(after.len());
        add_new(&mut distinct, &after);
        let mut state = self.state();
        state.live = state.live.saturating_sub(1);
        state.free(range, distinct);
        drop(state);
        // As in `forget_done`: what merging left out is destroyed here.
        drop(after);
    }

    /// Drops the events for which `done` is true, so that nobody waits for them or keeps them alive. `done` is asked
    /// once for each event, without the lock: it may call the driver, or this pool.
    pub(crate) fn forget_done(&self, mut done: impl FnMut(&E) -> bool) {
        let mut gone = Vec::new();
        for piece in self.state().free.values() {
            add_new(&mut gone, &piece.after);
        }
        gone.retain(|event| done(event));
        if gone.is_empty() {
            return;
        }
        // `gone` outlives the lock, so that the last owner of an event, who destroys it, is never inside.
        let mut state = self.state();
        for piece in state.free.values_mut() {
            piece.after.retain(|event| !gone.contains(event));
        }
        state.merge();
    }

    /// Nothing is taken from here on, and what comes back is not kept. After a failure a peer may still write rows to a
    /// slice of the failed call, so no slice may be handed out again.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let free = std::mem::take(&mut state.free);
        drop(state);
        drop(free);
    }

    /// Free bytes, in all; 0 once closed.
    pub(crate) fn free_bytes(&self) -> usize {
        self.state().free.values().map(|piece| piece.bytes).sum()
    }

    /// The most bytes that [`Pool::take`] can give now.
    pub(crate) fn largest_free(&self) -> usize {
        self.state().runs().map(|run| run.bytes).max().unwrap_or(0)
    }

    /// Ranges that are out: taken and not given back, counted on after a close.
    pub(crate) fn live(&self) -> usize {
        self.state().live
    }
}

impl<E: Clone + PartialEq> State<E> {
    /// Contiguous free memory by ascending offset, whatever its pieces wait for. A run is given again, longer, for each
    /// further piece of it, so that who looks for a length can stop early.
    fn runs(&self) -> impl Iterator<Item = Range> {
        self.free.iter().scan(Range { offset: 0, bytes: 0 }, |run, (&offset, piece)| {
            *run = if run.end() == offset {
                Range { offset: run.offset, bytes: run.bytes + piece.bytes }
            } else {
                Range { offset, bytes: piece.bytes }
            };
            Some(*run)
        })
    }

    fn first_fit(&self, bytes: usize) -> Option<usize> {
        self.runs().find(|run| run.bytes >= bytes).map(|run| run.offset)
    }

    /// Makes `range` free after `after`, in which no two are equal.
    fn free(&mut self, range: Range, after: Vec<E>) {
        if self.closed || range.bytes == 0 {
            return;
        }
        let before = self.free.range(..range.offset).next_back().and_then(|(&offset, piece)| {
            (offset + piece.bytes == range.offset && same(&piece.after, &after)).then_some(offset)
        });
        let behind = self.free.get(&range.end()).is_some_and(|piece| same(&piece.after, &after));

        let mut merged = range;
        if behind && let Some(piece) = self.free.remove(&range.end()) {
            merged.bytes += piece.bytes;
        }
        if let Some(piece) = before.and_then(|offset| self.free.get_mut(&offset)) {
            piece.bytes += merged.bytes;
        } else {
            self.free.insert(merged.offset, Piece { bytes: merged.bytes, after });
        }
    }

    /// Merges neighbours that have come to wait for the same events.
    fn merge(&mut self) {
        let mut next = self.free.first_key_value().map(|(&offset, _)| offset);
        while let Some(offset) = next {
            let Some(piece) = self.free.get(&offset) else { return };
            let end = offset + piece.bytes;
            if self.free.get(&end).is_some_and(|behind| same(&piece.after, &behind.after)) {
                let bytes = self.free.remove(&end).map_or(0, |behind| behind.bytes);
                if let Some(piece) = self.free.get_mut(&offset) {
                    piece.bytes += bytes;
                }
            } else {
                next = self.free.range(end..).next().map(|(&offset, _)| offset);
            }
        }
    }
}

/// Adds those of `events` that `to` does not have.
fn add_new<E: Clone + PartialEq>(to: &mut Vec<E>, events: &[E]) {
    for event in events {
        if !to.contains(event) {
            to.push(event.clone());
        }
    }
}

/// Whether two lists without repetitions have the same events, in any order.
fn same<E: PartialEq>(a: &[E], b: &[E]) -> bool {
    a.len() == b.len() && a.iter().all(|event| b.contains(event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const GRAIN: usize = 4096;
    const FIRST: usize = 7;
    const GRAINS: usize = 24;

    fn pool() -> Pool<u8> {
        Pool::new(FIRST * GRAIN, GRAINS * GRAIN, GRAIN)
    }

    fn range(first: usize, grains: usize) -> Range {
        Range { offset: (FIRST + first) * GRAIN, bytes: grains * GRAIN }
    }

    fn set(events: &[u8]) -> BTreeSet<u8> {
        events.iter().copied().collect()
    }

    /// The pool as one cell for each grain: who waits for what, or nobody may have it.
    struct Model(Vec<Option<BTreeSet<u8>>>);

    impl Model {
        fn fits(&self, first: usize, grains: usize) -> bool {
            first + grains <= GRAINS && self.0[first..first + grains].iter().all(Option::is_some)
        }

        fn take(&mut self, grains: usize) -> Option<(Range, BTreeSet<u8>)> {
            let first = (0..GRAINS).find(|&first| self.fits(first, grains))?;
            let cells = self.0[first..first + grains].iter_mut();
            Some((range(first, grains), cells.filter_map(Option::take).flatten().collect()))
        }

        fn free(&mut self, range: Range, after: &BTreeSet<u8>) {
            let first = range.offset / GRAIN - FIRST;
            for cell in &mut self.0[first..first + range.bytes / GRAIN] {
                assert!(cell.is_none(), "freed twice");
                *cell = Some(after.clone());
            }
        }

        fn largest(&self) -> usize {
            let all = (0..GRAINS).flat_map(|first| (0..=GRAINS).map(move |grains| (first, grains)));
            all.filter(|&(first, grains)| self.fits(first, grains)).map(|(_, grains)| grains).max().unwrap()
        }

        /// Maximal stretches of free cells with equal events.
        fn pieces(&self) -> usize {
            (0..GRAINS).filter(|&i| self.0[i].is_some() && (i == 0 || self.0[i - 1] != self.0[i])).count()
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { bytes: usize },
        Trim { which: usize, bytes: usize },
        Put { which: usize, after: Vec<u8> },
        GiveUp { which: usize },
        ForgetDone { done: BTreeSet<u8> },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..9 * GRAIN).prop_map(|bytes| Step::Take { bytes }),
            1 => (any::<usize>(), 0..9 * GRAIN).prop_map(|(which, bytes)| Step::Trim { which, bytes }),
            // Few different events, so that neighbours often have the same ones, in another order or twice.
            3 => (any::<usize>(), prop::collection::vec(0u8..4, 0..4))
                .prop_map(|(which, after)| Step::Put { which, after }),
            1 => any::<usize>().prop_map(|which| Step::GiveUp { which }),
            1 => prop::collection::btree_set(0u8..4, 0..3).prop_map(|done| Step::ForgetDone { done }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn agrees_with_one_cell_for_each_grain(steps in prop::collection::vec(step(), 1..60)) {
            let pool = pool();
            let mut model = Model(vec![Some(BTreeSet::new()); GRAINS]);
            let mut live: Vec<Taken<u8>> = Vec::new();
            for step in steps {
                match step {
                    Step::Take { bytes } => {
                        let taken = pool.take(bytes);
                        let expected = model.take(bytes.div_ceil(GRAIN).max(1));
                        prop_assert_eq!(taken.as_ref().map(|t| (t.range, set(&t.after))), expected);
                        if let Some(taken) = taken {
                            prop_assert_eq!(set(&taken.after).len(), taken.after.len(), "an event twice");
                            for other in &live {
                                prop_assert!(
                                    taken.range.end() <= other.range.offset
                                        || other.range.end() <= taken.range.offset
                                );
                            }
                            live.push(taken);
                        }
                    }
                    Step::Trim { which, bytes } if !live.is_empty() => {
                        let which = which % live.len();
                        let whole = live[which].range;
                        let kept = pool.trim(whole, bytes);
                        let grains = bytes.div_ceil(GRAIN).max(1).min(whole.bytes / GRAIN);
                        prop_assert_eq!(kept, Range { offset: whole.offset, bytes: grains * GRAIN });
                        model.free(
                            Range { offset: kept.end(), bytes: whole.bytes - kept.bytes },
                            &BTreeSet::new(),
                        );
                        live[which].range = kept;
                    }
                    Step::Put { which, after } if !live.is_empty() => {
                        let taken = live.swap_remove(which % live.len());
                        model.free(taken.range, &set(&after));
                        pool.put(taken.range, after);
                    }
                    Step::GiveUp { which } if !live.is_empty() => {
                        let taken = live.swap_remove(which % live.len());
                        model.free(taken.range, &set(&taken.after));
                        pool.put(taken.range, taken.after);
                    }
                    Step::ForgetDone { done } => {
                        let mut asked = Vec::new();
                        pool.forget_done(|event| {
                            asked.push(*event);
                            done.contains(event)
                        });
                        let held: BTreeSet<u8> = model.0.iter().flatten().flatten().copied().collect();
                        prop_assert_eq!(set(&asked), held);
                        prop_assert_eq!(set(&asked).len(), asked.len(), "an event asked twice");
                        for cell in model.0.iter_mut().flatten() {
                            cell.retain(|event| !done.contains(event));
                        }
                    }
                    Step::Trim { .. } | Step::Put { .. } | Step::GiveUp { .. } => {}
                }
                let free = model.0.iter().flatten().count();
                let used: usize = live.iter().map(|taken| taken.range.bytes).sum();
                prop_assert_eq!(pool.free_bytes(), free * GRAIN);
                prop_assert_eq!(pool.free_bytes() + used, GRAINS * GRAIN);
                prop_assert_eq!(pool.largest_free(), model.largest() * GRAIN);
                prop_assert_eq!(pool.live(), live.len());
                prop_assert_eq!(pool.state().free.len(), model.pieces(), "equal neighbours are one piece");
            }
            for taken in live {
                pool.put(taken.range, vec![9]);
            }
            pool.forget_done(|_| true);
            prop_assert_eq!(pool.state().free.len(), 1);
            let all = Taken { range: range(0, GRAINS), after: vec![] };
            prop_assert_eq!(pool.take(GRAINS * GRAIN), Some(all));
        }
    }

    #[test]
    fn only_the_freed_pieces_that_a_range_overlaps_are_waited_for() {
        let pool = pool();
        let [a, b, c] = [2, 3, 4].map(|grains| pool.take(grains * GRAIN).unwrap().range);
        assert_eq!([a, b, c], [range(0, 2), range(2, 3), range(5, 4)]);
        pool.put(a, vec![1]);
        pool.put(b, vec![2, 1, 2]);
        pool.put(c, vec![3]);
        assert_eq!(pool.take(GRAIN), Some(Taken { range: range(0, 1), after: vec![1] }));
        // The rest of a, b, and one grain of c.
        assert_eq!(pool.take(5 * GRAIN), Some(Taken { range: range(1, 5), after: vec![1, 2, 3] }));
        assert_eq!(pool.take(3 * GRAIN), Some(Taken { range: range(6, 3), after: vec![3] }));
        assert_eq!(pool.take(GRAIN), Some(Taken { range: range(9, 1), after: vec![] }), "never used");
    }

    #[test]
    fn a_trimmed_end_waits_for_nothing() {
        let pool = pool();
        let first = pool.take(GRAINS * GRAIN).unwrap();
        pool.put(first.range, vec![1]);
        let second = pool.take(GRAINS * GRAIN).unwrap();
        assert_eq!(second.after, [1]);
        assert_eq!(pool.trim(second.range, 2 * GRAIN + 1), range(0, 3));
        assert_eq!((pool.live(), pool.free_bytes()), (1, 21 * GRAIN));
        assert_eq!(pool.take(21 * GRAIN), Some(Taken { range: range(3, 21), after: vec![] }));
        assert_eq!(pool.trim(range(0, 3), usize::MAX), range(0, 3), "nothing to give back");
        assert_eq!(pool.trim(range(0, 3), 0), range(0, 1), "a range has a grain at least");
    }

    #[test]
    fn no_event_is_left_out_however_many_there_are() {
        let pool = pool();
        let taken = pool.take(GRAIN).unwrap();
        pool.put(taken.range, (0..200).chain(0..200).collect());
        assert_eq!(pool.take(GRAIN).unwrap().after, (0..200).collect::<Vec<u8>>());
    }

    #[test]
    fn a_closed_pool_hands_nothing_out_again() {
        let pool = pool();
        let [a, b] = [1, 2].map(|grains| pool.take(grains * GRAIN).unwrap().range);
        pool.put(a, vec![1]);
        pool.close();
        assert_eq!(pool.trim(b, GRAIN), range(1, 1));
        pool.put(range(1, 1), vec![]);
        assert_eq!(pool.take(1), None);
        assert_eq!((pool.free_bytes(), pool.largest_free(), pool.live()), (0, 0, 0));
    }

    #[test]
    fn refuses_what_cannot_fit_and_uses_whole_grains_only() {
        let pool = Pool::<u8>::new(0, 2 * GRAIN, GRAIN);
        assert_eq!(pool.take(2 * GRAIN + 1), None);
        assert_eq!(pool.take(usize::MAX), None);
        assert_eq!(pool.live(), 0);
        assert_eq!(Pool::<u8>::new(0, 0, GRAIN).take(1), None);
        assert_eq!(Pool::<u8>::new(5, GRAIN, GRAIN).take(1), None);
        assert_eq!(Pool::<u8>::new(usize::MAX - 3, 3, GRAIN).take(1), None);

        let odd = Pool::<u8>::new(1, 3 * GRAIN, GRAIN);
        assert_eq!((odd.free_bytes(), odd.largest_free()), (2 * GRAIN, 2 * GRAIN));
        assert_eq!(odd.take(1).unwrap().range, Range { offset: GRAIN, bytes: GRAIN });
        let bytewise = Pool::<u8>::new(5, 3, 0);
        assert_eq!(bytewise.take(3).unwrap().range, Range { offset: 5, bytes: 3 });
    }

    #[test]
    fn events_are_asked_for_without_the_lock() {
        let pool = pool();
        let [a, b] = [1, 1].map(|grains| pool.take(grains * GRAIN).unwrap().range);
        pool.put(a, vec![1, 2]);
        let mut later = Some(b);
        pool.forget_done(|event| {
            // Given back after the question was put: what is known to be done is forgotten there too.
            if let Some(b) = later.take() {
                pool.put(b, vec![1, 3]);
            }
            *event == 1
        });
        assert_eq!(pool.take(GRAIN), Some(Taken { range: a, after: vec![2] }));
        assert_eq!(pool.take(GRAIN), Some(Taken { range: b, after: vec![3] }));
    }

    /// A token that shows whether it is destroyed while the pool is locked, as an event of the driver would be.
    #[derive(Clone, Debug)]
    struct Watched(Arc<Witness>);

    #[derive(Debug)]
    struct Witness(Arc<Pool<Watched>>, Arc<AtomicBool>);

    impl Drop for Witness {
        fn drop(&mut self) {
            if self.0.state.try_lock().is_err() {
                self.1.store(true, Ordering::Relaxed);
            }
        }
    }

    impl PartialEq for Watched {
        fn eq(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }
    }

    #[test]
    fn no_event_is_destroyed_under_the_lock() {
        let pool = Arc::new(Pool::<Watched>::new(0, 4 * GRAIN, GRAIN));
        let under_lock = Arc::new(AtomicBool::new(false));
        let event = || vec![Watched(Arc::new(Witness(Arc::clone(&pool), Arc::clone(&under_lock))))];
        let [a, b, c] = [1, 1, 1].map(|grains| pool.take(grains * GRAIN).unwrap().range);
        pool.put(a, event());
        pool.put(b, event());
        pool.forget_done(|_| true);
        assert_eq!(pool.take(2 * GRAIN).unwrap().after, []);
        pool.put(a, event());
        drop(pool.take(GRAIN).unwrap());
        pool.put(a, event());
        pool.close();
        pool.put(c, event());
        assert!(!under_lock.load(Ordering::Relaxed));
    }

    /// A token whose comparison fails.
    #[derive(Clone, Debug)]
    struct Fragile(bool);

    impl PartialEq for Fragile {
        fn eq(&self, other: &Self) -> bool {
            assert!(!self.0 && !other.0, "told to");
            true
        }
    }

    #[test]
    fn a_panic_loses_a_range_at_worst() {
        let pool = Arc::new(Pool::<Fragile>::new(0, 4 * GRAIN, GRAIN));
        let [a, b] = [1, 1].map(|grains| pool.take(grains * GRAIN).unwrap().range);
        pool.put(a, vec![Fragile(true)]);
        let other = Arc::clone(&pool);
        let put = std::thread::spawn(move || other.put(b, vec![Fragile(false)]));
        assert!(put.join().is_err(), "comparing a's event panics");
        assert!(pool.state.is_poisoned());
        assert_eq!(pool.take(2 * GRAIN).unwrap().range, Range { offset: 2 * GRAIN, bytes: 2 * GRAIN });
        assert_eq!(pool.take(GRAIN).unwrap().range, a);
        assert!(pool.take(1).is_none(), "b is lost, not shared");
    }

    #[test]
    fn threads_never_hold_the_same_grain() {
        let pool = pool();
        let held: Vec<AtomicBool> = (0..GRAINS).map(|_| AtomicBool::new(false)).collect();
        let cells = |range: Range| {
            let first = range.offset / GRAIN - FIRST;
            &held[first..first + range.bytes / GRAIN]
        };
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (pool, cells) = (&pool, &cells);
                scope.spawn(move || {
                    for turn in 0..2000 {
                        let Some(taken) = pool.take((turn * 7 + thread as usize) % 9 * GRAIN) else {
                            continue;
                        };
                        for cell in cells(taken.range) {
                            assert!(!cell.swap(true, Ordering::Relaxed), "held twice");
                        }
                        for cell in cells(taken.range) {
                            cell.store(false, Ordering::Relaxed);
                        }
                        pool.put(taken.range, vec![thread]);
                        if turn % 64 == 0 {
                            pool.forget_done(|event| *event == thread);
                        }
                    }
                });
            }
        });
        assert_eq!((pool.live(), pool.largest_free()), (0, GRAINS * GRAIN));
    }
}
