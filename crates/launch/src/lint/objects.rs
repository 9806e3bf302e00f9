//! Kubernetes objects into launches.

use super::finding::At;
use super::script::Word;
use super::scripts;
use super::tree::{Kind as Form, Value};
use super::unit::{Figure, Kind, Pod, Role, Scope, Setting, Unit, decided};

/// A document and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a> {
    pub(crate) file: usize,
    pub(crate) value: &'a Value,
}

impl Object<'_> {
    /// Its kind.
    pub(crate) fn kind(&self) -> String {
        self.value.text_at("kind").unwrap_or_default()
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        let metadata = self.value.get("metadata");
        metadata.and_then(|m| m.text_at("name").or_else(|| m.text_at("generateName"))).unwrap_or_default()
    }

    /// Its namespace, where it says one.
    pub(crate) fn namespace(&self) -> Option<String> {
        self.value.get("metadata")?.text_at("namespace")
    }

    /// A place in it.
    pub(crate) fn at(&self, line: usize) -> At {
        At { file: self.file, line }
    }
}

/// The documents of a file; the items of lists in place of these.
pub(crate) fn objects(file: usize, documents: &[Value]) -> Vec<Object<'_>> {
    let mut all = Vec::new();
    for value in documents {
        match value.get("items") {
            Some(items) if value.text_at("kind").is_some_and(|kind| kind.ends_with("List")) => {
                all.extend(items.items().iter().map(|value| Object { file, value }));
            }
            _ => all.push(Object { file, value }),
        }
    }
    all
}

/// The launch that an object describes, if any.
pub(crate) fn unit(object: Object<'_>) -> Option<Unit<'_>> {
    let (value, spec) = (object.value, object.value.get("spec")?);
    let kind = object.kind();
    let mut unit = scripts::empty(
        match kind.as_str() {
            "Job" | "CronJob" | "JobSet" => Kind::Job,
            "MPIJob" => Kind::MpiJob,
            _ => Kind::Pods,
        },
        object.file,
    );
    unit.line = value.line_of("kind");
    unit.name = object.name();
    unit.namespace = object.namespace();
    unit.doc = Some(value);
    let nodes = |unit: &Unit<'_>, map: &Value, key: &str, what: &str| {
        Some(Figure { count: map.number_at(key)?, at: unit.at(map.line_of(key)), what: what.to_owned() })
    };
    match kind.as_str() {
        "Job" => {
            template(&mut unit, Role::Worker, spec);
            unit.nodes = nodes(&unit, spec, "completions", "completions")
                .or_else(|| nodes(&unit, spec, "parallelism", "parallelism"));
        }
        "CronJob" => template(&mut unit, Role::Worker, spec.path(&["jobTemplate", "spec"])?),
        "JobSet" => {
            for job in spec.get("replicatedJobs")?.items() {
                let inner = job.path(&["template", "spec"])?;
                template(&mut unit, Role::Worker, inner);
                let each = inner.number_at("completions").or_else(|| inner.number_at("parallelism"));
                let count = each.unwrap_or(1).saturating_mul(job.number_at("replicas").unwrap_or(1));
                let at = unit.at(job.line_of("replicas"));
                unit.nodes = Some(Figure { count, at, what: "replicas x parallelism".to_owned() });
            }
        }
        "MPIJob" => {
            let replicas = spec.get("mpiReplicaSpecs")?;
            for (key, role) in [("Launcher", Role::Launcher), ("Worker", Role::Worker)] {
                if let Some(part) = replicas.get(key) {
                    template(&mut unit, role, part);
                }
            }
            let worker = replicas.get("Worker");
            unit.nodes = worker.and_then(|worker| nodes(&unit, worker, "replicas", "Worker replicas"));
        }
        "PyTorchJob" => {
            let replicas = spec.get("pytorchReplicaSpecs")?;
            let mut count = 0;
            for key in ["Master", "Worker"] {
                if let Some(part) = replicas.get(key) {
                    template(&mut unit, Role::Worker, part);
                    count += part.number_at("replicas").unwrap_or(1);
                }
            }
            let at = unit.at(replicas.line);
            unit.nodes = Some(Figure { count, at, what: "Master and Worker replicas".to_owned() });
        }
        "StatefulSet" | "Deployment" | "ReplicaSet" | "LeaderWorkerSet" => {
            template(&mut unit, Role::Worker, spec);
            unit.nodes = nodes(&unit, spec, "replicas", "replicas");
        }
        "DaemonSet" => template(&mut unit, Role::Worker, spec),
        "Pod" => push(&mut unit, Role::Worker, value, value),
        _ => return None,
    }
    if unit.pods.is_empty() {
        return None;
    }
    unit.gpus = unit.pods.iter().find_map(|pod| {
        let (count, line) = pod.resource("nvidia.com/gpu")?;
        let at = At { file: object.file, line };
        Some(Figure { count, at, what: "nvidia.com/gpu".to_owned() })
    });
    Some(unit)
}

