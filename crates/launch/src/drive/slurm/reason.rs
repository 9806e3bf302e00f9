//! Why a job waits, in plain words, with the nodes at fault.

use std::fmt::Write;

/// A node that takes no job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Name.
    pub(super) name: String,
    /// `down`, `drained`, `down and not responding`.
    pub(super) state: String,
    /// What an administrator or Slurm wrote; empty for none.
    pub(super) reason: String,
}

/// Whether waiting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hope {
    /// It will start when its turn comes.
    Waits,
    /// Only when somebody brings nodes back.
    NodesDown,
    /// Never, as it was asked for.
    None,
}

/// Nodes of `sinfo --Node --format=%N|%T|%E` that take no job. A node in two partitions is listed once.
pub(super) fn bad(text: &str) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, '|').map(str::trim);
        let (Some(name), Some(state)) = (fields.next(), fields.next()) else { continue };
        let reason = fields.next().filter(|reason| !matches!(*reason, "none" | "(null)" | ""));
        let base = state.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-']);
        let silent = state.contains('*');
        let bad = [
            "down", "drain", "drained", "draining", "fail", "failing", "error", "maint", "unknown",
            "reserved", "future",
        ];
        if !(bad.contains(&base) || silent) || nodes.iter().any(|node| node.name == name) {
            continue;
        }
        let state = if silent { format!("{base} and not responding") } else { base.to_owned() };
        nodes.push(Node { name: name.to_owned(), state, reason: reason.unwrap_or_default().to_owned() });
    }
    nodes
}

/// Nodes listed in a message; more are counted.
const LISTED: usize = 8;

/// `gpu1 is down (bad cable), gpu2 is drained`.
pub(super) fn names(nodes: &[Node]) -> String {
    let mut text = String::new();
    for (index, node) in nodes.iter().take(LISTED).enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{} is {}", node.name, node.state);
        if !node.reason.is_empty() {
            let _ = write!(text, " ({})", node.reason);
        }
    }
    if nodes.len() > LISTED {
        let _ = write!(text, ", and {} more", nodes.len() - LISTED);
    }
    text
}

/// What to do about a job that `sbatch` does not take; empty where its own words say it all.
pub(super) fn refusal(complaint: &str) -> &'static str {
    let steps = [
        (
            "Invalid generic resource (gres) specification",
            "the cluster, or this partition, does not count GPUs: set slurm.request_gpus = false and render again, or choose another \
             slurm.partition (`sinfo --format=%P_%G` lists what is counted where)",
        ),
        (
            "equested node configuration is not available",
            "no node of the partition has so many GPUs or CPUs: compare gpus_per_node with `sinfo --Node --long`, or choose another slurm.partition",
        ),
        ("nvalid partition", "slurm.partition names none of this cluster: `sinfo --summarize` lists them"),
        ("nvalid account", "set slurm.account to one of `sacctmgr show associations user=$USER`"),
        ("nvalid qos", "set slurm.qos to one of `sacctmgr show associations user=$USER format=account,qos`"),
        (
            "equested time limit is invalid",
            "make timeout shorter, or choose a slurm.partition with a longer limit",
        ),
        (
            "ode count specification invalid",
            "the partition does not allow so many nodes: change nodes or slurm.partition",
        ),
        (
            "nvalid feature specification",
            "no node has slurm.constraint: `sinfo --format=%N_%f` lists what nodes have",
        ),
    ];
    steps.iter().find(|(words, _)| complaint.contains(words)).map_or("", |(_, step)| step)
}

/// Whether a job that waits for `reason` will start.
pub(super) fn hope(reason: &str) -> Hope {
    let plain = reason.replace('_', " ");
    let has = |words: &[&str]| words.iter().any(|word| plain.contains(word));
    // Slurm leaves such jobs in the queue for good.
    let never = [
        "BadConstraints",
        "PartitionConfig",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "PartitionInactive",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "InvalidAccount",
        "InvalidQOS",
        "JobHeldAdmin",
        "JobHeldUser",
        "ReservationDeleted",
        "DependencyNeverSatisfied",
        "AssocMaxNodePerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxNodePerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "launch failed requeued held",
    ];
    if has(&never) {
        return Hope::None;
    }
    if has(&["DOWN", "DRAINED", "ReqNodeNotAvail", "NodeDown", "PartitionDown"]) {
        return Hope::NodesDown;
    }
    Hope::Waits
}

