//! `expertrail bench` as its users start it: the real binary, its output, files and exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

mod bad_input;
mod fabric;
mod failures;
mod launched;
mod options;
mod probe;
mod reports;
mod routing;
mod terminal;
