//! All processes of a run on this host, whoever their parents are by now.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::tree::Process;

/// Between SIGTERM and SIGKILL for processes that nobody supervises any more; a worker gives its ranks 3 s.
const TERM: Duration = Duration::from_secs(8);

/// How long killed processes may take to go.
const KILL: Duration = Duration::from_secs(5);

const EVERY: Duration = Duration::from_millis(100);

/// By what the processes of a run are known: ranks have its id in their environment, and workers and what starts them have it among
/// their arguments.
pub(super) struct Marks {
    run: String,
    /// Where its outputs may lie: another directory may hold the same run, and what runs for it is not meant.
    folders: Vec<PathBuf>,
}

/// What became of processes that were to end.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// They did not end when told to.
    pub(super) killed: Vec<String>,
    /// They live on.
    pub(super) left: Vec<Process>,
}

impl Marks {
    pub(super) fn new(run: &str, folders: &[&Path]) -> Self {
        let folders = folders.iter().map(|folder| real(folder)).collect();
        Self { run: run.to_owned(), folders }
    }

    /// Every process of the run that this user may look at, without this one and those above it.
    pub(super) fn all(&self) -> Vec<Process> {
        let own = Process::own_line();
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && !own.contains(&pid)
                && self.has(&entry.path())
            {
                all.push(Process::of(pid));
            }
        }
        all.retain(Process::lives);
        all
    }

    fn has(&self, process: &Path) -> bool {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        let environment = read("environ");
        let value = |name: &str| {
            environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(name.as_bytes()))
        };
        let ours = value("EXPERTRAIL_JOB=").is_some_and(|job| job == self.run.as_bytes())
            || self.is_worker(&read("cmdline"));
        ours && value("EXPERTRAIL_OUT=").is_none_or(|out| self.holds(&String::from_utf8_lossy(out)))
    }

    /// Whether these are the arguments of a worker of the run, or of a launcher that was given one to start.
    fn is_worker(&self, line: &[u8]) -> bool {
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let pair = |first: &[u8], second: &[&[u8]]| {
            words.windows(2).any(|pair| matches!(pair, [a, b] if *a == first && second.contains(b)))
        };
        pair(b"worker", &[b"rank", b"node"]) && pair(b"--run-id", &[self.run.as_bytes()])
    }

    fn holds(&self, out: &str) -> bool {
        let out = real(Path::new(out));
        self.folders.iter().any(|folder| out.starts_with(folder))
    }
}

/// Directories of rendered runs that processes of this host work for, as far as this user may look at them: their scripts and ranks are told
/// where to write, in a directory of the run's own.
pub fn directories() -> Vec<PathBuf> {
    const OUT: &[u8] = b"EXPERTRAIL_OUT=";
    let mut all: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let out = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(OUT));
        let Some(out) = out.map(|out| String::from_utf8_lossy(out).into_owned()) else { continue };
        // `RUN/out-1`, and with a folder of its own for each step `RUN/out-1/intranode`.
        let folder =
            Path::new(&out).ancestors().skip(1).take(3).find(|above| above.join("run.json").is_file());
        if let Some(folder) = folder.map(Path::to_owned).filter(|folder| !all.contains(folder)) {
            all.push(folder);
        }
    }
    all.sort();
    all
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// Ends `known` and everything that `marks` finds, now and while it is at it.
pub(super) fn end(mut known: Vec<Process>, marks: &Marks) -> Ended {
    let mut ended = Ended::default();
    let look = |known: &mut Vec<Process>| {
        known.retain(Process::lives);
        for process in marks.all() {
            if !known.contains(&process) {
                known.push(process);
            }
        }
        known.is_empty()
    };
    if look(&mut known) {
        return ended;
    }
    known.iter().for_each(Process::terminate);
    let until = Instant::now() + TERM;
    while Instant::now() < until {
        if look(&mut known) {
            return ended;
        }
        std::thread::sleep(EVERY);
    }
    let until = Instant::now() + KILL;
    ended.killed = known.iter().map(Process::words).collect();
    loop {
        known.iter().for_each(Process::kill);
        std::thread::sleep(EVERY);
        if look(&mut known) || Instant::now() >= until {
            break;
        }
    }
    ended.left = known;
    ended
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper(job: &str, out: Option<&Path>, ignore: bool) -> Child {
        let script = if ignore { "trap '' TERM; sleep 60 & wait; sleep 60" } else { "sleep 60; true" };
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("EXPERTRAIL_JOB", job);
        command.env_remove("EXPERTRAIL_OUT");
        if let Some(out) = out {
            command.env("EXPERTRAIL_OUT", out);
        }
        command.spawn().unwrap()
    }

    #[test]
    fn only_the_own_run_of_the_own_directory_is_ended() {
        let (here, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = format!("crowd-{}", std::process::id());
        let mut own = sleeper(&run, Some(&here.path().join("out-1")), false);
        let mut bare = sleeper(&run, None, false);
        let mut elsewhere = sleeper(&run, Some(&other.path().join("out-1")), false);
        let mut another = sleeper("another-abc123", None, false);
        std::thread::sleep(Duration::from_millis(300));
        let marks = Marks::new(&run, &[here.path()]);
        // A shell and its sleep each.
        assert_eq!(marks.all().len(), 4);
        let ended = end(Vec::new(), &marks);
        assert!(ended.killed.is_empty() && ended.left.is_empty(), "{ended:?}");
        assert!(!own.wait().unwrap().success() && !bare.wait().unwrap().success());
        for child in [&mut elsewhere, &mut another] {
            assert!(child.try_wait().unwrap().is_none());
            Process::of(child.id()).kill_tree();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_ignores_sigterm_is_killed_and_named() {
        let run = format!("deaf-{}", std::process::id());
        let mut deaf = sleeper(&run, None, true);
        std::thread::sleep(Duration::from_millis(300));
        let reaper = std::thread::spawn(move || deaf.wait().unwrap());
        let ended = end(Vec::new(), &Marks::new(&run, &[]));
        assert!(ended.left.is_empty(), "{ended:?}");
        assert!(ended.killed.iter().any(|words| words.contains("trap '' TERM")), "{ended:?}");
        assert!(!reaper.join().unwrap().success());
    }

    #[test]
    fn workers_are_known_by_their_arguments() {
        let marks = Marks::new("a-123456", &[]);
        for (line, wanted) in [
            ("/bin/expertrail\0worker\0rank\0--run-id\0a-123456\0--\0sh\0", true),
            ("mpirun\0-np\x004\0expertrail\0worker\0rank\0--run-id\0a-123456\0", true),
            ("/bin/expertrail\0worker\0rank\0--run-id\0a-1234567\0--\0sh\0", false),
            ("/bin/expertrail\0launch\0run.toml\0--run-id\0a-123456\0", false),
        ] {
            assert_eq!(marks.is_worker(line.as_bytes()), wanted, "{line}");
        }
    }
}
