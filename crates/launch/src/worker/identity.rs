//! Which node this is, and where the first one is.

use expertrail_group::identity::{parse_hostlist, parse_tasks_per_node};

use super::{Lookup, Shape, WorkerError, clip, number, text};

/// The port of the rendezvous where nobody names one: the Kubernetes guide's.
pub const MASTER_PORT: u16 = 29400;

/// A node's index, and who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRank {
    /// From 0.
    pub node: usize,
    /// `JOB_COMPLETION_INDEX=1`.
    pub source: String,
}

/// Finds the index of this node among `nodes`.
///
/// `--node-rank` comes first, then `EXPERTRAIL_NODE_RANK`, an indexed Job, Slurm, Open MPI, `PMIx`, and the variables of torchrun's agents
/// (`GROUP_RANK`, `NODE_RANK`). All that are there must agree: two that do not are two launchers, of which one is not meant.
///
/// # Errors
/// When nothing tells, sources contradict each other, the index is not below `nodes`, or this is one of several workers of its node.
pub fn node_rank(given: Option<usize>, nodes: usize, vars: Lookup<'_>) -> Result<NodeRank, WorkerError> {
    let mut sources: Vec<(String, usize)> = Vec::new();
    if let Some(node) = given {
        sources.push((format!("--node-rank {node}"), node));
    }
    let mut add = |name: &str| -> Result<(), WorkerError> {
        if let Some(node) = number(vars, name)? {
            sources.push((format!("{name}={node}"), node));
        }
        Ok(())
    };
    add("EXPERTRAIL_NODE_RANK")?;
    add("JOB_COMPLETION_INDEX")?;
    // Under mpirun Slurm's variables are those of the step that runs mpirun's daemons, on some of the nodes.
    if in_step(vars) && text(vars, "OMPI_COMM_WORLD_RANK").is_none() {
        one_per_node_of_slurm(vars)?;
        add(if text(vars, "SLURM_NODEID").is_some() { "SLURM_NODEID" } else { "SLURM_PROCID" })?;
    }
    if let Some(name) = of_mpi(vars, nodes)? {
        add(name)?;
    }
    add("GROUP_RANK")?;
    add("NODE_RANK")?;
    if sources.is_empty() && nodes > 1 && text(vars, "SLURM_JOB_ID").is_some() {
        return Err(WorkerError::Usage(
            "this is a batch script of Slurm, not a step: start one worker a node with `srun --ntasks-per-node=1 expertrail worker \
             node ...`, or give --node-rank"
                .to_owned(),
        ));
    }
    let Some((source, node)) = sources.first().cloned() else {
        if nodes == 1 {
            return Ok(NodeRank { node: 0, source: "the only node".to_owned() });
        }
        return Err(WorkerError::Usage(format!(
            "nothing tells which of {nodes} nodes this is: give --node-rank, or set EXPERTRAIL_NODE_RANK (an indexed Job sets \
             JOB_COMPLETION_INDEX, srun SLURM_NODEID, mpirun OMPI_COMM_WORLD_RANK)"
        )));
    };
    if let Some((other, _)) = sources.iter().find(|(_, other)| *other != node) {
        return Err(WorkerError::Usage(format!(
            "{source} contradicts {other}: both say which node this is; unset the one that is not meant"
        )));
    }
    if node >= nodes {
        return Err(WorkerError::Usage(format!(
            "{source}: there are {nodes} nodes, numbered from 0; the number of nodes here and what the launcher starts must move together"
        )));
    }
    Ok(NodeRank { node, source })
}

/// Whether Slurm's variables are those of a step. In a batch script they describe the script's own process, and a shell of salloc passes
/// them to whatever it starts.
pub(super) fn in_step(vars: Lookup<'_>) -> bool {
    let known = text(vars, "SLURM_NODEID").is_some() || text(vars, "SLURM_PROCID").is_some();
    let step = ["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"]
        .iter()
        .any(|name| text(vars, name).is_some());
    known && (step || text(vars, "SLURM_JOB_ID").is_none())
}

fn one_per_node_of_slurm(vars: Lookup<'_>) -> Result<(), WorkerError> {
    let several = |what: String| {
        Err(WorkerError::Usage(format!(
            "{what}: this is one of several workers of its node; start one a node, with srun --ntasks-per-node=1"
        )))
    };
    if let Some(local @ 1..) = number(vars, "SLURM_LOCALID")? {
        return several(format!("SLURM_LOCALID={local}"));
    }
    match text(vars, "SLURM_STEP_TASKS_PER_NODE") {
        Some(list) if parse_tasks_per_node(&list).is_ok_and(|tasks| tasks.iter().any(|tasks| *tasks > 1)) => {
            several(format!("SLURM_STEP_TASKS_PER_NODE={}", clip(&list)))
        }
        _ => Ok(()),
    }
}

