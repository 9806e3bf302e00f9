//! Checks: pure functions from facts to findings.

mod target;

pub use target::Target;
