//! `clean --all`: every run that can be found from here, and the removal of those that are over, or of all.
//!
//! Found are the runs of a namespace by their label, those whose directory lies in the current one, and those that processes of this host
//! or Slurm jobs of this user work for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use expertrail_launch::drive::command::SearchPath;
use expertrail_launch::drive::kube::{self, Place, RealClock, Site};
use expertrail_launch::drive::{DriveError, process, slurm};

use super::elsewhere::{self, Elsewhere};
use super::{NAMESPACE, Terminal, Where, confirm};
use crate::node::Stop;

/// A run that was found.
struct Known {
    /// For the person: id and place.
    title: String,
    /// Nothing of it is under way any more.
    over: bool,
    /// How it stands.
    lines: Vec<String>,
    place: Found,
}

enum Found {
    /// In the namespace, by its id.
    Kube(String),
    /// In a directory.
    Elsewhere(Box<Elsewhere>),
}

/// Cleans; without `yes` asks, and takes only those that are over.
pub(super) fn clean(place: &Where, yes: bool) -> Result<u8, Stop> {
    let kubectl = place.kubectl()?;
    let namespace = place.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
    let wanted = Place { context: place.context.clone(), namespace };
    let named = place.context.is_some() || place.namespace.is_some() || place.kubeconfig.is_some();
    let found = Site::open(&kubectl, &RealClock, &wanted).and_then(|site| Ok((in_cluster(&site)?, site)));
    let (mut all, site) = match found {
        Ok((runs, site)) => (runs, Some(site)),
        Err(error) if named => return Err(error.into()),
        // Who runs on Slurm or on hosts has no cluster to be asked.
        Err(error) => {
            eprintln!("note: Kubernetes is not looked at: {error}");
            (Vec::new(), None)
        }
    };
    // Who names a namespace means its runs, and not those of this host.
    if !named {
        all.extend(elsewhere_here()?);
    }
    if all.is_empty() {
        return Err(Stop::inconclusive(format!(
            "no run is found: none in namespace {}{}",
            wanted.namespace,
            if named {
                ""
            } else {
                ", none in a directory here, and no process of this host or Slurm job of yours works for one"
            }
        )));
    }
    for one in &all {
        eprintln!("{}{}", one.title, if one.over { ": over" } else { ": under way" });
        for line in &one.lines {
            eprintln!("  {line}");
        }
    }
    let chosen: Vec<&Known> = all.iter().filter(|one| yes || one.over).collect();
    if chosen.is_empty() {
        return Err(Stop::inconclusive(
            "nothing was removed: all of them are under way. `expertrail clean RUN` ends one, and --all --yes ends all",
        ));
    }
    if !yes {
        let names: Vec<&str> = chosen.iter().map(|one| one.title.as_str()).collect();
        if !confirm(&format!("remove what is over ({})?", names.join(", ")))? {
            return Err(Stop::inconclusive("nothing was removed"));
        }
    }
    removed(&chosen, site.as_ref())
}

/// Removes one after the other; one that stays is no reason to leave the others.
fn removed(chosen: &[&Known], site: Option<&Site<'_>>) -> Result<u8, Stop> {
    let mut failed: Option<Stop> = None;
    for one in chosen {
        eprintln!("{}", one.title);
        let result = match (&one.place, site) {
            (Found::Kube(id), Some(site)) => kube::remove(site, id, &mut Terminal).map_err(Stop::from),
            (Found::Kube(_), None) => Ok(()),
            // Asked and answered above.
            (Found::Elsewhere(run), _) => elsewhere::clean(run, true).map(|_| ()),
        };
        if let Err(stop) = result {
            eprintln!("error: {}: {}", one.title, stop.message());
            failed = failed.or(Some(stop));
        }
    }
    match failed {
        Some(stop) => Err(stop.of("not all runs were removed, the first that stays: ")),
        None => Ok(0),
    }
}

fn in_cluster(site: &Site<'_>) -> Result<Vec<Known>, DriveError> {
    let mut all = Vec::new();
    for id in kube::runs(site)?.into_keys() {
        all.push(Known {
            title: format!("run {id} in namespace {}", site.namespace),
            over: kube::over(site, &id)?,
            lines: kube::status(site, &id)?.unwrap_or_default(),
            place: Found::Kube(id),
        });
    }
    Ok(all)
}

/// Runs outside of Kubernetes of which something is left.
fn elsewhere_here() -> Result<Vec<Known>, Stop> {
    let mut folders = process::directories();
    match slurm::directories(&SearchPath) {
        Ok(found) => folders.extend(found),
        Err(DriveError::NoProgram(_)) => {}
        Err(error) => eprintln!("note: Slurm is not looked at: {error}"),
    }
    folders.extend(below(Path::new(".")));
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for folder in folders {
        let real = folder.canonicalize().unwrap_or_else(|_| folder.clone());
        if !seen.insert(real.clone()) {
            continue;
        }
        // What another version rendered, or anything else with a run.json, is not known here.
        let Ok(Some(run)) = elsewhere::of(&real.to_string_lossy()) else { continue };
        let lines = run.lines()?;
        if !lines.is_empty() {
            let title = format!("run {} in {}", run.id(), folder.display());
            all.push(Known { title, over: run.over(), lines, place: Found::Elsewhere(Box::new(run)) });
        }
    }
    Ok(all)
}

/// `folder` and the folders in it.
fn below(folder: &Path) -> Vec<PathBuf> {
    let inner = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = std::iter::once(folder.to_owned())
        .chain(inner)
        .filter(|one| one.join("run.json").is_file())
        .collect();
    all.sort();
    all
}
