//! What a shared library tells of itself: names, needs, search paths, symbols, versions inside, GPU code.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use memchr::memmem::Finder;
use object::elf::{DT_NEEDED as NEEDED, DT_RPATH as RPATH, DT_RUNPATH as RUNPATH};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache, SectionKind};

use super::fatbin::fatbin;
use crate::facts::CubinArch;

/// A library larger than this is not read: PyTorch's largest is below 2 GiB.
const LIMIT: u64 = 4 << 30;

/// More than any symbol or string table has: those of `PyTorch`'s largest library are some 100 MB.
const TABLE: u64 = 512 << 20;

/// Bytes read at a time where text is looked for.
const CHUNK: usize = 4 << 20;

/// More symbols than an extension of DeepEP imports or NVSHMEM exports by far.
const SYMBOLS: usize = 1 << 16;

/// More versions of symbols than a library has.
const VERSIONS: usize = 4096;

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
    /// Versions it wants of others (`IBVERBS_PRIVATE_34` of `libibverbs.so.1`), as pairs of library and version.
    pub requires: BTreeSet<(String, String)>,
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
    let mut again = file.try_clone().map_err(|error| error.to_string())?;
    let cache = ReadCache::new(file);
    let elf: ElfFile64<'_, Endianness, _> =
        ElfFile64::parse(&cache).map_err(|error| format!("no ELF file of 64 bits: {error}"))?;
    // Tables are read whole. A hostile header must not make that the whole of a sparse file.
    let tables = elf.sections().filter(|section| {
        !matches!(section.kind(), SectionKind::Text | SectionKind::Data | SectionKind::ReadOnlyData)
            && ![".nv_fatbin", "__nv_relfatbin"].iter().any(|name| section.name() == Ok(name))
            && !section.name().is_ok_and(|name| name.starts_with(".debug"))
    });
    if let Some(size) =
        tables.filter_map(|section| section.file_range()).map(|(_, size)| size).find(|size| *size > TABLE)
    {
        return Err(format!("a table of {size} bytes in it is larger than any library has"));
    }
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
    // Several fat binaries lie one after the other in this section; linked code is in the one, code yet to link in the other.
    for name in [".nv_fatbin", "__nv_relfatbin"] {
        if let Some((start, length)) = elf.section_by_name(name).and_then(|section| section.file_range()) {
            binary.archs.extend(fatbin(&mut again, start, length));
        }
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
    if let Ok(Some((mut definitions, link))) = sections.gnu_verdef(endian, data)
        && let Ok(strings) = sections.strings(endian, data, link)
    {
        for _ in 0..VERSIONS {
            let Ok(Some((_, mut names))) = definitions.next() else { break };
            if let Ok(Some(name)) = names.next()
                && let Ok(text) = name.name(endian, strings)
            {
                binary.defines.insert(String::from_utf8_lossy(text).into_owned());
            }
        }
    }
    if let Ok(Some((mut needs, link))) = sections.gnu_verneed(endian, data)
        && let Ok(strings) = sections.strings(endian, data, link)
    {
        for _ in 0..VERSIONS {
            let Ok(Some((library, mut names))) = needs.next() else { break };
            let Ok(file) = library.file(endian, strings) else { continue };
            let file = String::from_utf8_lossy(file).into_owned();
            while binary.requires.len() < VERSIONS
                && let Ok(Some(name)) = names.next()
            {
                let Ok(text) = name.name(endian, strings) else { break };
                binary.requires.insert((file.clone(), String::from_utf8_lossy(text).into_owned()));
            }
        }
    }
}

/// NVSHMEM's device library keeps its version in a constant of three numbers, whose local symbol is there unless it was stripped.
fn device_version(elf: &Elf<'_>, binary: &mut Binary) {
    let Some(symbol) = elf.symbols().take(SYMBOLS * 64).find(|symbol| {
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
