//! A file into lines.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{FILE_LIMIT, LINE, MARK, WriteError, crc, is_name};

/// Writes `bytes` as the file `name` into the log `out`, each line in one piece. The same file gives the same lines.
///
/// # Errors
/// When the name or size is refused, or `out` cannot be written.
pub fn write(name: &str, bytes: &[u8], out: &mut impl Write) -> Result<(), WriteError> {
    if !is_name(name) {
        return Err(WriteError::Name(name.chars().take(super::NAME_LIMIT).collect()));
    }
    if bytes.len() > FILE_LIMIT {
        return Err(WriteError::Size { name: name.to_owned(), bytes: bytes.len() });
    }
    let system = |error| WriteError::System { name: name.to_owned(), error };
    // The encoder writes no time and no name.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).map_err(system)?;
    let packed = encoder.finish().map_err(system)?;
    let sum = crc(&packed);
    // "K/N CRC32 " with numbers of at most five digits: 64 MiB make fewer than 30,000 lines.
    let head = MARK.len() + name.len() + 1 + 11 + 1 + 8 + 1;
    let part = (LINE - head) / 4 * 3;
    let parts = packed.chunks(part);
    let count = parts.len();
    for (at, part) in parts.enumerate() {
        let text = STANDARD.encode(part);
        let line = format!("{MARK}{name} {}/{count} {sum:08x} {text}\n", at + 1);
        out.write_all(line.as_bytes()).map_err(system)?;
    }
    out.flush().map_err(system)
}
