//! Files of a run that is only shown.

use std::path::{Path, PathBuf};

use crate::node::Stop;

/// A folder that is there for as long as this value: no file of the run is left when it was shown.
pub(super) struct Draft {
    /// Where the files are for now.
    pub(super) files: PathBuf,
    /// Where they would be.
    pub(super) meant: PathBuf,
}

impl Draft {
    /// A new folder for files that would be in `meant`.
    pub(super) fn new(meant: PathBuf) -> Result<Self, Stop> {
        let root = std::env::temp_dir();
        let failed = |error: std::io::Error| {
            Stop::access(format!(
                "cannot make a folder under {}: {error}. --dry-run needs one for a moment; TMPDIR names another place",
                root.display()
            ))
        };
        // Two of one process differ by number; a folder that is there already is never taken.
        for number in 0..100 {
            let files = root.join(format!("expertrail-dry-run-{}-{number}", std::process::id()));
            match std::fs::create_dir(&files) {
                Ok(()) => return Ok(Self { files, meant }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(std::io::ErrorKind::AlreadyExists.into()))
    }

    /// `line` with the place where the files would be, in place of where they are for now.
    pub(super) fn words(&self, line: &str) -> String {
        let meant = std::path::absolute(&self.meant).unwrap_or_else(|_| self.meant.clone());
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        line.replace(&shown(&self.files), &shown(&meant))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.files);
    }
}
