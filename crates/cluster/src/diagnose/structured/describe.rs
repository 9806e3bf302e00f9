//! Text of `kubectl describe`.

use super::{State, Words, columns, full};

/// A description that is being read.
#[derive(Debug, Default)]
pub(in crate::diagnose) struct Describe {
    open: bool,
    name: String,
    namespace: String,
    node: String,
    is_node: bool,
    phase: (String, u64),
    reason: String,
    message: String,
    section: Section,
    containers: Vec<Container>,
    /// Which state of the container the next lines are about.
    last: bool,
    begun: u64,
    /// A `Name: x` that begins a description if a namespace follows.
    maybe: Option<(String, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    None,
    Init,
    Containers,
    Conditions,
    Allocatable,
    Events,
}

#[derive(Debug, Default)]
struct Container {
    name: String,
    init: bool,
    state: String,
    reason: (String, u64),
    message: String,
    exit: String,
    signal: String,
    last_reason: (String, u64),
    last_exit: String,
    ready: bool,
    restarts: String,
    image: String,
    line: u64,
}

/// Containers of a pod that are read at most.
const CONTAINERS: usize = 256;

/// Whatever is no `Key: value` at the margin is no description any more.
fn leaves(line: &str) -> bool {
    let key = line.split(':').next().unwrap_or_default();
    let heading = line.contains(':')
        && key.len() < 40
        && key.starts_with(|c: char| c.is_ascii_uppercase())
        && key.bytes().all(|byte| byte.is_ascii_alphabetic() || b" -/.".contains(&byte));
    !(line.is_empty() || line.starts_with([' ', '\t']) || heading)
}

impl Describe {
    /// Reads a line: states, and whether the line belongs to the description. A new one ends the one before.
    pub(in crate::diagnose) fn line(&mut self, line: &str, number: u64) -> (Vec<State>, bool) {
        if self.open && leaves(line) {
            let done = self.finish();
            *self = Self::default();
            return (done, false);
        }
        match self.inside(line, number) {
            Some(states) => (states, true),
            None => (Vec::new(), false),
        }
    }

