//! What went wrong, from logs.
