//! What is kept of one file, and how the parts of all files become a case.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::case::{Case, Tally};
use super::context::Context;
use super::event::{Event, Place};
use super::prefix::Writer;
use super::scan::{TEXT, scanner, shorten};
use super::time;

/// Events of a signal that are kept in order of reading.
pub(super) const FIRST: usize = 64;
/// Ranks of which the earliest event of a signal is kept as well.
pub(super) const RANKS: usize = 512;
/// Ranks, hosts that are counted at most: more is no run, but text that looks like one.
const NAMES: usize = 65_536;

/// Clock of times without a year, until all files are read.
pub(super) const YEARLESS: u8 = 255;

/// An event whose rank is not resolved yet.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// The event; its rank is filled in by [`Assembly::finish`].
    pub(super) event: Event,
    /// Who wrote it.
    pub(super) writer: Writer,
}

impl Draft {
    fn earlier(&self, other: &Self) -> bool {
        match (self.event.time, other.event.time) {
            (Some(mine), Some(theirs)) if self.event.clock == other.event.clock => mine < theirs,
            _ => false,
        }
    }
}

/// Occurrences of one signal in one file.
#[derive(Debug, Default)]
pub(super) struct Count {
    lines: u64,
    writers: BTreeSet<Writer>,
    nodes: BTreeSet<Arc<str>>,
    first: Vec<Draft>,
    by_writer: BTreeMap<Writer, Draft>,
    /// The last of each writer, as text until the file ends.
    last: BTreeMap<Writer, Last>,
    ends: BTreeMap<Writer, Draft>,
}

/// Where and when a line was written.
pub(super) struct At<'a> {
    pub(super) place: Place,
    pub(super) node: Option<&'a Arc<str>>,
    pub(super) time: Option<f64>,
    pub(super) clock: u8,
}

/// A line that may be the last of its kind.
#[derive(Debug)]
pub(super) struct Last {
    text: String,
    place: Place,
    node: Option<Arc<str>>,
    time: Option<f64>,
    clock: u8,
}

/// Most bytes of a last line that are kept for its pattern.
const LAST: usize = 4096;

impl Count {
    /// Counts a line; whether its event is wanted.
    pub(super) fn line(&mut self, writer: Writer, node: Option<&Arc<str>>, time: Option<f64>) -> bool {
        self.lines += 1;
        if !matches!(writer, Writer::File(_)) && self.writers.len() < NAMES {
            self.writers.insert(writer);
        }
        if let Some(node) = node
            && !self.nodes.contains(node)
            && self.nodes.len() < NAMES
        {
            self.nodes.insert(Arc::clone(node));
        }
        self.first.len() < FIRST
            || match self.by_writer.get(&writer) {
                None => self.by_writer.len() < RANKS,
                Some(known) => time.is_some_and(|time| known.event.time.is_some_and(|known| time < known)),
            }
    }

