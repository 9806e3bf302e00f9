//! The runs that are rendered.

use std::path::Path;

use expertrail_launch::files::FileSet;
use expertrail_launch::render::{self, RenderError};
use expertrail_launch::run::{Run, Target};
use expertrail_launch::spec::Spec;
use serde_json::Value;

/// The id of all: with a derived one, each new field of a run would change every golden file.
pub(crate) const ID: &str = "bringup";

pub(crate) struct Case {
    /// Folder under `tests/golden`.
    pub(crate) folder: &'static str,
    pub(crate) text: String,
    pub(crate) target: Target,
}

impl Case {
    pub(crate) fn files(&self) -> FileSet {
        files(&self.text, self.target)
    }
}

pub(crate) fn resolve(text: &str, target: Target) -> Run {
    Run::resolve(&Spec::parse("run.toml", text, &[]).unwrap(), target, None, Some(ID)).unwrap()
}

pub(crate) fn try_files(text: &str, target: Target) -> Result<FileSet, RenderError> {
    render::run(&resolve(text, target))
}

pub(crate) fn files(text: &str, target: Target) -> FileSet {
    try_files(text, target).unwrap()
}

/// `engine` on `nodes` nodes of `profile`.
pub(crate) fn guide(engine: &str, profile: &str, nodes: u32) -> String {
    let mut text =
        format!("name = \"bringup\"\nengine = \"{engine}\"\nprofile = \"{profile}\"\nnodes = {nodes}\n");
    match engine {
        "command" => text.push_str(
            "image = \"registry.example/train:2\"\ncommand = [\"python3\", \"-m\", \"train\", \"--steps\", \"30\"]\ncollect = \
             [\"{out}/summary-{rank}.json\"]\n",
        ),
        "expertrail" => text.push_str("image = \"registry.example/expertrail:0.1.0\"\n"),
        _ => {}
    }
    text
}

/// DeepEP's own tests on an AWS instance, as their page runs them.
pub(crate) fn aws(profile: &str) -> String {
    format!(
        "name = \"bringup\"\nengine = \"deepep\"\nprofile = \"{profile}\"\nimage = \"registry.example/deepep:efa1.48.0\"\n\
         benchmarks = [\"intranode\", \"internode\", \"low-latency\"]\n[deepep]\ndriver = \"upstream-tests\"\n"
    )
}

/// Everything that a description can ask of Kubernetes.
pub(crate) const EVERYTHING: &str = r#"
name = "bringup"
engine = "deepep"
profile = "crusoe-h200"
nodes = 3
image = "registry.example/deepep@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
timeout = "30m"
preflight = "strict"
[workload]
experts = 144
[env]
NCCL_DEBUG = "INFO"
PRICE = "5$ $(HOME) $$ it's \"quoted\""
[kubernetes]
namespace = "deepep-test"
binary = "init"
expertrail_image = "registry.example/expertrail:0.1.0"
node_selector = { "nvidia.com/gpu.product" = "NVIDIA-H200", "pool" = "h200" }
tolerations = ["nvidia.com/gpu:NoSchedule", "workload=bench:NoSchedule", "reserved"]
pull_secret = "deepep-pull"
prepull = true
ttl_seconds = 600
service_account = "bench"
priority_class = "low"
hugepages_2mi = "1024Mi"
"#;

/// Ranks on the CPU in an image that has nothing of ours.
pub(crate) const CPU: &str = r#"
name = "bringup"
nodes = 2
gpus_per_node = 2
image = "debian:bookworm-slim"
[workload]
preset = "quick"
[kubernetes]
binary = "copy"
gpu_resource = ""
cpu = "2"
memory = "2Gi"
shm = "1Gi"
"#;

/// DeepEP's own tests in an indexed Job: two steps, of which one has fewer nodes.
pub(crate) fn upstream() -> String {
    guide("deepep", "crusoe-b200", 2)
        + "[deepep]\ndriver = \"upstream-tests\"\n[kubernetes]\nbinary = \"image\"\n"
}

/// This project's benchmark on EFA, its binary by an init container.
pub(crate) fn aws_own() -> String {
    "name = \"bringup\"\nengine = \"deepep\"\nprofile = \"aws-p5en\"\nimage = \"registry.example/deepep:efa1.48.0\"\n[kubernetes]\n\
     expertrail_image = \"registry.example/expertrail:0.1.0\"\ntolerations = [\"workload=bench:NoSchedule\", \
     \"capacity-reservation:NoSchedule\"]\n"
        .to_owned()
}

pub(crate) fn all() -> Vec<Case> {
    let job = |folder, text: String| Case { folder, text, target: Target::K8sJob };
    let mpi = |folder, text: String| Case { folder, text, target: Target::Mpijob };
    vec![
        job("k8s-job/deepep-h200x2", guide("deepep", "crusoe-h200", 2)),
        job("k8s-job/deepep-b200x2", guide("deepep", "crusoe-b200", 2)),
        job("k8s-job/deepep-b200x4", guide("deepep", "crusoe-b200", 4)),
        job("k8s-job/expertrail-h200x2", guide("expertrail", "crusoe-h200", 2)),
        job("k8s-job/expertrail-b200x2", guide("expertrail", "crusoe-b200", 2)),
        job("k8s-job/expertrail-b200x4", guide("expertrail", "crusoe-b200", 4)),
        job("k8s-job/command-h200x2", guide("command", "crusoe-h200", 2)),
        job("k8s-job/command-b200x2", guide("command", "crusoe-b200", 2)),
        job("k8s-job/command-b200x4", guide("command", "crusoe-b200", 4)),
        job("k8s-job/upstream-b200x2", upstream()),
        job("k8s-job/everything", EVERYTHING.to_owned()),
        job("k8s-job/cpu", CPU.to_owned()),
        mpi("mpijob/p5en", aws("aws-p5en")),
        mpi("mpijob/p6-b300", aws("aws-p6-b300")),
        mpi("mpijob/p5en-own", aws_own()),
        mpi("mpijob/h200-copy", guide("command", "crusoe-h200", 2)),
    ]
}

/// The documents of a YAML file.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// Whether a file's name ends in `.ending`.
pub(crate) fn is(path: &str, ending: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == ending)
}

/// All documents of all YAML files.
pub(crate) fn all_documents(files: &FileSet) -> Vec<Value> {
    let yaml = files.files.iter().filter(|file| is(&file.path, "yaml"));
    yaml.flat_map(|file| documents(&file.text)).collect()
}

/// The object of `kind` whose name ends in `ending`.
pub(crate) fn object(files: &FileSet, kind: &str, ending: &str) -> Value {
    let mut all = all_documents(files).into_iter();
    let fits = |value: &Value| {
        value["kind"] == kind && value["metadata"]["name"].as_str().is_some_and(|name| name.ends_with(ending))
    };
    all.find(fits).unwrap_or_else(|| panic!("no {kind} named ...{ending}"))
}

/// The value at a JSON pointer.
pub(crate) fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or_else(|| panic!("nothing at {pointer} in {value:#}"))
}

/// The variables of a container, by name; one without a value is null.
pub(crate) fn environment(container: &Value) -> Vec<(String, Value)> {
    let list = container["env"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|one| (one["name"].as_str().unwrap().to_owned(), one["value"].clone())).collect()
}

/// A file of the `ConfigMap`.
pub(crate) fn mounted(files: &FileSet, name: &str) -> String {
    let map = object(files, "ConfigMap", ID);
    map["data"][name].as_str().unwrap_or_else(|| panic!("no {name}")).to_owned()
}
