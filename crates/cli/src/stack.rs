//! `expertrail stack`.

use clap::Args;

/// Arguments of `stack`.
#[derive(Debug, Args)]
pub(crate) struct StackArgs {}

/// Runs the command; gives the exit code.
pub(crate) fn main(_args: &StackArgs) -> u8 {
    3
}
