//! Reading on in files that grow.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Event, Show};
use crate::worker::frame;

/// Bytes that are read of a file in one go: what a person can follow is less.
const PIECE: u64 = 1 << 20;

/// The longest part of a line that waits for its end.
const LINE: usize = 64 << 10;

/// Shows the lines that files get, whole, and each once. Lines that carry files are not for people and are left out.
#[derive(Debug, Default)]
pub struct Follower {
    files: BTreeMap<PathBuf, Place>,
}

#[derive(Debug, Default)]
struct Place {
    offset: u64,
    rest: Vec<u8>,
}

impl Follower {
    /// Shows what `file` has got since the last call. A file that is not there yet has nothing.
    pub fn read(&mut self, file: &Path, show: &mut dyn Show) {
        let place = self.files.entry(file.to_owned()).or_default();
        let Some(bytes) = place.more(file) else { return };
        place.rest.extend(bytes);
        while let Some(end) = place.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = place.rest.drain(..=end).collect();
            line_of(&line, show);
        }
        if place.rest.len() > LINE {
            line_of(&std::mem::take(&mut place.rest), show);
        }
    }

    /// Shows what is left without an end of line, at the end of a run.
    pub fn finish(&mut self, show: &mut dyn Show) {
        for place in self.files.values_mut() {
            if !place.rest.is_empty() {
                line_of(&std::mem::take(&mut place.rest), show);
            }
        }
    }
}

impl Place {
    fn more(&mut self, file: &Path) -> Option<Vec<u8>> {
        let mut open = File::open(file).ok()?;
        let length = open.metadata().ok()?.len();
        if length < self.offset {
            // It was begun anew.
            *self = Self::default();
        }
        open.seek(SeekFrom::Start(self.offset)).ok()?;
        let mut bytes = Vec::new();
        open.take(PIECE).read_to_end(&mut bytes).ok()?;
        self.offset += bytes.len() as u64;
        Some(bytes)
    }
}

/// Shows a line, unless it is a part of a file.
pub fn line_of(line: &[u8], show: &mut dyn Show) {
    let text = String::from_utf8_lossy(line);
    if !text.contains(frame::MARK) {
        show.show(Event::Line(text.trim_end_matches(['\n', '\r']).to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[derive(Default)]
    struct Lines(Vec<String>);

    impl Show for Lines {
        fn show(&mut self, event: Event) {
            if let Event::Line(line) = event {
                self.0.push(line);
            }
        }
    }

    #[test]
    fn lines_come_whole_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut follower, mut lines) = (Follower::default(), Lines::default());
        follower.read(&path, &mut lines);
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        follower.read(&path, &mut lines);
        assert_eq!(lines.0, ["one"]);
        file.write_all(b"o\n::expertrail-file v1 a 1/1 00000000 eA==\nend").unwrap();
        follower.read(&path, &mut lines);
        follower.read(&path, &mut lines);
        assert_eq!(lines.0, ["one", "two"]);
        follower.finish(&mut lines);
        assert_eq!(lines.0, ["one", "two", "end"]);
    }
}
