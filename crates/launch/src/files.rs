//! Files of a rendered directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Marks a directory that was rendered, and may be rendered again.
const MARK: &str = ".rendered";

/// A text file with its place in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Relative path with `/`.
    pub path: String,
    /// Content.
    pub text: String,
    /// Whether it is a program.
    pub executable: bool,
}

/// Files in the order in which a person should read them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSet {
    /// The files.
    pub files: Vec<File>,
}

/// Why files were not written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Something else is there.
    #[error(
        "{} exists and is no directory of a rendered run (it has no .rendered): give another directory with -o, or an empty one",
        .0.display()
    )]
    Foreign(PathBuf),
    /// The system refused.
    #[error("cannot write {}: {error}", .path.display())]
    System {
        /// File or directory.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

fn system(path: &Path) -> impl FnOnce(std::io::Error) -> WriteError + use<> {
    let path = path.to_owned();
    move |error| WriteError::System { path, error }
}

/// Whether [`FileSet::write`] may write under `folder`. Nothing is written.
///
/// # Errors
/// When the folder holds something else, or cannot be read.
pub fn fits(folder: &Path) -> Result<(), WriteError> {
    if folder.exists() {
        let mut entries = fs::read_dir(folder).map_err(system(folder))?;
        if entries.next().is_some() && !folder.join(MARK).is_file() {
            return Err(WriteError::Foreign(folder.to_owned()));
        }
    }
    Ok(())
}

impl FileSet {
    /// Adds a text.
    pub fn text(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.files.push(File { path: path.into(), text: text.into(), executable: false });
    }

    /// Adds a program.
    pub fn program(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.files.push(File { path: path.into(), text: text.into(), executable: true });
    }

    /// Adds all files of another set.
    pub fn extend(&mut self, other: Self) {
        self.files.extend(other.files);
    }

    /// The file at `path`.
    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Writes all files under `folder`, which must be absent, empty, or hold a rendered run (which is then replaced file by file; other
    /// files in it stay).
    ///
    /// # Errors
    /// When the folder holds something else, or the system refuses.
    pub fn write(&self, folder: &Path) -> Result<(), WriteError> {
        fits(folder)?;
        fs::create_dir_all(folder).map_err(system(folder))?;
        let mark = folder.join(MARK);
        fs::write(
            &mark,
            "Files of this directory were written by `expertrail render`, which may write them anew.\n",
        )
        .map_err(system(&mark))?;
        for file in &self.files {
            let path = folder.join(&file.path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(system(parent))?;
            }
            fs::write(&path, &file.text).map_err(system(&path))?;
            let mode = if file.executable { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(system(&path))?;
        }
        Ok(())
    }
}
