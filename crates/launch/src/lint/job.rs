//! Jobs and pods of Kubernetes.

use super::finding::{Severity, Sink};
use super::nodes::{Nodes, selectors};
use super::objects::has_shell;
use super::tree::{Kind as Form, Value};
use super::unit::{Kind, Pod, Role, Unit};

pub(crate) fn check(unit: &Unit<'_>, nodes: &Nodes, sink: &mut Sink<'_>) {
    if unit.pods.is_empty() {
        return;
    }
    index(unit, sink);
    retries(unit, sink);
    names(unit, sink);
    for pod in &unit.pods {
        variables(unit, pod, sink);
        network(unit, pod, sink);
        if pod.role == Role::Worker && unit.gpus.is_some() {
            placement(unit, pod, nodes, sink);
            mixed(unit, pod, nodes, sink);
        }
    }
    if let (Some((image, at)), Some((selector, _))) = (nodes.image, nodes.selector)
        && image != selector
    {
        let what = format!("the image is named for {image} and the pods go to {selector} nodes");
        sink.add("N068", at, what).fix(format!("the {selector} image, or a selector for {image}"));
    }
}

/// The spec of a Job itself.
fn job_spec<'u>(unit: &'u Unit<'_>) -> Option<&'u Value> {
    let doc = unit.doc.filter(|doc| doc.text_at("kind").as_deref() == Some("Job"))?;
    doc.get("spec")
}

fn index(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    const INDEX: &str = "batch.kubernetes.io/job-completion-index";
    let mut by_index = unit.text.contains("JOB_COMPLETION_INDEX");
    for pod in &unit.pods {
        for variable in pod.container.get("env").map(Value::items).unwrap_or_default() {
            let Some(field) = variable.path(&["valueFrom", "fieldRef"]) else { continue };
            let path = field.text_at("fieldPath").unwrap_or_default();
            if !path.contains(INDEX) {
                continue;
            }
            by_index = true;
            if path.starts_with("metadata.labels") {
                let name = variable.text_at("name").unwrap_or_default();
                let what = format!("{name} is read from the label {INDEX}");
                sink.add("N061", unit.at(field.line_of("fieldPath")), what)
                    .fix(format!("export {name}=$JOB_COMPLETION_INDEX   # in the script"));
            }
        }
    }
    let Some(spec) = job_spec(unit) else { return };
    if by_index && spec.text_at("completionMode").as_deref() != Some("Indexed") {
        let what = match spec.text_at("completionMode") {
            Some(mode) => format!("completionMode is {mode} and the pods use their index"),
            None => "completionMode is not set and the pods use their index".to_owned(),
        };
        sink.add("N060", unit.at(spec.line_of("completionMode")), what).fix("completionMode: Indexed");
    }
}

fn retries(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let Some(spec) = job_spec(unit) else { return };
    if unit.gpus.is_none() {
        return;
    }
    let limit = spec.number_at("backoffLimit");
    if limit != Some(0) && spec.text_at("backoffLimit").is_none_or(|text| !text.contains('$')) {
        let what = match limit {
            Some(limit) => format!("backoffLimit is {limit}"),
            None => "backoffLimit is not set, which means 6".to_owned(),
        };
        sink.add("N062", unit.at(spec.line_of("backoffLimit")), what).fix("backoffLimit: 0");
    }
    for pod in &unit.pods {
        match pod.spec.text_at("restartPolicy").as_deref() {
            Some("Never") => {}
            Some("OnFailure") => {
                sink.add("N062", unit.at(pod.spec.line_of("restartPolicy")), "restartPolicy is OnFailure")
                    .fix("restartPolicy: Never");
            }
            other => {
                let what =
                    format!("restartPolicy is {} in a Job", other.unwrap_or("not set, which means Always"));
                sink.add("N063", unit.at(pod.spec.line_of("restartPolicy")), what)
                    .fix("restartPolicy: Never");
            }
        }
    }
    if let Some(seconds) = spec.number_at("ttlSecondsAfterFinished") {
        let finding = sink.add(
            "N064",
            unit.at(spec.line_of("ttlSecondsAfterFinished")),
            format!("ttlSecondsAfterFinished is {seconds}"),
        );
        finding.fix("kubectl logs of every pod before then, or leave it away and delete the Job by hand");
        if seconds < 600 {
            finding.weigh(Severity::Warn);
        }
    }
}

