//! What the ranks send: routing, weights and rows, all of them functions of a seed.
//!
//! Every number here is the same on every machine: only integer arithmetic and the four IEEE operations are
//! used (no libm), and every value is a hash of *where* it is (seed, rank, row, column), never of what was
//! drawn before it. So any rank can regenerate any other rank's rows and choices to verify them.

mod hash;
mod routing;
mod rows;
mod zipf;

pub use routing::{GroupLimit, MAX_SKEW, RoutingSpec, WorkloadError, weights};
pub use rows::{RowKey, Tensor, fill_row, fill_row_fp8, first_mismatch, first_mismatch_fp8};
