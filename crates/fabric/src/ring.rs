//! The command ring between one producer and one proxy: 16-byte commands, never dropped.
//!
//! An entry is two 64-bit halves, because a GPU writes it with one 16-byte store whose halves may become visible in either
//! order. Each half has its own parity bit, which flips with every lap, and the consumer takes an entry only when both
//! halves have this lap's. So nothing is cleared and no half can be taken for another lap's: the consumer publishes how
//! many entries it has taken (credit), and the producer writes an entry again only after that.
//!
//! Commands carry indexes into tables that both sides know, never addresses. The device's half is
//! `crates/cuda/kernels/ring.cuh`: the same fields, compared by `tests/ring.rs`. `tests/ring_model.rs` runs this very file
//! under loom.

use std::sync::Arc;

use thiserror::Error;

use crate::atomics::{AtomicU64, Ordering, fence, pause, yield_now};

/// What can go wrong with a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// A field does not fit its bits: nothing was pushed.
    #[error("a command's {field} is {value}, and the ring carries at most {most}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The largest that fits.
        most: u64,
    },
    /// The ring's size is none that it can have.
    #[error("a command ring of {entries} entries: give a power of two, at most {}", MOST_ENTRIES)]
    Size {
        /// The size.
        entries: usize,
    },
    /// An entry holds no command.
    #[error(
        "entry {position} of the command ring holds {a:#018x} {b:#018x}, which is no command: producer and proxy must be of \
         the same version of Expertrail"
    )]
    Garbled {
        /// Entries before it.
        position: u64,
        /// First half.
        a: u64,
        /// Second half.
        b: u64,
    },
    /// The consumer says that it took more than was pushed.
    #[error(
        "the command ring's consumer took {taken} of {pushed} entries: something else writes to the ring's memory"
    )]
    Credit {
        /// What it says.
        taken: u64,
        /// What was pushed.
        pushed: u64,
    },
    /// The ring stayed full until the caller gave up: the command was not pushed.
    #[error(
        "the command ring is full: its proxy took {taken} commands and then none while the producer waited"
    )]
    Full {
        /// Commands that the consumer has taken so far.
        taken: u64,
    },
}

/// Bits of a half that hold one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The lowest bit.
    pub shift: u32,
    /// How many.
    pub bits: u32,
}

impl Field {
    /// The field of `bits` bits that follows `self`.
    const fn then(self, bits: u32) -> Self {
        Self { shift: self.end(), bits }
    }

    /// First bit after it.
    pub const fn end(self) -> u32 {
        self.shift + self.bits
    }

    /// The largest value that fits.
    pub const fn most(self) -> u64 {
        (1 << self.bits) - 1
    }

    const fn of(self, half: u64) -> u64 {
        half >> self.shift & self.most()
    }

    fn put(self, field: &'static str, value: u64) -> Result<u64, RingError> {
        if value > self.most() {
            return Err(RingError::Field { field, value, most: self.most() });
        }
        Ok(value << self.shift)
    }
}

/// The lap's parity, in both halves.
pub const PARITY: Field = Field { shift: 0, bits: 1 };

/// First half: what to do.
pub const KIND: Field = PARITY.then(3);
/// First half: the channel, 8 of them.
pub const CHANNEL: Field = KIND.then(3);
/// First half: the peer's node, 4,096 of them.
pub const PEER: Field = CHANNEL.then(12);
/// First half: the chunk's slot at the receiver, which the immediate carries.
pub const SEQUENCE: Field = PEER.then(10);
/// First half: the call, modulo 16.
pub const EPOCH: Field = SEQUENCE.then(4);

/// Second half: the slot of the source's staging table.
pub const SLOT: Field = PARITY.then(20);
/// Second half: the length in units of [`LENGTH_UNIT`].
pub const LENGTH: Field = SLOT.then(24);

/// Bytes that a command's length counts in: what bulk copies and vector stores move.
pub const LENGTH_UNIT: u64 = 16;

/// The largest ring. A GiB of entries is a mistake of the caller.
pub const MOST_ENTRIES: usize = 1 << 26;

/// How often a full ring is looked at before the thread gives way to others.
const LOOKS: u32 = 64;

