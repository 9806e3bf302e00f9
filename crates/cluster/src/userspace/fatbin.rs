//! GPU code inside a library: which architectures, machine code or PTX. Only headers are read, whatever the size of the code.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Seek, SeekFrom};

use memchr::memmem::Finder;

use crate::facts::CubinArch;

/// What a container begins with, little-endian 0xBA55ED50.
const MAGIC: [u8; 4] = [0x50, 0xed, 0x55, 0xba];

/// More containers and entries than any library has: PyTorch's largest has some ten thousand.
const ENTRIES: usize = 1 << 18;

/// Bytes read between containers, where only padding is expected: so many at first, and up to so many at a time. Were all of it read
/// at once, a hostile file of container marks would be read thousands of times over.
const FIRST: usize = 256;
const CHUNK: usize = 64 << 10;

/// Containers are aligned to 8 bytes; more than this without one is something else, and is not searched through.
const GAP: u64 = 64 << 20;

/// Architectures of the containers in `length` bytes of `data` from `start` on.
///
/// A container has a header of 16 bytes (magic, version 1, size of the header, size of what follows). Its entries have a header of
/// their own: kind (1 PTX, 2 machine code) at 0, its size at 4, the content's at 8, architecture at 28. Compressed content has a plain
/// header.
pub fn fatbin(data: &mut (impl Read + Seek), start: u64, length: u64) -> BTreeSet<CubinArch> {
    let mut archs = BTreeSet::new();
    let end = start.saturating_add(length);
    let (mut at, mut left) = (start, ENTRIES);
    while left > 0
        && let Some(found) = find(data, at, end)
    {
        at = found + 4;
        left -= 1;
        let Some(header) = read::<16>(data, found, end) else { continue };
        // Version 1 and a header of 16 bytes: the only kind there is.
        if word(&header, 4) != Some(0x0010_0001) {
            continue;
        }
        let Some(size) = long(&header, 8) else { continue };
        let inside = (found + 16).saturating_add(size).min(end);
        at = entries(data, found + 16..inside, &mut left, &mut archs).max(at);
    }
    archs
}

