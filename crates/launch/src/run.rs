//! A run with every value decided and the reason of each.
