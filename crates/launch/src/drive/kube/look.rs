//! What the API server says of a run's objects, taken apart. What is not understood is left out, never guessed.

use expertrail_cluster::kube::values::seconds;
use serde_json::Value;

/// Label of all objects of a run; its value is the run's id.
pub const RUN_LABEL: &str = "expertrail.dev/run";

/// Label of everything that this program makes.
pub(super) const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "expertrail");

/// The container that waits for this project's binary (see `Binary::Copy`).
pub(super) const BINARY_CONTAINER: &str = "expertrail-binary";

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn time(value: &Value) -> Option<u64> {
    value.as_str().and_then(seconds)
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    /// Exit status; 128 + n for signal n.
    pub(super) code: i32,
    /// `OOMKilled`, `Error`, `Completed`, `ContainerCannotRun`.
    pub(super) reason: String,
    /// What the runtime said.
    pub(super) message: String,
    /// Seconds since 1970.
    pub(super) finished: Option<u64>,
}

impl End {
    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            code: i32::try_from(value.get("exitCode")?.as_i64()?).ok()?,
            reason: text(&value["reason"]).unwrap_or_default(),
            message: text(&value["message"]).unwrap_or_default(),
            finished: time(&value["finishedAt"]),
        })
    }
}

/// What a container does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// It has not begun, or begins again.
    Waiting {
        /// `ContainerCreating`, `ErrImagePull`, `CrashLoopBackOff`.
        reason: String,
        /// What the kubelet said.
        message: String,
    },
    /// It runs.
    Running,
    /// It has ended.
    Ended(End),
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Container {
    /// Name.
    pub(super) name: String,
    /// Its image.
    pub(super) image: String,
    /// Whether it runs before the others.
    pub(super) init: bool,
    /// What it does.
    pub(super) state: State,
    /// How it ended the last time, where it was begun again.
    pub(super) last: Option<End>,
    /// How often it was begun again.
    pub(super) restarts: u64,
}

impl Container {
    /// Whether it has begun at least once, so that it may have a log.
    pub(super) fn begun(&self) -> bool {
        matches!(self.state, State::Running | State::Ended(_)) || self.restarts > 0 || self.last.is_some()
    }
}

/// What a pod is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// A node of the run: a pod of the indexed Job, or an `MPIJob`'s worker.
    #[default]
    Node,
    /// An `MPIJob`'s launcher.
    Launcher,
    /// It only pulls the image.
    Pull,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pod {
    /// Name.
    pub(super) name: String,
    /// What it is for.
    pub(super) role: Role,
    /// Its node of the run, counted from 0.
    pub(super) index: Option<u32>,
    /// The cluster's node.
    pub(super) node: Option<String>,
    /// The `Job` or `MPIJob` that it belongs to.
    pub(super) owner: String,
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    pub(super) phase: String,
    /// `Evicted`, `NodeLost`, `UnexpectedAdmissionError`.
    pub(super) reason: String,
    /// The sentence to it.
    pub(super) message: String,
    /// It is being deleted.
    pub(super) leaving: bool,
    /// Seconds since 1970.
    pub(super) created: Option<u64>,
    /// Why it has no node: reason and sentence of the condition `PodScheduled`.
    pub(super) unscheduled: Option<(String, String)>,
    /// Why it was taken away: reason and sentence of the condition `DisruptionTarget`.
    pub(super) disrupted: Option<(String, String)>,
    /// Its containers, those that run before the others first.
    pub(super) containers: Vec<Container>,
    /// Name of the container that does the work.
    pub(super) main: String,
}

