//! Waits for all ranks, and stops them when it is time.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};

use super::{End, Failure, LocalLaunch, Outcome, RankExit, RankResult};
use crate::interrupt::Watch;
use crate::poll::wait;

/// Signals and deadlines are looked at this often; ends of ranks wake the wait at once.
const SLICE: Duration = Duration::from_millis(50);

/// How far stopping has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// After a first failure: the others find out themselves, until then.
    Grace(Instant),
    /// SIGTERM was sent; SIGKILL follows then.
    Terminating(Instant),
    Killing,
}

struct Rank {
    child: Child,
    /// `None` on kernels without it: then the slice alone wakes us.
    handle: Option<OwnedFd>,
    result: Option<RankResult>,
}

/// Waits until every child has ended and is reaped.
pub(super) fn supervise(children: Vec<Child>, launch: &LocalLaunch, signals: &Watch) -> Outcome {
    let started = Instant::now();
    let mut ranks: Vec<Rank> = children
        .into_iter()
        .map(|child| {
            let handle = pid(&child).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            Rank { child, handle, result: None }
        })
        .collect();
    let mut end = End::Ended;
    let mut stage = Stage::Running;
    let mut first_failure = None;
    let mut seen_signals = 0;
    while ranks.iter().any(|rank| rank.result.is_none()) {
        sleep(&ranks);
        let stopping = matches!(stage, Stage::Terminating(_) | Stage::Killing);
        let failure = reap(&mut ranks, stopping);
        if first_failure.is_none() && !stopping {
            first_failure = failure;
        }
        let now = Instant::now();
        let term_by = now.checked_add(launch.term_grace).unwrap_or(now);
        // One stage at a time: even an interrupt lets the ranks clean up first.
        let count = signals.count();
        let next = match stage {
            _ if count > seen_signals => {
                seen_signals = count;
                end = End::Interrupted;
                if stopping { Stage::Killing } else { Stage::Terminating(term_by) }
            }
            Stage::Running | Stage::Grace(_) if launch.deadline.is_some_and(|limit| started.elapsed() >= limit) => {
                end = End::Deadline;
                Stage::Terminating(term_by)
            }
            Stage::Running if first_failure.is_some() => Stage::Grace(now.checked_add(launch.grace).unwrap_or(now)),
            Stage::Grace(until) if now >= until => Stage::Terminating(term_by),
            Stage::Terminating(until) if now >= until => Stage::Killing,
            other => other,
        };
        if next != stage {
            stage = next;
            match stage {
                Stage::Terminating(_) => signal_all(&ranks, Signal::TERM),
                Stage::Killing => signal_all(&ranks, Signal::KILL),
                Stage::Running | Stage::Grace(_) => {}
            }
        }
    }
    Outcome { end, first_failure, ranks: ranks.into_iter().filter_map(|rank| rank.result).collect() }
}

fn sleep(ranks: &[Rank]) {
    let living = ranks.iter().filter(|rank| rank.result.is_none());
    let mut fds: Vec<PollFd<'_>> =
        living.filter_map(|rank| rank.handle.as_ref()).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    wait(&mut fds, Some(SLICE));
}

/// Reaps every rank that has ended; gives the failure among them that most likely came first.
fn reap(ranks: &mut [Rank], stopped: bool) -> Option<Failure> {
    let mut failure: Option<Failure> = None;
    for (number, rank) in ranks.iter_mut().enumerate().filter(|(_, rank)| rank.result.is_none()) {
        let Some(exit) = reap_one(&mut rank.child) else { continue };
        rank.handle = None;
        rank.result = Some(RankResult { exit, stopped });
        // Found in one look, a killed rank is the cause and an exit code the effect.
        let killed = matches!(exit, RankExit::Signal(_));
        let known_killed = failure.is_some_and(|known| matches!(known.exit, RankExit::Signal(_)));
        if !exit.is_success() && (failure.is_none() || (killed && !known_killed)) {
            failure = Some(Failure { rank: number, exit });
        }
    }
    failure
}

/// Reaps a child if it has ended, with whatever it left running.
fn reap_one(child: &mut Child) -> Option<RankExit> {
    let id = pid(child)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if let Ok(None) = waitid(WaitId::Pid(id), options) {
        return None;
    }
    // Before the child is reaped its number cannot be given to anybody else, so this hits only what the
    // rank itself started and left.
    let _ = kill_process_group(id, Signal::KILL);
    match child.wait() {
        Ok(status) => Some(RankExit::from_status(status)),
        // Somebody else's wait took it: it is gone, and how is unknown.
        Err(_) => Some(RankExit::Code(1)),
    }
}

fn signal_all(ranks: &[Rank], signal: Signal) {
    for id in ranks.iter().filter(|rank| rank.result.is_none()).filter_map(|rank| pid(&rank.child)) {
        let _ = kill_process_group(id, signal);
        // A stopped process would sleep through anything but SIGKILL.
        let _ = kill_process_group(id, Signal::CONT);
    }
}

/// Kills and reaps what was started.
pub(super) fn kill_all(children: &mut [Child]) {
    for child in children {
        if let Some(id) = pid(child) {
            let _ = kill_process_group(id, Signal::KILL);
        }
        let _ = child.wait();
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}
