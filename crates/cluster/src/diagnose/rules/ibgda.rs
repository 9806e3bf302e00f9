//! NVSHMEM's GPU-initiated transport and what it needs of the driver.

use crate::diagnose::event::Signal;
use crate::diagnose::rule::Rule;

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[];

/// Rules.
pub(super) const RULES: &[Rule] = &[];
