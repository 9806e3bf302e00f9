//! Processes and machines: exceptions, signals, memory, Xid, lost nodes.

mod exceptions;
mod killed;
mod lost;
mod machine;
mod plain;
pub(super) mod story;

use crate::diagnose::event::Signal;
use crate::diagnose::rule::Rule;
use story::join;

const SIGNAL_COUNT: usize = exceptions::SIGNALS.len()
    + killed::SIGNALS.len()
    + lost::SIGNALS.len()
    + machine::SIGNALS.len()
    + plain::SIGNALS.len();
const RULE_COUNT: usize = exceptions::RULES.len()
    + killed::RULES.len()
    + lost::RULES.len()
    + machine::RULES.len()
    + plain::RULES.len();

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &join::<_, SIGNAL_COUNT>(
    Signal::BLANK,
    &[exceptions::SIGNALS, killed::SIGNALS, lost::SIGNALS, machine::SIGNALS, plain::SIGNALS],
);

/// Rules.
pub(super) const RULES: &[Rule] = &join::<_, RULE_COUNT>(
    Rule::LIKELY,
    &[exceptions::RULES, killed::RULES, lost::RULES, machine::RULES, plain::RULES],
);
