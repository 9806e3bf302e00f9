//! Who this process is, from what its launcher put into the environment.
//!
//! # Which launcher wins
//! The first of these that is present decides rank and world size:
//!
//! 1. **explicit**: `EXPERTRAIL_RANK` (with `EXPERTRAIL_WORLD_SIZE`).
//! 2. **torchrun** and whatever speaks its language: `RANK` and `WORLD_SIZE`. It may run under srun or
//!    mpirun, whose variables then describe the agents, not the ranks.
//! 3. **Open MPI**: `OMPI_COMM_WORLD_RANK`. It may have been started by srun too.
//! 4. **`PMIx`**: `PMIX_RANK`, with the size from `OMPI_COMM_WORLD_SIZE` or Slurm.
//! 5. **Slurm**: `SLURM_PROCID` within a step.
//! 6. **Kubernetes** indexed Job: `JOB_COMPLETION_INDEX`.
//! 7. none of them: a world of one.
//!
//! `EXPERTRAIL_ROOT=host[:port]`, `EXPERTRAIL_PORT`, `EXPERTRAIL_JOB`, `EXPERTRAIL_LOCAL_RANK`,
//! `EXPERTRAIL_LOCAL_SIZE`, `EXPERTRAIL_NODE` and `EXPERTRAIL_HOST` complete or correct any of them.
//! A variable that is set but empty counts as not set.
//!
//! # Which port rank 0 listens on
//! Never `MASTER_PORT`: torchrun's own store has it. `EXPERTRAIL_ROOT`'s port, else `EXPERTRAIL_PORT`,
//! else `MASTER_PORT` + 1237 (above 65535 it goes on from 1024), else one of 21000 to 28999 derived from
//! the job's identity, so that two jobs on one host rarely meet and are told apart when they do.

mod endpoint;
mod error;
mod hostlist;
mod launchers;
mod slurm;
mod vars;

pub use endpoint::Endpoint;
pub use error::IdentityError;
pub use hostlist::{MAX_HOSTS, parse_hostlist};
pub use slurm::parse_tasks_per_node;

use std::fmt;

use crate::token::JobToken;
use error::Outcome;
use vars::Vars;

/// The most ranks a group can have.
pub const MAX_WORLD: usize = 4096;
/// Added to `MASTER_PORT`, which belongs to torchrun.
pub const MASTER_PORT_OFFSET: u16 = 1237;
/// First of the ports derived from a job's identity.
pub const FIRST_PORT: u16 = 21_000;
/// How many ports are derived from a job's identity. They end below Linux's ephemeral range.
pub const PORTS: u16 = 8_000;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Nobody that we know: a world of one.
    Single,
    /// `EXPERTRAIL_*`, as set by hand or by [`LocalLaunch`](crate::spawn::LocalLaunch).
    Explicit,
    /// torchrun or something that sets the same variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Another `PMIx` launcher.
    Pmix,
    /// srun.
    Slurm,
    /// An indexed Job.
    Kubernetes,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "no launcher",
            Self::Explicit => "EXPERTRAIL_* variables",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Pmix => "PMIx",
            Self::Slurm => "Slurm",
            Self::Kubernetes => "Kubernetes indexed Job",
        })
    }
}

/// Who this process is and where rank 0 is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// This process's rank.
    pub rank: usize,
    /// Ranks in all.
    pub world_size: usize,
    /// Rank within the node, where the launcher told; else it is worked out when the group joins.
    pub local_rank: Option<usize>,
    /// Ranks of this node, where the launcher told; else it is worked out when the group joins.
    pub local_size: Option<usize>,
    /// Index of this node, where the launcher told; else nodes are told apart by host name.
    pub node: Option<usize>,
    /// Name of this host; empty where the environment does not tell.
    pub host: String,
    /// What tells this job from others.
    pub job: JobToken,
    /// Where rank 0 listens.
    pub root: Endpoint,
    /// Who started this process.
    pub launcher: Launcher,
    /// The host of every rank where the launcher tells; otherwise empty. It serves messages about ranks
    /// that never came.
    pub expected_hosts: Vec<String>,
}

impl Identity {
    /// Reads the process's environment; the host name comes from the system where no variable has it.
    ///
    /// # Errors
    /// As [`from_vars`](Self::from_vars).
    pub fn from_env() -> Result<Self, IdentityError> {
        // Names and values that are not UTF-8 cannot be meant for us: they read as not set.
        let mut identity = Self::from_vars(|name| std::env::var(name).ok())?;
        if identity.host.is_empty() {
            identity.host = system_host();
        }
        Ok(identity)
    }