    /// Notes the line as the last so far. What is kept of it becomes an event when the file ends.
    pub(super) fn last(&mut self, writer: Writer, text: &str, like: &At<'_>) {
        let room = self.last.len() < RANKS;
        let last = match self.last.entry(writer) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(open) if room => {
                open.insert(Last { text: String::new(), place: like.place, node: None, time: None, clock: 0 })
            }
            Entry::Vacant(_) => return,
        };
        last.text.clear();
        let mut end = text.len().min(LAST);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        last.text.push_str(&text[..end]);
        last.place = like.place;
        if last.node.as_ref() != like.node {
            last.node = like.node.cloned();
        }
        last.time = like.time;
        last.clock = like.clock;
    }

    /// The file is at its end: its last lines become events.
    fn close(&mut self, number: u16) {
        let signal = scanner().signal(number);
        for (writer, last) in std::mem::take(&mut self.last) {
            let mut fields = Vec::new();
            scanner().confirm(number, &last.text, Some(&mut fields));
            let event = Event {
                signal: signal.id,
                role: signal.role,
                place: last.place,
                rank: None,
                node: last.node,
                time: last.time,
                clock: last.clock,
                fields,
                text: shorten(last.text.trim(), TEXT),
            };
            self.ends.insert(writer, Draft { event, writer });
        }
        // Where all lines were kept, the last is among them, and files before this one may leave no room for it.
        for draft in self.first.iter().chain(self.by_writer.values()) {
            let room = self.ends.len() < RANKS;
            match self.ends.get_mut(&draft.writer) {
                Some(known) if known.event.place < draft.event.place => *known = draft.clone(),
                None if room => drop(self.ends.insert(draft.writer, draft.clone())),
                _ => {}
            }
        }
    }

    /// Keeps the event.
    pub(super) fn keep(&mut self, draft: Draft) {
        self.earliest(draft.writer, &draft);
        if self.first.len() < FIRST {
            self.first.push(draft);
        }
    }

    /// Takes in the count of a later file.
    fn add(&mut self, other: Self) {
        self.lines += other.lines;
        for writer in other.writers {
            if self.writers.len() < NAMES {
                self.writers.insert(writer);
            }
        }
        for node in other.nodes {
            if self.nodes.len() < NAMES {
                self.nodes.insert(node);
            }
        }
        let room = FIRST.saturating_sub(self.first.len());
        self.first.extend(other.first.into_iter().take(room));
        for (writer, draft) in other.by_writer {
            self.earliest(writer, &draft);
        }
        for (writer, draft) in other.ends {
            if self.ends.len() < RANKS || self.ends.contains_key(&writer) {
                self.ends.insert(writer, draft);
            }
        }
    }

    fn earliest(&mut self, writer: Writer, draft: &Draft) {
        let room = self.by_writer.len() < RANKS;
        match self.by_writer.get_mut(&writer) {
            Some(known) if draft.earlier(known) => *known = draft.clone(),
            None if room => drop(self.by_writer.insert(writer, draft.clone())),
            _ => {}
        }
    }
}

/// What is kept of one file.
#[allow(clippy::struct_excessive_bools, reason = "each is something that the file shows or does not")]
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Name of the file.
    pub(super) name: String,
    /// By number of the signal.
    pub(super) counts: BTreeMap<u16, Count>,
    /// Who wrote anything.
    pub(super) writers: BTreeSet<Writer>,
    /// Lines had a task and a rank that differ: tasks are nodes there.
    pub(super) tasks_are_nodes: bool,
    /// Hosts or pods that wrote anything.
    pub(super) nodes: BTreeSet<Arc<str>>,
    /// Lines name a pod as their writer.
    pub(super) pods: bool,
    /// Which of the nodes wrote this file, where it says so.
    pub(super) node_rank: Option<u32>,
    /// Variables, versions, the size of the run.
    pub(super) context: Context,
    /// The year of its dates.
    pub(super) year: Option<i64>,
    /// What should be said of its reading.
    pub(super) notes: Vec<String>,
    /// Not all of it was read.
    pub(super) incomplete: bool,
    /// It has lines that are not blank.
    pub(super) text: bool,
}

impl Part {
    pub(super) fn saw(&mut self, writer: Writer) {
        if self.writers.len() < NAMES {
            self.writers.insert(writer);
        }
    }

    pub(super) fn saw_node(&mut self, node: &Arc<str>) {
        if !self.nodes.contains(node) && self.nodes.len() < NAMES {
            self.nodes.insert(Arc::clone(node));
        }
    }
}

/// A case in the making.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    case: Case,
    counts: BTreeMap<u16, Count>,
    /// Context of all files.
    pub(super) context: Context,
    year: Option<i64>,
    /// A file has lines that are not blank.
    text: bool,
    /// Files with ranks within nodes, until something says how many a node has.
    waiting: Vec<(Part, bool)>,
}

impl Assembly {
    /// Takes in the next file. `only`: there is no other.
    pub(super) fn add(&mut self, mut part: Part, only: bool) {
        for (number, count) in &mut part.counts {
            count.close(*number);
        }
        self.case.nodes_seen.append(&mut part.nodes);
        self.case.pods |= part.pods;
        self.case.files.push(std::mem::take(&mut part.name));
        self.case.notes.append(&mut part.notes);
        self.case.incomplete |= part.incomplete;
        self.text |= part.text;
        self.year = self.year.or(part.year);
        self.context.add(std::mem::take(&mut part.context));
        // A later file may say how many ranks a node has.
        let waits = part.writers.iter().any(|writer| matches!(writer, Writer::Local(_) | Writer::On(..)));
        if waits && self.context.per_node().is_none() {
            self.waiting.push((part, only));
        } else {
            self.settle(part, only);
        }
    }

