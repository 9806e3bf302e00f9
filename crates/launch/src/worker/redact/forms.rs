//! Values that are secrets by their own form.

use std::ops::Range;

/// Beginnings of tokens of well-known services, and how many characters follow at least.
const TOKENS: [(&str, usize); 14] = [
    ("hf_", 16),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghu_", 16),
    ("ghs_", 16),
    ("ghr_", 16),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("nvapi-", 16),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("sk-", 20),
    ("AKIA", 16),
    ("ASIA", 16),
];

/// Where in `line` secrets stand.
pub(super) fn spans(line: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    tokens(line, &mut spans);
    jwt(line, &mut spans);
    urls(line, &mut spans);
    bearer(line, &mut spans);
    spans
}

/// The end of the run of bytes from `from` on that `wanted` takes; they are ASCII.
fn run(line: &str, from: usize, wanted: impl Fn(u8) -> bool) -> usize {
    from + line.bytes().skip(from).take_while(|byte| wanted(*byte)).count()
}

fn starts_word(line: &str, at: usize) -> bool {
    at.checked_sub(1)
        .and_then(|before| line.as_bytes().get(before))
        .is_none_or(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')))
}

fn tokens(line: &str, spans: &mut Vec<Range<usize>>) {
    for (start, least) in TOKENS {
        for (at, _) in line.match_indices(start).filter(|(at, _)| starts_word(line, *at)) {
            let capital = start.bytes().all(|byte| byte.is_ascii_uppercase());
            let end = run(line, at + start.len(), |byte| match (start, capital) {
                (_, true) => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
                ("hf_" | "ghp_" | "gho_" | "ghu_" | "ghs_" | "ghr_", _) => byte.is_ascii_alphanumeric(),
                _ => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'),
            });
            let length = end - at - start.len();
            let digits = line[at..end].bytes().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
            if length >= least && digits {
                spans.push(at..end);
            }
        }
    }
}

/// Three parts in base64 with points between, of which the first two are objects of JSON.
fn jwt(line: &str, spans: &mut Vec<Range<usize>>) {
    for (at, _) in line.match_indices("eyJ").filter(|(at, _)| starts_word(line, *at)) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'=');
        let first = run(line, at, plain);
        if line.get(first..).is_some_and(|rest| rest.starts_with(".eyJ")) {
            let second = run(line, first + 1, plain);
            let third = line.get(second..).is_some_and(|rest| rest.starts_with('.'));
            spans.push(at..if third { run(line, second + 1, plain) } else { second });
        }
    }
}

/// The user and password of a URL.
fn urls(line: &str, spans: &mut Vec<Range<usize>>) {
    for (at, _) in line.match_indices("://") {
        let from = at + 3;
        let end = run(line, from, |byte| {
            byte.is_ascii_graphic() && !matches!(byte, b'/' | b'"' | b'\'' | b'<' | b'>' | b'?' | b'#')
        });
        let Some(authority) = line.get(from..end) else { continue };
        if let Some((login, _)) = authority.rsplit_once('@')
            && login.contains(':')
        {
            spans.push(from..from + login.len());
        }
    }
}

/// What follows `Bearer`, wherever it stands.
fn bearer(line: &str, spans: &mut Vec<Range<usize>>) {
    for word in ["Bearer ", "bearer "] {
        for (at, _) in line.match_indices(word).filter(|(at, _)| starts_word(line, *at)) {
            let from = at + word.len();
            let end = run(line, from, |byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte));
            // Not the word before "token" in prose.
            if end - from >= 8 && line[from..end].bytes().any(|byte| byte.is_ascii_digit()) {
                spans.push(from..end);
            }
        }
    }
}