    /// Reads an environment given as a function from name to value.
    ///
    /// # Errors
    /// A variable that does not parse, variables that contradict each other, or one that is missing where
    /// its siblings are set. The message names variable, value and what was wanted.
    pub fn from_vars(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, IdentityError> {
        let vars = Vars::new(&lookup);
        finish(&vars, launchers::detect(&vars)?)
    }

    /// A world of one.
    pub fn single() -> Self {
        Self {
            rank: 0,
            world_size: 1,
            local_rank: Some(0),
            local_size: Some(1),
            node: Some(0),
            host: system_host(),
            job: JobToken::random(),
            root: Endpoint::loopback(0),
            launcher: Launcher::Single,
            expected_hosts: Vec::new(),
        }
    }

    /// Where a rank should run, as far as the launcher told.
    pub fn expected_host(&self, rank: usize) -> Option<String> {
        if let Some(host) = self.expected_hosts.get(rank) {
            return Some(host.clone());
        }
        let (node, size) = (self.node?, self.local_size?);
        if size == self.world_size {
            return (!self.host.is_empty()).then(|| self.host.clone());
        }
        // Ranks in equal blocks by node: only where our own place confirms it.
        let blocks = size > 0 && self.world_size.is_multiple_of(size) && self.rank / size == node;
        blocks.then(|| format!("of node {}", rank / size))
    }
}

/// What a launcher's variables say, before our own complete it.
struct Draft {
    launcher: Launcher,
    rank: usize,
    world_size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
    node: Option<usize>,
    /// What names the job; empty if the launcher gives no name.
    job: Vec<String>,
    root_host: Option<String>,
    port: Option<u16>,
    expected_hosts: Vec<String>,
    /// What to do when nothing tells where rank 0 is.
    root_hint: &'static str,
}

fn finish(vars: &Vars<'_>, mut draft: Draft) -> Outcome<Identity> {
    let launcher = draft.launcher;
    if draft.world_size == 0 || draft.world_size > MAX_WORLD {
        return Err(IdentityError::WorldSize { launcher, world_size: draft.world_size });
    }
    if draft.rank >= draft.world_size {
        return Err(IdentityError::RankRange { launcher, rank: draft.rank, world_size: draft.world_size });
    }
    if let Some(stated) = vars.count("EXPERTRAIL_WORLD_SIZE")?
        && stated != draft.world_size
    {
        return Err(IdentityError::Conflict {
            first: format!("EXPERTRAIL_WORLD_SIZE={stated}"),
            second: format!("{} ranks by {launcher}", draft.world_size),
            advice: "unset one of them, or set EXPERTRAIL_RANK to describe this process by hand",
        });
    }
    draft.local_rank = vars.number("EXPERTRAIL_LOCAL_RANK")?.or(draft.local_rank);
    draft.local_size = vars.count("EXPERTRAIL_LOCAL_SIZE")?.or(draft.local_size);
    draft.node = vars.number("EXPERTRAIL_NODE")?.or(draft.node);
    check_local(&draft)?;

    let (root_host, root_port) = match vars.text("EXPERTRAIL_ROOT") {
        Some(text) => {
            let (host, port) =
                endpoint::split(&text).ok_or_else(|| vars.bad("EXPERTRAIL_ROOT", "host or host:port"))?;
            (Some(host), port)
        }
        None => (None, None),
    };
    let own_port = vars.port("EXPERTRAIL_PORT")?;
    if let (Some(a), Some(b)) = (root_port, own_port)
        && a != b
    {
        return Err(IdentityError::Conflict {
            first: format!("port {a} in EXPERTRAIL_ROOT"),
            second: format!("EXPERTRAIL_PORT={b}"),
            advice: "give the port once",
        });
    }
    let alone = draft.world_size == 1;
    let here = alone || draft.local_size == Some(draft.world_size);
    let host = match root_host.or(draft.root_host) {
        Some(host) => host,
        // All ranks share this host: the loopback address reaches rank 0 whatever the host is called.
        None if here => endpoint::LOOPBACK.to_owned(),
        None => return Err(IdentityError::NoRoot { launcher, hint: draft.root_hint }),
    };
    let known_port = root_port.or(own_port).or(draft.port);
    let job = match vars.text("EXPERTRAIL_JOB") {
        Some(name) => JobToken::from_parts(["named", &name]),
        None if draft.job.is_empty() => {
            let port = known_port.map(|port| port.to_string()).unwrap_or_default();
            JobToken::from_parts(["at", &host, &port, &draft.world_size.to_string()])
        }
        None => JobToken::from_parts(draft.job.iter().map(String::as_str)),
    };
    let port = known_port.unwrap_or_else(|| job.port(FIRST_PORT, PORTS));
    if draft.expected_hosts.len() != draft.world_size {
        draft.expected_hosts.clear();
    }
    Ok(Identity {
        rank: draft.rank,
        world_size: draft.world_size,
        local_rank: draft.local_rank.or(alone.then_some(0)),
        local_size: draft.local_size.or(alone.then_some(1)),
        node: draft.node.or(alone.then_some(0)),
        // HOSTNAME is not asked: srun --export=ALL and mpirun -x carry the submitting host's along.
        host: vars.text("EXPERTRAIL_HOST").or_else(|| vars.text("SLURMD_NODENAME")).unwrap_or_default(),
        job,
        root: Endpoint { host, port },
        launcher,
        expected_hosts: draft.expected_hosts,
    })
}

fn check_local(draft: &Draft) -> Outcome<()> {
    let wrong = |detail: String| Err(IdentityError::Local { launcher: draft.launcher, detail });
    match (draft.local_rank, draft.local_size) {
        (_, Some(size)) if size > draft.world_size => {
            wrong(format!("local size {size} with a world size of {}", draft.world_size))
        }
        (Some(rank), Some(size)) if rank >= size => {
            wrong(format!("local rank {rank} with a local size of {size}"))
        }
        (Some(rank), None) if rank >= draft.world_size => {
            wrong(format!("local rank {rank} with a world size of {}", draft.world_size))
        }
        _ => match draft.node {
            Some(node) if node >= draft.world_size => {
                wrong(format!("node {node} with a world size of {}", draft.world_size))
            }
            _ => Ok(()),
        },
    }
}

/// The system's name of this host.
pub(crate) fn system_host() -> String {
    // Not gethostname(): this file is the same without a further system interface.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
}
