//! Why a pod is not running yet, or no more, in plain words, with what to do about it.

mod image;
mod room;

use expertrail_cluster::kube::client::clean;

use super::look::{Container, End, Note, Pod, Snapshot, State};

/// How far a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It has no node.
    NoRoom,
    /// It has a node; its volumes or its network are being made.
    Creating,
    /// Something it mounts cannot be had.
    NoVolume,
    /// Its image is on the way.
    Pulling,
    /// Its image cannot be had.
    NoImage,
    /// Its container cannot be made.
    BadConfig,
    /// A container runs that must end before the others begin.
    Preparing,
    /// It runs.
    Running,
    /// It ends and is begun again.
    Crashing,
    /// It was taken away.
    Lost,
    /// It has ended.
    Ended,
}

/// A pod's state for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// How far it is.
    pub(super) stage: Stage,
    /// In words, without the pod's name: "pulling the image".
    pub(super) words: String,
    /// What to do; empty where waiting is all.
    pub(super) remedy: String,
}

impl View {
    fn new(stage: Stage, words: impl Into<String>) -> Self {
        Self { stage, words: words.into(), remedy: String::new() }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// The words, and what to do.
    pub(super) fn whole(&self) -> String {
        if self.remedy.is_empty() { self.words.clone() } else { format!("{}. {}", self.words, self.remedy) }
    }
}

/// What is known of the run that makes remedies concrete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    /// Namespace.
    pub(super) namespace: String,
    /// The registry's secret that the run names.
    pub(super) pull_secret: Option<String>,
}

/// The state of `pod`.
pub(super) fn view(pod: &Pod, snapshot: &Snapshot, hints: &Hints) -> View {
    if let Some(lost) = lost(pod) {
        return lost;
    }
    if let Some(end) = pod.end() {
        let words = ended(end);
        let remedy = remedy_of(end);
        return View::new(Stage::Ended, words).remedy(remedy);
    }
    if pod.node.is_none() {
        return unscheduled(pod, snapshot);
    }
    let waiting = pod.containers.iter().find_map(|one| match &one.state {
        State::Waiting { reason, message } if telling(reason) => Some((one, reason, message)),
        _ => None,
    });
    if let Some((one, reason, message)) = waiting {
        return stuck(one, (reason, message), pod, snapshot, hints);
    }
    let failed_init = pod.containers.iter().filter(|one| one.init).find_map(|one| match &one.state {
        State::Ended(end) if end.code != 0 => Some((one, end)),
        _ => None,
    });
    if let Some((one, end)) = failed_init {
        let words = format!("container {} before the run {}", one.name, ended(end));
        return View::new(Stage::Crashing, words).remedy(remedy_of(end));
    }
    if pod.worker().is_some_and(|one| one.state == State::Running) {
        return View::new(Stage::Running, "running");
    }
    if let Some(one) = pod.containers.iter().find(|one| one.init && one.state == State::Running) {
        let words = if one.name == super::look::BINARY_CONTAINER {
            "waits for the expertrail binary".to_owned()
        } else {
            format!("container {} runs before the others", one.name)
        };
        return View::new(Stage::Preparing, words);
    }
    creating(pod, snapshot, hints)
}

/// Reasons of waiting that say more than "not yet".
fn telling(reason: &str) -> bool {
    !matches!(reason, "" | "ContainerCreating" | "PodInitializing")
}

