//! The 32 bits that every write between nodes carries. Their layout is frozen here and nowhere else.
//!
//! ```text
//! 31   29 28        17 16        7 6     3 2       0
//! | kind | source node | sequence | epoch | channel |
//!    3         12          10        4        3
//! ```
//!
//! 32 bits are what the narrowest provider carries (EFA). A word of zero is not an immediate.

use thiserror::Error;

use crate::topology::MAX_RANKS;

const CHANNEL_BITS: u32 = 3;
const EPOCH_BITS: u32 = 4;
const SEQUENCE_BITS: u32 = 10;
const SOURCE_BITS: u32 = 12;
const KIND_BITS: u32 = 3;

const EPOCH_SHIFT: u32 = CHANNEL_BITS;
const SEQUENCE_SHIFT: u32 = EPOCH_SHIFT + EPOCH_BITS;
const SOURCE_SHIFT: u32 = SEQUENCE_SHIFT + SEQUENCE_BITS;
const KIND_SHIFT: u32 = SOURCE_SHIFT + SOURCE_BITS;

const _: () = assert!(KIND_SHIFT + KIND_BITS == 32, "the fields fill 32 bits");
const _: () = assert!(1 << SOURCE_BITS >= MAX_RANKS, "every node has a number, with one rank on each too");
const _: () = assert!((Kind::Bye as u32) < 1 << KIND_BITS, "every kind has a number");
const _: () = assert!((Channel::Combine as u32) < 1 << CHANNEL_BITS, "every channel has a number");

/// How many sequence numbers the immediate tells apart.
pub const SEQUENCES: u64 = 1 << SEQUENCE_BITS;

/// How many epochs the immediate tells apart.
pub const EPOCHS: u64 = 1 << EPOCH_BITS;

/// What was written. No kind is 0, so that zeroed memory is never taken for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The header of a call.
    Header = 1,
    /// A chunk of rows.
    Chunk = 2,
    /// A chunk was read: its slot is free.
    Credit = 3,
    /// How a dispatch ended at the source of this message.
    Status = 4,
    /// A failure is told: the communicator is over.
    Poison = 5,
    /// The source makes no more calls.
    Bye = 6,
}

impl Kind {
    fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            1 => Self::Header,
            2 => Self::Chunk,
            3 => Self::Credit,
            4 => Self::Status,
            5 => Self::Poison,
            6 => Self::Bye,
            _ => return None,
        })
    }

    /// Whether the sequence field says something; it is 0 in all other kinds.
    pub fn has_sequence(self) -> bool {
        matches!(self, Self::Chunk | Self::Credit)
    }
}

/// Which operation a message belongs to. Chunks, slots and credits of the two are separate. The numbers 2 to 7 are
/// reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Channel {
    /// Rows on their way to experts; also whatever belongs to no operation (barrier, poison, bye).
    Dispatch = 0,
    /// Rows on their way back.
    Combine = 1,
}

impl Channel {
    /// All channels, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Dispatch, Self::Combine];

    fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::Dispatch),
            1 => Some(Self::Combine),
            _ => None,
        }
    }
}

/// A word that is not an immediate, or fields that do not fit one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ImmediateError {
    /// The kind is none that this version knows.
    #[error(
        "immediate {word:#010x}: kind {kind} is unknown; all nodes must run the same version of Expertrail"
    )]
    Kind {
        /// The whole word.
        word: u32,
        /// Its kind field.
        kind: u32,
    },
    /// The channel is reserved.
    #[error(
        "immediate {word:#010x}: channel {channel} is reserved; all nodes must run the same version of Expertrail"
    )]
    Channel {
        /// The whole word.
        word: u32,
        /// Its channel field.
        channel: u32,
    },
    /// A kind without sequence numbers carries one.
    #[error(
        "{kind:?} carries sequence {sequence}, but only chunks and credits have one; all nodes must run the same version \
         of Expertrail"
    )]
    Sequence {
        /// The kind.
        kind: Kind,
        /// The sequence field.
        sequence: u16,
    },
    /// A field to be encoded is too large: an error of the caller.
    #[error("{field} {value} does not fit the immediate: it must be below {limit}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// One more than the largest that fits.
        limit: u32,
    },
}

/// The fields of one immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Immediate {
    /// What was written.
    pub kind: Kind,
    /// Which operation it belongs to.
    pub channel: Channel,
    /// The node that wrote it.
    pub source: u16,
    /// The low bits of the chunk's sequence number ([`low_sequence`]); 0 for kinds that have none.
    pub sequence: u16,
    /// The low bits of the call's number ([`low_epoch`]).
    pub epoch: u8,
}

impl Immediate {
    /// The 32 bits.
    ///
    /// # Errors
    /// [`ImmediateError::Field`] when a field has more bits than its place, [`ImmediateError::Sequence`] when the kind
    /// has no sequence number.
    pub fn encode(&self) -> Result<u32, ImmediateError> {
        for (field, value, bits) in [
            ("source node", u32::from(self.source), SOURCE_BITS),
            ("sequence", u32::from(self.sequence), SEQUENCE_BITS),
            ("epoch", u32::from(self.epoch), EPOCH_BITS),
        ] {
            if value >> bits != 0 {
                return Err(ImmediateError::Field { field, value, limit: 1 << bits });
            }
        }
        self.check_sequence()?;
        Ok((self.kind as u32) << KIND_SHIFT
            | u32::from(self.source) << SOURCE_SHIFT
            | u32::from(self.sequence) << SEQUENCE_SHIFT
            | u32::from(self.epoch) << EPOCH_SHIFT
            | self.channel as u32)
    }