// What is frozen elsewhere too: 4,096 nodes, 8 channels, 1,024 slots and 16 epochs of the immediate, and 256 MiB.
const _: () = assert!(KIND.most() == 7 && CHANNEL.most() == 7 && PEER.most() == 4095);
const _: () = assert!(SEQUENCE.most() == 1023 && EPOCH.most() == 15 && SLOT.most() == 0xF_FFFF);
const _: () = assert!((LENGTH.most() + 1) * LENGTH_UNIT == 256 << 20);
const _: () = assert!(EPOCH.end() <= 64 && LENGTH.end() <= 64);

/// What the proxy is asked to do. 0 is none, so that zeroed memory is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Write the chunk of a slot to the peer.
    Write = 1,
    /// Give the peer back a slot.
    Credit = 2,
    /// Write the header (counts) to the peer.
    Header = 3,
    /// Write this rank's state to the peer.
    Status = 4,
    /// Say when all before it have left.
    Flush = 5,
    /// Finish what was asked and end.
    Stop = 6,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Write, Self::Credit, Self::Header, Self::Status, Self::Flush, Self::Stop];
}

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub kind: Kind,
    /// Channel.
    pub channel: u8,
    /// The peer's node.
    pub peer: u16,
    /// The slot at the receiver, within its window.
    pub sequence: u16,
    /// The call, modulo 16.
    pub epoch: u8,
    /// The slot of the staging table that the bytes lie in.
    pub slot: u32,
    /// Length in units of 16 bytes ([`LENGTH_UNIT`]); 0 where the kind has none.
    pub length: u32,
}

impl Command {
    /// Both halves, with a parity of 0.
    ///
    /// # Errors
    /// [`RingError::Field`] for a field that does not fit.
    pub fn encode(&self) -> Result<[u64; 2], RingError> {
        let a = KIND.put("kind", self.kind as u64)?
            | CHANNEL.put("channel", self.channel.into())?
            | PEER.put("peer", self.peer.into())?
            | SEQUENCE.put("sequence", self.sequence.into())?
            | EPOCH.put("epoch", self.epoch.into())?;
        let b = SLOT.put("slot", self.slot.into())? | LENGTH.put("length", self.length.into())?;
        Ok([a, b])
    }

    /// The command of two halves, whatever their parity; `None` when the kind is unknown or a spare bit is set.
    pub fn decode([a, b]: [u64; 2]) -> Option<Self> {
        if a >> EPOCH.end() != 0 || b >> LENGTH.end() != 0 {
            return None;
        }
        Some(Self {
            kind: Kind::ALL.into_iter().find(|kind| *kind as u64 == KIND.of(a))?,
            channel: CHANNEL.of(a) as u8,
            peer: PEER.of(a) as u16,
            sequence: SEQUENCE.of(a) as u16,
            epoch: EPOCH.of(a) as u8,
            slot: SLOT.of(b) as u32,
            length: LENGTH.of(b) as u32,
        })
    }
}

/// One entry: 16 bytes that a GPU writes with one store.
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Entry {
    /// First half.
    pub a: AtomicU64,
    /// Second half.
    pub b: AtomicU64,
}

/// Memory of a ring, all zero before its first use: host memory, or pinned memory that a GPU writes to.
pub trait Cells {
    /// The entries; as many at every call.
    fn entries(&self) -> &[Entry];
    /// How many entries the consumer has taken.
    fn taken(&self) -> &AtomicU64;
}

/// The parity of the lap that `position` is in. The first is 1: zeroed memory is of no lap.
pub const fn lap_parity(position: u64, entries: usize) -> u64 {
    1 ^ ((position / entries as u64) & 1)
}

/// Whether a ring may have so many entries.
pub(crate) fn check_size(entries: usize) -> Result<(), RingError> {
    if entries.is_power_of_two() && entries <= MOST_ENTRIES {
        return Ok(());
    }
    Err(RingError::Size { entries })
}

/// The side that pushes. A ring has one.
#[derive(Debug)]
pub struct Producer<C> {
    cells: Arc<C>,
    pushed: u64,
    /// What the consumer had taken when it was last looked at: looking costs a cache line's way.
    credit: u64,
    stalls: u64,
}

impl<C: Cells> Producer<C> {
    /// The producer of a ring that nobody has used.
    ///
    /// # Errors
    /// [`RingError::Size`] when the entries are not a power of two.
    pub fn new(cells: Arc<C>) -> Result<Self, RingError> {
        check_size(cells.entries().len())?;
        Ok(Self { cells, pushed: 0, credit: 0, stalls: 0 })
    }