impl Pod {
    /// Reads one; none where it is no pod of a run.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let (meta, spec, status) = (&value["metadata"], &value["spec"], &value["status"]);
        let label = |name: &str| text(&meta["labels"][name]);
        let owner = items(&meta["ownerReferences"]).first();
        let owned = |what: &str| owner.and_then(|owner| text(&owner[what])).unwrap_or_default();
        let name = text(&meta["name"])?;
        let mpi = label("training.kubeflow.org/job-name");
        let role = match label("training.kubeflow.org/job-role").as_deref() {
            _ if owned("kind") == "DaemonSet" => Role::Pull,
            Some("launcher") => Role::Launcher,
            _ => Role::Node,
        };
        let index = ["batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index"]
            .iter()
            .find_map(|key| text(&meta["annotations"][key]).or_else(|| label(key)))
            .or_else(|| name.rsplit_once("-worker-").map(|(_, index)| index.to_owned()))
            .and_then(|index| index.parse().ok());
        let mut pod = Self {
            role,
            index: index.filter(|_| role == Role::Node),
            node: text(&spec["nodeName"]),
            owner: mpi.unwrap_or_else(|| owned("name")),
            phase: text(&status["phase"]).unwrap_or_default(),
            reason: text(&status["reason"]).unwrap_or_default(),
            message: text(&status["message"]).unwrap_or_default(),
            leaving: meta.get("deletionTimestamp").is_some(),
            created: time(&meta["creationTimestamp"]),
            main: items(&spec["containers"]).first().and_then(|one| text(&one["name"])).unwrap_or_default(),
            name,
            ..Self::default()
        };
        for condition in items(&status["conditions"]) {
            let is = condition["status"].as_str().unwrap_or_default();
            let words = || {
                let part = |name: &str| text(&condition[name]).unwrap_or_default();
                Some((part("reason"), part("message")))
            };
            match (condition["type"].as_str().unwrap_or_default(), is) {
                ("PodScheduled", "False") => pod.unscheduled = words(),
                ("DisruptionTarget", "True") => pod.disrupted = words(),
                _ => {}
            }
        }
        for (init, wanted, states) in
            [(true, "initContainers", "initContainerStatuses"), (false, "containers", "containerStatuses")]
        {
            let states = items(&status[states]);
            for one in items(&spec[wanted]) {
                let Some(name) = text(&one["name"]) else { continue };
                let state = states.iter().find(|state| state["name"].as_str() == Some(&name));
                pod.containers.push(container(name, init, one, state));
            }
        }
        Some(pod)
    }

    /// The container that does the work.
    pub(super) fn worker(&self) -> Option<&Container> {
        self.containers.iter().find(|one| !one.init && one.name == self.main)
    }

    /// How the work ended.
    pub(super) fn end(&self) -> Option<&End> {
        match self.worker().map(|one| &one.state) {
            Some(State::Ended(end)) => Some(end),
            _ => None,
        }
    }

    /// How the work ended, now or the last time that it was begun.
    pub(super) fn ending(&self) -> Option<&End> {
        self.end().or_else(|| self.worker()?.last.as_ref())
    }

    /// Whether nothing of it runs any more.
    pub(super) fn over(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed") || self.end().is_some()
    }

    /// The container that waits for this project's binary, while it does.
    pub(super) fn wants_binary(&self) -> bool {
        let waits = |one: &Container| one.init && one.name == BINARY_CONTAINER && one.state == State::Running;
        !self.leaving && self.containers.iter().any(waits)
    }

    /// `node 1 (pod x-1-abcde on gpu-2)`.
    pub(super) fn title(&self) -> String {
        let on = self.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        match (self.role, self.index) {
            (Role::Node, Some(index)) => format!("node {index} (pod {}{on})", self.name),
            (Role::Launcher, _) => format!("launcher (pod {}{on})", self.name),
            _ => format!("pod {}{on}", self.name),
        }
    }
}

fn container(name: String, init: bool, spec: &Value, status: Option<&Value>) -> Container {
    let image = text(&spec["image"]).unwrap_or_default();
    let Some(status) = status else { return Container { name, image, init, ..Container::default() } };
    let state = &status["state"];
    let state = if let Some(waiting) = state.get("waiting") {
        State::Waiting {
            reason: text(&waiting["reason"]).unwrap_or_default(),
            message: text(&waiting["message"]).unwrap_or_default(),
        }
    } else if state.get("running").is_some() {
        State::Running
    } else {
        state.get("terminated").and_then(End::read).map_or(State::Unknown, State::Ended)
    };
    let last = status["lastState"].get("terminated").and_then(End::read);
    Container { name, image, init, state, last, restarts: status["restartCount"].as_u64().unwrap_or(0) }
}

