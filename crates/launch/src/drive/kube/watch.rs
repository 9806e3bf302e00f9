//! Watching a run until it ends: one look at all of its objects every few seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use expertrail_cluster::kube::client::{Kind, Look, Refusal};
use expertrail_cluster::kube::values::age;
use serde_json::Value;

use super::follow::Follower;
use super::look::{Pod, RUN_LABEL, Role, Snapshot};
use super::manifest::Manifest;
use super::reasons::{Hints, Stage, View, view};
use super::site::Site;
use super::words::{Said, shown};
use super::{Options, apply};
use crate::drive::{DriveError, Ending, Event, Show, Stop};
use crate::run::{Run, Target};
use crate::spec::Binary;

/// Logs that are asked for in one look. With more nodes each waits for its turn.
const LOGS: usize = 16;

/// A state that lasts is shown again after this, with its time.
const REPEAT: Duration = Duration::from_secs(30);

/// The longest that a part of a log may take to come.
const LOG: Duration = Duration::from_mins(1);

/// Failed copies of the binary into one pod before the run is given up.
const COPIES: u32 = 5;

/// What is watched, and how.
pub(super) struct Task<'t> {
    pub(super) site: &'t Site<'t>,
    pub(super) manifest: &'t Manifest,
    pub(super) run: &'t Run,
    pub(super) options: &'t Options,
}

impl Task<'_> {
    pub(super) fn hints(&self) -> Hints {
        Hints { namespace: self.site.namespace.clone(), pull_secret: self.run.kubernetes.pull_secret.clone() }
    }

    fn look(&self, events: bool) -> Look<Snapshot> {
        let kinds =
            if self.run.target == Target::Mpijob { "pods,jobs,mpijobs.kubeflow.org" } else { "pods,jobs" };
        let objects = self.site.labelled(kinds, &self.run.id)?;
        // Without events it is still known that a pod waits, if not always why.
        let events = if events { self.site.events().unwrap_or(Value::Null) } else { Value::Null };
        Ok(Snapshot::read(&objects, &events))
    }
}

/// The log of a pod's container that does the work.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) follower: Follower,
    /// Its end was read.
    pub(super) done: bool,
}

/// What is known of a run that is watched.
#[derive(Debug)]
pub(super) struct Watch {
    /// The image is being pulled before the run.
    pub(super) pulling: bool,
    /// The `MPIJob` that runs.
    pub(super) step: usize,
    /// When the present Job was made.
    pub(super) since: Instant,
    /// When each pod was first seen in its present stage.
    stages: BTreeMap<String, (Stage, Instant)>,
    /// By pod.
    pub(super) logs: BTreeMap<String, Log>,
    /// What the workers of the present Job said, by pod.
    pub(super) said: BTreeMap<String, Said>,
    /// The present Job was seen.
    pub(super) seen: bool,
    /// When the Job was first seen as failed.
    pub(super) failing: Option<Instant>,
    /// Pods that have the binary, and failures of the copy.
    copied: BTreeSet<String>,
    copies: BTreeMap<String, u32>,
    /// What was shown last: without times, and when.
    told: Option<(String, Instant)>,
    /// The state with its times.
    state: String,
    /// When the present Job was first seen as complete.
    pub(super) ended: Option<Instant>,
    /// When the server last answered, and for how long it had not before.
    pub(super) heard: Instant,
    pub(super) gap: Duration,
    /// The last pod that was taken away: it may be gone when its Job says that it failed.
    pub(super) lost: Option<String>,
    silent: bool,
    turn: usize,
}

