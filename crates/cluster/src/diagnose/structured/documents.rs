//! Documents of `kubectl get -o json`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{State, Words, full, seconds};

/// What is read of an object; everything else is skipped, so that a large list takes little memory.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    kind: Option<String>,
    items: Option<Vec<Object>>,
    metadata: Option<Meta>,
    spec: Option<Spec>,
    status: Option<Status>,
    // Events.
    #[serde(rename = "involvedObject", alias = "regarding")]
    about: Option<Reference>,
    #[serde(rename = "type")]
    class: Option<String>,
    reason: Option<String>,
    #[serde(alias = "note")]
    message: Option<String>,
    count: Option<i64>,
    last_timestamp: Option<String>,
    event_time: Option<String>,
    series: Option<Series>,
    source: Option<From>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: Option<String>,
    effect: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    conditions: Option<Vec<Condition>>,
    container_statuses: Option<Vec<Container>>,
    init_container_statuses: Option<Vec<Container>>,
    allocatable: Option<BTreeMap<String, serde_json::Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    class: Option<String>,
    status: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    last_transition_time: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: Option<String>,
    image: Option<String>,
    ready: Option<bool>,
    restart_count: Option<i64>,
    state: Option<States>,
    last_state: Option<States>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct States {
    waiting: Option<Detail>,
    running: Option<Detail>,
    terminated: Option<Detail>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Detail {
    reason: Option<String>,
    message: Option<String>,
    exit_code: Option<i64>,
    signal: Option<i64>,
    finished_at: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reference {
    kind: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Series {
    count: Option<i64>,
    last_observed_time: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct From {
    host: Option<String>,
}

fn text(value: Option<&String>) -> &str {
    value.map_or("", String::as_str)
}

/// States of a document; none where it is no document of Kubernetes.
pub(in crate::diagnose) fn document(json: &str) -> Option<Vec<State>> {
    let object: Object = serde_json::from_str(json).ok()?;
    object.kind.as_ref()?;
    let mut writer = Writer { json, lines: line_starts(json), from: 0, states: Vec::new() };
    match &object.items {
        Some(items) => {
            let list = text(object.kind.as_ref()).trim_end_matches("List").to_owned();
            for item in items {
                writer.object(item, text(item.kind.as_ref().or(Some(&list))));
            }
        }
        None => writer.object(&object, text(object.kind.as_ref())),
    }
    Some(writer.states)
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1)).collect()
}

struct Writer<'a> {
    json: &'a str,
    lines: Vec<usize>,
    /// Where the object that is written starts, as far as its name tells.
    from: usize,
    states: Vec<State>,
}

impl Writer<'_> {
    /// The line where `needle` stands as a value, from the present object on; else that of the object's name.
    fn line_of(&self, needle: &str) -> u64 {
        let found = if needle.is_empty() {
            None
        } else {
            self.json.get(self.from..).and_then(|rest| rest.find(&format!("\"{needle}\"")))
        };
        let at = self.from + found.unwrap_or(0);
        (self.lines.partition_point(|start| *start <= at).max(1) - 1) as u64
    }

    fn push(&mut self, text: String, node: &str, time: Option<f64>, line: u64) {
        let node = (!node.is_empty()).then(|| node.to_owned());
        self.states.push(State { text, node, time, line });
    }

    fn object(&mut self, object: &Object, kind: &str) {
        let named = object.metadata.as_ref().and_then(|meta| meta.name.as_ref());
        // An event is about something else, whose name it has as well.
        let about = object.about.as_ref().and_then(|about| about.name.as_ref()).filter(|_| kind == "Event");
        let Some(name) = named.or(about) else { return };
        if let Some(at) = self.json.get(self.from..).and_then(|rest| rest.find(&format!("\"{name}\""))) {
            self.from += at;
        }
        let namespace = text(object.metadata.as_ref().and_then(|meta| meta.namespace.as_ref()));
        match kind {
            "Pod" => self.pod(object, namespace, name),
            "Node" => self.node(object, name),
            "Event" => self.event(object, namespace),
            "Job" | "MPIJob" | "PyTorchJob" | "TrainJob" => self.job(object, namespace, name),
            _ => {}
        }
        // The next object of this name is another one.
        self.from = (self.from + name.len()).min(self.json.len());
        while !self.json.is_char_boundary(self.from) {
            self.from += 1;
        }
    }

    fn pod(&mut self, object: &Object, namespace: &str, name: &str) {
        let Some(status) = &object.status else { return };
        let node = text(object.spec.as_ref().and_then(|spec| spec.node_name.as_ref()));
        let about = full(namespace, name);
        let main: Vec<&Container> = status.container_statuses.iter().flatten().collect();
        let init: Vec<&Container> = status.init_container_statuses.iter().flatten().collect();
        let ready = main.iter().filter(|container| container.ready == Some(true)).count();
        let ready = format!("{ready}/{}", main.len());
        let restarts: i64 = main
            .iter()
            .chain(&init)
            .filter_map(|container| container.restart_count)
            .fold(0, i64::saturating_add);
        let bad = status.conditions.iter().flatten().find(|condition| {
            text(condition.class.as_ref()) == "PodScheduled" && text(condition.status.as_ref()) == "False"
        });
        let reason = text(status.reason.as_ref().or(bad.and_then(|bad| bad.reason.as_ref())));
        let message = text(status.message.as_ref().or(bad.and_then(|bad| bad.message.as_ref())));
        let since = bad.and_then(|bad| seconds(bad.last_transition_time.as_deref()?));
        let phase = text(status.phase.as_ref());
        let line = self.line_of(if reason.is_empty() { phase } else { reason });
        let shown = if node.is_empty() { name } else { node };
        let words = Words::new("kube-pod", &about)
            .pair("node", node)
            .pair("phase", phase)
            .pair("ready", &ready)
            .number("restarts", Some(restarts))
            .pair("reason", reason);
        self.push(words.message(message), shown, since, line);
        for (container, init) in init.iter().map(|one| (one, true)).chain(main.iter().map(|one| (one, false)))
        {
            let nothing = States::default();
            let now = container.state.as_ref().unwrap_or(&nothing);
            let before = container.last_state.as_ref().unwrap_or(&nothing);
            let (waiting, ended, last) =
                (now.waiting.as_ref(), now.terminated.as_ref(), before.terminated.as_ref());
            let reason =
                |detail: Option<&Detail>| text(detail.and_then(|detail| detail.reason.as_ref())).to_owned();
            let state = match (waiting, ended, &now.running) {
                (Some(_), ..) => "waiting",
                (_, Some(_), _) => "terminated",
                (.., Some(_)) => "running",
                _ => "",
            };
            let message =
                [waiting, ended, last].into_iter().flatten().find_map(|detail| detail.message.as_ref());
            let time = ended.or(last).and_then(|detail| seconds(detail.finished_at.as_deref()?));
            let telling =
                [reason(ended), reason(last), reason(waiting)].into_iter().find(|reason| !reason.is_empty());
            let line = self.line_of(telling.as_deref().unwrap_or(text(container.name.as_ref())));
            let words = Words::new("kube-container", &format!("{about}/{}", text(container.name.as_ref())))
                .pair("node", node)
                .pair("init", if init { "true" } else { "false" })
                .pair("state", state)
                .pair("waiting", &reason(waiting))
                .pair("terminated", &reason(ended))
                .number("exit", ended.and_then(|detail| detail.exit_code))
                .number("signal", ended.and_then(|detail| detail.signal))
                .pair("last-terminated", &reason(last))
                .number("last-exit", last.and_then(|detail| detail.exit_code))
                .pair("ready", &ready)
                .number("restarts", container.restart_count)
                .pair("image", text(container.image.as_ref()));
            self.push(words.message(text(message)), shown, time, line);
        }
    }

    fn event(&mut self, object: &Object, namespace: &str) {
        let about = object.about.as_ref();
        let part =
            |pick: fn(&Reference) -> &Option<String>| text(about.and_then(|about| pick(about).as_ref()));
        let (kind, name) = (part(|about| &about.kind), part(|about| &about.name));
        let namespace = if part(|about| &about.namespace).is_empty() {
            namespace
        } else {
            part(|about| &about.namespace)
        };
        let series = object.series.as_ref();
        let time = [
            series.and_then(|series| series.last_observed_time.as_ref()),
            object.last_timestamp.as_ref(),
            object.event_time.as_ref(),
        ]
        .into_iter()
        .flatten()
        .find_map(|text| seconds(text));
        let reason = text(object.reason.as_ref());
        let host = text(object.source.as_ref().and_then(|source| source.host.as_ref()));
        let shown = if kind == "Node" || host.is_empty() { name } else { host };
        let line = self.line_of(reason);
        let words = Words::new(
            "kube-event",
            &format!("{}/{kind}/{name}", if namespace.is_empty() { "-" } else { namespace }),
        )
        .pair("node", host)
        .pair("type", text(object.class.as_ref()))
        .pair("reason", reason)
        .number("count", series.and_then(|series| series.count).or(object.count));
        self.push(words.message(text(object.message.as_ref())), shown, time, line);
    }

    fn node(&mut self, object: &Object, name: &str) {
        for condition in object.status.iter().flat_map(|status| status.conditions.iter().flatten()) {
            let class = text(condition.class.as_ref());
            let line = self.line_of(class);
            let words = Words::new("kube-node", name)
                .pair("condition", class)
                .pair("status", text(condition.status.as_ref()))
                .pair("reason", text(condition.reason.as_ref()));
            let time = condition.last_transition_time.as_deref().and_then(seconds);
            self.push(words.message(text(condition.message.as_ref())), name, time, line);
        }
        if let Some(spec) = &object.spec {
            if spec.unschedulable == Some(true) {
                let line = self.line_of("unschedulable");
                self.push(format!("kube-node {name} unschedulable=true"), name, None, line);
            }
            for taint in spec.taints.iter().flatten() {
                let key = text(taint.key.as_ref());
                let line = self.line_of(key);
                let words = Words::new("kube-node", name);
                let taint = format!("{key}:{}", text(taint.effect.as_ref()));
                self.push(words.pair("taint", &taint).message(""), name, None, line);
            }
        }
        for (resource, amount) in object.status.iter().flat_map(|status| status.allocatable.iter().flatten())
        {
            if resource.contains('/') || resource.starts_with("hugepages-") {
                let amount = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
                let line = self.line_of("allocatable");
                let words =
                    Words::new("kube-node", name).pair("allocatable", resource).pair("amount", &amount);
                self.push(words.message(""), name, None, line);
            }
        }
    }

    fn job(&mut self, object: &Object, namespace: &str, name: &str) {
        for condition in object.status.iter().flat_map(|status| status.conditions.iter().flatten()) {
            if text(condition.status.as_ref()) != "True" {
                continue;
            }
            let reason = text(condition.reason.as_ref());
            let class = text(condition.class.as_ref());
            let line = self.line_of(if reason.is_empty() { class } else { reason });
            let words = Words::new("kube-job", &full(namespace, name))
                .pair("condition", class)
                .pair("reason", reason);
            let time = condition.last_transition_time.as_deref().and_then(seconds);
            self.push(words.message(text(condition.message.as_ref())), "", time, line);
        }
    }
}
