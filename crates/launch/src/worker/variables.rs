//! The variables of a rank, and what of the worker's own they replace.

use super::identity::Master;
use super::{Contract, Lookup, Shape, clip, text};

/// One process that a worker starts, or that it becomes.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// What the run is.
    pub shape: Shape,
    /// Index of the node, where it is known.
    pub node: Option<usize>,
    /// `RANK`.
    pub number: usize,
    /// Its place on the node.
    pub local_rank: usize,
    /// Where the ranks meet.
    pub master: &'a Master,
    /// Names the run.
    pub run: &'a str,
    /// Its NICs.
    pub pin: Option<&'a str>,
}

/// A variable with its value; none takes it away.
pub type Setting = (&'static str, Option<String>);

/// Our library's own identity comes before `RANK` and `WORLD_SIZE`: one that was inherited would describe the worker.
const OWN: [&str; 6] = [
    "EXPERTRAIL_RANK",
    "EXPERTRAIL_WORLD_SIZE",
    "EXPERTRAIL_LOCAL_RANK",
    "EXPERTRAIL_LOCAL_SIZE",
    "EXPERTRAIL_NODE",
    "EXPERTRAIL_LISTEN_FD",
];

/// The variables of `member`.
pub fn of(member: &Member<'_>) -> Vec<Setting> {
    let Member { shape, node, number, local_rank, master, run, pin } = *member;
    let ranks = shape.contract == Contract::Ranks;
    let mut all: Vec<Setting> = vec![
        ("RANK", Some(number.to_string())),
        ("WORLD_SIZE", Some(shape.world().to_string())),
        // With a process a node these would be read as a GPU's.
        ("LOCAL_RANK", ranks.then(|| local_rank.to_string())),
        ("LOCAL_WORLD_SIZE", ranks.then(|| shape.ranks_per_node.to_string())),
        ("MASTER_ADDR", Some(master.host.clone())),
        ("MASTER_PORT", Some(master.port.to_string())),
        ("EXPERTRAIL_JOB", Some(run.to_owned())),
    ];
    if let Some(node) = node {
        all.push(("NODE_RANK", Some(node.to_string())));
        all.push(("GROUP_RANK", Some(node.to_string())));
    }
    all.extend(OWN.map(|name| (name, None)));
    if let Some(pin) = pin {
        all.push(("NVSHMEM_HCA_LIST", Some(pin.to_owned())));
        // Without it NVSHMEM does not look at the list.
        all.push(("NVSHMEM_ENABLE_NIC_PE_MAPPING", Some("1".to_owned())));
    }
    all
}

/// A line for each variable of the worker's own that its processes do not have as it is.
pub fn notes(members: &[Vec<Setting>], contract: Contract, vars: Lookup<'_>) -> Vec<String> {
    let Some(first) = members.first() else { return Vec::new() };
    let mut notes = Vec::new();
    for (name, value) in first {
        let Some(old) = text(vars, name) else { continue };
        let all = || members.iter().flatten().filter(|(known, _)| known == name).map(|(_, value)| value);
        if all().all(|value| value.as_deref() == Some(old.as_str())) {
            continue;
        }
        let old = clip(&old);
        let same = all().all(|other| other == value);
        notes.push(match (*name, value) {
            (_, None) => format!("{name}={old} is taken away: it describes the worker, not its ranks"),
            ("NVSHMEM_HCA_LIST", Some(_)) => format!(
                "NVSHMEM_HCA_LIST={old} was one list for all ranks of the node, which would all use its first device: each rank gets its own"
            ),
            ("WORLD_SIZE", Some(value)) => {
                format!("WORLD_SIZE={old} becomes {value}: it counts {contract} (--contract {contract})")
            }
            (_, Some(value)) if same => format!("{name}={old} becomes {value}"),
            (_, Some(_)) => format!("{name}={old} is replaced by each rank's own"),
        });
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master() -> Master {
        Master { host: "run-0.run".to_owned(), port: 29400 }
    }

    fn value<'a>(all: &'a [Setting], name: &str) -> Option<&'a str> {
        all.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.as_deref())
    }

    fn member(contract: Contract, number: usize, master: &Master, pin: Option<&'static str>) -> Vec<Setting> {
        let shape = Shape::new(2, 8, contract).unwrap();
        of(&Member { shape, node: Some(1), number, local_rank: number % 8, master, run: "a-123456", pin })
    }

    #[test]
    fn the_two_contracts() {
        let master = master();
        let ranks = member(Contract::Ranks, 14, &master, Some("mlx5_11:1"));
        for (name, wanted) in [
            ("RANK", "14"),
            ("WORLD_SIZE", "16"),
            ("LOCAL_RANK", "6"),
            ("LOCAL_WORLD_SIZE", "8"),
            ("NODE_RANK", "1"),
            ("GROUP_RANK", "1"),
            ("MASTER_ADDR", "run-0.run"),
            ("MASTER_PORT", "29400"),
            ("NVSHMEM_HCA_LIST", "mlx5_11:1"),
            ("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1"),
        ] {
            assert_eq!(value(&ranks, name), Some(wanted), "{name}");
        }
        let nodes = member(Contract::Nodes, 1, &master, None);
        assert_eq!((value(&nodes, "RANK"), value(&nodes, "WORLD_SIZE")), (Some("1"), Some("2")));
        assert_eq!((value(&nodes, "LOCAL_RANK"), value(&nodes, "NVSHMEM_HCA_LIST")), (None, None));
    }

    #[test]
    fn what_is_replaced_is_said() {
        let master = master();
        let all = vec![
            member(Contract::Ranks, 8, &master, Some("a:1")),
            member(Contract::Ranks, 9, &master, Some("b:1")),
        ];
        let vars = |name: &str| {
            let value = match name {
                "RANK" | "NODE_RANK" => "1",
                "WORLD_SIZE" => "2",
                "MASTER_PORT" => "8361",
                "NVSHMEM_HCA_LIST" => "a:1,b:1",
                "EXPERTRAIL_RANK" => "0",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let notes = notes(&all, Contract::Ranks, &vars);
        assert_eq!(
            notes,
            [
                "RANK=1 is replaced by each rank's own",
                "WORLD_SIZE=2 becomes 16: it counts ranks (--contract ranks)",
                "MASTER_PORT=8361 becomes 29400",
                "EXPERTRAIL_RANK=0 is taken away: it describes the worker, not its ranks",
                "NVSHMEM_HCA_LIST=a:1,b:1 was one list for all ranks of the node, which would all use its first device: each rank gets its own",
            ]
        );
    }
}
