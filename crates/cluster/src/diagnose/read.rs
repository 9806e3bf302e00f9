//! Reads logs into a [`Case`].

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use flate2::bufread::MultiGzDecoder;

use super::case::Case;
use super::handled;
use super::judged::{self, Again};
use super::lines;
use super::part::{Assembly, Part};
use super::source::Source;
use super::versions;
use crate::check::{self, Target};
use crate::facts::Facts;
use crate::stack::{self, Question};

/// A log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file, a folder of them, or `-` for standard input. `.gz` is unpacked.
    Path(PathBuf),
    /// Text that is in memory.
    Text {
        /// Its name in reports.
        name: String,
        /// The text.
        bytes: Vec<u8>,
    },
}

/// What is known beside the logs.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Versions, as `--stack` gives them.
    pub stack: Option<Question>,
    /// Facts of a node.
    pub facts: Option<Facts>,
}

/// Why no log could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// None of what was given can be read; the reasons.
    #[error("no log can be read: {}", .0.join("; "))]
    Nothing(Vec<String>),
    /// A pipe or a device was named.
    #[error("{0} is {1}, not a file: copy it into a file, or pipe it to `expertrail diagnose -`")]
    NotAFile(String, &'static str),
}

/// Files of a folder that are read at most.
const FILES: usize = 20_000;
/// Depth of folders that is looked into.
const DEPTH: usize = 16;
/// Bytes of a file's start that tell its habits.
const HEAD: usize = 256 << 10;

/// Bytes of a text in memory that is kept for its figures.
const AGAIN: usize = 16 << 20;

/// What is said of programs, cores and images: they are no logs, and nothing is missed with them.
const NO_TEXT: &str = "no text, not read";

