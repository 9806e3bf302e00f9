//! `mpirun`, `ssh` and `torchrun`: the rendered script as a child of this process, supervised.

mod console;
mod crowd;
mod note;
mod progress;
mod tree;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::files::{Found, Taken, hand_over, outputs, remove};
use super::follow::line_of;
use super::{Collect, DriveError, Ending, Event, Show, Stop, System};
use crate::bundle::clock::span;
use crate::run::{Run, Target};
use crate::words::count;
use crate::worker::identity;
pub use crowd::directories;

use console::{Console, LAST, Next};
use crowd::{Ended, Marks};
use note::{Named, Note};
use progress::Progress;
use tree::Process;

/// The variable by which the scripts are told where to write.
const OUT: &str = "EXPERTRAIL_OUT";

/// What a script prints before each of its parts.
const STEP: &str = "=== step ";

/// What a script prints before its own complaints.
const COMPLAINT: &str = "expertrail: ";

/// What `ssh.sh` complains of a host whose worker it could not stop.
const LEFT_BEHIND: &str = "left behind on ";

/// How much later than the script's own limit this program's is: the script then stops everything in order, and it kills what does not
/// end after 30 s. Two who stop the same ranks at the same time would only be in each other's way.
const LATER: Duration = Duration::from_secs(45);

/// The same for `ssh.sh`: workers stop by themselves first, those that do not are told after 30 s and left behind after 60 s more.
const LATER_SSH: Duration = Duration::from_secs(105);

/// What `ssh.sh` gets after a second Ctrl-C to reach all hosts.
const HURRY: Duration = Duration::from_secs(5);

/// How long a script that was told to stop may take to stop its ranks, before everything is killed.
const GRACE: Duration = Duration::from_secs(75);

/// Between two looks.
const EVERY: Duration = Duration::from_millis(200);

/// The list of hosts beside a script.
const HOSTFILE: &str = "hostfile";

/// A run on hosts.
pub struct Hosts<'a> {
    run: &'a Run,
    folder: PathBuf,
    child: Option<Child>,
    console: Option<Console>,
    out: Option<PathBuf>,
    /// When the script was started.
    started: Option<Instant>,
    /// The start was refused: what runs is another's.
    refused: bool,
    /// Hosts whose workers may not have been told to stop.
    unreached: Vec<String>,
    begun: bool,
    complaint: Option<String>,
    progress: Progress,
    /// Files that were handed over whole.
    taken: Vec<Taken>,
    /// Let `ssh.sh` copy the files and this host's binary to all hosts first.
    pub copy: bool,
}

