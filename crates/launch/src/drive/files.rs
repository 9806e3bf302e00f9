//! Files that a run left on a disk that this machine sees.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::{Collect, DriveError};

/// The most that is kept of the beginning and of the end of a log: it is in memory some times over while secrets are taken out of it.
const HALF: u64 = 16 << 20;

/// The largest other file that is kept.
const LARGEST: u64 = 64 << 20;

/// Files of a run: 4,096 ranks leave some 10,000.
const FILES: usize = 50_000;

/// What a file is for [`Collect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A log, under this name.
    Log(String),
    /// A worker's file, under this name.
    File(String),
    /// A file that is cut as a log is where it is long.
    Text(String),
}

/// Hands over the outputs of a run as its workers lay them out under `folder`: `logs/`, `facts/`, `findings/`, `exit/`, `collected/`, and
/// results beside them.
pub(super) fn outputs(folder: &Path, to: &mut dyn Collect) -> Result<(), DriveError> {
    if !folder.is_dir() {
        to.missing(
            &name_of(folder),
            "there is no such directory: the run did not come so far, or this machine does not see its disk",
        );
        return Ok(());
    }
    let mut found = Vec::new();
    list(folder, "", &mut found);
    found.sort();
    if found.len() >= FILES {
        to.missing(&name_of(folder), &format!("more than {FILES} files; the rest is not collected"));
    }
    for name in found {
        let kind = match name.split_once('/') {
            Some(("logs", log)) => Found::Log(log.replace('/', "_")),
            Some(("facts" | "findings" | "exit" | "collected", _)) => Found::File(name.clone()),
            // Ranks that write to the directory itself are rank 0's.
            _ => Found::File(format!("collected/node-0/{}", name.replace('/', "_"))),
        };
        hand_over(&folder.join(&name), &kind, to)?;
    }
    Ok(())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Relative names of regular files; links are not followed.
fn list(folder: &Path, above: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
        // Half-written documents begin with a point.
        if found.len() >= FILES || name.starts_with('.') {
            continue;
        }
        let whole = format!("{above}{name}");
        if kind.is_dir() && whole.matches('/').count() < 4 {
            list(&entry.path(), &format!("{whole}/"), found);
        } else if kind.is_file() {
            found.push(whole);
        }
    }
}

/// Hands over one file; what cannot be read is said.
pub(super) fn hand_over(path: &Path, kind: &Found, to: &mut dyn Collect) -> Result<(), DriveError> {
    let (Found::Log(name) | Found::File(name) | Found::Text(name)) = kind;
    let bytes = match kind {
        Found::Log(_) | Found::Text(_) => log(path),
        Found::File(_) => whole(path),
    };
    match (bytes, kind) {
        (Ok((bytes, cut)), Found::Log(_)) => {
            if let Some(cut) = cut {
                to.missing(name, &cut);
            }
            to.log(name, &bytes)
        }
        (Ok((bytes, cut)), Found::File(_) | Found::Text(_)) => {
            if let Some(cut) = cut {
                to.missing(name, &cut);
            }
            to.file(name, &bytes)
        }
        (Err(why), _) => {
            to.missing(name, &why);
            Ok(())
        }
    }
}

type Taken = Result<(Vec<u8>, Option<String>), String>;

fn whole(path: &Path) -> Taken {
    let length = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > LARGEST {
        return Err(format!("{length} bytes; at most {LARGEST} are kept"));
    }
    fs::read(path).map(|bytes| (bytes, None)).map_err(|error| error.to_string())
}

/// A log, without its middle where it is very long: the beginning has the versions, the end the failure.
fn log(path: &Path) -> Taken {
    let text = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "it was never written".to_owned(),
        _ => error.to_string(),
    };
    let mut file = File::open(path).map_err(text)?;
    let length = file.metadata().map_err(text)?.len();
    let mut bytes = Vec::new();
    if length <= 2 * HALF {
        file.take(2 * HALF).read_to_end(&mut bytes).map_err(text)?;
        return Ok((bytes, None));
    }
    file.by_ref().take(HALF).read_to_end(&mut bytes).map_err(text)?;
    bytes.extend(b"\n");
    file.seek(SeekFrom::Start(length - HALF)).map_err(text)?;
    file.take(HALF).read_to_end(&mut bytes).map_err(text)?;
    Ok((bytes, Some(format!("{} bytes from its middle: it has {length}", length - 2 * HALF))))
}
