//! Who manages a node.
