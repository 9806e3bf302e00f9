//! Progress: rank 0 writes marked lines, the launcher turns them into a bar.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};

/// Asks rank 0 for progress lines; set by the launcher when its standard error is a terminal.
pub(crate) const VARIABLE: &str = "EXPERTRAIL_PROGRESS";

/// Starts a progress line. A record separator does not occur in text that people write.
const MARK: &str = "\u{1e}progress ";

/// Writes a progress line, as rank 0.
pub(crate) fn report(done: usize, all: usize) {
    eprintln!("{MARK}{done} {all}");
}

/// Takes the ranks' standard error: marked lines move the bar, others are printed above it.
pub(crate) struct Sink {
    bar: Option<ProgressBar>,
    line: Vec<u8>,
}

impl Sink {
    /// A sink with a bar, or one that only passes on.
    pub(crate) fn new(with_bar: bool) -> Self {
        let bar = with_bar.then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("  {bar:32} {pos}/{len} iterations, {elapsed}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, line: Vec::new() }
    }

    fn finish_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let Some(bar) = &self.bar else {
            return io::stderr().write_all(&line);
        };
        if let Some((_, numbers)) = text.split_once(MARK) {
            let mut numbers = numbers.split_whitespace().filter_map(|n| n.parse::<u64>().ok());
            if let (Some(done), Some(all)) = (numbers.next(), numbers.next()) {
                bar.set_length(all);
                bar.set_position(done);
                if done == all {
                    bar.finish_and_clear();
                }
            }
            return Ok(());
        }
        bar.suspend(|| io::stderr().write_all(&line))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            self.line.push(byte);
            if byte == b'\n' {
                self.finish_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            let _ = self.finish_line();
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