/// A container that the kubelet cannot begin.
fn stuck(
    one: &Container,
    (reason, message): (&str, &str),
    pod: &Pod,
    snapshot: &Snapshot,
    hints: &Hints,
) -> View {
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => {
            let said = failure(pod, snapshot, "Failed to pull image").unwrap_or_else(|| message.to_owned());
            image::view(&one.image, reason, &said, (pod, snapshot), hints)
        }
        "CrashLoopBackOff" => {
            let how = one.last.as_ref().map(|end| format!(": the last time it {}", ended(end)));
            let words = format!(
                "container {} ends and is begun again, {} times so far{}",
                one.name,
                one.restarts,
                how.unwrap_or_default()
            );
            let log = format!("kubectl -n {} logs {} -c {} --previous", hints.namespace, pod.name, one.name);
            View::new(Stage::Crashing, words).remedy(format!("Its log says why: {log}"))
        }
        "CreateContainerConfigError" => {
            let words = format!("container {} cannot be made: {}", one.name, clean(message));
            View::new(Stage::BadConfig, words).remedy(
                "A Secret, ConfigMap or key that the pod names is not in the namespace: make it, or render again without it",
            )
        }
        "CreateContainerError" | "RunContainerError" | "ContainerCannotRun" | "StartError" => {
            let said = failure(pod, snapshot, "Error").unwrap_or_else(|| message.to_owned());
            let words = format!("container {} cannot be begun: {}", one.name, clean(&said));
            View::new(Stage::BadConfig, words).remedy(runtime_remedy(&said))
        }
        other => {
            View::new(Stage::Creating, format!("container {} waits: {} {}", one.name, other, clean(message)))
        }
    }
}

fn runtime_remedy(said: &str) -> &'static str {
    if said.contains("executable file not found") || said.contains("no such file or directory") {
        "The image lacks the program that the pod begins: name an image that has it (it needs `sh`), or correct the command"
    } else if said.contains("exec format error") {
        "The image is for another kind of CPU than the node's"
    } else {
        "The container runtime refuses it: `kubectl describe pod` has the whole message"
    }
}

/// The newest failure event whose sentence begins so.
fn failure(pod: &Pod, snapshot: &Snapshot, begins: &str) -> Option<String> {
    let fits = |note: &&Note| note.reason == "Failed" && note.message.starts_with(begins);
    snapshot.about(&pod.name).rev().find(fits).map(|note| note.message.clone())
}

/// It has a node and nothing runs yet.
fn creating(pod: &Pod, snapshot: &Snapshot, hints: &Hints) -> View {
    let last = |reasons: &[&str]| {
        snapshot.about(&pod.name).rev().find(|note| reasons.contains(&note.reason.as_str()))
    };
    let node = pod.node.as_deref().unwrap_or("its node");
    let pulled = last(&["Pulled", "Created", "Started"]).map_or(0, |note| note.at);
    if let Some(note) = last(&["FailedMount", "FailedAttachVolume"]).filter(|note| note.at >= pulled) {
        return volume(note, node);
    }
    if let Some(note) = last(&["FailedCreatePodSandBox"]).filter(|note| note.at >= pulled) {
        let words = format!("node {node} cannot make the pod's network: {}", clean(&note.message));
        return View::new(Stage::Creating, words).remedy(
            "The node tries again. If it stays so, the cluster's network plugin on that node is at fault: cordon the node and start the run again",
        );
    }
    if last(&["Pulling"]).is_some_and(|note| note.at >= pulled) {
        let secret = last(&["FailedToRetrieveImagePullSecret"]);
        let words = format!("pulling the image on {node}");
        let view = View::new(Stage::Pulling, words);
        return match secret {
            Some(_) => view.remedy(image::no_secret(hints)),
            None => view,
        };
    }
    View::new(Stage::Creating, format!("its containers are being made on {node}"))
}

fn volume(note: &Note, node: &str) -> View {
    let said = clean(&note.message);
    let remedy = if note.message.contains("hostPath type check failed") {
        "The node has no such folder. For NCCL's topology file: leave the mount and NCCL_TOPO_FILE out \
         (network.nccl_topo_file = \"\" in run.toml), or have the provider's file on every node"
            .to_owned()
    } else if note.message.contains("not found") {
        "A ConfigMap or Secret that the pod mounts is not in the namespace: apply the whole manifest, or make it".to_owned()
    } else {
        String::new()
    };
    View::new(Stage::NoVolume, format!("node {node} cannot mount a volume: {said}")).remedy(remedy)
}

