//! Numbered scripts that set up a host, each with its check.
