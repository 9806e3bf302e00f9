//! What travels between the ranks and rank 0's coordinator.
//!
//! A connection starts with a [`Hello`] and its [`Answer`], whose first bytes keep their place in every
//! version so that any two versions can refuse each other in words. Then come [`Frame`]s.

mod bytes;
mod cause;
mod hello;

pub(crate) use cause::Cause;
pub(crate) use hello::{Answer, Greeting, Hello, NeedMore, VERSION, read_answer, read_hello};

use std::time::Duration;

use bytes::{Reader, Writer, clip, printable};

use crate::layout::Place;

/// The most bytes one rank can give to a collective.
pub const MAX_BLOB: usize = 64 << 20;
/// The most bytes an all-gather can return in all.
pub const MAX_GATHERED: usize = 1 << 30;

/// Room for the small fields of a frame's body beside its payload.
const SLACK: usize = 1 << 20;
const HEADER: usize = 32;
const MAX_PHASE: usize = 200;

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    AllGather,
    Broadcast,
    Barrier,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
        }
    }
}

/// One collective call: what all ranks must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) phase: String,
    /// Source of a broadcast; otherwise 0.
    pub(crate) source: usize,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} \"{}\"", self.op.name(), self.phase)?;
        if self.op == Op::Broadcast { write!(f, " from rank {}", self.source) } else { Ok(()) }
    }
}

/// A rank as the coordinator tells it to all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) place: Place,
}

/// One message after the greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A rank enters a collective.
    Enter { call: Call, sequence: u64, deadline: Duration, body: Vec<u8> },
    /// A rank leaves on purpose.
    Bye,
    /// The group has failed, says a rank or the coordinator.
    Fail(Cause),
    /// All ranks are there.
    Welcome(Vec<Entry>),
    /// A collective is complete.
    Done { sequence: u64, body: Vec<u8> },
    /// Rank 0 left on purpose; no further call can complete.
    RootLeft,
}

const ENTER: u8 = 1;
const BYE: u8 = 2;
const FAIL: u8 = 3;
const WELCOME: u8 = 4;
const DONE: u8 = 5;
const ROOT_LEFT: u8 = 6;

/// Fields of the fixed header: kind, op, phase length, source, sequence, deadline, body length.
struct Header {
    kind: u8,
    op: u8,
    source: u32,
    sequence: u64,
    deadline_ms: u64,
}

fn seal(header: &Header, phase: &str, body: &[u8]) -> Vec<u8> {
    let phase = clip(phase, MAX_PHASE);
    let mut out = Writer(Vec::with_capacity(HEADER + phase.len() + body.len()));
    out.u8(header.kind);
    out.u8(header.op);
    out.u16(phase.len() as u16);
    out.u32(header.source);
    out.u64(header.sequence);
    out.u64(header.deadline_ms);
    out.u64(body.len() as u64);
    out.raw(phase.as_bytes());
    out.raw(body);
    out.0
}

fn plain(kind: u8) -> Header {
    Header { kind, op: 0, source: 0, sequence: 0, deadline_ms: 0 }
}

/// Encodes a rank's entry into a collective without copying its payload first.
pub(crate) fn enter(call: &Call, sequence: u64, deadline: Duration, body: &[u8]) -> Vec<u8> {
    let op = match call.op {
        Op::AllGather => 0,
        Op::Broadcast => 1,
        Op::Barrier => 2,
    };
    let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    seal(&Header { kind: ENTER, op, source: call.source as u32, sequence, deadline_ms }, &call.phase, body)
}

/// Encodes the end of a collective.
pub(crate) fn done(sequence: u64, body: &[u8]) -> Vec<u8> {
    seal(&Header { sequence, ..plain(DONE) }, "", body)
}

pub(crate) fn bye() -> Vec<u8> {
    seal(&plain(BYE), "", &[])
}

pub(crate) fn root_left() -> Vec<u8> {
    seal(&plain(ROOT_LEFT), "", &[])
}

pub(crate) fn fail(cause: &Cause) -> Vec<u8> {
    let mut out = Writer::default();
    cause.encode(&mut out);
    seal(&plain(FAIL), "", &out.0)
}

