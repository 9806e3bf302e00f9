//! Facts of a node, and what they mean for expert parallelism: checks with causes and remedies, GPU-NIC topology,
//! compatibility of the loaded versions, and comparison of a fleet.

#![deny(unsafe_code)]

pub mod causes;
pub mod check;
pub mod collect;
pub mod compare;
pub mod diagnose;
pub mod environment;
pub mod facts;
pub mod finding;
pub mod isolate;
pub mod judge;
pub mod kube;
#[allow(unsafe_code)] // NVML is a C library, opened at run time
pub mod nvml;
pub mod plan;
#[allow(unsafe_code)] // the driver, verbs and GDRCopy are C libraries, opened at run time
pub mod probe;
pub mod profile;
pub mod render;
pub mod root;
pub mod stack;
pub mod topo;
pub mod userspace;
