//! RDMA userspace, limits and modules.

mod gdrcopy;
mod nics;
mod verbs;

use super::process::story::{join_rules, join_signals};
use crate::diagnose::event::Signal;
use crate::diagnose::rule::Rule;

const SIGNAL_COUNT: usize = verbs::SIGNALS.len() + nics::SIGNALS.len() + gdrcopy::SIGNALS.len();
const RULE_COUNT: usize = verbs::RULES.len() + nics::RULES.len() + gdrcopy::RULES.len();

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] =
    &join_signals::<SIGNAL_COUNT>(&[verbs::SIGNALS, nics::SIGNALS, gdrcopy::SIGNALS]);

/// Rules.
pub(super) const RULES: &[Rule] = &join_rules::<RULE_COUNT>(&[verbs::RULES, nics::RULES, gdrcopy::RULES]);
