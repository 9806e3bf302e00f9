//! Two runs that differ in one variable, on the same nodes.
