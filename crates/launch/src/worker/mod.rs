//! What runs inside the job: preflight of the node, ranks, files in the log.
//!
//! `expertrail worker node` runs once a node (a pod, `mpirun -N 1`, ssh): [`node`]. `expertrail worker preflight` is its first part alone.
//! `expertrail worker rank` runs once a rank, under srun or mpirun, and becomes the rank's program: [`rank`].

mod bond;
pub mod exits;
pub mod frame;
pub mod identity;
pub mod launched;
pub mod node;
pub mod pins;
pub mod preflight;
pub mod rank;
pub mod redact;
pub mod store;
pub mod variables;
pub mod words;

use thiserror::Error;

pub use crate::spec::Contract;

/// The hidden subcommand of the binary, with [`EXEC`] after it, that binds a rank to its worker and becomes the rank's program.
pub const SUBCOMMAND: &str = "worker";

/// See [`SUBCOMMAND`].
pub const EXEC: &str = "exec";

/// How large the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Nodes.
    pub nodes: usize,
    /// Ranks on each, whoever starts them.
    pub ranks_per_node: usize,
    /// What `RANK` and `WORLD_SIZE` count.
    pub contract: Contract,
}

impl Shape {
    /// A checked shape.
    ///
    /// # Errors
    /// When a number is 0 or the product is more than a group can have.
    pub fn new(nodes: usize, ranks_per_node: usize, contract: Contract) -> Result<Self, WorkerError> {
        let most = expertrail_group::identity::MAX_WORLD;
        match nodes.checked_mul(ranks_per_node) {
            Some(1..) if nodes * ranks_per_node <= most => Ok(Self { nodes, ranks_per_node, contract }),
            _ => Err(WorkerError::Usage(format!(
                "{nodes} nodes of {ranks_per_node} ranks: both must be at least 1, and at most {most} ranks in all"
            ))),
        }
    }

    /// Ranks in all.
    pub fn ranks(self) -> usize {
        self.nodes * self.ranks_per_node
    }

    /// Processes that a worker starts on its node.
    pub fn processes(self) -> usize {
        match self.contract {
            Contract::Ranks => self.ranks_per_node,
            Contract::Nodes => 1,
        }
    }

    /// Numbers (`RANK`) of the processes of node `node`.
    pub fn numbers(self, node: usize) -> std::ops::Range<usize> {
        let first = node * self.processes();
        first..first + self.processes()
    }

    /// `WORLD_SIZE`.
    pub fn world(self) -> usize {
        self.nodes * self.processes()
    }
}

/// Why a worker ends before its ranks do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WorkerError {
    /// Arguments or variables are wrong or contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The node is not fit for the run.
    #[error("{0}")]
    Refused(String),
    /// It cannot be told what to do.
    #[error("{0}")]
    Inconclusive(String),
    /// The system does not let the worker do its work.
    #[error("{0}")]
    Access(String),
}

impl WorkerError {
    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Inconclusive(_) => 3,
            Self::Access(_) => 4,
        }
    }
}

/// An environment: name to value. Empty values count as not set, as manifests set them freely.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of this process. Names and values that are not UTF-8 are not meant for a worker.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn text(vars: Lookup<'_>, name: &str) -> Option<String> {
    let value = vars(name)?;
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// The variable `name` as a whole number.
fn number(vars: Lookup<'_>, name: &str) -> Result<Option<usize>, WorkerError> {
    let Some(value) = text(vars, name) else { return Ok(None) };
    let digits = value.len() <= 9 && value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse() {
        Ok(number) if digits => Ok(Some(number)),
        _ => Err(WorkerError::Usage(format!(
            "{name}={} is not usable: wanted a whole number, 0 or more; correct it, or unset it",
            clip(&value)
        ))),
    }
}

/// Keeps a line readable whatever it holds.
fn clip(text: &str) -> String {
    let clean: String = text.chars().filter(|c| !c.is_control()).take(121).collect();
    match clean.char_indices().nth(120) {
        Some((at, _)) => format!("{}...", &clean[..at]),
        None => clean,
    }
}

/// Prints a line of the worker's own.
fn say(line: &str) {
    use std::io::Write;
    // A reader that has gone is no reason to stop the ranks.
    let _ = std::io::stdout().lock().write_all(format!("worker: {line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_of_eight() {
        let ranks = Shape::new(2, 8, Contract::Ranks).unwrap();
        assert_eq!((ranks.world(), ranks.numbers(1), ranks.ranks()), (16, 8..16, 16));
        let nodes = Shape::new(2, 8, Contract::Nodes).unwrap();
        assert_eq!((nodes.world(), nodes.numbers(1), nodes.ranks()), (2, 1..2, 16));
        for (nodes, ranks) in [(0, 8), (2, 0), (1024, 8), (usize::MAX, 2)] {
            assert!(Shape::new(nodes, ranks, Contract::Ranks).is_err());
        }
    }
}
