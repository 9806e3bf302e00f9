//! RDMA userspace, limits and modules.

mod gdrcopy;
mod nics;
mod verbs;

use super::process::story::join;
use crate::diagnose::event::Signal;
use crate::diagnose::rule::Rule;

const SIGNAL_COUNT: usize = verbs::SIGNALS.len() + nics::SIGNALS.len() + gdrcopy::SIGNALS.len();
const RULE_COUNT: usize = verbs::RULES.len() + nics::RULES.len() + gdrcopy::RULES.len();

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] =
    &join::<_, SIGNAL_COUNT>(Signal::BLANK, &[verbs::SIGNALS, nics::SIGNALS, gdrcopy::SIGNALS]);

/// Rules.
pub(super) const RULES: &[Rule] =
    &join::<_, RULE_COUNT>(Rule::LIKELY, &[verbs::RULES, nics::RULES, gdrcopy::RULES]);
