//! A run with every value decided and the reason of each: what all launch files are made of.

mod error;
pub(crate) mod limits;
mod place;
mod settings;
mod sound;
mod steps;
mod systems;

use expertrail_cluster::facts::Facts;
use expertrail_cluster::profile::{self, Profile};
use serde::{Deserialize, Serialize};

use crate::platform::{self, Fabric, Platform};
use crate::spec::{Benchmark, Contract, Engine, Preflight, Spec};

pub use error::RunError;
pub use place::{duration, quantity};
pub use sound::PRESETS;
pub use systems::{Hosts, Kubernetes, Slurm, Toleration};

/// The name of the document's version.
pub const SCHEMA: &str = "expertrail.run/1";

/// The port at which ranks meet, as in the Kubernetes guide.
pub const PORT: u16 = 29_400;

/// Seconds in which all nodes must be at the rendezvous, as in the Kubernetes guide.
pub const RENDEZVOUS_S: u64 = 900;

/// A system that launch files are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// An indexed Job.
    K8sJob,
    /// Kubeflow's `MPIJob`.
    Mpijob,
    /// A batch script.
    Slurm,
    /// A `torchrun` line for each node.
    Torchrun,
    /// One `mpirun` line.
    Mpirun,
    /// A worker on each host over `ssh`.
    Ssh,
}

impl Target {
    /// Whether the rendered script or line starts our worker on every node itself, rather than a system's pods.
    pub fn starts_workers_here(self) -> bool {
        matches!(self, Self::Slurm | Self::Torchrun | Self::Mpirun | Self::Ssh)
    }

    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::K8sJob, Self::Mpijob, Self::Slurm, Self::Torchrun, Self::Mpirun, Self::Ssh];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::K8sJob => "k8s-job",
            Self::Mpijob => "mpijob",
            Self::Slurm => "slurm",
            Self::Torchrun => "torchrun",
            Self::Mpirun => "mpirun",
            Self::Ssh => "ssh",
        }
    }
}

/// A variable of the ranks, and why it has that value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
    /// Where the value comes from.
    pub why: String,
}

/// How ranks get their NIC. Always in the rank's own process: a list that all ranks share gives all of them the first device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pins {
    /// Not pinned (one node, no InfiniBand, or NVSHMEM pairs them itself).
    None,
    /// The worker finds each GPU's rail on the node.
    Auto,
    /// These, in the order of local ranks, as `mlx5_1:1`.
    List(Vec<String>),
}

/// One start of the ranks. A run has one or more, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// `intranode`, `deepep`, `command`.
    pub name: String,
    /// Nodes that take part: the first so many.
    pub nodes: u32,
    /// What a started process stands for.
    pub contract: Contract,
    /// Program and arguments. `{files}` is the directory of the rendered files and `{out}` that of outputs, both as the job sees
    /// them; `{node}`, `{rank}`, `{local_rank}` are filled in by the worker.
    pub argv: Vec<String>,
    /// Files left by the ranks, with the same words.
    pub collect: Vec<String>,
    /// Whether ranks are pinned to NICs.
    pub pinned: bool,
}

/// A run with everything decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: String,
    /// Name in the description.
    pub name: String,
    /// Name of this run's objects: the name and six digits of a hash of everything decided.
    pub id: String,
    /// The system.
    pub target: Target,
    /// Hardware profile.
    pub profile: Profile,
    /// What launch files need of it.
    pub platform: Platform,
    /// How nodes reach each other.
    pub fabric: Fabric,
    /// Nodes.
    pub nodes: u32,
    /// GPUs of a node.
    pub gpus_per_node: u32,
    /// What is run.
    pub engine: Engine,
    /// What is measured; empty for engine `command`.
    pub benchmarks: Vec<Benchmark>,
    /// Container image; none where the target needs none.
    pub image: Option<String>,
    /// What is started.
    pub steps: Vec<Step>,
    /// Variables of all ranks.
    pub env: Vec<Setting>,
    /// NICs of the ranks.
    pub pins: Pins,
    /// `N` where GPU `g` has `mlx5_(g+N)`; none where names are no such row.
    pub hca_offset: Option<u32>,
    /// RDMA devices in the order of GPUs, without ports; empty where they are found on the node.
    pub hcas: Vec<String>,
    /// Host folder that must be mounted for the topology file.
    pub topo_mount: Option<String>,
    /// Port of the first step's rendezvous; each further step has the next one ([`Run::port_of`]).
    pub port: u16,
    /// The longest that the run may take, in seconds.
    pub timeout_s: u64,
    /// What the check of each node does.
    pub preflight: Preflight,
    /// Whether the run needs this project's file for `DeepEP`.
    pub needs_deepep_file: bool,
    /// Kubernetes.
    pub kubernetes: Kubernetes,
    /// Slurm.
    pub slurm: Slurm,
    /// Hosts.
    pub hosts: Hosts,
    /// What the person should know: decisions that may surprise.
    pub notes: Vec<String>,
}

