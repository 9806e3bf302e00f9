//! From file names to every rank's routing.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use expertrail_core::shape::{MAX_TOKENS, MAX_TOP_K};
use expertrail_core::{CoreError, Routing};
use thiserror::Error;

use super::{IdMatrix, ParseError, parse_npy, parse_safetensors};

/// The largest routing file read: 2^31 bytes hold 32 million rows of top-8 i64.
const MAX_FILE: u64 = 1 << 31;

/// What stands for the rank's number in a file name.
const RANK: &str = "{rank}";

/// A routing file that cannot be used. Every message names the file, what was wanted and what was found.
#[derive(Debug, Error)]
pub enum RoutingFileError {
    /// Not as many files as ranks.
    #[error(
        "{given} routing files for {ranks} ranks: give one file for all, one per rank, or one name with {RANK} in it"
    )]
    FileCount {
        /// Files given.
        given: usize,
        /// Ranks of the run.
        ranks: usize,
    },
    /// The file cannot be read.
    #[error("routing file {}: cannot read it: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is larger than any routing.
    #[error("routing file {}: larger than {MAX_FILE} bytes; a routing is [tokens, k] integers, nothing else", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The bytes are no routing.
    #[error("routing file {}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParseError,
    },
    /// Wrong number of columns.
    #[error("routing file {}: {}", path.display(), columns_text(*wanted, *found))]
    TopK {
        /// The file.
        path: PathBuf,
        /// Top-k of the run, or the most allowed when the file decides.
        wanted: Option<usize>,
        /// Columns of the file.
        found: usize,
    },
    /// Wrong number of rows.
    #[error("routing file {}: {wanted} rows are wanted, it has {found}; leave --tokens out to take the number from the file", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// The rows that would do.
        wanted: String,
        /// Rows of the file.
        found: usize,
    },
    /// An id out of range, or another rule of the core.
    #[error("routing file {}: {source}{hint}", path.display())]
    Core {
        /// The file.
        path: PathBuf,
        /// The rule broken.
        source: CoreError,
        /// What to do about it.
        hint: String,
    },
}

fn columns_text(wanted: Option<usize>, found: usize) -> String {
    match wanted {
        Some(top_k) => format!(
            "{top_k} columns are wanted (top-k), it has {found}; give --top-k {found} or leave it out"
        ),
        None => format!("it has {found} columns; top-k is at most {MAX_TOP_K}"),
    }
}

/// What the run wants of the files; `None` takes the number from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Tokens of each rank.
    pub tokens: Option<usize>,
    /// Choices per token.
    pub top_k: Option<usize>,
    /// Experts in all; every id must be -1 or below it.
    pub experts: usize,
}

/// Where each rank's routing comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    files: Files,
    ranks: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Files {
    Shared(String),
    PerRank(Vec<String>),
}

impl Replay {
    /// Maps `specs` (`FILE`, `FILE#TENSOR`, or a name with `{rank}`) to `ranks` ranks. Opens nothing.
    ///
    /// # Errors
    /// [`RoutingFileError::FileCount`] when there is neither one file nor one for each rank.
    pub fn new(specs: &[String], ranks: usize) -> Result<Self, RoutingFileError> {
        let files = match specs {
            [one] if one.contains(RANK) => {
                Files::PerRank((0..ranks).map(|rank| one.replace(RANK, &rank.to_string())).collect())
            }
            [one] if ranks > 0 => Files::Shared(one.clone()),
            many if many.len() == ranks && ranks > 0 => Files::PerRank(many.to_vec()),
            many => return Err(RoutingFileError::FileCount { given: many.len(), ranks }),
        };
        Ok(Self { files, ranks })
    }

    /// The routing of every rank, in rank order. Ranks may get different numbers of tokens, also none.
    ///
    /// # Errors
    /// [`RoutingFileError`] at the first file that does not fit.
    pub fn load_all(&self, want: &Wanted) -> Result<Vec<Routing>, RoutingFileError> {
        match &self.files {
            Files::Shared(spec) => {
                let (path, whole) = self.shared(spec, want)?;
                (0..self.ranks).map(|rank| self.share(&path, &whole, rank, want)).collect()
            }
            Files::PerRank(specs) => {
                // Ranks that take their top-k from the files must still agree.
                let mut want = *want;
                let mut all = Vec::with_capacity(specs.len());
                for spec in specs {
                    let routing = own_file(spec, &want)?;
                    want.top_k = Some(routing.top_k());
                    all.push(routing);
                }
                Ok(all)
            }
        }
    }

    /// The routing of one rank, reading only the file it needs.
    ///
    /// # Errors
    /// [`RoutingFileError`] when its file does not fit.
    pub fn load_rank(&self, rank: usize, want: &Wanted) -> Result<Routing, RoutingFileError> {
        match &self.files {
            Files::Shared(spec) => {
                let (path, whole) = self.shared(spec, want)?;
                self.share(&path, &whole, rank, want)
            }
            Files::PerRank(specs) => match specs.get(rank) {
                Some(spec) => own_file(spec, want),
                None => Err(RoutingFileError::FileCount { given: specs.len(), ranks: rank + 1 }),
            },
        }
    }

