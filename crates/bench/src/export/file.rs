//! Writing reports: whether it will work is found before the run, and no old report is lost halfway.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A report that cannot be written.
#[derive(Debug, Error)]
#[error("cannot write {}: {reason}; choose another path", path.display())]
pub struct OutputError {
    /// The path asked for.
    pub path: PathBuf,
    /// Why not.
    pub reason: String,
}

/// Checks that a report can be written to `path`, before the time of a run is spent. An existing file is
/// neither emptied nor touched, and nothing stays behind.
///
/// # Errors
/// [`OutputError`] when the folder is missing or read-only, or `path` is a folder or not writable.
pub fn check_writable(path: &Path) -> Result<(), OutputError> {
    let error = |reason: String| OutputError { path: path.to_owned(), reason };
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => return Err(error("it is a folder".to_owned())),
        Ok(_) => {
            OpenOptions::new().append(true).open(path).map_err(|e| error(e.to_string()))?;
        }
        Err(_) if path.file_name().is_none() => return Err(error("it names no file".to_owned())),
        Err(_) => {}
    }
    if is_special(path) {
        return Ok(());
    }
    let target = resolve(path);
    let (_, probe) = create_beside(&target).map_err(|e| {
        error(match (e.kind(), folder_of(&target)) {
            (io::ErrorKind::NotFound, folder) => format!("the folder {} does not exist", folder.display()),
            (_, folder) => format!("no file can be made in {}: {e}", folder.display()),
        })
    })?;
    fs::remove_file(&probe).map_err(|e| error(e.to_string()))
}

/// Writes `contents` to `path`: to a new file beside it, which then takes its place, so that a reader sees
/// the old report or the new one and never a part. Devices and pipes are written directly.
///
/// # Errors
/// [`OutputError`] with the reason; an existing file is then as it was.
pub fn write_atomic(path: &Path, contents: &str) -> Result<(), OutputError> {
    let error = |e: io::Error| OutputError { path: path.to_owned(), reason: e.to_string() };
    if is_special(path) {
        let mut file = OpenOptions::new().write(true).open(path).map_err(error)?;
        return file.write_all(contents.as_bytes()).map_err(error);
    }
    let target = resolve(path);
    let (mut file, temporary) = create_beside(&target).map_err(error)?;
    let written = (|| {
        file.write_all(contents.as_bytes())?;
        if let Ok(old) = fs::metadata(&target) {
            file.set_permissions(old.permissions())?;
        }
        file.sync_all()?;
        fs::rename(&temporary, &target)
    })();
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        error(e)
    })
}

/// Whether `path` exists and is neither a file nor a folder (`/dev/stdout`, a named pipe).
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

/// The file behind a link: replacing the link itself would leave the old report where others look for it.
fn resolve(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A new file in the folder of `target`, on the same file system so that it can be renamed.
fn create_beside(target: &Path) -> io::Result<(File, PathBuf)> {
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut last = io::Error::other("no free name");
    for attempt in 0..16 {
        // A long name leaves no room for more: the suffix replaces its end.
        let short: String = name.chars().take(60).collect();
        let path = folder_of(target).join(format!(".{short}.{}-{attempt}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("expertrail-out-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<String> = fs::read_dir(&self.0)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn checking_changes_nothing() {
        let folder = Folder::new("check");
        let new = folder.0.join("r.json");
        check_writable(&new).unwrap();
        assert!(folder.names().is_empty());
        fs::write(&new, "old").unwrap();
        check_writable(&new).unwrap();
        assert_eq!(
            (folder.names(), fs::read_to_string(&new).unwrap()),
            (vec!["r.json".to_owned()], "old".to_owned())
        );
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let folder = Folder::new("bad");
        let message = |path: &Path| check_writable(path).unwrap_err().to_string();
        let missing = message(&folder.0.join("none/r.json"));
        assert!(missing.contains("none/r.json") && missing.contains("does not exist"), "{missing}");
        assert!(message(&folder.0).contains("it is a folder"));
        fs::write(folder.0.join("file"), "").unwrap();
        assert!(message(&folder.0.join("file/r.json")).contains("no file can be made"));
        assert!(message(Path::new("/proc/expertrail.json")).contains("/proc"));
        assert!(message(Path::new("")).contains("names no file"));
        assert!(write_atomic(&folder.0.join("none/r.json"), "x").is_err());
    }

    #[test]
    fn the_new_report_replaces_the_old() {
        let folder = Folder::new("replace");
        let path = folder.0.join("r.html");
        write_atomic(&path, "one").unwrap();
        write_atomic(&path, "two").unwrap();
        assert_eq!(
            (folder.names(), fs::read_to_string(&path).unwrap()),
            (vec!["r.html".to_owned()], "two".to_owned())
        );
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_atomic(&link, "three").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
    }

    #[test]
    fn devices_are_written_directly() {
        check_writable(Path::new("/dev/null")).unwrap();
        write_atomic(Path::new("/dev/null"), "x").unwrap();
    }
}
