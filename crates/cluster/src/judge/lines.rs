//! Lines of logs: bounded, any bytes, and without what launchers put before them.

use std::borrow::Cow;
use std::io::{self, BufRead, ErrorKind};

/// Bytes of a line that are looked at; the rest is skipped.
const LONGEST: usize = 64 << 10;

/// Who printed a line, as its launcher says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// Number of the task: a rank, or a node where the launcher starts one task on each.
    pub(super) task: Option<u32>,
    /// Pod or address.
    pub(super) host: Option<String>,
}

/// Calls `line` for every line that `wanted` takes by its bytes, with its number from 1. A carriage return ends a line too
/// (progress bars), without counting.
///
/// # Errors
/// The first error in reading; lines before it were given.
pub(super) fn each(
    mut input: impl BufRead,
    wanted: impl Fn(&[u8]) -> bool,
    mut line: impl FnMut(u64, &str),
) -> io::Result<()> {
    let (mut number, mut held, mut any) = (1_u64, Vec::new(), false);
    let mut give = |number: u64, held: &mut Vec<u8>| {
        if !held.is_empty() {
            // Colours and tabs may stand within what is looked for.
            let taken = wanted(held);
            if taken || memchr::memchr3(0x1b, b'\t', 0, held).is_some() {
                line(number, &plain(String::from_utf8_lossy(held)));
            }
            held.clear();
        }
    };
    loop {
        let chunk = match input.fill_buf() {
            Ok([]) => break,
            Ok(chunk) => chunk,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                give(number, &mut held);
                return Err(error);
            }
        };
        let end = memchr::memchr2(b'\n', b'\r', chunk);
        let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
        let room = LONGEST.saturating_sub(held.len());
        held.extend_from_slice(part.get(..part.len().min(room)).unwrap_or_default());
        let (used, newline) = match end {
            Some(at) => (at + 1, chunk.get(at) == Some(&b'\n')),
            None => (chunk.len(), false),
        };
        any |= used > 0;
        input.consume(used);
        if end.is_some() {
            give(number, &mut held);
        }
        number += u64::from(newline);
    }
    if any {
        give(number, &mut held);
    }
    Ok(())
}

/// Without escape sequences of terminals and other control characters.
fn plain(text: Cow<'_, str>) -> Cow<'_, str> {
    // Most lines have none. 0xc2 begins the control characters beyond ASCII.
    if text.bytes().all(|byte| byte >= 0x20 && byte != 0x7f && byte != 0xc2) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\u{1b}' {
            out.push(if c.is_control() { ' ' } else { c });
            continue;
        }
        if rest.next_if_eq(&'[').is_some() {
            // Parameters, then one letter.
            while rest.next_if(|c| c.is_ascii_digit() || matches!(c, ';' | '?' | ':')).is_some() {}
            rest.next();
        }
    }
    Cow::Owned(out)
}

/// Takes what launchers put before a line: `[1,3]<stdout>:`, `[rank3]:`, ` 3: `, `[pod/x-0/main] `, `(Worker pid=1, ip=192.0.2.3) `, and
/// times before or between them.
pub(super) fn origin(mut text: &str) -> (Origin, &str) {
    let mut origin = Origin::default();
    for _ in 0..6 {
        let trimmed = text.trim_start();
        let Some((rest, found)) = one(trimmed) else { break };
        match found {
            Found::Task(task) => {
                if origin.task.is_some() {
                    break;
                }
                origin.task = Some(task);
            }
            Found::Host(host) => origin.host = Some(host.to_owned()),
            Found::Time => {}
        }
        text = rest;
    }
    (origin, text)
}

enum Found<'a> {
    Task(u32),
    Host(&'a str),
    Time,
}

