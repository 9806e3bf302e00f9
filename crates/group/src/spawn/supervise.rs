//! Waits for all ranks, and stops them when it is time.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};

use super::crew::Limits;
use super::{End, Failure, Outcome, RankExit, RankResult};
use crate::interrupt::Watch;
use crate::poll::wait;

/// Signals and deadlines are looked at this often; ends of ranks wake the wait at once.
const SLICE: Duration = Duration::from_millis(50);

/// The system closes a killed process's connections before it reports its end: survivors may notice, say so
/// and end in between. A kill that shows within this time of a first exit code counts as the first failure.
const SETTLE: Duration = Duration::from_millis(300);

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
    number: usize,
    child: Child,
    /// `None` on kernels without it: then the slice alone wakes us.
    handle: Option<OwnedFd>,
    result: Option<RankResult>,
}

/// Waits until every child has ended and is reaped.
pub(super) fn supervise(children: Vec<(usize, Child)>, limits: Limits, signals: &Watch) -> Outcome {
    let started = Instant::now();
    let mut ranks: Vec<Rank> = children
        .into_iter()
        .map(|(number, child)| {
            let handle = pid(&child).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            Rank { number, child, handle, result: None }
        })
        .collect();
    let mut end = End::Ended;
    let mut stage = Stage::Running;
    let mut first: Option<(Failure, Instant)> = None;
    let mut seen_signals = 0;
    while ranks.iter().any(|rank| rank.result.is_none()) {
        sleep(&ranks);
        let stopping = matches!(stage, Stage::Terminating(_) | Stage::Killing);
        let failure = reap(&mut ranks, stopping, started);
        let now = Instant::now();
        if let (Some(failure), false) = (failure, stopping) {
            first = match first {
                None => Some((failure, now)),
                Some((known, at)) if is_cause(failure.exit, known.exit) && now - at < SETTLE => {
                    Some((failure, at))
                }
                known => known,
            };
        }
        let term_by = now.checked_add(limits.term_grace).unwrap_or(now);
        // One stage at a time: even an interrupt lets the ranks clean up first.
        let count = signals.count();
        let next = match stage {
            _ if count > seen_signals => {
                seen_signals = count;
                end = End::Interrupted;
                if stopping { Stage::Killing } else { Stage::Terminating(term_by) }
            }
            Stage::Running | Stage::Grace(_)
                if limits.deadline.is_some_and(|limit| started.elapsed() >= limit) =>
            {
                end = End::Deadline;
                Stage::Terminating(term_by)
            }
            Stage::Running if first.is_some() => Stage::Grace(now.checked_add(limits.grace).unwrap_or(now)),
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
    let first_failure = first.map(|(failure, _)| failure);
    Outcome { end, first_failure, ranks: ranks.into_iter().filter_map(|rank| rank.result).collect() }
}

fn sleep(ranks: &[Rank]) {
    let living = ranks.iter().filter(|rank| rank.result.is_none());
    let mut fds: Vec<PollFd<'_>> =
        living.filter_map(|rank| rank.handle.as_ref()).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    wait(&mut fds, Some(SLICE));
}

/// Reaps every rank that has ended; gives the failure among them that most likely came first.
fn reap(ranks: &mut [Rank], stopped: bool, started: Instant) -> Option<Failure> {
    let mut failure: Option<Failure> = None;
    for rank in ranks.iter_mut().filter(|rank| rank.result.is_none()) {
        let Some(exit) = reap_one(&mut rank.child) else { continue };
        rank.handle = None;
        rank.result = Some(RankResult { rank: rank.number, exit, stopped, after: started.elapsed() });
        if !exit.is_success() && failure.is_none_or(|known| is_cause(exit, known.exit)) {
            failure = Some(Failure { rank: rank.number, exit });
        }
    }
    failure
}

/// Whether the later of two ends that lie close together is more likely the cause of the other: a kill is
/// the cause, an exit code the effect. Not so SIGABRT, by which C++ programs end on any error.
fn is_cause(later: RankExit, known: RankExit) -> bool {
    matches!(known, RankExit::Code(_))
        && matches!(later, RankExit::Signal(signal) if signal != Signal::ABORT.as_raw())
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