/// Slurm's word in plain words; `nodes` are those that take no job.
pub(super) fn words(reason: &str, nodes: &[Node]) -> String {
    let plain = reason.replace('_', " ");
    let said = match reason.split(',').next().unwrap_or_default() {
        "Resources" => "enough free nodes are not there now; it starts when others end",
        "Priority" => "other jobs come first",
        "None" | "" => "Slurm has not looked at it yet",
        "BeginTime" => "its begin time has not come",
        "Dependency" => "it waits for another job",
        "Licenses" => "licenses are used up",
        "Reservation" => "its reservation has not begun",
        "PartitionDown" => "the partition is down: it takes jobs and starts none",
        "PartitionInactive" => "the partition is inactive: it starts no job",
        "PartitionNodeLimit" => {
            "it asks for more or fewer nodes than the partition allows: change nodes or slurm.partition"
        }
        "PartitionTimeLimit" => {
            "its time limit is above the partition's: make timeout shorter, or change slurm.partition"
        }
        "PartitionConfig" => {
            "the partition does not allow what it asks for: compare `scontrol show partition` with nodes and timeout, or change slurm.partition"
        }
        "BadConstraints" => {
            "no node has what it asks for: look at slurm.constraint, slurm.nodelist and the GPUs of a node"
        }
        "JobHeldUser" => "it is held by its user: scontrol release",
        "JobHeldAdmin" => "it is held by an administrator",
        "AssocGrpGRES" | "QOSGrpGRES" | "AssocMaxGRESPerJob" | "QOSMaxGRESPerUser" => {
            "the account's or QOS's share of GPUs is used up"
        }
        "InvalidQOS" | "QOSNotAllowed" => "slurm.qos is not allowed here",
        "InvalidAccount" | "AccountNotAllowed" => "slurm.account is not allowed here",
        "ReqNodeNotAvail" => "a node that it needs is not available",
        _ if hope(reason) == Hope::NodesDown => "nodes that it needs are down, drained or reserved",
        _ => "",
    };
    let mut text = match (said, plain.as_str()) {
        ("", _) => plain,
        // Slurm gives no word then.
        (said, "" | "None") => said.to_owned(),
        (said, plain) => format!("{said} [{plain}]"),
    };
    if !nodes.is_empty() {
        let _ = write!(text, "; {}", names(nodes));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINFO: &str = "gpu1|idle|none\ngpu2|down|bad cable\ngpu2|down|bad cable\ngpu3|drained*|Kill task failed\ngpu4|mixed-|none\ngpu5|idle~|none\n";

    #[test]
    fn nodes_at_fault_are_named_with_the_reason_that_somebody_gave() {
        let nodes = bad(SINFO);
        assert_eq!(
            names(&nodes),
            "gpu2 is down (bad cable), gpu3 is drained and not responding (Kill task failed)"
        );
        let long =
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions";
        let text = words(long, &nodes);
        assert!(
            text.starts_with("nodes that it needs are down") && text.contains("gpu2 is down (bad cable)"),
            "{text}"
        );
        assert_eq!(hope(long), Hope::NodesDown);
        assert_eq!(hope("ReqNodeNotAvail,_UnavailableNodes:gpu2"), Hope::NodesDown);
    }

    #[test]
    fn what_never_starts_is_not_waited_for() {
        assert_eq!(["Resources", "Priority", "None"].map(hope), [Hope::Waits; 3]);
        assert_eq!(
            ["BadConstraints", "PartitionNodeLimit", "QOSMaxNodePerJobLimit"].map(hope),
            [Hope::None; 3]
        );
        assert!(words("PartitionTimeLimit", &[]).contains("make timeout shorter"));
        assert_eq!(words("SomethingNew_here", &[]), "SomethingNew here");
    }
    #[test]
    fn refusals_have_a_next_step_and_no_word_is_no_bracket() {
        let said =
            "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification";
        assert!(refusal(said).contains("slurm.request_gpus = false"));
        assert_eq!(refusal("sbatch: error: Unable to contact slurm controller"), "");
        assert_eq!(words("", &[]), "Slurm has not looked at it yet");
        assert_eq!(words("None", &[]), "Slurm has not looked at it yet");
        assert!(words("PartitionConfig", &[]).starts_with("the partition does not allow what it asks for"));
        assert_eq!(hope("PartitionConfig"), Hope::None);
    }
}
