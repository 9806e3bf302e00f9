//! Slurm: `sbatch`, `scontrol`, `scancel`. The run's directory is on a disk that this machine and all nodes share.

mod collect;
mod job;
mod reason;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::command::{Answer, Call, Programs};
use super::files::{Taken, remove};
use super::follow::Follower;
use super::{Collect, DriveError, Ending, Event, Show, Stop, System};
use crate::bundle::clock::span;
use crate::bundle::launch_files;
use crate::run::Run;
use crate::words::count;
use job::{Job, Phase};

/// The batch script of a rendered run.
pub const SCRIPT: &str = "run.sbatch";

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// What one call may take: a busy controller answers late.
const CALL: Duration = Duration::from_secs(30);

/// How long the controller may be silent before the run counts as lost.
const SILENCE: Duration = Duration::from_mins(2);

/// How long a job is waited for after `scancel`: Slurm kills what ignores SIGTERM after `KillWait`, 30 s where nothing else is set.
const CANCEL: Duration = Duration::from_secs(75);

/// A run on Slurm.
pub struct Slurm<'a> {
    programs: &'a dyn Programs,
    run: &'a Run,
    /// Where the rendered files are.
    rendered: PathBuf,
    /// The directory of the job: shared by all nodes.
    folder: PathBuf,
    job: Option<String>,
    /// `sbatch` said no: a job of this name is another launch's.
    refused: bool,
    nodes: Vec<String>,
    follower: Follower,
    /// Files of the job that were handed over whole.
    taken: Vec<Taken>,
    /// How long a job waits for nodes that are down or drained before it counts as one that never starts.
    pub patience: Duration,
}

impl<'a> Slurm<'a> {
    /// The run whose rendered files lie in `folder`.
    pub fn new(programs: &'a dyn Programs, run: &'a Run, folder: &Path) -> Self {
        let rendered = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Self {
            programs,
            run,
            folder: run.slurm.directory.as_ref().map_or_else(|| rendered.clone(), PathBuf::from),
            rendered,
            job: None,
            refused: false,
            nodes: Vec::new(),
            follower: Follower::default(),
            taken: Vec::new(),
            patience: Duration::from_mins(2),
        }
    }

    fn call(&self, program: &str, args: &[&str]) -> Result<Answer, DriveError> {
        let call = Call { program, args, folder: Some(&self.rendered), limit: CALL };
        self.programs.call(&call).map_err(|error| match error {
            DriveError::NoProgram(what) => DriveError::NoProgram(format!(
                "{what}: this machine is no login node of a Slurm cluster, or Slurm's commands are not installed. Launch from a login node, \
                 or submit {SCRIPT} there by hand"
            )),
            other => other,
        })
    }

    /// The call, refused answers as errors.
    fn answer(&self, program: &str, args: &[&str]) -> Result<String, DriveError> {
        let answer = self.call(program, args)?;
        if answer.ok() {
            return Ok(answer.stdout);
        }
        Err(DriveError::System(format!("`{program} {}`: {}", args.join(" "), answer.complaint())))
    }

    fn user(&self) -> Result<String, DriveError> {
        Ok(self.answer("id", &["-un"])?.trim().to_owned())
    }

