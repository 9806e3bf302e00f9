//! Launchers and rendezvous: torchrun, mpirun, Slurm, Pyxis, `MPIJob`.

mod mpi;
mod rendezvous;
mod slurm;

use super::process::story::join;
use crate::diagnose::event::Signal;
use crate::diagnose::rule::Rule;

const SIGNAL_COUNT: usize = mpi::SIGNALS.len() + rendezvous::SIGNALS.len() + slurm::SIGNALS.len();
const RULE_COUNT: usize = mpi::RULES.len() + rendezvous::RULES.len() + slurm::RULES.len();

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] =
    &join::<_, SIGNAL_COUNT>(Signal::BLANK, &[mpi::SIGNALS, rendezvous::SIGNALS, slurm::SIGNALS]);

/// Rules.
pub(super) const RULES: &[Rule] =
    &join::<_, RULE_COUNT>(Rule::LIKELY, &[mpi::RULES, rendezvous::RULES, slurm::RULES]);
