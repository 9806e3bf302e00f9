//! Lines of workers in a pod's log: who is at the rendezvous, which ranks ended how.

use std::collections::{BTreeMap, BTreeSet};

/// How every line of a worker begins.
const MARK: &str = "worker: node ";

/// How a line that carries a part of a file begins, after what launchers put before it.
const FRAME: &str = "::expertrail-file ";

/// What the workers of a log said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Nodes whose ranks were started.
    pub(super) started: BTreeSet<u32>,
    /// Nodes on which all ranks of a step passed, and of how many steps.
    pub(super) passed: BTreeMap<u32, u32>,
    /// Nodes on which a rank failed, with the worker's sentence on the first: `rank 9, exit code 1 after 204.5 s`.
    pub(super) failed: BTreeMap<u32, String>,
}

/// `text` without what mpirun's `--tag-output` puts before it.
pub(super) fn untagged(text: &str) -> &str {
    let tagged = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let Some((tag, rest)) = tagged else { return text };
    let numbers =
        tag.split(',').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let ends = ["<stdout>:", "<stderr>:", "<stdout>: ", "<stderr>: "];
    match ends.iter().rev().find_map(|end| rest.strip_prefix(end)) {
        Some(rest) if numbers && tag.contains(',') => rest,
        _ => text,
    }
}

impl Said {
    /// Takes a line.
    pub(super) fn line(&mut self, line: &str) {
        let Some(rest) = untagged(line).strip_prefix(MARK) else { return };
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (node, rest) = rest.split_at(digits);
        let Ok(node) = node.parse::<u32>() else { return };
        if rest.starts_with(" of ") && rest.contains(": starting ") {
            self.started.insert(node);
        } else if let Some(first) = rest.strip_prefix(": first failure: ") {
            self.failed.entry(node).or_insert_with(|| first.to_owned());
        } else if rest == ": all ranks passed" {
            *self.passed.entry(node).or_default() += 1;
        }
    }
}

/// Whether the line is a part of a file.
pub(super) fn frame(line: &str) -> bool {
    untagged(line).starts_with(FRAME)
}

/// Whether the line is for the person who watches: not a part of a file, and not of a rank other than 0.
pub(super) fn shown(line: &str) -> bool {
    let text = untagged(line);
    let (rank, text) = match text.strip_prefix("[rank ").and_then(|rest| rest.split_once(']')) {
        Some((rank, rest)) => (rank.parse::<u32>().ok(), rest.trim_start()),
        None => (None, text),
    };
    !frame(text) && rank.is_none_or(|rank| rank == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_started_passed_and_failed() {
        let mut said = Said::default();
        for line in [
            "worker: node 0 of 2 (JOB_COMPLETION_INDEX) on x-0: run x, ranks 0-7",
            "worker: node 0 of 2: starting ranks 0-7 as python3",
            "[1,1]<stdout>:worker: node 1 of 2: starting ranks 8-15 as python3",
            "[rank 3] worker: node 7 of 8: starting is what a rank may print",
            "worker: node 0: all ranks passed",
            "worker: node 1: rank 9 ended with exit code 1 after 204.5 s",
            "worker: node 1: first failure: rank 9, exit code 1 after 204.5 s",
            "worker: node 1: first failure: rank 8, exit code 1 after 300.0 s",
        ] {
            said.line(line);
        }
        assert_eq!(said.started, BTreeSet::from([0, 1]));
        assert_eq!(said.passed, BTreeMap::from([(0, 1)]));
        assert_eq!(said.failed, BTreeMap::from([(1, "rank 9, exit code 1 after 204.5 s".to_owned())]));
    }

    #[test]
    fn a_person_sees_rank_0_and_the_worker() {
        for line in
            ["[rank 0] dispatch 12 us", "worker: node 0: x", "plain", "[1,0]<stdout>:plain", "[rank x] y"]
        {
            assert!(shown(line), "{line}");
        }
        for line in [
            "[rank 1] dispatch",
            "::expertrail-file v1 a 1/1 x y",
            "[1,0]<stdout>:::expertrail-file v1",
            "[rank 0] ::expertrail-file v1",
        ] {
            assert!(!shown(line), "{line}");
        }
    }
}
