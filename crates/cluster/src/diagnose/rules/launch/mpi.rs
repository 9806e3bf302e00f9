//! mpirun over ssh: in `MPIJob`s, and inside of Slurm's containers.

use std::collections::BTreeSet;

use crate::diagnose::event::{Role, Signal};
use crate::diagnose::heal::whole;
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::rules::process::story::{ended_well, line, text, unless_fine};
use crate::diagnose::{Case, Event};

/// Kinds of lines. Launchers of `MPIJob`s fail and are started again until the workers are there: their lines are warnings.
pub(super) const SIGNALS: &[Signal] = &[
    text("ssh-host-key-refused", Role::Failure, &["Host key verification failed"]),
    line(
        "slurm-container",
        Role::Context,
        &[
            "--container-image",
            "pyxis: import",
            "pyxis: creating",
            "pyxis: starting",
            "pyxis: container",
            "SLURM_JOB_ID",
            "srun -",
            "#SBATCH",
        ],
        r"--container-image|pyxis: |SLURM_JOB_ID|\bsrun -|#SBATCH",
    ),
    line("mpirun-command", Role::Context, &["mpirun -", "mpiexec -", "mpirun --"], r"\bmpi(?:run|exec) -"),
    line(
        "ssh-name-unresolved",
        Role::Warning,
        &["Could not resolve hostname"],
        r"Could not resolve hostname (?P<host>[^:\s]+)",
    ),
    text("orte-daemons-failed", Role::Warning, &["unable to reliably start one or more daemons"]),
    text("orte-no-route", Role::Warning, &["does not know how to route a message to the specified daemon"]),
    line(
        "ssh-host-reached",
        Role::Progress,
        &["Permanently added '"],
        r"Permanently added '(?P<host>[^',]+)",
    ),
    line(
        "resolv-search",
        Role::Context,
        &["search "],
        r"^\s*search(?P<domains>(?:\s+[\w-]+(?:\.[\w-]+)*)+)\s*$",
    ),
    line(
        "pod-dns-policy",
        Role::Context,
        &["dnsPolicy", "DNSPolicy", "DNS Policy"],
        r#"(?i)dns ?Policy"?\W{1,4}(?P<policy>ClusterFirstWithHostNet|ClusterFirst|Default|None)\b"#,
    ),
    line("pod-host-network", Role::Context, &["hostNetwork"], r#"hostNetwork"?\W{1,3}true"#),
    line(
        "kube-worker-not-up",
        Role::Context,
        &["kube-pod "],
        r"^kube-pod (?P<pod>\S*worker\S*) .*phase=(?:Pending|Failed|Unknown)",
    ),
    line(
        "kube-worker-up",
        Role::Context,
        &["kube-pod "],
        r"^kube-pod (?P<pod>\S*worker\S*) .*(?:phase|status)=Running",
    ),
    // Open MPI wraps its sentences, and names program, folder and node in lines of their own.
    text(
        "mpirun-cannot-start",
        Role::Failure,
        &["unable to find the specified executable file", "unable to launch the specified application"],
    ),
    line("mpirun-program", Role::Context, &["Executable: "], r"(?:^|\s)Executable:\s+(?P<program>\S+)"),
    line(
        "mpirun-folder",
        Role::Context,
        &["Working directory: "],
        r"(?:^|\s)Working directory:\s+(?P<folder>\S+)",
    ),
    line("mpirun-node", Role::Context, &["Node: "], r"(?:^|\s)Node:\s+(?P<on>\S+)\s*$"),
    text(
        "sshd-not-there",
        Role::Failure,
        &[
            "/sshd: No such file",
            "sshd: not found",
            "sshd: command not found",
            "sshd\": stat",
            "sshd\\\": stat",
            "sshd: no such file",
            "sshd: cannot execute",
            "sshd: Not found",
        ],
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "mpirun-inside-srun-container",
        needs: &["ssh-host-key-refused"],
        confidence: Confidence::Likely,
        because: "mpirun runs inside of a Slurm container and starts its daemons by ssh, whose host keys nobody knows there; with PMIx srun starts the ranks itself",
        rules_out: &["mpirun's list of possible reasons is the same for every failure and says nothing"],
        refine: Some(inside_container),
        ..Rule::LIKELY
    },
    Rule {
        cause: "mpijob-launcher-before-workers",
        needs: &["ssh-name-unresolved"],
        confidence: Confidence::Likely,
        because: "the launcher started before the workers' names were in DNS, failed, and a later attempt found them",
        rules_out: &["names that never resolve would have failed the later attempt too"],
        refine: Some(too_early),
        ..Rule::LIKELY
    },
    Rule {
        cause: "k8s-dns-policy",
        needs: &["ssh-name-unresolved"],
        confidence: Confidence::Likely,
        because: "no worker's name resolves, at no attempt: the launcher's resolver does not know the namespace's names",
        rules_out: &["one name alone that fails would point to that worker (often a pod that is Pending)"],
        refine: Some(never),
        ..Rule::LIKELY
    },
    Rule {
        cause: "mpijob-launcher-before-workers",
        any: &["orte-daemons-failed", "orte-no-route"],
        unless: &["ssh-name-unresolved", "ssh-host-key-refused", "sshd-not-there"],
        confidence: Confidence::Possible,
        because: "mpirun could not start its daemons on other hosts; its list of reasons is the same for every failure and says nothing",
        refine: Some(daemons),
        ..Rule::LIKELY
    },
    Rule {
        cause: "mpirun-program-not-started",
        needs: &["mpirun-cannot-start"],
        because: "mpirun cannot start the program on a node: there is no such file there, it may not be run, or an option that mpirun does not know was taken for it",
        rules_out: &["mpirun's daemons did start: names, keys and sshd are in order"],
        refine: Some(not_started),
        ..Rule::CERTAIN
    },
    Rule {
        cause: "image-without-sshd",
        needs: &["sshd-not-there"],
        confidence: Confidence::Certain,
        because: "the workers' image has no sshd, so mpirun's launcher cannot reach them",
        rules_out: &["the launcher's own log only misses the workers; theirs say why"],
        refine: Some(unless_fine),
        ..Rule::LIKELY
    },
];

fn inside_container(case: &Case, mut claim: Claim) -> Option<Claim> {
    let container = case.first("slurm-container");
    let kubernetes = case.tallies.keys().any(|id| id.starts_with("kube-")) || case.has("ssh-name-unresolved");
    match container {
        Some(container) if !kubernetes => claim.evidence.push(container.place),
        _ => {
            claim.confidence = Confidence::Possible;
            claim.because = "ssh does not accept a host's key: mpirun cannot start its daemons there".into();
            claim.rules_out.clear();
            claim.next = Some("how the job was started: mpirun inside of `srun --container-image` is this cause; else the known_hosts of the launcher's user".to_owned());
        }
    }
    claim.evidence.extend(
        ["mpirun-command", "orte-daemons-failed"]
            .iter()
            .filter_map(|id| case.first(id))
            .map(|event| event.place),
    );
    unless_fine(case, claim)
}

/// Lines below mpirun's sentence in which it names what it tried.
const NAMES: u64 = 12;

fn not_started(case: &Case, mut claim: Claim) -> Option<Claim> {
    let said = case.first("mpirun-cannot-start")?;
    let below = |signal: &str| {
        case.events(signal).find(|event| {
            let (here, there) = (said.place, event.place);
            there.file == here.file && there.line > here.line && there.line - here.line <= NAMES
        })
    };
    let (program, folder, node) = (below("mpirun-program"), below("mpirun-folder"), below("mpirun-node"));
    claim.evidence.extend([program, folder, node].into_iter().flatten().map(|event| event.place));
    if let Some(folder) = folder.and_then(|event| event.field("folder")) {
        claim.because =
            format!("mpirun cannot start the program on a node: the working directory {folder} is not there");
    }
    let on = node.and_then(|event| event.field("on"));
    let what = program.and_then(|event| event.field("program"));
    claim.subject = match (what, on) {
        (Some(what), Some(on)) => Some(format!("{what} on {on}")),
        (what, on) => what.or(on).map(str::to_owned),
    };
    unless_fine(case, claim)
}

fn daemons(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = claim.next(
        "the lines of ssh right above (names, host keys, refused connections), and the workers' own logs",
    );
    unless_fine(case, claim)
}

/// Names that ssh did not resolve; each with its first and last line.
fn unresolved(case: &Case) -> Vec<&Event> {
    case.events("ssh-name-unresolved").collect()
}

/// What an attempt that comes after the failed ones reached.
fn reached_later(case: &Case) -> Option<&Event> {
    let last = *unresolved(case).last()?;
    let names: BTreeSet<&str> =
        unresolved(case).iter().filter_map(|event| event.field("host")).map(short).collect();
    // Other hosts of the same attempt are reached before and after the one that is not.
    let given_up = |event: &Event| {
        ["orte-daemons-failed", "orte-no-route"]
            .iter()
            .flat_map(|signal| case.events(signal))
            .any(|end| last.before(end) == Some(true) && end.before(event) == Some(true))
    };
    case.events("ssh-host-reached").find(|event| {
        let same = event.field("host").is_some_and(|host| names.contains(short(host)));
        match last.before(event) {
            Some(true) => same || given_up(event),
            // Another attempt's log, with the same host.
            None => same && event.place.file != last.place.file,
            Some(false) => false,
        }
    })
}

/// The host without its domain.
fn short(host: &str) -> &str {
    host.split('.').next().unwrap_or(host)
}

/// The number at the end of a worker's name.
fn index(host: &str) -> Option<u32> {
    short(host).rsplit('-').next()?.parse().ok()
}

fn too_early(case: &Case, mut claim: Claim) -> Option<Claim> {
    let events = unresolved(case);
    let first = *events.first()?;
    let reached = reached_later(case);
    let well = events.last().is_some_and(|event| ended_well(case, event));
    let done = case.events.iter().find(|good| whole(good) && first.before(good) != Some(false));
    let proof = reached.or(if well { done } else { None })?;
    claim.evidence.push(proof.place);
    // It worked in the end: worth knowing, no failure of the run.
    claim.caution = done.is_some();
    Some(claim)
}

/// Whether something says that the pod asks another resolver than the cluster's.
fn resolver(case: &Case) -> Option<&Event> {
    let host_network = case.has("pod-host-network");
    case.events("pod-dns-policy")
        .find(|event| match event.field("policy") {
            Some("Default" | "None") => true,
            Some("ClusterFirst") => host_network,
            _ => false,
        })
        .or_else(|| {
            case.events("resolv-search")
                .find(|event| event.field("domains").is_some_and(|domains| !domains.contains("svc")))
        })
}

fn never(case: &Case, mut claim: Claim) -> Option<Claim> {
    if reached_later(case).is_some() || unresolved(case).last().is_some_and(|event| ended_well(case, event)) {
        return None;
    }
    let events = unresolved(case);
    let hosts: BTreeSet<&str> = events.iter().filter_map(|event| event.field("host")).collect();
    let attempts = case
        .count("orte-daemons-failed")
        .max(case.count("orte-no-route"))
        .max(events.len() as u64 / hosts.len().max(1) as u64)
        .max(events.iter().map(|event| event.place.file).collect::<BTreeSet<_>>().len() as u64);
    let all = hosts.len() >= 2 && hosts.iter().any(|host| index(host) == Some(0));
    let resolver = resolver(case);
    if resolver.is_some() || all && attempts >= 2 && !case.has("kube-worker-not-up") {
        claim.evidence.extend(resolver.map(|event| event.place));
        if resolver.is_some() && attempts >= 2 {
            claim.confidence = Confidence::Certain;
        }
        return Some(claim.about("dnsPolicy"));
    }
    claim.confidence = Confidence::Possible;
    claim.because = match hosts.iter().next() {
        Some(host) if hosts.len() == 1 => format!("ssh cannot resolve {host} and no other name fails: that pod may not be there, or its name came too late"),
        _ => "ssh cannot resolve workers' names: too early, by the wrong resolver, or because the pods are not there".to_owned(),
    };
    claim.rules_out.clear();
    claim.next = Some("`kubectl get pods -o wide` for the pod of that name: Pending means too little capacity; Running with later attempts that fail too means the resolver (`cat /etc/resolv.conf` in the launcher)".to_owned());
    Some(claim)
}
