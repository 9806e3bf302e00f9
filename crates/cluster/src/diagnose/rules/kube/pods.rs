//! Pods that do not start or are taken away.

use std::collections::BTreeSet;

use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::rules::process::story::{about, line, text, unless_fine};
use crate::diagnose::{Case, Event};

/// Kinds of lines. Pods that wait and then run are healthy, so waiting is a warning, and the rules look whether the pod came up.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "kube-not-schedulable",
        Role::Warning,
        &["nodes are available", "reason=Unschedulable", "reason=FailedScheduling"],
        r"(?:(?P<fit>\d+)/(?P<nodes>\d+) nodes are available|reason=Unschedulable|reason=FailedScheduling)(?:.*?Insufficient (?P<what>[\w/-]+(?:\.[\w/-]+)*))?",
    ),
    line(
        "kube-pod-pending",
        Role::Warning,
        &["kube-pod ", "Pending"],
        r"^kube-pod (?P<pod>\S+) (?:.* )?(?:phase|status)=Pending",
    ),
    // Asked for by age: what has just been made waits, too.
    line(
        "kube-pod-waiting",
        Role::Warning,
        &["kube-pod "],
        r"^kube-pod (?P<pod>\S+) (?:.* )?status=(?:Pending|ContainerCreating|PodInitializing|Init:\d+/\d+|Terminating)\b",
    ),
    line(
        "kube-image-not-pulled",
        Role::Warning,
        &[
            "ImagePullBackOff",
            "ErrImagePull",
            "Failed to pull image",
            "no basic auth credentials",
            "InvalidImageName",
            "manifest unknown",
        ],
        r#"ImagePullBackOff|ErrImagePull|Failed to pull image "?(?P<image>[^" ]+)|no basic auth credentials|InvalidImageName|manifest unknown"#,
    ),
    text("kube-pull-secret-missing", Role::Warning, &["FailedToRetrieveImagePullSecret"]),
    line(
        "kube-pod-came-up",
        Role::Progress,
        &["kube-pod ", "kube-event ", "Started container", "Successfully pulled image"],
        r"^kube-pod (?P<pod>\S+) (?:.* )?(?:phase|status)=(?:Running|Succeeded|Completed)|^kube-event \S*Pod/(?P<name>\S+) .*reason=(?:Started|Pulled)\b|Started container|Successfully pulled image",
    ),
    line(
        "kube-host-path-refused",
        Role::Warning,
        &["hostPath type check failed", "hostPath", "/etc/crusoe"],
        r#"hostPath type check failed: (?P<path>\S+) is not a (?:directory|file)|(?:mkdir|stat|mount\w*|hostPath)\S* .*?(?P<dir>/etc/crusoe\S*?)[:"]? .*(?:[Nn]o such file|does not exist|not a directory)"#,
    ),
    line(
        "nccl-topo-file-unread",
        Role::Warning,
        &["opology file", "NCCL_TOPO_FILE", "topo file"],
        r"(?i)(?:could not|cannot|can't|failed to|unable to) (?:open|find|read|load)\b.*(?:topology|topo) file:? (?P<path>/\S+)|(?:topology file|NCCL_TOPO_FILE|topo file)\b.*?(?P<path2>/[\w./-]+).*(?:no such file|not found|does not exist|missing)",
    ),
    line(
        "host-path-absent",
        Role::Context,
        &["No such file or directory"],
        r"^\s*(?:ls|stat|cat|find|test|head): (?:cannot (?:access|stat|open) )?['‘]?(?P<path>/[^\s'’:]*(?:topo|crusoe)[^\s'’:]*)",
    ),
    // Something is wrong; what it is the container's own log says.
    line(
        "kube-container-crashing",
        Role::Follower,
        &["CrashLoopBackOff", "RunContainerError", "CreateContainerError", "CreateContainerConfigError"],
        r"^kube-(?:pod|container) (?P<pod>\S+) .*(?:status|waiting)=(?:Init:)?(?:CrashLoopBackOff|RunContainerError|CreateContainerError|CreateContainerConfigError)\b",
    ),
    // Ended with an error, or ends again and again: a container's own log says why.
    line(
        "kube-pod-failed",
        Role::Follower,
        &["kube-pod ", "kube-container "],
        r"^kube-pod (?P<pod>\S+) (?:.* )?(?:phase=Failed|status=(?:Error|Failed|CrashLoopBackOff|RunContainerError|CreateContainerError|CreateContainerConfigError|Init:Error|Init:CrashLoopBackOff))(?: |$)|^kube-container (?P<failed>\S+) (?:.* )?(?:exit=-?[1-9]|waiting=CrashLoopBackOff)",
    ),
    line(
        "kube-disk-pressure",
        Role::Failure,
        &[
            "DiskPressure",
            "disk-pressure",
            "low on resource: ephemeral-storage",
            "low on resource: nodefs",
            "low on resource: imagefs",
            "Attempting to reclaim ephemeral-storage",
            "usage exceeds the total limit of containers",
            "exceeds its local ephemeral storage limit",
        ],
        r"condition=DiskPressure status=True|\bNodeHasDiskPressure\b|low on resource: (?:ephemeral-storage|nodefs|imagefs)|taint=node\.kubernetes\.io/disk-pressure|had condition: \[DiskPressure\]|DiskPressure\s+True\b|[Rr]eclaim ephemeral-storage|kubelet has disk pressure",
    ),
    line(
        "kube-pod-evicted",
        Role::Failure,
        &["reason=Evicted", "Evicted"],
        r"^kube-(?:pod|event) (?P<pod>\S+) .*(?:reason|status)=Evicted|\bEvicted\b",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "kube-too-few-free-nodes",
        needs: &["kube-not-schedulable"],
        confidence: Confidence::Certain,
        because: "the scheduler finds no node for a pod of the job: not enough that is free on enough nodes",
        rules_out: &["the image was not even looked for: the pod has no node yet"],
        refine: Some(no_room),
        ..Rule::LIKELY
    },
    Rule {
        cause: "kube-too-few-free-nodes",
        any: &["kube-pod-waiting", "kube-pod-pending"],
        unless: &["kube-not-schedulable", "kube-image-not-pulled", "kube-host-path-refused"],
        confidence: Confidence::Possible,
        because: "a pod waits: for room, its image, a volume or its first container",
        refine: Some(waits),
        ..Rule::LIKELY
    },
    Rule {
        cause: "rdma-plugin-selector",
        needs: &["kube-not-schedulable"],
        confidence: Confidence::Possible,
        because: "no node at all has a device of the RDMA plugin free: it may offer none",
        refine: Some(offers_none),
        ..Rule::LIKELY
    },
    Rule {
        cause: "image-pull-failed",
        needs: &["kube-image-not-pulled"],
        confidence: Confidence::Certain,
        because: "the node cannot pull the pod's image: its name is wrong, or the registry does not accept the credentials",
        rules_out: &["the pod has a node: scheduling is done"],
        refine: Some(not_pulled),
        ..Rule::LIKELY
    },
    Rule {
        cause: "kube-nccl-topo-file-missing",
        needs: &["kube-host-path-refused"],
        confidence: Confidence::Certain,
        because: "the pod wants a host's path for NCCL's topology file, and the node does not have it",
        rules_out: &["the container was not started: no library has read anything yet"],
        refine: Some(host_path),
        ..Rule::LIKELY
    },
    Rule {
        cause: "kube-nccl-topo-file-missing",
        needs: &["nccl-topo-file-unread"],
        unless: &["kube-host-path-refused"],
        confidence: Confidence::Likely,
        because: "NCCL is told to read its topology from a file that is not there",
        rules_out: &["the container runs: its mount was accepted, and what is in it is not what was meant"],
        refine: Some(topo_file),
        ..Rule::LIKELY
    },
    Rule {
        cause: "node-disk-pressure",
        needs: &["kube-disk-pressure"],
        confidence: Confidence::Certain,
        because: "the node's disk is full, the kubelet says so and evicts pods",
        rules_out: &[
            "an eviction for memory would name memory",
            "/dev/shm is not meant: that is memory of the pod",
        ],
        refine: Some(disk),
        ..Rule::LIKELY
    },
];

