//! Compiled kernels.

use crate::error::{CudaError, Result};

/// `EM_CUDA`.
const MACHINE: u16 = 190;
const HEADER: usize = 64;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    bytes: Vec<u8>,
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
