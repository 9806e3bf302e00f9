//! A child that runs one task, as its parent sees it.

use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::{Failure, Reply, end, ends};

/// The most that is read of its output. What NVML says of 64 GPUs is less than 200 KB.
const OUTPUT: u64 = 16 << 20;

/// How much of its last words is kept.
const WORDS: usize = 4096;

/// After its end, how long its pipes may stay open: a process that it left behind may hold them.
const DRAIN: Duration = Duration::from_millis(300);

/// After its answer, how long it may take to end. A driver frees what a process had of each GPU.
const GRACE: Duration = Duration::from_secs(2);

/// How often its end is looked for.
const STEP: Duration = Duration::from_millis(20);

/// A child with its task. Dropping it leaves the process alone.
pub(super) struct Running {
    child: Child,
    started: Instant,
    pipes: Pipes,
}

/// What comes out of it. Each pipe has a thread that ends with it, and that nobody waits for.
struct Pipes {
    /// Lines of standard output.
    lines: Receiver<Vec<u8>>,
    /// The end of standard error.
    words: Arc<Mutex<Vec<u8>>>,
    listener: JoinHandle<()>,
}

impl Running {
    /// Starts `command` and gives it `request`.
    pub(super) fn start(mut command: Command, request: Vec<u8>) -> Result<Self, Error> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn()?;
        match Pipes::attend(&mut child, request) {
            Ok(pipes) => Ok(Self { child, started, pipes }),
            Err(error) => {
                end(&mut child, DRAIN);
                Err(error)
            }
        }
    }

    /// Its answer, at most `limit` after its start.
    pub(super) fn wait(mut self, limit: Duration) -> Result<Reply, Failure> {
        let until = self.started + limit;
        // How it ended, and when that was seen.
        let mut ended: Option<(Result<ExitStatus, Error>, Instant)> = None;
        let status = loop {
            let closed = match self.pipes.lines.recv_timeout(STEP) {
                Ok(line) => {
                    // A library may print too: only an answer reads as one.
                    if let Ok(answer) = serde_json::from_slice(&line) {
                        if !ends(&mut self.child, GRACE) {
                            end(&mut self.child, DRAIN);
                        }
                        return Ok(Reply { answer, said: self.pipes.last_words() });
                    }
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(STEP);
                    true
                }
            };
            if ended.is_none() {
                ended = self.child.try_wait().transpose().map(|status| (status, Instant::now()));
            }
            if let Some((status, seen)) = ended.take() {
                if closed || seen.elapsed() > DRAIN {
                    break status;
                }
                ended = Some((status, seen));
            } else if Instant::now() >= until {
                end(&mut self.child, DRAIN);
                return Err(Failure::Hangs(limit));
            }
        };
        let how = status.map_or_else(|error| format!("ended without an answer ({error})"), how);
        Err(Failure::Died { how, last: self.pipes.last_words() })
    }
}

impl Pipes {
    /// Gives `child` its task and takes what it writes.
    fn attend(child: &mut Child, request: Vec<u8>) -> Result<Self, Error> {
        let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
        let ((stdin, stdout), stderr) = pipes.ok_or_else(|| Error::other("no pipes"))?;
        let (sender, lines) = channel();
        let words = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&words);
        let thread = |name: &str| Builder::new().name(format!("isolate {name}"));
        thread("in").spawn(move || tell(stdin, &request))?;
        thread("out").spawn(move || read_lines(stdout, &sender))?;
        let listener = thread("err").spawn(move || read_words(stderr, &kept))?;
        Ok(Self { lines, words, listener })
    }

    /// The last line that it wrote to standard error.
    fn last_words(&self) -> String {
        let until = Instant::now() + DRAIN;
        while !self.listener.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        last_line(&String::from_utf8_lossy(&words))
    }
}

fn tell(mut stdin: ChildStdin, request: &[u8]) {
    // It may have ended; how is seen elsewhere.
    let _ = stdin.write_all(request);
}

/// Sends every whole line.
fn read_lines(stdout: ChildStdout, sender: &Sender<Vec<u8>>) {
    let mut reader = BufReader::new(stdout.take(OUTPUT));
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // The receiver is gone once it has its answer. Reading goes on: a full pipe would keep the child from its end.
        if line.ends_with(b"\n") {
            let _ = sender.send(std::mem::take(&mut line));
        }
    }
}

/// Keeps the end of what comes.
fn read_words(mut stderr: ChildStderr, kept: &Mutex<Vec<u8>>) {
    let mut piece = [0; WORDS];
    while let Ok(read @ 1..) = stderr.read(&mut piece) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&piece[..read]);
        let old = kept.len().saturating_sub(WORDS);
        kept.drain(..old);
    }
}

/// The last line with anything in it, on one line and of bounded length.
fn last_line(text: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

fn how(status: ExitStatus) -> String {
    // Numbers of x86 and ARM.
    let crash = match status.signal() {
        None => return format!("ended without an answer ({status})"),
        Some(9) => return "was ended by SIGKILL (by hand, or memory ran out)".to_owned(),
        Some(4) => "SIGILL",
        Some(6) => "SIGABRT",
        Some(7) => "SIGBUS",
        Some(8) => "SIGFPE",
        Some(11) => "SIGSEGV",
        Some(other) => return format!("was ended by signal {other}"),
    };
    format!("crashed with {crash}: a defect of the driver's library, or it does not fit the kernel's part")
}
