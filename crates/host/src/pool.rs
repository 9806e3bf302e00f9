//! Ranges of a rank's segment that hold outputs.
//!
//! Only the owner allocates, so the bookkeeping is private; peers get a range as an offset in a notify record.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ranges start and end at multiples of this: whole pages, so that trimming and release act on pages.
pub(crate) const GRAIN: usize = 4096;

/// First-fit allocator over one range of a segment. The lowest fitting range is taken, so steady use touches
/// the same pages again and again and memory stays at what is live.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Free ranges: start -> bytes, never adjacent.
    free: Mutex<BTreeMap<usize, usize>>,
    closed: AtomicBool,
}

/// A range of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Pool {
    /// All of `offset..offset + bytes` is free.
    pub(crate) fn new(offset: usize, bytes: usize) -> Self {
        let mut free = BTreeMap::new();
        if bytes > 0 {
            free.insert(offset, bytes);
        }
        Self { free: Mutex::new(free), closed: AtomicBool::new(false) }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, usize>> {
        // A panic between two map operations leaves at worst a range leaked, never shared.
        self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Nothing is taken from here on. After a failure a peer may still write rows to a slice of the failed call, so
    /// no slice may be handed out again.
    pub(crate) fn close(&self) {
        let mut free = self.free();
        self.closed.store(true, Ordering::Relaxed);
        free.clear();
    }

    /// Takes `bytes`, rounded up to whole grains; `None` when no free range is large enough.
    pub(crate) fn take(&self, bytes: usize) -> Option<Range> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        let mut free = self.free();
        let (&offset, &available) = free.iter().find(|&(_, &available)| available >= bytes)?;
        free.remove(&offset);
        if available > bytes {
            free.insert(offset + bytes, available - bytes);
        }
        Some(Range { offset, bytes })
    }

    /// Gives the end of a range back, keeping at least `bytes`.
    pub(crate) fn trim(&self, range: Range, bytes: usize) -> Range {
        let kept = bytes.max(1).next_multiple_of(GRAIN);
        if kept < range.bytes {
            self.put(Range { offset: range.offset + kept, bytes: range.bytes - kept });
            Range { offset: range.offset, bytes: kept }
        } else {
            range
        }
    }

    /// Gives a whole range back.
    pub(crate) fn put(&self, range: Range) {
        let mut free = self.free();
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        let (mut offset, mut bytes) = (range.offset, range.bytes);
        if let Some((&before, &length)) = free.range(..offset).next_back()
            && before + length == offset
        {
            free.remove(&before);
            offset = before;
            bytes += length;
        }
        if let Some(length) = free.remove(&(range.offset + range.bytes)) {
            bytes += length;
        }
        free.insert(offset, bytes);
    }

    /// Free bytes, in all.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.free().values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(steps in prop::collection::vec((0usize..3, 1usize..9), 1..80)) {
            let (start, total) = (7 * GRAIN, 32 * GRAIN);
            let pool = Pool::new(start, total);
            let mut live: Vec<Range> = Vec::new();
            for (what, size) in steps {
                match what {
                    0 | 1 => {
                        if let Some(mut range) = pool.take(size * GRAIN - 5) {
                            if what == 1 {
                                range = pool.trim(range, size * GRAIN / 2);
                            }
                            prop_assert!(range.offset >= start && range.offset + range.bytes <= start + total);
                            for other in &live {
                                prop_assert!(
                                    range.offset + range.bytes <= other.offset
                                        || other.offset + other.bytes <= range.offset
                                );
                            }
                            live.push(range);
                        }
                    }
                    _ => {
                        if !live.is_empty() {
                            pool.put(live.remove(size % live.len()));
                        }
                    }
                }
                let used: usize = live.iter().map(|r| r.bytes).sum();
                prop_assert_eq!(pool.free_bytes() + used, total);
            }
            for range in live {
                pool.put(range);
            }
            prop_assert_eq!(pool.take(total).map(|r| r.bytes), Some(total), "all free space is one range");
        }
    }

    #[test]
    fn a_closed_pool_hands_nothing_out_again() {
        let pool = Pool::new(0, 4 * GRAIN);
        let live = pool.take(GRAIN).unwrap();
        pool.close();
        pool.put(live);
        assert_eq!(pool.take(1), None);
    }

    #[test]
    fn refuses_what_cannot_fit() {
        let pool = Pool::new(0, 2 * GRAIN);
        assert!(pool.take(2 * GRAIN + 1).is_none());
        assert!(pool.take(usize::MAX).is_none());
        assert!(Pool::new(0, 0).take(1).is_none());
    }
}
