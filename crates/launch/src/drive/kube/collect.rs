//! Everything that the cluster has of a run, before it is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use expertrail_cluster::kube::client::{Kind, Look};
use serde_json::Value;

use super::follow::Follower;
use super::look::{Container, Pod, RUN_LABEL};
use super::site::Site;
use crate::drive::{Collect, DriveError};

/// The longest that one log may take to come.
const LOG: Duration = Duration::from_mins(3);

/// A log that is asked for.
struct Wanted<'p> {
    pod: &'p Pod,
    container: &'p Container,
    previous: bool,
}

impl Wanted<'_> {
    /// `x-0-abcde`, `x-0-abcde.expertrail-binary`, `x-0-abcde.previous`.
    fn name(&self) -> String {
        let mut name = self.pod.name.clone();
        if self.container.name != self.pod.main {
            name.push('.');
            name.push_str(&self.container.name);
        }
        if self.previous {
            name.push_str(".previous");
        }
        name
    }
}

/// Hands over all logs, and the objects as the server has them.
pub(super) fn collect(
    site: &Site<'_>,
    id: &str,
    followed: &BTreeMap<String, Follower>,
    to: &mut dyn Collect,
) -> Result<(), DriveError> {
    let kinds = ["pods", "jobs", "mpijobs.kubeflow.org", "daemonsets.apps"];
    let looks = site.client.each(&kinds, |kind| site.labelled(kind, id));
    let mut pods: Vec<Pod> = Vec::new();
    let mut items: Vec<Value> = Vec::new();
    for (kind, look) in kinds.iter().zip(looks) {
        match look {
            Ok(value) => items.extend(value["items"].as_array().cloned().unwrap_or_default()),
            // A cluster without MPIJobs has none of them; who may not see DaemonSets made none.
            Err(refusal) if refusal.absent() => {}
            Err(refusal) if refusal.kind == Kind::Forbidden && !matches!(*kind, "pods" | "jobs") => {}
            Err(refusal) => to.missing(&format!("{kind} of the run"), &refusal.message),
        }
    }
    for item in &items {
        if item["kind"].as_str() == Some("Pod") {
            pods.extend(Pod::read(item));
        }
    }
    logs(site, &pods, followed, to)?;
    state(to, "objects.json", Ok(serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items})))?;
    state(to, "events.json", site.events())?;
    let names: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.node.as_deref()).collect();
    if !names.is_empty() {
        let mut args = vec!["get", "nodes"];
        args.extend(names);
        args.extend(["-o", "json"]);
        state(to, "nodes.json", site.client.json(&args))?;
    }
    if !items.is_empty() {
        let label = format!("{RUN_LABEL}={id}");
        let args = ["describe", "pods,jobs", "-n", &site.namespace, "-l", &label];
        match site.client.text(&args) {
            Ok(text) => to.state("describe.txt", text.as_bytes())?,
            Err(refusal) => to.missing("kubectl describe of pods and jobs", &refusal.message),
        }
    }
    Ok(())
}

fn state(to: &mut dyn Collect, name: &str, look: Look<Value>) -> Result<(), DriveError> {
    match look {
        Ok(value) => {
            let text = serde_json::to_string_pretty(&value)
                .map_err(|error| DriveError::System(error.to_string()))?;
            to.state(name, text.as_bytes())
        }
        Err(refusal) => {
            to.missing(name, &refusal.message);
            Ok(())
        }
    }
}

fn logs(
    site: &Site<'_>,
    pods: &[Pod],
    followed: &BTreeMap<String, Follower>,
    to: &mut dyn Collect,
) -> Result<(), DriveError> {
    let mut wanted = Vec::new();
    for pod in pods {
        for container in pod.containers.iter().filter(|one| one.begun()) {
            wanted.push(Wanted { pod, container, previous: false });
            if container.restarts > 0 {
                wanted.push(Wanted { pod, container, previous: true });
            }
        }
        if !pod.containers.iter().any(Container::begun) {
            to.missing(&format!("log of {}", pod.title()), "none of its containers was begun");
        }
    }
    let answers = site.client.each(&wanted, |one| {
        let mut args =
            vec!["logs", &one.pod.name, "-n", &site.namespace, "-c", &one.container.name, "--timestamps"];
        if one.previous {
            args.push("--previous");
        }
        site.client.raw_within(&args, LOG)
    });
    let mut whole = BTreeSet::new();
    for (one, answer) in wanted.iter().zip(answers) {
        let main = one.container.name == one.pod.main && !one.previous;
        let why = match answer {
            Ok(output) if output.code == Some(0) => {
                to.log(&one.name(), &output.stdout)?;
                if main {
                    whole.insert(one.pod.name.as_str());
                }
                continue;
            }
            Ok(output) => expertrail_cluster::kube::client::understand(&output).message,
            Err(refusal) => refusal.message,
        };
        // The part that was followed is handed over below, with its own words.
        if !(main && followed.contains_key(&one.pod.name)) {
            to.missing(&format!("log {}", one.name()), &why);
        }
    }
    for (pod, follower) in followed.iter().filter(|(pod, _)| !whole.contains(pod.as_str())) {
        to.log(pod, follower.seen())?;
        let cut = if follower.cut() { ", and it was too long to be kept whole" } else { "" };
        to.missing(
            &format!("the end of log {pod}"),
            &format!(
                "the pod is gone or does not answer; what it had written until it was last read is kept{cut}"
            ),
        );
    }
    Ok(())
}
