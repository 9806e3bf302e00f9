//! One directory with everything of a run.
