//! What a shared library tells of itself: names, needs, search paths, symbols, versions inside, GPU code.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use memchr::memmem::Finder;
use object::elf::{DT_NEEDED as NEEDED, DT_RPATH as RPATH, DT_RUNPATH as RUNPATH};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache};

use crate::facts::CubinArch;

/// A library larger than this is not read: PyTorch's largest is below 2 GiB.
const LIMIT: u64 = 4 << 30;

/// Bytes read at a time where text is looked for.
const CHUNK: usize = 4 << 20;

/// More symbols than an extension of DeepEP imports or NVSHMEM exports by far.
const SYMBOLS: usize = 1 << 16;

/// What an ELF file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binary {
    /// Libraries it needs.
    pub needed: Vec<String>,
    /// `DT_RPATH`, searched before `LD_LIBRARY_PATH`.
    pub rpath: Vec<String>,
    /// `DT_RUNPATH`, searched after it.
    pub runpath: Vec<String>,
    /// Names with `nvshmem` that it wants from others.
    pub wants: BTreeSet<String>,
    /// Names with `nvshmem` that it has for others.
    pub offers: BTreeSet<String>,
    /// Versions it defines (`MLX5_1.25`).
    pub defines: BTreeSet<String>,
    /// Version of the NVSHMEM device library inside.
    pub nvshmem_device: Option<String>,
    /// GPU code inside.
    pub archs: BTreeSet<CubinArch>,
}

/// Reads an ELF file of 64 bits.
///
/// # Errors
/// What is wrong with the file.
pub fn read(file: File) -> Result<Binary, String> {
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    if size > LIMIT {
        return Err(format!("larger than {LIMIT} bytes"));
    }
    let cache = ReadCache::new(file);
    let elf: ElfFile64<'_, Endianness, _> =
        ElfFile64::parse(&cache).map_err(|error| format!("no ELF file of 64 bits: {error}"))?;
    let mut binary = Binary::default();
    dynamic(&elf, &mut binary).map_err(|error| error.to_string())?;
    for symbol in elf.dynamic_symbols().take(SYMBOLS * 8) {
        let Ok(name) = symbol.name() else { continue };
        if name.contains("nvshmem") && binary.wants.len() + binary.offers.len() < SYMBOLS {
            let set = if symbol.is_undefined() { &mut binary.wants } else { &mut binary.offers };
            set.insert(name.to_owned());
        }
    }
    versions(&elf, &mut binary);
    device_version(&elf, &mut binary);
    // Several fat binaries lie one after the other in this section.
    if let Some(section) = elf.section_by_name(".nv_fatbin")
        && let Ok(data) = section.data()
    {
        binary.archs = fatbin(data);
    }
    Ok(binary)
}

type Elf<'a> = ElfFile64<'a, Endianness, &'a ReadCache<File>>;

fn dynamic(elf: &Elf<'_>, binary: &mut Binary) -> object::Result<()> {
    let (endian, data) = (elf.endian(), elf.data());
    let sections = elf.elf_header().sections(endian, data)?;
    let Some((entries, link)) = sections.dynamic(endian, data)? else { return Ok(()) };
    let strings = sections.strings(endian, data, link)?;
    for entry in entries.iter().take(4096) {
        let tag = entry.d_tag(endian) as u32;
        let list = match tag {
            NEEDED => &mut binary.needed,
            RPATH => &mut binary.rpath,
            RUNPATH => &mut binary.runpath,
            _ => continue,
        };
        let Ok(text) = strings.get(entry.d_val(endian) as u32) else { continue };
        let text = String::from_utf8_lossy(text);
        if tag == NEEDED {
            list.push(text.into_owned());
        } else {
            list.extend(text.split(':').filter(|part| !part.is_empty()).map(str::to_owned));
        }
    }
    Ok(())
}

fn versions(elf: &Elf<'_>, binary: &mut Binary) {
    let (endian, data) = (elf.endian(), elf.data());
    let Ok(sections) = elf.elf_header().sections(endian, data) else { return };
    let Ok(Some((mut definitions, link))) = sections.gnu_verdef(endian, data) else { return };
    let Ok(strings) = sections.strings(endian, data, link) else { return };
    for _ in 0..4096 {
        let Ok(Some((_, mut names))) = definitions.next() else { return };
        if let Ok(Some(name)) = names.next()
            && let Ok(text) = name.name(endian, strings)
        {
            binary.defines.insert(String::from_utf8_lossy(text).into_owned());
        }
    }
}