/// Walks the entries of one container; gives where it stopped.
fn entries(
    data: &mut (impl Read + Seek),
    inside: std::ops::Range<u64>,
    left: &mut usize,
    archs: &mut BTreeSet<CubinArch>,
) -> u64 {
    let mut at = inside.start;
    while *left > 0
        && let Some(header) = read::<32>(data, at, inside.end)
        && let (Some(kind), Some(head), Some(content), Some(sm)) =
            (word(&header, 0), word(&header, 4), long(&header, 8), word(&header, 28))
    {
        *left -= 1;
        let step = u64::from(head).saturating_add(content);
        if head < 32 || step > inside.end - at {
            break;
        }
        let kind = kind & 0xffff;
        if (kind == 1 || kind == 2) && (30..1000).contains(&sm) {
            archs.insert(CubinArch { sm, ptx: kind == 1, suffix: String::new() });
        }
        at += step;
    }
    at
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn read<const N: usize>(data: &mut (impl Read + Seek), at: u64, end: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if at.checked_add(N as u64)? > end {
        return None;
    }
    data.seek(SeekFrom::Start(at)).ok()?;
    data.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Where the next container begins, from `at` on.
fn find(data: &mut (impl Read + Seek), at: u64, end: u64) -> Option<u64> {
    // As a rule right here, or after padding.
    if let Some(bytes) = read::<4>(data, at, end)
        && bytes == MAGIC
    {
        return Some(at);
    }
    let finder = Finder::new(&MAGIC);
    let mut buffer = vec![0; FIRST];
    data.seek(SeekFrom::Start(at)).ok()?;
    let (mut base, mut kept) = (at, 0);
    while base < end && base - at < GAP {
        let count = match data.read(buffer.get_mut(kept..)?) {
            Ok(0) => return None,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return None,
        };
        let filled = kept + count;
        if let Some(found) = finder.find(buffer.get(..filled)?) {
            let found = base + found as u64;
            return (found + 4 <= end).then_some(found);
        }
        // A magic may straddle two reads.
        kept = filled.min(3);
        buffer.copy_within(filled - kept..filled, 0);
        base += (filled - kept) as u64;
        buffer.resize((buffer.len() * 4).min(CHUNK), 0);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn entry(kind: u16, sm: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([1, 1]);
        bytes.extend(64_u32.to_le_bytes());
        bytes.extend((content.len() as u64).to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend(sm.to_le_bytes());
        bytes.extend([0; 32]);
        bytes.extend(content);
        bytes
    }

    fn container(entries: &[Vec<u8>]) -> Vec<u8> {
        let inside = entries.concat();
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0, 16, 0]);
        bytes.extend((inside.len() as u64).to_le_bytes());
        bytes.extend(inside);
        bytes
    }

    fn archs(bytes: &[u8]) -> Vec<(u32, bool)> {
        let all = fatbin(&mut Cursor::new(bytes), 0, bytes.len() as u64);
        all.into_iter().map(|arch| (arch.sm, arch.ptx)).collect()
    }

    #[test]
    fn several_containers_with_padding_between() {
        let mut bytes = container(&[entry(2, 90, &[7; 100]), entry(1, 90, b"PTX")]);
        bytes.extend([0; 13]);
        bytes.extend(container(&[entry(2, 100, &[])]));
        assert_eq!(archs(&bytes), [(90, false), (90, true), (100, false)]);
        // Bytes around are not looked at.
        let at = bytes.len() as u64;
        bytes.extend(container(&[entry(2, 103, &[])]));
        let last: Vec<u32> =
            fatbin(&mut Cursor::new(&bytes), at, 1 << 20).into_iter().map(|arch| arch.sm).collect();
        assert_eq!(last, [103]);
        assert_eq!(fatbin(&mut Cursor::new(&bytes), at, 40).len(), 0);
    }

    #[test]
    fn a_container_that_straddles_two_reads() {
        let gaps = [FIRST, 5 * FIRST, CHUNK].into_iter().flat_map(|size| size - 8..size + 2);
        for gap in gaps.chain([3 * CHUNK + 5]) {
            let mut bytes = vec![0; gap];
            bytes.extend(container(&[entry(2, 90, &[])]));
            assert_eq!(archs(&bytes), [(90, false)], "gap {gap}");
        }
    }

    #[test]
    fn broken_ones_end() {
        let good = container(&[entry(2, 90, &[1; 8])]);
        for cut in 0..good.len() {
            let _ = archs(&good[..cut]);
        }
        // Sizes beyond everything, of nothing, and a container in a container's place.
        let mut huge = good.clone();
        huge[8..16].fill(0xff);
        assert_eq!(archs(&huge), [(90, false)]);
        huge[24..32].fill(0xff);
        assert_eq!(archs(&huge), []);
        let mut none = good.clone();
        none[20..24].fill(0);
        assert_eq!(archs(&none), []);
        let start = std::time::Instant::now();
        let _ = archs(&MAGIC.repeat(1 << 20));
        let _ = archs(&container(&[]).repeat(1 << 18));
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }

    /// Counts the bytes that are read.
    struct Counted<'a>(Cursor<&'a [u8]>, u64);

    impl Read for Counted<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = self.0.read(buffer)?;
            self.1 += count as u64;
            Ok(count)
        }
    }

    impl Seek for Counted<'_> {
        fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn marks_that_begin_nothing_do_not_multiply_what_is_read() {
        for gap in [1, 12, 300, 5000] {
            let mut mark = MAGIC.to_vec();
            mark.extend(vec![1; gap]);
            let bytes = mark.repeat((1 << 20) / mark.len());
            let mut data = Counted(Cursor::new(&bytes), 0);
            assert!(fatbin(&mut data, 0, bytes.len() as u64).is_empty());
            // Each mark costs its own bytes, a header, and what is read ahead of the next: at most 256, or four times the way to it.
            let marks = (bytes.len() / mark.len()) as u64 + 1;
            let most = marks * (20 + 4 + 256 + 5 * gap as u64);
            assert!(data.1 <= most, "gap {gap}: {} of {} bytes", data.1, bytes.len());
        }
    }
}