fn names(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let generated =
        unit.doc.and_then(|doc| doc.get("metadata")).is_some_and(|m| m.get("generateName").is_some());
    // A step's object has the run's id and the step for its name, and a label with the step.
    let step = unit.doc.and_then(|doc| doc.path(&["metadata", "labels"])?.text_at("expertrail.dev/step"));
    let name = step.and_then(|step| unit.name.strip_suffix(&format!("-{step}")));
    // Six hexadecimal digits at the end are a run's.
    let tail = name.unwrap_or(&unit.name).rsplit('-').next().unwrap_or_default();
    let run = tail.len() == 6 && tail.chars().all(|c| c.is_ascii_hexdigit()) || unit.name.contains('$');
    let line = unit.doc.and_then(|doc| doc.get("metadata")).map_or(unit.line, |m| m.line_of("name"));
    if matches!(unit.kind, Kind::Job | Kind::MpiJob) && !generated && !run {
        sink.add("N065", unit.at(line), format!("the name `{}` is the same in every run", unit.name)).fix(
            format!("kubectl delete {} {} before each apply, or a run id in the name", kind(unit), unit.name),
        );
    }
    let line =
        unit.doc.and_then(|doc| doc.get("metadata")).map_or(unit.line, |m| match m.entry("namespace") {
            Some(entry) => entry.line,
            None => m.line_of("name"),
        });
    match unit.namespace.as_deref() {
        Some(system @ ("kube-system" | "kube-public" | "kube-node-lease" | "nvidia-gpu-operator")) => {
            sink.add("N066", unit.at(line), format!("the namespace is {system}"))
                .fix("namespace: deepep-test");
        }
        Some("default") => {
            sink.add("N066", unit.at(line), "the namespace is default")
                .weigh(Severity::Warn)
                .fix("namespace: deepep-test");
        }
        None => {
            sink.add("N066", unit.at(line), "no namespace: it goes where kubectl points")
                .weigh(Severity::Note)
                .fix("namespace: deepep-test");
        }
        Some(_) => {}
    }
}

fn kind(unit: &Unit<'_>) -> String {
    unit.doc.and_then(|doc| doc.text_at("kind")).unwrap_or_default().to_lowercase()
}

fn variables(unit: &Unit<'_>, pod: &Pod<'_>, sink: &mut Sink<'_>) {
    let mut seen: Vec<String> = Vec::new();
    for variable in pod.container.get("env").map(Value::items).unwrap_or_default() {
        let Some(name) = variable.text_at("name") else { continue };
        if let Some(value) = variable.get("value")
            && !matches!(value.kind, Form::Text(_))
        {
            let text = value.text().unwrap_or_default();
            sink.add("N070", unit.at(value.line), format!("the value of {name} is no string: {text}"))
                .fix(format!("value: \"{text}\""));
        }
        if seen.contains(&name) {
            sink.add("N071", unit.at(variable.line_of("name")), format!("{name} is set twice"))
                .fix("one entry; the last one counts");
        }
        seen.push(name);
    }
    if has_shell(pod.container) {
        return;
    }
    for key in ["command", "args"] {
        for item in pod.container.get(key).map(Value::items).unwrap_or_default() {
            let Some(text) = item.text() else { continue };
            let dollar = text.char_indices().find(|(at, c)| {
                let next = text[at + c.len_utf8()..].chars().next();
                *c == '$' && next.is_some_and(|next| next.is_ascii_alphabetic() || next == '{' || next == '_')
            });
            if dollar.is_some() && !text.contains("{{") {
                let what = format!("`{text}` in {key}, and no shell reads it");
                sink.add("N072", unit.at(item.line), what)
                    .fix("$(NAME), which Kubernetes fills in; or command: [\"/bin/bash\", \"-c\"]");
            }
        }
    }
}

fn network(unit: &Unit<'_>, pod: &Pod<'_>, sink: &mut Sink<'_>) {
    if pod.spec.flag_at("hostNetwork")
        && pod.spec.text_at("dnsPolicy").as_deref() != Some("ClusterFirstWithHostNet")
        && unit.across_nodes()
    {
        let policy = pod.spec.text_at("dnsPolicy").unwrap_or_else(|| "not set".to_owned());
        sink.add(
            "N073",
            unit.at(pod.spec.line_of("hostNetwork")),
            format!("hostNetwork, and dnsPolicy is {policy}"),
        )
        .fix("dnsPolicy: ClusterFirstWithHostNet");
    }
}

