//! The greeting: who comes, for which job, in which version.

use std::time::Duration;

use super::bytes::{Reader, Writer, known, printable};
use crate::layout::Claim;
use crate::token::JobToken;

/// First bytes of both directions, the same in every version.
const MAGIC: [u8; 8] = *b"XPTRLGRP";
/// Version of everything after the magic and the version.
pub(crate) const VERSION: u16 = 1;
/// The longest host name, as in DNS.
pub(super) const MAX_HOST: usize = 255;
const MAX_REASON: usize = 2000;
const REFUSED: u16 = 1;
const LATER: u16 = 2;

/// What a rank says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) job: JobToken,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) pid: u32,
    /// How long it is going to wait for the others.
    pub(crate) patience: Duration,
    pub(crate) claim: Claim,
}

/// What a connection's first bytes turn out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Hello(Box<Hello>),
    /// Another version of the protocol.
    Version(u16),
    /// Not our protocol; the text shows the first bytes.
    Stranger(String),
}

/// More bytes are needed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NeedMore;

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(&MAGIC);
        out.u16(VERSION);
        out.u16(0);
        out.u32(self.rank as u32);
        out.u32(self.world_size as u32);
        out.u32(self.pid);
        out.u32(u32::try_from(self.patience.as_millis()).unwrap_or(u32::MAX));
        out.maybe(self.claim.node);
        out.maybe(self.claim.local_rank);
        out.maybe(self.claim.local_size);
        out.raw(self.job.as_bytes());
        out.text(&self.claim.host, MAX_HOST);
        out.0
    }
}

/// Reads a greeting from a connection's first bytes; the number is what it took.
pub(crate) fn read_hello(input: &[u8]) -> Result<(Greeting, usize), NeedMore> {
    // Strangers are told apart as early as their bytes allow: they may wait for us to speak.
    let known = input.len().min(MAGIC.len());
    if input[..known] != MAGIC[..known] {
        return Ok((Greeting::Stranger(printable(&input[..input.len().min(24)])), input.len()));
    }
    let mut reader = Reader(input);
    reader.raw(MAGIC.len()).ok_or(NeedMore)?;
    let version = reader.u16().ok_or(NeedMore)?;
    if version != VERSION {
        return Ok((Greeting::Version(version), input.len()));
    }
    let hello = hello_fields(&mut reader).ok_or(NeedMore)?;
    Ok((Greeting::Hello(Box::new(hello)), input.len() - reader.0.len()))
}

fn hello_fields(reader: &mut Reader<'_>) -> Option<Hello> {
    let _flags = reader.u16()?;
    let (rank, world_size, pid, patience) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
    let (node, local_rank, local_size) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let job = JobToken::from_bytes(reader.raw(16)?.try_into().ok()?);
    let host = reader.text()?;
    Some(Hello {
        job,
        rank: rank as usize,
        world_size: world_size as usize,
        pid,
        patience: Duration::from_millis(patience.into()),
        claim: Claim {
            host,
            node: known(node),
            local_rank: known(local_rank),
            local_size: known(local_size),
        },
    })
}

/// What rank 0 says to a greeting. This layout is for all versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Welcome in; the others are still awaited.
    Accepted,
    /// Not for this group, and why.
    Refused(String),
    /// This group is ending; the next one of this job may be for it.
    Later(String),
    /// Not an answer at all; the text shows the first bytes.
    Stranger(String),
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(&MAGIC);
        out.u16(VERSION);
        match self {
            Self::Accepted => {
                out.u16(0);
                out.text("", 0);
            }
            Self::Refused(reason) | Self::Stranger(reason) => {
                out.u16(REFUSED);
                out.text(reason, MAX_REASON);
            }
            Self::Later(reason) => {
                out.u16(LATER);
                out.text(reason, MAX_REASON);
            }
        }
        out.0
    }
}

/// Reads an answer; the number is what it took.
pub(crate) fn read_answer(input: &[u8]) -> Result<(Answer, usize), NeedMore> {
    let known = input.len().min(MAGIC.len());
    if input[..known] != MAGIC[..known] {
        return Ok((Answer::Stranger(printable(&input[..input.len().min(24)])), input.len()));
    }
    let mut reader = Reader(input);
    let parts = (|| {
        reader.raw(MAGIC.len())?;
        Some((reader.u16()?, reader.u16()?, reader.text()?))
    })();
    let (version, verdict, reason) = parts.ok_or(NeedMore)?;
    let answer = match verdict {
        0 if version == VERSION => Answer::Accepted,
        0 => Answer::Refused(format!(
            "rank 0 speaks version {version} of the group protocol, this rank {VERSION}"
        )),
        LATER => Answer::Later(reason),
        _ => Answer::Refused(reason),
    };
    Ok((answer, input.len() - reader.0.len()))
}
