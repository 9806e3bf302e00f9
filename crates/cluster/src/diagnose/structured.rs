//! Documents and tables about a run, as lines of text: what Kubernetes and Slurm say goes through the same signals as logs do.
//!
//! Each telling state of `kubectl get pods|events|nodes|jobs -o json` (a list or single objects, several documents in one file), of
//! `kubectl describe`, of the tables that `kubectl get` prints, and of `sacct` becomes one line. The raw lines it was read from are not
//! scanned again.
//!
//! # Grammar
//! A line is a word that names the kind, what it is about, and `key=value` pairs, all separated by one space. A key that has nothing to say
//! is left out. Values hold no spaces (spaces become `_`), but for `message=`, which always comes last and runs to the end of the line.
//! Pairs stand in the order given here. A namespace that is not known is `-`.
//!
//! ```text
//! kube-pod <namespace>/<pod> node=<node> phase=<Pending|Running|Succeeded|Failed|Unknown> status=<STATUS of the table> ready=<r>/<n>
//!          restarts=<n> reason=<Unschedulable|Evicted|NodeLost|...> message=<text>
//! kube-container <namespace>/<pod>/<container> node=<node> init=<true|false> state=<waiting|running|terminated>
//!          waiting=<CrashLoopBackOff|ImagePullBackOff|ErrImagePull|CreateContainerConfigError|ContainerCreating|...>
//!          terminated=<OOMKilled|Error|Completed|...> exit=<code> signal=<n> last-terminated=<reason> last-exit=<code> ready=<r>/<n>
//!          restarts=<n> image=<image> message=<text>
//! kube-event <namespace>/<Kind>/<name> node=<node> type=<Normal|Warning> reason=<FailedScheduling|FailedMount|BackOff|...> count=<n>
//!          message=<text>
//! kube-node <node> condition=<Ready|DiskPressure|MemoryPressure|PIDPressure|NetworkUnavailable|...> status=<True|False|Unknown>
//!          reason=<KubeletNotReady|...> message=<text>
//! kube-node <node> unschedulable=true
//! kube-node <node> taint=<key>:<effect>
//! kube-node <node> allocatable=<resource> amount=<quantity>        (GPUs, NICs and huge pages: names with a `/`, and hugepages-*)
//! kube-node <node> status=<STATUS of the table, as NotReady,SchedulingDisabled>
//! kube-job <namespace>/<job> condition=<Complete|Failed|Suspended> reason=<BackoffLimitExceeded|DeadlineExceeded|...> message=<text>
//! sacct job=<job id> step=<step, as 0, batch, extern> name=<name> state=<NODE_FAIL|OUT_OF_MEMORY|TIMEOUT|CANCELLED|FAILED|COMPLETED|...>
//!          exit=<code>:<signal> nodes=<list> reason=<reason>
//! ```
//!
//! A pod has one `kube-pod` line, each of its containers one `kube-container` line (`ready` there is that of the pod: containers that are
//! ready, of all). `terminated` and `exit` are of the present state, `last-terminated` and `last-exit` of the one before a restart. Of a
//! node, conditions that are as they should be (`Ready` true, pressures false) are written as well. `node` of the event is the node of the
//! pod where known, else the pod. Its time is that of the object (`lastTimestamp` of an event, `finishedAt` of a container, `End` of a job),
//! and its line the one in the file where the reason, or else the name, stands.

mod describe;
mod documents;
mod tables;

pub(super) use describe::Describe;
pub(super) use documents::document;
pub(super) use tables::{Tables, may_be_account, may_be_pod};

use super::time::{self, Clock};

/// A state as a line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    /// The line, in the grammar of this module.
    pub(super) text: String,
    /// Host, else pod.
    pub(super) node: Option<String>,
    /// Seconds since 1970.
    pub(super) time: Option<f64>,
    /// Line of the file, or of the document, from 0 there.
    pub(super) line: u64,
}

/// A line in the making.
struct Words(String);

impl Words {
    fn new(kind: &str, about: &str) -> Self {
        Self(format!("{kind} {}", word(about)))
    }

    fn pair(mut self, key: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.0.push(' ');
            self.0.push_str(key);
            self.0.push('=');
            self.0.push_str(&word(value));
        }
        self
    }

    fn number(self, key: &str, value: Option<i64>) -> Self {
        match value {
            Some(value) => self.pair(key, &value.to_string()),
            None => self,
        }
    }

    fn message(mut self, text: &str) -> String {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.is_empty() {
            self.0.push_str(" message=");
            self.0.push_str(&text);
        }
        self.0
    }
}

/// A value without spaces.
fn word(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join("_")
}

/// `namespace/name`, with `-` for a namespace that is not known.
fn full(namespace: &str, name: &str) -> String {
    format!("{}/{name}", if namespace.is_empty() { "-" } else { namespace })
}

/// Seconds since 1970 of a time with its date.
fn seconds(text: &str) -> Option<f64> {
    let (stamp, _) = time::parse(text.trim().as_bytes())?;
    matches!(stamp.clock, Clock::Date | Clock::Zoned).then_some(stamp.seconds)
}

/// Columns of a table whose columns are parted by two spaces or more.
fn columns(line: &str) -> Vec<&str> {
    let mut all = Vec::new();
    for part in line.trim().split("  ").map(str::trim).filter(|part| !part.is_empty()) {
        all.push(part);
    }
    all
}
