//! Finds values by the names they are given, line by line.

use std::ops::Range;

use super::names::{Sort, sort};
use super::{REDACTED, forms};

/// A value's place in a line, and whether it stood bare where JSON wants it in quotes.
struct Value {
    at: Range<usize>,
    quote: bool,
}

/// Goes through the lines of one text.
pub(super) struct Scanner {
    /// Within a private key.
    key: bool,
    /// The last `name:` was one of a secret: the next `value:` is it.
    named: bool,
    /// The line that is next.
    at: usize,
    /// Lines of the data of Secret objects.
    secret: Vec<Range<usize>>,
}

impl Scanner {
    pub(super) fn new(text: &str) -> Self {
        let secret = if text.contains("kind: Secret") { secret_lines(text) } else { Vec::new() };
        Self { key: false, named: false, at: 0, secret }
    }

    /// Appends `line` without its secrets.
    pub(super) fn line(&mut self, line: &str, out: &mut String) {
        let at = self.at;
        self.at += 1;
        if line.contains("-----END ") {
            self.key = false;
        }
        if self.key && !line.is_empty() {
            out.push_str(REDACTED);
            return;
        }
        self.key =
            line.contains("-----BEGIN ") && line.contains("PRIVATE KEY-----") && !line.contains("-----END ");
        let mut values = self.values(line, self.secret.iter().any(|lines| lines.contains(&at)));
        values.extend(forms::spans(line).into_iter().map(|at| Value { at, quote: false }));
        values.sort_by_key(|value| (value.at.start, std::cmp::Reverse(value.at.end)));
        let mut done = 0;
        for value in values {
            if value.at.start < done || value.at.is_empty() || line.get(value.at.clone()) == Some(REDACTED) {
                continue;
            }
            out.push_str(line.get(done..value.at.start).unwrap_or_default());
            let quote = if value.quote { "\"" } else { "" };
            out.push_str(quote);
            out.push_str(REDACTED);
            out.push_str(quote);
            done = value.at.end;
        }
        out.push_str(line.get(done..).unwrap_or_default());
    }

    /// Values of secret names in `line`.
    fn values(&mut self, line: &str, secret: bool) -> Vec<Value> {
        let bytes = line.as_bytes();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        let mut found = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            if !bytes.get(at).copied().is_some_and(is_name) {
                at += 1;
                continue;
            }
            let end = at + bytes.iter().skip(at).take_while(|byte| is_name(**byte)).count();
            let name = line.get(at..end).unwrap_or_default();
            at = end;
            let Some((value, quoted)) = value_of(line, name, end) else { continue };
            let text = line.get(value.clone()).unwrap_or_default();
            if name == "name" {
                self.named = sort(text) != Sort::Plain;
                continue;
            }
            let number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            let wanted = match sort(name) {
                _ if secret => true,
                _ if name == "value" && std::mem::take(&mut self.named) => true,
                Sort::Plain => false,
                Sort::Always => true,
                Sort::Unless => {
                    let loud = !name.bytes().any(|byte| byte.is_ascii_lowercase());
                    let counted = !loud || name.to_ascii_uppercase().ends_with("TOKENS");
                    let harmless = number && counted || matches!(text, "true" | "false" | "null");
                    !harmless
                }
            };
            if wanted && !text.is_empty() && text != REDACTED {
                at = value.end;
                found.push(Value { at: value, quote: quoted });
            }
        }
        found
    }
}

/// The value that `name`, ending at `end`, is given: its place, and whether it is bare after a name in quotes.
fn value_of(line: &str, name: &str, end: usize) -> Option<(Range<usize>, bool)> {
    let bytes = line.as_bytes();
    let byte = |at: usize| bytes.get(at).copied();
    let skip = |mut at: usize, set: &[u8]| {
        while byte(at).is_some_and(|byte| set.contains(&byte)) {
            at += 1;
        }
        at
    };
    let closed = skip(end, b"\\\"'");
    let in_quotes = closed > end;
    let sign = skip(closed, b" \t");
    let start = match byte(sign) {
        Some(b'=' | b':') => {
            let mut at = sign + 1;
            if byte(at) == Some(b'=') && byte(sign) == Some(b':') {
                at += 1;
            }
            // `a::b` is a path of a program's names, `a==b` a comparison.
            if matches!(byte(at), Some(b':' | b'=')) {
                return None;
            }
            skip(at, b" \t")
        }
        // `--password hunter2`.
        Some(_) if name.starts_with("--") && sign > closed && !in_quotes => {
            if byte(sign) == Some(b'-') {
                return None;
            }
            sign
        }
        _ => return None,
    };
    let escaped = byte(start) == Some(b'\\') && matches!(byte(start + 1), Some(b'"' | b'\''));
    let open = if escaped { start + 1 } else { start };
    if let Some(quote @ (b'"' | b'\'')) = byte(open) {
        let from = open + 1;
        let mut at = from;
        while let Some(now) = byte(at) {
            if escaped && now == b'\\' && byte(at + 1) == Some(quote) {
                break;
            }
            if now == quote && !escaped {
                break;
            }
            at += if now == b'\\' && !escaped && quote == b'"' { 2 } else { 1 };
        }
        return Some((from..boundary(line, at), false));
    }
    // A header takes the rest of its line, or of the text in quotes.
    let header = name.to_ascii_lowercase().ends_with("authorization");
    let stops = |byte: u8| match byte {
        b'"' | b'\'' => true,
        b' ' | b'\t' | b',' | b';' | b'&' | b'}' | b']' | b'{' | b'[' | b'\\' | b')' => !header,
        _ => false,
    };
    let stop = (start..bytes.len()).find(|&at| byte(at).is_some_and(stops)).unwrap_or(bytes.len());
    let bare = in_quotes && byte(sign) == Some(b':');
    Some((start..stop, bare))
}

/// The next place at or after `at` where a character begins.
fn boundary(line: &str, at: usize) -> usize {
    (at..line.len()).find(|&at| line.is_char_boundary(at)).unwrap_or(line.len())
}

/// The lines of `data:` and `stringData:` of every Secret among the documents of a YAML text.
fn secret_lines(text: &str) -> Vec<Range<usize>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut from = 0;
    while from < lines.len() {
        let to = (from..lines.len())
            .find(|&at| lines.get(at).is_some_and(|line| line.trim_end() == "---"))
            .unwrap_or(lines.len());
        let document = lines.get(from..to).unwrap_or_default();
        // In a List an object is indented; the text says no more than that one of them is a Secret.
        if document.iter().any(|line| line.trim_start_matches(['-', ' ']).trim_end() == "kind: Secret") {
            for (at, line) in document.iter().enumerate() {
                let indent = line.len() - line.trim_start_matches(['-', ' ']).len();
                if matches!(line.trim_matches(['-', ' ']), "data:" | "stringData:") {
                    let inside = document.iter().skip(at + 1).take_while(|next| {
                        next.trim().is_empty() || next.len() - next.trim_start().len() > indent
                    });
                    let first = from + at + 1;
                    found.push(first..first + inside.count());
                }
            }
        }
        from = to + 1;
    }
    found
}
