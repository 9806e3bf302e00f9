//! Compatibility of the loaded versions.

use crate::check::Target;
use crate::facts::Facts;
use crate::finding::Finding;

/// Findings about the loaded versions.
pub fn findings(_facts: &Facts, _target: Target) -> Vec<Finding> {
    Vec::new()
}
