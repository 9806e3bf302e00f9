//! `/etc/ld.so.cache`: which file the loader takes for a name, when no search path names one before.
//!
//! The layout is that of glibc's `dl-cache.h`: a head, entries of 24 bytes, then the texts that they point at. It may stand behind the
//! table of an older layout, on a boundary of eight bytes.

/// Where the layout begins.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";

/// Bytes of the head: the magic text, two counts, flags, an offset, three unused words.
const HEAD: usize = 48;
const ENTRY: usize = 24;

/// More entries than any machine has; a machine with all of CUDA has some thousands.
const ENTRIES: usize = 1 << 16;

/// 64-bit ELF of x86 and of Arm, as `ldconfig` marks them: the low byte says glibc's ELF, the next which architecture. An image may be
/// of another architecture than this program.
const KINDS: [u32; 2] = [0x0303, 0x0a03];

/// Names of libraries with the file that each leads to, in the cache's order. A file that is no such cache gives none.
pub fn parse_cache(bytes: &[u8]) -> Vec<(String, String)> {
    let Some(start) = bytes.windows(MAGIC.len()).step_by(8).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let table = bytes.get(start * 8..).unwrap_or_default();
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(table.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    let text = |at: u32| -> Option<String> {
        let rest = table.get(usize::try_from(at).ok()?..)?;
        // A path is no longer than this, and a text without an end is none.
        let end = rest.iter().take(4096).position(|&c| c == 0)?;
        Some(String::from_utf8_lossy(rest.get(..end)?).into_owned())
    };
    let count = word(MAGIC.len()).and_then(|count| usize::try_from(count).ok()).unwrap_or(0).min(ENTRIES);
    (0..count)
        .map_while(|index| {
            let at = HEAD + index * ENTRY;
            Some((word(at)?, word(at + 4)?, word(at + 8)?))
        })
        .filter(|(kind, ..)| KINDS.contains(kind))
        .filter_map(|(_, key, value)| Some((text(key)?, text(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with these entries: kind, name, file.
    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut texts = Vec::new();
        let base = HEAD + entries.len() * ENTRY;
        let mut table = MAGIC.to_vec();
        table.extend(u32::try_from(entries.len()).unwrap().to_le_bytes());
        table.resize(HEAD, 0);
        for (kind, name, file) in entries {
            table.extend(kind.to_le_bytes());
            for text in [name, file] {
                table.extend(u32::try_from(base + texts.len()).unwrap().to_le_bytes());
                texts.extend(text.as_bytes());
                texts.push(0);
            }
            table.resize(table.len() + 12, 0);
        }
        table.extend(texts);
        table
    }

    #[test]
    fn entries_of_64_bits_in_their_order() {
        let table = cache(&[
            (KINDS[0], "libnvshmem_host.so.3", "/opt/nvshmem/lib/libnvshmem_host.so.3"),
            (0x0003, "libold.so", "/usr/lib32/libold.so"),
            (KINDS[0], "libnccl.so.2", "/usr/lib/libnccl.so.2"),
        ]);
        let expected = [
            ("libnvshmem_host.so.3".to_owned(), "/opt/nvshmem/lib/libnvshmem_host.so.3".to_owned()),
            ("libnccl.so.2".to_owned(), "/usr/lib/libnccl.so.2".to_owned()),
        ];
        assert_eq!(parse_cache(&table), expected);
        // Behind the older layout.
        let mut behind = b"ld.so-1.7.0\0\0\0\0\0".to_vec();
        behind.extend(table);
        assert_eq!(parse_cache(&behind), expected);
    }

    #[test]
    fn what_is_no_cache_or_is_cut_gives_what_there_is() {
        assert!(parse_cache(b"").is_empty());
        assert!(parse_cache(b"glibc-ld.so.cache1.1").is_empty());
        let table = cache(&[(KINDS[0], "liba.so", "/a"), (KINDS[0], "libb.so", "/b")]);
        for end in 0..table.len() {
            assert!(parse_cache(&table[..end]).len() <= 2);
        }
        let mut many = table;
        many[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse_cache(&many).len() < 10);
    }

    #[test]
    fn as_ldconfig_prints_it() {
        let Ok(bytes) = std::fs::read("/etc/ld.so.cache") else { return };
        let Ok(output) = std::process::Command::new("ldconfig").arg("-p").output() else { return };
        let printed = String::from_utf8_lossy(&output.stdout);
        let found = parse_cache(&bytes);
        assert!(found.iter().any(|(name, _)| name == "libc.so.6"), "{found:?}");
        for (name, file) in &found {
            assert!(
                printed.lines().any(|line| line.trim().starts_with(name) && line.ends_with(file)),
                "{name} {file}\n{printed}"
            );
        }
    }
}
