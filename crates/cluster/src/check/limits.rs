//! Limits: locked memory, shared memory, open files.

use super::driver::missing;
use super::{Context, Target, remedies};
use crate::causes::CauseEntry;
use crate::facts::{Limit, ProcessLimit, Reading};
use crate::finding::{Finding, Manager, Status};

const MEMLOCK: CauseEntry = CauseEntry {
    id: "memlock-limited",
    title: "too little memory may be locked",
    text: "NICs need locked memory: registration fails with `ibv_reg_mr ... Cannot allocate memory`, or a transport is skipped.",
};
const DAEMON: CauseEntry = CauseEntry {
    id: "memlock-daemon-limited",
    title: "a daemon hands jobs a limit of locked memory",
    text: "Jobs inherit the limit of containerd, kubelet or slurmd, whatever a login shell has.",
};
const PENDING: CauseEntry = CauseEntry {
    id: "memlock-not-active",
    title: "a limit is configured but the running daemon has another",
    text: "systemd gives the limit when the daemon starts; until then the old one holds.",
};
const SHM: CauseEntry = CauseEntry {
    id: "shm-small",
    title: "/dev/shm is small",
    text: "Ranks of one node share memory there; containers have 64 MiB by default: `No space left on device`, or a bus error when it is touched.",
};
const FILES: CauseEntry = CauseEntry {
    id: "nofile-low",
    title: "few files may be open",
    text: "Each peer takes sockets, shared memory and events; with many ranks 1,024 are not enough.",
};

pub(super) const CAUSES: &[CauseEntry] = &[MEMLOCK, DAEMON, PENDING, SHM, FILES];

/// AWS's own health check warns below 16 GiB.
const LOCKED: u64 = 16 << 30;

/// Buffers of NCCL and the CPU backend of eight ranks fit; a container's default of 64 MiB is far below.
const SHARED: u64 = 1 << 30;

const OPEN: u64 = 4096;

/// Bit of `CAP_IPC_LOCK` (linux/capability.h): the limit does not bind who has it.
const IPC_LOCK: u64 = 1 << 14;

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    vec![own(context), daemons(context), pending(context), shared(context), files(context)]
}

fn size(limit: Option<u64>) -> String {
    match limit {
        None => "unlimited".to_owned(),
        Some(bytes) if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        Some(bytes) => format!("{} KiB", bytes >> 10),
    }
}

fn enough(limit: &Limit) -> bool {
    limit.soft.is_none_or(|bytes| bytes >= LOCKED)
}

fn own(context: &Context<'_>) -> Finding {
    let facts = context.facts;
    let fact = &facts.limits.memlock;
    let finding = context.finding("P030").from_fact(fact);
    // One node of our own library registers nothing.
    if context.target == Target::Expertrail && !context.has_rdma() {
        return finding.not_applicable("no RDMA device");
    }
    let Some(limit) = fact.value() else { return finding.unknown(missing(fact)) };
    let login =
        facts.environment.slurm.value().is_some_and(|slurm| slurm.job.is_some() && slurm.step.is_none());
    let note = if login { " (of a batch script; steps of srun may have another)" } else { "" };
    let finding = finding.saw(format!("{}{note}", size(limit.soft)), "unlimited");
    if limit.soft.is_none() {
        return finding;
    }
    if facts.limits.capabilities.value().is_some_and(|bits| bits & IPC_LOCK != 0) {
        return finding.saw(format!("{}, and CAP_IPC_LOCK lifts it", size(limit.soft)), "unlimited");
    }
    let status = if enough(limit) { Status::Warn } else { Status::Fail };
    finding.outcome(status, &MEMLOCK).remedies(remedies::locked_memory(""))
}

fn daemons(context: &Context<'_>) -> Finding {
    let fact = &context.facts.limits.daemons;
    let finding = context.finding("P031").from_fact(fact);
    let all = match fact.value() {
        Some(all) if !all.is_empty() => all,
        _ if matches!(fact.reading(), Reading::Unreadable(_)) && !context.managed.container => {
            return finding.unknown(missing(fact)).advisory();
        }
        _ => {
            return finding.not_applicable("none of containerd, kubelet, slurmd, crio, dockerd is seen here");
        }
    };
    let limited: Vec<&ProcessLimit> = all.iter().filter(|daemon| daemon.memlock.soft.is_some()).collect();
    if limited.is_empty() {
        return finding.saw(format!("unlimited for {}", names(all)), "unlimited");
    }
    let seen: Vec<String> =
        limited.iter().map(|daemon| format!("{} {}", daemon.name, size(daemon.memlock.soft))).collect();
    // kubelet starts no containers itself.
    let first = limited
        .iter()
        .find(|daemon| daemon.name != "kubelet")
        .map_or("containerd", |daemon| daemon.name.as_str());
    let small = limited.iter().any(|daemon| !enough(&daemon.memlock) && daemon.name != "kubelet");
    let status = if small && context.has_rdma() { Status::Fail } else { Status::Warn };
    finding
        .outcome(status, &DAEMON)
        .saw(seen.join(", "), "unlimited")
        .remedies(remedies::locked_memory(first))
}

