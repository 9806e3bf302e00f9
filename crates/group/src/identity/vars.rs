//! Typed look-up of environment variables.

use super::endpoint::parse_port;
use super::error::{IdentityError, Outcome};

/// An environment.
pub(super) struct Vars<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Vars<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup }
    }

    /// The value, trimmed; empty counts as not set (manifests set empty values freely).
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let value = (self.lookup)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// The first of these that is set.
    pub(super) fn first(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.text(name).is_some())
    }

    /// A whole number of at most nine digits.
    pub(super) fn number(&self, name: &str) -> Outcome<Option<usize>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse_number(&text).map(Some).ok_or_else(|| self.bad(name, "a whole number, 0 or more"))
    }

    /// A whole number of at least one.
    pub(super) fn count(&self, name: &str) -> Outcome<Option<usize>> {
        match self.number(name)? {
            Some(0) => Err(self.bad(name, "a whole number, 1 or more")),
            other => Ok(other),
        }
    }

    /// The first of these names that is set, as a count.
    pub(super) fn first_count(&self, names: &[&'static str]) -> Outcome<Option<usize>> {
        self.first(names).map_or(Ok(None), |name| self.count(name))
    }

    /// A port.
    pub(super) fn port(&self, name: &str) -> Outcome<Option<u16>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse_port(&text).map(Some).ok_or_else(|| self.bad(name, "a port, 1 to 65535"))
    }

    /// The error for a value that does not parse.
    pub(super) fn bad(&self, name: &str, want: &'static str) -> IdentityError {
        IdentityError::Value {
            name: name.to_owned(),
            value: clip(&self.text(name).unwrap_or_default()),
            want,
        }
    }

    /// `NAME=value`, for messages.
    pub(super) fn show(&self, name: &str) -> String {
        format!("{name}={}", clip(&self.text(name).unwrap_or_default()))
    }
}

/// Digits only: `usize::from_str` would take `+3`.
pub(super) fn parse_number(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// Keeps a message readable whatever a variable holds.
fn clip(text: &str) -> String {
    const KEEP: usize = 120;
    match text.char_indices().nth(KEEP) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}