    /// Reads what a peer's [`Immediate::encode`] made.
    ///
    /// # Errors
    /// [`ImmediateError`] when the kind is unknown, the channel reserved, or the sequence set where there is none.
    pub fn decode(word: u32) -> Result<Self, ImmediateError> {
        let field = |shift: u32, bits: u32| word >> shift & ((1 << bits) - 1);
        let (kind, channel) = (field(KIND_SHIFT, KIND_BITS), field(0, CHANNEL_BITS));
        let decoded = Self {
            kind: Kind::from_bits(kind).ok_or(ImmediateError::Kind { word, kind })?,
            channel: Channel::from_bits(channel).ok_or(ImmediateError::Channel { word, channel })?,
            source: field(SOURCE_SHIFT, SOURCE_BITS) as u16,
            sequence: field(SEQUENCE_SHIFT, SEQUENCE_BITS) as u16,
            epoch: field(EPOCH_SHIFT, EPOCH_BITS) as u8,
        };
        decoded.check_sequence()?;
        Ok(decoded)
    }

    fn check_sequence(self) -> Result<(), ImmediateError> {
        if self.kind.has_sequence() || self.sequence == 0 {
            return Ok(());
        }
        Err(ImmediateError::Sequence { kind: self.kind, sequence: self.sequence })
    }
}

/// The part of a sequence number that the immediate carries.
pub fn low_sequence(sequence: u64) -> u16 {
    (sequence % SEQUENCES) as u16
}

/// The part of an epoch that the immediate carries.
pub fn low_epoch(epoch: u64) -> u8 {
    (epoch % EPOCHS) as u8
}

/// The epoch whose low bits are `low`, nearest to `near`: at most half of [`EPOCHS`] before it, fewer after it. Near zero,
/// where no such epoch lies before, the first one after.
pub fn nearest_epoch(near: u64, low: u8) -> u64 {
    let ahead = u64::from(low).wrapping_sub(near) % EPOCHS;
    let after = near.saturating_add(ahead);
    if ahead < EPOCHS / 2 { after } else { after.checked_sub(EPOCHS).unwrap_or(after) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    #[allow(clippy::unusual_byte_groupings, reason = "the groups are the fields")]
    fn the_layout_is_frozen() {
        // 010 | 000000000101 | 1111111111 | 1001 | 001
        let chunk =
            Immediate { kind: Kind::Chunk, channel: Channel::Combine, source: 5, sequence: 1023, epoch: 9 };
        assert_eq!(chunk.encode().unwrap(), 0b010_000000000101_1111111111_1001_001);
        // 110 | 111111111111 | 0 | 0001 | 000
        let bye =
            Immediate { kind: Kind::Bye, channel: Channel::Dispatch, source: 4095, sequence: 0, epoch: 1 };
        assert_eq!(bye.encode().unwrap(), 0b110_111111111111_0000000000_0001_000);
    }

    #[test]
    fn words_that_are_no_immediates() {
        assert_eq!(Immediate::decode(0), Err(ImmediateError::Kind { word: 0, kind: 0 }));
        assert!(matches!(Immediate::decode(7 << 29), Err(ImmediateError::Kind { kind: 7, .. })));
        for channel in 2..8 {
            let error = Immediate::decode(2 << 29 | channel).unwrap_err();
            assert_eq!(error, ImmediateError::Channel { word: 2 << 29 | channel, channel });
        }
        // A header with sequence 3.
        let error = Immediate::decode(1 << 29 | 3 << 7).unwrap_err();
        assert_eq!(error, ImmediateError::Sequence { kind: Kind::Header, sequence: 3 });
    }

    #[test]
    fn fields_that_do_not_fit_are_refused() {
        let good = Immediate {
            kind: Kind::Credit,
            channel: Channel::Dispatch,
            source: 4095,
            sequence: 1023,
            epoch: 15,
        };
        assert!(good.encode().is_ok());
        for (bad, field, limit) in [
            (Immediate { source: 4096, ..good }, "source node", 4096),
            (Immediate { sequence: 1024, ..good }, "sequence", 1024),
            (Immediate { epoch: 16, ..good }, "epoch", 16),
        ] {
            let error = bad.encode().unwrap_err();
            assert!(
                matches!(error, ImmediateError::Field { field: f, limit: l, .. } if f == field && l == limit),
                "{error}"
            );
        }
        assert!(Immediate { kind: Kind::Status, ..good }.encode().is_err());
    }

    #[test]
    fn nearest_epochs() {
        // 20 = 16 + 4: the low bits 4 to 11 lie ahead (20 to 27), the others behind (12 to 19).
        for (low, want) in [(4, 20), (5, 21), (11, 27), (12, 12), (3, 19)] {
            assert_eq!(nearest_epoch(20, low), want, "{low}");
        }
        // Before the first call there is none.
        assert_eq!([nearest_epoch(1, 0), nearest_epoch(1, 2), nearest_epoch(1, 15)], [0, 2, 15]);
    }

    proptest! {
        #[test]
        fn every_word_decodes_to_itself_or_to_an_error(word: u32) {
            if let Ok(decoded) = Immediate::decode(word) {
                prop_assert_eq!(decoded.encode(), Ok(word));
            }
        }

        #[test]
        fn an_epoch_within_half_the_window_is_found_again(near in 8u64..1 << 60, offset in -8i64..8) {
            let epoch = near.wrapping_add_signed(offset);
            prop_assert_eq!(nearest_epoch(near, low_epoch(epoch)), epoch);
        }
    }
}