    /// Jobs of this name and user that have not ended: id and state.
    fn same_name(&self) -> Result<Vec<String>, DriveError> {
        let user = self.user()?;
        let list = self
            .answer("squeue", &["--noheader", "--name", &self.run.id, "--user", &user, "--format=%i %T"])?;
        Ok(list.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// The job now; none where Slurm does not know it any more.
    fn look(&self, id: &str) -> Result<Option<Job>, DriveError> {
        let answer = self.call("scontrol", &["--oneliner", "show", "job", id])?;
        if answer.ok() {
            return Ok(job::parse(&answer.stdout));
        }
        if !answer.complaint().contains("Invalid job id") {
            return Err(DriveError::System(format!("`scontrol show job {id}`: {}", answer.complaint())));
        }
        // The controller forgets ended jobs; the accounting, where there is one, does not.
        let format = "--format=State,ExitCode,Reason,NodeList";
        let answer =
            self.call("sacct", &["--jobs", id, "--allocations", "--noheader", "--parsable2", format])?;
        Ok(if answer.ok() { job::accounted(&answer.stdout) } else { None })
    }

    /// How the run's job stands, in plain words: a line for each job of its name that has not ended; none where there is none.
    ///
    /// # Errors
    /// When Slurm cannot be asked.
    pub fn status(&self) -> Result<Vec<String>, DriveError> {
        let now = Instant::now();
        let mut lines = Vec::new();
        for line in self.same_name()? {
            let id = line.split_whitespace().next().unwrap_or_default();
            lines.push(match self.look(id)? {
                // When it began is not known here: the state alone is said.
                Some(job) => self.state(id, &job, now),
                None => format!("job {line}"),
            });
        }
        Ok(lines)
    }

    /// Files of logs that the run has left so far, in the order of their names.
    pub fn logs(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = Vec::new();
        let list = |folder: &Path| -> Vec<PathBuf> {
            let entries =
                std::fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()));
            entries.map(Iterator::collect).unwrap_or_default()
        };
        let named = |path: &PathBuf, start: &str| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))
        };
        let own = list(&self.folder);
        found.extend(
            own.iter()
                .filter(|path| named(path, &self.run.id) && path.extension().is_some_and(|e| e == "log"))
                .cloned(),
        );
        for job in own.iter().filter(|path| named(path, "job-")) {
            found.extend(list(&job.join("logs")));
        }
        found.sort();
        found
    }

    /// The state in plain words.
    fn state(&self, id: &str, job: &Job, since: Instant) -> String {
        let age = span(since.elapsed().as_secs());
        match job.phase() {
            Phase::Pending => {
                let nodes = self.bad_nodes(job);
                format!("job {id} waits ({age}): {}", reason::words(&job.reason, &nodes))
            }
            Phase::Running if job.state == "RUNNING" => {
                format!("job {id} runs on {} ({age}): {}", job.nodes, self.progress(id))
            }
            Phase::Running => format!("job {id} is {} ({age})", job.state.to_lowercase()),
            Phase::Ended => format!("job {id} ended: {}", job.state.to_lowercase()),
        }
    }

    /// How far the nodes and ranks of a running job are, by what they have written.
    fn progress(&self, id: &str) -> String {
        let folder = self.folder.join(format!("job-{id}"));
        let count = |name: &str, keep: &dyn Fn(&str) -> bool| {
            let Ok(entries) = std::fs::read_dir(folder.join(name)) else { return 0 };
            entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(keep)).count()
        };
        let checked = count("facts", &|name| name.starts_with("node-"));
        let begun: Vec<(&str, usize, u32)> = self
            .run
            .steps
            .iter()
            .map(|step| {
                let (mark, all) = match step.contract {
                    crate::spec::Contract::Ranks => ("rank", step.nodes * self.run.gpus_per_node),
                    crate::spec::Contract::Nodes => ("node", step.nodes),
                };
                let start = format!("{}-{mark}", step.name);
                (step.name.as_str(), count("logs", &|name| name.starts_with(&start)), all)
            })
            .collect();
        match begun.iter().rev().find(|(_, count, _)| *count > 0) {
            Some((name, count, all)) => format!("step {name}, {count} of {all} processes at the rendezvous"),
            None => format!("preflight, {checked} of {} nodes done", self.run.nodes),
        }
    }

    /// Nodes that cannot take this job, each with its state and the reason that somebody gave.
    fn bad_nodes(&self, job: &Job) -> Vec<reason::Node> {
        let mut args = vec!["--noheader", "--Node", "--format=%N|%T|%E"];
        if let Some(partition) = &job.partition {
            args.extend(["--partition", partition]);
        }
        if let Some(wanted) = &self.run.slurm.nodelist {
            args.extend(["--nodes", wanted]);
        }
        // Only for the message: without an answer the reason is shown without names.
        self.answer("sinfo", &args).map(|text| reason::bad(&text)).unwrap_or_default()
    }

    /// Shows what rank 0 of each step and the batch script wrote. While the job runs, the script's heading of a step comes before the step;
    /// at the end its last lines come after what rank 0 said last.
    fn follow(&mut self, id: &str, ended: bool, show: &mut dyn Show) {
        let batch = self.folder.join(format!("{}-{id}.log", self.run.id));
        if !ended {
            self.follower.read(&batch, show);
        }
        for step in &self.run.steps {
            for mark in ["rank", "node"] {
                let log = format!("job-{id}/logs/{}-{mark}0.log", step.name);
                self.follower.read(&self.folder.join(log), show);
            }
        }
        if ended {
            self.follower.read(&batch, show);
        }
    }

    /// Stops the job and waits until it has ended.
    fn cancel(&mut self, id: &str, show: &mut dyn Show, stop: &dyn Stop) -> Result<(), DriveError> {
        show.show(Event::Step(format!("scancel {id}")));
        self.answer("scancel", &[id])?;
        let until = Instant::now() + CANCEL;
        while Instant::now() < until && !stop.hurried() {
            match self.look(id)? {
                Some(job) if job.phase() != Phase::Ended => {}
                _ => break,
            }
            self.follow(id, false, show);
            std::thread::sleep(EVERY.min(Duration::from_millis(500)));
        }
        self.follow(id, true, show);
        self.follower.finish(show);
        Ok(())
    }

    /// Puts the launch files where the job wants them.
    fn place(&self) -> Result<(), DriveError> {
        if self.folder == self.rendered {
            return Ok(());
        }
        for (name, from) in launch_files(&self.rendered) {
            let to = self.folder.join(&name);
            let made = to.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::copy(&from, &to)).map_err(|error| DriveError::File {
                path: to,
                reason: format!(
                    "{error}. slurm.directory must be writable from here and shared by all nodes"
                ),
            })?;
        }
        Ok(())
    }
}