impl Run {
    /// Ranks of the run.
    pub fn ranks(&self) -> u32 {
        self.nodes * self.gpus_per_node
    }

    /// Port of the rendezvous of `step`. Each has its own: a node that a step leaves out begins the next at once, and would meet the
    /// ranks of the one before.
    pub fn port_of(&self, step: &Step) -> u16 {
        let index = self.steps.iter().position(|own| own.name == step.name).unwrap_or_default();
        self.port.saturating_add(u16::try_from(index).unwrap_or(u16::MAX))
    }

    /// All ports, for people: `29400`, or `29400 to 29402`.
    pub fn ports(&self) -> String {
        match self.steps.last().map(|step| self.port_of(step)) {
            Some(last) if last != self.port => format!("{} to {last}", self.port),
            _ => self.port.to_string(),
        }
    }

    /// The value of a variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|setting| setting.name == name).map(|setting| setting.value.as_str())
    }

    /// This run as `run.json`.
    ///
    /// # Errors
    /// When the writer refuses.
    pub fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Decides everything. `run_id` replaces the derived id.
    ///
    /// # Errors
    /// When the description contradicts itself, the machine or the engine; the message says what to change.
    pub fn resolve(
        spec: &Spec,
        target: Target,
        facts: Option<&Facts>,
        run_id: Option<&str>,
    ) -> Result<Self, RunError> {
        place::name(&spec.name, "name")?;
        let profile = place::profile(spec, facts)?;
        let platform = platform::of(&profile.id);
        let fabric = spec.network.fabric.unwrap_or(platform.kind);
        let nodes = place::count(spec.nodes.unwrap_or(2), "nodes", place::NODES)?;
        let gpus = spec.gpus_per_node.or_else(|| place::gpus(facts)).unwrap_or(profile.gpus);
        let gpus_per_node = place::count(gpus, "gpus_per_node", place::GPUS)?;
        let mut notes = Vec::new();
        let hcas = place::hcas(spec, &profile, facts, gpus_per_node, &mut notes)?;
        let image = systems::image(spec, &platform, target)?;
        let benchmarks = steps::benchmarks(spec, nodes)?;
        let mut run = Self {
            schema: SCHEMA.to_owned(),
            name: spec.name.clone(),
            id: String::new(),
            target,
            fabric,
            nodes,
            gpus_per_node,
            engine: spec.engine,
            benchmarks,
            image,
            steps: Vec::new(),
            env: Vec::new(),
            pins: Pins::None,
            hca_offset: place::offset(&hcas),
            hcas,
            topo_mount: None,
            port: spec.network.port.unwrap_or(PORT),
            timeout_s: duration(spec.timeout.as_deref().unwrap_or("20m"))?,
            preflight: spec.preflight,
            needs_deepep_file: false,
            kubernetes: systems::kubernetes(spec, &platform, &profile, target)?,
            slurm: systems::slurm(spec),
            hosts: systems::hosts(spec, target, nodes)?,
            profile,
            platform,
            notes,
        };
        run.pins = place::pins(&run);
        steps::fill(&mut run, spec)?;
        place::port(&run)?;
        place::reachable(&run)?;
        limits::check(&mut run, spec)?;
        settings::fill(&mut run, spec, facts);
        systems::nics(&mut run, spec);
        systems::memory(&mut run, spec, facts)?;
        run.id = match run_id {
            Some(id) => {
                place::name(id, "--run-id")?;
                id.to_owned()
            }
            None => place::id(&run)?,
        };
        run.sound()?;
        Ok(run)
    }
}

/// The target of that name.
///
/// # Errors
/// When there is none; the message lists them.
pub fn target(name: &str) -> Result<Target, RunError> {
    Target::ALL.into_iter().find(|target| target.name() == name).ok_or_else(|| RunError::Unknown {
        what: "target",
        given: name.to_owned(),
        nearest: crate::spec::nearest(name, &Target::ALL.map(Target::name)),
        known: Target::ALL.map(|target| target.name().to_owned()).to_vec(),
        otherwise: String::new(),
    })
}

/// Ids of the profiles.
pub(crate) fn profile_ids() -> Vec<String> {
    profile::all().into_iter().map(|profile| profile.id).collect()
}
