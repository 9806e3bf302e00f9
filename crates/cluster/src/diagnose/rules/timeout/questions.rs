//! The seven questions that separate the causes of a timeout, and what the logs answer.

use std::collections::BTreeSet;

use super::super::{deepep, ibgda, nvshmem};
use super::kernel;
use super::{TIMEOUTS, known_bad, patched};
use crate::diagnose::event::{Event, Place, Role};
use crate::diagnose::heal::other_run;
use crate::diagnose::verdict::line;
use crate::diagnose::{Answered, Case};

/// An answer and the lines that give it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked<T> {
    /// The answer.
    pub answer: T,
    /// The lines.
    pub evidence: Vec<Place>,
}

/// Did every rank reach the call?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reached {
    /// The logs do not tell.
    #[default]
    Unknown,
    /// Every rank of the run waited in the call.
    All,
    /// Some ranks wrote something and show no wait: suspects.
    Not(BTreeSet<u32>),
    /// A rank was still compiling or warming up.
    Preparing,
    /// A rank had failed otherwise before: the text of that line.
    Failed(String),
}

/// In which kind of call?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frame {
    /// The logs do not tell.
    #[default]
    Unknown,
    /// Between GPUs of a node, over NVLink.
    IntraNode,
    /// Between nodes.
    InterNode,
    /// In the low-latency kernels, which use RDMA between all ranks.
    LowLatency,
}

/// Were all of a rank's devices skipped, or some?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// None was, as far as the logs go.
    #[default]
    NoneSkipped,
    /// These were, and others may have been taken.
    Some(BTreeSet<String>),
    /// All were: the transport did not come up.
    All,
}

/// In the first call, or later?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// The logs do not tell.
    #[default]
    Unknown,
    /// In the first dispatch of the run.
    First,
    /// Soon after NVSHMEM's start, and no dispatch is shown to have gone well: it may be the first.
    Start,
    /// After dispatches that went well.
    Later,
}

/// Do the numbers of nodes or tokens decide?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Counts {
    /// The logs do not tell.
    #[default]
    Unknown,
    /// Smaller numbers of tokens went well, this one did not.
    Tokens(Vec<i64>),
}

/// The seven questions, answered from a case in which a call waited in vain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Questions {
    /// Did every rank reach the call?
    pub reached: Asked<Reached>,
    /// Inside a node or between nodes?
    pub frame: Asked<Frame>,
    /// The only frame of a call is one inside a node, and the message is one between nodes.
    pub frames_differ: bool,
    /// Did the transport warn before? The ids of the signals.
    pub transport: Asked<Vec<&'static str>>,
    /// All devices of a rank skipped, or some?
    pub devices: Asked<Devices>,
    /// First iteration or later?
    pub when: Asked<When>,
    /// Do node or token counts decide?
    pub counts: Asked<Counts>,
    /// Which versions are loaded? What is known, and whether they fit.
    pub versions: Asked<Vec<String>>,
    /// Whether those versions are known not to fit; none where too little is known.
    pub mismatch: Option<bool>,
}

/// What the transport says before it fails or falls back.
const TRANSPORT: &[&str] = &[
    "ibgda-alloc-skip",
    "ibgda-uar-unmapped",
    "iomemory-800",
    "ibgda-init-failed",
    "nic-not-mlx5",
    "no-peermem",
    "nvshmem-no-transports",
    "gdrcopy-unsupported",
    "ibgda-cpu-fallback",
    "libmlx5dv-missing",
    "nvshmem-address-handle",
    "nvshmem-modify-qp-failed",
];

impl Questions {
    /// The answers; none where no call waited in vain.
    pub fn of(case: &Case) -> Option<Self> {
        let first = case.first_of(TIMEOUTS).or_else(|| lone_access(case))?;
        Some(Self {
            reached: reached(case, first),
            frame: frame(case, first),
            frames_differ: frames_differ(case),
            transport: transport(case, first),
            devices: devices(case),
            when: when(case, first),
            counts: counts(case, first),
            versions: versions(case, first),
            mismatch: known_bad(case),
        })
    }

    /// Whether a rank was elsewhere: it had failed otherwise, or was still preparing.
    pub fn someone_else(&self) -> bool {
        matches!(self.reached.answer, Reached::Failed(_) | Reached::Preparing)
    }

