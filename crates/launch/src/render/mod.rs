//! Launch files for each system.

pub mod driver_config;
pub mod host_setup;
pub mod image;
pub mod k8s_job;
mod kube;
pub mod mpijob;
mod script;
pub mod shell;
pub mod slurm;

use thiserror::Error;

use crate::files::FileSet;
use crate::run::{Run, Target};

/// Why there are no launch files.
#[derive(Debug, Error)]
pub enum RenderError {
    /// A document could not be written as YAML.
    #[error("cannot write YAML: {0}")]
    Yaml(String),
    /// The run could not be written as JSON.
    #[error("cannot write run.json: {0}")]
    Json(#[from] serde_json::Error),
    /// The run does not fit this system; the message says what to change.
    #[error("{0}")]
    Unfit(String),
}

/// All files of `run`'s target, `run.json` first. The same run gives the same files.
///
/// # Errors
/// When the run does not fit the system.
pub fn run(run: &Run) -> Result<FileSet, RenderError> {
    let mut files = FileSet::default();
    files.text("run.json", run.to_json()?);
    files.extend(match run.target {
        Target::K8sJob => k8s_job::render(run)?,
        Target::Mpijob => mpijob::render(run)?,
        Target::Slurm => slurm::render(run)?,
        Target::Torchrun | Target::Mpirun | Target::Ssh => shell::render(run)?,
    });
    Ok(files)
}