fn template<'a>(unit: &mut Unit<'a>, role: Role, owner: &'a Value) {
    if let Some(template) = owner.get("template") {
        push(unit, role, template, owner);
    }
}

fn push<'a>(unit: &mut Unit<'a>, role: Role, template: &'a Value, owner: &'a Value) {
    let Some(spec) = template.get("spec") else { return };
    let Some(containers) = spec.get("containers") else { return };
    let gpu = |container: &&Value| {
        ["limits", "requests"]
            .iter()
            .any(|part| container.path(&["resources", part, "nvidia.com/gpu"]).is_some())
    };
    let Some(container) = containers.items().iter().find(gpu).or(containers.items().first()) else { return };
    unit.pods.push(Pod { role, template, spec, container, owner });
    for container in containers.items() {
        contents(unit, container);
    }
}

/// Variables and commands of a container.
fn contents(unit: &mut Unit<'_>, container: &Value) {
    unit.open |= container.get("envFrom").is_some();
    for variable in container.get("env").map(Value::items).unwrap_or_default() {
        let Some(name) = variable.text_at("name").filter(|_| !unit.crowded()) else { continue };
        let value = variable.text_at("value");
        let from = variable.get("valueFrom").is_some();
        let line = variable.line_of(if from { "name" } else { "value" });
        let text = value.unwrap_or_default();
        // `$(NAME)` is another variable of the pod.
        let decided = !from && decided(&text);
        let at = unit.at(line);
        unit.settings.push(Setting { name, value: text, at, scope: Scope::Pod, decided });
    }
    let mut words = Vec::new();
    for key in ["command", "args"] {
        for item in container.get(key).map(Value::items).unwrap_or_default() {
            words.extend(item.text().map(|text| Word { text, line: item.line }));
        }
    }
    let shell = |word: &Word| matches!(word.text.rsplit('/').next(), Some("bash" | "sh" | "dash"));
    let flag = |word: &Word| word.text.starts_with('-') && word.text.ends_with('c');
    let at = words.iter().position(flag).filter(|_| words.first().is_some_and(shell));
    match at.and_then(|at| words.get(at + 1)) {
        Some(script) => scripts::add(unit, &script.text.clone(), script.line),
        None if words.is_empty() => {}
        None => scripts::add_words(unit, words),
    }
}

/// Whether a container's command is a shell's text.
pub(crate) fn has_shell(container: &Value) -> bool {
    let first = ["command", "args"].into_iter().find_map(|key| container.get(key)?.items().first()?.text());
    first.is_none_or(|word| matches!(word.rsplit('/').next(), Some("bash" | "sh" | "dash")))
}

/// Whether `value` is anything that Kubernetes reads.
pub(crate) fn is_object(value: &Value) -> bool {
    matches!(value.kind, Form::Map(_)) && value.get("kind").is_some() && value.get("apiVersion").is_some()
}