/// Directories of rendered runs whose jobs this user has on Slurm.
///
/// # Errors
/// [`DriveError::NoProgram`] where there is no Slurm; [`DriveError::System`] when it does not answer.
pub fn directories(programs: &dyn Programs) -> Result<Vec<PathBuf>, DriveError> {
    let answer = |program: &str, args: &[&str]| {
        let answer = programs.call(&Call { program, args, folder: None, limit: CALL })?;
        if answer.ok() {
            return Ok(answer.stdout);
        }
        Err(DriveError::System(format!("`{program} {}`: {}", args.join(" "), answer.complaint())))
    };
    let user = answer("id", &["-un"])?;
    // The directory that sbatch was called in is the run's own.
    let list = answer("squeue", &["--noheader", "--user", user.trim(), "--format=%Z"])?;
    let mut all: Vec<PathBuf> = list
        .lines()
        .map(|line| PathBuf::from(line.trim()))
        .filter(|one| one.join("run.json").is_file())
        .collect();
    all.sort();
    all.dedup();
    Ok(all)
}

impl System for Slurm<'_> {
    fn describe(&mut self) -> Result<Vec<String>, DriveError> {
        let slurm = &self.run.slurm;
        let config = self.answer("scontrol", &["show", "config"])?;
        let cluster = job::setting(&config, "ClusterName").unwrap_or_else(|| "not named".to_owned());
        let version = job::setting(&config, "SLURM_VERSION").unwrap_or_default();
        let mut lines = vec![
            format!("Slurm cluster {cluster} ({version}), user {}", self.user()?),
            format!(
                "one job {}: {} of {}, partition {}, at most {}",
                self.run.id,
                count(self.run.nodes, "node"),
                count(self.run.gpus_per_node, "rank"),
                slurm.partition.as_deref().unwrap_or("of the default"),
                span(self.run.timeout_s)
            ),
            format!("argv: sbatch --parsable {SCRIPT}, in {}", self.folder.display()),
        ];
        if self.folder != self.rendered {
            lines.push(format!(
                "the rendered files are copied to {} (slurm.directory)",
                self.folder.display()
            ));
        }
        if let Some(image) = &slurm.container_image {
            lines.push(format!("container {image} by Pyxis"));
        }
        Ok(lines)
    }

    fn ready(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        if !self.rendered.join(SCRIPT).is_file() {
            return Err(DriveError::Refused(format!(
                "{} has no {SCRIPT}: render the run again",
                self.rendered.display()
            )));
        }
        let same = self.same_name()?;
        if let Some(first) = same.first() {
            return Err(DriveError::Refused(format!(
                "a job of the name {} is there already: {first}{}. `expertrail clean {}` removes it, or render with another --run-id",
                self.run.id,
                if same.len() > 1 { format!(" and {} more", same.len() - 1) } else { String::new() },
                self.rendered.display()
            )));
        }
        // sbatch is asked for now: later the answer would come in the middle of a start.
        self.answer("sbatch", &["--version"])?;
        let nodes = self.bad_nodes(&Job { partition: self.run.slurm.partition.clone(), ..Job::default() });
        if !nodes.is_empty() {
            show.show(Event::Warning(format!("not all nodes can take jobs: {}", reason::names(&nodes))));
        }
        Ok(())
    }

    fn start(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        self.place()?;
        show.show(Event::Step(format!("sbatch {SCRIPT}")));
        let call = Call {
            program: "sbatch",
            args: &["--parsable", SCRIPT],
            folder: Some(&self.folder),
            limit: CALL,
        };
        let answer = self.programs.call(&call)?;
        if !answer.ok() {
            self.refused = true;
            let nodes =
                self.bad_nodes(&Job { partition: self.run.slurm.partition.clone(), ..Job::default() });
            let nodes =
                if nodes.is_empty() { String::new() } else { format!(" ({})", reason::names(&nodes)) };
            let complaint = answer.complaint();
            let step = match reason::refusal(&complaint) {
                "" => String::new(),
                step => format!(". Next: {step}"),
            };
            return Err(DriveError::Refused(format!("Slurm refuses the job: {complaint}{nodes}{step}")));
        }
        // `123` or `123;cluster`; a site's own words may stand on lines before.
        let id = answer.stdout.lines().rev().find_map(|line| {
            let id = line.trim().split(';').next()?;
            (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())).then(|| id.to_owned())
        });
        let id =
            id.ok_or_else(|| DriveError::System(format!("sbatch gave no job id: {}", answer.stdout.trim())))?;
        show.show(Event::Step(format!("job {id} submitted")));
        self.job = Some(id);
        Ok(())
    }

    fn watch(&mut self, show: &mut dyn Show, stop: &dyn Stop, until: Instant) -> Result<Ending, DriveError> {
        let Some(id) = self.job.clone() else {
            return Err(DriveError::System("no job was submitted".to_owned()));
        };
        let begun = Instant::now();
        let mut heard = Instant::now();
        let mut stuck: Option<Instant> = None;
        let mut shown = String::new();
        loop {
            if stop.cancelled() {
                self.cancel(&id, show, stop)?;
                return Ok(Ending::Interrupted);
            }
            let job = match self.look(&id) {
                Ok(Some(job)) => job,
                Ok(None) => {
                    return Ok(Ending::Failed {
                        reason: format!(
                            "Slurm does not know job {id} any more and has no accounting of it: whether it ended well cannot be told from it"
                        ),
                        code: None,
                    });
                }
                Err(error) if heard.elapsed() > SILENCE => return Err(error),
                Err(error) => {
                    show.show(Event::Warning(format!("{error}; asking again")));
                    stop.pause(EVERY * 5);
                    continue;
                }
            };
            heard = Instant::now();
            self.follow(&id, job.phase() == Phase::Ended, show);
            if !job.nodes.is_empty() {
                self.nodes = self.names(&job.nodes);
            }
            if let Some(ending) = job.ending(&id) {
                self.follower.finish(show);
                return Ok(ending);
            }
            let state = self.state(&id, &job, begun);
            let shape = job::without_age(&state);
            if shape != shown {
                show.show(Event::State(state.clone()));
                shown = shape;
            }
            if job.phase() == Phase::Pending {
                let hope = reason::hope(&job.reason);
                let since = *stuck.get_or_insert_with(Instant::now);
                let over = match hope {
                    reason::Hope::None => true,
                    reason::Hope::NodesDown => since.elapsed() > self.patience,
                    reason::Hope::Waits => {
                        stuck = None;
                        false
                    }
                };
                if over || Instant::now() >= until {
                    return Ok(Ending::NeverStarted { reason: state });
                }
            } else if Instant::now() >= until {
                self.cancel(&id, show, stop)?;
                return Ok(Ending::Deadline { state });
            }
            stop.pause(EVERY);
        }
    }

    fn nodes(&mut self) -> Vec<String> {
        self.nodes.clone()
    }

    fn collect(&mut self, to: &mut dyn Collect) -> Result<(), DriveError> {
        let Some(id) = self.job.clone() else { return Ok(()) };
        self.taken = collect::files(&self.folder, &self.run.id, &id, to)?;
        let format =
            "--format=JobID,JobName,State,ExitCode,DerivedExitCode,Elapsed,Start,End,NodeList,Reason,MaxRSS";
        let calls: [(&str, &str, Vec<&str>); 3] = [
            ("scontrol-job.txt", "scontrol", vec!["show", "job", &id]),
            ("sacct.txt", "sacct", vec!["--jobs", &id, "--parsable2", format]),
            ("sinfo-reasons.txt", "sinfo", vec!["--list-reasons", "--long"]),
        ];
        for (name, program, args) in calls {
            match self.answer(program, &args) {
                Ok(text) => to.state(name, text.as_bytes())?,
                Err(error) => to.missing(&format!("state/{name}"), &error.to_string()),
            }
        }
        Ok(())
    }

    fn tidy(&mut self, show: &mut dyn Show) {
        let Some(id) = &self.job else { return };
        let folder = self.folder.join(format!("job-{id}"));
        remove(&std::mem::take(&mut self.taken), &folder, show);
    }

    fn clean(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        if self.refused {
            show.show(Event::Step(format!("no job of {} was submitted: nothing is removed", self.run.id)));
            return Ok(());
        }
        if self.same_name()?.is_empty() {
            show.show(Event::Step(format!("no job {} is left", self.run.id)));
            return Ok(());
        }
        let user = self.user()?;
        show.show(Event::Step(format!("scancel --name {} --user {user}", self.run.id)));
        self.answer("scancel", &["--name", &self.run.id, "--user", &user])?;
        let until = Instant::now() + CANCEL;
        let mut left = self.same_name()?;
        while !left.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(500));
            left = self.same_name()?;
        }
        if left.is_empty() {
            return Ok(());
        }
        Err(DriveError::System(format!(
            "job {} has not ended {} s after scancel; look at it with `scontrol show job`, and try `scancel --signal=KILL --name={} --user={user}`",
            left.join(", "),
            CANCEL.as_secs(),
            self.run.id
        )))
    }
}

impl Slurm<'_> {
    /// Names of a compressed list.
    fn names(&self, list: &str) -> Vec<String> {
        let names = self.answer("scontrol", &["show", "hostnames", list]);
        names.map(|text| text.split_whitespace().map(str::to_owned).collect()).unwrap_or_default()
    }
}