/// Pods that an event or state is about, as `namespace/pod` or a bare name.
fn pod(event: &Event) -> Option<String> {
    let word = event.text.split_whitespace().nth(1)?;
    let word = match event.text.split_whitespace().next()? {
        "kube-event" => word.replace("/Pod/", "/"),
        "kube-container" => word.rsplit_once('/').map_or(word, |(pod, _)| pod).to_owned(),
        "kube-pod" => word.to_owned(),
        _ => return None,
    };
    Some(word)
}

/// The pod without its namespace.
fn bare(pod: &str) -> &str {
    pod.rsplit('/').next().unwrap_or(pod)
}

/// Whether every pod that the events are about came up later, or is up in the states that are shown.
fn all_came_up(case: &Case, signal: &str) -> bool {
    let pods: BTreeSet<String> = case.events(signal).filter_map(pod).collect();
    let named = |event: &Event, wanted: &str| {
        let name = event.field("pod").or(event.field("name"));
        name.map(str::to_owned).or_else(|| pod(event)).is_some_and(|name| bare(&name) == bare(wanted))
    };
    if pods.is_empty() {
        let Some(last) = case.events(signal).last() else { return false };
        return case.events("kube-pod-came-up").any(|up| last.before(up) == Some(true));
    }
    pods.iter().all(|wanted| {
        case.events("kube-pod-came-up").any(|up| {
            named(up, wanted)
                && (up.text.starts_with("kube-pod ")
                    || case.events(signal).all(|event| event.before(up) != Some(false)))
        })
    })
}