    /// Whether the transport came up without a warning, as far as the logs go.
    pub fn quiet(&self) -> bool {
        self.transport.answer.is_empty()
    }

    /// Question, answer and lines, for a report.
    pub fn answers(&self, case: &Case) -> Vec<Answered> {
        let unknown = || "not in these logs".to_owned();
        let reached = match &self.reached.answer {
            Reached::Unknown => unknown(),
            Reached::All => "yes: every rank waited in it".to_owned(),
            Reached::Not(ranks) => format!("ranks {} wrote something and show no wait", list(ranks.iter())),
            Reached::Preparing => "no: a rank was still compiling or warming up".to_owned(),
            Reached::Failed(text) => format!("no: a rank had failed before ({text})"),
        };
        let frame = match self.frame.answer {
            _ if self.frames_differ => {
                "these logs contradict themselves: the message is one of calls between nodes, and the frame one of calls inside a node"
                    .to_owned()
            }
            Frame::Unknown => unknown(),
            Frame::IntraNode => "inside a node, over NVLink".to_owned(),
            Frame::InterNode => "between nodes".to_owned(),
            Frame::LowLatency => "in the low-latency kernels".to_owned(),
        };
        let transport = match self.transport.answer.as_slice() {
            [] => "no warning in these logs".to_owned(),
            some => format!("yes: {}", some.join(", ")),
        };
        let devices = match &self.devices.answer {
            Devices::NoneSkipped => "none was skipped, as far as these logs go".to_owned(),
            Devices::Some(names) => format!("some: {}", list(names.iter())),
            Devices::All => "all of at least one rank".to_owned(),
        };
        let when = match self.when.answer {
            When::Unknown => unknown(),
            When::First => "in the first one".to_owned(),
            When::Start => {
                "not in these logs: soon after NVSHMEM's start, and none is shown to have gone well"
                    .to_owned()
            }
            When::Later => "later: dispatches went well before".to_owned(),
        };
        let counts = match &self.counts.answer {
            Counts::Unknown => unknown(),
            Counts::Tokens(tokens) => format!("tokens: {} went well before", list(tokens.iter())),
        };
        let versions = match (self.versions.answer.as_slice(), self.mismatch) {
            ([], _) => unknown(),
            (some, Some(true)) => format!("{}: known not to fit", some.join(", ")),
            (some, Some(false)) => format!("{}: no known mismatch of queue pairs", some.join(", ")),
            (some, None) => format!("{}: too little to judge", some.join(", ")),
        };
        let rows = [
            ("Did every rank reach the call?", reached, &self.reached.evidence),
            ("Inside a node or between nodes?", frame, &self.frame.evidence),
            ("Did the transport warn before?", transport, &self.transport.evidence),
            ("Were all devices of a rank skipped, or some?", devices, &self.devices.evidence),
            ("In the first dispatch or later?", when, &self.when.evidence),
            ("Do the numbers of nodes or tokens decide?", counts, &self.counts.evidence),
            ("Which versions are loaded?", versions, &self.versions.evidence),
        ];
        rows.into_iter()
            .map(|(question, answer, evidence)| Answered {
                question: question.to_owned(),
                answer,
                evidence: evidence
                    .iter()
                    .filter_map(|place| case.at(*place))
                    .map(|event| line(case, event))
                    .collect(),
            })
            .collect()
    }

    /// The one fact that decides most among what the logs leave open.
    pub fn next(&self, case: &Case) -> String {
        if self.frame.answer == Frame::IntraNode && case.has_any(&["vllm-engine", "vllm-finalize-async"]) {
            return "The arguments of `vllm serve`: whether --enable-dbo is among them.".to_owned();
        }
        if self.frame.answer == Frame::IntraNode {
            return "Stacks of all ranks of that node while it waits (`py-spy dump --pid <pid>`): which one is not in the dispatch, and where it is.".to_owned();
        }
        if self.mismatch.is_none() {
            return "The versions that load: `expertrail stack --transport ibgda` in the container of one failing rank (DeepEP's commit and the NVSHMEM that its banner names).".to_owned();
        }
        if self.reached.answer == Reached::Unknown && case.ranks_seen.len() < 2 {
            return "The logs of all ranks of this run: which rank never came to the call, and what it wrote last.".to_owned();
        }
        "`expertrail check --for deepep-ibgda` on every node of the run: keys and modules of the driver, and the NIC of each GPU.".to_owned()
    }
}

