//! One file, line by line.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use memchr::memchr;

use super::context;
use super::event::{Event, Place, Role, ZONED};
use super::lines;
use super::part::{Draft, Part, YEARLESS};
use super::prefix::{self, Habits, Writer};
use super::scan::{self, Hits, Scanner, scanner};
use super::structured::{self, Describe, State, Tables};
use super::time::{Clock, Stamp};

/// Signals of waits that ended: their time is not that of the line they follow.
const WAITED: [&str; 7] = [
    "cpu-recv-timeout",
    "dispatch-timeout",
    "kernel-timeout",
    "low-latency-timeout",
    "nccl-watchdog",
    "timeout-check-failed",
    "v2-dispatch-wait",
];

/// Lines that are cut by one another are taken apart so often.
const DEPTH: u8 = 24;

/// What Python writes before an exception that ends nothing: in a destructor or callback, in logging, in what runs at exit.
const UNRAISED: [&[u8]; 3] =
    [b"Exception ignored ", b"--- Logging error ---", b"Error in atexit._run_exitfuncs"];
/// Lines that the block of an ignored exception spans at most, with lines of other writers between.
const IGNORED_LINES: u64 = 48;
const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
/// Writers of whom such a block is open at a time.
const IGNORED_WRITERS: usize = 4096;

/// Who wrote a segment, and when, as far as known before it is searched.
#[derive(Clone, Default)]
pub(super) struct Origin {
    pub(super) rank: Option<u32>,
    pub(super) task: Option<u32>,
    pub(super) local: Option<u32>,
    pub(super) node: Option<Arc<str>>,
    pub(super) time: Option<Stamp>,
}

/// Reads one file into a [`Part`].
pub(super) struct Source {
    /// What is kept.
    pub(super) part: Part,
    file: u32,
    habits: Habits,
    /// What the name of the file says.
    named: Origin,
    hits: Hits,
    scanner: &'static Scanner,
    names: HashMap<Box<[u8]>, Arc<str>>,
    last: Option<Writer>,
    /// How many cut lines the present one is inside of.
    depth: u8,
    /// Time of a line that a traceback goes on from, and whose traceback it is.
    carry: Option<(Stamp, Writer)>,
    /// The lines since then are of a traceback.
    traceback: bool,
    /// Seconds of the days that have passed since the first time of day, and the last time of day, with them.
    day: (f64, f64),
    /// Writers of whom Python just ignored an exception, and the line that says so.
    ignored: Vec<(Writer, u64)>,
    /// A document that may be one of Kubernetes.
    open: Option<Open>,
    tables: Tables,
    describe: Describe,
    /// A table or a description was seen to start.
    tabular: bool,
    /// The last time that a line carried.
    stamped: Option<Stamp>,
    /// States that were read, where they are asked for.
    pub(super) told: Option<Vec<(u64, String)>>,
}

/// Lines of a document, until it ends.
struct Open {
    text: Vec<u8>,
    /// Line of its start.
    first: u64,
    balance: Balance,
}

impl Open {
    fn add(&mut self, raw: &[u8]) {
        self.text.extend_from_slice(raw);
        self.text.push(b'\n');
        self.balance.read(raw);
    }
}

/// Brackets of JSON that are open.
#[derive(Default)]
struct Balance {
    depth: i64,
    quoted: bool,
    escaped: bool,
}

impl Balance {
    fn read(&mut self, text: &[u8]) {
        for byte in text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.quoted => self.escaped = true,
                b'"' => self.quoted = !self.quoted,
                b'{' | b'[' if !self.quoted => self.depth += 1,
                b'}' | b']' if !self.quoted => self.depth -= 1,
                _ => {}
            }
        }
    }

    fn closed(&self) -> bool {
        self.depth <= 0 && !self.quoted
    }
}

/// Seconds between the last line with a time and this one, which says when a job was ended.
fn silence(text: &[u8], before: Option<Stamp>, own: Option<Stamp>) -> Option<f64> {
    const ENDED: &[u8] = b"CANCELLED AT ";
    let at = memchr::memmem::find(text, ENDED)?;
    let told = super::time::parse(&text[at + ENDED.len()..]).map(|(stamp, _)| stamp);
    let before = before?;
    let end = [own, told].into_iter().flatten().find(|end| end.clock == before.clock)?;
    Some(end.seconds - before.seconds)
}

