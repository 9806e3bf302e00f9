//! `mpirun`, `ssh` and `torchrun`: the rendered script as a child of this process, supervised.

mod progress;
mod tree;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::files::{Found, Taken, hand_over, outputs, remove};
use super::follow::line_of;
use super::{Collect, DriveError, Ending, Event, Show, Stop, System};
use crate::bundle::clock::{count, span};
use crate::run::{Run, Target};
use progress::Progress;
use tree::Process;

/// The variable by which the scripts are told where to write.
const OUT: &str = "EXPERTRAIL_OUT";

/// What a script prints before each of its parts.
const STEP: &str = "=== step ";

/// What a script prints before its own complaints.
const COMPLAINT: &str = "expertrail: ";

/// How long a script that was told to stop may take to stop its ranks, before everything is killed.
const GRACE: Duration = Duration::from_secs(75);

/// Between two looks.
const EVERY: Duration = Duration::from_millis(200);

/// The list of hosts beside a script.
const HOSTFILE: &str = "hostfile";

/// The longest line that is shown and kept.
const LINE: usize = 64 << 10;

/// A run on hosts.
pub struct Hosts<'a> {
    run: &'a Run,
    folder: PathBuf,
    child: Option<Child>,
    lines: Option<Receiver<Vec<u8>>>,
    out: Option<PathBuf>,
    console: Vec<u8>,
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
            lines: None,
            out: None,
            console: Vec::new(),
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

    /// Where the note on a run that is under way lies.
    fn note(&self) -> PathBuf {
        self.folder.join(".launched")
    }

    /// The script of a launch that is still under way, or was left behind by one that was killed.
    fn left(&self) -> Option<Process> {
        let text = fs::read_to_string(self.note()).ok()?;
        Process::read(&text).filter(Process::lives)
    }

    /// A line for the launch that is under way or was left behind; none where there is none.
    pub fn status(&self) -> Vec<String> {
        let line = |process: Process| {
            let (id, pid) = (&self.run.id, process.pid);
            format!(
                "run {id} is under way as process {pid} of this host, or was left behind by a launch that was killed"
            )
        };
        self.left().map(line).into_iter().collect()
    }

    /// Takes the lines that are there.
    fn drain(&mut self, show: &mut dyn Show, wait: Duration) {
        let until = Instant::now() + wait;
        loop {
            let Some(lines) = &self.lines else { return };
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.take(&line, show),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => {
                    self.lines = None;
                    return;
                }
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
        }
        self.progress.hear(text);
        self.console.extend_from_slice(line);
        line_of(line, show);
    }

    /// Tells the script to stop, and kills what is left after a time.
    fn stop(&mut self, show: &mut dyn Show, stop: &dyn Stop) {
        let Some(child) = &mut self.child else { return };
        let process = Process::of(child.id());
        show.show(Event::Step(format!("stopping {} (at most {} s)", self.run.id, GRACE.as_secs())));
        process.terminate();
        let until = Instant::now() + GRACE;
        loop {
            self.drain(show, EVERY);
            let Some(child) = &mut self.child else { return };
            if !matches!(child.try_wait(), Ok(None)) {
                break;
            }
            if Instant::now() >= until || stop.hurried() {
                let killed = process.kill_tree();
                show.show(Event::Warning(format!("killed {killed} processes that did not stop")));
                let _ = child.wait();
                break;
            }
            // A script that ended may leave the pipe to nobody: the drain above returns at once then.
            if self.lines.is_none() {
                std::thread::sleep(EVERY);
            }
        }
        self.drain(show, Duration::from_secs(1));
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
        if let Some(process) = self.left() {
            return Err(DriveError::Refused(format!(
                "run {} is under way already: process {}, started by an earlier launch. `expertrail clean {folder}` stops it",
                self.run.id, process.pid
            )));
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
        let out = free(&self.folder)?;
        let failed =
            |error: std::io::Error| DriveError::System(format!("cannot start {}: {error}", self.script()));
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let mut command = Command::new("bash");
        command.arg(self.script()).args(self.args()).current_dir(&self.folder).env(OUT, &out);
        // A group of its own: Ctrl-C on the terminal reaches this program, which stops the script and then collects.
        command.stdin(Stdio::null()).process_group(0);
        command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        show.show(Event::Step(format!("bash {}", self.script())));
        let child = command.spawn().map_err(failed)?;
        // The pipe's ends of this process are in the command.
        drop(command);
        let note = Process::of(child.id()).note();
        self.child = Some(child);
        self.out = Some(out);
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = Vec::new();
            while read_line(&mut reader, &mut line) {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        self.lines = Some(receiver);
        fs::write(self.note(), note)
            .map_err(|error| DriveError::File { path: self.note(), reason: error.to_string() })
    }

    fn watch(&mut self, show: &mut dyn Show, stop: &dyn Stop, until: Instant) -> Result<Ending, DriveError> {
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
                    // What is still in the pipe; a rank that outlives its script does not hold it for long.
                    self.drain(show, Duration::from_secs(2));
                    return Ok(self.ending(status.code()));
                }
                Ok(None) if self.lines.is_none() => std::thread::sleep(EVERY),
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
        if logs {
            // The same lines as in the logs of the steps: kept, and not read a second time by judge and diagnose.
            to.file("collected/console.txt", &self.console)?;
        } else {
            to.log("console", &self.console)?;
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
        let Some(out) = &self.out else { return };
        remove(&std::mem::take(&mut self.taken), out, show);
    }

    fn clean(&mut self, show: &mut dyn Show) -> Result<(), DriveError> {
        let own = self
            .child
            .as_mut()
            .and_then(|child| matches!(child.try_wait(), Ok(None)).then(|| Process::of(child.id())));
        let Some(process) = own.or_else(|| self.left()) else {
            let _ = fs::remove_file(self.note());
            show.show(Event::Step(format!("no process of {} is left", self.run.id)));
            return Ok(());
        };
        show.show(Event::Step(format!("stopping process {}", process.pid)));
        process.terminate();
        let until = Instant::now() + GRACE;
        while Instant::now() < until && self.lives(&process) {
            std::thread::sleep(EVERY);
        }
        if self.lives(&process) {
            process.kill_tree();
            std::thread::sleep(EVERY);
        }
        if self.lives(&process) {
            let text = format!("process {0} does not end: kill -KILL {0}", process.pid);
            return Err(DriveError::System(text));
        }
        let _ = fs::remove_file(self.note());
        Ok(())
    }
}

impl Hosts<'_> {
    /// Whether it runs; an own child that ended is taken off the system's list first.
    fn lives(&mut self, process: &Process) -> bool {
        match &mut self.child {
            Some(child) if child.id() == process.pid => matches!(child.try_wait(), Ok(None)),
            _ => process.lives(),
        }
    }
}

/// One line, or a piece of a very long one; false at the end.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    use std::io::Read;
    let read = reader.by_ref().take(LINE as u64).read_until(b'\n', line);
    matches!(read, Ok(count) if count > 0)
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
