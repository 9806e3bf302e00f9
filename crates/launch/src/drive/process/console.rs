//! What a script prints: line by line to who watches, and into a file. It is never in memory as a whole.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// The longest line that is shown and kept.
const LINE: usize = 64 << 10;

/// Lines on their way: who prints faster than they are read must wait, as at any pipe.
const LINES: usize = 64;

/// The file; its name begins with a point, so that it is not taken for one of the outputs.
const FILE: &str = ".console";

/// The output of one script.
#[derive(Debug)]
pub(super) struct Console {
    lines: Option<Receiver<Vec<u8>>>,
    file: BufWriter<File>,
    path: PathBuf,
}

/// What a look at the console found.
pub(super) enum Next {
    /// A line, or a piece of a very long one.
    Line(Vec<u8>),
    /// Nothing in the time.
    Nothing,
    /// Nobody has the other end any more.
    End,
}

impl Console {
    /// Reads `reader` from a thread of its own; the file lies in `folder`.
    pub(super) fn new(reader: PipeReader, folder: &Path) -> std::io::Result<Self> {
        let path = folder.join(FILE);
        let file = BufWriter::new(File::create(&path)?);
        let (sender, receiver) = sync_channel(LINES);
        std::thread::Builder::new().name("expertrail-console".to_owned()).spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = Vec::new();
            while read_line(&mut reader, &mut line) {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { lines: Some(receiver), file, path })
    }

    /// The next line, if one comes before `until`.
    pub(super) fn next(&mut self, until: Instant) -> Next {
        let Some(lines) = &self.lines else { return Next::End };
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                // A full disk is no reason to stop the run: the lines were shown, and the steps' logs are files of their own.
                let _ = self.file.write_all(&line);
                Next::Line(line)
            }
            Err(RecvTimeoutError::Timeout) => Next::Nothing,
            Err(RecvTimeoutError::Disconnected) => {
                self.lines = None;
                Next::End
            }
        }
    }

    /// The file with all lines so far.
    pub(super) fn file(&mut self) -> &Path {
        let _ = self.file.flush();
        &self.path
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // What it holds was collected.
        let _ = fs::remove_file(&self.path);
    }
}

/// How long a last look takes at most, however much there is.
pub(super) const LAST: Duration = Duration::from_mins(1);

/// One line, or a piece of a very long one; false at the end.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    let read = reader.by_ref().take(LINE as u64).read_until(b'\n', line);
    matches!(read, Ok(count) if count > 0)
}
