//! What the state of a run is in words, and whether it is its end.

use std::time::{Duration, Instant};

use super::look::{Job, Pod, Role, Snapshot};
use super::reasons::{Stage, View, ended};
use super::watch::{Task, Watch, Words};
use crate::drive::Ending;
use crate::run::Target;
use expertrail_cluster::kube::client::clean;
use expertrail_cluster::kube::values::age;

/// After a Job has failed, how long its other pods may take to end. They have 30 s.
const SETTLE: Duration = Duration::from_secs(45);

/// States of single pods that are told at once.
const SHOWN: usize = 4;

impl Watch {
    /// The state.
    pub(super) fn words(&self, task: &Task<'_>, snapshot: &Snapshot, views: &[(&Pod, View)]) -> Words {
        let now = task.site.clock.now();
        let all = self.expected(task);
        if views.is_empty() {
            let why = self.no_pods(task, snapshot).unwrap_or_else(|| "its pods are being made".to_owned());
            return Words { fixed: why, waited: Some(now.saturating_duration_since(self.since)) };
        }
        let nodes: Vec<&(&Pod, View)> = views.iter().filter(|(pod, _)| pod.role == Role::Node).collect();
        let over = nodes.iter().filter(|(pod, _)| pod.over()).count();
        let met = self.met();
        let head = if over > 0 {
            format!("{over} of {all} nodes have ended")
        } else if met == 0 && task.run.target == Target::Mpijob {
            // Workers are begun by the launcher's mpirun; programs that are not ours say nothing of it.
            let up = nodes.iter().filter(|(_, view)| view.stage == Stage::Running).count();
            let launcher =
                views.iter().any(|(pod, view)| pod.role == Role::Launcher && view.stage == Stage::Running);
            format!(
                "{up} of {all} workers are up, the launcher {}",
                if launcher { "runs" } else { "does not run yet" }
            )
        } else if met >= all {
            format!("running on {all} {}", if all == 1 { "node" } else { "nodes" })
        } else {
            format!("{met} of {all} nodes at the rendezvous")
        };
        let mut waited: Option<Duration> = None;
        let mut parts = vec![head];
        let waiting = views.iter().filter(|(pod, view)| !self.fine(task, pod, view));
        let mut more = 0;
        for (at, (pod, view)) in waiting.enumerate() {
            if at >= SHOWN {
                more += 1;
                continue;
            }
            let words = if view.stage == Stage::Running {
                "runs, its ranks have not started yet (the check of the node comes first)".to_owned()
            } else {
                view.whole()
            };
            waited = waited.max(Some(self.waited(pod, now)));
            parts.push(format!("{}: {words}", pod.title()));
        }
        if more > 0 {
            parts.push(format!("{more} more wait"));
        }
        Words { fixed: parts.join("; "), waited }
    }

