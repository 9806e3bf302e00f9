//! Removing what a run left: by its label, in its namespace, and nothing else.

use std::time::Duration;

use expertrail_cluster::kube::client::{Kind, Refusal, clean};
use serde_json::Value;

use super::look::{MANAGED, RUN_LABEL};
use super::site::Site;
use crate::drive::{DriveError, Event, Show};

/// Kinds that a run may have. Those that make others come first, so that what is deleted is not made again.
pub(super) const KINDS: [&str; 6] =
    ["mpijobs.kubeflow.org", "jobs.batch", "daemonsets.apps", "pods", "services", "configmaps"];

/// How long objects may take to go: a pod has 30 s to end by itself.
pub(super) const PATIENCE: Duration = Duration::from_mins(2);

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(2);

/// Kinds that must not be in a namespace that is removed.
const CONTENT: [&str; 10] = [
    "pods",
    "jobs.batch",
    "services",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
    "deployments.apps",
    "statefulsets.apps",
    "daemonsets.apps",
    "mpijobs.kubeflow.org",
];

/// What the cluster itself puts into each namespace.
const OWN: [&str; 3] = ["kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"];

/// Objects of a run by name, and kinds that cannot be seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    /// `job.batch/x-abc123`.
    pub(super) names: Vec<String>,
    /// Kinds of them.
    pub(super) kinds: Vec<&'static str>,
    /// Kind and refusal.
    pub(super) unseen: Vec<(&'static str, Refusal)>,
}

/// What there is of run `id`.
pub(super) fn left(site: &Site<'_>, id: &str) -> Left {
    let label = format!("{RUN_LABEL}={id}");
    let looks = site.client.each(&KINDS, |kind| {
        site.client.text(&["get", kind, "-n", &site.namespace, "-l", &label, "-o", "name"])
    });
    let mut left = Left::default();
    for (kind, look) in KINDS.iter().zip(looks) {
        match look {
            Ok(text) => {
                let names: Vec<String> = text.lines().map(clean).filter(|name| !name.is_empty()).collect();
                if !names.is_empty() {
                    left.kinds.push(kind);
                }
                left.names.extend(names);
            }
            Err(refusal) if refusal.absent() => {}
            Err(refusal) => left.unseen.push((kind, refusal)),
        }
    }
    left
}

/// Removes everything of run `id` and sees that it is gone. Nothing there is a success.
///
/// # Errors
/// When something stays or cannot be seen; the message has the command that removes it.
pub(super) fn remove(site: &Site<'_>, id: &str, show: &mut dyn Show) -> Result<(), DriveError> {
    let mut now = left(site, id);
    // A connection that fails for all of them is one reason, not six.
    if now.names.is_empty()
        && let Some((_, refusal)) =
            now.unseen.iter().find(|(_, refusal)| refusal.fatal() || refusal.kind == Kind::Deadline)
    {
        return Err(stays(site, id, &site.error(refusal).to_string()));
    }
    if now.names.is_empty() {
        show.show(Event::Step(format!("nothing of run {id} is in namespace {}", site.namespace)));
    } else {
        show.show(Event::Step(format!(
            "removing {} of run {id}: {}",
            crate::words::count(now.names.len(), "object"),
            now.names.join(", ")
        )));
    }
    let until = site.clock.now() + PATIENCE;
    let mut refused: Vec<String> = Vec::new();
    while !now.names.is_empty() {
        let label = format!("{RUN_LABEL}={id}");
        refused.clear();
        for kind in &now.kinds {
            let args =
                ["delete", kind, "-n", &site.namespace, "-l", &label, "--wait=false", "--ignore-not-found"];
            if let Err(refusal) = site.client.text(&args)
                && !refusal.absent()
            {
                refused.push(format!("{kind}: {}", refusal.message));
            }
        }
        if site.clock.now() >= until {
            break;
        }
        site.clock.sleep(PAUSE);
        now = left(site, id);
    }
    if !now.names.is_empty() {
        let why = if refused.is_empty() {
            "they are being deleted and do not go. A pod whose node does not answer stays until the node is back or removed".to_owned()
        } else {
            refused.join("; ")
        };
        return Err(stays(site, id, &format!("{} still there: {}", now.names.join(", "), why)));
    }
    // What could not be listed may have been there: only what a run uses counts.
    if let Some((kind, refusal)) = now
        .unseen
        .iter()
        .find(|(kind, refusal)| refusal.kind != Kind::Forbidden || matches!(*kind, "pods" | "jobs.batch"))
    {
        return Err(stays(
            site,
            id,
            &format!("it cannot be seen whether {kind} are left: {}", refusal.message),
        ));
    }
    namespace(site, id, show);
    Ok(())
}

