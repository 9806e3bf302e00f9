//! Containerfiles.