fn placement(unit: &Unit<'_>, pod: &Pod<'_>, nodes: &Nodes, sink: &mut Sink<'_>) {
    if !unit.across_nodes()
        || unit.kind == Kind::Pods
            && unit.doc.is_some_and(|doc| doc.text_at("kind").as_deref() == Some("DaemonSet"))
    {
        return;
    }
    let anti = pod.spec.path(&["affinity", "podAntiAffinity"]);
    let spread = pod.spec.get("topologySpreadConstraints").is_some();
    let required = anti.and_then(|anti| anti.get("requiredDuringSchedulingIgnoredDuringExecution"));
    // A pod with all GPUs of a node leaves no place for a second one.
    let all = nodes.profile.as_ref().map_or(8, |profile| u64::from(profile.gpus.max(1)));
    let whole = unit.gpus.as_ref().is_some_and(|gpus| gpus.count >= all);
    let Some(required) = required else {
        if !spread && !whole {
            let line = anti.map_or(unit.line, |_| pod.spec.line_of("affinity"));
            sink.add("N067", unit.at(line), "no podAntiAffinity keeps the pods on different nodes")
                .fix("podAntiAffinity on the pods' own label, topologyKey: kubernetes.io/hostname");
        }
        return;
    };
    let labels = pod.template.path(&["metadata", "labels"]);
    for term in required.items() {
        if term.text_at("topologyKey").as_deref() != Some("kubernetes.io/hostname") {
            sink.add(
                "N067",
                unit.at(term.line_of("topologyKey")),
                "podAntiAffinity by another key than the host",
            )
            .fix("topologyKey: kubernetes.io/hostname");
        }
        for wanted in term.path(&["labelSelector", "matchLabels"]).map(Value::entries).unwrap_or_default() {
            let value = wanted.value.text().unwrap_or_default();
            let own = labels.and_then(|labels| labels.text_at(&wanted.key));
            if own.as_deref() != Some(value.as_str()) && !value.contains('$') {
                let what =
                    format!("podAntiAffinity looks for {}: {value}, which the pods have not", wanted.key);
                sink.add("N067", unit.at(wanted.line), what).fix("the label of the pod template");
            }
        }
    }
}

fn mixed(unit: &Unit<'_>, pod: &Pod<'_>, nodes: &Nodes, sink: &mut Sink<'_>) {
    let chosen = selectors(pod.spec).into_iter().any(|(key, _, _)| {
        key == "nvidia.com/gpu.product"
            || key.ends_with("/instance-type")
            || key.contains("nodepool")
            || key.contains("nodegroup")
            || key == "kubernetes.io/hostname"
    });
    if let Some((image, at)) = nodes.image.filter(|_| !chosen) {
        sink.add("N069", at, format!("the image is named for {image} and no selector asks for such nodes"))
            .fix("nodeSelector: nvidia.com/gpu.product (kubectl get nodes -L nvidia.com/gpu.product)");
    }
    let registry = pod.container.text_at("image").unwrap_or_default();
    let private = registry.contains(".ccr.crusoecloudcompute.com/");
    if private && pod.spec.get("imagePullSecrets").is_none() {
        sink.add(
            "N074",
            unit.at(pod.container.line_of("image")),
            "a registry that asks for a login, and no imagePullSecrets",
        )
        .fix("imagePullSecrets: [{name: deepep-pull}]");
    }
    if private {
        let repository = registry.split('/').nth(1).unwrap_or_default();
        if !repository.rsplit('.').next().is_some_and(|id| id.len() == 8 && id != repository) {
            sink.add(
                "N075",
                unit.at(pod.container.line_of("image")),
                format!("`{registry}` has no project id behind the repository"),
            )
            .fix("registry.REGION.ccr.crusoecloudcompute.com/REPOSITORY.FIRST_8_OF_PROJECT_ID/IMAGE:TAG");
        }
    }
    let policy = pod.container.text_at("imagePullPolicy");
    let tag = registry.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    if matches!(tag, None | Some("latest")) && !registry.contains(['@', '$']) {
        sink.add("N076", unit.at(pod.container.line_of("image")), format!("`{registry}` names no version"))
            .fix("a tag of its own for every build, or a digest");
    } else if policy.as_deref() == Some("Never") {
        sink.add("N076", unit.at(pod.container.line_of("imagePullPolicy")), "imagePullPolicy is Never")
            .weigh(Severity::Warn)
            .fix("imagePullPolicy: IfNotPresent");
    }
}
