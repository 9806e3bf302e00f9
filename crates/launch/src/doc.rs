//! YAML and JSON documents in the order in which they are built, with comments that say where a value comes from.

use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_saphyr::{Commented, LitString};

/// A document or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Keys and values, in order.
    Map(Vec<(String, Node)>),
    /// A list.
    List(Vec<Node>),
    /// A string; quoted where it must be.
    Text(String),
    /// A string of several lines, written as a block.
    Block(String),
    /// A number.
    Number(i64),
    /// True or false.
    Flag(bool),
    /// A scalar with a comment behind it.
    Noted(Box<Node>, String),
}

impl Node {
    /// This scalar, with `note` as the comment behind it. Lists and maps take none: their parts do.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        match self {
            Self::Text(_) | Self::Number(_) | Self::Flag(_) => {
                Self::Noted(Box::new(self), note.into().replace('\n', " "))
            }
            other => other,
        }
    }

    /// The value at `key`, where this is a map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Adds `key`, where this is a map.
    pub fn set(&mut self, key: &str, value: impl Into<Self>) {
        if let Self::Map(entries) = self {
            entries.push((key.to_owned(), value.into()));
        }
    }

    /// The document as YAML, with `head` as comment lines above it.
    ///
    /// # Errors
    /// When the writer refuses.
    pub fn yaml(&self, head: &str) -> Result<String, String> {
        let mut options = serde_saphyr::SerializerOptions::default();
        // Long values (lists of devices) stay on their line: a folded one is harder to read and to search.
        options.folded_wrap_chars = usize::MAX;
        options.min_fold_chars = usize::MAX;
        let body = serde_saphyr::to_string_with_options(self, options).map_err(|error| error.to_string())?;
        let head: String =
            head.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
        Ok(format!("{head}{body}"))
    }

    /// The document as JSON values, without comments.
    pub fn json(&self) -> serde_json::Value {
        use serde_json::Value;
        match self {
            Self::Map(entries) => {
                Value::Object(entries.iter().map(|(key, value)| (key.clone(), value.json())).collect())
            }
            Self::List(items) => Value::Array(items.iter().map(Self::json).collect()),
            Self::Text(text) | Self::Block(text) => Value::String(text.clone()),
            Self::Number(number) => Value::from(*number),
            Self::Flag(flag) => Value::Bool(*flag),
            Self::Noted(inner, _) => inner.json(),
        }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Self::Text(text) => text.serialize(serializer),
            Self::Block(text) => LitString(text.clone()).serialize(serializer),
            Self::Number(number) => number.serialize(serializer),
            Self::Flag(flag) => flag.serialize(serializer),
            Self::Noted(inner, note) => match inner.as_ref() {
                Self::Text(text) => Commented(text, note.clone()).serialize(serializer),
                Self::Number(number) => Commented(number, note.clone()).serialize(serializer),
                Self::Flag(flag) => Commented(flag, note.clone()).serialize(serializer),
                _ => Err(S::Error::custom("only scalars take comments")),
            },
        }
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Node {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<bool> for Node {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u32> for Node {
    fn from(number: u32) -> Self {
        Self::Number(i64::from(number))
    }
}

impl From<Vec<Node>> for Node {
    fn from(items: Vec<Node>) -> Self {
        Self::List(items)
    }
}

/// A map: `map! { "kind": "Job", "spec": map! { "completions": 2u32 } }`.
#[macro_export]
macro_rules! map {
    ($($key:tt : $value:expr),* $(,)?) => {
        $crate::doc::Node::Map(vec![$(($key.to_owned(), $crate::doc::Node::from($value))),*])
    };
}

/// A list: `list!["a", "b"]`.
#[macro_export]
macro_rules! list {
    ($($value:expr),* $(,)?) => {
        $crate::doc::Node::List(vec![$($crate::doc::Node::from($value)),*])
    };
}

/// Several documents as one YAML stream.
///
/// # Errors
/// When the writer refuses.
pub fn stream(head: &str, documents: &[Node]) -> Result<String, String> {
    let mut text = String::new();
    for (index, document) in documents.iter().enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        text.push_str(&document.yaml(if index == 0 { head } else { "" })?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_that_yaml_would_take_for_something_else_are_quoted() {
        let document = map! { "a": "no", "b": "5", "c": "1:30", "d": "x", "n": 5u32, "t": true };
        assert_eq!(
            document.yaml("two\nlines").unwrap(),
            "# two\n# lines\na: \"no\"\nb: \"5\"\nc: \"1:30\"\nd: x\n\"n\": 5\nt: true\n"
        );
    }

    #[test]
    fn comments_stand_behind_scalars_and_are_no_part_of_the_value() {
        let document = map! { "env": list![map! { "name": "A", "value": Node::from("5").note("GPU N uses mlx5_(N+5)") }] };
        let text = document.yaml("").unwrap();
        assert_eq!(text, "env:\n- name: A\n  value: \"5\" # GPU N uses mlx5_(N+5)\n");
        let back: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, document.json());
    }

    #[test]
    fn long_values_and_scripts_come_back_whole() {
        let long = "mlx5_1:1,".repeat(40) + "and words and words";
        let script = "set -eu\n  if true; then\n    echo \"# no comment\"\n  fi\n";
        let document =
            map! { "long": long.as_str(), "args": Node::List(vec![Node::Block(script.to_owned())]) };
        let text = document.yaml("").unwrap();
        let back: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, document.json());
        assert!(text.lines().any(|line| line.contains(&long)), "{text}");
    }
}
