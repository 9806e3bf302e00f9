//! Builds of images and extensions, and code for another GPU.

use crate::diagnose::event::Signal;
use crate::diagnose::rule::Rule;

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[];

/// Rules.
pub(super) const RULES: &[Rule] = &[];
