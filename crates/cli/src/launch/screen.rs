//! The terminal of a launch: what is shown, and Ctrl-C.

use std::io::Write;
use std::time::{Duration, Instant};

use expertrail_group::SignalWatch;
use expertrail_launch::bundle::clock::span;
use expertrail_launch::drive::{Event, Show, Stop as Asked};

use crate::node::{Stop, safe};

/// Shows events: logs of the run on standard output, everything else on standard error with the time since the start.
pub(super) struct Screen {
    begun: Instant,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now() }
    }
}

impl Show for Screen {
    fn show(&mut self, event: Event) {
        let age = span(self.begun.elapsed().as_secs());
        // A reader that has gone is no reason to leave the run alone.
        let _ = match event {
            Event::Line(line) => writeln!(std::io::stdout().lock(), "{}", safe(&line)),
            Event::Step(text) | Event::State(text) => {
                writeln!(std::io::stderr().lock(), "[{age}] {}", safe(&text))
            }
            Event::Warning(text) => writeln!(std::io::stderr().lock(), "[{age}] warning: {}", safe(&text)),
        };
    }
}

/// Ctrl-C and SIGTERM, counted.
pub(super) struct Keyboard(SignalWatch);

impl Keyboard {
    /// From now on signals are counted.
    pub(super) fn new() -> Result<Self, Stop> {
        SignalWatch::new()
            .map(Self)
            .map_err(|error| Stop::access(format!("cannot watch for signals: {error}")))
    }
}

impl Asked for Keyboard {
    fn cancelled(&self) -> bool {
        self.0.count() > 0
    }

    fn hurried(&self) -> bool {
        self.0.count() > 1
    }

    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}
