//! Tables of `kubectl get` and of `sacct`.

use super::{State, Words, columns, full, seconds, word};

/// A table that is being read.
#[derive(Debug, Default)]
pub(in crate::diagnose) struct Tables {
    open: Option<Table>,
}

#[derive(Debug)]
struct Table {
    kind: Kind,
    names: Vec<String>,
    cells: Cells,
    /// Rows read, and whether the line of dashes was.
    rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pods,
    Events,
    Nodes,
    Accounts,
}

#[derive(Debug)]
enum Cells {
    /// Parted by two spaces or more.
    Spaces,
    /// Parted by `|`.
    Pipes,
    /// Start and width of each column, once the line of dashes tells.
    Dashes(Vec<(usize, usize)>),
}

impl Tables {
    /// Reads a line; none where it belongs to no table.
    pub(in crate::diagnose) fn line(&mut self, line: &str, number: u64) -> Option<Vec<State>> {
        if let Some(table) = header(line) {
            self.open = Some(table);
            return Some(Vec::new());
        }
        let Some(table) = self.open.as_mut() else { return headless(line, number) };
        let state = table.row(line, number);
        if state.is_none() {
            self.open = None;
            return headless(line, number);
        }
        state
    }
}

/// Whether a line may be a row of `kubectl get pods` without its header, as `grep`, `-w` and `--no-headers` leave it: `1/2` is its second
/// word, or its third after a namespace.
pub(in crate::diagnose) fn may_be_pod(line: &[u8]) -> bool {
    if line.len() > 400
        || !line.first().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    {
        return false;
    }
    let ready = |word: &[u8]| {
        let mut parts = word.split(|byte| *byte == b'/');
        let mut number = || {
            parts
                .next()
                .is_some_and(|part| (1..=2).contains(&part.len()) && part.iter().all(u8::is_ascii_digit))
        };
        number() && number() && parts.next().is_none()
    };
    line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty()).skip(1).take(2).any(ready)
}

/// Whether a line may be a row of `sacct` without its header: it starts with the number of a job, and ends with an exit code and its signal.
pub(in crate::diagnose) fn may_be_account(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let line = line.strip_suffix(b"|").unwrap_or(line);
    if line.len() > 400 || !line.first().is_some_and(u8::is_ascii_digit) {
        return false;
    }
    let last = line.rsplit(|byte| matches!(byte, b' ' | b'\t' | b'|')).next().unwrap_or_default();
    let mut parts = last.split(|byte| *byte == b':');
    let mut number = || {
        parts.next().is_some_and(|part| (1..=3).contains(&part.len()) && part.iter().all(u8::is_ascii_digit))
    };
    number() && number() && parts.next().is_none()
}

/// A row of `sacct` without its header, with the exit code last: `7005 train FAILED 1:0`.
fn headless_account(line: &str, number: u64) -> Option<Vec<State>> {
    if !may_be_account(line.as_bytes()) {
        return None;
    }
    let line = line.trim().trim_end_matches('|');
    let words: Vec<&str> = if line.contains('|') {
        line.split('|').map(str::trim).collect()
    } else {
        line.split_whitespace().collect()
    };
    let (id, exit) = (*words.first()?, *words.last()?);
    let (job, step) = id.split_once('.').unwrap_or((id, "0"));
    let plain = job.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
        && (step.bytes().all(|byte| byte.is_ascii_digit()) || step == "batch" || step == "extern");
    let known = |word: &&&str| {
        let word = word.split_whitespace().next().unwrap_or_default();
        STATES.contains(&word)
            || word
                .strip_suffix('+')
                .is_some_and(|start| start.len() >= 4 && STATES.iter().any(|state| state.starts_with(start)))
    };
    let state = *words.get(1..words.len() - 1)?.iter().rfind(known)?;
    if !plain || words.len() < 3 {
        return None;
    }
    let name = if words.len() > 3 && words[1] != state { words[1] } else { "" };
    let cell = |column: &str| match column {
        "JobID" => id,
        "JobName" => name,
        "State" => state,
        "ExitCode" => exit,
        _ => "",
    };
    account(cell, number).map(|state| vec![state])
}

