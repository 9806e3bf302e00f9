//! A batch script for Slurm.
