//! YAML (and JSON, which is a part of it) with the line of every key and value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Options, Spanned};

/// Nesting of a document. Launch files have a dozen levels; more costs stack.
const DEEPEST: usize = 64;
/// Nodes of all documents of a file, aliases expanded.
const NODES: usize = 100_000;

/// A value with its line.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    /// Counted from 1.
    pub(crate) line: usize,
    /// What it is.
    pub(crate) kind: Kind,
}

/// A key with its line, and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) value: Value,
}

/// The kinds of values.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Null,
    Flag(bool),
    /// As Rust prints it.
    Number(String),
    Text(String),
    List(Vec<Value>),
    Map(Vec<Entry>),
}

impl Value {
    /// The entry at `key`.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The value at `key`; null counts as absent, as for the API server.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value).filter(|value| !matches!(value.kind, Kind::Null))
    }

    /// The value under `keys`, one in the other.
    pub(crate) fn path(&self, keys: &[&str]) -> Option<&Self> {
        keys.iter().try_fold(self, |value, key| value.get(key))
    }

    /// The entries of a map.
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.kind {
            Kind::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.kind {
            Kind::List(items) => items,
            _ => &[],
        }
    }

    /// A scalar as text.
    pub(crate) fn text(&self) -> Option<String> {
        match &self.kind {
            Kind::Text(text) | Kind::Number(text) => Some(text.clone()),
            Kind::Flag(flag) => Some(flag.to_string()),
            _ => None,
        }
    }

    /// The scalar at `key` as text.
    pub(crate) fn text_at(&self, key: &str) -> Option<String> {
        self.get(key)?.text()
    }

    /// The whole number at `key`, quoted or not.
    pub(crate) fn number_at(&self, key: &str) -> Option<u64> {
        self.text_at(key)?.trim().parse().ok()
    }

    /// Whether the value at `key` is true.
    pub(crate) fn flag_at(&self, key: &str) -> bool {
        matches!(self.get(key).map(|value| &value.kind), Some(Kind::Flag(true)))
    }

    /// The line of `key`, or else of this value.
    pub(crate) fn line_of(&self, key: &str) -> usize {
        self.entry(key).map_or(self.line, |entry| entry.line)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Kind, E> {
        Ok(Kind::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Kind, E> {
        Ok(Kind::Number(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Kind, E> {
        Ok(Kind::Number(number.to_string()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Kind, E> {
        Ok(Kind::Number(number.to_string()))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Kind, E> {
        Ok(Kind::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Kind, E> {
        Ok(Kind::Number(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Kind, E> {
        Ok(Kind::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Kind, E> {
        Ok(Kind::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Value>()? {
            items.push(item);
        }
        Ok(Kind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut entries: Vec<Entry> = Vec::new();
        while let Some(key) = access.next_key::<Value>()? {
            let Some(name) = key.text() else {
                return Err(A::Error::custom("a key that is no plain word"));
            };
            let value = access.next_value()?;
            entries.push(Entry { key: name, line: key.line, value });
        }
        Ok(Kind::Map(entries))
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        let mut line = usize::try_from(spanned.referenced.line()).unwrap_or(usize::MAX);
        // A block is said to be at its first line that is not empty.
        if let Kind::Text(text) = &spanned.value {
            let empty = text.len() - text.trim_start_matches('\n').len();
            line = line.saturating_sub(empty).max(1);
        }
        Ok(Self { line, kind: spanned.value })
    }
}

/// Why a text is no YAML.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    /// Counted from 1; none where the reader gave none.
    pub(crate) line: Option<usize>,
    /// What the reader said, on one line.
    pub(crate) what: String,
}

/// The documents of `text`. Where it is a template (`{{ }}`) its parts are taken for values that are not decided.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>, SyntaxError> {
    match parse(text) {
        Err(_) if text.contains("{{") => parse(&without_templates(text)),
        result => result,
    }
}

fn parse(text: &str) -> Result<Vec<Value>, SyntaxError> {
    let mut options = Options::default();
    options.strict_booleans = false;
    options.with_snippet = false;
    if let Some(budget) = &mut options.budget {
        budget.max_depth = DEEPEST;
        budget.max_nodes = NODES;
    }
    options.alias_limits.max_total_replayed_events = NODES;
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let line =
            error.location().map(|at| usize::try_from(at.line()).unwrap_or(0)).filter(|line| *line > 0);
        SyntaxError { line, what: error.to_string().lines().next().unwrap_or_default().to_owned() }
    })
}

/// A template's text with a word in place of each `{{ }}`, line for line.
fn without_templates(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let trimmed = line.trim();
        // A line of control (`{{- if }}`) is no part of the document.
        if !(trimmed.starts_with("{{") && trimmed.ends_with("}}") && trimmed.matches("{{").count() == 1) {
            let mut rest = line;
            while let Some(start) = rest.find("{{") {
                let Some(end) = rest[start..].find("}}") else { break };
                out.push_str(&rest[..start]);
                out.push_str("$TEMPLATE");
                rest = &rest[start + end + 2..];
            }
            out.push_str(rest);
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_keys_and_values() {
        let all =
            documents("# c\na:\n  b: 1\n  c:\n  - x: |\n      one\n      two\n---\nz: \"q\"\n").unwrap();
        let first = all.first().unwrap();
        assert_eq!(first.line_of("a"), 2);
        let a = first.get("a").unwrap();
        assert_eq!((a.line_of("b"), a.line_of("c")), (3, 4));
        let item = a.get("c").unwrap().items().first().unwrap();
        // A block is where its first line of text is.
        assert_eq!((item.line_of("x"), item.get("x").unwrap().line), (5, 6));
        assert_eq!(item.text_at("x").unwrap(), "one\ntwo\n");
        assert_eq!(all.get(1).unwrap().line_of("z"), 9);
    }

    #[test]
    fn blocks_that_begin_with_empty_lines() {
        let all = documents("a: |\n\n\n  one\nb: |-\n  two\n").unwrap();
        let map = all.first().unwrap();
        let (a, b) = (map.get("a").unwrap(), map.get("b").unwrap());
        assert_eq!((a.text().unwrap().as_str(), b.line), ("\n\none\n", 6));
        assert_eq!(a.line, 2);
    }

    #[test]
    fn types_stay() {
        let all = documents("a: 1\nb: \"1\"\nc: true\nd: ~\ne: 8G\n").unwrap();
        let map = all.first().unwrap();
        assert!(matches!(map.get("a").unwrap().kind, Kind::Number(_)));
        assert!(matches!(map.get("b").unwrap().kind, Kind::Text(_)));
        assert!(map.flag_at("c") && map.get("d").is_none() && map.get("a").unwrap().items().is_empty());
    }

    #[test]
    fn templates_keep_their_lines() {
        let text = "{{- if .x }}\na: {{ .Values.a | default \"x\" }}\n{{- end }}\nb: \"n-{{ .n }}\"\n";
        let all = documents(text).unwrap();
        let map = all.first().unwrap();
        assert_eq!((map.line_of("a"), map.line_of("b")), (2, 4));
        assert_eq!(map.text_at("b").unwrap(), "n-$TEMPLATE");
    }

    #[test]
    fn hostile_documents_are_errors() {
        assert!(documents(&"[".repeat(100_000)).is_err());
        assert!(documents(&"a: {".repeat(5000)).is_err());
        assert!(documents(&"- ".repeat(5000)).is_err());
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..9 {
            let many = vec![format!("*a{}", n - 1); 10].join(", ");
            bomb += &["a", &n.to_string(), ": &a", &n.to_string(), " [", &many, "]\n"].concat();
        }
        assert!(documents(&bomb).is_err());
        let error = documents("a: b\n  c: d\n").unwrap_err();
        assert_eq!(error.line, Some(2), "{error:?}");
        assert!(!error.what.contains('\n'));
    }
}