/// Fields in which a server's log repeats what its users wrote: their words are no events of this run.
const QUOTED: [&[u8]; 8] = [
    b"prompt=\"",
    b"prompt='",
    b"prompt: '",
    b"prompt: \"",
    b"\"prompt\":",
    b"\"content\":",
    b"user_message=\"",
    b"query=\"",
];

/// Whether the line repeats a user's words.
fn quotes(text: &[u8]) -> bool {
    QUOTED.iter().any(|field| memchr::memmem::find(text, field).is_some())
}

impl Source {
    pub(super) fn new(file: u32, name: String, head: &[u8]) -> Self {
        let mut source = Self {
            named: Origin::default(),
            part: Part { name, ..Part::default() },
            file,
            habits: Habits::of(head),
            hits: Hits::new(),
            scanner: scanner(),
            names: HashMap::new(),
            last: None,
            depth: 0,
            carry: None,
            traceback: false,
            day: (0.0, f64::NEG_INFINITY),
            ignored: Vec::new(),
            open: None,
            tables: Tables::default(),
            describe: Describe::default(),
            tabular: false,
            stamped: None,
            told: None,
        };
        source.named = source.of_name();
        if let Some(rank) = source.named.rank
            && source.habits_deny(rank, head)
        {
            source.named.rank = None;
        }
        source
    }

    /// What the name of the file says of its writer.
    fn of_name(&mut self) -> Origin {
        let name = self.part.name.clone();
        let named = super::name::writer(&name);
        let mut origin =
            Origin { rank: named.rank, task: named.task, local: named.local, ..Origin::default() };
        if let Some(node) = named.node {
            let node = self.intern(node.as_bytes());
            self.part.saw_node(&node);
            origin.node = Some(node);
        }
        self.part.node_rank = named.node_rank;
        origin
    }

    /// Whether lines at the start of the file are by other ranks, or by pods of several names, and none by the rank that its name seems to say.
    fn habits_deny(&self, rank: u32, head: &[u8]) -> bool {
        let (mut other, mut pods) = (false, Vec::new());
        for line in head.split(|byte| *byte == b'\n').take(400) {
            let prefix = prefix::strip(line, self.habits);
            match prefix.rank.or_else(|| prefix::own_rank(&line[prefix.end..])) {
                Some(known) if known == rank => return false,
                Some(_) => other = true,
                None => {}
            }
            if line.starts_with(b"[pod/")
                && let Some(pod) = prefix.node.filter(|pod| !pods.contains(pod))
            {
                pods.push(pod);
            }
        }
        other || pods.len() > 1
    }

