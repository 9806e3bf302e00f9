//! How far a script on hosts is, by the lines that its workers print.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::bundle::clock::span;
use crate::run::Run;
use crate::spec::Contract;

/// Between two lines of progress while nothing changes.
const EVERY: Duration = Duration::from_secs(20);

/// A host that `ssh` did not reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unreached {
    /// Its name or address.
    pub(super) host: String,
    /// What `ssh` says of it.
    pub(super) why: String,
}

/// What is known of the step that runs.
#[derive(Debug)]
pub(super) struct Progress {
    /// Its name; empty before the first.
    pub(super) step: String,
    /// The first host that could not be reached.
    pub(super) unreached: Option<Unreached>,
    begun: Instant,
    shown: Instant,
    /// Nodes whose worker said that its ranks start.
    nodes: BTreeSet<u32>,
    /// Ranks that a worker said to have ended.
    ended: BTreeSet<u32>,
}

impl Progress {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            step: String::new(),
            unreached: None,
            begun: now,
            shown: now,
            nodes: BTreeSet::new(),
            ended: BTreeSet::new(),
        }
    }

    /// A step begins.
    pub(super) fn step(&mut self, name: &str, now: Instant) {
        *self = Self { unreached: self.unreached.take(), ..Self::new(now) };
        name.clone_into(&mut self.step);
    }

    /// Takes a line: launchers put tags before what the worker says.
    pub(super) fn hear(&mut self, line: &str) {
        if let Some((_, said)) = line.split_once("worker: node ") {
            let number = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok();
            if said.contains(": starting ") || said.contains(": its ranks of ") {
                self.nodes.extend(number(said));
            } else if let Some((_, rank)) = said.split_once(": rank ")
                && (rank.contains(" ended with ") || rank.contains(" was killed"))
            {
                self.ended.extend(number(rank));
            }
        }
        if self.unreached.is_none() {
            self.unreached = unreached(line);
        }
    }

    /// The progress, if it is time to show it again. `recorded`: ranks that left a record of their end.
    pub(super) fn due(&mut self, run: &Run, recorded: usize, now: Instant) -> Option<String> {
        if self.step.is_empty() || now.duration_since(self.shown) < EVERY {
            return None;
        }
        self.shown = now;
        Some(format!("{}, {}", self.words(run, recorded), span(now.duration_since(self.begun).as_secs())))
    }

    /// The same without the time.
    pub(super) fn words(&self, run: &Run, recorded: usize) -> String {
        let name = &self.step;
        let Some(step) = run.steps.iter().find(|step| step.name == *name) else {
            return format!("step {name}");
        };
        let (each, what) = match step.contract {
            Contract::Ranks => (run.gpus_per_node, "ranks"),
            Contract::Nodes => (1, "nodes"),
        };
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let all = step.nodes * each;
        let begun = count(self.nodes.len()).saturating_mul(each).min(all);
        let ended = count(self.ended.len().max(recorded)).min(all);
        if ended > 0 {
            format!("step {name}: {ended} of {all} {what} have ended")
        } else if begun < all {
            format!("step {name}: {begun} of {all} {what} at the rendezvous")
        } else {
            format!("step {name}: {all} of {all} {what} run")
        }
    }
}

/// The host that a complaint of `ssh` is about.
fn unreached(line: &str) -> Option<Unreached> {
    let found = |host: &str, why: &str| {
        let host = host.trim();
        (!host.is_empty()).then(|| Unreached { host: host.to_owned(), why: why.trim().to_owned() })
    };
    let (_, said) = line.split_once("ssh: ")?;
    if let Some(rest) = said.strip_prefix("Could not resolve hostname ") {
        let (host, why) = rest.split_once(": ")?;
        return found(host, &format!("its name does not resolve ({})", why.trim()));
    }
    let rest = said.strip_prefix("connect to host ")?;
    let (host, rest) = rest.split_once(" port ")?;
    found(host, rest.split_once(": ")?.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Target;
    use crate::spec::Spec;

    fn run() -> Run {
        let text = "name = \"a\"\nnodes = 2\ngpus_per_node = 2\n[hosts]\nnames = [\"gpu-1\", \"gpu-2\"]\n";
        Run::resolve(&Spec::parse("run.toml", text, &[]).unwrap(), Target::Ssh, None, None).unwrap()
    }

    /// Two nodes of two ranks: each node that starts brings two.
    #[test]
    fn ranks_are_counted_by_what_workers_say() {
        let (run, now) = (run(), Instant::now());
        let mut progress = Progress::new(now);
        assert_eq!(progress.due(&run, 0, now + Duration::from_secs(100)), None, "no step has begun");
        progress.step("intranode", now);
        assert_eq!(progress.due(&run, 0, now + Duration::from_secs(5)), None);
        let at = |seconds| now + Duration::from_secs(seconds);
        progress.hear("[node 0] worker: node 0 of 2: starting ranks 0 to 1 as expertrail");
        assert_eq!(
            progress.due(&run, 0, at(30)).unwrap(),
            "step intranode: 2 of 4 ranks at the rendezvous, 30 s"
        );
        progress.hear("[1,2]<stdout>: worker: node 1 of 2: its ranks of 4 were started by mpirun (Open MPI)");
        assert_eq!(progress.due(&run, 0, at(40)), None, "shown 10 s ago");
        assert_eq!(progress.due(&run, 0, at(125)).unwrap(), "step intranode: 4 of 4 ranks run, 2 min 5 s");
        progress.hear("[node 1] worker: node 1: rank 3 ended with exit code 0 after 80.1 s");
        assert_eq!(progress.words(&run, 0), "step intranode: 1 of 4 ranks have ended");
        assert_eq!(progress.words(&run, 3), "step intranode: 3 of 4 ranks have ended");
        progress.step("preflight", at(200));
        assert_eq!(progress.words(&run, 0), "step preflight");
    }

    #[test]
    fn a_host_that_ssh_does_not_reach_is_named() {
        let of = |line: &str| unreached(line).map(|found| (found.host, found.why));
        assert_eq!(
            of("[node 1] ssh: Could not resolve hostname gpu-9: Name or service not known"),
            Some(("gpu-9".into(), "its name does not resolve (Name or service not known)".into()))
        );
        assert_eq!(
            of("ssh: connect to host 10.0.0.9 port 22: Connection refused"),
            Some(("10.0.0.9".into(), "Connection refused".into()))
        );
        assert_eq!(of("worker: node 0: rank 1 uses mlx5_0"), None);
    }
}