fn unscheduled(pod: &Pod, snapshot: &Snapshot) -> View {
    let condition = pod.unscheduled.as_ref().filter(|(reason, _)| reason == "Unschedulable");
    let event = || snapshot.about(&pod.name).rev().find(|note| note.reason == "FailedScheduling");
    let said =
        condition.map(|(_, message)| message.clone()).or_else(|| event().map(|note| note.message.clone()));
    match (said, &pod.unscheduled) {
        (Some(said), _) => {
            let (words, remedy) = room::explain(&said);
            View::new(Stage::NoRoom, words).remedy(remedy)
        }
        (None, Some((reason, _))) if reason == "SchedulingGated" => View::new(
            Stage::NoRoom,
            "held back by a scheduling gate (a queue, as Kueue, has not admitted it)",
        ),
        _ => View::new(Stage::NoRoom, "waits for a node"),
    }
}

/// A pod that something took away.
fn lost(pod: &Pod) -> Option<View> {
    let on = pod.node.as_deref().unwrap_or("its node");
    if pod.reason == "Evicted" {
        let words = format!("evicted from {on}: {}", clean(&pod.message));
        let remedy = if pod.message.contains("ephemeral-storage") || pod.message.contains("disk") {
            "The node's disk ran full: free it or take another node"
        } else {
            "The node ran short of what the pod had not reserved: raise the requests to the limits"
        };
        return Some(View::new(Stage::Lost, words).remedy(remedy));
    }
    if pod.reason == "NodeLost" || pod.phase == "Unknown" {
        let words = format!("node {on} does not answer any more");
        return Some(View::new(Stage::Lost, words).remedy(format!("See `kubectl describe node {on}`")));
    }
    if let Some((reason, message)) = &pod.disrupted {
        let what = match reason.as_str() {
            "PreemptionByScheduler" => "preempted by a pod of higher priority",
            "DeletionByTaintManager" => {
                "taken off its node by a taint (the node is not ready, or is being drained)"
            }
            "EvictionByEvictionAPI" => "evicted (the node is being drained)",
            "DeletionByPodGC" => "removed because its node is gone",
            _ => "taken away by the kubelet",
        };
        let remedy = match reason.as_str() {
            "PreemptionByScheduler" => {
                "Give the run a priority class (kubernetes.priority_class), or start it when the nodes are free"
            }
            _ => "",
        };
        let words = format!("{what} on {on}: {}", clean(message));
        return Some(View::new(Stage::Lost, words).remedy(remedy));
    }
    // Admission errors of the kubelet: the pod fails without a container ever having begun.
    let refused = pod.phase == "Failed" && pod.end().is_none() && !pod.reason.is_empty();
    refused.then(|| {
        let words = format!("{on} refused it: {}: {}", clean(&pod.reason), clean(&pod.message));
        View::new(Stage::Lost, words).remedy(
            "The device plugin or the kubelet of that node did not give what the scheduler had promised: `kubectl describe node` shows it",
        )
    })
}

/// `ended with exit code 1`, `was killed by signal 9 (out of memory)`.
pub(super) fn ended(end: &End) -> String {
    let message = if end.message.is_empty() { String::new() } else { format!(": {}", clean(&end.message)) };
    match (end.reason.as_str(), end.code) {
        ("OOMKilled", code) => format!("was killed for memory (OOMKilled, exit code {code})"),
        (_, 0) => "ended with exit code 0".to_owned(),
        (_, 137) => format!("was killed (exit code 137, SIGKILL){message}"),
        (_, 143) => format!("was told to stop (exit code 143, SIGTERM){message}"),
        ("" | "Error" | "Completed", code) => {
            format!("ended with exit code {code}{message}")
        }
        (reason, code) => format!("ended with exit code {code} ({}){message}", clean(reason)),
    }
}

fn remedy_of(end: &End) -> &'static str {
    match (end.reason.as_str(), end.code) {
        ("OOMKilled", _) => {
            "It reached its memory limit; files in /dev/shm count as its memory. Raise kubernetes.memory and memory_limit to just under the node's Allocatable"
        }
        (_, 126 | 127) => "The program is not in the image, or is no program for this CPU",
        _ => "",
    }
}
