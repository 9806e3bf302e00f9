//! `expertrail diagnose`.

use clap::Args;

/// Arguments of `diagnose`.
#[derive(Debug, Args)]
pub(crate) struct DiagnoseArgs {}

/// Runs the command; gives the exit code.
pub(crate) fn main(_args: &DiagnoseArgs) -> u8 {
    3
}