fn list(items: impl Iterator<Item = impl ToString>) -> String {
    items.take(12).map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// An illegal access with nothing before it, in a run that uses DeepEP.
fn lone_access(case: &Case) -> Option<&Event> {
    let deepep = case.has_any(&[
        "deepep-named",
        "internode-frame",
        "intranode-frame",
        "low-latency-frame",
        "nvshmem-banner",
    ]);
    case.first("cuda-illegal-memory-access").filter(|_| deepep)
}

/// A failure of another kind that surely came before `first`.
pub(super) fn earlier_failure<'a>(case: &'a Case, first: &Event) -> Option<&'a Event> {
    case.events.iter().find(|event| {
        event.role == Role::Failure
            && !TIMEOUTS.contains(&event.signal)
            && event.place != first.place
            // The same line, or the block of the same exception, under another name.
            && !(event.place.file == first.place.file && event.text == first.text)
            && event.before(first) == Some(true)
    })
}

/// Steps of training or of a benchmark that were done, not just begun.
fn steps(case: &Case) -> impl Iterator<Item = &Event> {
    const DONE: [&str; 9] =
        ["loss", "elapsed", "step time", "flop", "throughput", "s/it", "it/s", "grad norm", "tokens/s"];
    case.events("iteration").filter(|event| {
        let text = event.text.to_lowercase();
        event.number("iter").is_some_and(|iter| iter > 0) && DONE.iter().any(|word| text.contains(word))
    })
}

/// Lines of compiling that come after `first`, or that began before and never ended.
pub(super) fn preparing<'a>(case: &'a Case, first: &Event) -> Option<&'a Event> {
    // Files without times compare with none but themselves: the first that gave up in each of them counts there.
    let mut waits = vec![first];
    for event in TIMEOUTS.iter().flat_map(|signal| case.events(signal)) {
        if waits.iter().all(|known| known.place.file != event.place.file) {
            waits.push(event);
        }
    }
    // Another rank's compiling that goes on, or only then ends, after this one gave up.
    let after = case.events("jit-compiling").find(|event| {
        waits.iter().any(|wait| {
            (wait.place == first.place || wait.place.file == event.place.file)
                && wait.before(event) == Some(true)
                && !other_run(case, wait.place, event.place)
                && (event.rank.is_none() || event.rank != wait.rank)
        })
    });
    if after.is_some() {
        return after;
    }
    waits.into_iter().find_map(|wait| unfinished(case, wait))
}

/// Lines of compiling that began before `first` and never ended.
fn unfinished<'a>(case: &'a Case, first: &Event) -> Option<&'a Event> {
    let done = |event: &Event| {
        event.number("percent").is_some_and(|percent| percent >= 100)
            || event.number("part").is_some_and(|part| Some(part) == event.number("whole"))
    };
    let lines: Vec<&Event> = case.events("jit-compiling").filter(|event| !done(event)).collect();
    let ended = |start: &Event| {
        let end = |signal: &str| {
            case.events(signal).any(|event| {
                // `131 of 412 done` is no end.
                if event.number("part") < event.number("whole") {
                    return false;
                }
                let other = matches!((event.rank, start.rank), (Some(a), Some(b)) if a != b);
                start.before(event) == Some(true) && event.before(first) != Some(false) && !other
            })
        };
        end("jit-finished")
            || end("served")
            || end("deepep-subtest-passed")
            || steps(case)
                .any(|event| start.before(event) == Some(true) && event.before(first) != Some(false))
            || case.events("jit-compiling").any(|event| done(event) && start.before(event) == Some(true))
    };
    // DeepEP waits 100 s, images patch that up to 1000 s: a compile that began much earlier has nothing to do with it.
    let near = |start: &Event| match (start.time, first.time) {
        (Some(began), Some(ended)) if start.clock == first.clock => (0.0..1800.0).contains(&(ended - began)),
        _ => true,
    };
    let last = lines.iter().copied().rfind(|event| event.before(first) == Some(true))?;
    (near(last) && !ended(last) && last.rank.is_none_or(|rank| Some(rank) != first.rank)).then_some(last)
}

