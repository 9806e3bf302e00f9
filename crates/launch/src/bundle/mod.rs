//! One directory with everything of a run: settings, rendered files, facts and findings of all nodes, logs, results, verdict, diagnosis
//! and a page for people. Nothing in it is a secret, and what is missing is said.

pub mod analyse;
pub mod clock;
pub mod outcome;
pub mod report;
pub mod secrets;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::drive::{Collect, DriveError};
use crate::run::Run;
use crate::worker::frame;
use outcome::{Kept, Missing};
use secrets::Secrets;

/// Rendered files above this are no launch files.
const RENDERED_LIMIT: u64 = 4 << 20;

/// The folder of a rendered directory under which results are numbered.
const RESULTS: &str = "results";

/// Folders of a rendered directory that runs fill, and that are no launch files.
const FILLED: [&str; 5] = [RESULTS, "logs", "out", "exit", "__pycache__"];

/// The directory while it is filled.
#[derive(Debug)]
pub struct Bundle {
    folder: PathBuf,
    secrets: Secrets,
    missing: Vec<Missing>,
    files: BTreeMap<String, Kept>,
}

impl Bundle {
    /// Makes the directory: `wanted`, which must be absent or empty, or else the next free number under `results` of the rendered
    /// directory `from`. Settings and rendered files are copied into it.
    ///
    /// # Errors
    /// When it holds something, or cannot be written.
    pub fn create(run: &Run, from: &Path, wanted: Option<&Path>) -> Result<Self, DriveError> {
        let folder = match wanted {
            Some(folder) => given(folder)?,
            None => numbered(&from.join(RESULTS))?,
        };
        let mut bundle =
            Self { folder, secrets: Secrets::of(run), missing: Vec::new(), files: BTreeMap::new() };
        bundle.rendered(from)?;
        Ok(bundle)
    }

    /// The directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes it again, where nothing was started that it could be of: the files that were written into it and the folders that are empty
    /// then, up to `results` of the rendered directory.
    pub fn discard(self) {
        for name in self.files.keys() {
            let _ = fs::remove_file(self.folder.join(name));
        }
        let mut folders: Vec<PathBuf> = self
            .files
            .keys()
            .flat_map(|name| Path::new(name).ancestors().skip(1))
            .map(|above| self.folder.join(above))
            .collect();
        // The deepest first; `remove_dir` takes nothing that still holds something.
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
        for folder in folders {
            let _ = fs::remove_dir(folder);
        }
        let _ = fs::remove_dir(&self.folder);
        if let Some(results) = self.folder.parent().filter(|parent| parent.ends_with(RESULTS)) {
            let _ = fs::remove_dir(results);
        }
    }

    /// What could not be had.
    pub fn missing_parts(&self) -> &[Missing] {
        &self.missing
    }

    /// All files so far, in order of their names.
    pub fn files(&self) -> impl Iterator<Item = &Kept> {
        self.files.values()
    }

    /// Whether a file of that name is there.
    pub fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// The content of a file of the bundle.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.folder.join(name)).ok()
    }

    /// `text` without secrets.
    pub fn clean(&self, text: &str) -> String {
        self.secrets.text(text)
    }

    /// Keeps a file, without secrets, under `name` (with `/`), or beside it where another of that name differs.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&mut self, name: &str, bytes: &[u8]) -> Result<String, DriveError> {
        let bytes = self.secrets.file(name, bytes);
        let mut free = name.to_owned();
        let mut copy = 1;
        while self.files.contains_key(&free) {
            if self.read(&free).is_some_and(|known| known == bytes) {
                return Ok(free);
            }
            copy += 1;
            free = beside(name, copy);
        }
        self.write(&free, &bytes)?;
        Ok(free)
    }

    /// Writes a document of this program, in place of an older one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn document(&mut self, name: &str, text: &str) -> Result<(), DriveError> {
        let bytes = self.secrets.file(name, text.as_bytes());
        self.write(name, &bytes)
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), DriveError> {
        let path = self.folder.join(name);
        let failed =
            |error: std::io::Error| DriveError::File { path: path.clone(), reason: error.to_string() };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::write(&path, bytes).map_err(failed)?;
        let kept = Kept { path: name.to_owned(), bytes: bytes.len() as u64, crc32: crc32(bytes) };
        self.files.insert(name.to_owned(), kept);
        Ok(())
    }

    /// Settings and launch files, as they were when the run began.
    fn rendered(&mut self, from: &Path) -> Result<(), DriveError> {
        for (name, path) in launch_files(from) {
            match fs::read(&path) {
                Ok(bytes) if name == "run.json" || name == "run.toml" => {
                    self.keep(&name, &bytes)?;
                }
                Ok(bytes) => {
                    self.keep(&format!("rendered/{name}"), &bytes)?;
                }
                Err(error) => self.missing(&format!("rendered/{name}"), &error.to_string()),
            }
        }
        Ok(())
    }

    /// Takes the files that came in a log.
    fn framed(&mut self, log: &str, found: frame::Collected) -> Result<(), DriveError> {
        for file in found.files {
            self.file(&file.name, &file.bytes)?;
        }
        for problem in found.problems {
            self.missing(&format!("files in {log}"), &problem.to_string());
        }
        Ok(())
    }
}