fn one(text: &str) -> Option<(&str, Found<'_>)> {
    if let Some(inner) = text.strip_prefix('[') {
        let (tag, rest) = inner.split_once(']')?;
        if let Some(pod) = tag.strip_prefix("pod/") {
            return Some((rest, Found::Host(pod.split('/').next().unwrap_or(pod))));
        }
        if let Some((job, task)) = tag.split_once(',') {
            job.trim().parse::<u32>().ok()?;
            let rest = ["<stdout>:", "<stderr>:", "<stdout>", "<stderr>", ":"]
                .iter()
                .find_map(|mark| rest.strip_prefix(mark))?;
            return Some((rest, Found::Task(task.trim().parse().ok()?)));
        }
        if let Some(rest) = rest.strip_prefix(':') {
            // torchrun's names before the number: rank, default, trainer.
            let digits = tag.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '_');
            return Some((rest, Found::Task(digits.parse().ok()?)));
        }
        return is_time(tag).then_some((rest, Found::Time));
    }
    if let Some(inner) = text.strip_prefix('(') {
        let (tag, rest) = inner.split_once(')')?;
        if !tag.contains("pid=") {
            return None;
        }
        let host = tag.split_once("ip=").map_or(tag, |(_, ip)| ip.trim());
        return Some((rest, Found::Host(host)));
    }
    let (word, rest) = text.split_once(' ')?;
    if let Some(task) = word.strip_suffix(':').and_then(|task| task.parse::<u32>().ok()) {
        return Some((rest, Found::Task(task)));
    }
    if is_time(word) {
        // A date and its time may be two words.
        return Some((rest, Found::Time));
    }
    None
}

/// `2026-11-29T12:03:11.123Z`, `2026-11-29`, `12:03:11,123`, `2026-11-29 12:03:11`.
fn is_time(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let marks = text.bytes().filter(|byte| matches!(byte, b':' | b'-')).count();
    digits >= 6
        && marks >= 2
        && text.bytes().all(|byte| {
            byte.is_ascii_digit() || matches!(byte, b':' | b'-' | b'.' | b',' | b'T' | b'Z' | b'+' | b' ')
        })
}

/// The number right after `key`, wherever that stands: `number(line, "combine=")`.
pub(super) fn number(text: &str, key: &str) -> Option<f64> {
    let at = text.find(key)? + key.len();
    leading(text.get(at..)?)
}

/// The number that `text` begins with, after blanks.
pub(super) fn leading(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let end = text
        .bytes()
        .position(|byte| !(byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E')))
        .unwrap_or(text.len());
    let word = text.get(..end)?.trim_end_matches(['.', '-', '+', 'e', 'E']);
    if word.is_empty() {
        // What Python prints for no number.
        let bare = text.trim_start_matches(['-', '+']);
        return match bare.split(|c: char| !c.is_ascii_alphabetic()).next()? {
            "nan" | "NaN" => Some(f64::NAN),
            "inf" | "Infinity" => Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }),
            _ => None,
        };
    }
    word.parse().ok()
}

/// The bandwidth right after `key`, in GB/s and no other unit; none: `key` is not there. An error is what stands there instead:
/// another unit, no number, a line that is cut.
pub(super) fn rate<'a>(text: &'a str, key: &str) -> Option<Result<f64, &'a str>> {
    let at = text.find(key)? + key.len();
    let rest = text.get(at..)?;
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (word, unit) = rest.split_at(end);
    let there = || {
        let unit_end = unit
            .trim_start()
            .find([',', '|', '('])
            .map_or(unit.len(), |end| end + unit.len() - unit.trim_start().len());
        rest.get(..end + unit_end).unwrap_or(rest).trim()
    };
    let of_unit = unit
        .trim_start()
        .strip_prefix("GB/s")
        .is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '/'));
    Some(match word.parse::<f64>() {
        Ok(value) if of_unit && value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(there()),
    })
}