pub(crate) fn welcome(entries: &[Entry]) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(entries.len() as u32);
    for entry in entries {
        out.text(&entry.host, hello::MAX_HOST);
        out.u32(entry.pid);
        out.u32(entry.place.node as u32);
        out.u32(entry.place.local_rank as u32);
        out.u32(entry.place.local_size as u32);
    }
    seal(&plain(WELCOME), "", &out.0)
}

/// Takes one whole frame off the front of `input` and says how many bytes it was; `Ok(None)` if more
/// bytes are needed.
///
/// `limit` bounds the payload, so that a peer cannot make us hold more than the protocol allows.
pub(crate) fn read_frame(input: &[u8], limit: usize) -> Result<Option<(Frame, usize)>, String> {
    let mut reader = Reader(input);
    let Some(head) = reader.raw(HEADER) else { return Ok(None) };
    let mut fields = Reader(head);
    let parts = (|| {
        let (kind, op, phase_len) = (fields.u8()?, fields.u8()?, fields.u16()?);
        let (source, sequence) = (fields.u32()?, fields.u64()?);
        Some((kind, op, usize::from(phase_len), source, sequence, fields.u64()?, fields.u64()?))
    })();
    let Some((kind, op, phase_len, source, sequence, deadline_ms, body_len)) = parts else { return Ok(None) };
    if !(ENTER..=ROOT_LEFT).contains(&kind) || phase_len > MAX_PHASE {
        return Err(format!("a frame of unknown kind {kind}"));
    }
    if body_len > (limit + SLACK) as u64 {
        return Err(format!("a frame of {body_len} bytes, more than the {limit} allowed"));
    }
    let Some(phase) = reader.raw(phase_len) else { return Ok(None) };
    let Some(body) = reader.raw(body_len as usize) else { return Ok(None) };
    let frame = match kind {
        ENTER => {
            let op = match op {
                0 => Op::AllGather,
                1 => Op::Broadcast,
                2 => Op::Barrier,
                other => return Err(format!("a collective of unknown kind {other}")),
            };
            let call = Call { op, phase: printable(phase), source: source as usize };
            Frame::Enter { call, sequence, deadline: Duration::from_millis(deadline_ms), body: body.to_vec() }
        }
        BYE => Frame::Bye,
        FAIL => Frame::Fail(Cause::decode(&mut Reader(body)).ok_or("a failure notice that does not parse")?),
        WELCOME => Frame::Welcome(read_entries(body).ok_or("a list of ranks that does not parse")?),
        DONE => Frame::Done { sequence, body: body.to_vec() },
        _ => Frame::RootLeft,
    };
    Ok(Some((frame, HEADER + phase_len + body_len as usize)))
}

fn read_entries(body: &[u8]) -> Option<Vec<Entry>> {
    let mut reader = Reader(body);
    let count = reader.u32()?;
    // Grown as entries come: the count alone reserves nothing.
    let mut entries = Vec::new();
    for _ in 0..count {
        let (host, pid) = (reader.text()?, reader.u32()?);
        let (node, local_rank, local_size) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let place =
            Place { node: node as usize, local_rank: local_rank as usize, local_size: local_size as usize };
        entries.push(Entry { host, pid, place });
    }
    reader.0.is_empty().then_some(entries)
}

/// Packs the blobs of all ranks: a length for each, then the bytes.
pub(crate) fn pack(blobs: &[Vec<u8>]) -> Vec<u8> {
    let bytes: usize = blobs.iter().map(Vec::len).sum();
    let mut out = Writer(Vec::with_capacity(8 * blobs.len() + bytes));
    for blob in blobs {
        out.u64(blob.len() as u64);
    }
    for blob in blobs {
        out.raw(blob);
    }
    out.0
}

/// Undoes [`pack`]; `None` if the bytes are not exactly `count` blobs.
pub(crate) fn unpack(body: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut reader = Reader(body);
    let mut lengths = Reader(reader.raw(count.checked_mul(8)?)?);
    let blobs: Option<Vec<_>> = (0..count)
        .map(|_| {
            let len = usize::try_from(lengths.u64()?).ok()?;
            reader.raw(len).map(<[u8]>::to_vec)
        })
        .collect();
    blobs.filter(|_| reader.0.is_empty())
}

#[cfg(test)]
mod tests;
