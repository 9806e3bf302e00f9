//! Router decisions from files: `[tokens, k]` integer `.npy` or `.safetensors`.
//!
//! How files map to ranks ([`Replay::new`]):
//! - as many files as ranks: file i is rank i's;
//! - one file whose name contains `{rank}`: each rank reads the file with its number there;
//! - one file otherwise: it is the batch of all ranks. Without a wanted number of tokens its rows are split
//!   over the ranks in contiguous blocks, the first ranks one row longer when they do not divide. With a
//!   wanted number T per rank it must have `ranks * T` rows (split) or exactly `T` rows (every rank uses
//!   them all); anything else is an error, never a silent cut.
//!
//! `FILE#NAME` names a tensor of a `.safetensors` file. An expert may stand twice in a row: it is sent once
//! to its rank and counted twice. `-1` means "no expert".

mod matrix;
mod npy;
mod replay;
mod safetensors;

use thiserror::Error;

pub use matrix::IdMatrix;
pub use npy::{parse_npy, write_npy_i32};
pub use replay::{Replay, RoutingFileError, Wanted};
pub use safetensors::parse_safetensors;

/// Bytes that are not a routing file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// The magic is missing.
    #[error("not a .npy file: it starts with {starts}; save it with numpy.save(file, ids)")]
    NotNpy {
        /// The first bytes, printable.
        starts: String,
    },
    /// A version that does not exist yet.
    #[error(".npy version {major}.{minor}: versions 1 to 3 are read; save it again with numpy.save")]
    NpyVersion {
        /// Major version.
        major: u8,
        /// Minor version.
        minor: u8,
    },
    /// The file ends inside the header.
    #[error("the file is cut off inside its header; copy it again")]
    HeaderCut,
    /// The header is not what the format says.
    #[error("the header is damaged: {0}")]
    Header(String),
    /// Not an integer type.
    #[error(
        "an integer type is wanted (i32 or i64; 8, 16 bits and unsigned too), the file has {found}; convert it with ids.astype('<i4')"
    )]
    Dtype {
        /// The file's type.
        found: String,
    },
    /// Big-endian data.
    #[error(
        "little-endian data is wanted, the file has big-endian {found}; convert it with ids.astype('<i4')"
    )]
    BigEndian {
        /// The file's type.
        found: String,
    },
    /// Not a matrix.
    #[error("2 dimensions [tokens, k], k at least 1, are wanted, the file has shape {shape:?}")]
    Dimensions {
        /// The file's shape.
        shape: Vec<u64>,
    },
    /// The shape's bytes do not fit the address space.
    #[error("the header claims shape {shape:?}, more than any file can hold")]
    TooLarge {
        /// The file's shape.
        shape: Vec<u64>,
    },
    /// Data and header disagree.
    #[error("the header wants {wanted} bytes of data, the file has {found}: it is {}; copy or save it again", if found < wanted { "cut off" } else { "damaged or has too many bytes at its end" })]
    DataSize {
        /// Bytes that the header says.
        wanted: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// An id that is no 32-bit integer.
    #[error("row {row}, column {col}: {value} is no expert id (-1, or 0 to the number of experts less 1)")]
    Id {
        /// Row, from 0.
        row: usize,
        /// Column, from 0.
        col: usize,
        /// The value.
        value: String,
    },
    /// No tensor fits.
    #[error("{wanted} is wanted, the file has {list}")]
    NoTensor {
        /// What was looked for.
        wanted: String,
        /// The tensors there are.
        list: String,
    },
    /// More than one tensor fits.
    #[error("the file has several tensors: {list}; name one as FILE#NAME")]
    SeveralTensors {
        /// The tensors there are.
        list: String,
    },
}
