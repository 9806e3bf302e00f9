//! Two runs on the same nodes, of which one thing differs: is it the cluster, or the software?
//!
//! A validated image that passes where another fails clears the cluster; a benchmark that fails as the training does convicts it. Both only
//! where the nodes are the same, the other settings are the same, and the passing side used the path on which the other failed.

mod decide;
mod differ;

use serde::{Deserialize, Serialize};

use crate::bundle::outcome::Outcome;
use crate::run::{Run, Target};
use crate::spec::{Benchmark, Engine, Spec};

pub use decide::{decide, text};
pub use differ::{Difference, PLACE, VariableError, check, differences};

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.ab/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.ab.1.schema.json");

/// Where the fault is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Nodes, network, driver, their set-up.
    Cluster,
    /// What runs on them: image, library, program, settings.
    Software,
    /// These two runs do not tell.
    #[default]
    NotDecided,
}

impl Layer {
    /// As it is shown to people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Cluster => "cluster layer",
            Self::Software => "software layer",
            Self::NotDecided => "not decided",
        }
    }
}

/// One of the two runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// `A` or `B`.
    pub name: String,
    /// The description's file.
    pub file: String,
    /// Its bundle.
    pub bundle: String,
    /// Whether it sends between nodes.
    pub between_nodes: bool,
    /// What came of it, without its files and events.
    pub outcome: Outcome,
}

impl Side {
    /// A side, with what of the outcome counts here.
    pub fn new(name: &str, file: &str, bundle: &str, run: &Run, outcome: &Outcome) -> Self {
        Self {
            name: name.to_owned(),
            file: file.to_owned(),
            bundle: bundle.to_owned(),
            between_nodes: between_nodes(run),
            outcome: Outcome { files: Vec::new(), events: Vec::new(), ..outcome.clone() },
        }
    }
}

/// The comparison (`expertrail.ab/1`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of Expertrail.
    pub tool: String,
    /// What was declared to differ.
    pub variables: Vec<String>,
    /// Everything that differs between the two resolved runs; all of it follows from the variables.
    pub differences: Vec<Difference>,
    /// Both sides, A first.
    pub sides: Vec<Side>,
    /// The answer.
    pub layer: Layer,
    /// Why, one line each.
    pub evidence: Vec<String>,
    /// What to do next.
    pub next: Vec<String>,
}

/// Whether a run sends between nodes: a benchmark inside each node says nothing of the network.
pub fn between_nodes(run: &Run) -> bool {
    if run.nodes < 2 {
        return false;
    }
    match run.engine {
        Engine::Command => true,
        Engine::Expertrail | Engine::Deepep => run.benchmarks.iter().any(|one| *one != Benchmark::Intranode),
    }
}

/// Puts a description on the nodes that the other side ran on. False where the system has no way to say so: the nodes are then compared
/// afterwards.
pub fn pin(spec: &mut Spec, target: Target, nodes: &[String]) -> bool {
    if nodes.is_empty() {
        return false;
    }
    match target {
        Target::Slurm => {
            spec.slurm.nodelist = Some(nodes.join(","));
            true
        }
        Target::K8sJob | Target::Mpijob => {
            spec.kubernetes.hostnames = nodes.to_vec();
            true
        }
        // The same list of hosts is in both descriptions.
        Target::Torchrun | Target::Mpirun | Target::Ssh => true,
    }
}
