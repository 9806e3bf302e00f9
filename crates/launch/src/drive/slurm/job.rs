//! A job as `scontrol` and `sacct` show it.

use crate::drive::Ending;

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    /// `PENDING`, `COMPLETED`.
    pub(super) state: String,
    /// Why it waits, or ended; empty for none.
    pub(super) reason: String,
    /// Exit code and signal of the batch script.
    pub(super) exit: (i32, i32),
    /// Its nodes, compressed; empty before it has some.
    pub(super) nodes: String,
    /// Partition.
    pub(super) partition: Option<String>,
}

/// Where it is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits.
    Pending,
    /// It has its nodes.
    Running,
    /// It is over.
    Ended,
}

impl Job {
    pub(super) fn phase(&self) -> Phase {
        match self.state.as_str() {
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => {
                Phase::Pending
            }
            "RUNNING" | "CONFIGURING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING"
            | "STAGE_OUT" | "RESIZING" => Phase::Running,
            _ => Phase::Ended,
        }
    }

    /// How it ended; none while it has not.
    pub(super) fn ending(&self, id: &str) -> Option<Ending> {
        if self.phase() != Phase::Ended {
            return None;
        }
        let (code, signal) = self.exit;
        let on = if self.nodes.is_empty() { String::new() } else { format!(" on {}", self.nodes) };
        let failed = |reason: String, code: Option<i32>| Ending::Failed { reason, code };
        Some(match self.state.as_str() {
            "COMPLETED" if code == 0 && signal == 0 => Ending::Succeeded,
            "COMPLETED" | "FAILED" if code == 124 => Ending::Deadline {
                state: format!("job {id}{on}: the run's own deadline passed (exit code 124)"),
            },
            "COMPLETED" | "FAILED" if signal != 0 => {
                failed(format!("job {id}{on} ended by signal {signal}"), Some(128 + signal))
            }
            "COMPLETED" | "FAILED" => failed(format!("job {id}{on} ended with exit code {code}"), Some(code)),
            "TIMEOUT" | "DEADLINE" => Ending::Deadline {
                state: format!("job {id}{on}: Slurm's time limit of the job passed (state {})", self.state),
            },
            "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => Ending::NeverStarted {
                reason: format!(
                    "job {id}{on}: {}: a node could not be made ready for it; see `sinfo -R`",
                    self.state
                ),
            },
            "CANCELLED" => failed(
                format!(
                    "job {id}{on} was cancelled from outside (scancel, or an administrator){}",
                    self.because()
                ),
                None,
            ),
            "NODE_FAIL" => failed(
                format!("job {id}{on}: a node failed or was lost{}; see `sinfo -R`", self.because()),
                None,
            ),
            "OUT_OF_MEMORY" => failed(
                format!("job {id}{on}: a process was killed because the job's memory was used up"),
                Some(137),
            ),
            "PREEMPTED" => failed(format!("job {id}{on} had to make way for another job (preempted)"), None),
            other => failed(format!("job {id}{on} is in state {other}{}", self.because()), None),
        })
    }

    fn because(&self) -> String {
        if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason.replace('_', " ")) }
    }
}

/// `scontrol --oneliner show job`. Of an array or a requeued job the last line counts.
pub(super) fn parse(text: &str) -> Option<Job> {
    let line = text.lines().rfind(|line| line.contains("JobState="))?;
    let value = |key: &str| -> Option<String> {
        let mut words = line.split_whitespace();
        let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?;
        (!matches!(found, "(null)" | "None" | "")).then(|| found.to_owned())
    };
    Some(Job {
        state: value("JobState")?,
        reason: value("Reason").unwrap_or_default(),
        exit: exit(&value("ExitCode").unwrap_or_default()),
        nodes: value("NodeList").unwrap_or_default(),
        partition: value("Partition"),
    })
}

/// `sacct --parsable2 --noheader --format=State,ExitCode,Reason,NodeList`.
pub(super) fn accounted(text: &str) -> Option<Job> {
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    let mut fields = line.split('|');
    // `CANCELLED by 0`.
    let state = fields.next()?.split_whitespace().next()?.to_owned();
    let exit = exit(fields.next().unwrap_or_default());
    let plain = |text: Option<&str>| {
        text.filter(|text| !matches!(*text, "None" | "None assigned" | "Unknown"))
            .unwrap_or_default()
            .to_owned()
    };
    let (reason, nodes) = (plain(fields.next()), plain(fields.next()));
    Some(Job { state, reason, exit, nodes, partition: None })
}