impl<'a> Hosts<'a> {
    /// The run whose rendered files lie in `folder`.
    pub fn new(run: &'a Run, folder: &Path) -> Self {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Self {
            run,
            folder,
            child: None,
            console: None,
            out: None,
            started: None,
            refused: false,
            unreached: Vec::new(),
            begun: false,
            complaint: None,
            progress: Progress::new(Instant::now()),
            taken: Vec::new(),
            copy: false,
        }
    }

    fn script(&self) -> &'static str {
        match self.run.target {
            Target::Ssh => "ssh.sh",
            Target::Torchrun => "torchrun.sh",
            _ => "mpirun.sh",
        }
    }

    /// The program that the script stands on.
    fn program(&self) -> &str {
        match self.run.target {
            Target::Ssh => "ssh",
            Target::Torchrun => "torchrun",
            _ => &self.run.hosts.mpirun,
        }
    }

    /// Words after the script's name: the binary is where the hosts have it, or is copied.
    fn args(&self) -> &'static [&'static str] {
        if self.copy && self.run.target == Target::Ssh { &["--copy"] } else { &[] }
    }

    /// The hosts of the list beside the script, which a person may have edited.
    fn hosts(&self) -> Vec<String> {
        let Ok(text) = fs::read_to_string(self.folder.join(HOSTFILE)) else {
            return self.run.hosts.names.clone();
        };
        let names = text.lines().filter_map(|line| line.split_whitespace().next());
        names.filter(|name| !name.starts_with('#')).map(str::to_owned).collect()
    }

    /// The note on a run that is under way.
    fn note(&self) -> Note {
        Note::new(&self.folder)
    }

    /// By what the processes of this run are known.
    fn marks(&self) -> Marks {
        let mut folders = vec![self.folder.as_path()];
        folders.extend(self.run.hosts.directory.as_deref().map(Path::new));
        Marks::new(&self.run.id, &folders)
    }

    /// Lines for the launch that is under way or was left behind; none where there is none.
    pub fn status(&self) -> Vec<String> {
        let id = &self.run.id;
        let named = self.note().read();
        let mut lines = Vec::new();
        match named {
            Named { script: Some(script), launch: Some(launch) } => lines.push(format!(
                "run {id} is under way: process {} of this host, started by process {}",
                script.pid, launch.pid
            )),
            Named { script: Some(script), launch: None } => lines.push(format!(
                "run {id} runs as process {} of this host, left behind by a launch that was killed",
                script.pid
            )),
            Named { script: None, launch: Some(launch) } => {
                lines.push(format!("run {id} is under way: process {} of this host launches it", launch.pid));
            }
            Named { script: None, launch: None } => {}
        }
        let known = named.script.map(|script| script.tree()).unwrap_or_default();
        let others = self.marks().all().into_iter().filter(|one| !known.contains(one));
        lines.extend(others.map(|one| format!("a process of run {id} is left: {}", one.words())));
        lines
    }

    /// Whether no launch supervises the run: what is there of it was left behind.
    pub fn left_behind(&self) -> bool {
        self.note().read().launch.is_none()
    }

    /// The logs of the newest start, in order of their names.
    pub fn logs(&self) -> Vec<PathBuf> {
        let written = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
        let newest = entries(&self.folder)
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("out")))
            .map(|path| path.join("logs"))
            .filter(|path| path.is_dir())
            .max_by_key(|path| written(path));
        let Some(folder) = newest else { return Vec::new() };
        let mut files: Vec<PathBuf> = entries(&folder).filter(|path| path.is_file()).collect();
        files.sort();
        files
    }

    /// Takes the lines that come within `wait`.
    fn drain(&mut self, show: &mut dyn Show, wait: Duration) {
        let until = Instant::now() + wait;
        while Instant::now() < until {
            match self.console.as_mut().map(|console| console.next(until)) {
                Some(Next::Line(line)) => self.take(&line, show),
                Some(Next::Nothing) => return,
                // Nothing would make the caller wait then.
                None | Some(Next::End) => return std::thread::sleep(wait.min(EVERY)),
            }
        }
    }

    /// Takes what is still in the pipe. A rank that outlives its script does not hold it for long.
    fn drain_rest(&mut self, show: &mut dyn Show) {
        let until = Instant::now() + LAST;
        while Instant::now() < until {
            let idle = Instant::now() + Duration::from_secs(2);
            match self.console.as_mut().map(|console| console.next(idle)) {
                Some(Next::Line(line)) => self.take(&line, show),
                _ => return,
            }
        }
    }

    fn take(&mut self, line: &[u8], show: &mut dyn Show) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        if let Some(step) = text.strip_prefix(STEP) {
            self.begun = true;
            self.progress.step(step, Instant::now());
            show.show(Event::State(format!("step {step}")));
        } else if let Some(complaint) = text.strip_prefix(COMPLAINT) {
            self.complaint = Some(complaint.to_owned());
            if let Some(host) = complaint.strip_prefix(LEFT_BEHIND) {
                self.unreached.push(host.to_owned());
            }
        }
        self.progress.hear(text);
        line_of(line, show);
    }

    /// Tells the script to stop, and kills what is left after a time.
    fn stop(&mut self, show: &mut dyn Show, stop: &dyn Stop) {
        let Some(child) = &mut self.child else { return };
        let process = Process::of(child.id());
        show.show(Event::Step(format!("stopping {} (at most {} s)", self.run.id, GRACE.as_secs())));
        process.terminate();
        let mut until = Instant::now() + GRACE;
        let mut hurried = false;
        loop {
            self.drain(show, EVERY);
            if !hurried && stop.hurried() {
                hurried = true;
                // Another host cannot be reached any more when this script is gone.
                let left = if self.run.target == Target::Ssh { HURRY } else { Duration::ZERO };
                until = until.min(Instant::now() + left);
            }
            let Some(child) = &mut self.child else { return };
            if !matches!(child.try_wait(), Ok(None)) {
                break;
            }
            if Instant::now() >= until {
                let killed = process.kill_tree();
                show.show(Event::Warning(format!("killed {killed} processes that did not stop")));
                let _ = child.wait();
                self.unreached = self.hosts().into_iter().filter(|host| !is_here(host)).collect();
                break;
            }
        }
        if !hurried {
            self.drain_rest(show);
        }
    }

    /// Ranks of the step that left a record of their end, where this host sees it.
    fn recorded(&self) -> usize {
        let Some(Ok(entries)) = self.out.as_ref().map(|out| fs::read_dir(out.join("exit"))) else { return 0 };
        let of_rank = |name: &str| name.starts_with("rank-");
        entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(of_rank)).count()
    }

    fn ending(&self, code: Option<i32>) -> Ending {
        let (script, step) = (self.script(), &self.progress.step);
        let because = self.complaint.as_ref().map(|what| format!(": {what}")).unwrap_or_default();
        // First the host and what to change: the script's exit code says no more than that ssh failed.
        let unreached = self.progress.unreached.as_ref().map(|host| {
            format!(
                "host {} could not be reached: {}. Fix hosts.names of run.toml (or {HOSTFILE}), and see that `ssh {0} true` works; ",
                host.host, host.why
            )
        });
        let unreached = unreached.unwrap_or_default();
        match code {
            Some(0) => Ending::Succeeded,
            Some(124) => {
                Ending::Deadline { state: format!("the run's own deadline passed in step {step}{because}") }
            }
            Some(code @ (2 | 4)) if !self.begun => Ending::NeverStarted {
                reason: format!(
                    "{unreached}{script} ended with exit code {code} before its first step{because}"
                ),
            },
            Some(code) => Ending::Failed {
                reason: format!("{unreached}{script} ended with exit code {code} in step {step}{because}"),
                code: Some(code),
            },
            None => {
                Ending::Failed { reason: format!("{script} was killed by a signal from outside"), code: None }
            }
        }
    }
}

