//! Reading many documents at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use super::Node;
use crate::collect;

/// A document that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unread {
    /// The file.
    pub file: String,
    /// Why.
    pub reason: String,
}

/// A document: its node, or why there is none.
pub type Capture = Result<Node, Unread>;

/// The documents that `paths` name: files as they are, of a folder its `*.json` files in order of their names.
///
/// # Errors
/// A folder that cannot be listed, or has no such file.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let failed = |error: std::io::Error| format!("cannot list {}: {error}", path.display());
        let mut found = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|end| end == "json") && file.is_file() {
                found.push(file);
            }
        }
        if found.is_empty() {
            return Err(format!("{} has no *.json files", path.display()));
        }
        found.sort();
        all.extend(found);
    }
    Ok(all)
}

/// Reads every document, in the order of `files`. Of each only what is compared stays in memory.
pub fn read(files: &[PathBuf]) -> Vec<Capture> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(files.len()).max(1);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, file)) = take(&next, files) {
            done.push((index, one(file)));
        }
        done
    };
    let mut all: Vec<(usize, Capture)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<_>>| {
            // A thread's panic goes on here: a document must not go missing without a word.
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, capture)| capture).collect()
}

fn take<'a>(next: &AtomicUsize, files: &'a [PathBuf]) -> Option<(usize, &'a PathBuf)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    files.get(index).map(|file| (index, file))
}

fn one(file: &Path) -> Capture {
    match collect::load(file) {
        Ok(facts) => Ok(Node::new(&facts, file)),
        Err(error) => Err(Unread { file: file.display().to_string(), reason: error.to_string() }),
    }
}
