//! Which NIC each rank of a node uses. A list for the whole pod would give every rank its first device; so each rank gets its own, in its
//! process, before its program starts.

use std::str::FromStr;

use expertrail_cluster::facts::Facts;
use expertrail_cluster::topo::{self, Role, Topology};

use super::{Contract, Lookup, Shape, WorkerError, clip, text};

/// What pins are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Those of this node's topology.
    Auto,
    /// None: what is inherited stays.
    #[default]
    None,
    /// One device for each local rank, as `mlx5_1:1`.
    List(Vec<String>),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::None),
            _ => {}
        }
        if text.starts_with('=') {
            return Err("a leading = is for NCCL_IB_HCA only; NVSHMEM would look for a device of that name"
                .to_owned());
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        text.split(',')
            .map(|entry| {
                let (name, port) = entry.trim().split_once(':').unwrap_or((entry.trim(), "1"));
                let number = port.parse::<u8>().ok().filter(|port| *port > 0);
                match number {
                    Some(port) if !name.is_empty() && name.chars().all(plain) => Ok(format!("{name}:{port}")),
                    _ => Err(format!(
                        "`{}` is no device: wanted auto, none, or a list as mlx5_1:1,mlx5_2:1 with one for each local rank",
                        clip(entry)
                    )),
                }
            })
            .collect::<Result<Vec<_>, _>>()
            .map(Self::List)
    }
}

/// Devices of each local rank, as NVSHMEM takes them, and what is to be said of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// By local rank; empty where none is pinned.
    pub of: Vec<String>,
    /// Lines for the log.
    pub notes: Vec<String>,
}

impl Pins {
    /// That of one local rank.
    pub fn get(&self, local_rank: usize) -> Option<&str> {
        self.of.get(local_rank).map(String::as_str)
    }
}

/// Whether the facts of this node are needed.
pub fn wants_facts(wanted: &Wanted, require_active: bool) -> bool {
    *wanted == Wanted::Auto || require_active
}

/// Whether NVSHMEM goes through libfabric, which chooses NICs itself.
fn libfabric(vars: Lookup<'_>) -> bool {
    text(vars, "NVSHMEM_REMOTE_TRANSPORT").is_some_and(|name| name.eq_ignore_ascii_case("libfabric"))
}

/// The pins of all local ranks. `facts` must be there for [`Wanted::Auto`].
///
/// # Errors
/// When the list does not fit the ranks, or the topology does not tell which NIC is whose.
pub fn resolve(
    wanted: &Wanted,
    shape: Shape,
    facts: Option<&Facts>,
    vars: Lookup<'_>,
) -> Result<Pins, WorkerError> {
    let unpinned = |note: &str| Ok(Pins { of: Vec::new(), notes: vec![note.to_owned()] });
    match (wanted, shape.contract) {
        (Wanted::None, _) => Ok(Pins::default()),
        (Wanted::List(_), Contract::Nodes) => Err(WorkerError::Usage(
            "--pins with a list needs --contract ranks: with a process a node the program starts its ranks itself, and a pin in its \
             environment would be one for all of them; let it set NVSHMEM_HCA_LIST in each rank, and leave --pins out"
                .to_owned(),
        )),
        (Wanted::List(list), Contract::Ranks) if list.len() == shape.ranks_per_node => {
            let notes = if libfabric(vars) {
                vec!["pins do nothing with NVSHMEM_REMOTE_TRANSPORT=libfabric, which chooses NICs itself".to_owned()]
            } else {
                Vec::new()
            };
            Ok(Pins { of: list.clone(), notes })
        }
        (Wanted::List(list), Contract::Ranks) => Err(WorkerError::Usage(format!(
            "--pins names {} devices for {} ranks of a node: give one for each local rank, in their order",
            list.len(),
            shape.ranks_per_node
        ))),
        (Wanted::Auto, Contract::Nodes) => {
            unpinned("no pins: with a process a node the program starts its ranks itself and must pin each of them")
        }
        (Wanted::Auto, Contract::Ranks) if libfabric(vars) => {
            unpinned("no pins: libfabric pairs each rank with the NICs under its GPU's PCIe switch (NVSHMEM_NETDEVS_POLICY)")
        }
        (Wanted::Auto, Contract::Ranks) => {
            let topology = topo::map(facts.unwrap_or(&Facts::default()));
            if topology.with(Role::Rail).any(|nic| nic.efa) {
                return unpinned("no pins: the rails are EFA functions, which NVSHMEM and NCCL take through libfabric");
            }
            (0..shape.ranks_per_node).map(|local| of_rank(&topology, local, shape.ranks_per_node)).collect::<Result<Vec<_>, _>>().map(
                |of| Pins { of, notes: notes(&topology) },
            )
        }
    }
}

