//! torchrun's rendezvous.

use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::rules::process::story::{RESIDUAL, confident_claims, ended_well, line, text};
use crate::diagnose::{Case, Event};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    text("rendezvous-timeout", Role::Failure, &["RendezvousTimeoutError"]),
    // The store of a static rendezvous (--master_addr) says how many came.
    line(
        "rendezvous-clients-missing",
        Role::Failure,
        &[" clients joined"],
        r"waiting for clients\. (?P<joined>\d+)/(?P<wanted>\d+) clients joined",
    ),
    text(
        "rendezvous-connection",
        Role::Failure,
        &["RendezvousConnectionError", "connection to the C10d store has failed"],
    ),
    line(
        "name-unresolved",
        Role::Warning,
        &[
            "Name or service not known",
            "Temporary failure in name resolution",
            "Name does not resolve",
            "gai error",
            "network addresses of (",
            "No address associated with hostname",
        ],
        r"(?:gai error|network addresses of \((?P<host>[^,]+)|getaddrinfo|socket\.gaierror|Errno -[235]|(?:[Ff]ailed to|[Uu]nable to|[Cc]annot) resolve (?:host(?:name)? )?(?P<name>[\w.-]+)).*(?:Name or service not known|name resolution|does not resolve|cannot be retrieved|No address)|cannot be retrieved \(gai error",
    ),
    text("torchrun-about-to-start", Role::Context, &["=== Starting torchrun ==="]),
    line(
        "kube-pod-not-there",
        Role::Context,
        &["kube-pod ", "kube-container "],
        r"^kube-pod (?P<pod>\S+) .*(?:phase=(?:Pending|Failed|Unknown)|status=(?:Pending|ContainerCreating|Error|Init\S*|ImagePullBackOff|ErrImagePull|CrashLoopBackOff|Evicted|Unknown|Terminating|OOMKilled))|^kube-container (?P<container>\S+) .*waiting=(?:ContainerCreating|PodInitializing)",
    ),
    line(
        "kube-pod-rescheduled",
        Role::Context,
        &["kube-event "],
        r"^kube-event (?P<pod>\S*Pod/\S+) .*reason=(?:TaintManagerEviction|Preempted|Killing|Evicted|NodeNotReady)|^kube-event (?P<job>\S*Job/\S+) .*reason=SuccessfulDelete",
    ),
    line(
        "kube-job-pods",
        Role::Context,
        &["Pods Statuses:"],
        r"Pods Statuses:\s+(?P<active>\d+) (?:Active|Running)\b",
    ),
    line(
        "kube-image-still-pulled",
        Role::Context,
        &["kube-event "],
        r"^kube-event (?P<pod>\S*Pod/\S+) .*reason=Pulling",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "k8s-rdzv-dns-race",
        any: &["rendezvous-timeout", "rendezvous-connection", "name-unresolved"],
        confidence: Confidence::Likely,
        because: "ranks could not resolve or reach rank 0's name yet and ended; rank 0 only waits for them until its time is over",
        rules_out: &["rank 0's own log shows the timeout alone; the others failed before it"],
        refine: Some(race),
        ..Rule::LIKELY
    },
    Rule {
        cause: "rendezvous-peer-missing",
        any: &["torchrun-about-to-start", "rendezvous-timeout", "rendezvous-clients-missing"],
        confidence: Confidence::Likely,
        because: "a node waits at torchrun's rendezvous for another that is not there",
        rules_out: &["the waiting node itself came as far as it could: its log has no failure before"],
        refine: Some(peer_missing),
        ..Rule::LIKELY
    },
];

/// Seconds by which the time that a line without one is given may be off.
const CARRIED: f64 = 60.0;