impl Default for Watch {
    fn default() -> Self {
        Self::new(Instant::now())
    }
}

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pulling: false,
            step: 0,
            since: now,
            stages: BTreeMap::new(),
            logs: BTreeMap::new(),
            said: BTreeMap::new(),
            seen: false,
            failing: None,
            ended: None,
            copied: BTreeSet::new(),
            copies: BTreeMap::new(),
            told: None,
            state: "nothing is made yet".to_owned(),
            heard: now,
            gap: Duration::ZERO,
            lost: None,
            silent: false,
            turn: 0,
        }
    }

    /// The first objects are made.
    pub(super) fn begin(&mut self, pulling: bool, now: Instant) {
        self.pulling = pulling;
        self.renew(now);
    }

    /// Another Job begins.
    fn renew(&mut self, now: Instant) {
        self.since = now;
        self.heard = now;
        self.seen = false;
        self.failing = None;
        self.ended = None;
        self.lost = None;
        self.stages.clear();
        self.said.clear();
    }

    /// What was read of the logs.
    pub(super) fn into_logs(self) -> BTreeMap<String, Follower> {
        self.logs.into_iter().map(|(pod, log)| (pod, log.follower)).collect()
    }

    /// Watches until the end.
    pub(super) fn run(
        &mut self,
        task: &Task<'_>,
        show: &mut dyn Show,
        stop: &dyn Stop,
        until: Instant,
    ) -> Result<Ending, DriveError> {
        loop {
            if stop.cancelled() {
                return Ok(Ending::Interrupted);
            }
            let now = task.site.clock.now();
            if now >= until {
                return Ok(Ending::Deadline { state: self.state.clone() });
            }
            match task.look(true) {
                Ok(snapshot) => {
                    self.answered(show, now);
                    if let Some(ending) = self.step(task, &snapshot, show)? {
                        return Ok(ending);
                    }
                }
                Err(refusal) => self.cut(task, &refusal, show, now)?,
            }
            stop.pause(task.options.interval);
        }
    }

    fn answered(&mut self, show: &mut dyn Show, now: Instant) {
        if std::mem::take(&mut self.silent) {
            show.show(Event::Warning("the API server answers again".to_owned()));
        }
        self.gap = now.saturating_duration_since(self.heard);
        self.heard = now;
    }

    /// The server did not answer. The run goes on without us, so it is asked again for a while.
    fn cut(
        &mut self,
        task: &Task<'_>,
        refusal: &Refusal,
        show: &mut dyn Show,
        now: Instant,
    ) -> Result<(), DriveError> {
        let silence = now.saturating_duration_since(self.heard);
        let hopeless = matches!(refusal.kind, Kind::NoKubectl | Kind::NoContext | Kind::Forbidden);
        // A credential plugin may need a moment for its new token.
        let patience = match refusal.kind {
            Kind::Unauthorized => Duration::from_secs(20),
            _ => task.options.patience.silence,
        };
        if hopeless || silence >= patience {
            return Err(task.site.error(refusal));
        }
        if !self.silent {
            self.silent = true;
            show.show(Event::Warning(format!(
                "the API server gives no answer ({}); the run goes on in the cluster, and is looked at again as soon as it answers",
                refusal.message
            )));
        }
        Ok(())
    }

    fn step(
        &mut self,
        task: &Task<'_>,
        snapshot: &Snapshot,
        show: &mut dyn Show,
    ) -> Result<Option<Ending>, DriveError> {
        if self.pulling {
            return self.pull(task, snapshot, show);
        }
        let now = task.site.clock.now();
        let pods = self.pods(task, snapshot);
        if let Some(ending) = self.feed(task, &pods, show)? {
            return Ok(Some(ending));
        }
        self.follow(task, &pods, show);
        let views: Vec<(&Pod, View)> =
            pods.iter().map(|pod| (*pod, view(pod, snapshot, &task.hints()))).collect();
        self.time(&views, now);
        let words = self.words(task, snapshot, &views);
        self.tell(&words, now, show);
        match self.decide(task, snapshot, &views) {
            Some(Ending::Succeeded) if self.step + 1 < task.manifest.steps.len() => {
                self.next(task, show)?;
                Ok(None)
            }
            other => Ok(other),
        }
    }

    /// Pods of the present Job.
    fn pods<'s>(&self, task: &Task<'_>, snapshot: &'s Snapshot) -> Vec<&'s Pod> {
        let owner = task.manifest.steps.get(self.step).map(super::manifest::Document::name);
        let ours = |pod: &&Pod| {
            pod.role != Role::Pull
                && owner.is_none_or(|owner| {
                    pod.owner == owner
                        || pod.owner.strip_prefix(owner).is_some_and(|rest| rest == "-launcher")
                })
        };
        snapshot.pods.iter().filter(ours).collect()
    }

    /// Begins the next `MPIJob`.
    fn next(&mut self, task: &Task<'_>, show: &mut dyn Show) -> Result<(), DriveError> {
        self.step += 1;
        if let Some(document) = task.manifest.steps.get(self.step) {
            show.show(Event::Step(format!("applying MPIJob {}", document.name())));
            apply::apply(task.site, &[document])?;
        }
        self.renew(task.site.clock.now());
        Ok(())
    }

    /// The image is pulled on all nodes before the run: nodes that pull for different times miss the rendezvous.
    fn pull(
        &mut self,
        task: &Task<'_>,
        snapshot: &Snapshot,
        show: &mut dyn Show,
    ) -> Result<Option<Ending>, DriveError> {
        let now = task.site.clock.now();
        let label = format!("{RUN_LABEL}={}", task.run.id);
        let args = ["get", "daemonsets", "-n", &task.site.namespace, "-l", &label, "-o", "json"];
        let sets = match task.site.client.json(&args) {
            Ok(sets) => sets,
            Err(refusal) => {
                self.cut(task, &refusal, show, now)?;
                return Ok(None);
            }
        };
        let sum = |key: &str| -> u64 {
            sets["items"].as_array().into_iter().flatten().filter_map(|set| set["status"][key].as_u64()).sum()
        };
        let (wanted, have) = (sum("desiredNumberScheduled"), sum("numberReady"));
        let pods: Vec<&Pod> = snapshot.pods.iter().filter(|pod| pod.role == Role::Pull).collect();
        let views: Vec<(&Pod, View)> =
            pods.iter().map(|pod| (*pod, view(pod, snapshot, &task.hints()))).collect();
        self.time(&views, now);
        let late = self.hopeless(task, &views, now);
        if wanted > 0 && have >= wanted {
            show.show(Event::Step(format!("the image is on {have} nodes")));
            unpull(task)?;
            let first: Vec<_> = super::KubeSystem::first(task.manifest);
            show.show(Event::Step(format!("applying {}", super::titles(&first))));
            apply::apply(task.site, &first)?;
            self.begin(false, now);
            return Ok(None);
        }
        if let Some(reason) = late {
            return Ok(Some(Ending::NeverStarted { reason: format!("pulling the image first: {reason}") }));
        }
        if wanted == 0 && now.saturating_duration_since(self.since) >= task.options.patience.no_pods {
            return Ok(Some(Ending::NeverStarted {
                reason: "no node has the labels that the pull of the image asks for (kubernetes.node_selector): compare with `kubectl get nodes \
                         --show-labels`"
                    .to_owned(),
            }));
        }
        let waits = views.iter().filter(|(_, view)| view.stage != Stage::Running);
        let each: Vec<String> =
            waits.map(|(pod, view)| format!("{}: {}", pod.title(), view.whole())).take(4).collect();
        let parts = Words {
            fixed: format!("the image is on {have} of {wanted} nodes; {}", each.join("; ")),
            ..Words::default()
        };
        self.tell(&parts, now, show);
        Ok(None)
    }

    /// Hands the binary to pods that wait for it.
    fn feed(
        &mut self,
        task: &Task<'_>,
        pods: &[&Pod],
        show: &mut dyn Show,
    ) -> Result<Option<Ending>, DriveError> {
        // With an image of ours a container of the same name copies by itself.
        if task.run.kubernetes.binary != Binary::Copy {
            return Ok(None);
        }
        let waiting: Vec<&Pod> = pods
            .iter()
            .copied()
            .filter(|pod| pod.wants_binary() && !self.copied.contains(&pod.name))
            .collect();
        if waiting.is_empty() {
            return Ok(None);
        }
        let bytes = apply::binary(&task.options.binary)?;
        let results = task.site.client.each(&waiting, |pod| apply::copy(task.site, pod, &bytes));
        for (pod, result) in waiting.iter().zip(results) {
            match result {
                Ok(()) => {
                    self.copied.insert(pod.name.clone());
                    show.show(Event::Step(format!("copied the binary into {}", pod.title())));
                }
                Err(why) => {
                    let failed = self.copies.entry(pod.name.clone()).or_default();
                    *failed += 1;
                    if *failed >= COPIES {
                        return Ok(Some(Ending::NeverStarted {
                            reason: format!(
                                "the binary cannot be copied into {}: {why}. kubernetes.binary = \"init\" with kubernetes.expertrail_image needs no copy",
                                pod.title()
                            ),
                        }));
                    }
                    show.show(Event::Warning(format!(
                        "the copy of the binary into {} failed ({why}); trying again",
                        pod.title()
                    )));
                }
            }
        }
        Ok(None)
    }

    /// Reads on in the pods' logs. All of them: when one pod fails, the Job's controller deletes the others with their logs.
    pub(super) fn follow(&mut self, task: &Task<'_>, pods: &[&Pod], show: &mut dyn Show) {
        let begun = |pod: &&&Pod| pod.worker().is_some_and(super::look::Container::begun);
        let open: Vec<&Pod> = pods
            .iter()
            .filter(begun)
            .copied()
            .filter(|pod| self.logs.get(&pod.name).is_none_or(|log| !log.done))
            .collect();
        let first = |pod: &&&Pod| speaks(task, pod);
        let mut now: Vec<&Pod> = open.iter().filter(first).copied().collect();
        let others: Vec<&Pod> = open.iter().filter(|pod| !first(pod)).copied().collect();
        for at in 0..others.len().min(LOGS) {
            now.extend(others.get((self.turn + at) % others.len()));
        }
        self.turn = self.turn.wrapping_add(LOGS);
        let asked: Vec<(&Pod, Option<String>)> = now
            .into_iter()
            .map(|pod| (pod, self.logs.get(&pod.name).and_then(|log| log.follower.since())))
            .collect();
        let answers = task.site.client.each(&asked, |(pod, since)| {
            let since = since.as_ref().map(|since| format!("--since-time={since}"));
            let mut args =
                vec!["logs", &pod.name, "-n", &task.site.namespace, "-c", &pod.main, "--timestamps"];
            args.extend(since.as_deref());
            task.site.client.raw_within(&args, LOG)
        });
        for ((pod, _), answer) in asked.iter().zip(answers) {
            // A log that does not come now is asked for again at the next look.
            let Some(output) = answer.ok().filter(|output| output.code == Some(0)) else { continue };
            let log = self.logs.entry(pod.name.clone()).or_default();
            let lines = log.follower.take(&output.stdout, pod.over());
            log.done = pod.over();
            let said = self.said.entry(pod.name.clone()).or_default();
            for line in lines {
                said.line(&line);
                if speaks(task, pod) && shown(&line) {
                    show.show(Event::Line(line));
                }
            }
        }
    }

    fn time(&mut self, views: &[(&Pod, View)], now: Instant) {
        for (pod, view) in views {
            let stage = self.stages.entry(pod.name.clone()).or_insert((view.stage, now));
            if stage.0 != view.stage {
                *stage = (view.stage, now);
            }
            if view.stage == Stage::Lost {
                self.lost = Some(format!("{}: {}", pod.title(), view.whole()));
            }
        }
    }

    /// For how long a pod has been in its stage.
    pub(super) fn waited(&self, pod: &Pod, now: Instant) -> Duration {
        self.stages.get(&pod.name).map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(*since))
    }

    /// Whether the log of every pod that has ended was read to its end.
    pub(super) fn read_out(&self, views: &[(&Pod, View)]) -> bool {
        let begun = |pod: &Pod| pod.worker().is_some_and(super::look::Container::begun);
        let read = |pod: &Pod| self.logs.get(&pod.name).is_some_and(|log| log.done);
        views.iter().all(|(pod, _)| !(pod.over() && begun(pod)) || read(pod))
    }

    /// Shows the state when it has changed, and again after a while.
    fn tell(&mut self, words: &Words, now: Instant, show: &mut dyn Show) {
        self.state = words.text();
        let same = self
            .told
            .as_ref()
            .is_some_and(|(told, at)| *told == words.fixed && now.saturating_duration_since(*at) < REPEAT);
        if !same {
            self.told = Some((words.fixed.clone(), now));
            show.show(Event::State(self.state.clone()));
        }
    }

    /// The state as shown last.
    pub(super) fn state(&self) -> &str {
        &self.state
    }
}

/// Removes the pods that only pulled.
fn unpull(task: &Task<'_>) -> Result<(), DriveError> {
    let label = format!("{RUN_LABEL}={}", task.run.id);
    let args = [
        "delete",
        "daemonsets",
        "-n",
        &task.site.namespace,
        "-l",
        &label,
        "--wait=false",
        "--ignore-not-found",
    ];
    task.site.done(task.site.client.raw(&args)).map(|_| ())
}

/// Whether it is the pod whose log a person sees: rank 0's, or the launcher's.
fn speaks(task: &Task<'_>, pod: &Pod) -> bool {
    match task.run.target {
        Target::Mpijob => pod.role == Role::Launcher,
        _ => pod.index == Some(0),
    }
}

/// The state for a person: what it is, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// Without times: when this changes it is news.
    pub(super) fixed: String,
    /// The longest wait.
    pub(super) waited: Option<Duration>,
}

impl Words {
    pub(super) fn text(&self) -> String {
        match self.waited {
            Some(time) if time >= Duration::from_secs(5) => {
                format!("{} ({})", self.fixed, age(time.as_secs()))
            }
            _ => self.fixed.clone(),
        }
    }
}
