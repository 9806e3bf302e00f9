//! Outliers of a fleet.