impl Collect for Bundle {
    fn log(&mut self, name: &str, text: &[u8]) -> Result<(), DriveError> {
        let (rest, found) = frame::split(&String::from_utf8_lossy(text));
        let name = format!("logs/{}", plain(name, ".log"));
        self.framed(&name, found)?;
        self.keep(&name, rest.as_bytes()).map(|_| ())
    }

    fn state(&mut self, name: &str, text: &[u8]) -> Result<(), DriveError> {
        self.keep(&format!("state/{}", plain(name, "")), text).map(|_| ())
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), DriveError> {
        if !frame::is_name(name) {
            self.missing(&plain(name, ""), "its name could lead out of this directory; it is not kept");
            return Ok(());
        }
        self.keep(&place(name), bytes).map(|_| ())
    }

    fn missing(&mut self, what: &str, why: &str) {
        let missing = Missing { what: self.clean(what), why: self.clean(why) };
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }
}

/// Where a worker's file lies in the bundle: what ranks left as JSON is a result.
fn place(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        ["collected", node, file] if is_json(file) => format!("result/{node}-{file}"),
        ["facts" | "findings" | "exit" | "collected", ..] => name.to_owned(),
        _ => format!("collected/{name}"),
    }
}

fn is_json(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|end| end.eq_ignore_ascii_case("json"))
}

/// `name` as the name of one file.
fn plain(name: &str, end: &str) -> String {
    let clean: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .take(frame::NAME_LIMIT)
        .collect();
    let clean = clean.trim_start_matches('.');
    let clean = if clean.is_empty() { "unnamed" } else { clean };
    if clean.ends_with(end) { clean.to_owned() } else { format!("{clean}{end}") }
}

/// `result/a.json` -> `result/a.2.json`.
fn beside(name: &str, copy: usize) -> String {
    let (folder, file) = name.rsplit_once('/').map_or(("", name), |(folder, file)| (folder, file));
    let file = match file.rsplit_once('.') {
        Some((stem, end)) if !stem.is_empty() => format!("{stem}.{copy}.{end}"),
        _ => format!("{file}.{copy}"),
    };
    if folder.is_empty() { file } else { format!("{folder}/{file}") }
}

fn crc32(bytes: &[u8]) -> String {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    format!("{:08x}", crc.sum())
}

/// A directory that the person names.
fn given(folder: &Path) -> Result<PathBuf, DriveError> {
    let failed =
        |error: std::io::Error| DriveError::File { path: folder.to_owned(), reason: error.to_string() };
    if folder.exists() {
        let mut entries = fs::read_dir(folder).map_err(failed)?;
        if entries.next().is_some() {
            return Err(DriveError::Refused(format!(
                "--bundle {}: it holds something already, and results are never overwritten: name a new directory",
                folder.display()
            )));
        }
    }
    fs::create_dir_all(folder).map_err(failed)?;
    Ok(folder.to_owned())
}

/// The next free number under `root`. Making the directory is what takes it: two launches at once get two.
fn numbered(root: &Path) -> Result<PathBuf, DriveError> {
    let failed =
        |error: std::io::Error| DriveError::File { path: root.to_owned(), reason: error.to_string() };
    fs::create_dir_all(root).map_err(failed)?;
    let last = fs::read_dir(root)
        .map_err(failed)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .max();
    let mut number = last.unwrap_or(0);
    loop {
        number += 1;
        let folder = root.join(number.to_string());
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Launch files under `from` with their relative names, in order.
pub fn launch_files(from: &Path) -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    walk(from, "", 0, &mut files);
    files.sort();
    files
}

fn walk(folder: &Path, above: &str, depth: usize, files: &mut Vec<(String, PathBuf)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Links are not followed: they lead anywhere.
        let Ok(about) = entry.path().symlink_metadata() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let whole = format!("{above}{name}");
        let filled = depth == 0
            && (FILLED.contains(&name.as_str()) || name.starts_with("job-") || name.starts_with("out-"));
        if about.is_dir() && depth < 3 && !filled {
            walk(&entry.path(), &format!("{whole}/"), depth + 1, files);
        } else if about.is_file()
            && about.len() <= RENDERED_LIMIT
            && entry.path().extension().is_none_or(|kind| kind != "log")
        {
            files.push((whole, entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_up_and_nothing_is_overwritten() {
        let root = tempfile::tempdir().unwrap();
        for number in 1..4 {
            assert_eq!(numbered(root.path()).unwrap(), root.path().join(number.to_string()));
        }
        fs::create_dir(root.path().join("17")).unwrap();
        assert_eq!(numbered(root.path()).unwrap(), root.path().join("18"));
        assert!(
            matches!(given(root.path()), Err(DriveError::Refused(text)) if text.contains("never overwritten"))
        );
        assert!(given(&root.path().join("1")).is_ok());
    }

    #[test]
    fn names() {
        assert_eq!(plain("x-0/worker", ".log"), "x-0_worker.log");
        assert_eq!(plain("../../etc/passwd", ""), "_.._etc_passwd");
        assert_eq!(plain("..", ".log"), "unnamed.log");
        assert_eq!(beside("result/a.json", 2), "result/a.2.json");
        assert_eq!(place("collected/node-1/result-deepep.json"), "result/node-1-result-deepep.json");
        assert_eq!(place("facts/node-0.json"), "facts/node-0.json");
        assert_eq!(place("core"), "collected/core");
    }
}
