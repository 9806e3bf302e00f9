//! Which launcher's variables are there, and what they say.

use super::error::{IdentityError, Outcome};
use super::vars::Vars;
use super::{Draft, Launcher, MASTER_PORT_OFFSET, endpoint, slurm};

const SET_ROOT: &str = "set EXPERTRAIL_ROOT=host or host:port, the host that runs rank 0, on every rank";

/// The first launcher that is present, in the order of the module's documentation.
pub(super) fn detect(vars: &Vars<'_>) -> Outcome<Draft> {
    let has = |name| vars.text(name).is_some();
    if has("EXPERTRAIL_RANK") {
        return explicit(vars);
    }
    if has("RANK") && has("WORLD_SIZE") {
        return torchrun(vars);
    }
    if has("OMPI_COMM_WORLD_RANK") {
        return open_mpi(vars);
    }
    // Slurm's own PMIx plug-in sets PMIX_RANK as well; then Slurm tells more.
    if has("PMIX_RANK") && vars.text("PMIX_RANK") != vars.text("SLURM_PROCID") {
        return pmix(vars);
    }
    if has("SLURM_PROCID") {
        return slurm::step(vars);
    }
    if has("JOB_COMPLETION_INDEX") {
        return kubernetes(vars);
    }
    partial(vars)?;
    Ok(Draft { rank: 0, world_size: 1, ..Draft::of(Launcher::Single) })
}

impl Draft {
    fn of(launcher: Launcher) -> Self {
        Self {
            launcher,
            rank: 0,
            world_size: 0,
            local_rank: None,
            local_size: None,
            node: None,
            job: Vec::new(),
            root_host: None,
            port: None,
            expected_hosts: Vec::new(),
            root_hint: SET_ROOT,
        }
    }
}

/// Half of a launcher's variables: better an error than a world of one beside a real job.
fn partial(vars: &Vars<'_>) -> Outcome<()> {
    const PAIRS: [(&str, &str, &str); 6] = [
        ("EXPERTRAIL_WORLD_SIZE", "EXPERTRAIL_RANK", "set both or neither"),
        (
            "EXPERTRAIL_LOCAL_RANK",
            "EXPERTRAIL_RANK",
            "set EXPERTRAIL_RANK and EXPERTRAIL_WORLD_SIZE, or unset it",
        ),
        ("RANK", "WORLD_SIZE", "torchrun sets both; set both or neither"),
        ("WORLD_SIZE", "RANK", "torchrun sets both; set both or neither"),
        ("LOCAL_RANK", "RANK", "torchrun sets RANK and WORLD_SIZE too; set all or none"),
        (
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_RANK",
            "start the ranks with mpirun, or set EXPERTRAIL_RANK and EXPERTRAIL_WORLD_SIZE",
        ),
    ];
    for (name, missing, advice) in PAIRS {
        if vars.text(name).is_some() {
            return Err(IdentityError::Partial { present: vars.show(name), missing, advice });
        }
    }
    Ok(())
}

fn explicit(vars: &Vars<'_>) -> Outcome<Draft> {
    let Some(world_size) = vars.count("EXPERTRAIL_WORLD_SIZE")? else {
        return Err(IdentityError::Partial {
            present: vars.show("EXPERTRAIL_RANK"),
            missing: "EXPERTRAIL_WORLD_SIZE",
            advice: "set both or neither",
        });
    };
    // Local rank, local size, node, root, port and job are read for every launcher.
    let rank = vars.number("EXPERTRAIL_RANK")?.unwrap_or(0);
    Ok(Draft { rank, world_size, ..Draft::of(Launcher::Explicit) })
}

fn torchrun(vars: &Vars<'_>) -> Outcome<Draft> {
    let host = vars.text("MASTER_ADDR");
    if let Some(host) = &host
        && !endpoint::is_host(host)
    {
        return Err(vars.bad("MASTER_ADDR", "a host name or address"));
    }
    let master_port = vars.port("MASTER_PORT")?;
    let run = vars.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let port_text = master_port.map(|port| port.to_string()).unwrap_or_default();
    Ok(Draft {
        rank: vars.number("RANK")?.unwrap_or(0),
        world_size: vars.count("WORLD_SIZE")?.unwrap_or(0),
        local_rank: vars.number("LOCAL_RANK")?,
        local_size: vars.count("LOCAL_WORLD_SIZE")?,
        node: vars.number("GROUP_RANK")?,
        // The run id is "none" by default, so the address is part of the name.
        job: host
            .as_ref()
            .map(|host| vec!["torchrun".to_owned(), run, host.clone(), port_text])
            .unwrap_or_default(),
        root_host: host,
        port: master_port.map(shifted_port),
        root_hint: "MASTER_ADDR is not set: start the ranks with torchrun, or set EXPERTRAIL_ROOT=host or \
                    host:port on every rank",
        ..Draft::of(Launcher::Torchrun)
    })
}

/// A port beside torchrun's, above 1023.
fn shifted_port(master: u16) -> u16 {
    match master.checked_add(MASTER_PORT_OFFSET) {
        Some(port) => port,
        None => 1024 + (u32::from(master) + u32::from(MASTER_PORT_OFFSET) - 65_536) as u16,
    }
}

