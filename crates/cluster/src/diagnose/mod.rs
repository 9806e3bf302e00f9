//! What went wrong, from logs.
//!
//! Lines become events ([`event::Signal`]s say which), events of all ranks a [`Case`], and [`rule::Rule`]s make claims about it, each with
//! the lines that say so and what rules look-alikes out.

pub mod case;
mod context;
pub mod event;
mod handled;
mod heal;
mod json_line;
mod judged;
mod lines;
mod name;
mod part;
mod prefix;
pub mod read;
pub mod rule;
pub mod rules;
mod scan;
mod source;
pub mod structured;
mod text;
mod time;
mod timeline;
mod verdict;
mod versions;

pub use case::Case;
pub use event::Event;
pub use read::{Evidence, Input, ReadError, read, read_texts, states};
pub use text::text;
pub use timeline::RankLine;
pub use verdict::{Answered, Diagnosed, Diagnosis, JSON_SCHEMA, Line, Outcome, SCHEMA, conclude};