fn offers_none(case: &Case, mut claim: Claim) -> Option<Claim> {
    let short = |event: &&Event| {
        event.field("what").is_some_and(|what| what.starts_with("rdma/") && on_every_node(event, what))
    };
    let event = case.events("kube-not-schedulable").find(short)?;
    if all_came_up(case, "kube-not-schedulable") {
        return None;
    }
    claim.evidence = vec![event.place];
    let claim = claim.next("what the nodes offer: `kubectl get nodes -o yaml | grep -A12 allocatable`, and the log of the RDMA device plugin's pod");
    unless_fine(case, claim)
}

/// Whether the scheduler misses the resource on all nodes that it looked at: `0/4 nodes are available: 4 Insufficient rdma/hca`.
fn on_every_node(event: &Event, what: &str) -> bool {
    let Some((before, _)) = event.text.split_once(" nodes are available") else { return false };
    let nodes = before.rsplit('/').next().unwrap_or_default();
    !nodes.is_empty()
        && nodes.bytes().all(|c| c.is_ascii_digit())
        && event.text.contains(&format!("{nodes} Insufficient {what}"))
}

fn no_room(case: &Case, mut claim: Claim) -> Option<Claim> {
    if all_came_up(case, "kube-not-schedulable") {
        return None;
    }
    let events: Vec<&Event> = case.events("kube-not-schedulable").collect();
    let says = |what: &str| events.iter().any(|event| event.text.contains(what));
    let room =
        ["Insufficient ", "anti-affinity", "topology spread", "didn't have free ports", "Too many pods"];
    let telling = events.iter().find(|event| room.iter().any(|what| event.text.contains(what)));
    match telling {
        Some(event) => {
            claim.evidence.insert(0, event.place);
            claim.evidence.dedup();
            if let Some(what) = event.field("what") {
                claim.because = format!(
                    "the scheduler finds no node for a pod: not enough {what} is free on enough nodes"
                );
            }
            // What no node at all has free is more often not offered than taken: GPUs are taken, a plugin offers the rest.
            let everywhere = event.field("what").is_some_and(|what| {
                what != "nvidia.com/gpu" && what.contains('/') && on_every_node(event, what)
            });
            if everywhere {
                claim.confidence = Confidence::Possible;
                claim.next = Some("what the nodes offer: `kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.status.allocatable}{\"\\n\"}{end}'`: 0 of it, or nothing, is the device plugin's fault; more than 0 is taken by other pods".to_owned());
            }
            // What a plugin does not offer is not taken by others.
            if says("Insufficient rdma")
                && !says("Insufficient nvidia.com/gpu")
                && case.has("rdma-plugin-device-without-issm")
            {
                claim.confidence = Confidence::Possible;
            }
        }
        None if says("node affinity")
            || says("node selector")
            || says("taint")
            || says("PersistentVolumeClaim")
            || says("persistentvolumeclaim") =>
        {
            claim.confidence = Confidence::Possible;
            claim.because =
                "a pod finds no node: selectors, taints or volumes keep it from those there are".into();
            claim.rules_out.clear();
            claim.next = Some("labels and taints of the GPU nodes beside the pod's nodeSelector and tolerations: `kubectl get nodes --show-labels; kubectl describe pod <pod>`".to_owned());
        }
        None => {
            claim.confidence = Confidence::Possible;
            claim.next = Some(
                "the scheduler's reason: the events at the end of `kubectl describe pod <pod>`".to_owned(),
            );
        }
    }
    claim.evidence.extend(case.first("kube-pod-pending").map(|event| event.place));
    claim.subject = events.iter().find_map(|event| pod(event));
    unless_fine(case, claim)
}

