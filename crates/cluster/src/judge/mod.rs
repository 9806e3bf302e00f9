//! What the numbers of a run mean.
