//! What went wrong, from logs.
//!
//! Lines become events ([`event::Signal`]s say which), events of all ranks a [`Case`], and [`rule::Rule`]s make claims about it, each with
//! the lines that say so and what rules look-alikes out.

pub mod case;
pub mod event;
mod heal;
pub mod rule;
pub mod rules;
mod text;
mod timeline;
mod verdict;

pub use case::Case;
pub use event::Event;
pub use text::text;
pub use timeline::RankLine;
pub use verdict::{Answered, Diagnosed, Diagnosis, JSON_SCHEMA, Line, Outcome, SCHEMA, conclude};
