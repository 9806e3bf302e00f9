//! Lines of a log into files.

use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use thiserror::Error;

use super::{FILE_LIMIT, MARK, NAME_LIMIT, crc, is_name};

/// All files of a log together, packed or not.
const TOTAL_LIMIT: usize = 256 << 20;

/// Versions of files in one log: a run of 512 nodes has some thousands.
const FILES_LIMIT: usize = 20_000;

/// Parts of a file: 64 MiB that do not shrink, in lines of at least 2,400 bytes.
const PARTS_LIMIT: usize = 30_000;

/// Problems that are kept; more are counted only.
const PROBLEMS_LIMIT: usize = 200;

/// A file that a log held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name: a relative path that stays in its folder.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// What is wrong with the frames of a log.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// A line looks like a frame and is none; it stays in the log.
    #[error("line {line}: begins like a part of a file and is none ({reason}); it is left in the log")]
    Line {
        /// Line of the log, from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The name leads out of the folder.
    #[error("line {line}: the file name {name:?} is refused: it could be written outside the run's folder")]
    Name {
        /// Line of the log, from 1.
        line: usize,
        /// The name, cut to a printable length.
        name: String,
    },
    /// Parts did not come.
    #[error(
        "{name}: {missing} of {parts} parts are missing (the first is {first}): the log was cut, or not read to its end"
    )]
    Missing {
        /// The file.
        name: String,
        /// Missing parts.
        missing: usize,
        /// Parts in all.
        parts: usize,
        /// The first that is missing.
        first: usize,
    },
    /// The content is not what was sent.
    #[error("{name}: what came is not what was sent ({reason}): the log changed on its way")]
    Damaged {
        /// The file.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// It is too large.
    #[error("{name}: more than {limit} bytes unpacked; it is not kept")]
    Large {
        /// The file.
        name: String,
        /// The limit.
        limit: usize,
    },
    /// Several files have one name.
    #[error("{name}: {versions} versions in one log (two attempts of a node?); the last one is kept")]
    Versions {
        /// The file.
        name: String,
        /// How many.
        versions: usize,
    },
    /// There are more frames than any run makes.
    #[error("line {line}: more files or parts than any run makes; this and later ones are not kept")]
    Flood {
        /// The first line that was dropped.
        line: usize,
    },
    /// Further problems.
    #[error("{0} more problems of this kind")]
    More(usize),
}

/// What a log held beside its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Whole files, in order of their names.
    pub files: Vec<Found>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// One version of one file. Two have one name where a node tried twice.
#[derive(Debug)]
struct Parts {
    texts: BTreeMap<usize, Vec<u8>>,
    count: usize,
    /// Line of its last part.
    last: usize,
    conflict: bool,
}

/// Takes frames out of a log, line by line.
#[derive(Debug, Default)]
pub struct Reader {
    line: usize,
    bytes: usize,
    flooded: bool,
    files: BTreeMap<(String, usize, u32), Parts>,
    problems: Vec<Problem>,
    more: usize,
}

/// The fields of a frame.
struct Frame<'a> {
    name: &'a str,
    part: usize,
    count: usize,
    sum: u32,
    bytes: Vec<u8>,
}

impl Reader {
    /// A reader of one log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next line, with or without its end; gives what of it is no frame: the whole line, or what stood before a frame
    /// and is no mark of a launcher.
    pub fn line<'a>(&mut self, text: &'a str) -> Option<&'a str> {
        self.line += 1;
        let Some(at) = text.find(MARK) else { return Some(text) };
        let (before, frame) = text.split_at(at);
        match parse(&frame[MARK.len()..]) {
            Ok(frame) => {
                self.take(&frame);
                // Output without an end of line that the frame was glued to.
                (!is_marks(before)).then_some(before)
            }
            Err(reason) => {
                self.problem(Problem::Line { line: self.line, reason });
                Some(text)
            }
        }
    }

    fn take(&mut self, frame: &Frame<'_>) {
        let line = self.line;
        if !is_name(frame.name) {
            let name = frame.name.chars().take(NAME_LIMIT).collect();
            return self.problem(Problem::Name { line, name });
        }
        let key = (frame.name.to_owned(), frame.count, frame.sum);
        let flood = self.bytes + frame.bytes.len() > TOTAL_LIMIT
            || self.files.len() >= FILES_LIMIT && !self.files.contains_key(&key);
        if flood {
            if !std::mem::replace(&mut self.flooded, true) {
                self.problem(Problem::Flood { line });
            }
            return;
        }
        let parts = self.files.entry(key).or_insert_with(|| Parts {
            texts: BTreeMap::new(),
            count: frame.count,
            last: 0,
            conflict: false,
        });
        parts.last = line;
        // A log that is read again after a cut has lines twice.
        if let Some(known) = parts.texts.get(&frame.part) {
            parts.conflict |= *known != frame.bytes;
        } else {
            self.bytes += frame.bytes.len();
            parts.texts.insert(frame.part, frame.bytes.clone());
        }
    }

    fn problem(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_LIMIT {
            self.problems.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// The files, after the last line.
    pub fn finish(mut self) -> Collected {
        let mut by_name: BTreeMap<String, Vec<(u32, Parts)>> = BTreeMap::new();
        for ((name, _, sum), parts) in std::mem::take(&mut self.files) {
            by_name.entry(name).or_default().push((sum, parts));
        }
        let mut files = Vec::new();
        let mut total = 0;
        for (name, mut versions) in by_name {
            versions.sort_by_key(|(_, parts)| parts.last);
            let mut whole = Vec::new();
            for (sum, parts) in versions {
                match unpack(&name, sum, &parts, TOTAL_LIMIT - total) {
                    Ok(bytes) => whole.push(bytes),
                    Err(problem) => self.problem(problem),
                }
            }
            if whole.len() > 1 {
                self.problem(Problem::Versions { name: name.clone(), versions: whole.len() });
            }
            if let Some(bytes) = whole.pop() {
                total += bytes.len();
                files.push(Found { name, bytes });
            }
        }
        if self.more > 0 {
            self.problems.push(Problem::More(self.more));
        }
        Collected { files, problems: self.problems }
    }
}

/// The log `text` without frames, and the files that were in it.
pub fn split(text: &str) -> (String, Collected) {
    let mut reader = Reader::new();
    let mut rest = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if let Some(left) = reader.line(line) {
            rest.push_str(left);
            if left.len() < line.len() {
                rest.push('\n');
            }
        }
    }
    (rest, reader.finish())
}

