//! Reading a facts document that was written before.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::facts::{Facts, SCHEMA};

/// A node's document is tens of kilobytes; counters of many devices make it a few hundred.
const LIMIT: u64 = 64 << 20;

/// Why a document cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is larger than any facts document.
    #[error("{} is larger than {LIMIT} bytes, so it is no facts document of one node", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not JSON, or JSON of another form.
    #[error("{} is no facts document: {reason}; `expertrail facts -o FILE` writes one", .path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Reads the document at `path`.
///
/// # Errors
/// When it cannot be read, is too large, or is no document of version `expertrail.facts/1`.
pub fn load(path: &Path) -> Result<Facts, LoadError> {
    let read = |error| LoadError::Read { path: path.to_owned(), error };
    let file = File::open(path).map_err(read)?;
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > LIMIT {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    parse(&bytes).map_err(|reason| LoadError::Form { path: path.to_owned(), reason })
}

/// Reads a document from memory.
///
/// # Errors
/// What is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Facts, String> {
    // The version first: of another version the form is not known.
    #[derive(serde::Deserialize)]
    struct Head {
        schema: Option<String>,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match head.schema.as_deref() {
        Some(SCHEMA) => {}
        Some(other) => {
            return Err(format!(
                "its schema is `{}`, not `{SCHEMA}`",
                other.chars().take(60).collect::<String>()
            ));
        }
        None => return Err(format!("it has no `schema`, which should be `{SCHEMA}`")),
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}