/// How the files of programs that pack start, and what unpacks them. `.gz` is unpacked here.
const PACKED: [(&[u8], &str); 6] = [
    (b"\xfd7zXZ\0", "packed by xz, not read: unpack it first (`xz -dk FILE`)"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd, not read: unpack it first (`zstd -dk FILE`)"),
    (b"BZh", "packed by bzip2, not read: unpack it first (`bzip2 -dk FILE`)"),
    (b"\x04\x22\x4d\x18", "packed by lz4, not read: unpack it first (`lz4 -dk FILE`)"),
    (b"PK\x03\x04", "a zip archive, not read: unpack it first (`unzip FILE`)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive, not read: unpack it first (`7z x FILE`)"),
];

/// A file that could not be read, and why.
type Failed = (String, String);

/// A file to read.
enum Opened {
    Path(PathBuf, String),
    Stdin,
    Text(String, Vec<u8>),
}

impl Opened {
    /// Its name, and where it can be read once more.
    fn again(&self) -> (String, Again) {
        match self {
            Self::Path(path, name) => (name.clone(), Again::Path(path.clone())),
            Self::Stdin => ("-".to_owned(), Again::No),
            Self::Text(name, bytes) if bytes.len() <= AGAIN => (name.clone(), Again::Bytes(bytes.clone())),
            Self::Text(name, _) => (name.clone(), Again::No),
        }
    }
}

/// Reads logs, and what is known beside them, into a case.
///
/// What cannot be read is a note of the case.
///
/// # Errors
/// Nothing of what was given can be read, or a pipe or device is among it.
pub fn read(inputs: Vec<Input>, evidence: Evidence) -> Result<Case, ReadError> {
    let mut notes = Vec::new();
    let mut work = Vec::new();
    let mut seen = BTreeSet::new();
    for input in inputs {
        match input {
            Input::Text { name, bytes } => work.push(Opened::Text(name, bytes)),
            Input::Path(path) if path.as_os_str() == "-" => work.push(Opened::Stdin),
            Input::Path(path) => {
                find(&path, &mut Found { work: &mut work, notes: &mut notes, seen: &mut seen })?;
            }
        }
    }
    if work.is_empty() {
        let notes = if notes.is_empty() { vec!["nothing was given".to_owned()] } else { notes };
        return Err(ReadError::Nothing(notes));
    }
    let again: Vec<(String, Again)> = work.iter().map(Opened::again).collect();
    let mut assembly = Assembly::default();
    let failed = scan(work, &mut assembly);
    if failed.0.iter().any(|reason| !reason.ends_with(NO_TEXT)) {
        assembly.missed();
    }
    if failed.1 == 0 {
        return Err(ReadError::Nothing(failed.0.into_iter().chain(notes).collect()));
    }
    for note in notes.into_iter().chain(failed.0) {
        assembly.note(note);
    }
    let mut case = complete(assembly, evidence);
    judged::add(&mut case, &again);
    handled::demote(&mut case);
    Ok(case)
}

/// A case of texts in memory, each with the name of its file.
pub fn read_texts(files: &[(&str, &str)]) -> Case {
    let inputs = files
        .iter()
        .map(|(name, text)| Input::Text { name: (*name).to_owned(), bytes: text.as_bytes().to_vec() })
        .collect();
    read(inputs, Evidence::default()).unwrap_or_default()
}

/// The states of documents and tables in a text, as the lines that signals see ([`structured`](super::structured) has their grammar), each
/// with its line number.
pub fn states(name: &str, bytes: &[u8]) -> Vec<(u64, String)> {
    let mut source = Source::new(0, name.to_owned(), &bytes[..bytes.len().min(64 << 10)]);
    source.told = Some(Vec::new());
    // Reading from memory does not fail.
    let _ = lines::each(&mut &*bytes, &mut None, |line, number| source.line(line, number));
    source.finish();
    source.told.unwrap_or_default()
}

/// Fills in what follows from all files together.
fn complete(assembly: Assembly, evidence: Evidence) -> Case {
    let (mut case, context) = assembly.finish();
    // A count that a rank of the logs contradicts is none.
    let most = case.ranks_seen.last().copied();
    case.world = case.world.filter(|world| most.is_none_or(|most| most < *world));
    let mut question = evidence.stack.unwrap_or_default();
    versions::fill(&context, &case.files, &mut question, &mut case.notes);
    if let Some(facts) = &evidence.facts {
        question.merge(Question::of(&facts.userspace, Some(facts), None));
        let target = match question.get("transport") {
            Some("efa") => Target::DeepepEfa,
            Some("none") => Target::Expertrail,
            _ => Target::DeepepIbgda,
        };
        case.preflight = check::run(facts, &check::Options { target, ..check::Options::default() }).findings;
    }
    question.conclude();
    case.variables = context.variables;
    case.environment_printed = context.printed;
    case.stack = stack::judge(&question);
    case.question = question;
    case.facts = evidence.facts.map(Box::new);
    case
}

/// Reads every file, several at a time, and takes them in in order. The reasons of those that could not be read, and how many could.
fn scan(work: Vec<Opened>, assembly: &mut Assembly) -> (Vec<String>, usize) {
    let only = work.len() == 1;
    let count = work.len();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4).min(count);
    let jobs: Vec<Mutex<Option<Opened>>> = work.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let next = AtomicUsize::new(0);
    // Parts that wait for an earlier one are few: a worker that is far ahead waits here.
    let (sender, receiver) = mpsc::sync_channel::<(usize, Result<Part, Failed>)>(threads * 2);
    let mut failed = Vec::new();
    let mut good = 0;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, jobs) = (sender.clone(), &next, &jobs);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { return };
                    let taken = job.lock().ok().and_then(|mut job| job.take());
                    let Some(taken) = taken else { return };
                    if sender.send((index, one(taken, index as u32))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut waiting = std::collections::BTreeMap::new();
        let mut wanted = 0;
        for (index, part) in receiver {
            waiting.insert(index, part);
            while let Some(part) = waiting.remove(&wanted) {
                wanted += 1;
                match part {
                    Ok(part) => {
                        good += 1;
                        assembly.add(part, only);
                    }
                    Err((name, reason)) => {
                        failed.push(format!("{name}: {reason}"));
                        assembly.add(Part { name, ..Part::default() }, only);
                    }
                }
            }
        }
    });
    (failed, good)
}

/// Reads one file.
fn one(job: Opened, index: u32) -> Result<Part, Failed> {
    match job {
        Opened::Text(name, bytes) => stream(&bytes[..], name, index),
        Opened::Stdin => stream(io::stdin().lock(), "-".to_owned(), index),
        Opened::Path(path, name) => match File::open(&path) {
            Ok(file) => stream(file, name, index),
            Err(error) => Err((name, error.to_string())),
        },
    }
}

fn stream(input: impl Read, name: String, index: u32) -> Result<Part, Failed> {
    let mut input = BufReader::with_capacity(HEAD, input);
    let packed = match input.fill_buf() {
        Ok(head) => head.starts_with(&[0x1f, 0x8b]),
        Err(error) => return Err((name, error.to_string())),
    };
    if packed {
        let unpacked = BufReader::with_capacity(HEAD, MultiGzDecoder::new(input));
        text(unpacked, name, index)
    } else {
        text(input, name, index)
    }
}

