//! `expertrail plan`.

use clap::Args;

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {}

/// Runs the command; gives the exit code.
pub(crate) fn main(_args: &PlanArgs) -> u8 {
    3
}