fn reached(case: &Case, first: &Event) -> Asked<Reached> {
    if let Some(event) = preparing(case, first) {
        return Asked { answer: Reached::Preparing, evidence: vec![event.place, first.place] };
    }
    if let Some(event) = earlier_failure(case, first) {
        let text: String = event.text.chars().take(80).collect();
        return Asked { answer: Reached::Failed(text), evidence: vec![event.place] };
    }
    let waited: BTreeSet<u32> = TIMEOUTS
        .iter()
        .flat_map(|signal| {
            let named = case.events(signal).filter_map(|event| u32::try_from(event.number("rank")?).ok());
            case.ranks(signal).into_iter().chain(named.collect::<Vec<_>>())
        })
        .collect();
    if let Some(world) = case.world
        && world > 1
        && (0..world).all(|rank| waited.contains(&rank))
    {
        return Asked { answer: Reached::All, evidence: vec![first.place] };
    }
    // A rank that failed in any way, even as a follower, was there or is explained.
    let failed: BTreeSet<u32> = case
        .events
        .iter()
        .filter(|event| matches!(event.role, Role::Failure | Role::Follower))
        .filter_map(|event| event.rank)
        .collect();
    let suspects: BTreeSet<u32> = case
        .ranks_seen
        .iter()
        .copied()
        .filter(|rank| !waited.contains(rank) && !failed.contains(rank))
        .collect();
    // Where only the first ranks of nodes log, silence of the others says nothing; so does one line of a start.
    if waited.len() > 1 && !suspects.is_empty() && suspects.len() * 4 <= waited.len() {
        return Asked { answer: Reached::Not(suspects), evidence: vec![first.place] };
    }
    Asked::default()
}

/// Whether the frames that are shown are all of calls inside a node, with no other sign than the message that it was between nodes.
fn frames_differ(case: &Case) -> bool {
    case.has_any(&["dispatch-timeout", "recv-counters-unset"])
        && case.has("intranode-frame")
        && !case.has_any(&["internode-frame", "low-latency-frame"])
        && kernel::silent(case).is_none()
}

fn frame(case: &Case, first: &Event) -> Asked<Frame> {
    let by = |signal: &str| case.first(signal).map(|event| event.place);
    let of = |answer, signal| Asked { answer, evidence: by(signal).into_iter().collect() };
    if case.has("low-latency-timeout")
        || (case.has("low-latency-frame") && !case.has_any(&["dispatch-timeout", "recv-counters-unset"]))
    {
        return of(
            Frame::LowLatency,
            if case.has("low-latency-timeout") { "low-latency-timeout" } else { "low-latency-frame" },
        );
    }
    for (signal, answer) in [
        ("internode-frame", Frame::InterNode),
        ("dispatch-timeout", Frame::InterNode),
        ("recv-counters-unset", Frame::InterNode),
    ] {
        if case.has(signal) && !(signal == "internode-frame" && first.signal == "cpu-recv-timeout") {
            return of(answer, signal);
        }
    }
    if kernel::silent(case).is_some() {
        return of(Frame::InterNode, "kernel-timeout");
    }
    if case.has("cpu-recv-timeout") {
        return of(Frame::IntraNode, "cpu-recv-timeout");
    }
    if case.has("intranode-frame") {
        return of(Frame::IntraNode, "intranode-frame");
    }
    Asked::default()
}

fn transport(case: &Case, first: &Event) -> Asked<Vec<&'static str>> {
    let mut asked = Asked::<Vec<&'static str>>::default();
    for &signal in TRANSPORT {
        if let Some(event) = case.events(signal).find(|event| event.before(first) != Some(false)) {
            asked.answer.push(signal);
            asked.evidence.push(event.place);
        }
    }
    for (signal, bad) in
        [("node-check", ibgda::without_modules(case)), ("driver-param-off", ibgda::without_keys(case))]
    {
        if bad.is_some_and(|bad| !bad.is_empty()) {
            asked.answer.push(signal);
            asked.evidence.extend(case.first(signal).map(|event| event.place));
        }
    }
    asked
}

