//! `expertrail explain`.

use clap::Args;

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {}

/// Runs the command; gives the exit code.
pub(crate) fn main(_args: &ExplainArgs) -> u8 {
    3
}
