//! Kubernetes: pods, events, operators, plugins.
//!
//! What `kubectl` prints as documents or tables arrives here as the lines that `diagnose::structured` describes.

mod driver;
mod pods;
mod refused;

use super::process::story::join;
use crate::diagnose::event::Signal;
use crate::diagnose::rule::Rule;

const SIGNAL_COUNT: usize = driver::SIGNALS.len() + pods::SIGNALS.len() + refused::SIGNALS.len();
const RULE_COUNT: usize = driver::RULES.len() + pods::RULES.len() + refused::RULES.len();

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] =
    &join::<_, SIGNAL_COUNT>(Signal::BLANK, &[driver::SIGNALS, pods::SIGNALS, refused::SIGNALS]);

/// Rules.
pub(super) const RULES: &[Rule] =
    &join::<_, RULE_COUNT>(Rule::LIKELY, &[driver::RULES, pods::RULES, refused::RULES]);
