//! Files, folders of them, standard input; compressed or not.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use thiserror::Error;

use super::model::{Kind, Run};
use super::{Options, Report, SCHEMA, judge, read};

/// Folders inside each other that are looked into.
const DEPTH: usize = 8;

/// Files that are read of one folder.
const FILES: usize = 65_536;

/// Bytes of a baseline.
const BASELINE_LIMIT: u64 = 256 << 20;

/// Input that cannot be read.
#[derive(Debug, Error)]
pub enum InputError {
    /// There is none.
    #[error("{0}: no such file or folder")]
    Missing(PathBuf),
    /// A folder without files.
    #[error("{0}: no files in this folder")]
    Empty(PathBuf),
    /// It is there, and cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Reads the runs of files, folders (all files in them that are known output) and `-`, which is standard input. Files ending
/// in gzip's form are unpacked.
///
/// # Errors
/// [`InputError`] for the first that cannot be read.
pub fn read_paths(paths: &[PathBuf]) -> Result<Vec<Run>, InputError> {
    let mut all = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            all.extend(unpacked("standard input", BufReader::new(io::stdin().lock())));
            continue;
        }
        let failed = |error: io::Error| InputError::Unreadable { path: path.clone(), error };
        let about = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => InputError::Missing(path.clone()),
            _ => failed(error),
        })?;
        if !about.is_dir() {
            all.extend(read_file(path).map_err(failed)?);
            continue;
        }
        let mut files = Vec::new();
        list(path, DEPTH, &mut files).map_err(failed)?;
        if files.is_empty() {
            return Err(InputError::Empty(path.clone()));
        }
        files.sort();
        let before = all.len();
        for file in &files {
            let runs =
                read_file(file).map_err(|error| InputError::Unreadable { path: file.clone(), error })?;
            // Nobody named these: what is something else does not matter.
            all.extend(runs.into_iter().filter(|run| run.kind != Kind::Unknown));
        }
        if all.len() == before {
            let mut none = Run::new(Kind::Unknown, &path.display().to_string(), 0);
            none.note(format!("{} files, and none has output that is known", files.len()));
            all.push(none);
        }
    }
    Ok(all)
}

/// Regular files below `folder`; hidden ones are left out.
fn list(folder: &Path, depth: usize, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with('.') || into.len() >= FILES {
            continue;
        }
        let path = entry.path();
        let about = fs::metadata(&path)?;
        if about.is_file() {
            into.push(path);
        } else if about.is_dir() && depth > 0 {
            list(&path, depth - 1, into)?;
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> io::Result<Vec<Run>> {
    let mut input = BufReader::with_capacity(1 << 18, File::open(path)?);
    // An error of the first byte is one of the file.
    input.fill_buf()?;
    Ok(unpacked(&path.display().to_string(), input))
}

fn unpacked(name: &str, mut input: impl BufRead) -> Vec<Run> {
    let packed = input.fill_buf().is_ok_and(|head| head.starts_with(&[0x1f, 0x8b]));
    if packed { read(name, BufReader::new(MultiGzDecoder::new(input))) } else { read(name, input) }
}

/// A baseline: an older verdict (`expertrail.verdict/1`), or output that is judged with the same options.
///
/// # Errors
/// [`InputError`] when it cannot be read.
pub fn read_baseline(path: &Path, options: &Options) -> Result<Report, InputError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => InputError::Missing(path.to_owned()),
        _ => InputError::Unreadable { path: path.to_owned(), error },
    };
    if !path.is_dir() {
        let mut bytes = Vec::new();
        File::open(path).map_err(failed)?.take(BASELINE_LIMIT).read_to_end(&mut bytes).map_err(failed)?;
        if let Ok(report) = serde_json::from_slice::<Report>(&bytes)
            && report.schema == SCHEMA
        {
            return Ok(report);
        }
    }
    let runs = read_paths(&[path.to_owned()])?;
    Ok(judge(&runs, &Options { baseline: None, accept: None, ..options.clone() }))
}
