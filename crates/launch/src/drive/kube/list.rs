//! Runs that are in a cluster, by their label: what there is of one, and its logs.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use expertrail_cluster::kube::client::{Kind, clean as tidy, quoted};
use expertrail_cluster::kube::values::age;
use serde_json::Value;

use super::follow::Follower;
use super::look::{Container, MANAGED, Pod, RUN_LABEL, Role, Snapshot};
use super::reasons::{Hints, view};
use super::site::Site;
use super::words::frame;
use crate::drive::{DriveError, Show, Stop};

/// Between two looks at a log that is followed.
const PAUSE: Duration = Duration::from_secs(2);

/// The longest that a log may take to come.
const LOG: Duration = Duration::from_mins(3);

/// Which logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Rank 0's node, or the launcher of an `MPIJob`.
    First,
    /// This node.
    Node(u32),
    /// All nodes, all containers.
    All,
}

fn snapshot(site: &Site<'_>, id: &str) -> Result<Snapshot, DriveError> {
    let mut items: Vec<Value> = Vec::new();
    for kinds in ["pods,jobs", "mpijobs.kubeflow.org"] {
        match site.labelled(kinds, id) {
            Ok(value) => items.extend(value["items"].as_array().cloned().unwrap_or_default()),
            Err(refusal) if refusal.absent() => {}
            // Who may not see MPIJobs made none.
            Err(refusal) if refusal.kind == Kind::Forbidden && kinds.starts_with("mpi") => {}
            Err(refusal) => return Err(site.error(&refusal)),
        }
    }
    Ok(Snapshot::read(&serde_json::json!({ "items": items }), &site.events().unwrap_or(Value::Null)))
}

/// Ids of all runs in the namespace, with how many pods each has.
///
/// # Errors
/// When the cluster cannot be asked.
pub fn runs(site: &Site<'_>) -> Result<BTreeMap<String, usize>, DriveError> {
    let label = format!("{}={}", MANAGED.0, MANAGED.1);
    let mut all: BTreeMap<String, usize> = BTreeMap::new();
    for kind in super::clean::KINDS {
        let value = match site.client.json(&["get", kind, "-n", &site.namespace, "-l", &label, "-o", "json"])
        {
            Ok(value) => value,
            Err(refusal) if refusal.absent() => continue,
            Err(refusal) if refusal.kind == Kind::Forbidden && kind != "pods" => continue,
            Err(refusal) => return Err(site.error(&refusal)),
        };
        for item in value["items"].as_array().into_iter().flatten() {
            if let Some(id) = item["metadata"]["labels"][RUN_LABEL].as_str() {
                *all.entry(tidy(id)).or_default() += usize::from(kind == "pods");
            }
        }
    }
    Ok(all)
}

/// Whether nothing of run `id` goes on: its Jobs have ended, and so have its pods. Objects without a Job, as those of a launch that was
/// stopped half-way, count as over where no pod runs or waits.
///
/// # Errors
/// When the cluster cannot be asked.
pub fn over(site: &Site<'_>, id: &str) -> Result<bool, DriveError> {
    let snapshot = snapshot(site, id)?;
    let ended = snapshot.jobs.iter().all(|job| job.complete || job.failed.is_some());
    Ok(ended && snapshot.pods.iter().all(Pod::over))
}