/// NVSHMEM's device library keeps its version in a constant of three numbers, whose local symbol is there unless it was stripped.
fn device_version(elf: &Elf<'_>, binary: &mut Binary) {
    let Some(symbol) = elf.symbols().find(|symbol| {
        symbol.name().is_ok_and(|name| name.contains("nvshmemi_device_lib_version") && !name.ends_with("_d"))
    }) else {
        return;
    };
    let Some(section) = symbol.section_index().and_then(|index| elf.section_by_index(index).ok()) else {
        return;
    };
    let Ok(Some(bytes)) = section.data_range(symbol.address(), 12) else { return };
    let numbers: Vec<u32> =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
    // Another layout would give absurd numbers.
    if let [major @ 1..=99, minor @ 0..=99, patch @ 0..=999] = numbers.as_slice() {
        binary.nvshmem_device = Some(format!("{major}.{minor}.{patch}"));
    }
}

/// Architectures of the fat binaries in `data`. Each has a header of 16 bytes (0xBA55ED50, version, size of header, size of what
/// follows), then entries with a header of their own: kind (1 PTX, 2 ELF), size of header at 4, size of content at 8, architecture
/// at 28. Compressed content has a plain header.
pub fn fatbin(data: &[u8]) -> BTreeSet<CubinArch> {
    const MAGIC: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
    let word = |at: usize| Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?));
    let mut archs = BTreeSet::new();
    let mut from = 0;
    while let Some(at) =
        data.get(from..).and_then(|rest| memchr::memmem::find(rest, &MAGIC)).map(|found| from + found)
    {
        from = at + 4;
        let (Some(head), Some(size)) = (word(at + 4), long(at + 8)) else { break };
        if head != 0x0010_0001 {
            continue;
        }
        let end = (at as u64).saturating_add(16).saturating_add(size).min(data.len() as u64) as usize;
        let mut entry = at + 16;
        while entry + 64 <= end {
            let (Some(kind), Some(header), Some(content), Some(sm)) =
                (word(entry), word(entry + 4), long(entry + 8), word(entry + 28))
            else {
                break;
            };
            let kind = kind & 0xffff;
            if (kind == 1 || kind == 2) && (30..1000).contains(&sm) {
                archs.insert(CubinArch { sm, ptx: kind == 1, suffix: String::new() });
            }
            let step = u64::from(header).saturating_add(content);
            if header < 32 || step > (end - entry) as u64 {
                break;
            }
            entry += step as usize;
        }
        from = from.max(entry);
    }
    archs
}

/// The text after the first `mark` in a file, up to a character that no version has.
pub(super) fn text_after(file: &mut File, mark: &[u8]) -> Option<String> {
    let finder = Finder::new(mark);
    let mut buffer = vec![0; CHUNK];
    let (mut kept, mut read) = (0, 0_u64);
    file.seek(SeekFrom::Start(0)).ok()?;
    loop {
        let count = file.read(buffer.get_mut(kept..)?).ok()?;
        if count == 0 || read > LIMIT {
            return None;
        }
        read += count as u64;
        let filled = kept + count;
        let mut from = 0;
        while let Some(at) = finder.find(&buffer[from..filled]).map(|found| from + found) {
            let rest = buffer.get(at + mark.len()..filled).unwrap_or_default();
            let version: String = rest
                .iter()
                .take(20)
                .take_while(|c| c.is_ascii_digit() || **c == b'.')
                .map(|&c| char::from(c))
                .collect();
            if version.contains('.') {
                return Some(version.trim_end_matches('.').to_owned());
            }
            from = at + mark.len();
        }
        // What a mark and a version may straddle stays.
        kept = (mark.len() + 24).min(filled);
        buffer.copy_within(filled - kept..filled, 0);
        if kept == buffer.len() {
            return None;
        }
    }
}

/// Which of `names` appear in the file.
pub(super) fn mentions(file: &mut File, names: &mut Vec<String>) -> Option<()> {
    let mut buffer = vec![0; CHUNK];
    let mut kept = 0;
    file.seek(SeekFrom::Start(0)).ok()?;
    loop {
        let count = file.read(buffer.get_mut(kept..)?).ok()?;
        if count == 0 || names.is_empty() {
            return Some(());
        }
        let filled = kept + count;
        names.retain(|name| memchr::memmem::find(&buffer[..filled], name.as_bytes()).is_none());
        kept = 128.min(filled);
        buffer.copy_within(filled - kept..filled, 0);
    }
}
