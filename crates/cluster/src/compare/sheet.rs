//! What of a node is compared: its facts as properties with a value each.

mod hardware;
mod software;

use std::collections::BTreeMap;

use crate::facts::{Fact, Facts, Reading};

/// Kinds of properties, in the order of a report. The name of one is before the property's own: `driver parameter EnableMSI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    Driver,
    Parameter,
    Module,
    Modprobe,
    Gpu,
    Rail,
    Firmware,
    Host,
    Boot,
    Limit,
    Service,
    Library,
    Wheel,
    DeepEp,
    Variable,
}

impl Group {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Parameter => "driver parameter",
            Self::Module => "module",
            Self::Modprobe => "modprobe.d option",
            Self::Gpu => "GPUs:",
            Self::Rail => "NICs:",
            Self::Firmware => "firmware of",
            Self::Host => "host:",
            Self::Boot => "kernel command line:",
            Self::Limit => "limit:",
            Self::Service => "service",
            Self::Library => "library",
            Self::Wheel => "Python package",
            Self::DeepEp => "DeepEP:",
            Self::Variable => "variable",
        }
    }
}

/// What a node has of a property. What could not be read is no value: it is never the same as "not there".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    Value(String),
    /// An amount that differs a little between equal machines.
    Amount(u64),
    Absent,
    Unknown(String),
}

impl Seen {
    pub(super) fn of<T>(fact: &Fact<T>, show: impl FnOnce(&T) -> String) -> Self {
        match fact.reading() {
            Reading::Value(value) => Self::Value(show(value)),
            Reading::Absent => Self::Absent,
            Reading::Unreadable(reason) => Self::Unknown(format!("{}: {reason}", fact.source)),
            Reading::NotLooked => Self::Unknown("not looked at".to_owned()),
        }
    }

    fn amount(fact: &Fact<u64>) -> Self {
        match fact.reading() {
            Reading::Value(value) => Self::Amount(*value),
            _ => Self::of(fact, ToString::to_string),
        }
    }
}

/// The properties of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Sheet {
    properties: BTreeMap<(Group, String), Seen>,
    /// What a node has of a property that it does not list, by group: nothing, or nobody knows.
    rest: BTreeMap<Group, Seen>,
}

impl Sheet {
    pub(super) fn of(facts: &Facts) -> Self {
        let mut sheet = Self::default();
        software::fill(&mut sheet, facts);
        hardware::fill(&mut sheet, facts);
        sheet
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &(Group, String)> {
        self.properties.keys()
    }

    pub(super) fn get(&self, key: &(Group, String)) -> &Seen {
        static ABSENT: Seen = Seen::Absent;
        self.properties.get(key).or_else(|| self.rest.get(&key.0)).unwrap_or(&ABSENT)
    }

    fn set(&mut self, group: Group, name: impl Into<String>, seen: Seen) {
        self.properties.insert((group, name.into()), seen);
    }

    fn fact<T>(&mut self, group: Group, name: &str, fact: &Fact<T>, show: impl FnOnce(&T) -> String) {
        self.set(group, name, Seen::of(fact, show));
    }

    /// Properties that a list names, where the list is `fact`: what it lacks is not there, or not known if it was not read.
    fn list<T>(&mut self, group: Group, fact: &Fact<T>, entries: impl FnOnce(&T) -> Vec<(String, String)>) {
        match fact.value() {
            Some(value) => {
                for (name, value) in entries(value) {
                    self.set(group, name, Seen::Value(value));
                }
            }
            None => {
                self.rest.insert(group, Seen::of(fact, |_| String::new()));
            }
        }
    }
}

/// `8 x 400 Gb/s, 1 x 100 Gb/s`: how often each text is there, most first.
fn tally(texts: impl IntoIterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let parts: Vec<String> = counts.into_iter().map(|(text, count)| format!("{count} x {text}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}
