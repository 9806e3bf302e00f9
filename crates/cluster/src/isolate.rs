//! Calls into the driver's libraries, in a process of their own.
//!
//! A thread that waits inside the driver cannot be ended, and keeps its process from ending; a crash in a library ends the process that
//! called it. So the caller names a program (the command names itself) that reads a task, runs it and writes the answer. Without one, or
//! where it does not start, a thread does it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::facts::Nvml;
use crate::{nvml, probe};

mod child;

/// The subcommand of the program that runs a task.
pub const SUBCOMMAND: &str = "isolated";

/// What may hang or crash.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Task {
    /// Read everything of NVML.
    Nvml { library: PathBuf },
    /// Run a probe.
    Probe(probe::Task),
}

/// What a task found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Of [`Task::Nvml`]: none where there is no such library, or why it does not work.
    Nvml(Box<Result<Option<Nvml>, String>>),
    /// Of [`Task::Probe`].
    Probe(probe::Outcome),
}

/// What goes to the child.
#[derive(Serialize, Deserialize)]
struct Request<T> {
    /// Who asks. A child whose parent ended before it could ask for the signal sees another one.
    parent: i32,
    task: T,
}

/// Why there is no answer. The text goes on from the name of what was asked.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// It takes too long.
    #[error("did not answer within {} s: the driver or a device hangs (see dmesg)", .0.as_secs_f64())]
    Hangs(Duration),
    /// It is gone: how, and the last line of its standard error.
    #[error("{how}{}", colon(last))]
    Died { how: String, last: String },
    /// There is no thread for it.
    #[error("could not run: {0}")]
    NotRun(std::io::Error),
}

fn colon(last: &str) -> String {
    if last.is_empty() { String::new() } else { format!(": {last}") }
}

/// An answer, and the last line of what the libraries wrote to standard error, where it was caught.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) said: String,
}

/// Runs `task`, for at most `limit`: in a child that is `program`, else in a thread that is left behind where it hangs.
pub(crate) fn ask(program: Option<&Path>, task: Task, limit: Duration) -> Result<Reply, Failure> {
    let request = Request { parent: rustix::process::getpid().as_raw_nonzero().get(), task: &task };
    // A path that JSON cannot hold is left to the thread.
    let request = program.and_then(|program| Some((program, serde_json::to_vec(&request).ok()?)));
    if let Some((program, request)) = request {
        let mut command = Command::new(program);
        command.arg(SUBCOMMAND);
        if let Ok(running) = child::Running::start(command, request) {
            return running.wait(limit);
        }
    }
    in_thread(task, limit)
}

fn in_thread(task: Task, limit: Duration) -> Result<Reply, Failure> {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("driver".to_owned()).spawn(move || {
        // The receiver may have gone.
        let _ = sender.send(run(task));
    });
    thread.map_err(Failure::NotRun)?;
    match receiver.recv_timeout(limit) {
        Ok(answer) => Ok(Reply { answer, said: String::new() }),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(Failure::Hangs(limit)),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(Failure::Died { how: "ended without an answer".to_owned(), last: String::new() })
        }
    }
}

/// Runs `task` here.
fn run(task: Task) -> Answer {
    match task {
        Task::Nvml { library } => Answer::Nvml(Box::new(nvml::ask(&library))),
        Task::Probe(task) => Answer::Probe(task.run()),
    }
}

/// The child's side: reads a task from `input`, runs it, and writes the answer to `output`.
///
/// # Errors
/// When `input` is no task, the parent has gone, or `output` cannot be written.
pub fn serve(mut input: impl Read, mut output: impl Write) -> std::io::Result<()> {
    // Nobody waits for the answer of a parent that has gone.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A check leaves no file behind; what a library does in its worst moment is not worth one.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let mut text = Vec::new();
    input.read_to_end(&mut text)?;
    let request: Request<Task> = serde_json::from_slice(&text)?;
    if getppid().map(Pid::as_raw_pid) != Some(request.parent) {
        return Err(std::io::Error::other("the process that asked has ended"));
    }
    let answer = serde_json::to_string(&run(request.task))?;
    // A line of its own, whatever a library has written.
    writeln!(output, "\n{answer}")?;
    output.flush()
}

/// Ends `child`, and waits for it no longer than `grace`: what is stuck in the driver does not end.
pub(crate) fn end(child: &mut Child, grace: Duration) {
    let _ = child.kill();
    let _ = ends(child, grace);
}

/// Whether `child` ends within `grace`.
fn ends(child: &mut Child, grace: Duration) -> bool {
    let until = Instant::now() + grace;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => return false,
            Ok(Some(_)) | Err(_) => return true,
        }
    }
}
