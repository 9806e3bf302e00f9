//! Rendered files for Kubernetes: against the documents' values, the API's types and schemas, and by running their scripts.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod cases;
mod checklist;
mod goldens;
mod mpijob;
mod schema;
mod scripts;
mod traps;
mod typed;