    /// Resolves the writers of a file, and takes in its counts.
    fn settle(&mut self, mut part: Part, only: bool) {
        // A rank within its node is a rank of the run where the node is known, or where there is nothing else.
        let per = self.context.per_node();
        let base = match (part.node_rank, per) {
            (Some(0), _) => Some(0),
            (Some(node), Some(per)) => node.checked_mul(per),
            _ if only => Some(0),
            _ => None,
        };
        let tasks_are_nodes = part.tasks_are_nodes;
        let resolve = |writer: Writer| -> Option<u32> {
            match writer {
                Writer::Rank(rank) => Some(rank),
                Writer::Task(task) => (!tasks_are_nodes).then_some(task),
                Writer::Local(local) => base?.checked_add(local),
                Writer::On(0, local) => Some(local),
                Writer::On(node, local) => node.checked_mul(per?)?.checked_add(local),
                Writer::File(_) => None,
            }
        };
        self.case.ranks_seen.extend(part.writers.iter().filter_map(|writer| resolve(*writer)));
        for (number, mut count) in std::mem::take(&mut part.counts) {
            count.writers =
                count.writers.iter().filter_map(|writer| resolve(*writer)).map(Writer::Rank).collect();
            let settle = |draft: &mut Draft| {
                draft.event.rank = resolve(draft.writer);
                draft.writer = draft.event.rank.map_or(Writer::File(draft.event.place.file), Writer::Rank);
            };
            count.first.iter_mut().for_each(settle);
            for (_, mut draft) in std::mem::take(&mut count.by_writer) {
                settle(&mut draft);
                count.earliest(draft.writer, &draft);
            }
            for (_, mut draft) in std::mem::take(&mut count.ends) {
                settle(&mut draft);
                match count.ends.get(&draft.writer) {
                    Some(known) if known.event.place > draft.event.place => {}
                    _ => drop(count.ends.insert(draft.writer, draft)),
                }
            }
            self.counts.entry(number).or_default().add(count);
        }
    }

    /// Part of what was given could not be read.
    pub(super) fn missed(&mut self) {
        self.case.incomplete = true;
    }

    /// A note about the reading as a whole.
    pub(super) fn note(&mut self, note: String) {
        self.case.notes.push(note);
    }

    /// The case, without what was given beside the logs.
    pub(super) fn finish(mut self) -> (Case, Context) {
        for (part, only) in std::mem::take(&mut self.waiting) {
            self.settle(part, only);
        }
        let year = self.year.unwrap_or(1970);
        let mut events: Vec<(u16, Event)> = Vec::new();
        for (number, count) in self.counts {
            let signal = scanner().signal(number);
            let tally = Tally {
                lines: count.lines,
                ranks: count
                    .writers
                    .iter()
                    .filter_map(|writer| if let Writer::Rank(rank) = writer { Some(*rank) } else { None })
                    .collect(),
                nodes: count.nodes,
                events: Vec::new(),
            };
            self.case.tallies.insert(signal.id, tally);
            let mut known: BTreeSet<Place> = count.first.iter().map(|draft| draft.event.place).collect();
            events.extend(count.first.into_iter().map(|draft| (number, draft.event)));
            for draft in count.by_writer.into_values().chain(count.ends.into_values()) {
                if known.insert(draft.event.place) {
                    events.push((number, draft.event));
                }
            }
        }
        for (_, event) in &mut events {
            if event.clock == YEARLESS {
                event.clock = 0;
                event.time = event.time.map(|time| time::in_year(time, year));
            }
        }
        events.sort_by_key(|(number, event)| (event.place, *number));
        for (index, (_, event)) in events.iter().enumerate() {
            if let Some(tally) = self.case.tallies.get_mut(event.signal) {
                tally.events.push(index);
            }
        }
        self.case.events = events.into_iter().map(|(_, event)| event).collect();
        self.case.incomplete |= !self.text;
        self.case.world = self.context.world();
        self.case.per_node = self.context.per_node();
        (self.case, self.context)
    }
}
