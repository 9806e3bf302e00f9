//! A cluster that answers kubectl from a script, with a clock of its own: what there is at a time is a function of that time.
#![allow(unreachable_pub, dead_code)] // a part of several tests, each of which uses some of it

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use expertrail_cluster::kube::{Kubectl, KubectlError, Output};
use expertrail_launch::drive::kube::Clock;
use expertrail_launch::drive::{Collect, DriveError, Event, Show, Stop};
use serde_json::{Value, json};

/// RFC 3339 of second `at` of the test's day.
pub fn stamp(at: u64) -> String {
    format!("2026-03-01T{:02}:{:02}:{:02}Z", at / 3600, at / 60 % 60, at % 60)
}

/// Time that passes when somebody waits.
pub struct Time {
    base: Instant,
    passed: AtomicU64,
}

impl Time {
    pub fn new() -> Self {
        Self { base: Instant::now(), passed: AtomicU64::new(0) }
    }

    pub fn seconds(&self) -> u64 {
        self.passed.load(Ordering::Relaxed) / 1000
    }

    pub fn at(&self, seconds: u64) -> Instant {
        self.base + Duration::from_secs(seconds)
    }
}

impl Clock for Time {
    fn now(&self) -> Instant {
        self.base + Duration::from_millis(self.passed.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.passed.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

/// Somebody who presses Ctrl-C at a second, or never.
pub struct Hand<'a> {
    pub time: &'a Time,
    pub at: Option<u64>,
}

impl Stop for Hand<'_> {
    fn cancelled(&self) -> bool {
        self.at.is_some_and(|at| self.time.seconds() >= at)
    }

    fn pause(&self, time: Duration) {
        self.time.sleep(time);
    }
}

/// What there is so many seconds after the Job was made.
#[derive(Clone, Default)]
pub struct Moment {
    pub pods: Vec<Value>,
    /// Conditions of the Job: type, reason, message.
    pub conditions: Vec<(&'static str, &'static str, &'static str)>,
    /// Object, reason, message, second.
    pub events: Vec<(String, &'static str, String, u64)>,
    /// Lines of a pod's log with their second.
    pub logs: BTreeMap<String, Vec<(u64, String)>>,
    /// The Job is not there any more.
    pub gone: bool,
    /// The `DaemonSet`: wanted, ready.
    pub pulled: (u64, u64),
}

type Script = Box<dyn Fn(u64) -> Moment + Send + Sync>;
type Hook = Box<dyn Fn(&[&str], u64) -> Option<Result<Output, KubectlError>> + Send + Sync>;

/// The cluster.
pub struct World {
    pub time: Time,
    pub run: String,
    pub namespace: String,
    pub script: Script,
    /// Answers that go before the world's own; by the second since the beginning.
    pub hooks: Vec<Hook>,
    /// Words of `auth can-i` that are denied.
    pub denied: Vec<&'static str>,
    pub nodes: Vec<Value>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    calls: Vec<String>,
    /// `kind/name` to the object and the second it was made.
    objects: BTreeMap<String, (Value, u64)>,
    copied: Vec<(String, usize)>,
    deleted: bool,
}

pub fn ok(text: impl Into<String>) -> Output {
    Output { code: Some(0), stdout: text.into().into_bytes(), stderr: Vec::new() }
}

pub fn refused(text: &str) -> Output {
    Output { code: Some(1), stdout: Vec::new(), stderr: format!("{text}\n").into_bytes() }
}

impl World {
    pub fn new(run: &str, namespace: &str, script: impl Fn(u64) -> Moment + Send + Sync + 'static) -> Self {
        Self {
            time: Time::new(),
            run: run.to_owned(),
            namespace: namespace.to_owned(),
            script: Box::new(script),
            hooks: Vec::new(),
            denied: Vec::new(),
            nodes: vec![node("gpu-1", 2000), node("gpu-2", 2000)],
            inner: Mutex::default(),
        }
    }

    pub fn hook(
        &mut self,
        hook: impl Fn(&[&str], u64) -> Option<Result<Output, KubectlError>> + Send + Sync + 'static,
    ) {
        self.hooks.push(Box::new(hook));
    }

    /// All calls, without what each has.
    pub fn calls(&self) -> Vec<String> {
        self.inner.lock().unwrap().calls.clone()
    }

    /// Names of objects that there are.
    pub fn objects(&self) -> Vec<String> {
        self.inner.lock().unwrap().objects.keys().cloned().collect()
    }

    pub fn copied(&self) -> Vec<(String, usize)> {
        self.inner.lock().unwrap().copied.clone()
    }

    /// Puts an object there.
    pub fn put(&self, value: &Value) {
        self.inner.lock().unwrap().put(value, self.time.seconds());
    }

    /// What there is by the script of the Job that was made last; `JOB` in it is that Job's name.
    fn moment(&self, inner: &Inner) -> Moment {
        let made = |kinds: &[&str]| {
            let ours =
                inner.objects.iter().filter(|(key, _)| kinds.contains(&key.split('/').next().unwrap()));
            ours.max_by_key(|(_, (_, made))| *made).map(|(key, (_, made))| (key.clone(), *made))
        };
        let Some((key, made)) = made(&["job", "mpijob"]).or_else(|| made(&["daemonset"])) else {
            return Moment::default();
        };
        let mut moment = (self.script)(self.time.seconds() - made);
        let job = key.split_once('/').unwrap().1;
        for pod in &mut moment.pods {
            *pod = serde_json::from_str(&pod.to_string().replace("JOB", job)).unwrap();
        }
        moment.logs = moment.logs.into_iter().map(|(pod, lines)| (pod.replace("JOB", job), lines)).collect();
        moment
    }

    fn list(&self, inner: &Inner, kinds: &str) -> Vec<Value> {
        let moment = self.moment(inner);
        let mut items = Vec::new();
        for kind in kinds.split(',') {
            let kind = kind.split('.').next().unwrap().trim_end_matches('s');
            if kind == "pod" {
                items.extend(moment.pods.clone());
                continue;
            }
            for (key, (value, made)) in &inner.objects {
                if key.split('/').next() != Some(kind) || (kind == "job" && moment.gone) {
                    continue;
                }
                let mut value = value.clone();
                if kind == "job" || kind == "mpijob" {
                    let conditions: Vec<Value> = (self.script)(self.time.seconds() - made)
                        .conditions
                        .iter()
                        .map(|(kind, reason, message)| {
                            json!({"type": kind, "status": "True", "reason": reason, "message": message})
                        })
                        .collect();
                    value["status"] = json!({ "conditions": conditions });
                }
                if kind == "daemonset" {
                    let (wanted, ready) = moment.pulled;
                    value["status"] = json!({"desiredNumberScheduled": wanted, "numberReady": ready});
                }
                items.push(value);
            }
        }
        items
    }

    fn answer(&self, args: &[&str], input: &[u8]) -> Output {
        let mut inner = self.inner.lock().unwrap();
        let value_of =
            |name: &str| args.iter().position(|arg| *arg == name).and_then(|at| args.get(at + 1)).copied();
        match args {
            ["config", "current-context"] => ok("test-context\n"),
            ["config", "view", ..] => ok(json!({"clusters": [{"cluster": {"server": "https://k8s.test:6443"}}], "contexts": [{"context": {"user": "alice"}}]}).to_string()),
            ["auth", "can-i", rest @ ..] => {
                let words = rest.join(" ");
                if self.denied.iter().any(|denied| words.starts_with(denied)) {
                    Output { code: Some(1), ..ok("no\n") }
                } else {
                    ok("yes\n")
                }
            }
            ["get", "namespace", name, ..] => match inner.objects.get(&format!("namespace/{name}")) {
                Some(_) if args.contains(&"name") => ok(format!("namespace/{name}\n")),
                Some((value, _)) => ok(value.to_string()),
                None => refused(&format!("Error from server (NotFound): namespaces \"{name}\" not found")),
            },
            ["get", "nodes", ..] => ok(json!({"items": self.nodes}).to_string()),
            ["get", "events", ..] => {
                let moment = self.moment(&inner);
                let event = |(about, reason, message, at): &(String, &str, String, u64)| {
                    json!({"involvedObject": {"name": about, "kind": if about == &self.run { "Job" } else { "Pod" }}, "reason": reason, "message": message, "lastTimestamp": stamp(*at)})
                };
                ok(json!({"items": moment.events.iter().map(event).collect::<Vec<_>>()}).to_string())
            }
            ["get", kind @ ("secret" | "customresourcedefinitions"), name, ..] => ok(format!("{kind}/{name}\n")),
            ["get", "-n", _, "--ignore-not-found", "-o", "name", names @ ..] => {
                ok(names.iter().filter(|name| inner.objects.contains_key(**name)).fold(String::new(), |mut all, name| {
                    let _ = writeln!(all, "{name}");
                    all
                }))
            }
            ["get", kinds, "-n", namespace, rest @ ..] => {
                assert_eq!(*namespace, self.namespace, "{args:?}");
                let label = value_of("-l");
                let ours = label.is_none_or(|label| {
                    label == format!("expertrail.dev/run={}", self.run) || label == "app.kubernetes.io/managed-by=expertrail"
                });
                let items = if ours { self.list(&inner, kinds) } else { Vec::new() };
                if rest.contains(&"name") {
                    let mut text = String::new();
                    for item in &items {
                        let _ = writeln!(text, "{}/{}", kinds, item["metadata"]["name"].as_str().unwrap());
                    }
                    ok(text)
                } else {
                    ok(json!({ "items": items }).to_string())
                }
            }
            ["logs", pod, ..] => {
                let moment = self.moment(&inner);
                let since = args.iter().find_map(|arg| arg.strip_prefix("--since-time="));
                match moment.logs.get(*pod) {
                    Some(lines) => {
                        let mut text = String::new();
                        for (at, line) in lines {
                            let at = stamp(*at);
                            if since.is_none_or(|since| at.as_str() >= since) {
                                let _ = writeln!(text, "{}.5Z {line}", at.trim_end_matches('Z'));
                            }
                        }
                        ok(text)
                    }
                    None => refused(&format!("Error from server (NotFound): pods \"{pod}\" not found")),
                }
            }
            ["describe", ..] => ok("Name: described\n"),
            ["delete", "namespace", name, ..] => {
                inner.objects.remove(&format!("namespace/{name}"));
                ok("")
            }
            ["delete", kind, "-n", _, "-l", label, ..] => {
                assert_eq!(*label, format!("expertrail.dev/run={}", self.run));
                let kind = format!("{}/", kind.split('.').next().unwrap().trim_end_matches('s'));
                if matches!(kind.as_str(), "job/" | "mpijob/") {
                    inner.deleted = true;
                }
                inner.objects.retain(|key, _| !key.starts_with(&kind));
                ok("")
            }
            ["apply", rest @ ..] => {
                let documents: Vec<Value> = serde_saphyr::from_multiple(std::str::from_utf8(input).unwrap()).unwrap();
                let mut names = String::new();
                for document in documents {
                    let key = key(&document);
                    let _ = writeln!(names, "{key}");
                    if !rest.contains(&"--dry-run=server") {
                        let at = self.time.seconds();
                        inner.put(&document, at);
                    }
                }
                ok(names)
            }
            ["exec", "-i", "-n", _, pod, "-c", "expertrail-binary", "--", "sh", "-c", script] => {
                assert!(script.contains(&format!("-eq {}", input.len())), "{script}");
                inner.copied.push(((*pod).to_owned(), input.len()));
                ok("")
            }
            _ => refused(&format!("error: no answer for {args:?}")),
        }
    }

    fn call(&self, args: &[&str], input: &[u8]) -> Result<Output, KubectlError> {
        let own = |arg: &&&str| !arg.starts_with("--context=") && !arg.starts_with("--request-timeout=");
        let rest: Vec<&str> = args.iter().filter(own).copied().collect();
        if !matches!(rest.first(), Some(&"config")) {
            assert!(
                args.iter().any(|arg| arg.starts_with("--context=")),
                "a call without a context: {args:?}"
            );
        }
        self.inner.lock().unwrap().calls.push(rest.join(" "));
        if let Some(answer) = self.hooks.iter().find_map(|hook| hook(&rest, self.time.seconds())) {
            return answer;
        }
        Ok(self.answer(&rest, input))
    }
}

fn key(value: &Value) -> String {
    format!(
        "{}/{}",
        value["kind"].as_str().unwrap().to_lowercase(),
        value["metadata"]["name"].as_str().unwrap()
    )
}

impl Inner {
    fn put(&mut self, value: &Value, at: u64) {
        self.objects.insert(key(value), (value.clone(), at));
    }
}

impl Kubectl for World {
    fn run(&self, args: &[&str], _: Duration) -> Result<Output, KubectlError> {
        self.call(args, b"")
    }

    fn run_with(&self, args: &[&str], input: &[u8], _: Duration) -> Result<Output, KubectlError> {
        self.call(args, input)
    }
}

/// A node with 8 GPUs, 8 NICs and so many GiB.
pub fn node(name: &str, memory: u64) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8", "cpu": "175", "memory": format!("{}Ki", memory << 20)}
        }
    })
}

