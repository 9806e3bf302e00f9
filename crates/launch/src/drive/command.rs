//! Calling the programs of a system (`sbatch`, `squeue`): with a deadline and bounded output, or a stand-in in tests.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::DriveError;

/// The longest answer that is taken: a cluster of 10,000 nodes has about 1 MB of `sinfo`.
const OUTPUT_LIMIT: u64 = 64 << 20;

/// After the end of a process, how long its pipes may stay open.
const DRAIN: Duration = Duration::from_millis(500);

/// How a call ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Exit code; none where a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Answer {
    /// Whether it ended with 0.
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }

    /// What it said of its failure, on one line.
    pub fn complaint(&self) -> String {
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match (lines.is_empty(), self.code) {
            (false, _) => lines.join("; "),
            (true, Some(code)) => format!("exit code {code} without a message"),
            (true, None) => "ended by a signal".to_owned(),
        }
    }
}

/// A call: program, arguments, folder, time.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Program, of the search path or with its path.
    pub program: &'a str,
    /// Arguments.
    pub args: &'a [&'a str],
    /// Where it runs; none: here.
    pub folder: Option<&'a Path>,
    /// The longest that it may take.
    pub limit: Duration,
}

/// Programs of a system.
pub trait Programs {
    /// Calls one. That it ends with an error of its own is an [`Answer`].
    ///
    /// # Errors
    /// [`DriveError::NoProgram`] when there is no such program; [`DriveError::System`] when it does not start or does not end in time.
    fn call(&self, call: &Call<'_>) -> Result<Answer, DriveError>;
}

/// The programs of the search path.
#[derive(Clone, Copy, Debug, Default)]
pub struct SearchPath;

impl Programs for SearchPath {
    fn call(&self, call: &Call<'_>) -> Result<Answer, DriveError> {
        let until = Instant::now() + call.limit;
        let mut child = start(call)?;
        let stdout = reader(child.stdout.take());
        let stderr = reader(child.stderr.take());
        let late = || {
            DriveError::System(format!(
                "`{}` gave no answer within {:.0} s and was ended: is the system's server up?",
                words(call),
                call.limit.as_secs_f64()
            ))
        };
        let mut pause = Duration::from_millis(1);
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() >= until => {
                    end(&mut child);
                    return Err(late());
                }
                Ok(None) => std::thread::sleep(pause),
                Err(error) => {
                    end(&mut child);
                    return Err(DriveError::System(format!("cannot wait for `{}`: {error}", call.program)));
                }
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        let rest = until.saturating_duration_since(Instant::now()).max(DRAIN);
        let (Ok(stdout), Ok(stderr)) = (stdout.recv_timeout(rest), stderr.recv_timeout(DRAIN)) else {
            end(&mut child);
            return Err(late());
        };
        if stdout.len() as u64 > OUTPUT_LIMIT {
            let text = format!("`{}` wrote more than {OUTPUT_LIMIT} bytes", words(call));
            return Err(DriveError::System(text));
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Answer { code: status.code(), stdout: text(stdout), stderr: text(stderr) })
    }
}

fn start(call: &Call<'_>) -> Result<Child, DriveError> {
    let mut command = Command::new(call.program);
    if let Some(folder) = call.folder {
        command.current_dir(folder);
    }
    // What is parsed here is the English. A group of its own: Ctrl-C on the terminal is for this program, which stops things in order.
    command.args(call.args).env("LC_ALL", "C").env_remove("LANGUAGE").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| match error.kind() {
        // A folder that is gone gives the same error.
        ErrorKind::NotFound if call.folder.is_none_or(Path::is_dir) => {
            DriveError::NoProgram(format!("there is no program `{}` on the search path", call.program))
        }
        _ => DriveError::System(format!("cannot run `{}`: {error}", call.program)),
    })
}

/// Reads a pipe to its end in a thread of its own, and keeps one byte more than the limit.
fn reader(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.by_ref().take(OUTPUT_LIMIT + 1).read_to_end(&mut kept);
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

/// The call as a person would type it.
pub fn words(call: &Call<'_>) -> String {
    let args = call.args.iter().map(|arg| crate::engine::quote(arg));
    std::iter::once(call.program.to_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(program: &'a str, args: &'a [&'a str]) -> Call<'a> {
        Call { program, args, folder: None, limit: Duration::from_secs(20) }
    }

    #[test]
    fn answers_have_code_and_texts() {
        let answer = SearchPath.call(&call("sh", &["-c", "echo out; echo bad >&2; exit 3"])).unwrap();
        assert_eq!(
            (answer.code, answer.stdout.as_str(), answer.stderr.as_str()),
            (Some(3), "out\n", "bad\n")
        );
        assert_eq!(answer.complaint(), "bad");
        let folder = tempfile::tempdir().unwrap();
        let there = Call { folder: Some(folder.path()), ..call("pwd", &[]) };
        let path = folder.path().canonicalize().unwrap();
        assert_eq!(SearchPath.call(&there).unwrap().stdout.trim(), path.to_str().unwrap());
    }

    #[test]
    fn a_missing_program_and_a_late_one_are_told_apart() {
        let error = SearchPath.call(&call("no-such-program-here", &[])).unwrap_err();
        assert!(matches!(&error, DriveError::NoProgram(text) if text.contains("no-such-program-here")));
        let begun = Instant::now();
        let late = Call { limit: Duration::from_millis(200), ..call("sleep", &["30"]) };
        let error = SearchPath.call(&late).unwrap_err();
        assert!(matches!(&error, DriveError::System(text) if text.contains("`sleep 30` gave no answer")));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
