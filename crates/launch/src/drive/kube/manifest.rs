//! The rendered files as they are applied: documents, and what their pods ask for. A file that a person edited is taken as it is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use expertrail_cluster::kube::client::clean;
use expertrail_cluster::kube::values::quantity;
use serde_json::Value;

use super::look::RUN_LABEL;
use crate::drive::DriveError;
use crate::run::Run;

/// The longest file that is taken for a manifest. The API server takes objects of 1.5 MB.
const LARGEST: u64 = 16 << 20;

/// A document of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document {
    /// As it stands in the file: kubectl reads this, so that nothing is lost on the way.
    pub(super) text: String,
    /// Its content.
    pub(super) value: Value,
}

impl Document {
    /// `Job`.
    pub(super) fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    fn namespace(&self) -> Option<&str> {
        self.value["metadata"]["namespace"].as_str()
    }

    fn is_of(&self, run: &str) -> bool {
        self.value["metadata"]["labels"][RUN_LABEL].as_str() == Some(run)
    }

    /// What pods it makes; none where it makes none.
    pub(super) fn template(&self) -> Option<Template> {
        let spec = &self.value["spec"];
        let (pods, template) = match self.kind() {
            "Job" => (spec["parallelism"].as_u64().unwrap_or(1), &spec["template"]),
            "MPIJob" => {
                let worker = &spec["mpiReplicaSpecs"]["Worker"];
                (worker["replicas"].as_u64().unwrap_or(1), &worker["template"])
            }
            "DaemonSet" => (0, &spec["template"]),
            _ => return None,
        };
        Some(Template::read(pods, &template["spec"]))
    }
}

/// A taint that is tolerated: key, value, effect; none of them where any will do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tolerated {
    key: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

impl Tolerated {
    /// Whether it covers the taint `key=value:Effect`.
    pub(super) fn covers(&self, taint: &str) -> bool {
        let (rest, effect) = taint.rsplit_once(':').unwrap_or((taint, ""));
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        self.key.as_deref().is_none_or(|wanted| wanted == key)
            && self.value.as_deref().is_none_or(|wanted| wanted == value)
            && self.effect.as_deref().is_none_or(|wanted| wanted == effect)
    }
}

