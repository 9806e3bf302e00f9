//! Launch files for each system.

pub mod driver_config;
pub mod host_setup;
pub mod image;
pub mod k8s_job;
pub mod mpijob;
pub mod shell;
pub mod slurm;
