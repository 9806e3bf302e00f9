//! Launch files for each system.

pub mod driver_config;
pub mod host_setup;
pub mod image;
pub mod k8s_job;
pub mod mpijob;
mod script;
pub mod shell;
pub mod slurm;

use thiserror::Error;

use crate::engine::{DEEPEP_FILE, DEEPEP_TEXT};
use crate::files::FileSet;
use crate::run::{Run, Target};

/// Why a run has no launch files.
#[derive(Debug, Error)]
pub enum RenderError {
    /// The writer of YAML or JSON refused.
    #[error("cannot write YAML: {0}")]
    Yaml(String),
    /// The system cannot run this description; the message says what to change.
    #[error("{0}")]
    Unfit(String),
}

/// All files of the run's directory but the copy of the description: `run.json` first, then those of the target.
///
/// # Errors
/// When the target cannot run this description.
pub fn run(run: &Run) -> Result<FileSet, RenderError> {
    let of_target = match run.target {
        Target::Slurm => slurm::render(run)?,
        Target::Torchrun | Target::Mpirun | Target::Ssh => shell::render(run)?,
        Target::K8sJob | Target::Mpijob => {
            return Err(RenderError::Unfit(format!("target {} is not built yet", run.target.name())));
        }
    };
    let mut files = FileSet::default();
    files.text("run.json", run.to_json().map_err(|error| RenderError::Yaml(error.to_string()))?);
    files.extend(of_target);
    if run.needs_deepep_file && files.get(DEEPEP_FILE).is_none() {
        files.text(DEEPEP_FILE, DEEPEP_TEXT);
    }
    Ok(files)
}
