//! The benchmark's parts that touch no communicator: presets, workloads, routing files, the result schema,
//! its exporters, and what is printed.
//!
//! Data flows one way: a [`preset`] (with the caller's overrides) gives the settings, [`workload`] or a
//! [`routing_file`] gives every rank its routing and rows, the run fills a [`schema::ResultFile`], and
//! [`export`], [`table`] and [`guide`] show it. Everything here is a pure function of its arguments, apart
//! from reading routing files, writing reports, and the run itself. The only unsafe code is that which gives addresses to
//! the GPU, in `run::gpu::kernels`.
//!
//! Units: times are microseconds (`_us`) or milliseconds (`_ms`); `_gbps` always means GB/s = 1e9 **bytes**
//! per second, per rank.
#![deny(unsafe_code)]

pub mod export;
pub mod fabric_probe;
pub mod guide;
pub mod machine;
pub mod preset;
pub mod routing_file;
pub mod run;
#[cfg(test)]
mod sample;
pub mod schema;
pub mod stats;
pub mod table;
pub mod workload;