    /// Pushes, if there is room; says whether. What this thread wrote before is visible to whoever takes the command.
    ///
    /// # Errors
    /// [`RingError::Field`] for a field that does not fit, [`RingError::Credit`] when the ring's memory is damaged.
    pub fn try_push(&mut self, command: &Command) -> Result<bool, RingError> {
        let [a, b] = command.encode()?;
        if !self.has_room()? {
            return Ok(false);
        }
        let entries = self.cells.entries();
        let (entry, parity) = (at(entries, self.pushed), lap_parity(self.pushed, entries.len()));
        // As the device does it: a fence, then two stores without order between them.
        fence(Ordering::Release);
        entry.a.store(a | parity, Ordering::Relaxed);
        entry.b.store(b | parity, Ordering::Relaxed);
        self.pushed += 1;
        Ok(true)
    }

    /// Pushes, and blocks while the ring is full: pauses, then gives way to other threads. `keep_waiting` is asked at each
    /// look and ends the wait, because a dead proxy never takes anything. A push that had to wait counts as one stall.
    ///
    /// # Errors
    /// As [`Producer::try_push`]; [`RingError::Full`] when `keep_waiting` said no.
    pub fn push(
        &mut self,
        command: &Command,
        mut keep_waiting: impl FnMut() -> bool,
    ) -> Result<(), RingError> {
        let mut looks = 0;
        while !self.try_push(command)? {
            self.stalls += u64::from(looks == 0);
            if !keep_waiting() {
                return Err(RingError::Full { taken: self.credit });
            }
            looks += 1;
            if looks < LOOKS { pause() } else { yield_now() }
        }
        Ok(())
    }

    /// Commands pushed so far.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Pushes that found the ring full.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    /// Whether the consumer has taken all that was pushed.
    ///
    /// # Errors
    /// [`RingError::Credit`] when the ring's memory is damaged.
    pub fn is_empty(&mut self) -> Result<bool, RingError> {
        self.look()?;
        Ok(self.credit == self.pushed)
    }

    fn has_room(&mut self) -> Result<bool, RingError> {
        let entries = self.cells.entries().len() as u64;
        if self.pushed - self.credit == entries {
            self.look()?;
        }
        Ok(self.pushed - self.credit < entries)
    }

    fn look(&mut self) -> Result<(), RingError> {
        // Acquire: the consumer's loads of an entry come before our next stores to it.
        let taken = self.cells.taken().load(Ordering::Acquire);
        if taken > self.pushed || taken < self.credit {
            return Err(RingError::Credit { taken, pushed: self.pushed });
        }
        self.credit = taken;
        Ok(())
    }
}

/// The side that takes: the proxy. A ring has one.
#[derive(Debug)]
pub struct Consumer<C> {
    cells: Arc<C>,
    taken: u64,
}

impl<C: Cells> Consumer<C> {
    /// The consumer of a ring that nobody has used.
    ///
    /// # Errors
    /// [`RingError::Size`] when the entries are not a power of two.
    pub fn new(cells: Arc<C>) -> Result<Self, RingError> {
        check_size(cells.entries().len())?;
        Ok(Self { cells, taken: 0 })
    }

    /// Takes the next command, if it is there whole. What its producer wrote before it is visible then.
    ///
    /// # Errors
    /// [`RingError::Garbled`] for an entry that is no command. The ring stays at it: its producer cannot be trusted.
    pub fn try_pop(&mut self) -> Result<Option<Command>, RingError> {
        let entries = self.cells.entries();
        let (entry, parity) = (at(entries, self.taken), lap_parity(self.taken, entries.len()));
        let a = entry.a.load(Ordering::Acquire);
        if PARITY.of(a) != parity {
            return Ok(None);
        }
        let b = entry.b.load(Ordering::Acquire);
        if PARITY.of(b) != parity {
            return Ok(None);
        }
        let command = Command::decode([a, b]).ok_or(RingError::Garbled { position: self.taken, a, b })?;
        self.taken += 1;
        // Release: our loads of the entry come before the producer's next stores to it.
        self.cells.taken().store(self.taken, Ordering::Release);
        Ok(Some(command))
    }

    /// Commands taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }
}

/// The entry of a position. The size was checked to be a power of two, at least 1.
fn at(entries: &[Entry], position: u64) -> &Entry {
    &entries[position as usize & (entries.len() - 1)]
}