/// How the main container of a pod is.
#[derive(Clone, Copy)]
pub enum Main {
    /// The pod has no node: what the scheduler says.
    NoNode(&'static str),
    /// Waiting: reason, message.
    Waits(&'static str, &'static str),
    Runs,
    /// Exit code, reason, second.
    Ended(i32, &'static str, u64),
    /// The container `expertrail-binary` runs.
    Binary,
}

/// The pod of node `index`.
pub fn pod(run: &str, index: u32, main: Main) -> Value {
    let name = format!("{run}-{index}-abcde");
    let node = format!("gpu-{}", index + 1);
    let (phase, state) = match main {
        Main::NoNode(_) => ("Pending", json!(null)),
        Main::Waits(reason, message) => {
            ("Pending", json!({"waiting": {"reason": reason, "message": message}}))
        }
        Main::Binary => ("Pending", json!({"waiting": {"reason": "PodInitializing"}})),
        Main::Runs => ("Running", json!({"running": {"startedAt": stamp(0)}})),
        Main::Ended(code, reason, at) => (
            if code == 0 { "Succeeded" } else { "Failed" },
            json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": stamp(at)}}),
        ),
    };
    let mut value = json!({
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"expertrail.dev/run": run, "batch.kubernetes.io/job-completion-index": index.to_string()},
            "ownerReferences": [{"kind": "Job", "name": run}],
            "creationTimestamp": stamp(0)
        },
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": "expertrail-binary", "image": "ghcr.io/owner/image:tag"}],
            "containers": [{"name": "ranks", "image": "ghcr.io/owner/image:tag"}]
        },
        "status": {
            "phase": phase,
            "initContainerStatuses": [{"name": "expertrail-binary", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}],
            "containerStatuses": [{"name": "ranks", "restartCount": 0, "state": state}]
        }
    });
    match main {
        Main::NoNode(said) => {
            value["spec"]["nodeName"] = Value::Null;
            value["status"]["containerStatuses"] = Value::Null;
            value["status"]["initContainerStatuses"] = Value::Null;
            value["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}]);
        }
        Main::Binary => {
            value["status"]["initContainerStatuses"] =
                json!([{"name": "expertrail-binary", "state": {"running": {"startedAt": stamp(0)}}}]);
        }
        _ => {}
    }
    value
}

