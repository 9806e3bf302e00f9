//! Command lines for torchrun, mpirun and ssh, with a host file.

use super::RenderError;
use crate::files::FileSet;
use crate::run::Run;

/// Files for torchrun, mpirun or ssh.
///
/// # Errors
/// When the run does not fit.
pub fn render(run: &Run) -> Result<FileSet, RenderError> {
    Err(RenderError::Unfit(format!("target {} is rendered on another branch", run.target.name())))
}
