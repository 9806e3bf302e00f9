//! Running `kubectl`: a process with a deadline and bounded output, or a stand-in for it in tests.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;

/// The longest answer that is taken. 1,000 nodes with their image lists are about 40 MB.
const OUTPUT_LIMIT: u64 = 256 << 20;

/// After the deadline, how long the pipes of a killed process may stay open.
const DRAIN: Duration = Duration::from_millis(500);

/// What `kubectl` wrote, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit status; none where a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// Why there is no answer at all.
#[derive(Debug, Error)]
pub enum KubectlError {
    /// There is no such program.
    #[error("there is no program `{}`: install kubectl, or name it in EXPERTRAIL_KUBECTL", .0.display())]
    Missing(PathBuf),
    /// It could not be started or waited for.
    #[error("cannot run `{}`: {error}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It did not end in time and was killed.
    #[error("`kubectl {what}` gave no answer within {:.0} s and was ended", .limit.as_secs_f64())]
    Deadline {
        /// The first words of the call.
        what: String,
        /// The time it had.
        limit: Duration,
    },
    /// It wrote more than is taken.
    #[error("`kubectl {what}` wrote more than {limit} bytes")]
    TooLong {
        /// The first words of the call.
        what: String,
        /// The most that is taken.
        limit: u64,
    },
}

/// `kubectl`, or what stands for it.
pub trait Kubectl: Sync {
    /// Runs it with `args`, for at most `limit`.
    ///
    /// # Errors
    /// When it cannot be run, does not end in time or writes too much. That it ends with an error of its own is an [`Output`].
    fn run(&self, args: &[&str], limit: Duration) -> Result<Output, KubectlError>;

    /// As [`Kubectl::run`], with `input` as its standard input (`apply -f -`, `exec -i`).
    ///
    /// # Errors
    /// As [`Kubectl::run`]; and always, where what stands for kubectl takes no input.
    fn run_with(&self, args: &[&str], input: &[u8], limit: Duration) -> Result<Output, KubectlError> {
        let _ = (input, limit);
        Err(KubectlError::Start {
            program: PathBuf::from("kubectl"),
            error: std::io::Error::new(
                ErrorKind::Unsupported,
                format!("`{}` needs an input, and what stands for kubectl here takes none", words(args)),
            ),
        })
    }
}

/// The real program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Program to run.
    pub program: PathBuf,
    /// `--kubeconfig`, where it is not the usual one.
    pub kubeconfig: Option<PathBuf>,
    /// The longest answer that is taken, in bytes.
    pub output_limit: u64,
}

impl Process {
    /// `program` with the usual kubeconfig.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), kubeconfig: None, output_limit: OUTPUT_LIMIT }
    }

    /// The program that `EXPERTRAIL_KUBECTL` or `KUBECTL` names, or `kubectl` of the search path.
    pub fn from_env() -> Self {
        let named = ["EXPERTRAIL_KUBECTL", "KUBECTL"].into_iter().filter_map(std::env::var_os);
        Self::new(named.into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| "kubectl".into()))
    }

    fn start(&self, args: &[&str], input: Stdio) -> Result<Child, KubectlError> {
        let mut command = Command::new(&self.program);
        if let Some(file) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(file);
        }
        // kubectl translates its messages; what is parsed here is the English.
        command.args(args).env("LC_ALL", "C").env("LANG", "C").env_remove("LANGUAGE");
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Credential plugins are children of kubectl: the whole group ends at the deadline.
        command.process_group(0);
        command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => KubectlError::Missing(self.program.clone()),
            _ => KubectlError::Start { program: self.program.clone(), error },
        })
    }
}

impl Kubectl for Process {
    fn run(&self, args: &[&str], limit: Duration) -> Result<Output, KubectlError> {
        self.attend(self.start(args, Stdio::null())?, args, limit)
    }

    fn run_with(&self, args: &[&str], input: &[u8], limit: Duration) -> Result<Output, KubectlError> {
        let mut child = self.start(args, Stdio::piped())?;
        let pipe = child.stdin.take();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A kubectl that has ended does not take the rest: its own message says why.
                let _ = pipe.map(|mut pipe| pipe.write_all(input));
            });
            self.attend(child, args, limit)
        })
    }
}

impl Process {
    /// Waits for the end of `child`, and ends it at the limit.
    fn attend(&self, mut child: Child, args: &[&str], limit: Duration) -> Result<Output, KubectlError> {
        let until = Instant::now() + limit;
        let stdout = reader(child.stdout.take(), self.output_limit);
        let stderr = reader(child.stderr.take(), self.output_limit.min(1 << 20));
        let mut pause = Duration::from_millis(1);
        let code = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status.code(),
                Ok(None) if Instant::now() >= until => {
                    end(&mut child);
                    return Err(KubectlError::Deadline { what: words(args), limit });
                }
                Ok(None) => std::thread::sleep(pause),
                Err(error) => {
                    end(&mut child);
                    return Err(KubectlError::Start { program: self.program.clone(), error });
                }
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        // A grandchild may still hold the pipes: they are waited for until the deadline only.
        let rest = until.saturating_duration_since(Instant::now()).max(DRAIN);
        let (Ok(stdout), Ok(stderr)) = (stdout.recv_timeout(rest), stderr.recv_timeout(DRAIN)) else {
            end(&mut child);
            return Err(KubectlError::Deadline { what: words(args), limit });
        };
        if stdout.len() as u64 > self.output_limit {
            return Err(KubectlError::TooLong { what: words(args), limit: self.output_limit });
        }
        Ok(Output { code, stdout, stderr })
    }
}

/// Reads a pipe to its end in a thread of its own, and keeps one byte more than `limit`.
fn reader(pipe: Option<impl Read + Send + 'static>, limit: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.by_ref().take(limit + 1).read_to_end(&mut kept);
            // The rest is read too: a full pipe would keep the process from its end.
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        let _ = sender.send(kept);
    });
    receiver
}

/// Ends the process and its children.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The words of a call that say what it was: without options that every call has, and without the script of an `exec`.
fn words(args: &[&str]) -> String {
    let words: Vec<&str> = args
        .iter()
        .take_while(|arg| **arg != "--")
        .filter(|arg| !arg.starts_with("--request-timeout") && !arg.starts_with("jsonpath="))
        .copied()
        .collect();
    words.join(" ")
}
