//! Where the facts of a node come from: this machine, a captured tree, or a document.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use expertrail_bench::export::{check_writable, write_atomic};
use expertrail_cluster::facts::{Facts, Scope};
use expertrail_cluster::root::Root;
use expertrail_cluster::{collect, isolate, nvml};
use expertrail_launch::worker::redact::redact_text;

/// Why a command ends early: what to print and the exit code.
pub(crate) struct Stop {
    message: String,
    code: u8,
}

impl Stop {
    /// Wrong arguments or input.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }

    /// What is printed.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// With words before what is printed.
    pub(crate) fn of(self, what: &str) -> Self {
        Self { message: format!("{what}{}", self.message), ..self }
    }

    /// Nothing can be said.
    pub(crate) fn inconclusive(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 3 }
    }

    /// Another exit code: of what ran inside.
    pub(crate) fn with_code(message: impl Into<String>, code: u8) -> Self {
        Self { message: message.into(), code }
    }

    /// No access: a file, device, cluster.
    pub(crate) fn access(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 4 }
    }
}

/// A line of a log or a system's answer for a terminal: without characters that speak to it, and without secrets.
pub(crate) fn safe(line: &str) -> String {
    let plain: String = line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
    redact_text(&plain)
}

/// Prints an error; gives the exit code.
pub(crate) fn finish(result: Result<u8, Stop>) -> u8 {
    result.unwrap_or_else(|Stop { message, code }| {
        eprintln!("error: {message}");
        code
    })
}

/// What runs drivers' libraries apart from this process: this program once more.
pub(crate) fn itself() -> Option<PathBuf> {
    std::env::current_exe().ok()
}

/// How this machine is read.
pub(crate) fn collecting() -> collect::Options {
    let nvml = nvml::Options { program: itself(), ..nvml::Options::default() };
    collect::Options { nvml, ..collect::Options::default() }
}

/// The child's side of [`itself`]; gives the exit code.
pub(crate) fn isolated() -> u8 {
    match isolate::serve(std::io::stdin().lock(), std::io::stdout().lock()) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error}");
            2
        }
    }
}

/// Where the facts come from.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Source {
    /// Read this facts document (of `expertrail facts`) instead of this machine.
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    pub(crate) facts: Option<PathBuf>,
    /// Read this captured tree (a folder with proc, sys, etc of a node) instead of this machine.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

impl Source {
    /// The facts.
    pub(crate) fn read(&self, options: &collect::Options) -> Result<Facts, Stop> {
        match (&self.facts, &self.root) {
            (Some(file), _) => collect::load(file).map_err(|error| match error {
                collect::LoadError::Read { .. } => Stop::access(error.to_string()),
                _ => Stop::usage(error.to_string()),
            }),
            (None, root) => Ok(collect::facts(&open(root.as_deref())?, options)),
        }
    }
}

/// The tree at `root`, or this machine.
pub(crate) fn open(root: Option<&Path>) -> Result<Root, Stop> {
    let Some(folder) = root else { return Ok(Root::live(Scope::Unknown)) };
    if !folder.is_dir() {
        return Err(Stop::usage(format!("--root {}: no such folder", folder.display())));
    }
    // `--root /` is this machine, and is read as such.
    let whole = folder
        .canonicalize()
        .map_err(|error| Stop::access(format!("--root {}: {error}", folder.display())))?;
    Ok(if whole == Path::new("/") { Root::live(Scope::Unknown) } else { Root::captured(whole) })
}

/// Sees that the maps of process `pid` can be read.
pub(crate) fn mapped(root: &Root, pid: u32) -> Result<(), Stop> {
    let maps = root.text(&format!("/proc/{pid}/maps"));
    if maps.value().is_none_or(String::is_empty) {
        return Err(Stop::access(format!(
            "--pid {pid}: its maps cannot be read: no such process, or another user's"
        )));
    }
    Ok(())
}

/// Checks that `file` can be written, before any work.
pub(crate) fn check_output(file: Option<&Path>) -> Result<(), Stop> {
    match file {
        Some(path) if path != Path::new("-") => {
            check_writable(path).map_err(|error| Stop::access(error.to_string()))
        }
        _ => Ok(()),
    }
}

/// Writes `text` to `file`; `-` is standard output.
pub(crate) fn write_output(file: &Path, text: &str) -> Result<(), Stop> {
    if file == Path::new("-") {
        return print(text);
    }
    write_atomic(file, text).map_err(|error| Stop::access(error.to_string()))
}

/// Writes the document where `--json` wants it, and `text` unless standard output has the document.
pub(crate) fn show(
    file: Option<&Path>,
    json: impl FnOnce() -> serde_json::Result<String>,
    text: &str,
) -> Result<(), Stop> {
    if let Some(file) = file {
        let json = json().map_err(|error| Stop::access(error.to_string()))?;
        write_output(file, &(json + "\n"))?;
    }
    if file != Some(Path::new("-")) {
        print(text)?;
    }
    Ok(())
}

/// Writes `text` to standard output. A reader that has gone is no error.
pub(crate) fn print(text: &str) -> Result<(), Stop> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Stop::access(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
