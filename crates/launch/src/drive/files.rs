//! Files that a run left on a disk that this machine sees.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Collect, DriveError, Event, Show};

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

/// A file that was handed over whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Where it lies.
    path: PathBuf,
    /// Bytes that were taken.
    bytes: u64,
}

/// Removes what was taken, and the folders under `folder` that are empty then. A file that was written to since, or was not taken whole, stays.
pub(super) fn remove(taken: &[Taken], folder: &Path, show: &mut dyn Show) {
    for file in taken {
        let same = fs::symlink_metadata(&file.path).is_ok_and(|about| about.len() == file.bytes);
        if same {
            let _ = fs::remove_file(&file.path);
        }
    }
    empty(folder, 0);
    if folder.is_dir() {
        show.show(Event::Step(format!(
            "{} stays: not everything in it is among the results",
            folder.display()
        )));
    }
}

/// Removes folders that hold nothing.
fn empty(folder: &Path, depth: usize) {
    /// No run makes more levels; links are not followed, so there is no circle.
    const DEEPEST: usize = 64;
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if depth < DEEPEST && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            empty(&entry.path(), depth + 1);
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Hands over the outputs of a run as its workers lay them out under `folder`: `logs/`, `facts/`, `findings/`, `exit/`, `collected/`, and
/// results beside them. Gives what was taken whole.
pub(super) fn outputs(folder: &Path, to: &mut dyn Collect) -> Result<Vec<Taken>, DriveError> {
    let mut taken = Vec::new();
    if !folder.is_dir() {
        to.missing(
            &name_of(folder),
            "there is no such directory: the run did not come so far, or this machine does not see its disk",
        );
        return Ok(taken);
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
        taken.extend(hand_over(&folder.join(&name), &kind, to)?);
    }
    Ok(taken)
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

/// Hands over one file; what cannot be read is said. Gives the file where it was taken whole.
pub(super) fn hand_over(
    path: &Path,
    kind: &Found,
    to: &mut dyn Collect,
) -> Result<Option<Taken>, DriveError> {
    let (Found::Log(name) | Found::File(name) | Found::Text(name)) = kind;
    let content = match kind {
        Found::Log(_) | Found::Text(_) => log(path),
        Found::File(_) => whole(path),
    };
    let (bytes, cut) = match content {
        Ok(content) => content,
        Err(why) => {
            to.missing(name, &why);
            return Ok(None);
        }
    };
    match kind {
        Found::Log(_) => to.log(name, &bytes)?,
        Found::File(_) | Found::Text(_) => to.file(name, &bytes)?,
    }
    if let Some(cut) = cut {
        to.missing(name, &cut);
        return Ok(None);
    }
    Ok(Some(Taken { path: path.to_owned(), bytes: bytes.len() as u64 }))
}

type Content = Result<(Vec<u8>, Option<String>), String>;

fn whole(path: &Path) -> Content {
    let length = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > LARGEST {
        return Err(format!("{length} bytes; at most {LARGEST} are kept"));
    }
    fs::read(path).map(|bytes| (bytes, None)).map_err(|error| error.to_string())
}

/// A log, without its middle where it is very long: the beginning has the versions, the end the failure.
fn log(path: &Path) -> Content {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Vec<String>);

    impl Collect for Kept {
        fn log(&mut self, name: &str, _: &[u8]) -> Result<(), DriveError> {
            self.0.push(name.to_owned());
            Ok(())
        }
        fn state(&mut self, name: &str, _: &[u8]) -> Result<(), DriveError> {
            self.0.push(name.to_owned());
            Ok(())
        }
        fn missing(&mut self, _: &str, _: &str) {}
    }

    struct Said(Vec<Event>);

    impl Show for Said {
        fn show(&mut self, event: Event) {
            self.0.push(event);
        }
    }

    /// What is among the results goes; what was not taken, or has grown since, stays and is said.
    #[test]
    fn only_what_was_taken_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("out-1");
        let write = |name: &str, text: &str| {
            let path = out.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("logs/a.log", "one\n");
        write("exit/rank-0.json", "{}");
        fs::create_dir(out.join("started-node0")).unwrap();
        let (mut kept, mut said) = (Kept::default(), Said(Vec::new()));
        let taken = outputs(&out, &mut kept).unwrap();
        assert_eq!(kept.0, ["exit/rank-0.json", "a.log"]);
        write("logs/a.log", "one\ntwo\n");
        write("deep/1/2/3/4/checkpoint", "x");
        remove(&taken, &out, &mut said);
        assert!(!out.join("exit").exists() && !out.join("started-node0").exists());
        assert!(out.join("logs/a.log").is_file() && out.join("deep/1/2/3/4/checkpoint").is_file());
        assert!(matches!(&said.0[..], [Event::Step(text)] if text.contains("out-1 stays")));
        let taken = outputs(&out, &mut kept).unwrap();
        fs::remove_dir_all(out.join("deep")).unwrap();
        remove(&taken, &out, &mut said);
        assert!(!out.exists() && root.path().exists());
    }
}
