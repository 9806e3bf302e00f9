//! Files, folders of them, standard input; compressed or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use thiserror::Error;

use super::model::{Kind, Run};
use super::{Options, Report, SCHEMA, coverage, judge, read};

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
/// in gzip's form are unpacked. A file that is named twice is read once, and so is a copy of a file that has figures: a copy is
/// no other node.
///
/// # Errors
/// [`InputError`] for the first that cannot be read.
pub fn read_paths(paths: &[PathBuf]) -> Result<Vec<Run>, InputError> {
    let mut all = All::default();
    for path in paths {
        if path == Path::new("-") {
            if all.paths.insert(path.clone()) {
                all.add(unpacked("standard input", BufReader::new(io::stdin().lock())));
            }
            continue;
        }
        let failed = |error: io::Error| InputError::Unreadable { path: path.clone(), error };
        let about = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => InputError::Missing(path.clone()),
            _ => failed(error),
        })?;
        if !about.is_dir() {
            if all.first(path) {
                all.add(read_file(path).map_err(failed)?);
            }
            continue;
        }
        let mut files = Vec::new();
        let mut folders = BTreeSet::new();
        list(path, (DEPTH, &mut folders), &mut files).map_err(failed)?;
        if files.is_empty() {
            return Err(InputError::Empty(path.clone()));
        }
        files.sort();
        let before = all.runs.len();
        for file in files.iter().filter(|file| all.first(file)).collect::<Vec<_>>() {
            let (mut runs, sum) =
                read_file(file).map_err(|error| InputError::Unreadable { path: file.clone(), error })?;
            // Nobody named these: what is something else does not matter, unless it could not be read.
            // The log of a rank of a training run without a failure is what acceptance asks for.
            runs.retain(|run| {
                run.kind != Kind::Unknown || run.unread.is_some() || coverage::is_quiet_log(run)
            });
            all.add((runs, sum));
        }
        let training = all.runs.iter().any(|run| run.kind == Kind::Training);
        let mut index = 0;
        all.runs.retain(|run| {
            index += 1;
            index <= before || training || !coverage::is_quiet_log(run)
        });
        if all.runs.len() == before {
            let mut none = Run::new(Kind::Unknown, &path.display().to_string(), 0);
            none.note(format!("{} files, and none has output that is known", files.len()));
            all.runs.push(none);
        }
    }
    Ok(all.runs)
}

/// What was read so far.
#[derive(Default)]
struct All {
    runs: Vec<Run>,
    paths: BTreeSet<PathBuf>,
    /// By length and sum of the content: the name, and the place of its first run.
    contents: BTreeMap<(u64, u64), (String, usize)>,
}

impl All {
    /// Whether it was not read under another name of it.
    fn first(&mut self, path: &Path) -> bool {
        self.paths.insert(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
    }

    fn add(&mut self, (runs, sum): (Vec<Run>, (u64, u64))) {
        // Exit codes of two launchers may well be the same text; figures and times never are.
        let measured = runs.iter().any(|run| {
            !run.figures.is_empty() || run.training.as_ref().is_some_and(|training| !training.done.is_empty())
        });
        let Some(first) = runs.first().filter(|_| measured) else {
            self.runs.extend(runs);
            return;
        };
        let name = first.place.file.clone();
        if let Some((known, at)) = self.contents.get(&sum) {
            if let Some(run) = self.runs.get_mut(*at) {
                run.note(format!("{name} is a copy of {known}: it is read once"));
            }
            return;
        }
        self.contents.insert(sum, (name, self.runs.len()));
        self.runs.extend(runs);
    }
}

/// Regular files below `folder`; hidden ones are left out, and folders that a link leads back to.
fn list(
    folder: &Path,
    (depth, seen): (usize, &mut BTreeSet<PathBuf>),
    into: &mut Vec<PathBuf>,
) -> io::Result<()> {
    if !seen.insert(fs::canonicalize(folder)?) {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with('.') || into.len() >= FILES {
            continue;
        }
        let path = entry.path();
        // A link to nothing is no file.
        let Ok(about) = fs::metadata(&path) else { continue };
        if about.is_file() {
            into.push(path);
        } else if about.is_dir() && depth > 0 {
            list(&path, (depth - 1, seen), into)?;
        }
    }
    Ok(())
}

type Content = (Vec<Run>, (u64, u64));

fn read_file(path: &Path) -> io::Result<Content> {
    let mut input = BufReader::with_capacity(1 << 18, File::open(path)?);
    // An error of the first byte is one of the file.
    input.fill_buf()?;
    let (mut runs, sum) = unpacked(&path.display().to_string(), input);
    let summary =
        path.file_name().is_some_and(|name| name.to_string_lossy().to_lowercase().ends_with("summary.json"));
    if summary {
        for run in runs.iter_mut().filter(|run| matches!(run.kind, Kind::Unknown | Kind::Fragment)) {
            // It should have been one: that it is none is what there is to say of it.
            run.kind = Kind::Summary;
        }
    }
    Ok((runs, sum))
}

fn unpacked(name: &str, mut input: impl BufRead) -> Content {
    let packed = input.fill_buf().is_ok_and(|head| head.starts_with(&[0x1f, 0x8b]));
    if packed {
        summed(name, BufReader::with_capacity(1 << 18, MultiGzDecoder::new(input)))
    } else {
        summed(name, input)
    }
}

fn summed(name: &str, input: impl BufRead) -> Content {
    let mut input = Summed { input, length: 0, sum: DefaultHasher::new() };
    let runs = read(name, &mut input);
    (runs, (input.length, input.sum.finish()))
}

/// Sums up what is read.
struct Summed<R> {
    input: R,
    length: u64,
    sum: DefaultHasher,
}

impl<R: BufRead> Read for Summed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let ready = self.input.fill_buf()?;
        let count = ready.len().min(into.len());
        let (Some(to), Some(from)) = (into.get_mut(..count), ready.get(..count)) else { return Ok(0) };
        to.copy_from_slice(from);
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Summed<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // What is consumed is in the buffer: no reading happens here.
        if let Some(part) = self.input.fill_buf().ok().and_then(|ready| ready.get(..count)) {
            self.sum.write(part);
            self.length += count as u64;
        }
        self.input.consume(count);
    }
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