fn parse(text: &str) -> Result<Frame<'_>, &'static str> {
    let mut fields = text.trim_end().split(' ');
    let mut field = || fields.next().filter(|field| !field.is_empty());
    let name = field().ok_or("no name")?;
    let place = field().ok_or("no part number")?;
    let sum = field().ok_or("no checksum")?;
    let data = field().ok_or("no content")?;
    if fields.next().is_some() {
        return Err("more than four fields");
    }
    let number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<usize>().ok().filter(|number| digits && (1..=PARTS_LIMIT).contains(number))
    };
    let (part, count) = place.split_once('/').ok_or("no part number")?;
    let (part, count) = (number(part).ok_or("no part number")?, number(count).ok_or("no count of parts")?);
    if part > count {
        return Err("a part beyond the last");
    }
    let hex = sum.len() == 8 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    let sum = u32::from_str_radix(sum, 16).ok().filter(|_| hex).ok_or("no checksum")?;
    let bytes = STANDARD.decode(data).map_err(|_| "the content is no base64")?;
    Ok(Frame { name, part, count, sum, bytes })
}

fn unpack(name: &str, sum: u32, parts: &Parts, left: usize) -> Result<Vec<u8>, Problem> {
    let damaged = |reason| Problem::Damaged { name: name.to_owned(), reason };
    if parts.texts.len() < parts.count {
        let first = (1..=parts.count).find(|part| !parts.texts.contains_key(part)).unwrap_or(1);
        return Err(Problem::Missing {
            name: name.to_owned(),
            missing: parts.count - parts.texts.len(),
            parts: parts.count,
            first,
        });
    }
    let packed: Vec<u8> = parts.texts.values().flatten().copied().collect();
    if parts.conflict || crc(&packed) != sum {
        return Err(damaged("the checksum differs"));
    }
    let limit = FILE_LIMIT.min(left);
    let mut bytes = Vec::new();
    // A few lines can unpack to any size: never more than the limit is made.
    match GzDecoder::new(packed.as_slice()).take(limit as u64 + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() > limit => Err(Problem::Large { name: name.to_owned(), limit }),
        Ok(_) => Ok(bytes),
        Err(_) => Err(damaged("it does not unpack")),
    }
}

/// Whether what stands before a frame are marks that launchers and log viewers put there: `[rank 3]`, `3:`, `[1,3]<stdout>:`,
/// `[pod/x/container]`, `pod-name`, times.
fn is_marks(text: &str) -> bool {
    let mut inside = false;
    text.split_whitespace().all(|word| {
        let plain = word.trim_start_matches("\u{1b}[0m");
        let opens = plain.starts_with('[');
        let mark =
            inside || opens || plain.ends_with(':') || is_time(plain) || plain == "stdout" || plain == "F";
        inside = (inside || opens) && !plain.contains(']');
        mark
    })
}

/// `2025-11-30T16:01:02.5Z`, `16:01:02`, `2025-11-30`.
fn is_time(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let others = word.bytes().all(|byte| byte.is_ascii_digit() || b"-:.,+TZ".contains(&byte));
    digits >= 6 && others && word.bytes().any(|byte| matches!(byte, b':' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_launchers() {
        for marks in [
            "",
            "[rank 3] ",
            "3: ",
            "[1,3]<stdout>:",
            "[1,3]<stdout>: [rank 12] ",
            "2025-11-30T16:01:02.123456789Z ",
            "2025-11-30T16:01:02Z stdout F ",
            "[pod/run-1a2b3c-0-x7/ranks] ",
            "gpu-3: [rank 3] ",
            "16:01:02 ",
        ] {
            assert!(is_marks(marks), "{marks:?}");
        }
        for text in ["half a line", "loss 3.5 ", "12 ", "done."] {
            assert!(!is_marks(text), "{text:?}");
        }
    }
}