/// `1:0`: exit code and signal.
fn exit(text: &str) -> (i32, i32) {
    let (code, signal) = text.split_once(':').unwrap_or((text, ""));
    (code.parse().unwrap_or(0), signal.parse().unwrap_or(0))
}

/// The value of `key` in `scontrol show config`.
pub(super) fn setting(config: &str, key: &str) -> Option<String> {
    let line = config.lines().find(|line| line.split('=').next().is_some_and(|name| name.trim() == key))?;
    Some(line.split_once('=')?.1.trim().to_owned())
}

/// A state without its age: `job 3 waits (5 s): x` and `job 3 waits (6 s): x` are one.
pub(super) fn without_age(state: &str) -> String {
    match (state.split_once(" ("), state.split_once("): ")) {
        (Some((start, _)), Some((_, rest))) => format!("{start}: {rest}"),
        (Some((start, _)), None) => start.to_owned(),
        _ => state.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENDING: &str = "JobId=7 JobName=a-1b2c3d UserId=me(1000) Priority=1 JobState=PENDING \
        Reason=ReqNodeNotAvail,_UnavailableNodes:gpu2 Dependency=(null) ExitCode=0:0 Partition=batch ReqNodeList=(null) NodeList= NumNodes=2-2\n";

    #[test]
    fn a_waiting_job_has_a_reason_and_no_nodes() {
        let job = parse(PENDING).unwrap();
        assert_eq!(
            (job.phase(), job.reason.as_str()),
            (Phase::Pending, "ReqNodeNotAvail,_UnavailableNodes:gpu2")
        );
        assert_eq!((job.nodes.as_str(), job.partition.as_deref()), ("", Some("batch")));
        assert_eq!(job.ending("7"), None);
        assert_eq!(parse("slurm_load_jobs error\n"), None);
    }

    #[test]
    fn endings_of_slurm_are_told_apart() {
        let end = |state: &str, exit: &str| {
            let line = format!("JobId=7 JobState={state} Reason=None ExitCode={exit} NodeList=gpu[1-2]\n");
            parse(&line).unwrap().ending("7").unwrap()
        };
        assert_eq!(end("COMPLETED", "0:0"), Ending::Succeeded);
        let Ending::Failed { reason, code } = end("FAILED", "7:0") else { panic!() };
        assert_eq!((reason.as_str(), code), ("job 7 on gpu[1-2] ended with exit code 7", Some(7)));
        assert!(matches!(end("FAILED", "0:9"), Ending::Failed { code: Some(137), .. }));
        assert!(matches!(end("FAILED", "124:0"), Ending::Deadline { .. }));
        assert!(matches!(end("TIMEOUT", "0:0"), Ending::Deadline { .. }));
        assert!(matches!(end("BOOT_FAIL", "0:0"), Ending::NeverStarted { .. }));
        for (state, word) in [
            ("CANCELLED", "cancelled"),
            ("NODE_FAIL", "node failed"),
            ("OUT_OF_MEMORY", "memory"),
            ("PREEMPTED", "make way"),
        ] {
            assert!(
                matches!(end(state, "0:15"), Ending::Failed { reason, .. } if reason.contains(word)),
                "{state}"
            );
        }
    }

    #[test]
    fn the_accounting_says_the_same() {
        let job = accounted("CANCELLED by 0|0:15|None|gpu1\n").unwrap();
        assert_eq!(
            (job.state.as_str(), job.exit, job.nodes.as_str(), job.reason.as_str()),
            ("CANCELLED", (0, 15), "gpu1", "")
        );
        assert_eq!(accounted("\n"), None);
        assert_eq!(
            setting("ClusterName             = prod\nSLURM_VERSION = 24.11\n", "ClusterName").unwrap(),
            "prod"
        );
        assert_eq!(without_age("job 3 waits (5 s): x (y)"), "job 3 waits: x (y)");
    }
}
