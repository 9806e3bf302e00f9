//! What a job leaves in its directory.

use std::path::Path;

use crate::drive::files::{Found, Taken, hand_over};
use crate::drive::{Collect, DriveError};

/// Hands over the batch log and everything under `job-ID`; gives what was taken whole.
pub(super) fn files(
    folder: &Path,
    run: &str,
    id: &str,
    to: &mut dyn Collect,
) -> Result<Vec<Taken>, DriveError> {
    let log = folder.join(format!("{run}-{id}.log"));
    let log = hand_over(&log, &Found::Log(format!("slurm-{id}.log")), to)?;
    let mut taken = crate::drive::files::outputs(&folder.join(format!("job-{id}")), to)?;
    taken.extend(log);
    Ok(taken)
}
