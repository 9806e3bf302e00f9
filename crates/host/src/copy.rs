//! Copies of whole rows: through the cache, or past it with non-temporal stores.

use crate::simd::Simd;

/// How rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Through the cache: right when the receiver soon reads what fits there.
    Cached,
    /// Past the cache: no read for ownership of the target lines, so beyond the cache each row written
    /// costs one memory transfer instead of two.
    NonTemporal,
}

/// Copies rows one after another with one instruction set and kind of store.
#[derive(Clone, Copy, Debug)]
pub struct Copier {
    simd: Simd,
    stores: Stores,
}

impl Copier {
    /// A copier. Without AVX2 (or on another architecture) non-temporal means cached.
    pub fn new(simd: Simd, stores: Stores) -> Self {
        Self { simd, stores }
    }

    /// Copies `bytes` bytes. Call [`Copier::finish`] before telling anybody.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `bytes` bytes, and they must not overlap.
    #[inline]
    pub unsafe fn copy(self, src: *const u8, dst: *mut u8, bytes: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.stores == Stores::NonTemporal {
            match self.simd {
                // SAFETY: the caller's promise, and `Simd` is only made for sets this CPU has.
                Simd::Avx512 => return unsafe { x86::stream_avx512(src, dst, bytes) },
                // SAFETY: as above.
                Simd::Avx2 => return unsafe { x86::stream_avx2(src, dst, bytes) },
                Simd::Portable => {}
            }
        }
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) }
    }

    /// Orders non-temporal stores before any later store: they are weakly ordered, and a release store does
    /// not wait for them.
    #[inline]
    pub fn finish(self) {
        #[cfg(target_arch = "x86_64")]
        if self.stores == Stores::NonTemporal && self.simd != Simd::Portable {
            // SAFETY: every x86-64 CPU has SSE.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }

    /// Asks for `lines` cache lines that are read soon.
    #[inline]
    pub fn prefetch(src: *const u8, lines: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            for line in 0..lines {
                // SAFETY: a prefetch never faults, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(64 * line).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (src, lines);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    /// # Safety
    /// As [`super::Copier::copy`]; the CPU must have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn stream_avx512(src: *const u8, dst: *mut u8, bytes: usize) {
        // SAFETY: head, body and tail lie inside the caller's ranges, and the body's target is aligned.
        unsafe {
            let head = dst.align_offset(64).min(bytes);
            std::ptr::copy_nonoverlapping(src, dst, head);
            let mut at = head;
            while at + 256 <= bytes {
                let from = src.add(at);
                let to = dst.add(at);
                let a = _mm512_loadu_si512(from.cast::<__m512i>());
                let b = _mm512_loadu_si512(from.add(64).cast::<__m512i>());
                let c = _mm512_loadu_si512(from.add(128).cast::<__m512i>());
                let d = _mm512_loadu_si512(from.add(192).cast::<__m512i>());
                _mm512_stream_si512(to.cast::<__m512i>(), a);
                _mm512_stream_si512(to.add(64).cast::<__m512i>(), b);
                _mm512_stream_si512(to.add(128).cast::<__m512i>(), c);
                _mm512_stream_si512(to.add(192).cast::<__m512i>(), d);
                at += 256;
            }
            while at + 64 <= bytes {
                _mm512_stream_si512(
                    dst.add(at).cast::<__m512i>(),
                    _mm512_loadu_si512(src.add(at).cast::<__m512i>()),
                );
                at += 64;
            }
            std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), bytes - at);
        }
    }

    /// # Safety
    /// As [`super::Copier::copy`]; the CPU must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn stream_avx2(src: *const u8, dst: *mut u8, bytes: usize) {
        // SAFETY: as in `stream_avx512`.
        unsafe {
            let head = dst.align_offset(32).min(bytes);
            std::ptr::copy_nonoverlapping(src, dst, head);
            let mut at = head;
            while at + 64 <= bytes {
                let a = _mm256_loadu_si256(src.add(at).cast::<__m256i>());
                let b = _mm256_loadu_si256(src.add(at + 32).cast::<__m256i>());
                _mm256_stream_si256(dst.add(at).cast::<__m256i>(), a);
                _mm256_stream_si256(dst.add(at + 32).cast::<__m256i>(), b);
                at += 64;
            }
            std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), bytes - at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_copies_every_length_and_alignment() {
        let source: Vec<u8> = (0..2048u32).map(|i| (i * 31 % 251) as u8).collect();
        for simd in Simd::available() {
            for stores in [Stores::Cached, Stores::NonTemporal] {
                let copier = Copier::new(simd, stores);
                for (from, to) in [(0, 0), (1, 0), (0, 1), (5, 17), (33, 62)] {
                    for bytes in (0..600).chain([1000, 1537]) {
                        let mut target = vec![0xEEu8; 2048];
                        // SAFETY: both ranges lie inside their vectors.
                        unsafe { copier.copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), bytes) };
                        copier.finish();
                        assert_eq!(&target[to..to + bytes], &source[from..from + bytes], "{simd} {bytes}");
                        assert!(target[..to].iter().chain(&target[to + bytes..]).all(|&b| b == 0xEE));
                    }
                }
            }
        }
    }
}
