//! Plain hosts: `torchrun`, `mpirun`, `ssh`.

mod hosts;
mod mpirun;
mod ssh;
mod torchrun;

use super::RenderError;
use super::script::benchmark_file;
use crate::files::FileSet;
use crate::run::{Run, Target};

/// Names of the scripts, for whoever starts them.
pub const MPIRUN: &str = "mpirun.sh";
/// See [`MPIRUN`].
pub const SSH: &str = "ssh.sh";
/// See [`MPIRUN`].
pub const TORCHRUN: &str = "torchrun.sh";
/// The variable that says where these scripts write. Without it they take a new directory beside themselves.
pub const OUT: &str = "EXPERTRAIL_OUT";

/// The script of the target, with its hostfile and a page on how to use it.
///
/// # Errors
/// When the target cannot run this description.
pub fn render(run: &Run) -> Result<FileSet, RenderError> {
    let mut files = match run.target {
        Target::Mpirun => mpirun::render(run),
        Target::Ssh => ssh::render(run),
        Target::Torchrun => torchrun::render(run)?,
        other => return Err(RenderError::Unfit(format!("{} is no target of plain hosts", other.name()))),
    };
    benchmark_file(run, &mut files);
    Ok(files)
}
