//! What a job leaves in its directory.

use std::path::Path;

use crate::drive::files::{Found, hand_over};
use crate::drive::{Collect, DriveError};

/// Hands over the batch log and everything under `job-ID`.
pub(super) fn files(folder: &Path, run: &str, id: &str, to: &mut dyn Collect) -> Result<(), DriveError> {
    let log = folder.join(format!("{run}-{id}.log"));
    hand_over(&log, &Found::Log(format!("slurm-{id}.log")), to)?;
    crate::drive::files::outputs(&folder.join(format!("job-{id}")), to)
}
