//! How the binary is started, and what is read back from it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use expertrail_bench::schema::ResultFile;
use expertrail_bench::schema::conform::result_violations;

/// Few iterations; the shape is for each test to give.
pub(crate) const SMALL: [&str; 4] = ["--iters", "3", "--warmup", "1"];

/// Far more than any run here takes, also on a busy machine.
pub(crate) const LONG: Duration = Duration::from_mins(1);

/// `expertrail`, with nothing in its environment that would change what it does.
pub(crate) fn expertrail() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_expertrail"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let launcher = ["EXPERTRAIL_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "MASTER_"];
        let exact = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NO_COLOR"];
        if launcher.iter().any(|prefix| text.starts_with(prefix)) || exact.contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command
}

/// `expertrail bench` with these arguments, not yet started.
pub(crate) fn bench(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = expertrail();
    command.arg("bench").args(args);
    command
}

/// What a finished run left.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Run {
    /// Checks the exit code, showing everything when it is another.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Checks that the message has every one of these parts.
    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is missing in:\n{}", self.err);
        }
        self
    }

    /// Checks that no rank was started: nothing was printed, and no line is marked as a rank's.
    #[track_caller]
    pub(crate) fn started_nothing(self) -> Self {
        assert_eq!(self.out, "", "stderr:\n{}", self.err);
        assert!(!self.err.contains("[rank "), "{}", self.err);
        self
    }
}

/// Runs a command to its end, and kills it when it takes absurdly long.
pub(crate) fn finish(command: Command) -> Run {
    finish_within(LONG, command)
}

/// Runs a command to its end, and kills it after `limit`.
pub(crate) fn finish_within(limit: Duration, command: Command) -> Run {
    let started = Instant::now();
    let output: Output =
        assert_cmd::Command::from_std(command).timeout(limit).output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Run {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
        took: started.elapsed(),
    }
}

/// Runs `expertrail bench` with these arguments.
pub(crate) fn run(args: &[&str]) -> Run {
    finish(bench(args))
}

/// Runs `expertrail bench` with these arguments and [`SMALL`], which must pass, and reads its result back.
#[track_caller]
pub(crate) fn passes(args: &[&str]) -> ResultFile {
    let folder = Folder::new();
    let result = result_of(args, &folder, 0, |_| {});
    assert!(result.verdict.status.label() == "PASS", "{:?}", result.verdict);
    assert_eq!(result.verification.mismatches, 0);
    result
}

/// Runs with `--json` into `folder`, expecting an exit code, and reads the result back.
#[track_caller]
pub(crate) fn result_of(
    args: &[&str],
    folder: &Folder,
    code: i32,
    prepare: impl FnOnce(&mut Command),
) -> ResultFile {
    let file = folder.path("result.json");
    let mut command = bench(args);
    command.args(SMALL).arg("--json").arg(&file);
    prepare(&mut command);
    finish(command).exits(code);
    read_result(&file)
}

/// Reads a result file: it must conform to the schema and read back.
#[track_caller]
pub(crate) fn read_result(file: &Path) -> ResultFile {
    let text = std::fs::read_to_string(file).expect("a result was written");
    let violations = result_violations(&serde_json::from_str(&text).expect("JSON"));
    assert!(violations.is_empty(), "{violations:#?}");
    ResultFile::from_json(&text).expect("a result")
}

/// A folder that is removed at the end of its test. Not in /tmp: what the ranks leave there is looked for.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a folder of this test");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file's path as an argument.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.path(name).to_str().expect("a UTF-8 path").to_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).expect("writing a test file");
        self.arg(name)
    }

    /// Names of the files in it, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