fn stays(site: &Site<'_>, id: &str, why: &str) -> DriveError {
    DriveError::System(format!(
        "run {id} is not wholly removed: {why}. Try again with `expertrail clean {id}{}`, or `{}`",
        site.options(),
        site.typed(&format!("delete jobs,pods,services,configmaps,daemonsets -l {RUN_LABEL}={id}"))
    ))
}

/// Removes the namespace, if this run made it and nothing else is in it.
fn namespace(site: &Site<'_>, id: &str, show: &mut dyn Show) {
    let name = &site.namespace;
    let value = match site.client.json(&["get", "namespace", name, "-o", "json"]) {
        Ok(value) => value,
        Err(refusal) if refusal.absent() => return,
        Err(refusal) => {
            show.show(Event::Warning(format!("namespace {name} stays: {}", refusal.message)));
            return;
        }
    };
    let label = |key: &str| value["metadata"]["labels"][key].as_str();
    if label(MANAGED.0) != Some(MANAGED.1) || label(RUN_LABEL) != Some(id) {
        return;
    }
    if value["status"]["phase"].as_str() == Some("Terminating") {
        return;
    }
    match content(site, id) {
        Ok(None) => {}
        Ok(Some(what)) => {
            show.show(Event::Step(format!("namespace {name} stays: {what} is in it")));
            return;
        }
        Err((kind, refusal)) => {
            let said = refusal.message;
            show.show(Event::Warning(format!(
                "namespace {name} stays: it cannot be seen whether {kind} are in it ({said}); if it is empty: `{}`",
                site.client.typed(&format!("delete namespace {name}"))
            )));
            return;
        }
    }
    show.show(Event::Step(format!("removing namespace {name}, which this run made and nothing else uses")));
    let gone = site.client.text(&["delete", "namespace", name, "--wait=false", "--ignore-not-found"]);
    if let Err(refusal) = gone {
        show.show(Event::Warning(format!("namespace {name} stays: {}", refusal.message)));
    }
}

/// The first thing in the namespace that the cluster did not put there itself.
fn content(site: &Site<'_>, id: &str) -> Result<Option<String>, (&'static str, Refusal)> {
    let looks = site
        .client
        .each(&CONTENT, |kind| site.client.json(&["get", kind, "-n", &site.namespace, "-o", "json"]));
    for (kind, look) in CONTENT.iter().zip(looks) {
        let value = match look {
            Ok(value) => value,
            Err(refusal) if refusal.kind == Kind::NoSuchKind => continue,
            Err(refusal) => return Err((kind, refusal)),
        };
        let foreign = |item: &&Value| {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            let token = item["type"].as_str() == Some("kubernetes.io/service-account-token");
            !OWN.contains(&name) && !token && !owned(item, id)
        };
        let items = value["items"].as_array();
        if let Some(item) = items.into_iter().flatten().find(foreign) {
            return Ok(Some(format!("{kind}/{}", clean(item["metadata"]["name"].as_str().unwrap_or("?")))));
        }
    }
    Ok(None)
}

/// Whether it belongs to an object of this run, which is gone: the cluster removes it too (the `MPIJob`'s keys and host list).
fn owned(item: &Value, id: &str) -> bool {
    let ours = |owner: &Value| {
        let name = owner["name"].as_str().unwrap_or_default();
        matches!(owner["kind"].as_str(), Some("MPIJob" | "Job" | "DaemonSet"))
            && (name == id || name.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')))
    };
    item["metadata"]["ownerReferences"].as_array().is_some_and(|owners| owners.iter().any(ours))
}
