//! Launchers and rendezvous: torchrun, mpirun, Slurm, Pyxis, `MPIJob`.

mod mpi;
mod rendezvous;
mod slurm;

use super::process::story::{join_rules, join_signals};
use crate::diagnose::event::Signal;
use crate::diagnose::rule::Rule;

const SIGNAL_COUNT: usize = mpi::SIGNALS.len() + rendezvous::SIGNALS.len() + slurm::SIGNALS.len();
const RULE_COUNT: usize = mpi::RULES.len() + rendezvous::RULES.len() + slurm::RULES.len();

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] =
    &join_signals::<SIGNAL_COUNT>(&[mpi::SIGNALS, rendezvous::SIGNALS, slurm::SIGNALS]);

/// Rules.
pub(super) const RULES: &[Rule] = &join_rules::<RULE_COUNT>(&[mpi::RULES, rendezvous::RULES, slurm::RULES]);
