//! Compatibility of the loaded versions: a table of what is known good and known bad, with a source for each row, and the verdict over
//! what loads. "Newer is safe" is no rule here: the table has counter-examples.

mod findings;
mod matrix;
mod question;
mod text;
mod verdict;

pub use findings::{CAUSES, CHECKS, findings};
pub use matrix::{Commit, Effect, Matrix, Row, causes, matrix};
pub use question::{KEYS, Known, Question, Transport};
pub use text::text;
pub use verdict::{JSON_SCHEMA, Judgement, Match, SCHEMA, Verdict, judge};
