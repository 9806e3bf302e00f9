//! `expertrail compare`.

use clap::Args;

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {}

/// Runs the command; gives the exit code.
pub(crate) fn main(_args: &CompareArgs) -> u8 {
    3
}
