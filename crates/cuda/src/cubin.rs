//! Compiled kernels.

use std::fmt;

use crate::error::{CudaError, Result};

/// `EM_CUDA`.
const MACHINE: u16 = 190;
const HEADER: usize = 64;
/// `SHT_SYMTAB`.
const SYMBOLS: u64 = 2;
/// Bytes of a symbol: its name at 0, its kind in the lower half of byte 4, what else it is in byte 5.
const SYMBOL: usize = 24;
/// `STT_FUNC`.
const FUNCTION: u8 = 2;
/// `STO_CUDA_ENTRY`: a kernel, and not a function that kernels call.
const ENTRY: u8 = 0x10;

/// One of the two tables of an ELF file: where the file's header has its start and its entries' size (their count
/// follows), and where an entry has its kind, and the offset and length of its bytes.
struct Table {
    start: usize,
    entry: usize,
    kind: usize,
    offset: usize,
    length: usize,
    /// The kind whose entries have a length but no bytes.
    without_bytes: Option<u64>,
}
const SEGMENTS: Table = Table { start: 32, entry: 54, kind: 0, offset: 8, length: 32, without_bytes: None };
const SECTIONS: Table =
    Table { start: 40, entry: 58, kind: 4, offset: 24, length: 32, without_bytes: Some(8) };

/// Compiled kernels for one architecture: an ELF file whose tables lie inside of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Cubin {
    bytes: Vec<u8>,
}

impl fmt::Debug for Cubin {
    /// Its length: the bytes fill screens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cubin({} bytes)", self.bytes.len())
    }
}

impl Cubin {
    /// Takes `bytes`. The driver is given no length, so they are looked at here: a cut file would have it read past
    /// their end.
    ///
    /// # Errors
    /// When they are not a whole CUDA ELF file.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        match fault(&bytes) {
            None => Ok(Self { bytes }),
            Some(reason) => Err(CudaError::Cubin { bytes: bytes.len(), reason }),
        }
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The mangled names of the kernels inside, in the file's order.
    ///
    /// # Errors
    /// When the table of symbols is damaged.
    pub fn kernels(&self) -> Result<Vec<String>> {
        let damaged = CudaError::Cubin { bytes: self.bytes.len(), reason: "its table of symbols is damaged" };
        kernels(&self.bytes).ok_or(damaged)
    }
}

/// The names of all symbols that are kernels; none when a table points outside of `bytes`.
fn kernels(bytes: &[u8]) -> Option<Vec<String>> {
    let sections = number(bytes, SECTIONS.start, 8)?;
    let (entry, count) = (number(bytes, SECTIONS.entry, 2)?, number(bytes, SECTIONS.entry + 2, 2)?);
    let header = |index: u64| (index < count).then(|| (sections + index * entry) as usize);
    let content = |at: usize| {
        let (offset, length) =
            (number(bytes, at + SECTIONS.offset, 8)?, number(bytes, at + SECTIONS.length, 8)?);
        bytes.get(offset as usize..offset.checked_add(length)? as usize)
    };
    let mut names = Vec::new();
    for index in 0..count {
        let at = header(index)?;
        if number(bytes, at + SECTIONS.kind, 4)? != SYMBOLS {
            continue;
        }
        // The section that a table of symbols links to has their names.
        let texts = content(header(number(bytes, at + 40, 4)?)?)?;
        for symbol in content(at)?.as_chunks::<SYMBOL>().0 {
            if symbol[4] & 0xf == FUNCTION && symbol[5] & ENTRY != 0 {
                let name = texts.get(number(symbol, 0, 4)? as usize..)?;
                let end = name.iter().position(|byte| *byte == 0)?;
                names.push(String::from_utf8_lossy(&name[..end]).into_owned());
            }
        }
    }
    Some(names)
}

fn fault(bytes: &[u8]) -> Option<&'static str> {
    if bytes.len() < HEADER || !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Some("it is not a 64-bit ELF file");
    }
    if number(bytes, 18, 2) != Some(u64::from(MACHINE)) {
        return Some("it is not for a CUDA device");
    }
    let size = bytes.len() as u64;
    let inside = |at: u64, length: u64| at.checked_add(length).is_some_and(|end| end <= size);
    for table in [SEGMENTS, SECTIONS] {
        let (Some(start), Some(entry), Some(count)) =
            (number(bytes, table.start, 8), number(bytes, table.entry, 2), number(bytes, table.entry + 2, 2))
        else {
            return Some("its header is cut");
        };
        if !inside(start, entry * count) {
            return Some("it is cut");
        }
        for at in (0..count).map(|index| (start + index * entry) as usize) {
            let (Some(kind), Some(offset), Some(length)) = (
                number(bytes, at + table.kind, 4),
                number(bytes, at + table.offset, 8),
                number(bytes, at + table.length, 8),
            ) else {
                return Some("one of its tables is cut");
            };
            if Some(kind) != table.without_bytes && !inside(offset, length) {
                return Some("a part of it is cut");
            }
        }
    }
    None
}

/// The little-endian number of `width` bytes at `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(width)?)?;
    Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}
