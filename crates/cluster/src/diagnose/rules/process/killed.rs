//! Processes that end by a signal and say nothing.

use super::story::{RESIDUAL, confident_claims, ended_well, line};
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::{Case, Event};

/// Kinds of lines. Followers: launchers also kill what is left after a failure.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "process-killed",
        Role::Follower,
        &[
            "exitcode",
            "exit code",
            "exited on signal",
            "(SIGKILL)",
            "(SIGSEGV)",
            "(SIGBUS)",
            "Segmentation fault",
            ": Killed",
            "Killed",
            "Bus error",
            " Killed ",
            "terminated by signal",
            "killed by signal",
            "exit=137",
            "exit=139",
            "exited with code 13",
            "exit status 13",
            "caught signal 11",
            "Caught signal 11",
            "return code",
            "terminated with signal",
            "exited with signal",
            "died with <Signals.SIG",
            "Signal: Segmentation fault",
            "Segfault encountered",
            "returncode=-9",
            "A worker died or was killed",
            "worker exit type: SYSTEM_ERROR",
            "Worker exit type: SYSTEM_ERROR",
            "Worker unexpectedly exits with a connection error",
            "The actor died unexpectedly before finishing",
            "WorkerCrashedError",
        ],
        r"A worker died or was killed while executing|[Ww]orker exit type: SYSTEM_ERROR|Worker unexpectedly exits with a connection error|The actor died unexpectedly before finishing|WorkerCrashedError|exitcode\s*: ?-(?P<a>9|11|7)\b|exit code:? ?-(?P<b>9|11|7)\b|return ?code\s?[ =:]\s?-(?P<g>9|11|7)\b|(?:terminated|exited) with signal (?:SIGKILL|SIGSEGV|SIGBUS|9|11|7)\b|died with <Signals\.SIG(?:KILL|SEGV|BUS)|Signal: Segmentation fault|Segfault encountered|exit(?:ed with)? (?:code|status):?[ =]?(?:137|139|135)\b|(?:\s|^|last-)exit=(?:137|139)\b|Signal (?P<c>9|11|7) \(SIG\w+\) received by PID (?P<pid>\d+)|process rank (?P<mpi>\d+) .*exited on signal (?P<d>9|11|7)\b|srun: error: (?P<host>[\w.-]+): task (?P<task>\d+): (?:Killed|Segmentation fault|Bus error)|line \d+:\s+\d+ (?:Killed|Segmentation fault|Bus error)|(?:killed|terminated) by signal:? (?:9|11|7|SIGKILL|SIGSEGV|SIGBUS|Killed|Segmentation fault)|^\s*Killed\s*$|^\s*(?:Fatal Python error: )?(?:Segmentation fault|Bus error)|[Cc]aught signal 11",
    ),
    line(
        "elastic-failed-rank",
        Role::Context,
        &["(local_rank: "],
        r"rank\s*: (?P<failed>\d+) \(local_rank: \d+\)",
    ),
    line(
        "elastic-failed-local-rank",
        Role::Context,
        &["local_rank: "],
        r"failed \(exitcode: -(?:9|11|7)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[Rule {
    cause: "rank-killed",
    needs: &["process-killed"],
    unless: &["oom-killed"],
    confidence: Confidence::Likely,
    because: "a process was ended by a signal without a word of its own",
    rules_out: &[
        "no line tells of the kernel's or the container's out-of-memory killer",
        "no rank reported a failure before: the launcher did not kill it to clean up",
    ],
    refine: Some(unexplained),
    ..Rule::LIKELY
}];

/// Whether a failure only says that a rank waited in vain.
fn waited_in_vain(event: &Event) -> bool {
    event.signal.contains("timeout") || event.signal.contains("watchdog") || event.signal.contains("counters")
}