/// The devices of one local rank by the topology.
///
/// # Errors
/// When the topology does not tell, or the rank's rail is down.
pub fn of_rank(topology: &Topology, local_rank: usize, ranks_per_node: usize) -> Result<String, WorkerError> {
    const GIVE: &str = "give the list, one device for each local rank: --pins mlx5_1:1,mlx5_2:1,... (expertrail topo shows what is known), \
                        or --pins none where no rank talks to another node";
    if let Some(reason) = topo::unpinned(topology) {
        if topology.all_down() {
            return Err(WorkerError::Refused(reason));
        }
        return Err(WorkerError::Inconclusive(format!(
            "{}; {GIVE}",
            reason.replace("; name the rails with --hca LIST", "")
        )));
    }
    let ranked = || topology.gpus.iter().filter(|gpu| gpu.rank.is_some());
    // Where a rank sees one GPU of several, that one is its own, whatever its number.
    let only = ranked().count() == 1 && topology.gpus.len() > 1 && ranks_per_node > 1;
    let found = ranked().find(|gpu| only || gpu.rank == Some(local_rank));
    let Some(gpu) = found else {
        return Err(WorkerError::Inconclusive(format!(
            "no pin for local rank {local_rank}: this process sees {} GPUs and the node runs {ranks_per_node} ranks; {GIVE}",
            ranked().count()
        )));
    };
    let pins: Vec<String> = gpu.rails.iter().map(|pin| format!("{}:{}", pin.device, pin.port)).collect();
    if pins.is_empty() {
        let failed = topology.with(Role::FailedRail).find(|nic| nic.gpus.contains(&gpu.index));
        let which = failed.map_or_else(
            || "no rail is up for it".to_owned(),
            |nic| format!("its rail {} is not usable: {}", nic.name, nic.reason),
        );
        return Err(WorkerError::Refused(format!(
            "local rank {local_rank} (GPU {}, {}) cannot be pinned: {which}; mend it, or run without this node",
            gpu.index, gpu.pci
        )));
    }
    Ok(pins.join(","))
}

/// What the mapping rests on, where it is less than a switch of its own.
fn notes(topology: &Topology) -> Vec<String> {
    let pins =
        || topology.gpus.iter().flat_map(|gpu| gpu.rails.iter().map(move |pin| (gpu.rails.len(), pin)));
    let mut notes = Vec::new();
    if pins().any(|(own, pin)| pin.tied > own && !pin.shared) {
        notes.push(
            "pins by the order of the bus: some rails are equally near to several GPUs; --pins LIST overrides it".to_owned(),
        );
    }
    if pins().any(|(_, pin)| pin.shared) {
        notes.push("there are fewer rails than GPUs: some ranks share one".to_owned());
    }
    notes
}

/// Refuses a node on which the device of a rank is not there or not active.
///
/// # Errors
/// One line for all devices that are wrong, with their states.
pub fn require_active(pins: &Pins, shape: Shape, facts: &Facts, vars: Lookup<'_>) -> Result<(), WorkerError> {
    if shape.contract == Contract::Nodes || libfabric(vars) {
        // There is no list that decides.
        return Ok(());
    }
    if pins.of.is_empty() {
        return Err(WorkerError::Refused(
            "--require-hca-active: no rank has a device: give --pins auto or a list; without one every rank would use what NVSHMEM finds \
             first"
                .to_owned(),
        ));
    }
    let mut wrong = Vec::new();
    for (local, list) in pins.of.iter().enumerate() {
        for entry in list.split(',') {
            if let Some(problem) = state(entry, facts) {
                wrong.push(format!("local rank {local}: {problem}"));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(WorkerError::Refused(format!(
        "--require-hca-active: {}; no rank was started. See `expertrail check` on this node for the link",
        wrong.join("; ")
    )))
}

/// What is wrong with the device `entry` (`mlx5_1:1`); none where it is active.
pub fn state(entry: &str, facts: &Facts) -> Option<String> {
    let (name, port) = entry.split_once(':').unwrap_or((entry, "1"));
    let Some(devices) = facts.rdma.value() else {
        return Some(format!("{name} is not there: no RDMA device can be seen ({})", facts.rdma.source));
    };
    let Some(device) = devices.iter().find(|device| device.name == name) else {
        let known: Vec<&str> = devices.iter().map(|device| device.name.as_str()).take(32).collect();
        return Some(format!(
            "{name} is not there (there are {})",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        ));
    };
    let Some(found) = device.ports.iter().find(|known| known.number.to_string() == port) else {
        return Some(format!("{name} has no port {port}"));
    };
    let state = found.state.as_deref().unwrap_or("of unknown state");
    (found.active() != Some(true)).then(|| format!("{name} port {port} is not active: its state is {state}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!("auto".parse(), Ok(Wanted::Auto));
        assert_eq!("none".parse(), Ok(Wanted::None));
        assert_eq!(
            "mlx5_1, mlx5_2:2".parse(),
            Ok(Wanted::List(vec!["mlx5_1:1".to_owned(), "mlx5_2:2".to_owned()]))
        );
        for wrong in ["", "=mlx5_1:1", "mlx5_1:", "mlx5_1:0", "a,,b", "a b", "^x"] {
            assert!(wrong.parse::<Wanted>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_list_needs_one_device_a_rank_and_a_process_each() {
        let list: Wanted = "a:1,b:1".parse().unwrap();
        let none = |_: &str| None;
        let ranks = Shape::new(2, 2, Contract::Ranks).unwrap();
        assert_eq!(resolve(&list, ranks, None, &none).unwrap().of, ["a:1", "b:1"]);
        let three = Shape::new(2, 3, Contract::Ranks).unwrap();
        assert_eq!(resolve(&list, three, None, &none).unwrap_err().exit_code(), 2);
        let nodes = Shape::new(2, 2, Contract::Nodes).unwrap();
        assert_eq!(resolve(&list, nodes, None, &none).unwrap_err().exit_code(), 2);
        assert!(resolve(&Wanted::Auto, nodes, None, &none).unwrap().of.is_empty());
        // Nothing is known of the node: no guess.
        assert_eq!(resolve(&Wanted::Auto, ranks, None, &none).unwrap_err().exit_code(), 3);
        let efa = |name: &str| (name == "NVSHMEM_REMOTE_TRANSPORT").then(|| "libfabric".to_owned());
        assert!(resolve(&Wanted::Auto, ranks, None, &efa).unwrap().of.is_empty());
    }
}
