//! Files in a log: how a pod, whose disk is gone with it, hands small files to who reads its log.
//!
//! A file is packed with gzip, written in base64 and cut into lines
//!
//! ```text
//! ::expertrail-file v1 facts/node-0.json 2/7 9ae0daaf H4sIAAAAAAAA/...
//! ```
//!
//! with the name, which part of how many, the CRC-32 of the whole packed file (it tells two versions of one name apart), and the part.
//! A line is shorter than what a pipe takes in one piece (4,096 bytes), with room for the marks that launchers put before it, so that
//! lines of several writers do not mix.

mod read;
mod write;

pub use read::{Collected, Found, Problem, Reader, split};
pub use write::write;

use thiserror::Error;

/// What a frame begins with.
pub const MARK: &str = "::expertrail-file v1 ";

/// The longest line of a frame, without its end.
pub const LINE: usize = 3500;

/// The largest file, unpacked.
pub const FILE_LIMIT: usize = 64 << 20;

/// The longest name.
pub const NAME_LIMIT: usize = 200;

/// Why a file cannot be put into frames.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The name could lead out of the folder that a reader writes to, or does not fit a line.
    #[error(
        "{0:?} cannot be the name of a file in a log: wanted a relative path of letters, digits and ._- without `..`, at most {NAME_LIMIT} long"
    )]
    Name(String),
    /// It is too large for a log.
    #[error("{name} has {bytes} bytes; a log takes files of at most {FILE_LIMIT}")]
    Size {
        /// The file.
        name: String,
        /// Its size.
        bytes: usize,
    },
    /// The system refused.
    #[error("cannot write {name} to the log: {error}")]
    System {
        /// The file.
        name: String,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Whether a file may have this name: a path below the reader's folder, in characters that no shell, log or file system changes.
pub fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let part = |part: &str| !part.is_empty() && part.chars().any(|c| c != '.') && part.chars().all(plain);
    name.len() <= NAME_LIMIT && name.split('/').all(part)
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["result.json", "facts/node-0.json", "a/b/c_1.txt", ".hidden", "x..y"] {
            assert!(is_name(good), "{good}");
        }
        for bad in
            ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a b", "a\\b", "ü", "a\n", "..."]
        {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(is_name(&"a".repeat(200)) && !is_name(&"a".repeat(201)));
    }

    #[test]
    fn the_checksum_is_the_common_one() {
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(crc(b"123456789"), 0xcbf4_3926);
    }
}
