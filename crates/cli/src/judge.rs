//! `expertrail judge`.

use clap::Args;

/// Arguments of `judge`.
#[derive(Debug, Args)]
pub(crate) struct JudgeArgs {}

/// Runs the command; gives the exit code.
pub(crate) fn main(_args: &JudgeArgs) -> u8 {
    3
}
