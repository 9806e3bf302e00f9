//! The rules, by subject. Each part has its signals and its rules as tables.

use super::event::Signal;
use super::rule::Rule;
use super::{Answered, Case};

mod base;
mod build;
mod deepep;
mod efa;
mod ibgda;
mod kube;
mod launch;
mod limits;
mod nccl;
mod nvshmem;
mod own;
mod process;
mod rdma;
pub mod timeout;

/// Signals of one part.
type Signals = &'static [Signal];

/// Every signal.
pub fn signals() -> impl Iterator<Item = &'static Signal> {
    let parts: [Signals; 14] = [
        base::SIGNALS,
        build::SIGNALS,
        deepep::SIGNALS,
        efa::SIGNALS,
        ibgda::SIGNALS,
        kube::SIGNALS,
        launch::SIGNALS,
        limits::SIGNALS,
        nccl::SIGNALS,
        nvshmem::SIGNALS,
        own::SIGNALS,
        process::SIGNALS,
        rdma::SIGNALS,
        timeout::SIGNALS,
    ];
    parts.into_iter().flatten()
}

/// Every rule.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    let parts: [&'static [Rule]; 14] = [
        base::RULES,
        build::RULES,
        deepep::RULES,
        efa::RULES,
        ibgda::RULES,
        kube::RULES,
        launch::RULES,
        limits::RULES,
        nccl::RULES,
        nvshmem::RULES,
        own::RULES,
        process::RULES,
        rdma::RULES,
        timeout::RULES,
    ];
    parts.into_iter().flatten()
}

/// The questions that separate the causes of one message, with what the logs answer; none where no such message occurs.
pub fn questions(case: &Case) -> Vec<Answered> {
    timeout::answered(case)
}