/// A `Job` or an `MPIJob`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    /// Name.
    pub(super) name: String,
    /// `Job` or `MPIJob`.
    pub(super) kind: String,
    /// It says that all is done.
    pub(super) complete: bool,
    /// It says that it failed: reason and sentence.
    pub(super) failed: Option<(String, String)>,
    /// It is being deleted.
    pub(super) leaving: bool,
    /// It was told to wait.
    pub(super) suspended: bool,
    /// Seconds for which it stays after its end.
    pub(super) ttl: Option<u64>,
}

impl Job {
    /// Reads one.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let meta = &value["metadata"];
        let mut job = Self {
            name: text(&meta["name"])?,
            kind: text(&value["kind"]).unwrap_or_default(),
            leaving: meta.get("deletionTimestamp").is_some(),
            ttl: value["spec"]["ttlSecondsAfterFinished"].as_u64(),
            ..Self::default()
        };
        for condition in items(&value["status"]["conditions"]) {
            if condition["status"].as_str() != Some("True") {
                continue;
            }
            let part = |name: &str| text(&condition[name]).unwrap_or_default();
            match condition["type"].as_str().unwrap_or_default() {
                "Complete" | "Succeeded" => job.complete = true,
                "Failed" => job.failed = Some((part("reason"), part("message"))),
                "Suspended" => job.suspended = true,
                _ => {}
            }
        }
        Some(job)
    }
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// Name of the object it is about.
    pub(super) about: String,
    /// Its kind.
    pub(super) kind: String,
    /// `FailedScheduling`, `Pulling`, `Failed`.
    pub(super) reason: String,
    /// The sentence.
    pub(super) message: String,
    /// When it was last seen, in seconds since 1970.
    pub(super) at: u64,
}

impl Note {
    /// Reads one.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let about = &value["involvedObject"];
        let at = ["lastTimestamp", "eventTime", "firstTimestamp"].iter().find_map(|key| time(&value[key]));
        Some(Self {
            about: text(&about["name"])?,
            kind: text(&about["kind"]).unwrap_or_default(),
            reason: text(&value["reason"])?,
            message: text(&value["message"]).unwrap_or_default(),
            at: at.or_else(|| time(&value["metadata"]["creationTimestamp"])).unwrap_or(0),
        })
    }
}

/// Everything of a run at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Pods, in the order of their nodes; the newest where a node had several.
    pub(super) pods: Vec<Pod>,
    /// Jobs of either kind. An `MPIJob`'s launcher is a Job too: it is left out.
    pub(super) jobs: Vec<Job>,
    /// Events, the oldest first.
    pub(super) notes: Vec<Note>,
}

impl Snapshot {
    /// Takes apart a list of pods and jobs, and one of events.
    pub(super) fn read(objects: &Value, events: &Value) -> Self {
        let (mut pods, mut jobs) = (Vec::new(), Vec::new());
        for item in items(&objects["items"]) {
            match item["kind"].as_str().unwrap_or_default() {
                "Pod" => pods.extend(Pod::read(item)),
                "Job" if owned_by(item, "MPIJob") => {}
                "Job" | "MPIJob" => jobs.extend(Job::read(item)),
                _ => {}
            }
        }
        let newest = |pod: &Pod| {
            !pods.iter().any(|other| {
                pod.index.is_some()
                    && (&other.owner, other.index, other.role) == (&pod.owner, pod.index, pod.role)
                    && (other.created, &other.name) > (pod.created, &pod.name)
            })
        };
        let mut pods: Vec<Pod> = pods.iter().filter(|pod| newest(pod)).cloned().collect();
        pods.sort_by(|a, b| {
            (a.role == Role::Node, a.index, &a.name).cmp(&(b.role == Role::Node, b.index, &b.name))
        });
        let mut notes: Vec<Note> = items(&events["items"]).iter().filter_map(Note::read).collect();
        notes.sort_by_key(|note| note.at);
        Self { pods, jobs, notes }
    }

    /// Events about the object of that name.
    pub(super) fn about<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a Note> {
        self.notes.iter().filter(move |note| note.about == name)
    }

    /// The run's nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| pod.role == Role::Node)
    }
}

fn owned_by(item: &Value, kind: &str) -> bool {
    items(&item["metadata"]["ownerReferences"]).iter().any(|owner| owner["kind"].as_str() == Some(kind))
}
