//! Why a group failed, as told from rank to rank.

use std::time::Duration;

use super::bytes::{Reader, Writer};
use crate::error::{GroupError, InCall, Peer};

/// A failure without the reader's own phase: every rank adds the call in which it heard of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Died(Peer),
    Left(Peer),
    Failed { peer: Peer, message: String },
    Cancelled(Peer),
    Deadline { call: String, waited: Duration, missing: Vec<Peer> },
    Mismatch { first: InCall, second: InCall },
    Missing { ranks: Vec<Peer>, waited: Duration, refused: Vec<String> },
    Layout(String),
    TooLarge { call: String, bytes: u64, limit: u64 },
    Protocol { peer: Peer, what: String },
}

const MAX_TEXT: usize = 4000;

impl Cause {
    /// The error of a rank that hears of it during `phase`.
    pub(crate) fn into_error(self, phase: &str) -> GroupError {
        let phase = phase.to_owned();
        match self {
            Self::Died(peer) => GroupError::Died { peer, phase },
            Self::Left(peer) => GroupError::Left { peer, phase },
            Self::Failed { peer, message } => GroupError::Failed { peer, phase, message },
            Self::Cancelled(peer) => GroupError::Cancelled { peer, phase },
            Self::Deadline { call, waited, missing } => GroupError::Deadline { call, waited, missing },
            Self::Mismatch { first, second } => {
                GroupError::Mismatch { first: Box::new(first), second: Box::new(second) }
            }
            Self::Missing { ranks, waited, refused } => GroupError::Missing { ranks, waited, refused },
            Self::Layout(reason) => GroupError::Layout { reason },
            Self::TooLarge { call, bytes, limit } => GroupError::TooLarge { call, bytes, limit },
            Self::Protocol { peer, what } => GroupError::Protocol { peer, what },
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Died(peer) => tagged(out, 0, peer),
            Self::Left(peer) => tagged(out, 1, peer),
            Self::Failed { peer, message } => {
                tagged(out, 2, peer);
                out.text(message, MAX_TEXT);
            }
            Self::Cancelled(peer) => tagged(out, 3, peer),
            Self::Deadline { call, waited, missing } => {
                out.u8(4);
                out.text(call, MAX_TEXT);
                put_duration(out, *waited);
                put_peers(out, missing);
            }
            Self::Mismatch { first, second } => {
                out.u8(5);
                for side in [first, second] {
                    put_peer(out, &side.peer);
                    out.text(&side.call, MAX_TEXT);
                }
            }
            Self::Missing { ranks, waited, refused } => {
                out.u8(6);
                put_peers(out, ranks);
                put_duration(out, *waited);
                out.u16(refused.len() as u16);
                for text in refused {
                    out.text(text, MAX_TEXT);
                }
            }
            Self::Layout(reason) => {
                out.u8(7);
                out.text(reason, MAX_TEXT);
            }
            Self::TooLarge { call, bytes, limit } => {
                out.u8(8);
                out.text(call, MAX_TEXT);
                out.u64(*bytes);
                out.u64(*limit);
            }
            Self::Protocol { peer, what } => {
                tagged(out, 9, peer);
                out.text(what, MAX_TEXT);
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            0 => Self::Died(peer(reader)?),
            1 => Self::Left(peer(reader)?),
            2 => Self::Failed { peer: peer(reader)?, message: reader.text()? },
            3 => Self::Cancelled(peer(reader)?),
            4 => Self::Deadline { call: reader.text()?, waited: duration(reader)?, missing: peers(reader)? },
            5 => Self::Mismatch { first: in_call(reader)?, second: in_call(reader)? },
            6 => {
                let (ranks, waited) = (peers(reader)?, duration(reader)?);
                let count = reader.u16()?;
                Self::Missing {
                    ranks,
                    waited,
                    refused: (0..count).map(|_| reader.text()).collect::<Option<_>>()?,
                }
            }
            7 => Self::Layout(reader.text()?),
            8 => Self::TooLarge { call: reader.text()?, bytes: reader.u64()?, limit: reader.u64()? },
            9 => Self::Protocol { peer: peer(reader)?, what: reader.text()? },
            _ => return None,
        })
    }
}

fn tagged(out: &mut Writer, tag: u8, peer: &Peer) {
    out.u8(tag);
    put_peer(out, peer);
}

fn put_peer(out: &mut Writer, peer: &Peer) {
    out.u32(peer.rank as u32);
    out.u32(peer.pid.unwrap_or(0));
    // An empty host stands for an unknown one: no host is called "".
    out.text(peer.host.as_deref().unwrap_or_default(), super::hello::MAX_HOST);
}

fn put_peers(out: &mut Writer, peers: &[Peer]) {
    out.u32(peers.len() as u32);
    for peer in peers {
        put_peer(out, peer);
    }
}

fn put_duration(out: &mut Writer, duration: Duration) {
    out.u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
}

fn peer(reader: &mut Reader<'_>) -> Option<Peer> {
    let (rank, pid, host) = (reader.u32()?, reader.u32()?, reader.text()?);
    Some(Peer {
        rank: rank as usize,
        host: (!host.is_empty()).then_some(host),
        pid: (pid != 0).then_some(pid),
    })
}

fn peers(reader: &mut Reader<'_>) -> Option<Vec<Peer>> {
    let count = reader.u32()?;
    let mut peers = Vec::new();
    for _ in 0..count {
        peers.push(peer(reader)?);
    }
    Some(peers)
}

fn in_call(reader: &mut Reader<'_>) -> Option<InCall> {
    Some(InCall { peer: peer(reader)?, call: reader.text()? })
}

fn duration(reader: &mut Reader<'_>) -> Option<Duration> {
    reader.u64().map(Duration::from_millis)
}
