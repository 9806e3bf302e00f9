//! A small protocol of the kind that stands on a transport: numbered slots, two generations, credits. It comes in two
//! rules, one right and one that leans on order, which a test of transports must be able to tell apart.

use std::sync::Arc;

use expertrail_fabric::sim::Buffer;
use expertrail_fabric::{Completion, Transport, Write};

use super::group::{Group, Outbox};

/// How a receiver knows that an epoch of a source is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// As many slots as the source's total says have arrived, one bit each.
    Counts,
    /// The total has arrived, and it was written last. Wrong: nothing promises that it arrives last.
    Order,
}

const SLOTS: usize = 8;
const BYTES: usize = 300;
const EPOCHS: usize = 4;
/// One generation of one peer: its slots, then eight bytes for the total and eight for a credit.
const GENERATION: usize = SLOTS * BYTES + 16;

const DATA: u32 = 0;
const TOTAL: u32 = 1;
const CREDIT: u32 = 2;

/// Kind 2 bits, endpoint 6, epoch 4, slot or total 10.
fn immediate(kind: u32, endpoint: usize, epoch: usize, number: usize) -> u32 {
    kind | (endpoint as u32) << 2 | (epoch as u32) << 8 | (number as u32) << 12
}

fn parts(immediate: u32) -> (u32, usize, usize, usize) {
    let field = |shift: u32, bits: u32| (immediate >> shift & ((1 << bits) - 1)) as usize;
    (immediate & 3, field(2, 6), field(8, 4), field(12, 10))
}

/// Slots that `from` writes to `to` in `epoch`: 0 to all of them.
fn total(from: usize, to: usize, epoch: usize) -> usize {
    (from * 5 + to * 3 + epoch * 7) % (SLOTS + 1)
}

fn payload(from: usize, to: usize, epoch: usize, slot: usize) -> Vec<u8> {
    let start = 1 + from + 8 * to + 64 * epoch + 256 * slot;
    (0..BYTES).map(|at| ((at + start * 13) % 251) as u8 + 1).collect()
}

/// What one endpoint knows of one peer, both ways.
#[derive(Clone, Default)]
struct Peer {
    /// The next epoch to send.
    next: usize,
    /// Writes of each epoch that are not yet `Sent`.
    unsent: [usize; EPOCHS],
    credit: [bool; EPOCHS],
    arrived: [u32; EPOCHS],
    total: [Option<usize>; EPOCHS],
    whole: [bool; EPOCHS],
}

struct Party {
    rule: Rule,
    me: usize,
    buffer: Arc<Buffer>,
    peers: Vec<Peer>,
    /// Credits on their way.
    credits: usize,
    writes: Vec<Write>,
}

/// Runs the protocol between all pairs. Whoever reads a slot too early, gets one twice or too few says so.
pub(crate) fn slots(ends: Vec<Box<dyn Transport>>, rule: Rule) -> Result<(), String> {
    let count = ends.len();
    let mut group = Group::new(ends, 4 * count * GENERATION)?;
    let writes: Vec<_> = (0..count).map(|to| group.to(to)).collect();
    let mut outbox: Outbox = (0..count).map(|_| Vec::new().into()).collect();
    let mut parties: Vec<_> = (0..count)
        .map(|me| {
            let peers = vec![Peer::default(); count];
            Party { rule, me, buffer: group.buffers()[me].clone(), peers, credits: 0, writes: writes.clone() }
        })
        .collect();
    for party in &mut parties {
        party.fill(&mut outbox)?;
    }
    for (from, waiting) in outbox.into_iter().enumerate() {
        for write in waiting {
            group.send(from, |_| write);
        }
    }
    group.run(|at, completion, outbox| {
        parties[at].on(&completion, outbox)?;
        Ok(parties.iter().all(Party::is_done))
    })
}

impl Party {
    /// Where a generation of a peer lies in what this side reads (0) or sends from (1).
    fn place(&self, side: usize, peer: usize, epoch: usize) -> usize {
        ((side * self.peers.len() + peer) * 2 + epoch % 2) * GENERATION
    }