/// Everything that was shown.
#[derive(Default)]
pub struct Shown(pub Vec<Event>);

impl Show for Shown {
    fn show(&mut self, event: Event) {
        self.0.push(event);
    }
}

impl Shown {
    pub fn states(&self) -> String {
        let states = self.0.iter().filter_map(|event| match event {
            Event::State(text) => Some(text.as_str()),
            _ => None,
        });
        states.collect::<Vec<_>>().join("\n")
    }

    pub fn lines(&self) -> Vec<&str> {
        let lines = self.0.iter().filter_map(|event| match event {
            Event::Line(text) => Some(text.as_str()),
            _ => None,
        });
        lines.collect()
    }

    pub fn rest(&self) -> String {
        let rest = self.0.iter().filter_map(|event| match event {
            Event::Step(text) | Event::Warning(text) => Some(text.as_str()),
            _ => None,
        });
        rest.collect::<Vec<_>>().join("\n")
    }
}

/// Everything that was collected.
#[derive(Default)]
pub struct Bundle {
    pub logs: BTreeMap<String, String>,
    pub states: BTreeMap<String, String>,
    pub missing: Vec<String>,
}

impl Collect for Bundle {
    fn log(&mut self, name: &str, text: &[u8]) -> Result<(), DriveError> {
        self.logs.insert(name.to_owned(), String::from_utf8_lossy(text).into_owned());
        Ok(())
    }

    fn state(&mut self, name: &str, text: &[u8]) -> Result<(), DriveError> {
        self.states.insert(name.to_owned(), String::from_utf8_lossy(text).into_owned());
        Ok(())
    }

    fn missing(&mut self, what: &str, why: &str) {
        self.missing.push(format!("{what}: {why}"));
    }
}