fn race(case: &Case, mut claim: Claim) -> Option<Claim> {
    let timeout = case.first("rendezvous-timeout");
    let connection = case.first("rendezvous-connection");
    let name = case.first("name-unresolved");
    if case.has("ssh-name-unresolved") && timeout.is_none() && connection.is_none() {
        return None;
    }
    let first = name.or(connection).or(timeout)?;
    // Names that do not resolve at the first attempt are common, and harmless alone.
    if timeout.is_none()
        && connection.is_none()
        && !case.events.iter().any(|event| matches!(event.role, Role::Failure | Role::Follower))
    {
        return None;
    }
    if ended_well(case, first) {
        return None;
    }
    let elsewhere =
        |a: &Event, b: &Event| a.place.file != b.place.file || a.rank != b.rank || a.node != b.node;
    // A traceback has no time of its own, only that of a line before: a difference that small says nothing.
    let long_after = |late: &Event, early: &Event| match (late.time, early.time) {
        (Some(late_at), Some(early_at)) => late.clock == early.clock && late_at - early_at > CARRIED,
        _ => false,
    };
    let sure = match (timeout, connection, name) {
        // Peers ended with an error of their own, rank 0 with the timeout.
        (Some(timeout), Some(connection), _) if elsewhere(timeout, connection) => {
            name.is_some() || !long_after(connection, timeout)
        }
        (Some(timeout), None, Some(name)) if elsewhere(timeout, name) => !long_after(name, timeout),
        (_, Some(_), Some(_)) => true,
        _ => false,
    };
    if !sure {
        claim.confidence = Confidence::Possible;
        claim.because = "ranks did not find each other at the rendezvous: names that did not resolve yet, a peer that is missing, or a closed port".into();
        claim.rules_out.clear();
        claim.next = Some("the first lines of every other pod's log (`kubectl logs --previous`): a connection or name error there, earlier than this, is the cause".to_owned());
    }
    claim.evidence = [name, connection, timeout].into_iter().flatten().map(|event| event.place).collect();
    if let Some(host) = name.and_then(|name| name.field("host").or(name.field("name"))) {
        claim.subject = Some(host.trim_matches(['\'', '"', '(']).to_owned());
    }
    Some(claim)
}

/// Whether the file of the event shows nothing of a run after it.
fn stops_there(case: &Case, event: &Event) -> bool {
    !case.events.iter().any(|other| {
        other.place.file == event.place.file
            && other.place.line > event.place.line
            && other.node == event.node
            && ![
                "rendezvous-timeout",
                "rendezvous-clients-missing",
                "torchrun-start",
                "torchrun-about-to-start",
                "python-traceback",
            ]
            .contains(&other.signal)
            && matches!(other.role, Role::Progress | Role::Success | Role::Failure)
    })
}

fn peer_missing(case: &Case, mut claim: Claim) -> Option<Claim> {
    if case.has_any(&["rendezvous-connection", "name-unresolved"]) {
        return None;
    }
    let missing = case.first("rendezvous-clients-missing");
    let timeout = missing.or_else(|| case.first("rendezvous-timeout"));
    let start = case.events("torchrun-about-to-start").find(|event| stops_there(case, event));
    let waiting = start.or(timeout)?;
    if ended_well(case, waiting) || !confident_claims(case, RESIDUAL).is_empty() {
        return None;
    }
    let failed = case.events.iter().any(|event| {
        event.role == Role::Failure
            && !event.signal.starts_with("rendezvous-")
            && event.before(waiting) == Some(true)
    });
    if failed {
        return None;
    }
    let nodes = ["NUM_NODES", "NNODES"].iter().find_map(|name| case.variable(name)?.parse::<i64>().ok());
    let short = case.first("kube-job-pods").filter(|job| job.number("active") < nodes && nodes.is_some());
    let absent =
        case.first_of(&["kube-pod-not-there", "kube-pod-rescheduled", "kube-image-still-pulled"]).or(short);
    match (start, timeout, absent) {
        (Some(_), Some(_), _) | (_, _, Some(_)) => {}
        _ if missing.is_some() => {}
        _ => {
            claim.confidence = Confidence::Possible;
            claim.rules_out.clear();
            claim.because = "the log ends where torchrun waits for its peers".into();
            claim.next = Some("the state of the other pod: `kubectl get pods -o wide`, and its `kubectl describe pod` where it does not run".to_owned());
        }
    }
    claim.evidence = [start, timeout, absent].into_iter().flatten().map(|event| event.place).collect();
    if let Some(pod) = absent.and_then(|absent| absent.field("pod").or(absent.field("container"))) {
        claim.subject = Some(pod.to_owned());
    }
    Some(claim)
}