    /// Posts every epoch that may start: its predecessor of the same generation has been read there and has left here.
    fn fill(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        for to in (0..self.peers.len()).filter(|&to| to != self.me) {
            loop {
                let (epoch, peer) = (self.peers[to].next, &self.peers[to]);
                let free = epoch < 2 || peer.credit[epoch - 2] && peer.unsent[epoch - 2] == 0;
                if epoch == EPOCHS || !free {
                    break;
                }
                let total = total(self.me, to, epoch);
                let source = self.place(1, to, epoch);
                for slot in 0..total {
                    let bytes = payload(self.me, to, epoch, slot);
                    self.buffer.put(source + slot * BYTES, &bytes).ok_or("region too small")?;
                    self.post(outbox, (DATA, to, epoch, slot));
                }
                self.post(outbox, (TOTAL, to, epoch, total));
                self.peers[to].unsent[epoch] = total + 1;
                self.peers[to].next += 1;
            }
        }
        Ok(())
    }

    fn post(&self, outbox: &mut Outbox, (kind, to, epoch, number): (u32, usize, usize, usize)) {
        let (at, bytes) = match kind {
            DATA => (number * BYTES, BYTES),
            TOTAL => (SLOTS * BYTES, 8),
            _ => (SLOTS * BYTES + 8, 8),
        };
        let immediate = immediate(kind, self.me, epoch, number);
        outbox[self.me].push_back(Write {
            local_offset: (self.place(1, to, epoch) + at) as u64,
            remote_offset: (self.place(0, self.me, epoch) + at) as u64,
            bytes: bytes as u64,
            immediate,
            context: u64::from(immediate) << 8 | to as u64,
            ..self.writes[to]
        });
    }

    fn on(&mut self, completion: &Completion, outbox: &mut Outbox) -> Result<(), String> {
        match completion {
            Completion::Sent { context } => {
                let (kind, _, epoch, _) = parts((context >> 8) as u32);
                if kind == CREDIT {
                    self.credits -= 1;
                } else {
                    self.peers[*context as usize & 255].unsent[epoch] -= 1;
                }
                self.fill(outbox)
            }
            Completion::Failed { error, .. } => Err(error.to_string()),
            Completion::Arrived { immediate } => {
                let (kind, from, epoch, number) = parts(*immediate);
                let peer = &mut self.peers[from];
                let twice = match kind {
                    DATA => {
                        let bit = 1 << number;
                        let twice = peer.arrived[epoch] & bit != 0;
                        peer.arrived[epoch] |= bit;
                        twice
                    }
                    TOTAL => peer.total[epoch].replace(number).is_some(),
                    _ => std::mem::replace(&mut peer.credit[epoch], true),
                };
                if twice {
                    return Err(format!("{immediate:#x} came twice to {}", self.me));
                }
                self.advance(from, epoch, outbox)?;
                self.fill(outbox)
            }
        }
    }

    /// Reads an epoch that is whole by the rule, and grants its credit.
    fn advance(&mut self, from: usize, epoch: usize, outbox: &mut Outbox) -> Result<(), String> {
        let peer = &self.peers[from];
        let Some(total) = peer.total[epoch].filter(|_| !peer.whole[epoch]) else { return Ok(()) };
        if self.rule == Rule::Counts && (peer.arrived[epoch].count_ones() as usize) < total {
            return Ok(());
        }
        for slot in 0..total {
            let start = self.place(0, from, epoch) + slot * BYTES;
            if self.buffer.get(start..start + BYTES) != Some(payload(from, self.me, epoch, slot)) {
                return Err(format!(
                    "{} read slot {slot} of epoch {epoch} from {from} before it was there",
                    self.me
                ));
            }
        }
        self.peers[from].whole[epoch] = true;
        self.credits += 1;
        self.post(outbox, (CREDIT, from, epoch, 0));
        Ok(())
    }

    fn is_done(&self) -> bool {
        let others = self.peers.iter().enumerate().filter(|(peer, _)| *peer != self.me);
        self.credits == 0
            && others.fold(true, |done, (from, peer)| {
                let all = (0..EPOCHS).all(|epoch| {
                    let arrived = peer.arrived[epoch].count_ones() as usize;
                    peer.whole[epoch]
                        && peer.credit[epoch]
                        && peer.unsent[epoch] == 0
                        && arrived == total(from, self.me, epoch)
                });
                done && all && peer.next == EPOCHS
            })
    }
}