    /// A shared file, checked as a whole, so that every rank reports the same first mistake.
    fn shared(&self, spec: &str, want: &Wanted) -> Result<(PathBuf, Routing), RoutingFileError> {
        let (path, ids) = read(spec)?;
        self.rows_of(&path, ids.rows, 0, want)?;
        let whole = to_routing(&path, ids, want)?;
        Ok((path, whole))
    }

    /// The part of a shared file that belongs to `rank`.
    fn share(
        &self,
        path: &Path,
        whole: &Routing,
        rank: usize,
        want: &Wanted,
    ) -> Result<Routing, RoutingFileError> {
        let rows = self.rows_of(path, whole.tokens(), rank, want)?;
        check_tokens(path, rows.len())?;
        let own = whole.ids()[rows.start * whole.top_k()..rows.end * whole.top_k()].to_vec();
        Routing::new(own, whole.top_k(), whole.experts()).map_err(|source| core_error(path, source, None))
    }

    /// Which of the `rows` rows of a shared file belong to `rank`.
    fn rows_of(
        &self,
        path: &Path,
        rows: usize,
        rank: usize,
        want: &Wanted,
    ) -> Result<Range<usize>, RoutingFileError> {
        let ranks = self.ranks;
        match want.tokens {
            Some(tokens) if tokens.checked_mul(ranks) == Some(rows) => Ok(rank * tokens..(rank + 1) * tokens),
            Some(tokens) if tokens == rows => Ok(0..rows),
            Some(tokens) => Err(RoutingFileError::Rows {
                path: path.to_owned(),
                wanted: format!(
                    "{} (to split over {ranks} ranks) or {tokens} (the same for each)",
                    tokens.saturating_mul(ranks)
                ),
                found: rows,
            }),
            None => {
                let (floor, longer) = (rows / ranks, rows % ranks);
                let start = rank * floor + rank.min(longer);
                Ok(start..start + floor + usize::from(rank < longer))
            }
        }
    }
}

fn own_file(spec: &str, want: &Wanted) -> Result<Routing, RoutingFileError> {
    let (path, ids) = read(spec)?;
    if let Some(tokens) = want.tokens.filter(|&tokens| tokens != ids.rows) {
        return Err(RoutingFileError::Rows { path, wanted: tokens.to_string(), found: ids.rows });
    }
    check_tokens(&path, ids.rows)?;
    to_routing(&path, ids, want)
}

fn check_tokens(path: &Path, tokens: usize) -> Result<(), RoutingFileError> {
    if tokens > MAX_TOKENS {
        return Err(core_error(path, CoreError::Tokens { tokens, limit: MAX_TOKENS }, None));
    }
    Ok(())
}

fn to_routing(path: &Path, ids: IdMatrix, want: &Wanted) -> Result<Routing, RoutingFileError> {
    if ids.cols > MAX_TOP_K || want.top_k.is_some_and(|top_k| top_k != ids.cols) {
        return Err(RoutingFileError::TopK { path: path.to_owned(), wanted: want.top_k, found: ids.cols });
    }
    let largest = ids.ids.iter().max().copied();
    Routing::new(ids.ids, ids.cols, want.experts).map_err(|source| core_error(path, source, largest))
}

fn core_error(path: &Path, source: CoreError, largest: Option<i32>) -> RoutingFileError {
    let hint = match (&source, largest.map(i64::from)) {
        (CoreError::ExpertId { last, .. }, Some(largest)) if largest > *last as i64 => {
            format!("; the file's largest id is {largest}: give --experts {} or more", largest + 1)
        }
        _ => String::new(),
    };
    RoutingFileError::Core { path: path.to_owned(), source, hint }
}

/// Splits `FILE#TENSOR`. A file whose own name has a `#` is taken as it is.
fn split_spec(spec: &str) -> (PathBuf, Option<&str>) {
    match spec.rsplit_once('#') {
        Some((file, tensor)) if !Path::new(spec).exists() => (PathBuf::from(file), Some(tensor)),
        _ => (PathBuf::from(spec), None),
    }
}

fn read(spec: &str) -> Result<(PathBuf, IdMatrix), RoutingFileError> {
    let (path, tensor) = split_spec(spec);
    let bytes = match read_bytes(&path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(RoutingFileError::Read { path, source }),
    };
    if bytes.len() as u64 > MAX_FILE {
        return Err(RoutingFileError::TooLarge { path });
    }
    let safetensors =
        tensor.is_some() || path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("safetensors"));
    let parsed = if safetensors { parse_safetensors(&bytes, tensor) } else { parse_npy(&bytes) };
    match parsed {
        Ok(ids) => Ok((path, ids)),
        Err(source) => Err(RoutingFileError::Parse { path, source }),
    }
}

/// Reads at most one byte more than allowed, so that a device or a pipe without end is refused too.
fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