/// As [`number`], a whole one.
pub(super) fn whole(text: &str, key: &str) -> Option<u64> {
    let at = text.find(key)? + key.len();
    let rest = text.get(at..)?.trim_start();
    let end = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

/// The number right before `unit`: `before("43.24 GB/s (RDMA)", " GB/s (RDMA)")`.
pub(super) fn before(text: &str, unit: &str) -> Option<f64> {
    let head = text.get(..text.find(unit)?)?;
    let start = head.rfind(|c: char| !(c.is_ascii_digit() || c == '.')).map_or(0, |at| at + 1);
    head.get(start..)?.parse().ok()
}

/// The word after `key`, up to a blank, comma or bracket.
pub(super) fn word<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let at = text.find(key)? + key.len();
    let rest = text.get(at..)?.trim_start();
    let end =
        rest.find(|c: char| c.is_whitespace() || matches!(c, ',' | ')' | ']' | ';')).unwrap_or(rest.len());
    rest.get(..end).filter(|word| !word.is_empty())
}

/// `text`, cut to what fits a line.
pub(super) fn short(text: &str) -> String {
    const LONG: usize = 200;
    match text.char_indices().nth(LONG) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default().trim()),
        None => text.trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(bytes: &[u8]) -> Vec<(u64, String)> {
        let mut all = Vec::new();
        each(bytes, |_| true, |number, text| all.push((number, text.to_owned()))).unwrap();
        all
    }

    #[test]
    fn lines_of_any_bytes() {
        let got = split(b"a\r\nb\rc\n\n\x1b[32mgreen\x1b[0m \xff\xfe\nlast");
        let want = [(1, "a"), (2, "b"), (2, "c"), (4, "green \u{fffd}\u{fffd}"), (5, "last")];
        assert_eq!(got, want.map(|(number, text)| (number, text.to_owned())));
        let long = vec![b'x'; LONGEST * 2];
        assert_eq!(split(&long)[0].1.len(), LONGEST);
        assert!(split(b"").is_empty());
    }

    #[test]
    fn launchers() {
        for (line, task, host, text) in [
            ("[1,3]<stdout>:hello", Some(3), None, "hello"),
            ("[1,12]<stderr>: hello", Some(12), None, " hello"),
            ("[rank3]: hello", Some(3), None, " hello"),
            ("[default7]:[rank 3] hello", Some(7), None, "[rank 3] hello"),
            (" 3: hello", Some(3), None, "hello"),
            ("[pod/bench-1-x7/main] [rank3]:hello", Some(3), Some("bench-1-x7"), "hello"),
            ("[pod/bench-1/main] 2026-11-29T12:03:11.123Z   Node 0: x", None, Some("bench-1"), "  Node 0: x"),
            ("(Worker pid=77, ip=192.0.2.3) hello", None, Some("192.0.2.3"), " hello"),
            ("2026-11-29 12:03:11,123 | INFO | x", None, None, "| INFO | x"),
            ("[2026-11-29 12:03:11] x", None, None, " x"),
            ("[rank 3] Dispatch", None, None, "[rank 3] Dispatch"),
            ("[tuning] Best", None, None, "[tuning] Best"),
            ("  Node 1: dispatch=1.0", None, None, "  Node 1: dispatch=1.0"),
            ("[", None, None, "["),
            ("", None, None, ""),
        ] {
            let (origin, rest) = super::origin(line);
            assert_eq!((origin.task, origin.host.as_deref(), rest), (task, host, text), "{line}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(number("dispatch=276.9 GB/s, combine=245.1 GB/s", "combine="), Some(245.1));
        assert_eq!(number("combine=nan GB/s", "combine=").map(f64::is_nan), Some(true));
        assert_eq!(number("combine= x", "combine="), None);
        assert_eq!(before("12 + 345 us, 43.24 GB/s (RDMA), 1 GB/s (NVL)", " GB/s (RDMA)"), Some(43.24));
        assert_eq!(whole("SMs 24, NVL", "SMs "), Some(24));
        assert_eq!(word("PyTorch: 2.9.0a0+145, CUDA: 13.0", "PyTorch: "), Some("2.9.0a0+145"));
    }
}
