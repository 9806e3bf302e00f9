//! `run.toml`: what a person writes.
