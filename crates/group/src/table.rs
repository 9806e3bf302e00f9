//! The coordinator's view of the collectives: who has entered what. No socket, no clock of its own.

use std::time::{Duration, Instant};

use crate::error::{InCall, Peer};
use crate::wire::{Call, Cause, MAX_BLOB, MAX_GATHERED, Op, pack};

/// What follows from an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Others are still awaited.
    Wait,
    /// The call is complete: this goes to every rank.
    Release { sequence: u64, body: Vec<u8> },
    /// The group has failed: this goes to every rank.
    Fail(Cause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Here,
    Left,
    Dead,
}

/// A rank's entry into a collective.
pub(crate) struct Entering {
    pub(crate) call: Call,
    pub(crate) sequence: u64,
    pub(crate) deadline: Duration,
    pub(crate) body: Vec<u8>,
}

/// The call that is open.
struct Open {
    call: Call,
    first: usize,
    bodies: Vec<Option<Vec<u8>>>,
    arrived: usize,
    bytes: usize,
    /// The earliest deadline of those who wait, and how long it was.
    deadline: Option<(Instant, Duration)>,
}

/// All ranks of a complete group.
pub(crate) struct Table {
    peers: Vec<Peer>,
    presence: Vec<Presence>,
    open: Option<Open>,
    sequence: u64,
}

impl Table {
    pub(crate) fn new(peers: Vec<Peer>) -> Self {
        Self { presence: vec![Presence::Here; peers.len()], peers, open: None, sequence: 0 }
    }

    /// A rank enters a collective.
    pub(crate) fn enter(&mut self, rank: usize, entering: Entering, now: Instant) -> Step {
        let Entering { call, sequence, deadline, body } = entering;
        if sequence != self.sequence || (call.op == Op::Broadcast && call.source >= self.peers.len()) {
            return self.protocol(rank, format!("{call} as call {sequence} where {} was due", self.sequence));
        }
        // A rank that left can enter nothing, so the call cannot complete: no need to wait for the rest.
        if let Some(gone) = self.presence.iter().position(|presence| *presence != Presence::Here) {
            return Step::Fail(self.absent(gone));
        }
        let world = self.peers.len();
        let open = self.open.get_or_insert_with(|| Open {
            call: call.clone(),
            first: rank,
            bodies: vec![None; world],
            arrived: 0,
            bytes: 0,
            deadline: None,
        });
        if open.call != call {
            let side =
                |rank: usize, call: &Call| InCall { peer: self.peers[rank].clone(), call: call.to_string() };
            return Step::Fail(Cause::Mismatch {
                first: side(open.first, &open.call),
                second: side(rank, &call),
            });
        }
        if open.bodies[rank].is_some() {
            return self.protocol(rank, format!("{call} twice"));
        }
        open.bytes += body.len();
        let too_large = if body.len() > MAX_BLOB {
            Some((body.len(), MAX_BLOB))
        } else {
            (open.bytes > MAX_GATHERED).then_some((open.bytes, MAX_GATHERED))
        };
        if let Some((bytes, limit)) = too_large {
            return Step::Fail(Cause::TooLarge {
                call: call.to_string(),
                bytes: bytes as u64,
                limit: limit as u64,
            });
        }
        open.bodies[rank] = Some(body);
        open.arrived += 1;
        // A deadline beyond the clock's range is none.
        let due = now.checked_add(deadline).map(|at| (at, deadline));
        open.deadline = match (open.deadline, due) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if open.arrived < world { Step::Wait } else { self.release() }
    }

    fn release(&mut self) -> Step {
        let Some(open) = self.open.take() else { return Step::Wait };
        let sequence = self.sequence;
        self.sequence += 1;
        let mut bodies: Vec<Vec<u8>> = open.bodies.into_iter().flatten().collect();
        let body = match open.call.op {
            Op::AllGather => pack(&bodies),
            Op::Broadcast => bodies.swap_remove(open.call.source),
            Op::Barrier => Vec::new(),
        };
        Step::Release { sequence, body }
    }

    /// A rank leaves on purpose: harmless unless somebody waits for it.
    pub(crate) fn leave(&mut self, rank: usize) -> Step {
        self.presence[rank] = Presence::Left;
        if self.open.is_some() { Step::Fail(self.absent(rank)) } else { Step::Wait }
    }

