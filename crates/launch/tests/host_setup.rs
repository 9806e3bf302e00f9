//! The numbered scripts that set up a host, run for real: in a chroot (as root), and below a prefix with stand-ins for the commands
//! that would change a machine.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "host_setup/driver.rs"]
mod driver;
#[path = "host_setup/files.rs"]
mod files;
#[path = "host_setup/limits.rs"]
mod limits;
#[path = "host_setup/machine.rs"]
mod machine;
#[path = "host_setup/nvshmem.rs"]
mod nvshmem;
#[path = "scripts/mod.rs"]
mod scripts;
