//! Of which ranks and nodes the logs are: by the names of their files, else by launchers' tags before their lines.
//!
//! That no rank printed a failure is known only of ranks whose log was read. One log without a name or tags of that kind is
//! taken as what all ranks printed.

use std::collections::BTreeSet;

use super::lines::origin;
use super::model::{Kind, LogFile, Run, Speakers};

/// Words before a number in names of files.
const RANK: &[&str] = &["rank", "proc", "process"];
const NODE: &[&str] =
    &["node", "worker", "pod", "host", "task", "server", "machine", "trainer", "replica", "bench"];

/// What a file is the log of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unit {
    Rank(u64),
    Node(String),
}

/// The rank, node or pod that the name of a file says: `rank-0.log`, `node_03.txt`, `trainer-7.log`.
fn unit(path: &str) -> Option<Unit> {
    let file = path.rsplit('/').next()?;
    let stem = file.split('.').next()?.to_ascii_lowercase();
    let numbered = |word: &str| {
        stem.match_indices(word).find_map(|(at, _)| {
            let rest = stem.get(at + word.len()..)?.trim_start_matches(['-', '_', '=', ' ']);
            let end = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
            rest.get(..end)?.parse::<u64>().ok()
        })
    };
    // A PyTorchJob's first pod, beside `worker-0`. The log of an MPIJob's launcher is that of all ranks.
    if let Some(node) = numbered("master") {
        return Some(Unit::Node(format!("master {node}")));
    }
    if let Some(node) = NODE.iter().find_map(|word| numbered(word)) {
        return Some(Unit::Node(node.to_string()));
    }
    RANK.iter().find_map(|word| numbered(word)).map(Unit::Rank)
}

/// A log with nothing that is looked for, of a rank or node that its name says.
pub(super) fn is_quiet_log(run: &Run) -> bool {
    run.kind == Kind::Unknown
        && run.unread.is_none()
        && run.notes.is_empty()
        && run.speakers.lines > 0
        && unit(&run.place.file).is_some()
}

/// Notes who wrote a line.
pub(super) fn hear(speakers: &mut Speakers, line: &[u8]) {
    /// Bytes in which a tag ends.
    const HEAD: usize = 160;
    /// Ranks, tasks and hosts that are kept.
    const MOST: usize = 65_536;
    speakers.lines += 1;
    let head = line.get(..line.len().min(HEAD)).unwrap_or_default();
    let Some(first) = head.iter().find(|byte| **byte != b' ') else { return };
    if !(first.is_ascii_digit() || matches!(first, b'[' | b'(')) {
        return;
    }
    let text = String::from_utf8_lossy(head);
    let (origin, _) = origin(&text);
    speakers.tagged += u64::from(origin.task.is_some() || origin.host.is_some());
    if let Some(host) = origin.host.filter(|_| speakers.hosts.len() < MOST) {
        speakers.hosts.insert(host);
    }
    let of_rank = text.contains("[rank");
    let set = if of_rank { &mut speakers.ranks } else { &mut speakers.tasks };
    if let Some(task) = origin.task.filter(|_| set.len() < MOST) {
        set.insert(task);
    }
}

/// Which logs there are: what they are of, or of how few of `launchers` (or of all ranks) they are.
pub(super) fn of(run: &Run, launchers: u64) -> Result<String, String> {
    let (mut nodes, mut ranks) = (BTreeSet::new(), BTreeSet::new());
    let mut merged = None;
    for log in &run.logs {
        match unit(&log.name) {
            Some(Unit::Node(node)) => {
                nodes.insert(node);
            }
            Some(Unit::Rank(rank)) => {
                ranks.insert(rank);
            }
            None if tags(log, launchers, (&mut nodes, &mut ranks)) => {}
            None if log.training => merged = Some(&log.name),
            // Exit codes and the like.
            None => {}
        }
    }
    if let Some(merged) = merged {
        return Ok(format!(
            "{merged}, which is taken as the log of all ranks: neither its name nor its lines are of one rank or node"
        ));
    }
    let world = run.training.as_ref().and_then(|training| training.summary_ranks).or(run.settings.ranks);
    let whole = ranks.iter().next_back().is_some_and(|last| last.saturating_add(1) == ranks.len() as u64);
    let (nodes, ranks) = (nodes.len() as u64, ranks.len() as u64);
    if nodes >= launchers.max(1) {
        return Ok(format!("the logs of {nodes} of {launchers} launchers"));
    }
    match world.filter(|_| ranks > 0) {
        Some(world) if ranks >= world => Ok(format!("the logs of {ranks} of {world} ranks")),
        _ if nodes == 0 && ranks == 1 => {
            Err(format!("logs of 1 of {launchers} launchers, and of one rank of it"))
        }
        Some(world) if nodes == 0 => {
            Err(format!("the logs of {ranks} of {world} ranks, {launchers} launchers"))
        }
        // As many of each launcher; how many that should be is not known.
        None if nodes == 0 && ranks > 1 && ranks % launchers.max(1) == 0 && whole => {
            Ok(format!("the logs of ranks 0 to {}; how many there were is not known", ranks - 1))
        }
        _ if nodes == 0 && ranks > 0 => Err(format!(
            "logs of {ranks} ranks, and there were {launchers} launchers with ranks of their own"
        )),
        _ => Err(format!("logs of {nodes} of {launchers} launchers")),
    }
}

/// Adds what the tags of a file say, if most of its lines have one.
fn tags(log: &LogFile, launchers: u64, (nodes, ranks): (&mut BTreeSet<String>, &mut BTreeSet<u64>)) -> bool {
    let speakers = &log.speakers;
    if speakers.tagged * 2 <= speakers.lines {
        return false;
    }
    if !speakers.hosts.is_empty() {
        nodes.extend(speakers.hosts.iter().cloned());
        return true;
    }
    ranks.extend(speakers.ranks.iter().map(|rank| u64::from(*rank)));
    // A launcher's tasks are its nodes if none has a higher number.
    if speakers.tasks.iter().all(|task| u64::from(*task) < launchers) {
        nodes.extend(speakers.tasks.iter().map(u32::to_string));
    } else {
        ranks.extend(speakers.tasks.iter().map(|rank| u64::from(*rank)));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, want) in [
            ("logs/rank-0.log", Some(Unit::Rank(0))),
            ("node_03.txt", Some(Unit::Node("3".to_owned()))),
            ("node-1/train.log", None),
            ("worker12.log.gz", Some(Unit::Node("12".to_owned()))),
            ("launchers.txt", None),
            ("dsv3-master-0.log", Some(Unit::Node("master 0".to_owned()))),
            ("dsv3-launcher-0.log", None),
            ("train.log", None),
            ("slurm-4711.out", None),
        ] {
            assert_eq!(unit(name), want, "{name}");
        }
    }
}