fn waits(case: &Case, claim: Claim) -> Option<Claim> {
    let event = case.first_of(&["kube-pod-waiting", "kube-pod-pending"])?;
    if ["kube-pod-waiting", "kube-pod-pending"]
        .iter()
        .all(|signal| !case.has(signal) || all_came_up(case, signal))
    {
        return None;
    }
    let name = pod(event);
    let claim = claim.next("the events at the end of `kubectl describe pod <pod>`: FailedScheduling, Failed to pull image or FailedMount says which");
    unless_fine(
        case,
        match name {
            Some(name) => claim.about(name),
            None => claim,
        },
    )
}

fn not_pulled(case: &Case, mut claim: Claim) -> Option<Claim> {
    if all_came_up(case, "kube-image-not-pulled") {
        return None;
    }
    let image =
        case.events("kube-image-not-pulled").find_map(|event| event.field("image").map(str::to_owned));
    claim.evidence.extend(case.first("kube-pull-secret-missing").map(|event| event.place));
    let of_pod = case.events("kube-image-not-pulled").find_map(pod);
    claim.subject = image.or(of_pod);
    unless_fine(case, claim)
}

fn host_path(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("kube-host-path-refused")?;
    let path = event
        .field("path")
        .or(event.field("dir"))
        .unwrap_or_default()
        .trim_end_matches([':', ','])
        .to_owned();
    let topology = ["crusoe", "nccl", "topo"].iter().any(|word| event.text.contains(word));
    if !topology {
        claim.confidence = Confidence::Possible;
        claim.because = format!("the pod wants the host's {path}, which the node does not have");
        claim.next = Some(
            "what the volume is for: `kubectl get pod <pod> -o yaml | grep -B3 -A3 hostPath`".to_owned(),
        );
    }
    if all_came_up(case, "kube-host-path-refused") {
        return None;
    }
    unless_fine(case, claim.about(path))
}

fn topo_file(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("nccl-topo-file-unread")?;
    let path = event.field("path").or(event.field("path2"))?.trim_end_matches([':', ',', '.']).to_owned();
    // The node's own path has the container's at its end, behind the place where the debug pod mounts it.
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let absent = case.events("host-path-absent").find(|absent| {
        absent.field("path").is_some_and(|seen| {
            let seen = seen.trim_end_matches('/');
            !folder.is_empty() && (seen.ends_with(folder) || seen.ends_with(&path))
        })
    });
    match absent {
        Some(absent) => claim.evidence.push(absent.place),
        // NCCL goes on without: alone it costs speed, and another failure has another cause.
        None => claim.caution = true,
    }
    Some(claim.about(path))
}

fn disk(case: &Case, mut claim: Claim) -> Option<Claim> {
    claim.evidence.extend(case.first("kube-pod-evicted").map(|event| event.place));
    let node = case.nodes("kube-disk-pressure").into_iter().next();
    let claim = match node {
        Some(node) => claim.about(node.to_string()),
        None => about(case, claim, "pod"),
    };
    unless_fine(case, claim)
}
