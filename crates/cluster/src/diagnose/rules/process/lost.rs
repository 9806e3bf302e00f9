//! A whole node that falls silent.

use std::collections::{BTreeMap, BTreeSet};

use super::story::{RESIDUAL, confident_claims, ended_well, line};
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::{Case, Event};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "connection-to-host-lost",
        Role::Follower,
        &[
            "remote peer ",
            "onnection reset by peer",
            "onnection timed out",
            "No route to host",
            "Host is unreachable",
            "lost communication with a remote daemon",
            "onnection closed by peer",
        ],
        r"remote peer (?P<a>[\w.-]+)(?:<|\[)|(?i)(?:(?:recv|read|receive) from|(?:send|write|connect(?:ed|ion)?) to|\bpeer|\bhost)[ =:]+\[?(?P<b>[A-Za-z0-9][\w-]*(?:\.[\w-]+)*)\]?[<:]?\S*.*?(?:connection (?:reset|timed out|closed)|no route to host|host is unreachable)|(?i)(?:connection (?:reset by peer|timed out|closed by peer)|no route to host|host is unreachable).*?(?:from|to|with|peer|host)[ =:]+\[?(?P<c>[A-Za-z0-9][\w-]*(?:\.[\w-]+)*)|(?i)connection (?:reset|timed out|closed)(?: by (?:remote )?peer)?:? \[(?P<d>[A-Za-z0-9][\w-]*(?:\.[\w-]+)+)\]",
    ),
    line(
        "node-out-of-reach",
        Role::Follower,
        &[
            "failed to send a keep-alive heartbeat",
            "on node ",
            "No route to host",
            "Host is unreachable",
            "not responding",
            "missed too many heartbeats",
            "because its node has died",
        ],
        r"missed too many heartbeats|because its node has died|node '(?P<a>[\w.-]+?)(?:_\d+_\d+)?' has failed to send a keep-alive heartbeat|[Rr]emote daemon:? \[[^\]]*\] on node (?P<b>[\w.-]+)|[Nn]odes? (?P<c>[\w.-]+) not responding|No route to host|Host is unreachable",
    ),
    line(
        "node-not-ready",
        Role::Warning,
        &["NodeNotReady", "condition=Ready", "NodeLost", "stopped posting node status", "NodeStatusUnknown"],
        r"^kube-node (?P<a>\S+) condition=Ready status=(?:False|Unknown)|kube-event \S*?Node/(?P<b>\S+) .*reason=NodeNotReady|Node (?P<c>\S+) status is now: NodeNotReady|reason=NodeLost|reason=NodeNotReady|stopped posting node status",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[Rule {
    cause: "node-lost",
    any: &["connection-to-host-lost", "node-out-of-reach", "node-not-ready", "peer-closed"],
    unless: &["process-killed", "oom-killed"],
    confidence: Confidence::Likely,
    because: "all ranks of one node fall silent without a word while the others lose their connections to it",
    rules_out: &["no rank of it reports an exception, a signal or a teardown, as where a process ends"],
    refine: Some(silent),
    ..Rule::LIKELY
}];

/// Evidence of a group of ranks: a node, or a file where no node is known.
#[derive(Default)]
struct Group<'a> {
    good: Option<&'a Event>,
    bad: Option<&'a Event>,
}

fn groups(case: &Case) -> BTreeMap<String, Group<'_>> {
    let mut groups: BTreeMap<String, Group<'_>> = BTreeMap::new();
    let named = case.events.iter().any(|event| event.node.is_some() && event.rank.is_some());
    let by_file = !named && files_are_nodes(case);
    for event in &case.events {
        let key = match (&event.node, event.rank.and_then(|rank| case.node_of(rank))) {
            (_, Some(node)) => format!("node {node}"),
            (Some(node), None) => node.to_string(),
            (None, None) if named || event.rank.is_some() && !by_file => continue,
            (None, None) => format!("file {}", event.place.file),
        };
        let group = groups.entry(key).or_default();
        match event.role {
            Role::Failure | Role::Follower => group.bad = group.bad.or(Some(event)),
            Role::Progress | Role::Success | Role::Context => group.good = Some(event),
            Role::Warning => {}
        }
    }
    groups
}

/// Whether a file is a node's: there are several, and one has several ranks' lines.
fn files_are_nodes(case: &Case) -> bool {
    let mut ranks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for event in &case.events {
        ranks.entry(event.place.file).or_default().extend(event.rank);
    }
    ranks.len() > 1 && ranks.values().any(|ranks| ranks.len() > 1)
}

