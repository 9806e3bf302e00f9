//! Compatibility of the loaded versions.