    pub(super) fn intern(&mut self, name: &[u8]) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let made: Arc<str> = String::from_utf8_lossy(name).into();
        // A file that makes up names without end does not make memory grow.
        if self.names.len() < 65_536 {
            self.names.insert(name.into(), Arc::clone(&made));
        }
        made
    }

    /// A line of the file, without its line end.
    pub(super) fn line(&mut self, raw: &[u8], number: u64) {
        let raw = raw.strip_suffix(b"\r").unwrap_or(raw);
        self.part.text = self.part.text || !raw.trim_ascii().is_empty();
        if self.document(raw, number) || self.state_lines(raw, number) {
            return;
        }
        self.text(raw, number);
    }

    /// The file is at its end.
    pub(super) fn finish(&mut self) {
        if let Some(open) = self.open.take() {
            self.close(&open, false);
        }
        let states = self.describe.finish();
        self.states(states, 0);
    }

    /// A line of a document of Kubernetes is kept until the document ends; whether it was one.
    fn document(&mut self, raw: &[u8], number: u64) -> bool {
        if let Some(open) = &mut self.open {
            open.add(raw);
            let ended = open.balance.closed() || raw.trim_ascii_end() == b"}";
            if !ended && open.text.len() <= lines::DOCUMENT {
                return true;
            }
            if let Some(open) = self.open.take() {
                self.close(&open, ended);
            }
            return true;
        }
        if raw.first() != Some(&b'{') {
            return false;
        }
        let whole = raw.trim_ascii_end() == b"{";
        let head = &raw[..raw.len().min(4096)];
        let kubernetes = whole
            || [&b"\"apiVersion\""[..], b"\"kind\""]
                .iter()
                .all(|key| memchr::memmem::find(head, key).is_some());
        if !kubernetes {
            return false;
        }
        let mut open = Open { text: Vec::new(), first: number, balance: Balance::default() };
        open.add(raw);
        if whole || !open.balance.closed() {
            self.open = Some(open);
            return true;
        }
        if let Some(states) = std::str::from_utf8(raw).ok().and_then(structured::document) {
            self.states(states, number);
            return true;
        }
        false
    }

    /// A document that has ended, or that is not one or too long.
    fn close(&mut self, open: &Open, ended: bool) {
        let states =
            ended.then(|| std::str::from_utf8(&open.text).ok().and_then(structured::document)).flatten();
        if let Some(states) = states {
            self.states(states, open.first);
            return;
        }
        let head = &open.text[..open.text.len().min(4096)];
        if memchr::memmem::find(head, b"\"apiVersion\"").is_some() && !ended {
            let why = if open.text.len() > lines::DOCUMENT { "is too long" } else { "is cut off" };
            self.part.incomplete = true;
            self.part.notes.push(format!(
                "{}:{}: the document of Kubernetes that begins here {why}: what it says of pods and nodes was not read whole",
                self.part.name, open.first
            ));
        }
        self.replay(open);
    }

    /// What was no document after all is text.
    fn replay(&mut self, open: &Open) {
        for (index, line) in open.text.split(|byte| *byte == b'\n').enumerate() {
            for piece in line.chunks(lines::LONGEST) {
                self.text(piece, open.first + index as u64);
            }
        }
    }

    /// A line of a table or a description; whether it was one.
    fn state_lines(&mut self, raw: &[u8], number: u64) -> bool {
        // Most logs have neither: their lines are not looked at twice.
        if !self.tabular {
            let start =
                raw.starts_with(b"NAME") || raw.starts_with(b"Name:") || raw.starts_with(b"LAST SEEN");
            let table = start || memchr::memmem::find(&raw[..raw.len().min(400)], b"JobID").is_some();
            if !table && !structured::may_be_pod(raw) && !structured::may_be_account(raw) {
                return false;
            }
            self.tabular = table;
        }
        let Ok(line) = std::str::from_utf8(raw) else { return false };
        if line.len() > 4096 {
            return false;
        }
        let (states, taken) = match self.tables.line(line, number) {
            Some(states) => (states, true),
            None => self.describe.line(line, number),
        };
        self.states(states, 0);
        taken
    }

    /// States go through the signals like lines; `first` is the line of a document's start.
    fn states(&mut self, states: Vec<State>, first: u64) {
        for state in states {
            let node = state.node.as_deref().map(|node| self.intern(node.as_bytes()));
            let time = state.time.map(|seconds| Stamp { seconds, clock: Clock::Zoned, year: None });
            let origin = Origin { node, time, ..Origin::default() };
            self.carry = None;
            if let Some(told) = &mut self.told {
                told.push((first + state.line, state.text.clone()));
            }
            self.body(state.text.as_bytes(), first + state.line, &origin);
        }
    }

    /// A line that is text.
    fn text(&mut self, raw: &[u8], number: u64) {
        let plain = colourless(raw);
        if memchr(b'\r', &plain).is_none() {
            self.segment(&plain, number);
        } else {
            for piece in plain.split(|byte| *byte == b'\r').filter(|piece| !piece.is_empty()) {
                self.segment(piece, number);
            }
        }
    }

    /// A piece of a line that was written at once.
    fn segment(&mut self, text: &[u8], number: u64) {
        if text.is_empty() {
            return;
        }
        if text[0] == b'{'
            && let Some((inner, origin)) = super::json_line::read(text)
        {
            let node = origin.node.as_deref().map(|node| self.intern(node.as_bytes()));
            let outer = Origin { rank: origin.rank, node, time: origin.time, ..Origin::default() };
            for piece in inner.split('\n').filter(|piece| !piece.is_empty()) {
                self.prefixed(piece.as_bytes(), number, &outer);
            }
            return;
        }
        self.prefixed(text, number, &Origin::default());
    }

    fn prefixed(&mut self, text: &[u8], number: u64, outer: &Origin) {
        let prefix = prefix::strip(text, self.habits);
        let node = match prefix.node {
            Some(name) => {
                let node = self.intern(name);
                self.part.saw_node(&node);
                Some(node)
            }
            None => outer.node.clone(),
        };
        self.part.pods |= prefix.pod;
        if let (Some(task), Some(rank)) = (prefix.task, prefix.rank)
            && task != rank
        {
            self.part.tasks_are_nodes = true;
        }
        if prefix.task.is_some() && prefix.local.is_some_and(|local| prefix.task != Some(local)) {
            self.part.tasks_are_nodes = true;
        }
        let origin = Origin {
            rank: prefix.rank.or(outer.rank),
            task: prefix.task,
            local: prefix.local,
            node,
            time: outer.time.or(prefix.time),
        };
        let body = &text[prefix.end..];
        let inner = prefix::logger(body);
        let traced = &body[inner.end..];
        // Of what a logger writes only the lines of a traceback stand alone.
        if inner.end > 0
            && (exception(traced)
                || traced.starts_with(b"Traceback (most")
                || traced.starts_with(b"  File \""))
        {
            let rank = inner.rank.or(origin.rank);
            self.body(traced, number, &Origin { rank, ..origin });
        } else {
            self.body(body, number, &origin);
        }
    }

    /// A piece of a line without prefixes.
    pub(super) fn body(&mut self, text: &[u8], number: u64, origin: &Origin) {
        self.scanner.search(text, &mut self.hits);
        if self.hits.marks & context::INNER != 0
            && self.depth < DEPTH
            && let Some(at) = prefix::inner(text)
        {
            self.depth += 1;
            self.body(&text[..at], number, origin);
            // Someone else's text, of which only the time and place are shared.
            let outer = Origin { node: origin.node.clone(), time: origin.time, ..Origin::default() };
            self.prefixed(&text[at..], number, &outer);
            self.depth -= 1;
            return;
        }
        let writer = self.writer(text, origin);
        if !matches!(writer, Writer::File(_)) && self.last != Some(writer) {
            self.last = Some(writer);
            self.part.saw(writer);
        }
        if let Some(stamp) = origin.time
            && stamp.year.is_some()
            && self.part.year.is_none()
        {
            self.part.year = stamp.year;
        }
        let time = self.time(text, origin.time, writer);
        let ignored = self.ignored(text, writer, number) || (!self.hits.signals.is_empty() && quotes(text));
        let before = self.stamped;
        self.stamped = origin.time.or(before);
        if self.hits.signals.is_empty()
            && self.hits.marks & !(context::INNER | context::OWN_RANK) == 0
            && !self.part.context.waiting()
        {
            return;
        }
        let place = Place { file: self.file, line: number };
        let line = String::from_utf8_lossy(text);
        if self.hits.marks != 0 || self.part.context.waiting() {
            self.part.context.line(self.hits.marks, &line, place);
        }
        let node = origin.node.as_ref().or(self.named.node.as_ref());
        let (seconds, clock) = match time {
            Some(stamp) => (Some(stamp.seconds), self.clock(stamp.clock)),
            None => (None, 0),
        };
        let silence = silence(text, before, origin.time);
        // The end of a wait is minutes later than the last line before it.
        let borrowed = origin.time.is_none() && seconds.is_some();
        for &hit in &self.hits.signals {
            if !self.scanner.confirm(hit, &line, None) {
                continue;
            }
            let signal = self.scanner.signal(hit);
            if ignored && matches!(signal.role, Role::Failure | Role::Follower) {
                continue;
            }
            let (seconds, clock) =
                if borrowed && WAITED.contains(&signal.id) { (None, 0) } else { (seconds, clock) };
            let count = self.part.counts.entry(hit).or_default();
            if !count.line(writer, node, seconds) {
                // Beyond the bound only the last counts: no event is made of the others.
                count.last(writer, &line, &super::part::At { place, node, time: seconds, clock });
                continue;
            }
            let mut event = Event {
                signal: signal.id,
                role: signal.role,
                place,
                rank: None,
                node: node.cloned(),
                time: seconds,
                clock,
                fields: Vec::new(),
                text: String::new(),
            };
            self.scanner.confirm(hit, &line, Some(&mut event.fields));
            if let Some(silence) = silence {
                event.fields.push(("silence", format!("{silence:.0}")));
            }
            event.text = scan::shorten(line.trim(), scan::TEXT);
            count.keep(Draft { event, writer });
        }
    }

    /// Number of the clock in events. Kernels of different hosts started at different times.
    fn clock(&self, clock: Clock) -> u8 {
        match clock {
            Clock::Date => 0,
            Clock::Zoned => ZONED,
            Clock::Day => 1,
            Clock::Yearless => YEARLESS,
            Clock::Kernel => 2 + self.file.min(250) as u8,
        }
    }

    fn writer(&self, text: &[u8], origin: &Origin) -> Writer {
        let own = || {
            (self.hits.marks & context::OWN_RANK != 0)
                .then(|| prefix::own_rank(text))
                .flatten()
                .map(Writer::Rank)
        };
        origin
            .rank
            .map(Writer::Rank)
            .or_else(own)
            .or_else(|| {
                let local = origin.local?;
                // A task that starts ranks is a node; so is a pod with an index.
                let node = origin.task.or_else(|| super::name::index(origin.node.as_deref()?));
                Some(node.map_or(Writer::Local(local), |node| Writer::On(node, local)))
            })
            .or(origin.task.map(Writer::Task))
            .or(self.named.rank.map(Writer::Rank))
            .or(self.named.local.map(Writer::Local))
            .or(self.named.task.map(Writer::Task))
            .unwrap_or(Writer::File(self.file))
    }

    /// Whether the line belongs to an exception that Python could not raise (in a destructor, a callback, at exit): it says so and goes on.
    /// The exception's own line ends the block; lines of others may stand between.
    fn ignored(&mut self, text: &[u8], writer: Writer, number: u64) -> bool {
        let start = text.trim_ascii_start();
        if UNRAISED.iter().any(|say| start.starts_with(say)) {
            self.ignored.retain(|(whose, _)| *whose != writer);
            if self.ignored.len() < IGNORED_WRITERS {
                self.ignored.push((writer, number));
            }
            return true;
        }
        let Some(at) = self.ignored.iter().position(|(whose, _)| *whose == writer) else { return false };
        if number.saturating_sub(self.ignored[at].1) > IGNORED_LINES {
            self.ignored.swap_remove(at);
            return false;
        }
        if matches!(text.first(), Some(b' ' | b'\t')) || text.starts_with(b"Traceback (most") {
            return true;
        }
        let ends = exception(text);
        if ends {
            self.ignored.swap_remove(at);
        }
        ends
    }

    /// A time of day after the midnights that the file's lines have passed: less than before by more than an hour is the next day, and what
    /// is a day ahead then was written before midnight.
    fn past_midnight(&mut self, mut stamp: Stamp) -> Stamp {
        if stamp.clock != Clock::Day {
            return stamp;
        }
        let last = self.day.1;
        let at = stamp.seconds + self.day.0;
        if at < last - HOUR {
            self.day.0 += DAY;
        } else if self.day.0 > 0.0 && at > last + DAY - HOUR {
            stamp.seconds = at - DAY;
            return stamp;
        }
        stamp.seconds += self.day.0;
        self.day.1 = stamp.seconds;
        stamp
    }

    /// The time of a line: its own, or that of the line whose traceback it goes on with.
    fn time(&mut self, text: &[u8], own: Option<Stamp>, writer: Writer) -> Option<Stamp> {
        if let Some(stamp) = own.map(|stamp| self.past_midnight(stamp)) {
            self.carry = Some((stamp, writer));
            self.traceback = false;
            return Some(stamp);
        }
        let (stamp, whose) = self.carry?;
        if whose != writer {
            return None;
        }
        if matches!(text.first(), Some(b' ' | b'\t')) || text.starts_with(b"Traceback (most") {
            self.traceback = true;
            return Some(stamp);
        }
        // The exception ends its traceback. Any other line is of a time that nothing tells.
        self.carry = None;
        std::mem::take(&mut self.traceback).then_some(stamp)
    }
}

