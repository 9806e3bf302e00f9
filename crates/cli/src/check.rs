//! `expertrail check`.

use clap::Args;

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {}

/// Runs the command; gives the exit code.
pub(crate) fn main(_args: &CheckArgs) -> u8 {
    3
}
