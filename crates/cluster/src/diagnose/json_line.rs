//! Lines that are JSON objects, as log collectors and structured loggers write them.

use serde_json::{Map, Value};

use super::time::{self, Stamp};

/// What stands beside the message.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    pub(super) rank: Option<u32>,
    pub(super) node: Option<String>,
    pub(super) time: Option<Stamp>,
}

/// The message of a line that is one object, and what stands beside it. None: it is none.
pub(super) fn read(line: &[u8]) -> Option<(String, Beside)> {
    let line = line.trim_ascii_end();
    if line.last() != Some(&b'}') {
        return None;
    }
    let Value::Object(object) = serde_json::from_slice(line).ok()? else { return None };
    let message = ["log", "message", "msg", "MESSAGE", "text"]
        .iter()
        .find_map(|key| object.get(*key).and_then(Value::as_str))?
        .to_owned();
    let mut beside = Beside::default();
    for key in ["time", "ts", "timestamp", "@timestamp", "asctime"] {
        beside.time = beside.time.or_else(|| stamp(object.get(key)?));
    }
    for key in ["rank", "global_rank", "RANK"] {
        beside.rank = beside.rank.or_else(|| whole(object.get(key)?));
    }
    beside.node = ["host", "hostname", "node", "pod", "_HOSTNAME"]
        .iter()
        .find_map(|key| object.get(*key).and_then(Value::as_str))
        .or_else(|| nested(&object, "kubernetes", "pod_name"))
        .map(str::to_owned);
    // An exception that a logger put beside its message.
    let trace = ["exception", "exc_info", "stack_trace", "traceback", "error"]
        .iter()
        .filter_map(|key| object.get(*key).and_then(Value::as_str))
        .collect::<Vec<_>>();
    let message = if trace.is_empty() { message } else { format!("{message}\n{}", trace.join("\n")) };
    Some((message, beside))
}

fn nested<'a>(object: &'a Map<String, Value>, outer: &str, key: &str) -> Option<&'a str> {
    object.get(outer)?.get(key)?.as_str()
}

fn whole(value: &Value) -> Option<u32> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).and_then(|rank| u32::try_from(rank).ok())
}

fn stamp(value: &Value) -> Option<Stamp> {
    if let Some(text) = value.as_str() {
        return time::parse(text.as_bytes()).map(|(stamp, _)| stamp);
    }
    // Seconds since 1970, or milliseconds where that would be far in the future.
    let number = value.as_f64().filter(|number| *number > 1e9)?;
    let seconds = if number > 1e11 { number / 1000.0 } else { number };
    (seconds < 1e10).then_some(Stamp { seconds, clock: time::Clock::Zoned, year: None })
}
