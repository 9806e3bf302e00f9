//! The protocol between nodes, as state machines and byte layouts without any I/O.
//!
//! With N nodes of G ranks each, rank (n, g) talks to its *rail peers* (m, g), m != n, only. What crosses is:
//!
//! * for every call one *header* to every rail peer ([`call::CallHeader`]: what is called, and how many tokens come);
//! * rows in *chunks* ([`chunk`]), each written into slot `sequence % window` of its stream at the receiver. A stream is
//!   (operation, source node, receiver); its sequence numbers run on over all calls ([`stream`]);
//! * for every chunk read, one *credit* back, for that very sequence number;
//! * where some rank gave its output a fixed number of rows, one *status* to every rail peer before any row
//!   ([`call::Status`]): either all outputs are large enough, or nothing moves;
//! * at the end of all calls one *bye* ([`peers`]).
//!
//! Every write carries a 32-bit [`immediate`]. Nothing relies on order: any two writes may arrive either way round. A
//! completion that comes twice is reported as an error and never counted. `tests/hop_model.rs` walks all interleavings.

mod bytes;
pub mod call;
pub mod chunk;
pub mod immediate;
pub mod limits;
pub mod peers;
pub mod stream;

pub use call::{CallError, CallHeader, Status};
pub use chunk::{ChunkError, Place};
pub use immediate::{Channel, Immediate, ImmediateError, Kind};
pub use limits::Limits;
pub use peers::{Awaited, PeerError, Peers};
pub use stream::{Receiver, Sender, StreamError};
