//! Whether the cluster's nodes can hold the pods.

use std::collections::BTreeMap;

use expertrail_cluster::kube::client::{Look, clean};
use expertrail_cluster::kube::values::quantity;
use serde_json::Value;

use super::manifest::Template;
use super::site::Site;

/// A node as far as it matters for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Name.
    pub(super) name: String,
    labels: BTreeMap<String, String>,
    /// `key=value:Effect` of those that keep pods away.
    taints: Vec<String>,
    ready: bool,
    cordoned: bool,
    allocatable: BTreeMap<String, (u64, String)>,
}

impl Room {
    fn read(value: &Value) -> Option<Self> {
        let (spec, status) = (&value["spec"], &value["status"]);
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let map = |value: &Value| value.as_object().cloned().unwrap_or_default();
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let taint = |one: &Value| {
            let effect = text(one, "effect");
            let value = Some(text(one, "value")).filter(|value| !value.is_empty());
            let value = value.map(|value| format!("={value}")).unwrap_or_default();
            (effect != "PreferNoSchedule").then(|| format!("{}{value}:{effect}", text(one, "key")))
        };
        let ready =
            |one: &Value| one["type"].as_str() == Some("Ready") && one["status"].as_str() == Some("True");
        Some(Self {
            name: value["metadata"]["name"].as_str()?.to_owned(),
            labels: map(&value["metadata"]["labels"])
                .into_iter()
                .filter_map(|(key, value)| Some((key, value.as_str()?.to_owned())))
                .collect(),
            taints: list(&spec["taints"]).iter().filter_map(taint).collect(),
            ready: list(&status["conditions"]).iter().any(ready),
            cordoned: spec["unschedulable"] == Value::Bool(true),
            allocatable: map(&status["allocatable"])
                .into_iter()
                .filter_map(|(key, value)| {
                    let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    Some((key, (quantity(&written)?, written)))
                })
                .collect(),
        })
    }

    /// Why pods of `template` do not go there, whatever they ask for; none where they may.
    fn closed(&self, template: &Template) -> Option<String> {
        let lacking = template.labels.iter().find(|(key, values)| {
            let has = self.labels.get(key);
            match values {
                None => has.is_none(),
                Some(values) => has.is_none_or(|has| !values.contains(has)),
            }
        });
        if let Some((key, values)) = lacking {
            let wanted = values.as_ref().map(|values| format!("={}", values.join("|"))).unwrap_or_default();
            return Some(format!("has no label {key}{wanted}"));
        }
        // These are put on by the cluster while a node is away; `ready` says the same.
        let kept = |taint: &&String| {
            !taint.starts_with("node.kubernetes.io/")
                && !template.tolerations.iter().any(|one| one.covers(taint))
        };
        if let Some(taint) = self.taints.iter().find(kept) {
            return Some(format!("has the taint {taint}, which the pods do not tolerate"));
        }
        if self.cordoned {
            return Some("is cordoned".to_owned());
        }
        (!self.ready).then(|| "is not ready".to_owned())
    }

    /// What it has too little of, as it could be at best: `memory 900Gi asked, 512Gi allocatable`.
    fn lacks(&self, template: &Template) -> Option<String> {
        template.requests.iter().find_map(|(key, wanted)| {
            let (has, written) =
                self.allocatable.get(key).map_or((0, "0"), |(has, text)| (*has, text.as_str()));
            let asked = template.written.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value);
            (has < *wanted)
                .then(|| format!("{key}: {asked} asked, {} allocatable", readable(key, has, written)))
        })
    }
}

/// An amount for people: kubelets write memory in Ki.
fn readable(key: &str, amount: u64, written: &str) -> String {
    if key == "memory" && amount >= 1 << 30 {
        format!("{:.0}Gi", amount as f64 / 1_073_741_824.0)
    } else {
        clean(written)
    }
}

/// What the nodes offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    /// Nodes in all.
    pub(super) all: usize,
    /// Names of nodes that can hold a pod.
    pub(super) fit: Vec<String>,
    /// Nodes that the pods may go to, but which offer too little: name and what.
    pub(super) small: Vec<(String, String)>,
    /// Nodes that are closed to them: name and why.
    pub(super) closed: Vec<(String, String)>,
}

impl Capacity {
    /// Looks at all nodes.
    ///
    /// # Errors
    /// When the caller may not list nodes.
    pub(super) fn look(site: &Site<'_>, template: &Template) -> Look<Self> {
        let nodes = site.client.list(&["get", "nodes", "-o", "json"], Room::read)?;
        Ok(Self::of(&nodes, template))
    }

    fn of(nodes: &[Room], template: &Template) -> Self {
        let mut capacity = Self { all: nodes.len(), ..Self::default() };
        for node in nodes {
            let name = clean(&node.name);
            if let Some(why) = node.closed(template) {
                capacity.closed.push((name, clean(&why)));
            } else if let Some(what) = node.lacks(template) {
                capacity.small.push((name, what));
            } else {
                capacity.fit.push(name);
            }
        }
        capacity
    }

    /// `4 of 6 nodes can hold a pod of this run: a, b, c, d`.
    pub(super) fn line(&self) -> String {
        let names = some(&self.fit);
        let names = if names.is_empty() { String::new() } else { format!(": {names}") };
        format!(
            "{} of {} nodes can hold a pod of this run, if nothing else uses them{names}",
            self.fit.len(),
            self.all
        )
    }

    /// Why `pods` pods will not start, where nothing but another request would help: every node that they may go to is too small.
    pub(super) fn never(&self, pods: u64) -> Option<String> {
        if self.fit.len() as u64 >= pods || self.small.is_empty() {
            return None;
        }
        let each: Vec<String> = self.small.iter().map(|(name, what)| format!("{name} ({what})")).collect();
        Some(format!(
            "{pods} nodes are needed and {} can hold a pod: the requests are above what is allocatable on {}. Ask for a little less than \
             Allocatable of `kubectl describe node`, or for fewer nodes",
            self.fit.len(),
            some(&each)
        ))
    }

    /// Why pods may have to wait.
    pub(super) fn waits(&self, pods: u64) -> Option<String> {
        if self.fit.len() as u64 >= pods {
            return None;
        }
        let each: Vec<String> = self.closed.iter().map(|(name, why)| format!("{name} {why}")).collect();
        let why = if each.is_empty() { "there are no others".to_owned() } else { some(&each) };
        Some(format!(
            "{pods} nodes are needed and {} can hold a pod now ({why}): the others' pods will be Pending until the cluster has more",
            self.fit.len()
        ))
    }
}

/// The first few of many.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let first = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{first} and {more} more"),
        _ => first,
    }
}