/// A row of `kubectl get pods` without its header.
fn headless(line: &str, number: u64) -> Option<Vec<State>> {
    const STATUSES: [&str; 24] = [
        "Running",
        "Pending",
        "Unknown",
        "Completed",
        "Succeeded",
        "Evicted",
        "Error",
        "Failed",
        "OOMKilled",
        "ContainerCreating",
        "PodInitializing",
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "ContainerStatusUnknown",
        "Terminating",
        "NotReady",
        "NodeLost",
        "SchedulingGated",
    ];
    if let Some(states) = headless_account(line, number) {
        return Some(states);
    }
    if !may_be_pod(line.as_bytes()) {
        return None;
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().take(3).position(|word| word.contains('/'))?;
    let status = *words.get(at + 1)?;
    let restarts = *words.get(at + 2)?;
    let known = STATUSES.contains(&status) || status.starts_with("Init:");
    let name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    if at == 0 || !known || restarts.parse::<u32>().is_err() || !words[..at].iter().all(|word| name(word)) {
        return None;
    }
    let cell = |column: &str| match column {
        "NAMESPACE" if at == 2 => words[0],
        "NAME" => words[at - 1],
        "READY" => words[at],
        "STATUS" => status,
        "RESTARTS" => restarts,
        _ => "",
    };
    pod(cell, number).map(|state| vec![state])
}

/// The table whose header this line is.
fn header(line: &str) -> Option<Table> {
    if !line.contains("STATUS") && !line.contains("REASON") && !line.contains("JobID") {
        return None;
    }
    let table = |kind, names: Vec<&str>, cells| {
        Some(Table { kind, names: names.into_iter().map(str::to_owned).collect(), cells, rows: 0 })
    };
    let all = columns(line);
    let has = |name: &str| all.contains(&name);
    if has("NAME") && has("READY") && has("STATUS") && has("RESTARTS") {
        return table(Kind::Pods, all, Cells::Spaces);
    }
    if has("REASON") && has("OBJECT") && has("TYPE") {
        return table(Kind::Events, all, Cells::Spaces);
    }
    if has("NAME") && has("STATUS") && has("ROLES") {
        return table(Kind::Nodes, all, Cells::Spaces);
    }
    if line.contains("JobID") && line.contains("State") {
        if line.contains('|') {
            let names: Vec<&str> = line.trim().split('|').map(str::trim).collect();
            return names.contains(&"State").then(|| table(Kind::Accounts, names, Cells::Pipes))?;
        }
        let names: Vec<&str> = line.split_whitespace().collect();
        let known =
            names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'%'));
        return (known && names.contains(&"State") && names.len() >= 3)
            .then(|| table(Kind::Accounts, names, Cells::Dashes(Vec::new())))?;
    }
    None
}

impl Table {
    fn row(&mut self, line: &str, number: u64) -> Option<Vec<State>> {
        if line.trim().is_empty() {
            return None;
        }
        if let Cells::Dashes(places) = &mut self.cells
            && places.is_empty()
        {
            let dashes = line.trim_end().bytes().all(|byte| byte == b'-' || byte == b' ');
            if !dashes {
                // Copied without the line of dashes.
                let words: Vec<&str> = line.split_whitespace().collect();
                if words.len() != self.names.len() {
                    return None;
                }
                let cell = |name: &str| {
                    self.names
                        .iter()
                        .position(|known| known == name)
                        .and_then(|at| words.get(at))
                        .map_or("", |cell| *cell)
                };
                self.rows += 1;
                return account(cell, number).map(|state| vec![state]);
            }
            let mut at = 0;
            for part in line.trim_end().split(' ') {
                if !part.is_empty() {
                    places.push((at, part.len()));
                }
                at += part.len() + 1;
            }
            return (places.len() == self.names.len()).then(Vec::new);
        }
        let cells: Vec<String> = match &self.cells {
            Cells::Spaces => columns(line).into_iter().map(str::to_owned).collect(),
            Cells::Pipes => line.trim().split('|').map(|cell| cell.trim().to_owned()).collect(),
            // Copied by hand, cells no longer stand below their dashes.
            Cells::Dashes(_)
                if line.split_whitespace().count() == self.names.len()
                    && line.split_whitespace().any(|cell| STATES.contains(&cell)) =>
            {
                line.split_whitespace().map(str::to_owned).collect()
            }
            Cells::Dashes(places) => {
                let chars: Vec<char> = line.chars().collect();
                places
                    .iter()
                    .map(|(start, width)| {
                        chars.iter().skip(*start).take(*width).collect::<String>().trim().to_owned()
                    })
                    .collect()
            }
        };
        let least = if self.kind == Kind::Events { 4 } else { 3 };
        if cells.len() < least.min(self.names.len()) || cells.len() > self.names.len() + 1 {
            return None;
        }
        self.rows += 1;
        let cell = |name: &str| -> &str {
            self.names
                .iter()
                .position(|known| known == name)
                .and_then(|at| cells.get(at))
                .map_or("", String::as_str)
        };
        let state = match self.kind {
            Kind::Pods => pod(cell, number)?,
            Kind::Events => event(cell, number)?,
            Kind::Nodes => node(cell, number)?,
            Kind::Accounts => account(cell, number)?,
        };
        Some(vec![state])
    }
}