fn devices(case: &Case) -> Asked<Devices> {
    let skipped = ["ibgda-alloc-skip", "ibgda-uar-unmapped", "nic-not-mlx5"];
    let names: BTreeSet<String> = skipped
        .iter()
        .flat_map(|signal| case.events(signal))
        .filter_map(|event| event.field("device").map(str::to_owned))
        .collect();
    let evidence: Vec<Place> = case.first_of(&skipped).map(|event| event.place).into_iter().collect();
    match case.first_of(&["ibgda-init-failed", "nvshmem-no-transports"]) {
        Some(event) => Asked { answer: Devices::All, evidence: [evidence, vec![event.place]].concat() },
        None if names.is_empty() => Asked::default(),
        None => Asked { answer: Devices::Some(names), evidence },
    }
}

fn when(case: &Case, first: &Event) -> Asked<When> {
    // Files without times do not compare: what another rank of the same run shows counts, and not that of another run.
    let loaded = nvshmem::loaded(case, Some(first));
    let other_run = |event: &Event| {
        event.place.file != first.place.file
            && case.events("nvshmem-banner").any(|banner| {
                banner.place.file == event.place.file && banner.field("version") != loaded.as_deref()
            })
    };
    let here = |event: &&Event| event.before(first) != Some(false) && !other_run(event);
    let at = |answer, event: &Event| Asked { answer, evidence: vec![event.place] };
    // What passed before the part between nodes began was inside a node.
    let start = case.events("internode-start").filter(here).last();
    let counts = |event: &&Event| start.is_none_or(|start| start.before(event) != Some(false));
    if let Some(event) = steps(case).find(here) {
        return at(When::Later, event);
    }
    for signal in ["deepep-subtest-passed", "deepep-tuning", "figures"] {
        let mut passed = case.events(signal).filter(here).filter(counts);
        if let Some(event) = passed.next() {
            // Figures of the part inside a node carry a node's number.
            if signal == "figures" && event.text.contains("Node ") {
                continue;
            }
            // Tests inside a node, named as such and nothing after them, say nothing of RDMA.
            if start.is_none() && case.has("intranode-start") {
                continue;
            }
            return at(When::Later, event);
        }
    }
    if let Some(event) = case.events("served").find(here) {
        return at(When::Later, event);
    }
    if let Some(event) = ["first-pass", "internode-section", "deepep-subtest"]
        .iter()
        .find_map(|signal| case.events(signal).filter(here).last())
    {
        return at(When::First, event);
    }
    // NVSHMEM prints its version once, when it starts: a wait right after it is of the first call.
    let banner = case.events("nvshmem-banner").filter(here).last();
    let close = |event: &&Event| {
        first.place.file == event.place.file && first.place.line.saturating_sub(event.place.line) < 40
    };
    if let Some(event) = banner.filter(close) {
        return at(When::Start, event);
    }
    Asked::default()
}

fn counts(case: &Case, first: &Event) -> Asked<Counts> {
    let configs: Vec<(i64, &Event)> =
        case.events("test-config").filter_map(|event| Some((event.number("tokens")?, event))).collect();
    let failing =
        configs.iter().rev().find(|(_, event)| event.before(first) == Some(true)).map(|(tokens, _)| *tokens);
    let passed: Vec<(i64, &Event)> = configs
        .iter()
        .filter(|(tokens, config)| {
            Some(*tokens) < failing
                && case.events("deepep-subtest-passed").any(|event| config.before(event) == Some(true))
        })
        .copied()
        .collect();
    if passed.is_empty() {
        return Asked::default();
    }
    let evidence = passed.iter().take(2).map(|(_, event)| event.place).collect();
    Asked { answer: Counts::Tokens(passed.iter().map(|(tokens, _)| *tokens).collect()), evidence }
}

fn versions(case: &Case, first: &Event) -> Asked<Vec<String>> {
    let mut asked = Asked::<Vec<String>>::default();
    for key in ["deep_ep", "commit", "line"] {
        asked.answer.extend(case.version(key).map(|value| format!("{key} {value}")));
    }
    if let Some((patched, _)) = patched(case) {
        asked.answer.push(format!("pull request 564 {}", if patched { "in" } else { "missing" }));
    }
    asked.answer.extend(nvshmem::loaded(case, Some(first)).map(|version| format!("NVSHMEM {version}")));
    for signal in ["nvshmem-banner", "deepep-version-line"] {
        asked.evidence.extend(case.first(signal).map(|event| event.place));
    }
    if let Some((gpu, _)) = deepep::gpu(case).filter(|_| !asked.answer.is_empty()) {
        asked.answer.push(gpu.to_owned());
    }
    asked
}