/// The search path with this program's own folder last: who starts `target/release/expertrail` by its path has not installed it, and the
/// scripts name it `expertrail`.
fn search_path() -> Option<std::ffi::OsString> {
    let own = std::env::current_exe().ok()?.parent()?.to_owned();
    let old = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::env::split_paths(&old).chain([own])).ok()
}

impl System for Hosts<'_> {
    fn describe(&mut self) -> Result<Vec<String>, DriveError> {
        let hosts = self.hosts();
        let mut lines = vec![format!(
            "{} on {} ({}) of {}, at most {}",
            self.script(),
            count(u32::try_from(hosts.len()).unwrap_or(u32::MAX), "host"),
            hosts.join(", "),
            count(self.run.gpus_per_node, "rank"),
            span(self.run.timeout_s)
        )];
        let argv: Vec<String> = ["bash".to_owned(), self.script().to_owned()]
            .into_iter()
            .chain(self.args().iter().map(ToString::to_string))
            .collect();
        lines.push(format!("argv: {}, in {}", argv.join(" "), self.folder.display()));
        Ok(lines)
    }

    fn ready(&mut self, _: &mut dyn Show) -> Result<(), DriveError> {
        let (script, folder) = (self.script(), self.folder.display());
        if !self.folder.join(script).is_file() {
            return Err(DriveError::Refused(format!("{folder} has no {script}: render the run again")));
        }
        if let Some(process) = self.note().read().any() {
            return Err(self.under_way(process));
        }
        if self.run.target == Target::Torchrun && self.run.nodes > 1 {
            return Err(DriveError::Refused(format!(
                "torchrun.sh must be started on each of the {} nodes, and this is one of them: start it there (README.txt says how), or render \
                 the target ssh, slurm or mpirun, which reach all nodes from here",
                self.run.nodes
            )));
        }
        let hosts = self.hosts();
        let place = |name: &String| name.strip_prefix("HOST").is_some_and(|rest| rest.parse::<u32>().is_ok());
        if self.run.target != Target::Torchrun && hosts.iter().any(place) {
            return Err(DriveError::Refused(format!(
                "{folder}/{HOSTFILE} still has placeholders: put the names of your hosts there, or into hosts.names of run.toml (\"localhost\" is \
                 this machine)"
            )));
        }
        for program in ["bash", self.program()] {
            if !on_search_path(program) {
                return Err(DriveError::NoProgram(format!(
                    "there is no program `{program}` on this host, and {script} needs it{}",
                    if self.run.target == Target::Mpirun {
                        ": install Open MPI, or set hosts.mpirun to its path"
                    } else {
                        ""
                    }
                )));
            }
        }
        Ok(())
    }

    fn start(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        let note = self.note();
        let failed =
            |error: std::io::Error| DriveError::File { path: note.path(), reason: error.to_string() };
        // Until the note is this process's, whatever runs is another's.
        self.refused = true;
        if let Some(process) = note.take().map_err(failed)? {
            return Err(self.under_way(process));
        }
        self.refused = false;
        let out = free(&self.folder)?;
        self.out = Some(out.clone());
        let script = self.script();
        let failed = |error: std::io::Error| DriveError::System(format!("cannot start {script}: {error}"));
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let mut command = Command::new("bash");
        command.arg(script).args(self.args()).current_dir(&self.folder).env(OUT, &out);
        if let Some(path) = search_path() {
            command.env("PATH", path);
        }
        // A group of its own: Ctrl-C on the terminal reaches this program, which stops the script and then collects.
        command.stdin(Stdio::null()).process_group(0);
        command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        show.show(Event::Step(format!("bash {script}")));
        self.console = Some(Console::new(reader, &out).map_err(failed)?);
        let child = command.spawn().map_err(failed)?;
        // The pipe's ends of this process are in the command.
        drop(command);
        let process = Process::of(child.id());
        self.child = Some(child);
        self.started = Some(Instant::now());
        note.add(&process).map_err(|error| DriveError::File { path: note.path(), reason: error.to_string() })
    }

    fn untouched(&self) -> bool {
        self.refused
    }

    fn watch(&mut self, show: &mut dyn Show, stop: &dyn Stop, until: Instant) -> Result<Ending, DriveError> {
        let until = self.deadline(until);
        loop {
            if stop.cancelled() {
                self.stop(show, stop);
                return Ok(Ending::Interrupted);
            }
            if Instant::now() >= until {
                let state = self.progress.words(self.run, self.recorded());
                self.stop(show, stop);
                return Ok(Ending::Deadline { state });
            }
            self.drain(show, EVERY);
            let recorded = self.recorded();
            if let Some(state) = self.progress.due(self.run, recorded, Instant::now()) {
                show.show(Event::State(state));
            }
            let Some(child) = &mut self.child else {
                return Err(DriveError::System("nothing was started".to_owned()));
            };
            match child.try_wait() {
                Ok(Some(status)) => {
                    self.drain_rest(show);
                    return Ok(self.ending(status.code()));
                }
                Ok(None) => {}
                Err(error) => return Err(DriveError::System(format!("cannot wait for the script: {error}"))),
            }
        }
    }

    fn nodes(&mut self) -> Vec<String> {
        self.hosts()
    }

    fn collect(&mut self, to: &mut dyn Collect) -> Result<(), DriveError> {
        let Some(out) = self.out.clone() else { return Ok(()) };
        let logs = fs::read_dir(out.join("logs")).is_ok_and(|mut entries| entries.next().is_some());
        if let Some(console) = &mut self.console {
            // With logs of the steps these are the same lines: kept, and not read a second time by judge and diagnose.
            let kind = if logs {
                Found::Text("collected/console.txt".to_owned())
            } else {
                Found::Log("console".to_owned())
            };
            hand_over(console.file(), &kind, to)?;
        }
        if out.is_dir() {
            self.taken = outputs(&out, to)?;
        }
        let list = self.folder.join(HOSTFILE);
        if list.is_file() {
            hand_over(&list, &Found::File("collected/hostfile.txt".to_owned()), to)?;
        }
        Ok(())
    }

    fn tidy(&mut self, show: &mut dyn Show) {
        // Its file lies among the outputs until it is dropped; everything in it was collected.
        self.console = None;
        let Some(out) = &self.out else { return };
        remove(&std::mem::take(&mut self.taken), out, show);
    }

    fn clean(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        let id = &self.run.id;
        if self.refused {
            show.show(Event::Step(format!("this launch started nothing of {id}: nothing is stopped")));
            return Ok(());
        }
        let own = self.child.is_some();
        let named = self.note().read();
        if let Named { script: None, launch: Some(launch) } = named
            && launch.pid != std::process::id()
        {
            return Err(DriveError::Refused(format!(
                "process {0} is launching run {id} or collects its results: it cleans up itself (to stop it: kill -INT {0})",
                launch.pid
            )));
        }
        let mut known = Vec::new();
        if let Some(script) = named.script {
            known = script.tree();
            show.show(Event::Step(format!("stopping process {} and what it started", script.pid)));
            script.terminate();
            // The script tells its ranks, on other hosts as well.
            let until = Instant::now() + GRACE;
            while Instant::now() < until && self.lives(&script) {
                std::thread::sleep(EVERY);
            }
            if self.lives(&script) {
                known.extend(script.tree());
                self.unreached = self.hosts().into_iter().filter(|host| !is_here(host)).collect();
            }
        }
        let ended = crowd::end(known, &self.marks());
        if let Some(child) = &mut self.child {
            let _ = child.try_wait();
        }
        self.say_ended(&ended, show)?;
        if own || named.launch.is_none() {
            let path = self.note().path();
            let failed = |error: std::io::Error| DriveError::File { path, reason: error.to_string() };
            self.note().remove().map_err(failed)?;
        }
        self.say_unreached()?;
        show.show(Event::Step(format!("no process of {} is left", self.run.id)));
        Ok(())
    }
}

