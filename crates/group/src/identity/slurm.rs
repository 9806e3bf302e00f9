//! What srun says.

use super::error::{IdentityError, Outcome};
use super::hostlist::{MAX_HOSTS, parse_hostlist};
use super::vars::{Vars, parse_number};
use super::{Draft, Launcher};

/// Expands `8(x2),4` into 8, 8, 4.
///
/// # Errors
/// What is wrong with the expression.
pub fn parse_tasks_per_node(text: &str) -> Result<Vec<usize>, String> {
    let mut tasks = Vec::new();
    for entry in text.split(',') {
        let (count, times) = match entry.split_once("(x") {
            Some((count, rest)) => (count, rest.strip_suffix(')').ok_or("'(x' without ')'")?),
            None => (entry, "1"),
        };
        let number = |text: &str| {
            let clipped = || text.chars().take(40).collect::<String>();
            parse_number(text).filter(|n| *n > 0).ok_or_else(|| format!("{:?} is no count", clipped()))
        };
        let (count, times) = (number(count)?, number(times)?);
        if tasks.len().saturating_add(times) > MAX_HOSTS {
            return Err(format!("more than {MAX_HOSTS} nodes"));
        }
        tasks.resize(tasks.len() + times, count);
    }
    Ok(tasks)
}

/// Ranks of a Slurm step.
pub(super) fn step(vars: &Vars<'_>) -> Outcome<Draft> {
    let rank = vars.number("SLURM_PROCID")?.unwrap_or(0);
    let in_step = vars.first(&["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"]).is_some();
    let size = vars.first_count(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"])?;
    // A batch script has SLURM_PROCID=0 and the job's task count, but it is one process: waiting for the
    // others would be waiting for nobody.
    let world_size = match (in_step, size) {
        (true, Some(size)) => size,
        (false, None | Some(1)) => 1,
        (true, None) => {
            return Err(IdentityError::Partial {
                present: vars.show("SLURM_PROCID"),
                missing: "SLURM_STEP_NUM_TASKS (or SLURM_NTASKS)",
                advice: "start the ranks with srun, or set EXPERTRAIL_RANK and EXPERTRAIL_WORLD_SIZE",
            });
        }
        (false, Some(_)) => {
            return Err(IdentityError::Partial {
                present: vars.show("SLURM_PROCID"),
                missing: "SLURM_STEP_ID",
                advice: "this looks like the batch script itself: start the ranks with srun, or set \
                         EXPERTRAIL_RANK=0 and EXPERTRAIL_WORLD_SIZE=1 for a single process",
            });
        }
    };
    let node = vars.number("SLURM_NODEID")?;
    let hosts = match vars.first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]) {
        Some(name) => parse_hostlist(&vars.text(name).unwrap_or_default())
            .map_err(|_| vars.bad(name, "a Slurm hostlist such as n[1-3,07]"))?,
        None => Vec::new(),
    };
    let tasks = match vars.first(&["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]) {
        Some(name) => parse_tasks_per_node(&vars.text(name).unwrap_or_default())
            .map_err(|_| vars.bad(name, "tasks per node such as 8(x2),4"))?,
        None => Vec::new(),
    };
    // The allocation's task counts describe another step as soon as the sums differ.
    let tasks = if tasks.iter().sum::<usize>() == world_size { tasks } else { Vec::new() };
    let local_size = node.and_then(|node| tasks.get(node).copied());
    let expected_hosts = rank_hosts(vars, &hosts, &tasks, (rank, node));
    let job = ["SLURM_JOB_ID", "SLURM_JOBID"].iter().find_map(|name| vars.text(name));
    let step = ["SLURM_STEP_ID", "SLURM_STEPID"].iter().find_map(|name| vars.text(name));
    let root_host = match hosts.as_slice() {
        // One host: its own name need not resolve.
        [_] => Some(super::endpoint::LOOPBACK.to_owned()),
        [first, ..] => Some(first.clone()),
        [] => None,
    };
    Ok(Draft {
        launcher: if in_step { Launcher::Slurm } else { Launcher::Single },
        rank,
        world_size,
        local_rank: vars.number("SLURM_LOCALID")?,
        local_size,
        node,
        job: job
            .map(|job| vec!["slurm".to_owned(), job, step.unwrap_or_else(|| "batch".to_owned())])
            .unwrap_or_default(),
        root_host,
        port: None,
        expected_hosts,
        root_hint: "SLURM_STEP_NODELIST is not set: start the ranks with srun, or set EXPERTRAIL_ROOT to the \
                    host of rank 0",
    })
}

/// The host of every rank, if ranks are laid out in blocks and our own place confirms it.
fn rank_hosts(
    vars: &Vars<'_>,
    hosts: &[String],
    tasks: &[usize],
    own: (usize, Option<usize>),
) -> Vec<String> {
    let block = vars.text("SLURM_DISTRIBUTION").is_none_or(|text| text.starts_with("block"));
    if !block || tasks.len() != hosts.len() || tasks.iter().sum::<usize>() > super::MAX_WORLD {
        return Vec::new();
    }
    let by_rank: Vec<usize> =
        tasks.iter().enumerate().flat_map(|(node, count)| std::iter::repeat_n(node, *count)).collect();
    if by_rank.get(own.0).copied() != own.1 {
        return Vec::new();
    }
    by_rank.into_iter().map(|node| hosts[node].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_per_node() {
        assert_eq!(parse_tasks_per_node("8(x2),4"), Ok(vec![8, 8, 4]));
        assert_eq!(parse_tasks_per_node("1"), Ok(vec![1]));
        for text in ["", "0", "8(x0)", "8(x2", "8x2", "8(x70000)", "8(x999999999999)", "-1", "4,"] {
            assert!(parse_tasks_per_node(text).is_err(), "{text}");
        }
    }
}
