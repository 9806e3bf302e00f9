//! The pure core of Expertrail: shapes, topology, routing, plan, oracle, byte accounting, roofline, and
//! the protocol between nodes.
//!
//! Nothing here does I/O, reads a clock, starts a thread or uses `unsafe`. Every backend (CPU, GPU) moves
//! the rows that the [`plan`] names and must give the bits that the [`oracle`] gives.
//!
//! Words are the field's: *rank*, *node*, *token*, *hidden*, *expert*, *top-k*, *dispatch*, *combine*.
#![forbid(unsafe_code)]

pub mod account;
pub mod bf16;
pub mod counts;
pub mod error;
pub mod expect;
pub mod failure;
pub mod fp8;
pub mod handle;
pub mod hop;
pub mod oracle;
pub mod output;
pub mod placement;
pub mod plan;
pub mod roofline;
pub mod routing;
pub mod shape;
pub mod topology;

pub use bf16::Bf16;
pub use counts::CountMatrix;
pub use error::{CoreError, Result};
pub use failure::{Cause, Failure, Phase};
pub use handle::Handle;
pub use placement::Placement;
pub use plan::{Layout, Plan};
pub use routing::Routing;
pub use shape::{Dtype, Shape};
pub use topology::Topology;