/// The variable with which an MPI launcher numbers workers, one a node.
fn of_mpi(vars: Lookup<'_>, nodes: usize) -> Result<Option<&'static str>, WorkerError> {
    if text(vars, "OMPI_COMM_WORLD_RANK").is_some() {
        let local = number(vars, "OMPI_COMM_WORLD_LOCAL_SIZE")?;
        if let Some(local @ 2..) = local {
            return Err(WorkerError::Usage(format!(
                "OMPI_COMM_WORLD_LOCAL_SIZE={local}: mpirun started several workers on this node; start one a node, with mpirun -N 1"
            )));
        }
        if let Some(size) = number(vars, "OMPI_COMM_WORLD_SIZE")?
            && size != nodes
        {
            return Err(WorkerError::Usage(format!(
                "OMPI_COMM_WORLD_SIZE={size} contradicts --nodes {nodes}: mpirun must start one worker for each node (-np {nodes} -N 1)"
            )));
        }
        return Ok(Some("OMPI_COMM_WORLD_RANK"));
    }
    Ok(text(vars, "PMIX_RANK").map(|_| "PMIX_RANK"))
}

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// `MASTER_ADDR`.
    pub host: String,
    /// `MASTER_PORT`.
    pub port: u16,
}

/// Where the ranks meet: `--master HOST[:PORT]` and `--master-port`, else `MASTER_ADDR`, else this host for one node, else the first host
/// of a Slurm step.
///
/// # Errors
/// When nothing tells, a value is no host or port, or two ports are given.
pub fn master(
    given: Option<&str>,
    port: Option<u16>,
    nodes: usize,
    vars: Lookup<'_>,
) -> Result<Master, WorkerError> {
    let usage = |message: String| Err(WorkerError::Usage(message));
    let (host, own) = match given.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) => match split(text) {
            Some((host, own)) => (Some(host), own),
            None => return usage(format!("--master {}: wanted HOST or HOST:PORT", clip(text))),
        },
        None => (None, None),
    };
    if let (Some(own), Some(port)) = (own, port)
        && own != port
    {
        return usage(format!("port {own} in --master contradicts --master-port {port}: give the port once"));
    }
    let inherited = match text(vars, "MASTER_PORT") {
        Some(text) => match text.parse::<u16>() {
            Ok(port @ 1..) => Some(port),
            _ => {
                return usage(format!(
                    "MASTER_PORT={} is not usable: wanted a port, 1 to 65535",
                    clip(&text)
                ));
            }
        },
        None => None,
    };
    let port = own.or(port).or(inherited).unwrap_or(MASTER_PORT);
    let host = match (host, text(vars, "MASTER_ADDR")) {
        (Some(host), _) => host,
        (None, Some(host)) => match split(&host) {
            Some((host, None)) => host,
            _ => return usage(format!("MASTER_ADDR={} is no host name or address", clip(&host))),
        },
        (None, None) if nodes == 1 => "127.0.0.1".to_owned(),
        (None, None) => match first_host(vars)? {
            Some(host) => host,
            None => {
                return usage(format!(
                    "nothing tells where the first of {nodes} nodes is: give --master HOST (under an indexed Job NAME-0.SERVICE, under \
                     mpirun the first host of the hostfile)"
                ));
            }
        },
    };
    Ok(Master { host, port })
}

fn first_host(vars: Lookup<'_>) -> Result<Option<String>, WorkerError> {
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let daemons = text(vars, "OMPI_COMM_WORLD_RANK").is_some();
    let lists = if daemons { &lists[1..] } else { &lists[..] };
    let Some((name, list)) = lists.iter().find_map(|name| Some((name, text(vars, name)?))) else {
        return Ok(None);
    };
    match parse_hostlist(&list) {
        Ok(hosts) => Ok(hosts.into_iter().next()),
        Err(reason) => {
            Err(WorkerError::Usage(format!("{name}={} is no list of hosts: {reason}", clip(&list))))
        }
    }
}

/// `HOST`, `HOST:PORT`, `[V6]:PORT` or an IPv6 address.
fn split(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
        (host, port)
    } else if text.parse::<std::net::Ipv6Addr>().is_ok() {
        (text, None)
    } else {
        text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let named = !host.is_empty() && host.len() <= 253 && !host.starts_with('-') && host.chars().all(plain);
    if !named && host.parse::<std::net::Ipv6Addr>().is_err() {
        return None;
    }
    match port {
        None => Some((host.to_owned(), None)),
        Some(port) => {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse::<u16>().ok().filter(|port| digits && *port != 0)?;
            Some((host.to_owned(), Some(port)))
        }
    }
}

