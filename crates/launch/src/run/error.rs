//! Why there is no run.

use thiserror::Error;

/// A description that cannot be run. Each message says what to change.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// A name that nobody knows.
    #[error("no {what} `{given}`{}: there are {}{otherwise}", match .nearest { Some(nearest) => format!("; did you mean `{nearest}`?"), None => String::new() }, .known.join(", "))]
    Unknown {
        /// What kind of name.
        what: &'static str,
        /// As given.
        given: String,
        /// The one most like it.
        nearest: Option<String>,
        /// All of them.
        known: Vec<String>,
        /// What else can be done.
        otherwise: String,
    },
    /// A value that cannot be.
    #[error("{key} = {given}: {reason}")]
    Value {
        /// The key in the description.
        key: String,
        /// As given.
        given: String,
        /// What is wrong and what to write.
        reason: String,
    },
    /// A value that must be given.
    #[error("{key} is missing: {reason}")]
    Missing {
        /// The key in the description.
        key: String,
        /// Why it is needed and how to find it.
        reason: String,
    },
    /// Values that do not go together.
    #[error("{0}")]
    Conflict(String),
    /// What is not built yet.
    #[error("{what} is not built yet; what works: {instead}")]
    NotBuilt {
        /// What was asked for.
        what: String,
        /// What to do instead.
        instead: String,
    },
}