fn names(all: &[ProcessLimit]) -> String {
    all.iter().map(|daemon| daemon.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn pending(context: &Context<'_>) -> Finding {
    let limits = &context.facts.limits;
    let finding = context.finding("P032").from_fact(&limits.configured);
    let unreadable = matches!(limits.configured.reading(), Reading::Unreadable(_));
    if unreadable && limits.daemons.value().is_some_and(|all| !all.is_empty()) {
        return finding.unknown(missing(&limits.configured)).advisory();
    }
    let (Some(running), Some(configured)) = (limits.daemons.value(), limits.configured.value()) else {
        return finding.not_applicable("no unit files or no daemons are seen here");
    };
    // A limit that is none is the largest.
    let larger = |wanted: Option<u64>, active: Option<u64>| match (wanted, active) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(wanted), Some(active)) => wanted > active,
    };
    let waiting: Vec<(&ProcessLimit, &ProcessLimit)> = running
        .iter()
        .filter_map(|daemon| {
            // Drop-ins stand before the unit's own file, and the first that names a limit counts.
            let unit = configured.iter().find(|unit| unit.name == daemon.name)?;
            larger(unit.memlock.soft, daemon.memlock.soft).then_some((daemon, unit))
        })
        .collect();
    let Some((first, _)) = waiting.first() else { return finding.saw("what is configured is active", "") };
    let seen: Vec<String> = waiting
        .iter()
        .map(|(daemon, unit)| {
            let (wanted, active) = (size(unit.memlock.soft), size(daemon.memlock.soft));
            format!("{}: {wanted} is configured, {active} is active", daemon.name)
        })
        .collect();
    finding.outcome(Status::Warn, &PENDING).saw(seen.join("; "), "the same in both").remedy(
        "Restart the daemon; on Kubernetes drain the node first.",
        &[&format!(
            "sudo systemctl daemon-reload && sudo systemctl restart {}",
            remedies::shell(&first.name)
        )],
    )
}

fn shared(context: &Context<'_>) -> Finding {
    let fact = &context.facts.memory.shm;
    let finding = context.finding("P033").from_fact(fact);
    match fact.reading() {
        Reading::Value(shm) if shm.total >= SHARED => finding.saw(size(Some(shm.total)), "1024 MiB or more"),
        Reading::Value(shm) => finding
            .outcome(Status::Warn, &SHM)
            .saw(size(Some(shm.total)), "1024 MiB or more; the documents' pods have 64 GiB and more")
            .remedy_for(
                Some(Manager::Machine),
                "Mount it larger.",
                &["sudo mount -o remount,size=64G /dev/shm"],
            )
            .remedy_for(
                Some(Manager::Operator),
                "Mount memory at /dev/shm of the pod.",
                &[
                    "volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}]",
                    "volumeMounts: [{name: dshm, mountPath: /dev/shm}]",
                ],
            )
            .remedy_for(
                Some(Manager::Container),
                "Start the container with more.",
                &["docker run --shm-size 64g ...      # or --ipc host"],
            ),
        _ => finding.unknown(missing(fact)).advisory(),
    }
}

fn files(context: &Context<'_>) -> Finding {
    let fact = &context.facts.limits.nofile;
    let finding = context.finding("P034").from_fact(fact);
    match fact.value() {
        None => finding.unknown(missing(fact)).advisory(),
        Some(limit) => {
            let finding = finding.saw(
                limit.soft.map_or("unlimited".to_owned(), |files| files.to_string()),
                format!("{OPEN} or more"),
            );
            if limit.soft.is_none_or(|files| files >= OPEN) {
                return finding;
            }
            finding.outcome(Status::Warn, &FILES).remedy("Lift the limit.", &["ulimit -n 65536"])
        }
    }
}