/// The system's name of this host.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(|c| !c.is_control()).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// What a shape makes of this node: a helper for messages.
pub fn block(shape: Shape, node: usize) -> String {
    let numbers = shape.numbers(node);
    match numbers.len() {
        1 => format!("rank {} of {}", numbers.start, shape.world()),
        _ => format!("ranks {}-{} of {}", numbers.start, numbers.end - 1, shape.world()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn rank(given: Option<usize>, nodes: usize, pairs: &[(&str, &str)]) -> Result<(usize, String), String> {
        node_rank(given, nodes, &with(pairs))
            .map(|rank| (rank.node, rank.source))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_launcher_names_the_node() {
        for pairs in [
            vec![("EXPERTRAIL_NODE_RANK", "1")],
            vec![("JOB_COMPLETION_INDEX", "1")],
            vec![("SLURM_NODEID", "1"), ("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_JOB_ID", "7")],
            vec![("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_TASKS_PER_NODE", "1(x2)")],
            vec![
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
                ("PMIX_RANK", "1"),
            ],
            // Two nodes, of which mpirun's daemons were started on the second only.
            vec![
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_NODEID", "0"),
                ("SLURM_LOCALID", "0"),
            ],
            vec![("PMIX_RANK", "1")],
            vec![("GROUP_RANK", "1")],
            vec![("NODE_RANK", "1"), ("JOB_COMPLETION_INDEX", "1")],
        ] {
            assert_eq!(rank(None, 2, &pairs).unwrap().0, 1, "{pairs:?}");
        }
        assert_eq!(rank(Some(1), 2, &[]).unwrap(), (1, "--node-rank 1".to_owned()));
        assert_eq!(rank(None, 1, &[]).unwrap().0, 0);
    }

    #[test]
    fn contradictions_name_both() {
        let error = rank(Some(0), 2, &[("JOB_COMPLETION_INDEX", "1")]).unwrap_err();
        assert!(error.contains("--node-rank 0 contradicts JOB_COMPLETION_INDEX=1"), "{error}");
        let error = rank(None, 4, &[("GROUP_RANK", "3"), ("NODE_RANK", "2")]).unwrap_err();
        assert!(error.contains("GROUP_RANK=3 contradicts NODE_RANK=2"), "{error}");
        let error =
            rank(None, 2, &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "16")]).unwrap_err();
        assert!(error.contains("OMPI_COMM_WORLD_SIZE=16 contradicts --nodes 2"), "{error}");
    }

    #[test]
    fn what_is_not_one_worker_a_node_is_refused() {
        for pairs in [
            vec![
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
            ],
            vec![("SLURM_NODEID", "0"), ("SLURM_LOCALID", "3"), ("SLURM_STEP_ID", "0")],
            vec![
                ("SLURM_NODEID", "0"),
                ("SLURM_LOCALID", "0"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_STEP_TASKS_PER_NODE", "8(x2)"),
            ],
        ] {
            assert!(rank(None, 2, &pairs).unwrap_err().contains("several workers"), "{pairs:?}");
        }
        assert!(rank(None, 2, &[]).unwrap_err().contains("--node-rank"));
        assert!(rank(None, 2, &[("JOB_COMPLETION_INDEX", "2")]).unwrap_err().contains("there are 2 nodes"));
        assert!(
            rank(None, 2, &[("JOB_COMPLETION_INDEX", "-1")]).unwrap_err().contains("JOB_COMPLETION_INDEX=-1")
        );
        // A batch script of two nodes is not node 0.
        let script = [("SLURM_JOB_ID", "7"), ("SLURM_NODEID", "0"), ("SLURM_PROCID", "0")];
        assert!(rank(None, 2, &script).unwrap_err().contains("srun"));
        // What it starts by ssh or by hand is what it says.
        assert_eq!(rank(Some(1), 2, &script).unwrap().0, 1);
    }

    #[test]
    fn masters() {
        let at = |given, port, nodes, pairs: &[(&str, &str)]| {
            master(given, port, nodes, &with(pairs))
                .map(|master| (master.host, master.port))
                .map_err(|e| e.to_string())
        };
        let is = |host: &str, port: u16| Ok((host.to_owned(), port));
        assert_eq!(at(Some("run-0.run"), None, 2, &[]), is("run-0.run", 29400));
        assert_eq!(at(Some("run-0.run:1234"), None, 2, &[]), is("run-0.run", 1234));
        assert_eq!(at(Some("h"), Some(5), 2, &[("MASTER_PORT", "7")]), is("h", 5));
        assert_eq!(at(Some("[::1]:9"), None, 2, &[]), is("::1", 9));
        assert_eq!(at(None, None, 1, &[]), is("127.0.0.1", 29400));
        assert_eq!(at(None, None, 2, &[("SLURM_STEP_NODELIST", "gpu-[07-08]")]), is("gpu-07", 29400));
        assert_eq!(at(None, None, 2, &[("MASTER_ADDR", "a"), ("MASTER_PORT", "8")]), is("a", 8));
        for (given, port) in [
            (Some("h:1"), Some(2)),
            (Some("a b"), None),
            (Some("h:0"), None),
            (Some("-x"), None),
            (None, None),
        ] {
            assert!(at(given, port, 2, &[]).is_err(), "{given:?}");
        }
    }
}
