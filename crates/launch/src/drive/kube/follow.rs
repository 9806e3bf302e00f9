//! Logs that are followed by asking again and again: nothing is lost when a call fails, and nothing shown twice.
//!
//! `kubectl logs -f` ends without a word when the API server or the kubelet closes the connection. Asking for what came since a time has
//! no such end; what was seen already is told by its time of nanoseconds and its text.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use expertrail_cluster::kube::values::seconds;

/// Seconds that are asked for again: standard output and error are stamped apart and may be out of order by a little.
const OVERLAP: u64 = 2;

/// Bytes of a log that are kept while it is followed. The whole log is asked for again at the end.
const KEPT: usize = 32 << 20;

/// The log of one container.
#[derive(Debug, Default)]
pub(super) struct Follower {
    /// The newest time, in seconds since 1970.
    newest: Option<u64>,
    /// Lines that the next answer will have again, by hash, and how often.
    window: HashMap<u64, u32>,
    /// Everything so far, with times.
    kept: Vec<u8>,
    /// Something was left out of `kept`.
    cut: bool,
}

/// The time at the beginning of a line of `kubectl logs --timestamps`, and the rest.
fn split(line: &str) -> Option<(u64, &str)> {
    let (stamp, rest) = line.split_once(' ').unwrap_or((line, ""));
    Some((seconds(stamp)?, rest))
}

fn hash(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

impl Follower {
    /// What to ask for: `--since-time`; none for all.
    pub(super) fn since(&self) -> Option<String> {
        self.newest.map(|newest| stamp(newest.saturating_sub(OVERLAP)))
    }

    /// Takes an answer of `kubectl logs --timestamps`; gives the new lines, without times. The last line waits for its end unless
    /// `last` says that nothing more will come.
    pub(super) fn take(&mut self, answer: &[u8], last: bool) -> Vec<String> {
        let text = String::from_utf8_lossy(answer);
        let whole = match text.rfind('\n') {
            _ if last => &text[..],
            Some(end) => &text[..=end],
            None => "",
        };
        let mut before = std::mem::take(&mut self.window);
        let mut stamped = Vec::new();
        let mut new = Vec::new();
        for line in whole.lines() {
            let Some((at, rest)) = split(line) else {
                // A message of the kubelet in place of a log has no time.
                continue;
            };
            self.newest = self.newest.max(Some(at));
            let key = hash(line);
            stamped.push((at, key));
            if let Some(count) = before.get_mut(&key).filter(|count| **count > 0) {
                *count -= 1;
            } else {
                self.keep(line);
                new.push(rest.trim_end_matches('\r').to_owned());
            }
        }
        let from = self.newest.unwrap_or(0).saturating_sub(OVERLAP);
        if stamped.is_empty() {
            // An empty answer says nothing of what was seen before.
            self.window = before;
        }
        for (_, key) in stamped.iter().filter(|(at, _)| *at >= from) {
            *self.window.entry(*key).or_default() += 1;
        }
        new
    }

    fn keep(&mut self, line: &str) {
        if self.kept.len() + line.len() < KEPT {
            self.kept.extend(line.as_bytes());
            self.kept.push(b'\n');
        } else {
            self.cut = true;
        }
    }

    /// Everything that was seen, with times.
    pub(super) fn seen(&self) -> &[u8] {
        &self.kept
    }

    /// Whether the log was longer than is kept.
    pub(super) fn cut(&self) -> bool {
        self.cut
    }
}

/// Seconds since 1970 as RFC 3339 in UTC.
fn stamp(at: u64) -> String {
    let (days, rest) = (at / 86_400, at % 86_400);
    // Days are counted from 1 March of the year 0, so that the leap day comes last (the inverse of `values::seconds`).
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3_600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_date_prints_them() {
        // `date -u -d @N +%FT%TZ`.
        for (at, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_415, "2000-02-29T12:30:15Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_772_323_200, "2026-03-01T00:00:00Z"),
        ] {
            assert_eq!(stamp(at), text);
            assert_eq!(seconds(text), Some(at));
        }
    }

    #[test]
    fn what_comes_again_is_not_new() {
        let mut log = Follower::default();
        assert_eq!(log.since(), None);
        let first = b"2026-03-01T00:00:09.1Z a\n2026-03-01T00:00:10.000000001Z b\n2026-03-01T00:00:10.000000001Z b\n2026-03-01T00:00:10.2Z ha";
        assert_eq!(log.take(first, false), ["a", "b", "b"]);
        assert_eq!(log.since().as_deref(), Some("2026-03-01T00:00:08Z"));
        // The line is whole now; one that was stamped earlier came late; the same text at another time is new.
        let second = b"2026-03-01T00:00:09.1Z a\n2026-03-01T00:00:10.000000001Z b\n2026-03-01T00:00:10.000000001Z b\n2026-03-01T00:00:10.2Z half\n\
                       2026-03-01T00:00:09.9Z late\n2026-03-01T00:00:11Z b\n";
        assert_eq!(log.take(second, false), ["half", "late", "b"]);
        assert_eq!(log.take(b"", false), Vec::<String>::new());
        assert_eq!(log.take(second, false), Vec::<String>::new());
        assert_eq!(log.take(b"2026-03-01T00:00:12Z \nno time here\n", true), [""]);
        let seen = String::from_utf8(log.seen().to_vec()).unwrap();
        assert_eq!(seen.lines().count(), 7);
    }
}