/// Whether the ranks that report nothing wrong are the block of ranks of one node, and all others report something.
fn block(case: &Case) -> bool {
    let bad: BTreeSet<u32> = case
        .events
        .iter()
        .filter(|event| matches!(event.role, Role::Failure | Role::Follower))
        .filter_map(|event| event.rank)
        .collect();
    let quiet: Vec<u32> = case.ranks_seen.iter().copied().filter(|rank| !bad.contains(rank)).collect();
    let (Some(&first), Some(&last), Ok(count)) = (quiet.first(), quiet.last(), u32::try_from(quiet.len()))
    else {
        return false;
    };
    count >= 2
        && last - first + 1 == count
        && first.is_multiple_of(count)
        && u32::try_from(case.ranks_seen.len()).is_ok_and(|seen| seen > count && seen.is_multiple_of(count))
}

/// The host that an event names.
fn host(event: &Event) -> Option<&str> {
    ["a", "b", "c", "d"].iter().find_map(|name| event.field(name)).map(|host| host.trim_end_matches('.'))
}

/// A node that is not ready, as the only thing that is known.
fn not_ready(mut claim: Claim, state: &Event) -> Claim {
    claim.confidence = Confidence::Possible;
    claim.because = "a node is not ready, and nothing shows whether the job ran on it".into();
    claim.rules_out.clear();
    claim.evidence = vec![state.place];
    claim.subject = host(state).map(str::to_owned);
    claim.next("the nodes of the job: `kubectl get pods -o wide`, and the output of its ranks")
}

fn silent(case: &Case, mut claim: Claim) -> Option<Claim> {
    let lost: Vec<&Event> = ["connection-to-host-lost", "node-out-of-reach", "peer-closed"]
        .iter()
        .flat_map(|signal| case.events(signal))
        .collect();
    let state = case.first("node-not-ready");
    if lost.first().copied().or(state).is_some_and(|event| ended_well(case, event)) {
        return None;
    }
    let other_failure = case.events.iter().any(|event| {
        event.role == Role::Failure && event.signal != "node-not-ready" && !event.signal.contains("timeout")
    });
    if other_failure || !confident_claims(case, RESIDUAL).is_empty() {
        return None;
    }
    let groups = groups(case);
    let mut quiet = groups.iter().filter(|(_, group)| group.bad.is_none() && group.good.is_some());
    let one = quiet.next().filter(|_| quiet.next().is_none() && groups.len() >= 2);
    let named = lost.iter().find_map(|event| host(event));
    let agree =
        named.is_some_and(|name| lost.iter().filter_map(|event| host(event)).all(|other| other == name));
    let out_of_reach = case.first("node-out-of-reach");
    let subject = match (state, one, out_of_reach) {
        // A node that is not ready and that nobody misses is another job's.
        // Where nothing else is known, it may be that of this job.
        (Some(state), ..) if !case.events.iter().any(|event| event.role == Role::Follower) => {
            let only = case
                .events
                .iter()
                .all(|event| event.text.starts_with("kube-node ") || event.text.starts_with("kube-event "));
            return only.then(|| not_ready(claim, state));
        }
        (Some(state), ..) => host(state).map(str::to_owned).or_else(|| named.map(str::to_owned)),
        (None, Some((name, _)), _) if lost.len() >= 2 => {
            let name = if name.starts_with("file ") || agree && name.starts_with("node ") {
                named.unwrap_or(name)
            } else {
                name
            };
            Some(name.to_owned())
        }
        (None, None, _) if agree && lost.len() >= 2 && block(case) => named.map(str::to_owned),
        (None, _, Some(event)) if agree && lost.len() >= 2 => host(event).or(named).map(str::to_owned),
        _ => return None,
    };
    claim.evidence = state
        .into_iter()
        .chain(out_of_reach)
        .chain(lost.iter().copied().take(3))
        .map(|event| event.place)
        .collect();
    claim.evidence.extend(one.and_then(|(_, group)| group.good).map(|event| event.place));
    if state.is_some() && !lost.is_empty() {
        claim.confidence = Confidence::Certain;
    }
    claim.subject = subject;
    claim.next = Some("whether that host is up (`ping`, its console, the provider's event list), and its kernel log from before the time".to_owned());
    Some(claim)
}
