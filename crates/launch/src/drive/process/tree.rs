//! A process and its descendants.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// A process that cannot be mistaken for a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// Its number.
    pub(super) pid: u32,
    /// When it was started, in ticks of the kernel since its own start; 0 where the kernel did not tell.
    started: u64,
}

/// Parent and start of a process.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    // Field 22 of the whole line is the start; two were taken of the 20 from the state on.
    let started = fields.nth(17)?.parse().ok()?;
    Some((parent, started))
}

impl Process {
    pub(super) fn of(pid: u32) -> Self {
        Self { pid, started: stat(pid).map_or(0, |(_, started)| started) }
    }

    /// As a line of a file.
    pub(super) fn note(&self) -> String {
        format!("{} {}\n", self.pid, self.started)
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().map(str::parse);
        let (pid, started) = (words.next()?.ok()?, words.next()?.ok()?);
        Some(Self { pid: u32::try_from(pid).ok()?, started })
    }

    pub(super) fn lives(&self) -> bool {
        stat(self.pid).is_some_and(|(_, started)| started == self.started)
    }

    /// SIGTERM to it alone: it tells its own children.
    pub(super) fn terminate(&self) {
        if self.lives() {
            signal(self.pid, Signal::TERM);
        }
    }

    /// SIGKILL to it alone.
    pub(super) fn kill(&self) {
        if self.lives() {
            signal(self.pid, Signal::KILL);
        }
    }

    /// Its number and the beginning of its arguments, for people.
    pub(super) fn words(&self) -> String {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let short: String = line.chars().filter(|c| !c.is_control()).take(60).collect();
        format!("{} ({})", self.pid, short.trim())
    }

    /// SIGKILL to it and all its descendants, whatever group they are in; gives how many there were.
    pub(super) fn kill_tree(&self) -> usize {
        let all = self.tree();
        // The parents first: they start nothing new then.
        all.iter().for_each(Self::kill);
        all.len()
    }

    /// It and all its descendants, parents first; none where it does not live.
    pub(super) fn tree(&self) -> Vec<Self> {
        if !self.lives() {
            return Vec::new();
        }
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && let Some((parent, _)) = stat(pid)
            {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut all = vec![self.pid];
        let mut next = 0;
        while let Some(pid) = all.get(next).copied() {
            all.extend(children.remove(&pid).unwrap_or_default());
            next += 1;
        }
        all.into_iter().map(Self::of).collect()
    }

    /// This process and those above it.
    pub(super) fn own_line() -> Vec<u32> {
        let mut line = vec![std::process::id()];
        while let Some((parent, _)) = line.last().and_then(|pid| stat(*pid)).filter(|(parent, _)| *parent > 0)
        {
            line.push(parent);
        }
        line
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_tree_is_killed_over_groups_and_a_number_used_again_is_no_life() {
        // `timeout` puts its command into a group of its own.
        let mut child = Command::new("sh").args(["-c", "timeout 60 sleep 60; true"]).spawn().unwrap();
        let process = Process::of(child.id());
        let mut tries = 0;
        while process.tree().len() < 3 && tries < 100 {
            std::thread::sleep(Duration::from_millis(20));
            tries += 1;
        }
        let all = process.tree();
        assert_eq!(all.len(), 3, "sh, timeout, sleep");
        assert!(Process::read(&process.note()).unwrap().lives());
        assert!(!Process { started: process.started + 1, ..process }.lives());
        assert_eq!(process.kill_tree(), 3);
        child.wait().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(all.iter().all(|one| !one.lives()));
    }
}
