//! What can be wrong with a chunk.

use thiserror::Error;

/// A chunk that cannot be written, or that a peer wrote wrongly. A reader that gets one must not use the chunk.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChunkError {
    /// Slots are too small for one record: an error at build.
    #[error("slots of {slot_bytes} bytes do not hold a record of {record} bytes: {least} are needed")]
    Slot {
        /// Bytes of a slot.
        slot_bytes: usize,
        /// Bytes of a record.
        record: usize,
        /// Bytes that would do.
        least: usize,
    },
    /// The call has no such chunk, or the chunk no such record.
    #[error("chunk or record {index} of {chunks}: there is none")]
    Index {
        /// The number asked for.
        index: usize,
        /// How many there are.
        chunks: usize,
    },
    /// Too few bytes.
    #[error("{what} has {got} bytes, {want} are needed")]
    Short {
        /// What is too short.
        what: &'static str,
        /// Bytes there are.
        got: usize,
        /// Bytes needed.
        want: usize,
    },
    /// The caller gave another number of values than the layout carries.
    #[error("{got} {what} given for a record, {want} wanted")]
    Values {
        /// Which values.
        what: &'static str,
        /// How many were given.
        got: usize,
        /// How many the layout carries.
        want: usize,
    },
    /// The head is not the one of the chunk that was expected here.
    #[error(
        "the head of a chunk says {field} {got}, expected is {want}; both nodes must run the same version of Expertrail and \
         make the same calls"
    )]
    Head {
        /// Which field.
        field: &'static str,
        /// What the peer wrote.
        got: u64,
        /// What this chunk must have.
        want: u64,
    },
    /// A number of a record is not one that the counts of this call allow.
    #[error(
        "record {record} of a chunk says {field} {got}, allowed are {least} to below {end}; the counts that the peer \
         announced for this call say so"
    )]
    Record {
        /// Record within the chunk.
        record: usize,
        /// Which field.
        field: &'static str,
        /// What the peer wrote.
        got: i64,
        /// The least allowed.
        least: i64,
        /// One more than the most allowed.
        end: i64,
    },
}