    /// A rank's connection ended. Without a farewell before, the rank is dead.
    pub(crate) fn end(&mut self, rank: usize) -> Step {
        if self.presence[rank] != Presence::Here {
            return Step::Wait;
        }
        self.presence[rank] = Presence::Dead;
        Step::Fail(self.absent(rank))
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, now: Instant) -> Step {
        let Some(open) = &self.open else { return Step::Wait };
        match open.deadline {
            Some((at, waited)) if at <= now => {
                let absent = open.bodies.iter().enumerate().filter(|(_, body)| body.is_none());
                let missing = absent.map(|(rank, _)| self.peers[rank].clone()).collect();
                Step::Fail(Cause::Deadline { call: open.call.to_string(), waited, missing })
            }
            _ => Step::Wait,
        }
    }

    /// When [`tick`](Self::tick) is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.open.as_ref()?.deadline.map(|(at, _)| at)
    }

    /// Whether a rank has left or died.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.presence[rank] != Presence::Here
    }

    fn absent(&self, rank: usize) -> Cause {
        let peer = self.peers[rank].clone();
        if self.presence[rank] == Presence::Left { Cause::Left(peer) } else { Cause::Died(peer) }
    }

    fn protocol(&self, rank: usize, what: String) -> Step {
        Step::Fail(Cause::Protocol { peer: self.peers[rank].clone(), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn table(ranks: usize) -> Table {
        Table::new((0..ranks).map(Peer::unknown).collect())
    }

    fn entering(op: Op, phase: &str, sequence: u64, body: &[u8]) -> Entering {
        let call = Call { op, phase: phase.into(), source: 1 };
        Entering { call, sequence, deadline: SECOND, body: body.to_vec() }
    }

    #[test]
    fn the_last_one_in_releases_all() {
        let (mut table, now) = (table(3), Instant::now());
        assert_eq!(table.enter(2, entering(Op::Broadcast, "b", 0, b"c"), now), Step::Wait);
        assert_eq!(table.enter(0, entering(Op::Broadcast, "b", 0, b"a"), now), Step::Wait);
        let released = table.enter(1, entering(Op::Broadcast, "b", 0, b"b"), now);
        assert_eq!(released, Step::Release { sequence: 0, body: b"b".to_vec() });
        assert_eq!(table.due(), None);
        assert_eq!(table.enter(1, entering(Op::Barrier, "next", 1, b""), now), Step::Wait);
    }

    #[test]
    fn different_phases_name_both_sides() {
        let (mut table, now) = (table(3), Instant::now());
        table.enter(1, entering(Op::Barrier, "x", 0, b""), now);
        let Step::Fail(Cause::Mismatch { first, second }) =
            table.enter(2, entering(Op::AllGather, "y", 0, b""), now)
        else {
            panic!("no mismatch")
        };
        assert_eq!((first.peer.rank, first.call.as_str()), (1, "barrier \"x\""));
        assert_eq!((second.peer.rank, second.call.as_str()), (2, "all_gather \"y\""));
    }

    #[test]
    fn the_earliest_deadline_names_who_is_missing() {
        let (mut table, now) = (table(4), Instant::now());
        table.enter(1, entering(Op::Barrier, "x", 0, b""), now);
        table.enter(3, entering(Op::Barrier, "x", 0, b""), now + SECOND);
        assert_eq!(table.due(), Some(now + SECOND));
        assert_eq!(table.tick(now + SECOND / 2), Step::Wait);
        let Step::Fail(Cause::Deadline { missing, waited, .. }) = table.tick(now + SECOND) else {
            panic!("no deadline")
        };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(waited, SECOND);
    }

    #[test]
    fn leaving_hurts_only_those_who_wait() {
        let (mut table, now) = (table(2), Instant::now());
        assert_eq!(table.leave(1), Step::Wait);
        assert_eq!(table.end(1), Step::Wait);
        let step = table.enter(0, entering(Op::Barrier, "x", 0, b""), now);
        assert_eq!(step, Step::Fail(Cause::Left(Peer::unknown(1))));
    }

    #[test]
    fn an_end_without_farewell_is_a_death() {
        let mut table = table(2);
        assert_eq!(table.end(1), Step::Fail(Cause::Died(Peer::unknown(1))));
    }

    #[test]
    fn entering_out_of_turn_is_a_protocol_error() {
        let (mut table, now) = (table(2), Instant::now());
        assert!(matches!(
            table.enter(0, entering(Op::Barrier, "x", 1, b""), now),
            Step::Fail(Cause::Protocol { .. })
        ));
        let mut far = entering(Op::Broadcast, "x", 0, b"");
        far.call.source = 2;
        assert!(matches!(table.enter(0, far, now), Step::Fail(Cause::Protocol { .. })));
    }
}
