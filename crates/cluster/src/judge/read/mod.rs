//! From files to [`Run`]s. Formats are told by their content; nothing that a file holds can stop the reader.

mod deepep;
mod generic;
mod guide;
mod json;
mod nccl;
mod sieve;
mod training;

use std::cell::RefCell;
use std::io::{BufRead, Read};

use super::coverage;
use super::lines::{self, Origin};
use super::model::{Kind, Place, Run, Said, Section, Speakers};

/// Bytes of a JSON document that are read; a longer one is read as text.
const JSON_LIMIT: u64 = 32 << 20;

/// Reads `input`, which is called `name` in what is said about it. Logs are read line by line, in bounded memory.
///
/// A file may hold several runs; parts of one run in several files are put together by [`judge`](super::judge()).
pub fn read(name: &str, mut input: impl BufRead) -> Vec<Run> {
    let mut head = Vec::new();
    if starts_json(&mut input) {
        let taken = input.by_ref().take(JSON_LIMIT).read_to_end(&mut head);
        if taken.is_ok()
            && let Some(runs) = json::read(name, &head)
        {
            return runs;
        }
    }
    let mut scan = Scan::new(name);
    let speakers = RefCell::new(Speakers::default());
    let wanted = |bytes: &[u8]| {
        coverage::hear(&mut speakers.borrow_mut(), bytes);
        sieve::takes(bytes)
    };
    let end = lines::each(head.as_slice().chain(input), wanted, |number, text| scan.line(number, text));
    scan.speakers = speakers.take();
    if let Err(error) = end {
        let file = scan.file.clone();
        scan.current().unread = Some(format!("reading of {file} stopped: {error}"));
    }
    scan.finish()
}

/// Whether the first byte that is no blank opens an object. Looks at what is buffered only.
fn starts_json(input: &mut impl BufRead) -> bool {
    match input.fill_buf() {
        Ok(chunk) => chunk.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{'),
        Err(_) => false,
    }
}

/// A line with what is known of it.
pub(super) struct Line<'a> {
    number: u64,
    origin: Origin,
    /// Without what launchers put before it.
    text: &'a str,
}

/// The reader of a log.
pub(super) struct Scan {
    file: String,
    runs: Vec<Run>,
    now: usize,
    /// Type of V2's dispatch in the case that runs.
    v2_dtype: String,
    /// The part of the guide's benchmark whose heading came last.
    heading: Option<Section>,
    /// Who wrote the lines.
    speakers: Speakers,
    /// The collective that was named since the last table.
    collective: Option<Said>,
}

impl Scan {
    fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            runs: vec![Run::new(Kind::Fragment, file, 1)],
            now: 0,
            v2_dtype: String::new(),
            heading: None,
            speakers: Speakers::default(),
            collective: None,
        }
    }

    fn line(&mut self, number: u64, whole: &str) {
        let (origin, text) = lines::origin(whole);
        let line = Line { number, origin, text };
        let _ = guide::line(self, &line)
            || deepep::line(self, &line)
            || nccl::line(self, &line)
            || training::line(self, &line);
        generic::line(self, &line);
        if let Some(host) = &line.origin.host {
            let run = self.current();
            if run.origins.len() < super::model::MARKS {
                run.origins.insert(host.clone());
            }
        }
    }

    fn place(&self, line: &Line<'_>) -> Place {
        Place { file: self.file.clone(), line: line.number }
    }

    /// The run that lines belong to. There always is one.
    fn current(&mut self) -> &mut Run {
        if self.runs.is_empty() {
            self.runs.push(Run::new(Kind::Fragment, &self.file, 1));
        }
        self.now = self.now.min(self.runs.len() - 1);
        let now = self.now;
        &mut self.runs[now]
    }

    /// The run of this kind: the latest of the file, or what came before any run, or a new one.
    fn open(&mut self, kind: Kind, line: &Line<'_>) -> &mut Run {
        if self.current().kind == kind {
            return self.current();
        }
        if self.current().kind == Kind::Fragment {
            self.current().kind = kind;
            self.current().place.line = line.number;
        } else if let Some(known) = self.runs.iter().rposition(|run| run.kind == kind) {
            self.now = known;
        } else {
            return self.another(kind, line);
        }
        self.current()
    }

    /// A new run of this kind; what the file says of the machine holds for it, too.
    fn another(&mut self, kind: Kind, line: &Line<'_>) -> &mut Run {
        const RUNS: usize = 4096;
        if self.runs.len() >= RUNS {
            self.current().note(format!("more than {RUNS} runs in one file: the rest is left out"));
            return self.current();
        }
        let before = self.current();
        let mut run = Run { gpu: before.gpu.clone(), versions: before.versions.clone(), ..Run::default() };
        run.settings.transport.clone_from(&before.settings.transport);
        run.settings.nodes = before.settings.nodes;
        run.kind = kind;
        run.place = self.place(line);
        self.runs.push(run);
        self.now = self.runs.len() - 1;
        self.current()
    }

    fn finish(self) -> Vec<Run> {
        let mut runs: Vec<Run> = self
            .runs
            .into_iter()
            .filter(|run| !run.is_empty() || !run.notes.is_empty() || run.unread.is_some())
            .collect();
        if runs.is_empty() {
            runs.push(Run::new(Kind::Unknown, &self.file, 0));
        }
        for run in &mut runs {
            run.speakers.clone_from(&self.speakers);
        }
        runs
    }
}
