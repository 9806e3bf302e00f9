//! How ranks reach other nodes: the flags of it, and each rank's NIC.

use clap::Args;
use expertrail::config::{Config, ConfigError, Flags};
use expertrail::fabric::FabricError;
use expertrail::fabric::ofi::{self, Library};
use expertrail::{Group, RailPlace};
use expertrail_cluster::topo;

use crate::args::bytes;
use crate::node::{Source, collecting};

/// Flags of the network between nodes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FabricArgs {
    /// Reach other nodes through a network: auto, tcp, shm, any provider of libfabric, or sim (simulated, threads of one
    /// process) [default: `EXPERTRAIL_FABRIC`; else declared nodes share memory].
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) fabric: Option<String>,
    /// The NIC (domain); a list, as `mlx5_0,mlx5_1`, is taken by local rank [default: `EXPERTRAIL_FABRIC_DOMAIN`; else the
    /// GPU's nearest, else in turn].
    #[arg(long, value_name = "NAME[,NAME]")]
    pub(crate) domain: Option<String>,
    /// Bytes of a chunk between nodes [default: `EXPERTRAIL_CHUNK`; else 128KiB].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) chunk: Option<u64>,
    /// Chunks in flight between two ranks [default: `EXPERTRAIL_WINDOW`; else 8].
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<usize>,
}

impl FabricArgs {
    fn flags(&self) -> Flags {
        Flags {
            fabric: self.fabric.clone(),
            domain: self.domain.clone(),
            chunk_bytes: self.chunk,
            window: self.window,
            deadline: None,
        }
    }

    /// The settings that hold, with those of the environment.
    pub(crate) fn config(&self, deadline: Option<std::time::Duration>) -> Result<Config, ConfigError> {
        Config::from_env(&Flags { deadline, ..self.flags() })
    }
}

/// The exit code of a transport that cannot be opened: 2 for a wrong argument, else 4.
pub(crate) fn exit_code(error: &FabricError) -> u8 {
    if matches!(error, FabricError::Argument { .. }) { 2 } else { 4 }
}

/// Where this rank is, for the choice of its NIC.
pub(crate) fn place(group: &Group, library: Option<&Library>, config: &Config) -> RailPlace {
    let hosts = group.hosts();
    RailPlace {
        rank: group.rank(),
        local_rank: group.local_rank(),
        one_host: hosts.iter().all(|host| *host == hosts[0]),
        peers: group.size(),
        near: library.and_then(|library| near(library, config, group.local_rank())),
    }
}

/// PCI address of the NIC that is nearest to the GPU of `local_rank`. Facts are read only where there is a choice.
fn near(library: &Library, config: &Config, local_rank: usize) -> Option<String> {
    if !config.domains.value.is_empty() {
        return None;
    }
    let offers = ofi::list(library).ok()?;
    let mut nics: Vec<&str> = offers
        .iter()
        .filter(|offer| offer.lacks.is_none())
        .filter_map(|offer| offer.pci.as_deref())
        .collect();
    nics.sort_unstable();
    nics.dedup();
    if nics.len() < 2 {
        return None;
    }
    let topology = topo::map(&Source::default().read(&collecting()).ok()?);
    let gpu = topology.gpus.iter().find(|gpu| gpu.rank == Some(local_rank))?;
    topology.device(&gpu.rails.first()?.device)?.pci.clone()
}

/// Why the ranks of `group`, `per_node` on each declared node, cannot have rails; nothing when they can. Rank (n, g) must
/// be the g-th of node n.
pub(crate) fn uneven(group: &Group, per_node: usize) -> Option<String> {
    if group.nodes() < 2 {
        // Nodes that the arguments declare, of ranks that the launcher has on one.
        return None;
    }
    let nodes = group.node_of();
    let counts: Vec<usize> =
        (0..group.nodes()).map(|node| nodes.iter().filter(|of| **of == node).count()).collect();
    if let Some(node) = counts.iter().position(|count| *count != counts[0]) {
        return Some(format!(
            "unequal nodes: node 0 has {} ranks, node {node} has {}; a rail joins the ranks of one place on every node, so \
             start as many ranks on each",
            counts[0], counts[node]
        ));
    }
    if counts[0] != per_node {
        return Some(format!(
            "{per_node} ranks per node were declared, but the launcher has {} on each; leave --nodes and --ranks-per-node out",
            counts[0]
        ));
    }
    let stray = nodes.iter().enumerate().find(|(rank, node)| **node != rank / per_node);
    stray.map(|(rank, node)| {
        format!(
            "rank {rank} is on node {node}: the ranks of a node must follow each other; start them by blocks (srun \
             --distribution=block, mpirun --map-by slot)"
        )
    })
}