/// The rank that an event names as killed.
fn victim(case: &Case, event: &Event) -> Option<String> {
    if let Some(rank) = event.field("mpi").or(event.field("task")) {
        return Some(format!("rank {rank}"));
    }
    let near = case.events("elastic-failed-rank").find(|rank| {
        rank.place.file == event.place.file
            && rank.place.line < event.place.line
            && event.place.line - rank.place.line <= 3
    });
    if let Some(rank) = near.and_then(|near| near.field("failed")) {
        return Some(format!("rank {rank}"));
    }
    // The summary comes last and names the global rank of the process that ended first.
    if let Some(rank) = case.first("elastic-failed-rank").and_then(|summary| summary.field("failed")) {
        return Some(format!("rank {rank}"));
    }
    if let Some(local) = case.first("elastic-failed-local-rank").and_then(|failed| failed.field("local")) {
        return Some(match event.node.as_deref() {
            Some(node) => format!("local rank {local} of {node}"),
            None => format!("local rank {local}"),
        });
    }
    event.rank.map(|rank| format!("rank {rank}"))
}

/// Whether Slurm killed the task because another one had ended with an exit code. Its lines come from several programs at once, and not
/// always in the order of what happened: the killed task may be named first.
fn ended_with_its_step(case: &Case, event: &Event) -> bool {
    let Some(task) = event.field("task") else { return false };
    let by_itself = |other: &Event| {
        other.place.file == event.place.file
            && other.field("tasks") != Some(task)
            && other.field("what").is_some_and(|what| what.starts_with("Exited with exit code"))
    };
    case.has("slurm-cancelled") && case.events("srun-task-exit").any(by_itself)
}

fn unexplained(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("process-killed")?;
    if ended_well(case, event) {
        return None;
    }
    // Slurm kills what is left of a step that it ends.
    let ended = ["slurm-time-limit-reached", "slurm-node-failed", "slurm-cancelled"];
    if case.first_of(&ended).is_some_and(|end| end.before(event) == Some(true)) {
        return None;
    }
    if ended_with_its_step(case, event) {
        return None;
    }
    // A process that ended by itself, with an error, is no victim.
    let failures: Vec<&Event> = case
        .events
        .iter()
        .filter(|other| other.role == Role::Failure && other.place != event.place)
        .collect();
    if failures.iter().any(|other| !waited_in_vain(other) && other.before(event) != Some(false)) {
        return None;
    }
    let explained = confident_claims(case, RESIDUAL).iter().any(|other| {
        other.cause != "efa-peer-unresponsive"
            && other
                .evidence
                .iter()
                .filter_map(|&place| case.at(place))
                .any(|evidence| evidence.before(event) != Some(false))
    });
    if explained {
        return None;
    }
    claim.evidence = vec![event.place];
    let signal = ["a", "b", "c", "d", "g"].iter().find_map(|name| event.field(name));
    let segfault = signal == Some("11") || event.text.contains("egmentation");
    let bus = signal == Some("7") || event.text.contains("Bus error") || event.text.contains("SIGBUS");
    let subject = victim(case, event);
    if let Some(subject) = &subject {
        claim.because = if segfault {
            format!("{subject} ended by a segmentation fault without a word of its own")
        } else if bus {
            format!("{subject} ended by a bus error (SIGBUS) without a word of its own")
        } else {
            format!("{subject} was ended by a signal (SIGKILL) without a word of its own")
        };
    }
    claim.subject = subject;
    claim.next = Some(
        if segfault {
            "a core dump or `python -X faulthandler` of that rank, and `dmesg -T | grep segfault` on its host"
        } else if bus {
            "`df -h /dev/shm` in its container while it runs: a full /dev/shm is the usual reason of a bus error"
        } else {
            "`dmesg -T | grep -i -E 'oom|killed process'` on its host, or the pod's last state: the out-of-memory killer is the usual sender"
        }
        .to_owned(),
    );
    if failures.iter().any(|other| other.before(event) == Some(true))
        && case.first_failure().is_some_and(|first| first.rank.is_none())
    {
        claim.confidence = Confidence::Possible;
    }
    Some(claim)
}