/// What there is of run `id` and how it stands, a line each; none where nothing is there.
///
/// # Errors
/// When the cluster cannot be asked.
pub fn status(site: &Site<'_>, id: &str) -> Result<Option<Vec<String>>, DriveError> {
    let left = super::clean::left(site, id);
    if left.names.is_empty() {
        return match left.unseen.first() {
            Some((_, refusal)) => Err(site.error(refusal)),
            None => Ok(None),
        };
    }
    let snapshot = snapshot(site, id)?;
    let mut lines = vec![format!(
        "run {id}, context {}, namespace {}",
        site.context.as_deref().map_or_else(|| "none".to_owned(), tidy),
        site.namespace
    )];
    for job in &snapshot.jobs {
        let state = match (&job.failed, job.complete) {
            (Some((reason, message)), _) => format!("failed: {} {}", tidy(reason), tidy(message)),
            (None, true) => "complete".to_owned(),
            (None, false) if job.suspended => "suspended".to_owned(),
            (None, false) if job.leaving => "being deleted".to_owned(),
            (None, false) => "not ended".to_owned(),
        };
        lines.push(format!("{} {}: {state}", tidy(&job.kind), tidy(&job.name)));
        let refused = snapshot.about(&job.name).rev().find(|note| note.reason == "FailedCreate");
        if let Some(note) = refused.filter(|_| snapshot.pods.is_empty()) {
            lines.push(format!("  it cannot make its pods: {}", tidy(&note.message)));
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let hints = Hints { namespace: site.namespace.clone(), pull_secret: None };
    for pod in &snapshot.pods {
        let old = pod.created.and_then(|created| now.checked_sub(created));
        let old = old.map(|old| format!(", {} old", age(old))).unwrap_or_default();
        let leaving = if pod.leaving { " (being deleted)" } else { "" };
        lines.push(format!(
            "{}{old}: {}{leaving}",
            tidy(&pod.title()),
            site.named_in(&view(pod, &snapshot, &hints).whole())
        ));
    }
    lines.push(format!("objects: {}", left.names.join(", ")));
    lines.push(format!("remove with: expertrail clean {}{}", quoted(id), site.options()));
    Ok(Some(lines))
}

/// Writes logs of run `id` through `out`, without the parts of files that are in them. With `follow`, goes on until the pods have ended.
///
/// # Errors
/// When there is no such run or node, or the cluster cannot be asked.
pub fn logs(
    site: &Site<'_>,
    id: &str,
    which: Which,
    follow: Option<&dyn Stop>,
    out: &mut dyn FnMut(&str),
) -> Result<(), DriveError> {
    let mut followers: BTreeMap<(String, String), (Follower, bool)> = BTreeMap::new();
    loop {
        let snapshot = snapshot(site, id)?;
        let pods: Vec<&Pod> = snapshot.pods.iter().filter(|pod| wanted(pod, which, &snapshot)).collect();
        if pods.is_empty() && followers.is_empty() {
            return Err(none(site, id, which, &snapshot));
        }
        let parts: Vec<(&Pod, &Container)> = pods.iter().flat_map(|pod| chosen(pod, which)).collect();
        let headed = parts.len() > 1;
        for (pod, container) in &parts {
            let key = (pod.name.clone(), container.name.clone());
            let entry = followers.entry(key).or_default();
            if entry.1 {
                continue;
            }
            let over = matches!(container.state, super::look::State::Ended(_));
            let since = entry.0.since().map(|since| format!("--since-time={since}"));
            let mut args =
                vec!["logs", &pod.name, "-n", &site.namespace, "-c", &container.name, "--timestamps"];
            args.extend(since.as_deref());
            match site.client.raw_within(&args, LOG) {
                Ok(output) if output.code == Some(0) => {
                    for line in entry.0.take(&output.stdout, over || follow.is_none()) {
                        if !frame(&line) {
                            let head = if headed {
                                format!("[{}/{}] ", pod.name, container.name)
                            } else {
                                String::new()
                            };
                            out(&format!("{head}{line}"));
                        }
                    }
                    entry.1 = over;
                }
                Ok(output) if follow.is_none() => {
                    return Err(site.error(&expertrail_cluster::kube::client::understand(&output)));
                }
                Err(refusal) if follow.is_none() => return Err(site.error(&refusal)),
                _ => {}
            }
        }
        let Some(stop) = follow else {
            if parts.is_empty() {
                out(&format!(
                    "no container of run {id} has begun: `expertrail status {id}{}` says why",
                    site.options()
                ));
            }
            return Ok(());
        };
        if stop.cancelled() || pods.iter().all(|pod| pod.over() && read(&followers, pod)) {
            return Ok(());
        }
        stop.pause(PAUSE);
    }
}

fn read(followers: &BTreeMap<(String, String), (Follower, bool)>, pod: &Pod) -> bool {
    let main = (pod.name.clone(), pod.main.clone());
    let begun = pod.worker().is_some_and(Container::begun);
    !begun || followers.get(&main).is_some_and(|(_, done)| *done)
}

fn wanted(pod: &Pod, which: Which, snapshot: &Snapshot) -> bool {
    match which {
        Which::All => pod.role != Role::Pull,
        Which::Node(node) => pod.index == Some(node),
        Which::First => {
            let launcher = snapshot.pods.iter().any(|pod| pod.role == Role::Launcher);
            if launcher { pod.role == Role::Launcher } else { pod.index == Some(0) }
        }
    }
}

fn chosen(pod: &Pod, which: Which) -> Vec<(&Pod, &Container)> {
    let fits = |one: &&Container| one.begun() && (which == Which::All || one.name == pod.main);
    // Where nothing of the main container is there yet, what runs before it is all there is to see.
    let mut all: Vec<&Container> = pod.containers.iter().filter(fits).collect();
    if all.is_empty() {
        all = pod.containers.iter().filter(|one| one.begun()).collect();
    }
    let pods = pod;
    all.into_iter().map(|one| (pods, one)).collect()
}

fn none(site: &Site<'_>, id: &str, which: Which, snapshot: &Snapshot) -> DriveError {
    let nodes: Vec<String> =
        snapshot.nodes().filter_map(|pod| pod.index).map(|index| index.to_string()).collect();
    match which {
        Which::Node(node) if !nodes.is_empty() => {
            DriveError::Refused(format!("run {id} has no node {node}: it has {}", nodes.join(", ")))
        }
        _ => DriveError::Refused(format!(
            "there are no pods of run {id} in namespace {}: it has ended and was removed, or is in another (--context, --namespace). `launch` keeps the \
             logs of its runs in the bundle",
            site.namespace
        )),
    }
}

/// Removes everything of run `id`.
///
/// # Errors
/// When something stays; the message has the command that removes it.
pub fn remove(site: &Site<'_>, id: &str, show: &mut dyn Show) -> Result<(), DriveError> {
    super::clean::remove(site, id, show)
}