impl Hosts<'_> {
    fn under_way(&self, process: Process) -> DriveError {
        DriveError::Refused(format!(
            "run {} is under way already: process {}, started by an earlier launch. `expertrail clean {}` stops it",
            self.run.id,
            process.pid,
            self.folder.display()
        ))
    }

    /// When this program stops the script: where `until` is not before the script's own limit, some time after that.
    fn deadline(&self, until: Instant) -> Instant {
        let later = if self.run.target == Target::Ssh { LATER_SSH } else { LATER };
        let own = self.started.and_then(|at| at.checked_add(Duration::from_secs(self.run.timeout_s)));
        match own {
            // The launch counted from a moment earlier than the script's start.
            Some(own) if until + Duration::from_secs(5) >= own => own.checked_add(later).unwrap_or(own),
            _ => until,
        }
    }

    /// Whether it runs; an own child that ended is taken off the system's list first.
    fn lives(&mut self, process: &Process) -> bool {
        match &mut self.child {
            Some(child) if child.id() == process.pid => matches!(child.try_wait(), Ok(None)),
            _ => process.lives(),
        }
    }

    fn say_ended(&self, ended: &Ended, show: &mut dyn Show) -> Result<(), DriveError> {
        if !ended.killed.is_empty() {
            let (count, first) = (ended.killed.len(), ended.killed.first().map_or("", String::as_str));
            show.show(Event::Warning(format!(
                "killed {count} processes of {} that did not end, the first: {first}",
                self.run.id
            )));
        }
        if ended.left.is_empty() {
            return Ok(());
        }
        let pids: Vec<String> = ended.left.iter().map(|one| one.pid.to_string()).collect();
        let first = ended.left.first().map(Process::words).unwrap_or_default();
        Err(DriveError::System(format!(
            "{} processes do not end even by SIGKILL (waiting in a driver?), the first: {first}. Try again: kill -KILL {}",
            pids.len(),
            pids.join(" ")
        )))
    }

    /// An error for hosts where workers may be left, with the command that stops them.
    fn say_unreached(&self) -> Result<(), DriveError> {
        if self.unreached.is_empty() {
            return Ok(());
        }
        let id = &self.run.id;
        // The brackets keep the pattern from matching the shell that searches for it.
        Err(DriveError::System(format!(
            "workers of {id} may be left on {}: they were not seen to end. On each: ssh HOST \"pkill -TERM -f -- '--run-[i]d {id}'\"",
            self.unreached.join(", ")
        )))
    }
}

/// Whether `host` is this one.
fn is_here(host: &str) -> bool {
    host == "localhost" || host == "::1" || host.starts_with("127.") || host == identity::host()
}

/// Paths in a folder; none where it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The next free `out-N`; made here so that two launches do not share one.
fn free(folder: &Path) -> Result<PathBuf, DriveError> {
    for number in 1..u32::MAX {
        let out = folder.join(format!("out-{number}"));
        match fs::create_dir(&out) {
            Ok(()) => return Ok(out),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(DriveError::File { path: out, reason: error.to_string() }),
        }
    }
    Err(DriveError::System("no free name for the outputs".to_owned()))
}

/// Whether `program` can be started.
fn on_search_path(program: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return runs(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| runs(&folder.join(program)))
}