/// Whether the line names an exception as the last line of a traceback does: `KeyError: 'x'`, `a.b.SomeError`.
fn exception(text: &[u8]) -> bool {
    let word = text.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii_end();
    let named = word.first().is_some_and(u8::is_ascii_alphabetic)
        && word.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'));
    let ends: [&[u8]; 6] = [b"Error", b"Exception", b"Exit", b"Interrupt", b"Iteration", b"Warning"];
    named && ends.iter().any(|end| word.ends_with(end))
}

/// A line without the escape sequences of terminals.
fn colourless(line: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr(0x1b, line) else { return Cow::Borrowed(line) };
    let mut plain = line[..first].to_vec();
    let mut at = first;
    while at < line.len() {
        if line[at] != 0x1b {
            plain.push(line[at]);
            at += 1;
            continue;
        }
        at += 1;
        match line.get(at) {
            Some(b'[') => {
                at += 1;
                while line.get(at).is_some_and(|byte| !(0x40..=0x7e).contains(byte)) {
                    at += 1;
                }
                at += 1;
            }
            Some(b']') => {
                while line.get(at).is_some_and(|byte| *byte != 0x07 && *byte != 0x1b) {
                    at += 1;
                }
                if line.get(at) == Some(&0x07) {
                    at += 1;
                } else if line.get(at) == Some(&0x1b) {
                    at += 2;
                }
            }
            Some(_) => at += 1,
            None => {}
        }
    }
    Cow::Owned(plain)
}
