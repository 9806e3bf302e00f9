//! The note `.launched` in a run's directory: who has the run under way there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::tree::Process;

const NAME: &str = ".launched";

/// The note of one directory.
#[derive(Debug)]
pub(super) struct Note {
    folder: PathBuf,
}

/// The processes that a note names, of those that live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// The launch.
    pub(super) launch: Option<Process>,
    /// Its script.
    pub(super) script: Option<Process>,
}

impl Named {
    /// The script, or the launch that has none yet or none any more.
    pub(super) fn any(&self) -> Option<Process> {
        self.script.or(self.launch)
    }
}

impl Note {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    /// What it says.
    pub(super) fn read(&self) -> Named {
        let text = fs::read_to_string(self.path()).unwrap_or_default();
        let named = |what: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(what));
            rest.and_then(Process::read).filter(Process::lives)
        };
        Named { launch: named("launch "), script: named("script ") }
    }

    /// Takes the directory for this process; gives the process that has it, where one has. A note of processes that are gone is replaced.
    pub(super) fn take(&self) -> io::Result<Option<Process>> {
        // Two launches that find the same stale note must not both replace it. A file system without locks leaves only that gap.
        let folder = File::open(&self.folder)?;
        let _ = flock(&folder, FlockOperation::LockExclusive);
        if let Some(process) = self.read().any() {
            return Ok(Some(process));
        }
        self.remove()?;
        match OpenOptions::new().write(true).create_new(true).open(self.path()) {
            Ok(mut file) => {
                let line = format!("launch {}", Process::of(std::process::id()).note());
                file.write_all(line.as_bytes())?;
                Ok(None)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match self.read().any() {
                Some(process) => Ok(Some(process)),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Adds the script.
    pub(super) fn add(&self, script: &Process) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(self.path())?;
        file.write_all(format!("script {}", script.note()).as_bytes())
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(self.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_takes_it_and_a_stale_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let own = Process::of(std::process::id());
        fs::write(folder.path().join(NAME), format!("launch {} 1\nscript 4194303 1\n", own.pid)).unwrap();
        let takers: Vec<_> = (0..8)
            .map(|_| {
                let note = Note::new(folder.path());
                std::thread::spawn(move || note.take().unwrap())
            })
            .collect();
        let taken: Vec<_> = takers.into_iter().map(|taker| taker.join().unwrap()).collect();
        assert_eq!(taken.iter().filter(|by| by.is_none()).count(), 1);
        assert_eq!(taken.iter().filter(|by| **by == Some(own)).count(), 7);
        let note = Note::new(folder.path());
        assert_eq!(note.read(), Named { launch: Some(own), script: None });
        note.add(&own).unwrap();
        assert_eq!(note.read().script, Some(own));
        note.remove().unwrap();
        note.remove().unwrap();
        assert_eq!(note.read().any(), None);
    }
}
