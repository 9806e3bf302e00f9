//! Plain memory that can be registered.

use std::cell::UnsafeCell;
use std::ops::Range;

use crate::transport::Memory;

/// Zeroed host memory that a transport may write at any time, so that it is read and written by copies.
///
/// Threads that copy the same bytes at once get a mixture, as with memory that a NIC writes; whoever waits for
/// [`Completion::Arrived`](crate::Completion::Arrived) first does not.
#[derive(Debug)]
pub struct Buffer(Box<[UnsafeCell<u8>]>);

// SAFETY: bytes have no owner thread; all access is by copies through raw pointers, and the order of copies is the user's
// protocol, as `Memory` says.
unsafe impl Send for Buffer {}
// SAFETY: as above; no reference to a byte is ever given out.
unsafe impl Sync for Buffer {}

// SAFETY: the box lives as long as the value and never moves its bytes; nobody gets a reference to them.
unsafe impl Memory for Buffer {
    fn base(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.0.as_ptr())
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Buffer {
    /// `bytes` bytes of zero.
    pub fn new(bytes: usize) -> Self {
        Self(std::iter::repeat_with(|| UnsafeCell::new(0)).take(bytes).collect())
    }

    /// Copies `from` to `offset`; `None`, and nothing is copied, when it does not fit.
    #[must_use = "what does not fit is not copied"]
    pub fn put(&self, offset: usize, from: &[u8]) -> Option<()> {
        let range = self.inside(offset, from.len())?;
        // SAFETY: the range is inside of the box, and no reference to its bytes exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base().add(range.start), range.len()) };
        Some(())
    }

    /// A copy of the bytes of `range`; `None` when they are not all inside.
    pub fn get(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let range = self.inside(range.start, range.end.checked_sub(range.start)?)?;
        let mut out = vec![0; range.len()];
        // SAFETY: the range is inside of the box, and no reference to its bytes exists.
        unsafe { std::ptr::copy_nonoverlapping(self.base().add(range.start), out.as_mut_ptr(), range.len()) };
        Some(out)
    }

    fn inside(&self, offset: usize, bytes: usize) -> Option<Range<usize>> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.0.len())?;
        Some(offset..end)
    }
}

#[cfg(test)]
#[allow(clippy::reversed_empty_ranges, reason = "outside data may be")]
mod tests {
    use super::Buffer;

    #[test]
    fn copies_stay_inside() {
        let buffer = Buffer::new(8);
        assert_eq!(buffer.put(3, &[1, 2, 3]), Some(()));
        assert_eq!(buffer.get(0..8), Some(vec![0, 0, 0, 1, 2, 3, 0, 0]));
        assert_eq!(buffer.put(6, &[1, 2, 3]), None);
        assert_eq!(buffer.put(usize::MAX, &[1]), None);
        assert_eq!((buffer.get(7..9), buffer.get(5..4), buffer.get(8..8)), (None, None, Some(vec![])));
    }
}
