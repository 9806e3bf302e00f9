//! One fact: what was read, from where, and whose view of the machine it is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whose view a fact is. A container sees its host's kernel but its own files, limits and devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// The kernel's own state (`/proc/driver`, `/proc/modules`, `/sys`): the same inside and outside of containers.
    HostKernel,
    /// A file, process or device of the host itself.
    Host,
    /// A file, process or device as one container sees it; the host's may differ.
    Container,
    /// Cannot be told, for example in a captured tree that names no environment.
    #[default]
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostKernel => "host kernel",
            Self::Host => "host",
            Self::Container => "container",
            Self::Unknown => "unknown scope",
        })
    }
}

/// What became of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading<'a, T> {
    /// It was read.
    Value(&'a T),
    /// It was looked for and is not there.
    Absent,
    /// It is there, or may be, and could not be read or understood: the reason.
    Unreadable(&'a str),
    /// Nobody looked (an older capture, or a part that was switched off).
    NotLooked,
}

/// A value with the place it came from. A value that could not be read is a fact too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact<T> {
    #[serde(skip_serializing_if = "Option::is_none", default = "Option::default")]
    value: Option<T>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    absent: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    unreadable: Option<String>,
    /// Path (without the `--root` prefix), command or library it comes from.
    #[serde(default)]
    pub source: String,
    /// Whose view it is.
    #[serde(default)]
    pub scope: Scope,
}

impl<T> Default for Fact<T> {
    fn default() -> Self {
        Self { value: None, absent: false, unreadable: None, source: String::new(), scope: Scope::Unknown }
    }
}

impl<T> Fact<T> {
    /// `value` as read at `source`.
    pub fn read(value: T, source: impl Into<String>, scope: Scope) -> Self {
        Self { value: Some(value), source: source.into(), scope, ..Self::default() }
    }

    /// `source` does not exist.
    pub fn absent(source: impl Into<String>, scope: Scope) -> Self {
        Self { absent: true, source: source.into(), scope, ..Self::default() }
    }

    /// `source` could not be read or understood.
    pub fn unreadable(reason: impl Into<String>, source: impl Into<String>, scope: Scope) -> Self {
        Self { unreadable: Some(reason.into()), source: source.into(), scope, ..Self::default() }
    }

    /// What became of the reading.
    pub fn reading(&self) -> Reading<'_, T> {
        match (&self.value, &self.unreadable, self.absent) {
            (Some(value), _, _) => Reading::Value(value),
            (None, Some(reason), _) => Reading::Unreadable(reason),
            (None, None, true) => Reading::Absent,
            (None, None, false) => Reading::NotLooked,
        }
    }

    /// The value, if it was read.
    pub fn value(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// The value to change it (tests and probes refine what a file said).
    pub fn value_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut()
    }

    /// True if it was looked for and is not there.
    pub fn is_absent(&self) -> bool {
        matches!(self.reading(), Reading::Absent)
    }

    /// The same fact with its value changed by `change`.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Fact<U> {
        let Self { value, absent, unreadable, source, scope } = self;
        Fact { value: value.map(change), absent, unreadable, source, scope }
    }

    /// As [`Fact::map`], where a value that `parse` does not understand becomes an unreadable fact.
    pub fn parse<U>(self, parse: impl FnOnce(T) -> Result<U, String>) -> Fact<U> {
        let Self { value, absent, unreadable, source, scope } = self;
        match value.map(parse) {
            Some(Err(reason)) => Fact::unreadable(reason, source, scope),
            Some(Ok(value)) => Fact { value: Some(value), absent, unreadable, source, scope },
            None => Fact { value: None, absent, unreadable, source, scope },
        }
    }
}