    fn inside(&mut self, line: &str, number: u64) -> Option<Vec<State>> {
        let key = line.split(':').next().unwrap_or_default();
        if let Some(name) = line.strip_prefix("Name:").filter(|name| name.starts_with("  ")) {
            let done = self.finish();
            *self = Self { open: true, name: name.trim().to_owned(), begun: number, ..Self::default() };
            return Some(done);
        }
        if let Some((name, at)) = self.maybe.take()
            && line.starts_with("Namespace:")
            && number == at + 1
        {
            *self = Self { open: true, name, begun: at, ..Self::default() };
        }
        if !self.open {
            let name = line.strip_prefix("Name:").map(str::trim).filter(|name| !name.is_empty());
            self.maybe = name.map(|name| (name.to_owned(), number));
            return None;
        }
        let indent = line.len() - line.trim_start().len();
        let value = line.split_once(':').map_or("", |(_, value)| value.trim());
        if indent == 0 {
            return if line.trim().is_empty() { Some(Vec::new()) } else { self.top(key, value, number) };
        }
        match self.section {
            Section::Init | Section::Containers => self.container(indent, line.trim(), number),
            Section::Events => return Some(self.event(line, number)),
            Section::Conditions if self.is_node => return Some(self.condition(line, number)),
            Section::Allocatable if self.is_node => {
                let key = key.trim();
                if key.contains('/') || key.starts_with("hugepages-") {
                    let words =
                        Words::new("kube-node", &self.name).pair("allocatable", key).pair("amount", value);
                    return Some(vec![self.state(words.message(""), number)]);
                }
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    fn top(&mut self, key: &str, value: &str, number: u64) -> Option<Vec<State>> {
        self.section = Section::None;
        let mut states = Vec::new();
        match key {
            "Namespace" => value.clone_into(&mut self.namespace),
            "Roles" => {
                self.is_node = true;
                self.node.clone_from(&self.name);
            }
            "Node" => {
                let node = value.split('/').next().unwrap_or_default();
                if node != "<none>" {
                    node.clone_into(&mut self.node);
                }
            }
            "Status" => self.phase = (value.split_whitespace().next().unwrap_or_default().to_owned(), number),
            "Reason" => value.clone_into(&mut self.reason),
            "Message" => value.clone_into(&mut self.message),
            "Taints" if self.is_node && value != "<none>" => {
                let words = Words::new("kube-node", &self.name).pair("taint", value);
                states.push(self.state(words.message(""), number));
            }
            "Unschedulable" if self.is_node && value == "true" => {
                states.push(self.state(format!("kube-node {} unschedulable=true", self.name), number));
            }
            "Init Containers" => self.section = Section::Init,
            "Containers" => self.section = Section::Containers,
            "Conditions" => self.section = Section::Conditions,
            "Allocatable" => self.section = Section::Allocatable,
            "Events" => self.section = Section::Events,
            _ => return None,
        }
        Some(states)
    }

    fn state(&self, text: String, line: u64) -> State {
        let node = if self.node.is_empty() { &self.name } else { &self.node };
        State { text, node: Some(node.clone()), time: None, line }
    }

    fn container(&mut self, indent: usize, text: &str, number: u64) {
        let (key, value) = text.split_once(':').unwrap_or((text, ""));
        let value = value.trim();
        if indent == 2 && value.is_empty() {
            if self.containers.len() < CONTAINERS {
                self.containers.push(Container {
                    name: key.to_owned(),
                    init: self.section == Section::Init,
                    line: number,
                    ..Container::default()
                });
            }
            self.last = false;
            return;
        }
        let last = self.last;
        let Some(container) = self.containers.last_mut() else { return };
        match (key, last) {
            ("Image", _) => value.clone_into(&mut container.image),
            ("State", _) => {
                container.state = value.to_ascii_lowercase();
                self.last = false;
            }
            ("Last State", _) => self.last = true,
            ("Reason", false) => container.reason = (value.to_owned(), number),
            ("Reason", true) => container.last_reason = (value.to_owned(), number),
            ("Message", _) if container.message.is_empty() => value.clone_into(&mut container.message),
            ("Exit Code", false) => value.clone_into(&mut container.exit),
            ("Exit Code", true) => value.clone_into(&mut container.last_exit),
            ("Signal", false) => value.clone_into(&mut container.signal),
            ("Ready", _) => container.ready = value == "True",
            ("Restart Count", _) => value.clone_into(&mut container.restarts),
            _ => {}
        }
    }

    fn event(&self, line: &str, number: u64) -> Vec<State> {
        let cells = columns(line);
        let [class, reason, age, _, ..] = cells.as_slice() else { return Vec::new() };
        if *class != "Normal" && *class != "Warning" {
            return Vec::new();
        }
        let message = cells.get(4..).map(|rest| rest.join(" ")).unwrap_or_default();
        let count =
            age.split_once("(x").map_or("", |(_, rest)| rest.split([' ', ')']).next().unwrap_or_default());
        let namespace = if self.namespace.is_empty() { "-" } else { &self.namespace };
        let kind = if self.is_node { "Node" } else { "Pod" };
        let words = Words::new("kube-event", &format!("{namespace}/{kind}/{}", self.name))
            .pair("node", &self.node)
            .pair("type", class)
            .pair("reason", reason)
            .pair("count", count);
        vec![self.state(words.message(&message), number)]
    }

    fn condition(&self, line: &str, number: u64) -> Vec<State> {
        let cells = columns(line);
        let [class, status, ..] = cells.as_slice() else { return Vec::new() };
        if !["True", "False", "Unknown"].contains(status) {
            return Vec::new();
        }
        // Type, Status, LastHeartbeatTime, LastTransitionTime, Reason, Message.
        let words = Words::new("kube-node", &self.name)
            .pair("condition", class)
            .pair("status", status)
            .pair("reason", cells.get(4).copied().unwrap_or_default());
        let message = cells.get(5..).map(|rest| rest.join(" ")).unwrap_or_default();
        vec![self.state(words.message(&message), number)]
    }

    /// What the whole of the description says; asked for at its end.
    pub(in crate::diagnose) fn finish(&mut self) -> Vec<State> {
        let mut states = Vec::new();
        if !self.open || self.is_node || (self.phase.0.is_empty() && self.containers.is_empty()) {
            return states;
        }
        let about = full(&self.namespace, &self.name);
        let main: Vec<&Container> = self.containers.iter().filter(|container| !container.init).collect();
        let ready = format!("{}/{}", main.iter().filter(|container| container.ready).count(), main.len());
        let restarts: i64 = self
            .containers
            .iter()
            .filter_map(|container| container.restarts.parse::<i64>().ok())
            .fold(0, i64::saturating_add);
        let line = if self.phase.1 > 0 { self.phase.1 } else { self.begun };
        let words = Words::new("kube-pod", &about)
            .pair("node", &self.node)
            .pair("phase", &self.phase.0)
            .pair("ready", &ready)
            .number("restarts", Some(restarts))
            .pair("reason", &self.reason);
        states.push(self.state(words.message(&self.message), line));
        for container in &self.containers {
            let is = |state: &str| if container.state == state { container.reason.0.as_str() } else { "" };
            let line = [container.last_reason.1, container.reason.1].into_iter().find(|line| *line > 0);
            let line = if container.state == "terminated" && container.reason.1 > 0 {
                Some(container.reason.1)
            } else {
                line
            };
            let words = Words::new("kube-container", &format!("{about}/{}", container.name))
                .pair("node", &self.node)
                .pair("init", if container.init { "true" } else { "false" })
                .pair("state", &container.state)
                .pair("waiting", is("waiting"))
                .pair("terminated", is("terminated"))
                .pair("exit", &container.exit)
                .pair("signal", &container.signal)
                .pair("last-terminated", &container.last_reason.0)
                .pair("last-exit", &container.last_exit)
                .pair("ready", &ready)
                .pair("restarts", &container.restarts)
                .pair("image", &container.image);
            states.push(self.state(words.message(&container.message), line.unwrap_or(container.line)));
        }
        states
    }
}
