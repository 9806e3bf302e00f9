//! GPU to NIC mapping, from trees in the shape of real machines and from facts built here.

#![allow(
    clippy::unnecessary_wraps,
    clippy::large_stack_arrays,
    clippy::needless_for_each,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

#[path = "../tree/mod.rs"]
mod tree;

mod build;
mod emits;
mod findings;
mod hostile;
mod mappings;
mod own;
mod rules;
mod traps;