/// What a pod asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    /// Pods at once.
    pub(super) pods: u64,
    /// Labels that a node must have: key and the values that will do; none for any value.
    pub(super) labels: Vec<(String, Option<Vec<String>>)>,
    /// Taints that are tolerated.
    pub(super) tolerations: Vec<Tolerated>,
    /// What all containers that run together ask for.
    pub(super) requests: BTreeMap<String, u64>,
    /// The same as it is written.
    pub(super) written: Vec<(String, String)>,
    /// Images.
    pub(super) images: Vec<String>,
    /// Folders of the host.
    pub(super) host_paths: Vec<String>,
    /// Secrets of registries.
    pub(super) secrets: Vec<String>,
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn words(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl Template {
    fn read(pods: u64, spec: &Value) -> Self {
        let mut template = Self { pods, ..Self::default() };
        for (key, value) in spec["nodeSelector"].as_object().into_iter().flatten() {
            template.labels.push((key.clone(), words(value).map(|value| vec![value])));
        }
        let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        // Several terms are alternatives: only one alone can be counted upon.
        if let [term] = list(&required["nodeSelectorTerms"]).collect::<Vec<_>>().as_slice() {
            for one in list(&term["matchExpressions"]) {
                let values = || list(&one["values"]).filter_map(words).collect();
                match (one["key"].as_str(), one["operator"].as_str()) {
                    (Some(key), Some("In")) => template.labels.push((key.to_owned(), Some(values()))),
                    (Some(key), Some("Exists")) => template.labels.push((key.to_owned(), None)),
                    _ => {}
                }
            }
        }
        for one in list(&spec["tolerations"]) {
            let part = |name: &str| one[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            let exists = one["operator"].as_str() == Some("Exists");
            let value = if exists { None } else { Some(part("value").unwrap_or_default()) };
            template.tolerations.push(Tolerated { key: part("key"), value, effect: part("effect") });
        }
        for container in list(&spec["containers"]) {
            // What is limited and not requested is requested as it is limited.
            let resources = &container["resources"];
            let mut wanted: BTreeMap<String, String> = BTreeMap::new();
            for part in ["limits", "requests"] {
                for (key, value) in resources[part].as_object().into_iter().flatten() {
                    wanted.extend(words(value).map(|value| (key.clone(), value)));
                }
            }
            for (key, value) in wanted {
                if let Some(amount) = quantity(&value) {
                    *template.requests.entry(key.clone()).or_default() += amount;
                    template.written.push((key, value));
                }
            }
        }
        let both = list(&spec["initContainers"]).chain(list(&spec["containers"]));
        for image in both.filter_map(|one| words(&one["image"])) {
            if !template.images.contains(&image) {
                template.images.push(image);
            }
        }
        template.host_paths =
            list(&spec["volumes"]).filter_map(|one| words(&one["hostPath"]["path"])).collect();
        template.secrets = list(&spec["imagePullSecrets"]).filter_map(|one| words(&one["name"])).collect();
        template
    }

    /// `8 nvidia.com/gpu, 8 nvidia.com/hostdev, 158 CPUs, 900Gi memory`.
    pub(super) fn asks(&self) -> String {
        let one = |(key, value): &(String, String)| match key.as_str() {
            "cpu" => format!("{value} CPUs"),
            "memory" => format!("{value} memory"),
            _ => format!("{value} {key}"),
        };
        let mut parts: Vec<&(String, String)> = self.written.iter().collect();
        // Devices first: they are what the run is about.
        parts.sort_by_key(|(key, _)| (!key.contains('/'), key.clone()));
        parts.into_iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// All that is applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Manifest {
    /// The namespace's own document, where there is one.
    pub(super) namespace: Option<Document>,
    /// Sets of pods that pull the image first.
    pub(super) pulls: Vec<Document>,
    /// What is applied at once: services, `ConfigMap`s, the Job.
    pub(super) base: Vec<Document>,
    /// `MPIJob`s, which run one after the other.
    pub(super) steps: Vec<Document>,
    /// Files of the folder that are no part of this run.
    pub(super) ignored: Vec<String>,
}

impl Manifest {
    /// Reads the YAML files of `folder` that are of this run.
    ///
    /// # Errors
    /// When a file cannot be read, is no YAML, or names another namespace than the run.
    pub(super) fn read(folder: &Path, run: &Run) -> Result<Self, DriveError> {
        let mut all = Self::default();
        for path in files(folder)? {
            let text = load(&path)?;
            let documents = split(&path, &text)?;
            if !documents.iter().any(|one| one.is_of(&run.id)) {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                all.ignored.push(clean(&name));
                continue;
            }
            for one in documents {
                let wanted = &run.kubernetes.namespace;
                let other = if one.kind() == "Namespace" { Some(one.name()) } else { one.namespace() };
                if let Some(other) = other.filter(|other| other != wanted) {
                    return Err(DriveError::Refused(format!(
                        "{}: {} {} is for namespace {other}, but run.json says {wanted}: render again with --set kubernetes.namespace={other}",
                        path.display(),
                        one.kind(),
                        one.name()
                    )));
                }
                match one.kind() {
                    "Namespace" => all.namespace = Some(one),
                    "DaemonSet" => all.pulls.push(one),
                    "MPIJob" => all.steps.push(one),
                    _ => all.base.push(one),
                }
            }
        }
        let order = |one: &Document| run.steps.iter().position(|step| one.name().ends_with(&step.name));
        all.steps.sort_by_key(|one| order(one).unwrap_or(usize::MAX));
        if all.steps.is_empty() && !all.base.iter().any(|one| one.kind() == "Job") {
            return Err(DriveError::Refused(format!(
                "{} has no Job or MPIJob with the label {RUN_LABEL}: {}; render it again",
                folder.display(),
                run.id
            )));
        }
        Ok(all)
    }

    /// Every document but the namespace, in the order in which they are applied.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Document> {
        self.pulls.iter().chain(&self.base).chain(&self.steps)
    }

    /// What the pods of the run ask for: of the step with the most.
    pub(super) fn template(&self) -> Option<Template> {
        self.base.iter().chain(&self.steps).filter_map(Document::template).max_by_key(|one| one.pods)
    }
}

/// Documents as one text for `kubectl apply -f -`.
pub(super) fn joined<'a>(documents: impl IntoIterator<Item = &'a Document>) -> String {
    documents.into_iter().fold(String::new(), |all, one| all + "---\n" + &one.text)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, DriveError> {
    let unread = |error: std::io::Error| {
        DriveError::Refused(format!(
            "{}: {error}; wanted a folder that `expertrail render` wrote",
            folder.display()
        ))
    };
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        let yaml = path.extension().is_some_and(|ext| ext == "yaml" || ext == "yml");
        if yaml && path.is_file() {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

fn load(path: &Path) -> Result<String, DriveError> {
    let wrong = |reason: String| DriveError::Refused(format!("cannot read {}: {reason}", path.display()));
    let length = fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if length > LARGEST {
        return Err(wrong(format!("longer than {LARGEST} bytes: no manifest")));
    }
    fs::read_to_string(path).map_err(|error| wrong(error.to_string()))
}

/// The documents of a text. They are cut at lines `---`, which cannot be within a block: those are indented.
fn split(path: &Path, text: &str) -> Result<Vec<Document>, DriveError> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line == "---" || line.starts_with("--- ") {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    let mut all = Vec::new();
    for text in parts {
        let bare = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        if text.lines().all(bare) {
            continue;
        }
        let value: Value = serde_saphyr::from_str(&text).map_err(|error| {
            DriveError::Refused(format!("{}: document {}: {error}", path.display(), all.len() + 1))
        })?;
        if value["kind"].as_str().is_none() || value["metadata"]["name"].as_str().is_none() {
            return Err(DriveError::Refused(format!(
                "{}: document {} has no kind or no metadata.name",
                path.display(),
                all.len() + 1
            )));
        }
        all.push(Document { text, value });
    }
    Ok(all)
}