fn pod<'a>(cell: impl Fn(&str) -> &'a str, line: u64) -> Option<State> {
    let (name, ready, status) = (cell("NAME"), cell("READY"), cell("STATUS"));
    let (have, want) = ready.split_once('/')?;
    if have.parse::<u32>().is_err() || want.parse::<u32>().is_err() || status.is_empty() {
        return None;
    }
    let node = Some(cell("NODE")).filter(|node| *node != "<none>").unwrap_or_default();
    let phase = match status {
        "Running" | "Pending" | "Unknown" => status,
        "Completed" | "Succeeded" => "Succeeded",
        "Evicted" | "Error" | "Failed" | "OOMKilled" => "Failed",
        _ => "",
    };
    let restarts = cell("RESTARTS").split_whitespace().next().unwrap_or_default();
    let text = Words::new("kube-pod", &full(cell("NAMESPACE"), name))
        .pair("node", node)
        .pair("phase", phase)
        .pair("status", status)
        .pair("ready", ready)
        .pair("restarts", restarts)
        .pair("reason", if status == "Evicted" { status } else { "" })
        .message("");
    let shown = if node.is_empty() { name } else { node };
    Some(State { text, node: Some(shown.to_owned()), time: None, line })
}

fn event<'a>(cell: impl Fn(&str) -> &'a str, line: u64) -> Option<State> {
    let class = cell("TYPE");
    if class != "Normal" && class != "Warning" {
        return None;
    }
    let (kind, name) = cell("OBJECT").split_once('/')?;
    let namespace = if cell("NAMESPACE").is_empty() { "-" } else { cell("NAMESPACE") };
    let mut letters = kind.chars();
    let kind: String =
        letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default();
    let text = Words::new("kube-event", &format!("{namespace}/{kind}/{name}"))
        .pair("type", class)
        .pair("reason", cell("REASON"))
        .pair("count", cell("COUNT"))
        .message(cell("MESSAGE"));
    Some(State { text, node: Some(name.to_owned()), time: None, line })
}

fn node<'a>(cell: impl Fn(&str) -> &'a str, line: u64) -> Option<State> {
    let (name, status) = (cell("NAME"), cell("STATUS"));
    if !status.starts_with("Ready") && !status.starts_with("NotReady") && !status.starts_with("Unknown") {
        return None;
    }
    let text = Words::new("kube-node", name).pair("status", status).message("");
    Some(State { text, node: Some(name.to_owned()), time: None, line })
}

/// States of a job or step.
const STATES: [&str; 14] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "COMPLETING",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PENDING",
    "PREEMPTED",
    "RUNNING",
    "REQUEUED",
    "SUSPENDED",
    "TIMEOUT",
];

fn account<'a>(cell: impl Fn(&str) -> &'a str, line: u64) -> Option<State> {
    let id = cell("JobID");
    let written = cell("State").split_whitespace().next()?;
    // A column that is too narrow ends in `+`.
    let state = match written.strip_suffix('+') {
        Some(start) if start.len() >= 4 => {
            STATES.into_iter().find(|state| state.starts_with(start)).unwrap_or(written)
        }
        None if written.len() >= 6 && !STATES.contains(&written) => {
            STATES.into_iter().find(|state| state.starts_with(written)).unwrap_or(written)
        }
        _ => written,
    };
    if id.is_empty() || !id.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (job, step) = id.split_once('.').unwrap_or((id, ""));
    let nodes =
        [cell("NodeList"), cell("Nodelist")].into_iter().find(|nodes| !nodes.is_empty()).unwrap_or_default();
    let nodes = if nodes == "None assigned" { "" } else { nodes };
    let text = Words(format!("sacct job={}", word(job)))
        .pair("step", step)
        .pair("name", cell("JobName"))
        .pair("state", state)
        .pair("exit", cell("ExitCode"))
        .pair("nodes", nodes)
        .pair("reason", Some(cell("Reason")).filter(|reason| *reason != "None").unwrap_or_default())
        .message("");
    let single = !nodes.is_empty() && !nodes.contains(['[', ',']);
    Some(State { text, node: single.then(|| nodes.to_owned()), time: seconds(cell("End")), line })
}