    /// Nodes whose ranks were started.
    fn met(&self) -> usize {
        self.said.values().flat_map(|said| &said.started).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Whether nothing is to be said of a pod.
    fn fine(&self, task: &Task<'_>, pod: &Pod, view: &View) -> bool {
        match view.stage {
            Stage::Running if task.run.target == Target::Mpijob => true,
            Stage::Running => self.said.get(&pod.name).is_some_and(|said| !said.started.is_empty()),
            Stage::Ended => pod.end().is_some_and(|end| end.code == 0),
            _ => false,
        }
    }

    /// Nodes of the present Job.
    fn expected(&self, task: &Task<'_>) -> usize {
        let document = match task.manifest.steps.get(self.step) {
            Some(document) => Some(document),
            None => task.manifest.base.iter().find(|one| one.kind() == "Job"),
        };
        let template = document.and_then(super::manifest::Document::template);
        template.map_or(task.run.nodes as usize, |template| template.pods as usize)
    }

    /// Why there are no pods, where something says so.
    fn no_pods(&self, task: &Task<'_>, snapshot: &Snapshot) -> Option<String> {
        let job = self.job(task, snapshot)?;
        if job.suspended {
            return Some(format!("{} {} is suspended: a queue (as Kueue) holds it back", job.kind, job.name));
        }
        let refused = snapshot.about(&job.name).rev().find(|note| note.reason == "FailedCreate")?;
        Some(format!("{} {} cannot make its pods: {}", job.kind, job.name, clean(&refused.message)))
    }

    fn job<'s>(&self, task: &Task<'_>, snapshot: &'s Snapshot) -> Option<&'s Job> {
        let document = match task.manifest.steps.get(self.step) {
            Some(document) => Some(document),
            None => task.manifest.base.iter().find(|one| one.kind() == "Job"),
        }?;
        snapshot.jobs.iter().find(|job| job.name == document.name() && job.kind == document.kind())
    }

    /// Whether it has ended, and how.
    pub(super) fn decide(
        &mut self,
        task: &Task<'_>,
        snapshot: &Snapshot,
        views: &[(&Pod, View)],
    ) -> Option<Ending> {
        let now = task.site.clock.now();
        let Some(job) = self.job(task, snapshot) else { return self.gone(task, views, now) };
        self.seen = true;
        if job.complete {
            // The logs are the proof: they are waited for, also when one of them does not come at once.
            let since = *self.ended.get_or_insert(now);
            if !self.read_out(views) && now.saturating_duration_since(since) < SETTLE {
                return None;
            }
            return Some(self.complete(task, job, views));
        }
        if let Some((reason, message)) = &job.failed {
            let since = *self.failing.get_or_insert(now);
            let settled = self.read_out(views)
                && views.iter().all(|(pod, view)| pod.over() || view.stage == Stage::Lost);
            if !settled && now.saturating_duration_since(since) < SETTLE {
                return None;
            }
            return Some(self.failed(job, (reason, message), views));
        }
        if job.leaving {
            return Some(Ending::Failed {
                reason: format!("{} {} is being deleted, not by this launch", job.kind, job.name),
                code: None,
            });
        }
        if let Some(reason) = self.hopeless(task, views, now) {
            return Some(Ending::NeverStarted { reason });
        }
        let late = now.saturating_duration_since(self.since) >= task.options.patience.no_pods;
        if views.is_empty() && late && !job.suspended {
            let why = self.no_pods(task, snapshot).unwrap_or_else(|| {
                let who = if job.kind == "MPIJob" {
                    "the MPI Operator: `kubectl get pods -A | grep mpi-operator` shows whether it runs"
                } else {
                    "the cluster's Job controller"
                };
                format!(
                    "{} {} has no pods: nothing acted on it, which is the task of {who}",
                    job.kind, job.name
                )
            });
            return Some(Ending::NeverStarted { reason: why });
        }
        None
    }

    /// There is no Job.
    fn gone(&self, task: &Task<'_>, views: &[(&Pod, View)], now: Instant) -> Option<Ending> {
        if !self.seen && now.saturating_duration_since(self.since) < Duration::from_secs(20) {
            // What was made just now may not be in the list yet.
            return None;
        }
        let ttl = Duration::from_secs(u64::from(task.run.kubernetes.ttl_seconds));
        let unseen = self.gap;
        let what = if unseen >= ttl {
            format!(
                "it is gone, after {} in which the cluster was not seen: a finished Job is removed after {} (kubernetes.ttl_seconds), with its logs. \
                 How it ended is not known: start it again, or raise ttl_seconds",
                age(unseen.as_secs()),
                age(ttl.as_secs())
            )
        } else {
            "it is gone: somebody deleted it while it ran".to_owned()
        };
        let ended = views.iter().filter(|(pod, _)| pod.end().is_some_and(|end| end.code == 0)).count();
        let known = if ended > 0 {
            format!(" ({ended} of its pods had ended with exit code 0)")
        } else {
            String::new()
        };
        Some(Ending::Failed { reason: format!("the Job of run {}: {what}{known}", task.run.id), code: None })
    }

    /// The Job says that all is done. That is believed when each node's worker says so too.
    fn complete(&self, task: &Task<'_>, job: &Job, views: &[(&Pod, View)]) -> Ending {
        let fail = |reason: String, code| Ending::Failed { reason, code };
        for (pod, _) in views {
            if let Some(end) = pod.end().filter(|end| end.code != 0 && pod.role != Role::Node) {
                return fail(format!("{} {}", pod.title(), ended(end)), Some(end.code));
            }
            let broken = self.said.get(&pod.name).and_then(|said| said.failed.iter().next());
            if let Some((node, first)) = broken {
                return fail(format!("{} says it is done, but node {node}: {first}", job.kind), None);
            }
        }
        if task.run.target == Target::Mpijob {
            return Ending::Succeeded;
        }
        for node in 0..task.run.nodes {
            let pod = views.iter().map(|(pod, _)| *pod).find(|pod| pod.index == Some(node));
            let Some(pod) = pod else {
                return fail(
                    format!("the Job says it is complete, but node {node} has no pod that shows it"),
                    None,
                );
            };
            match pod.end() {
                Some(end) if end.code == 0 => {}
                Some(end) => {
                    return fail(
                        format!("the Job says it is complete, but {} {}", pod.title(), ended(end)),
                        Some(end.code),
                    );
                }
                None => {
                    return fail(
                        format!("the Job says it is complete, but {} has not ended", pod.title()),
                        None,
                    );
                }
            }
            let steps = task.run.steps.iter().filter(|step| step.nodes > node).count();
            let passed =
                self.said.get(&pod.name).and_then(|said| said.passed.get(&node)).copied().unwrap_or(0);
            if (passed as usize) < steps {
                return fail(
                    format!(
                        "the Job says it is complete, but the worker of {} reports that its ranks passed in {passed} of {steps} steps: the log may \
                         be cut, or the manifest's script was changed",
                        pod.title()
                    ),
                    None,
                );
            }
        }
        Ending::Succeeded
    }

    /// The Job says that it failed: the first failure in time, for the others follow from it.
    fn failed(&self, job: &Job, (reason, message): (&str, &str), views: &[(&Pod, View)]) -> Ending {
        if reason == "DeadlineExceeded" {
            let state = format!("the Job's activeDeadlineSeconds passed; {}", self.state());
            return Ending::Deadline { state };
        }
        let lost = views.iter().find(|(_, view)| view.stage == Stage::Lost);
        let mut broken: Vec<(&Pod, &super::look::End)> = views
            .iter()
            .filter_map(|(pod, _)| Some((*pod, pod.ending().filter(|end| end.code != 0)?)))
            .collect();
        // Of those that ended in the same second, one that was stopped from outside came second.
        broken.sort_by_key(|(pod, end)| {
            (end.finished.is_none(), end.finished, matches!(end.code, 143 | 137), pod.index)
        });
        let first = broken.first();
        match (first, lost) {
            (Some((pod, end)), None) => {
                let rank = self.said.get(&pod.name).and_then(|said| said.failed.iter().next());
                let rank =
                    rank.map(|(node, first)| format!("; its worker: node {node}, first failure {first}"));
                let reason = format!("{} {}{}", pod.title(), ended(end), rank.unwrap_or_default());
                Ending::Failed { reason, code: Some(end.code) }
            }
            (_, Some((pod, view))) => {
                Ending::Failed { reason: format!("{}: {}", pod.title(), view.whole()), code: None }
            }
            (None, None) => {
                let plain = || format!("{} {}: {} {}", job.kind, job.name, clean(reason), clean(message));
                Ending::Failed { reason: self.lost.clone().unwrap_or_else(plain), code: None }
            }
        }
    }

    /// Why it cannot start any more: a pod that has been for too long in a state that does not mend itself.
    pub(super) fn hopeless(&self, task: &Task<'_>, views: &[(&Pod, View)], now: Instant) -> Option<String> {
        let patience = task.options.patience;
        views.iter().find_map(|(pod, view)| {
            let most = match view.stage {
                Stage::NoRoom => patience.no_room,
                Stage::NoImage => patience.no_image,
                Stage::NoVolume => patience.no_volume,
                Stage::BadConfig => patience.bad_config,
                Stage::Crashing => patience.crashing,
                _ => return None,
            };
            let waited = self.waited(pod, now);
            (waited >= most)
                .then(|| format!("{}, for {}: {}", pod.title(), age(waited.as_secs()), view.whole()))
        })
    }
}