fn open_mpi(vars: &Vars<'_>) -> Outcome<Draft> {
    let Some(world_size) = vars.count("OMPI_COMM_WORLD_SIZE")? else {
        return Err(IdentityError::Partial {
            present: vars.show("OMPI_COMM_WORLD_RANK"),
            missing: "OMPI_COMM_WORLD_SIZE",
            advice: "start the ranks with mpirun, or set EXPERTRAIL_RANK and EXPERTRAIL_WORLD_SIZE",
        });
    };
    let job =
        ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid", "OMPI_MCA_orte_hnp_uri"]
            .iter()
            .find_map(|name| vars.text(name));
    Ok(Draft {
        rank: vars.number("OMPI_COMM_WORLD_RANK")?.unwrap_or(0),
        world_size,
        local_rank: vars.number("OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_size: vars.count("OMPI_COMM_WORLD_LOCAL_SIZE")?,
        // OMPI_COMM_WORLD_NODE_RANK is the rank on the node, not the node's index: nodes are told apart
        // by host name when the group joins.
        node: None,
        job: job.map(|job| vec!["ompi".to_owned(), job]).unwrap_or_default(),
        // Its URIs name the host of mpirun, which need not run a rank.
        root_hint: "add `-x EXPERTRAIL_ROOT=HOST` to mpirun, with the host that runs rank 0",
        ..Draft::of(Launcher::OpenMpi)
    })
}

fn pmix(vars: &Vars<'_>) -> Outcome<Draft> {
    if vars.text("SLURM_PROCID").is_some() && vars.text("SLURM_STEP_ID").is_some() {
        return Err(IdentityError::Conflict {
            first: vars.show("PMIX_RANK"),
            second: vars.show("SLURM_PROCID"),
            advice: "set EXPERTRAIL_RANK and EXPERTRAIL_WORLD_SIZE to say which is meant",
        });
    }
    let names = [
        "OMPI_COMM_WORLD_SIZE",
        "EXPERTRAIL_WORLD_SIZE",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_NTASKS",
        "SLURM_NPROCS",
    ];
    let Some(world_size) = vars.first_count(&names)? else {
        return Err(IdentityError::Partial {
            present: vars.show("PMIX_RANK"),
            missing: "EXPERTRAIL_WORLD_SIZE",
            advice: "PMIx does not put the number of ranks into the environment: set EXPERTRAIL_WORLD_SIZE on \
                     every rank",
        });
    };
    Ok(Draft {
        rank: vars.number("PMIX_RANK")?.unwrap_or(0),
        world_size,
        job: vars.text("PMIX_NAMESPACE").map(|job| vec!["pmix".to_owned(), job]).unwrap_or_default(),
        ..Draft::of(Launcher::Pmix)
    })
}

fn kubernetes(vars: &Vars<'_>) -> Outcome<Draft> {
    let index = vars.number("JOB_COMPLETION_INDEX")?.unwrap_or(0);
    let stated_size = vars.count("EXPERTRAIL_LOCAL_SIZE")?;
    let local_size = stated_size.unwrap_or(1);
    let local_rank = match vars.number("EXPERTRAIL_LOCAL_RANK")? {
        Some(rank) => rank,
        None if local_size == 1 => 0,
        None => {
            return Err(IdentityError::Partial {
                present: vars.show("EXPERTRAIL_LOCAL_SIZE"),
                missing: "EXPERTRAIL_LOCAL_RANK",
                advice: "with several ranks in a pod each needs its own EXPERTRAIL_LOCAL_RANK",
            });
        }
    };
    let nodes = vars.count("NUM_NODES")?;
    let by_nodes = nodes.map(|nodes| nodes.saturating_mul(local_size));
    let Some(world_size) = vars.count("EXPERTRAIL_WORLD_SIZE")?.or(by_nodes) else {
        return Err(IdentityError::Partial {
            present: vars.show("JOB_COMPLETION_INDEX"),
            missing: "EXPERTRAIL_WORLD_SIZE (or NUM_NODES, the Job's completions)",
            advice: "set it in the pod template",
        });
    };
    if let Some(by_nodes) = by_nodes
        && by_nodes != world_size
    {
        return Err(IdentityError::Conflict {
            first: vars.show("EXPERTRAIL_WORLD_SIZE"),
            second: format!("{} with {local_size} ranks per pod", vars.show("NUM_NODES")),
            advice: "unset one of them, or set EXPERTRAIL_LOCAL_SIZE to the ranks per pod",
        });
    }
    let host = match vars.text("MASTER_ADDR") {
        Some(host) if !endpoint::is_host(&host) => {
            return Err(vars.bad("MASTER_ADDR", "a host name or address"));
        }
        other => other,
    };
    let root = vars.text("EXPERTRAIL_ROOT").or_else(|| host.clone()).unwrap_or_default();
    Ok(Draft {
        rank: index.saturating_mul(local_size).saturating_add(local_rank),
        world_size,
        local_rank: Some(local_rank),
        local_size: Some(local_size),
        node: Some(index),
        root_host: host,
        port: vars.port("MASTER_PORT")?.map(shifted_port),
        expected_hosts: pod_hosts(&root, world_size, local_size),
        root_hint: "set EXPERTRAIL_ROOT to the first pod's name in the headless service, as in \
                    JOB-0.SERVICE",
        ..Draft::of(Launcher::Kubernetes)
    })
}

/// An indexed Job names its pods JOB-0, JOB-1, ...: from the first pod's name follow the others'.
fn pod_hosts(root: &str, world_size: usize, local_size: usize) -> Vec<String> {
    let label = root.split(['.', ':']).next().unwrap_or_default();
    match label.strip_suffix("-0") {
        Some(job) if !job.is_empty() && world_size <= super::MAX_WORLD => {
            (0..world_size).map(|rank| format!("{job}-{}", rank / local_size)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_beside_torchruns_is_always_a_usable_one() {
        assert_eq!(shifted_port(29_500), 30_737);
        assert_eq!(shifted_port(64_298), 65_535);
        assert_eq!(shifted_port(64_299), 1024);
        assert_eq!(shifted_port(65_535), 2260);
        assert!((1..=u16::MAX).all(|port| shifted_port(port) >= 1024 && shifted_port(port) != port));
    }
}
