//! Two runs on the same nodes.
