//! Which rank this process is, from torchrun's, srun's, mpirun's or a PMI launcher's variables.

use expertrail_group::identity::parse_tasks_per_node;

use super::{Contract, Lookup, Shape, WorkerError, identity, number, text};

/// A rank that a launcher started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its rank.
    pub rank: usize,
    /// Its rank on its node.
    pub local_rank: usize,
    /// Index of its node, where the launcher or the placement tells.
    pub node: Option<usize>,
    /// The run.
    pub shape: Shape,
    /// Who started it.
    pub by: &'static str,
}

/// What a launcher says.
struct Said {
    by: &'static str,
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
    node: Option<usize>,
}

/// Names under which a launcher tells rank, size, local rank and local size.
const MPI: [(&str, [&str; 4]); 4] = [
    (
        "mpirun (Open MPI)",
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    ("a PMI launcher", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    ("a PMI launcher", ["PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"]),
    (
        "MVAPICH",
        [
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
];

/// Finds out which rank this process is. `ranks_per_node` is what the run wants, where it is known.
///
/// # Errors
/// When no launcher's variables are there, they contradict each other, or not every node has the same number of ranks.
pub fn find(
    contract: Contract,
    ranks_per_node: Option<usize>,
    vars: Lookup<'_>,
) -> Result<Launched, WorkerError> {
    let usage = |message: String| Err(WorkerError::Usage(message));
    // torchrun first: what else is there describes the process that started torchrun on this node.
    let said = match torchrun(vars)? {
        Some(said) => Some(said),
        None => mpi(vars)?.map_or_else(|| slurm(vars), |said| Ok(Some(said)))?,
    };
    let Some(said) = said else {
        return usage(
            "no launcher's variables are there: `worker rank` is started by srun (SLURM_PROCID in a step), mpirun \
             (OMPI_COMM_WORLD_RANK) or torchrun (TORCHELASTIC_RUN_ID), once for each rank; `worker node` starts ranks itself"
                .to_owned(),
        );
    };
    let Said { by, rank, size, local_rank, local_size, node } = said;
    if size == 0 || rank >= size {
        return usage(format!(
            "rank {rank} of {size} by {by}: ranks are numbered from 0 and must be below their number"
        ));
    }
    let local_size = match (local_size, contract, ranks_per_node) {
        (Some(local), Contract::Ranks, Some(wanted)) if local != wanted => {
            return usage(format!(
                "{by} started {local} ranks on this node, and --ranks-per-node is {wanted}: both must be the same"
            ));
        }
        (Some(local @ 2..), Contract::Nodes, _) => {
            return usage(format!("{by} started {local} processes on this node: --contract nodes wants one"));
        }
        (_, Contract::Nodes, _) => 1,
        (Some(local), ..) => local,
        (None, Contract::Ranks, Some(wanted)) => wanted,
        (None, Contract::Ranks, None) if size == 1 => 1,
        (None, Contract::Ranks, None) => {
            return usage(format!("{by} does not tell how many ranks this node has: give --ranks-per-node"));
        }
    };
    if local_size == 0 || !size.is_multiple_of(local_size) {
        return usage(format!(
            "{size} ranks by {by}, {local_size} of them on this node: every node must have the same number of ranks"
        ));
    }
    let local_rank = local_rank.unwrap_or(rank % local_size);
    if local_rank >= local_size {
        return usage(format!(
            "local rank {local_rank} of {local_size} by {by}: it must be below the ranks of the node"
        ));
    }
    let nodes = size / local_size;
    let shape = match contract {
        Contract::Ranks => Shape::new(nodes, local_size, contract)?,
        Contract::Nodes => Shape::new(nodes, ranks_per_node.unwrap_or(1), contract)?,
    };
    let node = node.or_else(|| placed(rank, local_rank, local_size, nodes));
    Ok(Launched { rank, local_rank, node, shape, by })
}

/// The node by where ranks are put: in blocks, or in turn. Neither is so where somebody mapped them by hand.
fn placed(rank: usize, local_rank: usize, local_size: usize, nodes: usize) -> Option<usize> {
    if rank % local_size == local_rank {
        Some(rank / local_size)
    } else {
        (rank / nodes == local_rank).then_some(rank % nodes)
    }
}

/// `RANK` and `WORLD_SIZE` alone are no sign of torchrun: manifests and scripts set them too, and may count nodes.
fn torchrun(vars: Lookup<'_>) -> Result<Option<Said>, WorkerError> {
    if text(vars, "TORCHELASTIC_RUN_ID").is_none() {
        return Ok(None);
    }
    let (Some(rank), Some(size)) = (number(vars, "RANK")?, number(vars, "WORLD_SIZE")?) else {
        return Ok(None);
    };
    Ok(Some(Said {
        by: "torchrun",
        rank,
        size,
        local_rank: number(vars, "LOCAL_RANK")?,
        local_size: number(vars, "LOCAL_WORLD_SIZE")?,
        node: number(vars, "GROUP_RANK")?,
    }))
}

fn mpi(vars: Lookup<'_>) -> Result<Option<Said>, WorkerError> {
    // PMIx and PMI variables are there in a step of Slurm too, which then tells more.
    let slurm = identity::in_step(vars);
    for (by, [rank, size, local_rank, local_size]) in MPI {
        if rank == "PMI_RANK" && slurm || text(vars, local_rank).is_none() {
            continue;
        }
        let (Some(rank), Some(size)) = (number(vars, rank)?, number(vars, size)?) else { continue };
        let (local_rank, local_size) = (number(vars, local_rank)?, number(vars, local_size)?);
        return Ok(Some(Said { by, rank, size, local_rank, local_size, node: None }));
    }
    Ok(None)
}

fn slurm(vars: Lookup<'_>) -> Result<Option<Said>, WorkerError> {
    if !identity::in_step(vars) {
        return Ok(None);
    }
    let Some(rank) = number(vars, "SLURM_PROCID")? else { return Ok(None) };
    let size = match number(vars, "SLURM_STEP_NUM_TASKS")? {
        Some(size) => Some(size),
        None => number(vars, "SLURM_NTASKS")?,
    };
    let Some(size) = size else {
        return Err(WorkerError::Usage(
            "SLURM_PROCID is set and SLURM_STEP_NUM_TASKS is not: start the ranks with srun".to_owned(),
        ));
    };
    let node = number(vars, "SLURM_NODEID")?;
    let tasks = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]
        .iter()
        .find_map(|name| parse_tasks_per_node(&text(vars, name)?).ok())
        // The allocation's counts describe another step as soon as the sums differ.
        .filter(|tasks| tasks.iter().sum::<usize>() == size);
    let local_size = tasks.and_then(|tasks| tasks.get(node?).copied());
    Ok(Some(Said { by: "srun", rank, size, local_rank: number(vars, "SLURM_LOCALID")?, local_size, node }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(contract: Contract, wanted: Option<usize>, pairs: &[(&str, &str)]) -> Result<Launched, String> {
        let vars =
            |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        find(contract, wanted, &vars).map_err(|error| error.to_string())
    }

    const STEP: [(&str, &str); 6] = [
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "13"),
        ("SLURM_STEP_NUM_TASKS", "16"),
        ("SLURM_LOCALID", "5"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "8(x2)"),
    ];

    #[test]
    fn srun() {
        let rank = found(Contract::Ranks, Some(8), &STEP).unwrap();
        assert_eq!((rank.rank, rank.local_rank, rank.node, rank.by), (13, 5, Some(1), "srun"));
        assert_eq!((rank.shape.nodes, rank.shape.ranks_per_node), (2, 8));
        let error = found(Contract::Ranks, Some(4), &STEP).unwrap_err();
        assert!(error.contains("8 ranks on this node, and --ranks-per-node is 4"), "{error}");
        assert!(found(Contract::Nodes, Some(8), &STEP).unwrap_err().contains("wants one"));
        let uneven = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "8"),
            ("SLURM_NTASKS", "12"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "8,4"),
        ];
        assert!(found(Contract::Ranks, None, &uneven).unwrap_err().contains("same number"));
    }

    #[test]
    fn a_process_a_node_under_srun() {
        let pairs = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ];
        let rank = found(Contract::Nodes, Some(8), &pairs).unwrap();
        assert_eq!((rank.rank, rank.shape.world(), rank.shape.ranks()), (1, 2, 16));
    }

    #[test]
    fn torchrun_within_a_step_of_slurm() {
        let mut pairs = vec![
            ("TORCHELASTIC_RUN_ID", "a-123456"),
            ("RANK", "13"),
            ("WORLD_SIZE", "16"),
            ("LOCAL_RANK", "5"),
            ("LOCAL_WORLD_SIZE", "8"),
            ("GROUP_RANK", "1"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_NODEID", "1"),
        ];
        let rank = found(Contract::Ranks, Some(8), &pairs).unwrap();
        assert_eq!((rank.rank, rank.local_rank, rank.node, rank.by), (13, 5, Some(1), "torchrun"));
        assert!(found(Contract::Nodes, Some(8), &pairs).unwrap_err().contains("wants one"));
        // Without torchrun they may be anybody's, as those of a script that counts nodes.
        pairs.retain(|(name, _)| *name != "TORCHELASTIC_RUN_ID" && !name.starts_with("SLURM"));
        assert!(found(Contract::Ranks, Some(8), &pairs).is_err());
    }

    #[test]
    fn mpirun_in_blocks_and_in_turn() {
        let ompi = |rank: &'static str, local: &'static str| {
            found(
                Contract::Ranks,
                None,
                &[
                    ("OMPI_COMM_WORLD_RANK", rank),
                    ("OMPI_COMM_WORLD_SIZE", "4"),
                    ("OMPI_COMM_WORLD_LOCAL_RANK", local),
                    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ],
            )
            .unwrap()
            .node
        };
        assert_eq!(
            [ompi("0", "0"), ompi("1", "1"), ompi("2", "0"), ompi("3", "1")],
            [Some(0), Some(0), Some(1), Some(1)]
        );
        // --map-by node: 0 and 2 on the first, 1 and 3 on the second.
        assert_eq!([ompi("1", "0"), ompi("2", "1")], [Some(1), Some(0)]);
        let hydra =
            [("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
        assert_eq!(found(Contract::Ranks, None, &hydra).unwrap().node, Some(1));
    }

    #[test]
    fn nobody_and_nonsense() {
        assert!(found(Contract::Ranks, None, &[]).unwrap_err().contains("srun"));
        let script = [("SLURM_JOB_ID", "1"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16")];
        assert!(found(Contract::Ranks, None, &script).unwrap_err().contains("srun"));
        let beyond = [
            ("OMPI_COMM_WORLD_RANK", "4"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert!(found(Contract::Ranks, None, &beyond).unwrap_err().contains("rank 4 of 4"));
    }
}