fn text(mut input: impl BufRead, name: String, index: u32) -> Result<Part, Failed> {
    let head = match input.fill_buf() {
        Ok(head) => head,
        Err(error) => return Err((name, error.to_string())),
    };
    let empty = head.is_empty();
    if let Some((_, reason)) = PACKED.iter().find(|(start, _)| head.starts_with(start)) {
        return Err((name, (*reason).to_owned()));
    }
    if program(head) {
        return Err((name, NO_TEXT.to_owned()));
    }
    if binary(head) {
        return Err((name, "no text, so not read as a log".to_owned()));
    }
    let mut source = Source::new(index, name, &head[..head.len().min(64 << 10)]);
    let mut cut = None;
    let result = lines::each(&mut input, &mut cut, |line, number| source.line(line, number));
    source.finish();
    let mut part = source.part;
    if let Some(line) = cut {
        part.incomplete = true;
        part.notes.push(format!(
            "{}:{line}: a document of more than {} MiB in one line, read up to there only: give `kubectl get` a namespace or a selector, or print it over several lines (`jq . FILE`)",
            part.name,
            lines::DOCUMENT >> 20
        ));
    }
    if let Err(error) = result {
        part.incomplete = true;
        part.notes.push(format!("{}: {error}; what was read before that counts", part.name));
    }
    if empty {
        part.notes.push(format!("{}: empty", part.name));
    }
    Ok(part)
}

/// Whether a file that starts so is a program or a core.
fn program(head: &[u8]) -> bool {
    head.starts_with(b"\x7fELF")
}

/// Whether a file that starts so is no text: an image, packed or random data. Logs may hold a few bytes of anything, and text in any one-byte
/// code, which has no control characters.
fn binary(head: &[u8]) -> bool {
    let head = &head[..head.len().min(8192)];
    let odd = head
        .iter()
        .filter(|byte| **byte == 0 || (**byte < 0x20 && !b"\t\n\r\x1b\x08\x0c\x07".contains(byte)))
        .count();
    let broken: usize = head.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    head.len() >= 512 && (odd * 10 > head.len() * 3 || (odd * 50 > head.len() && broken * 5 > head.len()))
}

/// Files that were found.
struct Found<'a> {
    work: &'a mut Vec<Opened>,
    notes: &'a mut Vec<String>,
    /// Device and inode of each: container runtimes link to a log from several folders.
    seen: &'a mut BTreeSet<(u64, u64)>,
}

impl Found<'_> {
    fn file(&mut self, path: PathBuf, name: String, meta: &fs::Metadata) {
        use std::os::unix::fs::MetadataExt;
        if self.seen.insert((meta.dev(), meta.ino())) {
            self.work.push(Opened::Path(path, name));
        } else {
            self.notes.push(format!("{name}: the same file as one before, read once"));
        }
    }
}

/// Files at or under a path, in order of their names.
fn find(path: &Path, found: &mut Found<'_>) -> Result<(), ReadError> {
    let name = path.display().to_string();
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) => {
            found.notes.push(format!("{name}: {error}"));
            return Ok(());
        }
    };
    if meta.is_dir() {
        folder(path, 0, found);
        return Ok(());
    }
    if let Some(kind) = special(&meta) {
        return Err(ReadError::NotAFile(name, kind));
    }
    found.file(path.to_owned(), name, &meta);
    Ok(())
}

/// What a file is that is none to read.
fn special(meta: &fs::Metadata) -> Option<&'static str> {
    use std::os::unix::fs::FileTypeExt;
    let kind = meta.file_type();
    if kind.is_fifo() {
        Some("a pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else if kind.is_char_device() || kind.is_block_device() {
        Some("a device")
    } else {
        None
    }
}

fn folder(path: &Path, depth: usize, found: &mut Found<'_>) {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            found.notes.push(format!("{}: {error}", path.display()));
            return;
        }
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(link) = fs::symlink_metadata(&path) else { continue };
        if link.is_dir() {
            if depth + 1 < DEPTH {
                folder(&path, depth + 1, found);
            } else {
                found.notes.push(format!("{}: too deep a folder, not looked into", path.display()));
            }
            continue;
        }
        // A link to a folder may lead back here; one to a file is a file.
        let Ok(meta) = fs::metadata(&path) else {
            found.notes.push(format!("{}: a link to nothing", path.display()));
            continue;
        };
        if meta.is_dir() {
            found.notes.push(format!("{}: a link to a folder, not followed", path.display()));
        } else if let Some(kind) = special(&meta) {
            found.notes.push(format!("{}: {kind}, not read", path.display()));
        } else if found.work.len() >= FILES {
            found.notes.push(format!("{}: more than {FILES} files, not read", path.display()));
            return;
        } else {
            let name = path.display().to_string();
            found.file(path, name, &meta);
        }
    }
}
