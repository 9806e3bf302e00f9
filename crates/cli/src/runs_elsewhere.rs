//! Runs on Slurm and on hosts, by the directory that `render` wrote: what there is of one, its logs, its end.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use expertrail_launch::drive::System;
use expertrail_launch::drive::command::SearchPath;
use expertrail_launch::drive::process::Hosts;
use expertrail_launch::drive::slurm::Slurm;
use expertrail_launch::run::{Run, Target};
use expertrail_launch::worker::frame::MARK;

use super::{Terminal, agreed, load};
use crate::node::{Stop, print, safe};

/// A run that is not in Kubernetes.
pub(super) struct Elsewhere {
    run: Run,
    folder: PathBuf,
}

/// The run of the directory `given`, where it was rendered for Slurm or hosts.
pub(super) fn of(given: &str) -> Result<Option<Elsewhere>, Stop> {
    let folder = Path::new(given);
    if !folder.is_dir() {
        return Ok(None);
    }
    let run = load(folder)?;
    if matches!(run.target, Target::K8sJob | Target::Mpijob) {
        return Ok(None);
    }
    Ok(Some(Elsewhere { run, folder: folder.to_owned() }))
}

impl Elsewhere {
    /// The run's id.
    pub(super) fn id(&self) -> &str {
        &self.run.id
    }

    /// How it stands; none where nothing of it is there.
    pub(super) fn lines(&self) -> Result<Vec<String>, Stop> {
        Ok(match self.slurm() {
            Some(slurm) => slurm.status()?,
            None => self.hosts().status(),
        })
    }

    /// Whether what is there was left behind: on Slurm every job that is shown has not ended.
    pub(super) fn over(&self) -> bool {
        self.slurm().is_none() && self.hosts().left_behind()
    }

    fn slurm(&self) -> Option<Slurm<'_>> {
        (self.run.target == Target::Slurm).then(|| Slurm::new(&SearchPath, &self.run, &self.folder))
    }

    /// What a launch on hosts left: it ends with its launch, so that only a killed one leaves anything.
    fn hosts(&self) -> Hosts<'_> {
        Hosts::new(&self.run, &self.folder)
    }
}

/// How it stands.
pub(super) fn status(one: &Elsewhere) -> Result<u8, Stop> {
    let lines = one.lines()?;
    if lines.is_empty() {
        return Err(Stop::inconclusive(format!("nothing of run {} is under way", one.run.id)));
    }
    print(&(lines.join("\n") + "\n")).map(|()| 0)
}

/// What it has written so far.
pub(super) fn logs(one: &Elsewhere, all: bool) -> Result<u8, Stop> {
    let files = match one.slurm() {
        Some(slurm) => slurm.logs(),
        None => one.hosts().logs(),
    };
    // What a launch collected, it took away from where the run had written it.
    let files = if files.is_empty() { collected(&one.folder) } else { files };
    if files.is_empty() {
        return Err(Stop::inconclusive(format!("run {} has written no log yet", one.run.id)));
    }
    let on_hosts = one.run.target != Target::Slurm;
    // The batch script's own log and rank 0's, or all. On hosts a log holds all ranks of the step, or those of one node.
    let first = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let of_a_node = name.rsplit_once("-node").is_some_and(|(_, rest)| {
            rest.strip_suffix(".log").is_some_and(|number| number.parse::<u32>().is_ok())
        });
        name.starts_with(&one.run.id)
            || name.ends_with("rank0.log")
            || name.ends_with("node0.log")
            || on_hosts && !of_a_node
    };
    for file in files.iter().filter(|file| all || first(file)) {
        show(file)?;
    }
    Ok(0)
}

/// Logs of the newest launch.
fn collected(folder: &Path) -> Vec<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()));
        entries.map(Iterator::collect).unwrap_or_default()
    };
    let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let mut all: Vec<PathBuf> =
        list(&folder.join("results")).into_iter().filter(|path| number(path).is_some()).collect();
    all.sort_by_key(|path| std::cmp::Reverse(number(path)));
    // One that was refused left none.
    let mut files =
        all.iter().map(|one| list(&one.join("logs"))).find(|logs| !logs.is_empty()).unwrap_or_default();
    files.sort();
    files
}

/// Prints a log piece by piece, however long it is, without the lines that carry files.
fn show(file: &Path) -> Result<(), Stop> {
    let failed = |error: std::io::Error| Stop::access(format!("cannot read {}: {error}", file.display()));
    let mut reader = BufReader::new(File::open(file).map_err(failed)?);
    print(&format!("==> {} <==\n", file.display()))?;
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).map_err(failed)? > 0 {
        let text = String::from_utf8_lossy(&line);
        if !text.contains(MARK) {
            print(&(safe(text.trim_end_matches(['\r', '\n'])) + "\n"))?;
        }
        line.clear();
    }
    Ok(())
}

/// Ends it.
pub(super) fn clean(one: &Elsewhere, yes: bool) -> Result<u8, Stop> {
    if let Some(mut slurm) = one.slurm() {
        let lines = slurm.status()?;
        if !lines.is_empty() && !yes && !agreed(&lines)? {
            return Err(Stop::inconclusive("nothing was removed"));
        }
        return Ok(slurm.clean(&mut Terminal).map(|()| 0)?);
    }
    let mut hosts = one.hosts();
    let lines = hosts.status();
    if !lines.is_empty() && !yes && !agreed(&lines)? {
        return Err(Stop::inconclusive("nothing was removed"));
    }
    Ok(hosts.clean(&mut Terminal).map(|()| 0)?)
}
