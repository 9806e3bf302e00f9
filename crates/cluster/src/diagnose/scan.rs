//! Finds signals in lines: one search for all their literals, then the patterns of those that hit.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::Regex;

use super::context;
use super::event::Signal;
use super::rules;

/// A signal, ready to be matched.
pub(super) struct Compiled {
    /// The signal.
    pub(super) signal: &'static Signal,
    pattern: Option<Regex>,
    /// Two of its numbers must be the same.
    counted: bool,
}

/// Who wants a literal.
#[derive(Clone, Copy)]
enum Owner {
    Signal(u16),
    Mark(u32),
}

/// The search for all literals, and the patterns.
pub(super) struct Scanner {
    literals: Option<AhoCorasick>,
    /// By literal.
    owners: Vec<Vec<Owner>>,
    signals: Vec<Compiled>,
}

/// What hit in a line; used again for the next.
pub(super) struct Hits {
    /// Numbers of signals, each once.
    pub(super) signals: Vec<u16>,
    /// Bits of [`context::MARKS`].
    pub(super) marks: u32,
    stamps: Vec<u32>,
    now: u32,
}

impl Hits {
    pub(super) fn new() -> Self {
        Self { signals: Vec::new(), marks: 0, stamps: vec![0; scanner().signals.len()], now: 0 }
    }
}

/// The scanner for the signals of all rules.
pub(super) fn scanner() -> &'static Scanner {
    static MADE: LazyLock<Scanner> = LazyLock::new(|| Scanner::new(rules::signals()));
    &MADE
}

impl Scanner {
    fn new(signals: impl Iterator<Item = &'static Signal>) -> Self {
        let mut texts: Vec<&'static str> = Vec::new();
        let mut owners: Vec<Vec<Owner>> = Vec::new();
        let mut index: std::collections::HashMap<&'static str, usize> = std::collections::HashMap::new();
        let mut add = |text: &'static str, owner: Owner| {
            let at = *index.entry(text).or_insert_with(|| {
                texts.push(text);
                owners.push(Vec::new());
                texts.len() - 1
            });
            owners[at].push(owner);
        };
        let mut compiled = Vec::new();
        for signal in signals {
            // A pattern that does not compile matches nothing; a test sees to it that there is none.
            let pattern = match signal.pattern.map(Regex::new) {
                Some(Err(_)) => continue,
                Some(Ok(pattern)) => Some(pattern),
                None => None,
            };
            let number = compiled.len() as u16;
            compiled.push(Compiled { signal, pattern, counted: signal.id == "iterations-done" });
            for text in signal.any.iter().filter(|text| !text.is_empty()) {
                add(text, Owner::Signal(number));
            }
        }
        for (bit, literals) in context::MARKS {
            for text in *literals {
                add(text, Owner::Mark(*bit));
            }
        }
        let literals = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .kind(Some(AhoCorasickKind::DFA))
            .build(&texts)
            .or_else(|_| AhoCorasick::new(&texts))
            .ok();
        Self { literals, owners, signals: compiled }
    }

    /// Fills `hits` with what has a literal in `line`.
    pub(super) fn search(&self, line: &[u8], hits: &mut Hits) {
        hits.signals.clear();
        hits.marks = 0;
        hits.now = hits.now.wrapping_add(1);
        if hits.now == 0 {
            hits.stamps.fill(0);
            hits.now = 1;
        }
        let Some(literals) = &self.literals else { return };
        for found in literals.find_overlapping_iter(line) {
            for owner in &self.owners[found.pattern().as_usize()] {
                match *owner {
                    Owner::Mark(bit) => hits.marks |= bit,
                    Owner::Signal(number) => {
                        let stamp = &mut hits.stamps[usize::from(number)];
                        if *stamp != hits.now {
                            *stamp = hits.now;
                            hits.signals.push(number);
                        }
                    }
                }
            }
        }
        hits.signals.sort_unstable();
    }

    /// The signal with this number.
    pub(super) fn signal(&self, number: u16) -> &'static Signal {
        self.signals[usize::from(number)].signal
    }

    /// Whether the pattern of the signal matches as well, and what its groups hold. Groups are only taken where `fields` asks for them.
    pub(super) fn confirm(
        &'static self,
        number: u16,
        line: &str,
        fields: Option<&mut Vec<(&'static str, String)>>,
    ) -> bool {
        let compiled = &self.signals[usize::from(number)];
        let Some(pattern) = &compiled.pattern else { return true };
        let counted = compiled.counted;
        if counted && !twice(line) {
            return false;
        }
        if fields.is_none() && !counted {
            return pattern.is_match(line);
        }
        let Some(found) = pattern.captures(line) else { return false };
        let group = |names: [&str; 2]| names.into_iter().find_map(|name| found.name(name));
        if counted {
            // What the pattern cannot say: the last of them.
            let number = |names| group(names).and_then(|text| text.as_str().parse::<u64>().ok());
            let (iter, of) = (number(["iter", "iter2"]), number(["of", "of2"]));
            if iter != of || iter.is_none_or(|iter| iter == 0) {
                return false;
            }
        }
        if let Some(fields) = fields {
            for name in pattern.capture_names().flatten() {
                if let Some(text) = found.name(name) {
                    fields.push((name, shorten(text.as_str(), FIELD)));
                }
            }
        }
        true
    }
}

/// Whether the same number stands on both sides of a `/` or an `of`, as in the last of some steps: most lines are of others, and finding that
/// out with groups is dear.
fn twice(line: &str) -> bool {
    let same = |before: &str, after: &str| {
        let before = before.trim_end();
        let digits = before.bytes().rev().take_while(u8::is_ascii_digit).count();
        let number = &before[before.len() - digits..];
        let after = after.trim_start();
        digits > 0
            && after.bytes().take_while(u8::is_ascii_digit).count() == digits
            && after.starts_with(number)
    };
    memchr::memchr_iter(b'/', line.as_bytes()).any(|at| same(&line[..at], &line[at + 1..]))
        || line
            .match_indices("of")
            .chain(line.match_indices("OF"))
            .chain(line.match_indices("Of"))
            .any(|(at, _)| same(&line[..at], &line[at + 2..]))
}

/// Most bytes of a line that an event keeps.
pub(super) const TEXT: usize = 600;
/// Most bytes of a field that are kept.
const FIELD: usize = 1024;

/// `text` in at most `most` bytes, cut between characters.
pub(super) fn shorten(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_can_be_found() {
        let mut ids: Vec<&str> = Vec::new();
        for signal in rules::signals() {
            assert!(!signal.any.is_empty(), "{} has no literal", signal.id);
            assert!(signal.any.iter().all(|text| text.len() >= 2), "{} has an empty literal", signal.id);
            if let Some(pattern) = signal.pattern {
                assert!(Regex::new(pattern).is_ok(), "{}: {pattern}", signal.id);
            }
            ids.push(signal.id);
        }
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "an id is given twice");
        assert_eq!(scanner().signals.len(), all);
        assert!(scanner().literals.is_some());
    }
}
