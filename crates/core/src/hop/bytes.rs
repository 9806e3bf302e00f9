//! Little-endian words in byte slices, without panics: what is read here was written by a peer.

/// The `N` bytes at `at`, if they are there.
pub(super) fn get<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The u16 at `at`.
pub(super) fn get_u16(bytes: &[u8], at: usize) -> Option<u16> {
    get(bytes, at).map(u16::from_le_bytes)
}

/// The u32 at `at`.
pub(super) fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    get(bytes, at).map(u32::from_le_bytes)
}

/// The u64 at `at`.
pub(super) fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    get(bytes, at).map(u64::from_le_bytes)
}

/// Writes `value` at `at`; `None` when there is no room for it.
pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes.get_mut(at..)?.get_mut(..value.len())?.copy_from_slice(value);
    Some(())
}

/// Writes 4-byte little-endian words from `at` on; `None` when there is no room for all.
pub(super) fn put_words(bytes: &mut [u8], at: usize, words: impl Iterator<Item = [u8; 4]>) -> Option<()> {
    let mut at = at;
    for word in words {
        put(bytes, at, &word)?;
        at += 4;
    }
    Some(())
}

/// The 4-byte words of `bytes`; a rest of fewer bytes is left out.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    bytes.as_chunks::<4>().0.iter().copied()
}
