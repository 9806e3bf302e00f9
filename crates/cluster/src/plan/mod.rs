//! What to expect of a run before it starts.
