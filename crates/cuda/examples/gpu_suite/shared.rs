//! The cases and inputs of the CPU backend's conformance suite: one list for every backend.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "written for three programs; each uses its part")]
#![allow(clippy::unwrap_used, reason = "inputs that cannot be are the suite's own mistake")]

use expertrail_core as core;

#[path = "../../../expertrail/tests/conformance/cases.rs"]
mod cases;
#[path = "../../../expertrail/tests/conformance/world.rs"]
mod world;

pub(crate) use cases::{Case, Experts, Inputs, Routes, base, cases};
pub(crate) use world::{Owned, World};
