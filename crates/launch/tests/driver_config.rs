//! Files and scripts for the driver's parameters. The scripts run against a stand-in for a cluster (`driver_config/cluster.py`), and
//! what they ask is put to the real kubectl as well where there is one.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "driver_config/apply.rs"]
mod apply;
#[path = "driver_config/files.rs"]
mod files;
#[path = "driver_config/real_kubectl.rs"]
mod real_kubectl;
#[path = "driver_config/recycle.rs"]
mod recycle;
#[path = "scripts/mod.rs"]
mod scripts;
#[path = "driver_config/verify.rs"]
mod verify;
#[path = "driver_config/world.rs"]
mod world;
